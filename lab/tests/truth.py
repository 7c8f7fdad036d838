"""Is what kpat says true? Judged against numbers in payloads, the kernel's own function tracer, tshark and a clock that was set.

One class per place: this machine (tracepoints), and a guest per kernel. Each place records once (`acts`), then every
test judges the files. Numbers that were measured are printed: `truth 7.2: ...`.
"""
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from kpatlab import cache, guest, kernel, look, peers, play
from kpatlab.cache import LAB, Refusal

ACTS = ["udp", "counts", "killed", "losses", "full", "control", "flight", "words", "rotated"]
QUICK = ["udp", "counts", "control", "flight", "rotated"]
GUEST_SECONDS = 540
# Called by no traced function but where a softirq interrupts it.
OF_SOFTIRQS = ["__netif_receive_skb"]
# Below these a packet has other headers or another device than before (TTL, link header, the other end of a link, a header taken off),
# or is new.
CHANGES = ["ip_forward", "__dev_queue_xmit", "veth_xmit", "ip_output", "icmp_reply", "ip_protocol_deliver_rcu", "icmp_rcv", "ping_rcv"]


def tshark(capture: Path, display_filter: str, *fields: str) -> list[list[str]]:
    argv = [cache.tool("tshark", "tshark"), "-n", "-r", str(capture), "-Y", display_filter, "-T", "fields", *[x for f in fields for x in ("-e", f)]]
    return [line.split("\t") for line in cache.run(argv, f"tshark on {capture.name}", timeout=120).stdout.decode().splitlines()]


