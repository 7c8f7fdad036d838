"""Profiles of recordings that were cut: by a recorder that was killed, or a file of which the end is missing. Whatever is left adds up, for the time that it is of.
Truth is the kernel's own account (/proc/stat) of the same time, and a program that computes all the time on a CPU of its own."""
import os
import signal
import unittest

from kpatlab import cache, look, play
from tests import profile
from tests.place import own, sh

PLACES = 8


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class CutProfiles(profile.Recorded):
    def setUp(self):
        own(self, "cut", "")

    def adds_up(self, log) -> int:
        out = log.with_suffix(".kpat")
        look.integrate(log, [], out)
        p = look.kpat_json("profile", str(out), "--limit", "0")
        passed, stat = p["passed_ns"], sum(p["proc_stat_ns"].values())
        self.assertLess(abs(p["difference_ns"]), 0.001 * passed + 2_000_000, (log.name, passed))
        # Ticks of 10 ms, six kinds on each CPU.
        self.assertLess(abs(stat - passed), 0.1 * passed + 0.06e9 * os.cpu_count(), (log.name, passed))
        # Samples of the time behind the last sums are of no time that is charged.
        if s := p["sampled"]:
            self.assertLess(s["busy_ns"], 1.05 * s["exact_busy_ns"] + 10 * s["period_ns"] * os.cpu_count(), log.name)
        self.assertFalse(p["recording_complete"])
        return passed

    def test_what_is_left_adds_up(self):
        ready, kbl = self.dir / "ready", self.dir / "killed.kbl"
        argv = [play.kpat_path(), "record", "-p", "profile", "--no-cost", "-o", str(kbl), "--ready-file", str(ready)]
        record = play.Process("record", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        burner = self.start(None, "burn", profile.BURN_CPU, profile.BURN, 5 * profile.LOOPS)
        ran = self.text_of(burner, "ran")[0]
        record.p.send_signal(signal.SIGKILL)
        record.p.wait(20)
        data = kbl.read_bytes()
        whole = self.adds_up(kbl)
        self.assertGreater(whole, 1.5e9 * os.cpu_count())
        passed = []
        for n in range(PLACES):
            log = self.dir / f"cut{n}.kbl"
            log.write_bytes(data[:len(data) * (PLACES + n) // (2 * PLACES)])
            passed.append(self.adds_up(log))
        self.assertEqual(passed, sorted(passed))
        self.assertGreater(len(set(passed)), 2, "places of different seconds")
        # Of who computed all the time at most the last second is missing.
        p = look.kpat_json("profile", str(kbl.with_suffix(".kpat")), "--limit", "0")
        own_ns = self.own_ns(self.of(p, burner.p.pid))
        self.assertTrue(0.99 * (ran - 1.5e9) < own_ns < 1.01 * ran + 0.02e9, (own_ns, ran))
        # What was damaged is named beside the sums.
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 16
        (self.dir / "damaged.kbl").write_bytes(damaged)
        look.integrate(self.dir / "damaged.kbl", [], self.dir / "damaged.kpat")
        losses = look.kpat_json("profile", str(self.dir / "damaged.kpat"))["losses"]
        self.assertIn("damaged-bytes", [x["cause"] for x in losses], losses)
        # A list that is cut says so.
        few = look.kpat_json("profile", str(kbl.with_suffix(".kpat")), "--limit", "1")
        self.assertEqual((few["shown"], len(few["processes"]), few["total"]), (1, 1, len(p["processes"])))

    def test_of_what_ran_not_there_are_no_samples_and_that_is_said(self):
        """A process that was chosen and slept: the log has a profile, and nothing of it was sampled."""
        sleeper = self.start(None, "sleeper", 0, "import signal; print('ready', 1, flush=True); signal.pause()")
        self.text_of(sleeper, "ready")
        log, out = self.dir / "asleep.kbl", self.dir / "asleep.kpat"
        sh(play.kpat_path(), "record", "-p", "profile", "--only", f"pid={sleeper.p.pid}", "--no-cost", "-o", log, "--for", "1s")
        look.integrate(log, [], out)
        p = look.kpat_json("profile", str(out))
        self.assertEqual((p["sampled"], p["total"], p["chosen_when_recorded"]), (None, 0, True))
        r = sh(play.kpat_path(), "profile", out, "--flat", ok=False)
        self.assertEqual(r.returncode, 2)
        self.assertIn("nothing ran when one was taken", r.stderr)
