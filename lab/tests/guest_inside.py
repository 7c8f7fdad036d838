"""A guest's packets recorded by kpat inside of it, and by kpat from its host: the same datagrams have the same functions in the same order."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

from kpatlab import guest, kernel, look
from kpatlab.cache import LAB

from .place import kpat_for_guests

GUEST_SECONDS = 300
ACK = 16


class Recorded:
    """A log's packets by what they are: protocol, addresses, ports, lengths, flags."""

    def __init__(self, log: Path):
        self.folder = log.with_suffix(".kpat")
        look.integrate(log, [], self.folder)
        self.functions = {r["name"] for r in self.sql("select name from function where kind = 'function'")}
        self.packets = {r.pop("packet_id"): tuple(r.values()) for r in self.sql("select packet_id, proto, src_addr, dst_addr, case proto when 17 then sport end, case proto when 17 then dport end, "
                                                                                   "tcp_flags, icmp_kind, len_bytes, verdict, drop_reason from packet")}
        self.calls = self.sql("select c.call_id, c.packet_id, c.parent_id, c.ctx, f.name from call c join function f using (func_id) order by c.entry_ns, c.call_id")

    def sql(self, query: str) -> list[dict]:
        return look.kpat_json("sql", str(self.folder), query)

    def paths(self, functions: set[str]) -> dict[tuple, list[list[tuple]]]:
        """Of the packets of each kind: function, the one that it was directly called in, and the kind of context, in the order of entries. Only of these functions."""
        by_id = {c["call_id"]: c for c in self.calls}

        def above(call: dict) -> str | None:
            while call := by_id.get(call["parent_id"]):
                if counts(call):
                    return call["name"]
            return None

        # Inside there is no memory for what becomes a packet only later: what the kernel itself sends is first seen where it has an EtherType, which __ip_local_out gives it.
        def counts(call: dict) -> bool:
            name, proto = call["name"], self.packets.get(call["packet_id"], (0,))[0]
            return name in functions and not (name == "__ip_local_out" and proto != 17)

        each: dict[int, list] = {packet: [] for packet in self.packets}
        for c in self.calls:
            if c["packet_id"] in each and counts(c):
                each[c["packet_id"]].append((c["name"], above(c), c["ctx"]))
        found: dict[tuple, list] = {}
        for packet, path in each.items():
            found.setdefault(self.packets[packet], []).append(path)
        return found


