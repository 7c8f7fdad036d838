"""Namespaces, links and all that is configured in them, from a scenario; runs where the packets will run.

On a shared host every namespace carries a prefix, so runs do not meet; in a guest the prefix is empty.
Interfaces are made inside their namespaces, so they need no prefix. `close` removes everything that was made.
"""
import subprocess
import time
from pathlib import Path

from . import cache
from .cache import Refusal
from .emulator import NIC_DRIVERS, mac


class Network:
    def __init__(self, topo: dict, prefix: str = "", in_guest: bool = False):
        self.topo, self.prefix, self.in_guest, self.made = topo, prefix, in_guest, []
        self.ip = cache.tool("ip", "iproute2")

    def ns(self, name: str) -> str:
        return self.prefix + name

    def enter(self, name: str) -> list[str]:
        """Prefix of a command that runs in a namespace."""
        return [self.ip, "netns", "exec", self.ns(name)]

    def close(self) -> None:
        for n in reversed(self.made):
            subprocess.run([self.ip, "netns", "del", n], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
        self.made = []

    def _run(self, what: str, args: list[str], text: str | None = None) -> None:
        try:
            r = subprocess.run(args, input=(text or "").encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise Refusal(f"{what}: {e}") from None
        if r.returncode:
            words = r.stdout.decode(errors="replace").strip().splitlines() or ["no message"]
            hint = "" if self.in_guest else "; this machine's kernel may lack it: run the scenario in a guest (--kernel 6.12)"
            raise Refusal(f"{what}: {words[0]}{hint}")

    def _batch(self, ns: str, what: str, lines: list[str]) -> None:
        if lines:
            self._run(f"{what} in {ns}", [self.ip, "-n", self.ns(ns), "-batch", "-"], "\n".join(lines) + "\n")

    def build(self) -> None:
        t = self.topo
        for n in t["namespaces"]:
            self._run(f"making the namespace {n}", [self.ip, "netns", "add", self.ns(n)])
            self.made.append(self.ns(n))
        links = t.get("link", [])
        ends = [e for x in links for e in (x["a"], x["b"])]
        for n in t["namespaces"]:
            self._batch(n, "loopback", ["link set lo up"])
            sysctls = {"net.ipv6.conf.all.accept_dad": 0, "net.ipv6.conf.default.accept_dad": 0}
            if n in t.get("forward", []):
                sysctls |= {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1}
            self._sysctl(n, sysctls)
        cards = self._cards() if any(x.get("kind", "veth") != "veth" for x in links) else {}
        card = 0
        for x in links:
            a, b = x["a"], x["b"]
            if x.get("kind", "veth") == "veth":
                self._run("making a veth pair", [self.ip, "link", "add", a["dev"], "netns", self.ns(a["ns"]), "type", "veth",
                                                 "peer", "name", b["dev"], "netns", self.ns(b["ns"])])
            else:
                for i, e in enumerate((a, b)):
                    if mac(card, i) not in cards:
                        raise Refusal(f"no card {mac(card, i)} in this guest; its driver {NIC_DRIVERS[x['kind']]} may be missing from the kernel")
                    self._run(f"moving a card to {e['ns']}", [self.ip, "link", "set", cards[mac(card, i)], "netns", self.ns(e["ns"]), "name", e["dev"]])
                card += 1
        for n in t["namespaces"]:
            mine = [e for e in ends if e["ns"] == n]
            self._batch(n, "addresses", [f"link set {e['dev']} mtu {e['mtu']}" for e in mine if "mtu" in e] + address_lines(mine)
                        + [f"link set {e['dev']} up" for e in mine])
        self._wait_carrier(ends)
        for e in ends:
            if e.get("offload"):
                args = [y for k, v in e["offload"].items() for y in (k, "on" if v else "off")]
                self._run(f"offloads of {e['dev']}", [*self.enter(e["ns"]), cache.tool("ethtool", "ethtool"), "-K", e["dev"], *args])
        for v in t.get("vxlan", []):
            self._batch(v["ns"], "vxlan", [f"link add {v['dev']} type vxlan id {v['id']} local {v['local']} remote {v['remote']} dev {v['under']} dstport {v.get('port', 4789)}",
                                           *address_lines([v]), f"link set {v['dev']} up"])
        for v in t.get("vlan", []):
            self._batch(v["ns"], "vlan", [f"link add link {v['under']} name {v['dev']} type vlan id {v['id']}", *address_lines([v]), f"link set {v['dev']} up"])
        for n in t["namespaces"]:
            self._batch(n, "routes", [f"route add {r['to']} via {r['via']}" for r in t.get("route", []) if r["ns"] == n])
        for n, s in t.get("sysctl", {}).items():
            self._sysctl(n, s)
        for n, rules in t.get("nft", {}).items():
            self._run(f"nftables rules in {n}", [*self.enter(n), cache.tool("nft", "nftables"), "-f", "-"], rules)
        for q in t.get("netem", []):
            self._run(f"netem on {q['dev']}", [*self.enter(q["ns"]), cache.tool("tc", "iproute2"), "qdisc", "add", "dev", q["dev"], "root", "netem", *q["args"].split()])
        for c in t.get("setup", []):
            self._run(f"setup {c['run']}", [*self.enter(c["ns"]), "sh", "-c", c["run"].replace("{lab}", str(cache.LAB))])

    def _sysctl(self, ns: str, values: dict) -> None:
        """Written through /proc of a process inside the namespace; one process for all of them."""
        script = "\n".join(f"echo {v} > /proc/sys/{k.replace('.', '/')}" for k, v in values.items())
        self._run(f"sysctl in {ns}", [*self.enter(ns), "sh", "-ec", script])

    def _cards(self) -> dict[str, str]:
        """Address -> name of the emulated cards, their drivers loaded. Waits for the last of them to appear."""
        if not self.in_guest:
            raise Refusal("emulated cards exist only in a guest; run with --kernel 6.12, or use a scenario with veth links")
        models = {x["kind"] for x in self.topo["link"] if x.get("kind", "veth") != "veth"}
        self._run("loading the card drivers", [cache.tool("modprobe", "kmod"), "-a", *[NIC_DRIVERS[m] for m in sorted(models)]])
        want = sum(2 for x in self.topo["link"] if x.get("kind", "veth") != "veth")
        found: dict[str, str] = {}

        def all_there() -> bool:
            found.clear()
            for p in Path("/sys/class/net").glob("*/device"):
                try:
                    found[(p.parent / "address").read_text().strip()] = p.parent.name
                except OSError:
                    pass
            return len(found) >= want

        wait_for(all_there, 30, f"{want} emulated cards")
        return dict(found)

    def _wait_carrier(self, ends: list[dict]) -> None:
        for n in {e["ns"] for e in ends}:
            devs = [e["dev"] for e in ends if e["ns"] == n]
            script = "; ".join(f'read x < /sys/class/net/{d}/carrier && [ "$x" = 1 ] || exit 1' for d in devs)
            wait_for(lambda: subprocess.run([*self.enter(n), "sh", "-c", script], stderr=subprocess.DEVNULL, timeout=30).returncode == 0, 30,
                     f"carrier on {', '.join(devs)} in {n}")


def address_lines(ends: list[dict]) -> list[str]:
    return [f"addr add {a} dev {e['dev']}{' nodad' if ':' in a else ''}" for e in ends for a in e.get("addr", [])]


def wait_for(condition, seconds: float, what: str, step: float = 0.05) -> None:
    """Poll until the condition holds; refuse after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Refusal(f"{what}: not there after {seconds:.0f} s")
        time.sleep(step)