class Place:
    """What every place has to pass. `series` is a kernel, or `host`."""

    series = "host"
    acts = ACTS
    det = False
    boot = "elf"
    whole_path = 30  # functions that every forwarded datagram meets, at least

    @classmethod
    def setUpClass(cls):
        play.kpat_path()
        cls.keep = os.environ.get("KPAT_TRUTH_KEEP")
        cls.out = Path(cls.keep or tempfile.mkdtemp(prefix="kpat-truth-")) / cls.series
        cls.logs = {}
        if os.environ.get("KPAT_TRUTH_REUSE"):  # judge once more what KPAT_TRUTH_KEEP holds
            return
        shutil.rmtree(cls.out, ignore_errors=True)
        cls.out.mkdir(parents=True)
        argv = [os.path.realpath(sys.executable), "-m", "tests.acts"]
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": os.path.abspath(play.kpat_path())}
        if cls.series == "host":
            if os.geteuid() != 0:
                raise unittest.SkipTest("needs root")
            r = subprocess.run([*argv, str(cls.out), f"kt{os.getpid()}-", *cls.acts], env={**os.environ, **env}, stdin=subprocess.DEVNULL, timeout=400)
            rc = r.returncode
        else:
            env["KPAT_LAB_PWRU"] = str(peers.program("pwru"))
            k = kernel.open_kernel(cls.series, cls.boot)
            answer = cls.out / "acts.err"
            rc = guest.run(k, [*argv, "/lab", "-", *cls.acts], cls.out, det=cls.det, timeout=GUEST_SECONDS, mem=1536, cwd="/", env=env, sinks=(cls.out / "acts.out", answer)).rc
            print(answer.read_text(errors="replace"), end="", file=sys.stderr, flush=True)
        if rc:
            raise AssertionError(f"the acts ended with {rc}; their words are above")

    @classmethod
    def tearDownClass(cls):
        if not cls.keep:
            shutil.rmtree(cls.out.parent, ignore_errors=True)

    def say(self, text: str) -> None:
        print(f"truth {self.series}: {text}", file=sys.stderr, flush=True)

    def facts(self, act: str) -> dict:
        if act not in self.acts:
            self.skipTest(f"the act {act} is played elsewhere")
        f = json.loads((self.out / act / "facts.json").read_text())
        self.assertNotIn("refused", f)
        return f

    def log(self, act: str, name: str, *captures: str) -> look.Log:
        key = (act, name, captures)
        if key not in self.logs:
            d = self.out / act
            to = d / f"{name}{'-'.join(captures)}.kpat"
            look.integrate(d / f"{name}.kbl", [next(d.glob(f"{c}.pcap*")) for c in captures], to)
            self.logs[key] = look.Log(to)
        return self.logs[key]

    def info(self, act: str, name: str) -> dict:
        return look.kpat_json("info", str(self.out / act / f"{name}.kbl"))

    def words(self, act: str, name: str) -> str:
        return (self.out / act / f"{name}.err").read_text(errors="replace")

    def tracepoints(self) -> bool:
        return self.info("udp", "udp")["recording"]["mechanism"] == "tracepoint"

    def one_sentence(self, answers: dict, rc: int, pattern: str) -> None:
        self.assertEqual(answers["rc"], rc, answers["err"])
        last = [x for x in answers["err"].splitlines() if x.startswith("kpat: ")][-1]
        self.assertRegex(last, pattern)
        self.assertNotRegex(answers["err"], "panicked|RUST_BACKTRACE")

    # a: numbered packets

    def test_a_every_number_has_one_packet(self):
        facts = self.facts("udp")
        sent = facts["send"]["sent"]
        self.assertEqual(facts["recv"]["unique"], sent)
        log = self.log("udp", "udp", "r0", "r1")
        details = log.details(log.packets("udp port 9000"))
        by_ip_id: dict[int, list[int]] = {}
        frame_packets: dict[tuple[str, int], list[int]] = {}
        for d in details:
            ids = {f["fields"]["ip_id"] for f in d["footprints"]}
            self.assertEqual(len(ids), 1, f"packet {d['packet']['packet_id']} has the identifications of several packets")
            by_ip_id.setdefault(ids.pop(), []).append(d["packet"]["packet_id"])
            for f in d["frames"]:
                frame_packets.setdefault((f["capture"], f["number"]), []).append(d["packet"]["packet_id"])
        right = made = frames = 0
        number_of = {}
        for capture in ("r0.pcap", "r1.pcapng"):
            rows = tshark(self.out / "udp" / capture, "udp.dstport == 9000", "frame.number", "ip.id", "udp.payload")
            self.assertEqual(len(rows), sent, f"{capture} has not every datagram")
            for frame, ip_id, payload in rows:
                n, i = int(payload.replace(":", "")[:16], 16), int(ip_id, 16)
                self.assertEqual(number_of.setdefault(i, n), n, "the generator used one identification twice")
                frames += 1
                got = frame_packets.get((capture, int(frame)), [])
                made += len(got)
                right += got == by_ip_id.get(i, []) and len(got) == 1
        precision, recall = right / max(made, 1), right / frames
        self.say(f"associations of {frames} frames with {len(details)} packets: precision {precision:.4f}, recall {recall:.4f}")
        self.assertEqual(sorted(number_of.values()), list(range(sent)))
        self.assertEqual({i: len(p) for i, p in by_ip_id.items()}, {i: 1 for i in number_of}, "a number has no packet, or several")
        self.assertEqual((precision, recall), (1.0, 1.0))

    def test_a_every_packet_has_the_whole_path(self):
        self.facts("udp")
        log = self.log("udp", "udp", "r0", "r1")
        self.assertEqual([x for x in log.info()["losses"] if x["cause"] not in ("recursion", "no-return")], [])
        missed = sum(x["count"] for x in log.info()["losses"])
        details = log.details(log.packets("udp port 9000"))
        paths = {d["packet"]["packet_id"]: set(look.path(d)) for d in details}
        common = {f for f, n in Counter(f for p in paths.values() for f in p).items() if n > len(paths) / 2}
        # How a packet is freed, and whether its neighbour is still known, differ from one to the next.
        ends = {f for f in common if re.search(r"consume_skb|kfree_skb|skb_release|neigh_", f)}
        short = {i: sorted(common - ends - p) for i, p in paths.items() if common - ends - p}
        endless = [i for i, p in paths.items() if ends and not any(re.search("consume_skb|kfree_skb|skb_release|skb_free", f) for f in p)]
        self.say(f"{len(paths) - len(short)} of {len(paths)} packets have all {len(common)} functions of the common path, {len(endless)} without their end, {missed} calls counted as missed")
        self.assertGreaterEqual(len(common), 5 if self.tracepoints() else self.whole_path)
        self.assertLessEqual(len(short), missed, short)
        self.assertLessEqual(len(endless), max(missed, 2), endless)

    # b: counts

    def test_b_counts_equal_the_tracer(self):
        facts = self.facts("counts")
        if "lacks" in facts:
            self.skipTest(facts["lacks"])
        if self.tracepoints():
            self.skipTest("only tracepoints here: there are no functions to count")
        ours = self.log("counts", "counts").calls_between(*facts["stretch_ns"])
        self.assertEqual(facts["overrun"], 0, "the tracer lost some")
        missed = sum(x["count"] for x in self.info("counts", "counts")["losses"])
        both = {n: (facts["hits"][n], ours[n]) for n in facts["asked"] if n in facts["hits"] and n in ours}
        entries = set(self.info("counts", "counts")["recording"]["entry_only"])
        timed = {r["name"]: r["timed"] for r in look.kpat_json("sql", self.log("counts", "counts").path, "select f.name as name, count(c.dur_ns) as timed from call as c join function as f using (func_id) group by name")}
        self.assertEqual({n: n in entries for n in both}, {n: timed[n] == 0 for n in both}, "what has entries alone has no duration, and what has calls has one")
        self.assertGreaterEqual(len(entries & both.keys()), 5)
        wrong = {n: c for n, c in both.items() if c[0] != c[1]}
        self.say(f"calls by function, the kernel's function tracer and kpat ({missed} counted as missed, {len(entries & both.keys())} with entries alone): {', '.join(f'{n} {a}/{b}' for n, (a, b) in both.items())}")
        self.assertGreaterEqual(len(both), 10)
        self.assertGreaterEqual(both["ip_rcv"][0], 800)
        # Equal, or no more is lacking than kpat itself counted as missed.
        self.assertLessEqual(sum(abs(a - b) for a, b in wrong.values()), missed, f"function: (tracer, kpat) {wrong}")
        self.assertEqual({n: c for n, c in wrong.items() if c[1] > c[0]}, {}, "kpat has calls that there were not")

    def test_b_durations_equal_the_graph_tracer(self):
        """Mean self time of each function, by the kernel's graph tracer and by kpat, over equal pings one after the other.

        Either tracer costs something within the time that it measures: a little in every call, and more in a caller for each call
        below it that is traced, too. That is the same for all functions, so two numbers (fitted: per call, per call below) must
        explain the differences of all of them: to 100 instructions (guest time counts instructions). Where headers or the device
        change, kpat also writes the new ones at the next call below, and asks the filter about a packet that is new there: up to
        3000 in the caller's time.
        """
        if not self.det:
            self.skipTest("times can be compared only where guest time counts instructions")
        facts = self.facts("graph")
        if "lacks" in facts:
            self.skipTest(facts["lacks"])
        self.assertEqual(facts["overrun"], 0, "the tracer lost some")
        theirs = graph_of((self.out / "graph/graph.txt").read_text())
        log = self.log("graph", "graph")
        ours = {f["function"]: f for g in look.kpat_json("time", log.path)["groups"] for f in g["functions"]}
        rows = {}
        for name in facts["asked"]:
            if name in theirs and name in ours:
                own, below = (statistics.fmean(x[i] for x in theirs[name]) for i in (0, 1))
                rows[name] = own, below, ours[name]["self"]["mean_ns"]
        self.assertEqual({n for n in set(theirs) ^ set(ours) if len(theirs.get(n, "")) > 20}, set(), "only one of the two has them")
        self.assertEqual({n: (len(theirs[n]), ours[n]["calls"]) for n in rows if abs(len(theirs[n]) - ours[n]["calls"]) > 20}, {}, "calls")
        even = [n for n in rows if n not in CHANGES]
        self.assertGreaterEqual(len(even), 14)
        per_call, per_below = line_through([(rows[n][1], rows[n][2] - rows[n][0]) for n in even])
        left = {n: mine - own - per_call - per_below * below for n, (own, below, mine) in rows.items()}
        self.say(f"mean self time of {len(rows)} functions, graph tracer and kpat, in instructions: kpat {per_call:+.0f} per call, {per_below:+.0f} per call below; "
                 + ", ".join(f"{n} {own:.0f}/{mine:.0f} ({left[n]:+.0f})" for n, (own, _, mine) in rows.items()))
        self.assertEqual({n: d for n, d in left.items() if not -100 <= d <= (3000 if n in CHANGES else 100)}, {}, "differs by more than the tracers cost")

    def test_b_nesting_equals_the_graph_tracer(self):
        """Which function called which, and how often, by the kernel's graph tracer and by kpat, over equal pings. Where kpat takes two mechanisms, calls of
        either lie within those of the other. A softirq that runs where a task lets it in is a context of its own for kpat, and within the task's calls for the tracer."""
        facts = self.facts("graph")
        if "lacks" in facts:
            self.skipTest(facts["lacks"])
        self.assertEqual(facts["overrun"], 0, "the tracer lost some")
        theirs = edges_of((self.out / "graph/graph.txt").read_text())
        log = self.log("graph", "graph")
        question = ("select p.name as caller, c.name as callee, count(*) as calls from call as b join call as a on b.parent_id = a.call_id "
                    "join function as c on c.func_id = b.func_id join function as p on p.func_id = a.func_id group by caller, callee")
        ours = {(r["caller"], r["callee"]): r["calls"] for r in look.kpat_json("sql", log.path, question)}
        missed = sum(x["count"] for x in self.info("graph", "graph")["losses"])
        often = {e for e, n in theirs.items() if n >= 100}
        self.assertGreaterEqual(len(often), 12)
        wrong = {e: (theirs.get(e, 0), ours.get(e, 0)) for e in theirs.keys() | ours.keys() if abs(theirs.get(e, 0) - ours.get(e, 0)) > 20 + missed}
        fentry = set(self.info("graph", "graph")["recording"]["by_fentry"])
        across = {(a in fentry, b in fentry) for a, b in often}
        self.say(f"{len(often)} pairs of caller and callee by the graph tracer and by kpat, {len(fentry)} of the functions by fentry: {sum(theirs.values())}/{sum(ours.values())} calls")
        self.assertEqual(wrong, {}, "(caller, callee): (tracer, kpat)")
        if self.series == "6.12":
            self.assertEqual(len(across), 4, "calls within calls of the same mechanism and of the other")

    # c: clocks

    def shifted(self, ns_of) -> dict:
        """The udp act once more, with other times in the sniffer's files; the clock that kpat then finds."""
        d = self.out / "udp"
        source, target = d / "r0.pcap", d / "moved.pcap"
        rewrite(source, target, ns_of)
        to = d / "moved.kpat"
        look.integrate(d / "udp.kbl", [target], to)
        clocks = look.Log(to).info()["clocks"]
        self.assertGreater(len(clocks), 0)
        return clocks[0]

    def clock_before(self) -> dict:
        return self.shifted(lambda t: t)

    def check_clock(self, moved: dict, base_offset: float, at_wall: float, add_ns: float, ppb: float) -> None:
        """Truth: boot = wall' - add - drift; `base_offset` is known from the recorder's own reading of both clocks."""
        off = moved["offset_ns"] + moved["drift_ppb"] * (at_wall - moved["from_wall_ns"]) / 1e9
        error = off - base_offset
        self.say(f"clock moved by {add_ns / 1e9:+.3f} s and {ppb / 1000:+.0f} ppm: error {error:.0f} ns, bound {moved['bound_ns']} ns, drift {moved['drift_ppb']} ± {moved['drift_bound_ppb']} ppb ({moved['method']})")
        self.assertLessEqual(abs(error), moved["bound_ns"] + 1000)  # what the recorder's two readings may be apart

    def test_c_offset_is_found(self):
        self.facts("udp")
        true = self.own_offset()
        for add in (0, -250_000, 3_600_000_000_000, 86_400_000_000_000 * 400):
            with self.subTest(add=add):
                c = self.shifted(lambda t: t + add)
                self.check_clock(c, true - add, c["from_wall_ns"], add, 0)

    def test_c_editcap_offset_is_found(self):
        self.facts("udp")
        d = self.out / "udp"
        cache.run([cache.tool("editcap", "wireshark-common"), "-t", "-7.25", str(d / "r1.pcapng"), str(d / "edited.pcapng")], "editcap")
        look.integrate(d / "udp.kbl", [d / "edited.pcapng"], d / "edited.kpat")
        c = look.Log(d / "edited.kpat").info()["clocks"][0]
        self.check_clock(c, self.own_offset() + 7_250_000_000, c["from_wall_ns"], -7_250_000_000, 0)

    def test_c_drift_is_found(self):
        self.facts("udp")
        true = self.own_offset()
        first = {}

        def drifting(t):
            first.setdefault("t", t)
            return t + 5_000_000_000 + (t - first["t"]) * 100 // 1_000_000

        c = self.shifted(drifting)
        # 100 ppm fast: of the sniffer's seconds only 1/(1+1e-4) are the device's.
        truth_ppb = -100_000 / 1.0001
        self.assertLessEqual(abs(c["drift_ppb"] - truth_ppb), c["drift_bound_ppb"], c)
        for part in (0, 0.5, 1):
            at = c["from_wall_ns"] + part * (c["to_wall_ns"] - c["from_wall_ns"])
            passed = at - (first["t"] + 5_000_000_000)
            self.check_clock(c, true - 5_000_000_000 + passed * truth_ppb / 1e9, at, 5e9, 100_000)

    def own_offset(self) -> int:
        """Boot less wall as the device's two clocks say it: both were read together when the recording began."""
        r = self.info("udp", "udp")["recording"]
        return r["started_boot_ns"] - r["started_wall_ns"]

    # e: fields

    def test_e_frames_and_fields_equal_tshark(self):
        self.facts("udp")
        log = self.log("udp", "udp", "r0", "r1")
        answers = {i["capture"]: i["frames"] for i in log.info()["interfaces"]}
        ours = {(f["capture"], f["number"]): f for d in log.details(log.packets("wire")) for f in d["frames"]}
        compared = 0
        for capture in ("r0.pcap", "r1.pcapng"):
            names = ("frame.number", "ip.id", "ip.src", "ip.dst", "ip.ttl", "ip.len", "udp.srcport", "udp.dstport", "eth.src", "eth.dst", "frame.len", "frame.time_epoch")
            total = len(tshark(self.out / "udp" / capture, "frame", "frame.number"))
            self.assertEqual(answers[capture], total)
            for row in tshark(self.out / "udp" / capture, "udp.dstport == 9000", *names):
                r = dict(zip(names, row))
                f = ours[capture, int(r["frame.number"])]
                x = f["fields"]
                seconds, _, fraction = r["frame.time_epoch"].partition(".")
                want = [int(r["ip.id"], 16), r["ip.src"], r["ip.dst"], int(r["ip.ttl"]), int(r["ip.len"]), int(r["udp.srcport"]), int(r["udp.dstport"]), r["eth.src"], r["eth.dst"],
                        int(r["frame.len"]), int(seconds) * 10**9 + int((fraction + "000000000")[:9])]
                got = [x["ip_id"], x["ip_src"], x["ip_dst"], x["ttl"], x["ip_len"], x["sport"], x["dport"], x["mac_src"], x["mac_dst"], f["len_bytes"], f["wall_ns"]]
                self.assertEqual(got, want, f"{capture} frame {r['frame.number']}")
                compared += 1
        self.say(f"{compared} frames have tshark's fields")
        self.assertGreaterEqual(compared, 2 * self.facts("udp")["send"]["sent"])

    # f: what may go wrong

    def test_f_files_of_a_recording_are_one_log(self):
        """Calls of every function and packets, equal to those of a recorder that wrote one file; and what the gathered files say of the clock."""
        f = self.facts("rotated")
        shelf = self.out / "rotated/shelf/dut"
        files = sorted(shelf.glob("rotated-*.kbl"))
        self.assertEqual([x.name for x in files], f["files"], f["list"]["err"])
        self.assertGreaterEqual(len(files), 3)
        one, several = self.out / "rotated/one.kpat", self.out / "rotated/several.kpat"
        self.assertEqual(look.kpat_json("integrate", str(shelf / "single.kbl"), "-o", str(one), "--force")["warnings"], [])
        answers = look.kpat_json("integrate", *map(str, files[::-1]), "-o", str(several), "--force")
        self.assertEqual(answers["warnings"], [])
        logs = look.Log(one), look.Log(several)
        if not self.tracepoints():
            calls = [{x["function"]: x["calls"] for x in look.kpat_json("functions", str(d), "--limit", "0")["functions"]} for d in (one, several)]
            self.assertEqual(calls[0], calls[1])
            self.assertEqual([len(x.packets("udp port 9000")) for x in logs], [len(logs[0].packets("udp port 9000"))] * 2)
        listed = {r["first_file"] != 0: r for r in json.loads(f["list"]["listed"])[0]["recordings"]}
        steps = [x["by_ns"] / 1e9 for x in listed[True]["clock"]["steps"]]
        self.say(f"rotated: {len(files)} files, clock {listed[True]['clock']}")
        if self.series == "host":
            self.assertEqual(steps, [])
        else:
            self.assertEqual(len(steps), 1)
            self.assertAlmostEqual(steps[0], 3600, delta=1)

    def test_f_killed_log_is_readable(self):
        self.facts("killed")
        i = self.info("killed", "killed")
        self.assertEqual(i["state"], "open")
        records = sum(v for v in i["records"].values() if isinstance(v, int))
        log = self.log("killed", "killed")
        self.assertFalse(log.info()["recording_complete"])
        packets = len(log.packets("udp port 9000"))
        self.say(f"killed: {records} records, {packets} packets readable, {i['tail_bytes']} bytes of an unfinished chunk")
        self.assertGreaterEqual(packets, 100)
        self.assertRegex(look.kpat("info", str(self.out / "killed/killed.kbl")).stdout.decode(), "not closed")
        for cut in (100, 5000, 20000):  # and at any other place
            whole = (self.out / "killed/killed.kbl").read_bytes()
            part = self.out / "killed/cut.kbl"
            part.write_bytes(whole[:-cut])
            self.assertEqual(look.kpat("info", str(part), "--json").returncode, 0)

    def test_f_losses_are_counted(self):
        self.facts("losses")
        lost = sum(x["count"] for x in self.info("losses", "losses")["losses"])
        answer = self.words("losses", "losses")
        self.assertGreater(lost, 100)
        last = [x for x in answer.splitlines() if x.startswith("kpat: lost: ")]
        self.assertEqual(len(last), 1, answer)
        answers = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) by [a-z-]+", last[0]))
        status = json.loads(self.facts("losses")["status"]["out"])
        in_status = sum(x["count"] for x in status["losses"])
        integrated = sum(x["count"] for x in self.log("losses", "losses").info()["losses"])
        self.say(f"lost with the smallest ring: log {lost}, printed {answers}, status {in_status}, integrated {integrated}")
        self.assertEqual((answers, integrated), (lost, lost))
        self.assertGreater(in_status, 0)
        self.assertRegex(answer, r"kpat: lost [\d,]+ ", "not reported when it happened")
        strict = look.kpat("info", "--strict", str(self.out / "losses/losses.kbl"))
        self.assertEqual(strict.returncode, 3)

    def test_f_full_disk_is_said(self):
        self.facts("full")
        answer = self.words("full", "full")
        self.assertRegex(answer, "disk is full")
        i = self.info("full", "full")
        self.assertGreater(len(self.log("full", "full").packets("udp port 9000")), 50)
        last = [x for x in answer.splitlines() if x.startswith("kpat: lost: ")]
        self.assertEqual(len(last), 1, answer)
        answers = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) by [a-z-]+", last[0]))
        logged = sum(x["count"] for x in i["losses"])
        integrated = sum(x["count"] for x in self.log("full", "full").info()["losses"])
        self.say(f"disk full: reported {answers} lost, the log says {logged}, integrated {integrated}, state {i['state']}")
        # Also when room came and went: what was lost is carried until it is in the file.
        self.assertEqual((logged, integrated), (answers, answers))
        self.assertGreater(logged, 0)

    def test_f_control(self):
        f = self.facts("control")
        self.assertEqual({k: f[k]["rc"] for k in ("status", "off", "on", "pause", "resume", "stop", "list")}, dict.fromkeys(("status", "off", "on", "pause", "resume", "stop", "list"), 0))
        self.assertIn(str(f["pid"]), f["list"]["out"].split())
        self.assertGreater(json.loads(f["status"]["out"])["records"], 0)
        self.assertEqual((f["ended"], f["after"]["rc"]), (0, 1))
        log = self.log("control", "control")
        of = {m: log.packets(f"udp port {m}") for m in range(20001, 20006)}
        self.assertEqual({m: len(p) for m, p in of.items()}, {20001: 20, 20002: 20, 20003: 20, 20004: 0, 20005: 20})
        if not self.tracepoints():
            for mark, there in ((20001, True), (20002, False), (20003, True), (20005, True)):
                for d in log.details(of[mark]):
                    self.assertEqual("ip_forward" in look.path(d), there, (mark, d["packet"]["packet_id"]))

    def test_f_flight_recorder(self):
        f = self.facts("flight")
        self.assertEqual(f["dump"]["rc"], 0, f["dump"])
        for name in ("asked", "signal"):
            found = sorted((self.out / "flight").glob(f"at-dump-{name}*.kbl"))
            self.assertGreater(len(found), 0, f"{name}: no dump was written ({f[name + '_files']})")
            to = self.out / "flight" / f"{name}.kpat"
            look.integrate(found[0], [], to)
            log = look.Log(to)
            # an older packet may still be freed within the last second (the kernel defers that to the next softirq of the sending CPU)
            old, new = len(log.packets("udp port 21001")), len(log.packets("udp port 21002"))
            self.assertEqual(new, 20, f"{name}: the last second is whole")
            self.assertLessEqual(old, 2, f"{name}: of the last second, nothing older but what is freed late")
        self.assertGreater(f["drop_bytes"][1], f["drop_bytes"][0], "a drop did not dump")

    def test_f_words(self):
        f = self.facts("words")
        self.one_sentence(f["filter"], 2, 'udp prot 53')
        self.one_sentence(f["mechanism"], 2, "kprobe.magic.*fsession.multi")
        self.one_sentence(f["profile"], 2, "nonsense.*path")
        self.one_sentence(f["netns"], 2, "nowhere")
        self.one_sentence(f["interface"], 2, "nodev0")
        self.one_sentence(f["folder"], 2, "no folder")
        self.one_sentence(f["nobody"], 1, "lacks CAP_BPF and CAP_PERFMON; run it with sudo")
        self.one_sentence(f["ring"], 2, "64K")

    def test_f_words_unknown_function(self):
        self.one_sentence(self.facts("words")["function"], 2, "no_such_function")

    def test_f_ends(self):
        f = self.facts("words")
        self.assertEqual(f["for"]["rc"], 0, f["for"]["err"])
        r = self.info("words", "for")
        self.assertEqual(r["state"], "complete")
        self.assertGreaterEqual(f["for"]["seconds"], 2)
        self.assertEqual(f["command"]["rc"], 7, f["command"]["err"])
        self.assertIn("done", f["command"]["out"])
        self.assertEqual(len(self.log("words", "command").packets("icmp")), 6)
        self.assertNotEqual(f["no_command"]["rc"], 0)
        self.assertEqual(f["sniff_files"], ["sniff.kbl", "sniff.pcapng"])
        rows = tshark(self.out / "words/sniff.pcapng", "icmp", "frame.number")
        self.assertEqual(len(rows), 10)
        log = self.log("words", "sniff", "sniff")
        self.assertEqual(sum(r["frames"] for r in log.packets("icmp")), 10)


    # d: the peer

    def test_d_every_function_that_pwru_sees_is_in_the_path(self):
        facts = self.facts("pwru")
        seen = Counter()
        for line in (self.out / "pwru/pwru.out").read_text(errors="replace").splitlines():
            words = [w for w in line.split() if "->" not in w]
            if words and words[0].startswith("0x"):
                seen[re.sub(r"\[.*|\(.*", "", words[-1])] += 1
        self.assertGreater(sum(seen.values()), 100, "pwru saw too little")
        ours = {f for d in (lambda log: log.details(log.packets("icmp")))(self.log("pwru", "all")) for f in look.path(d)}
        probes = facts["probes"]
        candidates = {f["name"] for f in probes["functions"]}
        out = {f["name"]: f.get("reason", "?") for f in probes.get("left_out", [])}
        missing = {f: "in kpat's list, not in its path" if f in candidates else f"left out: {out[f]}" if f in out else "not known to kpat" for f in seen if f not in ours}
        self.say(f"pwru saw {len(seen)} functions, kpat {len(ours)}; missing here: {missing or 'none'}")
        self.assertEqual({f: why for f, why in missing.items() if not why.startswith("left out")}, {})


