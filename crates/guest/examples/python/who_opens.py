"""Which processes of a guest open a file, until N did: who_opens.py TARGET PATH [N]"""
import sys

import kpat_guest

target, path, left = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
with kpat_guest.Guest(target) as guest:

    def entry(hit):
        hit.data["path"] = hit.user_string(hit.syscall_arg(2))
        # Of other files the return is not wanted.
        return hit.data["path"] != path

    def returned(hit):
        global left
        print(hit.pid(), hit.comm(), hit.data["path"], hit.result, flush=True)
        left -= 1
        if left <= 0:
            guest.stop()

    guest.xrp("__x64_sys_openat", entry, returned)
    print("waiting", flush=True)
    guest.loop()
