"""Whose bytes a packet carries: writes and reads of known sizes over a path that loses, reorders and duplicates, and over a veth pair with
segmentation offload that loses, on this machine, with tracepoints. Truth is the sizes of the generator's own calls, and the first sequence number
as tshark reads it from tcpdump's capture. The same recording is asked in the filter language and exported: truth is then SQL over the tables as
recorded, Perfetto's own messages and tshark."""
import bisect
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from kpatlab import cache, guest, kernel, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import lost, own, sh

STREAMS = [sys.executable, str(LAB / "tools/streams.py")]
PATH = [sys.executable, str(LAB / "tools/path.py")]
PORT, CONNECTIONS, WRITES = 7300, 2, 150
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
    ends = itertools.accumulate((here for _, here in calls), initial=first)
    return {(at, at + here, whole) for at, (whole, here) in zip(ends, calls)}


# The same question of the tables as recorded: packets whose first byte waited so long since its write to TCP, or until a read had the last.
# Where the segment begins in the socket's stream: also before the first number that the log saw, as the network changes their order.
BEGINS = "((f.tcp_seq - s.{start} + 2147483648) & 4294967295) - 2147483648"
WRITE = """SELECT DISTINCT p.packet_id FROM packet p JOIN footprint f ON f.packet_id = p.packet_id AND f.payload_bytes > 0
 JOIN socket s ON s.proto = 6 AND s.local_port = f.sport AND s.peer_port = f.dport AND s.local_addr = f.ip_src AND s.peer_addr = f.ip_dst
 JOIN app_event w ON w.socket_id = s.socket_id AND w.crossing = 3 AND w.size_bytes > 0 AND w."offset" <= {at}
  AND {at} < w."offset" + w.size_bytes
 WHERE p.first_ns - w.at_ns > {ns}"""
READ = """SELECT DISTINCT p.packet_id FROM packet p JOIN footprint f ON f.packet_id = p.packet_id AND f.payload_bytes > 0
 JOIN socket s ON s.proto = 6 AND s.local_port = f.dport AND s.peer_port = f.sport AND s.local_addr = f.ip_dst AND s.peer_addr = f.ip_src
 JOIN app_event r ON r.socket_id = s.socket_id AND r.crossing = 10 AND r.size_bytes > 0
  AND r."offset" <= {at} + f.payload_bytes - 1
  AND {at} + f.payload_bytes - 1 < r."offset" + r.size_bytes
 WHERE r.at_ns - p.first_ns > {ns}"""
QUEUED = """SELECT q.packet_id FROM call q JOIN function a ON a.func_id = q.func_id AND a.name = 'net:net_dev_queue'
 JOIN call x ON x.packet_id = q.packet_id JOIN function b ON b.func_id = x.func_id AND b.name = 'net:net_dev_start_xmit'
 GROUP BY q.packet_id HAVING count(DISTINCT q.entry_ns) = 1 AND count(DISTINCT x.entry_ns) = 1 AND max(x.entry_ns) - max(q.entry_ns) > {ns}"""


def veth(a: str, b: str, share: float) -> None:
    """A pair with segmentation offload, of which the receiver's netfilter drops a share at random: behind GRO, so whole bursts. Also the first
    SYN: the listener's new socket comes a second after it."""
    sh("ip", "-n", a, "link", "add", "t0", "type", "veth", "peer", "name", "t1", "netns", b)
    for ns, dev, addr in ((a, "t0", "10.98.0.1/24"), (b, "t1", "10.98.0.2/24")):
        sh("ip", "-n", ns, "addr", "add", addr, "dev", dev)
        sh("ip", "-n", ns, "link", "set", dev, "up")
    features = sh("ip", "netns", "exec", a, "ethtool", "-k", "t0").stdout
    if "tcp-segmentation-offload: on" not in features:
        raise AssertionError(f"a veth pair without offload: {features}")
    chance = f"numgen random mod 1000 < {int(share * 1000)}"
    rules = (f"add table ip t; add chain ip t in {{ type filter hook input priority 0; }}; add rule ip t in tcp dport {PORT} {chance} drop; "
             "add rule ip t in tcp flags & (syn|ack) == syn limit rate 1/hour burst 1 packets drop")
    sh("ip", "netns", "exec", b, "nft", rules)


