#!/usr/bin/env python3
"""Echo requests that are all alike but for a number in the payload: pings.py HOST COUNT [--pps 50] [--alike N]

Identification and sequence are the same in N packets at a time (default: all); the answers are alike, too. One JSON line: sent, answered (different
numbers). Payload: 8 bytes number (big endian, from 0), then 0x4b to 56 bytes.
"""
import argparse
import json
import socket
import struct
import time

ID = 0x6b70


def checksum(data: bytes) -> int:
    s = sum(struct.unpack(f">{len(data) // 2}H", data))
    s = (s >> 16) + (s & 0xFFFF)
    return ~(s + (s >> 16)) & 0xFFFF


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("host")
    p.add_argument("count", type=int)
    p.add_argument("--pps", type=float, default=50)
    p.add_argument("--alike", type=int, default=0)
    a = p.parse_args()
    six = ":" in a.host
    s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)
    s.connect((a.host, 0))
    s.setblocking(False)
    answered: set[int] = set()

    def listen(until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            try:
                data = s.recv(2048)
            except BlockingIOError:
                time.sleep(min(left, 0.001))
                continue
            message = data if six else data[(data[0] & 15) * 4:]
            if message[0] == (129 if six else 0) and message[4:6] == struct.pack(">H", ID):
                answered.add(int.from_bytes(message[8:16], "big"))

    start = time.monotonic()
    for i in range(a.count):
        body = struct.pack(">Q", i) + b"K" * 48
        head = struct.pack(">BBHHH", 128 if six else 8, 0, 0, ID, i // a.alike if a.alike else 1)
        if not six:  # over IPv6 the kernel does it
            head = head[:2] + struct.pack(">H", checksum(head + body)) + head[4:]
        listen(start + i / a.pps)
        s.send(head + body)
    listen(time.monotonic() + 0.5)
    print(json.dumps({"sent": a.count, "answered": len(answered)}))


main()
