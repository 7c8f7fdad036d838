"""Whose write a packet was that the kernel dropped in the very call: by a firewall's output rules, by a route that forbids its mark, by a queue
that is full, on a device's way out. From several processes and threads at the same time, while packets that came for others are dropped on top
of them, on this machine, with tracepoints. No sniffer sees these packets: truth is the generator's, whose datagrams have a length each, and which
notes thread, moments and result of each call; and the kernel's own counters."""
import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from kpatlab import cache, guest, kernel, play
from kpatlab.cache import LAB
from tests.place import lost, own, sh

TOOL = [sys.executable, str(LAB / "tools/refused.py")]
SINK = """import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 8, 1 << 22); s.bind(("10.97.0.2", {port})); print("ready", flush=True); time.sleep(600)"""
PORT = 7340
EPERM, EACCES, ENOBUFS = -1, -13, -105
# So many rules that most of the time is spent in calls. Each fourth is dropped; of the others, each fourth that is forbidden by its mark; what the receiving end drops is in a softirq of the sender.
RULES = """add table ip t
add chain ip t out {{ type filter hook output priority 0; }}
""" + 300 * "add rule ip t out ip ttl 3 drop\n" + """add rule ip t out ip protocol {{ udp, 253 }} @th,{at},32 & 3 == 1 counter drop comment "dropped"
add chain ip t way {{ type route hook output priority -150; }}
add rule ip t way ip protocol {{ udp, 253 }} @th,{at},32 & 7 == 2 counter meta mark set 1 comment "marked"
"""
THERE = """add table ip t
add chain ip t in {{ type filter hook input priority 0; }}
add rule ip t in ip protocol {{ udp, 253 }} @th,{at},32 & 7 == 4 counter drop comment "came"
"""
ON_THE_WAY_OUT = """add table netdev t
add chain netdev t out { type filter hook egress device v0 priority 0; }
add rule netdev t out meta l4proto udp @th,64,32 & 7 == 1 drop
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A generator's words, and what stands in its way: rules of both ends, a queue, rules at the device."""
    words: tuple
    rules: bool = True
    device: str = ""
    queue: str = ""


ELSEWHERE = ("elsewhere", "10.97.9.9")
CASES = {
    "at-once": Case(("udp", 5000, 3, 2, *ELSEWHERE)),
    "shared": Case(("udp", 900, 2, 3, "shared", *ELSEWHERE)),
    "raw": Case(("raw", 400, 2, 1, *ELSEWHERE)),
    "waited": Case(("udp", 400, 2, 1, "corked")),
    "queue": Case(("udp", 600, 2, 2, "errors"), rules=False, queue="qdisc add dev v0 root tbf rate 20mbit burst 2000 limit 4000"),
    "device": Case(("udp", 400, 2, 2), rules=False, device=ON_THE_WAY_OUT),
}


