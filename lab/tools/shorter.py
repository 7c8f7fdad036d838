#!/usr/bin/env python3
"""What shortens a handover's search, out of a run of the scenario handover-shorter: of each way the handover from the first access point to the second.

    shorter.py KPAT OUT      JSON: the ways side by side, and `wrong`; OUT/ways.txt, the same as a table

Channels are those that `iw` lists for the radio. One is left out of a full scan only where the supplicant ended it (10 s): then these are its last."""
import json
import re
import subprocess
import sys
from pathlib import Path


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    store = out / "run.kpat"
    ask = lambda *words: json.loads(subprocess.run([kpat, "handover", str(store), *words, "--json"], check=True, capture_output=True, text=True).stdout)
    listed = ask()["handovers"]
    ways = [(float(line.split(": way ")[0]) * 1e9, line.split(": way ")[1]) for line in (out / "ways.log").read_text().splitlines()]
    ends = [at for at, _ in ways[1:]] + [float("inf")]
    rows, wrong = [], []
    bands = [[int(f) for f in band.split()] for band in re.findall(r"GHz: ([\d ]*)", (out / "channels.txt").read_text())]
    full = {"all-channels": sum(bands, []), "2.4-and-5-GHz": bands[0] + bands[1], "2.4-GHz": bands[0]}
    for (at, name), end in zip(ways, ends):
        of_it = [h for h in listed if at - 1e9 <= h["begin_wall_ns"] < end and (h["from"] or "").endswith("00:00") and (h["to"] or "").endswith("01:00")]
        if not of_it:
            wrong.append(f"no handover of {name}")
            continue
        h = ask(str(of_it[0]["handover"]))
        phase = lambda *names: sum(p["ns"] for p in h["phases"] if p["phase"] in names)
        scanned = {s["words"] for p in h["phases"] if p["phase"] == "probing" for s in p["steps"] if s["words"].startswith("listening")}
        probing = [p for p in h["phases"] if p["phase"] == "probing"]
        heard = [int(s["words"].split()[2]) for s in (probing[0]["steps"] if probing else []) if s["words"].startswith("listening")]
        left = [f for f in full.get(name, []) if f not in heard]
        if name in full:
            ended = "ended by request" in (probing[0]["why"] or "") if probing else False
            if set(heard) - set(full[name]):
                wrong.append(f"{name}: listened on {sorted(set(heard) - set(full[name]))}, which iw does not list")
            if left and not (ended and left == full[name][-len(left):]):
                wrong.append(f"{name}: {left} were left out, {'ended' if ended else 'not ended'} by request")
        ms = lambda ns: None if ns is None else round(ns / 1e6)
        rows.append({
            "way": name, "kind": h["kind"], "cause": h["cause"], "channels": len(scanned), "left_out": len(left), "probing_ms": ms(phase("probing", "probing-pause")),
            "until_authentication_ms": ms(h["search_ns"]), "link_ms": ms(h["link_ns"]), "without_data_ms": ms(h["without_data_ns"]), "gap_ms": ms(h["flow_gap_ns"]),
        })
    by = {r["way"]: r for r in rows}
    # What waits for timers is as on a real radio: each list of channels that is shorter is searched sooner.
    lists = [by[w]["probing_ms"] for w in ("all-channels", "2.4-and-5-GHz", "2.4-GHz", "scan_freq") if w in by]
    if lists != sorted(lists, reverse=True):
        wrong.append(f"probing of fewer channels took longer: {lists}")
    wrong += [f"{w}: {by[w]['kind']}" for w in ("background-scan", "802.11v", "roam") if w in by and by[w]["kind"] != "roam"]
    if "802.11r" in by and by["802.11r"]["kind"] != "fast-transition":
        wrong.append(f"802.11r: {by['802.11r']['kind']}")
    head = ("way", "kind", "channels", "left_out", "probing_ms", "until_authentication_ms", "link_ms", "without_data_ms", "gap_ms")
    table = [head, *[["" if r[k] is None else str(r[k]) for k in head] for r in rows]]
    wide = [max(len(r[i]) for r in table) for i in range(len(head))]
    (out / "ways.txt").write_text("".join("  ".join(c.ljust(w) for c, w in zip(r, wide)).rstrip() + "\n" for r in table))
    print(json.dumps({"ways": rows, "wrong": wrong}))


if __name__ == "__main__":
    main()
