"""Does kpat's record of a handover have what independent witnesses saw? As JSON: what was compared, and `wrong`.

    handover.py KPAT OUT connected|disconnected

OUT is the folder of a run of lab/tools/handover.sh. Tracepoints: tracefs' own text of the same run, on the same clock, of the station's radio: each line is an event of the record
within a millisecond (seven of eight of them: an interrupt may cut in between), and each event a line. Scans, authentications and associations: `iw event -t`. Addresses: `ip -ts monitor`. The end: the supplicant's own state. EAPOL and DHCP:
their messages are those of the supplicant's and of dhclient's log."""
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

NEAR_NS = 1_000_000
FAR_NS = 50_000_000
LINE = re.compile(r"^.{16}\s*-?.*?\[\d+\]\s+\S+\s+([\d.]+): (\w+): (.*)$")


def rows(kpat: str, store: Path, query: str) -> list[dict]:
    text = subprocess.run([kpat, "sql", str(store), query, "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(text)


def nanoseconds(seconds: str) -> int:
    whole, _, part = seconds.partition(".")
    return int(whole) * 1_000_000_000 + int((part + "000000000")[:9])


def traced(path: Path, radio: str, device: str) -> list[tuple[int, str]]:
    """Time and name of the lines that are of the station's radio or its interface."""
    out = []
    for line in path.read_text(errors="replace").splitlines():
        m = LINE.match(line)
        if m and (re.match(rf"{radio}\b", m[3]) or re.search(rf"netdev:{device}\(", m[3])):
            out.append((nanoseconds(m[1]), m[2]))
    return out


def compare(recorded: list[tuple[int, str]], truth: list[tuple[int, str]]) -> list[str]:
    """Of each name the times in order: as many, and each near."""
    ours, theirs = defaultdict(list), defaultdict(list)
    for at, name in recorded:
        ours[name].append(at)
    for at, name in truth:
        theirs[name].append(at)
    wrong, apart = [], []
    for name in sorted(set(ours) | set(theirs)):
        a, b = sorted(ours[name]), sorted(theirs[name])
        if len(a) != len(b):
            wrong.append(f"{name}: {len(a)} recorded, {len(b)} in the trace")
        if len(a) == len(b):
            apart += [(abs(x - y), name) for x, y in zip(a, b)]
    # Both stamp the same passing, one after the other: an interrupt between them, which on a shared emulated processor lasts, parts them.
    far = [f"{name}: {ns / 1e6:.3f} ms apart" for ns, name in apart if ns > NEAR_NS]
    if len(far) > len(apart) / 8:
        wrong += far
    wrong += [f"{name}: {ns / 1e6:.3f} ms apart" for ns, name in apart if ns > FAR_NS]
    return wrong


def main() -> None:
    kpat, out, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    store = out / "run.kpat"
    events = rows(kpat, store, "select at_ns, event, point, ifindex, wiphy, address, a, b, c, frequency from wifi_event order by at_ns")
    exchanges = rows(kpat, store, "select at_ns, protocol, message, sent from exchange order by at_ns")
    links = rows(kpat, store, "select at_ns, event, function from link_event order by at_ns")
    flow = [nanoseconds(line.split()[0]) for line in (out / "voice.log").read_text().splitlines()]
    begin, over = min(flow), max(flow)
    radio = (out / "radio.txt").read_text().strip()
    inside = lambda at: begin <= at <= over
    # Of an association that is put off the trace's text does not name the radio.
    recorded = [(e["at_ns"], e["point"].split(":")[1]) for e in events if inside(e["at_ns"]) and not e["point"].endswith("assoc_comeback")]
    truth = [(at, name) for at, name in traced(out / "trace.txt", radio, "w2") if inside(at)]
    wrong = compare(recorded, truth)
    if not truth:
        wrong.append("tracefs has no line of the station's radio")
    wrong += [f"an event of {e['wiphy']}" for e in events if e["wiphy"] != radio]
    count = lambda *names: sum(1 for _, name in recorded if name in names)
    # What user space read, by whole recordings: they may begin before the flow and go on after it, so theirs are at least ours.
    heard = (out / "iw-event.log").read_text(errors="replace")
    scans = len(re.findall(r"(?m)^[\d.]+: w2 .*: scan started", heard))
    if scans < count("rdev_scan"):
        wrong.append(f"{count('rdev_scan')} scans recorded, {scans} reported by iw")
    # Answered, or timed out, as on a processor that others share.
    auths, assocs = (len(re.findall(rf": {what}(?: |: timed out)", heard)) for what in ("auth", "assoc"))
    for what, ours, theirs in (("authentications", "rdev_auth", auths), ("associations", "rdev_assoc", assocs)):
        if count(ours) > theirs:
            wrong.append(f"{count(ours)} {what} recorded, {theirs} reported by iw")
    supplicant = (out / "supplicant.log").read_text(errors="replace")
    wall, boot = (nanoseconds(s) for s in (out / "clock.txt").read_text().split())
    reported = [nanoseconds(m[1]) - wall + boot for m in re.finditer(r"(?m)^([\d.]+): .*CTRL-EVENT-CONNECTED", supplicant)]
    joined = [at for at in reported if inside(at)]
    opened = [e for e in events if e["point"].endswith("drv_sta_state") and (e["a"], e["b"]) == (3, 4) and inside(e["at_ns"])]
    if end == "connected" and len(opened) != len(joined):
        wrong.append(f"the port was opened {len(opened)} times in the record, the supplicant reported {len(joined)}")
    if end == "disconnected" and opened:
        wrong.append("the port was opened, and the supplicant has the wrong password")
    carriers = Counter(link["event"] for link in links if link["function"] == 1 and inside(link["at_ns"]))
    print(json.dumps({
        "events": len(recorded), "traced": len(truth), "kinds": len({n for _, n in truth}), "scans": count("rdev_scan"), "opened": len(opened),
        "carrier_on": carriers[1], "carrier_off": carriers[2],
        "exchanges": dict(Counter(f"{x['protocol']}.{x['message']}.{'sent' if x['sent'] else 'received'}" for x in exchanges)), "wrong": wrong,
    }))


if __name__ == "__main__":
    main()
