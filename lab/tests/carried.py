"""Whose bytes a packet carries: writes and reads of known sizes over a path that loses, reorders and duplicates, and over a veth pair with
segmentation offload that loses, on this machine, with tracepoints. Truth is the sizes of the generator's own calls, and the first sequence number
as tshark reads it from tcpdump's capture. The same recording is asked in the filter language and exported: truth is then SQL over the tables as
recorded, Perfetto's own messages and tshark."""
import bisect
import importlib.util
import itertools
import json
import os
import re
import sys
import unittest

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import own, sh

STREAMS = [sys.executable, str(LAB / "tools/streams.py")]
PATH = [sys.executable, str(LAB / "tools/path.py")]
PORT, CONNECTIONS, WRITES = 7300, 2, 250
VETH = "veth"


def overlaps(ends: list[int], first: int, last: int) -> list[tuple[int, int]]:
    """Of calls that end at these places of a stream those that have bytes from `first` to before `last`: their bytes, and how many lie there."""
    out = []
    for i in range(bisect.bisect_right(ends, first), len(ends)):
        start = ends[i - 1] if i else 0
        if start >= last:
            break
        out.append((ends[i] - start, min(ends[i], last) - max(start, first)))
    return out


def places(calls: list[tuple[int, int]], first: int) -> set[tuple[int, int, int]]:
    """Where in the stream the bytes of these calls are, one behind the other: from, to, and how many the call has in all."""
    out, at = set(), first
    for whole, here in calls:
        out.add((at, at + here, whole))
        at += here
    return out


# The same question of the tables as recorded: packets whose first byte waited so long since its write to TCP, or until a read had the last.
WRITE = """SELECT DISTINCT p.packet_id FROM packet p JOIN footprint f ON f.packet_id = p.packet_id AND f.payload_bytes > 0
 JOIN socket s ON s.proto = 6 AND s.local_port = f.sport AND s.peer_port = f.dport AND s.local_addr = f.ip_src AND s.peer_addr = f.ip_dst
 JOIN app_event w ON w.socket_id = s.socket_id AND w.crossing = 3 AND w.size_bytes > 0 AND w."offset" <= ((f.tcp_seq - s.sent_seq) & 4294967295)
  AND ((f.tcp_seq - s.sent_seq) & 4294967295) < w."offset" + w.size_bytes
 WHERE p.first_ns - w.at_ns > {ns}"""
READ = """SELECT DISTINCT p.packet_id FROM packet p JOIN footprint f ON f.packet_id = p.packet_id AND f.payload_bytes > 0
 JOIN socket s ON s.proto = 6 AND s.local_port = f.dport AND s.peer_port = f.sport AND s.local_addr = f.ip_dst AND s.peer_addr = f.ip_src
 JOIN app_event r ON r.socket_id = s.socket_id AND r.crossing = 10 AND r.size_bytes > 0
  AND r."offset" <= ((f.tcp_seq - s.received_seq) & 4294967295) + f.payload_bytes - 1
  AND ((f.tcp_seq - s.received_seq) & 4294967295) + f.payload_bytes - 1 < r."offset" + r.size_bytes
 WHERE r.at_ns - p.first_ns > {ns}"""
