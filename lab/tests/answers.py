"""Connections on which a program asks once, through a port that is redirected (so the ends do not name each other): what their time went to, and how they ended. Truth
is what the programs did and when, by the same clock: a server that answers late, one that reads nothing until the client gives up, one that closes with bytes unread,
a client that says nothing, resets from either end."""

import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import begun, joined, sh

CLIENT, SERVER = "10.97.1.1", "10.97.1.2"
LATE, SILENT, UNREAD, NOTHING, ABORTS, ABORTED, DROPS = range(8001, 8008)
MUTE = (NOTHING, DROPS)
LATE_MS, PATIENCE_MS, UNREAD_MS = 300, 400, 150
SERVE = f"""
import signal, socket, struct, threading, time
kept = []
def reset(c): c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
def late(c):
    c.recv(100); time.sleep({LATE_MS} / 1e3); c.sendall(b"y" * 70)
    c.recv(100); c.close()
def silent(c): kept.append(c)
def unread(c):
    c.recv(10); time.sleep({UNREAD_MS} / 1e3); c.close()
def nothing(c):
    c.recv(1); c.close()
def aborts(c):
    c.recv(100); reset(c); c.close()
def aborted(c):
    c.recv(100); c.sendall(b"y"); kept.append(c)
def drops(c): reset(c); c.close()
def serve(s, do):
    while True: threading.Thread(target=do, args=(s.accept()[0],), daemon=True).start()
for port, do in zip(range({LATE}, {DROPS} + 1), (late, silent, unread, nothing, aborts, aborted, drops)):
    s = socket.create_server(("{SERVER}", port + 1000))
    threading.Thread(target=serve, args=(s, do), daemon=True).start()
print("ready", flush=True)
signal.pause()
"""
# By port: its own port, and how long what it did took.
ASK = f"""
import json, socket, struct, time
said = {{}}
for port in range({LATE}, {DROPS} + 1):
    began = time.monotonic_ns()
    c = socket.create_connection(("{SERVER}", port))
    if port not in {MUTE}: c.sendall(b"x" * 50)
    c.settimeout({PATIENCE_MS} / 1e3)
    try:
        if port != {NOTHING}: c.recv(100)
    except OSError: pass
    if port == {ABORTED}: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    said[port] = (c.getsockname()[1], time.monotonic_ns() - began)
    c.close()
time.sleep(0.05)
print(json.dumps(said))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Answers(unittest.TestCase):
    def test_what_one_request_waited_for_and_how_its_connection_ended(self):
        client, server = joined(self, "answ", "v0", CLIENT, SERVER, os.environ.get("KPAT_KEEP_ANSWERS"))
        redirected = "; ".join(f"tcp dport {port} redirect to :{port + 1000}" for port in range(LATE, DROPS + 1))
        sh("ip", "netns", "exec", server, "nft", f"table ip t {{ chain p {{ type nat hook prerouting priority -100; {redirected}; }}; }}")
        begun(self, "serve", ["ip", "netns", "exec", server, sys.executable, "-c", SERVE])
        kbl, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        netns = [word for ns in (client, server) for word in ("--netns", ns)]
        argv = [play.kpat_path(), "record", "-p", "path,app", "--mechanism", "tracepoint", *netns, "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, "record", argv, lambda p: ready.exists())
        said = json.loads(sh("ip", "netns", "exec", client, sys.executable, "-c", ASK, seconds=cache.patience()).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        sockets = look.kpat_json("app", str(out), "--limit", "0")["sockets"]
        of_connection = {}
        for port, (own_port, took_ns) in said.items():
            s = next(s for s in sockets if s["local_addr"] == CLIENT and s["local_port"] == own_port)
            why = look.kpat_json("why", str(s["socket_id"]), str(out))
            (both,) = look.kpat_json("app", str(out), "--connections", "--socket", str(s["socket_id"]))["connections"]
            # The other end is the one that had the redirected connection, also where nothing was said on it.
            other = next(e for e in both["ends"] if e["socket_id"] != s["socket_id"])
            self.assertEqual((other["local_port"], why["peer"]["socket_id"]), (int(port) + 1000, other["socket_id"]), port)
            self.assertEqual(([e["peer_port"] for e in both["ends"] if e != other], other["peer_port"]), ([int(port)], own_port))
            self.assertEqual(sum(x["ns"] for x in why["stages"]), why["whole_ns"], port)
            of_connection[int(port)] = (s, why, took_ns, {k: v if k == "unread_bytes" or v is None else both["ends"][v] == other for k, v in both["ended"].items()})
            print(f"answers: {port}: took {took_ns / 1e6:.1f} ms; {why['first']} of {why['whole_ns'] / 1e6:.1f} ms; {why['ends']}; {both['ended']}", file=sys.stderr)
        ms = lambda why, stage: sum(x["ns"] for x in why["stages"] if x["stage"] == stage) / 1e6
        # The answer came late: all that the program waited is there, and the server's time is what it slept, or some more.
        _, why, took_ns, ended = of_connection[LATE]
        self.assertEqual((why["first"], why["until_answer"], why["ends"]["read"]), ("peer's application", True, 1))
        self.assertGreaterEqual(ms(why, "peer's application"), LATE_MS)
        self.assertLessEqual(ms(why, "peer's application"), took_ns / 1e6)
        self.assertGreater(why["whole_ns"] / took_ns, 0.9)
        self.assertLessEqual(why["whole_ns"] / took_ns, 1)
        self.assertEqual(ended, {"closed_first": False, "reset_by": None, "unread_bytes": 0})
        # Nothing was read until the client gave up, nor later.
        _, why, _, ended = of_connection[SILENT]
        self.assertEqual((why["first"], why["ends"]["read"], why["writes"]), ("peer's application", 0, 1))
        self.assertGreaterEqual(ms(why, "peer's application"), PATIENCE_MS - 1)
        self.assertEqual(ended["closed_first"], False)
        # It waited until the connection was reset, which the server did as it had not read 40 of 50.
        _, why, _, ended = of_connection[UNREAD]
        self.assertEqual((why["first"], why["ends"]["reset"]), ("peer's application", 1))
        self.assertGreaterEqual(ms(why, "peer's application"), UNREAD_MS)
        self.assertEqual((ended["reset_by"], ended["unread_bytes"]), (True, 40))
        # Connected it was, and nothing else.
        s, why, _, ended = of_connection[NOTHING]
        self.assertEqual((why["connected"], why["writes"], ended["closed_first"], ended["reset_by"]), (True, 0, False, None))
        self.assertNotIn("not connected", sh(play.kpat_path(), "why", s["socket_id"], out).stdout)
        s, why, _, ended = of_connection[DROPS]
        self.assertEqual((why["connected"], why["refused"], why["writes"], ended["reset_by"]), (True, False, 0, True))
        self.assertNotIn("answered its SYN", sh(play.kpat_path(), "why", s["socket_id"], out).stdout)
        self.assertEqual((of_connection[ABORTS][3]["reset_by"], of_connection[ABORTED][3]["reset_by"]), (True, False))
        aborted = of_connection[ABORTED][0]
        shown = sh(play.kpat_path(), "app", out, "--connections", "--socket", aborted["socket_id"]).stdout
        self.assertIn(f"translated  {CLIENT}:{aborted['local_port']} spoke to {SERVER}:{ABORTED}, and {SERVER}:{ABORTED + 1000} to {CLIENT}:{aborted['local_port']}", shown)
        said_of = sh(play.kpat_path(), "app", out, "--socket", of_connection[ABORTED][0]["socket_id"]).stdout
        self.assertIn("ended by    this end reset it", said_of)


if __name__ == "__main__":
    unittest.main()
