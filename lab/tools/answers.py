#!/usr/bin/env python3
"""Is what `kpat handover` answers what independent witnesses saw? Of runs of lab/tools/handover.sh, together, as JSON: of each witness how far its stamps are from the marks, in ms, and `wrong`.

    answers.py KPAT OUT...

Of each handover of the station's interface within the flow: `trace` is tracefs' own text of the tracepoints, on the same clock, `air` tshark's reading of the capture of the air, `iw` is `iw event -t`,
`ip` `ip -ts monitor`, `supplicant` the supplicant's log, `dhcp` dhclient's as a reader of its output had it, `voice` the flow's own numbers. The last five stamp when a program had read of it: after the kernel.

`air` compares the kernel's marks with their frames, `frames` what is shown of each frame with the capture. `bounds`: marks that say "up to so much earlier", and of how many of them the moment may be between what supplicant or DHCP client logged before it asked for a state or an address and what `ip monitor` read of it (`held`); and frames, whose time by the
device's clock has the bound of what relates the capture to it."""
import json
import re
import statistics
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

LINE = re.compile(r"^.{16}\s*-?.*?\[\d+\]\s+\S+\s+([\d.]+): (\w+): (.*)$")


def ns(seconds: str) -> int:
    whole, _, part = seconds.partition(".")
    return int(whole) * 1_000_000_000 + int((part + "000000000")[:9])


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Witness:
    """Times of one name by a witness; each mark of that name takes the nearest."""

    def __init__(self):
        self.of: dict[str, list[int]] = {}
        self.frames: dict[int, tuple[str, int]] = {}

    def saw(self, name: str, at: int) -> None:
        self.of.setdefault(name, []).append(at)


def trace(path: Path, radio: str, device: str) -> Witness:
    w = Witness()
    if not path.exists():
        return w
    for line in path.read_text(errors="replace").splitlines():
        m = LINE.match(line)
        if not m or not (re.match(rf"{radio}\b", m[3]) or re.search(rf"netdev:{device}\(", m[3])):
            continue
        at, name, rest = ns(m[1]), m[2], m[3]
        if name == "drv_sta_state":
            state = re.search(r"state: (\d)->(\d)", rest)
            name = {"34": "port authorised", "43": "port closed"}.get(state[1] + state[2], "") if state else ""
        else:
            name = {"rdev_scan": "scan begins", "drv_sw_scan_complete": "scan done", "cfg80211_scan_done": "scan done", "rdev_auth": "authentication request", "rdev_assoc": "association request",
                    "cfg80211_send_rx_assoc": "association accepted", "rdev_add_key": "key installed"}.get(name, "")
        if name:
            w.saw(name, at)
    return w


def air(path: Path, station: str, offset: int) -> Witness:
    w = Witness()
    if not path.exists():
        return w
    fields = ["frame.number", "frame.time_epoch", "wlan.fc.type_subtype", "wlan.ta", "wlan_rsna_eapol.keydes.msgnr", "wlan.fixed.status_code"]
    text = command("tshark", "-r", str(path), "-n", "-Y", f"wlan.addr=={station}", "-T", "fields", *(x for f in fields for x in ("-e", f)), "-E", "separator=|")
    for line in text.splitlines():
        number, at, kind, sender, message, status = line.split("|")[:6]
        sent, kind = sender == station, int(kind, 0) if kind else -1
        name = {(11, True): "authentication request", (11, False): "authentication accepted", (0, True): "association request", (2, True): "association request",
                (1, False): "association accepted", (3, False): "association accepted"}.get((kind, sent), "")
        # SAE's tokens and elements by hash (76, 126) are no refusal.
        refused = bool(status) and int(status, 0) not in (0, 76, 126)
        if name == "authentication accepted" and refused:
            name = f"authentication answered, status {int(status, 0)}"
        if name == "association accepted" and refused:
            name = f"association refused, status {int(status, 0)}"
        if message:
            name = f"EAPOL-Key message {message}"
        if name:
            w.saw(name, ns(at) - offset)
            w.frames[int(number)] = (name, ns(at) - offset)
    return w


