"""Why a socket of datagrams is slow: one that asks a slow server, one whose reader sleeps, one whose reader has no room, one that sends now and then, one whose question is dropped,
one behind a shaped device. On this machine, with tracepoints (in a guest with `KPAT_BY`, by functions). Truth: the clocks of the programs at both ends, the server's counters, what the rules drop, the device's rate."""
import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import Inside, begun, joined, lost, probed, sh

CLIENT, SERVER = "10.97.2.1", "10.97.2.2"
ASKED, UNREAD, FULL, STREAM, DROPPED, SHAPED = range(8101, 8107)
MANY, SLOW_MS, IDLE_MS, SLEEP_MS, APART_MS, PATIENCE_MS = 10, 20, 30, 300, 40, 200
FLOOD, BYTES, RATE_KBIT = 40, 1000, 2000
SERVE = f"""
import signal, socket, threading, time
def of(port, do):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("{SERVER}", port))
    if do: threading.Thread(target=do, args=(s,), daemon=True).start()
    return s
def asked(s):
    while True:
        said, whose = s.recvfrom(100); time.sleep({SLOW_MS} / 1e3); s.sendto(said, whose)
def unread(s):
    s.recv(100)
    while True: time.sleep({SLEEP_MS} / 1e3); [s.recv(100) for _ in range({MANY})]
def stream(s):
    while True: s.recv(2000)
def dropped(s):
    while True: s.sendto(*s.recvfrom(100))
kept = [of({ASKED}, asked), of({UNREAD}, unread), of({FULL}, None), of({STREAM}, stream), of({DROPPED}, dropped), of({SHAPED}, stream)]
kept[2].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 6000)
print("ready", flush=True)
signal.pause()
"""
# When each thing was done, by the clock of the logs.
ASK = f"""
import json, socket, time
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def to(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("{SERVER}", port)); s.settimeout({PATIENCE_MS} / 1e3)
    return s
said = {{}}
s = to({ASKED}); times = []
for n in range({MANY}):
    began = now(); s.send(b"q" * 30); s.recv(100); times.append((began, now())); time.sleep({IDLE_MS} / 1e3)
said[{ASKED}] = times
s = to({UNREAD}); s.send(b"f"); time.sleep(0.05); began = now()
for n in range({MANY}): s.send(b"u" * 40)
said[{UNREAD}] = [(began, now())]
s = to({FULL}); s2 = s
for n in range({FLOOD}): s.send(b"z" * {BYTES})
s = to({STREAM}); began = now()
for n in range({MANY}): s.send(b"r" * 100); time.sleep({APART_MS} / 1e3)
said[{STREAM}] = [(began, now())]
s = to({DROPPED}); began = now(); s.send(b"x" * 20)
try: s.recv(100)
except OSError: pass
again = now(); s.send(b"y" * 20); s.recv(100)
said[{DROPPED}] = [(began, again), (again, now())]
time.sleep({SLEEP_MS} / 1e3 + 0.1)
print(json.dumps(said))
"""
SHAPE = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{SERVER}", {SHAPED}))
began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
for n in range({FLOOD}): s.send(b"s" * {BYTES})
print(began); time.sleep(1)
"""
# Of the readers that stop one stays open. Asked is over IPv6, and answered at once, so that a buffer comes again soon.
STOP, CLOSED, READS, QUESTIONS = 8107, 8108, 3, 200
STOPS = f"""
import signal, socket, threading, time
def of(port, where, do):
    s = socket.socket(socket.AF_INET6 if ":" in where else socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((where, port)); threading.Thread(target=do, args=(s,), daemon=True).start()
    return s
def stop(s): s.recv(100, socket.MSG_PEEK); time.sleep(0.1); [s.recv(100) for _ in range({READS})]
def close(s): s.recv(100, socket.MSG_PEEK); time.sleep(0.1); [s.recv(100) for _ in range({READS})]; s.close()
def asked(s):
    while True: s.sendto(*s.recvfrom(100))
kept = [of({STOP}, "{SERVER}", stop), of({CLOSED}, "{SERVER}", close), of({ASKED}, "fd97:2::1", asked)]
print("ready", flush=True)
signal.pause()
"""
STOPPED = f"""
import json, socket, time
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
for port in ({STOP}, {CLOSED}):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{SERVER}", port))
    for n in range({MANY}): s.send(b"u" * 40)
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.connect(("fd97:2::1", {ASKED})); times = []
for n in range({QUESTIONS}): began = now(); s.send(b"q" * 30); s.recv(100); times.append((began, now()))
time.sleep({SLEEP_MS} / 1e3 + 0.1)
print(json.dumps(times))
"""
# Its reader waits in its call when recording begins, as all others do.
RAW, APART_RAW_MS = 253, 100
READ_RAW = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, {RAW})
print("ready", flush=True)
while True: s.recv(2000)
"""
SEND_RAW = f"""
import json, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, {RAW}); s.connect(("{SERVER}", 0)); times = []
for n in range({MANY}): began = time.clock_gettime_ns(time.CLOCK_BOOTTIME); s.send(b"w" * (20 + n)); time.sleep({APART_RAW_MS} / 1e3); times.append(began)
print(json.dumps(times))
"""
# One socket to three hosts, datagrams of one size: one that is there, one that is not, and one that comes when they have been asked for it. Then one in fragments.
NEIGHBOURS, ABSENT, LATE, ROUNDS, IN_PARTS, PARTS, COMES_MS, FAILS_MS = 8109, "10.97.2.77", "10.97.2.9", 6, 4000, 3, 500, 3000
SEND_TO_ALL = f"""
import json, socket, subprocess, sys, time
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", {NEIGHBOURS})); times = []
for n in range({ROUNDS}):
    for to in ("{SERVER}", "{ABSENT}", "{LATE}"):
        began = now(); s.sendto(b"n" * 32, (to, {STREAM})); times.append((to, began, now()))
    time.sleep(0.01)
s.sendto(b"f" * {IN_PARTS}, ("{ABSENT}", {STREAM}))
time.sleep({COMES_MS} / 1e3)
came = now(); subprocess.run(["ip", "-n", "SERVER", "addr", "add", "{LATE}/32", "dev", "v0"], check=True)
time.sleep({FAILS_MS} / 1e3 + 1)
print(json.dumps([came, times]))
"""
# One socket, two that ask: one waits for each answer, the other has its own at once, and pauses. The server says when it owed an answer.
RESOLVED, SLOW_QUESTIONS = 8110, 25
RESOLVE = f"""
import select, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("{SERVER}", {RESOLVED}))
print("ready", flush=True)
later, owed, left = [], 0, {SLOW_QUESTIONS}
while left:
    ready = select.select([s], [], [], max(0, later[0][0] - time.monotonic()) if later else None)[0]
    if ready:
        came = time.monotonic(); said, whose = s.recvfrom(100)
        if said[:1] == b"l": later.append((came + {SLOW_MS} / 1e3, whose, came))
        else: s.sendto(said, whose)
    if later and later[0][0] <= time.monotonic():
        _, whose, came = later.pop(0); s.sendto(b"answer", whose); owed += time.monotonic() - came; left -= 1
print("owed", owed, flush=True)
while True: s.sendto(*s.recvfrom(100)) # what was asked before its asker knew
"""
ASK_BOTH = f"""
import socket, threading, time
def to():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{SERVER}", {RESOLVED}))
    return s
def quick():
    s = to()
    while left: s.send(b"quick"); s.recv(100); time.sleep(0.007)
left = {SLOW_QUESTIONS}
t = threading.Thread(target=quick); t.start()
s = to()
while left: s.send(b"late"); s.recv(100); left -= 1
t.join()
"""
# One socket that has several questions out at once, the answers to which come apart; then it pauses.
ASK_SEVERAL = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{SERVER}", {RESOLVED}))
waited = paused = 0
for n in range({SLOW_QUESTIONS // 5}):
    began = time.monotonic()
    for i in range(5): s.send(b"late"); time.sleep(0.003)
    for i in range(5): s.recv(100); time.sleep(0.002)
    over = time.monotonic(); waited += over - began
    time.sleep(0.02); paused += time.monotonic() - over
print(waited, paused)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class WhyDatagrams(unittest.TestCase):
    def recorded(self, name: str, ends: list[str], program: str) -> str:
        """What the program in the first namespace printed, with `ends` recorded: `self.out`."""
        kbl, ready, self.out = self.dir / f"{name}.kbl", self.dir / f"{name}-ready", self.dir / f"{name}.kpat"
        netns = [word for ns in ends for word in ("--netns", ns)]
        argv = [play.kpat_path(), "record", "-p", "path,app", *probed(), *netns, "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, f"record-{name}", argv, lambda p: ready.exists())
        said = sh("ip", "netns", "exec", self.client, sys.executable, "-c", program, seconds=cache.patience()).stdout
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], self.out)
        lost(self, look.kpat_json("info", str(self.out)))
        return said

    def recorded_whole(self, name: str, ends: list[str], program: str) -> str:
        """The same, again where the kernel handled something without programs (`lost`): a machine whose rules forbid them does so once a second or so."""
        for again in range(5):
            said = self.recorded(f"{name}-{again}", ends, program)
            if not self.not_run:
                break
        return said

    def why(self, port: int, proto: int = 17) -> dict:
        """Of the socket that sent there."""
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        (s,) = [s for s in sockets if (s["peer_port"], s["proto"]) == (port, proto) and "to-device" in s["crossings"]]
        why = look.kpat_json("why", str(s["socket_id"]), str(self.out))
        self.assertAlmostEqual(sum(x["ns"] for x in why["stages"]), why["whole_ns"], delta=len(why["stages"]))
        for line in why["slowest"]:
            self.assertEqual(sum(line["stages_ns"].values()), line["took_ns"])
        of_stage = {x["stage"]: f"{x['ns'] / 1e6:.2f} ms" for x in why["stages"]}
        print(f"why: {port}: {why['first']} of {why['whole_ns'] / 1e6:.1f} ms; {of_stage}; { {k: n for k, n in why['ends'].items() if n} }", file=sys.stderr)
        return why

    def served(self) -> None:
        self.client, self.server = joined(self, "whyd", "v0", CLIENT, SERVER, os.environ.get("KPAT_KEEP_WHY"))
        begun(self, "serve", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE])
        # The neighbours know each other.
        sh("ip", "netns", "exec", self.client, "ping", "-c", "1", "-W", "5", SERVER)

    def test_each_cause_comes_first(self):
        self.served()
        sh("ip", "netns", "exec", self.server, "nft", f"table ip t {{ chain i {{ type filter hook input priority 0; udp dport {DROPPED} @th,64,8 0x78 drop; }}; }}")
        counted = lambda: json.loads(sh("ip", "netns", "exec", self.server, "nstat", "-aszj", "UdpRcvbufErrors").stdout)["kernel"]["UdpRcvbufErrors"]
        before = counted()
        said = {int(port): times for port, times in json.loads(self.recorded("causes", [self.client, self.server], ASK)).items()}
        full = counted() - before
        ms = lambda why, stage: sum(x["ns"] for x in why["stages"] if x["stage"] == stage) / 1e6

        why = self.why(ASKED)
        self.assertEqual((why["first"], why["ends"]["read"], why["until_answer"]), ("application", MANY, True))
        waited = sum(to - began for began, to in said[ASKED]) / 1e6
        self.assertGreaterEqual(ms(why, "peer's application"), MANY * SLOW_MS)
        self.assertLessEqual(ms(why, "peer's application"), waited)
        idle = sum(b[0] - a[1] for a, b in zip(said[ASKED], said[ASKED][1:])) / 1e6
        self.assertAlmostEqual(ms(why, "application") / idle, 1, delta=0.05)
        self.assertAlmostEqual(why["whole_ns"] / (said[ASKED][-1][1] - said[ASKED][0][0]), 1, delta=0.02)

        why = self.why(UNREAD)
        self.assertEqual((why["first"], why["ends"]["read"], why["write_bytes"]["count"]), ("peer's application", MANY + 1, MANY + 1))
        self.assertGreaterEqual(why["took_ns"]["max"] / 1e6, SLEEP_MS - 60)

        why = self.why(FULL)
        self.assertGreater(full, 0)
        self.assertEqual((why["ends"]["dropped"], sum(why["ends"].values())), (full, FLOOD))
        self.assertEqual([(d["drops"], d["drop_reason"]) for d in why["drops"]], [(full, "SOCKET_RCVBUFF")])

        why = self.why(STREAM)
        self.assertEqual((why["first"], why["ends"]["read"], why["pauses"]), ("application", MANY, MANY - 1))
        self.assertGreaterEqual(ms(why, "application"), (MANY - 1) * APART_MS)

        why = self.why(DROPPED)
        self.assertEqual((why["first"], why["ends"]["dropped"], why["ends"]["read"]), ("loss", 1, 1))
        (began, _), (_, answered) = said[DROPPED]
        self.assertGreaterEqual(ms(why, "loss"), 0.9 * PATIENCE_MS)
        self.assertLessEqual(ms(why, "loss"), (answered - began) / 1e6)
        (drop,) = why["drops"]
        self.assertEqual((drop["drops"], drop["drop_reason"]), (1, "NETFILTER_DROP"))
        # Of the packet: its own line; in words on one screen.
        asked = look.kpat_json("why", "--packet", str(drop["packet_id"]), str(self.out))
        self.assertEqual((asked["asked"]["end"], asked["asked"]["packet_id"], asked["sender"]), ("dropped", drop["packet_id"], why["sender"]))
        text = sh(play.kpat_path(), "why", "--packet", drop["packet_id"], self.out, "--width", 100).stdout
        self.assertIn("then it was dropped", text)
        self.assertLessEqual(len(text.splitlines()), 30)

    def test_a_shaped_device_and_a_reader_elsewhere(self):
        self.served()
        sh("ip", "netns", "exec", self.client, "tc", "qdisc", "add", "dev", "v0", "root", "tbf", "rate", f"{RATE_KBIT}kbit", "burst", 3000, "limit", 1_000_000)
        began = int(self.recorded_whole("shaped", [self.client, self.server], SHAPE))
        why = self.why(SHAPED)
        self.assertEqual((why["first"], why["ends"]["read"]), ("queue", FLOOD))
        slow = "tracepoint" not in probed()
        # At this rate the last leaves when all but the burst has been sent.
        takes_ms = ((BYTES + 42) * FLOOD - 3000) * 8 / RATE_KBIT
        self.assertGreaterEqual(why["whole_ns"] / 1e6, takes_ms - 1)
        self.assertAlmostEqual(why["from_ns"] / 1e6, began / 1e6, delta=50 if slow else 5)
        queue = next(s for s in why["stages"] if s["stage"] == "queue")
        self.assertGreater(queue["ns"] / 1e6, 0.9 * takes_ms)
        # An emulated processor takes a part of its own.
        self.assertGreater(queue["share"], 0.7 if slow else 0.9)
        # Of the sender's namespace alone: a virtual device's other end got it, and nothing is said of what came then.
        self.recorded_whole("away", [self.client], SHAPE)
        why = self.why(SHAPED)
        self.assertEqual((why["first"], why["ends"]["sent"] + why["ends"]["readable"], why["peer"]), ("queue", FLOOD, None))

    @unittest.skipIf("KPAT_BY" in os.environ, "takes long where a processor is emulated")
    def test_what_waits_for_its_neighbour_is_of_its_call(self):
        """Their sizes say nothing, nor does the order in which they leave."""
        self.served()
        came, times = json.loads(self.recorded_whole("neighbours", [self.client, self.server], SEND_TO_ALL.replace("SERVER", self.server)))
        (socket_id,) = {s["socket_id"] for s in look.kpat_json("app", str(self.out), "--limit", "0")["sockets"] if s["local_port"] == NEIGHBOURS}
        packets = look.kpat_json("sql", str(self.out), f"select packet_id, first_ns, dst_addr from packet where sport = {NEIGHBOURS} and proto = 17 order by first_ns")
        self.assertEqual([p["dst_addr"] for p in packets], [*[to for to, _, _ in times], ABSENT])
        for p, (to, began, ended) in zip(packets, times):
            written = look.kpat_json("packet", str(p["packet_id"]), str(self.out))["application"]["written"]
            (call,) = written["calls"]
            self.assertEqual((written["socket_id"], written["missing_bytes"]), (socket_id, 0))
            self.assertTrue(began <= call["at_boot_ns"] <= ended + 1_000_000, (to, began, call, ended))
        parts = look.kpat_json("sql", str(self.out), f"select packet_id from packet where proto = 17 and dst_addr = '{ABSENT}' and len_bytes > 500")
        written = [look.kpat_json("packet", str(p["packet_id"]), str(self.out))["application"]["written"] for p in parts]
        self.assertEqual([[c["bytes"] for c in w["calls"]] for w in written], [[IN_PARTS]] * PARTS)
        why = look.kpat_json("why", str(socket_id), str(self.out))
        # The server's socket is bound to its first address.
        self.assertEqual((why["first"], why["ends"]["dropped"], why["ends"]["read"]), ("neighbour", 2 * ROUNDS + 1, ROUNDS))
        self.assertEqual(sorted((d["drop_reason"], d["drops"]) for d in why["drops"]), [("NEIGH_FAILED", ROUNDS + PARTS), ("NO_SOCKET", ROUNDS)])
        (stage,) = [s for s in why["stages"] if s["stage"] == "neighbour"]
        self.assertEqual(stage["writes"], 2 * ROUNDS + 1)
        # Each is asked for again every second, three times in all.
        waited = {line["number"] - 1: line["stages_ns"].get("neighbour", 0) / 1e6 for line in why["slowest"]}
        self.assertTrue(waited)
        for number, ms in waited.items():
            to, began, _ = (*times, (ABSENT, times[-1][2], 0))[number]
            at_least = {ABSENT: FAILS_MS - 2 * ROUNDS * 10 - 100, LATE: (came - began) / 1e6, SERVER: 0}[to]
            self.assertGreaterEqual(ms, at_least, (to, why["slowest"]))

    def test_a_socket_that_several_ask(self):
        """While one waits for its answer, it is not waited for another's next question."""
        self.client, self.server = joined(self, "whyd", "v0", CLIENT, SERVER)
        server = begun(self, "resolve", ["ip", "netns", "exec", self.server, sys.executable, "-c", RESOLVE])
        self.recorded("resolved", [self.client, self.server], ASK_BOTH)
        owed = next(float(line.split()[1]) for line in play.text_of(server.stdout).splitlines() if line.startswith("owed"))
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        (s,) = [s for s in sockets if s["local_port"] == RESOLVED]
        why = look.kpat_json("why", str(s["socket_id"]), str(self.out))
        of_stage = {x["stage"]: x["ns"] / 1e9 for x in why["stages"]}
        print(f"why: asked by several: it owed an answer {owed:.3f} s; {of_stage}", file=sys.stderr)
        self.assertAlmostEqual(sum(x["ns"] for x in why["stages"]), why["whole_ns"], delta=len(why["stages"]))
        self.assertEqual(why["first"], "application")
        # What it wrote meanwhile was on its way, or not yet read.
        self.assertGreater(of_stage["application"], 0.8 * owed)
        self.assertLess(of_stage["application"], owed + 0.05 * why["whole_ns"] / 1e9)

    def test_a_socket_that_asks_several_questions_at_once(self):
        """One answer is not the end of its waiting for the others."""
        self.client, self.server = joined(self, "whyd", "v0", CLIENT, SERVER)
        begun(self, "resolve", ["ip", "netns", "exec", self.server, sys.executable, "-c", RESOLVE])
        waited, paused = map(float, self.recorded("several", [self.client, self.server], ASK_SEVERAL).split())
        why = self.why(RESOLVED)
        application = sum(x["ns"] for x in why["stages"] if x["stage"] == "application") / 1e9
        print(f"why: asked for {waited:.3f} s, paused {paused:.3f} s; application {application:.3f} s", file=sys.stderr)
        self.assertEqual(why["first"], "peer's application")
        # The last pause is behind all, and 2 ms of each waiting behind its last answer.
        self.assertAlmostEqual(application, paused * 4 / 5, delta=0.1 * paused + 0.002 * 5)

    def test_a_raw_reader_that_waits(self):
        self.served()
        begun(self, "raw", ["ip", "netns", "exec", self.server, sys.executable, "-c", READ_RAW])
        began = json.loads(self.recorded_whole("raw", [self.client, self.server], SEND_RAW))
        why = self.why(0, RAW)
        self.assertEqual((why["ends"]["read"], why["peer"]["local_port"]), (MANY, RAW))
        for line in why["slowest"]:
            self.assertAlmostEqual(line["from_ns"] / 1e6, began[line["number"] - 1] / 1e6, delta=APART_RAW_MS / 2)
            self.assertLess(line["took_ns"] / 1e6, APART_RAW_MS)

    def test_what_nobody_reads_any_more(self):
        """A reader that stops, one that is closed, and questions over networks whose hosts have the same numbers."""
        self.served()
        for ns, net, other in ((self.client, 1, 2), (self.server, 2, 1)):
            sh("ip", "-n", ns, "addr", "add", f"fd97:{net}::1/64", "dev", "v0", "nodad")
            sh("ip", "-n", ns, "route", "add", f"fd97:{other}::/64", "dev", "v0")
        sh("ip", "netns", "exec", self.client, "ping", "-c", "1", "-W", "5", "fd97:2::1")
        begun(self, "stops", ["ip", "netns", "exec", self.server, sys.executable, "-c", STOPS])
        said = json.loads(self.recorded("stops", [self.client, self.server], STOPPED))
        why = self.why(ASKED)
        self.assertEqual(why["ends"]["read"], QUESTIONS)
        (s,) = [s for s in look.kpat_json("app", str(self.out), "--limit", "0")["sockets"] if s["peer_port"] == ASKED]
        self.assertEqual(s["crossings"]["to-device"]["events"], QUESTIONS)
        for line in why["slowest"]:
            began, to = said[line["number"] - 1]
            self.assertGreaterEqual(line["from_ns"], began)
            self.assertLessEqual(line["to_ns"], to)
        why = self.why(STOP)
        self.assertEqual((why["first"], why["ends"]["read"], why["ends"]["open"]), ("peer's application", READS, MANY - READS))
        self.assertGreaterEqual(why["took_ns"]["max"] / 1e6, SLEEP_MS)
        why = self.why(CLOSED)
        self.assertEqual((why["ends"]["read"], why["ends"]["dropped"], why["ends"]["open"]), (READS, MANY - READS, 0))
        self.assertEqual(why["drops"][0]["drops"], MANY - READS)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class WhyDatagrams61(Inside, unittest.TestCase):
    """No tracepoint says that a read is over, and readers wait in their calls when recording begins."""
    series, detail = "6.1", "steps"
    of, modules, marked = "WhyDatagrams", "veth nf_tables nft_limit sch_tbf", "why:"


if __name__ == "__main__":
    unittest.main()
