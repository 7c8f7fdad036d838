"""Probes in the kernel of a QEMU guest, from its host: include/kpat_guest.h for Python.

    import kpat_guest

    with kpat_guest.Guest("web1") as guest:
        def opened(hit):
            print(hit.comm(), hit.user_string(hit.syscall_arg(2)))
        guest.xp("__x64_sys_openat", opened)
        guest.loop()

The library is libkpat_guest.so (`cargo build -p kpat-guest`): of the path in KPAT_GUEST_LIBRARY, else where the linker finds it. Handlers
run in loop(), while the guest's processor waits; an exception in one ends the loop and is raised there.
"""
import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rflags", "rip", "cr3")
# Of a function's arguments; struct pt_regs, which a system call gets, has these eight bytes wide each.
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
PT_REGS = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi")
SYSCALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
# Why loop() ended.
STOPPED, OFF, RESET, SET_BACK = range(4)


class Error(Exception):
    """The library's own sentence."""


class Registers(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in REGISTERS]


class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint32), ("parent", c_uint32), ("task", c_uint64), ("listed", c_int), ("numbered", c_int), ("_comm", c_char * 32)]

    @property
    def comm(self):
        return self._comm.decode(errors="replace")

    @property
    def hidden(self):
        """One list has it and the other does not."""
        return bool(self.listed) != bool(self.numbered)


HANDLER = ctypes.CFUNCTYPE(c_int, c_void_p, c_int32, POINTER(Registers))
EACH_SYMBOL = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_uint64, c_char)
EACH_PROCESS = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Process))
FUNCTIONS = {
    "attach": (c_void_p, c_char_p), "debug_file": (c_int, c_void_p, c_char_p), "detach": (c_int, c_void_p), "error": (c_char_p, c_void_p),
    "register_xp": (c_int32, c_void_p, c_char_p, HANDLER, HANDLER), "register_xrp": (c_int32, c_void_p, c_char_p, HANDLER, HANDLER, c_uint32),
    "unregister_xp": (c_int, c_void_p, c_int32), "hold": (c_int, c_void_p), "commit": (c_int, c_void_p),
    "loop": (c_int, c_void_p), "loop_all": (c_int, POINTER(c_void_p), c_size_t, POINTER(c_size_t)), "stop": (c_int, c_void_p), "enable": (c_int, c_void_p, c_int32, c_int),
    "read": (c_int, c_void_p, c_uint64, c_void_p, c_size_t), "write": (c_int, c_void_p, c_uint64, c_void_p, c_size_t),
    "string": (c_int, c_void_p, c_uint64, c_void_p, c_size_t), "data": (c_void_p, c_void_p, c_size_t),
    "symbol": (c_uint64, c_void_p, c_char_p), "offset": (c_int64, c_void_p, c_char_p), "symbols": (c_int, c_void_p, EACH_SYMBOL, c_void_p),
    "processes": (c_int, c_void_p, EACH_PROCESS, c_void_p), "task": (c_uint64, c_void_p), "cpu": (c_int, c_void_p), "ticks": (c_uint64, c_void_p),
    "ticks_per_second": (c_double, c_void_p), "hits": (c_uint64, c_void_p, c_int32), "missed": (c_uint64, c_void_p, c_int32),
}


