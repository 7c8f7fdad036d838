"""Processes of a guest that somebody hides from one of the kernel's two lists: hidden.py TARGET"""
import sys

import kpat_guest

with kpat_guest.Guest(sys.argv[1]) as guest:
    found = guest.processes()
for p in found:
    if p.hidden:
        print(p.pid, p.comm, "is not in the list of tasks" if p.numbered else "has no number: ps does not show it")
print(len(found), "processes")
