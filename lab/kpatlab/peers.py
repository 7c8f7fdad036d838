"""Peers for comparisons, each in a folder of its own in the cache; nothing is installed and nothing but `lab/lab fetch NAME` brings one.

Those that Debian packages are trixie's, unpacked with the libraries they were built for, and a wrapper that runs them with those. The others are built
here from the source of one version. All run in any guest, whose root is this machine's root.
"""
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .cache import Refusal, run, say
from .debian import Suite


@dataclass(frozen=True)
class Built:
    """A peer that Debian does not have: where its source is, what builds it, what of it is kept."""

    source: str
    tag: str
    make: tuple[str, ...]  # with LLVM 19 as its tools
    program: str
    needs: tuple[str, ...]  # Debian's packages
    data: str = ""
    mends: tuple[str, str, str] = ()  # a file, what stands there, what has to


PACKAGED = ("pwru", "bpftrace", "trace-cmd")
BUILT = {
    # Without its Python, which records nothing.
    "retis": Built(
        "https://github.com/retis-org/retis", "v1.6.4",
        ("make", "V=1", "RELEASE_FLAGS=", "OBJCOPY=llvm-objcopy", "CARGO_CMD_OPTS=--locked --no-default-features -p retis", "release"),
        "target/release/retis", ("clang-19", "llvm-19", "libclang-19-dev", "jq", "libelf-dev", "libpcap-dev"), data="retis/profiles",
        # 1.6.4 refuses releases like Debian's 6.12.95+deb12-amd64: "invalid digit found in string".
        mends=("retis/src/core/inspect/kernel_version.rs", ".trim_end_matches('+')", ".split('+').next().unwrap_or_default()"),
    ),
    "nettrace": Built(
        "https://github.com/OpenCloudOS/nettrace", "master", ("make", "-C", "src", "BPFTOOL=bpftool", "all"),
        "src/nettrace", ("clang-19", "llvm-19", "bpftool", "libbpf-dev", "python3-yaml"),
    ),
}  # fmt: skip
NAMES = (*PACKAGED, *BUILT)


def program(name: str) -> Path:
    return cache.root() / name / name


def version(name: str) -> str:
    argv = [str(program(name)), "version" if name == "trace-cmd" else "--version"]
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    text = r.stdout.decode(errors="replace").strip()
    # trace-cmd tells its version and then fails for want of a command.
    if not text or r.returncode and name != "trace-cmd":
        raise Refusal(f"the {name} in the cache does not run here: {text[-160:] or f'exit {r.returncode}'}; run lab/lab fetch {name} --refresh")
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    return next((x for x in lines if "version" in x.lower() or x.startswith(name)), lines[-1])


def fetch(name: str, refresh: bool = False, source: Path | None = None) -> str:
    """Unpack or build if needed; where it is, its version and what the program itself tells. `source`: a folder with the source of a peer that is built."""
    d = cache.root() / name
    if not (program(name).exists() and not refresh):
        with cache.Lock(f"fetch-{name}", 1800, f"another fetch of {name} is running"):
            if name in BUILT:
                reported = build(name, BUILT[name], source)
            else:
                reported = unpack(name)
            (d / "package-version").write_text(reported + "\n")
    # Debian builds some without their version, so the package's is kept too.
    return f"{program(name)}\t{(d / 'package-version').read_text().strip()}\t{version(name)}"


def unpack(name: str) -> str:
    d, s = cache.root() / name, Suite("trixie")
    s.update()
    shutil.rmtree(d, ignore_errors=True)
    seen: set[str] = set()
    todo, package = [name], "?"
    while todo:
        p = todo.pop()
        # Libraries only: what is not a lib is for installing, not for running.
        if p in seen or (p != name and not p.startswith("lib")):
            continue
        seen.add(p)
        if s.show(p):
            v = s.unpack(p, d / "tree")
            if p == name:
                package = v
            todo += s.depends(p)
    libs = ":".join(f"$here/tree/{x}" for x in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
    loader = next((str(x.relative_to(d)) for x in (d / "tree").rglob("ld-linux-x86-64.so.2") if not x.is_symlink()), None)
    found = next((str(x.relative_to(d)) for x in (d / "tree").rglob(name) if x.is_file() and os.access(x, os.X_OK)), None)
    if not found or not loader:
        raise Refusal(f"trixie's package {name} has no program or no loader where they were; kpatlab/peers.py has to learn it")
    text = f'#!/bin/sh\n# written by lab/lab fetch {name}\nhere=$(dirname "$(readlink -f "$0")")\nexec "$here/{loader}" --library-path "{libs}" "$here/{found}" "$@"\n'
    program(name).write_text(text)
    program(name).chmod(0o755)
    return package


def build(name: str, b: Built, source: Path | None) -> str:
    """The source is copied or cloned below the cache, built there, and dropped: what stays is the program."""
    d = cache.root() / name
    missing = [p for p in b.needs if subprocess.run(["dpkg", "-s", p], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode]
    if missing:
        raise Refusal(f"building {name} needs packages that are not here; as root: apt-get install {' '.join(missing)}")
    cache.need_space(1500, f"building {name}")
    shutil.rmtree(d, ignore_errors=True)
    src, tools = d / "source", d / "tools"
    tools.mkdir(parents=True)
    if source:
        shutil.copytree(source, src, symlinks=True, ignore=shutil.ignore_patterns(".git", "target"))
    else:
        run([cache.tool("git", "git"), "clone", "-q", "--depth", "1", "--branch", b.tag, b.source, str(src)], f"cloning {b.source} {b.tag}; --source FOLDER takes a copy that is here")
    if b.mends:
        path, old, new = src / b.mends[0], *b.mends[1:]
        text = path.read_text()
        if old not in text:
            raise Refusal(f"{b.mends[0]} of {name} {b.tag} is not what it was; kpatlab/peers.py has to learn it")
        path.write_text(text.replace(old, new, 1))
    # Their makefiles call LLVM's programs without a version.
    for t in ("clang", "opt", "llc", "llvm-dis", "llvm-objcopy"):
        (tools / t).symlink_to(cache.tool(f"{t}-19", "llvm-19"))
    multiarch = run(["gcc", "-print-multiarch"], "asking gcc").stdout.decode().strip()
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}:/usr/sbin", "LIBCLANG_PATH": "/usr/lib/llvm-19/lib", "C_INCLUDE_PATH": f"/usr/include/{multiarch}", "GIT_CEILING_DIRECTORIES": str(d)}
    say(f"building {name} {b.tag} (some minutes)")
    run(list(b.make), f"building {name}", cwd=src, env=env, timeout=3600)
    shutil.copy(src / b.program, program(name))
    if b.data:
        shutil.copytree(src / b.data, d / Path(b.data).name)
    commit = subprocess.run(["git", "-C", str(src), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() if (src / ".git").exists() else "from a folder"
    shutil.rmtree(src)
    shutil.rmtree(tools)
    return f"{b.tag} ({commit})"
