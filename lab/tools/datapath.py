#!/usr/bin/env python3
"""A datapath of Open vSwitch, by generic netlink alone:

    datapath.py make NAME DEV TYPE    a datapath with DEV as its port, and one flow: frames of ethertype TYPE are dropped
    datapath.py drops NAME            how many frames that flow met
    datapath.py answer NAME DEV N     is given N frames that no flow fits, and sends those of even numbers back out of DEV
    datapath.py send DEV TYPE N       N frames of that type, numbered, 5 ms apart

The messages are those of include/uapi/linux/openvswitch.h."""
import socket
import struct
import sys
import time

GENERIC, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 0x10, 3, 1, 2
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 4, 0x300, 2, 3
NEW, GET, SET = 1, 3, 4
DP_NAME, DP_UPCALL_PID = 1, 2
VPORT_TYPE, VPORT_NAME, VPORT_UPCALL_PID, TYPE_NETDEV = 2, 3, 5, 1
FLOW_KEY, FLOW_ACTIONS, FLOW_STATS, FLOW_MASK = 1, 2, 3, 7
PACKET_MISS, PACKET_EXECUTE, PACKET, PACKET_KEY, PACKET_ACTIONS, OUTPUT = 1, 3, 1, 2, 3, 1
KEY_IN_PORT, KEY_ETHERNET, KEY_ETHERTYPE = 3, 4, 6
PORT = 1  # of the first device; 0 is the datapath's own


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:size]
        data = data[(size + 3) & ~3:]
    return found


class Netlink:
    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC)
        self.socket.bind((0, 0))
        self.families = {}

    def ask(self, family: int, command: int, version: int, payload: bytes, flags: int = NLM_F_ACK) -> list[bytes]:
        """The answers' payloads, without their generic header; OSError if the kernel refuses."""
        body = struct.pack("=BBH", command, version, 0) + payload
        self.socket.send(struct.pack("=IHHII", 16 + len(body), family, NLM_F_REQUEST | flags, 1, 0) + body)
        answers = []
        while True:
            data = self.socket.recv(65536)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_ERROR:
                    error = struct.unpack_from("=i", data, 16)[0]
                    if error:
                        raise OSError(-error, f"command {command} of family {family}")
                    return answers
                if kind == NLMSG_DONE:
                    return answers
                answers.append(data[20:size])
                data = data[(size + 3) & ~3:]

    def family(self, name: str) -> int:
        if name not in self.families:
            got = self.ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1, attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0"))
            self.families[name] = struct.unpack("=H", attributes(got[0])[CTRL_ATTR_FAMILY_ID])[0]
        return self.families[name]

    def datapath(self, what: str, command: int, version: int, *parts: bytes, dp: int = 0, flags: int = NLM_F_ACK) -> list[bytes]:
        return self.ask(self.family(f"ovs_{what}"), command, version, struct.pack("=i", dp) + b"".join(parts), flags)


def key(port: int, ethertype: int, addresses: int) -> bytes:
    return (attribute(KEY_IN_PORT, struct.pack("=I", port)) + attribute(KEY_ETHERNET, bytes([addresses]) * 12)
            + attribute(KEY_ETHERTYPE, struct.pack("!H", ethertype)))


def make(name: str, dev: str, ethertype: int) -> None:
    n = Netlink()
    nobody = struct.pack("=I", 0)
    n.datapath("datapath", NEW, 2, attribute(DP_NAME, name.encode() + b"\0"), attribute(DP_UPCALL_PID, nobody))
    dp = socket.if_nametoindex(name)
    n.datapath("vport", NEW, 1, attribute(VPORT_TYPE, struct.pack("=I", TYPE_NETDEV)), attribute(VPORT_NAME, dev.encode() + b"\0"),
               attribute(VPORT_UPCALL_PID, nobody), dp=dp)
    n.datapath("flow", NEW, 1, attribute(FLOW_KEY, key(PORT, ethertype, 0)), attribute(FLOW_MASK, key(0xFFFFFFFF, 0xFFFF, 0)), attribute(FLOW_ACTIONS, b""), dp=dp)


def drops(name: str) -> int:
    flows = Netlink().datapath("flow", GET, 1, dp=socket.if_nametoindex(name), flags=NLM_F_DUMP)
    return sum(struct.unpack_from("=Q", stats)[0] for f in flows if (stats := attributes(f[4:]).get(FLOW_STATS)))


def answer(name: str, dev: str, count: int) -> tuple[int, int]:
    n, given = Netlink(), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC)
    given.bind((0, 0))
    given.settimeout(60)
    dp, packets = socket.if_nametoindex(name), n.family("ovs_packet")
    n.datapath("vport", SET, 1, attribute(VPORT_NAME, dev.encode() + b"\0"), attribute(VPORT_UPCALL_PID, struct.pack("=I", given.getsockname()[0])), dp=dp)
    print("ready", flush=True)
    met = sent = 0
    while met < count:
        message = given.recv(1 << 16)
        kind, command = struct.unpack_from("=4xH10xB", message)
        upcall = attributes(message[24:])
        if (kind, command) != (packets, PACKET_MISS) or upcall[PACKET][12:14] != b"\x88\xb6":
            continue
        met += 1
        if struct.unpack_from("!I", upcall[PACKET], 14)[0] % 2 == 0:
            out = attribute(PACKET_ACTIONS, attribute(OUTPUT, struct.pack("=I", PORT)))
            n.datapath("packet", PACKET_EXECUTE, 1, attribute(PACKET, upcall[PACKET]), attribute(PACKET_KEY, upcall[PACKET_KEY]), out, dp=dp)
            sent += 1
    return met, sent


def send(dev: str, ethertype: int, count: int) -> None:
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind((dev, 0))
    for i in range(count):
        s.send(b"\xff" * 6 + bytes.fromhex("020000000001") + struct.pack("!HI", ethertype, i) + bytes(46))
        time.sleep(0.005)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "make":
        make(rest[0], rest[1], int(rest[2], 0))
    elif command == "drops":
        print("frames that the flow dropped:", drops(rest[0]))
    elif command == "answer":
        print("given {}, sent on {}".format(*answer(rest[0], rest[1], int(rest[2]))))
    else:
        send(rest[0], int(rest[1], 0), int(rest[2]))
