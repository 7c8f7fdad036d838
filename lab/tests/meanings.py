"""What a drop means where it was, as `kpat packet` says it: rules, routes, neighbours, sockets of which each is made to refuse one port. On this machine with tracepoints, and in guests
with their kernels, where a queue for a program that none reads is among them. Truth is what the network was made to do with each port."""
import json
import os
import sys
import time
import unittest

from kpatlab import play
from tests.place import Inside, begun, integrated, own, probed, sh

HERE, THERE, HERE6, THERE6 = "10.96.1.1", "10.96.2.1", "fd96:1::1", "fd96:2::1"
FIRST = 7101
MODULES = "veth nf_tables nf_conntrack nft_ct nft_chain_nat nft_masq nft_reject_inet nft_queue nfnetlink_queue"
# Kernels that name the function of any such route (6.12), and not which one, say that of all of them.
ANY_ROUTE = "|or one of IPv6 that refuses"
# Of each port: where its datagram goes, how, and words of what the drop means, in one way or another.
DATAGRAMS = {
    "a rule": (THERE, {}, "a rule of nftables dropped or rejected it"),
    "a rule that rejects": (THERE, {}, "a rule of nftables dropped or rejected it"),
    "no port for its translation": (THERE, {"from": 6001}, "NAT that has no free port"),
    "TTL": (THERE, {"ttl": 1}, "TTL (hop limit) came to its end here"),
    "hop limit": (THERE6, {"ttl": 1}, "TTL (hop limit) came to its end here"),
    "prohibited": ("10.96.11.1", {}, "unreachable or prohibit"),
    "prohibited, six": ("fd96:11::1", {}, "is of type prohibit" + ANY_ROUTE),
    "unreachable, six": ("fd96:12::1", {}, "or one of type unreachable" + ANY_ROUTE),
    "no route, six": ("fd96:99::1", {}, "there is no route to its destination"),
    "blackhole, six": ("fd96:13::1", {}, "is of type blackhole"),
    "no neighbour": ("10.96.2.77", {}, "nobody answered for the next hop's address"),
    "no neighbour, six": ("fd96:2::77", {}, "nobody answered for the next hop's address"),
    "to all": ("10.96.1.255", {"to_all": True}, "no socket here is bound to its port"),
    "nobody": (THERE, {}, "no socket takes it"),
}
# A queue that no program reads. This machine's kernel may have none.
QUEUED = {"a queue": (THERE, {}, "none reads that queue")}
SEND = """
import json, socket, sys
for port, (to, how) in json.loads(sys.argv[1]).items():
    six = ":" in to
    for _ in range(2 if "from" in how else 1):
        s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
        if "ttl" in how: s.setsockopt(socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP, socket.IPV6_UNICAST_HOPS if six else socket.IP_TTL, how["ttl"])
        if "to_all" in how: s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.sendto(b"x" * 20, (to, int(port)))
"""
TAKE = """
import signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", int(sys.argv[1])))
print("ready", flush=True)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Meanings(unittest.TestCase):
    def test_each_drop(self):
        kpat = os.path.abspath(play.kpat_path())
        a, r, b = own(self, "mean", "arb")
        within = lambda ns, *argv, **how: sh("ip", "netns", "exec", ns, *argv, **how)
        for ns, dev, router, net in ((a, "pa", "ra", 1), (b, "pb", "rb", 2)):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", router, "netns", r)
            for where, name, host in ((ns, dev, 1), (r, router, 254)):
                sh("ip", "-n", where, "link", "set", name, "up")
                sh("ip", "-n", where, "addr", "add", f"10.96.{net}.{host}/24", "dev", name)
                sh("ip", "-n", where, "addr", "add", f"fd96:{net}::{host}/64", "dev", name, "nodad")
            for family, via in (("-4", f"10.96.{net}.254"), ("-6", f"fd96:{net}::254")):
                sh("ip", "-n", ns, family, "route", "add", "default", "via", via)
        within(r, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        sh("ip", "-n", r, "route", "add", "prohibit", "10.96.11.0/24")
        for kind, net in (("prohibit", 11), ("unreachable", 12), ("blackhole", 13)):
            sh("ip", "-n", r, "-6", "route", "add", kind, f"fd96:{net}::/64")
        queue = within(r, "nft", "add table ip q; add chain ip q f { type filter hook forward priority 0; }; add rule ip q f udp dport 1 queue to 1", ok=False).returncode == 0
        asked = {str(FIRST + n): (name, *of) for n, (name, of) in enumerate({**DATAGRAMS, **(QUEUED if queue else {})}.items())}
        port = {name: p for p, (name, *_) in asked.items()}
        rules = f"""
table inet f {{
 chain c {{ type filter hook forward priority 0; udp dport {port["a rule"]} drop; udp dport {port["a rule that rejects"]} reject
 }}
}}
table ip n {{
 chain c {{ type nat hook postrouting priority 100; udp dport {port["no port for its translation"]} masquerade to :6000-6000
 }}
}}
"""
        if queue:
            rules += f"table ip q {{ chain f {{ type filter hook forward priority 0; udp dport {port['a queue']} queue to 1\n }}\n}}\n"
        (self.dir / "rules").write_text(rules)
        within(r, "nft", "-f", self.dir / "rules")
        taken = port["no port for its translation"]
        begun(self, "take", ["ip", "netns", "exec", b, sys.executable, "-c", TAKE, taken])
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = begun(self, "record", [kpat, "record", "-p", "path", *probed(), "-f", "udp", "--no-cost", *(w for ns in (a, r, b) for w in ("--netns", ns)), "-o", str(log), "--ready-file", str(ready)],
                       lambda _: ready.exists())
        within(a, sys.executable, "-c", SEND, json.dumps({p: of[1:3] for p, of in asked.items()}))
        # Until the kernel gave up asking for neighbours.
        time.sleep(4.5)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        store = integrated(self, log)
        packets = json.loads(sh(kpat, "packets", store, "--json", "--limit", "0", "udp").stdout)["packets"]
        wrong = {}
        for p, (name, _, _, words) in asked.items():
            of = [x for x in packets if x["dst_port"] == int(p)]
            detail = lambda x: json.loads(sh(kpat, "packet", x["packet_id"], store, "--json").stdout)
            said = [(x["drop_reason"], (detail(x)["drop_explained"] or {}).get("means")) for x in of if x["verdict"] == "dropped"]
            if len(said) != 1 or not any(w in (said[0][1] or "") for w in words.split("|")):
                wrong[name] = said or [x["verdict"] for x in of]
        print(f"meanings: {len(asked) - len(wrong)} of {len(asked)} drops", flush=True)
        self.assertEqual(wrong, {})


class MeaningsInside(Inside):
    of, modules, detail, marked = "Meanings", MODULES, "steps", "meanings: "


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Meanings612(MeaningsInside, unittest.TestCase):
    series = "6.12"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Meanings72(MeaningsInside, unittest.TestCase):
    series = "7.2"


if __name__ == "__main__":
    unittest.main()