def graph_of(text: str) -> dict[str, list[tuple[float, int]]]:
    """Of each function its calls' self times in nanoseconds and how many calls were directly below, from a trace of the graph tracer."""
    found: dict[str, list[tuple[float, int]]] = {}
    stacks: dict[str, list[list]] = {}
    for line in text.splitlines():
        m = re.match(r"\s*(\d+)\)\s+(?:[+!#*@$]\s*)?(?:([\d.]+) us)?\s*\|\s+(.*)$", line)
        if not m:
            continue
        stack = stacks.setdefault(m[1], [])
        ns = float(m[2]) * 1000 if m[2] else None
        if m[3].endswith("{"):
            stack.append([0.0, 0])
            continue
        name = re.search(r"/\* (\w+)", m[3]) if m[3].startswith("}") else re.match(r"(\w+)(?:\.\w+)*\(", m[3])
        if ns is None or not name:
            continue
        children, below = stack.pop() if m[3].startswith("}") and stack else (0.0, 0)
        found.setdefault(name[1], []).append((ns - children, below))
        if stack:
            stack[-1][0] += ns
            stack[-1][1] += 1
    return found


def edges_of(text: str) -> dict[tuple[str, str], int]:
    """How often each function was called directly below which, from a trace of the graph tracer."""
    found: dict[tuple[str, str], int] = {}
    stacks: dict[str, list[str]] = {}
    for line in text.splitlines():
        m = re.match(r"\s*(\d+)\)[^|]*\|\s+(.*)$", line)
        if not m:
            continue
        stack = stacks.setdefault(m[1], [])
        if m[2].startswith("}"):
            if stack:
                stack.pop()
            continue
        name = re.match(r"(\w+)(?:\.\w+)*(?: \[\w+\])?\(", m[2])
        if not name:
            continue
        if stack and name[1] not in OF_SOFTIRQS:
            found[stack[-1], name[1]] = found.get((stack[-1], name[1]), 0) + 1
        if m[2].endswith("{"):
            stack.append(name[1])
    return found


