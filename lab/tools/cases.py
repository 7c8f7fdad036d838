#!/usr/bin/env python3
"""Are the handovers of a run of lab/tools/cases.sh what was made? As JSON: of each case what `kpat handover` found, `not_made`, and `wrong`.

    cases.py KPAT OUT

What should be found was written down from what each case does. Beside it: each time the supplicant says that it is connected a handover has its link up, to that access point; each time it says that it is
disconnected there is one; none has another; phases are the whole; and the application's gap is that of the flow's own numbers.

On a busy machine a case, or an act of it, may not come about in its time: `not_made`. Then it is judged by what the supplicant's log has instead, as those by chance are; where it has
nothing, nothing may be found."""
import json
import re
import subprocess
import sys
from pathlib import Path

ANY = None
# Of each case: kind, cause, from, to of each handover of w2 (1 and 2: the access points), and words that its sentences, failed attempts or (in brackets) marks have.
MADE = {
    "together": ([("roam", "chosen", 1, 2), ("roam", "chosen", 2, 1)], []),
    "roam-fails": ([("roam-failed", "chosen", 1, 1)], ["authentication: no answer"]),
    "sent-away-in-handshake": ([(ANY, "chosen", 1, ANY)], ["deauthentication received, reason 8"]),
    "sent-away-at-once": ([("roam", "chosen", 1, 2), (ANY, "deauthenticated", 2, ANY)], []),
    "same-again": ([("joined-anew", "chosen", 1, 1)], []),
    "during-a-scan": ([(ANY, "deauthenticated", 1, ANY)], []),
    "hidden": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "channel-switch": ([], []),
    "same-channel": ([("roam", "chosen", 1, 2)], []),
    "shut": ([(ANY, "shut", 1, ANY)], []),
    "rfkill": ([(ANY, "shut", 1, ANY)], []),
    "dhcp-late": ([(ANY, "left", 1, ANY)], ["the server, or a relay,"]),
    "no-ack": ([(ANY, "left", 1, ANY)], ["an address was offered, and"]),
    "conflict": ([(ANY, "left", 1, ANY)], ["another host has", "DECLINE"]),
    "duplicate-v6": ([("roam", "chosen", 1, 2)], ["[duplicate address fd07:1::9"]),
    "two-stations": ([("roam", "chosen", 1, 2)], []),
    "access-point": ([], []),
    "mesh": ([], []),
    "cut": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "removed": ([(ANY, "removed", 1, ANY)], []),
    "vlan": ([("roam", "chosen", 1, 2), ("lost-and-joined", "silent-loss", 2, 1)], []),
    "reconnect-late": ([("rejoin", "left", 1, 1)], []),
    "left-then-shut": ([(ANY, "left", 1, ANY)], []),
    "ended-supplicant": ([(ANY, "left", 1, ANY)], []),
    "other-network": ([(ANY, "left", 1, 2)], []),
    "static": ([("roam", "chosen", 1, 2)], []),
    "renamed": ([("roam", "chosen", 1, 2)], []),
    "killed-access-point": (ANY, []),
    "sent-away-in-dhcp": ([(ANY, "left", 1, 1), (ANY, "deauthenticated", 1, ANY)], []),
    "nothing": ([], []),
    "flow-pauses": ([("roam", "chosen", 1, 2)], []),
    "asked-to-go": ([("roam", "asked", 1, 2)], ["[asked to go by the access point (802.11v) to 02:00:00:00:01:00", "[request accepted (802.11v)"]),
    "asked-refused": ([("roam", "chosen", 1, 2)], []),
    "reassociate": ([("joined-anew", "chosen", 1, 1)], []),
    "unprotected": ([], []),
    "wired": ([], []),
    "cuts": (ANY, []),
    "no-route": ([(ANY, "left", 1, 1)], []),
    "moved": ([(ANY, "removed", 1, ANY)], []),
    "full": ([("roam-failed", "chosen", 1, 1)], ["status 17 (access point is full)"]),
    "association-refused": ([(ANY, "chosen", 1, 1)], ["status 27 (HT required)"]),
    "denied": ([("roam-failed", "chosen", 1, 1)], []),
    "disassociated-idle": ([(ANY, "deauthenticated", 1, ANY)], []),
    "static-silent": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "sae-again": ([("roam", "chosen", 1, 2), ("roam", "chosen", 2, 1), ("roam", "chosen", 1, 2), ("roam", "chosen", 2, 1)], ["[association put off for", "status 53 (PMKID not valid)"]),
    "eap-again": ([("roam", "chosen", 1, 2), ("roam", "chosen", 2, 1), ("roam", "chosen", 1, 2)], ["802.1X with PWD, 4 requests"]),
    "over-the-ds": ([("fast-transition", "chosen", 1, 2)], ["fast transition over the distribution system"]),
    "no-handshake": ([("roam-failed", "chosen", 1, 1)], ["sent no first message of the 4-way handshake"]),
    "lease-refused": ([(ANY, "left", 1, ANY)], ["the old lease was asked for first"]),
    "to-and-fro": ([("roam", "signal-low", 1, 2), ("roam", "signal-low", 2, 1)], []),
    "kept": ([], []),
    "saves-power": ([("roam", "chosen", 1, 2)], []),
    "both-silent": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "killed-supplicant": ([(ANY, "left", 1, ANY)], ["the kernel itself left the access point"]),
    "stopped-supplicant": ([(ANY, "deauthenticated", 1, ANY)], ["nobody looked for a network until then"]),
    "wired-meanwhile": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "announced": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "switch-unheard": ([("lost-and-joined", "silent-loss", 1, 2)], []),
    "bridged": ([("roam", "chosen", 1, 2), ("lost-and-joined", "silent-loss", 2, 1)], []),
    # How far it came is the processor's.
    "roam-back": (ANY, []),
    "roam-in-scan": ([("roam", "chosen", 1, 2)], []),
    "gone-in-handshake": ([(ANY, "chosen", 1, 1)], []),
    "shut-in-handshake": ([(ANY, "chosen", 1, ANY)], ["interface shut"]),
    "shut-in-scan": ([(ANY, "silent-loss", 1, 1)], []),
    # What happens is chance's: see lab/tools/chance.sh.
    "chance": (ANY, []),
}
# Of the other radio, w3, which is a station, an access point and a mesh point in turn.
MADE_OF_OTHER = {"two-stations": [("roam", "chosen", ANY, ANY)]}

