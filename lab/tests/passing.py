"""Namespaces that come and go, as those of containers do, beside one that stays, to which each was joined: the kernel notifies that one of each end. Truth is its inode and its devices'
names, as `ip` tells them."""
import json
import os
import sys
import time
import unittest
from collections import Counter

from kpatlab import cache, play
from tests.place import begun, integrated, own, probed, sh

GUESTS = 4
TAKE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
print("ready", flush=True)
while True:
    data, who = s.recvfrom(100)
    s.sendto(data, who)
"""
ASK = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.sendto(b"x" * int(sys.argv[2]), (sys.argv[1], 9000))
s.recv(100)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Passing(unittest.TestCase):
    def passes(self, stays: str, n: int) -> None:
        """A namespace comes, asks once and goes; it has gone when the one that stays has no number for it any more."""
        ns, device = f"{stays}{n}", f"v{n}"
        sh("ip", "netns", "add", ns)
        self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        sh("ip", "-n", stays, "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", ns)
        sh("ip", "-n", stays, "addr", "add", f"10.99.{n}.1/24", "dev", device)
        sh("ip", "-n", stays, "link", "set", device, "up")
        sh("ip", "-n", ns, "addr", "add", f"10.99.{n}.2/24", "dev", "eth0")
        sh("ip", "-n", ns, "link", "set", "eth0", "up")
        sh("ip", "netns", "exec", ns, sys.executable, "-c", ASK, f"10.99.{n}.1", 40 + n)
        sh("ip", "netns", "del", ns)
        deadline = time.monotonic() + cache.patience()
        while sh("ip", "-n", stays, "netns", "list-id").stdout.strip():
            self.assertLess(time.monotonic(), deadline, f"{ns} does not end")
            time.sleep(0.05)
        # The recorder takes what is not later for the ended one's own.
        time.sleep(0.2)

    def test_the_one_that_stays_is_one(self):
        (stays,) = own(self, "pass", "r")
        inode = os.stat(f"/run/netns/{stays}").st_ino
        begun(self, "taker", ["ip", "netns", "exec", stays, sys.executable, "-u", "-c", TAKE])
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = begun(self, "record", [play.kpat_path(), "record", "-p", "path", "-f", "udp port 9000", *probed(), "--no-cost", "-o", str(log), "--ready-file", str(ready)],
                       lambda _: ready.exists())
        for n in range(GUESTS):
            self.passes(stays, n)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        store = integrated(self, log)
        devices = json.loads(sh(play.kpat_path(), "sql", store, "--json", f"select netns, name from device where netns_name = '{stays}'").stdout)
        packets = json.loads(sh(play.kpat_path(), "packets", store, "--json", "--limit", "0").stdout)["packets"]
        answers = [p for p in packets if p["src_port"] == 9000]
        told = f"{devices} {answers}"
        self.assertEqual(len(packets), 2 * GUESTS, told)
        self.assertEqual(Counter(p["len_bytes"] for p in packets), {28 + 40 + n: 2 for n in range(GUESTS)}, told)
        # Its packets are all of one namespace, and its devices have their names.
        self.assertEqual({p["netns"] for p in answers}, {inode}, told)
        out = {p["len_bytes"] - 68: (p["out_netns"], p["out_interface"]) for p in answers}
        self.assertEqual(out, {n: (inode, f"v{n}") for n in range(GUESTS)}, told)
