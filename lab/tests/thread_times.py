"""What a program did in the time that was its own, in `kpat why`: it ran, waited for a CPU, or slept. Servers that do each of these, or several in turn, one whose threads
answer by turns, and one of which a thread answers what another read. On this machine, with tracepoints (in a guest with `KPAT_BY`, by functions). Truth: what the kernel says to
the server itself, of its own thread and when it asks: CLOCK_THREAD_CPUTIME_ID and run_delay of /proc/thread-self/schedstat."""
import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import Inside, begun, joined, lost, probed, sh

CLIENT, SERVER = "10.97.4.1", "10.97.4.2"
RUNS, SLEEPS, WAITS, ALL, TURNS, HANDS = range(8201, 8207)
PORTS = {RUNS: "runs", SLEEPS: "sleeps", WAITS: "waits", ALL: "all of it", TURNS: "by turns", HANDS: "handed on"}
MANY, IDLE_MS, BURNERS = 15, 3, 3
# Between reading and answering: so long it burns a processor's time, and sleeps, in ms; the last three do it on a processor that others want.
DOES = {RUNS: (12, 0), SLEEPS: (0, 15), WAITS: (6, 0), ALL: (4, 6), TURNS: (5, 3), HANDS: (5, 3)}
PINNED = (WAITS, ALL)
SERVE = f"""
import json, os, queue, signal, socket, threading, time
cpu, does, pinned, many = max(os.sched_getaffinity(0)), {DOES}, {PINNED}, {MANY}
sums, times = {{port: [0, 0, 0] for port in does}}, dict.fromkeys(does, 0)
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def mine(): return now(), time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID), int(open("/proc/thread-self/schedstat").read().split()[1])
def work(port):
    burn, sleep = does[port]
    began = mine()
    end = began[1] + burn * 1_000_000
    if sleep: time.sleep(sleep / 1e3)
    while time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) < end: pass
    times[port] += 1
    # The connection's time begins with the first answer.
    if times[port] > 1:
        for n, (a, b) in enumerate(zip(began, mine())): sums[port][n] += b - a
def serve(port, c):
    if port in pinned: os.sched_setaffinity(threading.get_native_id(), [cpu])
    while c.recv(100): work(port); c.send(b"a" * 50)
def take_turns(port, c):
    turn = [threading.Semaphore(1), threading.Semaphore(0)]
    def one(me):
        while True:
            turn[me].acquire(); said = c.recv(100)
            if not said: return
            work(port); c.send(b"a" * 50); turn[1 - me].release()
    [threading.Thread(target=one, args=(me,), daemon=True).start() for me in (0, 1)]
def hand_on(port, c):
    jobs = queue.Queue()
    def answer():
        while jobs.get(): work(port); c.send(b"a" * 50)
    threading.Thread(target=answer, daemon=True).start()
    while c.recv(100): jobs.put(1)
def listen(port):
    s = socket.create_server(("{SERVER}", port)); c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    {{ {TURNS}: take_turns, {HANDS}: hand_on }}.get(port, serve)(port, c)
def burn():
    os.sched_setaffinity(0, [cpu])
    while True: pass
others = []
def begin(*_):
    for n in range({BURNERS}):
        pid = os.fork()
        if not pid: signal.alarm(120); burn()
        others.append(pid)
def over(*_):
    for pid in others: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    others.clear()
    print(json.dumps(sums), flush=True)
signal.signal(signal.SIGUSR1, begin); signal.signal(signal.SIGUSR2, over)
[threading.Thread(target=listen, args=(port,), daemon=True).start() for port in does]
time.sleep(0.2)
print("ready", flush=True)
while True: signal.pause()
"""
ASK = f"""
import os, signal, socket, time
for port in {list(DOES)}:
    if port in {PINNED}: os.kill(SERVER, signal.SIGUSR1); time.sleep(0.1)
    s = socket.create_connection(("{SERVER}", port)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for n in range({MANY}): s.send(b"q" * 20); s.recv(100); time.sleep({IDLE_MS} / 1e3)
    s.close()
    if port in {PINNED}: os.kill(SERVER, signal.SIGUSR2); time.sleep(0.2)
os.kill(SERVER, signal.SIGUSR2); time.sleep(0.2)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class ThreadTimes(unittest.TestCase):
    def recorded(self) -> dict:
        """What the server says that its threads did."""
        self.client, self.server = joined(self, "thrt", "v0", CLIENT, SERVER, os.environ.get("KPAT_KEEP_TIMES"))
        serve = begun(self, "serve", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE])
        sh("ip", "netns", "exec", self.client, "ping", "-c", "1", "-W", "5", SERVER)
        kbl, ready, self.out = self.dir / "times.kbl", self.dir / "ready", self.dir / "times.kpat"
        record = begun(self, "record", [play.kpat_path(), "record", "-p", "path,app", *probed(), "--netns", self.client, "--netns", self.server, "-o", str(kbl),
                                        "--ready-file", str(ready)], lambda p: ready.exists())
        sh("ip", "netns", "exec", self.client, sys.executable, "-c", ASK.replace("SERVER,", f"{serve.p.pid},"))
        self.assertEqual(record.stop(cache.patience()), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], self.out)
        lost(self, look.kpat_json("info", str(self.out)))
        return {int(port): sums for port, sums in json.loads(play.text_of(serve.stdout).splitlines()[-1]).items()}

    def test_it_ran_waited_or_slept_as_the_kernel_told_it(self):
        truth = self.recorded()
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        # The kernel counts what ran at a switch or a tick: it may be a tick late each time.
        tick = 1e9 / os.sysconf("SC_CLK_TCK")
        for port, name in PORTS.items():
            with self.subTest(name):
                (s,) = [s for s in sockets if (s["local_port"], s["sent_bytes"]) == (port, 50 * MANY)]
                why = look.kpat_json("why", str(s["socket_id"]), str(self.out))
                stage = next(x for x in why["stages"] if x["stage"] == "application")
                whole, ran, waited = truth[port]
                if not DOES[port][1]:
                    # Interrupts that came meanwhile, and what a virtual machine's host took, the kernel counts for nobody.
                    ran = whole - waited
                slept = whole - ran - waited
                found = [stage[k] for k in ("ran_ns", "waited_ns", "slept_ns")]
                print(f"threads {name}: of {stage['ns'] / 1e6:.1f} ms ran, waited, slept {[n and round(n / 1e6, 1) for n in found]}; "
                      f"truth {[round(n / 1e6, 1) for n in (ran, waited, slept)]} of {whole / 1e6:.1f}", file=sys.stderr, flush=True)
                if port == HANDS:
                    # Who read is not who answered: what either did between is not known, and nothing is said of it.
                    self.assertEqual(found, [None] * 3)
                    continue
                known = sum(found)
                self.assertGreater(known, 0.95 * stage["ns"])
                self.assertLessEqual(known, stage["ns"] + 1)
                # What the server did between its call and its look at itself is in no truth: little, but where a processor is emulated.
                allowed = 0.05 * whole + 2e6 + max(0, stage["ns"] - whole)
                late = tick * MANY / 2 if DOES[port][1] else 0
                self.assertAlmostEqual(found[1], waited, delta=allowed)
                self.assertAlmostEqual(found[0], ran, delta=allowed + late)
                self.assertAlmostEqual(found[2], slept, delta=allowed + late)
                text = sh(play.kpat_path(), "why", s["socket_id"], self.out).stdout
                most = max(range(3), key=lambda n: found[n])
                if found[most] > 0.6 * stage["ns"] and why["first"] == "application":
                    self.assertIn(f"its threads {('ran', 'waited for a CPU', 'slept')[most]} for", text)
        # Who waits waits because others run: the case was made.
        self.assertGreater(truth[WAITS][2], truth[WAITS][1])


class ThreadTimes61(Inside, unittest.TestCase):
    series, of, detail, modules, marked = "6.1", "ThreadTimes", "steps", "af_packet veth", "threads "


class ThreadTimes72(Inside, unittest.TestCase):
    series, of, detail, modules, marked = "7.2", "ThreadTimes", "steps", "af_packet veth", "threads "
