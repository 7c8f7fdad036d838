#!/usr/bin/env python3
"""A WireGuard device with one peer, set up by generic netlink: what `wg set` does, of which a lab needs no more.

    wg.py DEV NAME PORT PEER ENDPOINT:PORT ALLOWED/LEN

NAME and PEER are words of which the private keys are made, here and at the other end.
"""
import hashlib
import socket
import struct
import sys

P = 2**255 - 19
GENERIC, CTRL, REQUEST, ACK, NESTED = 16, 16, 1, 4, 0x8000
GET_FAMILY, FAMILY_ID, FAMILY_NAME = 3, 1, 2  # include/uapi/linux/genetlink.h
SET_DEVICE, IFNAME, PRIVATE_KEY, LISTEN_PORT, PEERS = 1, 2, 3, 6, 8  # include/uapi/linux/wireguard.h
PUBLIC_KEY, ENDPOINT, ALLOWED_IPS = 1, 4, 9
FAMILY, ADDRESS, MASK = 1, 2, 3


def private(word: str) -> bytes:
    k = bytearray(hashlib.sha256(word.encode()).digest())
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    return bytes(k)


def public(key: bytes) -> bytes:
    """X25519 with the base point 9 (RFC 7748, section 5)."""
    k, u = int.from_bytes(key, "little"), 9
    x2, z2, x3, z3, swapped = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swapped ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, (aa - bb) * (aa + 121665 * (aa - bb)) % P
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def ask(s: socket.socket, family: int, command: int, attributes: bytes) -> bytes:
    """The first message of the answer, without its headers; an error of the kernel's is raised."""
    flags = REQUEST | ACK
    s.send(struct.pack("=IHHII", 20 + len(attributes), family, flags, 1, 0) + struct.pack("=BBH", command, 1, 0) + attributes)
    first = None
    while True:
        data = s.recv(65536)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            if kind == 2:  # NLMSG_ERROR; 0 is the acknowledgement
                code = struct.unpack_from("=i", data, 16)[0]
                if code:
                    raise OSError(-code, f"generic netlink, command {command}")
                return first or b""
            first = first or data[20:length]
            data = data[length + 3 & ~3:]


def family(s: socket.socket, name: str) -> int:
    answer = ask(s, CTRL, GET_FAMILY, attribute(FAMILY_NAME, name.encode() + b"\0"))
    while answer:
        length, kind = struct.unpack_from("=HH", answer)
        if kind == FAMILY_ID:
            return struct.unpack_from("=H", answer, 4)[0]
        answer = answer[length + 3 & ~3:]
    raise SystemExit(f"{name}: its family has no number")


def main(dev: str, name: str, port: str, peer: str, endpoint: str, allowed: str) -> None:
    host, _, to = endpoint.rpartition(":")
    net, _, length = allowed.partition("/")
    one = attribute(FAMILY, struct.pack("=H", socket.AF_INET)) + attribute(ADDRESS, socket.inet_aton(net)) + attribute(MASK, bytes([int(length)]))
    there = struct.pack("=H", socket.AF_INET) + struct.pack(">H", int(to)) + socket.inet_aton(host) + bytes(8)
    reported = attribute(PUBLIC_KEY, public(private(peer))) + attribute(ENDPOINT, there) + attribute(ALLOWED_IPS | NESTED, attribute(NESTED, one))
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC)
    s.bind((0, 0))
    ask(s, family(s, "wireguard"), SET_DEVICE, attribute(IFNAME, dev.encode() + b"\0") + attribute(PRIVATE_KEY, private(name))
        + attribute(LISTEN_PORT, struct.pack("=H", int(port))) + attribute(PEERS | NESTED, attribute(NESTED, reported)))


if __name__ == "__main__":
    main(*sys.argv[1:])
