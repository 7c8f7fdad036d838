"""Boot a guest, run one command in it, hand back its exit code.

The guest's root is this machine's root, read only under a tmpfs layer, so every path here is the same path
there; what it writes stays in its memory, except below /lab, which is the run's folder. stdout and stderr
come out through virtio ports as they are written. Every wait has an end, and only the QEMU started here is
ended here. One guest at a time per cache: two would disturb each other's times.

An emulated kernel may panic or stop by itself. That is kept apart from what ran in it (`Died`), its console is kept in
the cache's `panics/`, and the guest is run once more; a second time is a failure.
"""
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

from . import cache, emulator
from .cache import LAB, Refusal, say
from .kernel import Kernel

# oops=panic: a kernel that goes on after a fault would fail some check later, far from its cause.
APPEND = "console=ttyS0 panic=-1 oops=panic reboot=t quiet mitigations=off audit=0 no_timer_check random.trust_cpu=on"


# A line of these on the console is the kernel's own end.
FAULT = re.compile(r"Kernel panic|BUG:|kernel BUG at|Oops:|int3: 0000|general protection fault|double fault|invalid opcode:|stack segment:|divide error:")
KEPT_CONSOLES = 40


class Result:
    """rc: the command's exit code. marks: seconds since start at which the guest printed LAB-... died: how its first run ended, if it is the second."""

    def __init__(self, rc: int, marks: dict[str, float], seconds: float, console: list[str]):
        self.rc, self.marks, self.seconds, self.console = rc, marks, seconds, console
        self.died: str | None = None


class Died(Refusal):
    """The guest's kernel panicked, stopped, or never came to the command; or QEMU was killed. Says nothing about what ran in it."""

    def __init__(self, words: str, console: list[str], spoke: bool):
        super().__init__(words)
        self.console, self.spoke = console, spoke


def panic_words(console: list[str]) -> list[str]:
    """What a panic says first: the fault, where it was, and the panic's own line."""
    lines = [re.sub(r"^\[ *[\d.]+\](\[ *\w+\])? ?", "", x).strip() for x in console]
    at = next((i for i, x in enumerate(lines) if FAULT.search(x)), None)
    if at is None:
        return []
    rip = next((x for x in lines[at:] if x.startswith("RIP: 0010:")), None)
    panic = next((x for x in lines[at:] if "Kernel panic" in x), None)
    return list(dict.fromkeys(x for x in (lines[at], rip, panic) if x))


def deaths(since: float) -> list[Path]:
    """Kept consoles of guests that died after this time (time.time()), oldest first. Their first line says how it went."""
    return sorted(p for p in (cache.root() / "panics").glob("*.log") if p.stat().st_mtime >= since)


def keep_console(series: str, words: str, console: list[str]) -> Path:
    d = cache.root() / "panics"
    d.mkdir(exist_ok=True)
    for old in sorted(d.glob("*.log"))[:-KEPT_CONSOLES + 1]:
        old.unlink(missing_ok=True)
    p = d / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns()}-{series}.log"
    p.write_text(words + "\n" + "\n".join(console) + "\n")
    return p


