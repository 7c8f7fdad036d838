"""Connections whose path goes dead and stays dead until the recording ends, in one log or in one of each host, or until the sender's kernel gives them up, long before that. On this machine, with tracepoints. Truth is the generator's own times,
when the path went dead and the recording ended, and what the kernel sent again by its own count (nstat)."""
import json
import os
import sys
import time
import unittest

from kpatlab import play
from kpatlab.topology import wait_for
from tests.place import begun, joined, sh

HERE, THERE, PORT = "10.93.0.1", "10.93.0.2", 7620
SERVE = """
import socket, sys
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
c, _ = l.accept()
while c.recv(1 << 16):
    pass
"""
ASK = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
    s.send(bytes(1000))
    time.sleep(0.1)
"""
# One that its kernel gives up 1.5 s after it wrote in vain; its process may wait for that, or not care.
LOSE = """
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_TCP, 18, 1500) # TCP_USER_TIMEOUT
s.send(bytes(1000))
print("ready", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
s.send(bytes(1000))
try:
    if sys.argv[4] == "waits":
        s.recv(1)
except TimeoutError:
    print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
time.sleep(300)
"""
# One that writes nothing more, and whose kernel asks thrice whether the other end is there, a second apart.
IDLE = """
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for level, option, value in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (6, socket.TCP_KEEPIDLE, 1), (6, socket.TCP_KEEPINTVL, 1), (6, socket.TCP_KEEPCNT, 3)):
    s.setsockopt(level, option, value)
s.send(bytes(1000))
print("ready", flush=True)
try:
    s.recv(1)
except TimeoutError:
    print("given up", flush=True)
