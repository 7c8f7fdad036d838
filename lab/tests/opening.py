"""Connections that do not come about, or come about late: why, and by which packet. Truth is what connect() gave to the program, the firewalls' own
counters of what they dropped, and the listener's count of what it had no room for (nstat)."""

import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import begun, own, sh

CLIENT, SERVER = "10.94.1.1", "10.94.1.2"
REFUSED, DROPPED_HERE, DROPPED_THERE, ANSWER_DROPPED, UNREACHABLE, LATE, FULL, RESET, OPEN = range(7001, 7010)
# Both ends of the link drop: the client what it sends, the server what comes and what it answers.
RULES = {
    "c": f"counter o {{ }}; chain out {{ type filter hook output priority 0; tcp dport {DROPPED_HERE} counter name o drop; }};",
    "s": f"""counter i {{ }}; counter a {{ }}; counter l {{ }};
             chain in {{ type filter hook input priority 0; tcp dport {DROPPED_THERE} counter name i drop; tcp dport {UNREACHABLE} reject with icmp type host-unreachable;
                         tcp dport {LATE} tcp flags & (syn | ack) == syn numgen inc mod 2 0 counter name l drop; }};
             chain out {{ type filter hook output priority 0; tcp sport {ANSWER_DROPPED} counter name a drop; }};""",
}
LISTEN = f"""
import signal, socket, struct, threading
def serve(s, reset):
    while True:
        c, _ = s.accept()
        if reset: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else: c.recv(10)
        c.close()
for port in ({DROPPED_THERE}, {ANSWER_DROPPED}, {UNREACHABLE}, {LATE}, {RESET}, {OPEN}):
    s = socket.create_server(("{SERVER}", port))
    threading.Thread(target=serve, args=(s, port == {RESET}), daemon=True).start()
full = socket.socket()
full.bind(("{SERVER}", {FULL}))
full.listen(0)
print("ready", flush=True)
signal.pause()
"""
# What each connect() came to, and the port that it had; of a connection that is there, what reading from it came to.
CONNECT = f"""
import errno, json, socket, threading
said, own, first = {{}}, {{}}, socket.create_connection(("{SERVER}", {FULL}))
def connect(port):
    s = socket.socket()
    s.bind(("{CLIENT}", 0))
    own[port] = s.getsockname()[1]
    try:
        s.connect(("{SERVER}", port))
        s.sendall(b"x") if port != {RESET} else None
        s.recv(1)
        word = "connected"
    except OSError as e:
        word = errno.errorcode[e.errno]
    said[port] = (word, own[port])
threads = [threading.Thread(target=connect, args=(port,)) for port in range({REFUSED}, {OPEN} + 1)]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps(said))
"""
# Many short connections, one after the other: what became of each by port, the time from before connect() until it returned, bytes; then it stays, and one attempt with it.
ABSENT, ROUNDS, TEXT = "10.94.1.77", 150, 40
SHORT = f"""
import collections, errno, json, signal, socket, sys, time
said, took, now = collections.defaultdict(collections.Counter), collections.defaultdict(list), lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def connect(address, port, patience):
    s = socket.socket()
    s.settimeout(patience)
    begin = now()
    try:
        s.connect((address, port))
        took[port].append(now() - begin)
        s.sendall(b"x" * {TEXT})
        s.recv(1)
        word = "connected"
    except TimeoutError as e:
        word = errno.errorcode[e.errno] if e.errno else "patience"
    except OSError as e:
        word = errno.errorcode[e.errno]
    said[f"{{address}}:{{port}}"][word] += 1
    s.close()
for n in range({ROUNDS}):
    connect("{SERVER}", {OPEN}, 30)
    connect("{SERVER}", {REFUSED}, 30)
    if n % 10 == 0:
        connect("{SERVER}", {DROPPED_THERE}, 0.05)
        connect("{ABSENT}", {OPEN}, 0.05)  # its SYN waits for a neighbour, and leaves never
connect("{SERVER}", {DROPPED_THERE}, None)
left = socket.socket()
left.setblocking(False)
left.connect_ex(("{SERVER}", {DROPPED_THERE}))
said["{SERVER}:{DROPPED_THERE}"]["left"] += 1
print("ready", json.dumps([said, took]), flush=True)
signal.pause()
"""
# By what connect() gave.
RESULTS = {"connected": "connected", "ECONNRESET": "connected", "ECONNREFUSED": "refused", "EHOSTUNREACH": "unreachable", "ETIMEDOUT": "timed-out",
           "patience": "closed", "left": "waiting"}


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Opening(unittest.TestCase):
    def counter(self, ns: str, name: str) -> int:
        all_of = json.loads(sh("ip", "netns", "exec", ns, "nft", "-j", "list", "counters").stdout)["nftables"]
        return next(c["counter"]["packets"] for c in all_of if "counter" in c and c["counter"]["name"] == name)

    def world(self, name: str, keep: str | None = None) -> tuple[str, str]:
        """Client and server, whose firewalls and listeners are there."""
        client, server = own(self, name, "cs", keep)
        sh("ip", "-n", client, "link", "add", "c0", "type", "veth", "peer", "name", "s0", "netns", server)
        for ns, dev, address, rules in ((client, "c0", CLIENT, "c"), (server, "s0", SERVER, "s")):
            sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
            sh("ip", "netns", "exec", ns, "nft", f"table ip t {{ {RULES[rules]} }}")
        # One SYN more, after a second; then it is given up.
        sh("ip", "netns", "exec", client, "sh", "-c", "sysctl -qw net.ipv4.tcp_syn_retries=1; sysctl -qw net.ipv4.tcp_syn_linear_timeouts=0", ok=False)
        sh("ip", "netns", "exec", client, "ping", "-nqc", "1", SERVER)
        begun(self, "listen", ["ip", "netns", "exec", server, sys.executable, "-c", LISTEN])
        return client, server

    def test_many_short_connections_add_up(self):
        client, server = self.world("many", os.environ.get("KPAT_KEEP_OPENING"))
        kbl, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        argv = [play.kpat_path(), "record", "-p", "app", "--netns", client, "--netns", server, "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, "record", argv, lambda p: ready.exists())
        asks = begun(self, "short", ["ip", "netns", "exec", client, sys.executable, "-c", SHORT])
        said, took = json.loads(play.text_of(asks.stdout).split("ready ", 1)[1])
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        self.assertEqual(look.integrate(kbl, [], out)["lost"], 0)
        groups = {g["name"]: g for g in look.kpat_json("app", str(out), "--by", "service")["groups"]}
        for service, words in said.items():
            truth = {}
            for word, n in words.items():
                truth[RESULTS[word]] = truth.get(RESULTS[word], 0) + n
            g = groups[f"TCP {service}"]
            self.assertEqual({k: n for k, n in g["results"].items() if n}, truth, service)
            self.assertEqual(g["connects"], sum(words.values()), service)
        served, ns = groups[f"TCP {SERVER}:{OPEN}"], sorted(took[str(OPEN)])
        # Both ends are in the log, and the listener.
        self.assertEqual((served["sockets"], served["sent_bytes"], served["received_bytes"]), (2 * ROUNDS + 1, ROUNDS * TEXT, ROUNDS * min(TEXT, 10)))
        self.assertEqual((served["connect_ns"]["count"], served["writes"]), (ROUNDS, ROUNDS))
        self.assertTrue(0 < served["connect_ns"]["median"] <= ns[len(ns) // 2] and served["connect_ns"]["max"] <= ns[-1], (served["connect_ns"], ns[-1]))
        sockets = {s["socket_id"]: s for s in look.kpat_json("app", str(out), "--limit", "0")["sockets"]}
        self.assertEqual(sockets[served["connect_ns"]["worst_socket_id"]]["opening"]["took_ns"], served["connect_ns"]["max"])
        opens, fails = (int(sh("ip", "netns", "exec", client, "nstat", "-asz", name).stdout.split()[-2]) for name in ("TcpActiveOpens", "TcpAttemptFails"))
        begun_here = [s["opening"]["result"] for s in sockets.values() if s["opening"]]
        # The kernel counts as failed what a reset or an error ended, and not what its process closed.
        counted = (len(begun_here), sum(r in ("refused", "unreachable", "timed-out") for r in begun_here))
        print(f"opening: {counted} begun and failed, {(opens, fails)} by the kernel's count; {served['connect_ns']['median']} ns in the median, "
              f"{ns[len(ns) // 2]} around connect()", file=sys.stderr, flush=True)
        self.assertEqual(counted, (opens, fails))
        for by in ("process", "peer", "cgroup", "user"):
            all_of = look.kpat_json("app", str(out), "--by", by, "--limit", "0")["groups"]
            self.assertEqual(sum(g["sockets"] for g in all_of), len(sockets), by)
            self.assertEqual(sum(g["sent_bytes"] for g in all_of), sum(s["sent_bytes"] for s in sockets.values()), by)

    def test_each_failure_has_its_error_and_its_packets(self):
        client, server = self.world("open", os.environ.get("KPAT_KEEP_OPENING"))
        kbl, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        argv = [play.kpat_path(), "record", "-p", "path,app", "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, "record", argv, lambda p: ready.exists())
        said = json.loads(sh("ip", "netns", "exec", client, sys.executable, "-c", CONNECT, seconds=cache.patience()).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        sockets = look.kpat_json("app", str(out), "--limit", "0")["sockets"]
        no_room = int(sh("ip", "netns", "exec", server, "nstat", "-asz", "TcpExtListenOverflows").stdout.split()[-2])
        truth = {
            REFUSED: ("ECONNREFUSED", 1, 0, 1), DROPPED_HERE: ("ETIMEDOUT", self.counter(client, "o"), 0, 0),
            DROPPED_THERE: ("ETIMEDOUT", self.counter(server, "i"), 0, 0), ANSWER_DROPPED: ("ETIMEDOUT", 0, self.counter(server, "a"), 0),
            UNREACHABLE: ("EHOSTUNREACH", None, 0, 0), LATE: ("connected", self.counter(server, "l"), 0, 0), FULL: ("ETIMEDOUT", 0, 0, 0),
            RESET: ("ECONNRESET", None, None, None), OPEN: ("connected", None, None, None),
        }
        for port, (word, syns, answers, refusals) in truth.items():
            connect, own_port = said[str(port)]
            self.assertEqual(connect, word, f"port {port}: the world is not as it should be")
            s = next(s for s in sockets if s["local_addr"] == CLIENT and (s["local_port"], s["peer_port"]) == (own_port, port))
            self.assertEqual(s["error"], None if word == "connected" else word, f"port {port}")
            self.assertEqual(s["opening"]["result"], RESULTS[word], f"port {port}")
            if syns is None and word in ("connected", "ECONNRESET"):
                continue
            why = look.kpat_json("why", str(s["socket_id"]), str(out))
            opening = why["opening"]
            dropped = lambda kind: [o for o in opening[kind] if o["drops"]]
            times = lambda kind: sum(o["drops"] for o in dropped(kind))
            print(f"opening: {port}: {connect}; {[(k, [(o['packet_id'], o['verdict'], o['drop_reason']) for o in v]) for k in ('syns', 'answers', 'refusals') if (v := opening[k])]}; "
                  f"{[s['meaning'] for s in why['stages'] if s['stage'] == 'handshake']}", file=sys.stderr, flush=True)
            self.assertEqual(why["first"], "handshake", f"port {port}")
            self.assertEqual(times("answers"), answers, f"port {port}")
            self.assertEqual(len(opening["refusals"]), refusals, f"port {port}")
            self.assertEqual(why["refused"], bool(refusals), f"port {port}")
            if syns is not None:
                self.assertEqual(times("syns"), syns, f"port {port}")
            by_firewall = port in (DROPPED_HERE, DROPPED_THERE, LATE)
            if by_firewall:
                self.assertTrue(all(o["drop_reason"] == "NETFILTER_DROP" and "nft" in o["drop_place"] for o in dropped("syns")), dropped("syns"))
            if port == DROPPED_THERE:
                # Which of the two namespaces' firewalls it was.
                self.assertEqual({(o["drop_device"]["name"], o["drop_device"]["netns_name"]) for o in dropped("syns")}, {("s0", server)})
                said_of = sh(play.kpat_path(), "packet", dropped("syns")[0]["packet_id"], out).stdout
                self.assertRegex(said_of, rf"verdict +dropped: NETFILTER_DROP at nft_do_chain\S*, on s0 of {server}", said_of)
                self.assertIn(f", on s0 of {server}", sh(play.kpat_path(), "why", s["socket_id"], out).stdout)
        # What is sent again while there was no answer is a SYN: the kernel's state of it then.
        again = [e["what"] for e in look.kpat_json("events", str(out), "--kind", "retransmit", "--limit", "0")["events"] if e["a"] & 0xffff == DROPPED_THERE]
        self.assertTrue(again and all(what.endswith(", SYN_SENT") for what in again), again)
        # A listener without room neither answers nor drops: the kernel is done with each of these SYNs as with one that it took.
        full = look.kpat_json("why", str(next(s["socket_id"] for s in sockets if s["peer_port"] == FULL and s["error"])), str(out))["opening"]
        self.assertIn(len(full["syns"]), range(1, no_room + 1))  # by functions, what was sent again from one buffer is one packet
