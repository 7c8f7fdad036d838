"""Whose bytes a packet carries: writes and reads of known sizes over a path that loses and reorders, on this machine, with tracepoints. Truth is the
sizes of the generator's own calls, and the first sequence number as tshark reads it from tcpdump's capture."""
import bisect
import itertools
import json
import os
import sys
import unittest

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import own, sh

STREAMS = [sys.executable, str(LAB / "tools/streams.py")]
PATH = [sys.executable, str(LAB / "tools/path.py")]
PORT, CONNECTIONS, WRITES = 7300, 2, 120


def overlaps(ends: list[int], first: int, last: int) -> list[tuple[int, int]]:
    """Of calls that end at these places of a stream those that have bytes from `first` to before `last`: their bytes, and how many lie there."""
    out = []
    for i in range(bisect.bisect_right(ends, first), len(ends)):
        start = ends[i - 1] if i else 0
        if start >= last:
            break
        out.append((ends[i] - start, min(ends[i], last) - max(start, first)))
    return out


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class Carried(unittest.TestCase):
    def recorded(self, *way):
        self.kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "carried", "ab", os.environ.get("KPAT_KEEP_CARRIED"))
        path = play.Process("path", [*PATH, a, "10.98.0.1/24", b, "10.98.0.2/24", *map(str, way)], self.dir)
        self.stack.callback(path.stop)
        path.wait_ready(lambda: "ready" in play.said(path.stdout), cache.patience())
        log, ready, capture = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.pcap"
        dump = play.Process("dump", ["ip", "netns", "exec", a, "tcpdump", "-i", "t0", "--immediate-mode", "-s", "96", "-U", "-w", str(capture), "tcp"], self.dir)
        self.stack.callback(dump.stop)
        dump.wait_ready(lambda: "listening on" in play.said(dump.stderr), cache.patience())
        record = play.Process("record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f",
                                         f"tcp port {PORT}", "--no-cost", "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        server = play.Process("serve", ["ip", "netns", "exec", b, *STREAMS, "serve", "10.98.0.2", str(PORT), str(CONNECTIONS)], self.dir)
        self.stack.callback(server.stop)
        server.wait_ready(lambda: "listening" in play.said(server.stdout), cache.patience())
        sent = sh("ip", "netns", "exec", a, *STREAMS, "send", "10.98.0.2", PORT, CONNECTIONS, WRITES, 7, seconds=120)
        wait_for(lambda: server.p.poll() is not None, 60, "the receiver has read all")
        self.assertEqual(record.stop(), 0, play.said(record.stderr)[-500:])
        dump.stop()
        path.stop()
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", log, "-o", out)
        ends = lambda text: {int(port): list(itertools.accumulate(sizes)) for port, sizes in json.loads(text).items()}
        read = ends(play.said(server.stdout).splitlines()[-1])
        syns = sh("tshark", "-r", capture, "-Y", "tcp.flags.syn == 1 && tcp.flags.ack == 0", "-T", "fields", "-e", "tcp.srcport", "-e", "tcp.seq_raw")
        first = {int(p): int(n) + 1 for p, n in (line.split("\t") for line in syns.stdout.split("\n") if line)}
        again = sh("tshark", "-r", capture, "-Y", "tcp.analysis.retransmission", "-T", "fields", "-e", "frame.number").stdout.split()
        return out, ends(sent.stdout), read, first, len(again)

    def judged(self, *way):
        out, written, read, first, again = self.recorded(*way)
        self.assertEqual({p: w[-1] for p, w in written.items()}, {p: r[-1] for p, r in read.items()})
        info = json.loads(sh(self.kpat, "info", out, "--json").stdout)
        # an interrupt within a program: the kernel runs none for what it does meanwhile
        self.assertEqual([x for x in info["losses"] if x["cause"] != "recursion"], [])
        packets = json.loads(sh(self.kpat, "packet", f"1-{info['rows']['packet']}", out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        # of each connection: the bytes that packets carried
        seen = {p: set() for p in written}
        data = 0
        writes = {}
        for p in packets:
            port, carried = p["packet"]["src_port"], p["application"]
            self.assertIsNotNone(carried, p["packet"])
            if port not in written or not carried["payload_bytes"]:
                continue
            data += 1
            at = (p["packet"]["tcp_seq"] - first[port]) % 2**32
            reach = (at, at + carried["payload_bytes"])
            seen[port].add(reach)
            for side, ends in (("written", written[port]), ("read", read[port])):
                found = carried[side]
                self.assertIsNotNone(found, (side, p["packet"]))
                self.assertEqual([(c["bytes"], c["carried_bytes"]) for c in found["calls"]], overlaps(ends, *reach), (side, p["packet"]))
                self.assertEqual(found["missing_bytes"], 0)
                if side == "written":
                    for c in found["calls"]:
                        writes.setdefault(c["id"], set()).add(p["packet"]["packet_id"])
        for port, ends in written.items():
            covered = 0
            for lo, hi in sorted(seen[port]):
                self.assertLessEqual(lo, covered, "a hole in what packets carried")
                covered = max(covered, hi)
            self.assertEqual(covered, ends[-1])
        self.assertEqual(len(writes), sum(map(len, written.values())))
        slow = json.loads(sh(self.kpat, "app", out, "--slow-writes", "-n", "0", "--json").stdout)
        took = [w["acked_after_ns"] for w in slow["writes"]]
        self.assertEqual((slow["total"], sorted(took, reverse=True)), (len(writes), took))
        for call in list(writes)[::20]:
            back = json.loads(sh(self.kpat, "app", out, "--write", call, "--json").stdout)
            self.assertEqual({p["packet_id"] for p in back["packets"]}, writes[call])
            self.assertGreaterEqual(sum(p["carried_bytes"] for p in back["packets"]), back["bytes"])
        print(f"    carried {' '.join(map(str, way))}: {data} packets with data of {sum(map(len, written.values()))} writes, {again} frames sent again: all as the generator's calls",
              flush=True)
        return again

    def test_each_byte_has_its_write_and_its_read(self):
        self.judged("--delay-ms", 2)

    def test_also_lost_and_reordered(self):
        self.assertGreater(self.judged("--delay-ms", 5, "--loss", 0.03, "--reorder", 0.05, "--jitter-ms", 1), 0)


if __name__ == "__main__":
    unittest.main()