class GuestInside(unittest.TestCase):
    SERIES = "7.2"

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES)
        cls.out = Path(os.environ.get("KPAT_INSIDE_KEEP") or tempfile.mkdtemp(prefix="kpat-inside-"))
        cls.out.mkdir(exist_ok=True)
        cls.facts, cls.done = cls.both(cls.out)

    @classmethod
    def tearDownClass(cls):
        if not os.environ.get("KPAT_INSIDE_KEEP"):
            shutil.rmtree(cls.out)

    @classmethod
    def both(cls, out: Path) -> tuple[dict, dict]:
        """Plays the datagrams in a guest, twice: what the programs in it counted, and what the recorder from outside reported."""
        for name in ("over-to-you", "go"):
            (out / name).unlink(missing_ok=True)
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": cls.kpat}
        argv = [os.path.realpath(sys.executable), "-m", "tests.acts", "/lab", "-", "twice"]
        ended = []

        def inside():
            try:
                ended.append(guest.run(kernel.open_kernel(cls.SERIES), argv, out, smp=1, timeout=GUEST_SECONDS, mem=1024, cwd="/", env=env, qmp=out / "qmp",
                                       sinks=(out / "acts.out", out / "acts.err")).rc)
            except Exception as e:  # noqa: BLE001: the other thread reports it
                ended.append(e)

        player = threading.Thread(target=inside)
        player.start()
        recorder = None
        try:
            while not (out / "over-to-you").exists():
                if ended:
                    raise AssertionError(f"the guest ended: {ended[0]}, {(out / 'acts.err').read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
            recorder = subprocess.Popen([cls.kpat, "--json", "guest", "record", str(out / "qmp"), "-f", "ip", "--detail", "full", "-o", str(out / "outside.kbl"), "--force"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            words = []
            for line in recorder.stderr:
                words.append(line)
                if "recording:" in line:
                    break
            else:
                raise AssertionError(words)
            (out / "go").touch()
            while (out / "over-to-you").exists() and not ended:
                time.sleep(0.1)
            recorder.send_signal(signal.SIGINT)
            text, errors = recorder.communicate(timeout=90)
            if recorder.returncode:
                raise AssertionError(errors)
        finally:
            if recorder and recorder.poll() is None:
                recorder.kill()
                recorder.communicate()
            (out / "go").unlink(missing_ok=True)
            player.join()
        if ended != [0]:
            raise AssertionError(f"the act ended with {ended}: {(out / 'acts.err').read_text(errors='replace')[-2000:]}")
        return json.loads((out / "twice/facts.json").read_text()), json.loads(text)

    def test_the_same_functions_in_the_same_order(self):
        self.assertNotIn("refused", self.facts)
        self.assertEqual((0, 1), (self.facts["inside_rc"], len({*self.facts["sent"], *self.facts["received"]})), self.facts)
        self.assertEqual([], self.done["losses"])
        inside, outside = Recorded(self.out / "twice/inside.kbl"), Recorded(self.out / "outside.kbl")
        both = inside.functions & outside.functions
        print(f"{self.SERIES}: functions inside {len(inside.functions)}, outside {len(outside.functions)}, both {len(both)}", file=sys.stderr)
        print(" only inside:", *sorted(inside.functions - both), "\n only outside:", *sorted(outside.functions - both), file=sys.stderr)
        ours, theirs = outside.paths(both), inside.paths(both)
        # An acknowledgement goes alone when the answer takes longer than its timer: in a slow guest there are more of them.
        alone = lambda kind: (kind[0], kind[5], kind[7]) == (6, ACK, 52)
        kinds = lambda paths: Counter({kind: len(of) for kind, of in paths.items() if not alone(kind)})
        print(" packets only inside:", kinds(theirs) - kinds(ours), "\n only outside:", kinds(ours) - kinds(theirs), file=sys.stderr)
        self.assertEqual((kinds(theirs), both, set()), (kinds(ours), inside.functions, inside.functions - outside.functions))
        # Whether a segment finds its socket's owner at work is a matter of time, and other functions then have it.
        for proto, name, least in ((17, "udp", 1.0), (1, "icmp", 1.0), (6, "tcp", 0.95)):
            precision, recall = self.compare(name, *({k: v for k, v in p.items() if k[0] == proto} for p in (ours, theirs)))
            self.assertGreaterEqual(min(precision, recall), least)

    def compare(self, name: str, ours: dict, theirs: dict) -> tuple[float, float]:
        same = extra = missing = equal = packets = 0
        differences: Counter = Counter()
        for kind in {*ours, *theirs}:
            # Alike packets in an order that does not depend on who recorded them.
            a, b = (sorted(p.get(kind, []), key=repr) for p in (theirs, ours))
            for n in range(max(len(a), len(b))):
                their, our = (p[n] if n < len(p) else [] for p in (a, b))
                packets += 1
                equal += their == our
                for tag, i, j, k, m in SequenceMatcher(None, their, our, autojunk=False).get_opcodes():
                    if tag == "equal":
                        same += j - i
                        continue
                    missing, extra = missing + j - i, extra + m - k
                    differences.update(("-", *call) for call in their[i:j])
                    differences.update(("+", *call) for call in our[k:m])
        precision, recall = same / max(same + extra, 1), same / max(same + missing, 1)
        print(f" {name}: {packets} packets, {equal} with equal paths; {same} equal calls, {extra} more, {missing} fewer: precision {precision:.4f}, recall {recall:.4f}", file=sys.stderr)
        for difference, n in differences.most_common(40):
            print(f"  {n:>5} {difference}", file=sys.stderr)
        return precision, recall


class GuestInside612(GuestInside):
    SERIES = "6.12"


class GuestInside61(GuestInside):
    SERIES = "6.1"
