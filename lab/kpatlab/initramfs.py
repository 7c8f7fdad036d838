"""The first root of a guest: busybox, an init, and the modules it loads, as a newc archive.

Needs neither root nor depmod nor cpio, and is deterministic: the same inputs give the same bytes, which
deterministic runs need. Modules are stored decompressed in load order (`/mods`), so init only has to insmod.
"""
import lzma
import struct
import subprocess
from pathlib import Path

from . import cache
from .cache import Refusal


class Modules:
    """The modules of one unpacked kernel: which there are, what each needs."""

    def __init__(self, tree: Path):
        dirs = [d for base in ("lib/modules", "usr/lib/modules") for d in sorted((tree / base).glob("*")) if (d / "kernel").is_dir()]
        if not dirs:
            raise Refusal(f"no modules in {tree}; run lab/lab fetch with --refresh")
        self.dir = dirs[0]
        self.index = {key(p.name): p for p in (self.dir / "kernel").rglob("*.ko*")}
        self.builtin = {key(Path(x).name) for x in (self.dir / "modules.builtin").read_text().split()}

    def load_order(self, wanted: list[str]) -> dict[str, bytes]:
        """`wanted` and all they depend on, in load order, decompressed. A leading '?' means: if there is one."""
        got: dict[str, bytes] = {}
        seen: set[str] = set()

        def need(name: str, soft: bool) -> None:
            n = key(name)
            if n in seen or n in self.builtin:
                return
            seen.add(n)
            if n not in self.index:
                if soft:
                    return
                raise Refusal(f"this kernel has no module {n}, which a guest needs to start; fetch the full flavour (lab/lab fetch --refresh)")
            blob = unpacked(self.index[n])
            for k, _, v in (x.partition("=") for x in modinfo(blob)):
                if k == "depends":
                    for d in filter(None, v.split(",")):
                        need(d, False)
                elif k == "softdep" and v.startswith("pre:"):
                    for d in v[4:].split("post:")[0].split():
                        need(d, True)
            got[n] = blob

        for m in wanted:
            need(m.lstrip("?"), m.startswith("?"))
        return got


def key(name: str) -> str:
    return name.split(".ko")[0].replace("-", "_")


def unpacked(p: Path) -> bytes:
    if p.suffix == ".xz":
        return lzma.decompress(p.read_bytes())
    if p.suffix == ".zst":
        return subprocess.run([cache.tool("zstd", "zstd"), "-dcq", str(p)], stdout=subprocess.PIPE, check=True).stdout
    return p.read_bytes()


def modinfo(elf: bytes) -> list[str]:
    shoff, = struct.unpack_from("<Q", elf, 0x28)
    _, n, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, shoff + i * 64) for i in range(n)]
    names = sections[names_at][4]
    for s in sections:
        start = names + s[0]
        if elf[start:elf.index(b"\0", start)] == b".modinfo":
            return [x.decode(errors="replace") for x in elf[s[4]:s[4] + s[5]].split(b"\0") if x]
    return []


class Archive:
    """A newc cpio archive in memory."""

    def __init__(self):
        self.out, self.ino, self.dirs = bytearray(), 0, set()

    def _entry(self, name: str, mode: int, data: bytes = b"", dev=(0, 0)) -> None:
        self.ino += 1
        links = 2 if mode & 0o40000 else 1
        fields = (self.ino, mode, 0, 0, links, 0, len(data), 0, 0, *dev, len(name) + 1, 0)
        for part in (("070701" + "".join("%08X" % x for x in fields)).encode() + name.encode() + b"\0", data):
            self.out += part + b"\0" * (-(len(self.out) + len(part)) % 4)

    def folder(self, name: str) -> None:
        if name and name not in self.dirs:
            self.folder(name.rpartition("/")[0])
            self.dirs.add(name)
            self._entry(name, 0o40755)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self.folder(name.rpartition("/")[0])
        self._entry(name, 0o100000 | mode, data)

    def link(self, name: str, target: str) -> None:
        self.folder(name.rpartition("/")[0])
        self._entry(name, 0o120777, target.encode())

    def device(self, name: str, major: int, minor: int) -> None:
        self.folder(name.rpartition("/")[0])
        self._entry(name, 0o20600, dev=(major, minor))

    def bytes(self) -> bytes:
        self._entry("TRAILER!!!", 0)
        return bytes(self.out)


def build(modules: dict[str, bytes], init: bytes, busybox: bytes, extra: Archive | None = None) -> bytes:
    a = extra or Archive()
    for d in ("dev", "proc", "sys", "tmp", "root", "bin", "m", "run", "etc"):
        a.folder(d)
    a.device("dev/console", 5, 1)
    a.device("dev/null", 1, 3)
    a.file("bin/busybox", busybox, 0o755)
    a.link("bin/sh", "busybox")
    a.file("init", init, 0o755)
    for name, blob in modules.items():
        a.file(f"m/{name}.ko", blob)
    a.file("mods", ("\n".join(modules) + "\n").encode())
    return a.bytes()
