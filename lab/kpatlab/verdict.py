"""What a scenario expected against what came: run it, judge it, write verdict.json.

Truth comes from outside kpat where it can: frames are counted by tshark, deliveries by the generators' own
numbers. Expectations on kpat's tables are skipped, and reported as skipped, when nothing was recorded.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import cache, crossed, guest, kernel, look, numbers, play, scenario
from .cache import LAB, Refusal, say

# Where only tracepoints are available, every packet that crosses a device meets these; expected instead of functions.
POINTS = ["net:net_dev_queue", "net:netif_receive_skb"]


# A boot costs less than a scenario, and a guest that dies costs all of its scenarios.
TOGETHER = 5


def run_scenarios(a) -> int:
    """Every scenario named; up to five that need the same cards share one boot. 0 when all passed."""
    found = [scenario.load(name) for name in a.scenario]
    record = {}
    for s in found:
        if a.nic:
            s.use_nics(a.nic)
        s.use_detail(a.detail, a.entry_only)
        record[s.name] = bool(s.recordings()) and not a.no_record
    if any(record.values()):
        play.kpat_path()
    outs = {}
    for s in found:
        outs[s.name] = (a.keep / s.name if a.keep and len(found) > 1 else a.keep or cache.root() / "runs" / f"{s.name}-{a.kernel}").resolve()
        if not a.keep:
            shutil.rmtree(outs[s.name], ignore_errors=True)
        outs[s.name].mkdir(parents=True, exist_ok=True)
    boots = {}
    if a.kernel != "host":
        groups: dict[tuple, list] = {}
        for s, name in zip(found, a.scenario):
            groups.setdefault(tuple(s.nics()), []).append((s, str(scenario.path_of(name).resolve())))
        for group in groups.values():
            for i in range(0, len(group), TOGETHER):
                boot = in_guest(group[i:i + TOGETHER], outs, record, a)
                boots |= {s.name: boot for s, _ in group[i:i + TOGETHER]}
    # On the host one is judged while the next one plays: to play is mostly to wait.
    with ThreadPoolExecutor(1) as judges:
        reported = []
        for s in found:
            if a.kernel == "host":
                on_host(s, outs[s.name], record[s.name])
            reported.append(judges.submit(verdict, s, outs[s.name], a.kernel, boots.get(s.name)))
        bad = sum(not t.result() for t in reported)
    return 1 if bad else 0


def verdict(s: scenario.Scenario, out: Path, where: str, boot: float | None) -> bool:
    began = time.monotonic()
    try:
        facts = json.loads((out / "play.json").read_text())
    except (OSError, ValueError):
        raise Refusal(f"{s.name} on {where} left no play.json; see {out}/console.log and {out}/play.err") from None
    results = judge(s, out, facts)
    bad = [r for r in results if r["result"] == "fail"]
    seconds = round(facts["seconds"]["closed"] + time.monotonic() - began, 1)
    reported = {"scenario": s.name, "kernel": where, "release": facts["kernel"], "recorded": facts["recorded"], "mechanism": facts.get("mechanism"), "pass": not bad,
            "seconds": seconds, "boot_seconds": boot, "results": results}
    (out / "verdict.json").write_text(json.dumps(reported, indent=1) + "\n")
    for r in results:
        say(f"{r['result']:7} {r['what']}" + (f": {r['detail']}" if (r["result"] != "pass" or "measured" in r) and r["detail"] else ""))
    for words in facts.get("kernel_warnings", []):
        say(f"the guest's kernel: {words}")
    by = f" by {facts['mechanism']}" if "mechanism" in facts else ""
    say(f"{s.name} on {facts['kernel']}{by}: {'passed' if not bad else f'{len(bad)} of {len(results)} failed'} in {seconds} s; results in {out}")
    print(out)
    return not bad


def on_host(s: scenario.Scenario, out: Path, record: bool) -> None:
    if os.geteuid() != 0:
        raise Refusal("network namespaces on this machine need root; run as root, or in a guest (--kernel 6.12)")
    if s.nics():
        raise Refusal(f"{s.name} has emulated cards ({', '.join(sorted(set(s.nics())))}), which this machine does not have; run it in a guest (--kernel 6.12)")
    play.play(s, out, prefix=f"kl{os.getpid()}-", in_guest=False, record=record)


def in_guest(group: list[tuple], outs: dict, record: dict, a) -> float | None:
    """Play these in one guest. One: its folder is the guest's /lab. Several: /lab holds a folder for each, moved afterwards."""
    k = kernel.open_kernel(a.kernel, a.boot)
    alone = len(group) == 1
    share = outs[group[0][0].name] if alone else Path(tempfile.mkdtemp(prefix="several-", dir=cache.root()))
    specs = [{"scenario": name, "out": "/lab" if alone else f"/lab/{s.name}", "record": record[s.name], "nic": a.nic, "detail": a.detail, "entry_only": a.entry_only} for s, name in group]
    (share / "spec.json").write_text(json.dumps(specs))
    env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1"}
    if "KPAT" in os.environ:
        env["KPAT"] = os.path.abspath(os.environ["KPAT"])
    argv = [os.path.realpath(sys.executable), "-m", "kpatlab.play", "/lab/spec.json"]
    limit = sum(max(a.timeout, s.timeout) for s, _ in group)
    try:
        r = guest.run(k, argv, share, det=a.det, smp=a.smp, mem=a.mem, nics=group[0][0].nics(), timeout=limit, cwd="/", env=env,
                      sinks=(share / "play.out", share / "play.err"))
    finally:
        if not alone:
            for s, _ in group:
                if (share / s.name).exists():
                    shutil.copytree(share / s.name, outs[s.name], dirs_exist_ok=True)
                for f in ("console.log", "play.err"):
                    if (share / f).exists():
                        shutil.copy(share / f, outs[s.name])
            shutil.rmtree(share, ignore_errors=True)
    return round(r.marks.get("LAB-CMD", 0), 1)


