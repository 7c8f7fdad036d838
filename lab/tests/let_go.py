"""What waits in a socket by its sender's own wish or by Nagle's rule, and is let go otherwise than by an acknowledgement or a write: at the end, by TCP_NODELAY; of datagrams, by
UDP_CORK and MSG_MORE. Over a path with a known delay, on this machine, with tracepoints. Truth is the generator's own times, and what the kernel had unsent (SIOCOUTQNSD)."""
import json
import os
import sys
import unittest

from kpatlab import play
from tests.connection import PATH
from tests.place import begun, own, sh

HERE, THERE, PORT, DELAY_MS, WAIT_MS = "10.94.0.1", "10.94.0.2", 7630, 20, 10
# A program's clock is read on one CPU and a record's on another, microseconds apart: 4 of them were seen, why is not known.
CLOCK_NS = 20_000
SERVE = f"""
import socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("{THERE}", {PORT}))
def datagrams():
    while u.recv(1 << 16):
        pass
threading.Thread(target=datagrams, daemon=True).start()
l = socket.create_server(("{THERE}", {PORT}))
print("ready", flush=True)
def one(c):
    while c.recv(1 << 16):
        pass
    c.close()
while True:
    threading.Thread(target=one, args=(l.accept()[0],), daemon=True).start()
"""
# A small write, a second one of so many bytes, and what lets that go so long after it. Says its socket, for how long at least and at most the second one waited, and what
# the kernel had unsent before.
TCP = f"""
import array, fcntl, json, socket, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def unsent(s):
    n = array.array("i", [0])
    fcntl.ioctl(s, 0x894b, n)
    return n[0]
for how, size in (("close", 100), ("shutdown", 100), ("no-delay", 100), ("no-delay", 3000), ("waits", 100), ("paced", 100)):
    s = socket.create_connection(("{THERE}", {PORT}))
    cookie = int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
    if how == "paced":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.setsockopt(socket.SOL_SOCKET, 47, 12000)  # SO_MAX_PACING_RATE
    time.sleep(0.06)
    s.send(bytes(100))
    at = now()
    s.send(bytes(size))
    sent = now()
    time.sleep({WAIT_MS} / 1e3)
    left, over = unsent(s), now()
    while how == "waits" and unsent(s):
        over = now()
        time.sleep(0.0005)
    if how == "shutdown":
        s.shutdown(socket.SHUT_WR)
    elif how == "no-delay":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    elif how == "close":
        s.close()
    # Not so short a time, and not so long.
    print(json.dumps(dict(how=how, size=size, socket=cookie, least=over - sent, most=now() - at, unsent=left)), flush=True)
    time.sleep(0.15)
    s.close()
"""
# Three sends that are one datagram; the last is a plain one, or none of them is, and the option lets them go. Says its socket, and when each call, the
# last of which lets them go, began and was over.
UDP = f"""
import json, socket, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
for how in ("more", "cork", "cork-then-plain"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("{THERE}", {PORT}))
    began, over = [], []
    if how != "more":
        s.setsockopt(17, 1, 1)
    for size in (100, 200, 300):
        began.append(now())
        s.send(bytes(size), 0 if size == 300 else socket.MSG_MORE)
        over.append(now())
        if size < 300 or how != "more":
            time.sleep({2 * WAIT_MS} / 1e3)
    if how != "more":
        began.append(now())
        s.setsockopt(17, 1, 0)
        over.append(now())
    if how == "cork-then-plain":
        s.send(bytes(50))
    print(json.dumps(dict(how=how, socket=int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder), began=began, over=over)), flush=True)
    time.sleep(0.06)
"""


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class LetGo(unittest.TestCase):
    def recorded(self, code: str) -> list[dict]:
        self.kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "letgo", "ab", os.environ.get("KPAT_KEEP_LET_GO"))
        begun(self, "path", [*PATH, a, f"{HERE}/24", b, f"{THERE}/24", "--delay-ms", str(DELAY_MS)])
        log, ready, self.out = self.dir / "l.kbl", self.dir / "l.ready", self.dir / "l.kpat"
        record = begun(self, "record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "--no-cost", "-o", str(log),
                                        "--ready-file", str(ready)], lambda _: ready.exists())
        begun(self, "serve", ["ip", "netns", "exec", b, sys.executable, "-c", SERVE])
        done = [json.loads(line) for line in sh("ip", "netns", "exec", a, sys.executable, "-c", code).stdout.splitlines()]
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(self.kpat, "integrate", log, "-o", self.out)
        return done

    def why(self, socket: int) -> tuple[dict, str]:
        return json.loads(sh(self.kpat, "why", socket, self.out, "--json").stdout), sh(self.kpat, "why", socket, self.out).stdout

    def test_nagle_s_rule_until_it_is_let_go(self):
        for c in self.recorded(TCP):
            with self.subTest(how=c["how"], size=c["size"]):
                why, text = self.why(c["socket"])
                second = next(w for w in why["slowest"] if w["number"] == 2)["stages_ns"]
                app = json.loads(sh(self.kpat, "app", self.out, "--socket", c["socket"], "--json").stdout)["sockets"][0]["tcp"]
                nagle = second.get("Nagle's rule", 0), app.get("nagle_ns", 0)
                self.assertNotIn("undecided", second, text)
                if c["how"] == "paced":
                    # Its own wish: no rule keeps it, whatever TCP waits for.
                    self.assertEqual(nagle, (0, 0), text)
                    continue
                # In the kernel it waited: the small end of what was written.
                self.assertEqual(c["unsent"], c["size"] % 1448, c)
                for ns in nagle:
                    self.assertTrue(c["least"] - CLOCK_NS <= ns <= c["most"] + CLOCK_NS, (c, ns, text))

    def test_a_datagram_of_several_writes(self):
        for c in self.recorded(UDP):
            with self.subTest(how=c["how"]):
                why, text = self.why(c["socket"])
                lines = {w["number"]: w for w in why["slowest"]}
                began, over = c["began"], c["over"]
                for n in range(3):
                    line = lines[n + 1]
                    self.assertEqual((line["bytes"], line["end"]), (100 * (n + 1), "sent"), text)
                    # The call that lets them go is itself no cork.
                    least = began[-1] - over[n] if n < len(began) - 1 else 0
                    most = over[-1] - began[n] if n < len(began) - 1 else 0
                    self.assertTrue(least - CLOCK_NS <= line["stages_ns"].get("cork", 0) <= most + CLOCK_NS, (c, n, text))
                    self.assertNotIn("undecided", line["stages_ns"], text)
                self.assertEqual(why["first"], "cork", text)
                packets = {lines[n]["packet_id"] for n in (1, 2, 3)}
                self.assertEqual(len(packets), 1, text)
                written = json.loads(sh(self.kpat, "packet", packets.pop(), self.out, "--json", "--no-calls").stdout)["application"]["written"]
                self.assertEqual([call["bytes"] for call in written["calls"]], [100, 200, 300])
                if c["how"] == "cork-then-plain":
                    self.assertNotIn("cork", lines[4]["stages_ns"], text)
                    self.assertEqual((lines[4]["bytes"], lines[4]["end"]), (50, "sent"), text)


if __name__ == "__main__":
    unittest.main()