def recorded(stack, out: Path, kpat: str, ends: list[str], case: Case, mechanism: list[str], patience: float) -> None:
    """Plays it and records it: x.kbl, calls.json, and what the rules counted by their names (counted.json)."""
    a, b = ends
    for ns in ends:
        sh("ip", "-n", ns, "link", "set", "lo", "up")
    sh("ip", "link", "add", "v0", "netns", a, "type", "veth", "peer", "name", "v0", "netns", b)
    for ns, addr in ((a, "10.97.0.1/24"), (b, "10.97.0.2/24")):
        sh("ip", "-n", ns, "addr", "add", addr, "dev", "v0")
        sh("ip", "-n", ns, "link", "set", "v0", "mtu", "9000", "up")
    # No packet is made for what goes there.
    sh("ip", "-n", a, "route", "add", "prohibit", "10.97.9.0/24")
    sh("ip", "-n", a, "rule", "add", "fwmark", "1", "prohibit")
    udp = case.words[0] == "udp"
    for ns, text in ((a, RULES), (b, THERE)) if case.rules else ():
        sh("ip", "netns", "exec", ns, "nft", text.format(at=64 if udp else 0))
    if case.device:
        sh("ip", "netns", "exec", a, "nft", case.device)
    if case.queue:
        sh("ip", "netns", "exec", a, "tc", *case.queue.split())
    sh("ip", "netns", "exec", a, "ping", "-c", "1", "-W", "5", "10.97.0.2")
    sink = play.Process("sink", ["ip", "netns", "exec", b, sys.executable, "-c", SINK.format(port=PORT)], out)
    stack.callback(sink.stop)
    sink.wait_ready(lambda: "ready" in play.text_of(sink.stdout), patience)
    log, ready = out / "x.kbl", out / "ready"
    record = play.Process("record", [kpat, "record", "-p", "path,app", *mechanism, "--netns", a, "--netns", b, "-f", "udp" if udp else "ip proto 253",
                                     "--no-cost", "-o", str(log), "--ready-file", str(ready)], out)
    stack.callback(record.stop)
    record.wait_ready(ready.exists, patience)
    family, count, *more = case.words
    said = sh("ip", "netns", "exec", a, *TOOL, family, "10.97.0.2", PORT, count, *more, seconds=patience * 4).stdout
    if rc := record.stop(patience):
        raise AssertionError(f"kpat record ended with {rc}: {play.text_of(record.stderr)[-500:]}")
    (out / "calls.json").write_text(said)
    counted = {}
    for ns in ends if case.rules else ():
        listed = sh("ip", "netns", "exec", ns, "nft", "list", "ruleset").stdout
        counted |= {name: int(n) for n, name in re.findall(r'counter packets (\d+) .*comment "(\w+)"', listed)}
    (out / "counted.json").write_text(json.dumps(counted))


