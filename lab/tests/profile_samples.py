"""The stacks of a profile: a program in C whose functions burn known shares of its CPU time by its own clock, what perf says of the same run, and the
exact sums of the same recording. Foreign formats are read by their own tools."""
import gzip
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import unittest
from collections import Counter

from kpatlab import look, play
from tests.place import own, sh

BURN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static volatile unsigned long sink;
static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
#ifdef STEP /* each round begins when a clock of 999 Hz ticks, and has its period */
static long tsc(void)
{
	return __builtin_ia32_rdtsc();
}
static long begun, round;
static void setup(void)
{
	struct timespec a, b;
	double ns;
	long from = tsc();
	clock_gettime(CLOCK_MONOTONIC, &a);
	do {
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = (b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec;
	} while (ns < 1e8);
	round = (tsc() - from) / ns * 1e9 / 999;
}
static void begin_round(void)
{
	begun = tsc() / round * round;
}
#define BURN(name) __attribute__((noinline)) void name(long n) \
{ \
	long until = begun + n * round / 1000000; \
	while ((long)__builtin_ia32_rdtsc() < until) \
		; \
	begun = until; \
}
#else
static void setup(void) {}
static void begin_round(void) {}
#define BURN(name) __attribute__((noinline)) void name(long n) \
{ \
	unsigned long x = n; \
	for (long i = 0; i < n; i++) \
		x = x * 6364136223846793005UL + i; \
	sink += x; \
}
#endif
BURN(half)
BURN(third)
BURN(fifth)
static inline __attribute__((always_inline)) void inlined(double *spent)
{
	double at[4];
	begin_round();
	at[0] = cpu();
	half(500000);
	at[1] = cpu();
	third(300000);
	at[2] = cpu();
	fifth(200000);
	at[3] = cpu();
	for (int i = 0; i < 3; i++)
		spent[i] += at[i + 1] - at[i];
}
__attribute__((noinline)) void outer(double *spent)
{
	inlined(spent);
	__asm__ volatile("");
}
int main(int argc, char **argv)
{
	setup();
	double spent[3] = {0}, until = atof(argv[argc - 1]), begin = cpu();
	while (cpu() - begin < until)
		outer(spent);
	printf("{\"half\": %f, \"third\": %f, \"fifth\": %f}\n", spent[0], spent[1], spent[2]);
	return 0;
}
"""
NAMES = ["half", "third", "fifth"]
# A sample counts as the time between two, which changes evenly between 1 / 0.5 and 1 / 1.5: so many of equal ones are as good as one.
WORTH = 1 / math.log(3)


def has_pprof():
    """Go from 1.25 on compiles it when it is first asked for, which takes longer than all of a stage: then only if KPAT_JUDGE_PPROF says so."""
    here = bool(shutil.which("go")) and ("KPAT_JUDGE_PPROF" in os.environ or os.path.exists(os.path.join(sh("go", "env", "GOTOOLDIR").stdout.strip(), "pprof")))
    if not here:
        print("skipped: go tool pprof as a judge: it is not compiled (KPAT_JUDGE_PPROF=1: where Go is installed)", file=sys.stderr, flush=True)
    return here


def pprof_message():
    """profile.proto of github.com/google/pprof, as far as it is read here: message, fields with number and type."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    messages = {
        "ValueType": "type=1 unit=2",
        "Label": "key=1 str=2",
        "Sample": "location_id=1:u* value=2* label=3:Label*",
        "Line": "function_id=1:u line=2",
        "Location": "id=1:u line=4:Line*",
        "Function": "id=1:u name=2",
        "Profile": "sample_type=1:ValueType* sample=2:Sample* location=4:Location* function=5:Function* string_table=6:s*",
    }
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="pprof", syntax="proto3")
    scalar = {"": "TYPE_INT64", "u": "TYPE_UINT64", "s": "TYPE_STRING"}
    of = descriptor_pb2.FieldDescriptorProto
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            field, many = field.removesuffix("*"), field.endswith("*")
            left, _, kind = field.partition(":")
            word, number = left.split("=")
            f = message.field.add(name=word, number=int(number), label=of.LABEL_REPEATED if many else of.LABEL_OPTIONAL)
            if kind in scalar:
                f.type = of.Type.Value(scalar[kind])
            else:
                f.type, f.type_name = of.TYPE_MESSAGE, f".pprof.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pprof.Profile"))



