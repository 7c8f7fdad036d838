"""Names of functions, tracepoints and enums in a kernel's BTF, read from the image and the modules that were fetched: no guest is needed.

A reader of its own, apart from crates/btf/src/lib.rs, so that each can show the other's mistakes. Layout: Documentation/bpf/btf.rst of
the kernel. A module's types continue vmlinux's strings, or those of the part of vmlinux that it brings along (`.BTF.base`, from 6.11 on).
"""
import lzma
import struct
import subprocess
from pathlib import Path

from . import cache
from .cache import Refusal
from .kernel import Kernel

ENUM, TYPEDEF, FUNC = 6, 8, 12
# Bytes behind a type, and for each of its members.
BEHIND = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12), 17: (4, 0), 19: (0, 12)}
KINDS = 19
POINT = "btf_trace_"


def section(elf: bytes, name: str) -> bytes | None:
    """A section of a 64-bit little-endian ELF file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise Refusal("not a 64-bit ELF file: kpatlab/btf.py has to learn it")
    at, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    header = lambda i: struct.unpack_from("<IIQQQQ", elf, at + i * size)
    strings = header(names)[4]
    for i in range(count):
        name_at, _, _, _, offset, length = header(i)
        begin = strings + name_at
        if elf[begin:elf.index(b"\0", begin)] == name.encode():
            return elf[offset:offset + length]
    return None


class Btf:
    """One BTF object; `base` is what its strings continue."""

    def __init__(self, data: bytes, base: "Btf | None" = None):
        magic, _, _, header, types, types_len, strings, strings_len = struct.unpack_from("<HBBIIIII", data, 0)
        if magic != 0xEB9F:
            raise Refusal("not little-endian BTF")
        self.base, self.before = base, base.before + len(base.strings) if base else 0
        self.strings = data[header + strings:][:strings_len]
        self.types = data[header + types:][:types_len]

    def text(self, at: int) -> str:
        if at < self.before:
            return self.base.text(at)
        at -= self.before
        return self.strings[at:self.strings.index(b"\0", at)].decode()

    def own(self):
        """Kind, name and members' number of each type that is not the base's, and where its members lie."""
        at, head = 0, struct.Struct("<III").unpack_from
        while at + 12 <= len(self.types):
            name, info, _ = head(self.types, at)
            kind, members = info >> 24 & 31, info & 0xFFFF
            if not 1 <= kind <= KINDS:
                raise Refusal(f"BTF has a type of kind {kind}: kpatlab/btf.py has to learn it")
            yield kind, name, members, at + 12
            fixed, each = BEHIND.get(kind, (0, 0))
            at += 12 + fixed + each * members

    def names(self) -> set[str]:
        """Functions by name, tracepoints as `point:NAME`."""
        found = set()
        for kind, name, _, _ in self.own():
            if kind == FUNC:
                found.add(self.text(name))
            elif kind == TYPEDEF and (text := self.text(name)).startswith(POINT):
                found.add("point:" + text.removeprefix(POINT))
        return found

    def enums(self) -> list[str]:
        return [self.text(name) for kind, name, _, _ in self.own() if kind == ENUM]

    def enum(self, wanted: str) -> dict[str, int]:
        """Members and values of an enum of 32 bits; empty where there is none of that name."""
        for kind, name, members, at in self.own():
            if kind == ENUM and self.text(name) == wanted:
                pairs = (struct.unpack_from("<Ii", self.types, at + 8 * i) for i in range(members))
                return {self.text(n): v for n, v in pairs}
        return {}


def module_bytes(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run([cache.tool("zstd", "zstd"), "-dcq", str(path)], stdout=subprocess.PIPE, check=True, timeout=60).stdout
    return path.read_bytes()


class Names:
    """What a fetched kernel has, by where it is: vmlinux, or a module."""

    def __init__(self, k: Kernel):
        self.series = k.series
        data = section(k.vmlinux.read_bytes(), ".BTF")
        if data is None:
            raise Refusal(f"{k.vmlinux} has no BTF")
        self.vmlinux = Btf(data)
        self.files = {p.name.split(".ko")[0].replace("-", "_"): p for p in k.tree.rglob("*.ko*")}
        self.known = {}

    def types(self, where: str) -> Btf | None:
        """Of vmlinux or of a module; nothing where there is no such module."""
        if where == "vmlinux":
            return self.vmlinux
        path = self.files.get(where)
        elf = module_bytes(path) if path else b""
        data, base = (section(elf, name) for name in (".BTF", ".BTF.base")) if path else (None, None)
        return Btf(data, Btf(base) if base else self.vmlinux) if data else None

    def of(self, where: str) -> set[str]:
        """Functions and tracepoints there."""
        if where not in self.known:
            types = self.types(where)
            self.known[where] = types.names() if types else set()
        return self.known[where]
