"""Two machines: this one and a guest, a tap device between, a clock each. Numbered datagrams go there and back; both kernels are recorded, this
one as it allows, the guest's by its functions, and the wire is captured. kpat has to follow each datagram from one kernel into the other.
An application here also writes known sizes over TCP to one there, both recorded with --profile app and joined without the capture: each byte
has to be found in what was read, and the clocks to be related by the bytes alone.

What kpat does not know: the numbers, and how the clocks relate. That is asked beside, in datagrams that are not recorded: the guest answers with
its boot clock, which was then between two readings of this machine's.

    python -m tests.machines guest           in the guest: records, echoes, tells its clock until /lab/stop is there
    python -m tests.machines ask COUNT       in the namespace: asks for the clock; JSON
"""
import contextlib
import ctypes
import fcntl
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from kpatlab import cache, emulator, guest, kernel, look, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for

HERE, THERE, DEV = "10.77.0.1", "10.77.0.2", "wire0"
ECHO, CLOCK, WRITES = 9001, 9100, 9200
SERIES, DATAGRAMS, ASKED = "7.2", 300, 40
FILTER, OF_APPS = f"udp port {ECHO}", f"tcp port {WRITES}"
UDPSEQ = [sys.executable, str(LAB / "tools/udpseq.py")]
WRITER = [sys.executable, str(LAB / "tools/writes.py")]


def in_guest() -> int:
    cache.run(["modprobe", emulator.NIC_DRIVERS["virtio"]], "the card's driver")
    cards = Path("/sys/class/net")
    found = lambda: [d.name for d in cards.iterdir() if (d / "address").read_text().strip() == emulator.WIRE_MAC]
    wait_for(found, 20, "the card")
    nic = found()[0]
    for words in (["addr", "add", f"{THERE}/24", "dev", nic], ["link", "set", nic, "up"]):
        cache.run(["ip", *words], "the guest's card")
    out = Path("/run/scratch")
    out.mkdir()
    echo = play.Process("echo", [*UDPSEQ, "echo", str(ECHO)], out)
    record = play.Process("record", [play.kpat_path(), "record", "-o", str(out / "guest.kbl"), "-f", FILTER, "--ready-file", str(out / "ready")], out)
    apps = play.Process("apps", [play.kpat_path(), "record", "--profile", "app", "-o", str(out / "guest-apps.kbl"), "-f", OF_APPS,
                                 "--ready-file", str(out / "apps.ready")], out)
    reader = play.Process("reader", [*WRITER, "recv", "tcp", THERE, str(WRITES)], out)
    clock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    clock.bind((THERE, CLOCK))

    def tell():
        while True:
            data, asker = clock.recvfrom(64)
            clock.sendto(data + struct.pack(">Q", time.clock_gettime_ns(time.CLOCK_BOOTTIME)), asker)

    threading.Thread(target=tell, daemon=True).start()
    record.wait_ready(lambda: (out / "ready").exists(), 100)
    apps.wait_ready(lambda: (out / "apps.ready").exists(), 100)
    listening = lambda: cache.run(["ss", "-Hltn", f"sport = :{WRITES}"], "who listens").stdout
    reader.wait_ready(listening, 60)
    Path("/lab/ready").touch()
    wait_for(lambda: Path("/lab/stop").exists(), 100, "the end of the test")
    rc = record.stop() or apps.stop()
    for p in (echo, reader):
        p.stop()
    for name in ("guest.kbl", "record.err", "guest-apps.kbl", "reader.out"):
        Path("/lab", name).write_bytes((out / name).read_bytes())
    return rc


