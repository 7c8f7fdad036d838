"""One kernel ready to boot: packages unpacked, the ELF vmlinux taken out of the bzImage, an initramfs built.

The ELF is booted by PVH, which saves decompressing under emulation (seconds). That way the kernel never turns on five-level page
tables: its start from the distribution's own image does, where the processor has them, so each kernel can be booted either way.
`facts.json` is written last, so its presence means that the kernel is complete.
"""
import hashlib
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

from . import cache, initramfs
from .cache import LAB, Refusal, run, say
from .debian import Suite

KERNELS = ("6.1", "6.12", "7.2")
FLAVOURS = ("rt",)
BOOTS = ("elf", "image")
# Where a series is looked for, the small indexes first. Any other X.Y found there can be fetched too.
SUITES = {"6.1": ("bookworm-security", "bookworm"), "6.12": ("bookworm-backports", "trixie-security", "trixie")}
OTHER_SUITES = ("trixie-backports", "forky", "sid")
FIRST_MODULES = ["?virtio_pci", "9pnet_virtio", "9p", "overlay", "?virtio_console"]


class Kernel:
    """Facts of a fetched kernel. `series` is what the user says (7.2, or 6.12-rt for a flavour), `release` what uname -r says, `boot` is one of `BOOTS`."""

    def __init__(self, series: str, boot: str = "elf"):
        self.series, self.boot = series, boot
        self.dir = cache.root() / "kernels" / series
        self.tree, self.vmlinux, self.initrd = self.dir / "tree", self.dir / "vmlinux", self.dir / "initrd.cpio"
        try:
            self.facts = json.loads((self.dir / "facts.json").read_text())
        except (OSError, ValueError):
            self.facts = {}

    @property
    def release(self) -> str:
        return self.facts["release"]

    def image(self) -> Path:
        """The distribution's own: vmlinuz in /boot, or beside its modules."""
        found = next(iter(self.tree.rglob(f"vmlinuz-{self.release}")), None) or next(iter(self.tree.rglob("vmlinuz*")), None)
        if found is None:
            raise Refusal(f"{self.facts['package']} has no kernel image in it; the packaging has changed, kpatlab/kernel.py has to learn it")
        return found

    def started(self) -> Path:
        """The file that the emulator is given."""
        return self.image() if self.boot == "image" else self.vmlinux

    def ready(self) -> bool:
        return bool(self.facts) and self.vmlinux.exists()

    def save(self, **more) -> None:
        self.facts.update(more)
        (self.dir / "facts.json").write_text(json.dumps(self.facts, indent=1) + "\n")


def fetched() -> list[Kernel]:
    d = cache.root() / "kernels"
    names = sorted((p.name for p in d.glob("*")), key=lambda s: [int(x) for x in re.findall(r"\d+", s)]) if d.is_dir() else []
    return [k for k in map(Kernel, names) if k.ready()]


def open_kernel(series: str, boot: str = "elf") -> Kernel:
    """A kernel that was fetched, its initramfs up to date."""
    k = Kernel(series, boot)
    if not k.ready():
        have = ", ".join(x.series for x in fetched()) or "none"
        raise Refusal(f"kernel {series} was not fetched (here: {have}); run lab/lab fetch {series}")
    refresh_initrd(k)
    return k


def fetch(series: str, refresh: bool = False) -> Kernel:
    if not re.fullmatch(rf"\d+\.\d+(-({'|'.join(FLAVOURS)}))?", series):
        raise Refusal(f"{series!r} is not a kernel series; say one of {', '.join(KERNELS)}, another X.Y, X.Y-{' or X.Y-'.join(FLAVOURS)}, or all")
    k = Kernel(series)
    if k.ready() and not refresh:
        refresh_initrd(k)
        return k
    for t, p in (("dpkg-deb", "dpkg"), ("depmod", "kmod"), ("xz", "xz-utils"), ("zstd", "zstd")):
        cache.tool(t, p)
    busybox()
    cache.need_space(1500, f"kernel {series}")
    with cache.Lock(f"fetch-{series}", 1800, f"another fetch of {series} is running"):
        suite, image = find(series)
        new = k.dir.with_name(series + ".new")
        shutil.rmtree(new, ignore_errors=True)
        version = unpack(suite, image, new / "tree")
        shutil.rmtree(new / "tree/usr/share", ignore_errors=True)
        release = image.removeprefix("linux-image-")
        if not (new / "tree/lib").exists():
            (new / "tree/lib").symlink_to("usr/lib")
        say(f"unpacking the kernel {release}")
        k.tree, k.facts = new / "tree", {"release": release, "package": image}
        extract_vmlinux(k.image(), new / "vmlinux")
        k.tree = k.dir / "tree"
        run([cache.tool("depmod", "kmod"), "-b", str(new / "tree"), release], f"depmod for {release}")
        shutil.rmtree(k.dir, ignore_errors=True)
        new.rename(k.dir)
        k.facts = {"series": series, "release": release, "package": image, "version": version, "suite": suite.name}
        refresh_initrd(k)
    return k


