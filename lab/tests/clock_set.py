"""A wall clock that is set while its device is recorded, forward by an hour, back by half a second, back by an hour: in a guest, whose clock is nobody else's. Truth: who sends says of each
datagram what both of its clocks showed. Times of day are what the clock showed then, lines of a log have a bound that holds when they were written, and captures are matched, the
device's own as well as one of a machine whose clock nobody set."""
import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import datetime, timezone
from pathlib import Path

from kpatlab import guest, kernel, play
from kpatlab.cache import LAB
from tests.place import kpat_for_guests, sh

SECOND = 10**9
PORT, EVERY_S = 7000, 0.03
# Each stretch is longer than the recorder's own readings are apart.
STEPS, STRETCH_S = (3600.0, -0.5, -3600.0), 7
# How long this may take between two looks at a clock.
LATE_NS = 20_000_000
# Until the recorder looks at it.
NOTICED_NS = 400_000_000
HERE, THERE = "set-a", "set-b"
# The other machine's clock: years away, and too fast.
AWAY_NS, PPM = 123_456_789 * SECOND, 20


def boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


SEND = f"""
import socket, sys, time
truth, lines = open(sys.argv[1], "w", 1), open(sys.argv[2], "w", 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n, end = 0, time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    boot, wall = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.clock_gettime_ns(time.CLOCK_REALTIME)
    again = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    s.sendto(b"%08d" % n, ("10.98.1.2", {PORT} + n))
    print(n, boot, wall, again, file=truth)
    print(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall // 10**9)) + ".%06dZ" % (wall % 10**9 // 1000), "line", n, file=lines)
    n += 1
    time.sleep({EVERY_S})
"""


def in_guest(out: Path) -> int:
    """Sets this machine's clock."""
    if os.uname().nodename != "lab":
        raise SystemExit("only in a guest of the lab")
    there = Path("/run/scratch")
    there.mkdir(exist_ok=True)
    for ns in (HERE, THERE):
        sh("ip", "netns", "add", ns)
    sh("ip", "link", "add", "e0", "netns", HERE, "type", "veth", "peer", "name", "e0", "netns", THERE)
    for ns, address in ((HERE, "10.98.1.1/24"), (THERE, "10.98.1.2/24")):
        sh("ip", "-n", ns, "addr", "add", address, "dev", "e0")
        sh("ip", "-n", ns, "link", "set", "e0", "up")
    with contextlib.ExitStack() as stack:
        sniffer = play.Process("tcpdump", ["ip", "netns", "exec", THERE, "tcpdump", "-i", "e0", "-U", "-w", there / "there.pcap", "udp"], there)
        stack.callback(sniffer.stop)
        sniffer.wait_ready(lambda: "listening on" in play.text_of(sniffer.stderr), 60)
        ready = there / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-f", "udp", "--netns", HERE, "--netns", THERE, "-o", there / "x.kbl", "--ready-file", ready], there)
        stack.callback(record.stop)
        record.wait_ready(ready.exists, 200)
        seconds = STRETCH_S * (len(STEPS) + 1)
        send = play.Process("send", ["ip", "netns", "exec", HERE, sys.executable, "-c", SEND, there / "truth", there / "lines.log", str(seconds)], there)
        stack.callback(send.stop)
        steps = []
        for by in STEPS:
            time.sleep(STRETCH_S)
            before = boot()
            time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME) + int(by * SECOND))
            steps.append((by, before, boot()))
        if send.p.wait(120):
            raise SystemExit(play.text_of(send.stderr))
    (there / "steps").write_text(json.dumps(steps))
    shutil.copytree(there, out / "there", ignore_dangling_symlinks=True)
    return 0


def frames_of(capture: bytes):
    """Seconds, microseconds, length, data."""
    at = 24
    while at < len(capture):
        s, us, captured, length = struct.unpack_from("<4I", capture, at)
        yield s, us, length, capture[at + 16:at + 16 + captured]
        at += 16 + captured


