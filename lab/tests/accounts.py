"""What a profile charges besides packets, natively, beside an innocent program that only computes: page faults, system calls, a disk's requests, pages that
are written back, a server's work for its clients; and what processes belong to. Truth is the programs' own count, /proc (schedstat, stat, diskstats) and
strace's way of counting: a number of calls that the program makes."""
import os
import sys
import time
import unittest
from pathlib import Path

from kpatlab import cache, look, play
from tests import profile
from tests.place import own, sh

MB = 1 << 20
# Each says how often it did what it is for, and what the kernel says of it.
SAY = """
import os, signal, sys, time
def counted():
    stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    return open("/proc/self/schedstat").read().split()[0], int(stat[7]) + int(stat[9])
def say(*words):
    print("did", *words, *counted(), flush=True)
    signal.pause()
"""
FAULTS = SAY + """
import mmap
n, before = int(sys.argv[1]), counted()[1]
for k in range(n // 4096):
    m = mmap.mmap(-1, 4096 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m.madvise(15)  # MADV_NOHUGEPAGE
    for i in range(0, 4096 * 4096, 4096): m[i] = 1
    m.close()
say(counted()[1] - before)
"""
CALLS = SAY + """
n = int(sys.argv[1])
for i in range(n): os.getppid()
say(n)
"""
READ = SAY + """
import mmap
f = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
b = mmap.mmap(-1, 1 << 16)
n = 0
while True:
    got = os.preadv(f, [b], n)
    if not got: break
    n += got
say(n)
"""
# More at once than the disk takes.
READ_MUCH = SAY + """
import mmap
f = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
b = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
b.madvise(14)  # MADV_HUGEPAGE
n = 0
while True:
    got = os.preadv(f, [b], n)
    if not got: break
    n += got
say(n)
"""
WRITE = SAY + """
f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
data = os.urandom(1 << 20)
for i in range(int(sys.argv[2])): os.write(f, data)
print("wrote", flush=True)
say(int(sys.argv[2]) << 20)
"""
SERVE = SAY + """
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print("ready", os.getpid(), flush=True)
n, ends, spent = 0, 0, {}
while ends < 2:
    began = time.process_time_ns()
    data, who = s.recvfrom(64)
    if data == b"end": ends += 1; continue
    x = 0
    for i in range(int(data)): x += i & 3
    s.sendto(b"done", who)
    spent[who] = spent.get(who, 0) + time.process_time_ns() - began
    n += 1
say(n, *[spent[w] for w in sorted(spent)])
"""
ASK = SAY + """
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[2])
for i in range(int(sys.argv[4])):
    s.sendto(sys.argv[3].encode(), sys.argv[1])
    s.recv(16)
s.sendto(b"end", sys.argv[1])
say(0)
"""
# By TCP on this host, or by named pipes: the server and its two clients. What the server spent on each by its own clock.
SERVE_MORE = SAY + """
import select, socket
how, where = sys.argv[1], sys.argv[2]
clients = {}
if how == "tcp":
    s = socket.create_server(("127.0.0.1", int(where)))
    print("ready", os.getpid(), flush=True)
    for _ in range(2):
        c, _ = s.accept()
        clients[int(c.recv(1))] = (c.fileno(), c.fileno(), c)
else:
    print("ready", os.getpid(), flush=True)
    for name in (0, 1):
        clients[name] = (os.open(f"{where}.in{name}", os.O_RDONLY), os.open(f"{where}.out{name}", os.O_WRONLY))
names, spent, n, ends = {c[0]: name for name, c in clients.items()}, [0, 0], 0, 0
while ends < 2:
    ready, _, _ = select.select(list(names), [], [])
    for fd in ready:
        began = time.process_time_ns()
        data = os.read(fd, 64)
        if not data or data == b"end":
            ends += 1
            del names[fd]
            continue
        x = 0
        for i in range(int(data)): x += i & 3
        os.write(clients[names[fd]][1], b"done")
        spent[names[fd]] += time.process_time_ns() - began
        n += 1
say(n, *spent)
"""
ASK_MORE = SAY + """
import socket
how, where, name, work, times = sys.argv[1:]
if how == "tcp":
    c = socket.create_connection(("127.0.0.1", int(where)))
    out = into = c.fileno()
    os.write(out, name.encode())
    time.sleep(0.3)
else:
    out, into = os.open(f"{where}.in{name}", os.O_WRONLY), os.open(f"{where}.out{name}", os.O_RDONLY)
for i in range(int(times)):
    os.write(out, work.encode())
    os.read(into, 16)
os.write(out, b"end")
say(0)
"""
FORKS = SAY + """
n = int(sys.argv[1])
for i in range(n):
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0)
say(n)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Accounts(profile.Recorded):
    def setUp(self):
        own(self, "accounts", "")

    def beside(self, name: str, code: str, *args, cpu: int = profile.BURN_CPU, ran_too: bool = True) -> tuple[dict, dict, list[int]]:
        """The profile of a program and a burner on the same CPU, the program's part and what it did."""
        def load():
            program = self.start(None, name, cpu, code, *args)
            burner, ran = self.burn()
            return program.p.pid, self.text_of(program, "did"), burner, ran

        (pid, did, burner, ran), p = self.profile(name, load)
        b, x = self.of(p, burner), self.of(p, pid)
        self.close(f"{name}: burner, ran by schedstat", b["ran_ns"], ran, 0.02)
        self.only_loaded(b)
        if ran_too:
            self.close(f"{name}: ran by schedstat", x["ran_ns"], did[-2], 0.02)
        return p, x, did

    def test_page_faults_have_their_own_time_and_number(self):
        p, x, did = self.beside("faults", FAULTS, 131072)
        print(f"accounts: {x['page_faults']} page faults, the kernel counted {did[0]} in the loop, {x['fault_ns'] / max(x['page_faults'], 1):.0f} ns each", file=sys.stderr, flush=True)
        self.assertGreaterEqual(x["page_faults"], did[0])
        self.assertLess(x["page_faults"], did[0] + 20_000, "Python's own start")
        self.assertGreater(x["fault_ns"], 100 * did[0])

    def test_system_calls_are_counted(self):
        p, x, did = self.beside("calls", CALLS, 200_000)
        print(f"accounts: {x['system_calls']} system calls, the program made {did[0]}", file=sys.stderr, flush=True)
        self.assertGreaterEqual(x["system_calls"], did[0])
        self.assertLess(x["system_calls"], did[0] + 5_000, "Python's own start")

    def test_requests_of_a_disk_are_the_readers(self):
        file = Path(self.here()) / f"kpat-accounts-{os.getpid()}"
        self.stack.callback(lambda: file.unlink(missing_ok=True))
        file.write_bytes(os.urandom(MB) * 64)
        sh("sync", file)
        # By schedstat a reader that sleeps for each of 1,024 requests ran 15 to 20 us longer for each than between its switches; why is not known.
        p, x, did = self.beside("read", READ, file, cpu=profile.SEND_CPU, ran_too=False)
        # Where the kernel runs no programs upon its supervisor's tasks, requests that are completed upon these are not counted: the kernel's own count
        # (/proc/diskstats, of all programs' requests) says how many.
        both = p["block_requests"]
        unseen = max(both["completed"] - both["counted"], 0)
        print(f"accounts: {x['block_requests']} requests are the reader's; disks completed {both['completed']}, counted {both['counted']}; "
              f"time not seen {p['buckets_ns']['unseen'] / 1e9:.4f} s", file=sys.stderr, flush=True)
        self.assertGreaterEqual(both["completed"], did[0] >> 16)
        self.assertGreaterEqual(x["block_requests"], (did[0] >> 16) - unseen)
        if unseen > 5:
            self.assertGreater(p["buckets_ns"]["unseen"], 0, "requests are missing although everything was seen")
        # and what reading the program and the file's own blocks took
        self.assertLess(x["block_requests"], (did[0] >> 16) + 32)
        print(f"accounts: read {did[0]} bytes, {x['block_requests']} requests completed for it in {x['served_blocks_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)

    def test_all_requests_of_a_large_read_are_the_readers(self):
        file = Path(self.here()) / f"kpat-accounts-{os.getpid()}"
        self.stack.callback(lambda: file.unlink(missing_ok=True))
        file.write_bytes(os.urandom(MB) * 128)
        sh("sync", file)
        at = os.stat(file).st_dev
        disk = Path(f"/sys/dev/block/{os.major(at)}:{os.minor(at)}").resolve()
        most = next((int(q.read_text()) << 10 for d in (disk, disk.parent) if (q := d / "queue/max_sectors_kb").exists()), 0)
        if not 0 < most < 8 * MB:
            self.skipTest(f"the disk takes {most} bytes at once")

        def load():
            reader = self.start(None, "much", profile.SEND_CPU, READ_MUCH, file)
            return reader.p.pid, self.text_of(reader, "did")

        (pid, did), p = self.profile("much", load)
        x, both = self.of(p, pid), p["block_requests"]
        least = did[0] // (8 * MB) * -(-8 * MB // most)
        print(f"accounts: read {did[0]} bytes by 8 MB, a request has at most {most}: at least {least}; {x['block_requests']} requests are the reader's", file=sys.stderr, flush=True)
        self.assertGreaterEqual(x["block_requests"], least - max(both["completed"] - both["counted"], 0))

    def test_pages_written_back_are_the_writers(self):
        file = Path(self.here()) / f"kpat-accounts-{os.getpid()}"
        self.stack.callback(lambda: file.unlink(missing_ok=True))

        def load():
            writer = self.start(None, "write", profile.SEND_CPU, WRITE, file, 128)
            did = self.text_of(writer, "did")
            sh("sync")
            return writer.p.pid, did

        (pid, did), p = self.profile("write", load)
        x = self.of(p, pid)
        back = [t for t in p["taken"] if t["for"] == "writeback" and t["beneficiary"] == pid]
        print(f"accounts: wrote {did[0]} bytes; kernel threads wrote back for it for {sum(t['ns'] for t in back) / 1e9:.4f} s", file=sys.stderr, flush=True)
        self.assertGreater(sum(t["ns"] for t in back), 0)
        self.assertGreaterEqual(x["served_in_threads_ns"], sum(t["ns"] for t in back))

    def test_a_servers_work_follows_its_clients_messages(self):
        at = self.dir / "socket"

        def load():
            server = self.start(None, "serve", profile.BURN_CPU, SERVE, at)
            pid, = self.text_of(server, "ready")
            asks = [self.start(None, f"ask{n}", profile.SEND_CPU, ASK, at, self.dir / name, work, 400) for n, (name, work) in enumerate((("a", 3000), ("b", 9000)))]
            return pid, [a.p.pid for a in asks], self.text_of(server, "did")

        (server, clients, did), p = self.profile("serve", load)
        got = {c["client"]: c["ns"] for c in p["clients"] if c["server"] == server}
        for client, truth in zip(clients, did[1:3]):
            self.close("server for a client, by its own clock", got.get(client, 0), truth, 0.05)
        self.assertLessEqual(sum(got.values()), self.own_ns(self.of(p, server)))

    def test_a_servers_work_follows_messages_by_tcp_and_by_pipes(self):
        for how in ("tcp", "pipes"):
            at = self.dir / "pipe" if how == "pipes" else 20_000 + os.getpid() % 20_000
            if how == "pipes":
                for name in (0, 1):
                    os.mkfifo(f"{at}.in{name}")
                    os.mkfifo(f"{at}.out{name}")

            def load():
                server = self.start(None, f"serve-{how}", profile.BURN_CPU, SERVE_MORE, how, at)
                pid, = self.text_of(server, "ready")
                asks = [self.start(None, f"ask-{how}{name}", profile.SEND_CPU, ASK_MORE, how, at, name, work, 300) for name, work in enumerate((3000, 9000))]
                return pid, [a.p.pid for a in asks], self.text_of(server, "did")

            (server, clients, did), p = self.profile(how, load)
            got = {c["client"]: c["ns"] for c in p["clients"] if c["server"] == server}
            for client, truth in zip(clients, did[1:3]):
                self.close(f"server for a client by {how}, by its own clock", got.get(client, 0), truth, 0.05)
            self.assertLessEqual(sum(got.values()), self.own_ns(self.of(p, server)))

    def test_short_processes_are_all_there_and_labelled(self):
        group = self.cgroup()
        if not group:
            self.skipTest("no cgroup2 to make a group in")

        def load():
            forks = self.start(None, "forks", profile.BURN_CPU, f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n" + FORKS, 1000)
            return forks.p.pid, self.text_of(forks, "did")

        (pid, did), p = self.profile("forks", load)
        path = "/" + str(group.relative_to(self.cgroups()))
        mine = [x for x in p["processes"] if x["cgroup"] == path and x["pid"] != pid]
        print(f"accounts: {len(mine)} processes in the group, {did[0]} were forked", file=sys.stderr, flush=True)
        self.assertLessEqual(len(mine), did[0])
        self.assertGreaterEqual(len(mine), 0.98 * did[0], "upon some tasks no program runs: a process between two of these may be missing")
        self.assertTrue(all(x["uid"] == 0 for x in mine))
        self.assertTrue(all(x["name"] for x in p["processes"]), "processes without a name")

    def test_who_is_not_chosen_is_other_and_charges_between_both_stay(self):
        """Of two clients, their server and a burner one client is chosen while it is recorded: nobody else is in the log by name, the sums add up, and
        what the server, which is not chosen, did for that client is known."""
        at = self.dir / "chosen"

        def chosen(name: str, load):
            ready, kbl, out = self.dir / f"{name}.ready", self.dir / f"{name}.kbl", self.dir / f"{name}.kpat"
            argv = [play.kpat_path(), "record", "-p", "profile", "--rate", "499", "--no-cost", "--only", "comm=nobody-has-it", "-o", str(kbl), "--ready-file", str(ready)]
            record = play.Process(f"record-{name}", argv, self.dir)
            self.stack.callback(record.stop)
            record.wait_ready(ready.exists, cache.patience())
            ctl = lambda *words: sh(play.kpat_path(), "ctl", "--pid", record.p.pid, "only", *words)
            found = load(ctl)
            self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
            look.integrate(kbl, [], out)
            return found, look.kpat_json("profile", str(out), "--limit", "0"), out

        def by_number(ctl):
            server = self.start(None, "serve", profile.BURN_CPU, SERVE, at)
            server_pid, = self.text_of(server, "ready")
            gate = self.dir / "gate"
            client = self.start(None, "ask", profile.SEND_CPU, f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + ASK, at, self.dir / "e", 4000, 300)
            ctl("add", f"pid={client.p.pid}")
            gate.touch()
            other = self.start(None, "ask2", profile.SEND_CPU, ASK, at, self.dir / "f", 2000, 100)
            burner, ran = self.burn()
            ctl("add", f"pid={burner}")
            ctl("remove", f"pid={burner}")
            did = self.text_of(server, "did")
            return server_pid, client.p.pid, other.p.pid, burner, did, self.text_of(client, "did")

        (server, client, other, burner, did, asked), p, out = chosen("number", by_number)
        self.assertTrue(p["chosen_when_recorded"])
        self.assertEqual(p["difference_ns"], 0)
        pids = {x["pid"] for x in p["processes"]}
        self.assertLessEqual(pids, {client, burner}, "processes that were not chosen are in the log")
        self.assertLess(sum(x["user_ns"] for x in p["processes"] if x["pid"] == burner), 0.05e9, "the burner slept while it was chosen")
        self.assertGreater(p["buckets_ns"]["other"], self.of(p, client)["charged_ns"])
        got = sum(c["ns"] for c in p["clients"] if c["client"] == client)
        self.close("a server that is not chosen for its chosen client, by the server's clock", got, did[1], 0.05)
        self.assertEqual({c["server"] for c in p["clients"] if c["client"] == client}, {-1})
        self.assertTrue(p["sampled"] is None or p["sampled"]["samples"] < 0.9 * p["sampled"]["expected"])
        logged = {int(line) for line in sh(play.kpat_path(), "sql", out, "--tsv", "select distinct tgid from process").stdout.splitlines()[1:]}
        self.assertLessEqual(logged, {client, burner}, "rows of processes that were not chosen")

    def test_a_chosen_command_has_its_children_and_costs_less_in_the_log(self):
        sizes = {}
        for name, only in (("all", []), ("command", ["--only", "command"])):
            kbl, out = self.dir / f"{name}.kbl", self.dir / f"{name}.kpat"
            code = profile.BURN.replace("signal.pause()", 'import os; print("pid", os.getpid(), flush=True); os._exit(0)')
            burn = f"taskset -c {profile.BURN_CPU} {sys.executable} -c '{code}' {profile.LOOPS // 4}"
            begun, ended = self.dir / f"{name}.begun", self.dir / f"{name}.ended"
            # Others are as many on a busy machine as on a quiet one, and all of them work while it is recorded.
            forks = f"touch {begun}; for i in $(seq 300); do /bin/true; done; until [ -e {ended} ]; do sleep 0.05; done"
            others = self.start(None, f"others-{name}", profile.SEND_CPU, f"""import os, pathlib, time
while not os.path.exists({str(begun)!r}): time.sleep(0.01)
for _ in range(1000):
    if not os.fork(): os._exit(0)
    os.wait()
pathlib.Path({str(ended)!r}).touch()
""")
            r = sh(play.kpat_path(), "record", "-p", "profile", *only, "--rate", "499", "--no-cost", "-o", kbl, "--", "sh", "-c", f"{burn}; {forks}")
            others.stop()
            look.integrate(kbl, [], out)
            p = look.kpat_json("profile", str(out), "--limit", "0")
            ran, pid = (int(next(line.split()[1] for line in r.stdout.splitlines() if line.startswith(word))) for word in ("ran ", "pid "))
            mine = [x for x in p["processes"] if x["pid"] == pid and "python" in (x["name"] or "")]
            children = [x for x in p["processes"] if x["name"] == "true"]
            sizes[name] = kbl.stat().st_size, len(p["processes"]), len(children)
            self.assertEqual(p["difference_ns"], 0)
            self.close(f"{name}: the command's child, ran by schedstat", mine[0]["ran_ns"], ran, 0.02)
            self.assertGreater(len(children), 290)
            if only:
                self.assertFalse([x for x in p["processes"] if x["name"] == "kpat" or x["pid"] == others.p.pid])
        print(f"accounts: bytes, processes and children in the log: {sizes}", file=sys.stderr, flush=True)
        self.assertLess(sizes["command"][0], 0.8 * sizes["all"][0])

    def test_what_is_not_accounted_costs_nothing_and_is_the_kernels(self):
        kbl, out = self.dir / "cpu.kbl", self.dir / "cpu.kpat"
        sh(play.kpat_path(), "record", "-p", "profile", "--resource", "cpu", "--no-cost", "-o", kbl, "--", "sh", "-c", "ping -c 3 -i 0.2 127.0.0.1 || sleep 0.5")
        look.integrate(kbl, [], out)
        p = look.kpat_json("profile", str(out), "--limit", "0")
        self.assertEqual(p["difference_ns"], 0)
        self.assertIsNone(p["packets"])
        self.assertIsNone(p["block_requests"])
        self.assertEqual([x["pid"] for x in p["processes"] if x["served_ns"]], [])

    def test_one_log_of_packets_and_a_profile(self):
        kbl, out = self.dir / "both.kbl", self.dir / "both.kpat"
        sh(play.kpat_path(), "record", "-p", "path,profile", "--no-cost", "-f", "icmp", "-o", kbl, "--", "sleep", "1")
        look.integrate(kbl, [], out)
        p = look.kpat_json("profile", str(out), "--limit", "0")
        self.assertGreater(p["passed_ns"], 0.9e9 * os.cpu_count())
        self.assertEqual(p["difference_ns"], 0)
        text = sh(play.kpat_path(), "profile", out, "--by", "comm").stdout
        self.assertIn("sleep", text)

    def test_from_a_function_to_the_packets_that_it_worked_on(self):
        kbl, out = self.dir / "worked.kbl", self.dir / "worked.kpat"
        # Which ports the datagrams have says for which of two functions they were: one port is nobody's.
        load = "import socket\nr, s = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in 'rs')\nr.bind(('127.0.0.1', 9301))\nfor i in range(30000):\n" \
               "    s.sendto(b'x', ('127.0.0.1', 9301)); r.recv(1)\n    s.sendto(b'x', ('127.0.0.1', 9302))\n"
        sh(play.kpat_path(), "record", "-p", "path,profile", "--rate", "2999", "--no-cost", "-f", "udp or icmp", "-o", kbl, "--", sys.executable, "-c", load)
        look.integrate(kbl, [], out)
        for function, fits in (("udp_unicast_rcv_skb", lambda p: p["dst_port"] == 9301), ("__icmp_send", lambda p: p["dst_port"] in (9302, None))):
            found = look.kpat_json("profile", str(out), "--function", function, "--limit", "0")
            right = sum(x["samples"] for x in found["packets"] if fits(x["packet"]))
            print(f"accounts: {function}: {found['samples']} samples, {found['without_packet']['samples']} with no packet; of the others {right} at a packet that it can have worked on", file=sys.stderr, flush=True)
            self.assertGreater(found["samples"], 10, function)
            self.assertGreaterEqual(right, 0.95 * (found["samples"] - found["without_packet"]["samples"]) - 1, function)
            self.assertGreater(right, 0.5 * found["samples"], function)

    def test_each_file_adds_up_and_memory_stays(self):
        """Files of a second, of which three stay, and processes that come and go: what 8 hours of files of ten minutes do to it, more quickly."""
        ready, kbl = self.dir / "rotated.ready", self.dir / "rotated.kbl"
        argv = [play.kpat_path(), "record", "-p", "profile", "--no-cost", "--rotate-time", "1s", "--rotate-keep", "3", "-o", str(kbl), "--ready-file", str(ready)]
        record = play.Process("rotated", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        memory = lambda: next(int(line.split()[1]) for line in Path(f"/proc/{record.p.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        used = []
        for n in range(5):
            forks = self.start(None, f"forks{n}", profile.BURN_CPU, FORKS, 1000)
            self.text_of(forks, "did")
            used.append(memory())
        self.assertEqual(record.stop(), 0)
        logs = sorted(self.dir.glob("rotated-*.kbl"))
        print(f"accounts: 5,000 processes, {logs[-1].stem.rsplit('-', 1)[1]} files, of which {len(logs)} are left; memory in kB after each 1,000: {used}", file=sys.stderr, flush=True)
        self.assertLess(max(used), 128 << 10)
        self.assertLess(used[-1], 1.5 * max(used[:3]))
        for log in logs:
            out = log.with_suffix(".kpat")
            look.integrate(log, [], out)
            p = look.kpat_json("profile", str(out), "--limit", "0")
            if log != logs[-1]:  # the recording may end just as that one begins
                self.assertGreater(p["passed_ns"], 0)
            self.assertLess(abs(p["difference_ns"]), 0.001 * p["passed_ns"] + 100_000, log)
            # A process whose pages are written back after its end has its name in the file of its time.
            unnamed = [x for x in p["processes"] if not x["name"] and x["charged_ns"] > x["served_ns"]]
            print(f"accounts: {log.stem}: {len(p['processes'])} processes, without a name {[(x['pid'], x['charged_ns']) for x in unnamed]}", file=sys.stderr, flush=True)
            self.assertLessEqual(len(unnamed), 0.01 * len(p["processes"]) + 1, "more than what ended just as the file began")

    def test_pauses_are_no_ones_time(self):
        ready, kbl, out = (self.dir / f"paused.{end}" for end in ("ready", "kbl", "kpat"))
        argv = [play.kpat_path(), "record", "-p", "profile", "--no-cost", "-o", str(kbl), "--ready-file", str(ready)]
        record = play.Process("paused", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        pid = str(record.p.pid)
        sh(play.kpat_path(), "ctl", "--pid", pid, "pause")
        burner, ran = self.burn()
        sh(play.kpat_path(), "ctl", "--pid", pid, "resume")
        other, ran = self.burn()
        self.assertEqual(record.stop(), 0)
        look.integrate(kbl, [], out)
        p = look.kpat_json("profile", str(out), "--limit", "0")
        self.assertLess(abs(p["difference_ns"]), 0.001 * p["passed_ns"])
        self.assertFalse([x for x in p["processes"] if x["pid"] == burner and x["user_ns"] > 0.1 * ran], "charged while it was paused")
        self.close("burner after the pause, ran by schedstat", self.of(p, other)["ran_ns"], ran, 0.02)

    def test_a_reset_forgets_what_was_before_and_nothing_after(self):
        ready, kbl, out = (self.dir / f"reset.{end}" for end in ("ready", "kbl", "kpat"))
        argv = [play.kpat_path(), "record", "-p", "profile", "--no-cost", "-o", str(kbl), "--ready-file", str(ready)]
        record = play.Process("reset", argv, self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        before, ran_before = self.burn()
        sh(play.kpat_path(), "ctl", "--pid", record.p.pid, "reset")
        began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after, ran = self.burn()
        passed = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began) * os.cpu_count()
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        self.assertEqual([f.name for f in self.dir.glob("reset.kbl*")], ["reset.kbl"])
        look.integrate(kbl, [], out)
        p = look.kpat_json("profile", str(out), "--limit", "0")
        self.assertLess(abs(p["difference_ns"]), 0.001 * p["passed_ns"])
        print(f"accounts: after the reset {passed / 1e9:.3f} s passed, in the file {p['passed_ns'] / 1e9:.3f} s", file=sys.stderr, flush=True)
        self.assertGreater(p["passed_ns"], passed)
        self.assertLess(p["passed_ns"], passed + 0.5 * ran_before * os.cpu_count() + 2e9)
        self.assertFalse([x for x in p["processes"] if x["pid"] == before and x["user_ns"] > 0.01 * ran_before], "what was before is gone")
        self.close("burner after the reset, ran by schedstat", self.of(p, after)["ran_ns"], ran, 0.02, self.switches)
        flat = sh(play.kpat_path(), "profile", out, "--pid", after, "--flat", "-n", "3").stdout
        self.assertIn(f"{after}u:_PyEval", flat, "stacks and what is mapped are in the file, also of what ran before")

    def here(self) -> str:
        folder = os.environ.get("KPAT_DISK", str(Path(__file__).resolve().parents[2] / "target"))
        os.makedirs(folder, exist_ok=True)
        return folder

    def cgroups(self) -> Path | None:
        return next((p for p in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if (p / "cgroup.controllers").exists()), None)

    def cgroup(self) -> Path | None:
        if not self.cgroups():
            return None
        group = self.cgroups() / f"kpat-accounts-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            return None
        self.stack.callback(sh, "rmdir", group, ok=False)
        return group
