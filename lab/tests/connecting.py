"""Connections that are not made, are made late, or end by a reset: whose SYN is refused, dropped, or waits for a neighbour that is not there. On this machine,
with tracepoints. Truth is the generator's own times, ports and errors, and what tshark counts in a capture beside."""
import json
import os
import socket
import sys
import time
import unittest

from kpatlab import cache, play
from kpatlab.topology import wait_for
from tests.place import begun, joined, sh

HERE, THERE, PORT = "10.97.0.1", "10.97.0.2", 7600
SERVE = """
import select, socket, struct, sys, time
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
c, _ = l.accept()
c.recv(1 << 16)
if len(sys.argv) > 3:
    select.select([c], [], [])  # the second one is there
    time.sleep(float(sys.argv[3]))
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
else:
    while c.recv(1 << 16):
        pass
"""
# What it connected to, its own port, how long that took, the error; then when it wrote; how long it waited for a CPU meanwhile, by which it may have seen all that late.
ASK = """
import errno, json, os, socket, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
waited = lambda: int(open("/proc/self/schedstat").read().split()[1])
address, port, patience, *writes = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:])
print("begins", flush=True)
s = socket.socket()
s.settimeout(patience or None)
begin, before, error = now(), waited(), None
try:
    s.connect((address, port))
except OSError as e:
    error = errno.errorcode.get(e.errno, "timeout")
connect_ns, own = now() - begin, s.getsockname()[1]
at = []
s.settimeout(None)
for n in writes if not error else []:
    at.append(now())
    s.sendall(bytes(n))
    time.sleep(0.1)
stays = len(at) > 2 and len(set(writes)) > 1
if len(at) > 1 and not stays:
    time.sleep(0.5)
    s.close()
print(json.dumps({"port": own, "connect_ns": connect_ns, "error": error, "at": at, "waited_ns": waited() - before}), flush=True)
time.sleep(60 if stays else 0)
"""
LATE_NS = 30_000_000


def late(truth: dict) -> int:
    return LATE_NS + truth["waited_ns"]