def library():
    """Each function of the header without its prefix."""
    loaded = ctypes.CDLL(os.environ.get("KPAT_GUEST_LIBRARY", "libkpat_guest.so"))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(loaded, f"kpat_guest_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(loaded, name, function)
    return loaded


class Hit:
    """What a handler sees; valid until it returns."""

    def __init__(self, guest, handle, registers):
        self.guest, self.handle, self.registers = guest, handle, registers

    @property
    def data(self):
        """A dictionary that is kept from the entry of a call to its return."""
        key = ctypes.cast(self.guest.library.data(self.guest.pointer, 8), POINTER(c_uint64))
        if not key:
            raise Error("only probes of returns keep data")
        if not key[0]:
            self.guest.calls += 1
            key[0] = self.guest.calls
        return self.guest.kept.setdefault(key[0], {})

    def forget(self):
        key = ctypes.cast(self.guest.library.data(self.guest.pointer, 8), POINTER(c_uint64))
        if key:
            self.guest.kept.pop(key[0], None)

    @property
    def result(self):
        """At a return: what the function returned, signed."""
        return c_int64(self.registers.rax).value

    def arg(self, n):
        """Argument `n` of a function, from 1."""
        return getattr(self.registers, ARGUMENTS[n - 1])

    def syscall_arg(self, n):
        """Argument `n` of a system call, at a function __x64_sys_*."""
        return self.guest.u64(self.registers.rdi + 8 * PT_REGS.index(SYSCALL_ARGUMENTS[n - 1]))

    def user_string(self, address, size=256):
        """A text of the kernel or of the running process; None: its memory is not there."""
        return self.guest.string(address, size)

    @property
    def task(self):
        return self.guest.library.task(self.guest.pointer)

    def comm(self):
        return self.guest.string(self.task + self.guest.offset("task_struct.comm"), 16) if self.task else None

    def pid(self):
        return self.guest.u32(self.task + self.guest.offset("task_struct.tgid")) if self.task else None

    @property
    def cpu(self):
        return self.guest.library.cpu(self.guest.pointer)

    @property
    def ns(self):
        """The guest's time stamp counter, in nanoseconds."""
        return int(self.guest.library.ticks(self.guest.pointer) * 1e9 / self.guest.ticks_per_second)


class Guest:
    """By the path of its QMP socket, the process of its QEMU, or its name."""

    def __init__(self, target):
        self.library = library()
        self.pointer = self.library.attach(str(target).encode())
        if not self.pointer:
            raise Error(self.library.error(None).decode())
        self.handlers, self.kept, self.calls, self.raised, self.offsets = [], {}, 0, None, {}
        self.ticks_per_second = self.library.ticks_per_second(self.pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def detach(self):
        """Takes all probes out and leaves the guest as it was."""
        if self.pointer:
            pointer, self.pointer = self.pointer, None
            if self.library.detach(pointer) < 0:
                raise Error("not everything could be taken out of the guest")

    def _checked(self, result):
        if result < 0:
            raise Error(self.library.error(self.pointer).decode())
        return result

    def _handler(self, function, entry=False, ends=False):
        if function is None and not ends:
            return HANDLER()

        def called(_, handle, registers):
            try:
                hit = Hit(self, handle, registers.contents)
                done = function(hit) if function else None
                if ends or entry and done:
                    hit.forget()
                return int(done or 0)
            except BaseException as e:  # noqa: BLE001: nothing may go on into the library
                self.raised = e
                self.stop()
                return 0

        # They live as long as the guest can call them.
        self.handlers.append(HANDLER(called))
        return self.handlers[-1]

    def debug_file(self, path):
        """Takes source lines from a file with debug information, the kernel's vmlinux or a module, so that places may be net/ipv4/ip_input.c:523. A file of another build is refused."""
        self._checked(self.library.debug_file(self.pointer, os.fsencode(path)))

    def xp(self, where, before=None, after=None):
        """A probe at an instruction: its handle. `where` is a function, function+0x10, an address 0x..., or with a debug file a source line."""
        return self._checked(self.library.register_xp(self.pointer, where.encode(), self._handler(before), self._handler(after)))

    def xrp(self, where, entry=None, returned=None, maxactive=0):
        """A probe at entry and return of a function: its handle."""
        handlers = self._handler(entry, entry=True), self._handler(returned, ends=bool(entry or returned))
        return self._checked(self.library.register_xrp(self.pointer, where.encode(), *handlers, maxactive))

    def unregister(self, handle):
        self._checked(self.library.unregister_xp(self.pointer, handle))

    def hold(self):
        """From here on registered probes wait for commit() or loop(): the guest is stopped once for all of them."""
        self._checked(self.library.hold(self.pointer))

    def commit(self):
        self._checked(self.library.commit(self.pointer))

    def enable(self, handle, on=True):
        self._checked(self.library.enable(self.pointer, handle, int(on)))

    def loop(self):
        """Serves the probes until stop(): STOPPED, OFF, RESET or SET_BACK."""
        ended = self._checked(self.library.loop(self.pointer))
        if self.raised:
            raised, self.raised = self.raised, None
            raise raised
        return ended

    def stop(self):
        """Ends the loop: in a handler, a signal's handler or another thread."""
        if self.pointer:
            self.library.stop(self.pointer)

    def read(self, address, size):
        to = ctypes.create_string_buffer(size)
        self._checked(self.library.read(self.pointer, address, to, size))
        return to.raw

    def u64(self, address):
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address):
        return int.from_bytes(self.read(address, 4), "little")

    def write(self, address, what):
        self._checked(self.library.write(self.pointer, address, what, len(what)))

    def string(self, address, size=256):
        to = ctypes.create_string_buffer(size)
        return None if self.library.string(self.pointer, address, to, size) < 0 else to.value.decode(errors="replace")

    def symbol(self, name):
        """Its address; None: there is none."""
        return self.library.symbol(self.pointer, name.encode()) or None

    def symbols(self):
        """(name, address, kind) of all."""
        found = []
        each = EACH_SYMBOL(lambda _, name, address, kind: found.append((name.decode(errors="replace"), address, kind.decode())))
        self._checked(self.library.symbols(self.pointer, each, None))
        return found

    def processes(self):
        found = []
        each = EACH_PROCESS(lambda _, process: found.append(Process.from_buffer_copy(process.contents)))
        self._checked(self.library.processes(self.pointer, each, None))
        return found

    def offset(self, path):
        """Of a member in bytes: task_struct.comm."""
        if path not in self.offsets:
            self.offsets[path] = self._checked(self.library.offset(self.pointer, path.encode()))
        return self.offsets[path]

    def hits(self, handle):
        return self.library.hits(self.pointer, handle)

    def missed(self, handle):
        """Hits that went on without a handler, and calls whose return was not seen."""
        return self.library.missed(self.pointer, handle)


def loop(guests):
    """Serves the probes of several guests until the first of them ends the loop: that guest, and why as of Guest.loop()."""
    guests, which = list(guests), c_size_t()
    if not guests:
        raise Error("there is no guest to serve")
    pointers = (c_void_p * len(guests))(*(g.pointer for g in guests))
    ended = guests[0].library.loop_all(pointers, len(guests), ctypes.byref(which))
    first = guests[which.value]
    for guest in guests:
        if guest.raised:
            raised, guest.raised = guest.raised, None
            raise raised
    return first, first._checked(ended)
