#!/usr/bin/env python3
"""crowd.py PORT COUNT HOST...: numbered datagrams among twenty times as many to other ports, all as alike as they can be.

To each HOST, IPv4 or IPv6, COUNT to PORT and COUNT to PORT + 1, which a router may translate; their numbers (8 bytes, big endian) go on from host
to host and port to port. The others go to PORT + 2 to PORT + 41, with the same length and, over IPv4, the same identification (0), from sockets
that take turns, so that buffers and flows change from packet to packet. One JSON line: sent, others.
"""
import json
import socket
import sys
import time

port, count, hosts = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
OTHERS = 20
sockets = []
for host in hosts:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(4):
        s = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET:
            s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: no identification
        sockets.append((s, host))
sent = others = 0
for i in range(count):
    for n, (s, host) in enumerate(sockets[:: len(sockets) // len(hosts)]):
        for translated in (0, 1):
            number = (2 * n + translated) * count + i
            s.sendto(number.to_bytes(8) + bytes(56), (host, port + translated))
            sent += 1
            for k in range(OTHERS):
                other, where = sockets[(i + k) % len(sockets)]
                try:
                    other.sendto(bytes(64), (where, port + 2 + (i * 7 + k) % 40))
                except OSError:
                    pass  # an ICMP error of an earlier one is reported here
                others += 1
    time.sleep(0.002)
print(json.dumps({"sent": sent, "others": others}))
