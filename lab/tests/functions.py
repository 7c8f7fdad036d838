"""The table of kernel functions (crates/model/src/functions.txt) against the BTF of the lab's kernels, which is read from their files: what the
table says is on a kernel is there, and what it says is not is not. So a function that was renamed, moved to a module or inlined is named
here. The same for the enums by which drops of subsystems get names (crates/probe/src/reasons.rs), and each reason of the core has a sentence."""
import fnmatch
import unittest
from typing import NamedTuple

from kpatlab import btf, cache, kernel

TABLE = cache.REPO / "crates/model/src/functions.txt"
DROPS, DROP = cache.REPO / "crates/model/src/drop_reasons.txt", "SKB_DROP_REASON_"
SUBSYSTEM_SHIFT = 16
# Subsystem to the module that has its reasons, where it is one of Debian's.
IN_MODULES = {"MAC80211_UNUSABLE": "mac80211", "MAC80211_MONITOR": "mac80211", "OPENVSWITCH": "openvswitch"}


class Row(NamedTuple):
    name: str
    kernels: tuple
    modules: tuple


def rows(text: str) -> list[Row]:
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, on, _, _, *more = line.split()
            kernels = kernel.KERNELS if on == "all" else () if on == "-" else tuple(on.split(","))
            modules = next((tuple(m[3:].split(",")) for m in more if m.startswith("in=")), ())
            found.append(Row(name, kernels, modules))
    return found


def has(names: set, wanted: str) -> bool:
    if ":" in wanted:
        return "point:" + wanted.split(":")[1] in names
    return any(fnmatch.fnmatchcase(n, wanted) for n in names) if set("*?") & set(wanted) else wanted in names


def differences(table: list[Row], series: str, of) -> list[str]:
    """Both ways; `of` gives the names of a module, or of vmlinux."""
    found = []
    for r in table:
        places = [p for p in r.modules or ("vmlinux",) if has(of(p), r.name)]
        if bool(places) != (series in r.kernels):
            where = " or ".join(r.modules) or "vmlinux"
            found.append(f"{series}: {r.name} is {f'in {places[0]}' if places else f'not in {where}'}, and the table says otherwise")
    return found


class FunctionsOfKernels(unittest.TestCase):
    def compare(self, series: str):
        k = kernel.Kernel(series)
        if not k.ready():
            self.skipTest(f"{series} was not fetched (lab/lab fetch {series})")
        table = rows(TABLE.read_text())
        names = btf.Names(k)
        self.assertGreater(len(table), 400)
        wrong = differences(table, series, names.of)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        print(f"functions of {k.release}: {sum(series in r.kernels for r in table)} of {len(table)} rows", flush=True)
        self.reasons(names)

    def reasons(self, names: btf.Names):
        """Each subsystem that a drop's reason may be of has an enum called so, with members that are its."""
        self.assertIn("SKB_DROP_REASON_NO_SOCKET", names.vmlinux.enum("skb_drop_reason"))
        explained = {name for line in DROPS.read_text().splitlines() if line[:1] not in ("", "#") for name in line.split(" | ")[0].split(",")}
        given = {name.removeprefix(DROP) for name in names.vmlinux.enum("skb_drop_reason") if name.startswith(DROP)} - {"MAX", "SUBSYS_MASK"}
        self.assertGreater(len(given), 60)
        self.assertEqual(given - explained, set(), "reasons without a word of what they mean")
        subsystems = names.vmlinux.enum("skb_drop_reason_subsys")
        self.assertEqual(bool(subsystems), names.series != "6.1", "they came with 6.4")
        for subsystem, number in subsystems.items():
            short = subsystem.removeprefix("SKB_DROP_REASON_SUBSYS_")
            if short in ("CORE", "NUM"):
                continue
            types = names.types(IN_MODULES.get(short, "vmlinux"))
            members = {m: v for name in types.enums() if name.endswith("_drop_reason") for m, v in types.enum(name).items()}
            own = [m for m, v in members.items() if v >> SUBSYSTEM_SHIFT == number and not m.startswith("__")]
            self.assertTrue(own, f"nothing names the reasons of {short}")

    def test_6_1(self):
        self.compare("6.1")

    def test_6_12(self):
        self.compare("6.12")

    def test_7_2(self):
        self.compare("7.2")

    def test_what_is_gone_and_what_has_come_are_told(self):
        table = rows("# a comment\na all link steps\nb 6.1 link - stage=rx\nc_* 7.2 link full in=m,n\nnet:p all link -\nd - link - in=m\n")
        there = {"vmlinux": {"a", "b", "point:p", "c_1"}, "m": set(), "n": {"c_2"}}
        self.assertEqual(differences(table, "6.1", there.get), ["6.1: c_* is in n, and the table says otherwise"])
        there = {"vmlinux": {"b", "p"}, "m": {"d"}, "n": set()}
        reported = [d.split()[1:4] for d in differences(table, "7.2", there.get)]
        self.assertEqual(reported, [["a", "is", "not"], ["b", "is", "in"], ["c_*", "is", "not"], ["net:p", "is", "not"], ["d", "is", "in"]])
