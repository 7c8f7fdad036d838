"""Ways of packets through a host, each in a network of its own, all in one recording: tunnels, IPsec, devices of several kinds, rules of netfilter and tc, balancers, queueing
disciplines. A sender and a reader at its ends, which answers each datagram, and a connection. Truth is what both read: each datagram there and back is one packet, and it was
delivered. On this machine with tracepoints, as far as its kernel has these ways; in guests all of them, with tracepoints and with functions."""
import collections
import json
import os
import re
import sys
import unittest

from kpatlab import cache, play
from tests.place import begun, inside, integrated, own, probed, sh

COUNT = 12
MODULES = ("veth bridge br_netfilter vrf ip_vs ip_vs_rr nf_flow_table nft_flow_offload act_ct act_mirred act_vlan act_pedit act_csum cls_flower cls_matchall sch_ingress ifb ipip ip_gre sit ip6_tunnel "
           "ip6_gre fou vxlan geneve l2tp_eth l2tp_netlink macsec macvlan ipvlan bonding mpls_router mpls_iptunnel esp4 xfrm_user xfrm_interface ip_vti gcm seqiv batman_adv 8021q")
ROUTED = """
cable c0 r0
cable r1 s0
c: ip addr add 10.1.1.1/24 dev c0; ip -6 addr add fd01::1/64 dev c0 nodad; ip route add default via 10.1.1.2; ip -6 route add default via fd01::2
r: ip addr add 10.1.1.2/24 dev r0; ip -6 addr add fd01::2/64 dev r0 nodad; ip addr add 10.1.2.2/24 dev r1; ip -6 addr add fd02::2/64 dev r1 nodad
s: ip addr add 10.1.2.1/24 dev s0; ip -6 addr add fd02::1/64 dev s0 nodad; ip route add default via 10.1.2.2; ip -6 route add default via fd02::2
r: sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0
"""
DIRECT = """
cable c0 s0
c: ip addr add 10.1.1.1/24 dev c0
s: ip addr add 10.1.1.2/24 dev s0
"""
# Two cables to a host that has no addresses there.
BETWEEN = """
cable c0 r0
cable r1 s0
c: ip addr add 10.1.1.1/24 dev c0
s: ip addr add 10.1.1.2/24 dev s0
"""
TWICE = "cable c0 s0\ncable c1 s1\n"
# Of a device that is called t0 at both ends.
INNER = """
c: ip addr add 10.9.0.1/24 dev t0; ip link set t0 up
s: ip addr add 10.9.0.2/24 dev t0; ip link set t0 up
"""


def tunnel(kind: str, near=("10.1.1.1", "10.1.2.1"), before="") -> tuple[str, str]:
    ends = (("c", *near), ("s", *near[::-1]))
    return ROUTED + "".join(f"{ns}: {before.format(near=a, far=b)}\n{ns}: ip link add t0 {kind.format(near=a, far=b)}\n" for ns, a, b in ends) + INNER, "10.9.0.2"


def both(words: str) -> str:
    """On what comes to the host between by either cable; `{dev}`, `{other}`."""
    return "".join(f"r: {words.format(dev=dev, other=other)}\n" for dev, other in (("r0", "r1"), ("r1", "r0")))


def slaves(words: str) -> tuple[str, str]:
    join = "".join(f"{ns}: ip link set {ns}{i} down; ip link set {ns}{i} master t0; ip link set {ns}{i} up\n" for ns in "cs" for i in (0, 1))
    return TWICE + f"c: ip link add t0 {words}\ns: ip link add t0 {words}\n" + join + INNER + "c: sleep 0.5\n", "10.9.0.2"


def above(words: str) -> tuple[str, str]:
    """Two devices above one of a third host."""
    made = "".join(f"h: ip link add t{ns} link h0 {words}; ip link set t{ns} netns {{{ns}}}\n{ns}: ip link set t{ns} name t0\n" for ns in "cs")
    return "cable h0 x0\n" + made + INNER, "10.9.0.2"


