"""Packets followed from one kernel into another, held against the number in each datagram.

What kpat does not know: the number, that both logs are of one clock (where they are), and when the other kernel had the packet.
So the true flight of every frame is known to the nanosecond, and the bound that kpat gives has to hold it.
"""
import statistics
from pathlib import Path

from . import look, numbers


def judge(x: dict, logs: dict, out: Path, facts: dict, lost: int) -> tuple[bool, str, dict]:
    """Whether every numbered frame went from one device into the other, in words and in figures."""
    since, until = facts.get("recorded_wall_ns", (0, 1 << 63))
    frames = [f for f in numbers.read({**x, "numbers": x["crossed"]}, out, facts) if since <= f["ns"] <= until]
    reported = {(f["capture"], f["number"]): f["crossings"] for f in look.crossings(out / "run.kpat")}
    sender, receiver = logs[x["from"]], logs[x["to"]]
    slack = int(x.get("slack_ms", numbers.SLACK_MS) * 1e6)
    rows = []
    for f in frames:
        for c in reported.get((f["file"], f["frame"]), []):
            alive = all(lives(log, c[f"{end}_packet_id"], f["ns"], slack) for log, end in ((sender, "from"), (receiver, "to")))
            rows.append((f, c, (c["from"], c["to"]) == (x["from"], x["to"]) and alive))
    # The packet of either kernel is of this number only, and the number of this packet only.
    sides = [of_one([(f, c[f"{end}_packet_id"], ok, False) for f, c, ok in rows]) for end in ("from", "to")]
    right = [alive and one and other for (_, _, alive), one, other in zip(rows, *sides)]
    good = [r for r, ok in zip(rows, right) if ok]
    found = {(f["file"], f["frame"]) for f, _, _ in good}
    held = max(len(frames) - lost, 1)
    answer = {
        "frames": len(frames),
        "numbers": len({f["number"] for f in frames}),
        "crossings": len(rows),
        "precision": round(len(good) / max(len(rows), 1), 6),
        "recall": round(min(len(found) / held, 1.0), 6),
    }
    ok = answer["precision"] >= x.get("precision", 1.0) and answer["recall"] >= x.get("recall", 1.0) and len(frames) >= x.get("min", 1)
    words = f"{answer['frames']} frames of {answer['numbers']} numbers, {answer['crossings']} crossings, precision {answer['precision']:.4f}, recall {answer['recall']:.4f}"
    if sender.boot_id() == receiver.boot_id():
        flights = [c["arrived_boot_ns"] - c["left_boot_ns"] for _, c, _ in good]
        beyond = [abs(c["flight_ns"] - true) - c["flight_bound_ns"] for (_, c, _), true in zip(good, flights)]
        outside = sum(b > 0 for b in beyond)
        bounds = sorted(c["flight_bound_ns"] for _, c, _ in good) or [0]
        answer |= {"true_flight_ns": round(statistics.median(flights or [0])), "flight_bound_ns": bounds[len(bounds) // 2], "outside_bound": outside}
        words += f", true flight {answer['true_flight_ns'] / 1000:.1f} µs, bound {answer['flight_bound_ns'] / 1000:.1f} µs, {outside} outside of it"
        ok = ok and not outside and bool(good)
    wrong = [r for r, ok in zip(rows, right) if not ok]
    if wrong:
        f, c, _ = wrong[0]
        words += f"; wrong: {f['file']} frame {f['frame']}, {c['from']} {c['from_packet_id']} to {c['to']} {c['to_packet_id']}"
    missing = [f for f in frames if not reported.get((f["file"], f["frame"]))]
    if missing:
        words += f"; did not cross: {missing[0]['file']} frame {missing[0]['frame']}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    return ok, words, answer


def of_one(rows: list) -> list[bool]:
    kept = numbers.owned(rows)
    return [id(r) in kept for r in rows]


def lives(log: look.Log, packet_id: int, wall_ns: int, slack: int) -> bool:
    """The sniffer ran on this host: the frame's time, on the host's clocks as the recorder read them, lies within the packet's life."""
    first, last = log.lives()[packet_id]
    return first - slack <= wall_ns + log.boot_less_wall() <= last + slack
