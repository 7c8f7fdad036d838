"""What recording applications costs them: the table of MAGNeT's paper (its Table I, figures 6 and 7), between two namespaces over veth.

Nothing, the recorder attached and not logging, logging at the receiver, at the sender, tcpdump at the receiver, at the sender,
and empty programs at the recorder's tracepoints, and at all its places, in turn. With another kpat, or kernel sides compiled beside, to compare
with, `receiver, before` and `sender, before` are those. Loads: one TCP stream in writes of 128 KiB, one in writes of 1 KiB, UDP
of 64 bytes, each as fast as it goes (throughput), and a TCP stream of fixed length in writes of 16 KiB (streaming time). At the end
the kernel's own statistics: nanoseconds of a run of the recorder's programs, and of the empty ones. One JSON file with every round.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from native.measure import busy_s, cpu_s, inside, rest_of, wait_for, whole

TAG = f"ka{os.getpid()}"
TX, RX = f"{TAG}tx", f"{TAG}rx"
SETUP = f"""
netns add {TX}
netns add {RX}
-n {TX} link add s0 type veth peer name r0 netns {RX}
-n {TX} addr add 10.9.3.1/24 dev s0
-n {RX} addr add 10.9.3.2/24 dev r0
-n {TX} link set s0 up
-n {RX} link set r0 up
"""
VARIANTS = {
    "nothing": None,
    "attached": ("kpat", RX, "--paused"),
    "receiver": ("kpat", RX),
    "sender": ("kpat", TX),
    "receiver, before": ("before", RX),
    "sender, before": ("before", TX),
    "empty programs": ("points", None),
    "empty programs, functions too": ("points", None, "functions"),
    "tcpdump, receiver": ("tcpdump", RX),
    "tcpdump, sender": ("tcpdump", TX),
}


# The ends stay on a CPU each: whether they share one changes small writes by a factor of two, whatever records them.
ON_FIRST, ON_LAST = ("taskset", "-c", "0"), ("taskset", "-c", str(os.cpu_count() - 1))


class Tool:
    """One recorder, from ready to its own last word."""

    def __init__(self, variant, a, env=None):
        self.what = VARIANTS[variant]
        self.process, self.folder = None, a.folder
        if not self.what:
            return
        kind, ns, *more = self.what
        kpat, env = a.kpat, dict(env or {})
        if kind == "before":
            kind = "kpat"
            env["KPAT_BPF"] = a.before if os.path.isdir(a.before) else ""
            kpat = a.kpat if env["KPAT_BPF"] else a.before
        self.file, self.err, self.out, ready = (os.path.join(a.folder, n) for n in ("log", "err", "out", "ready"))
        for p in (self.file, self.err, self.out, ready):
            pathlib.Path(p).unlink(missing_ok=True)
        if kind == "kpat":
            command = [kpat, "record", "--profile", "app", "--netns", ns, "-o", self.file, "--ready-file", ready, "--json", "--no-progress", *([] if a.cost else ["--no-cost"]), *more]
        elif kind == "points":
            command = [a.points, ready, *a.names, *(a.functions if more else [])]
        else:
            command = inside(ns, "tcpdump", "-n", "-i", "s0" if ns == TX else "r0", "-Z", "root", "-w", self.file)
        happened = lambda: os.path.exists(ready) and os.path.getsize(ready) > 0
        if kind == "tcpdump":
            happened = lambda: "listening on" in open(self.err).read()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=open(self.out, "w"), stderr=open(self.err, "w"), env=os.environ | env)
        wait_for(happened, self.process, variant)
        self.cpu_ready = cpu_s(self.process.pid)

    def end(self):
        if not self.process:
            return {}
        answer = {"tool_cpu_in_load_s": round(cpu_s(self.process.pid) - self.cpu_ready, 3)}
        if self.what[0] == "points":
            self.process.stdin.close()
            self.process.wait(30)
            return answer | json.load(open(self.out))
        answer |= rest_of(self.process)
        if self.what[0] in ("kpat", "before"):
            s = json.load(open(self.out))
            answer |= {"events": s["records"], "lost": sum(x.get("count", 0) for x in s["losses"]), "drain_cpu_ns": s["cost"]["drain_cpu_ns"]}
        else:
            number = lambda what: int(re.search(rf"(\d+) packets? {what}", open(self.err).read()).group(1))
            answer |= {"events": number("captured"), "lost": number("dropped by kernel")}
        answer["file_bytes"] = os.path.getsize(self.file)
        os.remove(self.file)
        return answer


def stream(*how):
    server = subprocess.Popen(inside(RX, *ON_LAST, "iperf3", "-s", "-1", "--forceflush"), stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if "listening" in line:
            break
    out = subprocess.run(inside(TX, *ON_FIRST, "iperf3", "-c", "10.9.3.2", "-J", *how), capture_output=True, text=True, timeout=120)
    server.communicate(timeout=30)
    end = json.loads(out.stdout)["end"]
    got, cpu = end["sum_received"], end["cpu_utilization_percent"]
    busy = (cpu["host_total"] + cpu["remote_total"]) / 100 * got["seconds"]
    return {"rate": got["bits_per_second"] / 1e9, "seconds": end["sum_sent"]["seconds"], "ends_cpu_ns": busy * 1e9 / (got["bytes"] / 1024)}


def datagrams(seconds, udpload):
    sink = subprocess.Popen(inside(RX, *ON_LAST, udpload, "recv", "9000", str(seconds + 0.5)), stdout=subprocess.PIPE, text=True)
    time.sleep(0.1)
    out = subprocess.run(inside(TX, *ON_FIRST, udpload, "send", "10.9.3.2", "9000", str(seconds), "64"), capture_output=True, text=True, timeout=60)
    sent, got = json.loads(out.stdout), json.loads(sink.communicate(timeout=30)[0])
    return {"rate": got["packets"] / sent["seconds"], "sent": sent["packets"], "got": got["packets"], "ends_cpu_ns": (sent["cpu_s"] + got["cpu_s"]) * 1e9 / max(got["packets"], 1)}


def measure(a, rounds, seconds, save, only_loads=None, only_variants=None):
    loads = {
        "tcp, writes of 128 KiB": lambda s: stream("-t", whole(s)),
        "tcp, writes of 1 KiB": lambda s: stream("-t", whole(s), "-l", "1K"),
        "udp of 64 bytes": lambda s: datagrams(s, a.udpload),
        f"tcp, {a.fixed} in writes of 16 KiB": lambda s: stream("-n", a.fixed.removesuffix("iB").replace(" ", ""), "-l", "16K"),
    }
    found = json.loads(subprocess.run([a.kpat, "probes", "--profile", "app", "--json"], capture_output=True, text=True, check=True).stdout)
    places = {(b["kind"], b["name"]) for c in found["crossings"] for b in c["by"]}
    a.names = sorted(name for kind, name in places if kind == "tracepoint")
    a.functions = sorted(name + "()" for kind, name in places if kind != "tracepoint")
    known = [v for v in VARIANTS if (a.before or "before" not in v) and (a.functions or "functions" not in v)]
    rows, order = [], ["nothing", *(v for v in known[1:] if not only_variants or v in only_variants)]
    loads = {name: load for name, load in loads.items() if not only_loads or name in only_loads}
    try:
        for line in SETUP.strip().splitlines():
            subprocess.run(["ip", *line.split()], check=True)
        subprocess.run(inside(TX, "ping", "-q", "-c", "2", "-i", "0.2", "10.9.3.2"), check=True, stdout=subprocess.DEVNULL)

        def once(load, variant, n, env=None):
            tool = Tool(variant, a, env)
            (b0, s0), t0 = busy_s(), time.monotonic()
            r = {"load": load, "variant": variant, "round": n, **loads[load](seconds)}
            (b1, s1), t1 = busy_s(), time.monotonic()
            r |= {"machine_busy_cpus": (b1 - b0) / (t1 - t0), "stolen_cpus": (s1 - s0) / (t1 - t0), "load_average": os.getloadavg()[0]}
            return r | tool.end()

        def keep(r):
            rows.append(r)
            save(rows)
            print(json.dumps(r), flush=True)

        for load in loads:
            once(load, "nothing", 0)
            for n in range(1, rounds + 1):
                # Another order each round, so that no variant always follows the same one.
                at = n % len(order)
                for variant in order[at:] + order[:at]:
                    keep(once(load, variant, n))
        for load in [] if only_variants else list(loads)[:3]:
            for variant in ("attached", "receiver", "sender"):
                ready = pathlib.Path(a.folder, "stats")
                ready.unlink(missing_ok=True)
                with_stats = subprocess.Popen([a.points, str(ready)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"STATS": "1"})
                wait_for(ready.exists, with_stats, "the kernel's statistics")
                tool = Tool(variant, a)
                loads[load](seconds)
                with_stats.stdin.close()
                runs = json.load(with_stats.stdout)
                with_stats.wait(30)
                keep({"load": load, "variant": f"{variant}: its programs", **runs, **{k: v for k, v in tool.end().items() if k in ("events", "lost")}})
            keep(once(load, "empty programs", 0, {"STATS": "1"}) | {"variant": "empty programs: by the kernel's statistics"})
    finally:
        for ns in (TX, RX):
            subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)
    return rows
