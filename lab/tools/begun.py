#!/usr/bin/env python3
"""Connections that begin in other ways than by an answered SYN and a write: data in the SYN (TCP Fast Open), a first SYN that is lost, MPTCP.

    begun.py serve ADDR PORT               until SIGTERM or SIGINT, then one JSON line: what was read, by the peer's port
    begun.py ask ADDR PORT                 one JSON line: what each connection wrote and how long it took to connect
    begun.py judge KPAT LOG ASKED SERVED   compares kpat's log with both

PORT takes data in SYNs, PORT + 1 speaks MPTCP, PORT + 2 loses each connection's first SYN (the scenario's rule does). Truth is what each end wrote, read
and measured itself, and the kernel's count of SYNs with data.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

MSG_FASTOPEN, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, IPPROTO_MPTCP = 0x20000000, 23, 30, 262
FIRST, MORE, TIMES, ANSWER = 700, 100, 8, 10
PAUSE_S = 0.05


def listener(addr: str, port: int, proto: int = 0) -> socket.socket:
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, proto)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((addr, port))
    return s


def serve(addr: str, port: int) -> None:
    read = {}
    # Of all threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])

    def one(c, name):
        while data := c.recv(4096):
            read[name] = read.get(name, 0) + len(data)
            c.sendall(b"a" * ANSWER)
        c.close()

    def take(s):
        s.listen()
        while True:
            c, (_, name) = s.accept()
            threading.Thread(target=one, args=(c, name), daemon=True).start()

    fast = listener(addr, port)
    fast.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)
    for s in (fast, listener(addr, port + 1, IPPROTO_MPTCP), listener(addr, port + 2)):
        threading.Thread(target=take, args=(s,), daemon=True).start()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    print(json.dumps(read), flush=True)
    os._exit(0)


def talk(c: socket.socket) -> int:
    """Returns what it wrote."""
    for _ in range(TIMES):
        c.recv(ANSWER)
        time.sleep(PAUSE_S)
        c.sendall(b"m" * MORE)
    c.recv(ANSWER)
    return TIMES * MORE


def with_syn() -> int:
    """How many of this namespace's connections began with data that the other end took (/proc/net/netstat)."""
    names, values = [line.split() for line in open("/proc/net/netstat") if line.startswith("TcpExt:")]
    return int(values[names.index("TCPFastOpenActive")])


def ask(addr: str, port: int) -> None:
    out = []

    def begun(kind, c, wrote, **more):
        wrote += talk(c)
        out.append({"kind": kind, "port": c.getsockname()[1], "wrote": wrote, **more})
        c.close()

    # The first has no cookie yet, and its data go after the handshake.
    for _ in range(3):
        c = socket.socket()
        c.sendto(b"f" * FIRST, MSG_FASTOPEN, (addr, port))
        begun("fast", c, FIRST)
    c = socket.socket()
    c.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    c.connect((addr, port))
    c.sendall(b"f" * FIRST)
    begun("fast", c, FIRST)

    c = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    c.connect((addr, port + 1))
    c.sendall(b"f" * FIRST)
    begun("mptcp", c, FIRST)

    for _ in range(2):
        c = socket.socket()
        c.setblocking(False)
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            c.connect((addr, port + 2))
        except BlockingIOError:
            pass
        try:
            c.send(b"f" * FIRST)
            raise SystemExit("a write to a connection that is not made was taken")
        except BlockingIOError:
            pass
        c.setblocking(True)
        c.settimeout(60)
        while c.connect_ex((addr, port + 2)) not in (0, 106):  # EISCONN
            time.sleep(0.002)
        took = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - at
        c.sendall(b"f" * FIRST)
        begun("lost", c, FIRST, connect_ns=took)
    print(json.dumps({"connections": out, "with_syn": with_syn()}), flush=True)


def judge(kpat: str, log: str, asked: str, served: str) -> None:
    def run(*args):
        return json.loads(subprocess.run([kpat, *args, "--json"], check=True, stdout=subprocess.PIPE).stdout)

    asked, served = json.load(open(asked)), json.load(open(served))
    sockets = run("app", log, "--limit", "0")["sockets"]
    directions = {}
    for c in run("app", log, "--connections", "--limit", "0")["connections"]:
        for end, d in zip(c["ends"], c["directions"]):
            directions[end["local_port"]] = d
    held = 0
    for c in asked["connections"]:
        assert served[str(c["port"])] == c["wrote"], (c, served)
        own = [s for s in sockets if s["local_port"] == c["port"]]
        tcp = next(s for s in own if s["proto"] == 6)
        causes = {k: v for k, v in tcp["tcp"].items() if k.endswith("_ns") and isinstance(v, int)}
        if c["kind"] == "mptcp":
            whole = next(s for s in own if s["proto"] == IPPROTO_MPTCP)
            assert whole["sent_bytes"] == c["wrote"], whole
        else:
            d = directions[c["port"]]
            found = (d["written"], d["read"], d["left"], d["before"], d["unseen_writes"], d["unseen_reads"])
            assert found == (c["wrote"], c["wrote"], [], 0, 0, 0), (c, found)
        known = causes["known_ns"]
        if c["kind"] == "lost":
            # Only while nobody had answered, and all of that time but for the first SYN's way to the device.
            assert 0.9 * c["connect_ns"] <= causes["handshake_ns"] <= c["connect_ns"], (c, causes)
        else:
            assert causes["handshake_ns"] < 0.2 * known, (c, causes)
            # It writes a little, now and then.
            assert causes["application_ns"] > 0.7 * known, (c, causes)
        held += 1
    # Data in SYNs: whose write and whose read each byte is.
    syns = [p for p in run("packets", log, "tcp.syn and not tcp.ack", "--limit", "0")["packets"] if p["len_bytes"] > FIRST]
    assert len(syns) == asked["with_syn"] == 3, (len(syns), asked["with_syn"])
    for p in syns:
        a = run("packet", str(p["packet_id"]), log, "--no-calls")["application"]
        for end in ("written", "read"):
            e = a[end]
            assert (e["offset"], e["missing_bytes"]) == (0, 0), (p["packet_id"], end, e)
            assert e["calls"][0]["carried_bytes"] == FIRST == a["payload_bytes"], (p["packet_id"], end, e)
    print(f"{held} connections and {len(syns)} SYNs with data hold")


if __name__ == "__main__":
    {"serve": lambda a, p: serve(a, int(p)), "ask": lambda a, p: ask(a, int(p)), "judge": judge}[sys.argv[1]](*sys.argv[2:])
