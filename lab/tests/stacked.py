"""Sockets whose packets pass several devices of their own host, one above the other: a tunnel or an overlay over a veth pair, a bridge that has the address. What the socket is reported to have sent,
by bytes, packets and what held it back. On this machine, with tracepoints. Truth is what the two programs wrote and read, and the kernel's counters of TCP segments
and UDP datagrams in the sender's namespace (nstat)."""
import json
import os
import sys
import unittest

from kpatlab import play
from tests.place import begun, joined, sh

DATAGRAMS = 60
SERVE = """
import socket
t, u = socket.create_server(("10.77.0.2", 7777)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("10.77.0.2", 7778))
print("ready", flush=True)
c, n = t.accept()[0], 0
while d := c.recv(65536):
    n += len(d)
u.settimeout(2)
m = 0
try:
    while True:
        m += len(u.recv(2000))
except TimeoutError:
    pass
print(n, m, flush=True)
"""
ASK = f"""
import socket, time
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({DATAGRAMS}):
    u.sendto(bytes(100 + i), ("10.77.0.2", 7778))
    time.sleep(0.001)
t = socket.create_connection(("10.77.0.2", 7777))
for i in range(100):
    t.sendall(bytes(10000))
    time.sleep(0.001)
t.close()
"""
# How `ip link` makes the device above the veth pair, which has 192.168.9.1 and .2.
ABOVE = {"vxlan": "type vxlan id 9 dev u0 local {near} remote {far} dstport 4789", "geneve": "type geneve id 9 remote {far}", "gretap": "type gretap local {near} remote {far}",
         "ipip": "type ipip local {near} remote {far}", "vlan": "link u0 type vlan id 7"}


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Stacked(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())

    def ends(self) -> None:
        self.a, self.b = joined(self, "stacked", "u0", "192.168.9.1", "192.168.9.2", os.environ.get("KPAT_KEEP_STACKED"))

    def address(self, dev: str) -> None:
        for ns, host in ((self.a, 1), (self.b, 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.77.0.{host}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")

    def above(self, how: str) -> bool:
        """The device at both ends; False: this kernel has no such kind."""
        for ns, near, far in ((self.a, "192.168.9.1", "192.168.9.2"), (self.b, "192.168.9.2", "192.168.9.1")):
            words = how.format(near=near, far=far).split()
            split = words.index("type")
            if sh("ip", "-n", ns, "link", "add", *words[:split], "name", "x0", *words[split:], ok=False).returncode:
                return False
        self.address("x0")
        return True

    def counters(self) -> dict[str, int]:
        of = json.loads(sh("ip", "netns", "exec", self.a, "nstat", "-asz", "--json").stdout)["kernel"]
        return {name: of[name] for name in ("TcpOutSegs", "TcpRetransSegs", "UdpOutDatagrams")}

    def recorded(self) -> tuple[int, int, dict[str, int]]:
        """Bytes of TCP and of UDP that were read, and what the kernel counted meanwhile; the log is x.kpat."""
        serve = begun(self, "serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE])
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        before = self.counters()
        by = [] if (how := os.environ.get("KPAT_STACKED_BY", "tracepoint")) == "auto" else ["--mechanism", how]
        record = begun(self, "record", [self.kpat, "record", "-p", "app", *by, "--netns", self.a, "--netns", self.b, "--no-cost", "-o", str(log), "--ready-file", str(ready)],
                       lambda _: ready.exists())
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", ASK)
        serve.p.wait(60)
        n, m = map(int, play.text_of(serve.stdout).splitlines()[-1].split())
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(self.kpat, "integrate", log, "-o", out)
        return n, m, {name: count - before[name] for name, count in self.counters().items()}

    def judge(self, kind: str) -> None:
        (n, m, truth), out = self.recorded(), self.dir / "x.kpat"
        sockets = json.loads(sh(self.kpat, "app", out, "--json", "-n", "0").stdout)["sockets"]
        to = lambda s: s["crossings"].get("to-device", {"bytes": 0, "frames": 0, "events": 0})
        udp = next(s for s in sockets if s["proto"] == 17 and to(s)["bytes"])
        client = next(s for s in sockets if s["proto"] == 6 and s["sent_bytes"])
        server = next(s for s in sockets if s["proto"] == 6 and s["received_bytes"])
        again = client["tcp"]["total_retrans"]
        held = {s["socket_id"]: s["tcp"]["retransmission_ns"] for s in (client, server)}
        print(f"stacked, {kind}: {n} B by {to(client)['frames']} frames, the kernel's count {truth}; {m} B in {to(udp)['frames']} datagrams; held by retransmission {held}", file=sys.stderr, flush=True)
        self.assertEqual((n, m), (1_000_000, sum(range(100, 100 + DATAGRAMS))))
        self.assertEqual((to(udp)["events"], to(udp)["frames"], to(udp)["bytes"]), (truth["UdpOutDatagrams"], DATAGRAMS, m))
        self.assertEqual(again, truth["TcpRetransSegs"])
        # Some of the kernel's segments have no data.
        self.assertTrue(truth["TcpOutSegs"] - 10 <= to(client)["frames"] <= truth["TcpOutSegs"] + again, truth)
        self.assertTrue(n <= to(client)["bytes"] <= n + again * 1500, to(client))
        if not again:
            self.assertEqual(set(held.values()), {0})
        self.assertEqual(to(server)["bytes"], 0, "it sent acknowledgements alone")

    def test_a_packet_counts_once_however_many_devices_it_passes(self):
        had = []
        for kind, how in ABOVE.items():
            with self.subTest(kind):
                try:
                    self.ends()
                    if self.above(how):
                        had.append(kind)
                        self.judge(kind)
                finally:
                    self.stack.close()
        self.assertTrue(had, "no kind of device above another here")

    def test_a_socket_of_two_devices_by_turns(self):
        """One that answers hosts on two networks: the next datagram often gets the memory of the last one."""
        self.ends()
        sh("ip", "link", "add", "u1", "netns", self.a, "type", "veth", "peer", "name", "u1", "netns", self.b)
        self.address("u1")
        log, out = self.dir / "x.kbl", self.dir / "x.kpat"
        send = 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); [s.sendto(b"x" * 100, (("192.168.9.2", "10.77.0.2")[i % 2], 7)) for i in range(400)]'
        sh(self.kpat, "record", "-p", "app", "--mechanism", "tracepoint", "--netns", self.a, "--no-cost", "-o", log, "--", "ip", "netns", "exec", self.a, sys.executable, "-c", send)
        sh(self.kpat, "integrate", log, "-o", out)
        sockets = json.loads(sh(self.kpat, "app", out, "--json", "-n", "0").stdout)["sockets"]
        crossings = next(s for s in sockets if s["proto"] == 17 and s["sent_bytes"])["crossings"]
        # The first ones wait for the neighbours' addresses, at most three for each.
        for what in ("to-device", "to-driver"):
            self.assertTrue(394 <= crossings[what]["frames"] <= 400, crossings[what])

    def test_a_tunnel_that_cannot_cut(self):
        """TCP gives it more than a segment, and the pieces are what goes on to the device below."""
        self.ends()
        if not self.above(ABOVE["vxlan"]):
            self.skipTest("this kernel has no VXLAN")
        sh("ip", "netns", "exec", self.a, "ethtool", "-K", "x0", "tso", "off", "gso", "on")
        self.judge("vxlan without TSO")

    def test_a_bridge_that_has_the_address(self):
        self.ends()
        for ns in (self.a, self.b):
            sh("ip", "-n", ns, "link", "add", "br0", "type", "bridge")
            sh("ip", "-n", ns, "link", "set", "u0", "master", "br0")
        self.address("br0")
        self.judge("bridge")

    def test_datagrams_that_wait_in_the_queue_above_or_below(self):
        """Others of their socket come meanwhile; and the device above says that it has given them away while they are in the queue of the one below."""
        rate, size, sent = 2_000_000, 1042, 40
        for dev in ("br0", "u0"):
            with self.subTest(dev):
                try:
                    self.ends()
                    for ns in (self.a, self.b):
                        sh("ip", "-n", ns, "link", "add", "br0", "type", "bridge")
                        sh("ip", "-n", ns, "link", "set", "u0", "master", "br0")
                    self.address("br0")
                    sh("ip", "netns", "exec", self.a, "ping", "-qc", "1", "-W", "5", "10.77.0.2")
                    sh("tc", "-n", self.a, "qdisc", "add", "dev", dev, "root", "tbf", "rate", rate, "burst", "3kb", "latency", "5s")
                    log, out = self.dir / "x.kbl", self.dir / "x.kpat"
                    send = f'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); [s.sendto(bytes({size - 42}), ("10.77.0.2", 7)) for i in range({sent})]; time.sleep(1)'
                    sh(self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", self.a, "--netns", self.b, "-f", "udp", "--no-cost", "-o", log, "--", "ip", "netns", "exec", self.a, sys.executable, "-c", send)
                    sh(self.kpat, "integrate", log, "-o", out)
                    sockets = json.loads(sh(self.kpat, "app", out, "--json", "-n", "0").stdout)["sockets"]
                    crossings = next(s for s in sockets if s["proto"] == 17 and s["sent_bytes"])["crossings"]
                    self.assertEqual([crossings[what]["frames"] for what in ("to-device", "to-driver")], [sent, sent], (dev, json.loads(sh(self.kpat, "info", out, "--json").stdout)["losses"]))
                    # Each packet's own wait is in a queue, and the last one's is as long as the bytes before it take.
                    packets = json.loads(sh(self.kpat, "packet", f"1-{sent}", out, "--json").stdout)["packets"]
                    calls = lambda of: [c for call in of for c in (call, *calls(call.get("children", [])))]
                    waits = [max((h for c in calls(p["calls"]) if (h := c["handover"])), key=lambda h: h["wait_ns"]) for p in packets if any(f["fields"].get("dport") == 7 for f in p["footprints"])]
                    longest = max(waits, key=lambda h: h["wait_ns"])
                    truth = ((sent - 1) * size - 3 * 1024) * 8 * 1_000_000_000 // rate
                    print(f"stacked, {dev}: the longest wait {longest}, truth {truth} ns", file=sys.stderr, flush=True)
                    self.assertEqual(longest["kind"], "qdisc")
                    self.assertAlmostEqual(longest["wait_ns"], truth, delta=0.15 * truth)
                    self.assertLessEqual({h["kind"] for h in waits if h["wait_ns"] > 10_000_000}, {"qdisc"})
                finally:
                    self.stack.close()

    def test_what_waits_in_the_queue_below_waits_in_a_queue(self):
        self.ends()
        if not self.above(ABOVE["vxlan"]):
            self.skipTest("this kernel has no VXLAN")
        sh("ip", "netns", "exec", self.a, "tc", "qdisc", "add", "dev", "u0", "root", "tbf", "rate", "20mbit", "burst", "20k", "limit", "400k")
        _, _, truth = self.recorded()
        out = self.dir / "x.kpat"
        sockets = json.loads(sh(self.kpat, "app", out, "--json", "-n", "0").stdout)["sockets"]
        client = next(s["socket_id"] for s in sockets if s["proto"] == 6 and s["sent_bytes"])
        why = json.loads(sh(self.kpat, "why", str(client), out, "--json").stdout)
        ns = {s["stage"]: s["ns"] for s in why["stages"]}
        print(f"stacked, a queue below: {truth}, {ns}", file=sys.stderr, flush=True)
        self.assertGreater(ns["queue"], 20_000_000)
        self.assertGreater(ns["queue"], 2 * ns.get("driver and wire", 0))
        if not truth["TcpRetransSegs"]:
            self.assertEqual(ns.get("loss", 0), 0)
