"""Whom a process works for that serves a file system (FUSE). Truth is the server's own: what its thread's clock (CLOCK_THREAD_CPUTIME_ID) says that requests took, added up by file, of
which each client has one."""
import os
import sys
import unittest

from tests import profile
from tests.place import own, sh

# argv: where to mount, letters, how many clients. By letters: requests are spliced into a pipe and read from there, as libfuse does (s); a loop that waits by epoll and has work of its own when nobody asks (o); what is asked is
# asked of another process, which waits and answers (b); everything in a pid namespace of its own (n, by who starts it); answers by writev (v).
SERVER = """
import ctypes, os, select, socket, struct, sys, time
at, how, clients = sys.argv[1], sys.argv[2], int(sys.argv[3])
clock = lambda: time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
def burn(ns):
    end = clock() + ns
    while clock() < end: pass
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"kpat", at.encode(), b"fuse", 6, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device): sys.exit(os.strerror(ctypes.get_errno()))
out, into = os.pipe()
libc.splice.restype = ctypes.c_ssize_t
def take():
    if "s" not in how: return os.read(device, 1 << 18)
    got = libc.splice(device, None, into, None, 1 << 18, 0)
    if got < 0: raise OSError(ctypes.get_errno(), "splice")
    return os.read(out, got)
near, far = socket.socketpair()
if "b" in how and not os.fork():
    near.close()
    while far.recv(1): time.sleep(0.001); far.send(b"x")
    os._exit(0)
far.close()
attr = lambda node: struct.pack("<6Q10I", node, 1 << 30, 0, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100644, 1, 0, 0, 0, 4096, 0)
spent, own = {}, 0
def answer(request):
    length, what, unique, node = struct.unpack_from("<IIQQ", request)
    error, data = 0, b""
    if what == 26: data = struct.pack("<4I2H2I2HI28x", 7, 31, 0, 0, 16, 12, 1 << 14, 1, 4, 0, 0) # a pipe has room for 64 KiB
    elif what == 1:
        node = int(request[40:-1]) + 2
        data = struct.pack("<4Q2I", node, 0, 1, 1, 0, 0) + attr(node)
    elif what == 3: data = struct.pack("<Q2I", 1, 0, 0) + attr(node)
    elif what == 14: data = struct.pack("<Q2I", 0, 1, 0)
    elif what == 15:
        began = clock()
        burn(1_000_000 << node - 2)
        if "b" in how:
            near.send(b"x"); near.recv(1)
            burn(1_000_000 << node - 2)
        spent[node] = spent.get(node, 0) + clock() - began
        data = b"x" * 16
    elif what in (2, 36, 42): return
    elif what not in (18, 25): error = -38
    head = struct.pack("<IiQ", 16 + len(data), error, unique)
    if "v" in how: os.writev(device, [head, data])
    else: os.write(device, head + data)
poll = select.epoll()
poll.register(device, select.EPOLLIN)
print("ready", os.readlink("/proc/self"), flush=True)
try:
    while True:
        if "o" in how and not poll.poll(0.002):
            began = clock()
            burn(4_000_000)
            own += clock() - began
            continue
        answer(take())
except OSError: pass # it is not mounted any more
print("did", os.readlink("/proc/self"), own, *(spent[i + 2] for i in range(clients)), flush=True)
time.sleep(60)
"""
# argv: the file, how often. A second thread asks, whose number is not its process's.
CLIENT = """
import os, sys, threading, time
def asks():
    file = os.open(sys.argv[1], os.O_RDONLY)
    for i in range(int(sys.argv[2])):
        assert os.pread(file, 16, i * 16) == b"x" * 16
        time.sleep(0.004)
    os.close(file)
thread = threading.Thread(target=asks)
thread.start()
thread.join()
print("asked", os.readlink("/proc/self"), flush=True)
time.sleep(60)
"""
TIMES, CLIENTS = 60, 3
# argv: where to mount, the server's program, its letters, the client's. In a pid namespace it is the first process, and so ends all others with it.
STARTER = """
import os, subprocess, sys, time
at, server, how, client, times, clients = sys.argv[1:]
start = lambda *argv: subprocess.Popen([sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True)
s = start(server, at, how, clients)
assert s.stdout.readline().startswith("ready"), "not mounted"
all = [start(client, f"{at}/{i}", times) for i in range(int(clients))]
asked = [p.stdout.readline().split()[1] for p in all]
if "o" in how: time.sleep(0.15) # it has answered them all, and works of its own
subprocess.run(["umount", "-l", at], check=True)
print(s.stdout.readline().strip(), flush=True)
print("clients", *asked, flush=True)
for p in (s, *all): p.terminate()
for p in (s, *all): p.wait()
time.sleep(60)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
@unittest.skipUnless(os.path.exists("/dev/fuse"), "this kernel has no file systems of processes")
class FileSystems(profile.Recorded):
    def setUp(self):
        own(self, "filesystems", "")

    def served(self, how: str) -> tuple[dict, dict[int, dict], list[int], list[int], int]:
        """The server, its clients as they are charged, their numbers, what the server says that it did for each, and of its own."""
        at = self.dir / f"mounted-{how}"
        at.mkdir()
        self.stack.callback(sh, "umount", "-l", at, ok=False)

        def load():
            code = (at, SERVER, how, CLIENT, TIMES, CLIENTS)
            # on any CPU: it starts the others, whose clocks tell what they did
            p = self.start(None, f"files-{how}", "0-%d" % (os.cpu_count() - 1), STARTER, *code, apart="n" in how)
            return self.text_of(p, "did"), self.text_of(p, "clients")

        ((server, own_work, *did), clients), p = self.profile(f"files-{how}", load)
        got = {c["client"]: c for c in p["clients"] if c["server"] == server}
        for c, truth in zip(clients, did):
            charged = got.get(c, {"ns": 0})["ns"]
            print(f"filesystems: {how}: {truth / 1e9:.4f} s by its own clock, charged {charged / 1e9:.4f} s", file=sys.stderr, flush=True)
        return self.of(p, server), got, clients, did, own_work

    def are_charged(self, how: str) -> tuple[dict, dict[int, dict], list[int], int]:
        x, got, clients, did, own_work = self.served(how)
        self.assertLessEqual(set(clients), set(got), "who asked is a client")
        for c, truth in zip(clients, did):
            # Beyond the truth is what its loop takes for each request, and short of it what interrupts took of its time.
            self.assertGreater(got[c]["ns"], 0.95 * truth - 0.005e9 - self.stolen_ns - x["taken_ns"])
            self.assertLess(got[c]["ns"], 1.05 * truth + TIMES * 300_000 + 0.01e9)
            self.assertEqual(got[c]["unsure_ns"], 0)
        return x, got, clients, own_work

    def test_a_file_systems_work_is_for_who_asks(self):
        for how in ("r", "s", "v"):
            self.are_charged(how)

    def test_also_in_a_pid_namespace(self):
        self.are_charged("rn")

    def test_what_it_does_of_its_own_is_no_clients(self):
        x, got, clients, own_work = self.are_charged("o")
        self.assertGreater(own_work, 0.05e9)
        self.assertGreater(self.own_ns(x) - sum(c["ns"] for c in got.values()), 0.8 * own_work - x["taken_ns"] - self.stolen_ns)

    def test_it_goes_on_for_its_client_when_another_has_answered(self):
        self.are_charged("b")