# The kernel stamps a packet for its socket beside kpat's first record of it: 0.02 ms apart were measured, and 16.6 ms where an interrupted probe was missed, so that a later record is the first.
STAMP_MS = 20

# Of wires beside the radio: kind, cause and the least and most time without data, s.
WIRED = {"wired": {"e0": [("bridge-port", "carrier", 5.5, 9)]}}

# Of the case `cuts`: what recordings have that begin or end in the middle of a join; how it ended, the last phase, and words of it.
CUTS = {
    "dhcp_end": ([(ANY, "left", 1, ANY)], "log-end", "dhcp", "the recording ends here"),
    "scan_end": ([("unfinished", "silent-loss", 1, ANY)], "log-end", "probing", "the recording ends here"),
}

# Of the case `cut`: what is found of it in recordings of which three see only a part.
CUT = {
    "whole": [("lost-and-joined", "silent-loss", 1, 2)],
    "early": [("unfinished", "silent-loss", 1, ANY)],
    "late": [("join", "unknown", ANY, 2)],
    "packets": [("link-flap", "carrier", ANY, ANY)],
}


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def chance(details: list, connected: list, disconnected: list, asked: list, echoes: list, since: float, until: float) -> list[str]:
    """What is there is nothing but what was: links up as the supplicant has them, an end where data came, and no time without data but in a handover. Times are of the wall clock, s, and
    of the boot clock for echoes, ns."""
    wrong = []
    for d in details:
        wall = lambda boot_ns: (boot_ns + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9
        begin, end, n = wall(d["begin_boot_ns"]), wall(d["end_boot_ns"]), d["handover"]
        if d["link_up"] and not any(abs(at - wall(d["link_up"]["at_boot_ns"])) < 1 and bssid == d["to"]["bssid"] for at, bssid in connected):
            wrong.append(f"handover {n}: a link up at {wall(d['link_up']['at_boot_ns']) - since:.3f} s that the supplicant did not have")
        if not any(begin - 0.2 <= at <= end + 0.5 for at in [*(at for at, _ in connected), *disconnected, *asked]):
            wrong.append(f"handover {n} at {begin - since:.3f} s: the supplicant did nothing in it")
        unknown = sum(p["ns"] for p in d["phases"] if p["phase"] == "unknown")
        if unknown > 0.02 * d["whole_ns"]:
            wrong.append(f"handover {n}: unknown for {unknown / 1e6:.1f} ms of {d['whole_ns'] / 1e6:.1f}")
        if d["link_up"]:
            # The first echo behind the link, unless it was lost again before.
            up = d["link_up"]["at_boot_ns"]
            # It may also ask once more without a word that it left.
            lost = min((at for at in [*disconnected, *asked] if at > wall(up)), default=until)
            first = next((e for e in echoes if e > up), None)
            if first and wall(first) < lost - 0.3 and d["end_boot_ns"] > first + 300_000_000:
                wrong.append(f"handover {n}: ends {(d['end_boot_ns'] - first) / 1e6:.0f} ms after an echo came ({d['ended']})")
            if first and wall(first) < lost - 0.3 and d["ended"] != "data":
                wrong.append(f"handover {n}: an echo came at {wall(first) - since:.3f} s, and it ended as {d['ended']}")
    offset = (details[0]["begin_wall_ns"] - details[0]["begin_boot_ns"]) if details else 0
    for a, b in zip(echoes, echoes[1:]):
        if b - a > 1_500_000_000 and since < (a + offset) / 1e9 and (b + offset) / 1e9 < until and not any(d["begin_boot_ns"] <= b and a <= d["end_boot_ns"] for d in details):
            wrong.append(f"no echo for {(b - a) / 1e9:.3f} s from {(a + offset) / 1e9 - since:.3f} s, in no handover")
    return wrong


def causes(details: list, said: list, acts: list) -> list[str]:
    """Who ended a link: as the supplicant logged it first in that handover, and whoever shut the interface had done so by then."""
    wrong = []
    for d in details:
        wall = lambda boot_ns: (boot_ns + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9
        ended = next((rest for at, what, rest in said if what == "DISCONNECTED" and wall(d["begin_boot_ns"]) - 0.2 <= at <= wall(d["end_boot_ns"]) + 0.5), None)
        reason, own = (int(re.search(r"reason=(\d+)", ended)[1]), "locally_generated" in ended) if ended else (None, None)
        # 4: the kernel gave up on a silent access point; 2: without an answer the station gave up one that had sent it away (SA query).
        fits = {"silent-loss": own and reason == 4, "left": own and reason != 4, "deauthenticated": not own or reason == 2}.get(d["cause"], True)
        if ended and not fits:
            wrong.append(f"handover {d['handover']} is {d['cause']}, and the supplicant logged{ended}")
        if d["cause"] == "shut" and not any(0 <= wall(d["stop"]["at_boot_ns"]) + 0.05 - at <= 3 for at in acts):
            wrong.append(f"handover {d['handover']} is {d['cause']}, and nobody had shut the interface then")
    return wrong


def linked(details: list, at: float) -> float | None:
    """Since when there is a link at that moment of the wall clock, s, by the handovers; None: there is none, or nobody knows."""
    wall = lambda d, boot_ns: (boot_ns + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9
    before = [d for d in details if d["begin_wall_ns"] / 1e9 <= at]
    up = before[-1]["link_up"] if before else None
    # The supplicant is asked a moment before it is written down.
    return wall(before[-1], up["at_boot_ns"]) if up and wall(before[-1], up["at_boot_ns"]) < at - 1 else None


def of_flow(name: str, d: dict, numbered: list[tuple[int, int]]) -> tuple[list[float], list[str]]:
    """The application's gap of a handover whose log has data: how far its ends are from the stamps of its echoes, in ms, and what is wrong."""
    apart, wrong = [], []
    gap = lambda x: x[1][0] - x[0][0] if x[1][0] >= d["begin_boot_ns"] and x[0][0] <= d["end_boot_ns"] else 0
    # Due in the longest gap: the numbers between those of its two echoes. A slow processor does not keep the pace.
    last, first = max(zip(numbered, numbered[1:]), key=gap, default=((0, 0), (0, 0)))
    longest = gap((last, first))
    found = bool(d["flow"] and d["flow"]["gap_ns"])
    if longest > 1_000_000_000 and not found:
        wrong.append(f"{name}: handover {d['handover']} has no gap of the flow, its echoes have one of {longest / 1e9:.3f} s")
    if found:
        apart = [(d["flow"]["last_boot_ns"] - last[0]) / 1e6, (d["flow"]["first_boot_ns"] - first[0]) / 1e6]
        if max(map(abs, apart)) > STAMP_MS:
            wrong.append(f"{name}: the flow's gap begins {apart[0]:.1f} ms and ends {apart[1]:.1f} ms from the stamps of its echoes")
        # Where its address was taken away sends may have failed, which kpat says: of them it knows nothing.
        unsaid = d["flow"]["unaddressed_ns"] is not None and not d["flow"]["sends_known"]
        apart_by = d["flow"]["missing"] - (first[1] - last[1] - 1)
        if (apart_by if unsaid else abs(apart_by)) > 3 + 0.1 * (first[1] - last[1]):
            wrong.append(f"{name}: handover {d['handover']}: about {d['flow']['missing']} packets missing, {first[1] - last[1] - 1} by their numbers")
    return apart, wrong


def wall_of(d: dict, boot_ns: int) -> float:
    """By the wall clock, s."""
    return (boot_ns + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9


def keys(kpat: str, out: Path, ask, said: list, number) -> tuple[list, list[str]]:
    """Of a recording in files of 2 s, over a handshake of more than 5 s: the file that has the beginning does not have the end, which the one that has the port does; by the supplicant's log."""
    found, wrong = [], []
    for log in sorted(out.glob("keys-*.kbl")):
        store = log.with_suffix(".kpat")
        command(kpat, "integrate", "--force", "-o", str(store), str(log))
        for d in (ask(store, str(h["handover"])) for h in ask(store)["handovers"] if h["interface"] == "w2"):
            found.append((log.stem[-4:], d["kind"], d["cause"], number(d["from"]["bssid"]), number(d["to"]["bssid"]), d["ended"], [p["phase"] for p in d["phases"]], d["phases"][-1]["why"]))
            if sum(p["ns"] for p in d["phases"]) != d["whole_ns"]:
                wrong.append(f"cuts, {log.stem}: phases are not the whole")
            up = d["link_up"] and wall_of(d, d["link_up"]["at_boot_ns"])
            if up and not any(what == "CONNECTED" and abs(at - up) < 1 for at, what, _ in said):
                wrong.append(f"cuts, {log.stem}: a link up that the supplicant did not have")
    begun = [f for f in found if f[1] == "unfinished" and (f[3], f[4], f[5]) == (1, 2, "log-end") and "the recording ends here" in f[7]]
    # Where the first that a file has of it is that the key was installed, nothing before that is unknown.
    over = [f for f in found if f[1] == "under-way" and f[4] == 2 and f[6][0] in ("unknown", "key-install")]
    if len(begun) != 1 or len(over) != 1:
        wrong.append(f"cuts, keys: {found}")
    return found, wrong


def no_route(kpat: str, out: Path, ask, since: float) -> list[str]:
    """Sends that failed are as many as the flow itself counted in the gap, in the recording that has applications; the other one says that they may have. `since`: when its case began, s."""
    wrong = []
    errors = [int(float(v[0]) * 1e9) for v in (line.split() for line in (out / "voice.log").read_text().splitlines()) if v[1] == "txerr"]
    command(kpat, "integrate", "--force", "-o", str(out / "unsaid.kpat"), str(out / "unsaid.kbl"))
    for part in ("run", "unsaid"):
        store = out / f"{part}.kpat"
        d = next((ask(store, str(h["handover"])) for h in ask(store)["handovers"] if h["interface"] == "w2" and h["begin_wall_ns"] >= since * 1e9), None)
        flow = d and d["flow"]
        if not flow or not flow["first_boot_ns"]:
            wrong.append(f"no-route, {part}: no gap of the flow")
            continue
        made = sum(flow["last_boot_ns"] <= at <= flow["first_boot_ns"] for at in errors)
        text = command(kpat, "handover", str(store), str(d["handover"]))
        if part == "run" and (made == 0 or abs(flow["sends_failed"] - made) > 1 or flow["send_error"] != 101 or "sends failed for want of a way there (network is unreachable)" not in text or "sent nothing" in text):
            wrong.append(f"no-route, {part}: {flow['sends_failed']} failed with {flow['send_error']}, the flow counted {made}; paused {flow['paused_ns']}")
        if part == "unsaid" and (flow["sends_known"] or not flow["paused_ns"] or flow["unaddressed_ns"] is None or "sends may have failed" not in " ".join(text.split())):
            wrong.append(f"no-route, {part}: {flow}")
    return wrong


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    ask = lambda store, *words: json.loads(command(kpat, "handover", str(store), *words, "--json"))
    begun = [(float(line.split(": case ")[0]), line.split(": case ")[1]) for line in (out / "cases.log").read_text().splitlines()]
    address = [(out / f"bssid{n}").read_text().strip() for n in (1, 2)]
    number = lambda bssid: address.index(bssid) + 1 if bssid in address else bssid
    listed = ask(out / "run.kpat")["handovers"]
    said = [(float(m[1]), m[2], m[3]) for m in re.finditer(r"(?m)^([\d.]+): w2: CTRL-EVENT-(CONNECTED|DISCONNECTED)(.*)$", (out / "supplicant.log").read_text(errors="replace"))]
    # Of each time that it was connected: the frequency where it last asked that access point.
    asked = [(float(m[1]), m[2], int(m[3])) for m in re.finditer(r"(?m)^([\d.]+): w2: SME: Trying to authenticate with (\S+) \(.*freq=(\d+) MHz\)", (out / "supplicant.log").read_text(errors="replace"))]
    # By the kernel's own stamps: on a busy machine the program reads them up to 0.2 s later.
    numbered = [(int(float(v[4]) * 1e9), int(v[2])) for v in (line.split() for line in (out / "voice.log").read_text().splitlines()) if v[1] == "echo"]
    echoes = [at for at, _ in numbered]
    found, stamps = {}, []
    has_data = json.loads(command(kpat, "sql", str(out / "run.kpat"), "select count(*) as n from packet", "--json"))[0]["n"] > 0
    not_made = [(float(m[1]), m[2], m[3]) for m in (re.match(r"([\d.]+): ([^:]+): (.*)", line) for line in (out / "not-made.log").read_text().splitlines())]
    elsewise = {case for _, case, _ in not_made}
    # No busy machine's: what comes after it is not what it should be.
    wrong_set_up = [words for _, case, words in not_made if case == "set-up"]
    wrong = wrong_set_up + [f"not played: {name}" for name in (out / "cases.planned").read_text().split() if name not in {case for _, case in begun}]
    fits = lambda made, seen: len(made) == len(seen) and all(a in (ANY, b) for m, s in zip(made, seen) for a, b in zip(m, s))
    for (since, name), (until, _) in zip(begun, begun[1:]):
        # Back at the first access point, if it is not there, and what is set up for the next one.
        if name == "between":
            continue
        within = [h for h in listed if since * 1e9 <= h["end_boot_ns"] + h["begin_wall_ns"] - h["begin_boot_ns"] and h["begin_wall_ns"] < until * 1e9]
        of = lambda device: [h for h in within if h["interface"] == device]
        expected, words = MADE[name]
        seen = [(h["kind"], h["cause"], number(h["from"]), number(h["to"])) for h in of("w2")]
        found[name] = [(h["interface"], h["kind"], h["cause"], number(h["from"]), number(h["to"]), h["attempts"], h["ended"], round(h["whole_ns"] / 1e6), round((h["link_ns"] or 0) / 1e6)) for h in within]
        if expected is not ANY and name not in elsewise and not fits(expected, seen):
            wrong.append(f"{name}: {seen}, made {expected}")
        for device, all_of_it in WIRED.get(name, {}).items():
            seen_there = [(h["kind"], h["cause"], (h["without_data_ns"] or 0) / 1e9) for h in of(device) if h["ended"] != "gone"]
            if len(seen_there) != len(all_of_it) or not all(m[:2] == h[:2] and m[2] <= h[2] <= m[3] for m, h in zip(all_of_it, seen_there)):
                wrong.append(f"{name}, {device}: {seen_there}, made {all_of_it}")
        # It is shut behind its case, and begins with the last data.
        stopped = lambda d: (d["stop"]["at_boot_ns"] + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9 if d["stop"] else since
        other = [(h["kind"], h["cause"], h["from"], h["to"]) for h in of("w3") if stopped(ask(out / "run.kpat", str(h["handover"]))) < until]
        # It joins as a station before its case begins.
        if not fits(MADE_OF_OTHER.get(name, []), [s for s in other if s[0] != "join"]):
            wrong.append(f"{name}, the other radio: {other}")
        details = [ask(out / "run.kpat", str(h["handover"])) for h in of("w2")]
        sentences = " ".join([*(p["why"] or "" for d in details for p in d["phases"]), *(r for d in details for r in d["refusals"]), *("[" + m["words"] for d in details for m in d["marks"])])
        wrong += [f"{name}: nothing of {w!r} in {sentences!r}" for w in words if w not in sentences and name not in elsewise]
        for d in details:
            if sum(p["ns"] for p in d["phases"]) != d["whole_ns"] or any(a["to_boot_ns"] != b["from_boot_ns"] for a, b in zip(d["phases"], d["phases"][1:])):
                wrong.append(f"{name}: phases are not the whole")
            offset = d["begin_wall_ns"] - d["begin_boot_ns"]
            # Of a log with data.
            apart, of_it = of_flow(name, d, numbered) if has_data else ([], [])
            stamps, wrong = stamps + apart, wrong + of_it
        wrong += [f"{name}: handovers {a['handover']} and {b['handover']} overlap" for a, b in zip(details, details[1:]) if a["end_boot_ns"] > b["begin_boot_ns"]]
        ups = [(d["link_up"]["at_boot_ns"] + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9 for d in details if d["link_up"]]
        tos = [d["to"]["bssid"] for d in details if d["link_up"]]
        # mac80211 opens the port, after the supplicant set the operational state.
        wrong += [f"{name}: link up by {d['link_up']['words']!r}" for d in details if d["link_up"] and d["link_up"]["words"] != "port authorised"]
        connected = [(at, re.search(r"to (\S+)", rest)[1]) for at, what, rest in said if what == "CONNECTED" and since <= at < until]
        for at, bssid in connected:
            near = [(at - up, to) for up, to in zip(ups, tos) if -1 < at - up < 1]
            mhz = [f for t, b, f in asked if t < at and b == bssid]
            wrong += [f"{name}: at {d['to']['mhz']} MHz, the supplicant asked at {mhz[-1]} MHz" for d, up in zip([d for d in details if d["link_up"]], ups) if -1 < at - up < 1 and d["to"]["bssid"] == bssid and mhz and d["to"]["mhz"] != mhz[-1]]
            if not any(to == bssid for _, to in near) and name != "removed":
                wrong.append(f"{name}: the supplicant was connected to {number(bssid)} at {at - since:.3f} s, no handover has that link up: {[round(u - since, 3) for u in ups]}")
        # Of what was cut off its own recordings are judged.
        if name != "cuts" and (expected is ANY or name in elsewise):
            # One that had begun before may have had its link by then.
            all_connected = [(at, re.search(r"to (\S+)", rest)[1]) for at, what, rest in said if what == "CONNECTED"]
            wrong += chance(details, all_connected, [at for at, what, _ in said if what == "DISCONNECTED"], [at for at, _, _ in asked], echoes, since, until)
            acts = [float(line.split(": ")[0]) for line in (out / "acts.log").read_text().splitlines() if "link set down" in line] if (out / "acts.log").exists() else []
            wrong += causes(details, said, acts) if name == "chance" else []
            wrong += [f"{name}: {words}, and at that moment kpat has a link, up at {up - since:.3f} s" for at, case, words in not_made if case == name and re.match(r"not joined: \w", words)
                      for up in [linked(details, at)] if up is not None]
        for at, what, _ in said:
            if what == "DISCONNECTED" and since <= at < until and not any(d["begin_wall_ns"] / 1e9 - 0.01 <= at <= (d["end_boot_ns"] + d["begin_wall_ns"] - d["begin_boot_ns"]) / 1e9 + 0.5 for d in details):
                wrong.append(f"{name}: the supplicant was disconnected at {at - since:.3f} s, in no handover")
    for part, expected in CUT.items() if "cut" in (name for _, name in begun) else ():
        store = out / f"{part}.kpat"
        command(kpat, "integrate", "--force", "-o", str(store), str(out / f"{part}.kbl"))
        details = [ask(store, str(h["handover"])) for h in ask(store)["handovers"] if h["interface"] == "w2"]
        seen = [(d["kind"], d["cause"], number(d["from"]["bssid"]), number(d["to"]["bssid"])) for d in details]
        found[f"cut, {part}"] = [(*s, d["ended"], round(d["whole_ns"] / 1e6), [p["phase"] for p in d["phases"]]) for s, d in zip(seen, details)]
        if not fits(expected, seen):
            wrong.append(f"cut, {part}: {seen}, made {expected}")
        wrong += [f"cut, {part}: phases are not the whole" for d in details if sum(p["ns"] for p in d["phases"]) != d["whole_ns"]]
        # The other two do not have both sides of the gap.
        for d in details if part in ("whole", "packets") else ():
            apart, of_it = of_flow(f"cut, {part}", d, numbered)
            stamps, wrong = stamps + apart, wrong + of_it
    for part, (expected, ended, last, words) in CUTS.items() if "cuts" in (name for _, name in begun) else ():
        store = out / f"{part}.kpat"
        command(kpat, "integrate", "--force", "-o", str(store), str(out / f"{part}.kbl"))
        details = [ask(store, str(h["handover"])) for h in ask(store)["handovers"] if h["interface"] == "w2"][:1]
        seen = [(d["kind"], d["cause"], number(d["from"]["bssid"]), number(d["to"]["bssid"])) for d in details]
        found[f"cuts, {part}"] = [(*s, d["ended"], round(d["whole_ns"] / 1e6), [p["phase"] for p in d["phases"]], d["phases"][-1]["why"]) for s, d in zip(seen, details)]
        if any(case == "cuts" and part in said_of_it for _, case, said_of_it in not_made):
            continue
        fits_part = fits(expected, seen) and all(d["ended"] == ended and last in (ANY, d["phases"][-1]["phase"]) and words in (d["phases"][-1]["why"] or "") for d in details)
        if not fits_part:
            wrong.append(f"cuts, {part}: {found[f'cuts, {part}']}, made {expected}, {ended}, {last}")
        wrong += [f"cuts, {part}: phases are not the whole" for d in details if sum(p["ns"] for p in d["phases"]) != d["whole_ns"]]
    if "cuts" in (name for _, name in begun):
        found["cuts, keys"], of_keys = keys(kpat, out, ask, said, number)
        wrong += [] if any(case == "cuts" and "keys" in words for _, case, words in not_made) else of_keys
    wrong += no_route(kpat, out, ask, next(at for at, name in begun if name == "no-route")) if "no-route" in (name for _, name in begun) and "no-route" not in elsewise else []
    # Set up while it was recorded.
    other = [(h["kind"], h["cause"]) for h in listed if h["interface"] == "w3"]
    if other and other[0] != ("join", "unknown"):
        wrong.append(f"the other radio's first join: {other[0]}")
    if begun and not any(found.values()) and not_made:
        wrong.append("nothing of it was made")
    print(json.dumps({"found": found, "not_made": [f"{case}: {words}" for _, case, words in not_made],
                      "stamps": {"compared": len(stamps), "most_ms": round(max(map(abs, stamps), default=0), 3)}, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
