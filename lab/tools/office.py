#!/usr/bin/env python3
"""A day at an office, in seconds: ordinary traffic of several programs, and among it, if asked for, what should be noticed.

    office.py serve ADDR                  the servers: a web, a files, a chat, a beacon's master
    office.py work ADDR SECONDS [beacon] [scan] [theft]

Ordinary: `browser` asks at irregular moments and gets long answers, `backup` sends a megabyte early and late, `chat` writes a few
bytes now and then on one connection, `metrics` sends long reports at regular times. Planted: `beacon` says 24 bytes every 300 ms, each time
on a new connection; `scan` tries 60 ports; `theft` is the browser, which sends three megabytes once.
"""
import contextlib
import ctypes
import os
import random
import socket
import sys
import threading
import time

WEB, FILES, CHAT, METRICS, MASTER = 8001, 8002, 8003, 8004, 8005


def serve(addr: str) -> None:
    def one(c: socket.socket, port: int) -> None:
        with c, contextlib.suppress(ConnectionError):  # who asked may leave before the answer
            while b := c.recv(1 << 16):
                if port == WEB and len(b) < 1000:
                    c.sendall(b"x" * random.randrange(2000, 60000))
                elif port == CHAT:
                    c.sendall(b"ok")

    def listen(port: int) -> None:
        s = socket.create_server((addr, port), backlog=64)
        while True:
            threading.Thread(target=one, args=(s.accept()[0], port), daemon=True).start()

    for port in (WEB, FILES, CHAT, METRICS):
        threading.Thread(target=listen, args=(port,), daemon=True).start()
    listen(MASTER)


def say(addr: str, port: int, size: int, answer: bool = False) -> None:
    with socket.create_connection((addr, port)) as s:
        s.sendall(b"x" * size)
        if answer:
            s.recv(1 << 16)


def browser(addr: str, until: float, theft: bool) -> None:
    half = time.monotonic() + (until - time.monotonic()) * 0.7
    while time.monotonic() < until:
        say(addr, WEB, random.randrange(200, 900), answer=True)
        if theft and time.monotonic() > half:
            theft = False
            say(addr, FILES, 3_000_000)
        time.sleep(random.expovariate(4))


def backup(addr: str, until: float) -> None:
    while time.monotonic() < until:
        say(addr, FILES, 1_000_000)
        time.sleep(1.3)


def chat(addr: str, until: float) -> None:
    with socket.create_connection((addr, CHAT)) as s:
        while time.monotonic() < until:
            s.sendall(b"x" * random.randrange(5, 80))
            s.recv(16)
            time.sleep(random.expovariate(3))


def metrics(addr: str, until: float) -> None:
    with socket.create_connection((addr, METRICS)) as s:
        while time.monotonic() < until:
            s.sendall(b"x" * 6000)
            time.sleep(0.5)


def beacon(addr: str, until: float) -> None:
    due = time.monotonic()
    while due < until:
        time.sleep(max(0, due - time.monotonic()))
        say(addr, MASTER, 24)
        due += 0.3


def scan(addr: str, until: float) -> None:
    time.sleep(max(0, until - time.monotonic()) / 2)
    for port in range(9000, 9060):
        with socket.socket() as s:
            s.connect_ex((addr, port))


def work(addr: str, seconds: float, planted: list[str]) -> None:
    """Each a process of its own, with its name."""
    until = time.monotonic() + seconds
    jobs = {"browser": lambda: browser(addr, until, "theft" in planted), "backup": lambda: backup(addr, until),
            "chat": lambda: chat(addr, until), "metrics": lambda: metrics(addr, until)}
    jobs |= {name: lambda f=f: f(addr, until) for name, f in (("beacon", beacon), ("scan", scan)) if name in planted}
    children = []
    for name, job in jobs.items():
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME
            random.seed(name)
            try:
                job()
            except OSError as e:
                print(f"{name}: {e}", file=sys.stderr)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in children]):
        sys.exit(1)


if __name__ == "__main__":
    what, addr, *rest = sys.argv[1:]
    if what == "serve":
        serve(addr)
    elif what == "work":
        work(addr, float(rest[0]), rest[1:])
    else:
        sys.exit(__doc__)
