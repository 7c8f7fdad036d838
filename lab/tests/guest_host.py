"""Packets between guests that are recorded from outside and their host: each packet of one log has its own partner in the other, no other one, in the
order of its way, with its fate.

Two guests have virtio cards at taps of a bridge in a namespace of this test's own; one has a second card at a tap in another namespace, to which it
forwards. Truth is outside: each datagram has a number in its payload and in its source port, which what sends and receives it counts; tcpdump on the taps
has what was there, in order; rules of nft count what they drop.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kpatlab import emulator, initramfs, kernel

from .emulated import OnConsole, monitor
from .place import kpat_for_guests

ROOT = Path(__file__).resolve().parent.parent.parent
HOST, A, B, AWAY, FAR, BEHIND = "10.77.0.1", "10.77.0.2", "10.77.0.3", "10.78.0.2", "10.78.0.9", "10.80.0.9"
PORT, FIRST = 9000, 20000
INIT = b"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tracefs t /sys/kernel/tracing
while read m; do [ -n "$m" ] && insmod /m/$m.ko; done < /mods
ip link set lo up
echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip addr add 10.77.0.NUMBER/24 dev eth0; ip addr add fd77::NUMBER/64 dev eth0; ip link set eth0 up
cat /proc/sys/kernel/random/boot_id > /boot_id
echo "talker" "ready"
while read line; do eval "$line"; echo "end" "of" "command"; done
"""
MODULES = ["?virtio_pci", "?virtio_net", "8021q", "?crc32c_generic", "?nf_tables", "?nft_chain_nat", "?nft_masq", "?nft_nat", "?nft_ct", "?nft_reject_inet", "?nf_conntrack", "?veth", "?dummy"]


def sh(*argv, ok: bool = True, seconds: float = 60) -> str:
    r = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=seconds)
    if ok and r.returncode:
        raise AssertionError(f"{' '.join(map(str, argv))} ended with {r.returncode}: {r.stdout}{r.stderr}")
    return r.stdout


def with_libraries(files: initramfs.Archive, program: str) -> None:
    path = Path(sh("sh", "-c", f"command -v {program}").strip())
    files.file(f"bin/{program}", path.read_bytes(), 0o755)
    for word in sh("ldd", path).split():
        if word.startswith("/"):
            where = "lib64" if "ld-linux" in word else "lib"
            with contextlib.suppress(ValueError):
                files.file(f"{where}/{Path(word).name}", Path(word).read_bytes(), 0o755)


class Guest(OnConsole):
    """One of the two, at its taps, a shell on its console."""

    READY, PATIENCE = "talker ready", 240

    def __init__(self, series: str, name: str, number: int, netns: str, taps: list[str], program: bytes, smp: int = 1, more: str = ""):
        """With several processors each has a queue of its own in each card."""
        super().__init__(series)
        self.name, self.control = name, f"{self.path}/control"
        try:
            modules = initramfs.Modules(kernel.Kernel(series, "image").tree).load_order(MODULES)
            files = initramfs.Archive()
            files.file("bin/numbers", program, 0o755)
            files.file("traced.awk", (ROOT / "lab/guest/traced.awk").read_bytes())
            with_libraries(files, "nft")
            (self.path / "initrd").write_bytes(initramfs.build(modules, INIT.replace(b"NUMBER", b"%d" % number), kernel.busybox().read_bytes(), files))
            queues, mq = (f",queues={smp}", f",mq=on,vectors={2 * smp + 2}") if smp > 1 else ("", "")
            cards = [word for n, tap in enumerate(taps) for word in
                     ("-netdev", f"tap,id=n{n},ifname={tap},script=no,downscript=no{queues}", "-device", f"virtio-net-pci,netdev=n{n},mac=52:54:00:77:{n:02}:{number:02}{mq}")]
            self.boot(["-cpu", emulator.CPU, "-smp", str(smp), "-qmp", f"unix:{self.control},server=on,wait=off", *self.serial(), *cards], self.path / "initrd",
                      f"net.ifnames=0 tsc=reliable {more}", ("ip", "netns", "exec", netns))
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, patience: float = 60) -> list[str]:
        self.send(command)
        # The console repeats what is typed.
        return [line for line in self.until(lambda line: line.endswith("end of command"), patience)[:-1] if not line.endswith(command)]

    def listen(self, port: int = PORT, seconds: int = 4) -> None:
        self.ask(f"numbers - {port} {seconds} > /tmp/got{port} &")
        self.ask(f"while ! grep -q listening /tmp/got{port}; do sleep 0.1; done")

    def got(self, port: int = PORT) -> list[int]:
        lines = self.ask(f"while ! grep -q done /tmp/got{port}; do sleep 0.2; done; cat /tmp/got{port}", 120)
        return [int(line.split()[1]) for line in lines if line.startswith("got ")]

    def numbers(self, to: str, first: int, count: int, size: int = 32, gap_us: int = 2000, alike: bool = False, port: int = PORT, cut: bool = False) -> int:
        # A tap with several queues keeps the order of what one processor sends.
        lines = self.ask(f"taskset 1 numbers {to} {port} {first} {count} {size} {gap_us} {'alike' if alike else ''} {'cut' if cut else ''}", 180)
        return int(next(line.split()[1] for line in lines if line.startswith("sent")))

    def close(self):
        self.end()
        super().close()