class Judge:
    """What a folder of [`recorded`] says, against the generator's own calls."""

    def played(self, name: str) -> None:
        """`calls`, `packets`, `counted` by the rules' names, `out`."""
        case = CASES[name]
        self.record(name, case)
        self.calls, self.counted = (json.loads((self.dir / f).read_text()) for f in ("calls.json", "counted.json"))
        self.out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", self.dir / "x.kbl", "-o", self.out)
        info = json.loads(sh(self.kpat, "info", self.out, "--json").stdout)
        # a call that is not over when the recording is, and one within another's probe
        self.assertEqual([x for x in lost(self, info) if x["cause"] not in ("recursion", "no-return")], [])
        # Where probes were skipped, the end of a call may be among them: then a packet may have no call, and never another's.
        self.skipped = any(x["cause"] in ("recursion", "not-run") for x in info["losses"])
        packets = json.loads(sh(self.kpat, "packet", f"1-{info['rows']['packet']}", self.out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        bare = 28 if case.words[0] == "udp" else 20
        self.packets = {}
        for p in packets:
            n = p["packet"]["len_bytes"] - bare - 100
            if p["packet"]["ip_proto"] in (17, 253) and p["packet"]["src_addr"] == "10.97.0.1":
                self.assertNotIn(n, self.packets, "a length for each")
                self.packets[n] = p
        # Calls that began while another thread was in one.
        order = sorted(self.calls, key=lambda c: c[2])
        self.at_once = sum(x[1] != y[1] and y[2] < x[3] for x, y in zip(order, order[1:]))

    def judged(self, made: set[int], unknown: frozenset[int] = frozenset()) -> None:
        """Each packet has the call that the generator made for it, with its result; those of `unknown` have none. `made`: numbers of refused calls of which
        there is a packet."""
        of_number: dict[int, list] = {}
        of_thread: dict[int, list] = {}
        for call in self.calls:
            of_number.setdefault(call[0], []).append(call)
            of_thread.setdefault(call[1], []).append(call)
        named = {}
        wrong = []
        for n, p in self.packets.items():
            written = (p["application"] or {}).get("written") or {"calls": []}
            truth = [(tid, got) for _, tid, _, _, got, _ in of_number[n]]
            found = []
            for c in written["calls"]:
                own = [x for x in of_thread[c["pid"]] if x[2] <= c["at_boot_ns"] <= x[3]]
                self.assertEqual(len(own), 1, c)
                found.append((own[0][0], own[0][1], own[0][4]))
                named[c["id"]] = p["packet"]["packet_id"]
                name = {EPERM: "EPERM", EACCES: "EACCES", ENOBUFS: "ENOBUFS"}.get(own[0][4])
                self.assertEqual((c.get("error"), c["carried_bytes"]), (name, 100 + n if len(truth) == 1 else c["carried_bytes"]), (n, c))
            if found != ([] if n in unknown or self.skipped and not found else [(n, *t) for t in truth]):
                wrong.append((n, found, truth, p["packet"]["verdict"], p["packet"]["drop_reason"]))
        self.assertEqual(wrong[:3], [], f"{len(wrong)} of {len(self.packets)}")
        refused = {n for n, calls in of_number.items() if calls[-1][4] < 0}
        self.assertEqual(refused & set(self.packets), made, "which have packets")
        # The other way, and all at once: the same.
        if self.skipped:
            print(f"    {len(self.packets)} packets of {len(self.calls)} calls, {len(set(named.values()))} with their call; probes were skipped", flush=True)
            return
        refused_calls = [row["id"] for row in self.sql("SELECT rowid AS id FROM app_event WHERE crossing = 2 AND size_bytes < 0")]
        self.assertEqual(len(refused_calls), sum(c[4] < 0 for c in self.calls), "as the generator counts them")
        for call in refused_calls[::29]:
            packet = named.get(call)
            back = json.loads(sh(self.kpat, "app", self.out, "--write", call, "--json").stdout)
            self.assertEqual([x["packet_id"] for x in back["packets"]], [packet] if packet else [])
            self.assertIn(back["error"], ("EPERM", "EACCES", "ENOBUFS"))
        dropped = json.loads(sh(self.kpat, "packets", self.out, "verdict == dropped and writer.pid", "-n", "0", "--json").stdout)["packets"]
        self.assertEqual({p["packet_id"] for p in dropped},
                         {p["packet"]["packet_id"] for n, p in self.packets.items() if p["packet"]["verdict"] == "dropped"})
        pids = {p["packet"]["packet_id"]: of_number[n][-1][1] for n, p in self.packets.items() if n not in unknown}
        some = next(iter(pids.values()))
        mine = json.loads(sh(self.kpat, "packets", self.out, f"writer.pid == {some}", "-n", "0", "--json").stdout)["packets"]
        self.assertEqual({p["packet_id"] for p in mine} & set(pids), {p for p, pid in pids.items() if pid == some})
        print(f"    {len(self.packets)} packets of {len(self.calls)} calls, of {len(made)} refused ones, {self.at_once} while another thread was in one; counted: {self.counted}", flush=True)

    def sql(self, question: str) -> list[dict]:
        return json.loads(sh(self.kpat, "sql", self.out, question, "--json").stdout)

    def by_rules(self) -> set[int]:
        """Numbers that a rule or a forbidden way refused with a packet."""
        made = {n for n, _, _, _, got, elsewhere in self.calls if got < 0 and not elsewhere}
        self.assertEqual(self.counted["dropped"] + self.counted["marked"], len(made))
        self.assertTrue(self.counted["came"] and all(n & 3 == 1 or n & 7 == 2 for n in made))
        return made

    def test_processes_and_threads_at_once(self):
        self.played("at-once")
        self.assertGreater(self.at_once, self.least_at_once)
        self.judged(self.by_rules())
        over_time = json.loads(sh(self.kpat, "app", self.out, "--series", "--json").stdout)
        seen = sum(over_time["marks"]["failed call"]), sum(over_time["crossings"]["send"]["bytes"])
        made = sum(c[4] < 0 for c in self.calls), sum(c[4] for c in self.calls if c[4] > 0)
        self.assertTrue(seen == made or self.skipped and seen[0] <= made[0] and seen[1] <= made[1], (seen, made))

    def test_a_full_queue(self):
        self.played("queue")
        made = {n for n, _, _, _, got, _ in self.calls if got == ENOBUFS}
        self.assertGreater(len(made), 50)
        self.judged(made)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Unsent(Judge, unittest.TestCase):
    least_at_once = 5

    def record(self, name, case):
        self.kpat = os.path.abspath(play.kpat_path())
        ends = own(self, "unsent", "ab", os.environ.get("KPAT_KEEP_UNSENT"))
        recorded(self.stack, self.dir, self.kpat, ends, case, ["--mechanism", "tracepoint"], cache.patience())

    def test_threads_that_share_a_socket(self):
        self.played("shared")
        self.judged(self.by_rules())

    def test_a_raw_socket(self):
        self.played("raw")
        self.judged(self.by_rules())

    def test_what_waited_is_not_guessed(self):
        self.played("waited")
        refused = {n for n, _, _, _, got, _ in self.calls if got < 0}
        self.judged(refused, frozenset(n for n in refused if n % 7 == 2))

    def test_taken_and_dropped_on_the_way_out(self):
        self.played("device")
        self.assertEqual(sum(p["packet"]["verdict"] == "dropped" for p in self.packets.values()), 50)
        self.judged(set())


GUEST_SECONDS = 540


def in_guest(out: Path) -> int:
    """Two cases, with the best that this kernel offers: it takes long to attach to functions."""
    cache.run(["modprobe", "-a", "veth", "nf_tables", "sch_tbf"], "what the cases need")
    few = dataclasses.replace(CASES["at-once"], words=("udp", 900, 2, 2, *ELSEWHERE))
    full = dataclasses.replace(CASES["queue"], queue="qdisc add dev v0 root tbf rate 400kbit burst 2000 limit 4000")  # an emulated processor is slow
    for name, case in (("at-once", few), ("queue", full)):
        own_out, ends = Path("/run/scratch") / name, [f"unsent-{x}" for x in "ab"]
        own_out.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            for ns in ends:
                sh("ip", "netns", "add", ns)
                stack.callback(sh, "ip", "netns", "del", ns, ok=False)
            recorded(stack, own_out, play.kpat_path(), ends, case, [], 120)
        shutil.copytree(own_out, out / name, ignore_dangling_symlinks=True)
    return 0


class UnsentThere(Judge):
    """One kernel, by its functions; the guest plays once. It has one processor."""

    series, least_at_once = "7.2", -1

    @classmethod
    def setUpClass(cls):
        cls.kpat = os.path.abspath(play.kpat_path())
        keep = os.environ.get("KPAT_KEEP_UNSENT")
        cls.all = Path(keep or tempfile.mkdtemp(prefix="kpat-unsent-")) / cls.series
        shutil.rmtree(cls.all, ignore_errors=True)
        cls.all.mkdir(parents=True)
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": cls.kpat}
        argv = [os.path.realpath(sys.executable), "-m", "tests.unsent", "guest", "/lab"]
        answer = cls.all / "guest.err"
        rc = guest.run(kernel.open_kernel(cls.series), argv, cls.all, smp=1, timeout=GUEST_SECONDS, mem=1024, cwd="/", env=env,
                       sinks=(cls.all / "guest.out", answer)).rc
        if rc:
            raise AssertionError(f"the guest ended with {rc}: {answer.read_text(errors='replace')[-3000:]}")

    @classmethod
    def tearDownClass(cls):
        if not os.environ.get("KPAT_KEEP_UNSENT"):
            shutil.rmtree(cls.all.parent, ignore_errors=True)

    def record(self, name, case):
        self.dir = self.all / name


class Unsent72(UnsentThere, unittest.TestCase):
    pass


class Unsent612(UnsentThere, unittest.TestCase):
    series = "6.12"


class Unsent61(UnsentThere, unittest.TestCase):
    series = "6.1"


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        sys.exit(in_guest(Path(sys.argv[2])))
    unittest.main()
