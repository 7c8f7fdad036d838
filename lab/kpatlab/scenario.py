"""The scenario format: what may stand in scenarios/NAME.toml (README.md explains it), checked before anything starts.

Parsing names every mistake with file and key. Nothing here touches the network.
"""
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from .cache import LAB, Refusal

ANY = object
SHAPE = {
    "title": str, "modules": list, "topology": dict, "capture": list, "derive": list, "record": dict, "device": list, "server": list, "traffic": list, "expect": list, "timeout": (int, float), "missed": (int, float)}
TOPOLOGY = {"namespaces": list, "dut": str, "forward": list, "link": list, "route": list, "vxlan": list, "vlan": list, "netem": list,
            "sysctl": dict, "nft": dict, "setup": list}
LINK = {"a": dict, "b": dict, "kind": str}
END = {"ns": str, "dev": str, "addr": list, "mtu": int, "offload": dict}
ROUTE = {"ns": str, "to": str, "via": str}
VXLAN = {"ns": str, "dev": str, "id": int, "local": str, "remote": str, "under": str, "port": int, "addr": list}
VLAN = {"ns": str, "dev": str, "id": int, "under": str, "addr": list}
NETEM = {"ns": str, "dev": str, "args": str}
CAPTURE = {"name": str, "ns": str, "dev": str, "tool": str, "filter": str, "snaplen": int}
DERIVE = {"name": str, "of": str, "run": str, "added_s": (int, float)}
RECORD = {"profile": str, "detail": str, "filter": str, "mechanism": str, "netns": (str, list), "args": list}
DEVICE = {"name": str, **RECORD}
COMMAND = {"name": str, "ns": str, "run": str, "rc": (int, str), "timeout": (int, float), "ready": str}
EXPECT = {"what": str, "command": str, "where": str, "rc": int, "stdout": str, "capture": str, "filter": str, "min": (int, float), "max": (int, float),
          "output": str, "matches": str, "json": str, "equals": ANY, "packets": str, "functions": list, "points": list, "without": list, "footprints": list, "same": list, "lineage": list, "reason": str,
          "verdict": str, "frames": list, "frames_each": int, "matched": str, "share": (int, float), "needs_record": bool, "kernels": list,
          "numbers": list, "functions_only": bool, "number": (str, list), "nth": bool, "merged": bool, "by": str, "slack_ms": (int, float), "precision": (int, float), "recall": (int, float), "ambiguous": int,
          "crossed": list, "from": str, "to": str, "device": str}
KINDS = ("veth", "e100", "e1000e", "igb", "virtio")


@dataclass
class Scenario:
    name: str
    title: str
    topology: dict
    modules: list = field(default_factory=list)
    capture: list = field(default_factory=list)
    derive: list = field(default_factory=list)
    record: dict | None = None
    device: list = field(default_factory=list)
    server: list = field(default_factory=list)
    traffic: list = field(default_factory=list)
    expect: list = field(default_factory=list)
    timeout: float = 180
    missed: float = 0.0  # share of calls that probes may miss, where the load is to be more than they can follow
    detail: str = ""  # of every recording; empty: what each says, else full
    entry_only: str = ""  # of every recording: functions whose returns are left out

    def recordings(self) -> list[dict]:
        """What is recorded: one log, or one for each device, each with its name."""
        own = self.device or ([{"name": "record", **self.record}] if self.record is not None else [])
        # What a scenario expects of functions it expects of all of them.
        entries = {"entry_only": self.entry_only} if self.entry_only else {}
        return [{**r, "detail": self.detail or r.get("detail", "full"), **entries} for r in own]

    def nics(self) -> list[str]:
        """Card models of the links that are not veth, in link order."""
        return [x["kind"] for x in self.topology.get("link", []) if x.get("kind", "veth") != "veth"]

    def use_detail(self, level: str, entry_only: str) -> None:
        self.detail, self.entry_only = level, entry_only

    def use_nics(self, model: str) -> None:
        for x in self.topology.get("link", []):
            x["kind"] = model


def path_of(name: str) -> Path:
    p = Path(name)
    return p if p.suffix == ".toml" else LAB / "scenarios" / f"{name}.toml"


def all_scenarios() -> list[Scenario]:
    return [load(p.stem) for p in sorted((LAB / "scenarios").glob("*.toml"))]


