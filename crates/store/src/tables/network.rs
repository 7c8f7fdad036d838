//! Tables of what a device does to have a network.

use super::table;

table! { WIFI_EVENT, WifiEventRow, "wifi_event", 65536,
    "What a radio, its interface or a station of it did, from a recording with `--profile wifi`.",
    "`at_ns`. Source: kernel behaviour log (tracepoints of cfg80211 and mac80211).", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    event: i32, Dict, "code", "", "", "What happened, and what `a`, `b` and `c` are.";
    point: String, Dict, "", "", "", "The kernel's tracepoint, `group:name`.";
    netns: Option<i64>, Dict, "", "", "not known", "Inode of the interface's network namespace.";
    ifindex: Option<i32>, Dict, "", "", "the radio's, or not known", "Interface.";
    wiphy: Option<String>, Dict, "", "", "not known", "Radio.";
    address: Option<String>, Dict, "", "", "not in the event", "The peer's address, or the network's (BSSID).";
    frequency: Option<i32>, Dict, "MHz", "", "not in the event", "Channel.";
    a: i64, Delta, "", "", "", "Meaning by event.";
    b: i64, Delta, "", "", "", "Meaning by event.";
    c: i64, Delta, "", "", "", "Meaning by event.";
    text: String, Dict, "", "", "", "SSID, or what the event says.";
    cpu: i32, Dict, "", "", "", "CPU.";
    ctx: i32, Dict, "code", "", "", "As in `call`.";
    pid: Option<i32>, Dict, "", "", "an interrupt had cut in", "Thread that was current: on an emulated radio it may be the other end's.";
} }

table! { LINK_EVENT, LinkEventRow, "link_event", 65536,
    "Carriers, operational states and ports of bridges, from a recording with `--profile wifi`. Links, addresses, routes and neighbours as rtnetlink announces them are in `event`.",
    "`at_ns`. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    after_ns: Option<i64>, Delta, "ns", "boot", "`at_ns` is the moment itself", "It happened after this and not after `at_ns`, which is when it was read.";
    event: i32, Dict, "code", "", "", "What happened.";
    function: i32, Dict, "", "", "", "1: seen at the kernel's function; 0: rtnetlink's announcement, which comes later (of a carrier up to a second).";
    netns: Option<i64>, Dict, "", "", "not known", "Inode of the network namespace.";
    ifindex: i32, Dict, "", "", "", "Interface.";
    a: i64, Delta, "", "", "", "Meaning by event.";
    b: i64, Delta, "", "", "", "Meaning by event.";
    cpu: Option<i32>, Dict, "", "", "not known", "CPU.";
    pid: Option<i32>, Dict, "", "", "an interrupt had cut in, or not known", "Thread.";
} }

table! { EXCHANGE, ExchangeRow, "exchange", 65536,
    "Messages of DHCP, ARP, neighbour discovery and EAPOL as an interface sent or received them, from a recording with `--profile wifi`.",
    "`at_ns`. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When: sent, given to the device; received, given by it; EAPOL of the control port, when cfg80211 has it.";
    protocol: i32, Dict, "code", "", "", "Protocol, and what `message`, `id` and `subject` are.";
    message: i32, Dict, "", "", "", "Which message, by protocol.";
    sent: i32, Dict, "", "", "", "1: sent by the interface, 0: received.";
    netns: Option<i64>, Dict, "", "", "not known", "Inode of the network namespace.";
    ifindex: i32, Dict, "", "", "", "Interface.";
    id: i64, Delta, "", "", "", "By protocol.";
    mac_src: Option<String>, Dict, "", "", "no link header", "Link source address.";
    mac_dst: Option<String>, Dict, "", "", "no link header", "Link destination address.";
    source: Option<String>, Dict, "", "", "no network header", "Network source address (ARP: sender).";
    destination: Option<String>, Dict, "", "", "no network header", "Network destination address (ARP: target).";
    subject: Option<String>, Dict, "", "", "the message has none", "The address that it is about, by protocol.";
    len_bytes: i64, Delta, "bytes", "", "", "Length from the network header on.";
    cpu: i32, Dict, "", "", "", "CPU.";
    ctx: i32, Dict, "code", "", "", "As in `call`.";
    pid: Option<i32>, Dict, "", "", "an interrupt had cut in", "Thread.";
} }
