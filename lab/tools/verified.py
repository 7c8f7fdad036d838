"""How many instructions the verifier visited of each BPF program that is loaded, as the kernel counts them (5.16), a line each, most first.

    verified.py MOST WORD   only those of processes with WORD on their command line; fails if there are more than MOST of one, or if no program
                            is loaded. A kernel before 6.3 may take half as many again: its verifier
                        (kernel/bpf/verifier.c, propagate_precision()) finds fewer states equal.

What a recording takes to start is this, some microseconds for each.
"""
import ctypes
import os
import platform
import re
import struct
import sys
from pathlib import Path

SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 11, 13, 15
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    b = ctypes.create_string_buffer(attributes, len(attributes))
    return libc.syscall(SYS_BPF, command, b, len(attributes)), b.raw


def held(word: str) -> set[int]:
    """Programs that processes with this word on their command line have attached or open (/proc/PID/fdinfo of programs and links)."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().split(b"\0")
            if int(process.name) != os.getpid() and any(word.encode() in a for a in argv):
                for file in (process / "fdinfo").iterdir():
                    found.update(map(int, re.findall(r"^prog_id:\s*(\d+)$", file.read_text(), re.M)))
        except OSError:
            continue  # it went meanwhile
    return found


def programs(ids: set[int]):
    """(name, verified instructions) of these; struct bpf_prog_info of include/uapi/linux/bpf.h"""
    last = 0
    while True:
        failed, answer = bpf(PROG_GET_NEXT_ID, struct.pack("<III", last, 0, 0))
        if failed:
            return
        last = struct.unpack_from("<I", answer, 4)[0]
        if last not in ids:
            continue
        fd, _ = bpf(PROG_GET_FD_BY_ID, struct.pack("<III", last, 0, 0))
        if fd < 0:
            continue  # it went meanwhile
        info = ctypes.create_string_buffer(232)
        failed, _ = bpf(OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
        os.close(fd)
        if not failed:
            yield info.raw[64:80].split(b"\0")[0].decode(), struct.unpack_from("<I", info.raw, 216)[0]


most = int(sys.argv[1])
if tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups())) < (6, 3):
    most = most * 3 // 2
loaded = sorted(programs(held(sys.argv[2])), key=lambda p: -p[1])
for name, n in loaded:
    print(f"{n} {name}")
sys.exit(not loaded or loaded[0][1] > most)
