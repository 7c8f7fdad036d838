"""A connection between two namespaces that is slow for a known cause: over a path of tools/path.py, by tools/held.py at both ends."""
import json
import sys
from pathlib import Path
from typing import NamedTuple

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import sh

HELD = [sys.executable, str(LAB / "tools/held.py")]
PATH = [sys.executable, str(LAB / "tools/path.py")]


class Made(NamedTuple):
    """What came of it: the integrated log, what the sender, the receiver and the path printed."""
    log: Path
    sender: dict
    receiver: list[str]
    path: list[str]


def without(words: list[str], option: str) -> list[str]:
    """Command line words without an option and its value."""
    return [w for i, w in enumerate(words) if w != option and (i == 0 or words[i - 1] != option)]


def make(test, name: str, net: str, port: int, record: list[str], way=(), recv=(), send=(), tc=(), also=()) -> Made:
    """Runs it with a recorder beside; `also`: with a second one, which records these namespaces into a log of its own. `test` has two namespaces (a, b), a folder (dir), a stack of what must end, and the kpat to use (kpat)."""
    ends = f"{net}.1", f"{net}.2"
    path = play.Process(f"{name}-path", [*PATH, test.a, f"{ends[0]}/24", test.b, f"{ends[1]}/24", *map(str, way)], test.dir)
    test.stack.callback(path.stop)
    path.wait_ready(lambda: "ready" in play.text_of(path.stdout), cache.patience())
    if tc:
        sh("tc", "-n", test.a, "qdisc", "add", "dev", "t0", "root", *tc)
    recorders = []
    log = test.dir / f"{name}.kbl"
    shared = ["-f", f"tcp port {port}", "--no-cost"]
    where = [record, [*without(record, "--netns"), *also]] if also else [record]
    for place, words in zip((log, test.dir / f"{name}-also.kbl"), where):
        ready = place.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        recorder = play.Process(f"{place.stem}-record", [test.kpat, "record", *words, *shared, "-o", str(place), "--ready-file", str(ready)], test.dir)
        test.stack.callback(recorder.stop)
        recorder.wait_ready(ready.exists, cache.patience())
        recorders.append((recorder, place))
    sink = play.Process(f"{name}-sink", ["ip", "netns", "exec", test.b, *HELD, "recv", ends[1], str(port), *map(str, recv)], test.dir)
    test.stack.callback(sink.stop)
    sink.wait_ready(lambda: "listening" in play.text_of(sink.stdout), cache.patience())
    sent = sh("ip", "netns", "exec", test.a, *HELD, "send", ends[1], port, *send, seconds=120)
    wait_for(lambda: sink.p.poll() is not None, 60, "the receiver has read all")
    for recorder, _ in recorders:
        test.assertEqual(recorder.stop(), 0, play.text_of(recorder.stderr)[-500:])
    path.stop()
    out = test.dir / f"{name}.kpat"
    sh(test.kpat, "integrate", *(place for _, place in recorders), "-o", out, "--force")
    return Made(out, json.loads(sent.stdout), play.text_of(sink.stdout).splitlines(), play.text_of(path.stdout).splitlines())
