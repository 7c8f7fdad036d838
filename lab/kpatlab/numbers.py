"""A truth that knows nothing of kpat's keys: the number that a generator put into each packet, read by tshark.

Frames of one number, in whatever captures, have to have one packet (or one family: its segments, fragments and copies), and
frames of another number another one. Frame and packet were on one host, whose clocks the recorder read together, so a frame also
has to lie within its packet's life; that tells packets apart which all captures would confuse alike.
"""
import re
from collections import Counter, defaultdict
from pathlib import Path

from . import cache, look

# A frame's time is taken a moment before the first probe or after the last; a guest is slow.
SLACK_MS = 2.0
SEQ = 1 << 32
RANK = -1


def judge(x: dict, log: look.Log, out: Path, facts: dict, lost: int, missed: float = 0.0) -> tuple[bool, str, dict]:
    """Whether what the expectation asks holds, in words and in figures. `lost`: records that kpat says it lost. `missed`: the share of
    calls that it says it missed; above a thousandth, so many more associations may be wrong or lacking, because the end of a packet
    may be among those calls."""
    # Sniffers begin before the recorder and end after it, which takes a while to detach.
    since, until = facts.get("recorded_wall_ns", (0, 1 << 63))
    frames = [f for f in read(x, out, facts) if since <= f["ns"] <= until]
    reported = log.frames()
    lives = log.lives()
    offset = log.boot_less_wall()
    slack = int(x.get("slack_ms", SLACK_MS) * 1e6)
    by = {"packet": "packet_id", "family": "family_id"}[x.get("by", "family")]
    rows = []  # frame, unit, is it within the packet's life, is it marked ambiguous
    for f in frames:
        for p in reported.get((f["file"], f["frame"]), []):
            first, last = lives[p["packet_id"]]
            at = f["ns"] + offset
            rows.append((f, p[by], first - slack <= at <= last + slack, p["confidence_percent"] < 60))
    right = merged(rows, {p["packet_id"]: p for p in log.packets()}, reported) if x.get("merged") else owned(rows)
    sure = [r for r in rows if not r[3]]
    good = [r for r in sure if id(r) in right and r[2]]
    found = {(r[0]["file"], r[0]["frame"]) for r in rows if id(r) in right and r[2]}
    wrong = [r for r in sure if not (id(r) in right and r[2])]
    held = max(len(frames) - lost, 1)
    answer = {
        "frames": len(frames),
        "numbers": len({f["number"] for f in frames}),
        "associations": len(rows),
        "precision": round(len(good) / len(sure), 6) if sure else 1.0,
        "recall": round(min(len(found) / held, 1.0), 6),
        "ambiguous": len(rows) - len(sure),
        "outside_life": sum(not r[2] for r in sure),
    }
    allowed = missed if missed > 0.001 else 0
    answer["missed_share"] = round(missed, 6)
    ok = (len(frames) >= x.get("min", 1) and answer["precision"] >= x.get("precision", 1.0) - allowed and answer["recall"] >= x.get("recall", 1.0) - allowed
          and answer["ambiguous"] <= x.get("ambiguous", 0))
    words = (f"{answer['frames']} frames of {answer['numbers']} numbers, {answer['associations']} associations, precision {answer['precision']:.4f}, "
             f"recall {answer['recall']:.4f}, ambiguous {answer['ambiguous']}")
    if wrong:
        words += f"; wrong: {one(wrong[0])}" + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    missing = [f for f in frames if (f["file"], f["frame"]) not in found and (f["file"], f["frame"]) not in reported]
    if missing:
        words += f"; without a packet: {missing[0]['file']} frame {missing[0]['frame']}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    return ok, words, answer


def one(r) -> str:
    f, unit, alive, _ = r
    return f"{f['file']} frame {f['frame']} (number {' '.join(map(str, f['number']))}) with {unit}" + ("" if alive else ", which did not live then")


def owned(rows: list) -> set[int]:
    """Rows where the unit is of this number only, and the number of this unit only; a minority is what is wrong."""
    of_unit, of_number = defaultdict(Counter), defaultdict(Counter)
    for f, unit, _, _ in rows:
        of_unit[unit][f["number"]] += 1
        of_number[f["number"]][unit] += 1
    return {id(r) for r in rows if of_unit[r[1]].most_common(1)[0][0] == r[0]["number"] and of_number[r[0]["number"]].most_common(1)[0][0] == r[1]}


