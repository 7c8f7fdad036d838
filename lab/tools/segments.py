#!/usr/bin/env python3
"""Numbered UDP segments that leave the application as one packet for segmentation (UDP_SEGMENT).

    segments.py HOST PORT PACKETS [--segments 10] [--size 1200] [--first 0] [--pause-ms 0]    one JSON line: what was sent

Each segment begins with its number (8 bytes, big endian, counted on from --first), so a datagram of the receiver, a frame of the wire and a segment of a large
frame have one by which they can be distinguished; behind it is the number of the first segment of its packet.
"""
import argparse
import json
import socket
import struct
import time

UDP_SEGMENT = 103  # include/uapi/linux/udp.h; Python 3.11 does not name it


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("host")
    p.add_argument("port", type=int)
    p.add_argument("packets", type=int)
    p.add_argument("--segments", type=int, default=10)
    p.add_argument("--size", type=int, default=1200)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--pause-ms", type=float, default=0)
    a = p.parse_args()
    s = socket.socket(socket.AF_INET6 if ":" in a.host else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, a.size)
    s.connect((a.host, a.port))
    number = a.first
    for _ in range(a.packets):
        segments = [struct.pack(">QQ", number + i, number).ljust(a.size, b"K") for i in range(a.segments)]
        s.send(b"".join(segments))
        number += a.segments
        time.sleep(a.pause_ms / 1000)
    print(json.dumps({"packets": a.packets, "segments": number - a.first}))


main()
