"""Charges: what a load is charged beside an innocent burner against what it is charged alone, and what perf says of the burner in the same run. What each
hook costs, by the kernel's statistics of programs. What recording costs a reader of files and a receiver of datagrams."""

import ctypes
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))
from tests import accounts, profile  # noqa: E402

BURN_CPU, OTHER_CPU = 1, 0
MB = 1 << 20
NAMES = ("client", "router", "server")

# One connection, so many bytes; the receiver only takes.
TCP_TAKE = """
import socket, signal, os
s = socket.create_server(("", 9001))
print("ready", os.getpid(), flush=True)
c, _ = s.accept()
n = 0
while True:
    got = len(c.recv(1 << 18))
    if not got: break
    n += got
print("took", n, flush=True)
signal.pause()
"""
TCP_SEND = accounts.SAY + """
import socket
s = socket.create_connection((sys.argv[1], 9001))
data = b"x" * (1 << 16)
for i in range(int(sys.argv[2]) >> 16): s.sendall(data)
s.close()
say(int(sys.argv[2]))
"""
READ_ALL = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
n, begin = 0, time.monotonic_ns()
while True:
    got = len(os.read(f, 1 << 20))
    if not got: break
    n += got
print("took", n, time.monotonic_ns() - begin, flush=True)
"""
# As fast as it goes for a time; what the receiver took of it is the rate.
BLAST = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9000))
data, until, n = b"x" * int(sys.argv[2]), time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < until:
    for i in range(64): s.send(data)
    n += 64
time.sleep(0.3)
for i in range(3): s.send(b"end")
print("sent", n, flush=True)
"""


def fail(why):
    raise RuntimeError(why)


def sh(*argv, check=True, seconds=60):
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=seconds, check=check)


