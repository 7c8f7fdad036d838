#!/usr/bin/env python3
"""Do sniffers of the air know when each frame was, when one's clock is spoiled? Out of a run of the scenario handover-figure, whose sniffers have the guest's own clock, so that the truth is known.

    tsft.py KPAT OUT      JSON: of each clock how many frames are within their bound, and `wrong`

The first sniffer's stamps are moved while nothing of the station's data is heard: set back, ahead and back, slowed down. Its radio's clock (radiotap TSFT) is left as it was, but in two cases, where it is no clock."""
import json
import struct
import subprocess
import sys
from pathlib import Path


def blocks(data: bytes):
    at = 0
    while at + 12 <= len(data):
        kind, length = struct.unpack_from("<II", data, at)
        yield at, kind, length
        at += length


def resolution(data: bytes) -> int:
    """Ns of a tick of the first interface's stamps."""
    at, _, length = next(b for b in blocks(data) if b[1] == 1)
    option = at + 16
    while option + 4 <= at + length - 4:
        code, size = struct.unpack_from("<HH", data, option)
        if code == 9:
            return 10 ** (9 - data[option + 4])
        if code == 0:
            break
        option += 4 + (size + 3) // 4 * 4
    return 1_000


def spoiled(data: bytes, wall, tsft) -> tuple[bytes, list[int], list[int]]:
    """The file, and of each frame when it was on the air and its stamp before, ns of the wall clock."""
    out, tick, aired, before = bytearray(data), resolution(data), [], []
    for at, kind, _ in blocks(data):
        if kind != 6:
            continue
        high, low = struct.unpack_from("<II", data, at + 12)
        was = (high << 32 | low) * tick
        now = wall(was) // tick
        struct.pack_into("<II", out, at + 12, now >> 32, now & 0xFFFFFFFF)
        before.append(was)
        aired.append(was)
        # Its first field, where the header has no second word of presence bits.
        header = at + 28
        present = struct.unpack_from("<I", data, header + 4)[0]
        if present & 1:
            place = header + 8
            while struct.unpack_from("<I", data, place - 4)[0] & 1 << 31:
                place += 4
            place = header + (place - header + 7) // 8 * 8
            us = struct.unpack_from("<Q", data, place)[0]
            # An emulated radio's clock is the guest's wall clock.
            aired[-1] = min(was, us * 1_000)
            if tsft:
                struct.pack_into("<Q", out, place, tsft(was, us))
    return bytes(out), aired, before


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    log = next(p for p in (out / "sta.kbl", out / "record-sta.kbl", out / "record.kbl") if p.exists())
    trigger = int(float((out / "clock.txt").read_text().split()[0]) * 1e9)
    data = (out / "ch1.pcapng").read_bytes()
    run = lambda *words: subprocess.run([kpat, *map(str, words)], check=True, capture_output=True, text=True).stdout

    def ask(store: Path, what: str) -> list[dict[str, int]]:
        names, *lines = (line.split("\t") for line in run("sql", "--tsv", store, what).splitlines())
        return [{n: int(v) if v.lstrip("-").isdigit() else 0 for n, v in zip(names, line)} for line in lines]

    # While the station is away: from the trigger on 2.4 s until the access point is out of its reach.
    middle, s = trigger + 20_000_000_000, 1_000_000_000
    clocks = {
        "right": (lambda t: t, None),
        "set back by 3 s": (lambda t: t - 3 * s if t > middle else t, None),
        "set ahead by 40 ms, and back after 10 s": (lambda t: t + s // 25 if middle < t < middle + 10 * s else t, None),
        "slow by 200 ppm": (lambda t: t - max(0, t - middle) // 5_000, None),
        "right, the radio's stands still": (lambda t: t, lambda t, was: 77),
        "right, the radio's begins again": (lambda t: t, lambda t, was: was if t < middle else (t - middle) // 1_000 + 1),
    }
    found, wrong = {}, []
    for name, (wall, tsft) in clocks.items():
        changed, aired, before = spoiled(data, wall, tsft)
        (out / "spoiled.pcapng").write_bytes(changed)
        store = out / "spoiled.kpat"
        run("integrate", "-q", "--force", log, out / "spoiled.pcapng", out / "ch6.pcapng", "-o", store)
        h = json.loads(run("handover", store, "1", "--json"))
        offset = h["begin_boot_ns"] - h["begin_wall_ns"]
        frames = ask(store, "select number, boot_ns from frame where capture_id = 0 order by number")
        rows = ask(store, "select from_number, to_number, bound_ns, method from clock where capture_id = 0")
        found[name] = {"frames": len(frames), "clock": rows[:6]}
        if not rows:
            wrong.append(f"{name}: the capture has no clock")
            continue
        # Which clocks of the guest differ by how much the log knows: both are the guest's.
        inside, worst, bounds = 0, 0, []
        for f, air, stamp in zip(frames, aired, before):
            bound = max((r["bound_ns"] for r in rows if r["from_number"] <= f["number"] <= r["to_number"]), default=rows[-1]["bound_ns"])
            # Its own stamp is late, as far as it is.
            off = max(air + offset - f["boot_ns"], f["boot_ns"] - (stamp + offset)) - bound
            inside += off <= 1_000
            worst = max(worst, off)
            bounds.append(bound)
        bounds.sort()
        found[name] |= {"inside": inside, "bound_us": bounds[len(bounds) // 2] / 1e3, "bound_of_95_percent_us": bounds[int(0.95 * len(bounds))] / 1e3, "worst_outside_us": worst / 1e3}
        if inside < 0.98 * len(frames):
            wrong.append(f"{name}: {inside} of {len(frames)} frames within their bounds")
    print(json.dumps({"clocks": found, "wrong": wrong}))


if __name__ == "__main__":
    main()