def program_logs(out: Path, offset: int, device: str) -> dict[str, Witness]:
    iw, ip, supplicant, dhcp = Witness(), Witness(), Witness(), Witness()
    for line in (out / "iw-event.log").read_text(errors="replace").splitlines():
        m = re.match(rf"([\d.]+): {device} \(phy ?#\d+\): (\S+ ?\S*)", line)
        name = next((n for s, n in (("scan started", "scan begins"), ("scan finished", "scan done"), ("auth ", "authentication accepted"), ("assoc ", "association accepted")) if m and m[2].startswith(s)), "")
        if name:
            iw.saw(name, ns(m[1]) - offset)
    for line in (out / "ip-monitor.log").read_text(errors="replace").splitlines():
        m = re.match(r"\[(\S+?)\] (.*)", line)
        if not m:
            continue
        at = int(datetime.fromisoformat(m[1]).replace(tzinfo=timezone.utc).timestamp() * 1e6) * 1000 - offset
        a = re.search(rf"{device}\s+inet (\S+)", m[2])
        if a and "Deleted" not in m[2]:
            ip.saw(f"address {a[1]}", at)
    for line in (out / "supplicant.log").read_text(errors="replace").splitlines():
        m = re.match(rf"([\d.]+): {device}: (.*)", line)
        name = next((n for s, n in (("CTRL-EVENT-CONNECTED", "port authorised"), ("SME: Trying to authenticate", "authentication request"), ("Trying to associate with", "association request"),
                                    ("Associated with", "association accepted")) if m and m[2].startswith(s)), "")
        if m and m[2].startswith("WPA: RX message "):
            name = f"EAPOL-Key message {m[2].split()[3]}"
        if m and m[2].startswith("WPA: Sending EAPOL-Key "):
            name = f"EAPOL-Key message {m[2].split()[3].split('/')[0]}"
        if name:
            supplicant.saw(name, ns(m[1]) - offset)
    if (out / "dhcp.log").exists():
        for line in (out / "dhcp.log").read_text(errors="replace").splitlines():
            m = re.match(r"([\d.]+):? DHCP([A-Z]+)", line)
            if m:
                dhcp.saw(f"DHCP {m[2]}", ns(m[1]) - offset)
    return {"iw": iw, "ip": ip, "supplicant": supplicant, "dhcp": dhcp}


def states(out: Path, device: str, offset: int) -> dict[str, tuple[list[int], list[int]]]:
    """Of each operational state: when the supplicant was about to ask for it, and when `ip monitor` had read that it is so."""
    asked = [(m[2].lower(), ns(m[1]) - offset) for m in re.finditer(rf"(?m)^([\d.]+): nl80211: Set {device} operstate \d->\d \((\w+)\)", (out / "supplicant.log").read_text(errors="replace"))]
    read = [(m[2].lower(), int(datetime.fromisoformat(m[1]).replace(tzinfo=timezone.utc).timestamp() * 1e6) * 1000 - offset)
            for m in re.finditer(rf"(?m)^\[(\S+?)\] \d+: {device}: .* state (\w+)", (out / "ip-monitor.log").read_text(errors="replace"))]
    of = lambda pairs, name: [at for n, at in pairs if n == name]
    return {f"operational state {name}": (of(asked, name), of(read, name)) for name in ("up", "dormant")}


def held(mark: tuple[str, int, int], known: dict[str, tuple[list[int], list[int]]]) -> bool | None:
    """May the moment be within the mark's bound? None: no witness was there."""
    words, at, within = mark
    asked, read = known.get(words, ([], []))
    after = next((t for t in read if t >= at - within), None)
    # It may have been so already when it was asked for once more.
    before = [t for t in asked if after is not None and 0 <= after - t <= 2_000_000_000]
    return min(before) <= at if before else None


def name_of(words: str) -> str:
    """A mark's name as witnesses have it."""
    words = re.sub(r"^re(association request)", r"\1", words)
    words = re.sub(r"^(DHCP [A-Z]+) .*", r"\1", words)
    words = re.sub(r"^(authentication request).*", r"\1", words)
    return re.sub(r"^(pairwise|group) (key installed)", r"\2", words)


