#!/usr/bin/env python3
"""Applications that know what they did, and the judge of what kpat made of it.

    writes.py recv tcp|udp ADDR PORT            takes everything, says how much in which calls (one JSON object)
    writes.py send tcp|udp ADDR PORT [ROUNDS]   known sizes at known times; TCP_INFO before each write, now and then what `ss` says
    writes.py send ping|raw ADDR 0 [ROUNDS]     the same by a socket without ports: echoes and their answers, or datagrams nobody takes
    writes.py judge KPAT X.kpat SEND.out RECV.out ...   pairs of the above; says what does not agree, exit 1 then

Times are CLOCK_BOOTTIME, kpat's clock. struct tcp_info: include/uapi/linux/tcp.h.
"""
import bisect
import json
import socket
import struct
import subprocess
import sys
import time

TCP_SIZES = [1, 7, 100, 1448, 1449, 5000, 70000, 300000, 3, 65536, 1000]
UDP_SIZES = [1, 100, 1472, 1473, 9000]
ECHO_SIZES = [8, 9, 100, 1480]
NOBODYS = 253  # a protocol for experiments, RFC 3692
TX = {"tcp": (2, 3, 5, 6), "udp": (2, 5, 6)}
TX_FUNCTIONS = {"tcp": (1, 4), "udp": (1, 3, 4)}
BELOW_TCP = (4, 5, 6)
RX = {"tcp": (8, 9, 10), "udp": (9, 10)}
RX_FUNCTIONS = {"tcp": (), "udp": (8,)}
NAMES = ["", "ask", "send", "to-transport", "to-network", "to-device", "to-driver", "from-device", "from-network", "to-socket", "recv"]


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def family(addr: str) -> int:
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


def tcp_info(s: socket.socket) -> dict:
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    v = struct.unpack("=8B24I", raw)
    u = v[8:]
    return {"at": now(), "rto_us": u[0], "snd_mss": u[2], "rtt_us": u[15], "snd_ssthresh": u[17], "snd_cwnd": u[18], "total_retrans": u[23]}


def bytes_sent(s: socket.socket) -> int:
    """TCP's own count when all is acknowledged: what was sent again (a busy machine's timers) is in it again."""
    until = time.monotonic() + 30
    while True:
        raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        if not struct.unpack_from("=I", raw, 24)[0] or time.monotonic() > until:
            return struct.unpack_from("=Q", raw, 200)[0]
        time.sleep(0.01)


def ss_info(s: socket.socket) -> dict:
    """What `ss -tin` says of this socket; a threshold that was never set it leaves out."""
    text = subprocess.run(["ss", "-Htin", f"sport = :{s.getsockname()[1]}"], stdout=subprocess.PIPE, text=True, check=True).stdout
    word = lambda name: next((w.removeprefix(name + ":") for w in text.split() if w.startswith(name + ":")), None)
    rtt, var = (round(float(x) * 1000) for x in word("rtt").split("/"))
    return {"cwnd": int(word("cwnd")), "ssthresh": int(word("ssthresh") or 0x7FFFFFFF), "mss": int(word("mss")), "rtt_us": rtt, "rttvar_us": var,
            "rto_us": round(float(word("rto")) * 1000)}


