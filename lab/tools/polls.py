"""The kernel's own tracer beside kpat: when softirqs were asked for and began, and when a driver's poll function was entered.

    polls.py trace FUNCTION                     until it is interrupted; then prints JSON, times in ns of the boot clock
    polls.py check KPAT LOG TRACE_FILE DRIVER   kpat's times before a packet is first seen, against that; prints JSON with `wrong`
    polls.py batches KPAT LOG TRACE_FILE DEVICE kpat's batches and its estimate of DMA rx, against the packets of each poll as traced
"""
import bisect
import json
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
# An emulated CPU may stand still between the tracer's reading of the clock and kpat's, at the same tracepoint.
NEAR_NS, USUALLY_NS = 2_000_000, 60_000


def trace(function: str) -> dict:
    if not (TRACING / "trace_clock").exists():  # `ip netns exec` gives a fresh /sys, which goes with this process
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True, timeout=10)
    known = (TRACING / "available_filter_functions").read_text().split("\n")
    if not any(k.split(" ")[0] == function for k in known):
        return {"wrong": [f"this kernel cannot trace {function}"]}
    t = TRACING / "instances/kpat-polls"
    t.mkdir()
    reported: dict = {"asked": [], "began": [], "ended": [], "driver": [], "took": []}
    names = {"softirq_raise": "asked", "softirq_entry": "began", "napi_poll": "ended", function: "driver"}
    try:
        (t / "tracing_on").write_text("0")
        (t / "trace_clock").write_text("boot")
        (t / "buffer_size_kb").write_text("8192")
        for event in ("softirq_raise", "softirq_entry"):
            (t / "events/irq" / event / "filter").write_text("vec == 3")
            (t / "events/irq" / event / "enable").write_text("1")
        (t / "events/napi/napi_poll/enable").write_text("1")
        (t / "set_ftrace_filter").write_text(function + "\n")
        (t / "current_tracer").write_text("function")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        (t / "tracing_on").write_text("1")
        print("tracing", file=sys.stderr, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        (t / "tracing_on").write_text("0")
        with open(t / "trace") as f:
            for m in re.finditer(r"\[(\d+)\] \S+ +(\d+)\.(\d{6}): (\w+)(?:\.\w+)*(?::| <-)(.*)", f.read()):
                at = [int(m[1]), int(m[2]) * 10**9 + int(m[3]) * 1000]
                if m[4] in names:
                    reported[names[m[4]]].append(at)
                took = re.search(r"for device (\S+) work (\d+) budget (\d+)", m[5])
                if took and int(took[2]):
                    reported["took"].append([*at, took[1], int(took[2]), int(took[3])])
        reported["overrun"] = sum(int(re.search(r"^overrun: (\d+)", f.read_text(), re.M)[1]) for f in t.glob("per_cpu/cpu*/stats"))
    finally:
        (t / "current_tracer").write_text("nop")
        for event in ("irq/softirq_raise", "irq/softirq_entry", "napi/napi_poll"):
            (t / "events" / event / "enable").write_text("0")
        t.rmdir()
    return reported


def check(kpat: str, log: str, trace_file: str, driver: str) -> dict:
    reported = json.loads(Path(trace_file).read_text())
    at: dict[tuple[str, int], list[int]] = {}
    for what in ("asked", "began", "ended", "driver"):
        for cpu, ns in reported[what]:
            at.setdefault((what, cpu), []).append(ns)
    for times in at.values():
        times.sort()

    def nearest(what: str, cpu: int, ns: int) -> int:
        """How far the nearest such moment is from this one."""
        times = at.get((what, cpu), [])
        i = bisect.bisect(times, ns)
        return min((abs(t - ns) for t in times[max(i - 1, 0):i + 1]), default=10**18)

    def last(what: str, cpu: int, ns: int) -> int:
        times = at.get((what, cpu), [])
        i = bisect.bisect(times, ns)
        return times[i - 1] if i else 0

    select = ("select p.packet_id, p.cpu, p.first_ns, coalesce(p.driver_ns, -1), coalesce(p.softirq_ns, -1) from packet p "
              f"join device d on d.ifindex = p.if_in and d.netns = p.if_in_netns where d.driver = '{driver}'")
    out = subprocess.run([kpat, "-q", "sql", log, "--tsv", select], stdout=subprocess.PIPE, check=True, timeout=120, text=True).stdout
    rows = [[int(v) for v in line.split("\t")] for line in out.splitlines()[1:]]
    wrong, firsts, followers = [], 0, 0
    off: dict[str, list[int]] = {"asked": [], "began": [], "driver": []}
    for packet, cpu, first, driver_ns, softirq_ns in rows:
        if driver_ns < 0:
            continue
        since = first - driver_ns
        entered = last("driver", cpu, first + 1000)
        if softirq_ns >= 0:
            off["began"].append(nearest("began", cpu, since))
            off["asked"].append(nearest("asked", cpu, since - softirq_ns))
        elif min(nearest("began", cpu, since), nearest("ended", cpu, since)) > USUALLY_NS:
            # Behind another packet of its poll: the driver was there already.
            followers += 1
            if entered > since + NEAR_NS:
                wrong.append(f"packet {packet} follows another from {since} on, but the driver's poll began at {entered} only")
            continue
        firsts += 1
        off["driver"].append(max(since - entered, 0))
        if not since - NEAR_NS <= entered <= first + 1000:
            wrong.append(f"packet {packet}, first seen at {first}: its poll began at {since}, the driver's function at {entered}")
    known = sum(r[3] >= 0 for r in rows)
    median = {what: statistics.median(found) if found else None for what, found in off.items()}
    if reported["overrun"]:
        wrong.append(f"the tracer lost {reported['overrun']}")
    if len(rows) < 100 or known < len(rows) * 0.95 or len(off["began"]) < 20:
        wrong.append(f"of {len(rows)} packets that a card received {known} have the driver's time, {len(off['began'])} the softirq's")
    wrong += [f"usually {ns} ns from the tracer's: {what}" for what, ns in median.items() if ns is None or ns > USUALLY_NS]
    wrong += [f"{max(found)} ns from the tracer's: {what}" for what, found in off.items() if found and sorted(found)[len(found) * 98 // 100] > NEAR_NS]
    return {"packets": len(rows), "known": known, "first_of_a_poll": firsts, "behind_another": followers, "softirq": len(off["began"]), "median_off_ns": median, "wrong": wrong[:10]}


def batches(kpat: str, log: str, trace_file: str, device: str) -> dict:
    reported = json.loads(Path(trace_file).read_text())
    traced: dict[int, list[list]] = {}
    for cpu, ns, dev, work, budget in reported["took"]:
        if dev == device:
            traced.setdefault(cpu, []).append([ns, work, budget])
    wrong, equal, full, runs = [], 0, 0, []
    for polls in traced.values():
        polls.sort()
        run: list[tuple[int, int]] = []
        for before, now in zip(polls, [*polls[1:], [0, 0, 0]]):
            if before[1] >= before[2] and now[0]:
                run.append((now[0] - before[0], now[1]))
            else:
                runs += run if len(run) >= 3 else []
                run = []
    select = ("select p.cpu, p.ended_ns, p.taken, p.budget, coalesce(p.seen, -1) from poll p join device d on d.ifindex = p.ifindex "
              f"and d.netns = p.netns where d.name = '{device}' order by p.ended_ns")
    out = subprocess.run([kpat, "-q", "sql", log, "--tsv", select], stdout=subprocess.PIPE, check=True, timeout=120, text=True).stdout
    rows = [[int(v) for v in line.split("\t")] for line in out.splitlines()[1:]]
    differ = [[taken, seen] for _, _, taken, _, seen in rows if seen != taken]
    for cpu in sorted({r[0] for r in rows}):
        ours, theirs = [r[2:4] for r in rows if r[0] == cpu], [p[1:] for p in traced.get(cpu, [])]
        # The tracer may have begun before the recording, or end after it.
        if not any(theirs[i:i + len(ours)] == ours for i in range(len(theirs) - len(ours) + 1)):
            wrong.append(f"CPU {cpu}: {len(ours)} polls are not the tracer's {len(theirs)} in order")
        equal += sum(a == b for a, b in zip(ours, theirs[len(theirs) - len(ours):]))
        full += sum(taken >= budget for taken, budget in ours)
    packets = sum(n for polls in traced.values() for _, n, _ in polls)
    kpat_says = subprocess.run([kpat, "-q", "phases", log, "--json"], stdout=subprocess.PIPE, check=True, timeout=120, text=True).stdout
    card = next((c for c in json.loads(kpat_says)["dma_rx"] if c["interface"] == device), None)
    mean = sum(t for t, _ in runs) / sum(n for _, n in runs) if runs else None
    found = (card or {}).get("estimate")
    if len(rows) < 20 or full < 10 or differ:
        wrong.append(f"of {len(rows)} polls {full} full, {equal} as the tracer has them; others: {differ[:10]}")
    if not found or not mean or abs(found["mean_ns"] / mean - 1) > 0.05 or abs(found["batches"] - len(runs)) > len(runs) * 0.05:
        wrong.append(f"the tracer's {len(runs)} batches take {mean} ns a packet, kpat says {card}")
    if reported["overrun"]:
        wrong.append(f"the tracer lost {reported['overrun']}")
    return {"polls": len(rows), "full": full, "equal": equal, "traced_polls": sum(map(len, traced.values())), "traced_packets": packets,
            "traced_batches": len(runs), "traced_ns": mean, "card": card, "wrong": wrong[:10]}


result = globals()[sys.argv[1]](*sys.argv[2:])
print(json.dumps(result), flush=True)
sys.exit(bool(result.get("wrong")))
