"""What became of each datagram, whatever network it passes: two hosts and a router between them, joined by chance by a veth pair, a bridge or two, a macvlan, VLAN or
VXLAN, with and without offloads, sniffers (of rings, and such as read clones at once, late or never) and threads of the devices' own, and in it flows of known fates. On this machine, with tracepoints, and in guests with
functions. Truth is what each reader took (a datagram's number is its length) and what the network was made to do; each datagram is one packet, with one
verdict. `KPAT_FATES=FIRST-END` with test_further_networks: other networks; `KPAT_KEEP_FATES=DIR`: what was made of them stays."""
import json
import os
import random
import shutil
import signal
import sys
import time
import unittest
from collections import Counter, defaultdict
from pathlib import Path

from kpatlab import look, play
from kpatlab.cache import LAB
from tests.place import begun, inside, own, probed, sh, still
from tests.truth import BEST

TOOL = [sys.executable, str(LAB / "tools/fates.py")]
CLONES = [sys.executable, str(LAB / "tools/clones.py")]
FEATURES = ("gro", "tso", "tx", "gso", "rx")
# Kind of link, and how `ip link` makes it on a device.
STACKED = {"macvlan": "link {over} type macvlan mode bridge", "ipvlan": "link {over} type ipvlan mode l2", "vlan": "link {over} type vlan id 7"}
WRAPPED = {"vxlan": "type vxlan id {id} dev {over} local {near} remote {far} dstport 4789", "geneve": "type geneve id {id} remote {far}",
           "gretap": "type gretap local {near} remote {far}"}
DEL, DROP = "delivered", "dropped"
# A neighbour that does not answer is asked for three seconds, and the log's last moments are *in-flight*.
PATIENCE = 4.5
# Networks that showed a fault each.
SEEDS = (100, 101, 107, 115, 122, 215, 218, 306, 723, 760)
SEEDS_QUEUED = (531, 540, 542)
SEEDS_INSIDE = range(301, 302)
MODULES = "veth bridge macvlan ipvlan 8021q vxlan geneve ip_gre nf_tables nft_limit nft_reject_inet nft_nat nft_redir"
ROUTER_RULES = """
table ip t {
 chain f { type filter hook forward priority 0; udp sport 5004 drop; udp sport 5020 reject; udp sport 5021 limit rate over 20/second burst 5 packets drop
 }
 chain p { type nat hook prerouting priority -100; udp sport 5012 dnat to 10.2.0.3:6012; udp sport 5014 redirect to :6014
 }
 chain q { type nat hook postrouting priority 100; udp sport 5013 snat to 10.2.0.254
 }
}
"""
READER_RULES = """
table ip t {
 chain i { type filter hook input priority 0; udp sport 5005 drop
 }
 chain r { type filter hook prerouting priority -300; udp sport 5022 drop
 }
}
"""
SENDER_RULES = """
table ip t {
 chain o { type filter hook output priority 0; udp sport 5006 drop; udp sport 5036 drop
 }
 chain p { type filter hook postrouting priority 0; udp sport 5023 drop
 }
}
"""


