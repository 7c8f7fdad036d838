"""Runs in a deterministic guest: what other tools cost on the packets that kpat is measured with, and what they keep of them.

Each tool is started anew for each measurement: a few packets slowly (how many records one packet has, by the tool's own word), many with its reader
(*live*), as many as its buffers hold with the reader stopped (*stopped*: the cost in the kernel alone). What must be there is then the generator's count times the
records of one packet, so a loss is found whether the tool says it or not. ftrace's function tracer says first which functions a packet meets: tools
that choose functions get those that have an sk_buff among their arguments, so that all probe the same.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Callable

from inside import TMP, datagrams, read, remove, there, topology, wait_for

LAB, KPAT, PKTBENCH, PEERS, *ONLY = sys.argv[1:]
PEERS = json.loads(PEERS)  # name: where it is; only those that are here
# Live takes longer, so that the reader and the traffic have many turns on the one CPU.
PACKETS, LIVE, WARMUP, FEW, FITS = 1000, 4000, 200, 20, 100
FILTER, REFUSING = "udp port 9000", "udp port 1"
TRACING = "/sys/kernel/tracing"
INTERFACES = (("cl", "c0"), ("rt", "r0"), ("rt", "r1"), ("sv", "s0"))
rows, notes, lists = [], [], {}


def say(text):
    print(text, flush=True)


def save():
    kernel = os.uname().release
    with open("/lab/result.json", "w") as f:
        json.dump({"kernel": kernel, "packets": PACKETS, "warmup": WARMUP, "rows": rows, "notes": notes, "functions": lists}, f)


def note(text):
    notes.append(text)
    say(text)
    save()


def row(name, mode, what, **more):
    rows.append({"variant": name, "mode": mode, **what, **more})
    save()
    say(f"{name}, {mode}: {what.get('median_ns')} per packet; {more}")


def nothing():
    row("nothing", "", datagrams(PKTBENCH, PACKETS, WARMUP))


@dataclass
class Tool:
    """One tool, as a user starts it. `counted` reads, once it has ended, how many records it kept, how many packets it tells apart (None: it knows none)
    and how many records it says that it lost (None: it says nothing)."""

    name: str
    commands: list
    ready: Callable
    output: list
    counted: Callable
    stopped: list = None  # the commands with the largest buffers there are; None: the same
    refusing: list = None  # the commands with a filter that no packet meets; None: it has none
    fits: int = PACKETS  # packets that its buffers hold while nothing reads
    env: dict = field(default_factory=dict)
    unit: str = "record"


class Refused(Exception):
    pass


def run(tool, commands, stop, packets, warmup):
    """From start to the tool's last word: what the generator measured, what the tool kept."""
    logs = [f"{TMP}/out.{n}" for n in range(len(commands))]
    remove(*tool.output, *logs)
    started, processes = time.monotonic(), []
    try:
        for command, log in zip(commands, logs):
            out = open(log, "w")
            # A group of its own: some have a reader in another process.
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **tool.env}, start_new_session=True))
        for p, log in zip(processes, logs):
            if not wait_for(lambda: tool.ready(read(log), p), p):
                answer = " ".join((read(log) + " ".join(read(x)[-300:] for x in tool.output if "perf" not in x))[-500:].split())
                raise Refused(f"{tool.name} did not start (exit {p.poll()}): {answer}")
        start_s = time.monotonic() - started
        time.sleep(1)
        if stop:
            for p in processes:
                os.killpg(p.pid, signal.SIGSTOP)
        what = datagrams(PKTBENCH, packets, warmup)
        if stop:
            for p in processes:
                os.killpg(p.pid, signal.SIGCONT)
        time.sleep(3)
    finally:
        for p in processes:
            end(p)
    kept = dict(zip(("kept", "told_apart", "lost_said"), tool.counted("\n".join(map(read, logs)))))
    kept |= {"bytes": sum(os.path.getsize(p) for p in tool.output if os.path.exists(p)), "start_s": round(start_s, 2), "said": read(logs[0])[-300:]}
    return what, kept


