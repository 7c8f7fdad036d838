#!/usr/bin/env python3
"""A sender and a receiver that make one cause hold a TCP connection back, and say what they and TCP counted themselves.

    held.py recv ADDR PORT [--rcvbuf N] [--read N --every-ms MS] [--pause-ms MS] [--answer | --answer-after N] [--half]
    held.py send ADDR PORT --seconds S [--write N] [--every-ms MS [--batch N]] [--sndbuf N] [--pace BYTES/S] [--nonblocking] [--answer | --answer-after N] [--nagle] [--half]

recv takes one connection and says "listening" when it waits for it. send writes for so long and prints one line of JSON: its calls, bytes asked for
and taken, errors by name, nanoseconds from a refusal until the socket could be written again, and TCP_INFO at the end, before it closes.
--batch: so many writes each time. --answer: one byte comes back for each write; --answer-after: for each N bytes. --nagle: without TCP_NODELAY. --pause-ms: the receiver sleeps so long after each read, however late it is (--every-ms makes up for it).
--half: the receiver asks with one byte and closes its own direction before it reads; the sender writes when it has.
"""
import argparse
import collections
import errno
import json
import select
import socket
import struct
import sys
import time

SO_MAX_PACING_RATE = 47


def tcp_info(s: socket.socket) -> dict:
    """struct tcp_info of include/uapi/linux/tcp.h."""
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    busy, rwnd, sndbuf = struct.unpack_from("<3Q", raw, 168)
    return {"busy_us": busy, "rwnd_limited_us": rwnd, "sndbuf_limited_us": sndbuf, "total_retrans": struct.unpack_from("<I", raw, 100)[0],
            "bytes_acked": struct.unpack_from("<Q", raw, 120)[0], "bytes_sent": struct.unpack_from("<Q", raw, 200)[0],
            "bytes_retrans": struct.unpack_from("<Q", raw, 208)[0]}


def receive(args) -> int:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if args.rcvbuf:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, args.rcvbuf)
    listener.bind((args.addr, args.port))
    listener.listen()
    print("listening", flush=True)
    s, _ = listener.accept()
    if args.half:
        s.send(b"?")
        s.shutdown(socket.SHUT_WR)
    total, due = 0, time.monotonic()
    while got := s.recv(args.read):
        total += len(got)
        if args.answer or args.answer_after and total // args.answer_after > (total - len(got)) // args.answer_after:
            s.send(b"!")
        if args.pause_ms:
            time.sleep(args.pause_ms / 1e3)
        if args.every_ms:
            due = max(due + args.every_ms / 1e3, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
    print(json.dumps({"bytes": total}), flush=True)
    return 0


def send(args) -> int:
    s = socket.socket()
    if args.sndbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, args.sndbuf)
    if args.pace:
        s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, args.pace)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not args.nagle)
    # one whose pauses are not its own pacing
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    s.connect((args.addr, args.port))
    while args.half and s.recv(1):
        pass
    s.setblocking(not args.nonblocking)
    errors: collections.Counter = collections.Counter()
    calls = written = asked = taken = refused_ns = call_ns = 0
    write, rest = b"x" * args.write, b""
    begin = time.monotonic_ns()
    end, due = begin + int(args.seconds * 1e9), begin
    writable = select.poll()
    writable.register(s, select.POLLOUT)
    starts: list = []
    while (now := time.monotonic_ns()) < end or rest:
        if not rest:
            rest = write
        calls += 1
        asked += len(rest)
        starts.append(now - begin)
        try:
            n = s.send(rest)
            taken += n
            rest = rest[n:]
        except OSError as e:
            errors[errno.errorcode[e.errno]] += 1
            if e.errno != errno.EAGAIN:
                raise
        after = time.monotonic_ns()
        call_ns += after - now
        if rest:
            if after > end + 3 * 10**9:
                break
            writable.poll(5000)
            refused_ns += time.monotonic_ns() - after
            continue
        written += 1
        if args.answer or args.answer_after and written * args.write % args.answer_after == 0:
            s.settimeout(20)
            s.recv(1)
        if args.every_ms and written % args.batch == 0:
            due += int(args.every_ms * 1e6)
            time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
    info, wall_ns = tcp_info(s), time.monotonic_ns() - begin
    s.setblocking(True)
    s.shutdown(socket.SHUT_WR)
    print(json.dumps({"calls": calls, "asked_bytes": asked, "taken_bytes": taken, "errors": errors, "refused_ns": refused_ns, "call_ns": call_ns,
                      "wall_ns": wall_ns, "tcp": info, "starts_ns": starts[:1000]}), flush=True)
    s.settimeout(30)
    s.recv(1)
    return 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verb", choices=["send", "recv"])
    p.add_argument("addr")
    p.add_argument("port", type=int)
    p.add_argument("--rcvbuf", type=int)
    p.add_argument("--read", type=int, default=65536)
    p.add_argument("--every-ms", type=float, default=0)
    p.add_argument("--pause-ms", type=float, default=0)
    p.add_argument("--answer", action="store_true")
    p.add_argument("--half", action="store_true")
    p.add_argument("--answer-after", type=int, default=0)
    p.add_argument("--nagle", action="store_true")
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--write", type=int, default=65536)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--sndbuf", type=int)
    p.add_argument("--pace", type=int)
    p.add_argument("--nonblocking", action="store_true")
    args = p.parse_args()
    return receive(args) if args.verb == "recv" else send(args)


if __name__ == "__main__":
    sys.exit(main())
