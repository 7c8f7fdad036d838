"""Whose bytes a packet carries, of sockets that are used in every way that Linux offers (tools/oddities.py, tools/odd_datagrams.py): vectors,
several messages in a call, sendfile, splice, zero copy, io_uring, looking without reading, the error queue, urgent data, two writers and two
readers at once, a socket that another process goes on with, connections older than the recording, ports that are used again, corks, segments
and fragments of datagrams. On this machine, with tracepoints. Truth is in the bytes: each is the number of its write; who wrote and read what when is
the generator's own log, and sequence numbers are tshark's."""
import bisect
import itertools
import json
import os
import sys
import unittest

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import lost, own, sh

STREAMS = [sys.executable, str(LAB / "tools/oddities.py")]
DATAGRAMS = [sys.executable, str(LAB / "tools/odd_datagrams.py")]
PORT = 7500
ADDRESSES = {4: ("10.96.0.1", "10.96.0.2"), 6: ("fd96::1", "fd96::2")}
# What is judged each time; the others with --full.
HARD = ["plain", "splice", "zerocopy", "stamped", "uring", "peeked", "two-writers", "urgent", "redirected", "early", "reused-1", "reused-2"]
# One that cuts segments at the reader's has several reads of one packet.
# Of a socket's first datagram that is cut into fragments the last one alone is seen with it.
UNKNOWN = {("segments", "read"), ("mixed", "read"), ("large", "written")}

UNKNOWN_OF_6 = {("large", "read")}


