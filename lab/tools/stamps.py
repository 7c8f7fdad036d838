"""A card's own time stamps of what it received, as the socket interface tells them, and its clock.

    stamps.py on DEVICE PPB              asks the card to stamp received PTPv2 event messages, and its clock to run so much faster
    stamps.py recv DEVICE COUNT          PTP frames (EtherType 0x88F7) with their stamps, until COUNT came or 5 s passed since the last; prints JSON
    stamps.py send DEVICE COUNT PPS      numbered PTPv2 Sync messages; prints JSON: boot clock before each
    stamps.py clock DEVICE               the card's clock between two looks at the wall clock (PTP_SYS_OFFSET_EXTENDED), and that one between two
                                         looks at the boot clock, 20 times a second, until it is interrupted; prints JSON
    stamps.py check KPAT LOG DIR         kpat's packets against recv.out, send.out and clock.out in DIR; prints JSON with `wrong`
"""
import bisect
import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

ETH_P_1588 = 0x88F7
SIOCSHWTSTAMP, SIOCETHTOOL, ETHTOOL_GET_TS_INFO, HWTSTAMP_FILTER_PTP_V2_EVENT = 0x89B0, 0x8946, 0x41, 12
SO_TIMESTAMPING = 37
PTP_SYS_OFFSET_EXTENDED = 0xC4C03D09
RX_HARDWARE, RAW_HARDWARE = 1 << 2, 1 << 6
BOOTTIME = time.CLOCK_BOOTTIME
# An 82576 keeps one stamp until this register is read, says QEMU; Linux's driver reads another one.
RXSATRH = 0xB630


def ask(device: str, request: int, data) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, request, struct.pack("16sP16x", device.encode(), ctypes.addressof(data)))


def clock_of(device: str, mode: int = os.O_RDONLY) -> int:
    """Id of the card's clock, for clock_gettime."""
    info = ctypes.create_string_buffer(struct.pack("I40x", ETHTOOL_GET_TS_INFO), 44)
    ask(device, SIOCETHTOOL, info)
    return (~os.open(f"/dev/ptp{struct.unpack_from('i', info.raw, 8)[0]}", mode) << 3) | 3


def on(device: str, ppb: int) -> None:
    config = ctypes.create_string_buffer(struct.pack("iii", 0, 0, HWTSTAMP_FILTER_PTP_V2_EVENT), 12)
    ask(device, SIOCSHWTSTAMP, config)
    timex = ctypes.create_string_buffer(208)
    struct.pack_into("I4xqq", timex, 0, 2, 0, ppb * 65536 // 1000)  # ADJ_FREQUENCY, in parts per million of 16 bits more
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.clock_adjtime(clock_of(device, os.O_RDWR), timex) < 0:
        raise OSError(ctypes.get_errno(), "clock_adjtime")


def frame(n: int, source: bytes) -> bytes:
    """A Sync message of PTPv2, with a number behind it."""
    ptp = struct.pack(">BBHBBHqI10sHBb", 0x00, 0x02, 52, 0, 0, 0, 0, 0, b"\0" * 8 + b"\0\1", n & 0xFFFF, 0, 0) + b"\0" * 10
    return b"\xff" * 6 + source + struct.pack(">H", ETH_P_1588) + ptp + struct.pack(">Q", n)


def send(device: str, count: int, pps: float) -> dict:
    sent = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
        s.bind((device, 0))
        source = s.getsockname()[4]
        start = time.monotonic()
        for n in range(count):
            while (left := start + n / pps - time.monotonic()) > 0:
                time.sleep(left)
            sent.append(time.clock_gettime_ns(BOOTTIME))
            s.send(frame(n, source))
    return {"sent": sent}


def recv(device: str, count: int) -> dict:
    got = []
    with (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_1588)) as s,
          open(f"/sys/class/net/{device}/device/resource0", "r+b", buffering=0) as f, mmap.mmap(f.fileno(), 0) as registers):
        s.bind((device, ETH_P_1588))
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_HARDWARE | RAW_HARDWARE)
        s.settimeout(900)  # nothing is sent before programs are loaded, which takes a busy guest minutes
        release = ctypes.c_uint32.from_buffer(registers, RXSATRH)
        print("ready", release.value, file=sys.stderr, flush=True)
        while len(got) < count:
            try:
                data, control, _, _ = s.recvmsg(2048, 512)
            except TimeoutError:
                break
            now = time.clock_gettime_ns(BOOTTIME)
            s.settimeout(5)
            stamp = 0
            for level, kind, value in control:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
                    seconds, ns = struct.unpack_from("2q", value, 32)
                    stamp = seconds * 10**9 + ns
            got.append([struct.unpack_from(">Q", data, 14 + 44)[0], stamp, now])
            release.value
        del release
    return {"got": got}


