#!/usr/bin/env python3
"""same_count.py CAPTURE FILTER JSONFILE KEY: exit 0 when tshark counts as many frames as the generator's JSON says."""
import json
import subprocess
import sys

capture, display_filter, report, key = sys.argv[1:]
frames = len(subprocess.run(["tshark", "-n", "-r", capture, "-Y", display_filter, "-T", "fields", "-e", "frame.number"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=100).stdout.split())
with open(report) as f:
    reported = json.load(f)[key]
print(f"{frames} frames, {key} {reported}")
sys.exit(frames != reported)
