"""Users and cgroups in conditions. Two users in two cgroups each speak TCP and UDP; the user and the cgroup of each socket, as `ss -e` and
`ss --cgroup` show them, are the truth, and the packets are told apart by their ports."""
import os
import re
import sys
import unittest
from pathlib import Path

from kpatlab import cache, look, play
from tests.place import own, sh

CGROUPS = next((m for m in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if (m / "cgroup.controllers").exists()), None)
ID = "1f4a9c0b77d2e6a1903bb1ae58c1d7340cbf7e1f4a9c0b77d2e6a1903bb1ae58"
# A user with a name in /etc/passwd, and one without.
USERS = {"daemon": 1, "": 54321}

SERVE = """
import socket, sys, threading
t = socket.create_server(("", 7000))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("", 7001))
def echo():
    while True:
        data, peer = u.recvfrom(2000)
        u.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
print("ready", flush=True)
def answer(c):
    while data := c.recv(5000): c.sendall(data)
while True: threading.Thread(target=answer, args=[t.accept()[0]], daemon=True).start()
"""
SPEAK = """
import os, signal, socket, sys
t = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
t.bind(("10.98.0.1", int(sys.argv[1])))
t.connect(("10.98.0.2", 7000))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("10.98.0.1", int(sys.argv[1]) + 1))
u.connect(("10.98.0.2", 7001))
for i in range(20):
    t.sendall(b"x" * 700)
    n = 0
    while n < 700: n += len(t.recv(700))
    u.send(b"y" * 100)
    u.recv(200)
print("spoke", flush=True)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(CGROUPS, "needs cgroup2")
class Owners(unittest.TestCase):
    def test_packets_sockets_and_writes_by_user_and_cgroup(self):
        client, server = own(self, "owners", "cs")
        sh("ip", "-n", client, "link", "add", "c0", "type", "veth", "peer", "name", "s0", "netns", server)
        for ns, dev, n in ((client, "c0", 1), (server, "s0", 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.98.0.{n}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        root = f"kpat-owners-{os.getpid()}"
        places = [f"{root}/{root}.service", f"{root}/docker-{ID}.scope"]
        self.stack.callback(lambda: [(CGROUPS / p).rmdir() for p in [*places, root]])
        for place in [root, *places]:
            (CGROUPS / place).mkdir()

        def start(name: str, ns: str, uid: int, place: str, ready, code: str, *args):
            # Not by `ip netns exec`, which takes the cgroups out of sight.
            into = f'echo $$ > {CGROUPS}/{place}/cgroup.procs && exec nsenter --net=/run/netns/{ns} setpriv --reuid {uid} --clear-groups "$@"'
            p = play.Process(name, ["sh", "-c", into, "sh", sys.executable, "-c", code, *map(str, args)], self.dir)
            self.stack.callback(p.stop)
            p.wait_ready(lambda: ready in play.text_of(p.stdout), cache.patience())
            return p

        start("serve", server, 0, root, "ready", SERVE)
        kbl, out, ready = self.dir / "x.kbl", self.dir / "x.kpat", self.dir / "ready"
        argv = [play.kpat_path(), "record", "-p", "path,app", "--netns", client, "--no-cost", "-o", str(kbl), "--ready-file", str(ready)]
        record = play.Process("record", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        ports, speakers = {}, {}
        for i, (name, uid) in enumerate(USERS.items()):
            ports[uid] = 40000 + 10 * i
            speakers[uid] = start(f"speak{uid}", client, uid, places[i], "spoke", SPEAK, ports[uid]).p.pid
        shown = sh("nsenter", f"--net=/run/netns/{client}", "ss", "-Htuneio", "--cgroup").stdout
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        log = look.Log(out)

        truth = {}
        for line in shown.splitlines():
            if found := re.search(r"10\.98\.0\.1:(\d+) .*\bsk:([0-9a-f]+)\b", line):
                uid, cgroup = re.search(r"uid:(\d+)", line), re.search(r"cgroup:(\S+)", line)
                truth[int(found[1])] = (int(found[2], 16), int(uid[1]) if uid else 0, cgroup[1])
        self.assertEqual(sorted(truth), sorted(p + more for p in ports.values() for more in (0, 1)), shown)
        sockets = {s["socket_id"]: s for s in look.kpat_json("app", str(out))["sockets"]}
        for port, (cookie, uid, cgroup) in truth.items():
            s = sockets[cookie]
            self.assertEqual((s["uid"], s["cgroup_path"]), (uid, cgroup), f"port {port}")

        everything = {p["packet_id"]: p for p in log.packets()}
        # Who connects first asks for the address, too, which has no ports.
        by = lambda expression: {p["packet_id"] for p in log.packets(expression) if p["src_port"]}
        of_ports = {uid: {i for i, p in everything.items() if {port, port + 1} & {p["src_port"], p["dst_port"]}} for uid, port in ports.items()}
        for i, (name, uid) in enumerate(USERS.items()):
            want, tcp = of_ports[uid], {n for n in of_ports[uid] if everything[n]["protocol"] == "TCP"}
            self.assertGreater(len(want), 80)
            for field, value in [("user", uid), ("cgroup", f"/{places[i]}"), *([("user", name)] if name else []),
                                 ("container" if i else "unit", ID[:12] if i else f"{root}.service")]:
                found = by(f'{field} == "{value}"')
                missing = {everything[n]["info"] or everything[n]["protocol"] for n in want - found}
                print(f"owners: {field} == {value}: {len(found)} of {len(want)} packets, {len(found - want)} of others", file=sys.stderr, flush=True)
                self.assertFalse(found - want, f"{field} == {value}")
                self.assertFalse(tcp - found, f"{field} == {value}: {missing}")
                # Of a datagram that is received where it was recorded, a call has to be known.
                self.assertGreaterEqual(len(found), 0.95 * len(want), f"{field} == {value}: {missing}")
            differ = by(f"cgroup matches */docker-* and user == {uid}") ^ (by(f"user == {uid}") if i else set())
            self.assertEqual([], [everything[n] for n in differ])
            writes = look.kpat_json("app", str(out), "--slow-writes", f"user == {uid}", "-n", "0")["writes"]
            cookie = truth[ports[uid]][0]
            self.assertEqual({w["socket_id"] for w in writes}, {cookie})
            self.assertEqual(len(writes), 20)
            sent = [p for n, p in everything.items() if n in want and p["pid"] == speakers[uid]]
            self.assertTrue(sent)
            self.assertEqual({(p["user"], p["uid"], p["cgroup"]) for p in sent}, {(name or str(uid), uid, f"/{places[i]}")})
