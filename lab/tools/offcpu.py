#!/usr/bin/env python3
"""When a task was off the CPU, known from outside: readers that sleep, and senders that somebody else preempts. Times are CLOCK_BOOTTIME.

    offcpu.py recv PORT COUNT        reads, blocking; one JSON line: pid, and before and after each read
    offcpu.py send PORT COUNT GAP_MS sends a numbered datagram to the reader each GAP_MS; JSON: pid, sent
    offcpu.py busy PORT SECONDS      sends without a rest, to a socket that nobody reads; JSON: pid, sent
    offcpu.py burn CPU FOR_MS EVERY_MS   as a real-time task, takes CPU for FOR_MS each EVERY_MS, until it is stopped; JSON: from and to of each
    offcpu.py check KPAT LOG RECV BUSY BURN MIN   judges LOG (X.kpat) by those lines; exit 0 when it is true and at least
                                     MIN bursts fell into calls
"""
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

HERE = "127.0.0.1"


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def recv(port: str, count: str) -> dict:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((HERE, int(port)))
    reads = []
    while len(reads) < int(count):
        before = now()
        s.recv(2048)
        reads.append((before, now()))
    return {"pid": os.getpid(), "reads": reads}


def send(port: str, count: str, gap_ms: str) -> dict:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for i in range(int(count)):
        time.sleep(float(gap_ms) / 1000)
        s.sendto(b"%08d" % i, (HERE, int(port)))
    return {"pid": os.getpid(), "sent": int(count)}


def busy(port: str, seconds: str) -> dict:
    full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    full.bind((HERE, int(port)))
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sent, end = 0, now() + int(float(seconds) * 1e9)
    while now() < end:
        s.sendto(b"%08d" % sent, (HERE, int(port)))
        sent += 1
    return {"pid": os.getpid(), "sent": sent}


def burn(cpu: str, for_ms: str, every_ms: str) -> dict:
    os.sched_setaffinity(0, {int(cpu)})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    signal.signal(signal.SIGINT, lambda *_: stop.append(1))
    spans = []
    print("burning", file=sys.stderr, flush=True)
    while not stop:
        time.sleep((float(every_ms) - float(for_ms)) / 1000)
        began = now()
        while now() < began + float(for_ms) * 1e6:
            pass
        spans.append((began, now()))
    return {"pid": os.getpid(), "spans": spans}


def check(kpat: str, log: str, recv_file: str, busy_file: str, burn_file: str, least: str) -> dict:
    def reported(path: str) -> dict:
        with open(path) as f:
            return json.load(f)

    def rows(select: str) -> list:
        out = subprocess.run([kpat, "-q", "sql", log, "--tsv", select], stdout=subprocess.PIPE, check=True, timeout=120, text=True).stdout
        return [[int(v) for v in line.split("\t")] for line in out.splitlines()[1:]]

    reader, sender, burns = reported(recv_file), reported(busy_file), reported(burn_file)["spans"]
    wrong = []
    # A reader's call: its sleep is the gap until the sender sends, and none of that is self time. An emulated CPU may stand still for
    # milliseconds at any place, so single calls have bounds only, and what is usual is judged by the median.
    calls = rows("select c.entry_ns, c.dur_ns, c.self_ns, c.off_ns from call c join function f using (func_id) "
                 f"where f.name = '__skb_recv_udp' and c.pid = {reader['pid']} order by c.entry_ns")
    missing = []
    for entry, dur, own, off in calls:
        fit = [r for r in reader["reads"] if r[0] <= entry and entry + dur <= r[1]]
        if len(fit) != 1 or off > fit[0][1] - fit[0][0] or own + off > dur:
            wrong.append(f"a read of {dur} ns, off the CPU for {off}, is {len(fit)} of the reader's")
        else:
            missing.append((fit[0][1] - fit[0][0] - off, own))
    if len(calls) < len(reader["reads"]) * 9 // 10:
        wrong.append(f"{len(calls)} of {len(reader['reads'])} reads were recorded")
    waited, own = (statistics.median(m) for m in zip(*missing)) if missing else (0, 0)
    if waited > 4_000_000 or own > 1_000_000:
        wrong.append(f"usually {waited} ns of the reader's waiting are not off the CPU, and {own} are self time")
    # The sender: who preempted it in the midst of a call, and for how long, is known.
    calls = rows(f"select entry_ns, entry_ns + dur_ns from call where pid = {sender['pid']} and ctx = 0 and depth = 0 and dur_ns is not null")
    pauses = rows(f"select from_ns, to_ns, preempted from pause where pid = {sender['pid']}")
    met, excess = 0, []
    for began, ended in burns:
        if not any(entry <= began and end >= ended for entry, end in calls):
            continue
        met += 1
        around = [p for p in pauses if p[0] <= began and p[1] >= ended and p[2]]
        if len(around) != 1:
            wrong.append(f"the burn at {began} fell into a call of the sender, and no pause of it says so")
        else:
            excess.append(around[0][1] - around[0][0] - (ended - began))
    if met < int(least):
        wrong.append(f"{met} burns fell into calls: too few for a test")
    if excess and statistics.median(excess) > 2_000_000:
        wrong.append(f"usually a pause is {statistics.median(excess)} ns longer than what was burned")
    sums = json.loads(subprocess.run([kpat, "-q", "time", log, "--json"], stdout=subprocess.PIPE, check=True, timeout=120).stdout)["sums"]
    if sums["violations"] or sums["clamped"] or not sums["off_cpu_ns"]:
        wrong.append(f"sums do not close: {sums}")
    return {"reads": len(missing), "not_off_median_ns": waited, "self_median_ns": own, "burns_in_calls": met,
            "excess_median_ns": statistics.median(excess) if excess else None, "off_ns": sums["off_cpu_ns"], "wrong": wrong[:10]}


reported = globals()[sys.argv[1]](*sys.argv[2:])
print(json.dumps(reported), flush=True)
sys.exit(bool(reported.get("wrong")))
