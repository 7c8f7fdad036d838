#!/usr/bin/env python3
"""Reads a kernel behaviour log: kbl.py FILE prints one line per record, in the order of the file.

Written from docs/kbl-format.md alone, and nothing of kpat is used: what it prints is compared with what kpat reads. Damaged files are
not its task; it stops at the first thing that is not as the page says.
"""
import json
import struct
import subprocess
import sys

MAGIC = b"\x89KBL\r\n\x1a"
M64 = (1 << 64) - 1
MAX_HEADER = 112


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def table():
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        yield i


TABLE = list(table())


def signed64(v):
    v &= M64
    return v - (1 << 64) if v >> 63 else v


class Reader:
    """A chunk's payload."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def u8(self):
        self.at += 1
        return self.data[self.at - 1]

    def u16(self):
        return self.u8() | self.u8() << 8

    def number(self):
        first = self.data[self.at]
        if first == 0:
            self.at += 9
            return int.from_bytes(self.data[self.at - 8:self.at], "little")
        n = (first & -first).bit_length()
        self.at += n
        return int.from_bytes(self.data[self.at - n:self.at], "little") >> n

    def signed(self):
        z = self.number()
        return z >> 1 ^ -(z & 1)

    def bytes(self):
        n = self.number()
        self.at += n
        assert self.at <= len(self.data), "bytes past the end"
        return self.data[self.at - n:self.at]

    def left(self):
        assert self.at <= len(self.data), "a record runs past the end"
        return len(self.data) - self.at


class Chunk:
    """What records of any chunk are coded against."""

    def __init__(self, reader, schema, packet_base):
        self.r = reader
        self.schema = schema
        self.time = 0
        self.recent = [(0, 0)] * 3
        self.newest = packet_base
        self.tasks = [0, 0]
        self.before = {kind: [0] * len(k["columns"]) for kind, k in schema.items()}

    def next_time(self):
        self.time = signed64(self.time + self.r.signed())
        return self.time

    def next_id(self):
        self.newest = self.newest + self.r.signed() & M64
        return self.newest

    def columns(self, kind):
        declared, before = self.schema[kind], self.before[kind]
        assert declared["coding"] == "columns", declared
        values = [self.next_time()]
        task = self.tasks[0]
        follows = self.r.number()
        for i, column in enumerate(declared["columns"][1:], 1):
            there, of = follows >> i - 1 & 1, column["type"]
            if of == "time":
                v = signed64(self.time + self.r.signed()) if there else self.time
            elif of in ("duration", "function", "socket", "stack", "optional duration"):
                v = self.r.number() if there else before[i]
            elif of == "integer":
                v = before[i] + self.r.signed() & M64 if there else before[i]
            elif of == "cpu":
                v = self.r.signed() if there else before[i]
            elif of == "task":
                v = task
                if there:
                    v = self.r.number()
                    self.tasks = [v, self.tasks[0]]
            elif of == "packet":
                v = self.recent[0][0]
                if there:
                    v = self.newest + self.r.signed() & M64
                    self.newest = v or self.newest
            elif of in ("text", "bytes"):
                v = (self.r.bytes() if there else b"").hex()
            else:
                raise ValueError(f"a column of type {of}")
            if there:
                before[i] = v
            values.append(v)
        return declared["name"], values


class Records(Chunk):
    def __init__(self, *rest):
        super().__init__(*rest)
        self.func = 0
        self.guess = [0] * 1024
        self.member = (0, 0)
        self.len_bytes = 0
        self.places = [(0, 0, 0)] * 3
        self.prints = [(0, 0, 0, 0, 0, 0, b"")] * 64

    def packet(self, mode):
        if mode == 3:
            self.recent = [(self.next_id(), self.r.u16())] + self.recent[:2]
        else:
            self.recent.insert(0, self.recent.pop(mode))
        return self.recent[0]

    def task(self, mode):
        assert mode != 3, "a task mode that does not occur"
        if mode == 1:
            self.tasks.reverse()
        elif mode == 2:
            self.tasks = [self.r.number(), self.tasks[0]]
        return self.tasks[0]

    def place(self, mode):
        if mode == 3:
            self.places = [(self.r.number(), self.r.number(), self.r.number())] + self.places[:2]
        else:
            self.places.insert(0, self.places.pop(mode))
        return self.places[0]

    def function(self, follows):
        if follows:
            self.guess[self.func % 1024] = self.r.number()
        self.func = self.guess[self.func % 1024]
        return self.func

    def record(self):
        tag = self.r.u8()
        if tag & 0x80:
            return self.call(tag)
        kind, a, b = tag & 7, tag >> 3 & 3, tag >> 5 & 3
        if kind == 0:
            fields, at = self.r.u8(), self.next_time()
            func = self.function(fields & 1)
            if fields & 2:
                self.len_bytes = self.r.number()
            packet, task = self.packet(a), self.task(b)
            return "point", [at, func, self.len_bytes, int(fields & 4 != 0), *packet, task, int(fields & 8 != 0)]
        if kind == 1:
            if a == 1:
                self.member = (self.r.number(), signed64(self.time + self.r.signed()))
            return "member", [self.member[1], self.member[0], self.next_id()]
        if kind == 2:
            at = self.next_time()
            packet, place = self.packet(a), self.place(b)
            slot = self.r.u8()
            self.prints[slot] = self.footprint(*self.prints[slot])
            *fields, header = self.prints[slot]
            return "footprint", [at, *packet, *place, *fields, header.hex()]
        if kind == 3:
            at, parent = self.next_time(), self.next_id()
            child = self.next_id() if tag & 0x40 else parent
            return "lineage", [at, tag >> 3 & 7, parent, child]
        if kind == 4:
            at = self.next_time()
            return "place", [at, *self.packet(a), *self.place(b)]
        assert kind == 7, f"tag {tag:#x}"
        small = tag >> 3 & 15
        return self.columns(self.r.number() if small == 15 else 8 + small)

    def call(self, tag):
        step = self.r.number()
        self.time = signed64(self.time - step if tag & 0x40 else self.time + step)
        duration = self.r.number()
        func = self.function(tag & 0x10)
        packet, task = self.packet(tag & 3), self.task(tag >> 2 & 3)
        return "call", [self.time, duration, func, *packet, task, self.r.u8() if tag & 0x20 else 0]

    def footprint(self, length, gso_size, gso_segs, protocol, start_layer, ip_proto, header):
        fields = self.r.u8()
        if fields & 1:
            length = self.r.number()
        if fields & 2:
            gso_size, gso_segs = self.r.number(), self.r.number()
        if fields & 4:
            protocol = self.r.number()
        if fields & 8:
            start_layer, ip_proto = self.r.u8(), self.r.u8()
        size = self.r.u8() if fields & 16 else len(header)
        room = bytearray(header.ljust(MAX_HEADER, b"\0"))
        groups = self.r.number()
        for group in range(MAX_HEADER // 8):
            if groups >> group & 1:
                mask = self.r.u8()
                for byte in range(8):
                    if mask >> byte & 1:
                        room[8 * group + byte] = self.r.u8()
        return length, gso_size, gso_segs, protocol, start_layer, ip_proto, bytes(room[:size])


class Application(Chunk):
    def __init__(self, *rest):
        super().__init__(*rest)
        self.sockets = [0] * 3
        self.expected = [(0, 0, 0, 0)] * 256
        self.states = [[0] * 35 for _ in range(64)]

    def socket(self, mode):
        if mode == 3:
            self.sockets = [self.r.number()] + self.sockets[:2]
        else:
            self.sockets.insert(0, self.sockets.pop(mode))
        return self.sockets[0]

    def record(self):
        tag = self.r.u8()
        crossing, mode = tag & 15, tag >> 4 & 3
        if crossing:
            return self.crossing(crossing, mode, self.r.u8() if tag & 0x40 else 0)
        kind = self.r.u8()
        if kind != 7:
            return self.columns(kind)
        at, socket = self.next_time(), self.socket(mode)
        values, differs = self.states[socket % 64], self.r.number()
        for i in range(35):
            if differs >> i & 1:
                values[i] = values[i] + self.r.signed() & M64
        return "tcp-state", [at, socket, *values]

    def crossing(self, crossing, mode, differs):
        at, socket = self.next_time(), self.socket(mode)
        place = ((socket * 0x9E3779B1 & 0xFFFFFFFF) >> 24 ^ crossing << 4) % 256
        size, segments, sequence, task = self.expected[place]
        if differs & 1:
            size = self.r.signed()
        if differs & 2:
            segments = self.r.number()
        if differs & 4:
            sequence = sequence + self.r.signed() & 0xFFFFFFFF
        if differs & 8:
            task = self.r.number()
        self.expected[place] = (size, segments, sequence + max(size, 0) & 0xFFFFFFFF, task)
        return "crossing", [at, crossing, socket, size, segments, sequence, task]


def chunks(data):
    at = seq = 0
    while at < len(data):
        head = data[at:at + 64]
        version, kind, codec, cpu, count, stored, raw, number = struct.unpack("<BBBHIIII", head[7:28])
        assert head[:7] == MAGIC and version == 3, f"no chunk of version 3 at {at}"
        base, header_crc, crc = struct.unpack("<QII", head[48:])
        payload = data[at + 64:at + 64 + stored]
        assert crc32c(head[:56]) == header_crc and crc32c(head[:60] + payload) == crc, f"checksum at {at}"
        assert number == seq, f"chunk {number} where {seq} should be"
        if codec == 1:
            payload = subprocess.run(["zstd", "-dcq"], input=payload, stdout=subprocess.PIPE, check=True).stdout
        assert len(payload) == raw, f"length at {at}"
        yield kind, cpu, count, base, payload
        at, seq = at + 64 + stored, seq + 1


def main(path):
    schema = {}
    with open(path, "rb") as f:
        data = f.read()
    for kind, cpu, count, base, payload in chunks(data):
        if kind == 1:
            answer = json.loads(payload)
            schema.update({k["id"]: k for k in answer.get("schema", [])})
        if kind not in (2, 3):
            continue
        chunk = (Records if kind == 2 else Application)(Reader(payload), schema, base)
        names = {k["name"]: [c["name"] for c in k["columns"]] for k in schema.values()}
        if "put_off" not in names["point"]:  # an older log, in which it is 0
            names["point"].append("put_off")
        for _ in range(count):
            name, values = chunk.record()
            columns = names[name] + [f"value{i}" for i in range(len(values) - len(names[name]))]
            print(cpu, name, *(f"{c}={v}" for c, v in zip(columns, values, strict=True)))
        assert chunk.r.left() == 0, "more than the header says"


if __name__ == "__main__":
    main(sys.argv[1])
