"""pwru, the peer that shows packets' function paths, for comparisons: Debian trixie's package with the libraries it was built
for, unpacked in the cache, and a wrapper that runs it with those. It runs in any guest, whose root is this machine's root.
"""
import os
import shutil
import subprocess
from pathlib import Path

from . import cache
from .cache import Refusal
from .debian import Suite


def wrapper() -> Path:
    return cache.root() / "pwru" / "pwru"


def version() -> str:
    r = subprocess.run([str(wrapper()), "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    text = r.stdout.decode(errors="replace").strip()
    if r.returncode or not text:
        raise Refusal(f"the unpacked pwru does not run here: {text[-160:] or f'exit {r.returncode}'}; run lab/lab fetch pwru --refresh")
    return text.splitlines()[-1]


def fetch(refresh: bool = False) -> str:
    """Unpack if needed; the version that the program itself tells."""
    d = cache.root() / "pwru"
    if not (wrapper().exists() and not refresh):
        with cache.Lock("fetch-pwru", 1800, "another fetch of pwru is running"):
            s = Suite("trixie")
            s.update()
            shutil.rmtree(d, ignore_errors=True)
            seen: set[str] = set()
            todo, package = ["pwru"], "?"
            while todo:
                p = todo.pop()
                # Libraries only: what is not a lib is for installing, not for running.
                if p in seen or (p != "pwru" and not p.startswith("lib")):
                    continue
                seen.add(p)
                if s.show(p):
                    v = s.unpack(p, d / "tree")
                    if p == "pwru":
                        package = v
                    todo += s.depends(p)
            libs = ":".join(f"$here/tree/{x}" for x in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
            loader = next((str(x.relative_to(d)) for x in (d / "tree").rglob("ld-linux-x86-64.so.2") if not x.is_symlink()), None)
            program = next((str(x.relative_to(d)) for x in (d / "tree").rglob("pwru") if x.is_file() and os.access(x, os.X_OK)), None)
            if not program or not loader:
                raise Refusal("trixie's pwru package has no program or no loader where they were; kpatlab/pwru.py has to learn it")
            text = f'#!/bin/sh\n# written by lab/lab fetch pwru\nhere=$(dirname "$(readlink -f "$0")")\nexec "$here/{loader}" --library-path "{libs}" "$here/{program}" "$@"\n'
            wrapper().write_text(text)
            wrapper().chmod(0o755)
            (d / "package-version").write_text(package + "\n")
    # Debian builds the program without its version, so the package's is told too.
    return f"{wrapper()}\t{(d / 'package-version').read_text().strip()}\t{version()}"
