"""Whose the packets are that no softirq receives for a socket that is read: a device's own thread and a writer to a tun device receive packets, too, and a
connection is set up by packets that come before there is a socket. And what a process is called. Truth is the devices' counters, what programs took, and
/proc/PID/comm."""
import json
import os
import shutil
import sys
import time
import unittest

from kpatlab import cache, look, play
from tests import profile
from tests.place import sh

COUNT = """
import os, signal, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
s.bind(("", 9000))
print("ready", os.getpid(), flush=True)
n = 0
while s.recv(200) != b"end": n += 1
print("took", n, flush=True)
signal.pause()
"""
# Datagrams as a program writes them to a tun device that it owns.
TUN = """
import fcntl, os, struct, sys, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"t0", 0x1001))
os.system("ip addr add 10.8.0.1/24 dev t0 && ip link set t0 up")
def datagram(data):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 1, 0, 64, 17, 0, bytes([10, 8, 0, 2]), bytes([10, 8, 0, 1]))
    s = sum(struct.unpack("!10H", head))
    s = (s >> 16) + (s & 0xffff)
    return head[:10] + struct.pack("!H", ~(s + (s >> 16)) & 0xffff) + head[12:] + struct.pack("!HHHH", 5000, 9000, 8 + len(data), 0) + data
print("writer", os.getpid(), flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[1])):
    os.write(tun, datagram(b"x" * 64))
    if i % 50 == 49: time.sleep(0.0005)
time.sleep(0.3)
for i in range(3): os.write(tun, datagram(b"end"))
sys.stdin.readline()
"""
SERVE = """
import os, signal, socket, sys
l = socket.create_server(("", 9001), backlog=100)
print("ready", os.getpid(), flush=True)
for i in range(int(sys.argv[1])):
    c, _ = l.accept()
    if sys.argv[2] != "nothing":
        c.sendall(c.recv(10))
        c.recv(1)
    c.close()
print("served", 0, flush=True)
signal.pause()
"""
ASK = """
import os, signal, socket, sys
for i in range(int(sys.argv[2])):
    s = socket.create_connection((sys.argv[1], 9001))
    if sys.argv[3] != "nothing":
        s.sendall(b"q")
        s.recv(10)
    s.close()
print("asked", os.getpid(), flush=True)
signal.pause()
"""
# Its first thread sleeps; another one works, and is called as it calls itself.
NAMED = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static double spent(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
static void *work(void *arg)
{
	prctl(PR_SET_NAME, "collector#0");
	for (;;)
		for (double until = spent() + 0.02; spent() < until;)
			;
}
int main(int argc, char **argv)
{
	pthread_t t;
	double until = spent() + 0.3;
	if (argc > 1) {
		while (spent() < until)
			;
		return execv(argv[1], argv + 1);
	}
	pthread_create(&t, 0, work, 0);
	printf("ready %d\n", getpid());
	fflush(stdout);
	pause();
}
"""
PACKETS = 20_000
CONNECTIONS = 300


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Received(profile.Place):
    def received_by(self, ns: str, dev: str) -> int:
        return json.loads(sh("ip", "-n", ns, "-s", "-j", "link", "show", dev).stdout)[0]["stats64"]["rx"]["packets"]

    @unittest.skipUnless(os.path.exists("/dev/net/tun"), "needs /dev/net/tun")
    def test_what_is_written_to_a_tun_device_is_received_for_who_reads(self):
        receiver, = self.text_of(take := self.start(self.server, "take", 1, COUNT), "ready")
        go = self.dir / "go"
        os.mkfifo(go)
        code = TUN.replace("sys.stdin", f"open({str(go)!r})")
        writer, = self.text_of(self.start(self.server, "tun", 0, code, PACKETS), "writer")

        def load():
            go.write_text("go\n")
            return self.text_of(take, "took")[0]

        took, p = self.profile("tun", load)
        x, w = self.of(p, receiver), self.of(p, writer)
        print(f"received: of a tun device the reader is charged with {x['served_packets']} packets, it took {took}", file=sys.stderr, flush=True)
        # An interrupt just where a write ends may hide the packet.
        self.assertGreaterEqual(x["served_packets"], 0.998 * took)
        self.assertLessEqual(x["served_packets"], 1.001 * took + 3)
        taken = sum(t["ns"] for t in p["taken"] if (t["victim"], t["beneficiary"]) == (writer, receiver))
        print(f"received: out of the writer's time for the reader {taken / 1e9:.4f} s, its own calls {w['kernel_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
        self.assertGreater(taken, 0.9 * x["served_ns"] - 1e6)

    def connections(self, listens_before: bool, what: str) -> dict:
        self.link(self.client, "c0", "10.96.1.2", self.server, "s0", "10.96.1.1")
        self.prepare()
        sh("ip", "netns", "exec", self.client, "ping", "-nqc", "1", "10.96.1.1")  # both know each other's address
        server = self.start(self.server, "serve", 1, SERVE, CONNECTIONS, what) if listens_before else None
        if server:
            self.text_of(server, "ready")
        before = [self.received_by(self.server, "s0"), self.received_by(self.client, "c0")]

        def load():
            s = server or self.start(self.server, "serve", 1, SERVE, CONNECTIONS, what)
            self.text_of(s, "ready")
            asked, = self.text_of(self.start(self.client, "ask", 0, ASK, "10.96.1.1", CONNECTIONS, what), "asked")
            self.text_of(s, "served")
            time.sleep(0.3)  # until the last FIN is acknowledged
            return s.p.pid, asked

        (serves, asks), p = self.profile(f"connections-{what}", load)
        truth = [self.received_by(self.server, "s0") - before[0], self.received_by(self.client, "c0") - before[1]]
        # What comes to a socket that is closed is dropped.
        dropped = p["without_process"].get("dropped", {"packets": 0})["packets"] if what == "nothing" else 0
        for who, pid, n in (("server", serves, truth[0]), ("client", asks, truth[1])):
            ours = self.of(p, pid)["served_packets"]
            print(f"received: {what}, listens before {listens_before}: {who} charged with {ours} packets, its device received {n}", file=sys.stderr, flush=True)
            self.assertLessEqual(ours, n)
            # ARP, and of a server that listened before it was recorded the first connections until it takes one.
            self.assertGreaterEqual(ours, 0.98 * n - 6 - (dropped if who == "client" else 0), who)
        return p

    def prepare(self) -> None:
        """Before anything goes through the link."""

    @unittest.skipUnless(shutil.which("ethtool"), "needs ethtool")
    def test_a_devices_own_thread_receives_for_who_reads(self):
        """Threaded NAPI: the packets come in no softirq."""
        def threaded():
            sh("ip", "netns", "exec", self.client, "ethtool", "-K", "c0", "tso", "off", "gso", "off")
            sh("ip", "netns", "exec", self.server, "ethtool", "-K", "s0", "gro", "on")
            sh("ip", "netns", "exec", self.server, "sh", "-c", "echo 1 > /sys/class/net/s0/threaded")

        self.prepare = threaded
        p = self.connections(False, "echo")
        threads = [x for x in p["processes"] if x["is_kernel_thread"] and (x["name"] or "").startswith("napi/s0")]
        own, served = sum(t["kernel_ns"] for t in threads), sum(t["taken_ns"] for t in threads)
        print(f"received: {len(threads)} thread, {own / 1e9:.4f} s its own, {served / 1e9:.4f} s for others", file=sys.stderr, flush=True)
        self.assertTrue(threads, "the device has a thread")
        self.assertGreater(served, own, "what the thread does is for who reads")

    def test_connections_are_set_up_for_who_listens_and_who_connects(self):
        self.connections(False, "echo")

    def test_also_for_who_listened_before(self):
        self.connections(True, "echo")

    def test_also_connections_that_carry_nothing(self):
        self.connections(False, "nothing")

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_a_process_is_called_as_its_first_thread_and_programs_before_are_told(self):
        source = self.dir / "named.c"
        source.write_text(NAMED)
        for name in ("server", "prepare", "launch"):
            sh("cc", "-O1", "-pthread", "-o", self.dir / name, source)
        sleeps = play.Process("sleeps", [str(self.dir / "server")], self.dir)
        self.stack.callback(sleeps.stop)
        self.text_of(sleeps, "ready")

        def load():
            execs = play.Process("execs", [str(self.dir / n) for n in ("launch", "prepare", "server")], self.dir)
            self.stack.callback(execs.stop)
            self.text_of(execs, "ready")
            time.sleep(1.2)
            return execs.p.pid

        pid, p = self.profile("names", load)
        comm = (self.proc(sleeps.p.pid), self.proc(pid))
        first, chain = self.of(p, sleeps.p.pid), self.of(p, pid)
        print(f"received: called {first['name']}, {chain['name']} after {chain['names_before']}; by /proc {comm}", file=sys.stderr, flush=True)
        self.assertEqual((first["name"], first["names_before"]), (comm[0], []))
        self.assertEqual((chain["name"], chain["names_before"]), (comm[1], ["launch", "prepare"]))
        flat = look.kpat_json("profile", str(self.dir / "names.kpat"), "--comm", "server", "--flat", "--limit", "0")
        self.assertTrue(any(f["process"] == "server" or sleeps.p.pid == f["process"] for f in flat["functions"]))

    def proc(self, pid: int) -> str:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