def judge(s: scenario.Scenario, out: Path, facts: dict) -> list[dict]:
    results: list[dict] = []

    def add(what: str, ok: bool | None, detail: str = "", measured: dict | None = None) -> None:
        results.append({"what": what, "result": "skipped" if ok is None else "pass" if ok else "fail", "detail": detail} | ({"measured": measured} if measured else {}))

    if "refused" in facts:
        add("the scenario was played", False, facts["refused"])
        return results
    for name, c in facts["commands"].items():
        if c["expected"] != "any":
            add(f"{name} exits with {c['expected']}", c["rc"] == c["expected"], f"exit {c['rc']}: {last_words(out / (name + '.err'))}")
    for name, c in facts["captures"].items():
        add(f"the sniffer {name} lost nothing", c["rc"] == 0 and c["lost"] == 0, f"exit {c['rc']}, lost {c['lost']}")
    lost, missed, lacking_calls = 0, 0.0, 0
    if facts["recorded"]:
        for name, rc in facts["records"].items():
            of = "" if name == "record" else f" of {name}"
            add(f"kpat record{of} ends with 0", rc == 0, f"exit {rc}: {last_words(out / (name + '.err'))}")
        lost, missed, lacking_calls = integrate(out, facts, add, s.missed)
    logs = {d: look.Log(out / "run.kpat", d) for d in [None, *facts.get("records", {})]}
    for i, x in enumerate(s.expect):
        if "kernels" in x and not any(facts["kernel"].startswith(k + ".") for k in x["kernels"]):
            continue
        log = logs.get(x.get("device"))
        what = x.get("what") or " ".join(f"{k}={v}" for k, v in x.items())
        try:
            if ({"packets", "matched", "numbers", "crossed"} & x.keys() or x.get("needs_record")) and not facts["recorded"]:
                add(what, None, "nothing was recorded")
            elif x.get("functions_only") and facts.get("mechanism") == "tracepoint":
                add(what, None, "only tracepoints here, which do not tell it")
            elif "command" in x:
                add(what, *judge_command(x, out, facts["expect"].get(str(i))))
            elif "capture" in x:
                n = len(frame_numbers(out / facts["captures"][x["capture"]]["file"], x.get("filter")))
                add(what, within(n, x), f"{n} frames")
            elif "output" in x:
                add(what, *judge_output(x, out))
            elif "matched" in x:
                add(what, *judge_matched(x, log, out, facts, missed))
            elif "numbers" in x:
                add(what, *numbers.judge(x, log, out, facts, lost, missed))
            elif "crossed" in x:
                add(what, *crossed.judge(x, logs, out, facts, lost))
            else:
                if facts.get("mechanism") == "tracepoint" and ("functions" in x or "without" in x):
                    x = {k: v for k, v in x.items() if k not in ("functions", "without", "verdict")} | {"functions": x["points"] if "points" in x else POINTS}
                elif s.detail in ("steps", "spine") and "functions" in x:
                    probed = log.functions()
                    x = {**x, "functions": [f for f in x["functions"] if look.has(probed, f)]}
                add(what, *judge_packets(x, log, lacking_calls))
        except (Refusal, OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as e:
            add(what, False, f"{type(e).__name__}: {e}" if isinstance(e, (KeyError, TypeError)) else str(e))
    return results


def within(n, x: dict) -> bool:
    return n is not None and n >= x.get("min", n) and n <= x.get("max", n) and n == x.get("equals", n)


def last_words(p: Path) -> str:
    try:
        lines = p.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it printed nothing"


def judge_command(x: dict, out: Path, in_dut: dict | None) -> tuple[bool, str]:
    if x.get("where") == "dut":
        rc, text = in_dut["rc"], in_dut["stdout"]
    else:
        r = subprocess.run(["sh", "-c", play.fill(x["command"], out)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        rc, text = r.returncode, r.stdout.decode(errors="replace")
    ok = rc == x.get("rc", 0) and ("stdout" not in x or re.search(x["stdout"], text) is not None)
    return ok, f"exit {rc}: {text.strip()[-200:]}"


def judge_output(x: dict, out: Path) -> tuple[bool, str]:
    text = (out / f"{x['output']}.out").read_text(errors="replace")
    if "matches" in x:
        return re.search(x["matches"], text, re.M) is not None, last_words(out / f"{x['output']}.out")
    v = json.loads(text)
    for key in x["json"].split("."):
        v = v[int(key)] if isinstance(v, list) else v.get(key)
    return within(v, x), f"{x['json']} is {v}"


# Of the records, how many calls may be missed because they were hit while a probe's program ran. Before fsession.multi the kernel runs no
# program of any probe then: an interrupt loses all its calls, among them those by which a packet's end is known.
MISSED = {"fsession.multi": 0.01, "fentry": 0.01, "tracepoint": 0.01}
MISSED_ELSE = 0.1
# Calls that may be open when recording ends, beyond those whose return a probe missed: tasks asleep in them, and the functions, one in the
# other, of a softirq that a slow guest has put aside. They are no packets' data that got lost.
OPEN_AT_END = 16


def integrate(out: Path, facts: dict, add, may_miss: float = 0.0) -> tuple[int, float, int]:
    """One integrated log of the record and all captures, for the expectations on packets. How many records were lost that
    may have been all of a packet, which share of the calls was missed inside a probe, and how many calls lack at all."""
    try:
        several = len(facts["records"]) > 1
        captures = [out / c["file"] for c in facts["captures"].values()]
        if several and not captures:
            reported = {"devices": apart(out, facts["records"])}
        else:
            reported = look.integrate([out / f"{name}.kbl" for name in facts["records"]], captures, out / "run.kpat")
        first = look.Log(out / "run.kpat", next(iter(facts["records"])) if several else None)
        facts["mechanism"] = first.info()["recording"]["mechanism"]
        (out / "integrate.json").write_text(json.dumps(reported, indent=1) + "\n")
        add("kpat integrate ends with 0", True)
        lost, missed, lacking_calls = 0, 0.0, 0
        for d in reported["devices"] if several else [reported]:
            records = sum(look.kpat_json("info", str(out / d["source"]))["records"].values()) if several else d["records"]
            # An interrupt can come while a probe's program runs; what it then hits is counted, and cannot be had.
            losses = {cause: sum(x["count"] for x in d["losses"] if x["cause"] == cause) for cause in {x["cause"] for x in d["losses"]}}
            recursion, open_still = losses.get("recursion", 0), losses.get("no-return", 0)
            not_run = losses.get("not-run", 0)
            share = recursion / max(records, 1)
            # On a shared host those of other tests come and go. That the scenario's own are known is asked of its packets.
            shared = not facts.get("in_guest", True)
            allowed = {"namespace-unread": shared, "not-run": shared, "recursion": share <= max(may_miss, MISSED.get(facts["mechanism"], MISSED_ELSE)), "no-return": open_still <= recursion + OPEN_AT_END}
            bad = {cause: n for cause, n in losses.items() if not allowed.get(cause)}
            add(f"the record{' of ' + d['name'] if several else ''} lost nothing", not bad, f"lost: {bad}")
            lost += sum(losses.get(cause, 0) for cause in ("ring-full", "packet-table-full", "disk"))
            missed = max(missed, share)
            lacking_calls += recursion + open_still + not_run
        return lost, missed, lacking_calls
    except (Refusal, ValueError) as e:
        add("kpat integrate ends with 0", False, str(e))
        return 0, 0, 0


def apart(out: Path, names) -> list[dict]:
    """Without captures nothing joins several recordings: each by itself, as of one device."""
    shutil.rmtree(out / "run.kpat", ignore_errors=True)
    (out / "run.kpat").mkdir()
    return [{**look.integrate(out / f"{n}.kbl", [], out / "run.kpat" / f"{n}.kpat"), "name": n, "source": f"{n}.kbl"} for n in names]


def judge_packets(x: dict, log: look.Log, lacking_calls: int = 0) -> tuple[bool, str]:
    """How many of the packets that fit the expression have all that is asked of one packet. Where kpat says that it missed calls, a
    hundredth of the packets may lack a function (one call can have a list of packets) or, where a number is asked for, be lacking."""
    rows = log.packets(x["packets"])
    asked = [k for k in ("functions", "without", "footprints", "same", "lineage", "reason", "verdict", "frames") if k in x]
    if not asked:
        return within(len(rows), {"min": 1, **x} if "max" not in x and "equals" not in x else x), f"{len(rows)} packets"
    good, cut, nearest = 0, 0, None
    for d in log.details(rows):
        lacks = lacking(x, d)
        good += not lacks
        cut += bool(lacks) and all(f in x.get("functions", []) for f in lacks)
        if lacks and (nearest is None or len(lacks) < len(nearest[1])):
            nearest = d["packet"]["packet_id"], lacks
    words = f"{good} of {len(rows)} packets have it" + (f"; packet {nearest[0]} lacks {', '.join(nearest[1])}" if nearest else "")
    if lacking_calls and 0 < cut <= max(1, len(rows) // 100):
        words += f"; {cut} lack a function, and kpat says that it missed {lacking_calls} calls"
        good += cut
    elif lacking_calls and good == len(rows) and 0 < x.get("equals", 0) - good <= max(1, x["equals"] // 100):
        words += f"; kpat says that it missed {lacking_calls} calls"
        good = x["equals"]
    whole = x.get("share") is None or good >= x["share"] * len(rows)
    return whole and within(good, x if "max" in x or "equals" in x else {"min": 1, **x}), words


def lacking(x: dict, d: dict) -> list[str]:
    names, p = set(look.path(d)), d["packet"]
    lacks = [f for f in x.get("functions", []) if not look.has(names, f)]
    lacks += [f"absence of {f}" for f in x.get("without", []) if look.has(names, f)]
    for want in x.get("footprints", []):
        pairs = dict(w.split("=", 1) for w in want.split())
        if not any(all(str(f["fields"].get(k)) == v for k, v in pairs.items()) for f in d["footprints"]):
            lacks.append(f"a footprint {want}")
    for field in x.get("same", []):
        values = {f["fields"].get(field) for f in d["footprints"]} - {None}
        # What was acknowledged is cut off a packet before it is sent again (tcp_trim_head).
        trimmed = field == "tcp_seq" and values and max(values) - min(values) < p["len_bytes"]
        if len(values) > 1 and not trimmed:
            lacks.append(f"one {field} (has {', '.join(map(str, sorted(values)))})")
    lacks += [f"lineage {kind}" for kind in x.get("lineage", []) if kind not in {w["kind"] for w in d["lineage"]}]
    if "reason" in x and p["drop_reason"] not in x["reason"].split("|"):
        lacks.append(f"reason {x['reason']} (has {p['drop_reason']})")
    if "verdict" in x and p["verdict"] not in x["verdict"].split("|"):
        lacks.append(f"verdict {x['verdict']} (has {p['verdict']})")
    seen = [f["capture"].split(".")[0] for f in d["frames"]]
    for name in x.get("frames", []):
        n = seen.count(name)
        if n < x.get("frames_each", 1):
            lacks.append(f"a frame in {name}" if n == 0 else f"more than {n} frames in {name}")
    return lacks


def judge_matched(x: dict, log: look.Log, out: Path, facts: dict, missed: float) -> tuple[bool, str]:
    """How many of the frames that tshark's filter finds in one capture have a packet in the kernel. What kpat says that it missed counts for it."""
    file = facts["captures"][x["matched"]]["file"]
    frames = set(frame_numbers(out / file, x.get("filter")))
    n = len(frames & {number for capture, number in log.frames() if capture == file})
    allowed = missed if missed > 0.001 else 0
    whole = n >= (x.get("share", 1.0) - allowed) * len(frames) and len(frames) > 0
    return whole and within(n, x), f"{n} of {len(frames)} frames are matched"


def frame_numbers(p: Path, display_filter: str | None) -> list[int]:
    argv = [cache.tool("tshark", "tshark"), "-n", "-r", str(p), "-T", "fields", "-e", "frame.number"] + (["-Y", display_filter] if display_filter else [])
    return [int(n) for n in cache.run(argv, f"tshark on {p.name}", timeout=120).stdout.split()]
