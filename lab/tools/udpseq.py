#!/usr/bin/env python3
"""Numbered UDP packets: the ground truth of what was sent and what arrived.

    udpseq.py send HOST PORT COUNT [--size 64] [--pps N] [--tile] [--unconnected] [--options] [--interface DEV] [--flows N]
                                                              one JSON line: sent, seconds
    udpseq.py echo PORT [--addr A]                            sends back what comes, until it is stopped
    udpseq.py recv PORT [--addr A] [--idle 1.5] [--expect N]  one JSON line: received, lost, duplicates, reordered, ...

Payload: 8 bytes sequence number (big endian, from 0), then 0x4b to fill, or with --tile the number over and over, so that each
IP fragment begins with it. --unconnected: one identification (0, as Linux does with DF) for all packets over IPv4. --options: IPv6
hop-by-hop and destination options before the UDP header. A multicast HOST is sent to through --interface.
--flows: in turn from so many ports, 20000 and up. The receiver ends when N different numbers have
come, when nothing came for --idle seconds after the first packet, or on SIGINT/SIGTERM, and always prints its line.
`missing` and `duplicated` list the numbers (the first 1000), so that a packet can be looked up in a log by its payload.
"""
import argparse
import json
import signal
import socket
import struct
import sys
import time

SO_RCVBUFFORCE = 33  # beyond net.core.rmem_max, for root; Python does not name it
RECEIVE_BUFFER = 16 << 20  # some 10,000 small packets: the receiver may be off the CPU for seconds under emulation


def family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def sender(a, port: int):
    """What sends a datagram, from this port (0: any)."""
    s = socket.socket(family(a.host), socket.SOCK_DGRAM)
    if a.options:
        # 8 bytes each: next header and length, which the kernel fills in, and padding (PadN; more than 7 bytes of it are refused).
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
    if a.interface:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, a.interface.encode())
    if a.unconnected and s.family == socket.AF_INET:
        s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: never a fragment, so no identification
    if port:
        s.bind(("", port))
    if a.unconnected:
        return lambda data: s.sendto(data, (a.host, a.port))
    s.connect((a.host, a.port))
    return s.send


def send(a) -> dict:
    senders = [sender(a, 20000 + n) for n in range(a.flows)] or [sender(a, 0)]
    pack, now = struct.Struct(">Q").pack, time.monotonic
    more = max(0, a.size - 8)
    sent = errors = 0
    start = now()
    for i in range(a.count):
        if a.pps:
            ahead = start + i / a.pps - now()
            if ahead > 0:
                time.sleep(ahead)
        try:
            senders[i % len(senders)](pack(i) + (pack(i) * (more // 8 + 1))[:more] if a.tile else pack(i) + b"K" * more)
            sent += 1
        except OSError:  # an ICMP error of an earlier packet is reported here: count it and go on
            errors += 1
    return {"sent": sent, "errors": errors, "size": max(8, a.size), "seconds": round(now() - start, 6)}


def listen(a) -> socket.socket:
    s = socket.socket(family(a.addr), socket.SOCK_DGRAM)
    try:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    except OSError:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    s.bind((a.addr, a.port))
    s.settimeout(0.1)
    return s


def recv(a) -> dict:
    stop = []
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, lambda *_: stop.append(1))
    s = listen(a)
    seen: dict[int, int] = {}
    received = reordered = malformed = 0
    highest, first, last = -1, None, 0.0
    while not stop and not (a.expect and len(seen) >= a.expect):
        try:
            data = s.recv(65536)
        except TimeoutError:
            if first is not None and time.monotonic() - last > a.idle:
                break
            continue
        last = time.monotonic()
        first = first if first is not None else last
        if len(data) < 8:
            malformed += 1
            continue
        n = int.from_bytes(data[:8], "big")
        received += 1
        if n in seen:
            seen[n] += 1
        else:
            seen[n] = 1
            if n < highest:
                reordered += 1
        highest = max(highest, n)
    total = a.expect or highest + 1
    missing = [n for n in range(total) if n not in seen]
    again = [n for n, c in seen.items() if c > 1]
    return {"received": received, "unique": len(seen), "lost": len(missing), "duplicates": received - len(seen), "reordered": reordered,
            "malformed": malformed, "seconds": round(last - first, 6) if first is not None else 0, "missing": missing[:1000], "duplicated": again[:1000]}


def echo(a) -> dict:
    """Sends back what comes, until it is stopped."""
    stop = []
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, lambda *_: stop.append(1))
    s = listen(a)
    answered = 0
    while not stop:
        try:
            data, who = s.recvfrom(65536)
        except TimeoutError:
            continue
        s.sendto(data, who)
        answered += 1
    return {"answered": answered}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="verb", required=True)
    t = sub.add_parser("send")
    t.add_argument("host")
    t.add_argument("port", type=int)
    t.add_argument("count", type=int)
    t.add_argument("--size", type=int, default=64)
    t.add_argument("--pps", type=float, default=0)
    for flag in ("--tile", "--unconnected", "--options"):
        t.add_argument(flag, action="store_true")
    t.add_argument("--interface")
    t.add_argument("--flows", type=int, default=0)
    r = sub.add_parser("recv")
    r.add_argument("port", type=int)
    r.add_argument("--addr", default="0.0.0.0")
    r.add_argument("--idle", type=float, default=1.5)
    r.add_argument("--expect", type=int, default=0)
    e = sub.add_parser("echo")
    e.add_argument("port", type=int)
    e.add_argument("--addr", default="0.0.0.0")
    a = p.parse_args()
    print(json.dumps({"send": send, "recv": recv, "echo": echo}[a.verb](a)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
