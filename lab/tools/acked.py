#!/usr/bin/env python3
"""A stream of questions whose answers take long, and when its packets' paths ended: with the card, not with the acknowledgement.

    acked.py serve ADDRESS PORT           answers each question
    acked.py ask ADDRESS PORT N DELAY_MS  prints when each question had been answered, boot clock; fails where that was not after DELAY_MS
    acked.py judge KPAT X.kpat FILE PORT  FILE: what `ask` printed

The link's delay stands between the card and the answer, which is the acknowledgement: a path that ends within half of it ended with the card."""
import json
import socket
import subprocess
import sys
import time

SIZE, PAUSE = 209, 0.05


def serve(address: str, port: int) -> None:
    s, _ = socket.create_server((address, port)).accept()
    while question := s.recv(SIZE, socket.MSG_WAITALL):
        s.sendall(question[:9])


def ask(address: str, port: int, n: int, delay_ms: float) -> None:
    s = socket.create_connection((address, port))
    for i in range(n):
        sent = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        s.sendall(b"%09d" % i + bytes(SIZE - 9))
        assert s.recv(9, socket.MSG_WAITALL) == b"%09d" % i
        read = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert read - sent >= delay_ms * 1e6, (sent, read)
        print(json.dumps([sent, read]), flush=True)
        time.sleep(PAUSE)
    print(json.dumps({"delay_ms": delay_ms}), flush=True)


def judge(kpat: str, store: str, said: str, port: int) -> None:
    *times, last = [json.loads(line) for line in open(said)]
    listed = [kpat, "packets", store, f"tcp.dstport == {port} and sent", "--limit", "0", "--json"]
    packets = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)["packets"]
    data = sorted((p for p in packets if p["len_bytes"] >= SIZE), key=lambda p: p["first_boot_ns"])
    late, wrong = 0, []
    for p, (sent, read) in zip(data, times):
        began, ended = p["first_boot_ns"], p["first_boot_ns"] + p["path_ns"]
        late += p["last_boot_ns"] > sent + last["delay_ms"] * 1e6
        if not sent < began < ended < read - last["delay_ms"] * 1e6 / 2:
            wrong.append([began - sent, ended - sent, read - sent])
    print(json.dumps({"asked": len(times), "packets": len(data), "freed_with_the_acknowledgement": late, "wrong": wrong}))
    # Else there was nothing to tell from the card's freeing.
    assert len(data) == len(times) and late > len(data) / 2 and not wrong


if __name__ == "__main__":
    what, *args = sys.argv[1:]
    match what:
        case "serve":
            serve(args[0], int(args[1]))
        case "ask":
            ask(args[0], int(args[1]), int(args[2]), float(args[3]))
        case "judge":
            judge(*args[:3], int(args[3]))
        case _:
            sys.exit(__doc__)
