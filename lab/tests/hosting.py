"""A host that serves: whose a listener is that was there before the recording, and what is in its accept queue; what it loses when that is full; whom a
server waited for while it owed an answer; how long questions in datagrams waited. Truth is what the programs say: their process ids, their sockets'
cookies, the times that they took; what nftables counted of the segments sent, and the kernel of connections for which there was no room."""

import json
import os
import statistics
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import begun, joined, sh

CLIENT, SERVER = "10.96.1.1", "10.96.1.2"
PROXY, SPLIT, UPSTREAM, FULL, ASKED, LOST = range(8001, 8007)
LATE_MS, ANSWER_MS, PATIENCE_MS = 200, 30, 120
SO_COOKIE = 57
PRELUDE = f"""
import json, os, signal, socket, struct, sys, threading, time
def cookie(s): return struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, {SO_COOKIE}, 8))[0]
def say(**what): print(json.dumps(what), flush=True)
"""
BEHIND = PRELUDE + f"""
s = socket.create_server(("{SERVER}", {UPSTREAM}))
def late(c):
    c.recv(100); time.sleep({LATE_MS} / 1e3); c.sendall(b"y" * 40); c.recv(100); c.close()
print("ready", flush=True)
while True: threading.Thread(target=late, args=(s.accept()[0],), daemon=True).start()
"""
# One asks one upstream, the other two at once.
FRONT = PRELUDE + f"""
def ask(c):
    began = time.monotonic_ns()
    c.sendall(b"x" * 20); c.recv(100)
    return time.monotonic_ns() - began
def serve(s, n):
    while True:
        c = s.accept()[0]
        c.recv(100)
        behind = [socket.create_connection(("{SERVER}", {UPSTREAM})) for _ in range(n)]
        began = time.monotonic_ns()
        took = [0] * n
        def each(i): took[i] = ask(behind[i])
        all = [threading.Thread(target=each, args=(i,)) for i in range(1, n)]
        for t in all: t.start()
        each(0)
        for t in all: t.join()
        owed = time.monotonic_ns() - began
        c.sendall(b"y" * 40)
        say(port=s.getsockname()[1], owed_ns=owed, waited_ns=took, cookies=[cookie(b) for b in behind])
        for b in behind: b.close()
        c.close()
for port, n in (({PROXY}, 1), ({SPLIT}, 2)):
    threading.Thread(target=serve, args=(socket.create_server(("{SERVER}", port)), n), daemon=True).start()
print("ready", flush=True)
signal.pause()
"""
IDLE = PRELUDE + f"""
s = socket.create_server(("{SERVER}", {FULL}), backlog=0)
say(cookie=cookie(s), pid=os.getpid(), name=open("/proc/self/comm").read().strip())
print("ready", flush=True)
signal.pause()
"""
NAMES = PRELUDE + f"""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("{SERVER}", {ASKED}))
print("ready", flush=True)
while True:
    question, to = s.recvfrom(100)
    time.sleep({ANSWER_MS} / 1e3)
    if question != b"nobody knows": s.sendto(question * 2, to)
"""
CONNECT = PRELUDE + f"""
said = {{}}
for port in ({PROXY}, {SPLIT}):
    c = socket.create_connection(("{SERVER}", port))
    c.sendall(b"x" * 50); c.recv(100)
    said[port] = cookie(c)
    c.close()
# Of the first the handshake's last segment is dropped on its way out; the second then takes the only place.
lost, taken = socket.socket(), socket.socket()
lost.bind(("{CLIENT}", {LOST}))
for s in (lost, taken):
    s.connect(("{SERVER}", {FULL}))
    time.sleep(0.02)
said["lost"], said["taken"], said["taken_port"] = cookie(lost), cookie(taken), taken.getsockname()[1]
lost.sendall(b"x" * 100)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(("{SERVER}", {ASKED}))
u.settimeout({PATIENCE_MS} / 1e3)
said["asks"], said["took_ns"] = cookie(u), []
for i in range(5):
    began = time.monotonic_ns()
    u.send(b"q" * 10); u.recv(100)
    said["took_ns"].append(time.monotonic_ns() - began)
u.send(b"nobody knows")
try: u.recv(100)
except OSError: pass
u.close()
time.sleep(0.2)
# It is reset, so that nothing is sent again while the segments are counted.
lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
lost.close()
print(json.dumps(said))
"""
# Asks itself, from one thread to another: the first is answered late, the second when the upstream has answered.
ITSELF = PRELUDE + f"""
def serve(s, behind):
    c = s.accept()[0]; c.recv(100)
    if behind:
        b = socket.create_connection(("{SERVER}", {UPSTREAM})); b.sendall(b"x" * 20); b.recv(100)
        said["behind"] = cookie(b)
    else: time.sleep({LATE_MS} / 1e3)
    c.sendall(b"y" * 40)
said = {{}}
for port in ({PROXY}, {SPLIT}):
    s = socket.create_server(("{CLIENT}", port))
    threading.Thread(target=serve, args=(s, port == {SPLIT})).start()
    c = socket.create_connection(("{CLIENT}", port)); c.sendall(b"x" * 50); c.recv(100)
    said[port] = cookie(c)
print(json.dumps(said))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Hosting(unittest.TestCase):
    def test_a_process_that_asks_itself_waits_for_somebody_else(self):
        client, server = joined(self, "host", "v0", CLIENT, SERVER)
        inside = lambda ns, text: ["ip", "netns", "exec", ns, sys.executable, "-c", text]
        begun(self, "behind", inside(server, BEHIND))
        kbl, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        argv = [play.kpat_path(), "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", client, "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, "record", argv, lambda p: ready.exists())
        said = json.loads(sh(*inside(client, ITSELF), seconds=cache.patience()).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        late, behind = (look.kpat_json("why", str(said[str(port)]), str(out)) for port in (PROXY, SPLIT))
        self.assertEqual((late["first"], late["meanwhile"]), ("peer's application", None))
        self.assertEqual(behind["meanwhile"]["socket"]["socket_id"], said["behind"])
        self.assertGreaterEqual(behind["meanwhile"]["ns"], LATE_MS * 1e6)

    def test_whose_listeners_are_and_what_waits_behind_them(self):
        client, server = joined(self, "host", "v0", CLIENT, SERVER, os.environ.get("KPAT_KEEP_HOSTING"))
        # The first acknowledgement is the handshake's last segment.
        rules = f"""counter sent {{ }}; chain o {{ type filter hook output priority 0;
            tcp sport {LOST} tcp flags & (syn | rst | ack) == ack limit rate 1/hour burst 1 packets drop;
            tcp sport {LOST} tcp flags & (syn | rst | ack) == ack counter name sent; }};"""
        sh("ip", "netns", "exec", client, "nft", f"table ip t {{ {rules} }}")
        inside = lambda ns, text: ["ip", "netns", "exec", ns, sys.executable, "-c", text]
        begun(self, "behind", inside(server, BEHIND))
        front, idle = begun(self, "front", inside(server, FRONT)), begun(self, "idle", inside(server, IDLE))
        begun(self, "names", inside(server, NAMES))
        kbl, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        netns = [word for ns in (client, server) for word in ("--netns", ns)]
        argv = [play.kpat_path(), "record", "-p", "path,app", "--mechanism", "tracepoint", *netns, "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, "record", argv, lambda p: ready.exists())
        said = json.loads(sh(*inside(client, CONNECT), seconds=cache.patience()).stdout)
        no_room = int(sh("ip", "netns", "exec", server, "nstat", "-asz", "TcpExtListenOverflows").stdout.split()[-2])
        counters = json.loads(sh("ip", "netns", "exec", client, "nft", "-j", "list", "counters").stdout)["nftables"]
        sent = next(c["counter"]["packets"] for c in counters if "counter" in c)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        of_front = {w["port"]: w for w in map(json.loads, play.text_of(front.stdout).split("ready\n")[1].splitlines())}
        of_idle = json.loads(play.text_of(idle.stdout).splitlines()[0])
        look.integrate(kbl, [], out)
        sockets = {s["socket_id"]: s for s in look.kpat_json("app", str(out), "--limit", "0")["sockets"]}
        self.assertGreater(sent, 1, "the world is not as it should be: nothing was sent again")

        # The listener, and what waits in its queue: no process has used that.
        listener = sockets[of_idle["cookie"]]
        self.assertEqual((listener["pid"], listener["process"]), (of_idle["pid"], of_idle["name"]))
        (queued,) = [s for s in sockets.values() if (s["local_port"], s["peer_port"]) == (FULL, said["taken_port"])]
        self.assertIsNone(queued["pid"])
        self.assertEqual((queued["listener"]["socket_id"], queued["listener"]["pid"]), (of_idle["cookie"], of_idle["pid"]))
        shown = sh(play.kpat_path(), "app", out, "--socket", queued["socket_id"]).stdout
        self.assertIn(f"{listener['process']} {of_idle['pid']} listens", shown)
        self.assertTrue(all(s["listener"] is None for s in sockets.values() if s["pid"] is not None))

        # Its client was connected, as it thought, and had no room: each of its segments was dropped for that.
        why = look.kpat_json("why", str(said["lost"]), str(out))
        drops = {d["drop_reason"]: d["drops"] for d in why["drops"]}
        print(f"hosting: {sent} segments sent, no room for {no_room}, {why['first']}: {why['drops']}", file=sys.stderr)
        self.assertTrue(why["connected"])
        self.assertEqual(drops, {"TCP_LISTEN_OVERFLOW": sent}, why["drops"])
        self.assertIn("accept queue was full", sh(play.kpat_path(), "why", said["lost"], out).stdout)
        self.assertEqual(look.kpat_json("why", str(said["taken"]), str(out))["drops"], [])

        # Whom a proxy waited for: of one there is no doubt, of two there is.
        truth = of_front[PROXY]
        meanwhile = look.kpat_json("why", str(said[str(PROXY)]), str(out))["meanwhile"]
        print(f"hosting: waited {meanwhile['ns'] / 1e6:.1f} of {meanwhile['of_ns'] / 1e6:.1f} ms; it says {truth['waited_ns'][0] / 1e6:.1f} of {truth['owed_ns'] / 1e6:.1f}", file=sys.stderr)
        self.assertEqual(meanwhile["socket"]["socket_id"], truth["cookies"][0])
        self.assertGreaterEqual(meanwhile["ns"], LATE_MS * 1e6)
        self.assertLessEqual(meanwhile["ns"], truth["waited_ns"][0])
        self.assertGreaterEqual(meanwhile["of_ns"], meanwhile["ns"])
        text = sh(play.kpat_path(), "why", said[str(PROXY)], out).stdout
        self.assertIn(f"kpat why {truth['cookies'][0]}", text)
        self.assertEqual(len(of_front[SPLIT]["cookies"]), 2)
        self.assertIsNone(look.kpat_json("why", str(said[str(SPLIT)]), str(out))["meanwhile"])

        # Questions in datagrams: from the call to the end of the read is what the program saw, the way to the device less.
        questions = sockets[said["asks"]]["questions"]
        print(f"hosting: {questions['waits']} waits, median {questions['wait_ns']['median'] / 1e6:.2f} ms, the program says {statistics.median(said['took_ns']) / 1e6:.2f}", file=sys.stderr)
        self.assertEqual((questions["sent"], questions["read"], questions["waits"]), (6, 5, 5))
        self.assertGreaterEqual(questions["wait_ns"]["min"], ANSWER_MS * 1e6)
        self.assertLessEqual(questions["wait_ns"]["max"], max(said["took_ns"]))
        self.assertGreaterEqual(questions["away_ns"]["min"], ANSWER_MS * 1e6)
        self.assertGreaterEqual(questions["open_since_ns"] / 1e9, sum(said["took_ns"]) / 1e9)
        self.assertIn("has no answer in this log", sh(play.kpat_path(), "app", out, "--socket", said["asks"]).stdout)
        self.assertTrue(all(s["questions"] is None for s in sockets.values() if s["local_port"] == ASKED))


if __name__ == "__main__":
    unittest.main()
