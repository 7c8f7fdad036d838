"""What integrating a log costs and how soon a look-up answers, for logs of several sizes, against tshark on the capture.

The logs are made, not recorded (crates/analysis/examples/synth.rs): a forwarded packet is 24 calls and two frames.
"""

import json
import os
import re
import subprocess
import time

TSHARK = "-n -T fields -e frame.number -e frame.time_epoch -e ip.src -e ip.dst -e ip.id -e ip.proto -e tcp.seq -e udp.length".split()


def timed(command, folder):
    """Seconds by the wall and of CPU, peak memory and bytes read from files of one command, by GNU time and /proc."""
    times = os.path.join(folder, "times")
    started = time.monotonic()
    p = subprocess.run(
        ["/usr/bin/time", "-o", times, "-f", "%U %S %M %I", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wall = time.monotonic() - started
    last = open(times).read().strip().splitlines()[-1].split()
    return {
        "rc": p.returncode,
        "wall_s": round(wall, 4),
        "user_s": float(last[0]),
        "sys_s": float(last[1]),
        "peak_rss_kib": int(last[2]),
        "out_bytes": len(p.stdout),
    }, p.stdout


def size_of(folder):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)


def measure(kpat, synth, folder, millions, rounds, save):
    rows = []

    def add(**r):
        rows.append(r | {"load_average": os.getloadavg()[0]})
        save(rows)
        print(json.dumps(rows[-1]), flush=True)

    for m in millions:
        d = os.path.join(folder, f"{m}m")
        kbl, wire, store = (os.path.join(d, x) for x in ("x.kbl", "w.pcapng", "x.kpat"))
        if not os.path.exists(kbl):
            subprocess.run([synth, d, str(m * 1000000), str(m * 100000)], check=True, stdout=subprocess.DEVNULL)
        join = [kpat, "integrate", kbl, wire, "-o", store, "--force", "--json", "--no-progress"]
        shark = ["tshark", "-r", wire, *TSHARK]
        said = {}
        for n in range(1, (rounds if m <= 10 else 1) + 1):
            what, out = timed(join, folder)
            said = json.loads(out)
            counts = {k: said[k] for k in ("calls", "packets", "frames", "matched_frames", "records")}
            add(millions=m, what="integrate", round=n, **what, **counts, log_bytes=os.path.getsize(kbl), store_bytes=size_of(store))
            if m <= 10:
                what, out = timed(shark, folder)
                add(millions=m, what="tshark", round=n, **what, frames=out.count(b"\n"), wire_bytes=os.path.getsize(wire))
        looks = {
            "packet, first": ["packet", "5", store],
            "packet, middle": ["packet", str(said["packets"] // 2), store],
            "packet, last": ["packet", str(said["packets"] - 2), store],
            "packet --frame": ["packet", "--frame", str(said["frames"] // 2), store],
            "function": ["function", "ip_forward", store],
            "functions": ["functions", store],
            "packets": ["packets", store],
            "info": ["info", store],
        }
        for n in range(1, 6):
            for what, command in looks.items():
                t, out = timed([kpat, *command], folder)
                add(millions=m, what=what, round=n, **t)
            started = time.monotonic()
            p = subprocess.run(f"'{kpat}' packets '{store}' --limit 0 | head -20", shell=True, capture_output=True)
            add(millions=m, what="packets --limit 0 | head", round=n, rc=p.returncode, wall_s=time.monotonic() - started)