def end(p):
    # As Ctrl+C does: a tool's own processes get it, too.
    for how, seconds in ((signal.SIGINT, 400), (signal.SIGKILL, 60)):
        try:
            os.killpg(p.pid, how)
            p.wait(seconds)
            return
        except ProcessLookupError:
            p.wait()
            return
        except subprocess.TimeoutExpired:
            note(f"{p.args[0]} did not end by itself")


def measure(tool):
    try:
        what, few = run(tool, tool.commands, False, FEW, 0)
        each = few["kept"] / FEW
        row(tool.name, "few", {}, per_packet=each, unit=tool.unit, **few)
        for mode, commands, stop, packets, warmup in (
            ("stopped", tool.stopped or tool.commands, True, tool.fits, tool.fits // 5),
            ("live", tool.commands, False, LIVE, WARMUP),
            ("refuses", tool.refusing, False, PACKETS, WARMUP),
        ):
            if not commands:
                continue
            what, kept = run(tool, commands, stop, packets, warmup)
            sent = packets + warmup
            bytes_each = max(0, kept["bytes"] - few["bytes"]) / (sent - FEW)
            row(tool.name, mode, what, per_packet=each, unit=tool.unit, sent=sent, due=round(each * sent), bytes_per_packet=bytes_each, **kept)
        nothing()
    except (Refused, OSError, ValueError, KeyError) as e:
        note(f"{tool.name}: {e}")


# Tools, one function each: what to start, how it says that it is ready, what it kept.


def open_events(pid):
    """How many events of perf a process has open."""
    try:
        return sum("perf_event" in os.readlink(f"/proc/{pid}/fd/{x}") for x in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def waits_in(pid, call):
    return read(f"/proc/{pid}/syscall").startswith(call + " ")


def number(pattern, text):
    """The sum of all that the pattern finds; None where it finds nothing."""
    found = re.findall(pattern, text)
    return sum(map(int, found)) if found else None


def lines(path, pattern):
    return sum(1 for x in open(path, errors="replace") if re.search(pattern, x)) if os.path.exists(path) else 0


def kpat(name, *args):
    log, ready = f"{TMP}/x.kbl", f"{TMP}/ready"
    base = [KPAT, "record", "--json", "--no-progress", "--force", "-o", log, "--ready-file", ready, *args]

    def counted(text):
        summary = json.JSONDecoder().raw_decode(text, text.index("{\n"))[0]
        info = json.loads(subprocess.run([KPAT, "info", log, "--json"], capture_output=True, text=True).stdout)["records"]
        lost = sum(x.get("count", 0) for x in summary["losses"])
        return info["calls"] + info["points"], summary["packets"], lost

    bounded = ["--ring", "64M", "--no-cost"]
    return Tool(
        name, [[*base, "-f", FILTER]], lambda _log, _p: there(ready)(), [log, ready], counted,
        stopped=[[*base, "-f", FILTER, *bounded]], refusing=[[*base, "-f", REFUSING, *bounded]], unit="point" if "tracepoint" in args else "call",
    )  # fmt: skip


def pwru(same):
    out = f"{TMP}/pwru.out"
    command = [PEERS["pwru"], "--all-kmods", "--filter-func", "^(" + "|".join(same) + ")$", "--output-file", out]

    def counted(text):
        found = re.findall(r"^(0x[0-9a-f]+) ", read(out), re.M)
        return len(found), len(set(found)), None

    return Tool(
        "pwru", [[*command, *FILTER.split()]], lambda log, _p: "Listening for events" in log, [out], counted,
        refusing=[[*command, *REFUSING.split()]], fits=FITS, unit="entry",
    )  # fmt: skip


def retis(name, probes):
    out = f"{TMP}/retis.data"
    program = PEERS["retis"]

    def command(words):
        profile = [] if probes else ["-P", os.path.join(os.path.dirname(program), "profiles"), "-p", "generic"]
        return [program, *profile, "collect", *(x for p in probes for x in ("-p", f"kprobe:{p}")), "-f", words, "-o", out]

    def counted(text):
        words = read(out)
        lists.setdefault(name, words[:3000])
        ids = set(re.findall(r'"skb-tracking":(\{[^}]*\})', words))
        return words.count('"kernel":'), len(ids), number(r"total events lost: (\d+)", text)

    return Tool(
        name, [command(FILTER)], lambda log, _p: "probe(s) loaded" in log, [out], counted, refusing=[command(REFUSING)], fits=FITS, unit="event",
    )  # fmt: skip


def nettrace():
    def counted(text):
        return len(re.findall(r"^\s*\[\d+\.\d+\]", text, re.M)), len(re.findall(r"^\*{5}", text, re.M)), number(r"(\d+) events? lost", text)

    command = ["stdbuf", "-oL", PEERS["nettrace"], "-p", "udp"]
    return Tool(
        "nettrace", [[*command, "-P", "9000"]], lambda log, _p: "begin trace" in log, [f"{TMP}/out.0"], counted, refusing=[[*command, "-P", "1"]], fits=FITS, unit="event",
    )  # fmt: skip


def bpftrace(name, arguments, returns):
    """As somebody writes it who wants to know that: a line for each entry with its packet's address, or for each call with its duration."""
    script, out = f"{TMP}/{name.replace(' ', '-')}.bt", f"{TMP}/bpftrace.out"

    def program(condition):
        text = ""
        for n, names in arguments.items():
            here = ",\n".join(f"kprobe:{x}" for x in names)
            skb = f"((struct sk_buff *)arg{n - 1})"
            when = f" /{skb}->len == 99999/" if condition else ""
            if returns:
                text += f"{here}{when} {{ @at[tid, func] = nsecs; @of[tid, func] = {skb}; }}\n"
            else:
                text += f'{here}{when} {{ printf("%llu %d %s %llx\\n", nsecs, tid, func, {skb}); }}\n'
        if returns:
            back = ",\n".join(f"kretprobe:{x}" for names in arguments.values() for x in names)
            text += (
                f'{back} /@at[tid, func]/ {{ printf("%llu %d %s %llx %llu\\n", nsecs, tid, func, @of[tid, func], nsecs - @at[tid, func]); '
                "delete(@at[tid, func]); delete(@of[tid, func]); }\n"
            )
        return text

    refusing = script + ".refusing"
    for path, condition in ((script, False), (refusing, True)):
        with open(path, "w") as f:
            f.write(program(condition))

    def counted(text):
        words = read(out)
        found = re.findall(r"^\d+ \d+ \S+ ([0-9a-f]+)", words, re.M)
        return len(found), len(set(found)), number(r"[Ll]ost (\d+) events", words + text)

    # It says nothing: each probe is an event of perf, and it waits for what they print (epoll_wait).
    probes = sum(map(len, arguments.values())) * (2 if returns else 1)
    command = [PEERS["bpftrace"], "-o", out]
    return Tool(
        name, [[*command, script]], lambda _log, p: open_events(p.pid) >= probes and waits_in(p.pid, "232"), [out], counted, stopped=[["env", "BPFTRACE_PERF_RB_PAGES=16384", *command, script]],
        refusing=[[*command, refusing]], fits=FITS * 5, unit="call" if returns else "entry",
    )  # fmt: skip


def trace_cmd(name, tracer, names):
    out = f"{TMP}/trace.dat"
    command = [PEERS["trace-cmd"], "record", "-p", tracer, "-o", out, *(x for n in names for x in ("-l", n))]
    of_each = 2 if "graph" in tracer else 1

    def ready(_log, _p):
        return read(f"{TRACING}/current_tracer").strip() == tracer and read(f"{TRACING}/tracing_on").strip() == "1"

    def counted(text):
        answer = f"{TMP}/trace.txt"
        with open(answer, "w") as f:
            subprocess.run([PEERS["trace-cmd"], "report", "-i", out], stdout=f, stderr=subprocess.DEVNULL)
        kept = lines(answer, r" (funcgraph_entry|function): ")
        lost = sum(int(n) for x in open(answer, errors="replace") if "EVENTS DROPPED" in x for n in re.findall(r"\[(\d+) EVENTS DROPPED\]", x))
        remove(answer)
        return kept, None, lost // of_each

    return Tool(name, [command], ready, [out], counted, stopped=[[*command, "-b", "65536"]], unit="call" if of_each == 2 else "entry")


def perf():
    out = f"{TMP}/perf.data"
    command = [PEERS["perf"], "record", "-a", "-e", "net:*", "-B", "-N", "--no-bpf-event", "--synth=no", "-o", out]

    def ready(_log, p):
        # It says nothing: it is ready once it waits in poll with its events open.
        return open_events(p.pid) > 5 and waits_in(p.pid, "7")

    def counted(text):
        answer = subprocess.run([PEERS["perf"], "report", "-i", out, "--stats"], capture_output=True, text=True)
        # In all first, then by event.
        kept, lost = (re.search(rf"(?m)^\s*{what} events:\s+(\d+)", answer.stdout) for what in ("SAMPLE", "LOST_SAMPLES"))
        return int(kept.group(1)) if kept else 0, None, int(lost.group(1)) if lost else 0

    return Tool("perf record -e net:*", [command], ready, [out], counted, stopped=[[*command, "-m", "64M"]], unit="sample")


def tcpdump():
    outs = [f"{TMP}/{dev}.pcap" for _, dev in INTERFACES]

    def commands(words, *more):
        return [["ip", "netns", "exec", ns, PEERS["tcpdump"], "-n", "-i", dev, "-Z", "root", "-s", "96", "-w", out, *more, *words.split()] for (ns, dev), out in zip(INTERFACES, outs)]

    def counted(text):
        return number(r"(\d+) packets? captured", text), None, number(r"(\d+) packets? dropped by kernel", text)

    return Tool("tcpdump -s 96, four interfaces", commands(FILTER), lambda log, _p: "listening on" in log, outs, counted, stopped=commands(FILTER, "-B", "16384"), refusing=commands(REFUSING), unit="frame")


# ftrace by its files: no process, nothing reads.


def tracefs(name, text):
    with open(f"{TRACING}/{name}", "w") as f:
        f.write(text)


def tracer_on(tracer, names, events="", kib=65536):
    tracefs("tracing_on", "0")
    tracefs("current_tracer", "nop")
    tracefs("buffer_size_kb", str(kib))
    tracefs("trace", "")
    if names:
        tracefs("set_ftrace_filter", "\n".join(names) + "\n")
    tracefs("current_tracer", tracer)
    if events:
        tracefs(f"events/{events}/enable", "1")
    tracefs("tracing_on", "1")


def tracer_off(events=""):
    """What its buffer has, by the kernel's count."""
    tracefs("tracing_on", "0")
    stats = dict(re.findall(r"^([\w ]+): (\d+)$", read(f"{TRACING}/per_cpu/cpu0/stats"), re.M))
    text = read(f"{TRACING}/trace") if int(stats["entries"]) < 20000 else ""
    if events:
        tracefs(f"events/{events}/enable", "0")
    tracefs("current_tracer", "nop")
    tracefs("set_ftrace_filter", "")
    tracefs("trace", "")
    tracefs("buffer_size_kb", "1408")
    return {k: int(v) for k, v in stats.items()}, text


def ftrace(name, tracer, names, unit, events="", in_each=1):
    if not asked(name):
        return
    tracer_on(tracer, names, events)
    datagrams(PKTBENCH, FEW, 0)
    few, _ = tracer_off(events)
    each = few["entries"] / in_each / FEW
    tracer_on(tracer, names, events)
    what = datagrams(PKTBENCH, PACKETS, WARMUP)
    stats, _ = tracer_off(events)
    sent = PACKETS + WARMUP
    lost = stats["overrun"] + stats.get("dropped events", 0)
    row(
        name, "stopped", what, per_packet=each, unit=unit, sent=sent, due=round(each * sent), kept=round(stats["entries"] / in_each), told_apart=None,
        lost_said=lost, bytes_per_packet=stats["bytes"] / sent, stats=stats,
    )  # fmt: skip
    nothing()


def asked(name):
    return not ONLY or any(name.startswith(x) for x in ONLY)


def met(names):
    """How often one packet enters each of these functions: the kernel's function tracer, a few packets."""
    there_are = {x.split()[0] for x in open(f"{TRACING}/available_filter_functions")}
    tracer_on("function", [n for n in names if n in there_are])
    datagrams(PKTBENCH, FEW, 0)
    _, text = tracer_off()
    hits = {}
    for f in re.findall(r": ([\w.]+)(?: \[\w+\])? <-", text):
        hits[f] = hits.get(f, 0) + 1
    # What comes with time and not with packets is no part of their way.
    return {f: n / FEW for f, n in sorted(hits.items()) if n >= FEW // 2}


def every(same, arguments):
    yield "retis generic", lambda name: retis(name, [])
    yield "bpftrace entries", lambda name: bpftrace(name, arguments, False)
    yield "pwru", lambda _: pwru(same)
    yield "nettrace", lambda _: nettrace()
    yield "kpat, the same functions", lambda name: kpat(name, "--profile", "none", *(x for n in same for x in ("--add", n)))
    yield "tcpdump", lambda _: tcpdump()
    yield "kpat tracepoints", lambda name: kpat(name, "--mechanism", "tracepoint")
    yield "kpat steps", lambda name: kpat(name)
    yield "perf", lambda _: perf()
    yield "bpftrace calls", lambda name: bpftrace(name, arguments, True)
    yield "retis, the same functions", lambda name: retis(name, same)
    yield "kpat full", lambda name: kpat(name, "--detail", "full")
    yield "trace-cmd function_graph", lambda name: trace_cmd(name, "function_graph", same)


def main():
    try:
        topology(LAB, note)
    except OSError as e:
        raise SystemExit(f"bench: {e}") from None
    datagrams(PKTBENCH, PACKETS, WARMUP)
    # What goes to a neighbour that has to be confirmed takes another way, and when that is due depends on how long each tool takes to start.
    for ns in ("cl", "rt", "sv"):
        for n in json.loads(subprocess.run(["ip", "-n", ns, "-j", "neigh", "show"], capture_output=True, text=True).stdout or "[]"):
            if "lladdr" in n:
                subprocess.run(["ip", "-n", ns, "neigh", "replace", n["dst"], "lladdr", n["lladdr"], "dev", n["dev"], "nud", "permanent"], check=True)
    probes = json.loads(subprocess.run([KPAT, "probes", "--profile", "path", "--detail", "full", "--json"], capture_output=True, text=True).stdout)
    direct = {f["name"]: int(f["via"][4]) for f in probes["functions"] if re.fullmatch(r"arg [1-5]", f["via"])}
    hits = met(direct)
    same, arguments = sorted(hits), {}
    for f in same:
        arguments.setdefault(direct[f], []).append(f)
    lists.update(hits=hits, arguments=arguments, entries_per_packet=sum(hits.values()))
    say(f"{os.uname().release}: of {len(direct)} functions with an sk_buff a packet meets {len(same)}, {sum(hits.values())} times")
    nothing()
    ftrace("ftrace function", "function", same, "entry")
    # Two records for a call.
    ftrace("ftrace function_graph", "function_graph", same, "call", in_each=2)
    ftrace("ftrace events net:*", "nop", [], "record", events="net")
    for name, made in every(same, arguments):
        peer = name.split()[0].strip(",")
        if asked(name) and (peer == "kpat" or peer in PEERS):
            measure(made(name))
    save()


main()
