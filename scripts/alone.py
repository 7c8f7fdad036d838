"""What failed beside other stages of scripts/test is run once more, alone, and told so that scripts/test counts it."""
import fcntl
import os
import sys
import time


def alone(seconds):
    """The lock that scripts/test gave this stage becomes its own as soon as every other stage has ended or waits for the same; after `seconds`, or
    where this was not started by scripts/test, it goes on without. True if it is alone."""
    fd = os.environ.get("KPAT_TEST_BESIDE")
    if not fd:
        return False
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            fcntl.flock(int(fd), fcntl.LOCK_EX | fcntl.LOCK_NB)  # the shared one is gone also where this is refused (flock(2))
            return True
        except BlockingIOError:
            time.sleep(0.5)
        except OSError:  # closed by what was between
            return False
    return False


def tell(again, out=sys.stdout, begun=0):
    """Says of each (name, whether it failed again) what came of it. `begun`: as many had not run before. How many passed."""
    passed = sum(not bad for _, bad in again)
    for name, bad in again:
        print(f"once more: {name}: {'failed again' if bad else 'failed beside other tests, passed alone'}", file=out)
    print(f"once more: {passed} of {len(again)} passed" + (f", {begun} for the first time" if begun else ""), file=out, flush=True)
    return passed
