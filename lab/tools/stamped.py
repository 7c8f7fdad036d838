#!/usr/bin/env python3
"""What is written to a FIFO, line by line to a file, each with the wall clock before it: for programs that do not stamp what they say.

    stamped.py FIFO FILE        until it is ended; the FIFO is made"""
import os
import sys
import time

fifo, out = sys.argv[1:]
os.mkfifo(fifo)
# Open for writing, too, so that it does not end with the first writer.
with open(os.open(fifo, os.O_RDWR), errors="replace") as lines, open(out, "w", buffering=1) as log:
    for line in lines:
        log.write(f"{time.time():.6f}: {line.rstrip()}\n")
