"""What protocols of the kernel take for themselves, and free as if it were dropped: spanning tree's frames at ports of a bridge, and before Linux 6.3 all that
ICMPv6 takes. Truth: tcpdump's frames while spanning tree was on, each bridge's own root, ping's answers, nstat's count of what ICMPv6 did not take."""
import json
import os
import re
import sys
import time
import unittest

from kpatlab import cache, play
from kpatlab.topology import wait_for
from tests.place import Inside, begun, integrated, joined, linux_before, own, probed, sh

SPANNING_S, PINGS, OTHERS = 6, 10, 5
# Messages of a type that nothing handles (RFC 4443, 200: private experimentation).
SEND = f"""
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
for n in range({OTHERS}): s.sendto(bytes([200, 0, 0, 0, 0, 0, 0, n]), ("fd98::2", 0))
"""
# A folder for the logs, which stay then: those of crates/integrate/tests/recorded_taken are from here.
KEEP = os.environ.get("KPAT_KEEP_TAKEN")
HERE, THERE = "fd98::1", "fd98::2"


def packets_of(store, which: str) -> list[dict]:
    return json.loads(sh(play.kpat_path(), "packets", store, which, "--limit", "0", "--json").stdout)["packets"]


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class TakenIn(unittest.TestCase):
    def recorder(self, *namespaces: str) -> play.Process:
        words = [w for ns in namespaces for w in ("--netns", ns)]
        return begun(self, "recorder", [play.kpat_path(), "record", *probed(), *words, "-o", self.dir / "k.kbl", "--ready-file", self.dir / "ready"],
                     lambda p: (self.dir / "ready").exists())

    def of_recorder(self, recorder: play.Process):
        recorder.stop(cache.patience())
        return integrated(self, self.dir / "k.kbl")

    def each_has_its_frame(self, packets: list[dict], captures: list) -> None:
        """Which is one of the same sender, as it left; the next one is at least half of hello's second later."""
        store = self.dir / "joined.kpat"
        sh(play.kpat_path(), "integrate", self.dir / "k.kbl", *captures, "-o", store)
        rows = sh(play.kpat_path(), "sql", store, "--tsv", "select packet_id, capture_id, number from association").stdout.splitlines()[1:]
        self.assertEqual(sorted(int(r.split()[0]) for r in rows), sorted(p["packet_id"] for p in packets), rows)
        self.assertEqual(len({tuple(r.split()[1:]) for r in rows}), len(rows), "no frame has two packets")

    def test_a_bridge_takes_spanning_trees_frames_of_its_ports(self):
        """a and b: bridges, by a cable; c: the end of another of a's cables, which is no bridge's port."""
        a, b, c = own(self, "stp", "abc", KEEP and f"{KEEP}/stp")
        for ns, dev, other, end in ((a, "v0", b, "v1"), (a, "w0", c, "w1")):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", "name", end, "netns", other)
        for ns, ports in ((a, ("v0", "w0")), (b, ("v1",))):
            sh("ip", "-n", ns, "link", "add", "br0", "type", "bridge", "forward_delay", 200, "hello_time", 100)
            for port in ports:
                sh("ip", "-n", ns, "link", "set", port, "master", "br0")
        for ns, devices in ((a, ("v0", "w0", "br0")), (b, ("v1", "br0")), (c, ("w1",))):
            for dev in devices:
                sh("ip", "-n", ns, "link", "set", dev, "up")
        sniffers = [begun(self, f"tcpdump {dev}", ["ip", "netns", "exec", ns, "tcpdump", "-Z", "root", "--immediate-mode", "-U", "-Q", "out", "-i", dev, "-w",
                                                  self.dir / f"{dev}.pcap", "stp"], lambda p: "listening on" in play.text_of(p.stderr) + play.text_of(p.stdout))
                    for ns, dev in ((a, "v0"), (a, "w0"), (b, "v1"))]
        recorder = self.recorder(a, b, c)
        for state in 1, 0:
            for ns in a, b:
                sh("ip", "-n", ns, "link", "set", "br0", "type", "bridge", "stp_state", state)
            if state:
                time.sleep(SPANNING_S)
                roots = {sh("ip", "netns", "exec", ns, "cat", "/sys/class/net/br0/bridge/root_id").stdout for ns in (a, b)}
        time.sleep(0.5)
        store = self.of_recorder(recorder)
        for s in sniffers:
            s.stop(cache.patience())
        self.assertEqual(len(roots), 1, "each took the other's frames, or they would not have agreed")
        captures = [self.dir / f"{dev}.pcap" for dev in ("v0", "w0", "v1")]
        sent = {dev: sh("tcpdump", "-nr", self.dir / f"{dev}.pcap").stdout.count("STP") for dev in ("v0", "w0", "v1")}
        self.assertGreater(sent["w0"], SPANNING_S / 2)
        found = packets_of(store, "not ip and not ipv6 and not arp")
        by_verdict = {v: sum(p["verdict"] == v for p in found) for v in sorted({p["verdict"] for p in found})}
        self.assertEqual(by_verdict, {"delivered": sent["v0"] + sent["v1"], "dropped": sent["w0"]}, found)
        self.assertEqual({p["protocol"] for p in found}, {"STP"})
        self.each_has_its_frame(found, captures)
        print(f"taken in: {by_verdict} of spanning tree", flush=True)

    def test_icmpv6_takes_echoes_and_neighbours(self):
        here, there = joined(self, "icmp6", "v0", "10.98.4.1", "10.98.4.2", KEEP and f"{KEEP}/icmpv6")
        for ns, address in ((here, HERE), (there, THERE)):
            sh("ip", "-n", ns, "addr", "add", f"{address}/64", "dev", "v0", "nodad")
        ready = lambda: all("scope link \n" in sh("ip", "-n", ns, "-6", "addr", "show", "dev", "v0", "scope", "link").stdout for ns in (here, there))
        wait_for(ready, cache.patience(), "link-local addresses")
        recorder = self.recorder(here, there)
        said = sh("ip", "netns", "exec", here, "ping", "-6", "-n", "-c", PINGS, "-i", "0.1", THERE, seconds=cache.patience()).stdout
        sh("ip", "netns", "exec", here, sys.executable, "-c", SEND)
        store = self.of_recorder(recorder)
        errors = [int(re.search(r"Icmp6InErrors\s+(\d+)", sh("ip", "netns", "exec", ns, "nstat", "-asz").stdout)[1]) for ns in (here, there)]
        self.assertEqual(([0, 0], True), (errors, f"{PINGS} received" in said))
        found = packets_of(store, "icmpv6")
        # Before Linux 6.3 the kernel says the same of these as of what it takes.
        others = [p["verdict"] for p in found if p["icmp_type"] == 200]
        self.assertEqual(others, ["delivered" if linux_before(6, 3) else "dropped"] * OTHERS)
        kinds = {"echo request": PINGS, "echo reply": PINGS, "neighbour solicitation": 1, "neighbour advertisement": 1}
        for kind, least in kinds.items():
            of_kind = [p for p in found if kind in p["info"] and p["src_addr"] in (HERE, THERE)]
            self.assertGreaterEqual(len(of_kind), least, kind)
            self.assertEqual({"delivered"}, {p["verdict"] for p in of_kind}, of_kind)


class TakenIn61(Inside, unittest.TestCase):
    series, detail = "6.1", "steps"
    of, modules, marked = "TakenIn", "veth bridge", "taken in:"


class TakenIn612(TakenIn61):
    series = "6.12"


class TakenIn72(TakenIn61):
    series = "7.2"


if __name__ == "__main__":
    unittest.main()
