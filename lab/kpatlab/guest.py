"""Boot a guest, run one command in it, hand back its exit code.

The guest's root is this machine's root, read only under a tmpfs layer, so every path here is the same path
there; what it writes stays in its memory, except below /lab, which is the run's folder. stdout and stderr
come out through virtio ports as they are written. Every wait has an end, and only the QEMU started here is
ended here. One guest at a time per cache: two would disturb each other's times.
"""
import os
import selectors
import shlex
import signal
import subprocess
import time
from pathlib import Path

from . import cache, emulator
from .cache import LAB, Refusal
from .kernel import Kernel

APPEND = "console=ttyS0 panic=-1 reboot=t quiet mitigations=off audit=0 no_timer_check random.trust_cpu=on"


class Result:
    """rc: the command's exit code. marks: seconds since start at which the guest said LAB-..."""

    def __init__(self, rc: int, marks: dict[str, float], seconds: float, console: list[str]):
        self.rc, self.marks, self.seconds, self.console = rc, marks, seconds, console


def run(kernel: Kernel, argv: list[str], share: Path, *, det=False, smp=2, mem=1024, nics=(), timeout=120.0, cwd=None, env=None,
        sinks=(1, 2), append="") -> Result:
    """Run `argv` in a guest. `share` becomes /lab. `sinks`: descriptors for the command's stdout and stderr."""
    share = share.resolve()
    share.mkdir(parents=True, exist_ok=True)
    (share / ".rc").unlink(missing_ok=True)
    (share / ".stage2").write_bytes((LAB / "guest/stage2").read_bytes())
    exports = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "KPAT_LAB_KERNEL": kernel.series, **(env or {})}
    lines = [f"export {k}={shlex.quote(v)}" for k, v in exports.items()]
    (share / ".cmd").write_text("\n".join(lines + [f"cd {shlex.quote(str(cwd or os.getcwd()))} || exit 125", "exec " + shlex.join(argv)]) + "\n")
    with cache.Lock("guest", 1800, "another guest of this lab is running"):
        return _boot(kernel, share, emulator.choose(), emulator.machine(det, smp, mem) + emulator.nics(list(nics)), timeout, sinks,
                     append if det else "tsc=reliable " + append)


def _boot(kernel: Kernel, share: Path, qemu: emulator.Emulator, options: list[str], timeout: float, sinks, append: str) -> Result:
    ports = [os.pipe(), os.pipe()]
    argv = qemu.argv + options + ["-kernel", str(kernel.vmlinux), "-initrd", str(kernel.initrd), "-append", f"{APPEND} {append}".strip()]
    for tag, path, ro in (("root", "/", True), ("lab", share, False), ("kernel", kernel.tree, True)):
        argv += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap" + (",readonly=on" if ro else ""),
                 "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    argv += ["-device", "virtio-serial-pci"]
    for name, (_, w) in zip(("out", "err"), ports):
        argv += ["-chardev", f"file,id={name},path=/proc/self/fd/{w}", "-device", f"virtserialport,chardev={name},name=lab.{name}"]
    start = time.monotonic()
    writers = [w for _, w in ports]
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=writers,
                         env={**os.environ, **qemu.env}, start_new_session=True)
    for w in writers:
        os.close(w)
    sel = selectors.DefaultSelector()
    sel.register(p.stdout, selectors.EVENT_READ, None)
    for (r, _), sink in zip(ports, sinks):
        sel.register(r, selectors.EVENT_READ, sink)
    marks: dict[str, float] = {}
    console: list[str] = []
    rest, timed_out = b"", False
    try:
        with open(share / "console.log", "w") as log:
            while sel.get_map():
                left = start + timeout - time.monotonic()
                ready = sel.select(max(0, left)) if left > 0 else []
                if not ready:
                    timed_out = True
                    break
                for k, _ in ready:
                    data = os.read(k.fd, 65536)
                    if not data:
                        sel.unregister(k.fileobj)
                    elif k.data is not None:
                        _write(k.data, data)
                    else:
                        *done, rest = (rest + data).split(b"\n")
                        for b in done:
                            line, at = b.decode(errors="replace").rstrip("\r"), time.monotonic() - start
                            log.write(f"{at:8.3f} {line}\n")
                            log.flush()
                            console.append(line)
                            if line.startswith("LAB-"):
                                marks.setdefault(line.split()[0], at)
    finally:
        if p.poll() is None:
            try:
                p.wait(0 if timed_out else 5)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        p.stdout.close()
        for r, _ in ports:
            os.close(r)
    seconds = time.monotonic() - start
    if timed_out:
        where = "its command was running" if "LAB-CMD" in marks else "it had not come to its command"
        raise Refusal(f"the {kernel.series} guest was ended after {timeout:.0f} s, {where}; see {share}/console.log, or give --timeout")
    try:
        rc = int((share / ".rc").read_text())
    except (OSError, ValueError):
        words = [x for x in console if x.strip()][-1:] or ["QEMU said nothing"]
        raise Refusal(f"the {kernel.series} guest ended without an exit code after {seconds:.1f} s (last words: {words[0].strip()[:160]}); see {share}/console.log") from None
    return Result(rc, marks, seconds, console)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data):]
