#!/usr/bin/env python3
"""Traffic of known numbers: told.py serve|ask datagrams|dialogue ADDRESS [READY], port 9000.

datagrams: 200 numbered ones, then one that says that it is over; the server prints how many different numbers it took.
dialogue: 100 writes of 1,000 to 1,099 bytes, each answered by two bytes before the next; both ends print bytes and calls, the server also its processor time in ns.
"""
import socket
import sys
import time

DATAGRAMS, WRITES, PORT = 200, 100, 9000


def serve_datagrams(address, ready):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, PORT))
    s.settimeout(400)
    ready()
    took = set()
    while (d := s.recv(2000)) != b"over":
        took.add(int(d[:8]))
    print(len(took), flush=True)


def ask_datagrams(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((address, PORT))
    for i in range(DATAGRAMS):
        s.send(b"%08d" % i + b"x" * (i % 100))
        time.sleep(0.002)
    s.send(b"over")
    print(DATAGRAMS + 1, flush=True)


def serve_dialogue(address, ready):
    listener = socket.create_server((address, PORT))
    ready()
    c, _ = listener.accept()
    took = 0
    while d := c.recv(65536):
        took += len(d)
        c.sendall(b"ok")
    print(took, time.process_time_ns(), flush=True)


def ask_dialogue(address):
    c = socket.create_connection((address, PORT))
    gave = 0
    for i in range(WRITES):
        c.sendall(b"x" * (1000 + i))
        gave += 1000 + i
        c.recv(100)
    print(gave, time.process_time_ns(), flush=True)


if __name__ == "__main__":
    role, kind, address = sys.argv[1:4]
    if role == "serve":
        {"datagrams": serve_datagrams, "dialogue": serve_dialogue}[kind](address, lambda: open(sys.argv[4], "w").close())
    else:
        {"datagrams": ask_datagrams, "dialogue": ask_dialogue}[kind](address)
