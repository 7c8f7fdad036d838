"""A sockmap of BPF (bpf(2), include/uapi/linux/bpf.h): what is written to a socket in it comes out of another one in it, past TCP, as proxies beside programs use it."""
import ctypes
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_BPF = {"x86_64": 321}.get(os.uname().machine, 280)
MAP_CREATE, MAP_UPDATE_ELEM, MAP_DELETE_ELEM, PROG_LOAD, PROG_ATTACH = 0, 2, 3, 5, 8
SOCKMAP, SK_MSG, SK_MSG_VERDICT, INGRESS, MSG_REDIRECT_MAP = 15, 16, 7, 1, 60
OF = 1  # place in the map of the socket out of which it comes


def bpf(command: int, attr: bytes) -> int:
    found = LIBC.syscall(SYS_BPF, command, ctypes.create_string_buffer(attr, 144), 144)
    if found < 0:
        raise OSError(ctypes.get_errno(), "bpf: " + os.strerror(ctypes.get_errno()))
    return found


def instruction(op: int, to: int = 0, of: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", op, of << 4 | to, 0, value)


class Sockmap:
    def __init__(self):
        self.map = bpf(MAP_CREATE, struct.pack("<IIII", SOCKMAP, 4, 4, 4))
        # return bpf_msg_redirect_map(msg, map, OF, INGRESS)
        code = b"".join([instruction(0x18, 2, 1, self.map), instruction(0), instruction(0xb7, 3, 0, OF), instruction(0xb7, 4, 0, INGRESS),
                         instruction(0x85, 0, 0, MSG_REDIRECT_MAP), instruction(0x95)])
        self.code, self.license = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
        at = ctypes.addressof
        self.program = bpf(PROG_LOAD, struct.pack("<IIQQIIQII16sII", SK_MSG, len(code) // 8, at(self.code), at(self.license), 0, 0, 0, 0, 0, b"", 0, SK_MSG_VERDICT))
        bpf(PROG_ATTACH, struct.pack("<IIII", self.map, self.program, SK_MSG_VERDICT, 0))

    def put(self, place: int, socket) -> None:
        key, value = ctypes.create_string_buffer(struct.pack("<I", place)), ctypes.create_string_buffer(struct.pack("<Q", socket.fileno()))
        bpf(MAP_UPDATE_ELEM, struct.pack("<IxxxxQQQ", self.map, ctypes.addressof(key), ctypes.addressof(value), 0))

    def remove(self, place: int) -> None:
        key = ctypes.create_string_buffer(struct.pack("<I", place))
        bpf(MAP_DELETE_ELEM, struct.pack("<IxxxxQQQ", self.map, ctypes.addressof(key), 0, 0))

    def close(self) -> None:
        os.close(self.program)
        os.close(self.map)
