"""Guests of two processors with a queue for each, recorded from outside while both work: every call is of the processor, the task and the context that it had.

Truth is the guest's own tracer, which runs beside the probes: its function tracer counts calls by processor and task, its tracepoints say which datagram (each has a
length of its own) was handled where, and those of the scheduler on which processor a task was at which time.
"""
import bisect
import json
import signal
import statistics
import subprocess
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from .guest_host import A, FIRST, HOST, PERFECT, Case, World, judge, say
from .place import kpat_for_guests

TRACING = "/sys/kernel/tracing"
# Of the packets of this test alone: in the guest nothing else sends or receives by IPv4.
COUNTED = ("udp_send_skb", "ip_send_skb", "ip_output", "ip_finish_output2", "ip_rcv_core", "ip_local_deliver", "udp_queue_rcv_one_skb", "__udp_enqueue_schedule_skb", "skb_consume_udp")
# Behind Ethernet's header, IPv4's and UDP's; a received one has no Ethernet's any more.
OUT, IN = 42, 28
SIZE, MORE = 100, 700
# What may lie between the moment at which the scheduler is traced and that of the change, and between the two clocks.
NEAR_NS = 20_000


class Traced:
    """What the guest's tracer had."""

    def __init__(self, lines: list[str]):
        self.calls: Counter = Counter()
        self.events, self.ran, self.times = {}, {}, {}
        switches: dict[int, list] = {}
        for line in lines:
            words = line.split()
            if words[:1] == ["called"]:
                self.calls[words[1], int(words[2]), int(words[3])] += int(words[4])
            elif words[:1] == ["traced"]:
                name, cpu, flags, at, pid = words[1], int(words[2]), words[3], int(words[4].replace(".", "")) * 1000, int(words[5])
                value = dict(w.split("=") for w in words[6:])
                if name == "sched_switch":
                    switches.setdefault(int(value["prev_pid"]), []).append((at, None))
                    switches.setdefault(int(value["next_pid"]), []).append((at, cpu))
                else:
                    self.events[name, int(value["len"])] = (cpu, pid, "softirq" if flags[2] in "sSH" else "task", at)
        for pid, of in switches.items():
            of.sort(key=lambda x: x[0])
            self.ran[pid], self.times[pid] = of, [t for t, _ in of]

    def where(self, pid: int, at: int) -> set[int]:
        """The processors that the task was on about that time."""
        of = self.ran.get(pid, [])
        begin, end = (bisect.bisect(self.times[pid], t) if of else 0 for t in (at - NEAR_NS, at + NEAR_NS))
        return {cpu for _, cpu in of[max(begin - 1, 0):end]} - {None}


class Log:
    """A guest's own log."""

    def __init__(self, case: Case, device: str):
        self.sql = lambda query: case.kpat("sql", case.folders[device], query)
        self.packets = case.packets(device)
        self.calls = self.sql("select c.packet_id, f.name, c.cpu, c.ctx, c.pid, c.entry_ns, c.dur_ns from call c join function f using (func_id) order by c.entry_ns")
        self.facts = {r["key"]: r["value"] for r in self.sql("select key, value from provenance")}


def nested_wrong(calls: list[dict]) -> tuple[int, int]:
    """Of calls of one processor: how many interrupts' lie within a task's, and how many overlap another without being in it, as only those of two tasks may that
    preempt each other."""
    within, wrong, stack = 0, 0, []
    for c in sorted((c for c in calls if c["dur_ns"] is not None), key=lambda c: (c["entry_ns"], -c["dur_ns"])):
        end = c["entry_ns"] + c["dur_ns"]
        while stack and stack[-1][0] <= c["entry_ns"]:
            stack.pop()
        over = bool(stack) and end > stack[-1][0]
        wrong += over and not (c["ctx"] == stack[-1][1] == 0 and c["pid"] != stack[-1][2])
        within += bool(stack) and (c["ctx"], stack[-1][1]) == (1, 0)
        stack.append((end, c["ctx"], c["pid"]))
    return within, wrong