def load(name: str) -> Scenario:
    p = path_of(name)
    try:
        raw = tomllib.loads(p.read_text())
    except FileNotFoundError:
        have = ", ".join(x.stem for x in sorted((LAB / "scenarios").glob("*.toml")))
        raise Refusal(f"no scenario {name}; there are: {have}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise Refusal(f"{p.name}: {e}") from None
    return check(p, raw)


def check(p: Path, raw: dict) -> Scenario:
    def bad(where: str, why: str):
        raise Refusal(f"{p.name}: {where}: {why}; lab/README.md has the format")

    def table(where: str, t, shape: dict, need=()) -> None:
        if not isinstance(t, dict):
            bad(where, "is not a table")
        for k, v in t.items():
            if k not in shape:
                bad(f"{where}.{k}", f"unknown key (known: {', '.join(shape)})")
            if not isinstance(v, shape[k]) or (isinstance(v, bool) and shape[k] not in (bool, ANY)):
                bad(f"{where}.{k}", "has the wrong type")
        for k in need:
            if k not in t:
                bad(where, f"{k} is missing")

    table("scenario", raw, SHAPE, ("title", "topology"))
    topo = raw["topology"]
    table("topology", topo, TOPOLOGY, ("namespaces",))
    spaces = topo["namespaces"]
    for n in spaces:
        if not isinstance(n, str) or not re.fullmatch(r"[a-z][a-z0-9]{0,7}", n):
            bad("topology.namespaces", f"{n!r} is not a short lower-case name")

    def place(where: str, t: dict) -> None:
        if "ns" in t and t["ns"] not in spaces:
            bad(f"{where}.ns", f"{t['ns']!r} is not one of topology.namespaces")
        if len(t.get("dev", "")) > 15:
            bad(f"{where}.dev", "is longer than 15 characters")

    for i, link in enumerate(topo.get("link", [])):
        w = f"topology.link[{i}]"
        table(w, link, LINK, ("a", "b"))
        if link.get("kind", "veth") not in KINDS:
            bad(f"{w}.kind", f"is none of {', '.join(KINDS)}")
        for e in ("a", "b"):
            table(f"{w}.{e}", link[e], END, ("ns", "dev"))
            place(f"{w}.{e}", link[e])
    for key, shape, need in (("route", ROUTE, ("ns", "to", "via")), ("vxlan", VXLAN, ("ns", "dev", "id", "local", "remote", "under")),
                             ("vlan", VLAN, ("ns", "dev", "id", "under")), ("netem", NETEM, ("ns", "dev", "args"))):
        for i, t in enumerate(topo.get(key, [])):
            table(f"topology.{key}[{i}]", t, shape, need)
            place(f"topology.{key}[{i}]", t)
    for key in ("sysctl", "nft"):
        for ns in topo.get(key, {}):
            place(f"topology.{key}", {"ns": ns})
    for ns in topo.get("forward", []) + ([topo["dut"]] if "dut" in topo else []):
        place("topology", {"ns": ns})
    if "record" in raw:
        table("record", raw["record"], RECORD)
    if "record" in raw and "device" in raw:
        bad("device", "stands in place of record")
    for key, shape, need in (("capture", CAPTURE, ("name", "ns", "dev")), ("derive", DERIVE, ("name", "of", "run")), ("device", DEVICE, ("name",)), ("server", COMMAND, ("name", "ns", "run", "ready")),
                             ("traffic", COMMAND, ("name", "ns", "run")), ("expect", EXPECT, ())):
        names = set()
        for i, t in enumerate(raw.get(key, [])):
            table(f"{key}[{i}]", t, shape, need)
            place(f"{key}[{i}]", t)
            if "name" in t:
                if t["name"] in names or not re.fullmatch(r"[a-z0-9-]+", t["name"]):
                    bad(f"{key}[{i}].name", f"{t['name']!r} is used twice or is not made of a-z, 0-9 and -")
                names.add(t["name"])
    captures = {c["name"] for c in raw.get("capture", [])}
    devices = {d["name"] for d in raw.get("device", [])}
    for i, t in enumerate(raw.get("derive", [])):
        if t["of"] not in captures or t["name"] in captures:
            bad(f"derive[{i}]", f"of has to name a capture before it ({t['of']!r}), name has to be new ({t['name']!r})")
        captures.add(t["name"])
    outputs = {c["name"] for k in ("server", "traffic") for c in raw.get(k, [])}
    for i, x in enumerate(raw.get("expect", [])):
        w = f"expect[{i}]"
        if sum(k in x for k in ("command", "capture", "output", "packets", "matched", "numbers", "crossed")) != 1:
            bad(w, "needs exactly one of command, capture, output, packets, matched, numbers, crossed")
        for name in [x[k] for k in ("capture", "matched") if k in x] + x.get("frames", []) + x.get("numbers", []) + x.get("crossed", []):
            if name not in captures:
                bad(w, f"no capture {name!r}")
        if "output" in x and (x["output"] not in outputs or ("matches" in x) == ("json" in x)):
            bad(w, "output has to name a server or traffic, with either matches or json")
        for key in ("from", "to", "device"):
            if key in x and x[key] not in devices:
                bad(f"{w}.{key}", f"no device {x[key]!r}")
        if devices and {"packets", "matched", "numbers"} & x.keys() and "device" not in x:
            bad(w, "has to say of which device")
        if "crossed" in x and not {"from", "to", "number"} <= x.keys():
            bad(w, "crossed needs from, to and number")
        if "numbers" in x or "crossed" in x:
            if "numbers" in x and (x.get("by", "family") not in ("family", "packet") or ("number" in x) == x.get("merged", False)):
                bad(w, "numbers needs number (tshark fields) or merged = true, and by is family or packet")
            for n in [x["number"]] if isinstance(x.get("number"), str) else x.get("number", []):
                if not all(re.fullmatch(r"[a-z0-9_.]+(\[\d+:\d+\]|-\d+|#)?", c) for c in n.split("|")):
                    bad(f"{w}.number", f"{n!r} is not made of tshark fields, as udp.payload[0:8]|data.data[0:8]")
        if "matches" in x:
            try:
                re.compile(x["matches"])
            except re.error as e:
                bad(w, f"matches: {e}")
        if x.get("where", "host") not in ("host", "dut"):
            bad(w, "where is host or dut")
    return Scenario(name=p.stem, **raw)
