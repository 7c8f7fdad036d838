"""What a program slept for before it answered, in `kpat why`: it was stopped or frozen, waited for a lock, a time, a child, a pipe, several descriptors, or in the kernel. A server that
does each of these on a port of its own, in a process of its own, as one that is stopped stops with all its threads. On this machine, with tracepoints (in a guest with `KPAT_BY`, by functions).
Truth: the server's own clock around what it waits for, and the clock of who stops it."""
import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from tests.owners import CGROUPS
from tests.place import Inside, begun, joined, lost, probed, sh

CLIENT, SERVER = "10.97.8.1", "10.97.8.2"
MANY, MS, HELD_MS = 6, 15, 250
WAITS = ("lock", "timer", "child", "descriptors", "data", "room", "uninterruptible")
HELD = ("stopped", "frozen") if CGROUPS else ("stopped",)
PORTS = {name: 8301 + n for n, name in enumerate(WAITS + HELD)}
# Each waits so long as its name says, for another process or thread; the calls that begin it and end it are not within its truth.
SERVE = f"""
import fcntl, json, os, select, signal, socket, sys, tempfile, threading, time
folder, many, wait = sys.argv[1], {MANY}, {MS} / 1e3
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def child(does):
    pid = os.fork()
    if not pid:
        try: does()
        finally: os._exit(0)
    return pid
# Waited for behind the answer.
ended = []
def timed(does):
    a = now(); does(); return now() - a
def timer(): return timed(lambda: time.sleep(wait))
def of_child():
    pid = child(lambda: time.sleep(wait))
    return timed(lambda: os.waitpid(pid, 0))
def of_pipe(begins, how):
    r, w = os.pipe()
    pid = child(lambda: begins(r, w))
    took = timed(lambda: how(r, w))
    os.close(r); os.close(w); ended.append(pid)
    return took
def later(r, w): time.sleep(wait); os.write(w, b"x")
def data(): return of_pipe(later, lambda r, w: os.read(r, 1))
def descriptors(): return of_pipe(later, lambda r, w: select.select([r, os.pipe()[0]], [], []))
def drained(r, w):
    time.sleep(wait)
    while os.read(r, 65536): pass
def room():
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 4096); os.write(w, bytes(4096))
    pid = child(lambda: (os.close(w), drained(r, w)))
    took = timed(lambda: os.write(w, b"x"))
    os.close(r); os.close(w); ended.append(pid)
    return took
def mutex():
    mine, held = threading.Lock(), threading.Event()
    def holds():
        with mine: held.set(); time.sleep(wait)
    t = threading.Thread(target=holds); t.start(); held.wait()
    took = timed(mine.acquire)
    t.join()
    return took
turns = [0]
def lock():
    # by turns one between threads and one of a file
    turns[0] += 1
    if turns[0] % 2: return mutex()
    r, w = os.pipe()
    f = open(folder + "/lock", "w")
    def holds():
        mine = open(folder + "/lock", "w"); fcntl.flock(mine, fcntl.LOCK_EX); os.write(w, b"x"); time.sleep(wait)
    pid = child(holds)
    os.read(r, 1)
    took = timed(lambda: fcntl.flock(f, fcntl.LOCK_EX))
    f.close(); os.close(r); os.close(w); ended.append(pid)
    return took
def uninterruptible():
    # Who makes a child by vfork waits for its exec, where no signal but a deadly one wakes it; that child first opens a pipe that has no writer yet.
    path = tempfile.mktemp(dir=folder); os.mkfifo(path)
    opens = child(lambda: (time.sleep(wait), os.close(os.open(path, os.O_WRONLY))))
    made = []
    took = timed(lambda: made.append(os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, path, os.O_RDONLY, 0)])))
    ended.extend([made[0], opens]); os.unlink(path)
    return took
does = dict(lock=lock, timer=timer, child=of_child, descriptors=descriptors, data=data, room=room, uninterruptible=uninterruptible)
def serve(name, port):
    s = socket.create_server(("{SERVER}", port)); c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    n = all = 0
    while c.recv(100):
        took = does[name]() if name in does else 0
        n += 1
        # The connection's time begins with the first answer.
        if n > 1: all += took
        c.send(b"a" * 50)
        while ended: os.waitpid(ended.pop(), 0)
    open(folder + "/took." + name, "w").write(str(all))
pids = {{name: child(lambda: serve(name, port)) for name, port in {PORTS}.items()}}
time.sleep(0.3)
print("ready", json.dumps(pids), flush=True)
signal.signal(signal.SIGTERM, lambda *_: [os.kill(p, signal.SIGKILL) for p in pids.values()] and sys.exit(0))
while True: signal.pause()
"""
ASK = f"""
import json, os, signal, socket, sys, time
pids, group = json.loads(sys.argv[1]), sys.argv[2]
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def hold(name, on):
    if name == "stopped": os.kill(pids[name], signal.SIGSTOP if on else signal.SIGCONT)
    else: open(group + "/cgroup.freeze", "w").write("1" if on else "0")
took = {{}}
for name, port in {PORTS}.items():
    s = socket.create_connection(("{SERVER}", port)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for n in range({MANY}):
        held = name in {HELD} and n in (2, 4)
        if held: a = now(); hold(name, True); time.sleep(0.05)
        s.send(b"q" * 20)
        if held: time.sleep({HELD_MS} / 1e3); b = now(); hold(name, False); took[name] = took.get(name, 0) + b - a - 50_000_000
        s.recv(100); time.sleep(0.002)
    s.close()
time.sleep(0.2)
print(json.dumps(took))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class SleptFor(unittest.TestCase):
    def recorded(self) -> dict:
        """How long each waited, by itself or by who held it."""
        self.client, self.server = joined(self, "slpt", "v0", CLIENT, SERVER, os.environ.get("KPAT_KEEP_SLEPT"))
        serve = begun(self, "serve", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE, str(self.dir)])
        pids = json.loads(play.text_of(serve.stdout).split("ready", 1)[1])
        group = CGROUPS / f"kpat-slept-{os.getpid()}" if CGROUPS else self.dir
        if CGROUPS:
            group.mkdir()
            self.stack.callback(group.rmdir)
            self.stack.callback(serve.stop)
            (group / "cgroup.procs").write_text(str(pids["frozen"]))
        sh("ip", "netns", "exec", self.client, "ping", "-c", "1", "-W", "5", SERVER)
        kbl, ready, self.out = self.dir / "slept.kbl", self.dir / "ready", self.dir / "slept.kpat"
        record = begun(self, "record", [play.kpat_path(), "record", "-p", "path,app", *probed(), "--netns", self.client, "--netns", self.server, "-o", str(kbl),
                                        "--ready-file", str(ready)], lambda p: ready.exists())
        # not by ip, whose /sys has no groups
        held = json.loads(sh("nsenter", f"--net=/run/netns/{self.client}", sys.executable, "-c", ASK, json.dumps(pids), group).stdout)
        self.assertEqual(record.stop(cache.patience()), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], self.out)
        lost(self, look.kpat_json("info", str(self.out)))
        return {name: int((self.dir / f"took.{name}").read_text()) for name in WAITS} | held

    def test_it_slept_for_what_the_server_knows(self):
        truth = self.recorded()
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        for name, port in PORTS.items():
            with self.subTest(name):
                end = {s["local_port"] == port: s["socket_id"] for s in sockets if port in (s["local_port"], s["peer_port"]) and s["sent_bytes"]}
                # A server's own time is that from its reading to its answer; while it is held, its client's question lies unread.
                asked, stage_name = (end[False], "peer's application") if name in HELD else (end[True], "application")
                why = look.kpat_json("why", str(asked), str(self.out))
                stage = next(x for x in why["stages"] if x["stage"] == stage_name)
                found = stage["slept_for_ns"]
                print(f"slept {name}: of {stage['slept_ns'] / 1e6:.1f} ms {({k: round(v / 1e6, 1) for k, v in found.items()})}; truth {truth[name] / 1e6:.1f} ms", file=sys.stderr, flush=True)
                self.assertEqual(max(found, key=found.get), name)
                self.assertLessEqual(found[name], 1.05 * truth[name] + 1e6 * MANY)
                # One in a hundred of these switches no program sees on this kernel (tasks.bpf.h): of so few one is half of the time that it is held, two are two fifths of the other.
                self.assertGreaterEqual(found[name], (0.45 if name in HELD else 0.55) * truth[name])
                self.assertLessEqual(sum(found.values()), stage["slept_ns"] + len(found))
        text = sh(play.kpat_path(), "why", end[False], self.out).stdout
        self.assertIn({"stopped": "stopped by a signal or a debugger", "frozen": "frozen by its cgroup"}[HELD[-1]], " ".join(text.split()))


class SleptFor61(Inside, unittest.TestCase):
    series, of, detail, modules, marked = "6.1", "SleptFor", "steps", "af_packet veth", "slept "


class SleptFor72(Inside, unittest.TestCase):
    series, of, detail, modules, marked = "7.2", "SleptFor", "steps", "af_packet veth", "slept "
