"""Packets and sockets of chosen processes alone (`kpat record --only`): of a program that is recorded, of a server that was there before, of a user, of a cgroup, of one that
binds later; through a router that translates addresses. Truth: the counters of rules in the server's namespace, which count what comes and goes by port; the programs' own
bytes; what the kernel counts as sent. On this machine, with tracepoints (in a guest with `KPAT_BY`, by functions)."""
import collections
import json
import os
import sys
import time
import unittest

from kpatlab import cache, look, play
from tests.owners import CGROUPS
from tests.place import Inside, begun, joined, lost, own, probed, sh

CLIENT, SERVER = "10.98.1.1", "10.98.2.2"
A, B, LATER = 7101, 7102, 7103
ROUNDS, BYTES, NOBODY = 12, 60, 65534
SERVE = """
import signal, socket, sys, threading
port = int(sys.argv[1])
def named(): open("/proc/thread-self/comm", "w").write("worker")
def tcp(s):
    named()
    while True:
        c, _ = s.accept()
        while said := c.recv(1000): c.sendall(said)
        c.close()
def udp(s):
    named()
    while True: s.sendto(*s.recvfrom(2000))
t = socket.socket(); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); t.bind(("0.0.0.0", port)); t.listen(16)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("0.0.0.0", port))
for do, s in ((tcp, t), (udp, u)): threading.Thread(target=do, args=(s,), daemon=True).start()
print("ready", flush=True)
signal.pause()
"""
# A round: a connection and a datagram, each answered. Of itself so many, or some whenever there is a file that tells it to.
ASK = f"""
import itertools, os, socket, sys, time
port = int(sys.argv[1])
def ask():
    t = socket.create_connection(("{SERVER}", port)); t.sendall(b"t" * {BYTES}); t.recv(1000); t.close()
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(20); u.sendto(b"u" * {BYTES}, ("{SERVER}", port)); u.recv(1000); u.close()
def rounds(n):
    for _ in range(n): ask()
if sys.argv[2].isdigit(): rounds(int(sys.argv[2]))
else:
    print("ready", flush=True)
    for n in itertools.count():
        while not os.path.exists(f"{{sys.argv[2]}}.{{n}}"): time.sleep(0.02)
        rounds({ROUNDS})
        print("done", flush=True)
"""
# It is bound when recording has begun, and never sends.
BIND_LATER = f"""
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", {LATER})); s.settimeout(60)
open(sys.argv[1], "w").write("bound")
for _ in range({ROUNDS}): s.recv(1000)
"""
SEND_LATER = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in ({LATER}, {LATER} + 1):
    for _ in range({ROUNDS}): s.sendto(b"l" * {BYTES}, ("{SERVER}", port))
