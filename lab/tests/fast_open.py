"""Data that go with a SYN (TCP Fast Open), as `kpat why` has them: over a path with a known delay, on this machine, with tracepoints. Truth is when the client's calls began
and were over, when the server's reads were, and what the kernel counts of such connections."""
import json
import os
import sys
import unittest

from kpatlab import play
from tests.connection import PATH
from tests.place import begun, own, sh

HERE, THERE, PORT, DELAY_MS = "10.95.0.1", "10.95.0.2", 7620, 20
# Of the ends' own clocks: a call returns later than its bytes were there.
LATE_NS = 3_000_000
# Says when it had read what of which peer's port.
SERVE = f"""
import json, socket, threading, time
l = socket.socket()
l.bind(("{THERE}", {PORT}))
l.setsockopt(socket.IPPROTO_TCP, 23, 16)  # TCP_FASTOPEN
l.listen()
print("ready", flush=True)
def one(c, port):
    n = 0
    while d := c.recv(1 << 16):
        n += len(d)
        print(json.dumps([port, n, time.clock_gettime_ns(time.CLOCK_BOOTTIME)]), flush=True)
    c.close()
while True:
    c, (_, port) = l.accept()
    threading.Thread(target=one, args=(c, port), daemon=True).start()
"""
# Each connection: how it began, how many bytes, its socket and port, when its first write began and was over, whether its data went with the SYN and were taken, or not.
ASK = f"""
import json, socket, subprocess, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def counted():
    names, values = [line.split() for line in open("/proc/net/netstat") if line.startswith("TcpExt:")]
    return [int(values[names.index(n)]) for n in ("TCPFastOpenActive", "TCPFastOpenActiveFail")]
def go(how, size):
    before = counted()
    c = socket.socket()
    at = now()
    if how == "send":
        c.sendto(bytes(size), 0x20000000, ("{THERE}", {PORT}))  # MSG_FASTOPEN
    else:
        c.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
        c.connect(("{THERE}", {PORT}))
        at = now()
        c.sendall(bytes(size))
    over = now()
    time.sleep(0.15)
    cookie = int.from_bytes(c.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
    taken, refused = (a - b for a, b in zip(counted(), before))
    print(json.dumps(dict(how=how, size=size, socket=cookie, port=c.getsockname()[1], at=at, over=over, taken=taken, refused=refused)), flush=True)
    c.close()
    time.sleep(0.1)
for how, size in (("send", 700), ("send", 700), ("connect", 700), ("send", 5000), ("connect", 5000)):
    go(how, size)
subprocess.run(["ip", "netns", "exec", sys.argv[1], "sysctl", "-qw", "net.ipv4.tcp_fastopen=1"], check=True)
for how, size in (("send", 700), ("connect", 5000)):
    go(how, size)
"""


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class FastOpen(unittest.TestCase):
    def test_data_that_go_with_the_syn(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "fast", "ab", os.environ.get("KPAT_KEEP_FAST"))
        for ns in (a, b):
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.tcp_fastopen=3")
        begun(self, "path", [*PATH, a, f"{HERE}/24", b, f"{THERE}/24", "--delay-ms", str(DELAY_MS)])
        log, ready, out = self.dir / "f.kbl", self.dir / "f.ready", self.dir / "f.kpat"
        record = begun(self, "record", [kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f", f"tcp port {PORT}", "--no-cost",
                                        "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        serve = begun(self, "serve", ["ip", "netns", "exec", b, sys.executable, "-c", SERVE])
        asked = [json.loads(line) for line in sh("ip", "netns", "exec", a, sys.executable, "-c", ASK, b).stdout.splitlines()]
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        reads = [json.loads(line) for line in play.text_of(serve.stdout).splitlines()[1:]]
        sh(kpat, "integrate", log, "-o", out)
        # The first asks for a cookie, and the last two meet a server that takes none.
        self.assertEqual([(c["taken"], c["refused"]) for c in asked], [(0, 0)] + 4 * [(1, 0)] + 2 * [(0, 1)])
        for n, c in enumerate(asked):
            with self.subTest(connection=n):
                self.right(kpat, out, c, {size: at for port, size, at in reads if port == c["port"]})

    def right(self, kpat: str, out, c: dict, read: dict) -> None:
        why = json.loads(sh(kpat, "why", c["socket"], out, "--json").stdout)
        text = sh(kpat, "why", c["socket"], out).stdout
        near = lambda found, true: self.assertAlmostEqual(found, true, delta=LATE_NS, msg=text)
        writes = {w["number"]: w for w in why["slowest"]}
        self.assertEqual(sum(w["bytes"] for w in writes.values()), c["size"], text)
        first, connects = writes[1], c["over"] - c["at"]
        self.assertEqual((first["end"], "loss" in first["stages_ns"]), ("read", False), text)
        self.assertLess(first["stages_ns"].get("undecided", 0), LATE_NS, text)
        sums = {s["stage"]: s["ns"] for s in why["stages"]}
        wire = first["stages_ns"]["driver and wire"]
        self.assertGreater(wire, DELAY_MS * 1_000_000 - LATE_NS, text)
        # Until which byte the write goes, the server has read it by then.
        near(first["to_ns"], min(at for size, at in read.items() if size >= first["bytes"]))
        if c["taken"]:
            # It did not wait for the handshake; the rest of the call did, from when that began.
            self.assertNotIn("handshake", first["stages_ns"], text)
            near(first["from_ns"], c["at"])
            self.assertLess(wire, first["to_ns"] - first["from_ns"], text)
            self.assertEqual(len(writes), 1 if c["size"] == 700 else 2, text)
        elif c["refused"]:
            near(first["from_ns"], c["at"])
            near(first["stages_ns"]["handshake"], connects)
            if why["first"] == "handshake":
                self.assertIn("what went with its SYN (TCP Fast Open) was not taken", " ".join(text.split()))
            self.assertIs(why["opening"]["data_refused"], True)
        else:
            near(sums["handshake"], connects)
            near(first["from_ns"], c["over"])
        if 2 in writes:
            near(writes[2]["from_ns"], c["at"])
            near(writes[2]["stages_ns"]["handshake"], connects)
            near(writes[2]["to_ns"], max(read.values()))
        self.assertLess(sums.get("undecided", 0), LATE_NS, text)


if __name__ == "__main__":
    unittest.main()