def by_mptcp(code: str) -> str:
    return "import socket; T = socket.socket; socket.socket = lambda *a, **k: T(*a, **k) if a or k else T(socket.AF_INET, socket.SOCK_STREAM, 262)\n" + code.replace(
        "socket.create_server((sys.argv[1], int(sys.argv[2])))", "socket.socket(); l.bind((sys.argv[1], int(sys.argv[2]))); l.listen()")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Connecting(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = joined(self, "conn", "v0", HERE, THERE, os.environ.get("KPAT_KEEP_CONNECTING"))

    def run_case(self, address: str, port: int, patience: float, *writes: int, serve=None, dropped_s=0.0, full=None, mptcp=False) -> dict:
        """What the generator counted; the socket, and why it is slow, as kpat has them; how many SYNs of it the capture has."""
        if serve is not None:
            code = by_mptcp(SERVE) if mptcp else SERVE
            server = play.Process("serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", code, THERE, str(PORT), *map(str, serve)], self.dir)
            self.stack.callback(server.stop)
            server.wait_ready(lambda: "ready" in play.text_of(server.stdout), cache.patience())
        capture, log, ready = self.dir / "x.pcap", self.dir / "x.kbl", self.dir / "ready"
        dump = play.Process("dump", ["ip", "netns", "exec", self.a, "tcpdump", "-i", "v0", "--immediate-mode", "-U", "-w", str(capture), "tcp"], self.dir)
        self.stack.callback(dump.stop)
        dump.wait_ready(lambda: "listening on" in play.text_of(dump.stderr), cache.patience())
        record = play.Process("record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", self.a, "--netns", self.b, "--no-cost",
                                         "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        if dropped_s:
            sh("ip", "netns", "exec", self.b, "nft", "add table ip f; add chain ip f i { type filter hook input priority 0; }; add rule ip f i tcp flags syn counter drop")
        overflows = lambda: json.loads(sh("ip", "netns", "exec", self.b, "nstat", "-asz", "--json", "TcpExtListenOverflows").stdout)["kernel"]["TcpExtListenOverflows"]
        before = overflows()
        ask = play.Process("ask", ["ip", "netns", "exec", self.a, sys.executable, "-c", by_mptcp(ASK) if mptcp else ASK, address, str(port), str(patience), *map(str, writes)], self.dir)
        self.stack.callback(ask.stop)
        if dropped_s:
            # the first two are lost: the third comes 2 to 3 s after the first (tcp_syn_linear_timeouts)
            counted = lambda: sh("ip", "netns", "exec", self.b, "nft", "list", "table", "ip", "f").stdout
            wait_for(lambda: "packets 2 " in counted(), 30, "two SYNs were dropped")
            sh("ip", "netns", "exec", self.b, "nft", "delete", "table", "ip", "f")
        if full:
            full(lambda: overflows() - before)
        wait_for(lambda: '"port"' in play.text_of(ask.stdout), 60, "the generator is done")
        truth = {**json.loads(play.text_of(ask.stdout).splitlines()[-1]), "overflows": overflows() - before}
        if serve and serve[0] < 5:
            wait_for(lambda: server.p.poll() is not None, 30, "the server has reset it")
            truth["reset_ns"] = int(play.text_of(server.stdout).splitlines()[-1])
        if serve and serve[0] > 5:
            time.sleep(1)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        truth["stopped_ns"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        dump.stop()
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", log, "-o", out, "--force")
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        socket = next(s for s in sockets if (s["proto"], s["peer_addr"], s["peer_port"]) == (6, address, port))
        syns = sh("tshark", "-r", capture, "-Y", f"tcp.flags.syn == 1 && tcp.flags.ack == 0 && tcp.srcport == {truth['port']}", "-T", "fields", "-e", "frame.number")
        frames = sh("tshark", "-r", capture, "-Y", f"tcp.port == {truth['port']}", "-T", "fields", "-e", "frame.number")
        why = json.loads(sh(self.kpat, "why", socket["socket_id"], out, "--json").stdout)
        return {"truth": truth, "socket": socket, "why": why, "stages": {s["stage"]: s["ns"] for s in why["stages"]}, "out": out,
                "syns": len(syns.stdout.split()), "frames": len(frames.stdout.split()), "text": sh(self.kpat, "why", socket["socket_id"], out).stdout}

    def never(self, r: dict, error: str, seen=True) -> None:
        truth, why = r["truth"], r["why"]
        self.assertEqual((truth["error"], why["first"], why["writes"]), (error, "handshake", 0), why)
        self.assertEqual(r["socket"]["local_port"], truth["port"] if r["syns"] or seen else r["socket"]["local_port"])
        self.assertAlmostEqual(r["stages"]["handshake"], truth["connect_ns"], delta=late(truth), msg=r["text"])
        self.assertEqual(why["whole_ns"], r["stages"]["handshake"])
        self.assertIn("handshake 100.0 %", r["text"])

    def test_refused(self):
        r = self.run_case(THERE, PORT, 0)
        self.never(r, "ECONNREFUSED")
        self.assertIn("nothing listened on that port, and a reset answered its SYN", " ".join(r["text"].split()))
        self.assertNotIn("driver, wire", r["text"])
        # its SYN and what came back are the socket's
        packets = sh(self.kpat, "packets", r["out"], f"socket == {r['socket']['socket_id']}", "--tsv", "--columns", "packet_id", "--no-header").stdout.split()
        self.assertEqual((len(packets), r["frames"]), (2, 2))
        for packet in packets:
            detail = json.loads(sh(self.kpat, "packet", packet, r["out"], "--json").stdout)
            ends = [e["socket_id"] for e in (detail["application"]["written"], detail["application"]["read"]) if e]
            self.assertEqual(ends, [r["socket"]["socket_id"]])

    def test_no_port_is_free(self):
        """The client's host has given all its ports: connect() of further ones fails, and no packet of theirs is on the wire. Truth is the generator's errors."""
        sh("ip", "netns", "exec", self.a, "sysctl", "-w", "net.ipv4.ip_local_port_range=40000 40003")
        log, ready, out = self.dir / "p.kbl", self.dir / "ready-p", self.dir / "p.kpat"
        server = f"import signal, socket\nl = socket.create_server(({THERE!r}, {PORT}))\nprint('ready', flush=True)\nsignal.pause()"
        begun(self, "serve-p", ["ip", "netns", "exec", self.b, sys.executable, "-c", server])
        record = begun(self, "record-p", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", self.a, "--netns", self.b, "--no-cost", "-o", str(log),
                                          "--ready-file", str(ready)], lambda _: ready.exists())
        code = f"""
import errno, json, socket, struct
said, kept = [], []
for _ in range(7):
    s = socket.socket()
    kept.append(s)
    error = s.connect_ex(({THERE!r}, {PORT}))
    cookie, = struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, 57, 8))
    said.append([cookie, errno.errorcode.get(error)])
print(json.dumps(said))
"""
        said = json.loads(sh("ip", "netns", "exec", self.a, sys.executable, "-c", code).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        self.assertEqual([e for _, e in said], 4 * [None] + 3 * ["EADDRNOTAVAIL"])
        sh(self.kpat, "integrate", log, "-o", out)
        for cookie, error in said:
            words = sh(self.kpat, "app", out, "--socket", cookie).stdout
            self.assertEqual(error is not None, "EADDRNOTAVAIL" in words, words)
        why = sh(self.kpat, "why", said[-1][0], out, ok=False)
        self.assertIn("no port of its own was free", why.stderr)

    def test_a_firewall_s_message_within_connect(self):
        """TCP takes note of it and tells the program, which closes its socket: no error is the kernel's. Truth is the generator's error, and what the client's kernel counts."""
        sh("ip", "netns", "exec", self.b, "nft", f"add table ip f; add chain ip f i {{ type filter hook input priority 0; }}; add rule ip f i tcp dport {PORT + 2} reject with icmp type host-unreachable")
        came = lambda: json.loads(sh("ip", "netns", "exec", self.a, "nstat", "-asz", "--json", "IcmpInDestUnreachs").stdout)["kernel"]["IcmpInDestUnreachs"]
        before = came()
        r = self.run_case(THERE, PORT + 2, 1.5)
        self.never(r, "EHOSTUNREACH")
        messages = r["why"]["opening"]["unreachable"]
        self.assertEqual([m["what"] for m in messages], (came() - before) * ["unreachable: host"])
        self.assertEqual(len(messages), 1)
        text = " ".join(r["text"].split())
        self.assertIn(f"an ICMP message came meanwhile: unreachable: host, packet {messages[0]['packet_id']}", text)
        self.assertNotIn("driver, wire", text)
        packet = sh(self.kpat, "sql", r["out"], f"select src_addr, dst_addr, icmp_kind, icmp_code from packet where packet_id = {messages[0]['packet_id']}", "--tsv").stdout
        self.assertEqual(packet.splitlines()[1].split("\t"), [THERE, HERE, "3", "1"])
        # what became of it is on the page, too
        page = self.dir / "x.html"
        sh(self.kpat, "app", r["out"], "--html", page)
        self.assertIn("<td class=n>closed, ", page.read_text())

    def test_no_answer(self):
        sh("ip", "netns", "exec", self.b, "nft", "add table ip f; add chain ip f i { type filter hook input priority 0; }; add rule ip f i tcp dport 7601 drop")
        r = self.run_case(THERE, PORT + 1, 1.5)
        self.never(r, "timeout")
        self.assertEqual((r["why"]["syns_again"], r["syns"]), (1, 2))
        self.assertIn("its SYN was sent again 1 time", r["text"])

    def test_the_answer_is_dropped(self):
        """A firewall beside the client drops what answers its SYN: the SYNs that are sent again meet a listener that has answered."""
        sh("ip", "netns", "exec", self.a, "nft", f"add table ip f; add chain ip f i {{ type filter hook input priority 0; }}; add rule ip f i tcp sport {PORT} tcp flags & (syn | ack) == syn | ack counter drop")
        r = self.run_case(THERE, PORT, 2.5, serve=())
        rules = json.loads(sh("ip", "netns", "exec", self.a, "nft", "-j", "list", "ruleset").stdout)["nftables"]
        counted = next(e["counter"]["packets"] for rule in rules for e in rule.get("rule", {}).get("expr", []) if "counter" in e)
        self.never(r, "timeout")
        opening = r["why"]["opening"]
        dropped = sum(o["drops"] for o in opening["answers"])
        # Those until the client gave up, by the capture; the listener sends some more.
        answers = sh("tshark", "-r", self.dir / "x.pcap", "-Y", f"tcp.flags.syn == 1 && tcp.flags.ack == 1 && frame.time_relative <= {r['truth']['connect_ns'] / 1e9:.6f}", "-T", "fields", "-e", "frame.number")
        self.assertEqual(dropped, len(answers.stdout.split()), opening)
        self.assertTrue(2 <= dropped <= counted, (dropped, counted))
        self.assertGreaterEqual(r["syns"], 2)
        text = " ".join(r["text"].split())
        self.assertIn(f"the answer to its SYN was dropped on the way; {dropped} times, first packet {opening['answers'][0]['packet_id']}: NETFILTER_DROP at ", text)
        self.assertIn(f", on v0 of {self.a}; its SYN was sent again", text)

    def test_no_neighbour(self):
        r = self.run_case("10.97.0.77", PORT, 0)
        self.never(r, "EHOSTUNREACH", seen=False)
        self.assertGreater(r["stages"]["handshake"], 2_500_000_000)
        self.assertEqual(r["syns"], 0)

    def test_made_late(self):
        r = self.run_case(THERE, PORT, 0, *[1000] * 5, serve=(), dropped_s=2)
        truth, why = r["truth"], r["why"]
        self.assertGreater(truth["connect_ns"], 1_900_000_000)
        self.assertEqual((why["first"], why["certain"], why["writes"], why["syns_again"], r["syns"]), ("handshake", True, 5, 2, 3), r["text"])
        self.assertAlmostEqual(r["stages"]["handshake"], truth["connect_ns"], delta=late(truth))
        # the handshake, and until the last write was read
        self.assertAlmostEqual(why["whole_ns"], truth["connect_ns"] + truth["at"][-1] - truth["at"][0], delta=2 * late(truth))
        self.assertAlmostEqual(sum(r["stages"].values()), why["whole_ns"], delta=len(r["stages"]))

    def test_a_full_queue_of_the_listener(self):
        """SYNs that it does not answer are delivered to it; it answers one that is sent again when there is room."""
        held = """
import socket, sys, time
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(0)
full = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
sys.stdin.readline()
while True:
    c, _ = l.accept()
    while c.recv(1 << 16):
        pass
"""
        fifo = self.dir / "accept"
        os.mkfifo(fifo)
        code = f"import os, sys; os.dup2(os.open({str(fifo)!r}, os.O_RDWR), 0); exec(compile({held!r}, 'held', 'exec'))"
        server = play.Process("serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", code, THERE, str(PORT)], self.dir)
        self.stack.callback(server.stop)
        server.wait_ready(lambda: "ready" in play.text_of(server.stdout), cache.patience())

        def accepts(counted) -> None:
            wait_for(lambda: counted() >= 2, 30, "two SYNs found it full")
            fifo.write_text("\n")

        r = self.run_case(THERE, PORT, 0, *[1000] * 5, full=accepts)
        truth, why = r["truth"], r["why"]
        self.assertEqual((why["first"], why["certain"], why["writes"]), ("handshake", True, 5), r["text"])
        self.assertAlmostEqual(r["stages"]["handshake"], truth["connect_ns"], delta=late(truth))
        self.assertEqual((why["syns_again"] + 1, truth["overflows"]), (r["syns"], r["syns"] - 1))
        self.assertIn(f"its SYN was delivered, and the listener did not answer; {truth['overflows']} times, first packet ", r["text"])
        self.assertIn("TcpExtListenOverflows", r["text"])

    def test_what_never_writes_was_connected(self):
        r = self.run_case(THERE, PORT, 0, serve=())
        self.assertEqual((r["truth"]["error"], r["why"]["first"], r["why"]["connected"], r["why"]["unwritten_bytes"]), (None, "handshake", True, 0), r["text"])
        self.assertIn("until it was connected", r["text"])

    def test_what_an_mptcp_socket_wrote_is_not_its_connections(self):
        """Its bytes are the other socket's, and the connection was made."""
        try:
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
        except OSError as e:
            self.skipTest(f"this kernel has no MPTCP: {e}")
        r = self.run_case(THERE, PORT, 0, 500, 700, 700, serve=(60,), mptcp=True)
        self.assertEqual((r["why"]["connected"], r["why"]["writes"], r["why"]["unwritten_bytes"]), (True, 0, 1900), r["text"])
        self.assertIn("TCP was given 1.9 KiB: of MPTCP, the writes are its own socket's", " ".join(r["text"].split()))

    def test_reset(self):
        """Of what the peer never read, it waited until the reset, and not until the log ended."""
        r = self.run_case(THERE, PORT, 0, 500, 700, serve=(0.2,))
        truth, why = r["truth"], r["why"]
        self.assertEqual((why["ends"]["read"], why["ends"]["reset"], why["ends"]["open"]), (1, 1, 0), r["text"])
        waited = truth["reset_ns"] - truth["at"][1]
        self.assertAlmostEqual(why["slowest"][0]["took_ns"], waited, delta=late(truth), msg=r["text"])
        self.assertEqual(why["first"], "peer's application")
        self.assertIn("the connection was reset", r["text"])

    def test_hangs(self):
        """A peer that reads no more, of a connection that stays: what it has not read waits until the log ends."""
        r = self.run_case(THERE, PORT, 0, 500, 700, 700, serve=(60,))
        truth, why = r["truth"], r["why"]
        self.assertEqual((why["ends"]["read"], why["ends"]["open"]), (1, 2), r["text"])
        # the log ends with its last record, which is not long before
        for line, at in zip(why["slowest"], truth["at"][1:]):
            self.assertGreater(line["took_ns"], 1_000_000_000)
            self.assertLess(line["took_ns"], truth["stopped_ns"] - at + LATE_NS)
        self.assertEqual(why["first"], "peer's application")
        self.assertGreater(next(s["share"] for s in why["stages"] if s["stage"] == why["first"]), 0.85)


if __name__ == "__main__":
    unittest.main()
