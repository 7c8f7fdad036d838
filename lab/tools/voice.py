"""A flow as of a voice call, a datagram each 20 ms (VOICE_MS), sent back by its correspondent: what an application notices of a handover.

    voice.py echo PORT LOG | voice.py send ADDRESS PORT SECONDS LOG

A line of the log: seconds of CLOCK_BOOTTIME, what (tx, txerr, echo, rx, err), number of the datagram, and of an echo the milliseconds that it took."""
import os
import select
import socket
import struct
import sys
import time

BETWEEN_NS = int(os.environ.get("VOICE_MS", "20")) * 1_000_000


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def echo(port: int, log) -> None:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", port))
    while True:
        data, sender = s.recvfrom(2048)
        number = struct.unpack("!Q", data[:8])[0]
        log.write(f"{now() / 1e9:.6f} rx {number}\n")
        try:
            s.sendto(data, sender)
        except OSError as e:
            log.write(f"{now() / 1e9:.6f} err {number} {e.errno}\n")


def send(address: str, port: int, seconds: float, log) -> None:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False)
    number, start = 0, now()
    due = start
    while now() - start < seconds * 1e9:
        if select.select([s], [], [], max(0, (due - now()) / 1e9))[0]:
            try:
                data, _ = s.recvfrom(2048)
                came, sent = struct.unpack("!QQ", data[:16])
                log.write(f"{now() / 1e9:.6f} echo {came} {(now() - sent) / 1e6:.3f}\n")
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
