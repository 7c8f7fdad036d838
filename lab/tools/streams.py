#!/usr/bin/env python3
"""Writes and reads of random sizes over several TCP connections, each of them counted.

    streams.py serve ADDR PORT COUNT      takes COUNT connections, reads each to its end; says "listening" before
    streams.py send ADDR PORT COUNT WRITES SEED

Each prints one line of JSON: by the sender's port, the bytes of each of its calls in their order.
"""
import json
import random
import socket
import sys
import threading


def main() -> int:
    what, addr, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    calls: dict[int, list[int]] = {}

    def read(s: socket.socket, own: int) -> None:
        chance = random.Random(own)
        # The last connection's reader takes little at once: hundreds of its reads share a segment of 64 KiB.
        sizes = [50, 100, 500] if own == sockets[-1][1] else [100, 1000, 5000, 50000]
        while data := s.recv(chance.choice(sizes)):
            calls[own].append(len(data))

    def write(s: socket.socket, own: int) -> None:
        chance = random.Random(int(sys.argv[6]) + len(calls))
        for _ in range(int(sys.argv[5])):
            size = chance.choice([chance.randint(1, 100), chance.randint(100, 1448), chance.randint(1448, 20000)])
            calls[own].append(s.send(bytes(size)))

    sockets = []
    if what == "serve":
        listener = socket.create_server((addr, port))
        print("listening", flush=True)
        for _ in range(count):
            s, peer = listener.accept()
            sockets.append((s, peer[1]))
    else:
        for _ in range(count):
            s = socket.create_connection((addr, port))
            sockets.append((s, s.getsockname()[1]))
    for _, own in sockets:
        calls[own] = []
    threads = [threading.Thread(target=read if what == "serve" else write, args=x) for x in sockets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for s, _ in sockets:
        s.close()
    print(json.dumps(calls), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