def of_another(own: bytes, truth: dict) -> bytes:
    """The same frames, as a machine stamps them whose clock runs on."""
    out = [own[:24]]
    for s, us, length, data in frames_of(own):
        boot_ns, wall, _ = truth[int(data[-8:])]
        true = s * SECOND + us * 1000 - wall + boot_ns
        ns = true + AWAY_NS + true * PPM // 10**6
        out.append(struct.pack("<4I", ns // SECOND, ns % SECOND // 1000, len(data), length) + data)
    return b"".join(out)


def of_day(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND, timezone.utc).strftime("%H:%M:%S") + f".{wall_ns % SECOND:09d}"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class ClockSet(unittest.TestCase):
    series = "7.2"

    @classmethod
    def setUpClass(cls):
        keep = os.environ.get("KPAT_KEEP_CLOCK_SET")
        cls.out = Path(keep or tempfile.mkdtemp(prefix="kpat-clock-set-"))
        if not keep:
            cls.addClassCleanup(shutil.rmtree, cls.out, ignore_errors=True)
        shutil.rmtree(cls.out / "there", ignore_errors=True)
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": kpat_for_guests(cls.series)}
        argv = [os.path.realpath(sys.executable), "-m", "tests.clock_set", "guest", "/lab"]
        answer = cls.out / "guest.err"
        rc = guest.run(kernel.open_kernel(cls.series), argv, cls.out, smp=2, timeout=400, mem=1024, cwd="/", env=env, sinks=(cls.out / "guest.out", answer)).rc
        if rc:
            raise AssertionError(f"the guest ended with {rc}: {answer.read_text(errors='replace')[-3000:]}")
        cls.dir = cls.out / "there"
        rows = [map(int, x.split()) for x in (cls.dir / "truth").read_text().splitlines()]
        cls.truth = {n: (b, w, again) for n, b, w, again in rows}
        cls.steps = json.loads((cls.dir / "steps").read_text())
        (cls.dir / "other.pcap").write_bytes(of_another((cls.dir / "there.pcap").read_bytes(), cls.truth))
        for name, words in (("own", ["there.pcap"]), ("other", ["other.pcap"]), ("none", ["--log", "lines.log"])):
            words = [w if w.startswith("-") else cls.dir / w for w in words]
            done = sh(play.kpat_path(), "integrate", cls.dir / "x.kbl", *words, "--force", "-o", cls.dir / f"{name}.kpat")
            (cls.dir / f"{name}.said").write_text(done.stderr)

    def ask(self, *words) -> dict:
        return json.loads(sh(play.kpat_path(), *words, "--json").stdout)

    def of_each(self, log: str, *words) -> dict[int, dict]:
        """By the datagram's number."""
        return {p["dst_port"] - PORT: p for p in self.ask("packets", self.dir / f"{log}.kpat", "--limit", "0", *words)["packets"]}

    def is_clear(self, n: int) -> bool:
        """Sent and received while nobody set the clock."""
        boot_ns = self.truth[n][0]
        return all(not before - SECOND // 2 < boot_ns < after + NOTICED_NS for _, before, after in self.steps)

    def test_times_of_day_are_what_the_clock_showed(self):
        seen, late = self.of_each("none"), 0
        self.assertEqual(set(seen), set(self.truth))
        for n, (boot_ns, wall, again) in self.truth.items():
            if not self.is_clear(n):
                continue
            p = seen[n]
            self.assertLess(abs((p["first_wall_ns"] - wall) - (p["first_boot_ns"] - boot_ns)), again - boot_ns + 1_000_000, n)
            late += 1
        self.assertGreater(late, len(self.truth) // 2)
        # A piece of each stretch, by the time of day.
        bounds = [min(b for b, _, _ in self.truth.values()), *(s[1] for s in self.steps), max(b for b, _, _ in self.truth.values())]
        for begin, end in zip(bounds, bounds[1:]):
            of = sorted(n for n, (b, _, _) in self.truth.items() if begin + 2 * SECOND < b < end - 2 * SECOND)
            first, last = of[0], of[-1]
            found = self.of_each("none", f"after {of_day(self.truth[first][1])} before {of_day(self.truth[last][1])}")
            # Those on their way at either end are alive then.
            self.assertLessEqual(set(of[:-1]), set(found))
            for n in found:
                self.assertLess(self.truth[first][0] - SECOND, self.truth[n][0], n)
                self.assertLess(self.truth[n][0], self.truth[last][0] + LATE_NS, n)

    def test_lines_of_a_log_are_within_their_bounds(self):
        lines = [e for e in self.ask("events", self.dir / "none.kpat", "--limit", "0")["events"] if " line " in e["text"]]
        self.assertEqual(len(lines), len(self.truth))
        wide = 0
        for e in lines:
            n = int(e["text"].rsplit(" ", 1)[1])
            boot_ns, _, again = self.truth[n]
            self.assertLessEqual(e["after_boot_ns"], again + 100_000, n)
            self.assertGreaterEqual(e["at_boot_ns"], boot_ns - 100_000, n)
            wide += e["at_boot_ns"] - e["after_boot_ns"] > 1_000_000
        # What the clock showed twice: half a second before it was set back, and half a second behind; nothing that it showed an hour before was recorded.
        self.assertGreater(wide, 0)
        self.assertLess(wide, 1.2 * 2 * 0.5 / EVERY_S)

    def test_captures_are_matched(self):
        for log in ("own", "other"):
            store = self.dir / f"{log}.kpat"
            of = {n: p["packet_id"] for n, p in self.of_each(log).items()}
            frames = self.ask("frames", store, "--limit", "0")["frames"]
            numbers = [int(data[-8:]) for *_, data in frames_of((self.dir / "there.pcap").read_bytes())]
            self.assertEqual(sorted(numbers), sorted(self.truth))
            self.assertEqual(len(frames), len(numbers))
            for f in frames:
                n = numbers[f["number"] - 1]
                found = [p["packet_id"] for p in f["packets"]]
                # Where the sniffer's own clock was set a frame may have none.
                self.assertIn(found, [[of[n]]] if log == "other" or self.is_clear(n) else [[of[n]], []], log)
            # A clock that nobody set is one line, by which each frame is soon behind its sending.
            if log == "other":
                for f in frames:
                    sent = self.truth[numbers[f["number"] - 1]][0]
                    self.assertLess(sent - LATE_NS, f["boot_ns"])
                    self.assertLess(f["boot_ns"], sent + SECOND // 4)

    def test_it_says_so(self):
        said = (self.dir / "none.said").read_text()
        info = sh(play.kpat_path(), "info", self.dir / "none.kpat", "--width", "0").stdout
        events = [e for e in self.ask("events", self.dir / "none.kpat", "--limit", "0")["events"] if "wall clock was set" in e["text"]]
        self.assertEqual(len(events), len(self.steps))
        for (by, before, after), e in zip(self.steps, events):
            shown = float(e["text"].split(" by ")[1].removesuffix(" s"))
            self.assertAlmostEqual(shown, by, delta=0.05)
            self.assertGreaterEqual(e["at_boot_ns"], before)
            self.assertIn(f"by {shown:+.6f} s", said)
            self.assertIn(f"by {shown:+.6f} s", info)
            print(f"clock set by {shown:+.6f} s, noticed {(e['at_boot_ns'] - after) / 1e6:.0f} ms later", file=sys.stderr)

    def test_other_tools_have_the_same(self):
        store = self.dir / "none.kpat"
        lines = [json.loads(x) for x in sh(play.kpat_path(), "export", store, "--to", "json").stdout.splitlines()]
        self.assertEqual(len(next(x for x in lines if x["kind"] == "log")["wall_steps"]), len(self.steps))
        sh(play.kpat_path(), "export", store, "--to", "pcapng", "-o", self.dir / "none.pcapng")
        fields = ["-T", "fields", "-e", "frame.time_epoch"]
        shown = subprocess.run(["tshark", "-r", self.dir / "none.pcapng", *fields], stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
        all_of = [float(x) for x in shown.split()]
        # An hour ahead, from the first step to the last.
        walls = [w / SECOND for b, w, _ in self.truth.values() if self.steps[0][2] + NOTICED_NS < b < self.steps[-1][1]]
        ahead = [x for x in all_of if min(walls) - 0.1 < x < max(walls) + 0.1]
        self.assertGreater(len(ahead), len(all_of) * 0.4)
        self.assertLess(len(ahead), len(all_of) * 0.6)


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        sys.exit(in_guest(Path(sys.argv[2])))