def recorded(stack, out: Path, kpat: str, ends: list[str], way: tuple, mechanism: list[str], patience: float) -> None:
    """Plays it and records it: x.kbl, x.pcap, and what the generator's two ends printed."""
    a, b = ends
    path = None
    if way[0] == VETH:
        veth(a, b, way[1])
    else:
        path = play.Process("path", [*PATH, a, "10.98.0.1/24", b, "10.98.0.2/24", *map(str, way)], out)
        stack.callback(path.stop)
        path.wait_ready(lambda: "ready" in play.text_of(path.stdout), patience)
    log, ready, capture = out / "x.kbl", out / "ready", out / "x.pcap"
    dump = play.Process("dump", ["ip", "netns", "exec", a, "tcpdump", "-i", "t0", "--immediate-mode", "-s", "96", "-U", "-w", str(capture), "tcp"], out)
    stack.callback(dump.stop)
    dump.wait_ready(lambda: "listening on" in play.text_of(dump.stderr), patience)
    record = play.Process("record", [kpat, "record", "-p", "path,app", *mechanism, "--netns", a, "--netns", b, "-f",
                                     f"tcp port {PORT}", "--no-cost", "-o", str(log), "--ready-file", str(ready)], out)
    stack.callback(record.stop)
    record.wait_ready(ready.exists, patience)
    server = play.Process("serve", ["ip", "netns", "exec", b, *STREAMS, "serve", "10.98.0.2", str(PORT), str(CONNECTIONS)], out)
    stack.callback(server.stop)
    server.wait_ready(lambda: "listening" in play.text_of(server.stdout), patience)
    sent = sh("ip", "netns", "exec", a, *STREAMS, "send", "10.98.0.2", PORT, CONNECTIONS, WRITES, 7, seconds=patience * 4)
    (out / "sent.json").write_text(sent.stdout)
    wait_for(lambda: server.p.poll() is not None, patience * 2, "the receiver has read all")
    (out / "read.json").write_text(play.text_of(server.stdout).splitlines()[-1])
    if rc := record.stop():
        raise AssertionError(f"kpat record ended with {rc}: {play.text_of(record.stderr)[-500:]}")
    dump.stop()
    if path:
        path.stop()


