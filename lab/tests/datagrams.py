"""Whose datagram a packet is: over a veth pair and over loopback, with a socket that is too small, with two threads that send from one socket,
on this machine, with tracepoints. Truth is the generator's own clock before and after each of its calls, and of those that a packet may be by its
time to live the one that was sent when it was first seen."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import joined, lost, sh

TOOL = [sys.executable, str(LAB / "tools/datagrams.py")]
PORT = 7310
# Code of the crossing in the table `app_event`.
FROM_DEVICE = 7


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Datagrams(unittest.TestCase):
    def judged(self, loopback: bool, count: int, pace_us: int, threads: int, buffer: int = 1 << 22, pause_us: int = 0, spins: int = 0):
        kpat = os.path.abspath(play.kpat_path())
        a, b = joined(self, "datagrams", "v0", "10.97.0.1", "10.97.0.2", os.environ.get("KPAT_KEEP_DATAGRAMS"))
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = play.Process("record", [kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f",
                                         f"udp port {PORT}", "--no-cost", "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        to, where = ("127.0.0.1", a) if loopback else ("10.97.0.2", b)
        reader = play.Process("recv", ["ip", "netns", "exec", where, *TOOL, "recv", to, str(PORT), str(count), str(buffer), str(pause_us), str(spins)], self.dir)
        self.stack.callback(reader.stop)
        reader.wait_ready(lambda: "listening" in play.text_of(reader.stdout), cache.patience())
        sent = json.loads(sh("ip", "netns", "exec", a, *TOOL, "send", to, PORT, count, pace_us, 7, threads, seconds=120).stdout)
        wait_for(lambda: reader.p.poll() is not None, 60, "the receiver has read all")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        out = self.dir / "x.kpat"
        sh(kpat, "integrate", log, "-o", out)
        read = json.loads(play.text_of(reader.stdout).splitlines()[-1])
        info = json.loads(sh(kpat, "info", out, "--json").stdout)
        self.assertEqual([x for x in lost(self, info) if x["cause"] != "recursion"], [])
        packets = json.loads(sh(kpat, "packet", f"1-{info['rows']['packet']}", out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        known = {"written": 0, "read": 0}
        seen = set()
        sends = {}
        for p in packets:
            first = next((f for f in p["footprints"] if f["fields"].get("ttl") is not None), None)
            if first is None or p["packet"]["dst_port"] != PORT:
                continue
            which = [n for n, (before, after, _) in sent.items()
                     if 2 + int(n) % 250 == first["fields"]["ttl"] and before <= first["at_boot_ns"] <= after]
            self.assertEqual(len(which), 1, p["packet"])
            n = which[0]
            seen.add(n)
            carried = p["application"] or {}
            for side, truth in (("written", sent), ("read", read)):
                calls = (carried.get(side) or {}).get("calls", [])
                if not calls:
                    continue
                self.assertEqual(len(calls), 1)
                self.assertIn(n, truth, (side, p["packet"]))
                before, after, size = truth[n]
                self.assertTrue(before <= calls[0]["at_boot_ns"] <= after, (side, n, truth[n], calls[0], p["packet"]))
                self.assertEqual(calls[0]["bytes"], size)
                known[side] += 1
                if side == "written":
                    sends[calls[0]["id"]] = p["packet"]["packet_id"]
        self.assertEqual(seen, set(sent))
        for call, packet in list(sends.items())[::300]:
            back = json.loads(sh(kpat, "app", out, "--write", call, "--json").stdout)
            self.assertEqual([p["packet_id"] for p in back["packets"]], [packet])
        # All packets at once, as conditions have them, against the answers packet by packet, which are judged above.
        ids = lambda expression: {p["packet_id"] for p in json.loads(sh(kpat, "packets", out, expression, "-n", "0", "--json").stdout)["packets"]}
        of = lambda p, side: (p["application"] or {}).get(side) or {"calls": [], "missing_bytes": 1}
        waited = lambda p: max((c["at_boot_ns"] for c in of(p, "read")["calls"]), default=0) - p["packet"]["first_boot_ns"]
        for ns in (0, 50_000, 1_000_000):
            self.assertEqual(ids(f"read > {ns}ns"), {p["packet"]["packet_id"] for p in packets if of(p, "read")["missing_bytes"] == 0 and waited(p) > ns})
        for field, side in (("writer", "written"), ("reader", "read")):
            self.assertEqual(ids(f"{field}.pid"), {p["packet"]["packet_id"] for p in packets if (p["application"] or {}).get(side)})
        self.assertEqual(ids("write"), set())
        print(f"    datagrams {'loopback' if loopback else 'veth'}, {threads} threads: {len(sent)} sent, {len(read)} read; of {known['written']} and {known['read']} "
              "the call is known, all as the generator's", flush=True)
        return len(sent), len(read), known

    def test_each_datagram_has_its_send_and_its_read(self):
        self.all_known(False)

    def test_also_over_loopback(self):
        self.all_known(True)

    def all_known(self, loopback: bool):
        sent, read, known = self.judged(loopback, 3000, 200, 1)
        self.assertGreater(read, 0.9 * sent)
        self.assertGreater(known["written"], 0.99 * sent)
        self.assertGreater(known["read"], 0.95 * read)

    def test_also_when_the_socket_is_full(self):
        sent, read, known = self.judged(False, 3000, 0, 1, 20_000, 100)
        self.assertLess(read, sent)
        self.assertGreater(known["written"], 0.99 * sent)
        self.assertGreater(known["read"], 0.9 * read)

    def test_also_what_was_taken_before_its_socket_told_of_it(self):
        """A reader that asks all the time takes some between the kernel's putting them into the queue and its waking somebody. One of them made all others unknown."""
        sent, read, known = self.judged(False, 6000, 20, 1, spins=1)
        kpat, out = os.path.abspath(play.kpat_path()), self.dir / "x.kpat"
        taken = sh(kpat, "sql", out, "--tsv", f"select count(*) from app_event where crossing = {FROM_DEVICE} and segments = 0").stdout.split()[-1]
        print(f"    datagrams taken early: {taken} of {read}", flush=True)
        self.assertGreater(known["read"], 0.99 * read)

    def test_also_from_two_threads(self):
        sent, read, known = self.judged(False, 3000, 100, 2)
        self.assertGreater(known["written"], 0.99 * sent)


if __name__ == "__main__":
    unittest.main()