def run(kernel: Kernel, argv: list[str], share: Path, *, det=False, smp=2, mem=1024, nics=(), timeout=120.0, cwd=None, env=None,
        sinks=(1, 2), append="", wire: int | None = None, root: Path | None = None, qmp: Path | None = None) -> Result:
    """Run `argv` in a guest, once more if its kernel dies. `share` becomes /lab. `sinks`: descriptors for the command's stdout and
    stderr, or files, which a second run begins anew; what was written to a descriptor cannot be taken back, then there is no second run.
    `wire`: descriptor of a tap device, whose other end is the guest's card. `root`: a Debian with systemd, which then runs in the guest, in
    place of this machine's root. `qmp`: socket of its QEMU's machine protocol."""
    share = share.resolve()
    share.mkdir(parents=True, exist_ok=True)
    (share / ".rc").unlink(missing_ok=True)
    (share / ".stage2-command").write_bytes((LAB / "guest/stage2").read_bytes())
    (share / ".stage2").write_bytes((LAB / ("guest/systemd" if root else "guest/stage2")).read_bytes())
    exports = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "KPAT_LAB_KERNEL": kernel.series,
               "KPAT_LAB_PATIENCE": str(int(cache.patience())), **({} if det else {"KPAT_LAB_BEAT": "10"}), **(env or {})}
    lines = [f"export {k}={shlex.quote(v)}" for k, v in exports.items()]
    (share / ".cmd").write_text("\n".join(lines + [f"cd {shlex.quote(str(cwd or os.getcwd()))} || exit 125", "exec " + shlex.join(argv)]) + "\n")
    given = set(share.iterdir())
    with cache.Lock("guest", 1800, "another guest of this lab is running"):
        qemu, options = emulator.choose(nics), emulator.machine(det, smp, mem) + emulator.nics(list(nics))
        if wire is not None:
            options += emulator.wire(wire)
        if qmp is not None:
            options += ["-qmp", f"unix:{qmp},server=on,wait=off"]
        append = append if det else f"tsc=reliable {emulator.QUICK} {append}"
        if "igb" in nics:
            append += " iomem=relaxed"  # tools/stamps.py reads a register of the card
        died = None
        while True:
            files = [open(s, "wb") if isinstance(s, Path) else None for s in sinks]
            try:
                r = _boot(kernel, share, qemu, options, timeout, [f.fileno() if f else s for f, s in zip(files, sinks)], append, beats=not det,
                          wires=[] if wire is None else [wire], root=root or Path("/"))
                r.died = died
                if died:
                    note(kept, "the second run came to its end")
                return r
            except Died as e:
                kept = keep_console(kernel.series, str(e), e.console)
                say(f"{e}; its console is kept in {kept}")
                if died or (e.spoke and not all(files)):
                    note(kept, "the second run, so this is a failure" if died else "it had written something, so there is no second run")
                    raise
                died = str(e)
                say("running that guest once more")
                for p in set(share.iterdir()) - given:
                    shutil.rmtree(p) if p.is_dir() and not p.is_symlink() else p.unlink()
            finally:
                for f in filter(None, files):
                    f.close()


def note(kept: Path, words: str) -> None:
    """Add to the first line of a kept console."""
    first, _, rest = kept.read_text().partition("\n")
    kept.write_text(f"{first}; {words}\n{rest}")


class Patient:
    """A clock that stands still while a process waits for a processor, for so long at most that it runs a sixth as fast as others: what is ended by it
    has had its time on a busy machine, too."""

    SLOWEST = 6

    def __init__(self, pid: int):
        self.pid, self.start, self.waited = pid, time.monotonic(), 0.0
        self.before = self._waits()

    def _waits(self) -> dict[str, float]:
        """Seconds that each of its threads has waited for a processor."""
        waits = {}
        for stat in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            try:
                # What a thread ran, what it waited for a processor, in nanoseconds.
                waits[stat.parent.name] = int(stat.read_text().split()[1]) / 1e9
            except (OSError, IndexError):
                pass  # it has ended
        return waits

    def now(self) -> float:
        """Seconds, from the clock's start on."""
        # Its longest is what a guest lost, at least.
        self.waited = max([self.waited, *(wait - self.before.get(thread, 0.0) for thread, wait in self._waits().items())])
        passed = time.monotonic() - self.start
        return max(passed - self.waited, passed / self.SLOWEST)

    def beside(self) -> str:
        return f" and {self.waited:.0f} s of waiting for a processor" if self.waited > 5 else ""


