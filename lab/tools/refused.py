#!/usr/bin/env python3
"""Datagrams of which the kernel refuses some, from several processes and threads at the same time.

    refused.py FAMILY ADDR PORT COUNT PROCESSES THREADS [elsewhere ADDR2] [shared] [errors] [corked]

FAMILY: udp or raw. Number N, in the first four bytes behind the header, has 100 + N bytes of payload: so a packet's length says which it is, to
whoever sees headers only. Each thread has a socket, each process one (`shared`). `elsewhere`: each fifth is for ADDR2. `errors`: a full queue is
an error (IP_RECVERR). `corked`: each seventh is filled by two calls, of which the first waits. Prints, as one line of JSON, each call: number,
thread, moments before and after (boot clock), what it returned (negative: the error), and whether it was for ADDR2.
"""
import json
import multiprocessing
import socket
import struct
import sys
import threading
import time

MSG_MORE = 0x8000
IP_RECVERR = 11


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def opened(family: str, errors: bool) -> socket.socket:
    if family == "raw":
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    else:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    if errors:
        s.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    return s


def send(family, to, numbers, own, options, calls) -> None:
    tid = threading.get_native_id()
    for n in numbers:
        where = to[1] if len(to) > 1 and n % 5 == 3 else to[0]
        parts = [struct.pack(">I", n) + bytes(96 + n)]
        if "corked" in options and n % 7 == 2:
            parts = [parts[0][:50], parts[0][50:]]
        for i, part in enumerate(parts):
            before = now()
            try:
                got = own.sendto(part, MSG_MORE if i + 1 < len(parts) else 0, where)
            except OSError as e:
                got = -e.errno
            calls.append([n, tid, before, now(), got, where is not to[0]])


def process(family, to, numbers, threads, options, all_ready, queue) -> None:
    calls: list = []
    shared = opened(family, "errors" in options) if "shared" in options else None
    ready = threading.Barrier(threads)

    def some(i: int) -> None:
        own = shared or opened(family, "errors" in options)
        if ready.wait() == 0:
            all_ready.wait()
        ready.wait()
        send(family, to, numbers[i::threads], own, options, calls)

    all_threads = [threading.Thread(target=some, args=(i,)) for i in range(threads)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    queue.put(calls)


def main() -> int:
    family, addr, port, count, processes, threads, *options = sys.argv[1:]
    to = [(addr, int(port))]
    if "elsewhere" in options:
        to.append((options[options.index("elsewhere") + 1], int(port)))
    queue = multiprocessing.Queue()
    all_ready = multiprocessing.Barrier(int(processes))
    some = lambda i: (family, to, range(i, int(count), int(processes)), int(threads), options, all_ready, queue)
    all_of = [multiprocessing.Process(target=process, args=some(i)) for i in range(int(processes))]
    for p in all_of:
        p.start()
    calls = [c for _ in all_of for c in queue.get()]
    for p in all_of:
        p.join()
    print(json.dumps(calls), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