def recv(proto: str, addr: str, port: int) -> None:
    s = socket.socket(family(addr), socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((addr, port))
    got = []
    if proto == "tcp":
        s.listen()
        s.settimeout(150)
        s, _ = s.accept()
        while b := s.recv(10000):
            got.append(len(b))
    else:
        s.settimeout(150)
        while True:
            n = len(s.recv(65536))
            if n == 0:
                break
            got.append(n)
    print(json.dumps({"proto": proto, "port": port, "received": got}), flush=True)


def send(proto: str, addr: str, port: int, rounds: int) -> None:
    s = socket.socket(family(addr), socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM)
    s.connect((addr, port))
    writes = []
    for size in (TCP_SIZES if proto == "tcp" else UDP_SIZES) * rounds:
        time.sleep(0.02)
        # Costs a process: some are enough.
        ss = ss_info(s) if proto == "tcp" and len(writes) % 4 == 3 else None
        info = tcp_info(s) if proto == "tcp" else {}
        began = now()
        s.sendall(b"x" * size)
        writes.append({"size": size, "began": began, "ended": now(), "info": info, "ss": ss})
    time.sleep(0.1)
    if proto == "udp":
        s.send(b"")  # the other side stops
    own = s.getsockname()[1]
    total = bytes_sent(s) if proto == "tcp" else sum(w["size"] for w in writes)
    s.close()
    print(json.dumps({"proto": proto, "port": own, "writes": writes, "bytes_sent": total}), flush=True)


def send_alone(proto: str, addr: str, rounds: int) -> None:
    if proto == "ping":
        with open("/proc/sys/net/ipv4/ping_group_range", "w") as f:
            f.write("0 0")
    s = socket.socket(socket.AF_INET, *((socket.SOCK_DGRAM, socket.IPPROTO_ICMP) if proto == "ping" else (socket.SOCK_RAW, NOBODYS)))
    s.settimeout(10)
    writes, received = [], []
    for i, size in enumerate(ECHO_SIZES * rounds):
        time.sleep(0.01)
        began = now()
        s.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, i) + b"x" * (size - 8), (addr, 0))
        writes.append({"size": size, "began": began, "ended": now()})
        if proto == "ping":
            received.append(len(s.recv(65536)))
    print(json.dumps({"proto": proto, "writes": writes, "received": received}), flush=True)


