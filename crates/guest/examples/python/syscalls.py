"""System calls of a guest's process by its name, counted: syscalls.py TARGET COMM [SECONDS]"""
import collections
import sys
import threading

import kpat_guest

target, comm, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else None
counts = collections.Counter()
with kpat_guest.Guest(target) as guest:
    names = {}

    def called(hit):
        if hit.comm() == comm:
            counts[names[hit.handle]] += 1

    guest.hold()
    for name, _, kind in guest.symbols():
        if name.startswith("__x64_sys_") and kind in "tT":
            try:
                names[guest.xp(name, called)] = name.removeprefix("__x64_sys_")
            except kpat_guest.Error:
                pass  # No room for a jump: a system call that this kernel does not have.
    guest.commit()
    print(f"{len(names)} system calls", flush=True)
    if seconds:
        threading.Timer(seconds, guest.stop).start()
    else:
        threading.Thread(target=lambda: (sys.stdin.read(), guest.stop()), daemon=True).start()
    guest.loop()
    missed = sum(guest.missed(handle) for handle in names)
for name, n in counts.most_common():
    print(name, n)
print("missed", missed)
