"""What kpat says of an integrated log. The only place that knows the shapes of its JSON (docs/cli.md)."""
import json
import shutil
import subprocess
from pathlib import Path

from . import cache, play


def kpat(*args: str, seconds: float = 300) -> subprocess.CompletedProcess:
    """Run kpat to its end, whatever its exit code."""
    return subprocess.run([play.kpat_path(), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)


def kpat_json(*args: str) -> dict:
    return json.loads(cache.run([play.kpat_path(), *args, "--json"], f"kpat {args[0]}", timeout=300).stdout)


def integrate(log: Path | list[Path], captures: list[Path], to: Path) -> dict:
    """Make an integrated log, of one device or several; what `kpat integrate` says of it."""
    shutil.rmtree(to, ignore_errors=True)
    logs = log if isinstance(log, list) else [log]
    return kpat_json("integrate", *map(str, logs), *map(str, captures), "-o", str(to))


def crossings(path: Path) -> list[dict]:
    """Of an integrated log of several devices: every frame with its crossings."""
    return kpat_json("frames", str(path), "-n", "0")["frames"]


class Log:
    """An integrated log, read through the command line as a user would; of several devices that of one."""

    def __init__(self, path: Path, device: str | None = None):
        self.path, self.seen, self.kept = str(path / f"{device}.kpat" if device else path), {}, {}

    def info(self) -> dict:
        return kpat_json("info", self.path)

    def packets(self, expression: str = "") -> list[dict]:
        return self.once(f"packets {expression}", lambda: self._packets(expression))

    def _packets(self, expression: str) -> list[dict]:
        return kpat_json("packets", self.path, "-n", "0", *([expression] if expression else []))["packets"]

    def once(self, what: str, make):
        if what not in self.kept:
            self.kept[what] = make()
        return self.kept[what]

    def frames(self) -> dict[tuple[str, int], list[dict]]:
        """The packets of each frame that has some, by capture file and number."""
        return self.once("frames", lambda: {(f["capture"], f["number"]): f["packets"] for f in kpat_json("frames", self.path, "-n", "0")["frames"] if f["packets"]})

    def lives(self) -> dict[int, tuple[int, int]]:
        """First and last moment of each packet, boot clock."""
        return self.once("lives", lambda: {p["packet_id"]: (p["first_boot_ns"], p["last_boot_ns"]) for p in self.packets()})

    def boot_less_wall(self) -> int:
        """The device's two clocks, as its recorder read them together."""
        r = self.once("info", self.info)["recording"]
        return r["started_boot_ns"] - r["started_wall_ns"]

    def boot_id(self) -> str:
        """Two devices with the same one share a clock."""
        return self.once("info", self.info)["recording"]["boot_id"]

    def functions(self) -> dict[str, dict]:
        """By name, all that were probed. Rows of one name in several modules are added up where they count."""
        found: dict[str, dict] = {}
        for f in kpat_json("functions", self.path, "-n", "0", "--unused")["functions"]:
            if f["function"] in found:
                found[f["function"]]["calls"] += f["calls"]
            else:
                found[f["function"]] = f
        return found

    def calls_between(self, since_ns: int, until_ns: int) -> dict[str, int]:
        """Calls of each function that began in a stretch of the boot clock."""
        question = f"select name, count(*) as calls from call join function using (func_id) where entry_ns >= {since_ns} and entry_ns < {until_ns} group by name"
        return {r["name"]: r["calls"] for r in kpat_json("sql", self.path, question)}

    def events(self, *kinds: str) -> list[dict]:
        return kpat_json("events", self.path, "-n", "0", *(["--kind", ",".join(kinds)] if kinds else []))["events"]

    def details(self, rows: list[dict]) -> list[dict]:
        """Everything of each packet, several hundred at a time."""
        ids = [r["packet_id"] for r in rows]
        asked = [i for i in ids if i not in self.seen]
        for some in (asked[i:i + 500] for i in range(0, len(asked), 500)):
            words = ",".join(map(str, some)) if len(some) > 1 else f"{some[0]}"
            reported = kpat_json("packet", words, self.path)
            self.seen |= {d["packet"]["packet_id"]: d for d in (reported["packets"] if len(some) > 1 else [reported])}
        return [self.seen[i] for i in ids]


def path(detail: dict) -> list[str]:
    """Names of the functions in the order in which the packet met them."""
    return [c["function"] for c in detail["calls"]]


def has(names, wanted: str) -> bool:
    """`a|b`: one of these is there. Kernels name the same step differently."""
    return any(w in names for w in wanted.split("|"))
