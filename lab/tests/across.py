"""What a server on another machine does for a client here: this machine and a guest with a wire between them, whom the CPUs worked for recorded on both. Truth is what the
server burns for each client by its own thread's clock.

    python -m tests.across guest                 in the guest: records, and serves until /lab/stop is there
    python -m tests.across ask PORT MILLISECONDS in the namespace: asks three times for so much work over one connection
"""
import os
import socket
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from pathlib import Path

from kpatlab import cache, emulator, guest, kernel, look, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for

from .machines import SERIES, THERE, namespace_with_tap

TCP, UDP = 8001, 8002
ASKED = ((TCP, 40), (TCP, 90), (UDP, 60))


def serve() -> None:
    """In order of arrival, over TCP one connection after the other; when it is interrupted, what each message took from its taking to the answer."""
    took = []
    tcp, udp = socket.create_server((THERE, TCP)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", UDP))

    def answer(proto: str, port: int, message: bytes, send) -> None:
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < int(message) * 1_000_000:
            pass
        send(b"ok")
        took.append((proto, port, time.thread_time_ns() - began))

    def datagrams():
        while True:
            message, who = udp.recvfrom(16)
            answer("udp", who[1], message, lambda words: udp.sendto(words, who))

    threading.Thread(target=datagrams, daemon=True).start()
    print("up", flush=True)
    try:
        while True:
            c, who = tcp.accept()
            while message := c.recv(16):
                answer("tcp", who[1], message, c.sendall)
    except KeyboardInterrupt:
        for line in took:
            print(*line)


def ask(port: int, milliseconds: int) -> None:
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if port == TCP else socket.SOCK_DGRAM)
    s.connect((THERE, port))
    for _ in range(3):
        s.send(b"%-16d" % milliseconds)
        s.recv(2)
    print(s.getsockname()[1])


def in_guest() -> int:
    cache.run(["modprobe", emulator.NIC_DRIVERS["virtio"]], "the card's driver")
    found = lambda: [d.name for d in Path("/sys/class/net").iterdir() if (d / "address").read_text().strip() == emulator.WIRE_MAC]
    wait_for(found, 20, "the card")
    for words in (["addr", "add", f"{THERE}/24", "dev", found()[0]], ["link", "set", found()[0], "up"]):
        cache.run(["ip", *words], "the guest's card")
    out = Path("/run/scratch")
    out.mkdir()
    server = play.Process("server", [sys.executable, "-m", "tests.across", "serve"], out)
    server.wait_ready(lambda: "up" in play.text_of(server.stdout), 60)
    record = play.Process("record", [play.kpat_path(), "record", "-p", "profile", "--no-cost", "-o", str(out / "there.kbl"), "--ready-file", str(out / "ready")], out)
    record.wait_ready((out / "ready").exists, 100)
    Path("/lab/ready").touch()
    wait_for(lambda: Path("/lab/stop").exists(), 150, "the end of the test")
    rc = record.stop()
    server.stop()
    for name in ("there.kbl", "record.err", "server.out"):
        Path("/lab", name).write_bytes((out / name).read_bytes())
    return rc


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class AcrossMachines(unittest.TestCase):
    def setUp(self):
        if SERIES not in {k.series for k in kernel.fetched()}:
            self.skipTest(f"{SERIES} was not fetched (lab/lab fetch {SERIES})")

    def test_a_servers_work_is_its_clients_on_the_other_machine(self):
        with tempfile.TemporaryDirectory() as d:
            out, share = Path(d), Path(d, "share")
            share.mkdir()
            clients = self.happen(out, share, f"kpat-am-{os.getpid()}")
            for kbl in (out / "here.kbl", share / "there.kbl"):
                look.integrate(kbl, [], out / f"{kbl.stem}.kpat")
            logs = [str(out / "here.kpat"), str(out / "there.kpat")]
            across = {logs[0]: look.kpat_json("profile", logs[0], "--with", logs[1], "--limit", "0"), logs[1]: look.kpat_json("profile", logs[1], "--with", logs[0], "--limit", "0")}
            burned = Counter()
            for line in (share / "server.out").read_text().splitlines()[1:]:
                proto, port, ns = line.split()
                burned[proto, int(port)] += int(ns)
            for pid, (proto, port) in clients.items():
                truth, found = burned[proto, port], [sum(a["ns"] for a in p["across"] if a["client"] and a["client"]["pid"] == pid) for p in across.values()]
                print(f"across machines: {proto}: burned for {pid} {truth / 1e6:.2f} ms, charged {found[0] / 1e6:.2f} ms, by the server's side {found[1] / 1e6:.2f}", file=sys.stderr, flush=True)
                self.assertGreater(truth, 100e6)
                self.assertEqual(*found)
                # The thread's clock has the interrupts in it that came upon it, which are long on an emulated computer.
                self.assertGreater(found[0], 0.9 * truth)
                # And the server's way to wait for the next message, which takes an emulated computer a while.
                self.assertLess(found[0], 1.03 * truth + 3 * 8e6)

    def happen(self, out: Path, share: Path, ns: str) -> dict:
        module = [sys.executable, "-m", "tests.across"]
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": play.kpat_path()}
        with namespace_with_tap(ns) as tap:
            ended: list = []

            def machine():
                try:
                    ended.append(guest.run(kernel.open_kernel(SERIES), [*module, "guest"], share, wire=tap, env=env, cwd="/", timeout=300,
                                           sinks=(out / "guest.out", out / "guest.err")).rc)
                except Exception as e:  # reported by the assertion below, in the thread that can fail
                    ended.append(e)

            thread = threading.Thread(target=machine)
            thread.start()
            record = None
            try:
                record = play.Process("here", [play.kpat_path(), "record", "-p", "profile", "--no-cost", "-o", str(out / "here.kbl"), "--ready-file", str(out / "ready")], out)
                record.wait_ready((out / "ready").exists, 60)
                wait_for(lambda: ended or (share / "ready").exists(), 300, "the guest")
                self.assertEqual(ended, [], "the guest ended before it was ready")
                clients = {}
                for i, (port, milliseconds) in enumerate(ASKED):
                    client = play.Process(f"client-{i}", ["ip", "netns", "exec", ns, *module, "ask", str(port), str(milliseconds)], out, env={**os.environ, **env})
                    self.assertEqual(client.p.wait(100), 0, play.text_of(client.stderr))
                    clients[client.p.pid] = ("tcp" if port == TCP else "udp", int(play.text_of(client.stdout)))
            finally:
                (share / "stop").touch()
                thread.join(330)
                code = record and record.stop()
            self.assertEqual((ended, code), ([0], 0))
        return clients


if __name__ == "__main__":
    match sys.argv[1]:
        case "guest":
            sys.exit(in_guest())
        case "serve":
            serve()
        case _:
            ask(int(sys.argv[2]), int(sys.argv[3]))