class Network:
    """Sender a, router r, reader b; `chance` says how they are joined. `said`: what it came to."""

    def __init__(self, case: unittest.TestCase, chance: random.Random, keep: str | None):
        self.case, self.chance, self.links, self.said, self.bridges = case, chance, 0, [], []
        self.a, self.r, self.b = own(case, "fates", "arb", keep)
        self.all = [self.a, self.r, self.b]
        kinds = ["veth", "bridge", "bridges", *self.further()]
        self.link(self.a, "a0", self.r, "r0", kinds)
        # An ipvlan takes what is for its own address, and nothing that is to be forwarded.
        self.link(self.r, "r1", self.b, "b0", [kind for kind in kinds if kind != "ipvlan"])
        places = ((self.a, "a0", 1, 1), (self.r, "r0", 1, 254), (self.r, "r1", 2, 254), (self.b, "b0", 2, 2))
        for ns, dev, net, host in places:
            sh("ip", "-n", ns, "addr", "add", f"10.{net}.0.{host}/24", "dev", dev)
            sh("ip", "-n", ns, "addr", "add", f"fd0{net}::{host}/64", "dev", dev, "nodad", ok=False)
        for ns, net in ((self.a, 1), (self.b, 2)):
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            sh("ip", "-n", ns, "route", "add", "default", "via", f"10.{net}.0.254")
            sh("ip", "-n", ns, "-6", "route", "add", "default", "via", f"fd0{net}::254", ok=False)
        self.within(self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.r1.rp_filter=0", "net.ipv4.conf.r0.rp_filter=1")
        self.within(self.r, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", ok=False)
        for kind, net in (("blackhole", "10.9.1.0/24"), ("unreachable", "10.9.2.0/24"), ("prohibit", "10.9.3.0/24")):
            sh("ip", "-n", self.r, "route", "add", kind, net)
        sh("ip", "-n", self.r, "neigh", "add", "10.2.0.66", "lladdr", "02:00:00:00:12:34", "nud", "permanent", "dev", "r1")
        sh("ip", "-n", self.b, "addr", "add", "10.2.0.3/24", "dev", "b0")
        sh("ip", "-n", self.a, "route", "add", "239.0.0.0/8", "dev", "a0")
        for ns, rules in ((self.a, SENDER_RULES), (self.r, ROUTER_RULES), (self.b, READER_RULES)):
            path = case.dir / f"{ns}.nft"
            path.write_text(rules)
            self.within(ns, "nft", "-f", path)
        reached = lambda *address: self.within(self.a, "sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do ping -c1 -W2 {' '.join(address)} && exit; done; exit 1", ok=False).returncode == 0
        case.assertTrue(reached("10.2.0.2"), self.said)
        self.six = reached("-6", "fd02::2")

    def queues(self, seed: int) -> None:
        """Devices that send no faster than this, by a chance of their own, as for `Clones`: what is sent at once waits there, for a second at most."""
        chance = random.Random(f"queues of {seed}")
        for ns in (self.a, self.r, *self.bridges):
            links = json.loads(sh("ip", "-n", ns, "-j", "link", "show").stdout)
            for dev in (d["ifname"] for d in links if "UP" in d["flags"] and d["ifname"] != "lo"):
                if chance.random() < 0.35 and self.within(ns, "tc", "qdisc", "add", "dev", dev, "root", "tbf", "rate", "4mbit", "burst", "1600", "latency", "10s", ok=False).returncode == 0:
                    self.said.append(f"a queue at {dev}")

    def within(self, ns: str, *argv, ok=True):
        return sh("ip", "netns", "exec", ns, *argv, ok=ok)

    def place(self, name: str) -> str:
        ns = f"{self.a[:-1]}{name}{self.links}"
        sh("ip", "netns", "add", ns)
        self.case.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        self.all.append(ns)
        return ns

    def further(self) -> list[str]:
        """Kinds of links that this kernel has."""
        sh("ip", "-n", self.a, "link", "add", "e", "type", "veth", "peer", "name", "f")
        words = {kind: how.format(over="e", id=9, near="192.0.2.1", far="192.0.2.2").split() for kind, how in {**STACKED, **WRAPPED}.items()}
        has = lambda how: all(sh("ip", "-n", self.a, "link", *do, ok=False).returncode == 0 for do in (["add", "x0", *how], ["del", "x0"]))
        found = [kind for kind, how in words.items() if has(how)]
        sh("ip", "-n", self.a, "link", "del", "e")
        return found

    def veth(self, a: str, at_a: str, b: str, at_b: str) -> None:
        sh("ip", "link", "add", at_a, "netns", a, "type", "veth", "peer", "name", at_b, "netns", b)
        for ns, dev in ((a, at_a), (b, at_b)):
            turned = {f: "off" for f in FEATURES if self.chance.random() < 0.25}
            if self.chance.random() < 0.3:
                turned["gro"] = "on"
            for feature, how in turned.items():
                self.within(ns, "ethtool", "-K", dev, feature, how, ok=False)
            if self.chance.random() < 0.2:
                turned["threaded"] = "on"
                self.within(ns, "sh", "-c", f"echo 1 > /sys/class/net/{dev}/threaded", ok=False)
            self.said.append(f"{dev} {turned}")
            sh("ip", "-n", ns, "link", "set", dev, "up")

    def bridge(self, name: str) -> str:
        ns = self.place(name)
        sh("ip", "-n", ns, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", ns, "link", "set", "br0", "up")
        return ns

    def port(self, ns: str, dev: str) -> None:
        sh("ip", "-n", ns, "link", "set", dev, "master", "br0")

    def link(self, a: str, at_a: str, b: str, at_b: str, kinds: list[str]) -> None:
        self.links += 1
        kind = self.chance.choice(kinds)
        self.said.append(f"{at_a} {kind}")
        if kind == "veth":
            self.veth(a, at_a, b, at_b)
        elif kind.startswith("bridge"):
            self.bridged(a, at_a, b, at_b, kind == "bridges")
        elif kind in STACKED:
            over = self.place("m") if kind != "vlan" else a
            self.veth(over, "e0", b, at_b if kind != "vlan" else "e0")
            for ns, dev in ((a, at_a), *([(b, at_b)] if kind == "vlan" else [])):
                sh("ip", "-n", over if ns == a else ns, "link", "add", dev, "netns", ns, *STACKED[kind].format(over="e0").split())
                sh("ip", "-n", ns, "link", "set", dev, "up")
        else:
            self.veth(a, f"u{at_a}", b, f"u{at_b}")
            ends = [f"192.168.{self.links}.{n}" for n in (1, 2)]
            for (ns, dev), near, far in (((a, at_a), *ends), ((b, at_b), *reversed(ends))):
                sh("ip", "-n", ns, "addr", "add", f"{near}/24", "dev", f"u{dev}")
                sh("ip", "-n", ns, "link", "add", dev, *WRAPPED[kind].format(over=f"u{dev}", id=self.links, near=near, far=far).split())
                sh("ip", "-n", ns, "link", "set", dev, "up")

    def bridged(self, a: str, at_a: str, b: str, at_b: str, two: bool) -> None:
        first = last = self.bridge("s")
        self.bridges.append(first)
        self.veth(a, at_a, first, "p0")
        self.port(first, "p0")
        if two:
            last = self.bridge("t")
            self.veth(first, "p1", last, "p2")
            self.port(first, "p1")
            self.port(last, "p2")
        self.veth(b, at_b, last, "p3")
        self.port(last, "p3")
        if self.chance.random() < 0.4:
            sh("ip", "-n", first, "addr", "add", f"10.{self.links}.0.77/24", "dev", "br0")
            self.said.append("the bridge has an address")
        if self.chance.random() < 0.3:
            sh("ip", "-n", first, "link", "set", "br0", "promisc", "on")
            self.said.append("promiscuous")
        if self.chance.random() < 0.3:
            third = self.place("w")
            self.veth(third, "w0", first, "p9")
            self.port(first, "p9")
            sh("ip", "-n", third, "addr", "add", f"10.{self.links}.0.99/24", "dev", "w0")
            self.said.append("a third host")


def flows(network: Network, chance: random.Random) -> tuple[list[dict], dict[str, list[dict]]]:
    """What is sent, with its fate where no reader takes it, and who reads where."""
    count, out, readers = chance.randint(15, 40), [], {"a": [], "r": [], "b": []}

    def flow(name: str, sport: int, to: str, at: str | None = None, **how):
        """`at`: who reads; further words: of the flow, and of its reader in `by`."""
        by = how.pop("by", {})
        out.append({"name": name, "sport": sport, "to": to, "dport": sport + 1000, "count": count, "least": chance.choice([40, 100, 700]), **how})
        if at:
            readers[at].append({"name": name, "addr": "::" if ":" in to else "0.0.0.0", "port": sport + 1000, **by})

    far, near = "10.2.0.2", "10.1.0.254"
    flow("plain", 5001, far, "b")
    flow("no socket", 5002, far)
    flow("full", 5003, far, "b", by={"room": 8192, "late": "yes"})
    for name, sport in (("forward", 5004), ("input", 5005), ("output", 5006), ("prerouting", 5022), ("postrouting", 5023)):
        flow(name, sport, far, "b")
    for n, name in enumerate(("blackhole", "unreachable", "prohibit")):
        flow(name, 5007 + n, f"10.9.{n + 1}.1")
    flow("ttl", 5010, far, "b", ttl=1)
    flow("no neighbour", 5011, "10.2.0.55")
    flow("dnat", 5012, far)
    readers["b"].append({"name": "dnat", "addr": "10.2.0.3", "port": 6012})
    flow("snat", 5013, far, "b")
    flow("redirect", 5014, far, "r")
    flow("socket filter", 5015, far, "b", by={"takes_none": True})
    flow("another's socket", 5016, far, "b", by={"peer": ["10.1.0.1", 9]})
    flow("wrong checksum", 5017, far, "b", raw=True)
    flow("raw, output", 5036, far, "b", raw=True)
    flow("unread", 5018, far, "b", by={"late": "never"})
    flow("another host's", 5019, "10.2.0.66")
    flow("reject", 5020, far, "b")
    flow("limit", 5021, far, "b")
    flow("spoofed", 5026, far, "b", **{"from": "10.2.0.200"})
    flow("router", 5027, near, "r")
    flow("to all", 5028, "10.1.0.255", "r", to_all=True)
    flow("group", 5029, "239.1.1.1", "r", group_by="10.1.0.1", by={"group": "239.1.1.1", "on": near})
    readers["r"].append(readers["r"][-1])
    flow("shared port", 5030, far, "b", by={"shared": True})
    readers["b"].append(readers["b"][-1])
    flow("itself", 5031, "10.1.0.1", "a")
    flow("loopback", 5032, "127.0.0.1", "a")
    flow("nobody on loopback", 5033, "127.0.0.1")
    flow("whole", 5034, far, "b", whole=True)
    flow("whole, no socket", 5035, far, whole=True)
    if network.six:
        flow("plain, six", 5041, "fd02::2", "b")
        flow("no socket, six", 5042, "fd02::2")
        flow("router, six", 5044, "fd01::254", "r")
        flow("loopback, six", 5045, "::1", "a")
        flow("full, six", 5046, "fd02::2", "b", by={"room": 8192, "late": "yes"})
    return [f for f in out if chance.random() < 0.7], readers


class Clones:
    """Sniffers that read clones: kpat's own (`own`: words of the recording) and others, at devices drawn by a chance of their own, so that a seed's network is what it was
    without them."""

    def __init__(self, network: Network, seed: int):
        chance, self.network, self.all, self.own = random.Random(f"clones of {seed}"), network, [], []
        for ns, devices in ((network.a, ["any", "a0"]), (network.r, ["any", "r0", "r1"]), (network.b, ["any", "b0"]), *((s, ["any", "br0", "p0"]) for s in network.bridges)):
            if chance.random() < 0.4:
                how, closes = chance.choice(["reads", "reads", "slow", "full", "never"]), f"{chance.uniform(0.2, 1.5):.2f}" if chance.random() < 0.4 else ""
                self.all.append((chance.random() < 0.5, ns, chance.choice(devices), how, closes))
            if chance.random() < 0.2:
                self.own += ["--sniff", f"{ns}:{(device := chance.choice(devices[1:]))}"]
                network.said.append(f"kpat's own at {device}")

    def begin(self, within, before: bool) -> None:
        """`before`: those that are there before the recording."""
        for n, (early, ns, device, how, closes) in enumerate(self.all):
            if early == before:
                begun(self.network.case, f"clones-{n}", within(ns, *CLONES, device, how, closes))
                self.network.said.append(f"{how} clones at {device}{closes and f' for {closes} s'}{' early' if early else ''}")


def further() -> range:
    first, end = (int(n) for n in os.environ.get("KPAT_FATES", "200-212").split("-"))
    return range(first, end)


class Judged:
    def verdict(self, seed: int, log: Path, made: dict) -> bool:
        """Of what `made` was while this was recorded. False: it is wrong, and may be for what the kernel handled without running programs, which the log says."""
        kpat, out = os.path.abspath(play.kpat_path()), log.with_suffix(".kpat")
        sent, took, errors = (made[name] for name in ("sent", "took", "errors"))
        sh(kpat, "integrate", log, "-o", out)
        info = json.loads(sh(kpat, "info", out, "--json").stdout)
        wrong, by_port = {}, defaultdict(list)
        for p in json.loads(sh(kpat, "packets", out, "--limit", "0", "--json", "udp").stdout)["packets"]:
            by_port[p["src_port"]].append(p)
        for f in sent:
            faults = self.judge(f, by_port[f["sport"]], Counter(took.get(f["name"], [])), errors[f["name"]])
            if faults:
                wrong[f["name"]] = dict(faults)
        if made["profile"] == "path,app":
            for name, faults in self.applications(out, sent, took, errors, made["queued"]).items():
                wrong.setdefault(name, {}).update(faults)
        print(f"fates: seed {seed}: by {info['recording']['mechanism']}: {len(sent)} flows of {sent[0]['count']} datagrams, {made['profile']}, {made['said']}", flush=True)
        skipped = [x for x in info["losses"] if x["cause"] in ("not-run", "recursion")]
        if wrong and skipped:
            print(f"fates: seed {seed}: {wrong}, of {skipped}", flush=True)
            return False
        self.assertEqual(wrong, {}, f"seed {seed}: {made['said']}")
        return True

    def judge(self, f: dict, found: list[dict], took: Counter, errors: list[int]) -> Counter:
        by_number, faults = defaultdict(list), Counter()
        headers = 48 if ":" in f["to"] else 28
        for p in found:
            by_number[p["len_bytes"] - headers - f["least"]].append(p["verdict"])
        for number, errno in enumerate(errors):
            verdicts = by_number.pop(number, [])
            # Refused before there was a packet (no neighbour, no route).
            if errno and not verdicts:
                continue
            want = DEL if took[f["least"] + number] else DROP
            faults[f"{verdicts}, not {want}"] += verdicts != [want]
        faults["of no number"] += sum(map(len, by_number.values()))
        return +faults

    def applications(self, out, sent: list[dict], took: dict[str, list[int]], errors: dict[str, list[int]], queued: bool) -> dict[str, Counter]:
        """Is each datagram that of the call that sent it, read by one that took as many bytes, and counted once for its socket, whatever devices it passed? Of one that
        waited in a device's queue (`queued`) it may not be known which call sent it."""
        kpat = os.path.abspath(play.kpat_path())
        faults: dict[str, Counter] = defaultdict(Counter)
        all_read = {f["name"]: Counter(took.get(f["name"], [])) for f in sent}
        last = json.loads(sh(kpat, "info", out, "--json").stdout)["rows"]["packet"]
        packets = json.loads(sh(kpat, "packet", f"1-{last}", out, "--json", "--no-calls", seconds=300).stdout)["packets"]
        flow_of = {f["sport"]: f for f in sent}
        for p in packets:
            q, f = p["packet"], flow_of.get(p["packet"]["src_port"])
            if f is None or q["protocol"] != "UDP" or q["dst_port"] != f["dport"]:
                continue
            number = q["len_bytes"] - (48 if ":" in f["to"] else 28) - f["least"]
            of = p["application"] or {"written": None, "read": None}
            calls = {end: [c["bytes"] for c in (of[end] or {"calls": []})["calls"]] for end in ("written", "read")}
            # What is refused before it comes to a device is a call that failed.
            if not errors[f["name"]][number] and not f.get("raw") and calls["written"] not in ([f["least"] + number], *([[]] if queued else [])):
                faults[f["name"]][f"written by {len(calls['written'])} calls, or of another size"] += 1
            want = [f["least"] + number] if all_read[f["name"]][f["least"] + number] else []
            if calls["read"] != want:
                faults[f["name"]][f"read by {len(calls['read'])} calls, not {len(want)}, or of another size"] += 1
        sockets = {s["local_port"]: s for s in json.loads(sh(kpat, "app", out, "--json", "-n", "0").stdout)["sockets"] if not s["received_bytes"]}
        for f in sent:
            given = errors[f["name"]].count(0) if not any(errors[f["name"]]) and not f.get("raw") else 0
            counted = sockets.get(f["sport"], {"crossings": {}})["crossings"].get("to-device", {}).get("frames")
            if given and f["sport"] in sockets and counted != given:
                faults[f["name"]][f"{counted} frames for {given} datagrams"] += 1
        return faults


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Fates(Judged, unittest.TestCase):
    def network(self, seed: int, queued: bool, attempt: int) -> bool:
        kpat, chance = os.path.abspath(play.kpat_path()), random.Random(seed)
        keep = os.environ.get("KPAT_KEEP_FATES")
        network = Network(self, chance, keep and f"{keep}/{seed}{'.' * attempt}")
        if queued:
            network.queues(seed)
        sent, readers = flows(network, chance)
        profile = chance.choice(["path", "path,app"])
        within = lambda ns, *argv: ["ip", "netns", "exec", ns, *argv]
        for ns, devices in ((network.a, ["any", "a0"]), (network.r, ["any", "r0", "r1"]), (network.b, ["any", "b0"]), *((s, ["any", "br0"]) for s in network.bridges)):
            if chance.random() < 0.3:
                dev, quiet = chance.choice(devices), chance.choice([[], ["-p"]])
                begun(self, f"sniffer-{ns}", within(ns, "tcpdump", "-Z", "root", "-U", "--immediate-mode", *quiet, "-n", "-i", dev, "-w", str(self.dir / f"{ns}.pcap")),
                      lambda p: "listening on" in play.text_of(p.stderr))
                network.said.append(f"sniffer at {dev}")
        clones = Clones(network, seed)
        clones.begin(within, before=True)
        late = chance.random() < 0.5
        taking = [] if late else self.readers(network, readers)
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        places = [word for ns in network.all for word in ("--netns", ns)]
        record = begun(self, "record", [kpat, "record", "-p", profile, *probed(), "--no-cost", *places, *clones.own, "-o", str(log), "--ready-file", str(ready)],
                       lambda _: ready.exists())
        taking = taking or self.readers(network, readers)
        clones.begin(within, before=False)
        (self.dir / "flows.json").write_text(json.dumps(sent))
        sh(*within(network.a, *TOOL, "send", self.dir / "flows.json", seed, self.dir / "sent.json"))
        # Until the kernel gave up asking for a neighbour; nothing waits longer.
        time.sleep(PATIENCE)
        took: dict[str, list[int]] = {}
        for r in taking:
            r.p.send_signal(signal.SIGUSR1)
            r.p.wait(300)
            took.update(json.loads(play.text_of(r.stdout).splitlines()[-1]))
        time.sleep(0.5)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        made = {"sent": sent, "took": took, "errors": json.loads((self.dir / "sent.json").read_text()), "queued": queued, "profile": profile,
                "said": f"readers {'later' if late else 'before'}: {'; '.join(network.said)}"}
        if to := os.environ.get("KPAT_FATES_TO"):
            shutil.copy(log, f"{to}/{seed}.kbl")
            Path(f"{to}/{seed}.json").write_text(json.dumps(made))
            return True
        return self.verdict(seed, log, made)

    def readers(self, network: Network, readers: dict) -> list:
        taking = []
        for where, ns in (("a", network.a), ("r", network.r), ("b", network.b)):
            spec = self.dir / f"readers-{where}.json"
            spec.write_text(json.dumps(readers[where]))
            taking.append(begun(self, f"readers-{where}", ["ip", "netns", "exec", ns, *TOOL, "read", str(spec)]))
        return taking

    def networks(self, seeds, queued: bool = False) -> None:
        for seed in still(self, "seed", seeds):
            with self.subTest(seed=seed):
                if not any(self.judged(seed, queued, attempt) for attempt in range(5)):
                    self.skipTest(f"seed {seed}: five recordings say that programs did not run")

    def judged(self, seed: int, queued: bool, attempt: int) -> bool:
        """What the kernel handled without running programs is in no log, which says so. If what is wrong may be that, another recording is judged."""
        try:
            return self.network(seed, queued, attempt)
        finally:
            self.stack.close()

    def test_each_datagram_is_one_packet_with_one_fate(self):
        self.networks(SEEDS)

    def test_where_devices_have_queues(self):
        self.networks(SEEDS_QUEUED, queued=True)

    def test_further_networks(self):
        self.networks(further(), bool(os.environ.get("KPAT_FATES_QUEUES")))


class FatesInside(Judged):
    """So in a guest, by the best mechanism of its kernel. What it recorded is judged here, where it takes a fiftieth of the time."""

    def inside(self, seeds: range) -> None:
        for _ in range(3):
            own(self, "fates", "")
            inside(self, "Fates.test_further_networks", MODULES, keep=self.dir, KPAT_FATES=f"{seeds.start}-{seeds.stop}", KPAT_FATES_TO="/lab")
            unclear = [seed for seed in seeds if not self.judged(seed)]
            self.stack.close()
            if not unclear:
                return
            seeds = range(unclear[0], unclear[-1] + 1)
        self.skipTest(f"seeds {unclear}: three recordings say that programs did not run")

    def judged(self, seed: int) -> bool:
        with self.subTest(seed=seed):
            log = self.dir / f"{seed}.kbl"
            self.assertEqual(look.kpat_json("info", str(log))["recording"]["mechanism"], BEST[self.series])
            return self.verdict(seed, log, json.loads(log.with_suffix(".json").read_text()))
        return True  # it failed

    def test_each_datagram_is_one_packet_with_one_fate(self):
        self.inside(SEEDS_INSIDE)

    def test_further_networks(self):
        self.inside(further())


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Fates61(FatesInside, unittest.TestCase):
    series = "6.1"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Fates612(FatesInside, unittest.TestCase):
    series = "6.12"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Fates612Rt(FatesInside, unittest.TestCase):
    series = "6.12-rt"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Fates72(FatesInside, unittest.TestCase):
    series = "7.2"
