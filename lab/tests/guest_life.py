"""What happens to a guest as a whole while it is probed: it is stopped, set back to a snapshot, begins anew, panics, is killed."""
import json
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from tests.guest_probe import Caller, Probing, monitor, straight
from tests.place import kpat_for_guests


def empty_disk(path: Path, size: int):
    """A qcow2 without data, for QEMU's snapshots: header, table of counts, counts of the first four clusters, table of tables."""
    cluster = 1 << 16
    header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, 16, size, 0, -(-size // (1 << 29)), 3 * cluster, cluster, 1, 0, 0)
    with path.open("wb") as f:
        f.write(header)
        f.seek(cluster)
        f.write(struct.pack(">Q", 2 * cluster))
        f.seek(2 * cluster)
        f.write(struct.pack(">4H", 1, 1, 1, 1))
        f.truncate(4 * cluster)


class Watched(Probing):
    """`kpat guest probe` with its messages, as they come."""

    def __init__(self, *words):
        super().__init__(*words)
        self.watcher = threading.Thread(target=lambda: self.errors.extend(self.process.stderr))
        self.watcher.start()

    def wait_for(self, words: str, patience: float = 20):
        until = time.monotonic() + patience
        while not any(re.search(words, line) for line in self.errors):
            assert time.monotonic() < until, self.errors
            time.sleep(0.02)

    def ended(self, patience: float = 30) -> list[dict]:
        self.process.wait(patience)
        self.reader.join(), self.watcher.join()
        self.process.stdout.close(), self.process.stderr.close()
        return next((line["probes"] for line in map(json.loads, self.lines) if "probes" in line), [])

    def entries(self) -> list[dict]:
        return [line for line in map(json.loads, self.lines) if "probes" not in line]


class GuestLife(unittest.TestCase):
    SERIES, SMP = "6.1", 2

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES)

    def guest(self, *options) -> Caller:
        folder = tempfile.TemporaryDirectory(prefix="kpat-life-")
        self.addCleanup(folder.cleanup)
        disk = Path(folder.name) / "disk"
        empty_disk(disk, 1 << 30)
        drive = ("-drive", f"if=none,id=d,format=qcow2,file={disk}") if "disk" in options else ()
        options = tuple(o for o in options if o != "disk")
        guest = Caller(self.SERIES, self.SMP, options=(*options, *drive), control=True)
        self.addCleanup(guest.close)
        self.control = guest.control
        return guest

    def test_a_pause_loses_nothing_and_is_reported(self):
        guest = self.guest("-no-reboot")
        p = Watched(self.kpat, guest, "__x64_sys_getppid count", "__x64_sys_unlink sys1:str")
        self.assertEqual(1000, guest.number("getppid 1000"))
        guest.ask("unlink 20")
        monitor(self.control, "stop")
        stopped = time.time()
        p.wait_for("the guest was stopped")
        time.sleep(1.5)
        going_on = time.time()
        monitor(self.control, "cont")
        p.wait_for("the guest goes on")
        self.assertEqual(500, guest.number("getppid 500"))
        guest.ask("unlink 20")
        over = time.time()
        p.process.send_signal(signal.SIGINT)
        counts = p.ended()
        self.assertEqual((0, [1500, 40]), (p.process.returncode, [c["hits"] for c in counts]))
        # The guest's counter stood with it; the host's clock did not.
        at = [e["ts_wall_ns"] / 1e9 for e in p.entries()]
        self.assertTrue(max(at[:20]) <= stopped and going_on <= min(at[20:]) and max(at) <= over, (at, stopped, going_on, over))

    def test_a_processor_that_the_guest_did_not_start_is_in_nobodys_way(self):
        guest = Caller(self.SERIES, 3, "maxcpus=2")
        self.addCleanup(guest.close)
        short = next(at for at, size, _ in straight(guest) if size < 5)
        for calls in (500, 700):
            p = Watched(self.kpat, guest, "__x64_sys_getppid ret", f"__x64_sys_getppid+{short:#x} count")
            self.assertEqual(2 * calls, guest.number(f"getppid {calls} 2"))
            p.process.send_signal(signal.SIGINT)
            counts = p.ended()
            self.assertEqual((0, [2 * calls] * 2, 1), (p.process.returncode, [c["hits"] for c in counts], len(p.errors)), p.errors)
        self.assertNotIn("kpat", monitor(guest.qmp, "info mtree -f"))

    def test_a_guest_that_is_stopped_when_the_probes_go_stays_so(self):
        guest = self.guest("-no-reboot")
        p = Watched(self.kpat, guest, "__x64_sys_getppid ret")
        self.assertEqual(100, guest.number("getppid 100"))
        monitor(self.control, "stop")
        p.wait_for("the guest was stopped")
        p.process.send_signal(signal.SIGINT)
        [counts] = p.ended()
        self.assertEqual((0, 100), (p.process.returncode, counts["hits"]))
        self.assertIn("it stays plugged", p.errors[-1])
        self.assertIn("paused", monitor(self.control, "info status"))
        r = subprocess.run([self.kpat, "guest", "probe", guest.qmp, "__x64_sys_getppid count", "--for", "1"], capture_output=True, text=True, timeout=60)
        self.assertEqual((1, "kpat: the guest is stopped: probes can be put into it when it runs\n"), (r.returncode, r.stderr))
        monitor(self.control, "cont")
        self.assertEqual(100, guest.number("getppid 100"))
        p = Watched(self.kpat, guest, "__x64_sys_getppid count")
        self.assertEqual(200, guest.number("getppid 200"))
        p.process.send_signal(signal.SIGINT)
        self.assertEqual([200], [c["hits"] for c in p.ended()])

    def test_a_guest_that_is_set_back_to_a_snapshot_has_no_probes_and_can_be_probed_again(self):
        guest = self.guest("-no-reboot", "disk")
        self.assertEqual(10, guest.number("getppid 10"))
        self.assertEqual("", monitor(self.control, "savevm before").strip())
        p = Watched(self.kpat, guest, "__x64_sys_getppid count")
        self.assertEqual(100, guest.number("getppid 100"))
        # With the probes in it the guest cannot be saved, and nothing of it is.
        self.assertRegex(monitor(self.control, "savevm within"), r"(?i)error|disabled|cannot")
        self.assertEqual("", monitor(self.control, "loadvm before").strip())
        p.wait_for("set back to a snapshot")
        self.assertEqual([100], [c["hits"] for c in p.ended()])
        self.assertEqual(300, guest.number("getppid 300"))
        # And again.
        p = Watched(self.kpat, guest, "__x64_sys_getppid count")
        self.assertEqual(200, guest.number("getppid 200"))
        p.process.send_signal(signal.SIGINT)
        [counts] = p.ended()
        self.assertEqual((0, 200), (p.process.returncode, counts["hits"]))
        self.assertEqual(50, guest.number("getppid 50"))

    def test_a_guest_that_begins_anew_under_load(self):
        guest = self.guest()
        for how in ("reset", "reboot", "panic"):
            p = Watched(self.kpat, guest, "__x64_sys_getppid pid ret")
            guest.send("getppid 100000000 2" if how == "reset" else how)
            if how == "reset":
                time.sleep(0.5)
                monitor(self.control, "system_reset")
            # Behind what the kernel's last words left of its line. Read at once: a guest waits for who does not read its console, with those words for a minute.
            guest.begun(".*caller ready", 60)
            p.wait_for("the guest began anew", 60)
            p.ended()
            self.assertEqual(0, p.process.returncode, (how, p.errors))
            p = Watched(self.kpat, guest, "__x64_sys_getppid count")
            self.assertEqual(300, guest.number("getppid 300"))
            p.process.send_signal(signal.SIGINT)
            counts = p.ended()
            self.assertEqual((0, [300]), (p.process.returncode, [c["hits"] for c in counts]), (how, p.errors))

    def test_a_guest_that_is_killed_under_load(self):
        guest = self.guest("-no-reboot")
        p = Watched(self.kpat, guest, "__x64_sys_getppid pid ret")
        guest.send("getppid 100000000 2")
        time.sleep(0.5)
        guest.process.kill()
        p.wait_for("the guest is off")
        self.assertEqual(1, len(p.ended()))
        self.assertEqual(0, p.process.returncode, p.errors)

    def test_a_guest_of_another_machine_gets_the_memory_behind_a_port_or_has_it_from_its_start(self):
        memory = ("-object", "memory-backend-memfd,id=kpat-memory,size=8M,share=on", "-device", "ivshmem-plain,memdev=kpat-memory")
        port = ("-device", "pcie-root-port,id=port1,chassis=1,slot=1,pref64-reserve=32M")
        for more, stays in ((port, 0), (memory, 1)):
            guest = Caller(self.SERIES, self.SMP, options=("-no-reboot", "-machine", "q35", *more))
            self.addCleanup(guest.close)
            for calls in (500, 700):
                p = Watched(self.kpat, guest, "__x64_sys_getppid ret")
                self.assertEqual(calls, guest.number(f"getppid {calls}"))
                p.process.send_signal(signal.SIGINT)
                self.assertEqual([calls], [c["hits"] + c["lost"] for c in p.ended()])
                self.assertEqual((0, stays), (p.process.returncode, monitor(guest.qmp, "info mtree -f").count("kpat-memory") and 1), p.errors)
            guest.close()

    def test_wrong_places_are_refused_with_the_reason(self):
        guest = self.guest("-no-reboot")
        before = monitor(self.control, "info mtree -f")
        for place, words in {"0x1000": "no function is known there", "0xffffffffff600000": "no function is known there", "start_kernel": "used while starting only", "__x64_sys_getppid+0x3": "inside of an instruction"}.items():
            r = subprocess.run([self.kpat, "guest", "probe", guest.qmp, f"{place} count", "--for", "1"], capture_output=True, text=True, timeout=60)
            self.assertEqual(1, r.returncode, (place, r.stdout, r.stderr))
            self.assertRegex(r.stderr, words)
            self.assertNotIn("panicked", r.stderr)
        self.assertEqual(100, guest.number("getppid 100"))
        self.assertEqual(before.count("kpat"), monitor(self.control, "info mtree -f").count("kpat"))


class GuestLife72(GuestLife):
    SERIES = "7.2"
