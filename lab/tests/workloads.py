"""Whom the CPUs worked for, whatever runs at once: programs drawn by chance (readers and writers of datagrams, streams, unix sockets, pipes and files, storms of short
processes, threads, one that ends in the middle, one that another's number is given to, one that moves to another cgroup), spread over a client, a router and a server that are
joined by chance, beside a program that only computes. Truth is the kernel's own run times (perf's task-clock, wait4), what each program read, wrote and lost by its own
count and /proc/PID/io."""
import json
import os
import random
import signal
import sys
import unittest
from collections import Counter, defaultdict
from pathlib import Path

from kpatlab import cache, look, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests import profile
from tests.owners import CGROUPS
from tests.place import sh, still

TOOL = [sys.executable, str(LAB / "tools/workloads.py")]
FILE_MB = 24
# Mixtures of those kinds that showed faults.
SEEDS = {3: "udp_crowded udp_exits mover reuses", 45: "udp udp_lost storm asks", 21: "tcp shares threads pipe unix"}
UDP_HEADERS, TCP_HEADERS = 28, 52
LAST = 6
# Of a process, whatever others do; and what depends on who used a socket, which a file of a rotated recording may not know yet.
OWN_SUMS = ("user_ns", "kernel_ns", "fault_ns", "system_calls", "page_faults", "block_requests")
SOCKETS_SUMS = ("served_ns", "taken_ns", "served_packets", "served_bytes")


