"""Packages from the Debian archive, unpacked and never installed.

Each suite has its own sources file, lists and cache below the lab's cache, so the machine's apt is neither
read from (but for the mirror's address) nor changed. apt checks the archive's signatures; a key that this
machine does not have is a refusal, never an exception.
"""
import os
import re
from functools import lru_cache
from pathlib import Path

from . import cache
from .cache import Refusal, run, say

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@lru_cache(None)
def mirrors() -> dict[str, str]:
    """The addresses this machine's apt uses: {'main': ..., 'security': ...}."""
    found = {}
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for f in files:
        try:
            text = f.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        uris = re.findall(r"^URIs:\s*(\S+)", text, re.M) + re.findall(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)", text, re.M)
        for u in uris:
            u = u.rstrip("/")
            if u.endswith("/debian-security"):
                found.setdefault("security", u)
            elif u.endswith("/debian"):
                found.setdefault("main", u)
    if "main" not in found:
        raise Refusal("this machine's apt sources name no Debian mirror; add one to /etc/apt/sources.list.d (any Debian's will do)")
    found.setdefault("security", found["main"] + "-security")
    return found


class Suite:
    """One suite of the archive, for example `trixie-backports`."""

    def __init__(self, name: str, arch: str = "amd64"):
        self.name, self.arch = name, arch
        self.dir = cache.root() / "apt" / (name if arch == "amd64" else f"{name}-{arch}")

    def _apt(self, program: str, *args: str, what: str, **kw):
        d = self.dir
        opts = {"Dir::Etc::sourcelist": d / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": d / "lists",
                "Dir::Cache": d / "cache", "Dir::State::status": d / "status", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
                "Acquire::Languages": "none", "Acquire::Retries": 2, "Acquire::http::Timeout": 30, "APT::Architecture": self.arch}
        if os.geteuid() == 0:
            opts["APT::Sandbox::User"] = "root"
        argv = [cache.tool(program, "apt"), "-q"]
        for k, v in opts.items():
            argv += ["-o", f"{k}={v}"]
        return run(argv + list(args), what, env={**os.environ, "LC_ALL": "C"}, **kw).stdout.decode()

    def update(self) -> None:
        """Fetch the suite's index (10 MB for a full suite, 0.3 MB for backports)."""
        if not KEYRING.exists():
            raise Refusal(f"{KEYRING} is missing, so packages cannot be checked; as root: apt-get install debian-archive-keyring")
        for sub in ("lists/partial", "cache/archives/partial"):
            (self.dir / sub).mkdir(parents=True, exist_ok=True)
        (self.dir / "status").touch()
        uri = mirrors()["security" if self.name.endswith("-security") else "main"]
        (self.dir / "sources.list").write_text(f"deb [arch={self.arch} signed-by={KEYRING}] {uri} {self.name} main\n")
        say(f"reading the index of {self.name}")
        try:
            self._apt("apt-get", "update", "--error-on=any", what=f"the index of {self.name}")
        except Refusal as e:
            t = str(e)
            if "NO_PUBKEY" in t or "not signed" in t or "signature" in t.lower():
                raise Refusal(f"{self.name} is signed with a key that this machine's {KEYRING} lacks; install a newer debian-archive-keyring ({t})") from None
            raise Refusal(f"{t}; is the mirror {uri} reachable? What was fetched before stays usable") from None

    def names(self, pattern: str) -> list[str]:
        """Package names that match the regular expression, as a whole."""
        out = self._apt("apt-cache", "search", "--names-only", f"^{pattern}$", what=f"looking in {self.name}")
        return [line.split()[0] for line in out.splitlines() if line.strip()]

    def show(self, package: str) -> dict[str, str]:
        """The newest version's fields; empty when there is no such package."""
        try:
            out = self._apt("apt-cache", "--no-all-versions", "show", package, what=f"{package} in {self.name}")
        except Refusal:
            return {}
        return dict(re.findall(r"^([A-Za-z-]+): (.*)$", out.split("\n\n")[0], re.M))

    def depends(self, package: str) -> list[str]:
        """First choice of each dependency, names only."""
        f = self.show(package)
        text = ",".join(f.get(k, "") for k in ("Pre-Depends", "Depends"))
        return [re.split(r"[ |(:]", p.strip())[0] for p in text.split(",") if p.strip()]

    def unpack(self, package: str, into: Path) -> str:
        """Download one package, check it, unpack it below `into`, drop the archive; its version."""
        f = self.show(package)
        if not f:
            raise Refusal(f"no package {package} in {self.name}; run again with --refresh, the archive may have moved on")
        mb = int(f.get("Size", 0)) // 1_000_000
        cache.need_space(mb * 6 + 50, package)
        dl = self.dir / "download"
        dl.mkdir(exist_ok=True)
        for old in dl.iterdir():
            old.unlink()
        say(f"downloading {package} {f['Version']} ({mb} MB)")
        self._apt("apt-get", "download", package, what=f"downloading {package}", cwd=dl)
        deb = next(dl.glob("*.deb"))
        into.mkdir(parents=True, exist_ok=True)
        run([cache.tool("dpkg-deb", "dpkg"), "-x", str(deb), str(into)], f"unpacking {package}")
        deb.unlink()
        return f["Version"]
