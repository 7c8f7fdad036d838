#!/usr/bin/env python3
"""Are the phases of a handover to a network whose addresses come by DHCPv6 those that witnesses saw? As JSON: of each edge how far it is from its witness, in ms, and `wrong`.

    dhcpv6.py KPAT OUT

OUT is the folder of a run of lab/tools/handover.sh. Witnesses: of the messages tshark's reading of the air, deciphered by the network's key; of the open port tracefs' own text; of the address what `ip -ts monitor`
read, which is later than the kernel; of the first data the kernel's stamp of the flow's echo, and the frame of it, which goes to the new address.

What the station sends is on the air after the kernel's mark, what it receives before."""
import json
import re
import sys
from pathlib import Path

from answers import command, ns, trace
from datetime import datetime, timezone

MESSAGES = {1: "DHCP SOLICIT", 2: "DHCP ADVERTISE", 3: "DHCP REQUEST (v6)", 4: "DHCP CONFIRM (v6)", 5: "DHCP RENEW (v6)", 6: "DHCP REBIND (v6)", 7: "DHCP REPLY (v6)"}
# A received frame waits for a processor that others want, too; the clocks' relation has a bound of less than a millisecond.
LATE_MS, EARLY_MS = 100, 1
# As in cases.py.
STAMP_MS = 20


def heard(air: Path, shown: str, *fields: str) -> list[list[str]]:
    key = ("-o", "wlan.enable_decryption:TRUE", "-o", 'uat:80211_keys:"wpa-pwd","kpat-secret:kpat"')
    text = command("tshark", "-r", str(air), "-n", *key, "-Y", shown, "-T", "fields", "-E", "separator=|", *(x for f in ("frame.time_epoch", *fields) for x in ("-e", f)))
    return [line.split("|") for line in text.splitlines()]


def main() -> None:
    kpat, out = sys.argv[1], Path(sys.argv[2])
    store, wrong, apart = out / "run.kpat", [], {}
    ask = lambda *words: json.loads(command(kpat, "handover", str(store), "-i", "w2", *words, "--json"))
    lost = [h for h in ask()["handovers"] if h["kind"] == "lost-and-joined"]
    h = ask(str(lost[-1]["handover"]))
    offset = h["begin_wall_ns"] - h["begin_boot_ns"]
    begin, end, up = h["begin_boot_ns"], h["end_boot_ns"], h["link_up"]["at_boot_ns"]
    station, point = (json.loads(command(kpat, "sql", str(store), "select mac from device where name = 'w2' limit 1", "--json"))[0]["mac"], h["to"]["bssid"])

    def near(what: str, ms: float, least: float, most: float) -> None:
        apart[what] = round(ms, 3)
        if not least <= ms <= most:
            wrong.append(f"{what}: {ms:.3f} ms")

    # Multicast frames of the station are sent once more by its access point.
    shown = f"dhcpv6 && (wlan.ta == {station} || wlan.da == {station})"
    of_air = [(ns(at) - offset, MESSAGES[int(kind)], bool(address)) for at, kind, address in heard(out / "air.pcapng", shown, "dhcpv6.msgtype", "dhcpv6.iaaddr.ip")]
    of_air = [m for m in of_air if up <= m[0] <= end]
    marks = [(m["at_boot_ns"], m["words"]) for m in h["marks"] if m["table"] == "exchange" and m["words"].startswith("DHCP ") and up <= m["at_boot_ns"]]
    names = lambda all_: [m[1] for m in all_]
    if not of_air or [re.sub(r" fd07:.*", "", w) for w in names(marks)] != names(of_air):
        wrong.append(f"messages {names(marks)}, on the air {names(of_air)}")
    else:
        for i, ((at, name, _), (mark, _)) in enumerate(zip(of_air, marks)):
            received = name in ("DHCP ADVERTISE", "DHCP REPLY (v6)")
            near(f"message {i + 1}, {name}", (mark - at if received else at - mark) / 1e6, -EARLY_MS, LATE_MS)

    monitor = (out / "ip-monitor.log").read_text(errors="replace")
    read = [(int(datetime.fromisoformat(m[1]).replace(tzinfo=timezone.utc).timestamp() * 1e6) * 1000 - offset, bool(m[2]))
            for m in re.finditer(r"(?m)^\[(\S+?)\] \d+: w2    inet6 fd07:2::\S+ scope global (tentative )?", monitor)]
    tentative, valid = (next((at for at, not_yet in read if at >= up and not_yet == is_), None) for is_ in (True, False))
    port = [at for at in trace(out / "trace.txt", (out / "radio.txt").read_text().strip(), "w2").of.get("port authorised", []) if begin <= at <= end]
    echoes = [ns(v[4]) for v in (line.split() for line in (out / "voice.log").read_text().splitlines()) if v[1] == "echo"]
    first = next((at for at in echoes if at > up), None)
    frames = [(ns(at) - offset, to) for at, to in heard(out / "air.pcapng", f"udp.srcport == 5004 && wlan.da == {station} && wlan.ta == {point}", "ipv6.dst")]
    frame = next((f for f in frames if f[0] > up), (None, ""))
    if not (port and tentative and valid and first and frame[0]):
        wrong.append(f"a witness is silent: port {port}, tentative {tentative}, valid {valid}, echo {first}, frame {frame}")
    phases = [p for p in h["phases"] if p["from_boot_ns"] >= up]
    seen = [p["phase"] for p in phases]
    # Whether the next hop is asked for then is the kernel's.
    expected = ["client-start", "dhcp", "address", "duplicate-check"]
    if seen[:4] != expected or not set(seen[4:]) <= {"first-data", "neighbour"}:
        wrong.append(f"phases {seen}")
    elif not wrong:
        edge = {p["phase"]: p["from_boot_ns"] for p in reversed(phases)} | {"end": end}
        given = [at for at, name, address in of_air if name == "DHCP REPLY (v6)" and address]
        near("the client's start: the port was opened", (edge["client-start"] - port[-1]) / 1e6, -EARLY_MS, EARLY_MS)
        near("the exchange: its first message is heard", (of_air[0][0] - edge["dhcp"]) / 1e6, -EARLY_MS, LATE_MS)
        near("the address: the reply that has it was heard", (edge["address"] - given[-1]) / 1e6, -EARLY_MS, LATE_MS)
        near("duplicate detection: the tentative address is read of", (tentative - edge["duplicate-check"]) / 1e6, -EARLY_MS, 10 * LATE_MS)
        near("its end: the valid address is read of", (valid - phases[3]["to_boot_ns"]) / 1e6, -EARLY_MS, 10 * LATE_MS)
        near("the end: the kernel's stamp of the first echo", (first - end) / 1e6, -STAMP_MS, STAMP_MS)
        near("the end: the echo's frame was heard", (end - frame[0]) / 1e6, -EARLY_MS, LATE_MS)
        if not frame[1].startswith("fd07:2:"):
            wrong.append(f"the first echo is to {frame[1]}")
        # A reply that refuses the old address is no end of the exchange.
        refused = any(name == "DHCP CONFIRM (v6)" for _, name, _ in of_air)
        if refused != ("is none of this network" in (phases[1]["why"] or "")):
            wrong.append(f"the exchange: {phases[1]['why']}")
    print(json.dumps({"phases": [(p["phase"], round(p["ns"] / 1e6, 3)) for p in h["phases"]], "messages": names(of_air), "apart": apart, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
