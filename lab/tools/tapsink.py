#!/usr/bin/env python3
"""A card that nobody of this host is behind: a tap device whose frames a program takes, and counts by the number in them.

    tapsink.py NAME PORT --expect N [--bridge DEV]     one JSON line: unique, frames

Counted are UDP datagrams over IPv4 to PORT, by the first 8 bytes of their payload (udpseq.py). It ends when N different numbers have come, or on
SIGINT/SIGTERM. --bridge: the device becomes a port of that bridge.
"""
import argparse
import fcntl
import json
import os
import signal
import struct
import subprocess

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name")
    p.add_argument("port", type=int)
    p.add_argument("--expect", type=int, required=True)
    p.add_argument("--bridge")
    a = p.parse_args()
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", a.name.encode(), IFF_TAP | IFF_NO_PI))
    for args in [["master", a.bridge]] if a.bridge else []:
        subprocess.run(["ip", "link", "set", a.name, *args], check=True)
    subprocess.run(["ip", "link", "set", a.name, "up"], check=True)

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    numbers, frames = set(), 0
    try:
        while len(numbers) < a.expect:
            f = os.read(tap, 65536)
            # Ethernet without tags, IPv4 without options
            if f[12:15] != b"\x08\x00\x45" or f[23] != 17 or struct.unpack(">H", f[36:38])[0] != a.port:
                continue
            frames += 1
            numbers.add(f[42:50])
    except KeyboardInterrupt:
        pass
    print(json.dumps({"unique": len(numbers), "frames": frames}), flush=True)


main()