class World:
    """Namespaces, bridge, taps, two guests, the recorders."""

    def __init__(self, series: str, kpat: str, smp: int = 1, more: str = ""):
        self.kpat, self.smp, self.more, self.stack = kpat, smp, more, contextlib.ExitStack()
        self.folder = Path(os.environ.get("KPAT_KEEP_GUEST_HOST") or self.stack.enter_context(tempfile.TemporaryDirectory(prefix="kpat-gh-")))
        self.folder.mkdir(exist_ok=True)
        pid = os.getpid()
        self.host, self.far, self.behind = (f"kgh{pid}{x}" for x in "hfb")
        try:
            self.build(series)
        except BaseException:
            self.stack.close()
            raise

    def build(self, series: str) -> None:
        for ns in (self.host, self.far, self.behind):
            sh("ip", "netns", "add", ns)
            self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
            self.ip(ns, "link set lo up")
        h = self.host
        self.ip(h, "link add br0 type bridge stp_state 0 forward_delay 0")
        for tap in ("tap0", "tap1", "tap2"):
            self.ip(h, f"tuntap add {tap} mode tap vnet_hdr{' multi_queue' if self.smp > 1 else ''}")
        for tap in ("tap0", "tap1"):
            self.ip(h, f"link set {tap} master br0 up")
        self.ip(h, "link set br0 up")
        self.ip(h, f"addr add {HOST}/24 dev br0")
        self.ip(h, "addr add fd77::99/64 dev br0 nodad")
        program = self.folder / "numbers"
        sh("gcc", "-O1", "-static", "-o", program, ROOT / "lab/guest/numbers.c")
        of = [("a", 2, ["tap0", "tap2"]), ("b", 3, ["tap1"])]
        # A guest ends with the thread that started it.
        pool = ThreadPoolExecutor()
        self.stack.callback(pool.shutdown)
        made = [pool.submit(Guest, series, name, number, h, taps, program.read_bytes(), self.smp, self.more) for name, number, taps in of]
        for m in made:
            if not m.exception():  # waits
                self.stack.callback(m.result().close)
        self.a, self.b = (m.result() for m in made)
        self.ip(h, f"link set tap2 netns {self.far}")
        self.ip(self.far, "link set tap2 up")
        self.ip(self.far, f"addr add {FAR}/24 dev tap2")
        self.ip(self.far, f"route add 10.77.0.0/24 via {AWAY}")
        self.ip(h, f"route add 10.78.0.0/24 via {A}")
        self.a.ask(f"ip addr add {AWAY}/24 dev eth1; ip link set eth1 up; echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.ip(h, f"link add v0 type veth peer name v1 netns {self.behind}")
        self.ip(h, "link set v0 up")
        self.ip(self.behind, "link set v1 up")
        self.ip(h, "addr add 10.80.0.1/24 dev v0")
        self.ip(self.behind, f"addr add {BEHIND}/24 dev v1")
        self.inside(h, "sysctl", "-qw", "net.ipv4.ip_forward=1").wait()
        self.a.ask(f"ip route add default via {HOST}")
        self.b.ask(f"ip route add default via {HOST}; ip route add 10.78.0.0/24 via {A}")
        # Neighbours are known, so that no packet waits for one.
        for target, ns in ((A, h), (B, h), (AWAY, self.far)):
            sh("ip", "netns", "exec", ns, "ping", "-c", "2", "-i", "0.2", "-W", "5", target)
        self.a.ask(f"ping -c 1 {B}; ping -6 -c 1 fd77::3; ping -6 -c 1 fd77::99")

    def ip(self, ns: str, words: str) -> str:
        return sh("ip", "-n", ns, *words.split())

    def nft(self, ns: str, rules: str) -> None:
        sh("ip", "netns", "exec", ns, "nft", rules)

    def counted(self, ns: str) -> dict[str, int]:
        out = json.loads(sh("ip", "netns", "exec", ns, "nft", "-j", "list", "counters"))["nftables"]
        return {c["counter"]["name"]: c["counter"]["packets"] for c in out if "counter" in c}

    def inside(self, ns: str, *argv, **more) -> subprocess.Popen:
        return subprocess.Popen(["ip", "netns", "exec", ns, *map(str, argv)], **more)

    def numbers(self, ns: str, to: str, first: int, count: int, size: int = 32, gap_us: int = 2000, alike: bool = False, port: int = PORT, sized: bool = False, cut: bool = False) -> int:
        how = [word for word, on in (("alike", alike), ("sized", sized), ("cut", cut)) if on]
        p = self.inside(ns, self.folder / "numbers", to, port, first, count, size, gap_us, *how, stdout=subprocess.PIPE, text=True)
        out, _ = p.communicate(timeout=120)
        return int(out.split()[1])

    def listen(self, ns: str, port: int = PORT, seconds: int = 4) -> subprocess.Popen:
        p = self.inside(ns, self.folder / "numbers", "-", port, seconds, stdout=subprocess.PIPE, text=True)
        assert p.stdout.readline() == "listening\n"
        return p

    @staticmethod
    def got(p: subprocess.Popen) -> list[int]:
        out, _ = p.communicate(timeout=120)
        return [int(line.split()[1]) for line in out.splitlines() if line.startswith("got ")]

    @contextlib.contextmanager
    def recorded(self, name: str, which: str, guests: str = "ab", host: tuple = ("h", "f"), taps: tuple = (("h", "tap0"),), options: tuple = ()):
        """Records guests, host and captures; what came is in the case that is given."""
        case = Case(self, self.folder / name, guests, taps)
        names = {"h": self.host, "f": self.far, "b": self.behind}
        running = []
        try:
            for ns, tap in taps:
                p = self.inside(names[ns], "tcpdump", "-i", tap, "-w", case.wire(tap), "-U", "--immediate-mode", "-B", "16384", "-Z", "root", which, stderr=subprocess.PIPE, text=True)
                assert "listening" in p.stderr.readline()
                running.append((tap, p))
            if host:
                ready = case.folder / "ready"
                argv = [self.kpat, "record", "--mechanism", "tracepoint", *(w for n in host for w in ("--netns", names[n])), "-f", which, "-o", case.log("host"), "--ready-file", ready]
                p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                running.append(("host", p))
                until = time.monotonic() + 60
                while not ready.exists():
                    assert time.monotonic() < until and p.poll() is None, p.stderr.read()
                    time.sleep(0.05)
            for g in guests:
                guest = {"a": self.a, "b": self.b}[g]
                ready = case.folder / f"{g}.ready"
                p = subprocess.Popen([self.kpat, "--json", "guest", "record", guest.qmp, "-f", which, "-o", case.log(g), "--ready-file", ready, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                running.append((g, p))
                words = []
                for line in p.stderr:
                    words.append(line)
                    if "recording:" in line:
                        break
                assert words and "recording:" in words[-1], words
                until = time.monotonic() + 20
                while not ready.exists():
                    assert time.monotonic() < until and p.poll() is None, "it records, and its file does not say so"
                    time.sleep(0.01)
            yield case
            time.sleep(0.3)
        finally:
            for what, p in reversed(running):
                p.send_signal(signal.SIGINT)
                out, err = p.communicate(timeout=90)
                if what in ("a", "b"):
                    case.done[what] = json.loads(out) if p.returncode in (0, 3) else err
        case.integrate()

    def close(self) -> None:
        self.stack.close()


class Case:
    """Logs of one stretch of traffic, joined."""

    def __init__(self, world: World, folder: Path, guests: str, taps: tuple):
        self.world, self.folder, self.guests, self.taps, self.done = world, folder, guests, taps, {}
        folder.mkdir()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.kbl"

    def wire(self, tap: str) -> Path:
        return self.folder / f"{tap}.pcap"

    def kpat(self, *words):
        r = subprocess.run([self.world.kpat, "--json", *map(str, words)], capture_output=True, text=True, timeout=200)
        assert r.returncode in (0, 3), r.stderr
        return json.loads(r.stdout)

    def integrate(self) -> None:
        logs = [self.log(g) for g in self.guests] + ([self.log("host")] if self.log("host").exists() else [])
        self.both = self.folder / "both.kpat"
        if len(logs) > 1:
            self.report = self.kpat("integrate", *logs, "-o", self.both, "--force")
            self.names = [d["name"] for d in self.report["devices"]]
            self.folders = {n: self.both / f"{n}.kpat" for n in self.names}
        self.kept = {}

    def with_captures(self) -> "Case":
        """The same logs joined over the frames of the captures."""
        other = Case.__new__(Case)
        other.__dict__.update(self.__dict__)
        other.both = self.folder / "wire.kpat"
        logs = [self.log(n) for n in self.names]
        other.report = self.kpat("integrate", *logs, *(self.wire(t) for _, t in self.taps), "-o", other.both, "--force")
        other.folders, other.kept = {n: other.both / f"{n}.kpat" for n in self.names}, {}
        return other

    def packets(self, device: str) -> dict[int, dict]:
        if device not in self.kept:
            self.kept[device] = {p["packet_id"]: p for p in self.kpat("packets", self.folders[device], "--limit", "0")["packets"]}
        return self.kept[device]

    def crossings(self) -> list[tuple[str, dict, str, dict, dict]]:
        """Device and packet that sent, device and packet that received, the row."""
        rows = self.kpat("sql", self.both, "select * from crossing")
        of = lambda d, p: self.packets(self.names[d])[p]
        return [(self.names[r["from_device"]], of(r["from_device"], r["from_packet_id"]), self.names[r["to_device"]], of(r["to_device"], r["to_packet_id"]), r) for r in rows]

    def frames(self, tap: str, *fields: str) -> list[list[str]]:
        argv = ["tshark", "-n", "-r", str(self.wire(tap)), "-o", "ip.defragment:FALSE", "-T", "fields", *(x for f in fields for x in ("-e", f))]
        return [line.split("\t") for line in sh(*argv).splitlines()]


def number(p: dict) -> int | None:
    """Of a datagram with a source port of its own."""
    n = p["src_port"]
    return None if n is None else n - FIRST


def say(*words) -> None:
    print(*words, file=sys.stderr, flush=True)


def judge(case: Case, name: str, expected: list[tuple], of=number) -> tuple[float, float]:
    """Of hops (device, device, number): how many of those that were found are right, and of those that there are were found. A packet's partner is of its
    own number, each has one, and none is received before it was sent."""
    want, right, wrong, backwards = Counter(expected), Counter(), [], 0
    for source, sent, to, got, row in case.crossings():
        hop = (source, to, of(sent))
        if of(sent) != of(got) or right[hop] >= want[hop]:
            wrong.append((source, of(sent), to, of(got), row["confidence"]))
        else:
            right[hop] += 1
        backwards += row["flight_ns"] + row["flight_bound_ns"] < 0
    found = sum(right.values())
    precision, recall = found / max(found + len(wrong), 1), found / max(len(expected), 1)
    say(f"{name:<44} hops {len(expected):>5}  found {found:>5}  wrong {len(wrong):>3}  backwards {backwards}  precision {precision:.4f}  recall {recall:.4f}")
    if wrong or found < len(expected):
        say("   wrong", wrong[:6], "missing", list((want - right).items())[:6], case.report["received"])
    return precision, recall - (backwards > 0)


def segments(case: Case) -> dict[str, set[int]]:
    """Gives each packet of datagrams that were cut its number: those of one source port are numbered from that on, in the order in which a kernel had them.
    Those of a sender that were cut, by device, have none."""
    whole = {}
    for d in case.names:
        big = {r["packet_id"] for r in case.kpat("sql", case.folders[d], "select distinct packet_id from footprint where gso_size > 0")}
        whole[d] = {p for p in big if case.packets(d)[p]["verdict"] == "sent"}
        ports: Counter = Counter()
        for packet, p in sorted(case.packets(d).items()):
            p["number"] = None if packet in whole[d] else number(p) + ports[p["src_port"]]
            ports[p["src_port"]] += packet not in whole[d]
    return whole


def fates(case: Case, device: str) -> dict:
    """Verdicts and reasons of the device's packets by number."""
    found: dict = {}
    for p in case.packets(device).values():
        found.setdefault(number(p), []).append((p["verdict"], p["drop_reason"]))
    return found


def in_order(case: Case, device: str, verdict: str | None = None) -> list[int]:
    """The device's packets as it had them, of this verdict."""
    all_of = sorted(case.packets(device).values(), key=lambda p: p["first_boot_ns"])
    return [p["packet_id"] for p in all_of if verdict in (None, p["verdict"])]


PERFECT = (1.0, 1.0)
N = 100
READ = """import socket
s = socket.create_server(({0!r}, {1}), family=socket.AF_INET6 if ':' in {0!r} else socket.AF_INET)
print('listening', flush=True)
c, _ = s.accept()
n = 0
while d := c.recv(65536): n += len(d)
print(n)"""
SEND = """import socket, time
s = socket.create_connection(({0!r}, {1}))
for _ in range({2}):
    s.sendall(b'x' * {3})
    time.sleep({4})
s.shutdown(1)
s.recv(1)"""


class GuestHost(unittest.TestCase):
    SERIES, SMP = "7.2", 2

    @classmethod
    def setUpClass(cls):
        cls.world = World(cls.SERIES, kpat_for_guests(cls.SERIES, tap=True), cls.SMP)

    @classmethod
    def tearDownClass(cls):
        cls.world.close()

    def setUp(self):
        w = self.world
        self.addCleanup(sh, "ip", "netns", "exec", w.host, "nft", "flush ruleset")
        self.addCleanup(w.a.ask, "nft flush ruleset")

    def datagrams(self, name: str, source: str, to: str, at: str, first: int = 0, host: tuple = ("h", "f"), which: str = f"udp port {PORT}", refused: int = 0, **how):
        """Numbered datagrams, recorded everywhere; the case, and the numbers that were received. `source`, `at`: a guest or a namespace."""
        w = self.world
        guests = {"a": w.a, "b": w.b}
        with w.recorded(name, which, host=host) as case:
            receiver = guests[at].listen() if at in guests else w.listen(at)
            send = guests[source].numbers if source in guests else lambda *a, **k: w.numbers(source, *a, **k)
            count = how.pop("count", N)
            # What the guest's own output refuses is not sent.
            self.assertEqual(count - refused, send(to, first, count, **how))
            came = guests[at].got() if at in guests else w.got(receiver)
        self.assertEqual([], [x for g in ("a", "b") for x in case.done[g]["losses"]])
        # Those with ports of their own go through any of a guest's queues.
        return case, came if how.get("alike") else sorted(came)

    def test_every_datagram_has_its_own_partner(self):
        w = self.world
        hops = lambda *ways, first=0: [(a, b, n) for a, b in ways for n in range(first, first + N)]
        case, came = self.datagrams("up", "a", HOST, w.host)
        self.assertEqual((list(range(N)), PERFECT), (came, judge(case, "guest to host", hops(("a", "host")))))
        self.assertEqual(PERFECT, judge(case.with_captures(), "  with the tap's capture", hops(("a", "host"))))
        case, came = self.datagrams("down", w.host, A, "a")
        self.assertEqual((list(range(N)), PERFECT), (came, judge(case, "host to guest", hops(("host", "a")))))
        case, came = self.datagrams("over", "a", B, "b")
        self.assertEqual((list(range(N)), PERFECT), (came, judge(case, "guest to guest, over the bridge", hops(("a", "host"), ("host", "b")))))
        self.assertEqual({("forwarded", None)}, {x for f in fates(case, "host").values() for x in f})
        # The whole way on one axis, from the first kernel to the last.
        whole = case.kpat("packet", in_order(case, "a")[5], case.both, "--device", "a", "--follow")
        self.assertEqual((["a", "host", "b"], 2), ([p["device"] for p in whole["packets"]], len(whole["crossings"])))
        functions = [{c["function"] for c in p["calls"]} for p in whole["packets"]]
        host = whole["packets"][1]["packet"]
        self.assertEqual((True, "tap0", "tap1", True), ("__dev_queue_xmit" in functions[0], host["in_interface"], host["out_interface"], "__udp_enqueue_schedule_skb" in functions[2]), functions)
        began = [p["way_ns"] for p in whole["packets"]]
        bound = max(c["flight_bound_ns"] for c in whole["crossings"])
        self.assertTrue(began[0] == 0 and began[1] > -bound and began[2] > began[1] - bound, (began, bound))

    def test_over_a_vlan_through_a_router_and_with_translated_addresses(self):
        w = self.world
        hops = lambda *ways: [(a, b, n) for a, b in ways for n in range(N)]
        for guest, n in ((w.a, 2), (w.b, 3)):
            guest.ask(f"ip link add link eth0 name eth0.5 type vlan id 5; ip addr add 10.79.0.{n}/24 dev eth0.5; ip link set eth0.5 up")
        case, came = self.datagrams("vlan", "a", "10.79.0.3", "b", which=f"udp port {PORT} or (vlan and udp port {PORT})")
        self.assertEqual((N, PERFECT), (len(came), judge(case, "VLAN, guest to guest", hops(("a", "host"), ("host", "b")))))
        case, came = self.datagrams("router", w.host, FAR, w.far)
        self.assertEqual((N, PERFECT), (len(came), judge(case, "through a guest that routes", hops(("host", "a"), ("a", "host")))))
        case, came = self.datagrams("far", "b", FAR, w.far)
        self.assertEqual((N, PERFECT), (len(came), judge(case, "guest, bridge, guest that routes", hops(("b", "host"), ("host", "a"), ("a", "host")))))
        w.a.ask("nft 'add table ip n'; nft 'add chain ip n p { type nat hook postrouting priority 100 ; }'; nft 'add rule ip n p oifname eth1 masquerade'")
        case, came = self.datagrams("nat", w.host, FAR, w.far)
        self.assertEqual((N, PERFECT), (len(came), judge(case, "the guest translates", hops(("host", "a"), ("a", "host")))))
        self.assertEqual({AWAY}, {p["src_addr"] for p in case.packets("host").values() if p["verdict"] == "delivered"}, "translated")
        w.nft(w.host, "table ip n {\n chain p {\n type nat hook postrouting priority 100;\n oifname v0 masquerade\n }\n}\n")
        case, came = self.datagrams("nathost", "b", BEHIND, w.behind, host=("h", "f", "b"))
        self.assertEqual((N, PERFECT), (len(came), judge(case, "the host translates", hops(("b", "host")))))

    def cut(self, name: str, source: str, to: str, at: str, ways: tuple) -> None:
        """Twelve datagrams by one call (UDP_SEGMENT), which the sending kernel cuts apart: each segment has its own partner, and none the packet that it was cut from."""
        count = 240
        case, came = self.datagrams(name, source, to, at, count=count, size=1000, cut=True)
        # The numbers are in the payloads: one processor sends, and the tap keeps its order.
        on_tap = [int(bytes.fromhex(f[0][:16])) for f in case.frames("tap0", "udp.payload")]
        self.assertEqual(([*range(count)], [*range(count)]), (came, on_tap))
        whole = segments(case)
        self.assertEqual({d: count // 12 if d == ways[0][0] else 0 for d in case.names}, {d: len(p) for d, p in whole.items()})
        hops = [(a, b, n) for a, b in ways for n in range(count)]
        self.assertEqual(PERFECT, judge(case, f"cut in the sending kernel, {name}", hops, lambda p: p["number"]))
        verdicts = {d: Counter(p["verdict"] for k, p in case.packets(d).items() if k not in whole[d]) for d in case.names}
        ends = {a: "sent" for a, _ in ways[:1]} | {a: "forwarded" for a, _ in ways[1:]} | {ways[-1][1]: "delivered"}
        self.assertEqual({d: {v: count} for d, v in ends.items()}, {d: dict(v) for d, v in verdicts.items() if v})
        # IPv6 has no identification by which a capture's frames would be known.
        if ":" not in to and len(ways) == 1:
            wire = case.with_captures()
            segments(wire)
            self.assertEqual(PERFECT, judge(wire, "  with the tap's capture", hops[:count], lambda p: p["number"]))

    def test_datagrams_that_the_guest_cuts(self):
        self.cut("cut-up", "a", HOST, self.world.host, (("a", "host"),))

    def test_datagrams_that_a_kernel_cuts(self):
        w = self.world
        self.cut("cut-up-6", "a", "fd77::99", w.host, (("a", "host"),))
        self.cut("cut-down", w.host, A, "a", (("host", "a"),))
        self.cut("cut-down-6", w.host, "fd77::2", "a", (("host", "a"),))
        self.cut("cut-over", "a", B, "b", (("a", "host"), ("host", "b")))
        self.cut("cut-over-6", "a", "fd77::3", "b", (("a", "host"), ("host", "b")))

    def test_what_became_of_those_that_did_not_come(self):
        """Half of them are dropped; who received none of these says so, and the drop is at the kernel that dropped them."""
        w = self.world
        lost, kept = range(50), range(50, N)
        dropped, sent = [("dropped", "NETFILTER_DROP")], [("sent", None)]
        each = lambda case, device, numbers: {tuple(fates(case, device).get(n, ["none"])) for n in numbers}
        case, _ = self.datagrams("closed", w.host, A, w.far)
        self.assertEqual(PERFECT, judge(case, "nobody listens in the guest", [("host", "a", n) for n in range(N)]))
        self.assertEqual(({(("dropped", "NO_SOCKET"),)}, {tuple(sent)}), (each(case, "a", range(N)), each(case, "host", range(N))))
        for hook, source, to, at in (("input", w.host, A, "a"), ("output", "a", HOST, w.host)):
            w.a.ask(f"nft 'add table ip t'; nft 'add chain ip t i {{ type filter hook {hook} priority 0 ; }}'; nft 'add rule ip t i udp sport {FIRST}-{FIRST + 49} counter drop'")
            case, came = self.datagrams(f"guest-{hook}", source, to, at, refused=50 if hook == "output" else 0)
            counted = next(line.split()[line.split().index("packets") + 1] for line in w.a.ask("nft list ruleset; nft flush ruleset") if "counter" in line)
            self.assertEqual((50, list(kept)), (int(counted), came))
            way = [("host", "a", n) for n in range(N)] if hook == "input" else [("a", "host", n) for n in kept]
            self.assertEqual(PERFECT, judge(case, f"dropped at the guest's {hook}", way))
            self.assertEqual(({tuple(dropped)}, {(("delivered" if hook == "input" else "sent", None),)}), (each(case, "a", lost), each(case, "a", kept)))
        chains = (("bridge", "prerouting", "", HOST), ("bridge", "forward", "", B), ("ip", "input", "", HOST), ("netdev", "ingress", "device tap0 ", B))
        for family, hook, device, to in chains:
            w.nft(w.host, f"table {family} t {{\n counter c {{ }}\n chain i {{\n type filter hook {hook} {device}priority 0;\n udp sport {FIRST}-{FIRST + 49} counter name c drop\n }}\n}}\n")
            case, came = self.datagrams(f"host-{family}-{hook}", "a", to, "b" if to == B else w.host)
            self.assertEqual((50, list(kept)), (w.counted(w.host)["c"], came))
            w.nft(w.host, "flush ruleset")
            way = [("a", "host", n) for n in range(N)] + ([("host", "b", n) for n in kept] if to == B else [])
            self.assertEqual(PERFECT, judge(case, f"dropped on the host, {family} {hook}", way))
            end = ("forwarded" if to == B else "delivered", None)
            self.assertEqual(({tuple(sent)}, {tuple(dropped)}, {(end,)}), (each(case, "a", range(N)), each(case, "host", lost), each(case, "host", kept)))
        w.ip(w.host, "link set tap0 txqueuelen 5")
        try:
            case, came = self.datagrams("full", w.host, A, "a", count=300, gap_us=0, size=600)
        finally:
            w.ip(w.host, "link set tap0 txqueuelen 1000")
        self.assertTrue(0 < len(came) < 300, "the world is not as it should be: the queue was not full")
        self.assertEqual(PERFECT, judge(case, "the tap's queue is full", [("host", "a", n) for n in came]))
        ends = {n: f for n, [f] in fates(case, "host").items()}
        self.assertEqual({n: ("sent", None) if n in came else ("dropped", "FULL_RING") for n in range(300)}, ends)

    def alike(self, case: Case, name: str, source: str, to: str, sent: list[int], came: list[int], verdict: str | None = None) -> None:
        """The n-th of each log is the n-th that was sent, and that came: a tap keeps order. What the payload says is not in the logs."""
        ours, others = in_order(case, source, verdict), in_order(case, to)
        self.assertEqual((len(sent), len(came)), (len(ours), len(others)), name)
        mine, theirs = dict(zip(ours, sent)), dict(zip(others, came))
        pairs = [(mine[p["packet_id"]], theirs[q["packet_id"]]) for a, p, b, q, _ in case.crossings() if (a, b) == (source, to)]
        wrong = [x for x in pairs if x[0] != x[1]]
        say(f"{name:<44} came {len(came):>5}  found {len(pairs):>5}  wrong {len(wrong):>3}  precision {1 - len(wrong) / max(len(pairs), 1):.4f}  recall {(len(pairs) - len(wrong)) / len(came):.4f}"
            f"  the clock is known to {max(r['flight_bound_ns'] for *_, r in case.crossings()) / 1e6:.3f} ms" if pairs else "nothing found")
        self.assertEqual((len(came), []), (len(pairs), wrong), name)

    def all_alike(self, name: str, source: str, to: str, at: str, gap_us: int) -> tuple[Case, list[int]]:
        """Sent until all come: where a guest or a receiver waits for its processor some are lost, and of equal ones nobody knows which."""
        for again in range(5):
            case, came = self.datagrams(f"{name}-{again}", source, to, at, count=200, gap_us=gap_us, alike=True)
            if len(came) == 200:
                break
        self.assertEqual(list(range(200)), came)
        return case, came

    def test_datagrams_that_are_all_alike(self):
        """By IPv6, which has no identification; they come much closer together than the guest's clock is known."""
        w = self.world
        for gap in (3000, 200, 0):
            case, came = self.all_alike(f"alike-{gap}", "a", "fd77::99", w.host, gap)
            self.alike(case, f"alike, guest to host, {gap} us apart", "a", "host", came, came)
        case, came = self.all_alike("alike-over", "a", "fd77::3", "b", 200)
        self.alike(case, "alike, guest to bridge", "a", "host", came, came)
        self.alike(case, "alike, bridge to guest", "host", "b", came, came)
        w.ip(w.host, "link set tap0 txqueuelen 5")
        try:
            case, came = self.datagrams("alike-full", w.host, "fd77::2", "a", count=300, gap_us=0, size=600, alike=True)
        finally:
            w.ip(w.host, "link set tap0 txqueuelen 1000")
        self.assertTrue(0 < len(came) < 300, "the world is not as it should be: the queue was not full")
        self.alike(case, "alike, the tap's queue is full", "host", "a", came, came, "sent")

    def test_alike_while_the_guest_stands(self):
        w = self.world
        with w.recorded("stands", f"udp port {PORT}") as case:
            w.a.listen(seconds=8)
            with ThreadPoolExecutor() as pool:
                sender = pool.submit(w.numbers, w.host, "fd77::2", 0, 200, 32, 10_000, True)
                time.sleep(0.5)
                monitor(w.a.control, "stop")
                time.sleep(0.7)
                monitor(w.a.control, "cont")
                sender.result()
            came = w.a.got()
        self.assertEqual(list(range(200)), came)
        self.alike(case, "alike, the guest stands for 0.7 s", "host", "a", came, came)

    def stream(self, case: Case, name: str, tap: str = "tap0") -> None:
        """Each frame of the tap is a packet that one kernel sent and the other received, with the same place in the stream."""
        frames = Counter((r[0], int(r[1])) for r in case.frames(tap, "tcp.seq_raw", "tcp.len"))
        parts = {d: {} for d in case.names}
        for d in case.names:
            for r in case.kpat("sql", case.folders[d], "select packet_id, tcp_seq, payload_bytes from footprint where tcp_seq is not null"):
                parts[d].setdefault(r["packet_id"], set()).add((str(r["tcp_seq"]), r["payload_bytes"] or 0))
        found, wrong, backwards = Counter(), [], 0
        for a, p, b, q, row in case.crossings():
            same = parts[a][p["packet_id"]] & parts[b][q["packet_id"]]
            found.update(list(same)[:1])
            wrong += [] if same else [(a, p["packet_id"], b, q["packet_id"])]
            backwards += row["flight_ns"] + row["flight_bound_ns"] < 0
        missing = frames - found
        say(f"{name:<44} hops {sum(frames.values()):>5}  found {sum(found.values()):>5}  wrong {len(wrong):>3}  backwards {backwards}  big {sum(n for f, n in frames.items() if f[1] > 1460)}"
            f"  precision {1 - len(wrong) / max(len(case.crossings()), 1):.4f}  recall {1 - sum(missing.values()) / sum(frames.values()):.4f}  {case.report['received']}")
        self.assertEqual(({}, [], 0, 0), (dict(missing), wrong, backwards, case.report["received"]["ambiguous"]), name)

    def test_streams_and_what_is_sent_again(self):
        w = self.world
        drop = "table {0} t {{\n counter c {{ }}\n chain i {{\n type filter hook {1} priority 0;\n {2} meta length > 100 limit rate 1/hour burst 6 packets counter name c drop\n }}\n}}\n"
        ways = (("up", "", 0), ("up", drop.format("bridge", "prerouting", "iifname tap0 tcp dport 9401"), 1),
                ("down", "", 2), ("down", drop.format("ip", "output", "oifname br0 tcp dport 9403"), 3))
        for way, rules, n in ways:
            port, lost = 9400 + n, 0
            if rules:
                w.nft(w.host, rules)
            with w.recorded(f"tcp{n}", f"tcp port {port}") as case:
                if way == "up":
                    p = w.inside(w.host, "python3", "-c", READ.format(HOST, port), stdout=subprocess.PIPE, text=True)
                    self.assertEqual("listening\n", p.stdout.readline())
                    w.a.ask(f"head -c 1000000 /dev/zero | nc {HOST} {port}", 120)
                    self.assertEqual(1_000_000, int(p.communicate(timeout=120)[0]))
                else:
                    w.a.ask(f"nc -l -p {port} > /tmp/rx &")
                    w.a.ask(f"while ! netstat -ltn | grep -q :{port}; do sleep 0.1; done")
                    self.assertEqual(0, w.inside(w.host, "python3", "-c", SEND.format(A, port, 10, 100_000, 0)).wait(120))
                    self.assertIn("1000000 /tmp/rx", w.a.ask("while [ $(wc -c < /tmp/rx) -lt 1000000 ]; do sleep 0.1; done; wc -c /tmp/rx"))
            if rules:
                lost = w.counted(w.host)["c"]
                self.assertGreater(lost, 0, "the world is not as it should be: nothing was dropped")
                w.nft(w.host, "flush ruleset")
            self.stream(case, f"a stream {way}, {lost} dropped")
            drops = [p for p in case.packets("host").values() if p["drop_reason"] == "NETFILTER_DROP"]
            self.assertEqual(lost, len(drops))

    def test_fragments_and_control_messages(self):
        w = self.world
        for name, to, which in (("fragments", B, "ip proto 17"), ("fragments-6", "fd77::3", "ip6 proto 44")):
            case, came = self.datagrams(name, "a", to, "b", which=which, count=50, size=4000)
            self.assertEqual(50, len(came))
            rows, frames = case.crossings(), case.frames("tap0", "frame.number")
            parts = {d: {} for d in case.names}
            for d in case.names:
                for r in case.kpat("sql", case.folders[d], "select packet_id, ip_id, frag_offset from footprint where ip_id is not null"):
                    parts[d].setdefault(r["packet_id"], set()).add((r["ip_id"], r["frag_offset"]))
            pairs = Counter((a, b) for a, _, b, _, _ in rows)
            wrong = [(a, p["packet_id"], b, q["packet_id"]) for a, p, b, q, _ in rows if not parts[a][p["packet_id"]] & parts[b][q["packet_id"]]]
            say(f"{name + ', guest to guest':<44} frames {len(frames)}  hops {dict(pairs)}  wrong {len(wrong)}")
            self.assertEqual(({("a", "host"): 150, ("host", "b"): 150}, []), (dict(pairs), wrong))
            # The card leaves what is behind the link header in a page: that they came by it is in the log all the same.
            came = Counter((p["verdict"], p["in_interface"]) for p in case.packets("b").values())
            self.assertEqual({("delivered", "eth0"): 50, ("transformed", "eth0"): 100}, dict(came))
        with w.recorded("icmp", "icmp or arp or icmp6") as case:
            w.a.ask(f"arp -d {HOST}; ping -c 20 -A {HOST}; ping -c 20 -A {B}; ping -6 -c 20 -A fd77::3", 120)
        # Whoever has a new address asks for routers, whenever that is.
        frames = [f for f in case.frames("tap0", "arp.opcode", "icmp.type", "icmpv6.type") if f[2] != "133"]
        found = Counter((a, b) for a, p, b, _, _ in case.crossings() if p["icmp_type"] != 133)
        say(f"{'echoes, ARP and neighbour discovery':<44} frames of tap0 {len(frames)}  {case.report['received']}  {dict(found)}")
        # What has no number, and was taken up late by a guest that had no processor, is counted and not joined.
        late = case.report["received"]["ambiguous"]
        # Some may ask for routers just before another kernel's recording begins.
        self.assertLessEqual(case.report["received"]["unmatched"], 2)
        self.assertTrue(0 <= len(frames) - found["a", "host"] - found["host", "a"] <= late <= 3, (len(frames), found, late))
        what = lambda p: tuple(p[k] for k in ("protocol", "arp_op", "icmp_type", "icmp_id", "icmp_seq", "src_addr", "dst_addr", "len_bytes"))
        self.assertEqual([], [(what(p), what(q)) for _, p, _, q, _ in case.crossings() if what(p) != what(q)])

    def test_a_recording_that_begins_in_the_middle_and_again(self):
        """What is in both logs is joined; what the host alone has, from before and after, is nobody's."""
        w = self.world
        w.a.ask("nc -l -p 9500 > /tmp/rx &")
        w.a.ask("while ! netstat -ltn | grep -q :9500; do sleep 0.1; done")
        p = w.inside(w.host, "python3", "-c", SEND.format(A, 9500, 1000, 3000, 0.02))
        try:
            for n in (1, 2):
                with w.recorded(f"middle{n}", "tcp port 9500") as case:
                    time.sleep(2)
                inside = len(case.packets("a"))
                say(f"{'in the middle of a connection, ' + str(n):<44} in the guest's log {inside}  {case.report['received']}")
                self.assertGreater(inside, 50)
                # One may be on its way at each end.
                self.assertLessEqual(inside - case.report["received"]["crossed"], 4)
                self.assertEqual(0, case.report["received"]["ambiguous"])
        finally:
            p.kill()
            p.wait(20)
            w.a.ask("killall nc")

    def test_the_clocks_bound_is_true(self):
        """Nothing is received before it was sent: both ways together say between which two the clock's error lies, and the stated bound is not below either."""
        w = self.world
        with w.recorded("clock", f"udp port {PORT}") as case:
            w.a.listen()
            p = w.listen(w.host)
            with ThreadPoolExecutor() as pool:
                other = pool.submit(w.numbers, w.host, A, 1000, 300)
                w.a.numbers(HOST, 0, 300)
                other.result()
            self.assertEqual((300, 300), (len(w.a.got()), len(w.got(p))))
        self.assertEqual(PERFECT, judge(case, "both ways at once", [("a", "host", n) for n in range(300)] + [("host", "a", n) for n in range(1000, 1300)]))
        rows = [(a, r["flight_ns"], r["flight_bound_ns"]) for a, _, _, _, r in case.crossings()]
        out, back = (min(f for a, f, _ in rows if a == d) for d in ("a", "host"))
        bound = case.done["a"]["clock"]["host_bound_ns"]
        inside = lambda error: sum(f + b + (error if a == "a" else -error) >= 0 for a, f, b in rows)
        say(f"the clock is known to {bound} ns; by both ways its error is from {-out} to {back} ns; flights inside their bound {inside(0)} of {len(rows)}, "
            f"with an error of 5 ms more {inside(5_000_000 + bound)} and {inside(-5_000_000 - bound)}")
        self.assertEqual(len(rows), inside(0))
        self.assertGreaterEqual(out + back, -2 * bound)
        # An error that is injected shows.
        self.assertLess(inside(5_000_000 + bound), len(rows))
        self.assertLess(inside(-5_000_000 - bound), len(rows))

    def test_a_guest_that_begins_anew_while_it_is_recorded(self):
        w = self.world
        with w.recorded("anew", f"udp port {PORT}") as case:
            w.b.listen()
            w.a.numbers(B, 0, N)
            self.assertEqual(list(range(N)), sorted(w.b.got()))
            monitor(w.b.control, "system_reset")
            w.a.numbers(B, N, N)
            w.b.until(lambda line: line.endswith(w.b.READY), w.b.PATIENCE)
        w.b.ask(f"ip route add default via {HOST}; ip route add 10.78.0.0/24 via {A}")
        self.assertEqual(PERFECT, judge(case, "the guest begins anew", [("a", "host", n) for n in range(2 * N)] + [("host", "b", n) for n in range(N)]))
        w.a.ask(f"ping -c 2 {B}")
        case, came = self.datagrams("again", "a", B, "b")
        self.assertEqual((N, PERFECT), (len(came), judge(case, "and is recorded again", [(x, y, n) for x, y in (("a", "host"), ("host", "b")) for n in range(N)])))

    def test_a_guest_is_read_while_its_processes_come_and_go(self):
        w = self.world
        w.a.ask("(while [ ! -e /tmp/enough ]; do true | cat; done) &")
        try:
            said = Counter()
            for _ in range(40):
                r = subprocess.run([w.kpat, "guest", "symbols", w.a.qmp, "tcp_v4_rcv"], capture_output=True, text=True, timeout=60)
                said[r.returncode, "" if r.returncode == 0 else r.stderr.strip()] += 1
        finally:
            w.a.ask("touch /tmp/enough; sleep 0.3; rm /tmp/enough")
        self.assertEqual({(0, ""): 40}, dict(said))


class GuestHostOne(GuestHost):
    SMP = 1


class GuestHost61(GuestHost):
    SERIES = "6.1"


class GuestHost612(GuestHost):
    SERIES = "6.12"