def wilson(hits: float, of: float, z: float) -> tuple[float, float]:
    p = hits / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class ProfileSamples(unittest.TestCase):
    def setUp(self):
        own(self, "samples", "")
        self.burn = self.compiled("burn", "-g")

    def compiled(self, name: str, *flags: str):
        source, program = self.dir / f"{name}.c", self.dir / name
        source.write_text(BURN)
        # Optimised, a function that calls nothing has no frame, and its caller is missing.
        sh("cc", "-O0", "-fno-omit-frame-pointer", "-Wl,--build-id", *flags, "-o", program, source)
        return program

    def record(self, name: str, *argv, rate: int = 999):
        """The integrated log, what the command printed, and its number as a process."""
        kbl, out = self.dir / f"{name}.kbl", self.dir / f"{name}.kpat"
        r = sh(play.kpat_path(), "record", "-p", "profile", "--rate", rate, "--no-cost", "-o", kbl, "--", *argv)
        look.integrate(kbl, [], out)
        return out, r.stdout

    def functions(self, log, pid: int, what: str = "samples") -> Counter:
        """Samples by the innermost function of the process, or their time."""
        found = Counter()
        for line in sh(play.kpat_path(), "profile", log, "--to", "json").stdout.splitlines():
            stack = json.loads(line)
            if stack["served"] == pid and stack["for"] == "itself":
                found[stack["functions"][-1]["function"]] += stack[what]
        return found

    def pid(self, log, name: str) -> int:
        all_ = look.kpat_json("profile", str(log), "--limit", "0")["processes"]
        return next(p["pid"] for p in all_ if p["name"] == name)

    def holds(self, what: str, truth: dict, log, pid: int) -> None:
        """Each share of samples holds its true share within the interval of 99.9 %."""
        samples, times = (self.functions(log, pid, what) for what in ("samples", "ns"))
        of = sum(samples[n] for n in NAMES) * WORTH
        self.inside(what, truth, {n: times[n] / sum(times[m] for m in NAMES) * of for n in NAMES}, of)

    def inside(self, what: str, truth: dict, found: dict, of: float, z: float = 3.29) -> None:
        total = sum(truth.values())
        for name in NAMES:
            low, high = wilson(found[name], of, z)
            share = truth[name] / total
            print(f"samples: {what}: {name} {found[name] / of * 100:.2f} % of {of:.0f} ({low * 100:.2f} to {high * 100:.2f}), truth {share * 100:.2f} %", file=sys.stderr, flush=True)
            self.assertTrue(low <= share <= high, f"{what}: {name}")

    def test_functions_have_the_shares_that_they_burn(self):
        log, printed = self.record("shares", self.burn, 3)
        pid = self.pid(log, "burn")
        self.holds("kpat", json.loads(printed), log, pid)
        flat = sh(play.kpat_path(), "profile", log, "--pid", pid, "--flat", "-n", "3").stdout
        self.assertEqual([line.split()[-1] for line in flat.splitlines()[-3:]], [f"{pid}u:{n}" for n in NAMES])
        graph = sh(play.kpat_path(), "profile", log, "--pid", pid, "--graph").stdout
        of_half = next(block for block in graph.split("-" * 47) if f"{pid}u:half [" in block.split("\n[")[-1].splitlines()[0])
        self.assertIn(f"{pid}u:inlined [", of_half.split("\n[")[0], "its caller is the inlined function")
        self.assertIn(f"{pid}u:main;{pid}u:outer;{pid}u:inlined;{pid}u:half ", sh(play.kpat_path(), "profile", log, "--to", "folded").stdout)

    def test_a_stripped_program_has_its_names_from_its_debug_file(self):
        program = self.compiled("bare", "-g")
        notes = sh("readelf", "-n", program).stdout
        build_id = next(line.split()[-1] for line in notes.splitlines() if "Build ID" in line)
        folder = f"/usr/lib/debug/.build-id/{build_id[:2]}"
        made = not os.path.isdir(folder)
        os.makedirs(folder, exist_ok=True)
        debug = f"{folder}/{build_id[2:]}.debug"
        self.stack.callback(lambda: (os.unlink(debug), made and os.rmdir(folder)))
        sh("objcopy", "--only-keep-debug", program, debug)
        sh("strip", program)
        log, printed = self.record("bare", program, 1)
        self.holds("stripped", json.loads(printed), log, self.pid(log, "bare"))

    @unittest.skipUnless(platform.machine() == "x86_64", "reads x86-64's clock")
    def test_a_program_in_step_with_the_clock_has_its_shares(self):
        program = self.compiled("step", "-DSTEP")
        log, printed = self.record("step", program, 3)
        self.holds("in step", json.loads(printed), log, self.pid(log, "step"))

    def test_perf_says_the_same_of_the_same_run(self):
        if not shutil.which("perf"):
            self.skipTest("needs perf")
        data = self.dir / "perf.data"
        log, printed = self.record("perf", "perf", "record", "-q", "-e", "cpu-clock", "-F", 499, "-g", "-o", data, self.burn, 3)
        theirs = Counter()  # its clock keeps its rate, and may be in step with the program: then its interval claims too much
        for line in sh("perf", "script", "-i", data, "-F", "comm,ip,sym", "-G", "--comms", "burn").stdout.splitlines():
            words = line.split()
            if len(words) >= 2 and words[-1] in NAMES:
                theirs[words[-1]] += 1
        truth = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        self.holds("beside perf", truth, log, self.pid(log, "burn"))
        for name in NAMES:
            share, true = theirs[name] / sum(theirs.values()), truth[name] / sum(truth.values())
            print(f"samples: perf: {name} {share * 100:.2f} %, truth {true * 100:.2f} %", file=sys.stderr, flush=True)
            self.assertLess(abs(share - true), 0.1)

    def test_pprof_reads_the_same_shares(self):
        log, _ = self.record("pprof", self.burn, 1)
        pid, out = self.pid(log, "burn"), self.dir / "x.pb.gz"
        sh(play.kpat_path(), "profile", log, "--to", "pprof", "-o", out)
        ours = self.functions(log, pid)
        want = {f"{pid}u:{n}": ours[n] for n in NAMES}
        found = self.leaves(out.read_bytes(), f"burn {pid}")
        print(f"samples: pprof {found}", file=sys.stderr, flush=True)
        self.assertEqual({n: found[n] for n in want}, want)
        if has_pprof():
            raw = sh("go", "tool", "pprof", "-sample_index=samples", f"-tagfocus=served=burn {pid}", "-top", "-nodecount=3", out, PPROF_TMPDIR=self.dir, seconds=300).stdout
            self.assertEqual({line.split()[-1]: int(line.split()[0]) for line in raw.splitlines() if f"{pid}u:" in line}, want)

    def test_perfettos_messages_have_the_same_samples_and_sums(self):
        if not importlib.util.find_spec("perfetto"):
            self.skipTest("needs Python's perfetto (scripts/setup test)")
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages
        log, _ = self.record("perfetto", self.burn, 1)
        pid, out = self.pid(log, "burn"), self.dir / "x.pftrace"
        sh(play.kpat_path(), "profile", log, "--to", "perfetto", "-o", out)
        trace = messages.Trace()
        trace.ParseFromString(out.read_bytes())
        functions, frames, stacks, tracks, last, named = {}, {}, {}, {}, {}, {}
        found, served, before = Counter(), Counter(), 0
        for packet in trace.packet:
            self.assertTrue(packet.trusted_packet_sequence_id)
            interned = packet.interned_data
            functions |= {t.iid: t.str.decode() for t in interned.function_names}
            frames |= {f.iid: functions[f.function_name_id] for f in interned.frames}
            stacks |= {c.iid: [frames[f] for f in c.frame_ids] for c in interned.callstacks}
            named |= {p.pid: p.cmdline[0] for p in packet.process_tree.processes}
            if packet.HasField("track_descriptor"):
                t = packet.track_descriptor
                tracks[t.uuid] = t
                self.assertTrue(not t.parent_uuid or t.parent_uuid in tracks, "a track before its parent")
            if packet.HasField("track_event"):
                last[packet.track_event.track_uuid] = packet.track_event.counter_value
            if packet.HasField("perf_sample"):
                self.assertGreaterEqual(packet.timestamp, before)
                before, sample = packet.timestamp, packet.perf_sample
                served[sample.pid] += 1
                if sample.pid == pid:
                    found[stacks[sample.callstack_iid][-1]] += 1
        ours = self.functions(log, pid)
        want = {f"{pid}u:{n}": ours[n] for n in NAMES}
        print(f"samples: perfetto {dict(found)}, {sum(served.values())} in all", file=sys.stderr, flush=True)
        self.assertEqual({n: found[n] for n in want}, want)
        self.assertTrue(all(want.values()))
        self.assertEqual(named[pid], "burn")
        p = look.kpat_json("profile", str(log), "--limit", "0")
        self.assertEqual(sum(served.values()), p["sampled"]["samples"] - p["sampled"]["idle"])
        sums = {(tracks[t.parent_uuid].process.pid, t.name): last[uuid] for uuid, t in tracks.items() if uuid in last}
        burn = next(x for x in p["processes"] if x["pid"] == pid)
        wanted = {"user mode": "user_ns", "system calls": "kernel_ns", "page faults": "fault_ns", "done for it": "served_ns"}
        self.assertEqual({k: sums.get((pid, f"charged: {k}"), 0) for k in wanted}, {k: burn[v] for k, v in wanted.items()})
        buckets = sum(ns for (process, _), ns in sums.items() if not process)
        self.assertEqual(buckets, p["passed_ns"] + p["difference_ns"])

    def test_a_file_for_each_process_has_that_ones_samples_and_no_others(self):
        log, _ = self.record("files", "sh", "-c", f"{self.burn} 0.4 & {self.burn} 0.2; wait")
        by_process = Counter()
        for line in sh(play.kpat_path(), "profile", log, "--to", "json").stdout.splitlines():
            stack = json.loads(line)
            by_process[stack["served"]] += stack["samples"]
        names = {p["pid"]: p["name"] for p in look.kpat_json("profile", str(log), "--limit", "0")["processes"]}
        self.assertGreaterEqual([names.get(pid) for pid in by_process].count("burn"), 2)
        for format, ending in (("json", "json"), ("folded", "folded"), ("pprof", "pb.gz"), ("gprof", "gprof"), ("svg", "svg")):
            folder = self.dir / f"files.{format}"
            sh(play.kpat_path(), "profile", log, "--to", format, "--per-process", folder)
            # What else runs here has threads with names of their own, and with signs that no file has.
            known = lambda pid: names.get(pid) == "burn"
            wanted = {f"burn.{pid}.{ending}" if known(pid) else f"{pid}.{ending}" if pid else f"no-process.{ending}" for pid in by_process}
            cut = lambda name: name if name.startswith(("burn.", "no-process.")) else name[-len(f"{name.removesuffix('.' + ending).rsplit('.', 1)[-1]}.{ending}"):]
            self.assertEqual({cut(f.name) for f in folder.iterdir()}, wanted, format)
            for pid, samples in by_process.items():
                file = next(f for f in folder.iterdir() if f.name.endswith(f".{pid}.{ending}") or (not pid and f.name.startswith("no-process")))
                if format == "json":
                    lines = [json.loads(line) for line in file.read_text().splitlines()]
                    self.assertEqual({line["served"] for line in lines}, {pid})
                    self.assertEqual(sum(line["samples"] for line in lines), samples)
                elif format in ("folded", "gprof") and names.get(pid) == "burn":
                    others = [str(p) for p in by_process if p and p != pid]
                    text = file.read_text()
                    self.assertIn(f"{pid}u:half", text)
                    self.assertFalse([p for p in others if re.search(rf"\b{p}[uk]:", text)])
        r = subprocess.run([play.kpat_path(), "profile", log, "--to", "json", "--per-process", self.dir / "files.json"], capture_output=True, text=True, timeout=60)
        self.assertEqual((r.returncode, "exists" in r.stderr), (2, True), "nothing is overwritten")

    def leaves(self, packed: bytes, served: str) -> Counter:
        """Samples by innermost function, of those with that label, by protobuf's own reader of pprof's profile.proto."""
        profile = pprof_message()()
        profile.ParseFromString(gzip.decompress(packed))
        text = profile.string_table
        counted = [text[v.type] for v in profile.sample_type].index("samples")
        names = {f.id: text[f.name] for f in profile.function}
        # the first line of a location is what was inlined deepest
        innermost = {at.id: names[at.line[0].function_id] for at in profile.location if at.line}
        found = Counter()
        for s in profile.sample:
            if any((text[label.key], text[label.str]) == ("served", served) for label in s.label):
                found[innermost[s.location_id[0]]] += s.value[counted]
        return found

    def test_samples_and_sums_agree(self):
        """Each process's share by samples beside its exact share, over several recordings. The interval of 95 % must hold so many of those that had ten
        samples' time as one that does hold 95 % would in 999 of 1,000 such tests."""
        held = of = 0
        for run in range(5):
            log, _ = self.record(f"agree{run}", "sh", "-c", f"{self.burn} 0.7 & taskset -c 0 {self.burn} 0.4 & dd if=/dev/zero of=/dev/null bs=64k count=60000 2>/dev/null; wait", rate=499)
            p = look.kpat_json("profile", str(log), "--limit", "0")
            s = p["sampled"]
            rows = [r for r in s["processes"] if r["exact_ns"] >= 10 * s["period_ns"] and r["what"] == "own"]
            held, of = held + sum(r["inside"] for r in rows), of + len(rows)
            print(f"samples: run {run}: {s['samples']} of {s['expected']} samples, {sum(r['inside'] for r in rows)} of {len(rows)} exact shares inside", file=sys.stderr, flush=True)
            # Of the time in which CPUs were busy and programs ran; the clock of an idle one comes late.
            stand_for, exact = s["busy_ns"], s["exact_busy_ns"]
            print(f"samples: run {run}: stand for {stand_for / 1e9:.4f} s of {exact / 1e9:.4f} s ({(stand_for - exact) * 100 / exact:+.2f} %)", file=sys.stderr, flush=True)
            self.assertLess(abs(stand_for - exact), 0.02 * exact + 3 * s["period_ns"] * os.cpu_count(), "each sample counts as the time since the one before")
        print(f"samples: {held} of {of} exact shares within the interval of 95 %", file=sys.stderr, flush=True)
        self.assertGreaterEqual(held, 0.95 * of - 3.1 * math.sqrt(0.95 * 0.05 * of))
        self.assertGreaterEqual(of, 10, "there were processes to compare")

    def test_who_wakes_seldom_is_sampled_for_no_more_than_it_ran(self):
        """On a machine that sleeps the clock comes when something wakes: its time is not that something's."""
        wakes = "import time\nfor _ in range(250):\n time.sleep(0.02)\n t = time.process_time()\n while time.process_time() - t < 0.001: pass"
        log, _ = self.record("seldom", sys.executable, "-c", wakes, rate=499)
        s = look.kpat_json("profile", str(log), "--limit", "0")["sampled"]
        stand_for, exact = s["busy_ns"], s["exact_busy_ns"]
        print(f"samples: of who wakes seldom: stand for {stand_for / 1e9:.4f} s of {exact / 1e9:.4f} s ({(stand_for - exact) * 100 / exact:+.2f} %)", file=sys.stderr, flush=True)
        # Some 150 samples where nothing else runs.
        self.assertLess(abs(stand_for - exact), 0.3 * exact + 3 * s["period_ns"] * os.cpu_count())

    def test_two_profiles_differ_where_the_programs_do_and_not_where_they_are_the_same(self):
        logs = {}
        for name, loops in (("a", "500000"), ("b", "500000"), ("c", "1500000")):
            source, program = self.dir / "burn.c", self.dir / name / "burn"
            program.parent.mkdir()
            source.write_text(BURN.replace("half(500000)", f"half({loops})"))
            sh("cc", "-O0", "-fno-omit-frame-pointer", "-Wl,--build-id", "-g", "-o", program, source)
            log, printed = self.record(f"compare-{name}", program, 1.5)
            logs[name] = log, json.loads(printed)

        def compared(other):
            p = look.kpat_json("profile", str(logs["a"][0]), "--comm", "burn", "--compare", str(logs[other][0]), "--limit", "0")
            return {f["function"]: f for f in p["functions"] if f["process"] == "burn"}

        share = lambda name, f: logs[name][1][f] / sum(logs[name][1].values())
        for other in ("b", "c"):
            found = compared(other)
            for f in NAMES:
                truth = share(other, f) - share("a", f)
                print(f"samples: {other}: {f} {found[f]['difference'] * 100:+.2f} % ({found[f]['low'] * 100:+.2f} to {found[f]['high'] * 100:+.2f}), truth {truth * 100:+.2f} %", file=sys.stderr, flush=True)
                # By its own interval of 95 % once and a half: six of them must hold in every run of this test.
                width = found[f]["high"] - found[f]["low"]
                self.assertTrue(found[f]["low"] - width / 2 <= truth <= found[f]["high"] + width / 2, f)
        self.assertTrue(all(found[f]["sure"] for f in NAMES), "half has another share, and so have the others")

    def test_no_samples_where_none_are_wanted(self):
        log, _ = self.record("none", self.burn, 0.2, rate=0)
        self.assertIsNone(look.kpat_json("profile", str(log))["sampled"])
        r = subprocess.run([play.kpat_path(), "profile", log, "--flat"], capture_output=True, text=True, timeout=60)
        self.assertEqual((r.returncode, "has no samples" in r.stderr), (2, True), r.stderr)
