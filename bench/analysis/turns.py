#!/usr/bin/env python3
"""CPU of several builds that integrate the same logs in turns: `turns.py ROUNDS OUT.json NAME=PROGRAM... -- LOG...`.

Programs and logs as of same.py. On a machine that others use only CPU seconds of runs close to each other compare; user and system are summed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import same


def once(program, log):
    with tempfile.TemporaryDirectory() as folder:
        before, started = os.times(), time.monotonic()
        out, p = same.integrate(program, log, os.path.join(folder, "x"))
        wall, after = time.monotonic() - started, os.times()
        if p.returncode != 0:
            sys.exit(f"{program} {log}: {p.stderr.decode(errors='replace')}")
        user, system = (getattr(after, n) - getattr(before, n) for n in ("children_user", "children_system"))
        with open(os.path.join(out, "manifest.json"), encoding="utf-8") as f:
            tables = {t["table"]: t["rows"] for t in json.load(f)["tables"]}
        answer = {"user_s": round(user, 2), "system_s": round(system, 2), "wall_s": round(wall, 2)}
        return answer | {n: tables[n] for n in ("call", "packet", "frame")}


def main():
    split = sys.argv.index("--")
    rounds, to, *programs = sys.argv[1:split]
    programs = [p.split("=", 1) for p in programs]
    runs = []
    for n in range(1, int(rounds) + 1):
        for log in sys.argv[split + 1 :]:
            for name, program in programs:
                answer = once(program, log)
                runs.append({"round": n, "log": os.path.relpath(same.split(log)[0]), "build": name, **answer})
                runs[-1]["load_average"] = round(os.getloadavg()[0], 1)
                print(json.dumps(runs[-1]), flush=True)
                with open(to, "w", encoding="utf-8") as f:
                    f.write("[\n" + ",\n".join(json.dumps(r) for r in runs) + "\n]\n")
    for log in dict.fromkeys(r["log"] for r in runs):
        for name, _ in programs:
            cpu = [r["user_s"] + r["system_s"] for r in runs if (r["log"], r["build"]) == (log, name)]
            print(f"{log} {name}: {statistics.median(cpu):.2f} ({min(cpu):.2f} - {max(cpu):.2f}) s of CPU")


if __name__ == "__main__":
    main()
