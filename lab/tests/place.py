"""Where a test is: commands that have to work, a folder and network namespaces of its own, gone when it is over."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from kpatlab import cache, kernel, play
from kpatlab.cache import LAB


def sh(*argv, ok=True, seconds=300, **env) -> subprocess.CompletedProcess:
    r = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds,
                       env={**os.environ, **env}, text=True)
    if ok and r.returncode:
        raise AssertionError(f"{' '.join(map(str, argv))} ended with {r.returncode}: {r.stdout}{r.stderr}")
    return r


def kpat_for_guests(*series: str, tap: bool = False) -> str:
    """The kpat that is tested; the class is skipped without these kernels, or without a tap where it needs one."""
    for one in series:
        if not kernel.Kernel(one).ready():
            raise unittest.SkipTest(f"kernel {one} was not fetched: lab/lab fetch {one}")
    if tap and not os.path.exists("/dev/net/tun"):
        raise unittest.SkipTest("no /dev/net/tun: a guest cannot have a tap here")
    return os.path.abspath(play.kpat_path())


def still(case: unittest.TestCase, name: str, values) -> list:
    """What a test goes through in subtests that are called by it: where it is run once more, those that failed."""
    failed = getattr(case, "failed_before", None)
    return [v for v in values if not failed or any(part.get(name) == v for part in failed)]


def linux_before(*version: int) -> bool:
    """This kernel is older, by its first two numbers."""
    return tuple(int(n) for n in os.uname().release.split(".")[:2]) < version


def probed() -> list[str]:
    """Words of `kpat record`: tracepoints, and in guests functions of this detail, by the best mechanism of their kernel."""
    how = os.environ.get("KPAT_BY", "tracepoint")
    return ["--mechanism", how] if how == "tracepoint" else ["--detail", how]


def lost(case: unittest.TestCase, info: dict) -> list[dict]:
    """Losses but what the kernel handled without running programs (`not-run`), be it this test's or another's: with that in its log a test that fails is run
    again."""
    case.not_run = any(x["cause"] == "not-run" for x in info["losses"])
    return [x for x in info["losses"] if x["cause"] != "not-run"]


def integrated(case: unittest.TestCase, log: Path) -> Path:
    """What came of a log that was recorded as `probed` says, which had to be possible."""
    store = log.with_suffix(".kpat")
    sh(play.kpat_path(), "integrate", log, "-o", store)
    info = json.loads(sh(play.kpat_path(), "info", store, "--json").stdout)
    mechanism = info["recording"]["mechanism"]
    case.assertEqual(mechanism == "tracepoint", "tracepoint" in probed(), mechanism)
    lost(case, info)
    return store


def inside(case: unittest.TestCase, tests: str, modules: str, detail: str = "steps", keep: Path | None = None, **env) -> str:
    """What these tests print in a guest with the case's `series`, where they record functions and have to pass. What they leave in /lab is in `keep` then."""
    env |= {"KPAT": os.path.abspath(play.kpat_path()), "KPAT_BY": detail}
    words = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    r = sh(LAB / "lab", "exec", "--kernel", case.series, "--timeout", 550, "--smp", 2, "--mem", 3000, *(["--keep", keep] if keep else []), *words, "--", "sh", "-c",
           f"modprobe -a {modules}; cd {LAB} && exec {sys.executable} -m unittest {' '.join(map(by_module, tests.split()))}", ok=False, seconds=2000)
    case.assertEqual(r.returncode, 0, r.stdout[-4000:] + r.stderr[-6000:])
    return r.stdout


def by_module(name: str) -> str:
    """A test as unittest finds it, which then reads one module: all of lab/test take an emulated processor thirteen seconds."""
    cls = name.split(".")[0]
    return next(f"{n}.{name}" for n, m in sys.modules.items() if n.startswith("tests.") and getattr(getattr(m, cls, None), "__module__", None) == n)


class Inside:
    """The case `of`, in a guest with kernel `series` and its `modules`, by functions of this `detail`, with the kernel's best mechanism. Of what it prints lines with `marked` are shown."""

    def test_functions_tell_the_same(self):
        said = inside(self, self.of, self.modules, self.detail)
        print("\n".join(line for line in said.splitlines() if self.marked in line), flush=True)


def own(case: unittest.TestCase, name: str, namespaces: str | list[str], keep: str | None = None) -> list[str]:
    """Gives the test a `stack` of what is undone at its end and a folder `dir` (`keep`: this one, which stays), and returns one namespace
    for each letter or word of `namespaces`."""
    case.stack = contextlib.ExitStack()
    case.addCleanup(case.stack.close)
    case.dir = Path(keep or case.stack.enter_context(tempfile.TemporaryDirectory(prefix=f"kpat-{name}-")))
    case.dir.mkdir(parents=True, exist_ok=True)
    made = [f"k{name[:4]}{os.getpid()}{letter}" for letter in namespaces]
    for ns in made:
        sh("ip", "netns", "add", ns)
        case.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
    return made


def joined(case: unittest.TestCase, name: str, device: str, here: str, there: str, keep: str | None = None) -> list[str]:
    """Two namespaces and a cable between them, whose ends are called the same and have these addresses; see `own`."""
    ends = own(case, name, "ab", keep)
    sh("ip", "link", "add", device, "netns", ends[0], "type", "veth", "peer", "name", device, "netns", ends[1])
    for ns, address in zip(ends, (here, there)):
        for dev in ("lo", device):
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", device)
    return ends


def begun(case: unittest.TestCase, name: str, argv: list, is_ready=lambda p: "ready" in play.text_of(p.stdout)) -> play.Process:
    """A process of a test that has its own place, once it is ready; the test's end stops it."""
    p = play.Process(name, argv, case.dir)
    case.stack.callback(p.stop)
    p.wait_ready(lambda: is_ready(p), cache.patience())
    return p
