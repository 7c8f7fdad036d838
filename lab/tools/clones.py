#!/usr/bin/env python3
"""A sniffer that reads clones of packets, not a ring shared with the kernel: a packet socket and recv(). What it read of UDP and TCP goes out when it ends, as JSON:
frames by source port.

    clones.py DEVICE [HOW [AT]]   `any`: every device. HOW: reads; slow (now and then, all there is); full (a queue of few frames, read slowly);
                             never (a queue of few frames that is never read). AT: after so many seconds it closes, with what is queued
"""
import json
import signal
import socket
import struct
import sys
import time
from collections import Counter

ETH_P_ALL, SO_RCVBUFFORCE = 3, 33


def source_port(frame: bytes, link: int) -> int | None:
    """Of UDP or TCP, not of a fragment behind the first; None: it is another packet."""
    at = link
    while frame[at - 2:at] == b"\x81\x00":  # VLAN
        at += 4
    version = frame[at] >> 4 if len(frame) > at + 8 else 0
    if version == 4 and frame[at + 9] in (6, 17) and not struct.unpack_from("!H", frame, at + 6)[0] & 0x1fff:
        at += 4 * (frame[at] & 15)
    elif version == 6 and frame[at + 6] in (6, 17):
        at += 40
    else:
        return None
    return struct.unpack_from("!H", frame, at)[0] if len(frame) >= at + 8 else None


def main(device: str, how: str = "reads", closes: str = "") -> None:
    any_device, over, seen = device == "any", [], Counter()
    k = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM if any_device else socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    if not any_device:
        k.bind((device, ETH_P_ALL))
    if how in ("full", "never"):
        k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    else:
        k.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.append(1))
    ends = time.monotonic() + float(closes) if closes else float("inf")
    print("ready", flush=True)
    k.settimeout(0.05)
    while not over and time.monotonic() < ends:
        try:
            if how == "never":
                time.sleep(0.05)
                continue
            if how in ("slow", "full"):
                time.sleep(0.03)
            while True:
                frame = k.recv(65536)
                port = source_port(frame, 0 if any_device else 14)
                if port is not None:
                    seen[port] += 1
                    if how == "reads":
                        break
        except TimeoutError:
            pass
    k.close()
    print(json.dumps(seen), flush=True)
    while not over:
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
