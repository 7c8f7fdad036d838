#!/usr/bin/env python3
"""What recording adds to a handover between emulated radios, in a guest whose time is the instructions that it executed: roams with `kpat record -p wifi,path` and without, in turn.

    roams.py KERNEL OUT.json [--blocks 4] [--phases 8]        KPAT: the kpat to measure

Most of a roam are waits for the kernel's tick and for beacons. So each is asked for at one of some phases of both (512 ms), in both directions, and with and without are compared phase by phase.
A block is recorded or not, in the order with, without, without, with. The neighbour is permanent, so no timer of ARP is in it. Of each roam, by others' records: what the supplicant took
from its request for authentication to *connected*, the longest time between two echoes of a flow (4 ms), and the time from the command to the first echo behind that."""
import argparse
import bisect
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "lab/tools/handover.sh"
RUN = Path("/run/handover")
OUT = Path("/lab")
KPAT = os.environ.get("KPAT", str(ROOT / "target/release/kpat"))
SAYS = {"link_ms": "authentication to connected", "gap_ms": "longest time without an echo", "whole_ms": "command to first echo"}
PERIOD = 0.512
boot = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


def run(words: str, **more) -> str:
    return subprocess.run(words.split(), check=True, capture_output=True, text=True, **more).stdout


def until(what, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise SystemExit("waited in vain")
        time.sleep(0.1)


def status(key: str) -> str:
    found = re.search(rf"^{key}=(.*)$", run(f"wpa_cli -p {RUN}/wpa -i w2 status"), re.M)
    return found[1] if found else ""


def busy(pid: int) -> dict[str, int]:
    """Ns on a CPU: of a recorder's threads, and of its programs in the kernel."""
    threads = sum(int((t / "schedstat").read_text().split()[0]) for t in Path(f"/proc/{pid}/task").iterdir())
    programs = {}
    for f in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            said = dict(re.findall(r"^(prog_id|run_time_ns):\s+(\d+)", f.read_text(), re.M))
        except OSError:
            continue
        if "run_time_ns" in said:
            programs[said["prog_id"]] = int(said["run_time_ns"])
    return {"threads": threads, "programs": sum(programs.values())}


def started(ns: str, *words) -> subprocess.Popen:
    return subprocess.Popen(["ip", "netns", "exec", ns, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "VOICE_MS": "4"})


def inside(blocks: int, phases: int) -> None:
    """In the guest."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    run("sysctl -qw kernel.bpf_stats_enabled=1")
    run("modprobe -a af_packet bridge ccm cmac ctr gcm veth")
    for ns in ("ap1", "ap2", "sta", "ds", "air"):
        run(f"ip netns add {ns}")
    run(f"ip netns exec ap1 {SCRIPT} radios roams")
    started("ds", SCRIPT, "network", "roams", OUT)
    started("sta", SCRIPT, "station", "roams", OUT)
    until((RUN / "station").exists)
    mac = json.loads(run("ip -n ds -j link show br0"))[0]["address"]
    run(f"ip -n sta neigh replace 10.1.0.1 lladdr {mac} dev w2 nud permanent")
    voice = OUT / "voice.log"
    started("sta", sys.executable, ROOT / "lab/tools/voice.py", "send", "10.9.0.2", "5004", "36000", voice)
    until(lambda: voice.exists() and " echo " in voice.read_text())
    bssid = [(RUN / f"bssid{n}").read_text().strip() for n in (1, 2)]
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    control.bind(str(RUN / "roams"))
    control.connect(str(RUN / "wpa/w2"))
    run(f"wpa_cli -p {RUN}/wpa -i w2 roam {bssid[0]}")
    time.sleep(3)
    commands = []
    for block in range(blocks):
        with_it, record = block % 4 in (0, 3), None
        if with_it:
            ready = RUN / "ready"
            ready.unlink(missing_ok=True)
            words = [KPAT, "record", "--force", "-o", "/run/handover/c.kbl", "-p", "wifi,path", "--netns", "sta", "--ready-file", str(ready)]
            record = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=open(OUT / "record.err", "a"))
            until(ready.exists)
        time.sleep(1)
        # Each phase from the first access point and back.
        for i in range(2 * phases):
            to = bssid[1 - i % 2]
            run(f"wpa_cli -p {RUN}/wpa -i w2 scan freq=2412,2437")
            time.sleep(1.5)
            now, due = time.time(), PERIOD * (i // 2 + 0.37) / phases
            time.sleep(PERIOD + (due - now) % PERIOD)
            before = busy(record.pid) if record else {}
            commands.append((boot(), time.time() - boot(), with_it, f"{i // 2} to {1 - i % 2}", {}))
            control.send(f"ROAM {to}".encode())
            time.sleep(0.1)
            if record:
                commands[-1][4].update({t: (ns - before.get(t, 0)) / 1e6 for t, ns in busy(record.pid).items()})
            time.sleep(1.4)
            if status("bssid") != to:
                print(f"no roam to {to}", flush=True)
                run(f"wpa_cli -p {RUN}/wpa -i w2 roam {to}")
                time.sleep(3)
        if record:
            record.send_signal(signal.SIGINT)
            record.wait()
        print(f"block {block}: {'with' if with_it else 'without'}", flush=True)
    echoes = [float(line.split()[0]) for line in voice.read_text().splitlines() if " echo " in line]
    said = [(float(line.split(":")[0]), line) for line in (OUT / "supplicant.log").read_text().splitlines() if re.match(r"\d+\.\d+: ", line)]
    rows = []
    for at, offset, with_it, phase, recorder in commands:
        of = [(t - offset, line) for t, line in said if at <= t - offset < at + 1.5]
        first = next((t for t, line in of if "Trying to authenticate" in line), None)
        tries = sum("Trying to authenticate" in line for t, line in of if t < at + 1.5)
        done = next((t for t, line in of if "CTRL-EVENT-CONNECTED" in line), None)
        around = echoes[max(0, bisect.bisect(echoes, at) - 1):bisect.bisect(echoes, at + 1.2)]
        gap, end = max((b - a, b) for a, b in zip(around, around[1:]))
        rows.append({"with": with_it, "phase": phase, "recorder_ms": recorder, "tries": tries, "link_ms": (done - first) * 1e3 if first and done else None, "gap_ms": gap * 1e3, "whole_ms": (end - at) * 1e3})
    (OUT / "roams.json").write_text(json.dumps({"kernel": os.uname().release, "roams": rows}))


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("kernel")
    a.add_argument("out", type=Path)
    a.add_argument("--blocks", type=int, default=4)
    a.add_argument("--phases", type=int, default=8)
    a = a.parse_args()
    if a.kernel == "inside":
        return inside(a.blocks, a.phases)
    with tempfile.TemporaryDirectory() as keep:
        keep = os.environ.get("KEEP", keep)
        inner = [sys.executable, str(Path(__file__).resolve()), "inside", "/lab/x", "--blocks", str(a.blocks), "--phases", str(a.phases)]
        words = [str(ROOT / "lab/lab"), "exec", "--kernel", a.kernel, "--det", "--mem", "2048", "--timeout", "1500", "--keep", keep, "--env", f"KPAT={KPAT}", "--", *inner]
        subprocess.run(words, check=True)
        result = json.loads((Path(keep) / "roams.json").read_text())
    a.out.write_text(json.dumps(result))
    # A second attempt has timers in it: those of the first only, and how many others there were.
    once = [r for r in result["roams"] if r["tries"] == 1 and r["link_ms"]]
    print(f"{result['kernel']}: {len(once)} of {len(result['roams'])} roams went at the first attempt")
    # What it adds at most, if nothing of it ran while others waited for something else.
    spent = {of: statistics.median(r["recorder_ms"][of] for r in once if r["with"]) for of in ("threads", "programs")}
    print(f"on the CPU in the 0.1 s from the command on: the recorder's threads {spent['threads']:.3f} ms, its programs {spent['programs']:.3f} ms")
    medians = lambda key, w: {p: statistics.median(v) for p in sorted({r["phase"] for r in once}) if (v := [r[key] for r in once if r["with"] is w and r["phase"] == p])}
    for key, what in SAYS.items():
        ours, bare = medians(key, True), medians(key, False)
        both = sorted(ours.keys() & bare.keys())
        apart = [ours[p] - bare[p] for p in both]
        mean = lambda v: sum(v) / len(v)
        drawn = sorted(mean(random.choices(apart, k=len(apart))) for _ in range(4000))
        of = mean([bare[p] for p in both])
        percent = lambda ms: f"{100 * ms / of:.2f} %"
        print(f"{what}: {mean([ours[p] for p in both]):.3f} ms recorded, {of:.3f} ms not, {len(both)} phases; {mean(apart):.3f} ms more ({drawn[100]:.3f} to {drawn[3900]:.3f}): "
              f"{percent(mean(apart))} ({percent(drawn[100])} to {percent(drawn[3900])})")


if __name__ == "__main__":
    main()
