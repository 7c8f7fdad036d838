"""On this machine: TCP bulk and small UDP through a router namespace with nothing, kpat, empty programs and tcpdump, in turn.

Throughput is what arrived. CPU is given twice: busy time of the whole machine (/proc/stat; others' work is in it) and the
tool's own (its rusage). One JSON file with every round.
"""

import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

TAG = f"kb{os.getpid()}"
CL, RT, SV = f"{TAG}cl", f"{TAG}rt", f"{TAG}sv"
SETUP = f"""
netns add {CL}
netns add {RT}
netns add {SV}
-n {CL} link add c0 type veth peer name r0 netns {RT}
-n {SV} link add s0 type veth peer name r1 netns {RT}
-n {CL} addr add 10.9.1.2/24 dev c0
-n {RT} addr add 10.9.1.1/24 dev r0
-n {RT} addr add 10.9.2.1/24 dev r1
-n {SV} addr add 10.9.2.2/24 dev s0
-n {CL} link set c0 up
-n {RT} link set r0 up
-n {RT} link set r1 up
-n {SV} link set s0 up
-n {CL} route add default via 10.9.1.1
-n {SV} route add default via 10.9.2.1
"""
ROUTER = [(RT, "r0")]
# All that a packet crosses, which is what kpat sees.
ALL = [(CL, "c0"), (RT, "r0"), (RT, "r1"), (SV, "s0")]
HERE = ("--netns", CL, "--netns", RT, "--netns", SV)
WHOLE = {
    "nothing": None,
    "kpat": ("kpat", *HERE),
    "kpat --no-cost": ("kpat", *HERE, "--no-cost"),
    # What its samples would cost, were they all of the time.
    "kpat --no-cost, statistics always on": ("kpat counted", *HERE, "--no-cost"),
    "kpat --no-cost, no task or softirq": ("kpat", *HERE, "--no-cost", "--remove", "sched:*", "--remove", "irq:*", "--remove", "napi:*"),
    "empty programs": ("points",),
    "tcpdump": ("tcpdump", ALL),
    "tcpdump -s 96": ("tcpdump", ALL, "-s", "96"),
    "tcpdump, one interface": ("tcpdump", ROUTER),
    "tcpdump -s 96, one interface": ("tcpdump", ROUTER, "-s", "96"),
}
# Peers at tracepoints of net, a line or sample each. They know no namespace, and bpftrace 0.23 reads an empty name of the device, so what is not of this
# load is left out by its length: with and without the header of the link.
LENGTHS = (64 + 28 + 14, 64 + 28)
EVENTS = ("net_dev_queue", "net_dev_start_xmit", "net_dev_xmit", "netif_rx", "netif_receive_skb")
EACH = 3 * 2 + 2 * 2  # of them a forwarded datagram meets: out of two devices, into two
WHOLE_PEERS = {
    "perf record": ("perf",),
    "bpftrace": ("bpftrace",),
}
# A host with more to do than what is asked for: nothing that the filter wants, and a packet of a thousand. Without the statistics, which in a
# recording as short as these are on for a third of the time.
NARROW = {
    "nothing": None,
    "kpat, none wanted": ("kpat", "--no-cost", "-f", "udp port 1"),
    "kpat, none wanted, no task or softirq": ("kpat", "--no-cost", "-f", "udp port 1", "--remove", "sched:*", "--remove", "irq:*", "--remove", "napi:*"),
    "kpat, 1 of 1,000 wanted": ("kpat", "--no-cost", "-f", "udp port 20500 or icmp"),
    "empty programs": ("points",),
    "tcpdump -s 96, 1 of 1,000 wanted": ("tcpdump", ALL, "-s", "96", "udp port 20500 or icmp"),
}
VARIANTS = {"tcp": WHOLE, "udp": WHOLE | WHOLE_PEERS, "tcp, narrow": NARROW, "udp, narrow": NARROW}


