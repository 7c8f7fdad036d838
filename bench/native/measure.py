"""On this machine: TCP bulk and small UDP through a router namespace with nothing, kpat and tcpdump, in turn.

Throughput is what arrived. CPU is said twice: busy time of the whole machine (/proc/stat; others' work is in it) and the
tool's own (its rusage). One JSON file with every round.
"""

import json
import os
import re
import resource
import signal
import subprocess
import time

TAG = f"kb{os.getpid()}"
CL, RT, SV = f"{TAG}cl", f"{TAG}rt", f"{TAG}sv"
SETUP = f"""
netns add {CL}
netns add {RT}
netns add {SV}
-n {CL} link add c0 type veth peer name r0 netns {RT}
-n {SV} link add s0 type veth peer name r1 netns {RT}
-n {CL} addr add 10.9.1.2/24 dev c0
-n {RT} addr add 10.9.1.1/24 dev r0
-n {RT} addr add 10.9.2.1/24 dev r1
-n {SV} addr add 10.9.2.2/24 dev s0
-n {CL} link set c0 up
-n {RT} link set r0 up
-n {RT} link set r1 up
-n {SV} link set s0 up
-n {CL} route add default via 10.9.1.1
-n {SV} route add default via 10.9.2.1
"""
VARIANTS = ("nothing", "kpat", "tcpdump", "tcpdump -s 96")


def up():
    for line in SETUP.strip().splitlines():
        subprocess.run(["ip", *line.split()], check=True)
    subprocess.run(inside(RT, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)


def down():
    for ns in (CL, RT, SV):
        subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)


def inside(ns, *command):
    return ["ip", "netns", "exec", ns, *command]


def busy_s():
    # user nice system idle iowait irq softirq steal
    t = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(t) - t[3] - t[4] - t[7]) / os.sysconf("SC_CLK_TCK"), t[7] / os.sysconf("SC_CLK_TCK")


def wait_for(happened, process, what):
    for _ in range(200):
        if happened():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"bench: {what} did not become ready")


def cpu_s(pid):
    t = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(t[11]) + int(t[12])) / os.sysconf("SC_CLK_TCK")


def rest_of(process):
    """Ends a recorder, and says what CPU it took in all."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tool_cpu_s": round(cpu, 4), "rc": process.returncode}


class Tool:
    """One recorder, from ready to its own last word."""

    def __init__(self, variant, kpat, folder):
        self.variant, self.folder = variant, folder
        self.file = os.path.join(folder, "log")
        self.err = os.path.join(folder, "err")
        self.out = os.path.join(folder, "out")
        ready = os.path.join(folder, "ready")
        for p in (self.file, self.err, self.out, ready):
            if os.path.exists(p):
                os.remove(p)
        self.process = None
        if variant == "nothing":
            return
        if variant == "kpat":
            command = [kpat, "record", "--netns", RT, "-o", self.file, "--ready-file", ready, "--json", "--no-progress"]
            happened = lambda: os.path.exists(ready) and os.path.getsize(ready) > 0
        else:
            command = inside(RT, "tcpdump", "-n", "-i", "r0", "-Z", "root", "-w", self.file, *variant.split()[1:])
            happened = lambda: "listening on" in open(self.err).read()
        self.process = subprocess.Popen(command, stdout=open(self.out, "w"), stderr=open(self.err, "w"))
        wait_for(happened, self.process, variant)
        self.cpu_ready = cpu_s(self.process.pid)

    def end(self):
        if not self.process:
            return {}
        said = {"tool_cpu_in_load_s": round(cpu_s(self.process.pid) - self.cpu_ready, 3)}
        said |= rest_of(self.process) | {"file_bytes": os.path.getsize(self.file)}
        if self.variant == "kpat":
            s = json.load(open(self.out))
            s.pop("outputs", None)
            said["summary"] = s
            said["events"] = s["records"]
            said["lost"] = sum(x.get("count", 0) for x in s["losses"])
        else:
            words = open(self.err).read()
            number = lambda what: int(re.search(rf"(\d+) packets? {what}", words).group(1))
            said["events"], said["lost"] = number("captured"), number("dropped by kernel")
        os.remove(self.file)
        return said


def tcp(seconds, udpload):
    server = subprocess.Popen(inside(SV, "iperf3", "-s", "-1", "--forceflush"), stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if "listening" in line:
            break
    out = subprocess.run(inside(CL, "iperf3", "-c", "10.9.2.2", "-t", str(seconds), "-J"), capture_output=True, text=True)
    server.communicate()
    end = json.loads(out.stdout)["end"]
    got, cpu = end["sum_received"], end["cpu_utilization_percent"]
    # Both ends' own CPU, in which the stack's work for their packets is: less noisy than throughput on a busy machine.
    cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * got["seconds"]
    return {
        "gbit_s": got["bits_per_second"] / 1e9,
        "retransmits": end["sum_sent"].get("retransmits"),
        "ends_cpu_ns_per_kib": cpu_s * 1e9 / (got["bytes"] / 1024),
    }


def udp(seconds, udpload):
    sink = subprocess.Popen(
        inside(SV, udpload, "recv", "9000", str(seconds + 0.5)), stdout=subprocess.PIPE, text=True
    )
    time.sleep(0.1)
    out = subprocess.run(
        inside(CL, udpload, "send", "10.9.2.2", "9000", str(seconds), "64"), capture_output=True, text=True
    )
    sent, got = json.loads(out.stdout), json.loads(sink.communicate()[0])
    return {
        "sent_pps": sent["packets"] / sent["seconds"],
        "got_pps": got["packets"] / sent["seconds"],
        "sent": sent["packets"],
        "got": got["packets"],
        "sender_cpu_ns_per_packet": sent["cpu_s"] / max(sent["packets"], 1) * 1e9,
        "receiver_cpu_ns_per_packet": got["cpu_s"] / max(got["packets"], 1) * 1e9,
    }


def measure(kpat, udpload, folder, rounds, seconds, save):
    rows = []
    down()
    try:
        up()
        subprocess.run(inside(CL, "ping", "-q", "-c", "2", "-i", "0.2", "10.9.2.2"), check=True, stdout=subprocess.DEVNULL)
        for load in (tcp, udp):
            load(1, udpload)
            for n in range(1, rounds + 1):
                # Another order each round, so that no variant always follows the same one.
                for variant in VARIANTS[n % 4 :] + VARIANTS[: n % 4]:
                    tool = Tool(variant, kpat, folder)
                    (b0, s0), t0 = busy_s(), time.monotonic()
                    what = load(seconds, udpload)
                    (b1, s1), t1 = busy_s(), time.monotonic()
                    r = {"load": load.__name__, "variant": variant, "round": n, **what}
                    r["machine_busy_cpus"] = (b1 - b0) / (t1 - t0)
                    r["stolen_cpus"] = (s1 - s0) / (t1 - t0)
                    r["load_average"] = os.getloadavg()[0]
                    r.update(tool.end())
                    rows.append(r)
                    save(rows)
                    print(json.dumps({k: v for k, v in r.items() if k != "summary"}), flush=True)
    finally:
        down()
    return rows
