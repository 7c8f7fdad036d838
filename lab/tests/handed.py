"""Whom the CPUs worked for where a packet's program is not who opened its socket: sockets that are handed to other processes (SCM_RIGHTS, fork, workers that share a listening one,
pools of threads), packets that more than one program sees (sniffers, groups of readers, TUN devices), IPv6, polling readers, and processes whose id, name or threads are not what
they seem (PID namespaces, a first thread that ends before others, a thread that runs another program, vfork). Drawn by chance as the mixtures of workloads.py are, and beside
these; truth is what each process took by its own count."""
import json
import os
import random
import shutil
import sys
import unittest
from collections import Counter, defaultdict

from kpatlab import play
from kpatlab.cache import LAB
from tests import profile, workloads
from tests.place import own, sh

# Mixtures of those kinds that showed faults.
SEEDS = {9: "crowd polling", 12: "tun pool preforks udp_crowded tun", 11: "namespaced leader crowd unread", 27: "passes leader six sniffer", 4: "pool preforks tun threads_exec spawns inherits"}
SIX_HEADERS = 48


class Mixture(workloads.Mixture):
    def written(self, to: str, ports: list[int], **more) -> None:
        self.job("udp_writer", "c", to=to, ports=ports, **{"sizes": self.chance.choice([[64], [1400], [10, 600, 1300]]), "count": self.chance.randint(500, 3000), "burst": self.chance.choice([5, 40]), **more})

    def one(self, role: str, **more) -> None:
        at, to = self.where()
        p, = self.ports(1)
        self.job(role, at, port=p, **more)
        self.written(to, [p])

    def passes(self):
        self.one("passes")

    def inherits(self):
        self.one("inherits")

    def crowd(self):
        at, to = self.where()
        p, = self.ports(1)
        n = self.chance.choice([2, 5])
        self.job("crowd", at, port=p, count=n)
        # Each of them takes one end.
        self.written(to, [p], ends=n)

    def preforks(self):
        at, to = self.where()
        p, = self.ports(1)
        n = self.chance.choice([10, 60])
        self.job("preforks", at, port=p, count=self.chance.choice([2, 6]), connections=n)
        self.job("tcp_writer", "c", to=to, port=p, connections=n, times=self.chance.choice([1, 20]), piece=self.chance.choice([100, 20000]))

    def pool(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("pool", at, port=p, connections=20)
        self.job("tcp_writer", "c", to=to, port=p, connections=20, times=self.chance.choice([5, 40]), piece=self.chance.choice([100, 20000]))

    def sniffer(self):
        at, to, dev = self.chance.choice([("s", "10.96.2.2", "s0"), ("r", "10.96.1.1", "r0"), ("r", "10.96.2.2", "r0")])
        p, = self.ports(1)
        self.job("udp_reader", at if to != "10.96.2.2" else "s", port=p)
        self.job("sniffs", at, dev=dev)
        self.written(to, [p], ends=2)

    def tun(self):
        n = len(self.jobs)
        p, = self.ports(1)
        self.job("tuns", "c", dev=f"tun{n}", near=f"10.77.{n}.1")
        self.job("udp_reader", "c", port=p)
        self.written(f"10.77.{n}.2", [p])

    def six(self):
        at, to = self.chance.choice([("c", "::1"), ("r", "fd96:1::1")])
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, six=True, how=self.chance.choice(["recv", "recvmmsg"]))
        self.written(to, [p], six=True, sizes=self.chance.choice([[64], [1300], [4000], [200, 9000]]))

    def polling(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, polls=50, how=self.chance.choice(["recv", "epoll"]))
        self.written(to, [p])

    def namespaced(self):
        self.one("namespaced")

    def leader(self):
        self.one("leader_exits")

    def threads_exec(self):
        self.job("thread_execs", after=0.1)

    def spawns(self):
        self.job("spawns", count=40)

    def unread(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("unread", at, port=p)
        self.written(to, [p], count=300, ends=0)

    OWN = (passes, inherits, crowd, preforks, pool, sniffer, tun, six, polling, namespaced, leader, threads_exec, spawns, unread)

    def draw(self, kinds: str | None) -> list[dict]:
        if kinds:
            return super().draw(kinds)
        drawn = self.chance.sample(self.OWN, self.chance.randint(2, 4)) + self.chance.sample(workloads.Mixture.KINDS, self.chance.randint(0, 3))
        return super().draw(" ".join(k.__name__ for k in drawn))


class Judge(workloads.Judge):
    def datagrams(self, what, x, ports, packets, size, ends, more=0):
        if not self.jobs[what].get("six"):
            return super().datagrams(what, x, ports, packets, size, ends, more)
        if self.jobs[what]["ns"] == self.case.client or max(self.parts(ports[0], True)) < 1400:
            self.equal(f"{what}: packets", x["served_packets"], packets + ends, more, self.unseen)
            self.equal(f"{what}: bytes", x["served_bytes"], size + 3 * ends + SIX_HEADERS * (packets + ends), 31 * more, self.unseen * 9100)
        else:
            # Of fragments each has two headers; the last that says the end is none.
            fragments = x["served_packets"] - ends - self.whole(ports[0], packets)
            self.equal(f"{what}: bytes", x["served_bytes"], size + 3 * ends + 8 * (packets + ends) + 40 * x["served_packets"] + 8 * fragments, less=self.unseen * 9100)

    def whole(self, port: int, packets: int) -> int:
        """Datagrams that are no fragments."""
        j = next(j for j in self.jobs.values() if j["role"] == "udp_writer" and port in j["ports"])
        return sum(j["sizes"][i % len(j["sizes"])] < 1400 for i in range(packets))

    def nobody(self, d, x, most: int = 0) -> None:
        self.equal(f"{d['name']}: packets, of which none is its own", x["served_packets"], 0, most)

    def handed(self, j, d, x, _):
        self.nobody(d, x, 1)
        c, = d["children"]
        y = self.of(c["pid"], c["name"])
        if y:
            self.packets_of(j, c, y)

    passes = inherits = namespaced = leader_exits = handed

    def packets_of(self, j, c, y) -> None:
        self.equal(f"{c['name']}: packets", y["served_packets"], c["packets"] + c["ends"], 0, self.unseen)
        self.equal(f"{c['name']}: bytes", y["served_bytes"], c["bytes"] + 3 * c["ends"] + 28 * (c["packets"] + c["ends"]), 0, 1500 * self.unseen)

    def crowd(self, j, d, x, _):
        self.nobody(d, x, 1)
        got = [(c, self.of(c["pid"], c["name"])) for c in d["children"]]
        if all(y for _, y in got):
            truth = sum(c.get("packets", 0) + c["ends"] for c, _ in got)
            self.equal(f"{d['name']}: packets of all", sum(y["served_packets"] for _, y in got), truth, 0, self.unseen)
            for c, y in got:
                # A datagram has one taker.
                mine = c.get("packets", 0) + c["ends"]
                self.equal(f"{c['name']}: packets", y["served_packets"], mine, 1, 1 + self.unseen)
                self.equal(f"{c['name']}: bytes", y["served_bytes"], c.get("bytes", 0) + 3 * c["ends"] + workloads.UDP_HEADERS * mine, 1500, 1500 + 1500 * self.unseen)

    def preforks(self, j, d, x, _):
        self.nobody(d, x, 4 * j["connections"])
        for c in d["children"]:
            y = self.of(c["pid"], c["name"])
            if y:
                ours = y["served_bytes"] - workloads.TCP_HEADERS * y["served_packets"]
                again = next(w["again"] for w in self.did if w["role"] == "tcp_writer" and self.jobs[w["job"]]["port"] == j["port"])
                self.equal(f"{c['name']}: bytes in {c['connections']} connections", ours, c["bytes"], again + 100 * j["connections"], 100 * j["connections"] + (self.unseen << 16))

    def pool(self, j, d, x, _):
        self.tcp_reader(j, d, x, None)

    def sniffs(self, j, d, x, _):
        if d["lost"]:
            return
        besides = d["outgoing"] + d["before"]
        self.equal(f"{d['name']}: frames ({d['outgoing']} outgoing, {d['before']} before)", x["served_packets"], d["packets"], 5 + besides, 2 + self.unseen)

    def tuns(self, j, d, x, _):
        self.nobody(d, x)

    def unread(self, j, d, x, _):
        if x["served_packets"] not in (0, 300):
            self.fault(f"{d['name']}: 300 packets in its queue, charged {x['served_packets']}")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Handed(workloads.Workloads):
    MIXTURE, JUDGE = Mixture, Judge

    def join(self, chance: random.Random, said: list[str]) -> None:
        super().join(chance, said)
        for ns, devices in ((self.client, ("lo", "c0")), (self.router, ("r0",))):
            for dev in devices:
                sh("ip", "netns", "exec", ns, "sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=0")
        sh("ip", "-n", self.client, "addr", "add", "fd96:1::2/64", "dev", "c0", "nodad")
        sh("ip", "-n", self.router, "addr", "add", "fd96:1::1/64", "dev", "r0", "nodad")
        sh("ip", "netns", "exec", self.client, "ping", "-nqc", "2", "-i", "0.2", "fd96:1::1")

    def test_each_is_charged_with_what_it_did(self):
        self.mixtures(SEEDS)

    test_files_of_a_recording_add_up_to_the_whole = None


# Programs that are alike but for a function's name, at the same addresses in each.
ALIKE = """
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline)) void %s(long ms) { while (clock() < ms * (CLOCKS_PER_SEC / 1000)) for (volatile int i = 0; i < 100000; i++); }
int main(int n, char **v) { long ms = atol(v[1]); %s(ms); if (n > 2) execl(v[2], v[2], v[3], (char *)0); return 0; }
"""
# As processes of one id one after the other, and one in the place of another.
LIKE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import workloads
first = os.fork()
if not first: os._exit(0)
os.waitpid(first, 0)
for program in sys.argv[2:5]:
    child = workloads.fork_as(first)
    if not child: os.execv(program, [program, "400"])
    if child < 0: sys.exit("the id is another's")
    os.waitpid(child, 0)
child = os.fork()
if not child: os.execv(sys.argv[2], [sys.argv[2], "400", sys.argv[3], "800"])
os.waitpid(child, 0)
print("did", first, child, flush=True)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class Alike(profile.Recorded):
    def test_a_stacks_functions_are_those_of_the_program_that_ran_then(self):
        own(self, "alike", "")
        names = ["spins_a", "spins_b", "spins_c"]
        for name in names:
            (self.dir / f"{name}.c").write_text(ALIKE % (name, name))
            sh("cc", "-O1", "-static", "-no-pie", "-fno-omit-frame-pointer", "-Wl,--build-id", "-o", self.dir / name, self.dir / f"{name}.c")
        addresses = {line.split()[0] for name in names for line in sh("nm", self.dir / name).stdout.splitlines() if line.endswith(name)}
        self.assertEqual(len(addresses), 1, "the programs are not alike")
        programs = [self.dir / name for name in names]
        (first, child), _ = self.profile("alike", lambda: self.text_of(self.start(None, "like", 0, LIKE, LAB / "tools", *programs), "did"))
        found = defaultdict(Counter)
        for line in sh(play.kpat_path(), "profile", self.dir / "alike.kpat", "--to", "json").stdout.splitlines():
            s = json.loads(line)
            for f in s["functions"]:
                if f["function"] and f["function"].startswith("spins_"):
                    found[s["victim"], s["victim_instance"], s["victim_name"]][f["function"]] += s["samples"]
        print(f"alike: {({k: dict(v) for k, v in found.items()})}", file=sys.stderr, flush=True)
        of_first = {name: functions for (pid, _, name), functions in found.items() if pid == first}
        self.assertEqual({name: set(functions) for name, functions in of_first.items()}, {name: {name} for name in names})
        both = sum((functions for (pid, *_), functions in found.items() if pid == child), Counter())
        self.assertEqual(set(both), set(names[:2]), "of two programs in one process each has its own")
        # Each ran for 400 ms.
        for functions in (*of_first.values(), both):
            self.assertGreater(min(functions.values()) * 2, max(functions.values()))
