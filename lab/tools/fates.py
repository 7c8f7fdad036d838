#!/usr/bin/env python3
"""Sends and takes the numbered datagrams of tests/fates.py, whose number is their length.

    fates.py read SPEC.json          sockets as they stand there; at SIGUSR1 what they took goes out as JSON
    fates.py send SPEC.json SEED OUT flows, mixed by chance; OUT: of each datagram its number and errno (0: sent)
"""
import ctypes
import json
import random
import select
import signal
import socket
import struct
import sys
import time

SO_ATTACH_FILTER, SO_REUSEPORT, SO_RCVBUFFORCE, IP_FREEBIND, IP_MTU_DISCOVER = 26, 15, 33, 15, 10


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def reader(s: dict) -> socket.socket:
    k = socket.socket(family(s["addr"]), socket.SOCK_DGRAM)
    if s.get("shared"):
        k.setsockopt(socket.SOL_SOCKET, SO_REUSEPORT, 1)
    k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF if "room" in s else SO_RCVBUFFORCE, s.get("room", 8 << 20))
    if "group" in s:
        k.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    k.bind((s["addr"], s["port"]))
    if "peer" in s:
        k.connect(tuple(s["peer"]))
    if "group" in s:
        k.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(s["group"]) + socket.inet_aton(s["on"]))
    if s.get("takes_none"):
        code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF_RET 0
        k.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))
    k.setblocking(False)
    return k


def read(spec: str) -> None:
    over = []
    signal.signal(signal.SIGUSR1, lambda *_: over.append(1))
    sockets = [(reader(s), s, []) for s in json.load(open(spec))]

    def take(k: socket.socket, took: list) -> None:
        try:
            while True:
                took.append(len(k.recv(65536)))
        except OSError:
            pass

    print("ready", flush=True)
    while not over:
        ready = select.select([k for k, s, _ in sockets if not s.get("late")], [], [], 0.2)[0]
        for k, _, took in sockets:
            if k in ready:
                take(k, took)
    out: dict[str, list[int]] = {}
    for k, s, took in sockets:
        if s.get("late") != "never":
            take(k, took)
        k.close()
        out.setdefault(s["name"], []).extend(took)
    print(json.dumps(out), flush=True)


def sender(f: dict) -> socket.socket:
    if f.get("raw"):
        return socket.socket(family(f["to"]), socket.SOCK_RAW, socket.IPPROTO_UDP)
    k = socket.socket(family(f["to"]), socket.SOCK_DGRAM)
    if "from" in f:
        k.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    k.bind((f.get("from", ""), f["sport"]))
    if "ttl" in f:
        k.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, f["ttl"])
    if f.get("whole"):  # not to be cut, so without an identification
        k.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 2)
    if f.get("to_all"):
        k.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    if "group_by" in f:
        for option, value in ((socket.IP_MULTICAST_IF, socket.inet_aton(f["group_by"])), (socket.IP_MULTICAST_LOOP, 0), (socket.IP_MULTICAST_TTL, 4)):
            k.setsockopt(socket.IPPROTO_IP, option, value)
    return k


def send(spec: str, seed: str, out: str) -> None:
    chance, flows = random.Random(int(seed)), json.load(open(spec))
    sockets, went = {f["name"]: sender(f) for f in flows}, {f["name"]: [] for f in flows}
    turns = [f for f in flows for _ in range(f["count"])]
    chance.shuffle(turns)
    for f in turns:
        number = len(went[f["name"]])
        data = bytes([number % 251]) * (f["least"] + number)
        if f.get("raw"):  # with a checksum that is wrong
            data = struct.pack("!HHHH", f["sport"], f["dport"], 8 + len(data), 0xbeef) + data
        try:
            sockets[f["name"]].sendto(data, (f["to"], 0 if f.get("raw") else f["dport"]))
            went[f["name"]].append(0)
        except OSError as e:
            went[f["name"]].append(e.errno)
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.004)
    json.dump(went, open(out, "w"))


if __name__ == "__main__":
    {"read": read, "send": send}[sys.argv[1]](*sys.argv[2:])