def ask(count: int) -> list:
    """[wall time before, the guest's boot time, wall time after] of each answer."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    reported = []
    for i in range(count):
        time.sleep(0.02)
        before = time.time_ns()
        s.sendto(struct.pack(">Q", i), (THERE, CLOCK))
        number, boot = struct.unpack(">QQ", s.recv(64))
        after = time.time_ns()
        if number == i:
            reported.append([before, boot, after])
    return reported


@contextlib.contextmanager
def namespace_with_tap(ns: str):
    """A namespace with one end of the wire; gives a descriptor of the other."""
    cache.run(["ip", "netns", "add", ns], "a namespace")
    try:
        libc, own = ctypes.CDLL(None, use_errno=True), os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        opened = [own, os.open(f"/run/netns/{ns}", os.O_RDONLY)]
        try:
            # A tap device is made in the namespace in which its file was opened: TUNSETIFF, IFF_TAP | IFF_NO_PI.
            if libc.setns(opened[1], 0):
                raise OSError(ctypes.get_errno(), "setns")
            tap = os.open("/dev/net/tun", os.O_RDWR)
            opened.append(tap)
            fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", DEV.encode(), 0x0002 | 0x1000))
            libc.setns(own, 0)
            for words in (["addr", "add", f"{HERE}/24", "dev", DEV], ["link", "set", DEV, "up"]):
                cache.run(["ip", "-n", ns, *words], "this end of the wire")
            yield tap
        finally:
            libc.setns(own, 0)
            for fd in opened:
                os.close(fd)
    finally:
        cache.run(["ip", "netns", "del", ns], "a namespace")


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class TwoMachines(unittest.TestCase):
    def setUp(self):
        if SERIES not in {k.series for k in kernel.fetched()}:
            self.skipTest(f"{SERIES} was not fetched (lab/lab fetch {SERIES})")

    def test_followed_from_one_clock_into_the_other(self):
        with tempfile.TemporaryDirectory() as d:
            out = Path(os.environ.get("KPAT_LAB_KEEP_MACHINES", d))
            out.mkdir(exist_ok=True)
            reported, during = self.happen(out, f"kpat-tm-{os.getpid()}")
            logs = [out / "here.kbl", out / "share" / "guest.kbl"]
            look.integrate(logs, [out / "wire.pcap"], out / "both.kpat")
            look.integrate([out / "here-apps.kbl", out / "share" / "guest-apps.kbl"], [], out / "apps.kpat")
            self.judge_bytes(out, during)
            self.judge(out, reported)

    def happen(self, out: Path, ns: str) -> tuple[list, list]:
        share, within = out / "share", ["ip", "netns", "exec", ns]
        module = [sys.executable, "-m", "tests.machines"]
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": play.kpat_path()}
        with namespace_with_tap(ns) as tap:
            share.mkdir(exist_ok=True)
            ended: list = []

            def machine():
                try:
                    ended.append(guest.run(kernel.open_kernel(SERIES), [*module, "guest"], share, wire=tap, env=env, cwd="/",
                                           timeout=240, sinks=(out / "guest.out", out / "guest.err")).rc)
                except Exception as e:  # reported by the assertion below, in the thread that can fail
                    ended.append(e)

            thread = threading.Thread(target=machine)
            thread.start()
            running: list = []
            try:
                running.append(play.Process("dump", [*within, "tcpdump", "-U", "-i", DEV, "-w", str(out / "wire.pcap"), "udp"], out))
                running[0].wait_ready(lambda: (out / "wire.pcap").exists() and (out / "wire.pcap").stat().st_size >= 24, 20)
                running.append(play.Process("here", [play.kpat_path(), "record", "-o", str(out / "here.kbl"), "--netns", ns, "-f", FILTER,
                                                     "--ready-file", str(out / "here.ready")], out))
                running.append(play.Process("here-apps", [play.kpat_path(), "record", "--profile", "app", "-o", str(out / "here-apps.kbl"), "--netns", ns,
                                                          "-f", OF_APPS, "--ready-file", str(out / "apps.ready")], out))
                running[1].wait_ready((out / "here.ready").exists, 60)
                running[2].wait_ready((out / "apps.ready").exists, 60)
                wait_for(lambda: ended or (share / "ready").exists(), 300, "the guest")
                self.assertEqual(ended, [], "the guest ended before it was ready")

                def asked():
                    words = cache.run([*within, *module, "ask", str(ASKED)], "asking for the clock", env={**os.environ, **env}, timeout=60)
                    return json.loads(words.stdout)

                reported = asked()
                cache.run([*within, *UDPSEQ, "send", THERE, str(ECHO), str(DATAGRAMS), "--pps", "100"], "sending", timeout=60)
                writer = play.Process("writer", [*within, *WRITER, "send", "tcp", THERE, str(WRITES)], out)
                running.append(writer)
                during = asked()
                wait_for(lambda: writer.p.poll() is not None, 60, "the writer's end")
                reported += during + asked()
            finally:
                (share / "stop").touch()
                thread.join(280)
                codes = [p.stop() for p in running]
            self.assertEqual((ended, codes[1:]), ([0], [0, 0, 0]))
        return reported, during

    def judge_bytes(self, out: Path, reported: list) -> None:
        total = sum(w["size"] for w in json.loads((out / "writer.out").read_text())["writes"])
        self.assertEqual(sum(json.loads((out / "share" / "reader.out").read_text())["received"]), total)
        result = look.kpat_json("app", str(out / "apps.kpat"), "--connections")
        (c,) = result["connections"]
        self.assertEqual([result["hosts"][e["host"]]["name"] for e in c["ends"]], ["here-apps", "guest-apps"])
        there, back = c["directions"]
        self.assertEqual((there["written"], there["read"], there["left"], there["unseen_writes"] + there["unseen_reads"], there["impossible"]), (total, total, [], 0, 0))
        self.assertEqual((there["write_to_read_ns"]["count"], back["ranges"]), (total, 0))
        # Both clocks at the moments when the guest itself reported what its was.
        k, wall_over_boot = c["clock"], time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        ahead = lambda here: k["offset_ns"] + (here - k["origin_ns"]) * k["drift_ppb"] / 1e9
        outside = 0
        for before, clock, after in reported:
            low, high = (clock - (t - wall_over_boot) for t in (after, before))
            here = (before + after) / 2 - wall_over_boot
            bound = k["bound_ns"] + max(0, k["origin_ns"] - here, here - k["to_ns"]) * k["drift_bound_ppb"] / 1e9
            outside += not low - bound <= ahead(here) <= high + bound
        legs = ", ".join(f"{leg['name']} {leg['ns']['mean'] / 1e3:.0f}" for leg in there["legs"])
        words = (f"{total} bytes; means in us: {legs}; write to read {there['write_to_read_ns']['mean'] / 1e3:.0f}; clock within {k['bound_ns'] / 1e3:.1f} us, "
                 f"drift {k['drift_ppb']:.0f} ppb; {outside} of {len(reported)} answers outside")
        print(f"truth two machines, bytes: {words}", file=sys.stderr, flush=True)
        self.assertEqual(outside, 0, words)

    def judge(self, out: Path, reported: list) -> None:
        ends = ("here", "guest")
        self.assertEqual(len({look.Log(out / "both.kpat", d).boot_id() for d in ends}), 2)
        result = subprocess.run(["tshark", "-n", "-r", str(out / "wire.pcap"), "-Y", f"udp.port=={ECHO}", "-T", "fields", "-e", "frame.number", "-e", "udp.dstport",
                               "-e", "udp.payload"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=60).stdout.decode()
        frames = [(int(n), port == str(ECHO), payload[:16]) for n, port, payload in (line.split("\t") for line in result.splitlines())]
        self.assertEqual(len(frames), 2 * DATAGRAMS)
        found = {f["number"]: f["crossings"] for f in look.crossings(out / "both.kpat")}
        owner: dict = {}
        missing, wrong, early, bounds, flights = 0, 0, 0, [], {True: [], False: []}
        for number, there, payload in frames:
            crossed = found.get(number, [])
            missing += not crossed
            for c in crossed:
                way = ends if there else ends[::-1]
                one = all(owner.setdefault((c[f"{end}"], c[f"{end}_packet_id"]), (payload, there)) == (payload, there) for end in ("from", "to"))
                wrong += (c["from"], c["to"]) != way or not one or len(crossed) != 1
                early += c["flight_ns"] + c["flight_bound_ns"] < 0
                bounds.append(c["flight_bound_ns"])
                flights[there].append(c["flight_ns"])
        # The guest's clock by kpat, at the moments when the guest itself reported what it was.
        rows = subprocess.run([play.kpat_path(), "-q", "sql", str(out / "both.kpat/guest.kpat"), "--tsv",
                               "select from_wall_ns, to_wall_ns, offset_ns, drift_ppb, bound_ns from clock order by 1"], stdout=subprocess.PIPE, check=True, timeout=60)
        lines = [[int(v) for v in line.split("\t")] for line in rows.stdout.decode().splitlines()[1:]]

        def boot(wall: int) -> tuple[int, int]:
            start, _, offset, drift, bound = next((x for x in reversed(lines) if x[0] <= wall), lines[0])
            return wall + offset + (wall - start) * drift // 10**9, bound

        outside = 0
        for before, clock, after in reported:
            (low, bound), (high, _) = boot(before), boot(after)
            outside += not low - bound <= clock <= high + bound
        trips = sorted(after - before for before, _, after in reported)
        words = (f"{len(frames)} frames, {missing} did not cross, {wrong} wrong, {early} before they left; flight median "
                 f"{statistics.median(flights[True] or [0]) / 1e3:.1f} us there, {statistics.median(flights[False] or [0]) / 1e3:.1f} us back, bound "
                 f"{statistics.median(bounds or [0]) / 1e3:.1f} us; drift {[x[3] for x in lines]} ppb; {outside} of {len(reported)} answers of the guest's clock "
                 f"outside of kpat's bound of {[x[4] for x in lines]} ns (round trips from {trips[0] / 1e3:.0f} us)")
        print(f"truth two machines: {words}", file=sys.stderr, flush=True)
        self.assertEqual((missing, wrong, early, outside), (0, 0, 0, 0), words)
        # A clock that is off by more than a round trip would be found.
        self.assertGreater(len(reported), ASKED)


if __name__ == "__main__":
    if sys.argv[1] == "guest":
        sys.exit(in_guest())
    print(json.dumps(ask(int(sys.argv[2]))))
