"""Where the lab keeps what it fetched, and how it speaks.

A refusal is one sentence with its remedy; progress goes to stderr; nothing here knows what is kept.
"""
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
REPO = LAB.parent


class Refusal(Exception):
    """The lab cannot do what was asked: what, why, remedy in one sentence. Nothing was changed."""


class Busy(Refusal):
    """Somebody else has it, for longer than one waits."""


def root() -> Path:
    """The cache folder, made if absent: $KPAT_LAB_CACHE or .lab/ in the repository."""
    p = Path(os.environ.get("KPAT_LAB_CACHE") or REPO / ".lab").resolve()
    try:
        p.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise Refusal(f"cannot make the cache folder {p}: {e.strerror}; set KPAT_LAB_CACHE to a folder that can be written") from None
    return p


def say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def need_space(megabytes: int, what: str) -> None:
    st = os.statvfs(root())
    free = st.f_bavail * st.f_frsize // 1_000_000
    if free < megabytes:
        raise Refusal(f"{what} needs {megabytes} MB in {root()} and {free} MB are free; free some space or set KPAT_LAB_CACHE to another disk")


def patience() -> float:
    """Seconds that something may take to be ready: 120 on an idle machine, up to 1,200 where others want its processors, too. A guest does
    not see who else wants them and learns it from this."""
    if reported := os.environ.get("KPAT_LAB_PATIENCE"):
        return float(reported)
    return min(1200.0, 120.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def tool(name: str, package: str) -> str:
    """Path of a program, or a refusal that names the Debian package that has it."""
    for d in (os.environ.get("PATH", "") + ":/usr/sbin:/sbin").split(":"):
        p = os.path.join(d, name)
        if d and os.access(p, os.X_OK):
            return p
    raise Refusal(f"{name} is not on this machine; run scripts/setup test, or as root: apt-get install {package}")


def run(args: list[str], what: str, **kw) -> subprocess.CompletedProcess:
    """Run to the end; on failure refuse with the command's last words."""
    kw.setdefault("timeout", 900)
    try:
        r = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=kw.pop("stdin", subprocess.DEVNULL), **kw)
    except subprocess.TimeoutExpired:
        raise Refusal(f"{what}: no end after {kw['timeout']} s; try again, or look at the network") from None
    except OSError as e:
        raise Refusal(f"{what}: {args[0]}: {e.strerror}") from None
    if r.returncode:
        words = [x for x in r.stderr.decode(errors="replace").strip().splitlines() if x.strip()] or ["no message"]
        word = next((x for x in words if "Failed to fetch" in x), words[-1])  # apt says the reason before its summary
        raise Refusal(f"{what}: {word.strip()} ({os.path.basename(args[0])} exit {r.returncode})")
    return r


class Lock:
    """One user of `name` at a time, across processes; waits at most `seconds`."""

    def __init__(self, name: str, seconds: float, busy: str):
        self.path, self.seconds, self.busy = root() / f"{name}.lock", seconds, busy

    def __enter__(self):
        self.f = open(self.path, "w")
        end, reported = time.monotonic() + self.seconds, False
        while True:
            try:
                fcntl.flock(self.f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError:
                if time.monotonic() > end:
                    raise Busy(f"{self.busy} for more than {self.seconds:.0f} s; wait for it to end, or use another KPAT_LAB_CACHE") from None
                if not reported:
                    say(f"{self.busy}; waiting")
                    reported = True
                time.sleep(0.1)

    def __exit__(self, *_):
        self.f.close()
