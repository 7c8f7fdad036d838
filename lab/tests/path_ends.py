"""When a packet's path ends: with its reader, not when its memory is freed. A reader on another CPU than the one that received leaves the freeing to that CPU's next
softirq, here a pause later. Truth is when both programs sent and had read each message, by the boot clock that the log has."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from tests.place import Inside, begun, integrated, joined, probed, sh

MESSAGES, PAUSE = 40, 0.02
CLIENT, SERVER = "10.97.1.1", "10.97.1.2"
# argv: protocol, address, client or server. What was sent when, and what had been read when.
TALK = f"""
import socket, sys, time
proto, address, part = sys.argv[1:]
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
times = []
def ask(send, read):
    for i in range({MESSAGES}):
        sent = now()
        send(b"%09d" % i)
        returned = now()
        answer = read()
        times.append((sent, returned, now()))
        assert answer == b"%09d" % i, answer
        time.sleep({PAUSE})
def answer(read, send):
    for i in range({MESSAGES}):
        asked = read()
        got = now()
        send(asked)
        times.append((got, now()))
if proto == "udp":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if part == "server":
        s.bind((address, 9000))
        print("ready", flush=True)
        peer = []
        def read():
            data, peer[:] = s.recvfrom(100)
            return data
        answer(read, lambda data: s.sendto(data, tuple(peer)))
    else:
        s.connect((address, 9000))
        ask(s.send, lambda: s.recv(100))
else:
    if part == "server":
        l = socket.create_server((address, 9000))
        print("ready", flush=True)
        s, _ = l.accept()
        answer(lambda: s.recv(100), s.send)
        s.recv(1)
    else:
        s = socket.create_connection((address, 9000))
        ask(s.send, lambda: s.recv(100))
for moments in times: print("at", *moments, flush=True)
"""


def times(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split()[1:])) for line in text.splitlines() if line.startswith("at ")]


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class PathEnds(unittest.TestCase):
    def talk(self, proto: str) -> tuple[dict, list, list]:
        """Packets with data by direction, and both programs' times."""
        here, there = joined(self, f"path{proto}", "v0", CLIENT, SERVER)
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest("one CPU: a reader is where its packets are received")
        on = lambda ns, cpu, part: ["ip", "netns", "exec", ns, "taskset", "-c", str(cpu), sys.executable, "-c", TALK, proto, SERVER, part]
        server = begun(self, "server", on(there, cpus[1], "server"))
        log = self.dir / "talk.kbl"
        r = sh(play.kpat_path(), "record", *probed(), "--netns", here, "--netns", there, "-o", log, "--", *on(here, cpus[0], "client"),
               seconds=cache.patience())
        server.p.wait(cache.patience())
        store = integrated(self, log)
        packets = json.loads(sh(play.kpat_path(), "packets", store, f"{proto}.port == 9000", "--limit", "0", "--json").stdout)["packets"]
        whole = {"udp": 37, "tcp": 61}[proto]
        sent = {ip: [p for p in packets if p["src_addr"] == ip and p["len_bytes"] == whole] for ip in (CLIENT, SERVER)}
        return sent, times(r.stdout), times(play.text_of(server.stdout))

    def check(self, proto: str) -> None:
        sent, client, server = self.talk(proto)
        late = 0
        # Sent from, sent until, read at; with functions a path has their callers' returns, which a quick reader does not wait for.
        asked = [(c[0], c[1], s[0]) for c, s in zip(client, server)]
        answered = [(s[0], s[1], c[2]) for c, s in zip(client, server)]
        for ip, moments in ((CLIENT, asked), (SERVER, answered)):
            self.assertEqual(len(sent[ip]), MESSAGES, ip)
            for p, (from_ns, *until) in zip(sorted(sent[ip], key=lambda p: p["first_boot_ns"]), moments):
                to_ns = max(until)
                self.assertEqual(p["verdict"], "delivered", p)
                self.assertLess(from_ns, p["first_boot_ns"], p)
                self.assertLess(p["first_boot_ns"] + p["path_ns"], to_ns, p)
                late += p["last_boot_ns"] > to_ns
        print(f"path ends: {proto}: {late} of {2 * MESSAGES} messages were freed after they had been read", flush=True)
        # Else the kernel put off nothing, and there was nothing to tell from it.
        self.assertGreater(late, MESSAGES / 2)

    def test_of_a_stream(self):
        self.check("tcp")

    def test_of_datagrams(self):
        self.check("udp")


class PathEnds72(Inside, unittest.TestCase):
    series, detail = "7.2", "steps"
    of, modules, marked = "PathEnds", "veth", "path ends:"


class PathEnds612(PathEnds72):
    series, of = "6.12", "PathEnds.test_of_a_stream"


class PathEnds61(PathEnds612):
    series = "6.1"


if __name__ == "__main__":
    unittest.main()