def up():
    for line in SETUP.strip().splitlines():
        subprocess.run(["ip", *line.split()], check=True)
    subprocess.run(inside(RT, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)


def down():
    for ns in (CL, RT, SV):
        subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)


def inside(ns, *command):
    return ["ip", "netns", "exec", ns, *command]


def busy_s():
    # user nice system idle iowait irq softirq steal
    t = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(t) - t[3] - t[4] - t[7]) / os.sysconf("SC_CLK_TCK"), t[7] / os.sysconf("SC_CLK_TCK")


def wait_for(happened, process, what):
    for _ in range(1200):
        if happened():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"bench: {what} did not become ready")


def cpu_s(pid):
    t = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(t[11]) + int(t[12])) / os.sysconf("SC_CLK_TCK")


def rest_of(process):
    """Ends a recorder, and says what CPU it took in all."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tool_cpu_s": round(cpu, 4), "rc": process.returncode}


def kernel_counts():
    """The kernel's statistics of all BPF programs, on as long as this descriptor is open: bpf(BPF_ENABLE_STATS)."""
    of = ctypes.create_string_buffer(4)
    fd = ctypes.CDLL(None, use_errno=True).syscall(321 if os.uname().machine == "x86_64" else 280, 32, of, 4)
    if fd < 0:
        raise SystemExit(f"bench: no statistics of BPF programs: {os.strerror(ctypes.get_errno())}")
    return fd


class Tool:
    """One recorder, or a sniffer on each interface, from ready to its own last word."""

    def __init__(self, what, a):
        self.what, self.processes = what, []
        if not what:
            return
        kind, *args = what
        self.folder = os.path.join(a.folder, "tool")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        ready = self.path("ready")
        written = lambda: os.path.exists(ready) and os.path.getsize(ready) > 0
        self.counting = kernel_counts() if kind == "kpat counted" else None
        if kind.startswith("kpat"):
            command = [a.kpat, "record", *args, "-o", self.path("log.0"), "--ready-file", ready, "--json", "--no-progress"]
            self.start(0, command, written)
        elif kind == "points":
            self.start(0, [a.points, ready, *a.names], written)
        elif kind == "perf":
            ours = " || ".join(f"len == {n}" for n in LENGTHS)
            events = [x for e in EVENTS for x in ("-e", f"net:{e}", "--filter", ours)]
            command = ["perf", "record", "-q", "-a", "-B", "-N", "--no-bpf-event", "--synth=no", *events, "-o", self.path("log.0")]
            self.start(0, command, lambda: self.waits("7"))  # poll
        elif kind == "bpftrace":
            self.start(0, [a.bpftrace, "-o", self.path("log.0"), self.script()], lambda: self.waits("232"))  # epoll_wait
        else:
            interfaces, *args = args
            for n, (ns, dev) in enumerate(interfaces):
                command = inside(ns, "tcpdump", "-n", "-i", dev, "-Z", "root", "-w", self.path(f"log.{n}"), *args)
                self.start(n, command, lambda: "listening on" in open(self.path(f"err.{n}")).read())
        self.cpu_ready = self.cpu()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, n, command, happened):
        out, err = open(self.path(f"out.{n}"), "w"), open(self.path(f"err.{n}"), "w")
        self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err))
        try:
            wait_for(happened, self.processes[-1], command[0])
        except SystemExit:
            # Left alone it would cost whatever is measured next.
            for p in self.processes:
                p.kill()
            raise

    def waits(self, call):
        """These say nothing: ready once they wait in a call of the kernel with their events open."""
        try:
            own = pathlib.Path(f"/proc/{self.processes[-1].pid}")
            events = sum("perf_event" in os.readlink(x) for x in (own / "fd").iterdir())
            return events >= len(EVENTS) and (own / "syscall").read_text().startswith(call + " ")
        except OSError:
            return False

    def script(self):
        """A line for each: when, where, which packet, how long."""
        ours = " || ".join(f"args.len == {n}" for n in LENGTHS)
        each = [f'tracepoint:net:{e} /{ours}/ {{ printf("%llu {e} %llx %d\\n", nsecs, args.skbaddr, args.len); }}\n' for e in EVENTS]
        pathlib.Path(self.path("script")).write_text("".join(each))
        return self.path("script")

    def cpu(self):
        return sum(cpu_s(p.pid) for p in self.processes)

    def end(self):
        if not self.processes:
            return {}
        answer = {"tool_cpu_in_load_s": round(self.cpu() - self.cpu_ready, 3)}
        if self.what[0] == "points":
            self.processes[0].stdin.close()
            self.processes[0].wait(30)
            return answer | json.load(open(self.path("out.0")))
        ends = [rest_of(p) for p in self.processes]
        files = [self.path(f"log.{n}") for n in range(len(ends))]
        answer |= {"tool_cpu_s": sum(e["tool_cpu_s"] for e in ends), "rc": max(e["rc"] for e in ends)}
        answer["file_bytes"] = sum(map(os.path.getsize, files))
        if self.counting is not None:
            os.close(self.counting)
        if self.what[0].startswith("kpat"):
            s = json.load(open(self.path("out.0")))
            s.pop("outputs", None)
            answer["summary"] = s
            answer["events"] = s["records"]
            answer["lost"] = sum(x.get("count", 0) for x in s["losses"])
        elif self.what[0] == "perf":
            stats = subprocess.run(["perf", "report", "-i", files[0], "--stats"], capture_output=True, text=True).stdout
            # In all first, then by event.
            found = [re.search(rf"(?m)^\s*{x} events:\s+(\d+)", stats) for x in ("SAMPLE", "LOST_SAMPLES", "LOST")]
            answer["events"] = int(found[0].group(1)) if found[0] else 0
            # How often it tells of a loss, not how much was lost.
            answer["lost_said"] = sum(int(x.group(1)) for x in found[1:] if x)
        elif self.what[0] == "bpftrace":
            words = pathlib.Path(files[0]).read_text(errors="replace")
            answer["events"] = len(re.findall(r"(?m)^\d+ ", words))
            answer["lost_said"] = sum(map(int, re.findall(r"[Ll]ost (\d+) events", words + open(self.path("err.0")).read())))
        else:
            words = [open(self.path(f"err.{n}")).read() for n in range(len(ends))]
            number = lambda what: sum(int(re.search(rf"(\d+) packets? {what}", w).group(1)) for w in words)
            answer["events"], answer["lost"] = number("captured"), number("dropped by kernel")
        return answer


