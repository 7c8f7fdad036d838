#!/usr/bin/env python3
"""Datagrams that are lost in known ways, and the kernel's own counters to judge kpat by.

    lossy.py sink              sockets: 9003 is full, 9009 has a filter that drops, all others are read; ends by SIGTERM or SIGINT
                               with one JSON line: datagrams read, by port
    lossy.py deaf DEV [BYTES]  a sniffer's two sockets, one with a ring, that nobody reads; what does not fit into BYTES is dropped, what does
                               is held; ends so with what they got and dropped
    lossy.py bad COUNT GATEWAY DEV SRC DST [PORT]    datagrams of 400 bytes with a wrong checksum to port 9005, by AF_PACKET
    lossy.py queues DEV HOST   through one queueing discipline after the other; one JSON line: of each case what was sent, dropped ...
    lossy.py backlog DEV HOST PORT COUNT    in bursts onto the other end's per-CPU backlog, which is made short: only in a guest
    lossy.py judge KPAT LOG [EXPRESSION=TRUTH ...]    compares numbers of packets; exit 1 where one differs
    lossy.py weigh KPAT LOG QUEUES SINK    the same for each case of `queues`

TRUTH: a number; FILE:tc (packets that root, ingress and egress queueing disciplines dropped, `tc -s -j qdisc`), FILE:nstat:NAME (`nstat -asj`),
FILE:link (packets that the driver dropped, `ip -s -j link`), FILE:xfrm:NAME (/proc/net/xfrm_stat), FILE:nft:NAME (a named counter, `nft -j list counters`),
FILE:KEY (a number in a command's JSON); several with + and -, as `300 - out/sink.out:9001`.
"""
import ctypes
import json
import select
import signal
import socket
import struct
import subprocess
import sys
import time

READ = [9001, 9005, 9006, 9008, *range(9012, 9019), *range(9101, 9130)]
FULL = 9003
FILTERED = 9009
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SEGMENTS, SEGMENT = 10, 1000
SLOW = "root handle 1: tbf rate 400kbit burst 2k limit 1m"  # slower than an emulated sender
SLOWER = "root handle 1: tbf rate 100kbit burst 2k limit 1m"
# Name, port, datagrams, what is set up with tc; what is done with packets in the queue.
CASES = [
    ("tbf", 9101, 60, ["root handle 1: tbf rate 400kbit burst 2k latency 50ms"], []),
    ("pfifo", 9102, 60, [SLOW, "parent 1:1 handle 2: pfifo limit 2"], []),
    ("head", 9103, 60, [SLOW, "parent 1:1 handle 2: pfifo_head_drop limit 3"], []),
    ("red", 9104, 60, [SLOW, "parent 1:1 handle 2: red limit 30000 min 2000 max 6000 avpkt 600 burst 5 bandwidth 400kbit probability 1"], []),
    ("sfq", 9105, 60, [SLOW, "parent 1:1 handle 2: sfq limit 4"], []),
    ("codel", 9106, 60, [SLOW, "parent 1:1 handle 2: codel target 1ms interval 5ms"], []),
    ("fq_codel", 9107, 60, [SLOW, "parent 1:1 handle 2: fq_codel limit 6"], []),
    ("htb", 9108, 60, ["root handle 1: htb default 1", "class parent 1: classid 1:1 htb rate 400kbit burst 2k", "parent 1:1 handle 2: pfifo limit 2"], []),
    ("netem", 9109, 60, ["root handle 1: netem loss 30%"], []),
    ("delay", 9110, 60, ["root handle 1: netem delay 20ms limit 5"], []),
    ("egress", 9111, 30, ["clsact", "filter egress protocol ip u32 match ip dport 9111 0xffff action drop"], []),
    # Of packets for segmentation: lost whole, at the end of the queue, cut within the queueing discipline.
    ("gso-netem", 9112, 30, ["root handle 1: netem loss 50%"], []),
    ("gso-pfifo", 9113, 12, ["root handle 1: tbf rate 1mbit burst 20k limit 1m", "parent 1:1 handle 2: pfifo limit 2"], []),
    ("gso-cut", 9114, 12, [SLOW, "parent 1:1 handle 2: pfifo limit 8"], []),
    # The queue is removed, made shorter.
    ("removed", 9115, 30, [SLOWER], ["qdisc del dev {dev} root"]),
    ("shorter", 9116, 30, [SLOWER, "parent 1:1 handle 2: codel limit 1000 target 10s"], ["qdisc change dev {dev} parent 1:1 handle 2: codel limit 5 target 10s", "qdisc del dev {dev} root"]),
]


def udp(port: int, buffer: int) -> socket.socket:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
    s.bind(("0.0.0.0", port))
    s.setblocking(False)
    return s


