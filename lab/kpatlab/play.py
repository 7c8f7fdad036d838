"""One scenario, where its packets run: topology, record, captures, servers, traffic, and all of it ended again.

Runs in the guest (`python -m kpatlab.play SPEC.json`) or on the host with a prefix. It judges nothing: it writes
what happened to OUT/play.json and the outputs beside it; `verdict` judges on the host. Readiness is always a
condition that is polled for a bounded time.
"""
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import cache
from .cache import LAB, REPO, Refusal
from .scenario import Scenario, load
from .topology import Network, wait_for

COMMAND_SECONDS = 60


class Process:
    """A background command: its output in files, ended with SIGINT, then SIGKILL after a bound."""

    def __init__(self, name: str, argv: list[str], out: Path, env=None):
        self.name, self.out = name, out
        self.stdout, self.stderr = out / f"{name}.out", out / f"{name}.err"
        with open(self.stdout, "wb") as o, open(self.stderr, "wb") as e:
            self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=o, stderr=e, start_new_session=True, env=env)

    def wait_ready(self, condition, seconds: float) -> None:
        def ok():
            if self.p.poll() is not None:
                words = (text_of(self.stderr) or text_of(self.stdout)).strip().splitlines()
                raise Refusal(f"{self.name} ended before it was ready (exit {self.p.returncode}): {words[-1] if words else 'it printed nothing'}")
            return condition()

        wait_for(ok, seconds, f"{self.name} ready")

    def stop(self, seconds: float = 20) -> int:
        for sig, bound in ((signal.SIGINT, seconds), (signal.SIGKILL, 10)):
            if self.p.poll() is None:
                try:
                    os.killpg(self.p.pid, sig)
                    self.p.wait(bound)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass
        return self.p.poll() if self.p.poll() is not None else -9


def text_of(p: Path) -> str:
    """A command's output so far. A shared (9p) file that grows while it is read may answer ENODATA: nothing yet."""
    try:
        return p.read_text(errors="replace")
    except OSError as e:
        if e.errno in (errno.ENODATA, errno.ENOENT):
            return ""
        raise


def kpat_path() -> str:
    named = os.environ.get("KPAT")
    for p in [named] if named else [REPO / "target/release/kpat", REPO / "target/debug/kpat"]:
        if os.access(p, os.X_OK):
            return str(p)
    raise Refusal(f"no kpat at {named or 'target/release or target/debug'}; build it (cargo build --release), set KPAT, or give --no-record")


def fill(text: str, out: Path, prefix: str = "") -> str:
    """Replace {out}, {lab}, {repo}, {python}, {kpat}, {prefix} in a scenario's command."""
    words = {"out": out, "lab": LAB, "repo": REPO, "python": sys.executable, "prefix": prefix}
    for k, v in words.items():
        text = text.replace("{%s}" % k, str(v))
    return text.replace("{kpat}", kpat_path()) if "{kpat}" in text else text


