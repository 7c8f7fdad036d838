#!/usr/bin/env python3
"""Whether two programs make the same integrated logs: `same.py OLD NEW LOG...`.

OLD and NEW are builds of kpat, or NEW a build of the example `synth` of crates/integrate. LOG is a .kbl file, or
X.kbl,CAPTURE; a capture w.pcapng beside it is joined, too. Every table is compared: the files' bytes, and where they differ the rows, which `OLD sql` prints.
"""

import os
import subprocess
import sys
import tempfile


def split(log):
    """The log and its capture, if there is one."""
    log, *capture = log.split(",")
    beside = os.path.join(os.path.dirname(log), "w.pcapng")
    return log, capture or [beside][: os.path.exists(beside)]


def integrate(program, log, folder):
    """Where the integrated log is, if there is one, and how the program ended."""
    os.mkdir(folder)
    out, kbl, wire = (os.path.join(folder, n) for n in ("x.kpat", "x.kbl", "w.pcapng"))
    log, captures = split(log)
    os.symlink(os.path.abspath(log), kbl)
    for c in captures:
        os.symlink(os.path.abspath(c), wire)
    if os.path.basename(program).startswith("synth"):
        command = [program, "integrate", folder]
    else:
        command = [program, "integrate", kbl, *[wire for _ in captures], "-o", out, "--no-progress"]
    p = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    return out, p


def rows(kpat, out, table):
    p = subprocess.run([kpat, "sql", "--tsv", out, f"select * from {table}"], capture_output=True, check=True)
    return p.stdout


def compare(old, new, log, folder):
    """Tables of other bytes and other rows; None: neither makes anything of it."""
    (a, _), (b, second) = (integrate(p, log, os.path.join(folder, str(i))) for i, p in enumerate((old, new)))
    if not os.path.isdir(a):
        return None if not os.path.isdir(b) else ["only one of them refuses it"]
    if not os.path.isdir(b):
        return [second.stderr.decode(errors="replace")]
    names = [sorted(n for n in os.listdir(d) if n != "manifest.json") for d in (a, b)]
    if names[0] != names[1]:
        return [f"files {names}"]
    odd = []
    for n in names[0]:
        bytes_of = [open(os.path.join(d, n), "rb").read() for d in (a, b)]
        if bytes_of[0] != bytes_of[1]:
            table = n.removesuffix(".parquet")
            same = rows(old, a, table) == rows(old, b, table)
            print(f"  {table}: other bytes, {'the same rows' if same else 'OTHER ROWS'}")
            odd += [] if same else [table]
    return odd


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    old, new, *logs = sys.argv[1:]
    counts = {"same": 0, "other": 0, "refused by both": 0}
    for log in logs:
        with tempfile.TemporaryDirectory() as folder:
            odd = compare(old, new, log, folder)
        what = "refused by both" if odd is None else "other" if odd else "same"
        counts[what] += 1
        print(f"{what}: {log}", *(odd or []), flush=True)
    print(counts)
    sys.exit(counts["other"] > 0)


if __name__ == "__main__":
    main()
