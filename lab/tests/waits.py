"""How long what was received lay in its socket's queue: one message after the other over a veth pair, to a reader that does something else first, for a while
that it chooses. Truth is the programs' own clock before and after each of their calls."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from kpatlab.topology import wait_for
from tests.place import Inside, integrated, joined, probed, sh

PORT, MESSAGES, PART = 7340, 60, 700
# The reader takes a message in two parts, and pauses before each.
TALK = """
import json, random, socket, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
side, address, port, count, part, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
pause, told = random.Random(seed), []
if side == "reader":
    listening = socket.create_server((address, port))
    print("listening", flush=True)
    s, _ = listening.accept()
    for _ in range(count):
        reads = []
        for _ in range(2):
            time.sleep(pause.choice((0.003, 0.012, 0.03)))
            before = now()
            if len(s.recv(part, socket.MSG_WAITALL)) != part:
                sys.exit("the message was cut")
            reads.append((before, now()))
        told.append(reads)
        s.sendall(b"k")
else:
    s = socket.create_connection((address, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(count):
        before = now()
        s.sendall(bytes(2 * part))
        told.append((before, now()))
        s.recv(1)
print(json.dumps(told))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Waits(unittest.TestCase):
    def test_a_socket_holds_what_nobody_reads(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = joined(self, "waits", "v0", "10.97.1.1", "10.97.1.2", os.environ.get("KPAT_KEEP_WAITS"))
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = play.Process("record", [kpat, "record", *probed(), "--netns", a, "--netns", b, "-f", f"tcp port {PORT}", "--no-cost", "-o", str(log),
                                         "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        side = lambda name, ns: play.Process(name, ["ip", "netns", "exec", ns, sys.executable, "-c", TALK, name, "10.97.1.2", str(PORT), str(MESSAGES), str(PART), "5"], self.dir)
        reader = side("reader", b)
        self.stack.callback(reader.stop)
        reader.wait_ready(lambda: "listening" in play.text_of(reader.stdout), cache.patience())
        writer = side("writer", a)
        self.stack.callback(writer.stop)
        wait_for(lambda: reader.p.poll() is not None and writer.p.poll() is not None, 120, "both have ended")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        store = integrated(self, log)
        sent, read = (json.loads(play.text_of(p.stdout).splitlines()[-1]) for p in (writer, reader))
        found = json.loads(sh(kpat, "packets", store, f"dst port {PORT}", "-n", "0", "--json").stdout)["packets"]
        messages = [p for p in found if p["len_bytes"] > 2 * PART]
        self.assertEqual(len(messages), MESSAGES)
        late = []
        for packet, (before, after), reads in zip(messages, sent, read):
            segments = json.loads(sh(kpat, "phases", store, "--packet", packet["packet_id"], "--json").stdout)["segments"]
            lay = [s for s in segments if s["phase"] in ("socket-queue", "scheduled", "held") and s["hop"] == segments[-1]["hop"]]
            at = (packet["packet_id"], (before, after), reads, segments)
            # Until the first part was read, and until the second was.
            first = [s for s in lay if s["to_boot_ns"] <= reads[0][1]]
            rest = [s for s in lay if s["from_boot_ns"] >= reads[0][0] and s["to_boot_ns"] > reads[0][1]]
            self.assertTrue(first and rest, at)
            begin, end = first[0]["from_boot_ns"], first[-1]["to_boot_ns"]
            self.assertTrue(before <= begin <= end and reads[0][0] <= end <= reads[0][1], at)
            self.assertTrue(reads[0][0] <= rest[0]["from_boot_ns"] <= reads[0][1] and reads[1][0] <= rest[-1]["to_boot_ns"] <= reads[1][1], at)
            late.append(begin - before)
        late.sort()
        # The writer's call, the device, the backlog and the protocols: beside other tests some meet a processor that has other things to do.
        self.assertLess(late[len(late) // 2], 3_000_000)
        print(f"    waits: {MESSAGES} messages lay in the socket from {late[0] / 1e3:.0f} to {late[-1] / 1e3:.0f} us after they were sent until they were read, and their second halves until then", flush=True)


class Waits72(Inside, unittest.TestCase):
    series, of, modules, detail, marked = "7.2", "Waits", "veth", "steps", "waits:"


if __name__ == "__main__":
    unittest.main()
