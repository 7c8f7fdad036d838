"""Runs in a deterministic guest: the cost of one packet's way with nothing, with kpat, with pwru, with an empty program.

Writes one JSON file to /lab. Nothing but the recorder and the generator runs while a variant is measured: this process sleeps
in waitpid, and reads what the generator printed after it has ended.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

from inside import TMP, datagrams, read, remove, there, topology, wait_for

LAB, KPAT, PWRU, PKTBENCH, EMPTY = sys.argv[1:6]
ROUNDS = int(sys.argv[6])
ONLY = sys.argv[7:]  # names of variants; none: all
PACKETS, WARMUP = 1000, 200
FILTER = "udp port 9000"
REFUSING = "udp port 1"
rows, notes, lists = [], [], {}


def say(text):
    print(text, flush=True)


def refused(why):
    notes.append(f"topology: {why}")
    say(notes[-1])


def save():
    with open("/lab/result.json", "w") as f:
        kernel = os.uname().release
        json.dump(
            {"kernel": kernel, "packets": PACKETS, "warmup": WARMUP, "rows": rows, "notes": notes, "functions": lists}, f
        )


def traffic(packets=PACKETS, warmup=WARMUP):
    return datagrams(PKTBENCH, packets, warmup)


def row(name, what, **more):
    r = {"variant": name, "round": round_no, **what, **more}
    rows.append(r)
    save()
    say(f"round {round_no} {name}: {r.get('median_ns')} per packet; { {k: v for k, v in more.items() if k != 'summary'} }")


def nothing():
    row("nothing", traffic())


def asked(name):
    return not ONLY or name in ONLY


def kpat(name, *args, stop=False, detail="full"):
    if not asked(name):
        return
    remove(f"{TMP}/ready", f"{TMP}/x.kbl")
    out, err = open(f"{TMP}/out", "w"), open(f"{TMP}/err", "w")
    command = [KPAT, "record", "--json", "--no-progress", "-o", f"{TMP}/x.kbl", "--ready-file", f"{TMP}/ready", "--detail", detail, *args]
    p = subprocess.Popen(command, stdout=out, stderr=err)
    if not wait_for(there(f"{TMP}/ready"), p):
        p.kill()
        p.wait()
        notes.append(f"{name}: kpat did not start: {read(f'{TMP}/err')[-400:]}")
        save()
        say(notes[-1])
        return
    time.sleep(0.2)
    if stop:
        p.send_signal(signal.SIGSTOP)
    what = traffic()
    if stop:
        p.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    p.wait()
    try:
        summary = json.loads(read(f"{TMP}/out"))
        info = subprocess.run([KPAT, "info", f"{TMP}/x.kbl", "--json"], capture_output=True, text=True)
        records = json.loads(info.stdout)["records"]
    except ValueError as e:
        notes.append(f"{name}: kpat's words cannot be read ({e}): {read(f'{TMP}/out')[-300:]} {read(f'{TMP}/err')[-300:]}")
        summary, records = {}, {}
    summary.pop("outputs", None)
    total = PACKETS + WARMUP
    row(
        name,
        what,
        mechanism=summary.get("mechanism"),
        functions=summary.get("functions"),
        calls_per_packet=records.get("calls", 0) / total,
        footprints_per_packet=records.get("footprints", 0) / total,
        bytes_per_packet=summary.get("bytes", 0) / total,
        bytes_per_record=summary.get("bytes_per_record"),
        losses=summary.get("losses"),
        rc=p.returncode,
        summary=summary,
        records=records,
    )


def empty(mode, which):
    if not asked(f"empty {mode}"):
        return
    remove(f"{TMP}/ready")
    with open(f"{TMP}/names", "w") as f:
        f.write("".join(n + "\n" for n in which))
    p = subprocess.Popen([EMPTY, mode, f"{TMP}/names", f"{TMP}/ready"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if not wait_for(there(f"{TMP}/ready"), p):
        p.kill()
        p.wait()
        notes.append(f"empty {mode}: not offered by this kernel")
        save()
        return
    what = traffic()
    answer = json.loads(p.communicate()[0])
    row(f"empty {mode}", what, hits_per_packet=answer["hits"] / (PACKETS + WARMUP), attached=answer["attached"], refused=answer["refused"])


def lines(path):
    return sum(1 for _ in open(path)) if os.path.exists(path) else 0


def pwru(which, *backend):
    """One start, three measurements: a few packets slowly (how many entries each has), many, many with the reader stopped."""
    log, out = f"{TMP}/pwru.log", f"{TMP}/pwru.out"
    remove(log, out)
    command = [PWRU, *backend, "--all-kmods", "--filter-func", "^(" + "|".join(which) + ")$", "--output-file", out, *FILTER.split()]
    started = time.monotonic()
    p = subprocess.Popen(command, stdout=open(log, "w"), stderr=subprocess.STDOUT)
    if not wait_for(lambda: "Listening for events" in read(log), p):
        p.kill()
        p.wait()
        notes.append(f"pwru {' '.join(backend)} did not start: {read(log)[-300:]}")
        save()
        say(notes[-1])
        return False
    start_s = time.monotonic() - started
    time.sleep(1)
    traffic(20, 0)
    time.sleep(3)
    few = lines(out)
    live = traffic()
    time.sleep(4)
    many = lines(out) - few
    p.send_signal(signal.SIGSTOP)
    stopped = traffic()
    p.send_signal(signal.SIGCONT)
    time.sleep(4)
    rest = lines(out) - few - many
    p.send_signal(signal.SIGINT)
    try:
        p.wait(60)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
    shared = dict(entries_per_packet=(few - 1) / 20, start_s=start_s, log=read(log)[-120:])
    total = PACKETS + WARMUP
    row("pwru live", live, written_per_packet=many / total, **shared)
    row("pwru stopped", stopped, written_per_packet=rest / total, **shared)
    seen = set()
    text = read(out)
    for name in which:
        if re.search(r"\b" + name + r"\b", text):
            seen.add(name)
    lists["pwru_seen"] = sorted(seen)
    lists["pwru_sample"] = text.splitlines()[:60]
    save()
    return True


try:
    topology(LAB, refused)
except OSError as e:
    raise SystemExit(f"bench: {e}")
probes = json.loads(subprocess.run([KPAT, "probes", "--profile", "path", "--json"], capture_output=True, text=True).stdout)
path = [f["name"] for f in probes["functions"]]
# pwru knows packets only as an argument that is a struct sk_buff pointer.
direct = [f["name"] for f in probes["functions"] if re.fullmatch(r"arg [1-5]", f["via"])]
lists["path"], lists["direct"] = probes["functions"], direct
say(f"{os.uname().release}: profile path has {len(path)} functions, {len(direct)} with an sk_buff among the arguments")
same = [x for n in direct for x in ("--add", n)]
newest = os.uname().release.startswith("7")

round_no = 0
traffic()
for round_no in range(1, ROUNDS + 1):
    nothing()
    kpat("kpat filter stopped", "-f", FILTER, "--ring", "64M", "--no-cost", stop=True)
    kpat("kpat direct filter stopped", "-f", FILTER, "--ring", "64M", "--no-cost", "--profile", "none", *same, stop=True)
    if newest:
        empty("fsession.multi", path)
    else:
        empty("kprobe.session", path)
    for detail in ("steps", "spine"):
        kpat(f"kpat {detail} stopped", "-f", FILTER, "--ring", "64M", "--no-cost", stop=True, detail=detail)
        kpat(f"kpat {detail} refuses", "-f", REFUSING, "--ring", "64M", "--no-cost", stop=True, detail=detail)
    for entries in ("leaves", "all"):
        only = ("--ring", "64M", "--no-cost", "--entry-only", entries)
        kpat(f"kpat entries {entries} stopped", "-f", FILTER, *only, stop=True)
        kpat(f"kpat entries {entries} refuses", "-f", REFUSING, *only, stop=True)
        kpat(f"kpat steps, entries {entries} stopped", "-f", FILTER, *only, stop=True, detail="steps")
    kpat("kpat paused", "--paused", "--no-cost")
    # Traffic that nobody asked for: nearly all of a real machine's.
    kpat("kpat refuses", "-f", REFUSING, "--ring", "64M", "--no-cost", stop=True)
    # Functions without a packet: within calls of packets, and where no packet is wanted.
    memory = ("--also", "kmem_cache_*", "--also", "kfree")
    kpat("kpat also stopped", "-f", FILTER, "--ring", "64M", "--no-cost", *memory, stop=True)
    kpat("kpat also refuses", "-f", REFUSING, "--ring", "64M", "--no-cost", *memory, stop=True)
    kpat("kpat points stopped", "-f", FILTER, "--mechanism", "tracepoint", "--ring", "64M", "--no-cost", stop=True)
    kpat("kpat points refuse", "-f", REFUSING, "--mechanism", "tracepoint", "--ring", "64M", "--no-cost", stop=True)
    if round_no == 1:
        kpat("kpat filter live", "-f", FILTER)
    kpat("kpat stopped", "--ring", "64M", "--no-cost", stop=True)
    if round_no > 1:
        # Runs repeat to a tenth of a percent; the second round shows that, on the rows that matter most.
        nothing()
        break
    kpat("kpat live")
    for mechanism in ("kprobe.session", "kprobe.multi"):
        if newest or mechanism != "kprobe.session":
            kpat(f"kpat {mechanism} stopped", "--ring", "64M", "--no-cost", "--mechanism", mechanism, stop=True)
            empty(mechanism, path)
    empty("kprobe.multi.pair", path)
    if not newest:
        # Fewer functions, as this mechanism loads programs for each: what to compare is the cost of a call.
        for detail in ("steps", "spine"):
            kpat(f"kpat fentry {detail} stopped", "-f", FILTER, "--ring", "64M", "--no-cost", "--mechanism", "fentry", stop=True, detail=detail)
    nothing()
# Last, because its detaching takes minutes. Its quickest way first; left alone it takes single kprobes.
round_no = 1
if not ONLY:
    pwru(direct, "--backend", "kprobe-multi") or pwru(direct)
save()
