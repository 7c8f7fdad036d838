"""Runs in a deterministic guest: traffic while the host traces instructions, first with nothing, then with what is asked for.

For each stretch it writes the kernel's symbols and asks the host by a file; the host answers by another when it has enough.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from app import measure
from inside import TMP, datagrams, read, there, topology, wait_for

LAB, PKTBENCH, UDPLOAD, LOAD, KPAT, *ARGUMENTS = sys.argv[1:]
LONG = "100000"  # seconds: it is ended when there is enough


class Background:
    """Traffic from one namespace to another until it is ended, by processes that run all the time: their start is no packet's."""

    def __init__(self):
        if LOAD == "datagrams":
            ends = [(measure.RX, [UDPLOAD, "recv", "9000", LONG]), (measure.TX, [UDPLOAD, "send", "10.9.3.2", "9000", LONG, "64"])]
        else:
            ends = [(measure.RX, ["iperf3", "-s", "-1"]), (measure.TX, ["iperf3", "-c", "10.9.3.2", "-t", "80000", "-l", "1K"])]
        self.ends = []
        for ns, command in ends:
            self.ends.append(subprocess.Popen(measure.inside(ns, *command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.3)

    def wait(self):
        if any(p.poll() is not None for p in self.ends):
            raise SystemExit("trace: the traffic ended")
        time.sleep(0.002)

    def end(self):
        for p in reversed(self.ends):
            p.kill()
            p.wait()


class Router:
    def wait(self):
        datagrams(PKTBENCH, 200, 0)

    end = wait


def traced(name):
    traffic = Router() if LOAD == "router" else Background()
    traffic.wait()
    shutil.copy("/proc/kallsyms", f"/lab/{name}.symbols")
    open(f"/lab/{name}.go", "w").close()
    while not os.path.exists(f"/lab/{name}.done"):
        traffic.wait()
    traffic.end()


if LOAD == "router":
    try:
        topology(LAB, lambda why: print(why, flush=True))
    except OSError as e:
        raise SystemExit(f"trace: {e}")
else:
    for line in measure.SETUP.strip().splitlines():
        subprocess.run(["ip", *line.split()], check=True)
    subprocess.run(measure.inside(measure.TX, "ping", "-q", "-c", "2", "-i", "0.2", "10.9.3.2"), check=True, stdout=subprocess.DEVNULL)
ARGUMENTS = [a.replace("{sender}", measure.TX).replace("{receiver}", measure.RX) for a in ARGUMENTS]
traced("nothing")
command = [KPAT, "record", "--json", "--no-progress", "--no-cost", "--ring", "64M", "-o", f"{TMP}/x.kbl", "--ready-file", f"{TMP}/ready", *ARGUMENTS]
with open(f"{TMP}/out", "w") as out, open(f"{TMP}/err", "w") as err:
    p = subprocess.Popen(command, stdout=out, stderr=err)
if not wait_for(there(f"{TMP}/ready"), p):
    p.kill()
    raise SystemExit(f"trace: kpat did not start: {read(f'{TMP}/err')[-600:]}")
time.sleep(0.2)
p.send_signal(signal.SIGSTOP)
traced("kpat")
p.send_signal(signal.SIGCONT)
time.sleep(0.3)
p.send_signal(signal.SIGINT)
p.wait()
with open("/lab/summary.json", "w") as f:
    json.dump(json.loads(read(f"{TMP}/out")), f)
