"""Packets that tc or XDP sends another way than routing would, as container networks, traffic shapers and mirrors do, and packets that wait for their next hop's
link address. Two hosts and a router, or a wire of tc's, between them, in namespaces; on this machine with tracepoints, and in guests with functions. Truth is how many datagrams the sender sent and had
answers to, the segments that both kernels counted, the neighbour table's own announcements, and what was put there to drop."""
import collections
import json
import os
import sys
import time
import unittest

from kpatlab import play
from tests.place import Inside, begun, integrated, linux_before, own, probed, sh

HERE, ROUTED, SWITCHED, SILENT = "10.95.1.9", "10.95.2.1", "10.95.1.1", "10.95.2.77"
DATAGRAMS, WRITES = 100, 40
MODULES = "veth ifb act_mirred cls_u32 cls_bpf sch_ingress sch_tbf"
PROGRAMS = """
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
SEC("tc/redirect") int redirect(struct __sk_buff *s) { return bpf_redirect(TARGET, 0); }
SEC("tc/peer") int peer(struct __sk_buff *s) { return bpf_redirect_peer(TARGET, 0); }
SEC("tc/neigh") int neigh(struct __sk_buff *s) { return bpf_redirect_neigh(TARGET, 0, 0, 0); }
SEC("tc/clone") int clone(struct __sk_buff *s) { bpf_clone_redirect(s, TARGET, 0); return TC_ACT_OK; }
SEC("tc/drop") int drop(struct __sk_buff *s) { return TC_ACT_SHOT; }
SEC("xdp/pass") int xpass(struct xdp_md *x) { return XDP_PASS; }
SEC("xdp/back") int xback(struct xdp_md *x) { return XDP_TX; }
SEC("xdp/drop") int xdrop(struct xdp_md *x) { return XDP_DROP; }
SEC("xdp/redirect") int xredirect(struct xdp_md *x) { return bpf_redirect(TARGET, 0); }
char l[] SEC("license") = "GPL";
"""
SERVER = """
import socket, threading
u = socket.socket(type=socket.SOCK_DGRAM); u.bind(("0.0.0.0", 7000))
t = socket.socket(); t.bind(("0.0.0.0", 7001)); t.listen(5)
def serve():
    while True:
        c, _ = t.accept()
        while c.recv(65536): c.send(b"y" * 100)
        c.close()
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
while True:
    data, peer = u.recvfrom(3000)
    u.sendto(data, peer)
"""
# Each datagram has a length of its own, and each write fits into a segment.
CLIENT = """
import socket, sys
there, answers = sys.argv[1], float(sys.argv[2])
u = socket.socket(type=socket.SOCK_DGRAM); u.connect((there, 7000))
got = 0
for n in range({DATAGRAMS}):
    u.settimeout(5); u.send(b"x" * (100 + n)); u.settimeout(answers or 0.001)
    try: got += len(u.recv(3000)) == 100 + n
    except TimeoutError: pass
if answers:
    t = socket.socket(); t.settimeout(10); t.connect((there, 7001))
    for n in range({WRITES}):
        t.send(b"z" * 900); t.recv(1000)
    t.close()
print("answered", got)
""".replace("{DATAGRAMS}", str(DATAGRAMS)).replace("{WRITES}", str(WRITES))


