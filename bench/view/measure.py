#!/usr/bin/env python3
"""How soon `kpat view` answers: bench/view/measure.py KPAT X.kpat [--rounds N] [--out FILE]

Starts the service on an integrated log, and asks each question first once (nothing of it is kept yet), then again. Milliseconds by
the wall, from the first byte sent to the last one read, over one connection that stays, as a browser does it. `cpu` is what
the service used meanwhile. The log is made by crates/integrate/examples/synth.rs (see bench/README.md).
"""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time

FILTERS = {
    "tcp": "tcp",
    "network and port": "ip.src == 10.1.2.0/24 and port == 443",
    "text": "'10.1.3.200'",
    "function": "func ip_forward",
    "a hundredth": "ip.src in {10.1.0.7, 10.1.0.8, 10.1.1.9, 10.1.2.10, 10.1.2.11, 10.1.2.12, 10.1.3.13, 10.1.3.14, 10.1.3.15, 10.1.3.16}",
}


class Service:
    def __init__(self, kpat, log):
        self.started = time.monotonic()
        self.process = subprocess.Popen([kpat, "view", "--no-open", log], stdout=subprocess.PIPE, text=True)
        found = re.match(r"[^#]*:(\d+)/#token=(\w+)", self.process.stdout.readline())
        self.port, self.token = int(found[1]), found[2]
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)

    def cpu(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_kib(self):
        return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{self.process.pid}/status").read())[1])

    def ask(self, path, **question):
        from urllib.parse import urlencode

        cpu, started = self.cpu(), time.monotonic()
        target = path + ("?" + urlencode(question) if question else "")
        self.connection.request("GET", target, headers={"x-kpat-token": self.token})
        body = self.connection.getresponse().read()
        ms = (time.monotonic() - started) * 1000
        last = json.loads(body.splitlines()[-1])
        if "error" in last:
            sys.exit(f"{target}: {last['error']}")
        return last["result"], ms, (self.cpu() - cpu) * 1000, len(body)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("kpat")
    p.add_argument("log")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out")
    a = p.parse_args()
    s = Service(a.kpat, a.log)
    rows = []

    def measure(name, path, again=None, **question):
        result, first, cpu, size = s.ask(path, **question)
        times = []
        for i in range(a.rounds):
            _, ms, _, _ = s.ask(path, **(question if again is None else {**question, **again(i)}))
            times.append(ms)
        row = {"question": name, "first_ms": round(first, 1), "first_cpu_ms": round(cpu), "bytes": size,
               "again_ms": round(statistics.median(times), 1), "worst_again_ms": round(max(times), 1)}
        rows.append(row)
        print(f"{row['first_ms']:9.1f} ms first {row['first_cpu_ms']:7d} ms CPU {row['again_ms']:8.1f} ms again "
              f"{row['worst_again_ms']:8.1f} worst {size:9d} B  {name}", flush=True)
        return result

    try:
        measure("info", "/api/info")
        since_start = (time.monotonic() - s.started) * 1000
        first, ms, _, _ = s.ask("/api/packets", count=100)
        start = {"question": "from start to the first page of packets", "first_ms": round(since_start + ms), "partial": first["partial"]}
        rows.append(start)
        print(f"{start['first_ms']:9.1f} ms from start to the first page of packets", flush=True)
        while not s.ask("/api/info")[0]["loaded"]:
            time.sleep(0.02)
        loaded = round((time.monotonic() - s.started) * 1000)
        rows.append({"question": "from start until all packets are read", "first_ms": loaded})
        print(f"{loaded:9.1f} ms from start until all packets are read", flush=True)
        # Cut ahead in the background; what is measured below does not share the CPU with it.
        s.ask("/api/phases")
        cut = round((time.monotonic() - s.started) * 1000)
        rows.append({"question": "from start until all packets are cut into phases", "first_ms": cut, "cpu_ms": round(s.cpu() * 1000)})
        print(f"{cut:9.1f} ms from start until all packets are cut into phases, {s.cpu():.2f} s CPU", flush=True)
        info, _, _, _ = s.ask("/api/info")
        total = info["counts"]["rows"]
        measure("page of packets, turned over", "/api/packets", lambda i: {"from": (i + 1) * total // 7}, count=200)
        for column in ("path_ns", "src", "info", "process", "len"):
            measure(f"sorted by {column}", "/api/packets", sort=column, desc=1, count=200)
        for name, text in FILTERS.items():
            measure(f"filter: {name}", "/api/packets", where=text, count=200)
        measure("sorted and filtered", "/api/packets", where="tcp", sort="kernel_ns", desc=1, count=200)
        measure("place of a packet", "/api/packets/at", lambda i: {"id": 1 + i * total // 9}, id=total // 2)
        measure("density", "/api/overview", bins=600)
        measure("density, filtered", "/api/overview", bins=600, where="tcp")
        measure("one packet", "/api/packet", lambda i: {"id": 1 + (i + 1) * total // 11}, id=total // 3)
        functions = measure("functions", "/api/functions")
        measure("functions with a slow call", "/api/functions", slower=3000)
        one = functions["rows"][3]["id"]
        measure("one function", "/api/function", lambda i: {"id": functions["rows"][4 + i]["id"]}, id=one, count=100)
        measure("one function, slower than", "/api/function", id=one, slower=1500, count=100)
        measure("flame graph", "/api/flame")
        measure("trust", "/api/trust")
        measure("events", "/api/events", count=200)
        measure("phases of a page of packets", "/api/phases/packets", lambda i: {"from": (i + 1) * total // 13}, count=50)
        measure("completion", "/api/complete", lambda i: {"text": "func ip_f"[: 9 - i]}, text="ve")
        measure("check of a filter", "/api/check", where="tcp and port in {80, 443}")
        print("long questions, which show progress:")
        measure("functions of a hundredth", "/api/functions", where=FILTERS["a hundredth"])
        measure("flame graph of a hundredth", "/api/flame", where=FILTERS["a hundredth"])
        measure("phases of a hundredth", "/api/phases", where=FILTERS["a hundredth"])
        measure("phases of all packets", "/api/phases")
        peak = s.rss_kib()
        load = os.getloadavg()[0]
        rows.append({"question": "load of the machine", "load": load})
        print(f"load {load}")
        rows.append({"question": "peak memory of the service", "peak_rss_kib": peak})
        print(f"{peak // 1024} MiB peak; {info['counts']['calls']} calls, {info['counts']['packets']} packets, {total} rows")
    finally:
        s.process.terminate()
        s.process.wait()
    if a.out:
        json.dump({"log": {**info["counts"]}, "rows": rows}, open(a.out, "w"), indent=1)


if __name__ == "__main__":
    main()