"""
# In three parts each.
PARTS = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range({ROUNDS}): s.sendto(b"p" * 4000, ("{SERVER}", {LATER}))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Chosen(unittest.TestCase):
    def routed(self) -> None:
        """Client, router and server; behind the router nobody is seen with his own address."""
        self.client, self.router, self.server = self.all = own(self, "only", "arb")
        for here, address, there, other in ((self.client, CLIENT, "va", "10.98.1.254"), (self.server, SERVER, "vb", "10.98.2.254")):
            sh("ip", "link", "add", "v0", "netns", here, "type", "veth", "peer", "name", there, "netns", self.router)
            sh("ip", "-n", here, "addr", "add", f"{address}/24", "dev", "v0")
            sh("ip", "-n", self.router, "addr", "add", f"{other}/24", "dev", there)
            for ns, dev in ((here, "lo"), (here, "v0"), (self.router, there)):
                sh("ip", "-n", ns, "link", "set", dev, "up")
            sh("ip", "-n", here, "route", "add", "default", "via", other)
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        sh("ip", "netns", "exec", self.router, "nft", 'table ip n { chain p { type nat hook postrouting priority 100; oifname "vb" masquerade; }; }')
        rules = "".join(f"{l4} {way}port {port} counter comment {way}{port};" for port in (A, B) for l4 in ("tcp", "udp") for way in ("d", "s"))
        sh("ip", "netns", "exec", self.server, "nft", f"table ip t {{ chain i {{ type filter hook input priority 0; {rules} }}; chain o {{ type filter hook output priority 0; {rules} }}; }}")

    def counted(self, port: int) -> int:
        """What the server's namespace got at this port and sent from it."""
        rules = json.loads(sh("ip", "netns", "exec", self.server, "nft", "-j", "list", "table", "ip", "t").stdout)["nftables"]
        own = [r["rule"] for r in rules if "rule" in r and r["rule"].get("comment") in (f"d{port}", f"s{port}")]
        return sum(e["counter"]["packets"] for r in own for e in r["expr"] if "counter" in e)

    def serve(self, port: int) -> play.Process:
        return begun(self, f"serve-{port}", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE, str(port)])

    def asker(self, port: int) -> play.Process:
        return begun(self, f"ask-{port}", ["ip", "netns", "exec", self.client, sys.executable, "-c", ASK, str(port), str(self.dir / f"go-{port}")])

    def ask(self, port: int, *before: str) -> None:
        sh("ip", "netns", "exec", self.client, *before, sys.executable, "-c", ASK, port, ROUNDS, seconds=cache.patience())

    def record(self, *words: str) -> play.Process:
        self.kbl, ready = self.dir / "o.kbl", self.dir / "record-ready"
        ready.unlink(missing_ok=True)
        netns = [word for ns in self.all for word in ("--netns", ns)]
        argv = [play.kpat_path(), "record", "-p", "path,app", *probed(), *netns, "-o", str(self.kbl), "--ready-file", str(ready), *words]
        return begun(self, "record", argv, lambda p: ready.exists())

    def integrated(self) -> None:
        self.out = self.dir / "o.kpat"
        look.integrate(self.kbl, [], self.out)
        lost(self, look.kpat_json("info", str(self.out)))
        self.packets = look.kpat_json("packets", str(self.out), "--limit", "0")["packets"]
        self.sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]

    def of(self, *ports: int) -> list[dict]:
        return [p for p in self.packets if {p["src_port"], p["dst_port"]} & set(ports)]

    def these_alone(self, before: int) -> None:
        """Whatever came and went at A's port, from this on, and nothing else."""
        counted = self.counted(A) - before
        self.assertGreater(counted, 8 * ROUNDS)
        self.assertEqual(len(self.of(A)), counted, collections.Counter(p["info"].split(" seq")[0] for p in self.of(A)))
        self.assertEqual([p["info"] for p in self.packets if p not in self.of(A)], [])
        # The kernel drops what is sent twice, as on a slow machine's last segments.
        verdicts = collections.Counter(p["verdict"] for p in self.packets)
        self.assertLessEqual(verdicts.keys(), {"delivered", "dropped"}, verdicts)
        ports = [{s["local_port"], s["peer_port"]} for s in self.sockets]
        # A socket of datagrams that is not connected has no peer.
        self.assertEqual([p for p in ports if A not in p and 0 not in p], [])
        print(f"chosen: {counted} packets, {len(self.sockets)} sockets", file=sys.stderr)

    def sent(self, crossing: str, proto: int) -> int:
        return sum(s["crossings"][crossing]["bytes"] for s in self.sockets if s["proto"] == proto and crossing in s["crossings"])

    def test_the_program_that_is_recorded(self):
        self.routed()
        self.serve(A), self.serve(B)
        record = self.record("--only", "command", "--", "ip", "netns", "exec", self.client, sys.executable, "-c", ASK, str(A), str(ROUNDS))
        self.ask(B)
        record.p.wait(cache.patience())
        self.integrated()
        self.these_alone(0)
        for proto in (6, 17):
            self.assertEqual((self.sent("send", proto), self.sent("recv", proto)), (ROUNDS * BYTES, ROUNDS * BYTES))
        # Also what came back has its whole way, though it was another's until the router had put the address back.
        back = [p for p in self.packets if p["src_port"] == A]
        self.assertEqual({p["src_addr"] for p in back}, {SERVER})
        first = look.kpat_json("packet", str(back[-1]["packet_id"]), str(self.out))["footprints"][0]
        self.assertNotIn(CLIENT, json.dumps(first["fields"]))

    def test_a_server_that_was_there_and_a_user(self):
        self.routed()
        server = self.serve(A)
        self.serve(B)
        record = self.record("--only", f"pid={server.p.pid}")
        self.ask(A), self.ask(B)
        self.assertEqual(record.stop(), 0)
        self.integrated()
        self.these_alone(0)
        before = self.counted(A)
        record = self.record("--force", "--only", f"user={NOBODY}")
        self.ask(A, "setpriv", f"--reuid={NOBODY}", "--clear-groups"), self.ask(B)
        self.assertEqual(record.stop(), 0)
        self.integrated()
        self.these_alone(before)

    @unittest.skipIf("KPAT_BY" in os.environ, "the same by functions")
    def test_a_process_has_its_threads_packets(self):
        # `ps` and `top` show the number and name of the process; its threads, of which none is the first, have others.
        self.routed()
        server = self.serve(A)
        self.serve(B)
        record = self.record()
        self.ask(A), self.ask(B)
        self.assertEqual(record.stop(), 0)
        self.integrated()
        pid, [name] = server.p.pid, sh("ps", "-o", "comm=", "-p", server.p.pid).stdout.split()
        # Segments without data are the kernel's own; the longest of these, with its options, has 60 bytes.
        found = lambda condition: [(p["protocol"], p["src_port"]) for p in look.kpat_json("packets", str(self.out), f"{condition} and len > 60", "-n", "0")["packets"]]
        answers = [("TCP", A)] * ROUNDS + [("UDP", A)] * ROUNDS
        self.assertEqual(sorted(found(f"writer.pid == {pid}")), answers)
        self.assertEqual(sorted(found(f"writer == worker and port == {A}")), answers)
        self.assertEqual(sorted(found(f"writer == {name} and writer == worker and port == {A}")), answers)
        # And the questions, which it read.
        self.assertEqual(len(found(f"pid == {pid}")), 4 * ROUNDS)
        self.assertEqual(found(f"pid == {pid} and port != {A}"), [])
        self.assertEqual([x for x in found(f"writer and writer.pid != {pid}") if x in answers], [])

    @unittest.skipUnless(CGROUPS, "needs cgroup2")
    def test_a_cgroup(self):
        self.routed()
        self.serve(A), self.serve(B)
        group = CGROUPS / f"kpat-chosen-{os.getpid()}"
        group.mkdir()
        self.stack.callback(group.rmdir)
        record = self.record("--only", f"cgroup=/{group.name}")
        into = f"echo $$ > {group}/cgroup.procs && exec nsenter --net=/run/netns/{self.client} {sys.executable} -c \"$1\" {A} {ROUNDS}"
        sh("sh", "-c", into, "sh", ASK, seconds=cache.patience())
        self.ask(B)
        self.assertEqual(record.stop(), 0)
        self.integrated()
        self.these_alone(0)

    def test_choices_that_change(self):
        self.routed()
        self.serve(A), self.serve(B)
        a, b = self.asker(A), self.asker(B)
        record = self.record("--only", f"pid={a.p.pid}")
        ctl = lambda *words: sh(play.kpat_path(), "ctl", "--pid", record.p.pid, "only", *words)

        def both() -> list[int]:
            was = [self.counted(A), self.counted(B)]
            for port, p in ((A, a), (B, b)):
                said = play.text_of(p.stdout).count("done")
                (self.dir / f"go-{port}.{said}").touch()
                p.wait_ready(lambda: play.text_of(p.stdout).count("done") > said, cache.patience())
            return [now - then for now, then in zip((self.counted(A), self.counted(B)), was)]

        first = both()
        ctl("add", f"pid={b.p.pid}")
        second = both()
        ctl("remove", f"pid={a.p.pid}")
        third = both()
        ctl("all")
        fourth = both()
        self.assertEqual(record.stop(), 0)
        self.integrated()
        self.assertEqual(len(self.of(A)), first[0] + second[0] + fourth[0])
        self.assertEqual(len(self.of(B)), second[1] + third[1] + fourth[1])
        bytes_at = lambda port: sum(s["crossings"]["send"]["bytes"] for s in self.sockets if s["peer_port"] == port and "send" in s["crossings"])
        self.assertEqual((bytes_at(A), bytes_at(B)), (3 * ROUNDS * BYTES, 3 * ROUNDS * BYTES))

    def test_a_port_that_another_has_later(self):
        self.client, self.server = self.all = joined(self, "only", "v0", "10.98.2.1", SERVER)
        go, over, bound = (self.dir / name for name in ("go", "over", "bound"))
        does = f'echo ready; until [ -e {go} ]; do sleep 0.1; done; {sys.executable} -c "$1" {bound}; touch {over}; exec sleep 600'
        shell = begun(self, "shell", ["ip", "netns", "exec", self.server, "sh", "-c", does, "sh", BIND_LATER])
        record = self.record("--only", f"pid={shell.p.pid}")
        go.touch()
        shell.wait_ready(bound.exists, cache.patience())
        time.sleep(3)  # it is looked for once a second, and nothing says when
        send = ["ip", "netns", "exec", self.client, sys.executable, "-c", SEND_LATER]
        sh(*send)
        shell.wait_ready(over.exists, cache.patience())
        time.sleep(3)
        other = begun(self, "other", ["ip", "netns", "exec", self.server, sys.executable, "-c", BIND_LATER, str(self.dir / "also")], lambda p: (self.dir / "also").exists())
        sh(*send)
        other.p.wait(cache.patience())
        self.assertEqual(record.stop(), 0)
        self.integrated()
        self.assertEqual([(p["dst_port"], p["verdict"]) for p in self.packets], [(LATER, "delivered")] * ROUNDS)

    def test_who_binds_later_and_parts_and_echoes(self):
        self.client, self.server = self.all = joined(self, "only", "v0", "10.98.2.1", SERVER)
        bound = self.dir / "bound"
        record = self.record("--only", "command", "--", "ip", "netns", "exec", self.server, sys.executable, "-c", BIND_LATER, str(bound))
        record.wait_ready(bound.exists, cache.patience())
        time.sleep(3)  # it is looked for once a second, and nothing says when
        sh("ip", "netns", "exec", self.client, sys.executable, "-c", SEND_LATER)
        record.p.wait(cache.patience())
        self.integrated()
        self.assertEqual([(p["dst_port"], p["verdict"]) for p in self.packets], [(LATER, "delivered")] * ROUNDS)

        asked, over = self.dir / "asked", self.dir / "over"
        does = f'ping -c {ROUNDS} -i 0.01 {SERVER} && touch {asked} && {sys.executable} -c "$1"; until [ -e {over} ]; do sleep 0.05; done'
        before = self.counters()
        record = self.record("--force", "--only", "command", "--", "ip", "netns", "exec", self.client, "sh", "-c", does, "sh", PARTS)
        record.wait_ready(asked.exists, cache.patience())
        # The other side's own questions are of the same two hosts: ICMP has no ports.
        sh("ip", "netns", "exec", self.server, "ping", "-c", ROUNDS, "-i", "0.01", "-s", "77", "10.98.2.1")
        sent = lambda: collections.Counter({k: n - before[k] for k, n in self.counters().items()})
        record.wait_ready(lambda: sent()["IpFragCreates"] == 3 * ROUNDS, cache.patience())
        over.touch()
        record.p.wait(cache.patience())
        self.integrated()
        # What the kernel says of the closed port is of the flow that it is about.
        of = collections.Counter((p["ip_proto"], p["icmp_type"]) for p in self.packets)
        self.assertEqual(of, {(17, None): sent()["IpFragCreates"], (1, 8): sent()["IcmpOutEchos"], (1, 0): sent()["IcmpOutEchoReps"], (1, 3): sent()["IcmpOutDestUnreachs"]})

    def counters(self) -> collections.Counter:
        """What both namespaces sent so far, by the kernel's own names."""
        both = collections.Counter()
        for ns in self.all:
            both.update(json.loads(sh("ip", "netns", "exec", ns, "nstat", "-aszj").stdout)["kernel"])
        return both


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Chosen72(Inside, unittest.TestCase):
    series, detail = "7.2", "steps"
    # The others ask the same of users and cgroups, which costs an emulated processor minutes.
    of = "Chosen.test_the_program_that_is_recorded Chosen.test_choices_that_change Chosen.test_who_binds_later_and_parts_and_echoes"
    modules, marked = "veth nf_tables nft_nat nft_chain_nat nft_masq nf_nat nf_conntrack", "chosen:"


class Chosen61(Chosen72):
    series = "6.1"


class Chosen612(Chosen72):
    series = "6.12"


if __name__ == "__main__":
    unittest.main()
