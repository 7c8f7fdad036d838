"""One kernel, a link between two of its namespaces, sniffers at both ends. Which way a frame went at the device that recorded it: its source
is that device's own address, as `ip -j link` lists it, or it is not. No way may be wrong; how many are left open is printed."""
import json
import os
import sys
import unittest
from collections import Counter

from kpatlab import cache, look, play
from tests.place import own, sh
from tests.truth import tshark

PINGS, DATAGRAMS = 100, 300
RECEIVED, TRANSMITTED = 1, 2
# One way only, every other one to a group.
SEND = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({DATAGRAMS}):
    s.sendto(b"%08d" % i, ("10.94.0.2" if i % 2 else "239.1.2.3", 9000))
    time.sleep(0.001)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Ways(unittest.TestCase):
    def setUp(self):
        self.a, self.b = own(self, "ways", "ab")
        sh("ip", "-n", self.a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", self.b)
        for ns, dev, addr in ((self.a, "v0", "10.94.0.1"), (self.b, "v1", "10.94.0.2")):
            sh("ip", "-n", ns, "addr", "add", f"{addr}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", self.a, "route", "add", "224.0.0.0/4", "dev", "v0")

    def sniff(self, name: str, ns: str, tool: str, dev: str) -> play.Process:
        path = self.dir / name
        argv, ready = [cache.tool("dumpcap", "wireshark-common"), "-q", "-n", "-i", dev, "-w", str(path)], "File:"
        if tool == "tcpdump":
            argv = [cache.tool("tcpdump", "tcpdump"), "-Z", "root", "-U", "--immediate-mode", "--time-stamp-precision=nano", "-n", "-i", dev, "-w", str(path)]
            ready = "listening on"
        p = play.Process(f"capture-{name}", ["ip", "netns", "exec", ns, *argv], self.dir)
        self.stack.callback(p.stop)
        p.file = path
        p.wait_ready(lambda: ready in play.text_of(p.stderr), cache.patience())
        return p

    def addresses(self, ns: str) -> dict:
        """By name and by index."""
        links = json.loads(sh("ip", "-n", ns, "-j", "link").stdout)
        return {key: x["address"] for x in links for key in (x["ifname"], str(x["ifindex"]))}

    def test_no_way_is_wrong(self):
        own = {ns: self.addresses(ns) for ns in (self.a, self.b)}
        # Name of the file: where, with what, at which device. A pcap file does not name its device, a pcapng file does, "any" marks the way.
        made = {f"{i}.{kind}": (ns, tool, dev) for i, (ns, dev) in enumerate([(self.a, "v0"), (self.b, "v1")])
                for kind, tool, dev in (("pcap", "tcpdump", dev), ("pcapng", "dumpcap", dev), ("any.pcap", "tcpdump", "any"))}
        sniffers = [self.sniff(name, *how) for name, how in made.items()]
        ready = self.dir / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-o", str(self.dir / "x.kbl"), "--netns", self.a, "--netns", self.b, "--no-cost",
                                         "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        sh("ip", "netns", "exec", self.a, "ping", "-n", "-q", "-c", PINGS, "-i", "0.01", "10.94.0.2")
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND)
        for p in sniffers:
            play.settle(p)
            p.stop()
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        counts = {}
        for together in (list(made), *[[name] for name in made]):
            out = self.dir / "x.kpat"
            look.integrate(self.dir / "x.kbl", [self.dir / name for name in together], out)
            rows = look.kpat_json("sql", str(out), "select capture_id, number, side from association")
            for i, name in enumerate(together):
                counts[name, len(together) > 1] = self.count(name, made[name], own, [r for r in rows if r["capture_id"] == i])
        for (name, together), c in counts.items():
            print(f"ways: {name}, {'with all others' if together else 'alone'}: {dict(c)}", file=sys.stderr, flush=True)
        for (name, together), c in counts.items():
            self.assertGreater(sum(c.values()), 2 * PINGS + DATAGRAMS // 2, f"{name}: hardly a frame is matched")
            self.assertEqual(c["wrong"], 0, name)
            if not name[1:] == ".pcap":
                self.assertLessEqual(c["open for one host"], 0, f"{name}: it is named, or marked, which way these went")

    def count(self, name: str, how: tuple, own: dict, rows: list[dict]) -> Counter:
        ns, _, dev = how
        fields = ("sll.src.eth", "sll.ifindex", "sll.pkttype") if dev == "any" else ("eth.src", "eth.dst")
        frames = tshark(self.dir / name, "", *fields)
        c = Counter()
        for r in rows:
            f = frames[r["number"] - 1]
            sent = f[0] == own[ns][f[1] if dev == "any" else dev]
            group = f[2] != "4" and f[2] != "0" if dev == "any" else int(f[1][:2], 16) & 1 == 1
            if r["side"] == 0:
                c["open for a group" if group else "open for one host"] += 1
            else:
                c["right" if r["side"] == (TRANSMITTED if sent else RECEIVED) else "wrong"] += 1
        return c
