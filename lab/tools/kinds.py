#!/usr/bin/env python3
"""The same exchange over each kind of socket: kinds.py serve ADDR | kinds.py ask ADDR COUNT

ask sends COUNT messages of 100 bytes and reads an answer to each over TCP, UDP, a raw ICMP socket and a ping socket; prints one JSON line: of each kind
the socket's cookie and what it sent and read. serve answers on TCP and UDP port 7200; the kernel answers echo requests.
"""
import json
import socket
import struct
import sys
import threading

PORT, SIZE = 7200, 100
SO_COOKIE = 57


def serve(addr: str) -> None:
    u = socket.socket(type=socket.SOCK_DGRAM)
    u.bind((addr, PORT))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((addr, PORT))
    listener.listen()

    def datagrams() -> None:
        while True:
            data, whom = u.recvfrom(65536)
            u.sendto(data, whom)

    threading.Thread(target=datagrams, daemon=True).start()
    print("listening", flush=True)
    s, _ = listener.accept()
    while data := s.recv(65536):
        s.sendall(data)
    threading.Event().wait()


def checksum(data: bytes) -> int:
    s = sum(struct.unpack(f">{len(data) // 2}H", data))
    s = (s >> 16) + (s & 0xFFFF)
    return ~(s + (s >> 16)) & 0xFFFF


def echo(number: int) -> bytes:
    rest = struct.pack(">HH", 0x6B70, number) + b"x" * (SIZE - 8)
    return struct.pack(">BBH", 8, 0, checksum(b"\x08\0\0\0" + rest)) + rest


def ask(addr: str, count: int) -> None:
    result = {}
    for kind, s in (("tcp", socket.create_connection((addr, PORT))), ("udp", socket.socket(type=socket.SOCK_DGRAM)),
                    ("raw", socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
                    ("ping", socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))):
        s.settimeout(20)
        if kind != "tcp":
            s.connect((addr, PORT if kind == "udp" else 0))
        if kind == "udp":
            s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
            s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
        read = 0
        for i in range(count):
            s.send(echo(i) if kind in ("raw", "ping") else b"x" * SIZE)
            read += len(s.recv(65536))
        cookie = struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
        result[kind] = {"socket": cookie, "sent": count * SIZE, "read": read}
        s.close()
    print(json.dumps(result))


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else ask(sys.argv[2], int(sys.argv[3]))