def look(kpat: str, out: Path) -> tuple[list, dict, list, list]:
    """Handovers of one run, of each witness how far its stamps are from which marks, bounds, and what is wrong."""
    store, device = out / "run.kpat", "w2"
    ask = lambda *words: json.loads(command(kpat, "handover", str(store), *words, "--json"))
    wall, boot = (ns(s) for s in (out / "clock.txt").read_text().split())
    radio = (out / "radio.txt").read_text().strip()
    voice = [line.split() for line in (out / "voice.log").read_text().splitlines()]
    # By the kernel's own stamps.
    echoes = [ns(v[4]) for v in voice if v[1] == "echo"]
    listed = [h for h in ask()["handovers"] if h["interface"] == device and min(echoes) <= h["end_boot_ns"]]
    station = json.loads(command(kpat, "sql", str(store), f"select mac from device where name = '{device}' limit 1", "--json"))[0]["mac"]
    # The clocks' relation is that of the log itself, to a microsecond; date(1) and /proc/uptime are a process apart.
    offset = listed[0]["begin_wall_ns"] - listed[0]["begin_boot_ns"] if listed else wall - boot
    witnesses = {"trace": trace(out / "trace.txt", radio, device), "air": air(out / "air.pcapng", station, offset), **program_logs(out, offset, device)}
    clock = json.loads(command(kpat, "sql", str(store), "select from_wall_ns, to_wall_ns, bound_ns from clock", "--json"))
    wrong, apart, rows, bounds = [], {}, [], []
    known = states(out, device, offset)
    # An address comes after the client logged that it has one.
    known |= {name: (witnesses["dhcp"].of.get("DHCP ACK", []), times) for name, times in witnesses["ip"].of.items()}
    for h in listed:
        d = ask(str(h["handover"]))
        begin, end = h["begin_boot_ns"], h["end_boot_ns"]
        if sum(p["ns"] for p in d["phases"]) != d["whole_ns"] or any(a["to_boot_ns"] != b["from_boot_ns"] for a, b in zip(d["phases"], d["phases"][1:])):
            wrong.append(f"phases of {h['handover']} leave gaps or overlap")
        marks = [(name_of(m["words"]), m["at_boot_ns"]) for m in d["marks"] if m["table"] in ("wifi_event", "link_event", "exchange", "event") and m["lane"] != "programs"]
        # Each frame stands beside the mark of the same thing, or is a mark of its own.
        beside = {m["frame"]["number"]: m for m in d["marks"] if m["frame"]}
        alone = {m["row"]: m for m in d["marks"] if m["table"] == "frame"}
        for number, (name, at) in witnesses["air"].frames.items():
            if not begin <= at <= end:
                continue
            m = beside.get(number)
            if m and name_of(m["words"]) != name:
                wrong.append(f"frame {number} beside {m['words']!r} is {name!r}")
            if m:
                apart.setdefault("air", []).append(((at - m["at_boot_ns"]) / 1e6, name))
            elif number not in alone:
                wrong.append(f"frame {number}, {name!r}, at {(at - begin) / 1e9:.4f} s of handover {h['handover']} is shown nowhere")
                continue
            shown = m["frame"]["at_boot_ns"] if m else alone[number]["at_boot_ns"]
            apart.setdefault("frames", []).append(((at - shown) / 1e6, name))
            # Both clocks are this guest's, so what relates them is known: the log's own relation has a bound.
            claimed = next((c["bound_ns"] for c in clock if c["from_wall_ns"] <= at + offset <= c["to_wall_ns"]), None)
            if claimed is not None:
                bounds.append((claimed, abs(at - shown) <= claimed))
        claims = [(m["words"], m["at_boot_ns"], m["within_ns"]) for m in d["marks"] if m["within_ns"]]
        bounds += [(within, ok) for _, _, within, ok in ((*c, held(c, known)) for c in claims) if ok is not None]
        for who, w in ((who, w) for who, w in witnesses.items() if who != "air"):
            for name, times in w.of.items():
                for at in (t for t in times if begin <= t <= end):
                    ours = [m for n, m in marks if n == name]
                    if not ours:
                        wrong.append(f"{who} saw {name!r} at {(at - begin) / 1e9:.4f} s of handover {h['handover']}, and no mark is of it")
                        continue
                    apart.setdefault(who, []).append((min((at - m for m in ours), key=abs) / 1e6, name))
        # The application: the longest time without an echo that touches it.
        gaps = [(b - a, a, b) for a, b in zip(echoes, echoes[1:]) if b >= begin and a <= end]
        gap = max(gaps) if gaps else None
        row = {k: d[k] for k in ("kind", "cause", "whole_ns", "without_data_ns", "link_ns", "search_ns", "attempts", "ended")}
        row["tiles"] = True
        if gap and d["flow"]:
            row["voice_gap_ms"], row["flow_gap_ms"] = round(gap[0] / 1e6, 1), round((d["flow"]["gap_ns"] or 0) / 1e6, 1)
            row["first_echo_after_end_ms"] = round((gap[2] - end) / 1e6, 1)
        rows.append(row)
    return rows, apart, bounds, wrong


def main() -> None:
    kpat = sys.argv[1]
    rows, apart, bounds, wrong = [], {}, [], []
    for out in map(Path, sys.argv[2:]):
        found = look(kpat, out)
        rows += found[0]
        for who, all_ in found[1].items():
            apart.setdefault(who, []).extend(all_)
        bounds += found[2]
        wrong += [f"{out.name}: {w}" for w in found[3]]
    table = {}
    for who, all_ in apart.items():
        sizes = sorted(abs(a) for a, _ in all_)
        table[who] = {"stamps": len(all_), "median_ms": round(statistics.median(a for a, _ in all_), 3), "within_1_ms": sum(s <= 1 for s in sizes), "most_ms": round(sizes[-1], 3),
                      "most_of": max(all_, key=lambda x: abs(x[0]))[1],
                      "median_of": {name: round(statistics.median(a for a, n in all_ if n == name), 3) for name in sorted({n for _, n in all_})}}
    claimed = {"marks": len(bounds), "held": sum(ok for _, ok in bounds)} | ({"median_ms": round(statistics.median(w for w, _ in bounds) / 1e6, 3)} if bounds else {})
    if claimed["held"] < claimed["marks"]:
        wrong.append(f"{claimed['marks'] - claimed['held']} of {claimed['marks']} bounds do not hold")
    print(json.dumps({"handovers": rows, "apart": table, "bounds": claimed, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