def _boot(kernel: Kernel, share: Path, qemu: emulator.Emulator, options: list[str], timeout: float, sinks, append: str, beats: bool,
          wires: list[int] = [], root: Path = Path("/")) -> Result:
    ports = [os.pipe(), os.pipe()]
    argv = qemu.argv + options + ["-kernel", str(kernel.started()), "-initrd", str(kernel.initrd), "-append", f"{APPEND} {append}".strip()]
    for tag, path, ro in (("root", root, True), ("lab", share, False), ("kernel", kernel.tree, True)):
        argv += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap" + (",readonly=on" if ro else ""),
                 "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    argv += ["-device", "virtio-serial-pci"]
    for name, (_, w) in zip(("out", "err"), ports):
        argv += ["-chardev", f"file,id={name},path=/proc/self/fd/{w}", "-device", f"virtserialport,chardev={name},name=lab.{name}"]
    start = time.monotonic()
    writers = [w for _, w in ports]
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[*writers, *wires],
                         env={**os.environ, **qemu.env}, start_new_session=True, preexec_fn=emulator.ends_with_its_parent)
    for w in writers:
        os.close(w)
    sel = selectors.DefaultSelector()
    sel.register(p.stdout, selectors.EVENT_READ, None)
    for (r, _), sink in zip(ports, sinks):
        sel.register(r, selectors.EVENT_READ, sink)
    (share / ".seen").unlink(missing_ok=True)
    received, sent = {r: 0 for r, _ in ports}, None
    marks: dict[str, float] = {}
    console: list[str] = []
    rest, timed_out, spoke = b"", False, False
    clock = Patient(p.pid)
    heard, patience = clock.now(), cache.patience()
    deadline = heard + timeout
    try:
        with open(share / "console.log", "w") as log:
            while sel.get_map():
                # a guest has to come to its command, and then to be heard of from time to time
                end = deadline if "LAB-CMD" in marks and not beats else min(deadline, heard + patience)
                now = clock.now()
                if now >= end:
                    timed_out = True
                    break
                ready = sel.select(min(end - now, 5))
                for k, _ in ready:
                    data = os.read(k.fd, 65536)
                    if not data:
                        sel.unregister(k.fileobj)
                    elif k.data is not None:
                        spoke = True
                        _write(k.data, data)
                        received[k.fd] += len(data)
                    else:
                        *done, rest = (rest + data).split(b"\n")
                        for b in done:
                            line, at = b.decode(errors="replace").rstrip("\r"), time.monotonic() - start
                            if line.startswith(("LAB-CMD", "LAB-BEAT")):
                                heard = clock.now()
                            if line == "LAB-BEAT":
                                continue
                            if line.startswith("LAB-SENT "):
                                sent = [int(n) for n in line.split()[1:]]
                            log.write(f"{at:8.3f} {line}\n")
                            log.flush()
                            console.append(line)
                            if line.startswith("LAB-"):
                                marks.setdefault(line.split()[0], at)
                if sent and all(received[r] >= n for (r, _), n in zip(ports, sent)):
                    (share / ".seen").touch()
                    sent = None
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
    try:
        return Result(int((share / ".rc").read_text()), marks, seconds, console)
    except (OSError, ValueError):
        pass
    where = "while its command ran" if "LAB-CMD" in marks else "before it came to its command"
    who = f"the {kernel.series} guest"
    if words := panic_words(console):
        raise Died(f"{who} panicked {where}, after {seconds:.1f} s: {'; '.join(words)[:400]}", console, spoke)
    if timed_out and now < deadline:
        raise Died(f"{who} {'was not heard of' if 'LAB-CMD' in marks else 'did not come to its command'} for {patience:.0f} s", console, spoke)
    if timed_out:
        raise Refusal(f"{who} was ended after {timeout:.0f} s{clock.beside()}, {where}; see {share}/console.log, or give --timeout")
    if p.returncode < 0:
        raise Died(f"{who}: QEMU was ended by {signal.Signals(-p.returncode).name} {where}, after {seconds:.1f} s", console, spoke)
    last = ([x for x in console if x.strip()] or ["QEMU printed nothing"])[-1]
    raise Refusal(f"{who} ended without an exit code after {seconds:.1f} s (last words: {last.strip()[:160]}); see {share}/console.log")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data):]
