"""A guest's packets recorded from its host with nothing installed in the guest, and joined with what the host has of them.

The guest is one of Debian's kernels with busybox, a program that sends numbered datagrams, and its drivers; it has a virtio card at a tap
in a network namespace of this test's own. Truth is the capture of the tap as tshark reads it, the functions that the guest's own ftrace saw, and
what the programs counted.
"""
import json
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

from kpatlab import emulator, initramfs, kernel

from .emulated import OnConsole
from .place import kpat_for_guests

ROOT = Path(__file__).resolve().parent.parent.parent
GUEST, HOST, PORT = "10.77.0.2", "10.77.0.1", 9000
INIT = b"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t tracefs t /sys/kernel/tracing
while read m; do [ -n "$m" ] && insmod /m/$m.ko; done < /mods
ip addr add 10.77.0.2/24 dev eth0; ip link set lo up; ip link set eth0 up
echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6
cat /proc/sys/kernel/random/boot_id > /boot_id
echo "talker" "ready"
while read line; do eval "$line"; echo "end" "of" "command"; done
"""
MODULES = ["?virtio_pci", "?virtio_net", "8021q", "ipip"]


class Talker(OnConsole):
    """A guest at a tap in a namespace, a shell on its console."""

    READY, PATIENCE = "talker ready", 150

    def __init__(self, series: str, smp: int = 1, more: str = ""):
        super().__init__(series)
        self.netns = f"kpat-talk-{os.getpid()}"
        try:
            self.start(smp, more)
        except BaseException:
            self.close()
            raise

    def start(self, smp: int, more: str) -> None:
        d = self.path
        subprocess.run(["gcc", "-O1", "-static", "-o", d / "talker", ROOT / "lab/guest/talker.c"], check=True, timeout=60)
        modules = initramfs.Modules(kernel.Kernel(self.series, "image").tree).load_order(MODULES)
        files = initramfs.Archive()
        files.file("bin/talker", (d / "talker").read_bytes(), 0o755)
        for name, code in initramfs.Modules(kernel.Kernel(self.series, "image").tree).load_order(["dummy"]).items():
            files.file(f"{name}.ko", code)
        (d / "initrd").write_bytes(initramfs.build(modules, INIT, kernel.busybox().read_bytes(), files))
        for words in (f"netns add {self.netns}", f"-n {self.netns} link set lo up", f"-n {self.netns} tuntap add tap0 mode tap",
                      f"-n {self.netns} addr add {HOST}/24 dev tap0", f"-n {self.netns} link set tap0 up"):
            subprocess.run(["ip", *words.split()], check=True, timeout=20)
        card = ["-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,mac=52:54:00:00:77:02"]
        self.boot(["-no-reboot", "-cpu", emulator.CPU, "-smp", str(smp), *self.serial(), *card], d / "initrd", f"net.ifnames=0 tsc=reliable {more}", ("ip", "netns", "exec", self.netns))

    def ask(self, command: str, patience: float = 60) -> list[str]:
        self.send(command)
        # The console repeats what is typed.
        return [line for line in self.until(lambda line: line.endswith("end of command"), patience)[:-1] if not line.endswith(command)]

    def inside(self, *argv, **more):
        return subprocess.Popen(["ip", "netns", "exec", self.netns, *map(str, argv)], **more)

    def close(self):
        self.end()
        subprocess.run(["ip", "netns", "del", self.netns], stderr=subprocess.DEVNULL, timeout=20)
        super().close()


def tshark(capture: Path, *fields: str) -> list[list[str]]:
    argv = ["tshark", "-n", "-r", str(capture), "-T", "fields", *(x for f in fields for x in ("-e", f))]
    return [line.split("\t") for line in subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()]


def most_common(paths: list[tuple]) -> tuple:
    return max(set(paths), key=paths.count)


class GuestRecord(unittest.TestCase):
    """One kernel; the others and a host's log beside it with --full."""

    SERIES, SMP, MORE, DATAGRAMS = "6.12", 1, "", 100

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES, tap=True)
        cls.guest = Talker(cls.SERIES, cls.SMP, cls.MORE)

    @classmethod
    def tearDownClass(cls):
        cls.guest.close()

    def ask(self, *words) -> dict:
        r = subprocess.run([self.kpat, "--json", *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertIn(r.returncode, (0, 3), r.stderr)
        return json.loads(r.stdout)

    def both_ways(self) -> tuple[int, int]:
        """Numbered datagrams from the guest, and to it at the same time: how many were sent from and received in it."""
        send = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range({self.DATAGRAMS}):
    s.sendto(b"%08d" % n + b"x" * 24, ("{GUEST}", {PORT}))
    time.sleep(0.002)
"""
        # The listener prints when it listens.
        self.guest.ask(f"talker - {PORT} {self.DATAGRAMS} > /tmp/got &")
        self.guest.ask("while ! grep -q listening /tmp/got; do sleep 0.1; done")
        other = self.guest.inside("python3", "-c", send)
        printed = self.guest.ask(f"talker {HOST} {PORT} 0 {self.DATAGRAMS}; wait; cat /tmp/got", 120)
        self.assertEqual(0, other.wait(60))
        number = lambda word: int(next(line.split()[1] for line in printed if line.startswith(word)))
        return number("sent"), number("received")

    def record(self, log: Path, traffic, *options: str, which: str = f"udp port {PORT}"):
        """The log, the capture of the tap, and what the traffic returned."""
        wire = log.with_suffix(".pcap")
        sniffer = self.guest.inside("tcpdump", "-i", "tap0", "-w", wire, "-U", "--immediate-mode", "-Z", "root", which, stderr=subprocess.PIPE, text=True)
        self.assertIn("listening", sniffer.stderr.readline())
        p = subprocess.Popen([self.kpat, "--json", "guest", "record", self.guest.qmp, "-f", which, "-o", log, *options], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        words = []
        for line in p.stderr:
            words.append(line)
            if "recording:" in line:
                break
        self.assertTrue(words and "recording:" in words[-1], words)
        try:
            came = traffic()
            time.sleep(0.2)
        finally:
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=90)
            sniffer.send_signal(signal.SIGINT)
            sniffer.communicate(timeout=20)
        self.assertEqual(0, p.returncode, err)
        return json.loads(out), wire, came

    def paths(self, log: Path, frames: dict) -> dict[str, list[tuple]]:
        """The functions of each matched datagram in the order in which they were entered, by its direction."""
        ids = {f["packets"][0]["side"]: [] for f in frames.values()}
        for f in frames.values():
            ids[f["packets"][0]["side"]].append(f["packets"][0]["packet_id"])
        found = {}
        for way, packets in ids.items():
            all_of = self.ask("packet", ",".join(map(str, packets)), log)["packets"]
            found[way] = [tuple(c["function"] for c in sorted(p["calls"], key=lambda c: c["entry_boot_ns"])) for p in all_of]
        return found

    def test_every_datagram_of_the_tap_is_in_the_log_with_the_functions_that_ftrace_sees(self):
        log = self.guest.path / "g.kbl"
        done, wire, (sent, received) = self.record(log, self.both_ways)
        # Nothing lost: by the recorder and in the log.
        self.assertEqual([], done["losses"])
        seen = tshark(wire, "frame.number", "ip.src", "frame.time_epoch", "udp.length")
        self.assertEqual((sent, received), (self.DATAGRAMS, self.DATAGRAMS))
        self.assertEqual(sent + received, len(seen))
        integrated = self.guest.path / "g.kpat"
        report = self.ask("integrate", log, wire, "-o", integrated)
        self.assertEqual((len(seen), len(seen)), (report["frames"], report["matched_frames"]))
        frames = {f["number"]: f for f in self.ask("frames", integrated, "--limit", "0")["frames"]}
        packets = {p["packet_id"]: p for p in self.ask("packets", integrated, "--limit", "0")["packets"]}
        bound = done["clock"]["host_bound_ns"] + 1000
        for number, source, epoch, length in seen:
            [match] = frames[int(number)]["packets"]
            p = packets[match["packet_id"]]
            way, verdict = ("transmitted", "sent") if source == GUEST else ("received", "delivered")
            self.assertEqual((way, verdict, "talker", int(length) - 8 + 28), (match["side"], p["verdict"], p["process"], p["len_bytes"]), (number, p))
            # The tap's stamp is this host's clock: what is sent is in the guest before it, what is received after.
            first, stamp = p["first_wall_ns"], int(epoch.replace(".", "")[:19])
            self.assertGreater(bound, first - stamp if source == GUEST else stamp - first, (number, source))
        # The guest's own tracer sees the same functions in the same order.
        ours = {way: most_common(paths) for way, paths in self.paths(integrated, frames).items()}
        for way, path in ours.items():
            # What frees a packet frees others, too; a function is itself entered again by them.
            path = tuple(dict.fromkeys(f for f in path if f != "skb_release_data"))
            self.assertGreater(len(path), 4, path)
            theirs = self.traced(path)
            self.assertEqual(path, most_common(theirs), way)
        self.assertEqual(("tsc", 0), (done["clock"]["source"], done["clock"]["within_ns"]))

    def traced(self, functions: tuple) -> list[tuple]:
        """What ftrace in the guest has of these functions, each where it is first entered: from an entry of the first to the next. A busy guest handles
        several packets at once, function by function: together they have the order of one."""
        t = "/sys/kernel/tracing"
        self.guest.ask(f"echo '{' '.join(sorted(set(functions)))}' > {t}/set_ftrace_filter; echo function > {t}/current_tracer; echo > {t}/trace; echo 1 > {t}/tracing_on", 60)
        self.both_ways()
        lines = self.guest.ask(f"echo 0 > {t}/tracing_on; cat {t}/trace; echo nop > {t}/current_tracer", 120)
        found, paths = [m[1] for m in (re.search(r": ([\w.]+) <-", line) for line in lines) if m], []
        for name in found:
            if name == functions[0] and (not paths or len(paths[-1]) > 1):
                paths.append([])
            if paths and name not in paths[-1]:
                paths[-1].append(name)
        return [tuple(p) for p in paths]

    def test_a_module_that_goes_and_comes_again_has_no_probes_then(self):
        """What its functions did before is in the log, and that they are missing since, whether it is where it was or elsewhere."""
        load = "insmod /dummy.ko numdummies=1; ip addr add 10.88.0.1/24 dev dummy0; ip link set dummy0 up"
        send = lambda: self.assertIn("sent 50", self.guest.ask(f"talker 10.88.0.2 {PORT} 0 50"))
        address = lambda: self.guest.ask("grep -w dummy_xmit /proc/kallsyms")[0].split()[0]
        where = [self.guest.ask(load) and address()]

        def traffic():
            send()
            self.guest.ask("rmmod dummy")
            self.guest.ask(load)
            where.append(address())
            send()
        log = self.guest.path / "module.kbl"
        done, _, _ = self.record(log, traffic, "--detail", "full")
        self.guest.ask("rmmod dummy")
        self.assertEqual((["dummy"], [{"cause": "module-unloaded", "count": 1}]), (done["unloaded_modules"], done["losses"]))
        integrated = log.with_suffix(".kpat")
        self.ask("integrate", log, "-o", integrated)
        packets = self.ask("packet", "1-100", integrated)["packets"]
        self.assertEqual([("sent", n < 50) for n in range(100)], [(p["packet"]["verdict"], "dummy_xmit" in [c["function"] for c in p["calls"]]) for p in packets])
        [lost] = [x for x in self.ask("info", integrated)["losses"] if x["cause"] == "module-unloaded"]
        print(f"\n{self.SERIES}: dummy_xmit was at {where[0]}, is at {where[1]}; {lost}")

    def test_the_host_has_the_other_half_of_each_datagrams_way(self):
        host = self.guest.path / "host.kbl"
        p = subprocess.Popen([self.kpat, "record", "--netns", self.guest.netns, "-f", f"udp port {PORT}", "-o", host, "--ready-file", self.guest.path / "ready"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 60
            while not (self.guest.path / "ready").exists():
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
            log = self.guest.path / "two.kbl"
            _, wire, (sent, received) = self.record(log, self.both_ways)
        finally:
            p.send_signal(signal.SIGINT)
            _, err = p.communicate(timeout=60)
        self.assertEqual(0, p.returncode, err)
        both = self.guest.path / "both.kpat"
        report = self.ask("integrate", log, host, wire, "-o", both)
        ways = {(c["from"], c["to"]): c["packets"] for c in report["crossings"]}
        self.assertEqual({("two", "host"): sent, ("host", "two"): received}, ways)
        # One of each direction: the guest's functions, the wire, the host's points, in the order of causes.
        for device in ("two", "host"):
            whole = self.ask("packet", 1, both, "--device", device, "--follow")
            names = [p["device"] for p in whole["packets"]]
            self.assertEqual(2, len(names), names)
            self.assertEqual(1, len(whole["crossings"]))
            cross = whole["crossings"][0]
            self.assertGreaterEqual(cross["flight_ns"] + cross["flight_bound_ns"], 0, cross)
        # Without the capture, by the one clock that both logs have: the same packets, at the same times.
        alone = self.guest.path / "alone.kpat"
        report = self.ask("integrate", log, host, "-o", alone)
        self.assertEqual(({"all": sent + received, "crossed": sent + received, "unmatched": 0, "ambiguous": 0}, []), (report["received"], report["captures"]))
        [clock] = report["clocks"]
        self.assertEqual((0, None), (clock["offset_ns"], clock["capture"]))
        self.assertLess(clock["bound_ns"], 50_000_000)
        known = ("from_device", "from_packet_id", "to_device", "to_packet_id", "left_ns", "arrived_ns")
        crossings = lambda folder: sorted(tuple(row[k] for k in known) for row in self.crossings(folder))
        self.assertEqual(crossings(both), crossings(alone))
        whole = self.ask("packet", 1, alone, "--device", "two", "--follow")
        self.assertEqual({"two", "host"}, {p["device"] for p in whole["packets"]})
        # Both parts are on one axis, which begins where the packet was first.
        first, second = whole["packets"]
        self.assertEqual((0, second["packet"]["first_boot_ns"] - first["packet"]["first_boot_ns"]), (first["way_ns"], second["way_ns"]))
        [cross] = whole["crossings"]
        self.assertEqual((None, clock["bound_ns"]), (cross["number"], max(cross["flight_bound_ns"], clock["bound_ns"])), cross)
        self.assertGreaterEqual(cross["flight_ns"] + cross["flight_bound_ns"], 0, cross)

    def test_what_leaves_in_a_vlan_or_a_tunnel_is_one_packet_with_its_frame(self):
        tap = subprocess.run(["ip", "-j", "-n", self.guest.netns, "link", "show", "tap0"], capture_output=True, text=True, check=True, timeout=20)
        mac = json.loads(tap.stdout)[0]["address"]
        tunnel, tagged = f"ip tunnel add over mode ipip local {GUEST} remote {HOST}", "ip link add link eth0 name eth0.5 type vlan id 5"
        # Nobody answers for the tagged address.
        ways = (("vlan", "10.78.0", "eth0.5", tagged, f"arp -i eth0.5 -s 10.78.0.1 {mac}", f"udp port {PORT} or (vlan and udp port {PORT})"),
                ("ipip", "10.79.0", "over", tunnel, ":", f"udp port {PORT} or ip proto 4"))
        for name, net, dev, add, known, which in ways:
            self.guest.ask(f"{add}; ip addr add {net}.2/24 dev {dev}; ip link set {dev} up; {known}")
            log = self.guest.path / f"{name}.kbl"
            _, wire, printed = self.record(log, lambda: self.guest.ask(f"talker {net}.1 {PORT} 0 {self.DATAGRAMS}", 120), which=which)
            self.assertIn(f"sent {self.DATAGRAMS}", printed)
            integrated = log.with_suffix(".kpat")
            report = self.ask("integrate", log, wire, "-o", integrated)
            self.assertEqual((self.DATAGRAMS, self.DATAGRAMS), (report["frames"], report["matched_frames"]), name)
            packets = self.ask("packets", integrated, "--limit", "0")["packets"]
            self.assertEqual({(f"{net}.2", PORT, "sent", "eth0", 1)}, {tuple(p[k] for k in ("src_addr", "dst_port", "verdict", "out_interface", "frames")) for p in packets})
            self.assertEqual(self.DATAGRAMS, len(packets))

    def test_streams_of_both_families(self):
        subprocess.run(["ip", "-n", self.guest.netns, "addr", "replace", "fd77::1/64", "dev", "tap0", "nodad"], check=True, timeout=20)
        self.guest.ask("echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip addr add fd77::2/64 dev eth0")
        read = "import socket,sys; s=socket.create_server(({0!r},{1}),family=socket.AF_INET6 if ':' in {0!r} else socket.AF_INET); print('listening',flush=True); c,_=s.accept(); n=0\nwhile d:=c.recv(65536): n+=len(d)\nprint(n)"
        for port, host in ((9100, HOST), (9101, "fd77::1")):
            def traffic(host=host, port=port):
                p = self.guest.inside("python3", "-c", read.format(host, port), stdout=subprocess.PIPE, text=True)
                self.assertEqual("listening\n", p.stdout.readline())
                self.guest.ask(f"head -c 200000 /proc/kallsyms | nc {host} {port}", 60)
                return int(p.communicate(timeout=60)[0])
            log = self.guest.path / f"tcp{port}.kbl"
            done, wire, received = self.record(log, traffic, which=f"tcp port {port}")
            self.assertEqual(([], 200_000), (done["losses"], received))
            seen = tshark(wire, "frame.number", "tcp.seq_raw", "tcp.dstport", "tcp.len")
            integrated = log.with_suffix(".kpat")
            report = self.ask("integrate", log, wire, "-o", integrated)
            self.assertEqual((len(seen), len(seen)), (report["frames"], report["matched_frames"]), host)
            frames = {f["number"]: f for f in self.ask("frames", integrated, "--limit", "0")["frames"]}
            had = {}
            for row in self.ask("sql", integrated, "select distinct packet_id, tcp_seq, payload_bytes from footprint"):
                had.setdefault(row["packet_id"], []).append((row["tcp_seq"], row["payload_bytes"]))
            for number, seq, _, length in ((int(a), int(b), c, int(d)) for a, b, c, d in seen):
                # The frame's bytes are of its packet's; several frames may be one packet for segmentation.
                packets = [p["packet_id"] for p in frames[number]["packets"] if p.get("confidence_percent", 100) >= 60]
                inside = lambda s, n: (seq - s) % (1 << 32) + length <= n if length else (seq - s) % (1 << 32) <= n + 1
                self.assertTrue(all(any(inside(s, n or 0) for s, n in had[p]) for p in packets), (host, number, seq, packets))

    def crossings(self, folder) -> list[dict]:
        return self.ask("sql", folder, "select * from crossing")


class GuestRecord61(GuestRecord):
    SERIES, SMP, MORE, DATAGRAMS = "6.1", 2, "pti=on", 500


class GuestRecord72(GuestRecord):
    SERIES, SMP, MORE, DATAGRAMS = "7.2", 2, "pti=off", 500
