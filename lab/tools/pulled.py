#!/usr/bin/env python3
"""Does the handover of an adapter that was pulled end with it? As JSON: what was found, and `wrong`.

    pulled.py KPAT OUT

OUT is the folder of a run of lab/tools/handover.sh with a roam or more, behind which the interface was removed at the second of `pulled.txt`, by /proc/uptime; `ip -ts monitor` read of it."""
import json
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    ask = lambda *words: json.loads(subprocess.run([kpat, "handover", str(out / "run.kpat"), "-i", "w2", *words, "--json"], check=True, capture_output=True, text=True).stdout)
    whole = ask()
    found = [(h["kind"], h["cause"], h["ended"]) for h in whole["handovers"]]
    wrong = []
    # On a busy machine a roam takes more than one handover.
    *before, last = found or [("", "", "")]
    if not before or last != ("gone", "removed", "gone") or any(ended in ("gone", "log-end") for _, _, ended in before):
        wrong.append(f"found {found}")
    else:
        h = whole["handovers"][-1]
        asked = float((out / "pulled.txt").read_text())
        read = [datetime.fromisoformat(m[1]).replace(tzinfo=timezone.utc).timestamp() - (h["begin_wall_ns"] - h["begin_boot_ns"]) / 1e9
                for m in re.finditer(r"(?m)^\[(\S+?)\] Deleted \d+: w2: ", (out / "ip-monitor.log").read_text(errors="replace"))]
        # /proc/uptime has hundredths of a second.
        if not read or not asked - 0.01 <= h["end_boot_ns"] / 1e9 <= read[-1] + 0.001:
            wrong.append(f"ends at {h['end_boot_ns'] / 1e9} s, was asked for at {asked} s, and ip monitor read of it at {read}")
        sums = whole["statistics"]
        if (sums["handovers"], sums["gone"], sums["whole"]["max_ns"]) != (len(before), 1, max(o["whole_ns"] for o in whole["handovers"][:-1])):
            wrong.append(f"sums {sums}")
        detail = ask(str(h["handover"]))
        if sum(p["ns"] for p in detail["phases"]) != detail["whole_ns"]:
            wrong.append("phases are not the whole")
    print(json.dumps({"found": found, "wrong": wrong}))


if __name__ == "__main__":
    main()
