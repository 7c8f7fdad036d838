#!/usr/bin/env python3
"""A way between two namespaces with delay, jitter, loss and reordering, for kernels without netem: a TUN device in each, and this between.

    path.py NS-A ADDR-A NS-B ADDR-B [--delay-ms MS] [--jitter-ms MS] [--loss SHARE] [--reorder SHARE] [--duplicate SHARE] [--seed N] [--every N] [--rate BYTES/S]

Says "ready" when both devices are up; on SIGTERM one line of JSON: what it carried and what it lost, each way. Loss, jitter, reordering and
duplicates are on the way from A to B; --delay-ms is on both. "waited_ns" is for how long this process was ready to run and did not, by the kernel's count:
what it carried had that delay beside. --every N: instead of by chance, each Nth packet with data is lost. Jitter keeps the order, a packet
that is reordered does not wait at all. --rate: from A to B no more than this, what is more waits its turn.
"""
import argparse
import collections
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def enter(path: str) -> None:
    with open(path) as f:
        if libc.setns(f.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), path)


def tun(ns: str, name: str, addr: str) -> int:
    own = f"/proc/{os.getpid()}/ns/net"
    home = os.open(own, os.O_RDONLY)
    enter(f"/run/netns/{ns}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    libc.setns(home, CLONE_NEWNET)
    os.close(home)
    for args in (["link", "set", name, "txqueuelen", "10000"], ["addr", "add", addr, "dev", name], ["link", "set", name, "up"]):
        subprocess.run(["ip", "-n", ns, *args], check=True)
    return fd


def carries_data(packet: bytes) -> bool:
    """Is it a TCP segment over IPv4 that is more than headers?"""
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return False
    head = (packet[0] & 15) * 4
    return len(packet) > head + (packet[head + 12] >> 4) * 4


def waited_ns() -> int:
    """Time on a run queue (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(open("/proc/self/schedstat").read().split()[1])
    except (OSError, IndexError):
        return 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("ns_a", "addr_a", "ns_b", "addr_b"):
        p.add_argument(name)
    for name in ("--delay-ms", "--jitter-ms", "--loss", "--reorder", "--duplicate"):
        p.add_argument(name, type=float, default=0.0)
    p.add_argument("--every", type=int, default=0)
    p.add_argument("--rate", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    chance = random.Random(args.seed)
    fds = [tun(args.ns_a, "t0", args.addr_a), tun(args.ns_b, "t1", args.addr_b)]
    # what waits: when it is due, a number that keeps the order, to which end, the packet
    waiting: list = []
    count = [collections.Counter(), collections.Counter()]
    number, last_due, data, free = 0, 0.0, 0, 0.0
    going = True

    def stop(*_):
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if os.geteuid() == 0:
        os.nice(-15)
    before = waited_ns()
    print("ready", flush=True)
    while going:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            try:
                os.write(fds[to], packet)
            except OSError:
                count[1 - to]["not_taken"] += 1
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.5
        try:
            ready, _, _ = select.select(fds, [], [], timeout)
        except InterruptedError:
            continue
        for fd in ready:
            side = fds.index(fd)
            for _ in range(64):
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    break
                number += 1
                count[side]["packets"] += 1
                count[side]["bytes"] += len(packet)
                due = time.monotonic()
                if side == 0 and args.rate:
                    due = free = max(free, due) + len(packet) / args.rate
                due += args.delay_ms / 1e3
                if side == 0:
                    data += carries_data(packet)
                    lost = carries_data(packet) and data % args.every == 0 if args.every else chance.random() < args.loss
                    if lost:
                        count[side]["lost"] += 1
                        continue
                    if args.reorder and chance.random() < args.reorder:
                        count[side]["reordered"] += 1
                        due -= args.delay_ms / 1e3
                    else:
                        due = last_due = max(last_due, due + chance.random() * args.jitter_ms / 1e3)
                heapq.heappush(waiting, (due, number, 1 - side, packet))
                if side == 0 and args.duplicate and chance.random() < args.duplicate:
                    count[side]["duplicated"] += 1
                    number += 1
                    heapq.heappush(waiting, (due, number, 1, packet))
    print(json.dumps({"a_to_b": count[0], "b_to_a": count[1], "waited_ns": waited_ns() - before}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
