"""A recording that is asked for while a guest starts, and one during which the guest begins anew: what is said is true, the guest comes to no harm, and what
the guest received is in the log.

The guest sends numbered datagrams to itself; who receives them prints each number on the console at once.
"""
import json
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from collections import Counter
from pathlib import Path

from kpatlab import emulator, initramfs, kernel

from .emulated import OnConsole, monitor
from .guest_host import FIRST, ROOT, say, sh
from .place import kpat_for_guests

INIT = b"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
ip link set lo up
echo "talker" "ready"
while read line; do eval "$line"; echo "end" "of" "command"; done
"""
STARTING = ("does not run in 64-bit mode", "no kernel is found in the guest", "the guest's kernel is starting", "the kernel's symbols", "cannot be connected", "no guest")


class Alone(OnConsole):
    """A guest of two processors without a network but its own."""

    READY, PATIENCE = "talker ready", 240

    def start(self) -> None:
        self.control = f"{self.path}/control"
        program = self.path / "numbers"
        sh("gcc", "-O1", "-static", "-o", program, ROOT / "lab/guest/numbers.c")
        files = initramfs.Archive()
        files.file("bin/numbers", program.read_bytes(), 0o755)
        (self.path / "initrd").write_bytes(initramfs.build(initramfs.Modules(kernel.Kernel(self.series, "image").tree).load_order([]), INIT, kernel.busybox().read_bytes(), files))
        self.boot(["-cpu", emulator.CPU, "-smp", "2", "-qmp", f"unix:{self.control},server=on,wait=off", *self.serial()], self.path / "initrd", "tsc=reliable")

    def ask(self, command: str, patience: float = 60) -> list[str]:
        self.send(command)
        return [line for line in self.until(lambda line: line.endswith("end of command"), patience)[:-1] if not line.endswith(command)]

    def numbers(self, first: int, count: int) -> list[int]:
        """Those that came."""
        lines = self.ask(f"(numbers - 9000 2 &); sleep 1; taskset 1 numbers 127.0.0.1 9000 {first} {count} 32 1000; sleep 3", 120)
        return [int(line.split()[1]) for line in lines if line.startswith("got ")]


class Recorder:
    """`kpat guest record`, what it says as it comes, and what came of it."""

    def __init__(self, kpat: str, guest: Alone, log: Path, *words: str):
        self.log, self.said = log, []
        self.process = subprocess.Popen([kpat, "--json", "guest", "record", guest.qmp, "-f", "udp port 9000", "-o", str(log), *words],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr))
        self.reader.start()

    def wait_for(self, words: str, patience: float = 200) -> None:
        until = time.monotonic() + patience
        while not any(words in line for line in self.said):
            assert time.monotonic() < until and self.process.poll() is None, self.said
            time.sleep(0.02)

    def ended(self, patience: float = 60) -> dict:
        out = self.process.stdout.read()
        self.process.wait(patience)
        self.reader.join()
        self.process.stdout.close(), self.process.stderr.close()
        return json.loads(out) if out else {}

    def stop(self) -> dict:
        self.process.send_signal(signal.SIGINT)
        return self.ended()


class GuestStarts(unittest.TestCase):
    SERIES = "7.2"

    def setUp(self):
        self.kpat = kpat_for_guests(self.SERIES)
        folder = tempfile.TemporaryDirectory(prefix="kpat-starts-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.guest = Alone(self.SERIES)
        self.addCleanup(self.guest.close)
        # A guest ends with the thread that started it.
        self.go, self.over, self.failed, self.up = threading.Event(), threading.Event(), [], threading.Event()
        thread = threading.Thread(target=self.boot)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.over.set)
        self.addCleanup(self.go.set)

    def boot(self) -> None:
        self.go.wait()
        try:
            if not self.over.is_set():
                self.guest.start()
        except BaseException as e:  # noqa: BLE001: the test reports it
            self.failed.append(e)
        self.up.set()
        self.over.wait()

    def recorded(self, log: Path) -> list[int]:
        """The numbers of the log's packets."""
        store = log.with_suffix(".kpat")
        sh(self.kpat, "integrate", log, "-o", store)
        return sorted(p["src_port"] - FIRST for p in json.loads(sh(self.kpat, "--json", "packets", store, "--limit", "0"))["packets"])

    def test_one_that_is_asked_for_at_each_moment_of_a_start(self):
        """Until the kernel runs processes it is refused with the remedy, and the guest starts as it does without."""
        self.go.set()
        while not Path(self.guest.qmp).exists() and not self.up.is_set():
            time.sleep(0.01)
        first, said, n = self.guest.process.pid, Counter(), 0
        while not self.up.is_set():
            r = subprocess.run([self.kpat, "guest", "record", self.guest.qmp, "-o", self.folder / f"at{n}.kbl", "--for", "100ms"], capture_output=True, text=True, timeout=120)
            said[r.returncode, r.stderr.split("\n")[0] if r.returncode else "recorded"] += 1
            n += 1
        say(f"{self.SERIES}, asked for {n} times while it started:", *(f"\n   {times:>3} {words}" for (_, words), times in said.items()))
        self.assertEqual(([], first), (self.failed, self.guest.process.pid), "the guest did not start the first time")
        refused = [words for rc, words in said if rc]
        self.assertTrue(refused and all(any(s in words for s in STARTING) and words.endswith("--wait 60 waits for it") for words in refused), said)
        # It is whole: it can be recorded, and nothing of the attempts is left in it.
        monitor(self.guest.control, "stop")
        recorder = Recorder(self.kpat, self.guest, self.folder / "after.kbl", "--wait", "120")
        recorder.wait_for("waiting for the guest: the guest is stopped")
        monitor(self.guest.control, "cont")
        recorder.wait_for("recording:")
        came = self.guest.numbers(0, 100)
        done = recorder.stop()
        self.assertEqual((list(range(100)), [], "stopped"), (came, done["losses"], done["ended"]))
        self.assertGreater(done["waited_ns"], 200_000_000)
        self.assertEqual(came, self.recorded(recorder.log))
        self.assertNotIn("kpat", monitor(self.guest.control, "info mtree -f"))

    def test_one_that_waits_for_the_guest_and_sees_it_begin_anew(self):
        """It is asked for before there is a QEMU. After the reset the next one waits."""
        recorder = Recorder(self.kpat, self.guest, self.folder / "first.kbl", "--wait", "240")
        recorder.wait_for("waiting for the guest")
        self.go.set()
        recorder.wait_for("recording:")
        self.up.wait(240)
        self.assertEqual([], self.failed)
        came = self.guest.numbers(0, 100)
        # Under load, on both processors.
        self.guest.send("(numbers - 9000 2 &); sleep 1; for n in 1 2; do taskset $n numbers 127.0.0.1 9000 $((n * 1000)) 1000 32 500 & done")
        lines = self.guest.until(lambda line: line == "got 1500", 60)
        monitor(self.guest.control, "system_reset")
        done = recorder.ended()
        again = Recorder(self.kpat, self.guest, self.folder / "second.kbl", "--wait", "240")
        lines += self.guest.until(lambda line: line.endswith(self.guest.READY), self.guest.PATIENCE)
        came += [int(line.split()[1]) for line in lines if line.startswith("got ") and line.split()[1].isdigit()]
        ours = self.recorded(recorder.log)
        say(f"{self.SERIES}: before the reset {len(came)} came as the guest itself said, {len(ours)} are in the log, of those that came {len(set(came) - set(ours))} are not; it said {recorder.said[-1].strip()!r}; "
            f"waited {done['waited_ns'] / 1e9:.1f} s, losses {done['losses']}")
        self.assertEqual((0, "guest-reset"), (recorder.process.returncode, done["ended"]))
        self.assertIn("the guest began anew", recorder.said[-1])
        # The console is slower than the datagrams: some more are in the log.
        self.assertEqual(set(), set(came) - set(ours))
        again.wait_for("recording:")
        came = self.guest.numbers(5000, 100)
        done = again.stop()
        self.assertEqual((0, "stopped", []), (again.process.returncode, done["ended"], done["losses"]))
        self.assertEqual((list(range(5000, 5100)), came), (came, self.recorded(again.log)))

    def test_one_that_waits_is_interrupted_and_has_an_end(self):
        recorder = Recorder(self.kpat, self.guest, self.folder / "none.kbl", "--wait", "240")
        recorder.wait_for("waiting for the guest")
        self.assertEqual(({}, 130), (recorder.stop(), recorder.process.returncode))
        recorder = Recorder(self.kpat, self.guest, self.folder / "none.kbl", "--wait", "500ms")
        recorder.ended()
        self.assertEqual((1, False), (recorder.process.returncode, recorder.log.exists()))
        self.assertIn("so it was for the 500", recorder.said[-1])


class GuestStarts612(GuestStarts):
    SERIES = "6.12"


class GuestStarts61(GuestStarts):
    SERIES = "6.1"
