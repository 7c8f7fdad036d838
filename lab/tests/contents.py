"""What packets say (DNS, DHCP, ARP, ICMP codes, TCP's options), in a recording with a capture beside it: of each packet with a frame what
tshark says of that frame. The parsers themselves are compared in crates/capture/tests/contents.rs; here is the way into the tables."""
import os
import subprocess
import sys
import unittest

from kpatlab import cache, look, play
from tests.place import own, sh

FIELDS = ["frame.number", "_ws.col.Info", "dns.id", "dns.qry.name", "dhcp.id", "icmp.type", "icmp.code", "tcp.options.mss_val", "tcp.options.timestamp.tsval",
          "arp.opcode", "icmpv6.nd.ns.target_address"]
ASK = """
import socket, struct
for i, name in enumerate(["known.test", "unknown.test"], 1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    s.sendto(struct.pack("!6H", i, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", 1, 1), ("10.97.0.2", 53))
    s.recv(1500)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.97.0.2", 9))
s.send(b"nobody")
s.settimeout(10)
try: s.recv(1)
except ConnectionRefusedError: pass
socket.create_connection(("10.97.0.2", 53), 10).close()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Contents(unittest.TestCase):
    def test_a_packet_says_what_its_frame_says(self):
        client, server = own(self, "contents", "cs")
        sh("ip", "-n", client, "link", "add", "c0", "type", "veth", "peer", "name", "s0", "netns", server)
        for ns, dev, n in ((client, "c0", 1), (server, "s0", 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.97.0.{n}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
            sh("ip", "-n", ns, "link", "set", "lo", "up")

        def start(name: str, ready, *argv):
            p = play.Process(name, list(map(str, argv)), self.dir)
            self.stack.callback(p.stop)
            p.wait_ready(lambda: ready(p), cache.patience())
            return p

        start("dnsmasq", lambda p: "DHCP, IP range" in play.text_of(p.stderr), "ip", "netns", "exec", server, cache.tool("dnsmasq", "dnsmasq"), "--no-daemon", "--log-facility=-",
              "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts", "--interface=s0", "--bind-interfaces", "--no-ping",
              "--dhcp-authoritative", "--dhcp-range=10.97.0.100,10.97.0.150,600", "--local=/test/", "--host-record=known.test,10.9.9.9",
              f"--dhcp-leasefile={self.dir}/leases")
        pcap, kbl, out, ready = (self.dir / name for name in ("wire.pcap", "x.kbl", "x.kpat", "ready"))
        dump = start("dump", lambda p: "listening" in play.text_of(p.stderr), "ip", "netns", "exec", server, cache.tool("tcpdump", "tcpdump"), "-Z", "root", "-U",
                     "--immediate-mode", "-n", "-i", "s0", "-w", pcap)
        record = start("record", lambda _: ready.exists(), play.kpat_path(), "record", "--netns", client, "--netns", server, "-o", kbl, "--ready-file", ready, "--no-cost")
        inside = ["ip", "netns", "exec", client]
        sh(*inside, "busybox", "udhcpc", "-i", "c0", "-n", "-q", "-f", "-s", "/bin/true", "-r", "10.97.0.123")
        sh(*inside, sys.executable, "-c", ASK)
        sh(*inside, "ping", "-q", "-c", "2", "-i", "0.05", "10.97.0.2")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(*inside, "ping", "-q", "-c", "20", "-i", "0.02", "10.97.0.2")  # So that the capture has what was before.
        dump.stop()
        look.integrate(kbl, [pcap], out)
        log = look.Log(out)
        argv = ["tshark", "-n", "-r", str(pcap), "-T", "fields", "-E", "separator=/t", *(a for f in FIELDS for a in ("-e", f))]
        lines = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout.splitlines()
        truth = {int(f["frame.number"]): f for f in (dict(zip(FIELDS, line.split("\t"))) for line in lines)}
        packets = {p["packet_id"]: p for p in log.packets()}
        counts: dict[str, int] = {}
        for (_, number), matched in log.frames().items():
            t = truth[number]
            for p in (packets[m["packet_id"]] for m in matched if m["confidence_percent"] >= 60):
                kind, info, about = None, p["info"], f"frame {number}: {t['_ws.col.Info']}; {p['info']}"
                if t["dns.id"]:
                    kind = "dns"
                    self.assertIn(f" {t['dns.id']} A {t['dns.qry.name']}", info, about)
                    self.assertEqual("No such name" in t["_ws.col.Info"], "NXDOMAIN" in info, about)
                    self.assertTrue(p["message_of_frame"], about)
                elif t["dhcp.id"]:
                    kind = "dhcp"
                    self.assertTrue(info.startswith(f"DHCP {t['_ws.col.Info'].split()[1].lower()} {t['dhcp.id']} "), about)
                    self.assertTrue(p["message_of_frame"], about)
                elif t["icmp.type"] == "3":
                    kind = "icmp"
                    self.assertEqual((str(p["icmp_code"]), info), (t["icmp.code"], "unreachable: port"), about)
                elif t["arp.opcode"]:
                    kind = "arp"
                    self.assertEqual(info, t["_ws.col.Info"].replace("Who", "who").replace("Tell", "tell"), about)
                    self.assertFalse(p["message_of_frame"], about)
                elif t["tcp.options.mss_val"]:
                    kind = "syn"
                    self.assertIn(f" mss {t['tcp.options.mss_val']} ", info, about)
                    self.assertIn(f" TS {t['tcp.options.timestamp.tsval']} ", info, about)
                if kind:
                    counts[kind] = counts.get(kind, 0) + 1
        print(f"contents: packets compared with tshark: {counts}", file=sys.stderr, flush=True)
        for kind, least in {"dns": 4, "dhcp": 4, "icmp": 1, "arp": 2, "syn": 2}.items():
            self.assertGreaterEqual(counts.get(kind, 0), least, kind)
        # The filter language and the list of the page ask the same.
        asked = log.packets('message contains "nx" or message contains "unknown.test"')
        self.assertTrue(asked and all("unknown.test" in p["info"] for p in asked), asked)
        self.assertEqual({p["icmp_code"] for p in log.packets("icmp.type == 3 and icmp.code == 3")}, {3})
