"""Encrypted frames, read by tshark with the key of the network, against the packets that kpat recognised without it.

    air.py KPAT LOG CAPTURE PASSPHRASE SSID LEAST     prints JSON with `wrong`
"""
import json
import subprocess
import sys


def run(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=120, text=True).stdout


def check(kpat: str, log: str, capture: str, passphrase: str, ssid: str, least: str) -> dict:
    key = f'uat:80211_keys:"wpa-pwd","{passphrase}:{ssid}"'
    since = json.loads(run(kpat, "-q", "info", log, "--json"))["recording"]["started_wall_ns"] / 1e9
    reported = run("tshark", "-n", "-r", capture, "-o", "wlan.enable_decryption:TRUE", "-o", key, "-Y", f"wlan.fc.protected == 1 && (udp.port == 9000 || icmp) && frame.time_epoch >= {since:.6f}",
               "-T", "fields", "-e", "frame.number", "-e", "ip.id", "-e", "ip.src")
    inside = {int(n): (int(ip_id, 16), src) for n, ip_id, src in (line.split("\t") for line in reported.splitlines())}
    rows = run(kpat, "-q", "sql", log, "--tsv", "select distinct packet_id, ip_id, ip_src from footprint where ip_id is not null").splitlines()[1:]
    packets = {int(p): (int(ip_id), src) for p, ip_id, src in (line.split("\t") for line in rows)}
    frames = {f["number"]: [p["packet_id"] for p in f["packets"]] for f in json.loads(run(kpat, "-q", "frames", log, "-n", "0", "--json"))["frames"]}
    known = set(packets.values())
    asked = {n: who for n, who in inside.items() if who in known}
    made = {n: p for n, found in frames.items() for p in found if n in inside}
    wrong = [f"frame {n} is {inside[n]}, and packet {p} is {packets.get(p)}" for n, p in made.items() if packets.get(p) != inside[n]]
    missed = [n for n in asked if not frames.get(n)]
    several = [n for n, found in frames.items() if len(found) > 1 and n in inside]
    wrong += [f"frame {n} has no packet" for n in missed] + [f"frame {n} has several" for n in several]
    if len(asked) < int(least):
        wrong.append(f"only {len(asked)} frames could be read with the key")
    return {"read_with_the_key": len(inside), "of_the_log": len(asked), "matched": len(made), "wrong": wrong[:10]}


result = check(*sys.argv[1:])
print(json.dumps(result), flush=True)
sys.exit(bool(result["wrong"]))