time.sleep(300)
"""
LATE_NS = 30_000_000


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Dead(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = joined(self, "dead", "v0", HERE, THERE, os.environ.get("KPAT_KEEP_DEAD"))

    def record(self, name: str, *namespaces: str) -> play.Process:
        ready = self.dir / f"{name}.ready"
        netns = [x for ns in namespaces for x in ("--netns", ns)]
        argv = [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", *netns, "-f", f"tcp port {PORT}", "--no-cost", "-o", str(self.dir / f"{name}.kbl"), "--ready-file", str(ready)]
        return begun(self, f"record-{name}", argv, lambda _: ready.exists())

    def judge(self, *logs: tuple[str, ...]) -> None:
        begun(self, "serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE, THERE, str(PORT)])
        recorders = [self.record(f"log{n}", *of) for n, of in enumerate(logs)]
        ask = begun(self, "ask", ["ip", "netns", "exec", self.a, sys.executable, "-c", ASK, THERE, str(PORT)], lambda p: play.text_of(p.stdout).count("\n") >= 10)
        again = lambda: json.loads(sh("ip", "netns", "exec", self.a, "nstat", "-asz", "--json", "TcpRetransSegs").stdout)["kernel"]["TcpRetransSegs"]
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sh("ip", "netns", "exec", self.b, "nft", f"add table ip f; add chain ip f i {{ type filter hook prerouting priority -400; }}; add rule ip f i tcp dport {PORT} drop")
        died = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        wait_for(lambda: again() >= 5, 60, "the kernel has sent it again four times by its timer")
        stopped = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for recorder in recorders:
            self.assertEqual(recorder.stop(), 0, play.text_of(recorder.stderr)[-500:])
        ended = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        ask.stop()
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", *(self.dir / f"log{n}.kbl" for n in range(len(logs))), "-o", out, "--force")
        device = ["--device", "log0"] if len(logs) > 1 else []
        sockets = json.loads(sh(self.kpat, "app", out, "--json", *device).stdout)["sockets"]
        sender = next(s["socket_id"] for s in sockets if s["peer_port"] == PORT)
        why = json.loads(sh(self.kpat, "why", sender, out, "--json", *device).stdout)
        share = {s["stage"]: s["share"] for s in why["stages"]}
        print(f"    dead, {len(logs)} logs: {share}, open {why['ends']['open']}, the longest {why['slowest'][0]['took_ns'] / 1e9:.3f} s", flush=True)
        at = [int(t) for t in play.text_of(ask.stdout).split()]
        # The longest is the first that was lost, and waits until the log ends.
        longest = why["slowest"][0]
        first = longest["offset"] // 1000
        self.assertTrue(before - 100_000_000 < at[first] < died + 200_000_000, (before, at[first], died))
        self.assertTrue(stopped - LATE_NS < longest["to_ns"] < ended, (stopped, longest["to_ns"], ended))
        self.assertAlmostEqual(longest["took_ns"], longest["to_ns"] - at[first], delta=LATE_NS)
        self.assertEqual((why["ends"]["read"], why["ends"]["open"] + why["ends"]["read"]), (first, why["writes"]))
        self.assertAlmostEqual(why["writes"], sum(t < longest["to_ns"] for t in at), delta=2)
        self.assertEqual(why["first"], "loss", share)
        # until it waits for the timer, what is written leaves at once
        self.assertGreater(share["loss"], 0.8 * longest["took_ns"] / why["whole_ns"])
        self.assertIn("that nobody had read when the log ended", sh(self.kpat, "why", sender, out, *device).stdout)

    def test_one_log(self):
        self.judge((self.a, self.b))

    def test_a_log_of_each_host(self):
        self.judge((self.a,), (self.b,))

    def given_up(self, what: str) -> None:
        go = self.dir / "go"
        begun(self, "serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE, THERE, str(PORT)])
        recorder = self.record("log0", self.a, self.b)
        lose = begun(self, "lose", ["ip", "netns", "exec", self.a, sys.executable, "-c", LOSE, THERE, str(PORT), str(go), what])
        count = lambda: json.loads(sh("ip", "netns", "exec", self.a, "nstat", "-asz", "--json", "TcpExtTCPAbortOnTimeout").stdout)["kernel"]["TcpExtTCPAbortOnTimeout"]
        sh("ip", "netns", "exec", self.b, "nft", f"add table ip f; add chain ip f i {{ type filter hook prerouting priority -400; }}; add rule ip f i tcp dport {PORT} drop")
        now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        before = last = at = now()
        while count() == 0:
            last, at = at, now()
            self.assertLess(last - before, 60e9, "the kernel gives the connection up")
            go.touch()
        seen = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        # The log goes on for longer than what is to be told took.
        time.sleep(3)
        self.assertEqual(recorder.stop(), 0, play.text_of(recorder.stderr)[-500:])
        lose.stop()
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", self.dir / "log0.kbl", "-o", out, "--force")
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        sender = next(s["socket_id"] for s in sockets if s["peer_port"] == PORT)
        why = json.loads(sh(self.kpat, "why", sender, out, "--json").stdout)
        longest = why["slowest"][0]
        at = [int(t) for t in play.text_of(lose.stdout).split()[1:]]
        print(f"    given up, {what}: {longest['took_ns'] / 1e9:.3f} s, the kernel by its count {(seen - at[0]) / 1e9:.3f} s, ends {why['ends']}", flush=True)
        self.assertEqual((why["error"], why["ends"]["given_up"], why["ends"]["read"], why["ends"]["open"]), ("ETIMEDOUT", 1, 1, 0))
        self.assertTrue(last - LATE_NS < longest["to_ns"] < seen, (last, longest["to_ns"], seen))
        self.assertAlmostEqual(longest["took_ns"], longest["to_ns"] - at[0], delta=LATE_NS)
        self.assertEqual(len(at), 2 if what == "waits" else 1)
        for told in at[1:]:
            self.assertAlmostEqual(longest["to_ns"], told, delta=LATE_NS)
        self.assertEqual(why["to_ns"], longest["to_ns"])
        self.assertIn("then the connection was given up", sh(self.kpat, "why", sender, out).stdout)

    def test_given_up_while_its_process_waits(self):
        self.given_up("waits")

    def test_given_up_while_its_process_does_something_else(self):
        self.given_up("works")

    def test_idle(self):
        begun(self, "serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE, THERE, str(PORT)])
        recorder = self.record("log0", self.a, self.b)
        count = lambda: {name: int(n) for name, n in json.loads(sh("ip", "netns", "exec", self.a, "nstat", "-asz", "--json").stdout)["kernel"].items()}
        idle = begun(self, "idle", ["ip", "netns", "exec", self.a, sys.executable, "-c", IDLE, THERE, str(PORT)])
        # Until the first was answered, which the other end's TCP drops then.
        wait_for(lambda: count()["TcpExtTCPKeepAlive"] >= 1, 60, "the kernel asks")
        sh("ip", "netns", "exec", self.b, "nft", f"add table ip f; add chain ip f i {{ type filter hook prerouting priority -400; }}; add rule ip f i tcp dport {PORT} tcp flags & (ack | rst) == ack counter drop")
        wait_for(lambda: "given up" in play.text_of(idle.stdout), 60, "the kernel gives the connection up")
        rules = json.loads(sh("ip", "netns", "exec", self.b, "nft", "-j", "list", "ruleset").stdout)["nftables"]
        dropped = next(e["counter"]["packets"] for r in rules for e in r.get("rule", {}).get("expr", []) if "counter" in e)
        time.sleep(0.5)
        self.assertEqual(recorder.stop(), 0, play.text_of(recorder.stderr)[-500:])
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", self.dir / "log0.kbl", "-o", out, "--force")
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        sender = next(s["socket_id"] for s in sockets if s["peer_port"] == PORT)
        why = json.loads(sh(self.kpat, "why", sender, out, "--json").stdout)
        told = [(d["drop_reason"], d["drops"], d["drop_device"]["netns_name"]) for d in why["drops"]]
        print(f"    idle: {dropped} keepalives dropped by the rule's counter, of {count()['TcpExtTCPKeepAlive']}; told {told}", flush=True)
        self.assertEqual((why["error"], told), ("ETIMEDOUT", [("NETFILTER_DROP", dropped, self.b)]))
        self.assertGreaterEqual(dropped, 2)
        self.assertIn("ETIMEDOUT: its keepalives were not answered", sh(self.kpat, "why", sender, out).stdout)


if __name__ == "__main__":
    unittest.main()