def clock(device: str) -> dict:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    fd, rows, wall = ~(clock_of(device) >> 3), [], []
    while True:
        reported = bytearray(struct.pack("I", 5).ljust(1216, b"\0"))
        fcntl.ioctl(fd, PTP_SYS_OFFSET_EXTENDED, reported)
        times = [[seconds * 10**9 + ns for seconds, ns, _ in struct.iter_unpack("qII", reported[16 + 48 * i:64 + 48 * i])] for i in range(5)]
        rows.append(min(times, key=lambda t: t[2] - t[0]))
        wall += [(time.clock_gettime_ns(BOOTTIME), time.time_ns(), time.clock_gettime_ns(BOOTTIME)) for _ in range(5)]
        if len(rows) == 1:
            print("reading", file=sys.stderr, flush=True)
        if signal.sigtimedwait({signal.SIGINT, signal.SIGTERM}, 0.05):
            # Nobody sets the wall clock meanwhile: it is ahead by what all readings allow.
            ahead = max(w - b for _, w, b in wall), min(w - a for a, w, _ in wall)
            return {"clock": [[a - ahead[1], card, b - ahead[0]] for a, card, b in rows]}


def check(kpat: str, log: str, folder: str) -> dict:
    reported = {k: json.loads(Path(folder, f"{f}.out").read_text())[k] for f, k in (("recv", "got"), ("send", "sent"), ("clock", "clock"))}
    run = subprocess.run([kpat, "packets", log, "-n", "0", "--json"], stdout=subprocess.PIPE, check=True, timeout=120)
    packets = [p for p in json.loads(run.stdout)["packets"] if p["ethertype"] == ETH_P_1588 and p["in_ifindex"]]
    rows, wrong = reported["clock"], []
    by_stamp = {p["stamp_ns"]: p for p in packets if p["stamp_ns"]}
    stamped = {stamp: (n, now) for n, stamp, now in reported["got"] if stamp}
    if set(by_stamp) != set(stamped):
        wrong.append(f"stamps: {len(set(by_stamp) - set(stamped))} are kpat's only, {len(set(stamped) - set(by_stamp))} the socket's only")
    if len(packets) != len(reported["got"]):
        wrong.append(f"{len(packets)} packets, {len(reported['got'])} received")
    known, off, bounds, own, before = 0, [], [], [], []
    for stamp, (n, now) in stamped.items():
        p = by_stamp.get(stamp)
        if not p:
            continue
        if not reported["sent"][n] <= p["first_boot_ns"] <= now:
            wrong.append(f"number {n} was first seen at {p['first_boot_ns']}, sent after {reported['sent'][n]} and received before {now}")
        i = bisect.bisect([r[1] for r in rows], stamp) - 1
        if p["card_ns"] is None or not 0 <= i < len(rows) - 1:
            continue
        known += 1
        (a, x, b), (c, y, d) = rows[i], rows[i + 1]
        share = (stamp - x) / (y - x)
        here = (a + b) / 2 * (1 - share) + (c + d) / 2 * share
        bound = max(b - a, d - c) / 2
        at = p["first_boot_ns"] - p["card_ns"]
        off.append(abs(at - here))
        own.append(bound)
        bounds.append(p["card_bound_ns"])
        before.append(p["card_ns"])
        if abs(at - here) > bound + p["card_bound_ns"]:
            wrong.append(f"number {n}: {at} ±{p['card_bound_ns']}, by the card's clock as read here {here:.0f} ±{bound:.0f}")
        if at + p["card_bound_ns"] < reported["sent"][n]:
            wrong.append(f"number {n} was stamped at {at} ±{p['card_bound_ns']}, before it was sent: {reported['sent'][n]}")
    middle = lambda x: sorted(x)[len(x) // 2] if x else None
    if not own or middle(own) > 20_000:
        wrong.append(f"the card's clock was read to ±{middle(own)} ns here: too coarse to judge by")
    return {"received": len(reported["got"]), "stamped": len(stamped), "known": known, "median_off_ns": middle(off), "most_off_ns": max(off, default=None),
            "median_bound_ns": middle(bounds), "most_bound_ns": max(bounds, default=None), "own_bound_ns": middle(own),
            "median_card_ns": middle(before), "wrong": wrong[:20]}


def main(argv: list[str]) -> None:
    verb, *args = argv
    if verb == "on":
        on(args[0], int(args[1]))
    else:
        done = {"recv": lambda: recv(args[0], int(args[1])), "send": lambda: send(args[0], int(args[1]), float(args[2])),
                "clock": lambda: clock(args[0]), "check": lambda: check(*args)}[verb]()
        print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1:])
