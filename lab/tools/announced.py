#!/usr/bin/env python3
"""Changes of links, addresses, routes, queueing in namespaces of its own, recorded, and each judged by what kpat does not know: the pid of the
command, the CPU that it was bound to, CLOCK_BOOTTIME before and after it, and ftrace's own probe of the function that announces.

    announced.py KPAT OUT [--mechanism M] [--burst N] [--bounds]    JSON to stdout; 1 if anything is wrong. --bounds: stamps are not expected
    announced.py KPAT OUT --make, then --judge                      the same in two steps, the first in a guest and the second where time is cheap
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

TRACE = Path("/sys/kernel/tracing")
NAMES = ["kpst0", "kpst1", "kpst2"]
# ftrace counts in microseconds, and a processor may be taken away between its probe and ours: an emulated one, by a busy machine, for long.
APART_NS = 50_000_000
boot = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def probe(line):
    """Appended without a seek, which the file does not have."""
    fd = os.open(TRACE / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    os.write(fd, line.encode())
    os.close(fd)


class Ftrace:
    """An instance of its own, in the boot clock."""

    def __init__(self):
        probe("p:kpst nlmsg_notify\n")
        self.at = TRACE / "instances/kpst"
        self.at.mkdir()
        (self.at / "trace_clock").write_text("boot")
        (self.at / "buffer_size_kb").write_text("8192")
        (self.at / "events/kprobes/kpst/enable").write_text("1")

    def lines(self):
        """(pid, cpu, boot time) of each passage."""
        found = re.findall(r"-(\d+)\s+\[(\d+)\] \S+\s+(\d+)\.(\d{6}): kpst:", (self.at / "trace").read_text())
        return [(int(pid), int(cpu), int(s) * 10**9 + int(us) * 1000) for pid, cpu, s, us in found]

    def close(self):
        (self.at / "events/kprobes/kpst/enable").write_text("0")
        self.at.rmdir()
        probe("-:kpst\n")


def start(words, cpu):
    """pid, CPU, a moment before it, the process."""
    before = boot()
    p = subprocess.Popen(words, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    return {"words": words, "pid": p.pid, "cpu": cpu, "from": before, "process": p}


def over(command):
    rc = command.pop("process").wait()
    command["to"] = boot()
    if rc:
        raise SystemExit(f"{command['words']}: exit code {rc}")
    return command


def inode(name):
    return os.stat(f"/run/netns/{name}").st_ino


def single(cpus):
    """One change after the other: command and the texts that it makes."""
    done = []
    for n, name in enumerate(NAMES):
        def do(tool, words, *texts):
            tool = f"/sbin/{tool}"
            command = over(start([tool, "-n", name, *words.split()], cpus[len(done) % len(cpus)]))
            done.append({**command, "netns": inode(name), "texts": texts})
        do("ip", "link set c1 up", "c1 up no-carrier (before: down)")
        do("ip", "link set c0 up")
        do("ip", f"addr add 10.7.{n}.1/24 dev c0", f"10.7.{n}.1/24 dev c0", f"added local 10.7.{n}.1 dev c0 table local src 10.7.{n}.1")
        do("ip", f"route add 10.80.0.0/16 via 10.7.{n}.9 dev c0", f"added 10.80.0.0/16 via 10.7.{n}.9 dev c0")
        do("ip", "-6 route add 2001:db8:5::/48 dev c0 metric 5", "added 2001:db8:5::/48 dev c0 metric 5")
        do("ip", f"neigh add 10.7.{n}.9 lladdr 02:00:00:00:00:09 dev c0 nud reachable",
           f"10.7.{n}.9 lladdr 02:00:00:00:00:09 dev c0 REACHABLE")
        do("tc", "qdisc replace dev c0 root handle 5: pfifo limit 7", "qdisc pfifo 5: dev c0 root")
        do("ip", "link set c1 down", "c1 down (before: up carrier)")
        do("ip", "link set c1 name r1", "r1 down (was c1)")
        do("ip", f"route del 10.80.0.0/16 via 10.7.{n}.9 dev c0", f"removed 10.80.0.0/16 via 10.7.{n}.9 dev c0")
        do("ip", "link del r1", "r1 removed", "c0 removed")
    return done


def burst(cpus, out, count):
    """As many addresses in each namespace, all at the same time, then the same routes again and again: messages that are alike."""
    commands = []
    for n, name in enumerate(NAMES):
        path = out / f"{name}.batch"
        lines = [f"addr add 10.{100 + n}.{i >> 8}.{i & 255}/32 dev lo\n" for i in range(count)]
        for _ in range(count // 10):
            lines += ["route add 10.99.0.0/16 dev lo\n", "route del 10.99.0.0/16 dev lo\n"]
        path.write_text("".join(lines))
        texts = [f"10.{100 + n}.{i >> 8}.{i & 255}/32 dev lo" for i in range(count)]
        command = start(["/sbin/ip", "-n", name, "-batch", str(path)], cpus[n % len(cpus)])
        commands.append({**command, "netns": inode(name), "texts": texts, "again": count // 10})
    return [over(c) for c in commands]


def judge(commands, events, passages, stamps):
    wrong, judged = [], 0
    for c in commands:
        of_it = [e for e in events if e["netns"] == c["netns"]]
        mine = []
        for text in c["texts"]:
            fits = [e for e in of_it if e["what"].startswith(text) and e["at_boot_ns"] >= c["from"]]
            if not fits:
                wrong.append(f"not recorded: {text}")
                continue
            mine.append(min(fits, key=lambda e: e["at_boot_ns"]))
        if c.get("again"):
            again = [e for e in of_it if e["text"] == "10.99.0.0/16 dev lo"]
            if len(again) != 2 * c["again"]:
                wrong.append(f"{len(again)} of {2 * c['again']} routes that are alike")
            mine += again
            if [e["a"] for e in sorted(again, key=lambda e: e["at_boot_ns"])] != [1, 0] * c["again"] and stamps:
                wrong.append("stamps of routes that are alike are not in their order")
        for e in mine:
            judged += 1
            why = []
            earliest = e["after_boot_ns"] if e["after_boot_ns"] is not None else e["at_boot_ns"]
            if not (earliest <= c["to"] and e["at_boot_ns"] >= c["from"]):
                why.append("bounds outside of the command's time")
            if stamps and not e["stamped_by_kernel"]:
                why.append("not stamped")
            if e["stamped_by_kernel"]:
                tool = os.path.basename(c["words"][0])
                if not c["from"] <= e["at_boot_ns"] <= c["to"]:
                    why.append("outside of the command's time")
                if (e["pid"], e["process"]) != (c["pid"], tool):
                    why.append(f"pid {e['pid']} {e['process']}, not {c['pid']} {tool}")
                if e["cpu"] != c["cpu"]:
                    why.append(f"CPU {e['cpu']}, not {c['cpu']}")
            if why:
                wrong.append(f"{e['what']}: {', '.join(why)}")
    near = {}
    for pid, cpu, at in passages:
        near.setdefault((pid, cpu), []).append(at)
    off = []
    stamped = [e for e in events if e["stamped_by_kernel"]]
    for e in stamped:
        # A task that slept in between has another CPU: the passage is looked for by both.
        best = min((abs(at - e["at_boot_ns"]) for at in near.get((e["pid"], e["cpu"]), [])), default=None)
        if best is None or best > APART_NS:
            wrong.append(f"{e['what']}: ftrace saw no announcement by pid {e['pid']} on CPU {e['cpu']} at that time ({best})")
        else:
            off.append(best)
    return wrong, judged, len(stamped), sorted(off)


def make(a):
    """Changes, recorded; what is known of them to OUT/made.json."""
    run = lambda *words: subprocess.run(words, check=True)
    cpus = sorted(os.sched_getaffinity(0))
    made = []
    record = ftrace = None
    try:
        ftrace = None if a.bounds else Ftrace()
        for name in NAMES:
            run("/sbin/ip", "netns", "add", name)
            made.append(name)
            run("/sbin/ip", "-n", name, "link", "set", "lo", "up")
            run("/sbin/ip", "-n", name, "link", "add", "c0", "type", "veth", "peer", "name", "c1")
        ready = a.out / "ready"
        words = [a.kpat, "record", "--force", "-o", str(a.out / "s.kbl"), "-f", "icmp", "--ready-file", str(ready)]
        # No packet is asked for: as few functions as can be, so that it begins soon.
        words += [] if a.bounds else ["--profile", "none", "--add", "icmp_rcv"]
        record = subprocess.Popen(words + (["--mechanism", a.mechanism] if a.mechanism else []), stdout=sys.stderr)
        end = time.monotonic() + 150
        while not ready.exists():
            if record.poll() is not None or time.monotonic() > end:
                raise SystemExit("the recording did not begin")
            time.sleep(0.05)
        commands = single(cpus) + burst(cpus, a.out, a.burst)
        record.send_signal(2)
        record.wait(60)
        known = {"commands": commands, "passages": ftrace.lines() if ftrace else [], "namespaces": [inode(name) for name in NAMES]}
        (a.out / "made.json").write_text(json.dumps(known))
    finally:
        if record and record.poll() is None:
            record.kill()
        if ftrace:
            ftrace.close()
        for name in made:
            run("/sbin/ip", "netns", "del", name)


def report(a) -> int:
    subprocess.run([a.kpat, "integrate", "--force", str(a.out / "s.kbl"), "-o", str(a.out / "s.kpat")], check=True, stdout=sys.stderr)
    reported = subprocess.run([a.kpat, "--json", "events", str(a.out / "s.kpat"), "-n", "0"], check=True, capture_output=True).stdout
    known = json.loads((a.out / "made.json").read_text())
    kinds = ("link", "address", "route", "neighbour", "queueing")
    events = [e for e in json.loads(reported)["events"] if e["netns"] in known["namespaces"] and e["kind"] in kinds]
    wrong, judged, stamped, off = judge(known["commands"], events, known["passages"], not a.bounds)
    by = {}
    for e in events:
        by[e["process"] or "?"] = by.get(e["process"] or "?", 0) + 1
    print(json.dumps({"events": len(events), "stamped": stamped, "judged": judged, "commands": len(known["commands"]),
                      "passages": len(known["passages"]), "off_median_us": off[len(off) // 2] / 1e3 if off else None,
                      "off_most_us": off[-1] / 1e3 if off else None, "processes": by,
                      "unstamped": [e["what"] for e in events if not e["stamped_by_kernel"]][:20], "wrong": wrong[:20]}, indent=1))
    return 1 if wrong else 0


def main() -> int:
    a = argparse.ArgumentParser()
    a.add_argument("kpat")
    a.add_argument("out", type=Path)
    a.add_argument("--mechanism", default="")
    a.add_argument("--burst", type=int, default=200)
    for flag in ("--bounds", "--make", "--judge"):
        a.add_argument(flag, action="store_true")
    a = a.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if not a.judge:
        make(a)
    return 0 if a.make else report(a)


if __name__ == "__main__":
    sys.exit(main())
