"""What a scenario expected against what came: run it, judge it, write verdict.json.

Truth comes from outside kpat where it can: frames are counted by tshark, deliveries by the generators' own
numbers. Expectations on kpat's tables are skipped, and said to be, when nothing was recorded.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import cache, guest, kernel, play, scenario
from .cache import LAB, Refusal, say


def run_scenario(a) -> int:
    s = scenario.load(a.scenario)
    if a.nic:
        s.use_nics(a.nic)
    record = s.record is not None and not a.no_record
    if record:
        play.kpat_path()
    out = (a.keep or cache.root() / "runs" / f"{s.name}-{a.kernel}").resolve()
    if not a.keep:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    boot = None
    if a.kernel == "host":
        on_host(s, out, record)
    else:
        boot = in_guest(s, out, record, a)
    try:
        facts = json.loads((out / "play.json").read_text())
    except (OSError, ValueError):
        raise Refusal(f"{s.name} on {a.kernel} left no play.json; see {out}/console.log and {out}/play.err") from None
    results = judge(s, out, facts)
    bad = [r for r in results if r["result"] == "fail"]
    verdict = {"scenario": s.name, "kernel": a.kernel, "release": facts["kernel"], "recorded": facts["recorded"], "pass": not bad,
               "seconds": round(time.monotonic() - began, 1), "boot_seconds": boot, "results": results}
    (out / "verdict.json").write_text(json.dumps(verdict, indent=1) + "\n")
    for r in results:
        say(f"{r['result']:7} {r['what']}" + (f": {r['detail']}" if r["result"] != "pass" and r["detail"] else ""))
    say(f"{s.name} on {facts['kernel']}: {'passed' if not bad else f'{len(bad)} of {len(results)} failed'} in {verdict['seconds']} s; results in {out}")
    print(out)
    return 1 if bad else 0


def on_host(s: scenario.Scenario, out: Path, record: bool) -> None:
    if os.geteuid() != 0:
        raise Refusal("network namespaces on this machine need root; run as root, or in a guest (--kernel 6.12)")
    if s.nics():
        raise Refusal(f"{s.name} has emulated cards ({', '.join(sorted(set(s.nics())))}), which this machine does not have; run it in a guest (--kernel 6.12)")
    play.play(s, out, prefix=f"kl{os.getpid()}-", in_guest=False, record=record)


def in_guest(s: scenario.Scenario, out: Path, record: bool, a) -> float | None:
    k = kernel.open_kernel(a.kernel)
    name = str(scenario.path_of(a.scenario).resolve())
    (out / "spec.json").write_text(json.dumps({"scenario": name, "out": "/lab", "record": record, "nic": a.nic}))
    env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1"}
    if "KPAT" in os.environ:
        env["KPAT"] = os.path.abspath(os.environ["KPAT"])
    argv = [os.path.realpath(sys.executable), "-m", "kpatlab.play", "/lab/spec.json"]
    with open(out / "play.out", "wb") as o, open(out / "play.err", "wb") as e:
        r = guest.run(k, argv, out, det=a.det, smp=a.smp, mem=a.mem, nics=s.nics(), timeout=max(a.timeout, s.timeout), cwd="/", env=env, sinks=(o.fileno(), e.fileno()))
    return round(r.marks.get("LAB-CMD", 0), 1)


def judge(s: scenario.Scenario, out: Path, facts: dict) -> list[dict]:
    results: list[dict] = []

    def add(what: str, ok: bool | None, detail: str = "") -> None:
        results.append({"what": what, "result": "skipped" if ok is None else "pass" if ok else "fail", "detail": detail})

    if "refused" in facts:
        add("the scenario was played", False, facts["refused"])
        return results
    for name, c in facts["commands"].items():
        if c["expected"] != "any":
            add(f"{name} exits with {c['expected']}", c["rc"] == c["expected"], f"exit {c['rc']}: {last_words(out / (name + '.err'))}")
    for name, c in facts["captures"].items():
        add(f"the sniffer {name} lost nothing", c["rc"] == 0 and c["lost"] == 0, f"exit {c['rc']}, lost {c['lost']}")
    if facts["recorded"]:
        add("kpat record ends with 0", facts.get("record_rc") == 0, f"exit {facts.get('record_rc')}: {last_words(out / 'record.err')}")
        integrate(s, out, facts, add)
    for i, x in enumerate(s.expect):
        what = x.get("what") or " ".join(f"{k}={v}" for k, v in x.items())
        try:
            if ("packets" in x or x.get("needs_record")) and not facts["recorded"]:
                add(what, None, "nothing was recorded")
            elif "command" in x:
                add(what, *judge_command(x, out, facts["expect"].get(str(i))))
            elif "capture" in x:
                n = count_frames(out / facts["captures"][x["capture"]]["file"], x.get("filter"))
                add(what, within(n, x), f"{n} frames")
            elif "output" in x:
                add(what, *judge_output(x, out))
            else:
                add(what, *judge_packets(x, out))
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
    return lines[-1] if lines else "it said nothing"


def count_frames(p: Path, display_filter: str | None) -> int:
    argv = [cache.tool("tshark", "tshark"), "-n", "-r", str(p), "-T", "fields", "-e", "frame.number"] + (["-Y", display_filter] if display_filter else [])
    return len(cache.run(argv, f"tshark on {p.name}", timeout=120).stdout.split())


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


def integrate(s: scenario.Scenario, out: Path, facts: dict, add) -> None:
    """One integrated log of the record and all captures, for the expectations on packets."""
    argv = [play.kpat_path(), "integrate", str(out / "record.kbl"), *[str(out / c["file"]) for c in facts["captures"].values()], "-o", str(out / "run.kpat")]
    shutil.rmtree(out / "run.kpat", ignore_errors=True)
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    add("kpat integrate ends with 0", r.returncode == 0, r.stdout.decode(errors="replace").strip()[-200:])


def kpat_json(*args: str) -> list | dict:
    return json.loads(cache.run([play.kpat_path(), *args, "--json"], f"kpat {args[0]}", timeout=120).stdout)


def judge_packets(x: dict, out: Path) -> tuple[bool, str]:
    """At least `min` packets that match the filter have every name of `functions` in their path.

    Reads what `kpat packets LOG -f FILTER --json` and `kpat packet ID LOG --json` print: a list of objects with
    `packet_id`; an object with `calls`, each with `function`. This is the only place that knows these shapes.
    """
    log = str(out / "run.kpat")
    rows = kpat_json("packets", log, *(["-f", x["packets"]] if x["packets"] else []))
    if "functions" not in x:
        return within(len(rows), x), f"{len(rows)} packets"
    want, complete, nearest = set(x["functions"]), 0, set(x["functions"])
    for row in rows[:500]:
        missing = want - {c["function"] for c in kpat_json("packet", str(row["packet_id"]), log)["calls"]}
        complete += not missing
        nearest = min(nearest, missing, key=len)
    return within(complete, {"min": 1, **x}), f"{complete} of {len(rows)} packets have the path" + (f"; the nearest lacks {', '.join(sorted(nearest))}" if nearest else "")
