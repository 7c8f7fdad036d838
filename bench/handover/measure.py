#!/usr/bin/env python3
"""What recording adds to a handover: flaps of a wired link with a flow over it, with `kpat record -p wifi,path` and without, in turn; as root.

    measure.py OUT.json [--blocks 16] [--flaps 8]        KPAT: the kpat to measure

A block is recorded or not, in the order with, without, without, with. The neighbour is permanent, so no timer of ARP is in it. Of each flap: from the link's return to the first
echo of the flow (2 ms apart), and what the commands took that made it. Prints the difference of medians with a 95 % interval (bootstrap)."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KPAT = os.environ.get("KPAT", str(ROOT / "target/release/kpat"))
STATION, NET = f"hs{os.getpid()}", f"hn{os.getpid()}"
boot = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


def ip(words: str) -> str:
    return subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True).stdout


def flap(mac: str, log: Path) -> tuple[float, float] | None:
    fixed = f"-n {STATION} neigh replace 10.1.0.1 lladdr {mac} dev e0 nud permanent"
    time.sleep(1.2)
    ip(fixed)
    down = boot()
    ip(f"-n {NET} link set n0 down")
    time.sleep(0.5)
    ip(f"-n {NET} link set n0 up")
    ip(fixed)
    up = boot()
    time.sleep(1)
    echoes = [float(line.split()[0]) for line in log.read_text().splitlines()[-2000:] if " echo " in line]
    after = [at for at in echoes if at > up]
    return (after[0] - up, up - down) if after else None


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("out", type=Path)
    a.add_argument("--blocks", type=int, default=16)
    a.add_argument("--flaps", type=int, default=8)
    a = a.parse_args()
    results, started = {"with": [], "without": []}, []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        voice = ROOT / "lab/tools/voice.py"
        try:
            for ns in (STATION, NET):
                ip(f"netns add {ns}")
            ip(f"link add e0 netns {STATION} type veth peer name n0 netns {NET}")
            ip(f"-n {NET} addr add 10.1.0.1/24 dev n0")
            ip(f"-n {STATION} addr add 10.1.0.2/24 dev e0")
            ip(f"-n {NET} link set n0 up")
            ip(f"-n {STATION} link set e0 up")
            mac = json.loads(ip(f"-n {NET} -j link show n0"))[0]["address"]
            log = folder / "flow.log"
            for ns, words in ((NET, ["echo", "5004", str(folder / "peer.log")]), (STATION, ["send", "10.1.0.1", "5004", "3600", str(log)])):
                started.append(subprocess.Popen(["ip", "netns", "exec", ns, sys.executable, str(voice), *words], stdout=subprocess.DEVNULL, env={**os.environ, "VOICE_MS": "2"}))
                time.sleep(1)
            for block in range(a.blocks):
                which = "with" if block % 4 in (0, 3) else "without"
                record = None
                if which == "with":
                    ready = folder / "ready"
                    ready.unlink(missing_ok=True)
                    words = ["record", "--force", "-o", str(folder / "c.kbl"), "-p", "wifi,path", "--netns", STATION, "--ready-file", str(ready)]
                    record = subprocess.Popen([KPAT, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    started.append(record)
                    while not ready.exists() and record.poll() is None:
                        time.sleep(0.05)
                results[which] += filter(None, (flap(mac, log) for _ in range(a.flaps)))
                if record:
                    record.send_signal(2)
                    record.wait(60)
                print(f"{block + 1} of {a.blocks}: {which}", file=sys.stderr, flush=True)
        finally:
            for p in started:
                if p.poll() is None:
                    p.kill()
            for ns in (STATION, NET):
                subprocess.run(["ip", "netns", "del", ns], check=False)
    a.out.write_text(json.dumps(results))
    ours, bare = ([x[0] * 1e3 for x in results[k]] for k in ("with", "without"))
    draw = lambda v: statistics.median(random.choices(v, k=len(v)))
    apart = sorted(draw(ours) - draw(bare) for _ in range(4000))
    print(f"link up to first echo: {statistics.median(ours):.2f} ms recorded ({len(ours)}), {statistics.median(bare):.2f} ms not ({len(bare)}); "
          f"difference of medians {statistics.median(ours) - statistics.median(bare):.2f} ms ({apart[100]:.2f} to {apart[3900]:.2f})")


if __name__ == "__main__":
    main()
