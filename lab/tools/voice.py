"""A flow as of a voice call, a datagram each 20 ms (VOICE_MS), sent back by its correspondent: what an application notices of a handover.

    voice.py echo PORT LOG | voice.py send ADDRESS PORT SECONDS LOG

A line of the log: seconds of CLOCK_BOOTTIME, what (tx, txerr, echo, rx, err), number of the datagram, and of an echo the milliseconds that it took and, of the same clock, the kernel's own stamp
of its receipt (SO_TIMESTAMPNS): on a busy machine this program reads it up to 0.2 s later."""
import os
import select
import socket
import struct
import sys
import time

# include/uapi/asm-generic/socket.h; the socket module has no name for it.
SO_TIMESTAMPNS = 35
BETWEEN_NS = int(os.environ.get("VOICE_MS", "20")) * 1_000_000


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def stamped(data: list) -> int:
    """The kernel's stamp, which is of CLOCK_REALTIME."""
    seconds, part = next(struct.unpack("qq", value) for level, kind, value in data if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS))
    # Both clocks read with the least between them.
    reads = [(now(), time.clock_gettime_ns(time.CLOCK_REALTIME), now()) for _ in range(3)]
    before, wall, after = min(reads, key=lambda r: r[2] - r[0])
    return seconds * 1_000_000_000 + part - wall + (before + after) // 2


def echo(port: int, log) -> None:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    s.bind(("::", port))
    while True:
        data, ancillary, _, sender = s.recvmsg(2048, 64)
        # It answers as who was asked, whatever way the answer takes.
        asked = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, value[:16] + bytes(4)) for level, kind, value in ancillary if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)]
        # No router forwards what has a source for its own link only (RFC 4291, 2.5.6); here the correspondent is at the router, which gives it such.
        if sender[0].startswith("fe80"):
            continue
        number = struct.unpack("!Q", data[:8])[0]
        log.write(f"{now() / 1e9:.6f} rx {number}\n")
        try:
            s.sendmsg([data], asked, 0, sender)
        except OSError as e:
            log.write(f"{now() / 1e9:.6f} err {number} {e.errno}\n")


def send(address: str, port: int, seconds: float, log) -> None:
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False)
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    number, start = 0, now()
    due = start
    while now() - start < seconds * 1e9:
        if select.select([s], [], [], max(0, (due - now()) / 1e9))[0]:
            try:
                data, ancillary, _, _ = s.recvmsg(2048, 64)
                at = now()
                came, sent = struct.unpack("!QQ", data[:16])
                log.write(f"{at / 1e9:.6f} echo {came} {(at - sent) / 1e6:.3f} {stamped(ancillary) / 1e9:.6f}\n")
            except OSError as e:
                log.write(f"{now() / 1e9:.6f} rxerr {e.errno}\n")
        if now() >= due:
            at = now()
            try:
                s.sendto(struct.pack("!QQ", number, at) + b"v" * 156, (address, port))
                log.write(f"{at / 1e9:.6f} tx {number}\n")
            except OSError as e:
                log.write(f"{at / 1e9:.6f} txerr {number} {e.errno}\n")
            number, due = number + 1, due + BETWEEN_NS


if __name__ == "__main__":
    with open(sys.argv[-1], "w", buffering=1) as log:
        if sys.argv[1] == "echo":
            echo(int(sys.argv[2]), log)
        else:
            send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), log)