def play(s: Scenario, out: Path, *, prefix: str, in_guest: bool, record: bool) -> dict:
    """Run the scenario; what happened, also in OUT/play.json. Everything started is ended, even on a refusal."""
    facts = {"scenario": s.name, "kernel": os.uname().release, "in_guest": in_guest, "recorded": False, "commands": {}, "captures": {}, "seconds": {}}
    began = time.monotonic()

    def lap(name: str) -> None:
        facts["seconds"][name] = round(time.monotonic() - began, 2)

    net, background, captures, recorders = Network(s.topology, prefix, in_guest), [], {}, []
    try:
        if in_guest and s.modules:
            cache.run([cache.tool("modprobe", "kmod"), "-a", *s.modules], "loading modules")
        net.build()
        lap("topology")
        for c in s.capture:
            captures[c["name"]] = start_capture(c, net, out)
            background.append(captures[c["name"]])
        lap("capture")
        for c in s.server:
            p = Process(c["name"], [*net.enter(c["ns"]), "sh", "-c", "exec " + fill(c["run"], out, prefix)], out)
            background.append(p)
            probe = [*net.enter(c["ns"]), "sh", "-c", fill(c["ready"], out, prefix)]
            p.wait_ready(lambda: subprocess.run(probe, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30).returncode == 0, c.get("timeout", cache.patience() / 4))
        lap("servers")
        for r in s.recordings() if record else []:
            recorders.append(start_record(r, net, out))
            background.append(recorders[-1])
            facts["recorded"] = True
            facts["recorded_wall_ns"] = [time.time_ns(), None]
            lap("record")
        for c in s.traffic:
            facts["commands"][c["name"]] = traffic(c, net, out, prefix)
        lap("traffic")
        if recorders:
            facts["recorded_wall_ns"][1] = time.time_ns()
        for recorder in recorders:
            facts.setdefault("records", {})[recorder.name] = recorder.stop(60)
            if recorder.file != recorder.kept and recorder.file.exists():
                shutil.move(recorder.file, recorder.kept)
            lap("record_end")
        for name, p in captures.items():
            facts["captures"][name] = end_capture(p)
        for d in s.derive:
            facts["captures"][d["name"]] = derive(d, out / facts["captures"][d["of"]]["file"], out)
        for c, p in zip(s.server, [b for b in background if b.name in {x["name"] for x in s.server}]):
            facts["commands"][c["name"]] = {"rc": p.stop(), "expected": "any"}
        lap("ended")
        facts["expect"] = {}
        for i, x in enumerate(s.expect):
            if x.get("where") == "dut" and "command" in x:
                r = subprocess.run(["sh", "-c", fill(x["command"], out, prefix)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS)
                facts["expect"][str(i)] = {"rc": r.returncode, "stdout": r.stdout.decode(errors="replace")}
    except (Refusal, OSError, subprocess.TimeoutExpired) as e:
        facts["refused"] = str(e)
    finally:
        for p in reversed(background):
            p.stop()
        net.close()
        if in_guest:
            facts["kernel_warnings"] = kernel_warnings()
        lap("closed")
        (out / "play.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def kernel_warnings() -> list[str]:
    """What this kernel warned of since it was booted: a frame that it drops so is missed elsewhere, far from its cause."""
    r = subprocess.run(["dmesg"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return sorted({m[1] for m in re.finditer(r"(WARNING: .*?)(?:, CPU#.*)?$", r.stdout.decode(errors="replace"), re.MULTILINE)})


def scratch(net: Network, out: Path) -> Path:
    """Where logs are written while packets run. In a guest: its memory, moved out at the end, because a write per packet
    to a shared folder would make a sniffer lose some."""
    folder = Path("/run/scratch") if net.in_guest else out
    folder.mkdir(exist_ok=True)
    return folder


def start_capture(c: dict, net: Network, out: Path) -> Process:
    """A sniffer with nanosecond times, ready: dumpcap says its file, tcpdump that it listens.

    """
    folder = scratch(net, out)
    if c.get("tool", "dumpcap") == "tcpdump":
        suffix, ready = "pcap", "listening on"
        argv = [cache.tool("tcpdump", "tcpdump"), "-Z", "root", "-U", "--immediate-mode", "--time-stamp-precision=nano", "-B", "32768", "-n",
                "-i", c["dev"], "-s", str(c.get("snaplen", 0)), "-w", str(folder / f"{c['name']}.pcap"), *([c["filter"]] if "filter" in c else [])]
    else:
        suffix, ready = "pcapng", "File:"
        argv = [cache.tool("dumpcap", "wireshark-common"), "-q", "-n", "-B", "32", "-i", c["dev"], "-s", str(c.get("snaplen", 0)),
                "-w", str(folder / f"{c['name']}.pcapng"),
                *(["-f", c["filter"]] if "filter" in c else [])]
    p = Process("capture-" + c["name"], [*net.enter(c["ns"]), *argv], out)
    p.file, p.kept = folder / f"{c['name']}.{suffix}", out / f"{c['name']}.{suffix}"
    p.wait_ready(lambda: ready in text_of(p.stderr), cache.patience() / 4)
    return p


def end_capture(p: Process) -> dict:
    """Stop a sniffer, keep its file; how many packets it says it lost (None: it did not say)."""
    settle(p)
    rc = p.stop()
    if p.file != p.kept:
        shutil.move(p.file, p.kept)
    text = text_of(p.stderr)
    m = re.search(r"(\d+) packets? dropped by kernel", text) or re.search(r"Packets received/dropped on interface '[^']*': \d+/(\d+)", text)
    return {"file": p.kept.name, "rc": rc, "lost": int(m[1]) if m else None}


def derive(d: dict, source: Path, out: Path) -> dict:
    """A capture made of another one by a command; `added_s` is what it added to the times."""
    to = out / f"{d['name']}.pcapng"
    cache.run(["sh", "-ec", fill(d["run"].replace("{from}", str(source)).replace("{to}", str(to)), out)], f"making {d['name']}", timeout=60)
    return {"file": to.name, "rc": 0, "lost": 0, "added_s": d.get("added_s", 0)}


def settle(p: Process) -> None:
    """Wait until a capture has been quiet for 0.4 s: a sniffer drops what is still in its ring when it is stopped."""
    seen, since = -1, time.monotonic()
    end = since + 8
    while time.monotonic() < end:
        size = p.file.stat().st_size if p.file.exists() else 0
        if size != seen:
            seen, since = size, time.monotonic()
        elif time.monotonic() - since > 0.4:
            return
        time.sleep(0.05)


def start_record(r: dict, net: Network, out: Path) -> Process:
    folder = scratch(net, out)
    name = r["name"]
    log, ready = folder / f"{name}.kbl", folder / f"{name}.ready"
    argv = [kpat_path(), "record", "-o", str(log), "--ready-file", str(ready)]
    for key, flag in (("filter", "-f"), ("profile", "--profile"), ("mechanism", "--mechanism"), ("detail", "--detail"), ("entry_only", "--entry-only")):
        if key in r:
            argv += [flag, r[key]]
    for n in [r["netns"]] if isinstance(r.get("netns"), str) else r.get("netns", []):
        argv += ["--netns", net.ns(n)]
    ready.unlink(missing_ok=True)
    p = Process(name, argv + [fill(a, out) for a in r.get("args", [])], out)
    p.file, p.kept = log, out / log.name
    p.wait_ready(ready.exists, cache.patience())
    return p


def traffic(c: dict, net: Network, out: Path, prefix: str) -> dict:
    seconds = c.get("timeout", COMMAND_SECONDS)
    began = time.monotonic()
    p = Process(c["name"], [*net.enter(c["ns"]), "sh", "-c", fill(c["run"].replace("{scratch}", str(scratch(net, out))), out, prefix)], out)
    try:
        rc = p.p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.stop(2)
        rc = "timeout"
    return {"rc": rc, "expected": c.get("rc", 0), "seconds": round(time.monotonic() - began, 2)}


def within(name: str, nic: str | None, argv: list[str]) -> int:
    """Build a scenario's topology, run one command beside it (in the first namespace set, not in one of them), take it down."""
    s = load(name)
    if nic:
        s.use_nics(nic)
    net = Network(s.topology, "", True)
    try:
        if s.modules:
            cache.run([cache.tool("modprobe", "kmod"), "-a", *s.modules], "loading modules")
        net.build()
        return subprocess.run(argv, stdin=subprocess.DEVNULL).returncode
    finally:
        net.close()


def main(spec_file: str, *rest: str) -> int:
    """In the guest: 0 when the scenario was played to its end. `--within NAME NIC CMD...` runs a command in a topology."""
    if spec_file == "--within":
        try:
            return within(rest[0], rest[1] if rest[1] != "-" else None, list(rest[2:]))
        except (Refusal, OSError) as e:
            print(f"lab: {e}", file=sys.stderr)
            return 1
    refused = 0
    for spec in json.loads(Path(spec_file).read_text()):
        s = load(spec["scenario"])
        if spec.get("nic"):
            s.use_nics(spec["nic"])
        s.use_detail(spec["detail"], spec["entry_only"])
        Path(spec["out"]).mkdir(exist_ok=True)
        facts = play(s, Path(spec["out"]), prefix="", in_guest=True, record=spec["record"])
        if "refused" in facts:
            print(f"lab: {s.name}: {facts['refused']}", file=sys.stderr)
            refused = 1
    return refused


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