def points_of(a):
    """Tracepoints at which a recording has programs, one name for each program: as the kernel tells them of the recorder's links."""
    recorder = Tool(("kpat", *HERE, "--no-cost"), a)
    names = []
    for p in pathlib.Path(f"/proc/{recorder.processes[0].pid}/fdinfo").iterdir():
        names += re.findall(r"^tp_name:\s*(\S+)", p.read_text(), re.M)
    recorder.end()
    if not names:
        raise SystemExit("bench: the recorder has no tracepoints: this is for a host where those are the mechanism")
    return sorted(names)


def softirqd_s():
    """CPU of the kernel's threads that do what softirqs leave over."""
    total = 0
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (p / "comm").read_text().startswith("ksoftirqd/"):
                total += int((p / "schedstat").read_text().split()[0])
        except OSError:
            pass
    return total / 1e9


# The ends stay on a CPU each.
ON_FIRST, ON_LAST = ("taskset", "-c", "0"), ("taskset", "-c", str(os.cpu_count() - 1))


def whole(seconds):
    """For iperf3, which takes a part of a second for no end."""
    return str(max(1, round(seconds)))


def tcp(seconds, a, flows):
    server = subprocess.Popen([*inside(SV), *ON_LAST, "iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if "listening" in line:
            break
    # Bulk is some 30,000 packets a second, so this is the one of a thousand.
    pings = subprocess.Popen(inside(CL, "ping", "-q", "-i", "0.03", "10.9.2.2"), stdout=subprocess.DEVNULL) if flows > 1 else None
    out = subprocess.run([*inside(CL), *ON_FIRST, "iperf3", "-c", "10.9.2.2", "-t", whole(seconds), "-J"], capture_output=True, text=True)
    server.communicate()
    if pings:
        pings.send_signal(signal.SIGINT)
        pings.wait()
    end = json.loads(out.stdout)["end"]
    got, cpu = end["sum_received"], end["cpu_utilization_percent"]
    # Both ends' own CPU, in which the stack's work for their packets is: less noisy than throughput on a busy machine.
    cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * got["seconds"]
    return {
        "gbit_s": got["bits_per_second"] / 1e9,
        "retransmits": end["sum_sent"].get("retransmits"),
        "ends_cpu_ns_per_kib": cpu_s * 1e9 / (got["bytes"] / 1024),
    }


def udp(seconds, a, flows):
    sink = subprocess.Popen([*inside(SV), *ON_LAST, a.udpload, "take", "9000", str(seconds + 0.5)], stdout=subprocess.PIPE, text=True)
    time.sleep(0.1)
    before = softirqd_s()
    command = [*inside(CL), *ON_FIRST, a.udpload, "send", "10.9.2.2", "9000", str(seconds), "64", str(flows)]
    out = subprocess.run(command, capture_output=True, text=True)
    softirqd = softirqd_s() - before
    sent, got = json.loads(out.stdout), json.loads(sink.communicate()[0])
    return {
        "sent_pps": sent["packets"] / sent["seconds"],
        "got_pps": got["packets"] / sent["seconds"],
        "sent": sent["packets"],
        "got": got["packets"],
        # With veth all work of the packet's way is the sender's, but for what a softirq leaves over.
        "sender_cpu_ns_per_packet": (sent["cpu_s"] + softirqd) / max(sent["packets"], 1) * 1e9,
        "receiver_cpu_ns_per_packet": got["cpu_s"] / max(got["packets"], 1) * 1e9,
    }


LOADS = {"tcp": (tcp, 1), "udp": (udp, 1), "tcp, narrow": (tcp, 1000), "udp, narrow": (udp, 1000)}


def measure(a, rounds, seconds, save, loads=None, only=None):
    """`a`: kpat, udpload, points, bpftrace (programs), folder. `loads`, `only`: of LOADS and of their variants, beside nothing."""
    rows = []
    down()
    try:
        up()
        a.names = points_of(a)
        subprocess.run(inside(CL, "ping", "-q", "-c", "2", "-i", "0.2", "10.9.2.2"), check=True, stdout=subprocess.DEVNULL)
        for load in loads or LOADS:
            run, flows = LOADS[load]
            # Peers cost minutes and a fetch, so they are asked for by name.
            names = [v for v in VARIANTS[load] if v == "nothing" or (v in only if only else v not in WHOLE_PEERS)]
            run(1, a, flows)
            for n in range(1, rounds + 1):
                # Another order each round, so that no variant always follows the same one.
                for variant in names[n % len(names) :] + names[: n % len(names)]:
                    tool = Tool(VARIANTS[load][variant], a)
                    (b0, s0), t0 = busy_s(), time.monotonic()
                    what = run(seconds, a, flows)
                    (b1, s1), t1 = busy_s(), time.monotonic()
                    r = {"load": load, "variant": variant, "round": n, **what}
                    r["machine_busy_cpus"] = (b1 - b0) / (t1 - t0)
                    r["stolen_cpus"] = (s1 - s0) / (t1 - t0)
                    r["load_average"] = os.getloadavg()[0]
                    r.update(tool.end())
                    if "lost_said" in r and "sent" in r:
                        # By the generator's count, whatever the tool says.
                        r["lost"] = max(0, r["sent"] * EACH - r["events"])
                    rows.append(r)
                    save(rows)
                    print(json.dumps({k: v for k, v in r.items() if k != "summary"}), flush=True)
    finally:
        down()
    return rows
