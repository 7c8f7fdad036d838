"""What the programs in a deterministic guest share: a router between two namespaces, a generator, patience."""

import json
import os
import subprocess
import sys
import time

TMP = "/run/bench"
os.makedirs(TMP, exist_ok=True)
SIZE = 64  # bytes of a datagram


def datagrams(pktbench, packets, warmup):
    """Over the router, one by one. What the generator measured: a packet's time, of which 1 ns is an instruction here."""
    with open(f"{TMP}/pk", "w") as out:
        command = [pktbench, "cl", "sv", "10.7.2.2", str(packets), str(SIZE), str(warmup)]
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL)
    return json.load(open(f"{TMP}/pk"))


def wait_for(happened, process, seconds=3600):
    for _ in range(seconds * 20):
        if happened():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def there(path):
    return lambda: os.path.exists(path) and os.path.getsize(path) > 0


def remove(*paths):
    for p in paths:
        if os.path.exists(p):
            os.remove(p)


def read(path):
    return open(path).read() if os.path.exists(path) else ""


def topology(lab, say):
    """The scenario's namespaces, as `lab exec --topology` makes them, but patient.

    Guest time runs ahead while the guest waits for the host's disk, so the lab's bound on each command expires on a
    busy machine; the second attempt finds the programs in memory.
    """
    sys.path.insert(0, lab)
    from kpatlab import cache, scenario
    from kpatlab.topology import Network

    subprocess.run(["ip", "netns"], stdout=subprocess.DEVNULL)
    for attempt in range(6):
        net = Network(scenario.load("ping-router").topology, "", True)
        try:
            net.build()
            return
        except (cache.Refusal, OSError, subprocess.TimeoutExpired) as e:
            say(f"attempt {attempt + 1}: {e}")
            for ns in ("cl", "rt", "sv"):
                subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)
    raise OSError("no topology")