def find(series: str, arch: str = "amd64") -> tuple[Suite, str]:
    """The newest image of a series, with everything if no flavour is named (6.12-rt), and the suite it is in."""
    number, _, flavour = series.partition("-")
    num = lambda s: [int(x) for x in re.findall(r"\d+", s)]
    unreachable = None
    for name in SUITES.get(number, OTHER_SUITES):
        s = Suite(name, arch)
        try:
            s.update()
        except Refusal as e:
            unreachable = e
            continue
        got = s.names(rf"linux-image-{re.escape(number)}[.-][0-9][^ ]*{flavour and '-' + flavour}-{arch}")
        got = [g for g in got if not re.search("|".join(f"-{f}-" for f in (*FLAVOURS, "cloud", "unsigned", "dbg") if f != flavour), g)]
        if got:
            return s, max(got, key=num)
    raise unreachable or Refusal(f"no Debian suite looked at ({', '.join(SUITES.get(number, OTHER_SUITES))}) has a {series} kernel; name another series")


def unpack(suite: Suite, image: str, tree: Path) -> str:
    """Its packages; their version. The image package may be whole (6.x) or only point to linux-base-*, -binary-* and -modules-* (7.x)."""
    version = ""
    for p in [image] + [d for d in suite.depends(image) if re.match(r"linux-(base|binary|modules)-\d", d)]:
        version = suite.unpack(p, tree)
    return version


def extract_vmlinux(vmlinuz: Path, out: Path) -> None:
    b = vmlinuz.read_bytes()
    setup, (off, length) = b[0x1F1] or 4, struct.unpack_from("<II", b, 0x248)
    p = b[(setup + 1) * 512 + off:][:length - 4]  # the last four bytes are the unpacked size
    for magic, cmd in ((b"\xfd7zXZ\0", ["xz", "-dc", "--single-stream"]), (b"\x28\xb5\x2f\xfd", ["zstd", "-dcq"]),
                       (b"\x1f\x8b", ["gzip", "-dcq"]), (b"\x02\x21\x4c\x18", ["lz4", "-dc"])):
        if p.startswith(magic):
            elf = subprocess.run([cache.tool(cmd[0], cmd[0]), *cmd[1:]], input=p, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            if elf[:4] == b"\x7fELF":
                out.write_bytes(elf)
                return
    raise Refusal(f"{vmlinuz.name} holds no kernel in a known compression; kpatlab/kernel.py has to learn it")


def busybox() -> Path:
    p = Path(cache.tool("busybox", "busybox-static"))
    if b"ld-linux" in p.read_bytes()[:4096]:
        raise Refusal(f"{p} is not static; as root: apt-get install busybox-static")
    return p


def refresh_initrd(k: Kernel) -> None:
    """Rebuild the initramfs when its parts changed (0.1 s to find out that they did not)."""
    init = (LAB / "guest/init").read_bytes()
    mark = hashlib.sha256(init + repr(FIRST_MODULES).encode() + str(busybox().stat().st_mtime_ns).encode() + k.release.encode()).hexdigest()[:16]
    if k.facts.get("initrd") == mark and k.initrd.exists():
        return
    mods = initramfs.Modules(k.tree).load_order(FIRST_MODULES)
    k.initrd.write_bytes(initramfs.build(mods, init, busybox().read_bytes()))
    k.save(initrd=mark)
