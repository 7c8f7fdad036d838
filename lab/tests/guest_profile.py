"""A profile on the kernels of guests: it loads, everything that passed is charged, and a receiver's packets are the receiver's. By what the receiver itself counts, and by
the kernel's count of what it received."""
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
PACKETS = 500
TAKE = """
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
print("up", flush=True)
n = 0
while s.recv(100) != b"end": n += 1
print(os.getpid(), n, flush=True)
"""
SEND = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.96.1.1", 9000))
for i in range({PACKETS}):
    s.send(b"x" * 64)
    if i % 20 == 19: time.sleep(0.002)
time.sleep(0.5)
for i in range(3): s.send(b"end")
time.sleep(0.5)
"""


def link_there(ip) -> None:
    """A namespace there, on a link with this one."""
    ip("netns", "add", "there")
    ip("link", "add", "c0", "type", "veth", "peer", "name", "s0", "netns", "there")
    ip("addr", "add", "10.96.1.2/24", "dev", "c0")
    ip("-n", "there", "addr", "add", "10.96.1.1/24", "dev", "s0")
    ip("link", "set", "c0", "up")
    ip("-n", "there", "link", "set", "s0", "up")


def in_guest(kpat: str) -> int:
    """Runs in the guest, in a folder of its own; prints the receiver's process, what it took, and the profile."""
    os.chdir("/tmp")
    ip = lambda *words: subprocess.run(["ip", *words], check=True)
    link_there(ip)
    take = subprocess.Popen(["ip", "netns", "exec", "there", sys.executable, "-c", TAKE], stdout=subprocess.PIPE, text=True)
    take.stdout.readline()
    subprocess.run([kpat, "record", "-p", "profile", "--no-cost", "-o", "p.kbl", "--", sys.executable, "-c", SEND], check=True, stdout=subprocess.DEVNULL)
    pid, took = map(int, take.communicate(timeout=60)[0].split())
    subprocess.run([kpat, "integrate", "p.kbl", "-o", "p.kpat"], check=True, stdout=subprocess.DEVNULL)
    p = subprocess.run([kpat, "profile", "p.kpat", "--json", "--limit", "0"], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(json.dumps({"pid": pid, "took": took, "profile": json.loads(p)}))
    return 0


def batches_in_guest(kpat: str) -> int:
    """The same of two receivers behind a device whose own thread hands packets up several at a time, and of a port that nobody has."""
    sys.path.insert(0, str(LAB))
    from tests import batches
    os.chdir("/tmp")
    run = lambda *words: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    ip = lambda *words: run("ip", *words)
    inside = ["ip", "netns", "exec", "there"]
    link_there(ip)
    run("ethtool", "-K", "c0", "tso", "off", "gso", "off")
    run(*inside, "ethtool", "-K", "s0", "gro", "on")
    run(*inside, "sh", "-c", "echo 1 > /sys/class/net/s0/threaded")
    thread = next(p for p in os.listdir("/proc") if p.isdigit() and open(f"/proc/{p}/comm").read().startswith("napi/s0"))
    os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))
    takes = [subprocess.Popen([*inside, sys.executable, "-c", batches.TAKE, str(port)], stdout=subprocess.PIPE, text=True) for port in (9000, 9001)]
    pids = [int(t.stdout.readline().split()[1]) for t in takes]
    send = [sys.executable, "-c", batches.SEND, "10.96.1.1", "2000", "64", "9000", "9001", "9002"]
    run(kpat, "record", "-p", "profile", "--no-cost", "-o", "b.kbl", "--", *send)
    took = [int(t.stdout.readline().split()[1]) for t in takes]
    for t in takes:
        t.kill()
    run(kpat, "integrate", "b.kbl", "-o", "b.kpat")
    p = subprocess.run([kpat, "profile", "b.kpat", "--json", "--limit", "0"], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(json.dumps({"pids": pids, "took": took, "profile": json.loads(p)}))
    return 0


class ProfileThere:
    def guest(self, what: str) -> dict:
        from kpatlab import play
        argv = [str(LAB / "lab"), "exec", "--kernel", self.series, "--timeout", "400", "--", sys.executable, str(Path(__file__).resolve()), what, str(play.kpat_path())]
        r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1000)
        self.assertEqual(r.returncode, 0, r.stdout[-2000:] + r.stderr[-2000:])
        return json.loads(r.stdout.splitlines()[-1])

    @unittest.skipUnless(shutil.which("ethtool"), "needs ethtool")
    def test_packets_that_come_together_are_each_their_readers(self):
        found = self.guest("batches")
        p, none = found["profile"], found["profile"]["without_process"]
        charged = [next(x for x in p["processes"] if x["pid"] == pid)["served_packets"] for pid in found["pids"]]
        print(f"profile on {self.series}: charged {charged}, they took {found['took']}; {p['packets']}; of no process {none}", file=sys.stderr, flush=True)
        for ours, truth in zip(charged, found["took"]):
            self.assertTrue(truth <= ours <= truth + 64, "and those that say the end")
        self.assertLess(none.get("unknown", {"packets": 0})["packets"], 0.01 * sum(found["took"]) + 10)

    def test_a_receivers_packets_are_its_own(self):
        found = self.guest("guest")
        p = found["profile"]
        receiver = next(x for x in p["processes"] if x["pid"] == found["pid"])
        print(f"profile on {self.series}: charged {p['difference_ns']:+} ns of {p['passed_ns']} that passed; the receiver took {found['took']} packets, charged with "
              f"{receiver['served_packets']} in {receiver['served_ns'] / 1e6:.2f} ms; {p['packets']}; of no process {p['without_process']}", file=sys.stderr, flush=True)
        self.assertEqual(found["took"], PACKETS)
        self.assertLess(abs(p["difference_ns"]), 0.001 * p["passed_ns"])
        self.assertEqual(p["packets"]["counted"], p["packets"]["received"])
        self.assertTrue(PACKETS <= receiver["served_packets"] <= PACKETS + 3, "and those that say the end")
        self.assertGreater(receiver["served_ns"], 0)


class Profile72(ProfileThere, unittest.TestCase):
    series = "7.2"


class Profile612(ProfileThere, unittest.TestCase):
    series = "6.12"


class Profile61(ProfileThere, unittest.TestCase):
    series = "6.1"


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        sys.exit(in_guest(sys.argv[2]))
    if sys.argv[1:2] == ["batches"]:
        sys.exit(batches_in_guest(sys.argv[2]))
    unittest.main()