def merged(rows: list, packets: dict[int, dict], reported: dict) -> set[int]:
    """TCP by byte range, where offload makes one packet of many frames: all frames of a range have one family, the frames of a family
    are one stretch of the stream without a gap, and the stretch is no longer than the packets of the family together."""
    of_number, stretches, members = defaultdict(Counter), defaultdict(list), defaultdict(set)
    for f, unit, _, _ in rows:
        of_number[f["number"]][unit] += 1
        stretches[unit, f["way"]].append((f["seq"], f["len"]))
    for found in reported.values():
        for p in found:
            members[p["family_id"]].add(p["packet_id"])
    room = {family: sum(packets[i]["len_bytes"] for i in ids) for family, ids in members.items()}
    whole = {key: is_stretch(parts, room[key[0]]) for key, parts in stretches.items()}
    return {id(r) for r in rows if of_number[r[0]["number"]].most_common(1)[0][0] == r[1] and whole[r[1], r[0]["way"]]}


def is_stretch(parts: list[tuple[int, int]], at_most: int) -> bool:
    base = parts[0][0]
    near = sorted(((seq - base + SEQ // 2) % SEQ - SEQ // 2, length) for seq, length in parts)
    end = near[0][0]
    for seq, length in near:
        if seq > end:
            return False
        end = max(end, seq + length)
    return end - near[0][0] <= at_most


def read(x: dict, out: Path, facts: dict) -> list[dict]:
    """Frames with a number: file, frame, time, number. Fragments are left as they came."""
    wanted = ["tcp.stream", "tcp.srcport", "tcp.seq_raw", "tcp.len"] if x.get("merged") else x["number"] if isinstance(x["number"], list) else [x["number"]]
    choices = [[slice_of(c) for c in w.split("|")] for w in wanted]
    names = sorted({name for w in choices for name, _ in w})
    frames = []
    for capture in x["numbers"]:
        reported = facts["captures"][capture]
        argv = [cache.tool("tshark", "tshark"), "-n", "-r", str(out / reported["file"]), "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-T", "fields",
                "-E", "occurrence=l", "-e", "frame.number", "-e", "frame.time_epoch", *[y for n in names for y in ("-e", n)]]
        argv += ["-Y", x["filter"]] if "filter" in x else []
        times: Counter = Counter()
        here = []
        lines = [line.split("\t") for line in cache.run(argv, f"tshark on {reported['file']}", timeout=240).stdout.decode().splitlines()]
        rows = [(frame, epoch, dict(zip(names, values))) for frame, epoch, *values in lines]
        for name in {name for w in choices for name, part in w if part is RANK}:
            order = {n: str(i) for i, n in enumerate(sorted({int(row[name], 0) for _, _, row in rows if row[name]}))}
            for _, _, row in rows:
                row[name] = order[int(row[name], 0)] if row[name] else ""
        for frame, epoch, row in rows:
            number = tuple(next((v for name, part in w if (v := cut(row[name], part))), "") for w in choices)
            if not all(number):
                continue
            seconds, _, fraction = epoch.partition(".")
            f = {"file": reported["file"], "frame": int(frame), "ns": int(seconds) * 10**9 + int((fraction + "000000000")[:9]) - int(reported.get("added_s", 0) * 1e9)}
            if x.get("merged"):
                if number[3] == "0":
                    continue
                f |= {"way": number[:2], "seq": int(number[2]), "len": int(number[3])}
            here.append(f | {"number": number})
        # From the last backwards: what was one large packet before a router has its first turn there under another number.
        for f in reversed(here) if x.get("nth") and x.get("merged") else here if x.get("nth") else ():
            times[f["number"]] += 1
            f["number"] += (times[f["number"]],)
        frames += here
    return frames


def slice_of(choice: str) -> tuple[str, slice | int | None]:
    """`udp.payload[0:8]`: the first eight bytes of what tshark shows as hex. `esp.sequence-1`: a count, less what it begins with;
    `wg.counter#`: the how-manyeth of the capture's it is."""
    m = re.fullmatch(r"([a-z0-9_.]+)(?:\[(\d+):(\d+)\]|-(\d+)|(#))?", choice)
    if m[4]:
        return m[1], int(m[4])
    if m[5]:
        return m[1], RANK
    return m[1], slice(2 * int(m[2]), 2 * int(m[3])) if m[2] else None


def cut(value: str, part: slice | int | None) -> str:
    if part is None:
        return value
    if isinstance(part, int):  # as eight bytes, as the generators write theirs
        return f"{int(value, 0) - max(part, 0):016x}" if value else ""
    v = value.replace(":", "")[part]
    return v if len(v) == part.stop - part.start else ""
