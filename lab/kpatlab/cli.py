"""The command line of the lab. Words go to stderr, the guest's stdout to stdout; exit 0 done, 1 failed, 2 wrong usage."""
import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import cache, emulator, guest, kernel, peers, scenario, verdict
from .cache import LAB, Busy, Refusal, say


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="lab", description="Hosts to test kpat on: network namespaces here, or QEMU guests with Debian kernels.")
    sub = p.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    f = sub.add_parser("fetch", help="download and prepare kernels (6.1, 6.12, 7.2, another X.Y, all), qemu or a peer")
    f.add_argument("what", nargs="*", default=["all"], metavar="KERNEL|all|qemu|" + "|".join(peers.NAMES))
    f.add_argument("--refresh", action="store_true", help="look for newer packages and unpack again")
    f.add_argument("--source", metavar="DIR", type=Path, help=f"build {' or '.join(peers.BUILT)} from the source in this folder instead of cloning it")
    f.add_argument("--no-trial", action="store_true", help="do not boot a fetched kernel once to see that it works")
    r = sub.add_parser("run", help="run scenarios in a guest (one boot for all with the same cards), or here with --kernel host")
    r.add_argument("scenario", nargs="+")
    r.add_argument("--kernel", required=True, metavar="SERIES|host")
    r.add_argument("--keep", metavar="DIR", type=Path, help="folder for the results (default: below the cache, overwritten by the next run)")
    r.add_argument("--no-record", action="store_true", help="leave out kpat and the expectations that need it")
    r.add_argument("--nic", choices=emulator.NIC_MODELS, help="use emulated cards of this model for all links")
    r.add_argument("--entry-only", choices=("leaves", "all"), default="", help="record no returns of these functions")
    r.add_argument("--detail", choices=("steps", "spine", "full"), default="", help="record with this detail; of the functions expected those that it has (default: the scenario's, full)")
    e = sub.add_parser("exec", help="run one command in a guest")
    e.add_argument("--kernel", required=True, metavar="SERIES")
    e.add_argument("--nic", choices=emulator.NIC_MODELS, help="four cards on two hubs (0-1 and 2-3)")
    e.add_argument("--keep", metavar="DIR", type=Path, help="the folder that is /lab in the guest (default: temporary)")
    e.add_argument("--topology", metavar="SCENARIO", help="make that scenario's namespaces and links first")
    e.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    e.add_argument("command", nargs="+", metavar="-- CMD")
    for x in (r, e):
        x.add_argument("--timeout", type=float, default=180, metavar="S", help="end the guest after S seconds (default 180)")
        x.add_argument("--boot", choices=kernel.BOOTS, default="elf", help="what is booted: the unpacked ELF, or the distribution's image (slower; five-level page tables)")
        x.add_argument("--det", action="store_true", help="deterministic: one CPU, guest time counts instructions")
        x.add_argument("--smp", type=int, default=2, metavar="N")
        x.add_argument("--mem", type=int, default=1024, metavar="MB")
    b = sub.add_parser("build", help="compile a C tool of lab/tools into the cache, print its path")
    b.add_argument("tool", metavar="pktbench")
    sub.add_parser("list", help="scenarios, kernels and QEMU that are here")
    return p


def main(argv: list[str]) -> int:
    a = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who ends the lab ends its guest
    try:
        return {"fetch": do_fetch, "run": do_run, "exec": do_exec, "build": do_build, "list": do_list}[a.verb](a)
    except Refusal as e:
        say(str(e))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def do_fetch(a) -> int:
    for w in a.what:
        if w in peers.NAMES:
            print(peers.fetch(w, a.refresh, a.source))
        elif w == "qemu":
            print(emulator.fetch().version())
        else:
            for series in kernel.KERNELS if w == "all" else [w]:
                k = kernel.fetch(series, a.refresh)
                if "trial" not in k.facts and not a.no_trial:
                    trial(k)
                print(f"{series}\t{k.release}\t{k.facts['suite']}")
    return 0


def trial(k: kernel.Kernel) -> None:
    """Boot once; if the system's QEMU cannot, fetch QEMU 10 and try with that."""
    q = emulator.choose()
    say(f"trying {k.release} with QEMU {q.version()} ({q.origin})")
    with tempfile.TemporaryDirectory(prefix="kpat-lab-") as t:
        try:
            r = guest.run(k, ["true"], Path(t), timeout=120, cwd="/")
        except Refusal as e:
            if q.origin != "system" or isinstance(e, Busy):
                raise
            say(f"{e}; fetching QEMU 10")
            emulator.fetch()
            r = guest.run(k, ["true"], Path(t), timeout=120, cwd="/")
    if r.rc:
        raise Refusal(f"the {k.series} guest could not run `true` (exit {r.rc}); run lab/lab exec --kernel {k.series} --keep DIR -- true and read DIR/console.log")
    k.save(trial=round(r.marks.get("LAB-CMD", r.seconds), 1))
    say(f"{k.release} came to its first command after {k.facts['trial']} s")


def do_exec(a) -> int:
    k = kernel.open_kernel(a.kernel, a.boot)
    env = {"KPAT_LAB_NIC": a.nic} if a.nic else {}
    for x in a.env:
        n, eq, v = x.partition("=")
        if not eq:
            raise Refusal(f"--env {x}: say NAME=VALUE")
        env[n] = v
    argv, cards, cwd = a.command, [a.nic] * 2 if a.nic else [], os.getcwd()
    if a.topology:
        s = scenario.load(a.topology)
        if a.nic:
            s.use_nics(a.nic)
        cards = s.nics()
        env |= {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [os.path.realpath(sys.executable), "-m", "kpatlab.play", "--within", str(scenario.path_of(a.topology).resolve()), a.nic or "-", *argv]
    share = a.keep or Path(tempfile.mkdtemp(prefix="kpat-lab-"))
    try:
        return guest.run(k, argv, share, det=a.det, smp=a.smp, mem=a.mem, nics=cards, timeout=a.timeout, env=env, cwd=cwd).rc
    finally:
        if not a.keep:
            shutil.rmtree(share, ignore_errors=True)


def do_build(a) -> int:
    src = LAB / "tools" / f"{a.tool}.c"
    if not src.exists():
        raise Refusal(f"no {a.tool}.c in lab/tools; there are: {', '.join(p.stem for p in sorted(src.parent.glob('*.c')))}")
    out = cache.root() / "bin" / a.tool
    if not out.exists() or out.stat().st_mtime < src.stat().st_mtime:
        out.parent.mkdir(exist_ok=True)
        cache.run([cache.tool("cc", "gcc"), "-O2", "-Wall", "-static", "-o", str(out), str(src)], f"compiling {src.name}")
    print(out)
    return 0


def do_run(a) -> int:
    return verdict.run_scenarios(a)


def do_list(a) -> int:
    for s in scenario.all_scenarios():
        print(f"scenario\t{s.name}\t{s.title}")
    for k in kernel.fetched():
        print(f"kernel\t{k.series}\t{k.release} ({k.facts['suite']})")
    try:
        q = emulator.choose()
        print(f"qemu\t{q.version()}\t{q.origin}")
    except Refusal as e:
        say(str(e))
    return 0
