"""What the truth tests do where the packets run: traffic, sniffers and kpat in one topology, several acts in one guest.

    python -m tests.acts OUT PREFIX ACT ...

Judges nothing. Each act leaves its files in OUT/ACT and what it saw in OUT/ACT/facts.json.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from kpatlab import cache, play, scenario
from kpatlab.cache import LAB, Refusal
from kpatlab.topology import Network, wait_for

UDPSEQ = [sys.executable, str(LAB / "tools/udpseq.py")]
DATAGRAMS = 500
PORTS = 150
# How much a flight recorder keeps: in a guest it takes a second until `kpat ctl` has begun.
LAST, LAST_WAIT = ("6s", 9) if "KPAT_LAB_GUEST" in os.environ else ("1s", 2.5)
PROFILED = ["ip_rcv", "ip_rcv_core", "ip_forward", "ip_forward_finish", "ip_output", "ip_finish_output", "ip_finish_output2", "ip_local_deliver",
            "ip_protocol_deliver_rcu", "icmp_rcv", "icmp_echo", "icmp_reply", "udp_rcv", "udp_queue_rcv_one_skb", "__udp_enqueue_schedule_skb", "veth_xmit"]

# Each can be probed by kpat as well: what only one of the two has would be in the other's callers' self time.
GRAPHED = [*PROFILED, "__netif_receive_skb", "netif_rx_internal", "enqueue_to_backlog",
           "__dev_queue_xmit", "dev_hard_start_xmit", "validate_xmit_skb", "ip_route_input_noref", "ping_rcv", "ping_queue_rcv_skb", "sock_queue_rcv_skb_reason", "__sock_queue_rcv_skb"]
GRAPH_PINGS = 200

# Functions without a packet: memory, timers, locks and wakes, polls, routes. A kernel has most of them.
WITHIN = ["kmem_cache_alloc", "kmem_cache_alloc_noprof", "kmem_cache_alloc_node", "kmem_cache_alloc_node_noprof", "kmem_cache_free", "kfree",
          "net_rx_action", "__napi_poll", "process_backlog", "fib_table_lookup", "sock_def_readable", "__wake_up_sync_key",
          "try_to_wake_up", "__local_bh_enable_ip", "raise_softirq_irqoff", "inet_addr_type_table", "neigh_lookup", "dst_release"]
WITHIN_PINGS = 50


class Stage:
    """One act's folder in memory (a sniffer must not wait for a shared folder), and the tools the acts share."""

    def __init__(self, net: Network, out: Path):
        self.net, self.final = net, out
        self.out = Path("/run/scratch") / out.name if net.in_guest else out
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        self.facts: dict = {"kernel": os.uname().release}

    def close(self) -> None:
        (self.out / "facts.json").write_text(json.dumps(self.facts, indent=1) + "\n")
        if self.out != self.final:
            shutil.rmtree(self.final, ignore_errors=True)
            shutil.copytree(self.out, self.final, ignore_dangling_symlinks=True)
            shutil.rmtree(self.out, ignore_errors=True)

    def kpat(self, *args, seconds: float = 60) -> dict:
        r = subprocess.run([play.kpat_path(), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
        return {"rc": r.returncode, "out": r.stdout.decode(errors="replace"), "err": r.stderr.decode(errors="replace")}

    def start(self, name: str, *args, namespaces=True) -> play.Process:
        """kpat record, logging. Everything of the topology's namespaces, nothing of others."""
        ready = self.out / f"{name}.ready"
        argv = [play.kpat_path(), "record", "-o", str(self.out / f"{name}.kbl"), "--ready-file", str(ready), "--detail", "full"]
        if namespaces:
            argv += [x for n in self.net.topo["namespaces"] for x in ("--netns", self.net.ns(n))]
        p = play.Process(name, argv + list(map(str, args)), self.out)
        try:
            p.wait_ready(ready.exists, cache.patience())
        except Refusal:
            p.stop()
            raise
        return p

    @contextlib.contextmanager
    def recording(self, name: str, *args, namespaces=True):
        p = self.start(name, *args, namespaces=namespaces)
        try:
            yield p
        finally:
            self.facts[f"{name}_rc"] = p.stop(60)

    @contextlib.contextmanager
    def capture(self, name: str, ns: str, dev: str, tool="tcpdump"):
        here = Network(self.net.topo, self.net.prefix, in_guest=False)  # its file stays in this folder
        p = play.start_capture({"name": name, "ns": ns, "dev": dev, "tool": tool, "snaplen": 128}, here, self.out)
        try:
            yield p
        finally:
            self.facts.setdefault("captures", {})[name] = play.end_capture(p)

    def run(self, ns: str, *argv, seconds: float = 60) -> str:
        r = subprocess.run([*self.net.enter(ns), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        return r.stdout.decode(errors="replace")

    def ping(self, count: int, interval: float = 0.01) -> str:
        return self.run("cl", "ping", "-n", "-q", "-c", count, "-i", interval, "-W", 5, "10.7.2.2")

    def send(self, count: int, pps: int, size: int = 64) -> dict:
        return json.loads(self.run("cl", *UDPSEQ, "send", "10.7.2.2", 9000, count, "--pps", pps, "--size", size))

    @contextlib.contextmanager
    def receiver(self, expect: int):
        p = play.Process("recv", [*self.net.enter("sv"), *UDPSEQ, "recv", "9000", "--expect", str(expect), "--idle", "3"], self.out)
        try:
            p.wait_ready(lambda: "9000" in self.run("sv", "ss", "-Hlun", "sport = :9000"), cache.patience() / 4)
            yield p
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.p.wait(30 if expect else 0)
        finally:
            p.stop()
        self.facts["recv"] = json.loads(play.text_of(p.stdout))


def act_udp(s: Stage) -> None:
    """Numbered datagrams through the router; two sniffers in the router."""
    with s.receiver(DATAGRAMS), s.capture("r0", "rt", "r0"), s.capture("r1", "rt", "r1", tool="dumpcap"), s.recording("udp", "-f", "udp port 9000"):
        s.facts["send"] = s.send(DATAGRAMS, 500)
        time.sleep(0.3)


def traceable(tracing: Path) -> set[str] | None:
    """Functions that ftrace can trace; None where a policy forbids it to root, too."""
    try:
        return {x.split()[0] for x in (tracing / "available_filter_functions").read_text().splitlines()}
    except PermissionError:
        return None


def act_counts(s: Stage) -> None:
    """Pings and datagrams while the kernel's function tracer, in an instance of its own, notes every call; each beyond a stretch that both see whole."""
    tracing = Path("/sys/kernel/tracing")
    if not (tracing / "available_tracers").exists() or "function" not in (tracing / "available_tracers").read_text().split():
        s.facts["lacks"] = "this kernel has no function tracer"
        return
    known = traceable(tracing)
    if known is None:
        s.facts["lacks"] = "this kernel does not let anybody trace functions"
        return
    names = [n for n in PROFILED if n in known]
    t = tracing / "instances/kpat-truth"
    t.mkdir()
    try:
        (t / "tracing_on").write_text("0")
        (t / "buffer_size_kb").write_text("8192")
        (t / "set_ftrace_filter").write_text("\n".join(names) + "\n")
        (t / "trace_clock").write_text("boot")
        s.ping(2)
        # Of every second function entries alone: they are counted as calls are.
        chosen = [x for n in names for x in ("--add", n)] + [x for n in names[::2] for x in ("--entry-only", n)]
        with s.receiver(200), s.recording("counts", *chosen, namespaces=False):
            (t / "current_tracer").write_text("function")
            (t / "tracing_on").write_text("1")
            # A kernel sends by itself, too (solicitations of routers and neighbours): what comes before the tracer or after it is kpat's alone.
            since = time.clock_gettime(time.CLOCK_BOOTTIME)
            s.ping(100)
            s.facts["send"] = s.send(200, 500)
            time.sleep(1)
            until = time.clock_gettime(time.CLOCK_BOOTTIME)
            (t / "tracing_on").write_text("0")
        hits: dict[str, int] = {}
        with open(t / "trace") as f:
            for m in re.finditer(r" (\d+\.\d+): (\w+)(?:\.\w+)* <-", f.read()):
                if since <= float(m[1]) < until:
                    hits[m[2]] = hits.get(m[2], 0) + 1
        s.facts["stretch_ns"] = [int(since * 1e9), int(until * 1e9)]
        s.facts["overrun"] = sum(int(re.search(r"^overrun: (\d+)", f.read_text(), re.M)[1]) for f in t.glob("per_cpu/cpu*/stats"))
        s.facts |= {"hits": hits, "asked": names}
    finally:
        (t / "current_tracer").write_text("nop")
        t.rmdir()


def act_graph(s: Stage) -> None:
    """The same pings twice: timed by the kernel's function graph tracer, then by kpat."""
    tracing = Path("/sys/kernel/tracing")
    if "function_graph" not in (tracing / "available_tracers").read_text().split():
        s.facts["lacks"] = "this kernel has no function graph tracer"
        return
    known = traceable(tracing)
    if known is None:
        s.facts["lacks"] = "this kernel does not let anybody trace functions"
        return
    names = [n for n in GRAPHED if n in known]
    try:
        (tracing / "tracing_on").write_text("0")
        (tracing / "buffer_size_kb").write_text("16384")
        (tracing / "set_ftrace_filter").write_text("\n".join(names) + "\n")
        (tracing / "current_tracer").write_text("function_graph")
        (tracing / "options/funcgraph-tail").write_text("1")
        s.ping(5)
        (tracing / "tracing_on").write_text("1")
        s.ping(GRAPH_PINGS)
        (tracing / "tracing_on").write_text("0")
        shutil.copyfile(tracing / "trace", s.out / "graph.txt")
        s.facts["overrun"] = sum(int(re.search(r"^overrun: (\d+)", f.read_text(), re.M)[1]) for f in tracing.glob("per_cpu/cpu*/stats"))
    finally:
        (tracing / "current_tracer").write_text("nop")
        (tracing / "set_ftrace_filter").write_text("\n")
    s.facts["asked"] = names
    with s.recording("graph", "-f", "icmp or arp", "--profile", "none", *[x for n in names for x in ("--add", n)], namespaces=False):
        s.ping(GRAPH_PINGS)


def act_within(s: Stage) -> None:
    """Pings, recorded by kpat with functions that have no packet, and traced by the kernel's graph tracer at the same time."""
    tracing = Path("/sys/kernel/tracing")
    known = traceable(tracing)
    names, also = ([n for n in wanted if n in known] for wanted in (GRAPHED, WITHIN))
    args = [*[x for n in names for x in ("--add", n)], *[x for n in also for x in ("--also", n)]]
    s.ping(5)
    try:
        (tracing / "tracing_on").write_text("0")
        (tracing / "trace_clock").write_text("boot")
        (tracing / "buffer_size_kb").write_text("16384")
        (tracing / "set_ftrace_filter").write_text("\n".join([*names, *also]) + "\n")
        (tracing / "current_tracer").write_text("function_graph")
        for option in ("tail", "proc"):
            (tracing / f"options/funcgraph-{option}").write_text("1")
        with s.recording("within", "--profile", "none", *args, namespaces=False):
            s.ping(5)
            time.sleep(0.5)
            (tracing / "tracing_on").write_text("1")
            began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            s.ping(WITHIN_PINGS)
            time.sleep(0.5)
            s.facts["stretch_ns"] = [began, time.clock_gettime_ns(time.CLOCK_BOOTTIME)]
            (tracing / "tracing_on").write_text("0")
        shutil.copyfile(tracing / "trace", s.out / "graph.txt")
        s.facts["overrun"] = sum(int(re.search(r"^overrun: (\d+)", f.read_text(), re.M)[1]) for f in tracing.glob("per_cpu/cpu*/stats"))
    finally:
        (tracing / "current_tracer").write_text("nop")
        (tracing / "set_ftrace_filter").write_text("\n")
    s.facts["packet_functions"], s.facts["also"] = names, also


ANSWERS = """
import socket
s = socket.create_server(("0.0.0.0", 9100))
while True:
    c, _ = s.accept()
    while d := c.recv(100):
        c.sendall(d)
    c.close()
"""
ASKS = """
import socket, time
for n in range(20):
    c = socket.create_connection(("10.7.2.2", 9100))
    for m in range(5):
        c.sendall(b"%08d" % m)
        c.recv(100)
    c.shutdown(socket.SHUT_WR)
    c.recv(100)
    c.close()
    time.sleep(0.02)
print(n)
"""


def act_twice(s: Stage) -> None:
    """The same packets twice, first recorded here and then from outside, when a file says that this has begun: datagrams, each from a port of its own, large
    ones in fragments, ones that nobody listens for, and connections with questions and answers."""
    def send(port: int, count: int, size: int) -> int:
        return json.loads(s.run("cl", *UDPSEQ, "send", "10.7.2.2", port, count, "--pps", 100, "--flows", count, "--size", size))["sent"]

    def some() -> None:
        with s.receiver(PORTS):
            s.facts.setdefault("sent", []).append(send(9000, PORTS, 64))
        s.facts.setdefault("received", []).append(s.facts["recv"]["received"])
        send(9000, 20, 3000)
        send(9001, 5, 64)
        s.facts["asked"] = s.run("cl", sys.executable, "-c", ASKS)

    for ns in s.net.topo["namespaces"]:
        s.run(ns, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")
    # What is known of a neighbour changes on the way with the time, and with it the functions.
    for ns in s.net.topo["namespaces"]:
        for line in s.run(ns, "ip", "-4", "neigh", "show").splitlines():
            address, _, device, _, card, *_ = line.split()
            s.run(ns, "ip", "neigh", "replace", address, "dev", device, "lladdr", card, "nud", "permanent")
    server = play.Process("answers", [*s.net.enter("sv"), sys.executable, "-c", ANSWERS], s.out)
    try:
        server.wait_ready(lambda: "9100" in s.run("sv", "ss", "-Hltn", "sport = :9100"), cache.patience() / 4)
        some()
        with s.recording("inside", "-f", "ip", namespaces=False):
            some()
            time.sleep(0.3)
        wait, go = s.final.parent / "over-to-you", s.final.parent / "go"
        wait.touch()
        wait_for(go.exists, 120, "the recording from outside")
        some()
        wait.unlink()
        wait_for(lambda: not go.exists(), 120, "the end of the recording from outside")
    finally:
        server.stop()


def act_killed(s: Stage) -> None:
    """kill -9 while packets flow."""
    p = s.start("killed", "-f", "udp port 9000")
    log = s.out / "killed.kbl"
    end = time.monotonic() + 40
    while time.monotonic() < end and log.stat().st_size < 60_000:
        s.send(200, 2000)
    s.send(200, 2000)
    os.killpg(p.p.pid, signal.SIGKILL)
    s.facts["killed_rc"] = p.p.wait(10)
    s.facts["bytes"] = log.stat().st_size


def act_losses(s: Stage) -> None:
    """The smallest ring and a recorder that is kept from reading: it must lose, count and say so."""
    with s.recording("losses", "--ring", "64K", "-f", "udp port 9000") as p:
        s.send(50, 500)
        os.kill(p.p.pid, signal.SIGSTOP)
        s.send(2000, 4000)
        os.kill(p.p.pid, signal.SIGCONT)
        time.sleep(1)
        s.facts["status"] = s.kpat("ctl", "status", "--json", "--pid", p.p.pid)
        s.send(50, 500)


def act_full(s: Stage) -> None:
    """A disk that is full after a few chunks."""
    small = s.out / "small"
    small.mkdir()
    cache.run(["mount", "-t", "tmpfs", "-o", "size=512k", "kpat-full", str(small)], "mounting a small tmpfs")
    ballast = small / "ballast"
    ballast.write_bytes(bytes(100 << 10))
    try:
        ready = s.out / "full.ready"
        p = play.Process("full", [play.kpat_path(), "record", "-o", str(small / "full.kbl"), "--ready-file", str(ready), "-f", "udp port 9000",
                                  *[x for n in s.net.topo["namespaces"] for x in ("--netns", s.net.ns(n))]], s.out)
        p.wait_ready(ready.exists, cache.patience())
        end = time.monotonic() + 40
        while time.monotonic() < end and p.p.poll() is None and "disk is full" not in play.text_of(p.stderr):
            s.send(500, 4000)
        # A little room comes back at times: the report of what was lost may find it, or a chunk may take it before.
        for left in (96, 88, 84, 40, 36):
            s.send(1000, 8000)
            os.truncate(ballast, left << 10)
        s.send(1000, 8000)
        s.facts |= {"ended_by_itself": p.p.poll() is not None, "full_rc": p.stop(30)}
        shutil.copy(small / "full.kbl", s.out / "full.kbl")
    finally:
        subprocess.run(["umount", str(small)], stdin=subprocess.DEVNULL)


def act_rotated(s: Stage) -> None:
    """Two recorders of the same packets, one of them going from file to file. In a guest the clock is set an hour ahead meanwhile."""
    with s.recording("single", "-f", "udp port 9000"), s.recording("rotated", "-f", "udp port 9000", "--rotate-time", "2s"):
        for i in range(3):
            s.send(300, 300)
            if i == 1 and s.net.in_guest:
                time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600)
        time.sleep(6)  # readings of both clocks are five seconds apart
    if s.net.in_guest:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - 3600)
    s.facts["sent"] = 900
    s.facts["files"] = sorted(f.name for f in s.out.glob("rotated-*.kbl"))
    s.facts["list"] = s.kpat("collect", "send", s.out, s.out / "shelf", "--device", "dut", "--once") | {"listed": s.kpat("collect", "list", s.out / "shelf", "--json")["out"]}


def act_control(s: Stage) -> None:
    """kpat ctl on a running recording; each word is marked by the source port of the datagrams sent after it."""
    def some(mark: int) -> None:
        s.run("cl", sys.executable, "-c", "import socket\nx=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
              f"x.bind(('10.7.1.2',{mark}))\nfor i in range(20): x.sendto(bytes(20),('10.7.2.2',9000))")
        time.sleep(0.3)

    with s.receiver(0), s.recording("control", "-f", "udp port 9000") as p:
        def ctl(*a):
            return s.kpat("ctl", *a, "--pid", p.p.pid)
        some(20001)
        s.facts["status"] = ctl("status", "--json")
        s.facts["list"] = s.kpat("ctl", "list")
        s.facts["pid"] = p.p.pid
        s.facts["off"] = ctl("off", "ip_forward*", "net:netif_rx*")
        some(20002)
        s.facts["on"] = ctl("on", "ip_forward*", "net:netif_rx*")
        some(20003)
        s.facts["pause"] = ctl("pause")
        some(20004)
        s.facts["resume"] = ctl("resume")
        some(20005)
        s.facts["unknown"] = ctl("off", "no_such_function_*")
        s.facts["stop"] = ctl("stop")
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.p.wait(30)
        s.facts["ended"] = p.p.poll()
        s.facts["after"] = ctl("status")


def act_flight(s: Stage) -> None:
    """The flight recorder: dumped by command, by signal, by a drop; what is older than --last is not in it."""
    def some(mark: int, port: int = 9000) -> None:
        s.run("cl", sys.executable, "-c", "import socket\nx=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
              f"x.bind(('10.7.1.2',{mark}))\nfor i in range(20): x.sendto(bytes(20),('10.7.2.2',{port}))")

    def settle(p) -> None:
        """The dump is written: the log has not grown for half a second."""
        size, since, end = -1, time.monotonic(), time.monotonic() + 10
        while time.monotonic() < end and time.monotonic() - since < 0.5:
            now = sum(f.stat().st_size for f in s.out.glob("*.kbl"))
            if now != size:
                size, since = now, time.monotonic()
            time.sleep(0.05)

    for name, how in (("asked", "ctl"), ("signal", "SIGUSR1")):
        with s.receiver(0), s.recording(name, "--memory", "4M", "--last", LAST, "-f", "udp port 9000") as p:
            some(21001)
            time.sleep(LAST_WAIT)
            s.facts[f"{name}_before"] = sum(f.stat().st_size for f in s.out.glob(f"{name}*.kbl"))
            some(21002)
            time.sleep(0.2)
            if how == "ctl":
                s.facts["dump"] = s.kpat("ctl", "dump", "--pid", p.p.pid)
            else:
                os.kill(p.p.pid, signal.SIGUSR1)
            settle(p)
            s.facts[f"{name}_files"] = sorted(f.name for f in s.out.glob("*.kbl"))
            for f in list(s.out.glob(f"{name}*.kbl")):
                shutil.copy(f, s.out / f"at-dump-{f.name}")
    with s.receiver(0), s.recording("drop", "--memory", "4M", "--last", "1s", "--dump-on-drop", "-f", "udp portrange 9000-9001") as p:
        some(21003)
        time.sleep(0.3)
        before = sum(f.stat().st_size for f in s.out.glob("drop*.kbl"))
        some(21004, 9001)  # nobody listens: dropped
        settle(p)
        s.facts["drop_bytes"] = [before, sum(f.stat().st_size for f in s.out.glob("drop*.kbl"))]


def act_words(s: Stage) -> None:
    """Wrong use, and what ends a recording by itself."""
    o = s.out / "words.kbl"
    s.facts["filter"] = s.kpat("record", "-o", o, "-f", "udp prot 53", "--for", "1s")
    s.facts["mechanism"] = s.kpat("record", "-o", o, "--mechanism", "kprobe.magic", "--for", "1s")
    s.facts["function"] = s.kpat("record", "-o", o, "-p", "none", "--add", "no_such_function", "--for", "1s")
    s.facts["profile"] = s.kpat("record", "-o", o, "-p", "nonsense", "--for", "1s")
    s.facts["netns"] = s.kpat("record", "-o", o, "--netns", "nowhere", "--for", "1s")
    s.facts["interface"] = s.kpat("record", "-o", o, "-i", "nodev0", "--for", "1s")
    s.facts["folder"] = s.kpat("record", "-o", s.out / "no/such/folder.kbl", "--for", "1s")
    s.facts["ring"] = s.kpat("record", "-o", o, "--ring", "3", "--for", "1s")
    setpriv = shutil.which("setpriv")
    if setpriv:
        r = subprocess.run([setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", play.kpat_path(), "record", "-o", "/tmp/kpat-nobody.kbl", "--for", "1s"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        s.facts["nobody"] = {"rc": r.returncode, "out": r.stdout.decode(), "err": r.stderr.decode()}
    began = time.monotonic()
    ready = s.out / "for.ready"
    s.facts["for"] = s.kpat("record", "-o", s.out / "for.kbl", "--ready-file", ready, "--for", "2s")
    s.facts["for"]["seconds"] = time.monotonic() - began
    s.facts["command"] = s.kpat("record", "-o", s.out / "command.kbl", "-f", "icmp", "--netns", s.net.ns("cl"), "--",
                                *s.net.enter("cl"), "sh", "-c", "ping -n -q -c 3 -i 0.05 10.7.2.2; echo done; exit 7")
    s.facts["no_command"] = s.kpat("record", "-o", o, "--", "/no/such/program")
    s.facts["sniff"] = s.kpat("record", "-o", s.out / "sniff.kbl", "-f", "icmp", "--sniff", f"{s.net.ns('rt')}:r0", "--",
                              *s.net.enter("cl"), "ping", "-n", "-q", "-c", "5", "-i", "0.05", "10.7.2.2")
    s.facts["sniff_files"] = sorted(f.name for f in s.out.glob("sniff*"))


def act_pwru(s: Stage) -> None:
    """The same pings twice: seen by pwru, then by kpat with all functions. Neighbours are known for good: what goes to one that
    has to be confirmed takes another way, and when that is due depends on how long each program takes to start."""
    pwru = os.environ["KPAT_LAB_PWRU"]
    s.ping(2)
    for ns in s.net.topo["namespaces"]:
        for n in json.loads(s.run(ns, "ip", "-j", "neigh", "show") or "[]"):
            if "lladdr" in n:
                s.run(ns, "ip", "neigh", "replace", n["dst"], "lladdr", n["lladdr"], "dev", n["dev"], "nud", "permanent")
    s.facts["neighbours"] = {ns: s.run(ns, "ip", "neigh", "show") for ns in s.net.topo["namespaces"]}
    p = play.Process("pwru", [pwru, "--output-limit-lines", "4000", "icmp"], s.out)
    try:
        p.wait_ready(lambda: "istening for events" in play.text_of(p.stderr) + play.text_of(p.stdout), cache.patience())
        s.ping(5, 0.2)
        time.sleep(2)
    finally:
        p.stop()
    s.facts["probes"] = json.loads(s.kpat("probes", "-p", "all", "--left-out", "--json", seconds=120)["out"] or "null")
    with s.recording("all", "-f", "icmp", "-p", "all", namespaces=False):
        s.ping(5, 0.2)
        time.sleep(0.5)


def act_paging(s: Stage) -> None:
    s.facts["paging"] = json.loads(subprocess.run([sys.executable, LAB / "tools/paging.py"], stdout=subprocess.PIPE, check=True, timeout=60).stdout)


ACTS = {k[4:]: v for k, v in list(globals().items()) if k.startswith("act_")}


def main(out: str, prefix: str, *names: str) -> int:
    topo = scenario.load("ping-router").topology
    net = Network(topo, "" if prefix == "-" else prefix, in_guest=prefix == "-")
    try:
        net.build()
        first = Stage(net, Path(out) / "first")
        wait_for(lambda: " 0% packet loss" in first.ping(1), 30, "an echo through the router")
        for name in names:
            s = Stage(net, Path(out) / name)
            began = time.monotonic()
            try:
                ACTS[name](s)
            except (Refusal, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
                s.facts["refused"] = f"{type(e).__name__}: {e}"
            s.facts["seconds"] = round(time.monotonic() - began, 1)
            s.close()
    finally:
        net.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
