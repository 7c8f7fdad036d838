"""How long calls of a function of a guest's kernel take, N of them, as a histogram: latency.py TARGET FUNCTION N

What it takes to call the handlers is in the times; `kpat guest probe GUEST 'FUNCTION ret' --hist` takes them in the guest."""
import collections
import sys

import kpat_guest

target, function, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
spread = collections.Counter()
with kpat_guest.Guest(target) as guest:

    def entry(hit):
        hit.data["since"] = hit.ns

    def returned(hit):
        took = hit.ns - hit.data["since"]
        spread[max(took, 1).bit_length() - 1] += 1
        if spread.total() == wanted:
            guest.stop()

    guest.xrp(function, entry, returned)
    print("waiting", flush=True)
    guest.loop()
for power in range(min(spread), max(spread) + 1):
    print(f"{1 << power:>12} ns {spread[power]:>8} {'#' * (60 * spread[power] // max(spread.values()))}")
