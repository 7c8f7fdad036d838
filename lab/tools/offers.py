"""A DHCP server that offers an address and never confirms it; without an address to offer (none) it refuses what is asked for, and answers nothing else.

    offers.py DEVICE SERVER ADDRESS|none"""
import socket
import struct
import sys

device, server, address = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
s.bind(("", 67))
while True:
    asked = s.recv(2048)
    options = asked[240:]
    kind = options[options.index(b"\x35\x01") + 2]
    if kind != (3 if address == "none" else 1):
        continue
    own = socket.inet_aton(server)
    head = struct.pack("!BBBBIHH4s4s4s4s", 2, 1, 6, 0, int.from_bytes(asked[4:8], "big"), 0, 0x8000, b"\0" * 4, b"\0" * 4 if address == "none" else socket.inet_aton(address), own, b"\0" * 4)
    answer = head + asked[28:44] + b"\0" * 192 + b"\x63\x82\x53\x63" + b"\x35\x01" + (b"\x06" if address == "none" else b"\x02") + b"\x36\x04" + own
    answer += b"\xff" if address == "none" else b"\x33\x04" + struct.pack("!I", 3600) + b"\x01\x04\xff\xff\xff\x00" + b"\xff"
    s.sendto(answer, ("255.255.255.255", 68))