def sink() -> dict:
    read = {udp(port, 8 << 20): port for port in READ}
    full = udp(FULL, 4096)
    filtered = udp(FILTERED, 1 << 20)
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF_RET, 0 bytes
    filtered.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(nothing)))  # SO_ATTACH_FILTER
    read[filtered] = FILTERED
    got = dict.fromkeys([*READ, FULL, FILTERED], 0)
    wake, stop = socket.socketpair()
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: stop.send(b"x"))
    while True:
        ready = select.select([*read, wake], [], [])[0]
        for s in ready:
            if s is wake:
                continue
            try:
                s.recv(65536)
                got[read[s]] += 1
            except OSError:  # its checksum was wrong
                pass
        if ready == [wake]:
            break
    try:
        while True:
            full.recv(65536)
            got[FULL] += 1
    except BlockingIOError:
        return {str(port): n for port, n in got.items()}


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def deaf(dev: str, room: str = "1") -> dict:
    plain, ring = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2))
    plain.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, int(room))
    ring.setsockopt(263, 5, struct.pack("IIII", 4096, 1, 2048, 2))  # SOL_PACKET, PACKET_RX_RING: room for two frames
    for s in (plain, ring):
        s.bind((dev, 3))
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: None)
    print("deaf", file=sys.stderr, flush=True)
    signal.pause()
    reported = [struct.unpack("II", s.getsockopt(263, 6, 8)) for s in (plain, ring)]  # PACKET_STATISTICS
    return {"seen": reported[0][0], "dropped": reported[0][1], "ring_dropped": reported[1][1]}


def tc(*words: str, ok: bool = True) -> str:
    r = subprocess.run(["tc", *" ".join(words).split()], capture_output=True, text=True, timeout=30)
    if ok and r.returncode:
        raise SystemExit(f"tc {' '.join(words)}: {r.stderr.strip()}")
    return r.stdout if r.returncode == 0 else ""


def queueing(dev: str) -> list[dict]:
    return json.loads(tc(f"-s -j qdisc show dev {dev}"))


def send(host: str, port: int, count: int, gso: bool) -> int:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
    if gso:
        s.setsockopt(socket.IPPROTO_UDP, 103, SEGMENT)  # UDP_SEGMENT
    s.connect((host, port))
    size = SEGMENT * SEGMENTS if gso else 500
    for i in range(count):
        s.send(struct.pack(">Q", i) + b"K" * (size - 8))
    return count


def queues(dev: str, host: str) -> dict:
    cases, absent = {}, []
    for name, port, count, made, then in CASES:
        lines = []
        for x in made:
            kind, rest = x.split(" ", 1) if x.startswith(("class ", "filter ")) else ("qdisc", x)
            lines.append(f"{kind} add dev {dev} {rest}")
        r = subprocess.run(["tc", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, timeout=30)
        if r.returncode:
            absent.append(f"{name}: {r.stderr.strip().splitlines()[0]}")
        else:
            gso = name.startswith("gso")
            sent = send(host, port, count, gso)
            for x in then:
                tc(x.format(dev=dev))
            reported, end = queueing(dev), time.monotonic() + 20
            while any(q.get("qlen") for q in reported) and time.monotonic() < end:
                time.sleep(0.05)
                reported = queueing(dev)
            cases[name] = {"port": port, "sent": sent, "drops": None if then else dropped(reported), "qdiscs": reported}
        if not any("qdisc del" in x for x in then) or r.returncode:
            tc(f"qdisc del dev {dev} {'clsact' if made[0] == 'clsact' else 'root'}", ok=False)
    time.sleep(1.1)  # what is seen so shortly before the end of the recording is still under way
    idle = [n for n, c in cases.items() if c["drops"] == 0]
    return {"cases": cases, "absent": absent, "absent_cases": len(absent), "idle": idle, "idle_cases": len(idle)}


def backlog(dev: str, host: str, port: int, count: int) -> dict:
    """netem lets go of many at once; the other end of a virtual link puts each on the backlog, which is served after that."""
    limit = ["nsenter", "-t", "1", "-n", "sysctl", "-qw"]

    def overflows() -> int:
        with open("/proc/net/softnet_stat") as f:
            return sum(int(line.split()[1], 16) for line in f)

    tc(f"qdisc add dev {dev} root netem delay 10ms slot 60ms 60ms limit 1000")
    subprocess.run([*limit, "net.core.netdev_max_backlog=1"], check=True, timeout=30)
    before = overflows()
    try:
        sent = send(host, port, count, False)
        end = time.monotonic() + 20
        while any(q.get("qlen") for q in queueing(dev)) and time.monotonic() < end:
            time.sleep(0.02)
        return {"sent": sent, "dropped": overflows() - before}
    finally:
        subprocess.run([*limit, "net.core.netdev_max_backlog=1000"], check=True, timeout=30)
        tc(f"qdisc del dev {dev} root")


def bad(count: int, gateway: str, dev: str, src: str, dst: str, port: int = 9005) -> dict:
    out = subprocess.run(["ip", "-j", "neigh", "show", gateway, "dev", dev], check=True, capture_output=True).stdout
    target = bytes.fromhex(json.loads(out)[0]["lladdr"].replace(":", ""))
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind((dev, 0))
    own = s.getsockname()[4]
    for i in range(count):
        datagram = struct.pack(">HHHHQ", 5555, port, 408, 0x1111, i) + b"K" * 392
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), i + 1, 0x4000, 64, 17, 0, socket.inet_aton(src), socket.inet_aton(dst))
        head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
        s.send(target + own + b"\x08\0" + head + datagram)
    return {"sent": count}