class Judge:
    """What a folder of [`recorded`] says, against the generator's own sizes."""

    # Recorded at tracepoints; and, where a program is interrupted or preempted by a task that runs it, too: the share that has to be found still.
    by_points, least = True, 1.0

    def truth(self):
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", self.dir / "x.kbl", self.dir / "x.pcap", "-o", out, seconds=300)
        ends = lambda name: {int(port): list(itertools.accumulate(sizes)) for port, sizes in json.loads((self.dir / name).read_text()).items()}
        syns = sh("tshark", "-r", self.dir / "x.pcap", "-Y", "tcp.flags.syn == 1 && tcp.flags.ack == 0", "-T", "fields", "-e", "tcp.srcport", "-e", "tcp.seq_raw")
        first = {int(p): int(n) + 1 for p, n in (line.split("\t") for line in syns.stdout.split("\n") if line)}
        again = sh("tshark", "-r", self.dir / "x.pcap", "-Y", "tcp.analysis.retransmission", "-T", "fields", "-e", "frame.number").stdout.split()
        return out, ends("sent.json"), ends("read.json"), first, len(again)

    def judged(self, *way):
        self.record(way)
        out, written, read, first, again = self.truth()
        self.assertEqual({p: w[-1] for p, w in written.items()}, {p: r[-1] for p, r in read.items()})
        info = json.loads(sh(self.kpat, "info", out, "--json").stdout)
        # an interrupt within a program: the kernel runs none for what it does meanwhile; a call that is not over when the recording is
        self.assertEqual([x for x in lost(self, info) if x["cause"] not in ("recursion", "no-return")], [])
        packets = json.loads(sh(self.kpat, "packet", f"1-{info['rows']['packet']}", out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        # of each connection: the bytes that packets carried
        seen = {p: set() for p in written}
        data = 0
        writes, reads, wrong, false = {}, {}, [], []
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
                claimed = {(reach[0] + c["carried_from"], reach[0] + c["carried_from"] + c["carried_bytes"], c["bytes"]) for c in found["calls"]}
                false += sorted(claimed - places(expected, reach[0]))
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
        self.assertEqual(false, [], "named, and not so")
        missed = bool(info["losses"]) and self.least < 1
        if missed:
            for of in bytes_of.values():
                self.assertGreaterEqual(of[2] / of[1], self.least)
        else:
            self.assertEqual(wrong[:3], [], f"{len(wrong)} of {data} packets")
        for port, ends in written.items():
            covered = 0
            for lo, hi in sorted(seen[port]):
                self.assertLessEqual(lo, covered, "a hole in what packets carried")
                covered = max(covered, hi)
            self.assertEqual(covered, ends[-1])
        if not missed:
            self.assertEqual(len(writes), sum(map(len, written.values())))
        slow = json.loads(sh(self.kpat, "app", out, "--slow-writes", "-n", "0", "--json").stdout)
        took = [w["acked_after_ns"] for w in slow["writes"]]
        self.assertEqual(took, sorted(took, reverse=True))
        self.assertEqual(slow["total"], len(writes))
        for call in list(writes)[::20]:
            back = json.loads(sh(self.kpat, "app", out, "--write", call, "--json").stdout)
            self.assertEqual({p["packet_id"] for p in back["packets"]}, writes[call])
            self.assertGreaterEqual(sum(p["carried_bytes"] for p in back["packets"]), back["bytes"])
        if not missed:  # a wait is not known where a byte's call is missing
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
        for field, question, ns in (("write", WRITE, 50_000), ("write", WRITE, 20_000_000), ("read", READ, 50_000), ("read", READ, 20_000_000),
                                    *((("qdisc", QUEUED, 0), ("qdisc", QUEUED, 5_000)) if self.by_points else ())):
            start = "received_seq" if field == "read" else "sent_seq"
            chosen = ids(f"{field} > {ns}ns")
            self.assertEqual(chosen, sql(question.format(ns=ns, at=f"({BEGINS.format(start=start)})")), (field, ns))
            found.append(len(chosen))
        self.assertGreater(min(found[::2]), 0, found)
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


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class Carried(Judge, unittest.TestCase):
    def record(self, way):
        self.kpat = os.path.abspath(play.kpat_path())
        ends = own(self, "carried", "ab", os.environ.get("KPAT_KEEP_CARRIED"))
        recorded(self.stack, self.dir, self.kpat, ends, way, ["--mechanism", "tracepoint"], cache.patience())

    def test_each_byte_has_its_write_and_its_read(self):
        self.judged("--delay-ms", 2)

    def test_also_lost_and_reordered(self):
        self.assertGreater(self.judged("--delay-ms", 5, "--loss", 0.03, "--reorder", 0.05, "--duplicate", 0.02, "--jitter-ms", 1), 0)

    def test_also_in_segments_of_offload(self):
        self.assertGreater(self.judged(VETH, 0.03), 0)
        self.assertGreater(self.most_reads, 64, "a segment's reads are listed to the last")


GUEST_SECONDS = 540
WAYS = {"veth": (VETH, 0.03), "lossy": ("--delay-ms", 5, "--loss", 0.03, "--reorder", 0.05, "--duplicate", 0.02, "--jitter-ms", 1)}


def in_guest(out: Path) -> int:
    """All ways, with the best that this kernel offers."""
    cache.run(["modprobe", "tun"], "the path's devices")
    for name, way in WAYS.items():
        own_out, ends = Path("/run/scratch") / name, [f"carried-{name[0]}{x}" for x in "ab"]
        own_out.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            for ns in ends:
                sh("ip", "netns", "add", ns)
                stack.callback(sh, "ip", "netns", "del", ns, ok=False)
            recorded(stack, own_out, play.kpat_path(), ends, way, [], 120)
        shutil.copytree(own_out, out / name, ignore_dangling_symlinks=True)
    return 0


class CarriedThere(Judge):
    """One kernel, by its functions; the guest plays once."""

    series, by_points, least = "7.2", False, 0.95

    @classmethod
    def setUpClass(cls):
        cls.kpat = os.path.abspath(play.kpat_path())
        keep = os.environ.get("KPAT_KEEP_CARRIED")
        cls.out = Path(keep or tempfile.mkdtemp(prefix="kpat-carried-")) / cls.series
        shutil.rmtree(cls.out, ignore_errors=True)
        cls.out.mkdir(parents=True)
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": cls.kpat}
        argv = [os.path.realpath(sys.executable), "-m", "tests.carried", "guest", "/lab"]
        answer = cls.out / "guest.err"
        rc = guest.run(kernel.open_kernel(cls.series), argv, cls.out, smp=1, timeout=GUEST_SECONDS, mem=1024, cwd="/", env=env,
                       sinks=(cls.out / "guest.out", answer)).rc
        if rc:
            raise AssertionError(f"the guest ended with {rc}: {answer.read_text(errors='replace')[-3000:]}")

    @classmethod
    def tearDownClass(cls):
        if not os.environ.get("KPAT_KEEP_CARRIED"):
            shutil.rmtree(cls.out.parent, ignore_errors=True)

    def record(self, way):
        self.dir = self.out / next(name for name, of in WAYS.items() if of == way)

    def test_in_segments_of_offload(self):
        self.assertGreater(self.judged(*WAYS["veth"]), 0)

    def test_lost_and_reordered(self):
        self.assertGreater(self.judged(*WAYS["lossy"]), 0)


class Carried72(CarriedThere, unittest.TestCase):
    pass


class Carried612(CarriedThere, unittest.TestCase):
    series = "6.12"


class Carried61(CarriedThere, unittest.TestCase):
    series = "6.1"


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        sys.exit(in_guest(Path(sys.argv[2])))
    unittest.main()
