"""A debug file for a guest's kernel, where the distribution's own is not at hand: with the kernel's build id, and lines for some of its functions. as and ld make it."""
import subprocess
from pathlib import Path

# Where the kernel's linker puts _text, without KASLR.
TEXT = 0xFFFFFFFF81000000


def debug_file(path: Path, build_id: str, functions: dict[int, list[tuple[str, int, int]]]) -> Path:
    """`functions`: by the distance from _text the file, line and size of each instruction."""
    files = sorted({file for rows in functions.values() for file, _, _ in rows})
    source = "".join(f'\t.file {n} "{file}"\n' for n, file in enumerate(files, 1))
    places = [f"--defsym=_text={TEXT:#x}"]
    for n, (distance, rows) in enumerate(functions.items()):
        source += f'\t.section f{n}, "ax"\n'
        for file, line, size in rows:
            source += f"\t.loc {files.index(file) + 1} {line}\n" + "\tnop\n" * size
        places.append(f"--section-start=f{n}={TEXT + distance:#x}")
    path.with_suffix(".s").write_text(source)
    subprocess.run(["as", "--gdwarf-5", "-o", path.with_suffix(".o"), path.with_suffix(".s")], check=True, timeout=30)
    subprocess.run(["ld", "-e", "0", f"--build-id=0x{build_id}", *places, "-o", path, path.with_suffix(".o")], check=True, timeout=30)
    return path


def build_id(notes: bytes) -> str:
    """Of an ELF file's notes: name, size of what it says, kind; the linker's is of GNU, kind 3."""
    while notes:
        name, size, kind = (int.from_bytes(notes[at:at + 4], "little") for at in (0, 4, 8))
        at = 12 + -(-name // 4) * 4
        if (notes[12:12 + name], kind) == (b"GNU\0", 3):
            return notes[at:at + size].hex()
        notes = notes[at + -(-size // 4) * 4:]
    raise AssertionError("no build id")