def ipsec(more: str, tail: str, to: str) -> tuple[str, str]:
    key = "aead 'rfc4106(gcm(aes))' 0x" + "11" * 20 + " 128"
    ends = ["10.1.1.1", "10.1.2.1"]
    lines = ""
    for ns, (me, it), (out, back) in (("c", ends, ("0x100", "0x200")), ("s", ends[::-1], ("0x200", "0x100"))):
        for src, dst, spi in ((me, it, out), (it, me, back)):
            lines += f"{ns}: ip xfrm state add src {src} dst {dst} proto esp spi {spi} mode tunnel {key} {more}\n"
        lines += tail.format(ns=ns, near=me, far=it)
    return ROUTED + lines + INNER, to


# By name: what is made, and the address that is asked. `{udp}`, `{tcp}`: the reader's ports.
TUNNELS = {
    "IPIP": tunnel("type ipip local {near} remote {far}"), "GRE": tunnel("type gre local {near} remote {far}"), "GRE, key": tunnel("type gre local {near} remote {far} key 9 csum seq"),
    "GRETAP": tunnel("type gretap local {near} remote {far}"), "ERSPAN": tunnel("type erspan local {near} remote {far} seq key 5 erspan_ver 1 erspan 100"),
    "IPv6 in IPv6": tunnel("type ip6tnl mode any local {near} remote {far}", ("fd01::1", "fd02::1")), "GRE over IPv6": tunnel("type ip6gre local {near} remote {far}", ("fd01::1", "fd02::1")),
    "FOU": tunnel("type ipip local {near} remote {far} encap fou encap-sport auto encap-dport 5555", before="ip fou add port 5555 ipproto 4"),
    "GUE": tunnel("type gre local {near} remote {far} encap gue encap-sport auto encap-dport 5556", before="ip fou add port 5556 gue"),
    "VXLAN": tunnel("type vxlan id 5 local {near} remote {far} dstport 4789"), "Geneve": tunnel("type geneve id 5 remote {far}"),
    "SRv6, in the host": (ROUTED + """
c: ip -6 addr add fd09::1/128 dev lo nodad; ip -6 route add fd09::2/128 encap seg6 mode inline segs fd02::1 dev c0 via fd01::2 src fd01::1
r: ip -6 route add fd09::2/128 via fd02::1
s: ip -6 addr add fd09::2/128 dev lo nodad
""" + "".join(f"{ns}: for d in all {devs}; do sysctl -qw net.ipv6.conf.$d.seg6_enabled=1; done\n" for ns, devs in (("c", "c0"), ("r", "r0 r1"), ("s", "s0 lo"))), "fd09::2"),
    "MPLS": (ROUTED + """
c: sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.c0.input=1; ip addr add 10.9.0.1/32 dev lo; ip route add 10.9.0.2/32 encap mpls 100 via inet 10.1.1.2 src 10.9.0.1; ip -M route add 201 dev lo
r: sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.r0.input=1 net.mpls.conf.r1.input=1; ip -M route add 100 as 200 via inet 10.1.2.1; ip -M route add 101 as 201 via inet 10.1.1.1
s: sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.s0.input=1; ip addr add 10.9.0.2/32 dev lo; ip -M route add 200 dev lo; ip route add 10.9.0.1/32 encap mpls 101 via inet 10.1.2.2 src 10.9.0.2
""", "10.9.0.2"),
    "an interface of IPsec": ipsec("if_id 7", "{ns}: for d in 'out tmpl src {near} dst {far}' 'in tmpl src {far} dst {near}'; do ip xfrm policy add dir $d proto esp mode tunnel if_id 7; done\n"
                                   "{ns}: ip link add t0 type xfrm dev {ns}0 if_id 7\n", "10.9.0.2"),
    "VTI": ipsec("", "{ns}: ip link add t0 type vti local {near} remote {far} key 9\n"
                     "{ns}: ip xfrm policy add dir out mark 9 tmpl src {near} dst {far} proto esp mode tunnel; ip xfrm policy add dir in mark 9 tmpl src {far} dst {near} proto esp mode tunnel\n", "10.9.0.2"),
}
DEVICES = {
    "a cable": (DIRECT, "10.1.1.2"), "a router": (ROUTED, "10.1.2.1"), "a bridge": (BETWEEN + "r: ip link add t0 type bridge; ip link set t0 up; ip link set r0 master t0; ip link set r1 master t0\n", "10.1.1.2"),
    "a VRF": (ROUTED + "r: ip link add t0 type vrf table 10; ip link set t0 up; ip link set r0 master t0; ip link set r1 master t0\n", "10.1.2.1"),
    "macvlan": above("type macvlan mode bridge"), "ipvlan": above("type ipvlan mode l2"), "ipvlan, routing": above("type ipvlan mode l3"), "ipvlan, with netfilter": above("type ipvlan mode l3s"),
    "bonding, in turns": slaves("type bond mode balance-rr miimon 100"), "bonding, one of two": slaves("type bond mode active-backup miimon 100"), "bonding, by address": slaves("type bond mode balance-xor miimon 100"),
    "VLAN in VLAN": (DIRECT + "".join(f"{ns}: ip link add link {ns}0 t1 type vlan proto 802.1ad id 10; ip link set t1 up; ip link add link t1 t0 type vlan id 20\n" for ns in "cs") + INNER, "10.9.0.2"),
    "MACsec": (DIRECT + "".join(f"{ns}: ip link add link {ns}0 t0 type macsec encrypt on; ip macsec add t0 tx sa 0 pn 1 on key 01 {mine}; ip macsec add t0 rx port 1 address 02:00:00:00:{ord(far):02x}:00; "
                                f"ip macsec add t0 rx port 1 address 02:00:00:00:{ord(far):02x}:00 sa 0 pn 1 on key 02 {its}\n" for ns, far, mine, its in (("c", "s", "01" * 16, "02" * 16), ("s", "c", "02" * 16, "01" * 16)))
               + INNER, "10.9.0.2"),
    "batman": ("cable c0 s0\n" + "".join(f"{ns}: ip link add t0 type batadv; ip link set {ns}0 mtu 1532; ip link set {ns}0 master t0\n" for ns in "cs") + INNER + "c: sleep 3\n", "10.9.0.2"),
    "an ifb": (DIRECT + "s: ip link add t0 type ifb; ip link set t0 up; tc qdisc add dev s0 clsact; tc filter add dev s0 ingress matchall action mirred egress redirect dev t0\n", "10.1.1.2"),
}
RULES = {
    "addresses translated": (ROUTED + """
r: nft 'table ip t { chain a { type nat hook prerouting priority dstnat; iifname r0 meta l4proto { tcp, udp } th dport { {udp}, {tcp} } dnat to 10.1.2.1; }; chain b { type nat hook postrouting priority srcnat; oifname r1 masquerade; }; }'
""", "10.1.1.2"),
    "a flow table": (ROUTED + """
r: nft 'table ip t { flowtable f { hook ingress priority 0; devices = { r0, r1 }; }; chain a { type filter hook forward priority 0; meta l4proto { tcp, udp } flow add @f; }; }'
""", "10.1.2.1"),
    "forwarded at ingress": (BETWEEN + "r: nft 'table netdev t { chain a { type filter hook ingress device r0 priority 0; fwd to r1; }; chain b { type filter hook ingress device r1 priority 0; fwd to r0; }; }'\n", "10.1.1.2"),
    "SYNPROXY": (ROUTED + """
r: sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0; nft 'table ip t { chain a { type filter hook prerouting priority raw; tcp dport {tcp} tcp flags syn notrack; }; chain b { type filter hook forward priority 0; tcp dport {tcp} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm; ct state invalid drop; }; }'
""", "10.1.2.1"),
    "IPVS, translated": (ROUTED + "".join(f"r: ipvsadm -A -{p} 10.1.1.2:{port} -s rr; ipvsadm -a -{p} 10.1.1.2:{port} -r 10.1.2.1:{port} -m\n" for p, port in (("t", "{tcp}"), ("u", "{udp}"))), "10.1.1.2"),
    "tc: redirected": (BETWEEN + both("tc qdisc add dev {dev} clsact") + both("tc filter add dev {dev} ingress matchall action mirred egress redirect dev {other}"), "10.1.1.2"),
    "tc: tracked": (BETWEEN + both("tc qdisc add dev {dev} clsact") + both("tc filter add dev {dev} ingress protocol ip prio 1 chain 0 flower ip_flags nofrag action ct zone 3 pipe action goto chain 1")
                    + both("tc filter add dev {dev} ingress protocol ip prio 1 chain 1 flower ct_state +trk action ct commit zone 3 pipe action mirred egress redirect dev {other}")
                    + both("tc filter add dev {dev} ingress protocol arp prio 2 chain 0 matchall action mirred egress redirect dev {other}"), "10.1.1.2"),
    "tc: rewritten": (ROUTED + "r: tc qdisc add dev r1 clsact; tc filter add dev r1 egress protocol ip matchall action pedit ex munge ip ttl set 33 pipe action csum ip\n", "10.1.2.1"),
    "a bridge with netfilter": (BETWEEN + "r: ip link add t0 type bridge; ip link set t0 up; ip link set r0 master t0; ip link set r1 master t0; sysctl -qw net.bridge.bridge-nf-call-iptables=1; "
                                "nft 'table ip t { chain a { type filter hook forward priority 0; counter; }; }'\n", "10.1.1.2"),
}
QUEUES = {q: (DIRECT + f"c: tc qdisc replace dev c0 root {q}\n", "10.1.1.2") for q in (
    "fq", "fq_codel", "fq_pie", "cake bandwidth 100mbit", "sfq", "sfb", "hhf", "codel", "pie", "prio", "pfifo_fast", "ets bands 4 strict 2", "choke limit 1000 bandwidth 100mbit", "tbf rate 100mbit burst 10k latency 50ms",
    "red limit 1000000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 100mbit")}
