#!/usr/bin/env python3
"""A driver that is busy: the other end of a virtual link is served by a thread that does not run while the sender does, so its ring
of 256 packets is full, the driver refuses the next (NETDEV_TX_BUSY), and the queueing discipline has it back.

    requeue.py serve DEV            DEV's packets by a thread (NAPI), which runs on the first CPU only; says its name
    requeue.py send DEV HOST PORT BURSTS COUNT    numbered datagrams in bursts, from the first CPU, in real time; one JSON line: sent, and what tc says of DEV
"""
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path


def serve(dev: str) -> None:
    Path(f"/sys/class/net/{dev}/threaded").write_text("1\n")
    found = [p for p in Path("/proc").glob("[0-9]*/comm") if p.read_text(errors="replace").startswith(f"napi/{dev}-")]
    for p in found:
        os.sched_setaffinity(int(p.parent.name), {0})
    print(json.dumps({"threads": len(found)}))
    if not found:
        raise SystemExit(f"{dev} has no NAPI thread: receive offload must be on")


def queueing(dev: str) -> list[dict]:
    return json.loads(subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", dev], check=True, capture_output=True, timeout=30).stdout)


def send(dev: str, host: str, port: str, bursts: str, count: str) -> None:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 32, 16 << 20)  # SO_SNDBUFFORCE
    s.connect((host, int(port)))
    os.sched_setaffinity(0, {0})
    number = 0
    for _ in range(int(bursts)):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        for _ in range(int(count)):
            s.send(struct.pack(">Q", number) + b"K" * 56)
            number += 1
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        end = time.monotonic() + 20
        while any(q.get("qlen") for q in queueing(dev)) and time.monotonic() < end:
            time.sleep(0.02)
    reported = queueing(dev)
    print(json.dumps({"sent": number, "requeues": sum(q.get("requeues", 0) for q in reported if q.get("root")), "drops": sum(q["drops"] for q in reported if q.get("root"))}))


if __name__ == "__main__":
    {"serve": serve, "send": send}[sys.argv[1]](*sys.argv[2:])
