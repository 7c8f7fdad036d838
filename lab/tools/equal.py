#!/usr/bin/env python3
"""equal.py take PORT | write ADDRESS PORT COUNT BYTES: COUNT writes of the same length over a connection, each a segment; the taker answers how many bytes came."""
import json
import socket
import sys
import time

if sys.argv[1] == "take":
    with socket.create_server(("", int(sys.argv[2])), family=socket.AF_INET6, dualstack_ipv6=True) as s:
        while True:
            c, _ = s.accept()
            with c:
                taken = 0
                while data := c.recv(65536):
                    taken += len(data)
                c.sendall(str(taken).encode())
address, port, count, size = sys.argv[2], *map(int, sys.argv[3:])
with socket.create_connection((address, port), timeout=30) as c:
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(count):
        c.sendall(b"x" * size)
        # Bursts: within one the buffers are used again as soon as they are freed.
        if i % 20 == 19:
            time.sleep(0.004)
    c.shutdown(socket.SHUT_WR)
    print(json.dumps({"taken": int(c.recv(64))}))