class Mixture:
    """What runs, by chance; `said`: what it came to."""

    def __init__(self, case, chance: random.Random):
        self.case, self.chance, self.jobs, self.said, self.port = case, chance, [], [], 20000
        self.readers = {"s": "10.96.2.2", "r": "10.96.1.1", "c": "127.0.0.1"}

    def job(self, role: str, ns: str = "c", cpu: int | None = None, **more) -> dict:
        j = {"name": f"{len(self.jobs)}{role.replace('_', '')[:8]}", "role": role, "ns": getattr(self.case, {"c": "client", "r": "router", "s": "server"}[ns]), **more}
        cpu = self.chance.choice([None, 0, 1]) if cpu is None else cpu
        if cpu is not None and cpu >= 0:
            j["cpu"] = cpu
        self.jobs.append(j)
        return j

    def ports(self, n: int) -> list[int]:
        self.port += n
        return list(range(self.port - n, self.port))

    def where(self) -> tuple[str, str]:
        at = self.chance.choice("ssrc")
        return at, self.readers[at]

    def sizes(self) -> list[int]:
        return self.chance.choice([[64], [1400], [10, 600, 1300], [4000], [200, 9000]])

    def udp(self):
        at, to = self.where()
        ports = self.ports(self.chance.randint(1, 3))
        how = lambda: self.chance.choice(["recv", "recvmsg", "recvfrom", "recvmmsg", "epoll", "peek"])
        for p in ports:
            self.job("udp_reader", at, port=p, how=how())
        self.job("udp_writer", "c", to=to, ports=ports, sizes=self.sizes(), count=self.chance.randint(500, 6000), burst=self.chance.choice([5, 40]))

    def udp_two_writers(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, senders=2)
        for _ in range(2):
            self.job("udp_writer", "c", to=to, ports=[p], sizes=[100], count=1000, connects=True)

    def udp_crowded(self):
        """As fast as it goes: one CPU puts datagrams into a queue that another one is at."""
        p, = self.ports(1)
        connects = self.chance.random() < 0.5
        self.job("udp_reader", "c", port=p, senders=2, how=self.chance.choice(["recv", "recvmmsg"]))
        for cpu in (0, 1):
            self.job("udp_writer", "c", cpu, to="127.0.0.1", ports=[p], sizes=[100], count=8000, burst=200, connects=connects)

    def udp_lost(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, room=4096, slow=0.35)
        self.job("udp_writer", "c", to=to, ports=[p], sizes=[300], count=1000, ends=LAST)

    def udp_exits(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, exits_after=700)
        self.job("udp_writer", "c", to=to, ports=[p], sizes=[300], count=2000)

    def threads(self):
        at, to = self.where()
        n = self.chance.randint(2, 4)
        ports = self.ports(n)
        self.job("threads", at, cpu=-1, port=ports[0], count=n)
        self.job("udp_writer", "c", to=to, ports=ports, sizes=self.sizes(), count=2000)

    def shares(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("shares", at, port=p, first=1000)
        self.job("udp_writer", "c", to=to, ports=[p], sizes=[200], count=3000)

    def group(self):
        p, = self.ports(1)
        for _ in range(2):
            self.job("udp_reader", "r", port=p, group="239.1.1.1", on="10.96.1.1")
        self.job("udp_writer", "c", to="239.1.1.1", group="239.1.1.1", on="10.96.1.2", ports=[p], sizes=[150], count=1500)

    def tcp(self):
        at, to = self.where()
        p, = self.ports(1)
        n = self.chance.choice([1, 1, 20])
        more = self.chance.choice([{}, {}, {"sendfile": str(self.case.file)}, {"splice": str(self.case.file)}])
        n = 1 if more else n
        self.job("tcp_reader", at, port=p, connections=n, piece=self.chance.choice([1000, 65536, 1 << 20]))
        self.job("tcp_writer", "c", to=to, port=p, connections=n, times=self.chance.choice([20, 300]), piece=self.chance.choice([100, 1448, 65536]), **more)

    def asks(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("tcp_reader", at, port=p, connections=2, answers=0.0005)
        self.job("tcp_writer", "c", to=to, port=p, connections=2, times=100, piece=200, asks=True)

    def unix(self):
        at = str(self.case.dir / f"s{len(self.jobs)}")
        clients = self.chance.randint(1, 3)
        self.job("server", kind="unix", at=at, clients=clients)
        for n in range(clients):
            self.job("client", at=at, times=60, asks_for=0.0005 * (1 + n), own=0.0003)

    def pipe(self):
        self.job("pipe_writer", times=400, at=str(self.case.dir / f"p{len(self.jobs)}"))

    def reads(self):
        how = self.chance.choice(["direct", "whole", "mapped", "random"])
        self.job("reader_of_files", file=str(self.case.fresh()), how=how)

    def writes(self):
        how = self.chance.choice(["direct", "fsync", "later"])
        self.job("writer_of_files", file=str(self.case.dir / f"w{len(self.jobs)}"), how=how, times=self.chance.choice([48, 160]))

    def pages(self):
        self.job("pages", times=self.chance.randint(5, 25))

    def storm(self):
        self.job("storm", count=self.chance.randint(30, 150), burns=0.002)

    def bomb(self):
        self.job("bomb", count=self.chance.randint(20, 100))

    def reuses(self):
        self.job("reuses", burns=[self.chance.choice([0.01, 0.1, 0.3]) for _ in range(self.chance.randint(2, 4))], between=self.chance.choice([0, 0, 0.1, 1.2]))

    def execs(self):
        self.job("execs", before=self.chance.choice([0.003, 0.1]), after=0.15)

    def burner(self):
        self.job("burner", cpu=1, seconds=self.chance.uniform(0.5, 1.5))

    def sleeper(self):
        self.job("sleeper", times=500)

    def pings(self):
        self.job("pings", "c", to=self.chance.choice(["10.96.1.1", "10.96.2.2", "127.0.0.1"]), times=300)

    def mover(self):
        if self.case.cgroups:
            self.job("mover", cgroups=[str(c) for c in self.case.cgroups], each=0.2)

    KINDS = (udp, udp, udp_two_writers, udp_crowded, udp_lost, udp_exits, threads, shares, group, tcp, tcp, asks, unix, pipe, reads, writes, pages, storm, bomb, reuses, execs, pings, sleeper, mover)

    def draw(self, kinds: str | None) -> list[dict]:
        self.burner()
        drawn = self.chance.sample(self.KINDS, self.chance.randint(3, 7))
        for kind in [getattr(type(self), kind) for kind in kinds.split()] if kinds else drawn:
            self.said.append(kind.__name__)
            kind(self)
        return self.jobs


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Workloads(profile.Place):
    def setUp(self):
        """Each mixture has its own place."""

    def fresh(self) -> Path:
        """A file of which nothing is in memory, on a disk."""
        path = Path("/var/tmp") / f"kpat-workloads-{os.getpid()}-{len(self.files)}"
        path.write_bytes(os.urandom(1 << 20) * FILE_MB)
        sh("sync", path)
        self.files.append(path)
        return path

    def leave(self) -> None:
        for c in filter(Path.exists, self.cgroups):
            wait_for(lambda: "populated 0" in (c / "cgroup.events").read_text(), 20, f"all have left {c}")
            c.rmdir()

    def join(self, chance: random.Random, said: list[str]) -> None:
        self.link(self.client, "c0", "10.96.1.2", self.router, "r0", "10.96.1.1")
        self.link(self.server, "s0", "10.96.2.2", self.router, "r1", "10.96.2.1")
        for ns in self.all_ns:
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        sh("ip", "-n", self.client, "route", "add", "default", "via", "10.96.1.1")
        sh("ip", "-n", self.server, "route", "add", "default", "via", "10.96.2.1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for ns, dev in ((self.client, "c0"), (self.router, "r0"), (self.router, "r1"), (self.server, "s0")):
            how = []
            if chance.random() < 0.3:
                self.receive_on(ns, dev, chance.randint(0, 1))
                how.append("RPS")
            for feature, share in (("gro", 0.4), ("tso", 0.2)):
                if chance.random() < share:
                    sh("ip", "netns", "exec", ns, "ethtool", "-K", dev, feature, "on" if feature == "gro" else "off", ok=False)
                    how.append(feature)
            if chance.random() < 0.2:
                sh("ip", "netns", "exec", ns, "sh", "-c", f"echo 1 > /sys/class/net/{dev}/threaded", ok=False)
                how.append("threaded")
            said.append(f"{dev} {'+'.join(how) or '-'}")
        sh("ip", "netns", "exec", self.client, "ping", "-nqc", "2", "-i", "0.2", "10.96.2.2")

    def mixture(self, seed: int, kinds: str | None) -> None:
        chance = random.Random(seed)
        profile.Place.setUp(self)
        self.files, self.cgroups = [], []
        self.stack.callback(lambda: [f.unlink(missing_ok=True) for f in self.files])
        self.file = self.fresh()
        if CGROUPS:
            self.cgroups = [CGROUPS / f"kpat-workloads-{os.getpid()}{x}" for x in "ab"]
            self.stack.callback(self.leave)
            for c in self.cgroups:
                c.mkdir()
        m = self.MIXTURE(self, chance)
        self.join(chance, m.said)
        jobs = m.draw(kinds)
        early = chance.random() < 0.5
        for j in jobs:
            j["early"] = early
        m.said.append("there before" if early else "begun meanwhile")
        (self.dir / "jobs.json").write_text(json.dumps(jobs))
        about = f"seed {seed}: {' '.join(m.said)}"

        tool = self.begin_jobs() if early else None
        did, p = self.profile(f"mixture{seed}", lambda: self.run_jobs(tool or self.begin_jobs()))
        self.log = self.dir / f"mixture{seed}.kpat"
        judge = self.JUDGE(self, {j["name"]: j for j in jobs}, did, p)
        faults = judge.faults()
        print(f"workloads: {about}: {len(did)} programs, {judge.judged} figures, {len(faults)} faults", file=sys.stderr, flush=True)
        for f in faults:
            print(f"workloads: seed {seed}: FAULT {f}", file=sys.stderr, flush=True)
        keep = os.environ.get("KPAT_KEEP_WORKLOADS")
        if keep and faults:
            sh("cp", "-r", self.dir, f"{keep}/{seed}")
        self.assertEqual(faults, [], about)

    def begin_jobs(self) -> play.Process:
        """Those of jobs.json, ready; they live until the test is over."""
        tool = play.Process("tool", [*TOOL, str(self.dir / "jobs.json"), str(self.dir / "did.json")], self.dir)

        def end():
            os.killpg(tool.p.pid, signal.SIGKILL)
            tool.p.wait()

        self.stack.callback(end)
        tool.wait_ready(lambda: "ready" in play.text_of(tool.stdout), cache.patience())
        return tool

    def run_jobs(self, tool: play.Process) -> list[dict]:
        """What they did."""
        tool.p.send_signal(signal.SIGUSR1)
        tool.wait_ready(lambda: "done" in play.text_of(tool.stdout), 3 * cache.patience())
        if '"later"' in (self.dir / "jobs.json").read_text():
            sh("sync")
        return json.loads((self.dir / "did.json").read_text())

    def test_files_of_a_recording_add_up_to_the_whole(self):
        """To the nanosecond, by process and kind, but for what was done for sockets that were read when the next file had begun; and each process is called in all
        of them together as in the last that has it."""
        profile.Place.setUp(self)
        m = Mixture(self, random.Random(1))
        for ns in self.all_ns:
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        m.storm()
        m.udp_crowded()
        m.reuses()
        m.jobs.append({"name": "burner", "role": "burner", "seconds": 2})
        m.jobs.append({"name": "starts", "role": "storm", "count": 150, "burns": 0.02})
        for j in m.jobs:
            if j["role"] in ("storm", "reuses"):
                j["after"] = 0.5
        (self.dir / "jobs.json").write_text(json.dumps(m.jobs))
        ready = self.dir / "ready"
        argv = [play.kpat_path(), "record", "-p", "profile", "--no-cost", "--rotate-time", "1s", "-o", str(self.dir / "r.kbl"), "--ready-file", str(ready)]
        record = play.Process("record", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        self.run_jobs(self.begin_jobs())
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        files = sorted(self.dir.glob("r-*.kbl"))
        self.assertGreater(len(files), 2)
        found = []
        for name, of in (("all", files), *((f"part{i}", [f]) for i, f in enumerate(files))):
            sh(play.kpat_path(), "integrate", *of, "-o", self.dir / f"{name}.kpat")
            found.append(look.kpat_json("profile", str(self.dir / f"{name}.kpat"), "--limit", "0"))
        whole, *parts = found
        self.assertEqual(whole["passed_ns"], sum(p["passed_ns"] for p in parts))
        added = {bucket: sum(p["buckets_ns"][bucket] for p in parts) for bucket in whole["buckets_ns"]}
        # Unread in its own file, a reader's in all of them together.
        moved = whole["buckets_ns"]["process"] - added["process"]
        self.assertEqual(whole["buckets_ns"], added | {"process": added["process"] + moved, "kernel": added["kernel"] - moved})
        self.assertTrue(0 <= moved <= added["process"] // 200, (moved, added))
        self.assertEqual(moved, sum(x["served_ns"] for x in whole["processes"]) - sum(x["served_ns"] for p in parts for x in p["processes"]))
        sums, names = defaultdict(Counter), {}
        for p in parts:
            for x in p["processes"]:
                names[x["pid"], x["instance"]] = x["name"]
                sums[x["pid"], x["instance"]].update({what: x[what] for what in (*OWN_SUMS, *SOCKETS_SUMS)})
        for x in whole["processes"]:
            own = sums[x["pid"], x["instance"]]
            for what in OWN_SUMS if moved else (*OWN_SUMS, *SOCKETS_SUMS):
                self.assertEqual(x[what], own[what], (x["name"], what))
            self.assertLessEqual(abs(x["served_ns"] - own["served_ns"]), added["process"] // 200, x["name"])
        renamed = {n: (names.get(n), x["name"]) for x in whole["processes"] if names.get(n := (x["pid"], x["instance"])) != x["name"] and not x["is_kernel_thread"]}
        # Another program took its place in the moment between two files, and was over with the first.
        between = {n for x in whole["processes"] if renamed.get(n := (x["pid"], x["instance"]), (None,))[0] in x["names_before"]}
        self.assertLess(len(between), len(files))
        self.assertEqual({n: names for n, names in renamed.items() if n not in between}, {})
        print(f"workloads: {len(files)} files, {len(whole['processes'])} processes, {moved / 1e3:.0f} us read in a later file", file=sys.stderr, flush=True)

    def mixtures(self, seeds: dict[int, str | None]) -> None:
        for seed in still(self, "seed", seeds):
            with self.subTest(seed=seed):
                try:
                    self.mixture(seed, seeds[seed])
                finally:
                    self.stack.close()

    def test_each_is_charged_with_what_it_did(self):
        self.mixtures(SEEDS)

    def test_further_mixtures(self):
        first, last = (int(n) for n in os.environ.get("KPAT_WORKLOADS", "100-112").split("-"))
        self.mixtures(dict.fromkeys(range(first, last), os.environ.get("KPAT_WORKLOADS_OF")))


class Judge:
    def __init__(self, case: Workloads, jobs: dict[str, dict], did: list[dict], p: dict):
        self.case, self.jobs, self.did, self.p, self.wrong, self.judged = case, jobs, did, p, [], 0
        self.by_pid = defaultdict(list)
        for x in p["processes"]:
            self.by_pid[x["pid"]].append(x)
        both = p["packets"]
        self.unseen = max(both["received"] - both["counted"], 0) + p["without_process"].get("unknown", {"packets": 0})["packets"]
        blocks = p["block_requests"]
        self.unseen_blocks = max(blocks["completed"] - blocks["counted"], 0)

    def fault(self, text: str) -> None:
        self.wrong.append(text)

    def equal(self, what: str, ours: int, truth: int, more: int = 0, less: int = 0) -> None:
        self.judged += 1
        if not truth - less <= ours <= truth + more:
            self.fault(f"{what}: {ours}, truth {truth}")

    def of(self, pid: int, name: str) -> dict | None:
        found = [x for x in self.by_pid[pid] if x["name"] == name]
        if not found:
            self.fault(f"{name} {pid}: {[x['name'] for x in self.by_pid[pid]] or 'not there'}")
        return found[0] if found else None

    def ran(self, who: dict, x: dict, switches: int = 0, share: float = 0.02) -> None:
        truth = who["cpu_ns"]
        self.judged += 1
        off = x["ran_ns"] - truth
        # Where in a switch one task's time ends differs; time that is not seen is nobody's. What a virtual machine's host took in the middle of a switch, a few of its ticks,
        # is one's or the other's.
        if who.get("counted"):
            less = 0.01 * truth + 1e6 + min(self.case.stolen_ns, 8e6)
            more = share * truth + 2e6 + 15_000 * switches + min(self.case.stolen_ns, 8e6)
        else:
            less = share * truth + 2e6 + 15_000 * switches
            more = less + self.case.stolen_ns + 10e6
        if not -less - self.p["buckets_ns"]["unseen"] <= off <= more:
            self.fault(f"{who['name']} ran {x['ran_ns'] / 1e9:.4f} s, truth {truth / 1e9:.4f} s ({off * 100 / max(truth, 1):+.1f} %), {switches} switches")

    def faults(self) -> list[str]:
        for d in self.did:
            x = self.of(d["pid"], d["name"])
            if not x:
                continue
            self.ran(d, x, d["switches"])
            child = d.get("child")
            c = child and self.of(child["pid"], child["name"])
            if c:
                self.ran(child, c, 100)
            judge = getattr(self, d["role"], None)
            if judge:
                judge(self.jobs[d["job"]], d, x, c)
            for e in d.get("children", []):
                y = self.of(e["pid"], e["name"])
                if y:
                    self.ran(e, y, 100)
            for e in d.get("ended", []):
                y = self.of(e["pid"], e["name"])
                if y:
                    self.ran(e, y, 10)
        self.sums()
        return self.wrong

    def sums(self) -> None:
        taken, given = Counter(), Counter()
        for t in self.p["taken"]:
            taken[t["victim"], t["victim_instance"]] += t["ns"]
            if t["beneficiary"] and t["for"] != "dropped":
                given[t["beneficiary"], t["beneficiary_instance"]] += t["ns"]
        for x in self.p["processes"]:
            n = x["pid"], x["instance"]
            if x["taken_ns"] != taken[n] or x["served_ns"] - x["served_by_itself_ns"] != given[n]:
                self.fault(f"{x['name']}: taken {x['taken_ns']} and {taken[n]}, served {x['served_ns'] - x['served_by_itself_ns']} and {given[n]}")
        # What else runs on this machine is among them.
        print(f"workloads: packets {self.p['packets']}, unknown {self.p['without_process'].get('unknown')}", file=sys.stderr, flush=True)
        stacks = [json.loads(line) for line in sh(play.kpat_path(), "profile", self.case.log, "--to", "json").stdout.splitlines()]
        sampled = self.p["sampled"]
        self.equal("samples of all stacks", sum(s["samples"] for s in stacks), sampled["samples"] - sampled["idle"])
        self.equal("time of all stacks", sum(s["ns"] for s in stacks), sampled["busy_ns"])
        blocks = self.p["block_requests"]
        # Pages that a kernel thread writes back are among those of a process, and several are one request of a disk.
        pages = sum(t["packets"] for t in self.p["taken"] if t["for"] == "writeback")
        charged = sum(x["block_requests"] for x in self.p["processes"]) - pages
        if blocks and charged > blocks["counted"]:
            self.fault(f"{charged} block requests of {blocks['counted']}")

    # Readers

    def parts(self, port: int, loopback: bool) -> list[int]:
        """Sizes that come to this port."""
        return sorted({n for j in self.jobs.values() if j["role"] == "udp_writer" and port in j["ports"] for n in j["sizes"]})

    def datagrams(self, what: str, x: dict, ports, packets: int, size: int, ends: int, more: int = 0) -> None:
        sizes = {n for p in ports for n in self.parts(p, False)}
        whole = max(sizes) + 8 <= 1480
        loopback = self.jobs[what]["ns"] == self.case.client
        if whole or loopback:
            self.equal(f"{what}: packets", x["served_packets"], packets + ends, more, self.unseen)
            self.equal(f"{what}: bytes", x["served_bytes"], size + 3 * ends + UDP_HEADERS * (packets + ends), 31 * more, self.unseen * 9100)
        else:
            # parts of 1480 bytes, each with a header
            self.equal(f"{what}: bytes", x["served_bytes"], size + 8 * packets + 20 * x["served_packets"] + 11 * ends, less=self.unseen * 9100)

    def udp_reader(self, j, d, x, _):
        if j.get("exits_after"):
            if not j["exits_after"] <= x["served_packets"] <= 2001:
                self.fault(f"{d['name']}: took {d['packets']}, charged {x['served_packets']}")
            writer = next(w for w in self.did if w["role"] == "udp_writer" and j["port"] in self.jobs[w["job"]]["ports"])
            w = self.of(writer["pid"], writer["name"])
            # Elsewhere than on the loopback device the kernel does not report each.
            if w and j["ns"] == self.case.client:
                self.equal(f"{d['name']}: errors to its writer", w["served_packets"], 2001 - x["served_packets"], less=3 + self.unseen)
            return
        more = LAST if j.get("slow") else 0
        self.datagrams(d["name"], x, [j["port"]], d.get("packets", 0), d.get("bytes", 0), d.get("ends", 0), more)
        if d.get("lost"):
            self.equal(f"{d['name']}: lost", x["dropped_packets"], d["lost"], more, self.unseen)

    def pings(self, j, d, x, _):
        # On the loopback device its own requests are copied to it, too.
        self.equal(f"{d['name']}: packets", x["served_packets"], d["packets"], less=self.unseen)

    def threads(self, j, d, x, _):
        self.datagrams(d["name"], x, range(j["port"], j["port"] + j["count"]), d["packets"], d["bytes"], d["ends"])

    def shares(self, j, d, x, c):
        if c:
            both = {"served_packets": x["served_packets"] + c["served_packets"], "served_bytes": x["served_bytes"] + c["served_bytes"]}
            self.datagrams(d["name"], both, [j["port"]], d["packets"] + d["child"]["packets"], d["bytes"] + d["child"]["bytes"], 1)
            self.equal(f"{d['name']}: its part", x["served_packets"], d["packets"] + 1, 2, 2 + self.unseen)

    def tcp_reader(self, j, d, x, _):
        sent = 100 * 100 * j.get("connections", 1) if j.get("answers") else 0
        ours = x["served_bytes"] - TCP_HEADERS * x["served_packets"]
        again = next(w["again"] for w in self.did if w["role"] == "tcp_writer" and self.jobs[w["job"]]["port"] == j["port"])
        if j.get("answers"):
            who = next(w["pid"] for w in self.did if w["role"] == "tcp_writer" and self.jobs[w["job"]]["port"] == j["port"])
            got = sum(c["ns"] for c in self.p["clients"] if (c["server"], c["client"]) == (d["pid"], who))
            if not 0.95 * d["burned_ns"] - 1e6 < got < 1.1 * d["burned_ns"] + 200 * 0.4e6:
                self.fault(f"{d['name']} burned {d['burned_ns'] / 1e6:.1f} ms for {who}, charged {got / 1e6:.1f} ms")
        # Headers of handshakes are longer.
        self.equal(f"{d['name']}: bytes ({again} again)", ours, d["bytes"], again + 100 * j.get("connections", 1), 100 * j.get("connections", 1) + (self.unseen << 16))

    def burner(self, j, d, x, _):
        own = x["user_ns"] + x["kernel_ns"] + x["fault_ns"]
        if x["served_packets"] or x["served_ns"] != x["served_blocks_ns"] + x["served_items_ns"] or x["for_clients_ns"] or x["by_servers_ns"]:
            self.fault(f"the burner is charged with {x}")
        if own > d["cpu_ns"] * 1.01 + 12e6 + self.case.stolen_ns:
            self.fault(f"the burner's own {own / 1e9:.4f} s, it ran {d['cpu_ns'] / 1e9:.4f} s")
        if d["cpu_ns"] - own - x["taken_ns"] - x["served_by_itself_ns"] > 0.02 * d["cpu_ns"] + 1e6:
            self.fault(f"of the burner's {d['cpu_ns'] / 1e9:.4f} s {own / 1e9:.4f} s are its own, {x['taken_ns'] / 1e9:.4f} s taken")

    def server(self, j, d, x, _):
        for client, ns in d["by_client"].items():
            got = sum(c["ns"] for c in self.p["clients"] if c["client"] == int(client) and c["server"] == d["pid"])
            # And what it does besides for each of the 60 requests.
            if not 0.95 * ns - 1e6 < got < 1.1 * ns + 60 * 0.4e6:
                self.fault(f"{d['name']} burned {ns / 1e6:.1f} ms for client {client}, charged {got / 1e6:.1f} ms")

    def pipe_writer(self, j, d, x, c):
        if x["by_servers_ns"] or x["for_clients_ns"] or (c and c["for_clients_ns"]):
            self.fault(f"{d['name']}: a pipeline is no server: {x['by_servers_ns']}, {x['for_clients_ns']}, {c and c['for_clients_ns']}")

    def bytes_of_blocks(self, pid: int) -> int:
        rows = look.kpat_json("sql", str(self.case.log), f"select coalesce(sum(bytes), 0) as n from work where purpose = 7 and beneficiary = {pid}")
        return rows[0]["n"]

    def reader_of_files(self, j, d, x, _):
        self.equal(f"{d['name']}: {j['how']}: bytes read", self.bytes_of_blocks(d["pid"]), d["read_bytes"], (8 << 20) * bool(self.p["buckets_ns"]["unseen"]), self.unseen_blocks << 20)

    def writer_of_files(self, j, d, x, _):
        # What it left to kernel threads is written since.
        self.equal(f"{d['name']}: {j['how']}: bytes written", self.bytes_of_blocks(d["pid"]), d["write_bytes"], 4 << 20, 1 << 16 | self.unseen_blocks << 20)

    def pages(self, j, d, x, _):
        self.equal(f"{d['name']}: page faults", x["page_faults"], d["faults"], 1500, 5)

    def reuses(self, j, d, x, _):
        for e in d["reused"] or []:
            y = self.of(e["pid"], e["name"])
            if y:
                self.ran(e, y, 5)

    def mover(self, j, d, x, _):
        if x["cgroup"] != "/" + Path(j["cgroups"][-1]).name:
            self.fault(f"{d['name']} is in {x['cgroup']}")

    def execs(self, j, d, x, c):
        if c and j["before"] > 0.05 and d["name"] + "-b" not in c["names_before"]:
            self.fault(f"{d['name']}: was called {c['names_before']} before")


Workloads.MIXTURE, Workloads.JUDGE = Mixture, Judge
