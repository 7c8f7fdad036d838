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
# A way through the path, and of what the log cannot tell less than this.
DELAY_NS, LITTLE_NS = DELAY_MS * 1_000_000, 5_000_000
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
        one_log, one_ready, one = self.dir / "one.kbl", self.dir / "one.ready", self.dir / "one.kpat"
        of_one = begun(self, "record-one", [kpat, "record", "-p", "app", "--mechanism", "tracepoint", "--netns", a, "-f", f"tcp port {PORT}", "--no-cost",
                                            "-o", str(one_log), "--ready-file", str(one_ready)], lambda _: one_ready.exists())
        serve = begun(self, "serve", ["ip", "netns", "exec", b, sys.executable, "-c", SERVE])
        asked = [json.loads(line) for line in sh("ip", "netns", "exec", a, sys.executable, "-c", ASK, b).stdout.splitlines()]
        for recorder in (record, of_one):
            self.assertEqual(recorder.stop(), 0, play.text_of(recorder.stderr)[-500:])
        reads = [json.loads(line) for line in play.text_of(serve.stdout).splitlines()[1:]]
        sh(kpat, "integrate", log, "-o", out)
        sh(kpat, "integrate", one_log, "-o", one)
        # The first asks for a cookie, and the last two meet a server that takes none.
        self.assertEqual([(c["taken"], c["refused"]) for c in asked], [(0, 0)] + 4 * [(1, 0)] + 2 * [(0, 1)])
        for n, c in enumerate(asked):
            with self.subTest(connection=n):
                self.right(kpat, out, c, {size: at for port, size, at in reads if port == c["port"]})
                if c["taken"]:
                    self.right_of_one_host(kpat, one, c)

    def right(self, kpat: str, out, c: dict, read: dict) -> None:
        why = json.loads(sh(kpat, "why", c["socket"], out, "--json").stdout)
        text = sh(kpat, "why", c["socket"], out).stdout
        within = lambda least, found, most: self.assertTrue(least <= found <= most, (least, found, most, c, text))
        writes = {w["number"]: w for w in why["slowest"]}
        self.assertEqual(sum(w["bytes"] for w in writes.values()), c["size"], text)
        first, connects = writes[1], c["over"] - c["at"]
        self.assertEqual((first["end"], "loss" in first["stages_ns"]), ("read", False), text)
        sums = {s["stage"]: s["ns"] for s in why["stages"]}
        within(0, sums.get("undecided", 0), LITTLE_NS)
        self.assertNotIn("undecided", first["stages_ns"], text)
        wire = first["stages_ns"]["driver and wire"]
        # It was read when the server says so, or before, but not sooner than the path allows.
        read_by = min(at for size, at in read.items() if size >= first["bytes"])
        within(c["at"], first["from_ns"], c["over"] + LITTLE_NS)
        within(DELAY_NS, wire, read_by - c["at"])
        within(c["at"] + DELAY_NS, first["to_ns"], read_by)
        if c["taken"]:
            # It did not wait for the handshake; the rest of the call did, from when that began.
            self.assertNotIn("handshake", first["stages_ns"], text)
            within(c["at"], first["from_ns"], c["over"] - 2 * DELAY_NS)
            self.assertEqual(len(writes), 1 if c["size"] == 700 else 2, text)
        elif c["refused"]:
            within(2 * DELAY_NS - LITTLE_NS, first["stages_ns"]["handshake"], connects)
            within(c["at"], first["from_ns"], c["over"] - 2 * DELAY_NS)
            if why["first"] == "handshake":
                self.assertIn("what went with its SYN (TCP Fast Open) was not taken", " ".join(text.split()))
            self.assertIs(why["opening"]["data_refused"], True)
        else:
            within(2 * DELAY_NS, sums["handshake"], connects)
            within(c["at"] + 2 * DELAY_NS, first["from_ns"], c["over"])
        if 2 in writes:
            second = writes[2]
            within(c["at"], second["from_ns"], c["over"] - 2 * DELAY_NS)
            within(2 * DELAY_NS - LITTLE_NS, second["stages_ns"]["handshake"], connects)
            within(c["at"] + 3 * DELAY_NS, second["to_ns"], max(read.values()))

    def right_of_one_host(self, kpat: str, one, c: dict) -> None:
        """Of the sender alone: what went with the SYN was acknowledged with it, when the call was over."""
        text = sh(kpat, "why", c["socket"], one).stdout
        first = next(w for w in json.loads(sh(kpat, "why", c["socket"], one, "--json").stdout)["slowest"] if w["number"] == 1)
        self.assertEqual(first["end"], "acknowledged", text)
        self.assertTrue(2 * DELAY_NS <= first["took_ns"] <= c["over"] - c["at"], (first, c, text))


if __name__ == "__main__":
    unittest.main()