def dropped(reported: list[dict]) -> int:
    return sum(q["drops"] for q in reported if q.get("root") or q["kind"] in ("ingress", "clsact"))


def truth(term: str) -> int:
    if term.isdigit():
        return int(term)
    path, what = term.split(":", 1)
    with open(path) as f:
        text = f.read()
    if what.startswith("xfrm:"):
        return next(int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [what[5:]])
    reported = json.loads(text)
    if what == "link":
        return reported[0]["stats64"]["tx"]["dropped"]
    if what == "tc":
        return dropped(reported)
    if what.startswith("nstat:"):
        return reported["kernel"].get(what[6:], 0)
    if what.startswith("nft:"):
        return next(x["counter"]["packets"] for x in reported["nftables"] if x.get("counter", {}).get("name") == what[4:])
    return reported[what]


def compare(kpat: str, log: str, pairs: list[tuple[str, int]]) -> int:
    wrong = 0
    for expression, want in pairs:
        out = subprocess.run([kpat, "packets", log, expression, "--json", "-n", "1"], check=True, capture_output=True, timeout=100).stdout
        found = json.loads(out)["total"]
        wrong += found != want
        print(f"{'right' if found == want else 'WRONG'} {found:6} {want:6} {expression}")
    return int(wrong > 0)


def judge(kpat: str, log: str, *asked: str) -> int:
    pairs = []
    for pair in asked:
        expression, terms = pair.rsplit("=", 1)
        want, sign = 0, 1
        for word in terms.split():
            if word in "+-":
                sign = 1 if word == "+" else -1
            else:
                want += sign * truth(word)
        pairs.append((expression, want))
    return compare(kpat, log, pairs)


def weigh(kpat: str, log: str, queues: str, sink: str) -> int:
    info = subprocess.run([kpat, "info", log, "--json"], check=True, capture_output=True, timeout=100).stdout
    by_points = json.loads(info)["recording"]["mechanism"] == "tracepoint"
    with open(queues) as f:
        cases = json.load(f)["cases"]
    with open(sink) as f:
        read = json.load(f)
    pairs = []
    for name, c in cases.items():
        udp, arrived = f"udp port {c['port']}", read[str(c["port"])]
        if name.startswith("gso"):  # the other end's socket takes segments only
            udp += " len > 1500"
        if name == "gso-cut":
            if not by_points:  # no tracepoint is met by segments that are made there; of a packet whose segments are all dropped the kernel says so, too
                cut = f"udp port {c['port']} len < 1500"
                pairs += [(f"{udp} and (transformed or dropped)", c["sent"]), (f"{cut} dropped", c["drops"]), (f"{cut} and (sent or delivered)", arrived)]
                assert c["drops"] + arrived == c["sent"] * SEGMENTS, (name, c, arrived)
            continue
        arrived //= SEGMENTS if name.startswith("gso") else 1
        gone = c["sent"] - arrived
        assert c["drops"] in (None, gone), f"{name}: tc counts {c['drops']}, {gone} of {c['sent']} did not arrive"
        pairs += [(udp, c["sent"]), (f"{udp} dropped", gone), (f"{udp} and (sent or delivered)", arrived)]
    return compare(kpat, log, pairs)


if __name__ == "__main__":
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "judge":
        sys.exit(judge(*rest))
    if verb == "weigh":
        sys.exit(weigh(*rest))
    if verb == "bad":
        reported = bad(int(rest[0]), *rest[1:5], *map(int, rest[5:]))
    elif verb == "backlog":
        reported = backlog(rest[0], rest[1], int(rest[2]), int(rest[3]))
    else:
        reported = {"sink": sink, "deaf": deaf, "queues": queues}[verb](*rest)
    print(json.dumps(reported), flush=True)
