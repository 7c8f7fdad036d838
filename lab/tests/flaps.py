"""Wired links that are lost for a moment, one after the other and into one another, plain and behind a bridge, drawn by chance, on this machine with tracepoints: carriers are known by what
rtnetlink announces, one a second at most. Truth is when the commands were given, and the numbers of a flow: each loss that can be seen is in a handover, whose end is where data came again,
and whose marks are within their bounds."""
import json
import os
import random
import sys
import threading
import time
import unittest

from kpatlab import play
from kpatlab.cache import LAB
from tests.place import begun, own, sh

VOICE = [sys.executable, str(LAB / "tools/voice.py")]
# A flow's own pace on a busy machine.
PACE = 0.02
SEEDS = tuple(int(s) for s in os.environ.get("KPAT_FLAPS", "2 8").split())


def boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Lateness:
    """By how much this machine lets those wait who would run: link changes are announced by a thread of the kernel, which waits as others do."""

    def __enter__(self):
        self.worst_ns, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self) -> None:
        last = boot()
        while not self.over.wait(0.01):
            now = boot()
            self.worst_ns, last = max(self.worst_ns, now - last - 10_000_000), now

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def flows(echoes: list[int]) -> list[tuple[int, int]]:
    """From when to when they came one soon after the other."""
    out = []
    for at in echoes:
        if out and at - out[-1][1] < 8 * PACE * 1e9:
            out[-1] = (out[-1][0], at)
        else:
            out.append((at, at))
    return out


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Flaps(unittest.TestCase):
    def link(self):
        sh("ip", "link", "add", "e0", "netns", self.a, "type", "veth", "peer", "name", "n0", "netns", self.b)
        sh("ip", "-n", self.b, "addr", "add", "10.1.0.1/24", "dev", "n0")
        sh("ip", "-n", self.b, "link", "set", "n0", "up")
        if self.bridged:
            sh("ip", "-n", self.a, "link", "set", "e0", "master", "br0")
        else:
            sh("ip", "-n", self.a, "addr", "add", "10.1.0.2/24", "dev", "e0")
        sh("ip", "-n", self.a, "link", "set", "e0", "up")
        self.known()

    def known(self):
        """No timer of ARP is in what follows."""
        for ns, dev, peer, near in ((self.a, "br0" if self.bridged else "e0", "10.1.0.1", (self.b, "n0")), (self.b, "n0", "10.1.0.2", (self.a, "br0" if self.bridged else "e0"))):
            mac = json.loads(sh("ip", "-n", near[0], "-j", "link", "show", near[1]).stdout)[0]["address"]
            sh("ip", "-n", ns, "neigh", "replace", peer, "lladdr", mac, "dev", dev, "nud", "permanent")

    def gone(self, ns: str, dev: str, seconds: float):
        """Down, and up after that time: when the first was begun, and the last over."""
        begin = boot()
        sh("ip", "-n", ns, "link", "set", dev, "down")
        time.sleep(seconds)
        sh("ip", "-n", ns, "link", "set", dev, "up")
        self.known()
        self.lost.append((begin, boot()))

    def played(self, seed: int):
        chance = random.Random(seed)
        self.bridged, self.lost = seed % 4 == 0, []
        if self.bridged:
            sh("ip", "-n", self.a, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            sh("ip", "-n", self.a, "addr", "add", "10.1.0.2/24", "dev", "br0")
            sh("ip", "-n", self.a, "link", "set", "br0", "up")
        self.link()
        voice = self.dir / "voice.log"
        begun(self, "echo", ["ip", "netns", "exec", self.b, *VOICE, "echo", "5004", self.dir / "peer.log"], lambda p: (self.dir / "peer.log").exists())
        begun(self, "voice", ["ip", "netns", "exec", self.a, *VOICE, "send", "10.1.0.1", "5004", "600", voice],
              lambda p: voice.exists() and voice.read_text().count(" echo ") > 20)
        ready, log = self.dir / "ready", self.dir / "x.kbl"
        record = begun(self, "record", [play.kpat_path(), "record", "-q", "-o", log, "-p", "wifi,path", "--mechanism", "tracepoint", "-f", "udp or arp", "--netns", self.a, "--ready-file", ready],
                       lambda p: ready.exists())
        time.sleep(1.5)
        for _ in range(5):
            ns, dev = chance.choice([(self.b, "n0"), (self.b, "n0"), (self.a, "e0")])
            self.gone(ns, dev, chance.choice([0.2, 0.7, 1.5]))
            # Once more, before the first can be announced.
            if chance.random() < 0.7:
                time.sleep(0.3)
                self.gone(ns, dev, 0.3)
            time.sleep(chance.choice([2.5, 3.5]))
        time.sleep(1)
        record.stop()
        sh(play.kpat_path(), "integrate", "-q", log, "-o", self.dir / "x.kpat")
        ask = lambda *words: json.loads(sh(play.kpat_path(), "handover", self.dir / "x.kpat", *words, "--json").stdout)
        echoes = [int(float(line.split()[0]) * 1e9) for line in voice.read_text().splitlines() if " echo " in line]
        return [ask(str(h["handover"])) for h in ask()["handovers"]], echoes

    def test_losses_are_where_they_were(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.a, self.b = own(self, f"fl{seed}", "ab")
                with Lateness() as late:
                    handovers, echoes = self.played(seed)
                late_ns = 3 * late.worst_ns
                print(f"flaps: seed {seed}: {len(self.lost)} losses, {len(handovers)} handovers, up to {late.worst_ns / 1e6:.0f} ms late", file=sys.stderr, flush=True)
                told = [(h["interface"], h["begin_boot_ns"], h["end_boot_ns"], h["ended"]) for h in handovers]
                holes = [(x, y) for x, y in zip(echoes, echoes[1:]) if y - x > 8 * PACE * 1e9]
                for begin, end in self.lost:
                    # A machine that others use may have had no echo to lose.
                    if any(x < end and y > begin for x, y in holes):
                        self.assertTrue([h for h in told if h[1] <= end and h[2] >= begin], f"lost from {begin} to {end}: {told}")
                for h in handovers:
                    self.assertEqual(h["whole_ns"], sum(p["ns"] for p in h["phases"]))
                    # What it has of the time is no more than was lost, the second until it is announced, and the neighbour's.
                    first = next((e for e in echoes if h["link_up"] and e > h["link_up"]["at_boot_ns"]), None)
                    if first and not any(h["link_up"]["at_boot_ns"] < b < first for b, _ in self.lost):
                        self.assertLess(h["end_boot_ns"], first + 300_000_000 + late_ns, f"{h['interface']}: ended {h['ended']}, an echo at {first}")
                    # Data flowed in no part of it that is longer than an announcement takes.
                    within = [e for e in echoes if h["begin_boot_ns"] < e < h["end_boot_ns"]]
                    runs = [b - a for a, b in flows(within)]
                    self.assertLess(max(runs, default=0), 1_500_000_000 + late_ns, f"{h['interface']}: {h['phases']}")
                    down = h["link_down"]
                    of = [(b, e) for b, e in self.lost if b <= down["at_boot_ns"] + 1_000_000 and e >= down["at_boot_ns"] - (down["within_ns"] or 0)] if down else [()]
                    self.assertTrue(of, f"{h['interface']}: {down} is no loss: {self.lost}")
