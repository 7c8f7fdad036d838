"""What integrating a log costs and how soon a look-up answers, for logs of several sizes, against tshark on the capture.

The logs are made (crates/integrate/examples/synth.rs): a forwarded packet is 24 calls and two frames. Beside them a log that was recorded,
the same records over and over (crates/integrate/examples/repeat.rs): what a recorder does not see of a packet's end counts there.
`capture alone` reads the same capture to fields beside a log of one packet: what tshark is asked for, without the join.
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


class Bench:
    def __init__(self, kpat, synth, folder, save, rows=None):
        self.kpat, self.synth, self.folder, self.save, self.rows = kpat, synth, folder, save, rows or []

    def add(self, **r):
        self.rows.append(r | {"load_average": os.getloadavg()[0]})
        self.save(self.rows)
        print(json.dumps(self.rows[-1]), flush=True)

    def files(self, m):
        d = os.path.join(self.folder, f"{m}m")
        kbl, wire, store = (os.path.join(d, x) for x in ("x.kbl", "w.pcapng", "x.kpat"))
        if not os.path.exists(kbl):
            subprocess.run([self.synth, d, str(m * 1000000), str(m * 100000)], check=True, stdout=subprocess.DEVNULL)
        return kbl, wire, store

    def integrate(self, m, rounds, peer_rounds):
        kbl, wire, store = self.files(m)
        one = os.path.join(self.folder, "one")
        if not os.path.exists(one):
            subprocess.run([self.synth, one, "24", "0"], check=True, stdout=subprocess.DEVNULL)
        options = ["--force", "--json", "--no-progress"]
        join = [self.kpat, "integrate", kbl, wire, "-o", store, *options]
        alone = [self.kpat, "integrate", os.path.join(one, "x.kbl"), wire, "-o", os.path.join(one, "x.kpat"), *options]
        for n in range(1, rounds + 1):
            what, out = timed(join, self.folder)
            answer = json.loads(out)
            counts = {k: answer[k] for k in ("calls", "packets", "frames", "matched_frames", "records")}
            sizes = {"log_bytes": os.path.getsize(kbl), "store_bytes": size_of(store)}
            self.add(millions=m, what="integrate", round=n, **what, **counts, **sizes)
            what, out = timed(alone, self.folder)
            self.add(millions=m, what="capture alone", round=n, **what, frames=json.loads(out)["frames"])
            if n <= peer_rounds:
                what, out = timed(["tshark", "-r", wire, *TSHARK], self.folder)
                self.add(millions=m, what="tshark", round=n, **what, frames=out.count(b"\n"), wire_bytes=os.path.getsize(wire))

    def recorded(self, m, repeat, log):
        """A recorded log until it has so many million packets: what is held must not grow."""
        kbl, store = (os.path.join(self.folder, f"recorded-{m}m.{x}") for x in ("kbl", "kpat"))
        once = os.path.join(self.folder, "recorded.kpat")
        options = ["--force", "--json", "--no-progress"]
        packets = json.loads(timed([self.kpat, "integrate", log, "-o", once, *options], self.folder)[1])["packets"]
        subprocess.run([repeat, log, kbl, str(-(-m * 1000000 // packets))], check=True)
        what, out = timed([self.kpat, "integrate", kbl, "-o", store, *options], self.folder)
        reported = json.loads(out)
        counts = {k: reported[k] for k in ("calls", "packets", "frames", "matched_frames", "records")}
        sizes = {"log_bytes": os.path.getsize(kbl), "store_bytes": size_of(store)}
        self.add(millions=m, what="integrate, recorded (M packets)", round=1, **what, **counts, **sizes)

    def look(self, m, rounds):
        store = self.files(m)[2]
        answer = next(r for r in self.rows if r["millions"] == m and r["what"] == "integrate")
        looks = {
            "packet, first": ["packet", "5", store],
            "packet, middle": ["packet", str(answer["packets"] // 2), store],
            "packet, last": ["packet", str(answer["packets"] - 2), store],
            "packet --frame": ["packet", "--frame", str(answer["frames"] // 2), store],
            "function": ["function", "ip_forward", store],
            "functions": ["functions", store],
            "packets": ["packets", store],
            "info": ["info", store],
        }
        for n in range(1, rounds + 1):
            for what, command in looks.items():
                t, out = timed([self.kpat, *command], self.folder)
                self.add(millions=m, what=what, round=n, **t)
            started = time.monotonic()
            p = subprocess.run(f"'{self.kpat}' packets '{store}' --limit 0 | head -20", shell=True, capture_output=True)
            self.add(millions=m, what="packets --limit 0 | head", round=n, rc=p.returncode, wall_s=time.monotonic() - started)


def measure(kpat, synth, repeat, log, folder, millions, rounds, save):
    b = Bench(kpat, synth, folder, save)
    for m in (1, 10):
        b.recorded(m, repeat, log)
    for m in millions:
        # tshark is slow and even: twice is enough for the large ones.
        b.integrate(m, rounds if m <= 10 else 1, 0 if m > 10 else 2 if m > 1 else rounds)
        b.look(m, rounds)
