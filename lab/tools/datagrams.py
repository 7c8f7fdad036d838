#!/usr/bin/env python3
"""Datagrams that say in their IP header which one they are, and when each call that sends or receives one was made.

    datagrams.py recv ADDR PORT COUNT BUFFER [PAUSE_US [SPINS]]    ends when COUNT came or nothing came for a second; says "listening" before
    datagrams.py send ADDR PORT COUNT PACE_US SEED [THREADS]

All are of one size, but some. Number N has TTL 2 + N % 250. Each prints one line of JSON: for each number the moments (boot clock) before
and after its call, and the call's bytes. BUFFER: of the receiving socket, so that it can be too small; PAUSE_US: after each read.
SPINS: 1: it asks all the time, and takes all of a datagram.
"""
import json
import random
import socket
import struct
import sys
import threading
import time

SIZE = 200


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def spin(s: socket.socket, until: int) -> bytes:
    s.setblocking(False)
    while now() < until:
        try:
            return s.recv(2000)
        except BlockingIOError:
            pass
    raise TimeoutError


def recv(addr: str, port: int, count: int, buffer: int, pause_us: int = 0, spins: int = 0) -> dict[int, list[int]]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.bind((addr, port))
    s.settimeout(1)
    print("listening", flush=True)
    calls: dict[int, list[int]] = {}
    while len(calls) < count:
        if not calls:
            s.settimeout(30)
        before = now()
        try:
            data = s.recv(100) if not spins else spin(s, before + (1 if calls else 30) * 10**9)  # 100: less than there is
        except TimeoutError:
            break
        after = now()
        s.settimeout(1)
        calls[struct.unpack_from(">I", data)[0]] = [before, after, len(data)]
        if pause_us:
            time.sleep(pause_us / 1e6)
    return calls


def send(addr: str, port: int, count: int, pace_us: int, seed: int, threads: int = 1) -> dict[int, list[int]]:
    calls: dict[int, list[int]] = {}
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.connect((addr, port))

    def some(first: int) -> None:
        chance = random.Random(seed + first)
        for n in range(first, count, threads):
            size = SIZE if chance.random() < 0.9 else chance.randint(4, 1400)
            head = [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("i", 2 + n % 250))]
            before = now()
            try:
                taken = s.sendmsg([struct.pack(">I", n) + bytes(size - 4)], head)
            except OSError:
                continue  # an answer to an earlier one
            calls[n] = [before, now(), taken]
            if pace_us:
                time.sleep(chance.random() * pace_us / 1e6)

    all_threads = [threading.Thread(target=some, args=(i,)) for i in range(threads)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    return calls


def main() -> int:
    what, addr, *numbers = sys.argv[1:]
    calls = {"recv": recv, "send": send}[what](addr, *map(int, numbers))
    print(json.dumps(calls), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