class GuestProcessors(unittest.TestCase):
    SERIES = "7.2"

    @classmethod
    def setUpClass(cls):
        # Preempted wherever that is possible at all.
        cls.world = World(cls.SERIES, kpat_for_guests(cls.SERIES, tap=True), 2, "preempt=full")

    @classmethod
    def tearDownClass(cls):
        cls.world.close()

    def start_tracer(self, functions: bool) -> None:
        ask = self.world.a.ask
        ask(f"cd {TRACING}; echo 0 > tracing_on; echo boot > trace_clock; echo 8192 > buffer_size_kb; echo > trace")
        known = set(ask(f"grep -xE '{'|'.join(COUNTED)}' available_filter_functions"))
        self.counted = sorted(known)
        if functions:
            ask(f"echo '{' '.join(self.counted)}' > set_ftrace_filter; echo function > current_tracer")
        else:
            ask("""echo 'prev_comm == "numbers" || next_comm == "numbers"' > events/sched/sched_switch/filter; echo 1 > events/sched/sched_switch/enable""")
        ask("echo 'len > 90' > events/net/net_dev_queue/filter; echo 'len > 90' > events/net/netif_receive_skb/filter; echo 1 > events/net/net_dev_queue/enable; echo 1 > events/net/netif_receive_skb/enable; cd /")
        self.addCleanup(ask, f"cd {TRACING}; echo 0 > tracing_on; echo 0 > events/enable; echo nop > current_tracer; echo > set_ftrace_filter; cd /")

    def traced(self) -> Traced:
        ask = self.world.a.ask
        return Traced(ask(f"cd {TRACING}; echo 0 > tracing_on; awk -f /traced.awk trace; cd /", 180))

    def both(self, name: str, count: int, out: str, functions: bool) -> tuple[Case, Traced]:
        """Two flows out of guest A, and two into it, at the same time; each of the flows has a processor, unless `out` says otherwise."""
        w = self.world
        self.start_tracer(functions)
        w.a.ask("for n in 0 1; do taskset $((n + 1)) numbers - 900$n 5 > /tmp/got900$n & done")
        for port in (9000, 9001):
            w.a.ask(f"while ! grep -q listening /tmp/got{port}; do sleep 0.1; done")
        with w.recorded(name, "udp portrange 9000-9001", host=("h",), options=("--detail", "full")) as case:
            here = [w.listen(w.host, port, 5) for port in (9000, 9001)]
            w.a.ask(f"echo 1 > {TRACING}/tracing_on")
            with ThreadPoolExecutor() as pool:
                into = [pool.submit(w.numbers, w.host, A, 5000 + n * count, count, SIZE + n * MORE, 1000, port=9000 + n, sized=True) for n in (0, 1)]
                lines = w.a.ask(" ".join(f"{out.format(n + 1)} numbers {HOST} 900{n} {n * count} {count} {SIZE + n * MORE} 1000 sized {'moved' if not functions else ''} > /tmp/out{n} &" for n in (0, 1))
                                + " while [ $(cat /tmp/out0 /tmp/out1 | grep -c sent) -lt 2 ]; do sleep 0.2; done; cat /tmp/out0 /tmp/out1; rm /tmp/out0 /tmp/out1", 180)
                self.assertEqual([count, count], [i.result() for i in into])
            traced = self.traced()
            self.assertEqual([f"sent {count}"] * 2, [line for line in lines if line.startswith("sent")])
            came = [w.got(p) for p in here]
            inside = [w.a.got(port) for port in (9000, 9001)]
        self.assertEqual([list(range(n * count, (n + 1) * count)) for n in (0, 1)], [sorted(c) for c in came])
        self.assertEqual([list(range(5000 + n * count, 5000 + (n + 1) * count)) for n in (0, 1)], [sorted(c) for c in inside])
        self.assertEqual(([], []), (case.done["a"]["losses"], case.done["b"]["losses"]))
        self.assertEqual(PERFECT, judge(case, name, [("a", "host", n) for n in range(2 * count)] + [("host", "a", n) for n in range(5000, 5000 + 2 * count)]))
        return case, traced

    def number(self, p: dict, count: int) -> tuple[str, int]:
        """The event of the tracer that a packet of the log has to have, by its length."""
        n = p["src_port"] - FIRST
        out = n < 5000
        flow, of = divmod(n if out else n - 5000, count)
        return ("net_dev_queue", OUT + SIZE + flow * MORE + of) if out else ("netif_receive_skb", IN + SIZE + flow * MORE + of)

    def test_each_call_is_of_its_processor_task_and_context(self):
        count = 500
        case, traced = self.both("processors", count, "taskset {}", functions=True)
        log = Log(case, "a")
        # By function, processor and task.
        ours = Counter((c["name"], c["cpu"], c["pid"]) for c in log.calls if c["name"] in self.counted)
        logged = {name for name, _, _ in ours}
        theirs = Counter({k: n for k, n in traced.calls.items() if k[0] in logged})
        say(f"{self.SERIES}: {len(logged)} functions counted by both, {sum(theirs.values())} calls; different: {(ours - theirs).total()} more, {(theirs - ours).total()} fewer")
        self.assertGreater(len(logged), 4)
        # Each datagram where the tracer had it.
        by_packet: dict[int, list] = {}
        for c in log.calls:
            by_packet.setdefault(c["packet_id"], []).append(c)
        wrong, judged, ahead = [], Counter(), {0: [], 1: []}
        for number, p in log.packets.items():
            event = self.number(p, count)
            cpu, pid, context, at = traced.events[event]
            where = "__dev_queue_xmit" if event[0] == "net_dev_queue" else "ip_rcv_core"
            for c in (c for c in by_packet[number] if c["name"] == where):
                judged[event[0]] += 1
                if (c["cpu"], c["pid"], ("task", "softirq")[c["ctx"]]) != (cpu, pid, context):
                    wrong.append((event, (cpu, pid, context), c))
                if event[0] == "net_dev_queue":
                    ahead[cpu].append(at - c["entry_ns"])
        cut = Counter()
        for cpu in (0, 1):
            within, bad = nested_wrong([c for c in log.calls if c["cpu"] == cpu])
            cut.update(within=within, bad=bad)
        medians = {cpu: statistics.median(of) for cpu, of in ahead.items() if of}
        apart = abs(medians[0] - medians[1]) if len(medians) == 2 else None
        say(f"{self.SERIES}: {dict(judged)} with the tracer's processor, task and context, wrong {len(wrong)}; {sum(c['ctx'] == 1 for c in log.calls)} of {len(log.calls)} calls in softirq, "
            f"{cut['within']} of them within a task's; not nested {cut['bad']}, crossing {log.facts['calls.crossing']}, clamped {log.facts['calls.self_clamped']}; "
            f"both processors' clocks differ by {apart} ns from the tracer's; the log is within {case.done['a']['clock']['host_bound_ns']} ns")
        if wrong:
            say(" ", wrong[:4])
        self.assertEqual((theirs, []), (ours, wrong))
        self.assertEqual(({"net_dev_queue": 2 * count, "netif_receive_skb": 2 * count}, 0), (dict(judged), cut["bad"]))
        self.assertEqual(("0", "0"), (log.facts["calls.crossing"], log.facts["calls.self_clamped"]))
        self.assertGreater(cut["within"], 0, "no interrupt came into a call")
        # The pinned sender's datagrams were on its processor, both had some, and their times are of one clock.
        self.assertLess(apart, 20_000)

    def test_senders_that_are_moved_from_processor_to_processor(self):
        count = 500
        case, traced = self.both("moved", count, "", functions=False)
        log = Log(case, "a")
        senders = {pid for (name, _), (_, pid, _, _) in traced.events.items() if name == "net_dev_queue"}
        by_packet: dict[int, list] = {}
        for c in log.calls:
            by_packet.setdefault(c["packet_id"], []).append(c)
        # The two clocks beside each other, by each datagram's event within its call.
        pairs = sorted((c["entry_ns"], traced.events[self.number(p, count)][3] - c["entry_ns"]) for number, p in log.packets.items() if self.number(p, count)[0] == "net_dev_queue"
                       for c in by_packet[number] if c["name"] == "__dev_queue_xmit")
        times = [t for t, _ in pairs]

        def to_guest(at: int) -> int:
            i = bisect.bisect(times, at)
            return at + int(statistics.median(d for _, d in pairs[max(i - 20, 0):i + 20]))
        judged = moved = near = 0
        wrong = []
        for c in log.calls:
            if c["ctx"] != 0 or c["pid"] not in senders or c["dur_ns"] is None:
                continue
            began, ended = (traced.where(c["pid"], to_guest(t)) for t in (c["entry_ns"], c["entry_ns"] + c["dur_ns"]))
            judged += 1
            near += len(ended) > 1
            moved += not began & ended
            if c["cpu"] not in ended:
                wrong.append((began, ended, c))
        switches = sum(len(traced.ran.get(pid, ())) for pid in senders)
        say(f"{self.SERIES}: senders moved: {switches} switches of the scheduler, {judged} of their calls judged, {moved} of them began on another processor, {near} ended near a change; on a wrong one {len(wrong)}; "
            f"crossing {log.facts['calls.crossing']}, clamped {log.facts['calls.self_clamped']}; the log is within {case.done['a']['clock']['host_bound_ns']} ns")
        if wrong:
            say(" ", wrong[:4])
        self.assertEqual([], wrong)
        self.assertGreater(judged, 5000)
        self.assertGreater(moved, 50, "no sender was moved within a call")
        self.assertEqual("0", log.facts["calls.crossing"])
        # When a task was off its processor is not in the log: interrupts there may count as in its call.
        self.assertLess(int(log.facts["calls.self_clamped"]), judged // 100)

    def test_an_entry_is_of_the_processor_that_it_was_written_on(self):
        """A process that is moved does nothing for a while. So between its last call on one processor and the first on the other there is a gap, not one call later."""
        w = self.world
        p = subprocess.Popen([w.kpat, "--json", "guest", "probe", w.a.qmp, "__x64_sys_getppid pid"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("the probes are in", p.stderr.readline())
        with ThreadPoolExecutor() as pool:
            read = pool.submit(p.stdout.readlines)
            # So many have room in the ring.
            w.a.ask("for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do numbers getppid 20000; sleep 0.5; done", 120)
            p.send_signal(signal.SIGINT)
            entries = [json.loads(line) for line in read.result(60)]
        self.assertEqual(0, p.wait(60))
        p.stdout.close(), p.stderr.close()
        [counts] = entries.pop()["probes"]
        by_task: dict[int, list] = {}
        for e in entries:
            by_task.setdefault(e["pid"], []).append((e["ts_wall_ns"], e["vcpu"]))
        changes, late = 0, []
        for pid, of in by_task.items():
            for (a, on), (b, to), (c, _) in zip(of, of[1:], of[2:]):
                if on != to:
                    changes += 1
                    late += [(pid, b - a, c - b)] if b - a < 10_000 and c - b > 20_000 else []
        say(f"{self.SERIES}: {counts['hits']} calls, {counts['lost']} lost, {changes} changes of the processor, on the other one before the task came to it {len(late)} {late[:3]}")
        self.assertGreater(changes, 20)
        self.assertEqual([], late)


class GuestProcessors612(GuestProcessors):
    SERIES = "6.12"


class GuestProcessors61(GuestProcessors):
    SERIES = "6.1"