def line_through(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Value at 0 and slope of the line that half of the points lie above of (Theil-Sen): one odd function does not move it."""
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1:] if x1 != x2]
    slope = statistics.median(slopes) if slopes else 0.0
    return statistics.median(y - slope * x for x, y in points), slope


def rewrite(source: Path, target: Path, ns_of) -> None:
    """A nanosecond pcap with other times."""
    b = bytearray(source.read_bytes())
    order = "<" if b[:4] == b"\x4d\x3c\xb2\xa1" else ">"
    assert struct.unpack_from(order + "I", b)[0] == 0xA1B23C4D, "not a nanosecond pcap"
    at = 24
    while at + 16 <= len(b):
        s, ns, captured, _ = struct.unpack_from(order + "IIII", b, at)
        struct.pack_into(order + "II", b, at, *divmod(ns_of(s * 10**9 + ns), 10**9))
        at += 16 + captured
    target.write_bytes(b)


class Host(Place, unittest.TestCase):
    series = "host"


# What a kernel offers that is best. A program that it refuses is a mechanism less, and a recording by tracepoints that nobody wanted.
BEST = {"6.1": "fentry", "6.12": "kprobe.session", "6.12-rt": "kprobe.session", "7.2": "fsession.multi"}


class Guest(Place):
    @classmethod
    def setUpClass(cls):
        if cls.series not in {k.series for k in kernel.fetched()}:
            raise unittest.SkipTest(f"{cls.series} was not fetched (lab/lab fetch {cls.series})")
        super().setUpClass()

    def test_b_its_best_mechanism(self):
        if "udp" in self.acts:
            self.assertEqual(self.info("udp", "udp")["recording"]["mechanism"], BEST[self.series])


class Kernel72(Guest, unittest.TestCase):
    """From the distribution's own image, as servers boot: kernel addresses have 57 bits."""

    series = "7.2"
    acts = ["paging", "udp", "counts", "control"]
    boot = "image"

    def test_b_five_levels_of_page_tables(self):
        paging = self.facts("paging")["paging"]
        self.assertEqual((paging["levels"], paging["flag"]), (5, True), paging)


class Kernel72Whole(Guest, unittest.TestCase):
    series = "7.2"


class Kernel612(Guest, unittest.TestCase):
    series = "6.12"
    acts = [*QUICK, "pwru", "graph"]

    @classmethod
    def setUpClass(cls):
        peers.fetch("pwru")
        super().setUpClass()


class Kernel72Times(Guest, unittest.TestCase):
    """Guest time counts instructions, so that times can be compared."""
    series = "7.2"
    acts = ["graph"]
    det = True


class Kernel61(Guest, unittest.TestCase):
    series = "6.1"
    acts = QUICK
    whole_path = 15  # fentry takes one function at a time, so its list is short: 67 instead of some hundred
