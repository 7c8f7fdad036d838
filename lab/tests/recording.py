"""What a recording does to the files around it, and what stands beside the log. On this machine, with tracepoints, in
namespaces of its own. Truth is bytes on disk, ping's and tshark's counts, and the kernel's counters of programs.
"""
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from kpatlab import cache, play
from tests.place import own, sh

A, B = "10.94.0.1", "10.94.0.2"

# A port to which nobody listens answers; so does one that takes it all.
FLOOD = """
import socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(int(sys.argv[1])):
    try: s.sendto(b'x' * 1000, ('10.94.0.2', 9))
    except OSError: pass
"""


TRAFFIC = """
import random, socket, sys, time
s = socket.socket(type=socket.SOCK_DGRAM)
def send(n):
    for _ in range(n):
        try: s.sendto(b'x', ('10.94.0.2', 9))
        except OSError: pass
end = time.monotonic() + 4
while (left := end - time.monotonic()) > 0:
    match sys.argv[1]:
        case 'steady': send(50); time.sleep(.005)
        case 'late': send(200 if left < 2 else 0); time.sleep(.002)
        case 'bursts': send(random.randint(200, 4000)); time.sleep(random.uniform(.05, .5))
        case 'idle': send(1); time.sleep(.3)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Recording(unittest.TestCase):
    def setUp(self):
        self.kpat = play.kpat_path()
        self.a, self.b = own(self, "recording", "ab")
        sh("ip", "link", "add", "ra", "netns", self.a, "type", "veth", "peer", "rb", "netns", self.b)
        for ns, device, address in ((self.a, "ra", A), (self.b, "rb", B)):
            sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", device)
            sh("ip", "-n", ns, "link", "set", device, "up")
            sh("ip", "-n", ns, "link", "set", "lo", "up")

    def argv(self, log: Path, *args) -> list[str]:
        return list(map(str, [self.kpat, "record", "-o", log, "--netns", self.a, "--netns", self.b, *args]))

    def record(self, log: Path, *args) -> subprocess.CompletedProcess:
        return sh(*self.argv(log, *args), ok=False)

    def start(self, log: Path, *args) -> play.Process:
        ready = self.dir / f"{log.name}.ready"
        ready.unlink(missing_ok=True)
        p = play.Process(log.name, self.argv(log, "--ready-file", ready, *args), self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(ready.exists, cache.patience())
        return p

    def inside(self, *argv, **how):
        return sh("ip", "netns", "exec", self.a, *argv, **how)

    def ping(self, count: int, *args) -> None:
        self.inside("ping", "-n", "-q", "-c", count, "-i", "0.02", *args, B)

    def files(self) -> set[str]:
        return {f.name for f in self.dir.iterdir() if not f.name.endswith((".ready", ".out", ".err", ".log"))}

    # ---- what it cost ----

    def runs(self, pid: int) -> int:
        """Runs of all programs that a recorder holds, as the kernel counted them."""
        total = 0
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "bpf-prog" in os.readlink(fd):
                    words = dict(line.split(":") for line in Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().splitlines() if ":" in line)
                    total += int(words["run_cnt"])
        return total

    def test_the_cost_line_holds_the_truth(self):
        """The kernel counts all runs, because this test keeps its statistics on; the recorder looks at windows only."""
        libc = ctypes.CDLL(None, use_errno=True)
        keep = libc.syscall(321, 32, ctypes.byref(ctypes.c_uint32(0)), 4)  # bpf(BPF_ENABLE_STATS, BPF_STATS_RUN_TIME)
        self.assertGreaterEqual(keep, 0, "no statistics")
        self.stack.callback(os.close, keep)
        reported = held = 0
        for pattern, *more in (("steady",), ("late",), ("bursts",), ("idle",), ("steady", "--rotate-time", "1s")):
            log = self.dir / f"{pattern}{len(more)}.kbl"
            p = self.start(log, "-f", "udp port 9", "--json", *more)
            at_start = self.runs(p.p.pid)
            self.inside(sys.executable, "-c", TRAFFIC, pattern)
            # Others' packets run the programs as well, while it ends: those are the truth's own bound.
            before_end = self.runs(p.p.pid)
            os.kill(p.p.pid, signal.SIGINT)
            at_end = before_end
            with contextlib.suppress(OSError):
                while (n := self.runs(p.p.pid)) >= at_end:
                    at_end = n
            p.p.wait(60)
            cost = json.loads((self.dir / f"{log.name}.out").read_text())["cost"]
            hits, switches = cost["bounds"]["probe_hits"], cost["bounds"]["switch_hits"]
            truth = before_end - at_start
            self.assertLessEqual(cost["bounds"]["sampled_hits"], at_end, "more than there was")
            if hits is None or switches is None:
                print(f"{pattern}: not known, truth {truth}")
                continue
            low, high = hits["low"] + switches["low"], hits["high"] + switches["high"]
            reported += 1
            held += low <= at_end and truth <= high
            print(f"{pattern} {' '.join(more)}: {low} to {high}, truth {truth} to {at_end}, sampled {100 * cost['bounds']['sampled_ns'] / cost['wall_ns']:.1f} % of the time")
        self.assertGreaterEqual(reported, 2)
        self.assertGreaterEqual(held, reported - 1, "19 of 20 intervals hold the truth")

    # ---- files ----

    def test_nothing_that_exists_is_lost(self):
        log, capture = self.dir / "X.kbl", self.dir / "X.pcapng"
        log.write_text("precious")
        capture.write_text("precious")
        r = self.record(log, "--for", "100ms")
        self.assertEqual((r.returncode, log.read_text()), (1, "precious"))
        self.assertIn("--force", r.stderr)
        log.unlink()
        r = self.record(log, "--sniff", f"{self.a}:ra", "--for", "100ms")
        self.assertEqual((r.returncode, capture.read_text()), (1, "precious"))
        self.assertEqual(self.files(), {"X.pcapng"})
        log.write_text("precious")
        # Replaced is what exists only by a recording that runs.
        for rc, *wrong in ((1, "--", "no-such-program"), (2, "--sniff", f"{self.a}:nope", "--for", "100ms")):
            r = self.record(log, "--force", *wrong)
            self.assertEqual((r.returncode, log.read_text(), capture.read_text()), (rc, "precious", "precious"), r.stderr)
            self.assertEqual(self.files(), {"X.kbl", "X.pcapng"})
        self.assertEqual(self.record(log, "--force", "--sniff", f"{self.a}:ra", "--", "true").returncode, 0)
        self.assertEqual(log.read_bytes()[:4], b"\x89KBL", "is a log now")
        self.assertEqual(capture.read_bytes()[:4], b"\x0a\x0d\x0d\x0a")
        self.assertEqual(self.files(), {"X.kbl", "X.pcapng"})

    def test_a_failed_start_leaves_nothing(self):
        for rc, *wrong in ((1, "--", "no-such-program"), (2, "--sniff", f"{self.a}:nope", "--for", "100ms"), (1, "--sniff", f"{self.a}:ra", "--", "no-such-program")):
            self.assertEqual(self.record(self.dir / "Y.kbl", *wrong).returncode, rc)
            self.assertEqual(self.files(), set(), wrong)

    def test_two_recorders_do_not_share_a_file(self):
        log = self.dir / "X.kbl"
        first = self.start(log, "-f", "icmp")
        for args in ([], ["--force"]):
            self.assertEqual(self.record(log, *args, "--for", "100ms").returncode, 1)
        self.ping(5)
        first.stop()
        self.assertEqual(json.loads(sh(self.kpat, "info", "--json", log).stdout)["state"], "complete")
        second = self.start(log, "--force", "-f", "icmp")
        os.kill(second.p.pid, signal.SIGKILL)
        second.p.wait()
        self.assertEqual(json.loads(sh(self.kpat, "info", "--json", log, ok=False).stdout)["state"], "open")
        self.assertEqual(self.record(log, "--force", "--", "true").returncode, 0, "whose recorder died may be replaced")

    def test_no_file_of_a_flight_recorder_is_lost(self):
        (self.dir / "F.1.kbl").write_text("precious")
        p = self.start(self.dir / "F.kbl", "--memory", "4M", "-f", "icmp")
        for _ in range(2):
            self.ping(3)
            sh(self.kpat, "ctl", "--pid", p.p.pid, "dump")
        p.stop()
        self.assertEqual((self.dir / "F.1.kbl").read_text(), "precious")
        self.assertTrue({"F.kbl", "F.2.kbl"} <= self.files(), self.files())

    # ---- captures beside the log ----

    def frames(self, capture: Path, *args) -> list[str]:
        return sh("tshark", "-n", "-r", capture, *args).stdout.splitlines()

    def test_a_capture_has_what_the_log_is_of(self):
        log = self.dir / "S.kbl"
        p = self.start(log, "-f", "icmp", "--sniff", f"{self.a}:ra")
        self.inside(sys.executable, "-c", FLOOD, 3000)
        self.ping(6, "-s", "3000")
        p.stop()
        capture = log.with_suffix(".pcapng")
        echo = self.frames(capture, "-Y", "ip.proto == 1 && (ip.flags.mf == 1 || ip.frag_offset > 0)")
        self.assertEqual(len(echo), 6 * 2 * 3, "each echo and its reply in three fragments")
        self.assertEqual(self.frames(capture, "-Y", "udp && !icmp"), [])
        lengths = self.frames(capture, "-Y", "ip.frag_offset == 0 && icmp", "-T", "fields", "-e", "frame.len", "-e", "frame.cap_len")
        self.assertIn("1514\t256", lengths)
        with open(capture, "rb") as f:
            self.assertLess(len(f.read()), 64 << 10)

    def test_a_capture_has_what_was_asked_for(self):
        log = self.dir / "S.kbl"
        p = self.start(log, "-f", "icmp", "--sniff", f"{self.a}:ra", "--sniff-filter", "none", "--snaplen", "0")
        self.inside(sys.executable, "-c", FLOOD, 50)
        p.stop()
        sizes = self.frames(log.with_suffix(".pcapng"), "-Y", "udp.dstport == 9 && !icmp", "-T", "fields", "-e", "frame.cap_len")
        self.assertEqual(sizes, ["1042"] * 50)
        r = self.record(self.dir / "W.kbl", "--sniff", f"{self.a}:ra", "--sniff-filter", "udp prot 9", "--for", "100ms")
        self.assertEqual(r.returncode, 2)

    def test_what_a_capture_lost_is_in_the_log(self):
        log = self.dir / "L.kbl"
        p = self.start(log, "-f", "icmp", "--sniff", f"{self.a}:ra", "--sniff-filter", "none", "--snaplen", "0")
        self.ping(2)
        # Stopped, it cannot empty its queue of 32 MiB.
        os.kill(p.p.pid, signal.SIGSTOP)
        self.inside(sys.executable, "-c", FLOOD, 40000)
        os.kill(p.p.pid, signal.SIGCONT)
        p.stop()
        seen = len(self.frames(log.with_suffix(".pcapng"), "-Y", "udp.dstport == 9 && !icmp"))
        info = json.loads(sh(self.kpat, "info", "--json", log, ok=False).stdout)
        lost = sum(x["count"] for x in info["losses"] if x["cause"] == "sniffer-full")
        # ICMP errors, of which the kernel sends few a second, and a request for an address may be among either.
        print(f"sent 40000, captured {seen}, lost {lost}")
        self.assertGreater(lost, 0)
        self.assertTrue(40000 <= seen + lost <= 40000 + 40, (seen, lost))

    # ---- what the recorder sees of the system ----

    def test_bounds_of_system_events_hold(self):
        """Each change lies between two readings of the clock around the command that made it, where the kernel has no stamps for it."""
        p = self.start(self.dir / "E.kbl", "-f", "icmp", "--mechanism", "tracepoint")
        did = []

        def do(kind: str, what: str, *argv) -> None:
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            sh(*argv)
            did.append((before, time.clock_gettime_ns(time.CLOCK_BOOTTIME), kind, what))

        ip = ("ip", "-n", self.a)
        for i in range(6):
            do("address", f"10.95.{i}.1/24 dev ra", *ip, "addr", "add", f"10.95.{i}.1/24", "dev", "ra")
            do("route", f"added 10.96.{i}.0/24", *ip, "route", "add", f"10.96.{i}.0/24", "dev", "ra")
            do("neighbour", f"10.95.{i}.7 lladdr 02:00:00:00:00:07", *ip, "neigh", "replace", f"10.95.{i}.7", "lladdr", "02:00:00:00:00:07", "dev", "ra")
            do("queueing", "qdisc pfifo", "ip", "netns", "exec", self.a, "tc", "qdisc", "replace", "dev", "ra", "root", "pfifo", "limit", str(10 + i))
            do("link", f"mtu {1300 + i}", *ip, "link", "set", "ra", "mtu", 1300 + i)
            do("address", f"10.95.{i}.1/24 dev ra removed", *ip, "addr", "del", f"10.95.{i}.1/24", "dev", "ra")
            do("link", f"re{i}", *ip, "link", "set", "ra", "name", f"re{i}")
            do("link", f"(was re{i})", *ip, "link", "set", f"re{i}", "name", "ra")
        p.stop()
        sh(self.kpat, "integrate", self.dir / "E.kbl")
        events = json.loads(sh(self.kpat, "events", "--json", "-n", 0, self.dir / "E.kpat").stdout)["events"]
        of_system = [e for e in events if e["kind"] in ("address", "route", "neighbour", "queueing", "link")]
        self.assertEqual({(e["cpu"], e["pid"], e["process"]) for e in of_system}, {(None, None, None)}, "nobody saw where they were made")
        wide = []
        for before, after, kind, what in did:
            # Two changes of one address give the same words twice: any of them that fits.
            same = [e for e in of_system if e["kind"] == kind and (e["what"] == what if kind == "address" else what in e["what"])]
            self.assertTrue(same, f"no {kind} {what}")
            fits = [e for e in same if e["after_boot_ns"] <= after and e["at_boot_ns"] >= before]
            self.assertTrue(fits, f"{kind} {what}: {[(e['after_boot_ns'] - before, e['at_boot_ns'] - after) for e in same]}")
            wide.append(fits[0]["at_boot_ns"] - fits[0]["after_boot_ns"])
        print(f"{len(did)} commands, {len(wide)} bounds hold, {sorted(wide)[len(wide) // 2] / 1e6:.1f} ms wide in the middle, {max(wide) / 1e6:.1f} at most")

    def test_what_had_no_link_loses_none(self):
        """Links that are opened, come, get a bridge or another name while they are recorded: only those that had a carrier lose one."""
        near, far = (lambda words, ns=ns: sh("ip", "-n", ns, *words.split()) for ns in (self.a, self.b))

        def each(*commands) -> None:
            for ip, words in commands:
                ip(words)
                time.sleep(0.4)

        pair = lambda name: near(f"link add {name} type veth peer name {name}x netns {self.b}")
        for name in ("shut", "none", "flap"):
            pair(name)
        each((near, "link set none up"), (near, "link set flap up"), (far, "link set flapx up"))
        near("link add b0 type bridge")
        p = self.start(self.dir / "L.kbl", "-p", "path", "-f", "icmp")
        each((near, "link set none mtu 1400"), (near, "link set none down"), (near, "link set none up"))
        each((near, "link set shut up"), (far, "link set shutx up"), (near, "link set shut master b0"))
        pair("came")
        each((near, "link set came up"), (far, "link set camex up"))
        pair("port")
        each((near, "link set port master b0"), (far, "link set portx up"), (near, "link set port up"))
        each((far, "link add moved type veth peer name movedx"), (far, "link set movedx up"), (far, f"link set moved netns {self.a}"), (near, "link set moved up"))
        # These had one.
        each((far, "link set flapx down"), (far, "link set flapx up"))
        each((near, "link set came down"), (near, "link set came name other"), (near, "link set other up"))
        p.stop()
        sh(self.kpat, "integrate", self.dir / "L.kbl")
        found = json.loads(sh(self.kpat, "handover", "--json", self.dir / "L.kpat").stdout)["handovers"]
        seen = [(h["interface"], h["kind"], h["cause"]) for h in found if h["netns"] == os.stat(f"/run/netns/{self.a}").st_ino]
        # By the name that it had; what it is called now finds it, too.
        self.assertEqual(seen, [("flap", "link-flap", "carrier"), ("came", "link-flap", "shut")])
        for name in ("came", "other"):
            of_it = json.loads(sh(self.kpat, "handover", "--json", self.dir / "L.kpat", "--interface", name).stdout)["handovers"]
            self.assertEqual([h["interface"] for h in of_it], ["came"])

    def test_handovers_of_interfaces_that_were_removed(self):
        """One that comes again, by its name, with a new name as udev gives, or from another namespace, was without a link meanwhile; one that does not ends its handover, which counts apart. Truth is the time of the command."""
        near, far = (lambda words, ns=ns: sh("ip", "-n", ns, *words.split()) for ns in (self.a, self.b))

        def pair(name: str) -> None:
            near(f"link add {name} type veth peer name {name}x netns {self.b}")
            near(f"link set {name} up")
            far(f"link set {name}x up")

        for name in ("gone", "again", "moved", "pulled", "plugged"):
            pair(name)
        p = self.start(self.dir / "G.kbl", "-p", "path", "-f", "icmp")
        # Longer before it is removed than an interface that is removed loses its carrier.
        far("link set pulledx down")
        time.sleep(3.5)
        took = {}
        for name in ("gone", "again", "pulled", "plugged"):
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            near(f"link del {name}")
            took[name] = (before, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        near(f"link set moved netns {self.b}")
        time.sleep(0.4)
        pair("again")
        near(f"link add w0 type veth peer name plugged2 netns {self.b}")
        near("link set w0 name plugged")
        near("link set plugged up")
        far("link set plugged2 up")
        far(f"link set moved netns {self.a}")
        near("link set moved up")
        time.sleep(3)
        p.stop()
        sh(self.kpat, "integrate", self.dir / "G.kbl")
        found = json.loads(sh(self.kpat, "handover", "--json", self.dir / "G.kpat").stdout)
        here = [h for h in found["handovers"] if h["netns"] == os.stat(f"/run/netns/{self.a}").st_ino]
        self.assertEqual(sorted((h["interface"], h["kind"], h["cause"], h["ended"]) for h in here), [
            ("again", "link-flap", "removed", "quiet"), ("gone", "gone", "removed", "gone"), ("moved", "link-flap", "removed", "quiet"), ("plugged", "link-flap", "removed", "quiet"), ("pulled", "gone", "carrier", "gone")])
        for h in (h for h in here if h["kind"] == "gone"):
            begun, over = took[h["interface"]]
            self.assertGreaterEqual(h["end_boot_ns"], begun, h)
            self.assertLessEqual(h["end_boot_ns"] - over, 20_000_000, h)
        # The other ends of the cables went and came with them.
        ended = lambda how: sum(h["ended"] == how for h in found["handovers"])
        sums = found["statistics"]
        self.assertEqual((sums["gone"], sums["going_on"]), (ended("gone"), ended("log-end")))
        self.assertEqual(sums["handovers"], len(found["handovers"]) - ended("gone") - ended("log-end") - sums["under_way"])
        self.assertLess(sums["whole"]["max_ns"], 3_000_000_000)
        self.assertIn(" of an interface that was removed", sh(self.kpat, "handover", self.dir / "G.kpat").stdout)

    # ---- the flight recorder by itself ----

    def dumps(self, *args, port=9) -> tuple[list[Path], dict]:
        """What it wrote for three drops at that port, before it was stopped."""
        log = self.dir / "D.kbl"
        for old in self.dir.glob("D*.kbl"):
            old.unlink()
        p = self.start(log, "--memory", "4M", "-f", f"udp port {port} or icmp", "--json", *args)
        for _ in range(3):
            self.inside(sys.executable, "-c", f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{B}', {port}))")
            before = self.records(p)
            self.inside("ping", "-n", "-q", "-c", "1", B)
            cache_wait(lambda b=before: self.records(p) > b)
        files = sorted(self.dir.glob("D*.kbl"))
        status = json.loads(sh(self.kpat, "ctl", "--pid", p.p.pid, "--json", "status").stdout)
        p.stop()
        return files, status

    def records(self, p) -> int:
        return json.loads(sh(self.kpat, "ctl", "--pid", p.p.pid, "--json", "status").stdout)["records"]

    def test_dumps_are_few_and_of_what_was_asked_for(self):
        # A ping's reply finds no datagram socket either, elsewhere.
        udp = "--dump-on-drop=*udp*"
        files, status = self.dumps(udp)
        self.assertEqual(len(files), 1)
        self.assertEqual(status["suppressed_dumps"], 2)
        self.assertEqual(len(self.dumps(udp, "--dump-every", "0s")[0]), 3)
        self.assertEqual(len(self.dumps(udp, "--dump-every", "0s", "--dump-files", "2")[0]), 2)
        self.assertEqual(len(self.dumps(udp, "--dump-every", "0s", "--dump-bytes", "1")[0]), 1)
        self.assertEqual(len(self.dumps("--dump-on-drop=NO_SOCKET", "--dump-every", "0s", "--dump-filter", "udp port 9")[0]), 3)
        self.assertEqual(len(self.dumps("--dump-on-drop=TCP_*", "--dump-every", "0s")[0]), 0)
        self.assertEqual(len(self.dumps("--dump-on-drop", "--dump-filter", "udp port 9", "--dump-every", "0s")[0]), 3)
        self.assertEqual(len(self.dumps("--dump-on-drop", "--dump-filter", "udp port 10", "--dump-every", "0s")[0]), 0)
        self.assertEqual(len(self.dumps("--dump-slower", "10s")[0]), 0)
        for log in self.dir.glob("D*.kbl"):
            n = json.loads(sh(self.kpat, "info", "--json", log, ok=False).stdout)["records"]
            self.assertGreater(sum(n.values()), 0, "an empty dump")
        self.assertEqual(self.record(self.dir / "N.kbl", "--memory", "1M", "--dump-on-drop=NO_SUCH_REASON", "--for", "1s").returncode, 2)

    def test_the_state_is_everybodys(self):
        p = self.start(self.dir / "P.kbl", "-f", "icmp")
        self.ping(5)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", self.kpat, "ctl", "--pid", p.p.pid]
        status = json.loads(sh(*nobody, "--json", "status").stdout)
        self.assertEqual((status["pid"], status["mode"]), (p.p.pid, "disk"))
        self.assertIn(str(p.p.pid), sh(*nobody, "list").stdout.split())
        for refused in ("stop", "pause", "rotate"):
            r = sh(*nobody, refused, ok=False)
            self.assertEqual(r.returncode, 1)
            self.assertIn("root", r.stderr)
        self.assertIsNone(p.p.poll(), "still records")
        self.assertEqual(sh("stat", "-c", "%a", f"/run/kpat/{p.p.pid}.sock").stdout.strip(), "600")
        os.kill(p.p.pid, signal.SIGKILL)
        p.p.wait()
        q = self.start(self.dir / "Q.kbl", "-f", "icmp")
        self.assertFalse(Path(f"/run/kpat/{p.p.pid}.sock").exists() or Path(f"/run/kpat/{p.p.pid}.json").exists())
        q.stop()


def cache_wait(condition) -> None:
    from kpatlab.topology import wait_for
    wait_for(condition, cache.patience(), "records")