class Judge:
    def __init__(self, kpat: str, log: str):
        self.kpat, self.log, self.wrong, self.right = kpat, log, [], 0

    def rows(self, query: str) -> list[dict]:
        r = subprocess.run([self.kpat, "sql", "--json", self.log, query], stdout=subprocess.PIPE, check=True)
        return json.loads(r.stdout)

    def check(self, what: str, have, want) -> None:
        if have == want:
            self.right += 1
        else:
            self.wrong.append(f"{what}: {have}, it was {want}")

    def sums(self, sock: int, crossings: tuple, total: int, sent: int, what: str) -> None:
        """`total`: of the program; `sent`: with what TCP sent again, of which a device's queue may still drop."""
        for c in crossings:
            r = self.rows(f"select coalesce(sum(size_bytes), 0) as n from app_event where socket_id = {sock} and crossing = {c} and size_bytes > 0")
            n, name = r[0]["n"], f"{what}, {NAMES[c]}: bytes"
            if NAMES[c] == "from-network":
                self.check(name, n, min(max(n, total), sent))
            else:
                self.check(name, n, sent if c in BELOW_TCP else total)

    def pair(self, sent: dict, got: dict, functions: bool) -> None:
        proto = sent["proto"]
        number = {"tcp": 6, "udp": 17}[proto]
        one = lambda port: self.rows(f"select socket_id from socket where proto = {number} and local_port = {port} and events > 0")[0]["socket_id"]
        total = sum(w["size"] for w in sent["writes"])
        a, b = one(sent["port"]), one(got["port"])
        self.check(f"{proto}: the receiver read", sum(got["received"]), total)
        self.sums(a, TX[proto] + (TX_FUNCTIONS[proto] if functions else ()), total, sent["bytes_sent"], f"{proto} sender")
        self.sums(b, RX[proto] + (RX_FUNCTIONS[proto] if functions else ()), total, sent["bytes_sent"], f"{proto} receiver")
        sends = self.rows(f"select at_ns, size_bytes from app_event where socket_id = {a} and crossing = 2 and size_bytes > 0 order by at_ns")
        self.check(f"{proto}: sizes of the writes", [s["size_bytes"] for s in sends], [w["size"] for w in sent["writes"]])
        late = [w["size"] for w, s in zip(sent["writes"], sends) if not w["began"] <= s["at_ns"] <= w["ended"]]
        self.check(f"{proto}: writes outside of their time", late, [])
        reads = self.rows(f"select size_bytes from app_event where socket_id = {b} and crossing = 10 and size_bytes > 0 order by at_ns")
        self.check(f"{proto}: sizes of the reads", [r["size_bytes"] for r in reads], [n for n in got["received"] if n])
        self.series(a, sent["writes"])
        if proto == "tcp":
            acked = self.rows(f"select sum(size_bytes) as n from app_event where socket_id = {a} and crossing = 12")[0]["n"]
            self.check("tcp: acknowledged, but for the end of the stream", min(acked, total), max(acked - 1, total))
            self.states(a, sent["writes"])
            self.life(sent, got)

    def series(self, sock: int, writes: list[dict]) -> None:
        """What was written by the end of each piece of time: no less than the writes that were over, no more than those begun."""
        r = subprocess.run([self.kpat, "app", "--json", self.log, "--socket", str(sock), "--series", "--bins", "50"], stdout=subprocess.PIPE, check=True)
        s = json.loads(r.stdout)
        edges = [s["start_boot_ns"] + t for t in s["bin_from_ns"][1:] + [s["to_ns"]]]
        so_far, off = 0, []
        for edge, size in zip(edges, s["crossings"]["send"]["bytes"]):
            so_far += size
            over, begun = (sum(w["size"] for w in writes if w[when] < edge) for when in ("ended", "began"))
            if not over <= so_far <= begun:
                off.append((edge, over, so_far, begun))
        self.check("over time: pieces that do not hold their writes", off, [])
        self.check("over time: bytes written", so_far, sum(w["size"] for w in writes))

    def life(self, sent: dict, got: dict) -> None:
        """Every byte from its write to its read: whole, once, in ranges that no write and no read divides, in their times."""
        sock = self.rows(f"select socket_id from socket where proto = 6 and local_port = {sent['port']} and events > 0")[0]["socket_id"]
        ask = lambda *more: subprocess.run([self.kpat, "app", self.log, "--connections", "--socket", str(sock), *more], stdout=subprocess.PIPE, check=True).stdout
        answer = json.loads(ask("--json"))
        (c,) = answer["connections"]
        (d,) = [d for e, d in zip(c["ends"], c["directions"]) if e["socket_id"] == sock]
        total = sum(w["size"] for w in sent["writes"])
        self.check("life: written, read, left, unexplained, impossible", [d["written"], d["read"], d["left"], d["unseen_writes"] + d["unseen_reads"], d["impossible"]],
                   [total, total, [], 0, 0])
        self.check("life: from write to read, bytes", d["write_to_read_ns"]["count"], total)
        self.check("life: the clock", c["clock"]["bound_ns"], 0)
        start = answer["hosts"][0]["start_boot_ns"]
        names, *lines = (line.split("\t") for line in ask("--to", "tsv").decode().splitlines())
        ranges = [r for r in (dict(zip(names, line)) for line in lines) if r["from_socket"] == str(sock)]
        at, writes, reads, wrong = 0, [], [], []
        for kind, sizes in ((writes, [w["size"] for w in sent["writes"]]), (reads, got["received"])):
            for n in sizes:
                kind.append((kind[-1] if kind else 0) + n)
        within = lambda edges, a, b: bisect.bisect_right(edges, a) == bisect.bisect_left(edges, b)
        for r in ranges:
            a, b = int(r["offset"]), int(r["offset"]) + int(r["bytes"])
            w = sent["writes"][bisect.bisect_right(writes, a)]
            times = [start + int(r[n]) for n in names[5:] if r[n]]
            if a != at or not within(writes, a, b) or not within(reads, a, b) or times != sorted(times) or not w["began"] <= times[0] <= w["ended"]:
                wrong.append((at, a, b, times))
            at = b
        self.check("life: ranges that do not fit", wrong, [])
        self.check("life: the ranges' end", at, total)

    def alone(self, sent: dict) -> None:
        proto, sizes = sent["proto"], [w["size"] for w in sent["writes"]]
        number = {"ping": socket.IPPROTO_ICMP, "raw": NOBODYS}[proto]
        sock = self.rows(f"select socket_id from socket where proto = {number} and events > 0")[0]["socket_id"]
        of = lambda crossing: [r["size_bytes"] for r in self.rows(
            f"select size_bytes from app_event where socket_id = {sock} and crossing = {crossing} and size_bytes > 0 order by at_ns")]
        for c in (2, 5, 6):
            self.check(f"{proto}, {NAMES[c]}: sizes", of(c), sizes)
        for c in (9, 10) if proto == "ping" else ():
            self.check(f"{proto}, {NAMES[c]}: sizes", of(c), sent["received"])

    def states(self, sock: int, writes: list[dict]) -> None:
        """TCP_INFO just before a write, and kpat's first word of the state after that moment: the write's own segment."""
        states = self.rows(f"select at_ns, snd_cwnd, snd_ssthresh, mss, srtt_ns, rttvar_ns, rto_ns, total_retrans from tcp_state where socket_id = {sock} order by at_ns")
        for w in writes:
            i = w["info"]
            s = next(s for s in states if s["at_ns"] >= i["at"])
            have = [s["snd_cwnd"], s["snd_ssthresh"] or 0x7FFFFFFF, s["mss"], s["srtt_ns"] // 1000, s["total_retrans"]]
            self.check(f"TCP_INFO before the write of {w['size']}: cwnd, ssthresh, mss, rtt, retransmissions", have,
                       [i["snd_cwnd"], i["snd_ssthresh"], i["snd_mss"], i["rtt_us"], i["total_retrans"]])
            if s["rto_ns"] is not None:
                self.check("its rto", s["rto_ns"] // 1000, i["rto_us"])
            if ss := w["ss"]:
                # ss prints six digits of a time.
                near = lambda ns, us: us if ns is None or abs(ns / 1000 - us) <= max(1, us / 100_000) else ns / 1000
                have = [s["snd_cwnd"], s["snd_ssthresh"] or 0x7FFFFFFF, s["mss"], near(s["srtt_ns"], ss["rtt_us"]), near(s["rttvar_ns"], ss["rttvar_us"]),
                        near(s["rto_ns"], ss["rto_us"])]
                self.check(f"`ss` before the write of {w['size']}: cwnd, ssthresh, mss, rtt, its variation, rto", have,
                           [ss["cwnd"], ss["ssthresh"], ss["mss"], ss["rtt_us"], ss["rttvar_us"], ss["rto_us"]])


def judge(kpat: str, log: str, files: list[str]) -> int:
    j = Judge(kpat, log)
    seen = {r["crossing"] for r in j.rows("select distinct crossing from app_event")}
    answer = [json.load(open(f)) for f in files]
    pairs = [s for s in answer if s["proto"] in TX]
    for sent, got in zip(pairs[::2], pairs[1::2]):
        j.pair(sent, got, functions=1 in seen)
    for sent in answer:
        if sent["proto"] not in TX:
            j.alone(sent)
    print("\n".join(j.wrong) or f"{j.right} checks hold, {'functions and tracepoints' if 1 in seen else 'tracepoints alone'}")
    return 1 if j.wrong else 0


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "recv":
        recv(rest[0], rest[1], int(rest[2]))
    elif what == "send" and rest[0] not in TX:
        send_alone(rest[0], rest[1], int(rest[3]) if len(rest) > 3 else 3)
    elif what == "send":
        send(rest[0], rest[1], int(rest[2]), int(rest[3]) if len(rest) > 3 else 3)
    elif what == "judge":
        sys.exit(judge(rest[0], rest[1], rest[2:]))
    else:
        sys.exit(__doc__)