class Stream:
    """Where in a direction of a connection each call's bytes are: first, end, its thread, before, after."""

    def __init__(self, case: str, way: dict):
        # A worker of the kernel's is in the place of the thread that asked.
        self.any_thread = case == "uring"
        at, self.reads, read = 0, [], []
        for thread, before, after, count, runs, where in way["reads"]:
            if case == "urgent" and where is None and at == 3401:
                at += 1
            first = at if where is None else where
            self.reads.append((first, first + count, thread, before, after))
            read.append((first, runs))
            at = at + count if where is None else at
        self.reads.sort()
        self.writes, at = [], 0
        if case == "two-writers":  # their bytes are mixed: as they were read
            of = {w[0]: w for w in way["writes"]}
            numbers = (n for _, runs in sorted(read) for n, count in runs for _ in range(count))
            calls = [(of[n], len(list(same))) for n, same in itertools.groupby(numbers)]
        else:
            calls = [(w, w[4]) for w in (sorted(way["writes"], key=lambda w: w[2]) if case == "forked" else way["writes"]) if w[4] > 0]
        for (_, thread, before, after, _), count in calls:
            self.writes.append((at, at + count, thread, before, after))
            at += count

    def compare(self, calls: list, found: list, reach: tuple[int, int], begun_ns: int) -> tuple[int, int, int, list]:
        """Of a packet's bytes those whose call is named and right, named and wrong, and not named though the log could have it; what is wrong."""
        right = wrong = 0
        faults, expected = [], []
        i = bisect.bisect_right([t[1] for t in calls], reach[0])
        while i < len(calls) and calls[i][0] < reach[1]:
            lo, hi, *call = calls[i]
            expected.append((max(lo, reach[0]), min(hi, reach[1]), call))
            i += 1
        for c in found:
            first = reach[0] + c["carried_from"]
            for lo, hi, (thread, before, after) in expected:
                n = min(hi, first + c["carried_bytes"]) - max(lo, first)
                if n <= 0:
                    continue
                if (self.any_thread or thread == c["pid"]) and before <= c["at_boot_ns"] <= after:
                    right += n
                else:
                    wrong += n
                    faults.append((c, (thread, before, after), n))
        could = sum(hi - lo for lo, hi, (thread, _, after) in expected if thread and after > begun_ns)
        return right, wrong, max(could - right - wrong, 0), faults


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Oddities(unittest.TestCase):
    def recorded(self, family: int, cases: list[str], tool: list[str]):
        self.kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "odd", "ab", os.environ.get("KPAT_KEEP_ODDITIES"))
        sh("ip", "link", "add", "v0", "netns", a, "type", "veth", "peer", "name", "v0", "netns", b)
        for ns, i in ((a, 0), (b, 1)):
            for dev in ("lo", "v0"):
                sh("ip", "-n", ns, "link", "set", dev, "up")
            sh("ip", "-n", ns, "addr", "add", f"{ADDRESSES[4][i]}/24", "dev", "v0")
            sh("ip", "-n", ns, "addr", "add", f"{ADDRESSES[6][i]}/64", "dev", "v0", "nodad")
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.tcp_fastopen=0x603", "net.ipv4.ping_group_range=0 2147483647")
        capture = self.dir / "x.pcap"
        dump = play.Process("dump", ["ip", "netns", "exec", a, "tcpdump", "-i", "v0", "--immediate-mode", "-s", "128", "-U", "-w", str(capture), "tcp"], self.dir)
        self.stack.callback(dump.stop)
        dump.wait_ready(lambda: "listening on" in play.text_of(dump.stderr), cache.patience())
        go = self.dir / "go"
        player = play.Process("odd", [*tool, a, b, *ADDRESSES[family], str(PORT), str(go), *cases], self.dir)
        self.stack.callback(player.stop)
        player.wait_ready(lambda: "ready" in play.text_of(player.stdout), cache.patience())
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = play.Process("record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "--no-cost",
                                         "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        go.touch()
        wait_for(lambda: player.p.poll() is not None, 120, "all cases were played")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        dump.stop()
        truth = json.loads(play.text_of(player.stdout).splitlines()[-1])
        for case, t in truth.items():
            self.assertEqual(t["wrong"], [], case)
        syns = sh("tshark", "-r", capture, "-Y", "tcp.flags.syn == 1", "-T", "fields", "-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "tcp.seq_raw")
        first: dict[tuple[int, int], list[int]] = {}
        for line in syns.stdout.splitlines():
            source, to, n = map(int, line.split("\t"))
            of = first.setdefault((source, to), [])
            if n + 1 not in of:
                of.append(n + 1)
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", log, "-o", out)
        info = json.loads(sh(self.kpat, "info", out, "--json").stdout)
        self.assertEqual([x for x in lost(self, info) if x["cause"] != "recursion"], [])
        packets = json.loads(sh(self.kpat, "packet", f"1-{info['rows']['packet']}", out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        # a call that was seen by no program: at most a few, where the machine is busy
        return truth, first, packets, sum(x["count"] for x in info["losses"])

    def streams(self, family: int, cases: list[str]):
        truth, firsts, packets, missed = self.recorded(family, cases, STREAMS)
        begun_ns = min((p["packet"]["first_boot_ns"] for p in packets), default=0)
        # connections by ports: those that come later have the same
        of: dict[tuple[int, int], list[str]] = {}
        for case in cases:
            of.setdefault(tuple(truth[case]["ports"]), []).append(case)
        known = {(case, way): Stream(case, truth[case][way]) for case in cases for way in ("up", "down")}
        begins = {case: min((w[2] for w in truth[case]["up"]["writes"]), default=0) for case in cases}
        sums: dict[tuple[str, str, str], list] = {}
        for p in packets:
            ports = p["packet"]["src_port"], p["packet"]["dst_port"]
            up = ports in of
            if not up and ports[::-1] not in of:
                continue
            those = of[ports if up else ports[::-1]]
            k = max((i for i, c in enumerate(those) if begins[c] <= p["packet"]["first_boot_ns"]), default=0)
            case, way = those[k], "up" if up else "down"
            tcp = next((f["fields"] for f in p["footprints"] if f["fields"].get("tcp_seq") is not None), {})
            if not tcp.get("payload_bytes") or case == "mptcp":
                continue
            at = 0 if p["packet"]["tcp_flags"] & 2 else (p["packet"]["tcp_seq"] - firsts[ports][k]) % 2**32
            stream = known[case, way]
            for side, calls in (("written", stream.writes), ("read", stream.reads)):
                found = ((p["application"] or {}).get(side) or {"calls": []})["calls"]
                *counts, faults = stream.compare(calls, found, (at, at + tcp["payload_bytes"]), begun_ns)
                s = sums.setdefault((case, way, side), [0, 0, 0, []])
                for i, n in enumerate(counts):
                    s[i] += n
                s[3] += [(p["packet"]["packet_id"], f) for f in faults]
        self.assertEqual({case for case, _, _ in sums}, set(cases) - {"mptcp"})
        for (case, way, side), (right, wrong, open_, faults) in sums.items():
            self.assertEqual((wrong, faults[:2]), (0, []), (case, way, side))
            self.assertGreater(right, 0, (case, way, side))
            self.assertLessEqual(open_, (right + open_) // 5 if missed else 0, (case, way, side))
        right, open_ = (sum(s[i] for s in sums.values()) for i in (0, 2))
        print(f"    oddities over IPv{family}: {len(cases)} uses of a connection, of {right + open_} bytes written and read the call of {right} is known, none is wrong", flush=True)

    def datagrams(self, family: int, cases: list[str]):
        truth, _, packets, missed = self.recorded(family, cases, DATAGRAMS)
        ports: dict[int, str] = {}
        for case, t in truth.items():
            ports |= {port: case for port in (t["port"], *(s[5] for s in t["sends"] if len(s) > 5))}
            last = 0
            for r in t["reads"]:  # a segment without the number is of the datagram before
                last = r[0] = r[0] if r[0] >= 0 else last
        sums: dict[tuple[str, str], list[int]] = {}
        for p in packets:
            case = ports.get(p["packet"]["dst_port"])
            payload = next((f["fields"]["payload_bytes"] for f in p["footprints"] if f["fields"].get("payload_bytes") is not None), None)
            if case is None or payload is None:
                continue
            for side, key in (("written", "sends"), ("read", "reads")):
                found = ((p["application"] or {}).get(side) or {"calls": []})["calls"]
                # of a fragment the datagram is longer
                true = [t for t in truth[case][key] if t[0] == payload or case == "large" and t[0] > payload]
                fits = lambda t, c: (t[1] == c["pid"] and t[4] == c["bytes"] or case == "uring") and t[2] <= c["at_boot_ns"] <= t[3]
                s = sums.setdefault((case, side), [0, 0])
                for c in found:
                    self.assertTrue(any(fits(t, c) for t in true), (case, side, p["packet"]["packet_id"], payload, c, true))
                s[0] += bool(found)
                s[1] += bool(true) and not found
        self.assertEqual({case for case, _ in sums}, set(cases))
        for (case, side), (right, open_) in sums.items():
            # of two readers whose calls overlap the order is not known, and on two idle CPUs all of them may
            if (case, side) != ("two-readers", "read") and (case, side) not in UNKNOWN | (UNKNOWN_OF_6 if family == 6 else set()):
                self.assertLessEqual(open_, (right + open_) // 5 if missed else 0, (case, side))
        right, open_ = (sum(s[i] for s in sums.values()) for i in (0, 1))
        print(f"    odd datagrams over IPv{family}: {len(cases)} uses of a socket, of {right + open_} sends and reads {right} are known, none is wrong", flush=True)

    def others(self, family: int):
        """Ping and raw sockets, which have no ports: each datagram is known by its size."""
        truth, _, packets, missed = self.recorded(family, ["ping", "raw"], DATAGRAMS)
        header = 40 if family == 6 else 20
        sums: dict[tuple[str, str], list[int]] = {}
        for p in packets:
            case = {1: "ping", 58: "ping", 253: "raw"}.get(p["packet"].get("ip_proto"))
            size = p["packet"]["len_bytes"] - header
            if case is None or all(t[0] != size for t in truth[case]["sends"]):
                continue
            answer = p["packet"].get("icmp_type") in (0, 129)
            for side, key in (("written", "sends"), ("read", "reads")):
                found = ((p["application"] or {}).get(side) or {"calls": []})["calls"]
                # of a ping the kernel writes the answer, and reads the question
                of = [] if case == "ping" and answer == (side == "written") else [t for t in truth[case][key] if t[0] == size]
                for c in found:
                    self.assertTrue(any(t[1] == c["pid"] and t[4] == c["bytes"] and t[2] <= c["at_boot_ns"] <= t[3] for t in of), (case, side, p["packet"], c, of))
                s = sums.setdefault((case, side), [0, 0])
                s[0] += bool(found)
                s[1] += bool(of) and not found
        print(f"    ping and raw sockets over IPv{family}: {sums} known and not", flush=True)
        self.assertEqual({k for k, s in sums.items() if s[0]}, {(c, side) for c in ("ping", "raw") for side in ("written", "read")})
        # The first one waits for its neighbour: if the answer is quick, it is sent in an interrupt, and a ping's packet is known by its task alone.
        self.assertLessEqual(sum(s[1] for s in sums.values()), 2 if missed else 1)

    def test_others(self):
        self.others(4)

    def test_others_of_6(self):
        self.others(6)

    @unittest.skipUnless(os.path.exists("/proc/sys/net/mptcp/enabled"), "needs MPTCP")
    def test_connections_below_one_of_mptcp(self):
        """Whose they are says the socket above, though the kernel's workers and interrupts have them."""
        truth, _, packets, _ = self.recorded(4, ["mptcp"], STREAMS)
        here, there = truth["mptcp"]["ports"]
        of = lambda t: {c[1] for c in t["writes"]} | {c[0] for c in t["reads"]}
        players = of(truth["mptcp"]["up"])
        out = self.dir / "x.kpat"
        rows = lambda proto: json.loads(sh(self.kpat, "sql", out, "--json", f"select * from socket where proto = {proto} and peer_port != 0").stdout)
        above = {r["local_port"]: r for r in rows(262)}
        self.assertEqual(set(above), {here, there})
        below = rows(6)
        self.assertEqual(sorted(r["local_port"] for r in below), sorted([here, there]))
        for r in below:
            mine = above[r["local_port"]]
            self.assertEqual((r["mptcp_socket"], r["pid"]), (mine["socket_id"], mine["pid"]))
        self.assertIn(above[there]["pid"], players, "who reads")
        for p in packets:
            for side in ("written", "read"):
                end = (p["application"] or {}).get(side) or {}
                self.assertNotIn("kworker", str(end.get("process")))
                self.assertEqual(end.get("calls", []), [], "the bytes are the socket's above")
        text = sh(self.kpat, "app", out, "--connections", "--socket", str(below[0]["socket_id"])).stdout
        self.assertNotIn("not read", text, "all of it was read")
        self.assertIn(f"by the socket of MPTCP above, {above[here]['socket_id']}", " ".join(text.split()))

    def test_what_splice_takes_is_not_unread(self):
        truth, _, _, _ = self.recorded(4, ["spliced"], STREAMS)
        reads = truth["spliced"]["up"]["reads"]
        found = json.loads(sh(self.kpat, "app", self.dir / "x.kpat", "--connections", "--json").stdout)["connections"]
        d = max((d for c in found for d in c["directions"]), key=lambda d: d["written"] or 0)
        self.assertEqual((d["read"], d["unseen_reads"], d["left"]), (1000, sum(r[3] for r in reads) - 1000, []))

    def test_streams(self):
        self.streams(4, HARD)

    def test_all_streams(self):
        self.streams(4, sh(*STREAMS, "list").stdout.split())

    def test_all_streams_of_6(self):
        self.streams(6, [c for c in sh(*STREAMS, "list").stdout.split() if c != "mapped"])

    def test_datagrams(self):
        self.datagrams(4, ["many", "segments-gro", "looked", "corked", "large", "two-readers"])

    def test_all_datagrams(self):
        self.datagrams(4, [c for c in sh(*DATAGRAMS, "list").stdout.split() if c not in ("ping", "raw")])

    def test_all_datagrams_of_6(self):
        self.datagrams(6, [c for c in sh(*DATAGRAMS, "list").stdout.split() if c not in ("mapped", "multicast", "ping", "raw")])


if __name__ == "__main__":
    unittest.main()