def tells_copies() -> bool:
    """Which copy XDP of a virtual device made of a packet headers tell, or a function (skb_pp_cow_data(), Linux 6.9)."""
    return "tracepoint" in probed() or not linux_before(6, 9)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Redirected(unittest.TestCase):
    def setUp(self):
        self.kpat = play.kpat_path()

    def place(self, there: str):
        """Both hosts in one network, with nothing of IP between them, or the router between two."""
        if hasattr(self, "stack"):
            self.stack.close()
        self.a, self.r, self.b = own(self, "redirected", "arb")
        self.there, routed = there, there == ROUTED
        for ns, dev, address, router, gateway in ((self.a, "pa", HERE, "ra", "10.95.1.2"), (self.b, "pb", there, "rb", "10.95.2.2")):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", router, "netns", self.r)
            for where, name, at in ((ns, dev, address), (self.r, router, gateway if routed else None)):
                sh("ip", "netns", "exec", where, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
                if at:
                    sh("ip", "-n", where, "addr", "add", f"{at}/24", "dev", name)
                sh("ip", "-n", where, "link", "set", name, "up")
            if routed:
                sh("ip", "-n", ns, "route", "add", "default", "via", gateway)
        sh("ip", "netns", "exec", self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.next_hop(self.a, "pa", "10.95.1.2" if routed else there, self.r if routed else self.b, "ra" if routed else "pb")
        self.next_hop(self.b, "pb", "10.95.2.2" if routed else HERE, self.r if routed else self.a, "rb" if routed else "pa")
        if routed:
            self.next_hop(self.r, "ra", HERE, self.a, "pa")
            self.next_hop(self.r, "rb", there, self.b, "pb")

    def link(self, ns: str, dev: str) -> dict:
        return json.loads(sh("ip", "-n", ns, "-j", "link", "show", dev).stdout)[0]

    def next_hop(self, ns: str, dev: str, address: str, of: str, at: str):
        """Of no packet the sender's neighbour is asked for."""
        sh("ip", "-n", ns, "neigh", "replace", address, "lladdr", self.link(of, at)["address"], "dev", dev)

    def tc(self, *words):
        sh("ip", "netns", "exec", self.r, "tc", *words)

    def mirred(self, dev: str, where: tuple, what: str, to: str):
        self.tc("filter", "add", "dev", dev, *where, "protocol", "all", "u32", "match", "u32", "0", "0", "action", "mirred", "egress", what, "dev", to)

    def program(self, ns: str, dev: str, where: str, section: str, to: str = "lo"):
        made = self.dir / f"{section.replace('/', '-')}-{to}.o"
        source = self.dir / "programs.bpf.c"
        source.write_text(PROGRAMS)
        multiarch = sh("gcc", "-print-multiarch").stdout.strip()
        sh("clang-19", "-O2", "-g", "-target", "bpf", f"-DTARGET={self.link(ns, to)['ifindex']}", f"-I/usr/include/{multiarch}", "-c", source, "-o", made)
        if section.startswith("xdp"):
            sh("ip", "-n", ns, "link", "set", "dev", dev, where, "obj", made, "sec", section)
        else:
            self.tc("filter", "add", "dev", dev, where, "bpf", "da", "obj", made, "sec", section)

    def both_ways(self, redirect):
        """`redirect`: what comes in by one device leaves by the other."""
        for dev, to in (("ra", "rb"), ("rb", "ra")):
            self.tc("qdisc", "add", "dev", dev, "clsact")
            redirect(dev, to)

    def mirror_port(self):
        sh("ip", "-n", self.r, "link", "add", "m0", "type", "veth", "peer", "m1")
        for dev in ("m0", "m1"):
            sh("ip", "-n", self.r, "link", "set", dev, "up")
        self.tc("qdisc", "add", "dev", "ra", "clsact")

    def record(self, name: str, where: list[str], client: str, *args) -> list[dict]:
        log = self.dir / f"{name}.kbl"
        of = [word for ns in where for word in ("--netns", ns)]
        argv = ["ip", "netns", "exec", self.a, sys.executable, "-c", client, *map(str, args)]
        self.said = sh(self.kpat, "record", "-o", log, *of, "-f", "udp port 7000 or tcp port 7001", *probed(), "--", *argv, seconds=60).stdout
        return json.loads(sh(self.kpat, "packets", integrated(self, log), "--json", "--limit", "0").stdout)["packets"]

    def segments(self) -> int:
        """That both hosts' kernels sent; nothing else in them has TCP."""
        counted = 0
        for ns in (self.a, self.b):
            lines = sh("ip", "netns", "exec", ns, "nstat", "-asz").stdout.splitlines()
            counted += sum(int(line.split()[1]) for line in lines if line.startswith(("TcpOutSegs", "TcpRetransSegs")))
        return counted

    def arrives(self, name: str):
        """Each datagram there, each answer and each segment is one packet, which was delivered."""
        with self.subTest(name):
            begun(self, "server", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVER])
            packets = self.record("log", [self.a, self.r, self.b], CLIENT, self.there, 5)
            self.assertEqual(f"answered {DATAGRAMS}\n", self.said)
            fates = collections.Counter((p["protocol"], p["verdict"], p["drop_reason"]) for p in packets)
            print(f"{name}: {dict(fates)}", flush=True)
            self.assertEqual({("UDP", "delivered", None): 2 * DATAGRAMS, ("TCP", "delivered", None): self.segments()}, dict(fates))
            lengths = collections.Counter((p["dst_port"] == 7000, p["len_bytes"]) for p in packets if p["protocol"] == "UDP")
            self.assertEqual({(to, 128 + n): 1 for n in range(DATAGRAMS) for to in (True, False)}, dict(lengths))

    def is_lost(self, name: str, *fates):
        with self.subTest(name):
            packets = self.record("log", [self.a, self.r, self.b], CLIENT, self.there, 0)
            self.assertEqual("answered 0\n", self.said)
            had = collections.Counter((p["verdict"], p["drop_reason"]) for p in packets)
            print(f"{name}: {dict(had)}", flush=True)
            self.assertEqual([DATAGRAMS], list(had.values()))
            self.assertIn(next(iter(had)), fates)

    def test_tc_redirects(self):
        self.place(SWITCHED)
        self.both_ways(lambda dev, to: self.mirred(dev, ("ingress",), "redirect", to))
        self.arrives("mirred")
        for section, there in (("tc/redirect", SWITCHED), ("tc/peer", SWITCHED), ("tc/neigh", ROUTED)):
            self.place(there)
            self.both_ways(lambda dev, to, section=section: self.program(self.r, dev, "ingress", section, to))
            self.arrives(section)

    def test_a_mirror_port_makes_no_packets(self):
        self.place(ROUTED)
        self.mirror_port()
        for where in ("ingress", "egress"):
            self.mirred("ra", (where,), "mirror", "m0")
        self.arrives("mirror")
        self.place(ROUTED)
        self.mirror_port()
        for where in ("ingress", "egress"):
            self.program(self.r, "ra", where, "tc/clone", "m0")
        self.arrives("tc/clone")
        if tells_copies():
            self.place(ROUTED)
            self.mirror_port()
            self.mirred("ra", ("ingress",), "mirror", "m0")
            self.program(self.r, "m1", "xdpdrv", "xdp/drop")
            self.arrives("mirror, dropped at its end")

    def test_what_comes_in_is_shaped(self):
        self.place(ROUTED)
        sh("ip", "-n", self.r, "link", "add", "ifb0", "type", "ifb")
        sh("ip", "-n", self.r, "link", "set", "ifb0", "up")
        self.tc("qdisc", "add", "dev", "ifb0", "root", "tbf", "rate", "20mbit", "burst", "10k", "latency", "100ms")
        self.tc("qdisc", "add", "dev", "ra", "ingress")
        self.mirred("ra", ("parent", "ffff:"), "redirect", "ifb0")
        self.arrives("ifb")

    def test_xdp(self):
        for mode in ("xdpgeneric", "xdpdrv") if tells_copies() else ("xdpgeneric",):
            self.place(ROUTED)
            for dev in ("ra", "rb"):
                self.program(self.r, dev, mode, "xdp/pass")
            self.arrives(f"{mode} pass")
        self.place(SWITCHED)
        for dev, to in (("ra", "rb"), ("rb", "ra")):
            self.program(self.r, dev, "xdpgeneric", "xdp/redirect", to)
        self.arrives("xdpgeneric redirect")
        if "tracepoint" not in probed():
            return  # the frame has no sk_buff, so no function tells that it is the packet
        self.place(SWITCHED)
        for dev, to, ns, end in (("ra", "rb", self.b, "pb"), ("rb", "ra", self.a, "pa")):
            self.program(self.r, dev, "xdpdrv", "xdp/redirect", to)
            # Frames without an sk_buff are taken where offload is, and nothing says of them that their checksum is to be completed.
            sh("ip", "netns", "exec", ns, "ethtool", "-K", end, "gro", "on", "tx", "off")
        self.arrives("xdpdrv redirect")

    def test_what_tc_and_xdp_drop(self):
        for dev, where, reason in (("ra", "ingress", "TC_INGRESS"), ("rb", "egress", "TC_EGRESS")):
            self.place(ROUTED)
            self.tc("qdisc", "add", "dev", dev, "clsact")
            self.program(self.r, dev, where, "tc/drop")
            self.is_lost(f"tc {where}", ("dropped", reason))
        self.place(ROUTED)
        self.program(self.r, "ra", "xdpgeneric", "xdp/drop")
        self.is_lost("xdpgeneric drop", ("dropped", "NOT_SPECIFIED"), ("dropped", "XDP"))
        # With the receiver's address it comes back to the sender.
        self.place(ROUTED)
        self.program(self.r, "ra", "xdpgeneric", "xdp/back")
        self.is_lost("xdpgeneric back", ("dropped", "OTHERHOST"))
        if not tells_copies():
            return
        self.place(ROUTED)
        self.program(self.r, "ra", "xdpdrv", "xdp/drop")
        self.is_lost("xdpdrv drop", ("dropped", "NOT_SPECIFIED"))

    def test_what_waits_for_its_neighbour(self):
        self.place(ROUTED)
        begun(self, "server", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVER])
        asks = f"""
import os, socket, sys, time
u = socket.socket(type=socket.SOCK_DGRAM)
for n in range(3): u.sendto(b"w" * (10 + n), ("{SILENT}", 7000))
time.sleep(float(sys.argv[1]))
if len(sys.argv) > 2: os.system(sys.argv[2]); time.sleep(3)
"""
        to_there = lambda packets: [p for p in packets if p["dst_port"] == 7000]
        had = to_there(self.record("waits", [self.r], asks, 0.7))
        self.assertEqual([("in-flight", None)] * 3, [(p["verdict"], p["drop_reason"]) for p in had])
        # It is given up after three tries of a second each; the next packet asks again.
        time.sleep(4)
        had = to_there(self.record("fails", [self.r], asks, 5))
        self.assertEqual([("dropped", "NEIGH_FAILED")] * 3, [(p["verdict"], p["drop_reason"]) for p in had])
        # The address comes while it is asked for: one of the next tries has an answer.
        watch = play.Process("watch", ["stdbuf", "-oL", "ip", "-n", self.r, "-ts", "monitor", "neigh"], self.dir)
        self.stack.callback(watch.stop)
        had = to_there(self.record("answered", [self.r], asks, 1.4, f"ip -n {self.b} addr add {SILENT}/24 dev pb"))
        self.assertEqual(["delivered"] * 3, [p["verdict"] for p in had], had)
        said = play.text_of(watch.stdout)
        known = next(line.split("]")[0].strip("[") for line in said.splitlines() if f"{SILENT} " in line and "REACHABLE" in line)
        day, part = known.split(".")
        known_ns = int(time.mktime(time.strptime(day, "%Y-%m-%dT%H:%M:%S"))) * 10**9 + int(part.ljust(9, "0"))
        for p in had:
            text = sh(self.kpat, "packet", self.dir / "answered.kpat", p["packet_id"]).stdout
            self.assertIn("neighbour, until its link address is known", text)
            print(f"neighbour: waited {p['path_ns'] / 1e6:.3f} ms, known {(p['last_wall_ns'] - known_ns) / 1e3:.0f} us before the last point", flush=True)
            self.assertGreater(p["path_ns"], 300_000_000)
            self.assertLess(abs(p["last_wall_ns"] - known_ns), 100_000_000, said)
        self.assertRegex(sh(self.kpat, "phases", self.dir / "answered.kpat").stdout, r"wait: neighbour +3 ")


class RedirectedInside(Inside):
    of, modules, marked = "Redirected", MODULES, "{("


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Redirected61(RedirectedInside, unittest.TestCase):
    series, detail = "6.1", "steps"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Redirected612(RedirectedInside, unittest.TestCase):
    series, detail = "6.12", "spine"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Redirected72(RedirectedInside, unittest.TestCase):
    series, detail = "7.2", "full"