class Program:
    """A program on a CPU, and the words that it prints."""

    def __init__(self, work, name, cpu, code, *args, ns=None, argv=None):
        self.out = work / f"{name}.out"
        inside = ["ip", "netns", "exec", f"kb-{ns}"] if ns else []
        pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
        argv = argv or [os.path.realpath(sys.executable), "-c", code, *map(str, args)]
        self.file = open(self.out, "w")
        self.p = subprocess.Popen([*inside, *pinned, *argv], stdout=self.file, stderr=subprocess.STDOUT)

    def words(self, word, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self.out.read_text().splitlines():
                if line.startswith(word + " "):
                    return [int(n) for n in line.split()[1:]]
            if self.p.poll() not in (None, 0):
                raise RuntimeError(self.out.read_text()[-500:])
            time.sleep(0.01)
        raise RuntimeError(f"{self.out.name}: no {word}")

    def stop(self, with_signal=signal.SIGTERM):
        if self.p.poll() is None:
            self.p.send_signal(with_signal)
            try:
                self.p.wait(30)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        self.file.close()


class Place:
    """Three namespaces: client, router, server; what comes to server and router is received on the burner's CPU."""

    def __enter__(self):
        self.__exit__()
        for n in NAMES:
            sh("ip", "netns", "add", f"kb-{n}")
            sh("ip", "-n", f"kb-{n}", "link", "set", "lo", "up")
            sh("ip", "netns", "exec", f"kb-{n}", "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        for a, dev, mine, b, peer, theirs in (("client", "c0", "10.97.1.2", "router", "r0", "10.97.1.1"), ("server", "s0", "10.97.2.2", "router", "r1", "10.97.2.1"),
                                              ("client", "d0", "10.97.3.2", "server", "t0", "10.97.3.1")):  # fmt: skip
            sh("ip", "-n", f"kb-{a}", "link", "add", dev, "type", "veth", "peer", "name", peer, "netns", f"kb-{b}")
            for ns, name, address in ((a, dev, mine), (b, peer, theirs)):
                sh("ip", "-n", f"kb-{ns}", "addr", "add", f"{address}/24", "dev", name)
                sh("ip", "-n", f"kb-{ns}", "link", "set", name, "up")
        sh("ip", "-n", "kb-client", "route", "add", "10.97.2.0/24", "via", "10.97.1.1")
        sh("ip", "-n", "kb-server", "route", "add", "10.97.1.0/24", "via", "10.97.2.1")
        sh("ip", "netns", "exec", "kb-router", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for ns, dev in (("router", "r0"), ("server", "t0"), ("client", "d0")):
            sh("ip", "netns", "exec", f"kb-{ns}", "sh", "-c", f"echo {1 << BURN_CPU:x} > /sys/class/net/{dev}/queues/rx-0/rps_cpus")
        return self

    def __exit__(self, *_):
        for n in NAMES:
            sh("ip", "netns", "del", f"kb-{n}", check=False)


def bpf(command, attributes):
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    return ctypes.CDLL(None, use_errno=True).syscall(number, command, ctypes.byref(attributes), len(attributes))


def hooks(pid):
    """Of each program that a process has: name, runs, nanoseconds, runs that were skipped because it ran already."""
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "bpf-prog" not in os.readlink(fd):
                continue
            facts = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().splitlines())
        except OSError:
            continue
        ask = ctypes.create_string_buffer(16)
        ask[0:4] = int(facts["prog_id"]).to_bytes(4, sys.byteorder)
        own = bpf(13, ask)  # BPF_PROG_GET_FD_BY_ID
        if own < 0:
            continue
        info, ask = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
        ask[0:4] = own.to_bytes(4, sys.byteorder)
        ask[4:8] = (256).to_bytes(4, sys.byteorder)
        ask[8:16] = ctypes.addressof(info).to_bytes(8, sys.byteorder)
        bpf(15, ask)  # BPF_OBJ_GET_INFO_BY_FD
        os.close(own)
        word = lambda at: int.from_bytes(info.raw[at : at + 8], sys.byteorder)
        name = info.raw[64:80].split(b"\0")[0].decode()
        found[int(facts["prog_id"])] = {"name": name, "ns": word(192), "runs": word(200), "missed": word(208)}
    return found


def recording(tools, work, name, *options):
    ready, kbl = work / f"{name}.ready", work / f"{name}.kbl"
    ready.unlink(missing_ok=True)
    argv = [tools.kpat, "record", "-p", "profile", "--no-cost", "--force", "-o", str(kbl), "--ready-file", str(ready), *options]
    r = Program(work, f"record-{name}", None, None, argv=argv)
    until = time.monotonic() + 60
    while not ready.exists():
        if time.monotonic() > until or r.p.poll() is not None:
            raise RuntimeError(r.out.read_text()[-500:])
        time.sleep(0.01)
    return r, kbl


def profiled(tools, kbl):
    out = kbl.with_suffix(".kpat")
    sh(tools.kpat, "integrate", kbl, "-o", out, "--force", "-q", seconds=300)
    return json.loads(sh(tools.kpat, "profile", out, "--limit", "0", "--json").stdout)


def burner(work, n=profile.LOOPS):
    return Program(work, "burn", BURN_CPU, profile.BURN, n)


# What each load gives: whom it is charged to (a process, or the name of what is no process's), and how many units it did.


def receiver(work, file):
    take = Program(work, "take", OTHER_CPU, profile.TAKE, ns="server")
    pid, = take.words("ready")
    yield take
    send = Program(work, "send", OTHER_CPU, profile.SEND, "10.97.3.1", 60_000, ns="client")
    yield send
    yield pid, take.words("took")[0]


def sender(work, file):
    take = Program(work, "take", OTHER_CPU, TCP_TAKE, ns="server")
    take.words("ready")
    yield take
    send = Program(work, "send", OTHER_CPU, TCP_SEND, "10.97.3.1", 512 * MB, ns="client")
    yield send
    yield send.p.pid, send.words("did")[0] >> 16


def forwarder(work, file):
    count = lambda: json.loads(sh("ip", "-n", "kb-router", "-s", "-j", "link", "show", "r1").stdout)[0]["stats64"]["tx"]["packets"]
    take = Program(work, "take", OTHER_CPU, profile.TAKE, ns="server")
    take.words("ready")
    yield take
    before = count()
    send = Program(work, "send", OTHER_CPU, profile.SEND, "10.97.2.2", 60_000, ns="client")
    yield send
    take.words("took")
    yield "forwarded", count() - before


def reader(work, file):
    p = Program(work, "read", OTHER_CPU, accounts.READ, file)
    yield p
    yield p.p.pid, p.words("did")[0] >> 16


def writer(work, file):
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    p = Program(work, "write", OTHER_CPU, accounts.WRITE, new, 128)
    yield p
    did = p.words("did")[0]
    sh("sync", new)
    new.unlink()
    yield p.p.pid, did >> 12


def faults(work, file):
    p = Program(work, "faults", BURN_CPU, accounts.FAULTS, 131072)
    yield p
    yield p.p.pid, p.words("did")[0]


def server(work, file):
    at = work / "socket"
    for old in (at, work / "a", work / "b"):
        old.unlink(missing_ok=True)
    p = Program(work, "serve", BURN_CPU, accounts.SERVE, at)
    p.words("ready")
    yield p
    for name, amount in (("a", 3000), ("b", 9000)):
        yield Program(work, f"ask-{name}", OTHER_CPU, accounts.ASK, at, work / name, amount, 400)
    yield p.p.pid, p.words("did", 120)[0]


LOADS = {
    "receiver: UDP 64 B": (receiver, "packet"), "sender: TCP": (sender, "64 KiB"), "forwarder: UDP 64 B": (forwarder, "packet"),
    "disk read: O_DIRECT": (reader, "64 KiB"), "disk write": (writer, "page"), "page faults": (faults, "fault"), "IPC server": (server, "request"),
}  # fmt: skip


def charge(tools, work, file, load, beside, perf=False):
    """One run: the profile, and who did how much of what."""
    r, kbl = recording(tools, work, "run")
    programs, watched, burn, units = [], None, None, None
    data = work / "perf.data"
    try:
        if perf:
            watched = Program(work, "perf", None, None, argv=["perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", "999", "-o", str(data)])
            time.sleep(0.5)
        if beside:
            burn = burner(work)
            programs.append(burn)
        if load:
            for step in load(work, file):
                if isinstance(step, Program):
                    programs.append(step)
                else:
                    units = step
        ran = burn.words("ran", 120)[0] if burn else None
        stats = hooks(r.p.pid)
        if watched:
            watched.stop(signal.SIGINT)
    finally:
        for p in programs:
            p.stop()
        r.stop(signal.SIGINT)
    p = profiled(tools, kbl)
    row = {"difference_ns": p["difference_ns"], "passed_ns": p["passed_ns"], "unseen_ns": p["buckets_ns"]["unseen"], "proc_stat_ns": p["proc_stat_ns"], "load_average": os.getloadavg()[0]}
    own = lambda x: x["user_ns"] + x["kernel_ns"] + x["fault_ns"]
    of = lambda pid: next((x for x in p["processes"] if x["pid"] == pid), None) or fail(f"process {pid} is not in the profile: {[(x['pid'], x['name']) for x in p['processes']]}")
    if units:
        whom, n = units
        row |= {"units": n, "charged_ns": of(whom)["charged_ns"] if isinstance(whom, int) else p["without_process"][whom]["ns"]}
        row["served_ns"] = of(whom)["served_ns"] if isinstance(whom, int) else row["charged_ns"]
    if burn:
        x = of(burn.p.pid)
        row |= {"burner_own_ns": own(x), "burner_ran_ns": x["ran_ns"], "burner_taken_ns": x["taken_ns"], "burner_schedstat_ns": ran}
        if perf:
            lines = sh("perf", "script", "-i", data, "-F", "pid", seconds=300).stdout.split()
            row["perf_burner_ns"] = int(lines.count(str(burn.p.pid)) / 999 * 1e9)
    row["hooks"] = sorted((h for h in stats.values() if h["runs"]), key=lambda h: -h["ns"])
    return row


def largest_rate(work, size):
    """Datagrams a second of which none is lost: the sender waits for the receiver. Each is one packet."""
    tool, shared = work / "rate", work / "taken"
    if not tool.exists():
        sh("cc", "-O2", "-o", tool, ROOT / "bench/charges/rate.c")
    ends = (("client", "d0"), ("server", "t0"))
    for ns, dev in ends:
        sh("ip", "-n", f"kb-{ns}", "link", "set", dev, "mtu", "9000")
    # What a call sends is cut apart before the device.
    sh("ip", "netns", "exec", "kb-client", "ethtool", "-K", "d0", "tx-udp-segmentation", "off", check=False)
    take = Program(work, "rate-take", BURN_CPU, None, ns="server", argv=[tool, "recv", shared, "9000"])
    take.words("ready")
    send = Program(work, "rate-send", OTHER_CPU, None, ns="client", argv=[tool, "send", shared, "10.97.3.1", "9000", str(size), "0.7"])
    sent, got, passed = send.words("sent")
    take.stop()
    send.stop()
    for ns, dev in ends:
        sh("ip", "-n", f"kb-{ns}", "link", "set", dev, "mtu", "1500")
    return {"rate": got * 1e9 / passed, "sent": sent, "lost": 1 - got / sent}


def throughput(tools, work, file, rounds, keep_rows):
    """What recording costs, in turns: a file read with a cold cache, datagrams received of those sent at full speed, and the largest rate at which none is lost."""
    variants = {"nothing": None, "kpat": (), "kpat, one process": ("--only", "comm=nobody"), "kpat, cpu alone": ("--resource", "cpu")}
    if shutil.which("perf"):
        variants["perf record -g"] = "perf"
    for turn in range(rounds):
        for name, options in variants.items():
            r = None
            if options == "perf":
                r = Program(work, "perf", None, None, argv=["perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", "199", "-o", str(work / "g.data")])
                time.sleep(0.5)
            elif options is not None:
                r, _ = recording(tools, work, "through", *options)
            try:
                p = Program(work, "all", BURN_CPU, READ_ALL, file)
                n, ns = p.words("took")
                p.stop()
                keep_rows({"what": "cold read", "unit": "MB/s", "variant": name, "round": turn, "rate": n * 1000 / ns})
                for size in (64, 256, 1024, 4096):
                    take = Program(work, "take", BURN_CPU, profile.TAKE, ns="server")
                    take.words("ready")
                    send = Program(work, "blast", OTHER_CPU, BLAST, "10.97.3.1", size, 0.7, ns="client")
                    (sent,), got = send.words("sent"), take.words("took")[0]
                    take.stop()
                    send.stop()
                    keep_rows({"what": f"UDP {size} B", "unit": "packets/s", "variant": name, "round": turn, "rate": got / 0.7, "sent": sent, "lost": 1 - got / sent})
                    if shutil.which("cc"):
                        keep_rows({"what": f"UDP {size} B, none lost", "unit": "packets/s", "variant": name, "round": turn, **largest_rate(work, size)})
            finally:
                if r:
                    r.stop(signal.SIGINT)


def measure(tools, rounds, keep, only=None):
    result = {"charges": [], "alone": [], "throughput": [], "perf": shutil.which("perf") is not None}
    work = pathlib.Path(tools.folder)
    file = pathlib.Path(tools.disk) / f"kpat-bench-{os.getpid()}"
    before = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled").read_text()
    try:
        file.write_bytes(os.urandom(MB) * 64)
        sh("sync", file)
        with Place():
            for turn in range(rounds):
                result["alone"].append(charge(tools, work, file, None, True) | {"round": turn})
                for name, (load, unit) in LOADS.items():
                    if only and name not in only:
                        continue
                    for beside in (False, True):
                        row = charge(tools, work, file, load, beside, perf=beside and result["perf"])
                        result["charges"].append(row | {"load": name, "unit": unit, "beside": beside, "round": turn})
                    keep(result)
            # The statistics cost 55 ns a run themselves, so they are never on while charges are measured.
            pathlib.Path("/proc/sys/kernel/bpf_stats_enabled").write_text("1")
            result["hooks"] = {}
            for name, (load, unit) in LOADS.items():
                if not only or name in only:
                    row = charge(tools, work, file, load, False)
                    result["hooks"][name] = {"unit": unit, "units": row["units"], "hooks": row["hooks"]}
            pathlib.Path("/proc/sys/kernel/bpf_stats_enabled").write_text(before)
            keep(result)
            throughput(tools, work, file, rounds, result["throughput"].append)
            keep(result)
    finally:
        pathlib.Path("/proc/sys/kernel/bpf_stats_enabled").write_text(before)
        file.unlink(missing_ok=True)