QUEUED = """SELECT q.packet_id FROM call q JOIN function a ON a.func_id = q.func_id AND a.name = 'net:net_dev_queue'
 JOIN call x ON x.packet_id = q.packet_id JOIN function b ON b.func_id = x.func_id AND b.name = 'net:net_dev_start_xmit'
 GROUP BY q.packet_id HAVING count(DISTINCT q.entry_ns) = 1 AND count(DISTINCT x.entry_ns) = 1 AND max(x.entry_ns) - max(q.entry_ns) > {ns}"""


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class Carried(unittest.TestCase):
    def recorded(self, *way):
        self.kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "carried", "ab", os.environ.get("KPAT_KEEP_CARRIED"))
        path = None
        if way[0] == VETH:
            self.veth(a, b, way[1])
        else:
            path = play.Process("path", [*PATH, a, "10.98.0.1/24", b, "10.98.0.2/24", *map(str, way)], self.dir)
            self.stack.callback(path.stop)
            path.wait_ready(lambda: "ready" in play.text_of(path.stdout), cache.patience())
        log, ready, capture = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.pcap"
        dump = play.Process("dump", ["ip", "netns", "exec", a, "tcpdump", "-i", "t0", "--immediate-mode", "-s", "96", "-U", "-w", str(capture), "tcp"], self.dir)
        self.stack.callback(dump.stop)
        dump.wait_ready(lambda: "listening on" in play.text_of(dump.stderr), cache.patience())
        record = play.Process("record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f",
                                         f"tcp port {PORT}", "--no-cost", "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        server = play.Process("serve", ["ip", "netns", "exec", b, *STREAMS, "serve", "10.98.0.2", str(PORT), str(CONNECTIONS)], self.dir)
        self.stack.callback(server.stop)
        server.wait_ready(lambda: "listening" in play.text_of(server.stdout), cache.patience())
        sent = sh("ip", "netns", "exec", a, *STREAMS, "send", "10.98.0.2", PORT, CONNECTIONS, WRITES, 7, seconds=120)
        wait_for(lambda: server.p.poll() is not None, 60, "the receiver has read all")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        dump.stop()
        if path:
            path.stop()
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", log, capture, "-o", out)
        ends = lambda text: {int(port): list(itertools.accumulate(sizes)) for port, sizes in json.loads(text).items()}
        read = ends(play.text_of(server.stdout).splitlines()[-1])
        syns = sh("tshark", "-r", capture, "-Y", "tcp.flags.syn == 1 && tcp.flags.ack == 0", "-T", "fields", "-e", "tcp.srcport", "-e", "tcp.seq_raw")
        first = {int(p): int(n) + 1 for p, n in (line.split("\t") for line in syns.stdout.split("\n") if line)}
        again = sh("tshark", "-r", capture, "-Y", "tcp.analysis.retransmission", "-T", "fields", "-e", "frame.number").stdout.split()
        return out, ends(sent.stdout), read, first, len(again)

    def veth(self, a, b, share):
        """A pair with segmentation offload, of which the receiver's netfilter drops a share at random: behind GRO, so whole bursts."""
        sh("ip", "-n", a, "link", "add", "t0", "type", "veth", "peer", "name", "t1", "netns", b)
        for ns, dev, addr in ((a, "t0", "10.98.0.1/24"), (b, "t1", "10.98.0.2/24")):
            sh("ip", "-n", ns, "addr", "add", addr, "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        features = sh("ip", "netns", "exec", a, "ethtool", "-k", "t0").stdout
        self.assertIn("tcp-segmentation-offload: on", features)
        rules = f"add table ip t; add chain ip t in {{ type filter hook input priority 0; }}; add rule ip t in tcp dport {PORT} numgen random mod 1000 < {int(share * 1000)} drop"
        sh("ip", "netns", "exec", b, "nft", rules)

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
        writes, reads, wrong = {}, {}, []
        self.most_reads = 0
        # of bytes, and of stretches of bytes of one call: named by the tool, true, and both
        bytes_of, ranges_of = ({side: [0, 0, 0] for side in ("written", "read")} for _ in range(2))
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
                reported = [(c["bytes"], c["carried_bytes"]) for c in found["calls"]]
                expected = overlaps(ends, *reach)
                if reported != expected or found["missing_bytes"]:
                    at = next((i for i, (a, b) in enumerate(zip(reported, expected)) if a != b), min(len(reported), len(expected)))
                    near = slice(max(at - 2, 0), at + 3)
                    wrong.append((side, p["packet"]["packet_id"], reach, found["missing_bytes"], len(reported), len(expected), at, reported[near], expected[near]))
                claimed = places(reported, reach[0])
                true = places(expected, reach[0])
                for n, of in enumerate((claimed, true, claimed & true)):
                    bytes_of[side][n] += sum(hi - lo for lo, hi, _ in of)
                    ranges_of[side][n] += len(of)
                if side == "read":
                    self.most_reads = max(self.most_reads, len(found["calls"]))
                for c in found["calls"]:
                    (writes if side == "written" else reads).setdefault(c["id"], set()).add(p["packet"]["packet_id"])
        for side in ("written", "read"):
            shares = [f"{what}: precision {of[2] / of[0]:.4f}, recall {of[2] / of[1]:.4f} of {of[1]}"
                      for what, of in (("bytes", bytes_of[side]), ("stretches", ranges_of[side]))]
            print(f"    {side} {' '.join(map(str, way))}: {'; '.join(shares)}", flush=True)
        self.assertEqual(wrong[:3], [], f"{len(wrong)} of {data} packets")
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
        self.asked(out)
        self.exported(out, writes, reads)
        print(f"    carried {' '.join(map(str, way))}: {data} packets with data of {sum(map(len, written.values()))} writes, {again} frames sent again: all as the generator's calls",
              flush=True)
        return again

    def asked(self, out):
        """What the filter language chooses is what SQL over the tables does."""
        ids = lambda expression: {p["packet_id"] for p in json.loads(sh(self.kpat, "packets", out, expression, "-n", "0", "--json").stdout)["packets"]}
        sql = lambda question: {row["packet_id"] for row in json.loads(sh(self.kpat, "sql", out, question, "--json").stdout)}
        found = []
        for field, question, ns in (("write", WRITE, 1_000_000), ("write", WRITE, 20_000_000), ("read", READ, 1_000_000), ("read", READ, 20_000_000),
                                    ("qdisc", QUEUED, 0), ("qdisc", QUEUED, 5_000)):
            chosen = ids(f"{field} > {ns}ns")
            self.assertEqual(chosen, sql(question.format(ns=ns)), (field, ns))
            found.append(len(chosen))
        self.assertGreater(min(found[0], found[2], found[4]), 0, found)
        sockets = json.loads(sh(self.kpat, "app", out, "-n", "0", "--json").stdout)["sockets"]
        for s in sockets:
            mine = sql(f"SELECT DISTINCT packet_id FROM packet WHERE {s['local_port']} IN (sport, dport) AND {s['peer_port'] or -1} IN (sport, dport)")
            self.assertEqual(ids(f"socket == {s['socket_id']}"), mine, s["socket_id"])
        self.assertEqual(ids("write and writer.pid and qdisc > 0ns"), ids("write") & ids("writer.pid") & ids("qdisc > 0ns"))
        self.assertEqual(ids("writer"), ids("writer matches python*"))
        slow = lambda *more: json.loads(sh(self.kpat, "app", out, "--slow-writes", "-n", "0", "--json", *more).stdout)
        everything = slow()["writes"]
        self.assertEqual([w["id"] for w in slow("acked > 20ms and len < 1000")["writes"]],
                         [w["id"] for w in everything if w["acked_after_ns"] > 20_000_000 and w["bytes"] < 1000])
        self.assertEqual(slow("process == nobody")["total"], 0)
        print(f"    filter: packets that waited for {found}, as by SQL", flush=True)

    def exported(self, out, writes, reads):
        """Arrows lead from a write through its packets to its reads, and comments name both."""
        if importlib.util.find_spec("perfetto"):
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages
            file = self.dir / "x.perfetto"
            sh(self.kpat, "export", out, "--to", "perfetto", "-o", file)
            trace = messages.Trace()
            trace.ParseFromString(file.read_bytes())
            # other packets than those of the streams have calls, too: none of these
            flows = {"write": {}, "read": {}}
            frames = 0
            for p in trace.packet:
                name = p.track_event.name.split(" ")
                if name[0] in flows and name[1].rstrip(",").isdigit():
                    flows[name[0]][int(name[1].rstrip(","))] = set(p.track_event.flow_ids)
                frames += name[0] == "frame" and len(p.track_event.flow_ids) > 0
            self.assertEqual(flows["write"], writes)
            self.assertEqual(flows["read"], reads)
            self.assertGreater(frames, 0)
            print(f"    perfetto: {len(writes)} writes and {len(reads)} reads in the flows of their packets, {frames} frames", flush=True)
        annotated = self.dir / "x.annotated.pcapng"
        sh(self.kpat, "export", out, "--to", "pcapng", "-o", annotated)
        lines = sh("tshark", "-r", annotated, "-Y", "frame.comment contains \"written by\"", "-T", "fields", "-e", "frame.comment", seconds=120).stdout.splitlines()
        numbers = {int(n) for line in lines for n in re.findall(r"\(write (\d+)", line)}
        self.assertGreater(len(numbers), 0)
        self.assertLessEqual(numbers, set(writes))
        self.assertTrue(any("read by" in line for line in lines))
        print(f"    pcapng: {len(lines)} frames name their writer, {len(numbers)} different writes", flush=True)

    def test_each_byte_has_its_write_and_its_read(self):
        self.judged("--delay-ms", 2)

    def test_also_lost_and_reordered(self):
        self.assertGreater(self.judged("--delay-ms", 5, "--loss", 0.03, "--reorder", 0.05, "--duplicate", 0.02, "--jitter-ms", 1), 0)

    def test_also_in_segments_of_offload(self):
        self.assertGreater(self.judged(VETH, 0.03), 0)
        self.assertGreater(self.most_reads, 64, "a segment's reads are listed to the last")


if __name__ == "__main__":
    unittest.main()
