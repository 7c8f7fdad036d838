#!/usr/bin/env python3
"""Datagrams that are lost in known ways, and the kernel's own counters to judge kpat by.

    lossy.py sink              sockets: 9001 9005 9008 9012 9013 read, 9003 full, 9009 with a filter that drops; ends by
                               SIGTERM or SIGINT with one JSON line: datagrams read, by port
    lossy.py bad COUNT GATEWAY DEV SRC DST    datagrams of 400 bytes with a wrong checksum to port 9005, by AF_PACKET
    lossy.py judge KPAT LOG [EXPRESSION=TRUTH ...]    compares numbers of packets; exit 1 where one differs

TRUTH: a number; FILE:tc (packets that root queueing disciplines dropped, `tc -s -j qdisc`), FILE:nstat:NAME (`nstat -asj`),
FILE:KEY (a number in a command's JSON); several with + and -, as `300 - out/sink.out:9001`.
"""
import ctypes
import json
import select
import signal
import socket
import struct
import subprocess
import sys

READ = [9001, 9005, 9008, 9012, 9013]
FULL = 9003
FILTERED = 9009
SO_RCVBUFFORCE = 33


def udp(port: int, buffer: int) -> socket.socket:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
    s.bind(("0.0.0.0", port))
    s.setblocking(False)
    return s


def sink() -> dict:
    read = {udp(port, 8 << 20): port for port in READ}
    full = udp(FULL, 4096)
    filtered = udp(FILTERED, 1 << 20)
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF_RET, 0 bytes
    filtered.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(nothing)))  # SO_ATTACH_FILTER
    read[filtered] = FILTERED
    got = dict.fromkeys([*READ, FULL, FILTERED], 0)
    wake, stop = socket.socketpair()
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: stop.send(b"x"))
    while True:
        ready = select.select([*read, wake], [], [])[0]
        for s in ready:
            if s is wake:
                continue
            try:
                s.recv(65536)
                got[read[s]] += 1
            except OSError:  # its checksum was wrong
                pass
        if ready == [wake]:
            break
    try:
        while True:
            full.recv(65536)
            got[FULL] += 1
    except BlockingIOError:
        return {str(port): n for port, n in got.items()}


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def bad(count: int, gateway: str, dev: str, src: str, dst: str) -> dict:
    out = subprocess.run(["ip", "-j", "neigh", "show", gateway, "dev", dev], check=True, capture_output=True).stdout
    target = bytes.fromhex(json.loads(out)[0]["lladdr"].replace(":", ""))
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind((dev, 0))
    own = s.getsockname()[4]
    for i in range(count):
        datagram = struct.pack(">HHHHQ", 5555, 9005, 408, 0x1111, i) + b"K" * 392
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), i + 1, 0x4000, 64, 17, 0, socket.inet_aton(src), socket.inet_aton(dst))
        head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
        s.send(target + own + b"\x08\0" + head + datagram)
    return {"sent": count}


def truth(term: str) -> int:
    if term.isdigit():
        return int(term)
    path, what = term.split(":", 1)
    with open(path) as f:
        told = json.load(f)
    if what == "tc":
        return sum(q["drops"] for q in told if q.get("root") or q["kind"] == "ingress")
    if what.startswith("nstat:"):
        return told["kernel"].get(what[6:], 0)
    return told[what]


def judge(kpat: str, log: str, *pairs: str) -> int:
    wrong = 0
    for pair in pairs:
        expression, terms = pair.rsplit("=", 1)
        want, sign = 0, 1
        for word in terms.split():
            if word in "+-":
                sign = 1 if word == "+" else -1
            else:
                want += sign * truth(word)
        out = subprocess.run([kpat, "packets", log, expression, "--json", "-n", "1"], check=True, capture_output=True, timeout=100).stdout
        found = json.loads(out)["total"]
        wrong += found != want
        print(f"{'right' if found == want else 'WRONG'} {found:6} {want:6} {expression}")
    return int(wrong > 0)


if __name__ == "__main__":
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "sink":
        print(json.dumps(sink()), flush=True)
    elif verb == "bad":
        print(json.dumps(bad(int(rest[0]), *rest[1:])), flush=True)
    else:
        sys.exit(judge(*rest))
