"""How this kernel pages: levels, and where its map of all memory begins (the lowest address of a loaded segment of /proc/kcore; null where
the kernel does not show it). JSON."""
import json
import os
import struct


def lowest_segment() -> int:
    with open("/proc/kcore", "rb") as f:
        head = f.read(64)
        at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        f.seek(at)
        headers = f.read(size * count)
    loaded = [struct.unpack_from("<I4xQQ", headers, i * size) for i in range(count)]
    return min(address for kind, _, address in loaded if kind == 1)


flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
lowest = lowest_segment() if os.path.exists("/proc/kcore") else None
# Documentation/arch/x86/x86_64/mm.rst: four levels reach down to 0xffff800000000000, five to 0xff00000000000000
levels = lowest and (5 if lowest < 0xffff800000000000 else 4)
print(json.dumps({"levels": levels, "flag": "la57" in flags, "lowest": lowest and f"{lowest:#x}"}))
