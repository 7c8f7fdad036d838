#!/usr/bin/env python3
"""A sender that knows how long pacing makes it wait, and the judge of what kpat made of it.

    paced.py recv ADDR PORT COUNT               takes everything of so many connections, then ends
    paced.py send ADDR PORT BYTES RATE          large writes; RATE bytes a second at most by SO_MAX_PACING_RATE, 0: not limited (one JSON object)
    paced.py judge KPAT X.kpat SEND.out ...     says what does not agree, exit 1 then

The judge's truth: at a rate, bytes take so long, and an application that writes without a pause waits for nothing else. The kernel's own word on the
rate is TCP_INFO's (struct tcp_info of include/uapi/linux/tcp.h).
"""
import json
import socket
import struct
import subprocess
import sys
import time

SO_MAX_PACING_RATE = 47
PACING_RATE_AT = 104
WRITE = b"x" * 65536
# Of the time that the rate makes it wait: the kernel sends the first ten segments at once, and a timer is late.
NEAR = (0.9, 1.1)


def recv(addr: str, port: int, count: int) -> None:
    listener = socket.create_server((addr, port))
    for _ in range(count):
        s, _ = listener.accept()
        while s.recv(1 << 20):
            pass
        s.close()


def send(addr: str, port: int, total: int, rate: int) -> None:
    s = socket.socket(socket.AF_INET)
    # BBR paces without being asked
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    s.connect((addr, port))
    if rate:
        s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
    began = time.monotonic_ns()
    for _ in range(total // len(WRITE)):
        s.sendall(WRITE)
    (reported,) = struct.unpack_from("=Q", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), PACING_RATE_AT)
    s.shutdown(socket.SHUT_WR)
    s.recv(1)  # the other side has read everything and closes
    took = time.monotonic_ns() - began
    print(json.dumps({"port": s.getsockname()[1], "bytes": total // len(WRITE) * len(WRITE), "rate": rate, "told_rate": reported, "took_ns": took}), flush=True)


def judge(kpat: str, log: str, files: list[str]) -> int:
    wrong, right = [], []
    for answer in (json.load(open(f)) for f in files):
        ask = lambda *what: json.loads(subprocess.run([kpat, *what], stdout=subprocess.PIPE, check=True).stdout)
        (row,) = ask("sql", "--json", log, f"select socket_id from socket where proto = 6 and local_port = {answer['port']} and sent_bytes > 0")
        sock = row["socket_id"]
        (it,) = ask("app", "--json", log, "--socket", str(sock))["sockets"]
        tcp = it["tcp"]
        paces = {r["pacing"] for r in ask("sql", "--json", log, f"select distinct pacing from tcp_state where socket_id = {sock} and crossing = 5 and state = 1")}
        what = f"{answer['bytes']} bytes at {answer['rate'] or 'any'} bytes/s"
        words = ", ".join(f"{k.removesuffix('_ns')} {tcp[k] / 1e6:.1f} ms" for k in tcp if k.endswith("_ns") and isinstance(tcp[k], int))
        good = it["sent_bytes"] == answer["bytes"] and tcp["pacing_or_device_ns"] == 0
        if answer["rate"]:
            due = answer["bytes"] / answer["rate"] * 1e9
            share = tcp["pacing_ns"] / due
            good &= answer["told_rate"] == answer["rate"] and paces <= {0, 1} and 1 in paces and NEAR[0] <= share <= NEAR[1]
            words = f"{100 * share:.1f} % of the {due / 1e6:.1f} ms due; " + words
        else:
            good &= tcp["pacing_ns"] == 0 and paces == {0}
        (right if good else wrong).append(f"{what}: took {answer['took_ns'] / 1e6:.1f} ms; {words}; who paces: {sorted(map(str, paces))}")
    print("\n".join([*(f"WRONG {w}" for w in wrong), *right]))
    if not wrong:
        print("pacing is distinguished from the device")
    return 1 if wrong else 0


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "recv":
        recv(rest[0], int(rest[1]), int(rest[2]))
    elif what == "send":
        send(rest[0], int(rest[1]), int(rest[2]), int(rest[3]))
    elif what == "judge":
        sys.exit(judge(rest[0], rest[1], rest[2:]))
    else:
        sys.exit(__doc__)
