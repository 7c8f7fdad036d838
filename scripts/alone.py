"""What failed beside other stages of scripts/test is run once more: at once, and if it fails then too, alone. scripts/test counts it by what is printed here."""
import fcntl
import os
import sys
import time

HELD = int(os.environ.get("KPAT_TEST_BESIDE", 0))  # the lock of scripts/test that this stage has with all others; 0: none
if HELD and not os.path.exists(f"/proc/self/fd/{HELD}"):  # closed by what was between
    HELD = 0


def again(names, run, seconds, out=sys.stdout, begun=0):
    """`names`: what failed. `run(names, whether alone)` runs these and returns those that failed. While other stages run it is run beside them, as all of
    them would otherwise stand still for each; what fails there too is run alone, for which others are waited for `seconds`. `begun`: of `names`, as many
    had not run before. How many passed."""
    failed, said = list(names), {}
    if HELD and not taken():
        fcntl.flock(HELD, fcntl.LOCK_SH)  # which that refusal took from this stage
        failed = turn(failed, run, False, said, out)
    if failed:
        failed = turn(failed, run, alone(seconds), said, out)
    for name in names:
        print(f"once more: {name}: {said.get(name, 'failed again')}", file=out)
    print(f"once more: {len(said)} of {len(names)} passed" + (f", {begun} for the first time" if begun else ""), file=out, flush=True)
    return len(said)


def turn(names, run, by_itself, said, out):
    """Those that failed again; of the others, how they passed is put into `said`."""
    print(f"run again, {'alone' if by_itself else 'beside others'}: {len(names)}", file=out, flush=True)
    bad = set(run(names, by_itself))
    how = "passed alone" if by_itself else "passed beside them"
    said.update((name, f"failed beside other tests, {how}") for name in names if name not in bad)
    return [name for name in names if name in bad]


def alone(seconds):
    """The lock that scripts/test gave this stage becomes its own as soon as every other stage has ended or waits for the same; after `seconds`, or
    where this was not started by scripts/test, it goes on without. True if it is alone."""
    end = time.monotonic() + seconds
    while HELD and time.monotonic() < end:
        if taken():
            return True
        time.sleep(0.5)
    return False


def taken():
    """Whether the lock is this stage's own now. Where it is refused the stage has it no more with the others (flock(2))."""
    try:
        fcntl.flock(HELD, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
