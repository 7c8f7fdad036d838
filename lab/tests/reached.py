"""Whom the CPUs worked for where packets reach a program by other ways than one socket of its own in a network that is simply joined: groups of processes that share a port (SO_REUSEPORT),
bridges, tunnels (VXLAN), macvlan, containers, fragments of IPv6 that are forwarded, io_uring, splice() out of a connection. Drawn by chance beside the mixtures of
workloads.py and handed.py; truth is what each process took by its own count."""
import os
import random
import sys
import unittest

from tests import handed, workloads
from tests.place import sh

# Mixtures that showed faults: packets of a tunnel as two, or with its headers; a fragment of IPv6 that was a TCP socket's.
SEEDS = {205: None, 245: None}
ID = "7b1ae58c1d7340cbf7e1f4a9c0b77d2e6a1903b1f4a9c0b77d2e6a1903bb1ae5"
URING_ASYNC, URING_READ, URING_RECV = 1 << 4, 22, 27


class Mixture(handed.Mixture):
    """Readers are also behind a bridge, at the bridge itself, at the other end of a tunnel, and in a container's network."""

    def __init__(self, case, chance):
        super().__init__(case, chance)
        self.further = [("s", "10.98.0.3"), ("r", "10.98.0.1"), ("r", "10.99.0.2"), ("k", "10.96.3.2"), ("m", "10.96.3.3")]

    def job(self, role: str, ns: str = "c", cpu: int | None = None, **more) -> dict:
        j = super().job(role, ns if ns in "crs" else "c", cpu, **more)
        if ns not in "crs":
            j["ns"] = self.case.more_ns[ns]
        return j

    def where(self) -> tuple[str, str]:
        return self.chance.choice(self.further) if self.chance.random() < 0.6 else super().where()

    def grouped(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("grouped", at, port=p, count=self.chance.choice([2, 4]))
        self.job("many_writers", "c", to=to, ports=[p], sources=self.chance.choice([3, 16]), sizes=self.chance.choice([[64], [1300], [10, 600, 1300]]), count=self.chance.randint(500, 4000),
                 burst=self.chance.choice([5, 40]))

    def listens_grouped(self):
        at, to = self.where()
        p, = self.ports(1)
        n = self.chance.choice([10, 40])
        self.job("listens_grouped", at, port=p, count=self.chance.choice([2, 4]), connections=n)
        self.job("tcp_writer", "c", to=to, port=p, connections=n, times=self.chance.choice([1, 20]), piece=self.chance.choice([100, 20000]))

    def further_udp(self):
        at, to = self.chance.choice(self.further)
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, how=self.chance.choice(["recv", "recvmmsg", "epoll"]))
        self.written(to, [p], sizes=self.chance.choice([[64], [1300], [10, 600, 1300]]))

    def further_fragments(self):
        at, to = self.chance.choice(self.further)
        p, = self.ports(1)
        self.job("udp_reader", at, port=p, how=self.chance.choice(["recv", "recvmmsg"]))
        self.written(to, [p], sizes=self.chance.choice([[4000], [200, 9000]]), fragments=True)

    def further_tcp(self):
        at, to = self.chance.choice(self.further)
        p, = self.ports(1)
        n = self.chance.choice([1, 10])
        self.job("tcp_reader", at, port=p, connections=n, piece=self.chance.choice([1000, 65536]))
        self.job("tcp_writer", "c", to=to, port=p, connections=n, times=self.chance.choice([20, 200]), piece=self.chance.choice([100, 1448, 65536]))

    def six_far(self):
        p, = self.ports(1)
        self.job("udp_reader", "s", port=p, six=True, how=self.chance.choice(["recv", "recvmmsg"]))
        self.written("fd96:2::2", [p], six=True, sizes=self.chance.choice([[64], [1300], [4000], [200, 9000]]))

    def contained(self):
        if not self.case.cgroups:
            return
        p, = self.ports(1)
        self.job("contained", "k", port=p, cgroup=str(self.case.container))
        self.written("10.96.3.2", [p])

    def uring(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("uring_reader", at, port=p, depth=self.chance.choice([1, 8]), flags=self.chance.choice([0, URING_ASYNC]))
        self.written(to, [p])

    def uring_tcp(self):
        at, to = self.where()
        p, = self.ports(1)
        n = self.chance.choice([1, 5])
        flags = self.chance.choice([0, 0, URING_ASYNC])
        more = {"connections": n, "piece": self.chance.choice([1448, 65536])}
        reads, writes = self.chance.choice([(True, True), (True, False), (False, True)])
        if reads:
            self.job("uring_tcp_reader", at, port=p, flags=flags, op=self.chance.choice([URING_READ, URING_RECV]), **more)
        else:
            self.job("tcp_reader", at, port=p, **more)
        self.job("uring_writer" if writes else "tcp_writer", "c", to=to, port=p, times=self.chance.choice([20, 150]), flags=flags, **more)

    def splicer(self):
        at, to = self.where()
        p, = self.ports(1)
        self.job("splicer", at, port=p, connections=3)
        self.job("tcp_writer", "c", to=to, port=p, connections=3, times=self.chance.choice([20, 200]), piece=self.chance.choice([1000, 65536]))

    OWN = (grouped, listens_grouped, further_udp, further_fragments, further_tcp, six_far, contained, uring, uring_tcp, splicer)

    def draw(self, kinds: str | None) -> list[dict]:
        if not kinds:
            drawn = self.chance.sample(self.OWN, self.chance.randint(3, 5)) + self.chance.sample(handed.Mixture.OWN, self.chance.randint(0, 2)) + self.chance.sample(workloads.Mixture.KINDS, self.chance.randint(0, 2))
            kinds = " ".join(k.__name__ for k in drawn)
        return super().draw(kinds)


class Judge(handed.Judge):
    def sums(self) -> None:
        super().sums()
        unknown = self.p["without_process"].get("unknown", {"packets": 0})["packets"]
        self.equal("packets of which nobody knows whose they are", unknown, 0, 20 + self.p["packets"]["counted"] // 200)

    def writer_at(self, j) -> dict:
        return next(w for w in self.did if self.jobs[w["job"]].get("port") == j["port"] and "writer" in w["role"])

    def datagrams(self, what, x, ports, packets, size, ends, more=0):
        j = self.jobs[what]
        w = next(w for w in self.jobs.values() if "ports" in w and ports[0] in w["ports"])
        if w.get("fragments"):
            # How many parts, the smallest device on the way says.
            if not packets + ends - self.unseen <= x["served_packets"] <= packets * (max(w["sizes"]) // 1300 + 1) + ends:
                self.fault(f"{what}: packets {x['served_packets']} of {packets} datagrams")
            self.equal(f"{what}: bytes", x["served_bytes"], size + 8 * packets + 20 * x["served_packets"] + 11 * ends, less=self.unseen * 9100)
        else:
            super().datagrams(what, x, ports, packets, size, ends, more)

    def grouped(self, j, d, x, _):
        self.nobody(d, x)
        for c in d["children"]:
            y = self.of(c["pid"], c["name"])
            if y:
                self.packets_of(j, c, y)

    def listens_grouped(self, j, d, x, _):
        self.nobody(d, x)
        again = self.writer_at(j)["again"]
        for c in d["children"]:
            y = self.of(c["pid"], c["name"])
            if y:
                ours = y["served_bytes"] - workloads.TCP_HEADERS * y["served_packets"]
                self.equal(f"{c['name']}: bytes in {c['connections']} connections", ours, c["bytes"], again + 100 * c["connections"], 100 * c["connections"] + (self.unseen << 16))

    def contained(self, j, d, x, _):
        self.handed(j, d, x, None)
        for who in (x, self.of(d["children"][0]["pid"], d["children"][0]["name"])):
            if who and (who["container"] != ID[:12] or not who["cgroup"].endswith(f"{ID}.scope")):
                self.fault(f"{who['name']}: container {who['container']}, cgroup {who['cgroup']}")

    def uring_reader(self, j, d, x, _):
        self.packets_of(j, d, x)

    def uring_tcp_reader(self, j, d, x, _):
        again, n = self.writer_at(j)["again"], j.get("connections", 1)
        self.equal(f"{d['name']}: bytes ({again} again)", x["served_bytes"] - workloads.TCP_HEADERS * x["served_packets"], d["bytes"], again + 100 * n, 100 * n + (self.unseen << 16))

    splicer = uring_tcp_reader

    def tcp_reader(self, j, d, x, _):
        if self.writer_at(j)["role"] == "uring_writer":
            self.uring_tcp_reader(j, d, x, _)
        else:
            super().tcp_reader(j, d, x, _)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Reached(handed.Handed):
    MIXTURE, JUDGE = Mixture, Judge

    def namespace(self, letter: str) -> str:
        ns = f"kprof{os.getpid()}{letter}"
        sh("ip", "netns", "add", ns)
        self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        sh("ip", "-n", ns, "link", "set", "lo", "up")
        return ns

    def port(self, ns: str, dev: str, address: str, port: str) -> None:
        """A device of a namespace whose other end is the router's bridge's."""
        sh("ip", "-n", ns, "link", "add", dev, "type", "veth", "peer", "name", port, "netns", self.router)
        sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", dev)
        sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", self.router, "link", "set", port, "master", "br0", "up")

    def join(self, chance: random.Random, said: list[str]) -> None:
        super().join(chance, said)
        c, r, s = self.client, self.router, self.server
        sh("ip", "-n", r, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", r, "addr", "add", "10.98.0.1/24", "dev", "br0")
        sh("ip", "-n", r, "link", "set", "br0", "up")
        self.port(c, "c1", "10.98.0.2", "b0")
        self.port(s, "s1", "10.98.0.3", "b1")
        for ns, near, far, address in ((c, "10.96.1.2", "10.96.1.1", "10.99.0.1"), (r, "10.96.1.1", "10.96.1.2", "10.99.0.2")):
            sh("ip", "-n", ns, "link", "add", "vx0", "type", "vxlan", "id", "5", "dstport", "4789", "local", near, "remote", far)
            sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", "vx0")
            sh("ip", "-n", ns, "link", "set", "vx0", "up")
        self.more_ns = {"k": self.namespace("k"), "m": self.namespace("m")}
        k, m = self.more_ns["k"], self.more_ns["m"]
        self.link(k, "k0", "10.96.3.2", r, "r2", "10.96.3.1")
        # Another network at the same device.
        sh("ip", "-n", k, "link", "add", "m0", "link", "k0", "netns", m, "type", "macvlan", "mode", "bridge")
        sh("ip", "-n", m, "addr", "add", "10.96.3.3/24", "dev", "m0")
        sh("ip", "-n", m, "link", "set", "m0", "up")
        for ns in (k, m):
            sh("ip", "-n", ns, "route", "add", "default", "via", "10.96.3.1")
        for ns, dev, address in ((r, "r1", "fd96:2::1"), (s, "s0", "fd96:2::2")):
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=0")
            sh("ip", "-n", ns, "addr", "add", f"{address}/64", "dev", dev, "nodad")
        sh("ip", "netns", "exec", r, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        sh("ip", "-n", c, "-6", "route", "add", "fd96:2::/64", "via", "fd96:1::1")
        sh("ip", "-n", s, "-6", "route", "add", "fd96:1::/64", "via", "fd96:2::1")
        for ns, dev in ((r, "b0"), (s, "s1"), (k, "k0")):
            if chance.random() < 0.4:
                sh("ip", "netns", "exec", ns, "ethtool", "-K", dev, "gro", "on", ok=False)
                said.append(f"{dev} gro")
            if chance.random() < 0.2:
                sh("ip", "netns", "exec", ns, "sh", "-c", f"echo 1 > /sys/class/net/{dev}/threaded", ok=False)
                said.append(f"{dev} threaded")
        if self.cgroups:
            self.container = self.cgroups[0] / f"docker-{ID}.scope"
            self.container.mkdir()
            self.cgroups.insert(0, self.container)
        for to in ("10.98.0.1", "10.98.0.3", "10.99.0.2", "10.96.3.2", "10.96.3.3", "fd96:2::2"):
            sh("ip", "netns", "exec", c, "ping", "-nqc", "2", "-i", "0.2", to)

    def test_each_is_charged_with_what_it_did(self):
        self.mixtures(SEEDS)
