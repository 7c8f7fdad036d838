#!/usr/bin/env python3
"""The handover of the paper out of a run of the scenario handover-figure: every log integrated, the access points beside the station, and the picture (its figure 13).

    figure.py KPAT OUT      JSON: the times, and `wrong`; OUT/handover.svg, handover.html, handover.txt"""
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    stores = {}
    for name, logs, captures in (
        ("sta", ["supplicant.log", "dhcp.log", "iw-event.log"], ["ch1.pcapng", "ch6.pcapng"]), ("ap1", ["hostapd1.log"], []), ("ap2", ["hostapd2.log"], [])
    ):
        stores[name] = out / f"{name}.kpat"
        log = next(p for p in (out / f"{name}.kbl", out / f"record-{name}.kbl", out / "record.kbl") if p.exists())
        given = [word for f in logs if (out / f).exists() for word in ("--log", str(out / f))]
        keys = out / "wifi-keys"
        keys.write_text("kpat:kpat-secret\n")
        words = [kpat, "integrate", "-q", "--force", str(log), *(str(out / c) for c in captures if (out / c).exists()), "-o", str(stores[name]), *given, "--wifi-keys", str(keys)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    beside = [word for name in ("ap1", "ap2") for word in ("--beside", str(stores[name]))]
    ask = [kpat, "handover", str(stores["sta"]), "1", *beside]
    h = json.loads(subprocess.run([*ask, "--json"], check=True, capture_output=True, text=True).stdout)
    text = subprocess.run(
        [*ask, "--svg", str(out / "handover.svg"), "--html", str(out / "handover.html")], check=True, capture_output=True, text=True).stdout
    (out / "handover.txt").write_text(text)
    wrong = []
    if h["cause"] != "silent-loss":
        wrong.append(f"the cause is {h['cause']}")
    # As in the paper.
    if not h["search_ns"] or h["search_ns"] < 0.9 * h["link_ns"]:
        wrong.append(f"search {h['search_ns']} of {h['link_ns']}")
    if sum(p["ns"] for p in h["phases"]) != h["whole_ns"]:
        wrong.append("phases are not the whole")
    lanes = {m["lane"] for m in h["marks"]}
    if not {"air", "radio and link", "keys and addresses", "programs"} <= lanes:
        wrong.append(f"lanes: {sorted(lanes)}")
    dhcp = [m for m in h["marks"] if m["words"].startswith("DHCP ")]
    # Encrypted on the air: each has its frame by the network's key.
    wrong += [f"no frame of {m['words']}" for m in dhcp if not m["frame"]]
    of_programs = " ".join(m["words"] for m in h["marks"] if m["lane"] == "programs")
    wrong += [f"no word of {w}" for w in ("supplicant.log: ", "dhcp.log: ", "dhcp: DHCP", "supplicant: ") if w not in of_programs]
    if not any("station-state" in m["words"] for b in h["beside"] if b["log"] == "ap2" for m in b["marks"]):
        wrong.append("nothing of the access point")
    seconds = lambda ns: round(ns / 1e9, 3) if ns else None
    print(json.dumps({
        "whole_s": seconds(h["whole_ns"]), "link_s": seconds(h["link_ns"]), "search_s": seconds(h["search_ns"]), "gap_s": seconds(h["flow_gap_ns"]),
        "phases_s": {p["phase"]: seconds(sum(q["ns"] for q in h["phases"] if q["phase"] == p["phase"])) for p in h["phases"]},
        "beside": {b["log"]: len(b["marks"]) for b in h["beside"]}, "wrong": wrong,
    }))


if __name__ == "__main__":
    main()
