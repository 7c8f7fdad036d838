"""Runs in a deterministic guest: the same table, where a second is a thousand million instructions of the one CPU, which both ends,
the recorder and its reader share. Writes /lab/result.json.

    guest.py KPAT UDPLOAD POINTS ROUNDS CHOICE

CHOICE: JSON with what is compared (`before`), and the loads and variants that are wanted.
"""

import argparse
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from app import measure

KPAT, UDPLOAD, POINTS, ROUNDS, CHOICE = sys.argv[1:6]
choice = json.loads(CHOICE)
FOLDER = "/run/bench"
os.makedirs(FOLDER, exist_ok=True)


def save(rows):
    with open("/lab/result.json", "w") as f:
        json.dump({"kernel": os.uname().release, "rows": rows}, f)


tools = argparse.Namespace(kpat=KPAT, udpload=UDPLOAD, points=POINTS, folder=FOLDER, fixed="32 MiB", before=choice["before"], cost=choice.get("cost"))
measure.measure(tools, int(ROUNDS), choice["seconds"], save, choice["load"], choice["variant"])
