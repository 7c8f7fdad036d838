"""A guest that a test probes or reads from outside: QEMU with a QMP socket, and what shows that it is ready."""
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from kpatlab import emulator, guest, kernel

QUIET = ["-nodefaults", "-no-user-config", "-display", "none", "-m", "384", "-accel", "tcg,thread=multi"]


class Emulated:
    """In a folder of its own. It is booted once more if its kernel dies, or stands still, before it is ready, as an emulated one sometimes does before
    anybody has touched it (README.md of the lab); its console is kept, and the run reports it."""

    def __init__(self, series: str):
        self.series = series
        self.folder = tempfile.TemporaryDirectory(prefix="kpat-guest-")
        self.path = Path(self.folder.name)
        self.qmp = str(self.path / "qmp")
        self.process = None

    def boot(self, options: list[str], initrd: Path, append: str, within: tuple = ()) -> None:
        """`within`: the command that QEMU is started by, a namespace's."""
        e = emulator.choose()
        # The distribution's own image: with KASLR, and with five levels of page tables where the processor has them.
        argv = [*within, *e.argv, *QUIET, *options, "-qmp", f"unix:{self.qmp},server=on,wait=off", "-kernel", str(kernel.Kernel(self.series, "image").image()),
                "-initrd", str(initrd), "-append", f"console=ttyS0 quiet panic=-1 {emulator.QUICK} {append}"]
        for last in (False, True):
            self.process = subprocess.Popen(argv, env={**os.environ, **e.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=emulator.ends_with_its_parent)
            try:
                self.wait_ready()
                return
            except Ended as died:
                where = self.stands() if self.process.poll() is None else self.process.stderr.read()[-500:].decode(errors="replace")
                words = f"{self.series} {died.how} before it was ready{', again' if last else ''}: {where}"
                kept = guest.keep_console(self.series, words, died.console)
                self.end()
                if last:
                    raise AssertionError(f"{words}; its console is kept in {kept}") from None
            except BaseException:
                self.end()
                raise

    def wait_ready(self) -> None:
        """`Ended` if the guest ended, `Silent` if it says no more."""
        raise NotImplementedError

    def stands(self) -> str:
        """Where each processor of a guest that is silent stands, twice: the same if it waits for what does not come."""
        try:
            return "; ".join(" ".join(re.findall(r"[ER]IP=\S+|HLT=\d", monitor(self.qmp, "info registers -a"))) for _ in range(2))
        except (OSError, ValueError) as e:
            return f"its monitor does not answer ({e})"

    def end(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self.process.stderr.close()
        self.process = None

    def close(self) -> None:
        self.end()
        self.folder.cleanup()


class Ended(Exception):
    """The guest ended."""

    how = "died"

    def __init__(self, console: list[str]):
        # Where its kernel begins to say that it fails, or the end.
        begin = next((n for n, line in enumerate(console) if guest.FAULT.search(line)), len(console) - 12)
        super().__init__(f"the guest {self.how}: " + " | ".join(console[max(begin, 0):][:60]))
        self.console = console


class Silent(Ended, TimeoutError):
    """It runs, and did not say what was waited for."""

    how = "was silent"


class OnConsole(Emulated):
    """One that is operated by its console: a line in, lines out."""

    READY, PATIENCE = "ready", 120

    def wait_ready(self) -> None:
        self.console, self.read, self.all = socket.socket(socket.AF_UNIX), b"", []
        # It is there as soon as QEMU runs, which on a busy machine takes its time.
        for _ in range(1200):
            with contextlib.suppress(OSError):
                self.console.connect(f"{self.path}/console")
                break
            if self.process.poll() is not None:
                raise Ended(self.all)
            time.sleep(0.05)
        self.until(lambda line: line.endswith(self.READY), self.PATIENCE)

    def serial(self) -> list[str]:
        return ["-chardev", f"socket,id=c,path={self.path}/console,server=on,wait=off", "-serial", "chardev:c"]

    def until(self, asked, patience: float = 60) -> list[str]:
        """The lines up to the first that is what is asked for, which is the last of them."""
        # Of the guest's own time: one that gets no processor is not silent.
        clock, lines = guest.Patient(self.process.pid), []
        self.console.settimeout(1)
        while True:
            while b"\n" in self.read:
                line, self.read = self.read.split(b"\n", 1)
                lines.append(line.decode(errors="replace").strip("\r"))
                self.all = [*self.all[-199:], lines[-1]]
                if asked(lines[-1]):
                    return lines
            try:
                data = self.console.recv(65536)
            except ConnectionResetError:
                data = b""
            except TimeoutError:
                if clock.now() >= patience:
                    raise Silent(self.all) from None
                continue
            if not data:
                raise Ended(self.all)
            self.read += data
            clock = guest.Patient(self.process.pid)

    def send(self, line: str) -> None:
        self.console.sendall(line.encode() + b"\n")

    def end(self) -> None:
        super().end()
        if console := getattr(self, "console", None):
            console.close()


def monitor(qmp: str, line: str) -> str:
    """What QEMU's monitor answers to a command."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect(qmp)
        f = s.makefile("rw")
        f.readline()
        for c in ({"execute": "qmp_capabilities"}, {"execute": "human-monitor-command", "arguments": {"command-line": line}}):
            f.write(json.dumps(c) + "\n")
            f.flush()
            while "return" not in (answer := json.loads(f.readline())):
                assert "event" in answer, answer
        return answer["return"]