# What a kernel without the module says.
LACKS = ("Unknown device type", "not found", "No such file", "not supported", "is unknown", "No such process", "Operation not supported", "not available", "Could not process", "cannot stat", "Can't initialize")

SERVE = """
import socket, sys, threading
family, udp, tcp = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, int(sys.argv[2]), int(sys.argv[3])
u, t = socket.socket(family, socket.SOCK_DGRAM), socket.create_server(("", tcp), family=family)
u.bind(("", udp))
def stream():
    while True:
        c, _ = t.accept(); n = 0
        while n < 20000: n += len(c.recv(65536))
        c.sendall(b"x" * 1000); c.close()
threading.Thread(target=stream, daemon=True).start()
print("ready", flush=True)
while True:
    said, whose = u.recvfrom(2000)
    print("took", flush=True); u.sendto(said[:40], whose)
"""
ASK = f"""
import socket, sys
to, udp, tcp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
u, back = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM), 0
u.settimeout(2)
for n in range({COUNT}):
    u.sendto(b"%06d" % n + b"." * 94, (to, udp))
    try: u.recv(2000); back += 1
    except TimeoutError: pass
t = socket.create_connection((to, tcp), timeout=10); t.sendall(b"y" * 20000); n = 0
while n < 1000: n += len(t.recv(4096))
print(back)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Datapaths(unittest.TestCase):
    def made(self, ways: dict) -> dict:
        """By name: the namespaces, the address and the ports of each way that this kernel has."""
        self.kpat = os.path.abspath(play.kpat_path())
        hosts = {name: sorted(set(re.findall(r"(?:^|(?<= ))([crshx])(?=:|\d)", lines, re.M))) for name, (lines, _) in ways.items()}
        namespaces = iter(own(self, "dp", [f"{k}{x}" for k, name in enumerate(ways) for x in hosts[name]]))
        places, lacking = {}, []
        for k, (name, (lines, to)) in enumerate(ways.items()):
            ns, ports = {x: next(namespaces) for x in hosts[name]}, (7000 + k, 8000 + k)
            for each in ns.values():
                sh("ip", "-n", each, "link", "set", "lo", "up")
            try:
                for line in filter(None, lines.splitlines()):
                    self.carried_out(line, ns, {"{udp}": ports[0], "{tcp}": ports[1]} | {f"{{{x}}}": made for x, made in ns.items()})
            except AssertionError as e:
                if not any(word in str(e) for word in LACKS):
                    raise
                lacking.append(name)
                continue
            places[name] = ns, to, ports
        if lacking:
            print(f"datapaths: not in this kernel: {', '.join(lacking)}", flush=True)
        # Debian's has all of them.
        self.assertFalse(lacking and "KPAT_BY" in os.environ)
        return places

    def carried_out(self, line: str, ns: dict, values: dict) -> None:
        """`cable`, and the names of both its ends, which begin with their host's; or a host and a line for its shell."""
        if line.startswith("cable "):
            devices = line.split()[1:]
            a, b = ([dev, "netns", ns[dev[0]], "address", f"02:00:00:00:{ord(dev[0]):02x}:{dev[1:]}"] for dev in devices)
            sh("ip", "link", "add", *a, "type", "veth", "peer", "name", *b)
            for dev in devices:
                sh("ip", "-n", ns[dev[0]], "link", "set", dev, "up")
            return
        where, words = line.split(": ", 1)
        for word, value in values.items():
            words = words.replace(word, str(value))
        sh("ip", "netns", "exec", ns[where], "sh", "-ec", words)

    def judge(self, what: str, ways: dict, least: set) -> None:
        places = self.made(ways)
        self.assertLessEqual(least, places.keys())
        servers = {}
        for name, (ns, to, ports) in places.items():
            argv = ["ip", "netns", "exec", ns["s"], sys.executable, "-c", SERVE, to, *map(str, ports)]
            servers[name] = begun(self, f"serve-{ports[0]}", argv)
        ready, log = self.dir / "ready", self.dir / "x.kbl"
        record = begun(self, "record", [self.kpat, "record", "-p", "path,app", *probed(), "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        back = {name: int(sh("ip", "netns", "exec", ns["c"], sys.executable, "-c", ASK, to, *ports, seconds=cache.patience()).stdout) for name, (ns, to, ports) in places.items()}
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        store = integrated(self, log)
        packets = json.loads(sh(self.kpat, "packets", store, "udp", "--json", "--limit", "0", seconds=600).stdout)["packets"]
        of = collections.defaultdict(collections.Counter)
        for p in packets:
            of[p["dst_port"], True][p["verdict"]] += 1
            of[p["src_port"], False][p["verdict"]] += 1
        wrong = {}
        for name, (_, _, (port, _)) in places.items():
            wanted = play.text_of(servers[name].stdout).count("took"), back[name]
            found = tuple(of[port, there] for there in (True, False))
            if found != tuple({"delivered": n} for n in wanted) or wanted != (COUNT, COUNT):
                wrong[name] = wanted, tuple(map(dict, found))
        print(f"datapaths: {what}: {len(places)} ways, {sum(back.values())} datagrams there and back, wrong: {wrong or 'none'}", flush=True)
        self.assertEqual(wrong, {})

    def test_tunnels(self):
        self.judge("tunnels", TUNNELS, {"VXLAN", "SRv6, in the host"})

    def test_devices(self):
        self.judge("devices", DEVICES, {"a cable", "a router", "a bridge", "macvlan"})

    def test_rules(self):
        self.judge("rules", RULES, {"addresses translated", "forwarded at ingress", "SYNPROXY", "a bridge with netfilter"})

    def test_queues(self):
        self.judge("queues", QUEUES, {"pfifo_fast", "tbf rate 100mbit burst 10k latency 50ms"})


class DatapathsInside:
    """Each in a guest of its own: an emulated computer takes minutes to make all of them."""

    def there(self, test: str) -> None:
        said = inside(self, f"Datapaths.{test}", MODULES, self.detail)
        print("\n".join(line for line in said.splitlines() if "datapaths:" in line), flush=True)

    def test_tunnels(self):
        self.there("test_tunnels")

    def test_devices(self):
        self.there("test_devices")

    def test_rules(self):
        self.there("test_rules")

    def test_queues(self):
        self.there("test_queues")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Datapaths612(DatapathsInside, unittest.TestCase):
    series, detail = "6.12", "steps"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Datapaths612Points(DatapathsInside, unittest.TestCase):
    series, detail = "6.12", "tracepoint"
