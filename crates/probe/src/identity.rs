//! What of a log identifies a host or its peers, and what becomes of it with `--anonymise`: the one list.
//!
//! Every field of everything that a recording of applications writes is named here, without `..`: a new field does not
//! compile until somebody has decided. Kept are names of programs, interfaces and namespaces (but for link addresses in them), numbers (ports, ids, sizes,
//! times) and what the kernel is; replaced are addresses of networks and links, the host's name and its boot; left out is
//! what users typed (filter, arguments of the command line), because it can contain anything.

use crate::app::Addresses;
use kpat_model::meta::{Device, Function, Json, LeftOut, Meta, Task};
use kpat_model::{
    CardReading, Event, EventKind, Exchange, Mapping, ProgramRecord, SocketRecord, WifiEvent, WifiWhat,
};
use std::net::IpAddr;
use std::ops::Range;

/// The replacement for arguments that were left out.
pub const LEFT_OUT: &str = "(left out)";

/// What the recorder notes with words in it that somebody typed has one of these.
const TYPED: [&str; 2] = ["filter", "chosen: "];

/// Longest name of a thread (TASK_COMM_LEN of include/linux/sched.h, without its end).
const COMM_BYTES: usize = 15;
/// So many hexadecimal digits at the end of a cut name are taken for a part of an address.
const LEAST_DIGITS: usize = 3;

impl Addresses {
    /// A chunk of words, as it goes into the log.
    pub fn json(&self, j: Json) -> Json {
        if *self == Addresses::Plain {
            return j;
        }
        match j {
            Json::Meta(m) => Json::Meta(Box::new(self.meta(*m))),
            Json::Devices(all) => Json::Devices(all.into_iter().map(|d| self.device(d)).collect()),
            Json::Tasks(all) => {
                Json::Tasks(all.into_iter().map(|t| Task { comm: self.thread(t.comm), ..t }).collect())
            }
            // Times and counts; the kernel's symbols.
            Json::Anchor(_) | Json::Symbols(_) | Json::Summary(_) | Json::Schema(_) => j,
        }
    }

    fn meta(&self, m: Meta) -> Meta {
        let Meta {
            writer,
            hostname,
            kernel_release,
            kernel_version,
            arch,
            endian,
            boot_id,
            guest_boot_id,
            cpus,
            mechanism,
            passed_over,
            build,
            build_passed_over,
            profile,
            sources,
            detail,
            filter,
            sample,
            only,
            netns,
            command,
            ring_bytes_per_cpu,
            functions,
            left_out,
            hz,
            drop_reasons,
            pauses,
            started,
            part,
        } = m;
        Meta {
            hostname: self.word(&hostname),
            boot_id: self.word(&boot_id),
            guest_boot_id: if guest_boot_id.is_empty() { guest_boot_id } else { self.word(&guest_boot_id) },
            filter: if filter.is_empty() { filter } else { LEFT_OUT.into() },
            only: if only.is_empty() { only } else { vec![LEFT_OUT.into()] },
            command: command.iter().enumerate().map(|(i, w)| flag_only(i, w)).collect(),
            functions: functions.into_iter().map(place).collect(),
            left_out: left_out.into_iter().map(no_place).collect(),
            sample,
            writer,
            kernel_release,
            kernel_version,
            arch,
            endian,
            cpus,
            mechanism,
            passed_over,
            build,
            build_passed_over,
            profile,
            sources,
            detail,
            netns,
            ring_bytes_per_cpu,
            hz,
            drop_reasons,
            pauses,
            started,
            part,
        }
    }

    fn device(&self, d: Device) -> Device {
        let Device {
            netns,
            netns_since,
            netns_name,
            ifindex,
            name,
            link_type,
            mac,
            mtu,
            driver,
            phc,
            above,
            master,
        } = d;
        let (name, mac, netns_name) = (self.if_address(&name), self.word(&mac), self.namespace(&netns_name));
        Device {
            netns,
            netns_since,
            netns_name,
            ifindex,
            name,
            link_type,
            mac,
            mtu,
            driver,
            phc,
            above,
            master,
        }
    }

    /// Announcements of the kernel and notes of the recorder.
    pub fn event(&self, e: &Event) -> Event {
        if *self == Addresses::Plain {
            return e.clone();
        }
        let Event { kind, ctx, pid, at, timed, packet, netns, a, b, ref text } = *e;
        let text = match kind {
            // What was asked of the recorder: a filter may be among it, or whom it is to record.
            EventKind::Control if TYPED.iter().any(|t| text.contains(t)) => LEFT_OUT.into(),
            EventKind::Namespace => self.namespace(text),
            _ => self.words(text),
        };
        Event { kind, ctx, pid, at, timed, packet, netns, a, b, text }
    }

    /// What a program printed: its string may be a name or an address.
    pub fn program(&self, r: ProgramRecord) -> ProgramRecord {
        let ProgramRecord { at, pid, func, stage, faults, values, ref text } = r;
        ProgramRecord { at, pid, func, stage, faults, values, text: self.name(text) }
    }

    /// What a radio did: peers and networks have addresses, and networks names.
    pub fn wifi(&self, e: WifiEvent) -> WifiEvent {
        if *self == Addresses::Plain {
            return e;
        }
        // By its link address a network is found on maps: left out, whatever else is kept.
        let named = [WifiWhat::AssocStart, WifiWhat::TransitionSent, WifiWhat::TransitionReceived];
        let c = if named.contains(&e.what) { 0 } else { e.c };
        WifiEvent { address: None, c, text: self.word(&e.text), ..e }
    }

    /// A message by which addresses are found: who and when stays, not which addresses.
    pub fn exchange(&self, e: Exchange) -> Exchange {
        match self {
            Addresses::Plain => e,
            _ => Exchange { link: None, network: Vec::new(), subject: Vec::new(), ..e },
        }
    }

    /// What a process has mapped, or has compiled.
    pub fn mapping(&self, mut m: Mapping) -> Mapping {
        if *self != Addresses::Plain {
            m.name = without_folders(&m.name);
        }
        m
    }

    /// What a card's clock showed: the clock is called after its card.
    pub fn card_reading(&self, r: &CardReading) -> CardReading {
        let CardReading { at, netns, ifindex, card_ns, bound_ns, ref clock } = *r;
        CardReading { at, netns, ifindex, card_ns, bound_ns, clock: self.words(clock) }
    }

    pub(crate) fn socket(&self, r: SocketRecord) -> SocketRecord {
        let SocketRecord {
            at,
            cookie,
            cgroup,
            netns,
            version,
            protocol,
            state,
            pid,
            port,
            peer_port,
            addr,
            peer,
            privacy,
            congestion,
            uid,
            error,
            above,
        } = r;
        let (addr, peer, privacy) = match self {
            Addresses::Plain => (addr, peer, privacy),
            Addresses::Hashed(key) => (hashed(key, &addr), hashed(key, &peer), kpat_model::Privacy::Hashed),
            Addresses::LeftOut => ([0; 16], [0; 16], kpat_model::Privacy::LeftOut),
        };
        SocketRecord {
            at,
            cookie,
            cgroup,
            netns,
            version,
            protocol,
            state,
            pid,
            port,
            peer_port,
            addr,
            peer,
            privacy,
            congestion,
            uid,
            error,
            above,
        }
    }

    /// Names of interfaces in which a link address is (`enx001122334455`, as udev names some): not always the address that it has now.
    /// Its digits are replaced, in the same way wherever the name stands.
    fn device_name(&self, name: &str) -> String {
        match (self, digits_of_address(name)) {
            (Addresses::Plain, _) | (_, None) => name.to_owned(),
            (Addresses::LeftOut, Some(at)) => format!("{}-{}", &name[..at.start], &name[at.end..]),
            (Addresses::Hashed(key), Some(at)) => {
                let hash = hash(key, name[at.clone()].to_ascii_lowercase().as_bytes());
                let short: String = hash[..4].iter().map(|b| format!("{b:02x}")).collect();
                format!("{}{short}{}", &name[..at.start], &name[at.end..])
            }
        }
    }

    /// Of a namespace: a name, a file that was given, or a process in it, `pid 1234 (nginx)`; with ` or ` between two.
    fn namespace(&self, name: &str) -> String {
        if *self == Addresses::Plain {
            return name.to_owned();
        }
        let file = name.starts_with('/') || name.contains(" or /");
        let name = if file { without_folders(name) } else { name.to_owned() };
        let one = |n: &str| match n.strip_prefix("pid ").and_then(|n| n.strip_suffix(')')?.split_once(" (")) {
            Some((pid, comm)) => format!("pid {pid} ({})", self.thread(comm.to_owned())),
            None => self.if_address(n),
        };
        name.split(" or ").map(one).collect::<Vec<_>>().join(" or ")
    }

    /// Of a host or a network, which may be called by its address: that is the same as of a socket.
    fn name(&self, text: &str) -> String {
        let (front, zone) = text.split_once('%').unwrap_or((text, ""));
        match front.parse::<IpAddr>() {
            Ok(_) if *self == Addresses::Plain => text.to_owned(),
            Ok(ip) if zone.is_empty() => self.shown(&as_of_socket(ip)),
            Ok(ip) => format!("{}%{}", self.shown(&as_of_socket(ip)), self.if_address(zone)),
            Err(_) => self.word(text),
        }
    }

    /// The name of a thread.
    pub(crate) fn thread(&self, comm: String) -> String {
        if *self == Addresses::Plain { comm } else { without_address(comm) }
    }

    /// Text in which addresses stand as words of their own, or before the `/` of a prefix.
    fn words(&self, text: &str) -> String {
        text.split(' ').map(|w| self.if_address(w)).collect::<Vec<_>>().join(" ")
    }

    fn if_address(&self, word: &str) -> String {
        let (front, rest) = word.split_once('/').unwrap_or((word, ""));
        let with_rest = |front: String| if rest.is_empty() { front } else { format!("{front}/{rest}") };
        if let Ok(ip) = front.parse::<IpAddr>() {
            return with_rest(self.shown(&as_of_socket(ip)));
        }
        if is_link_address(front) { with_rest(self.word(front)) } else { self.device_name(word) }
    }

    fn word(&self, text: &str) -> String {
        match self {
            Addresses::Plain => text.to_owned(),
            _ if text.is_empty() => String::new(),
            Addresses::LeftOut => "-".into(),
            Addresses::Hashed(key) => name_of(hash(key, text.as_bytes())),
        }
    }

    /// As text; empty where addresses are left out.
    pub(crate) fn address(&self, ip: IpAddr) -> String {
        match self {
            Addresses::Plain => ip.to_string(),
            Addresses::Hashed(_) => self.shown(&as_of_socket(ip)),
            Addresses::LeftOut => String::new(),
        }
    }

    fn shown(&self, address: &[u8; 16]) -> String {
        match self {
            Addresses::Hashed(key) => name_of(hashed(key, address)),
            _ => "-".into(),
        }
    }
}

/// As a socket has it, so that the same address is the same hash.
fn as_of_socket(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip.to_canonical() {
        IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}

/// As `integrate` writes the address of a socket.
fn name_of(hash: [u8; 16]) -> String {
    format!("h:{:032x}", u128::from_be_bytes(hash))
}

/// SipHash-2-4 with 128 bits of result.
fn hash(key: &[u8; 16], bytes: &[u8]) -> [u8; 16] {
    use siphasher::sip128::{Hasher128, SipHasher24};
    use std::hash::Hasher;
    let mut h = SipHasher24::new_with_key(key);
    h.write(bytes);
    h.finish128().as_bytes()
}

/// "Any address" (all zero) stays what it is.
fn hashed(key: &[u8; 16], address: &[u8; 16]) -> [u8; 16] {
    if *address == [0; 16] { *address } else { hash(key, address) }
}

/// Two hexadecimal digits, a colon, two more: an Ethernet address, or a longer one.
fn is_link_address(word: &str) -> bool {
    word.len() > 5 && word.split(':').all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Where in a name the twelve digits of a link address are: behind a letter that is no such digit, so that a number is none.
fn digits_of_address(name: &str) -> Option<Range<usize>> {
    let bytes = name.as_bytes();
    let is_digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_hexdigit);
    let from = |i: usize| bytes[i - 1].is_ascii_alphabetic() && !is_digit(i - 1);
    let whole = |i: usize| (i..i + 12).all(is_digit) && !is_digit(i + 12);
    (1..bytes.len()).find(|&i| from(i) && whole(i)).map(|i| i..i + 12)
}

/// A kernel thread may be called after the device it works for, in whose name a link address is, and is cut
/// (`napi/enx00112233`): what is left of the address is no name that could be replaced as the device's, and is left out.
pub(crate) fn without_address(comm: String) -> String {
    let cut = || {
        let from = comm.rfind(|c: char| !c.is_ascii_hexdigit())? + 1;
        let named = comm.as_bytes()[from - 1].is_ascii_alphabetic();
        (comm.len() == COMM_BYTES && named && comm.len() - from >= LEAST_DIGITS).then_some(from..comm.len())
    };
    match digits_of_address(&comm).or_else(cut) {
        Some(at) => format!("{}-{}", &comm[..at.start], &comm[at.end..]),
        None => comm,
    }
}

/// Of a path in a text its last part, as the folders may be called after somebody. What a compiler calls a function may have one behind the name
/// (`JS:*answer /home/me/app.js:3:1`); a path may have spaces.
fn without_folders(text: &str) -> String {
    let Some((first, last)) = text.find('/').zip(text.rfind('/')) else { return text.to_owned() };
    let word = text[..first].rfind([' ', ':']).map_or(0, |at| at + 1);
    format!("{}{}", &text[..word], &text[last + 1..])
}

/// A place in a program: its row of the table names the file, too, if somebody wrote it.
fn place(f: Function) -> Function {
    if f.kind != "program" {
        return f;
    }
    let Function { id, name, module, kind, addr, layer, via, mechanism, entry_only } = f;
    let mut words: Vec<String> = via.split(' ').map(str::to_owned).collect();
    if let Some(binary) = words.get_mut(1) {
        *binary = without_folders(binary);
    }
    let (module, via) = (without_folders(&module), words.join(" "));
    Function { id, name, module, kind, addr, layer, via, mechanism, entry_only }
}

/// What could not be recorded: of a program a file and the place in it.
fn no_place(l: LeftOut) -> LeftOut {
    let LeftOut { name, reason } = l;
    let name = match name.rsplit_once(' ') {
        Some((file, place)) if file.contains('/') => format!("{} {place}", without_folders(file)),
        _ => name,
    };
    LeftOut { name, reason }
}

/// Which options were given, without their values; the first two arguments are the program and its command.
fn flag_only(i: usize, word: &str) -> String {
    match word {
        _ if i == 0 => word.rsplit('/').next().unwrap_or_default().to_owned(),
        "record" if i == 1 => word.to_owned(),
        w if w.starts_with("--") => w.split('=').next().unwrap_or_default().to_owned(),
        // A value may follow a short option without a space: `-fhost`.
        w if w.starts_with('-') => w.chars().take(2).collect(),
        _ => "…".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, Context, PacketId, Privacy, Timed};

    fn event(kind: EventKind, text: &str) -> Event {
        let (ctx, packet) = (Context::Unknown, PacketId::NONE);
        let timed = Timed::Recorder;
        Event { kind, ctx, pid: 0, at: BootNs(0), timed, packet, netns: 0, a: 0, b: 0, text: text.into() }
    }

    #[test]
    fn hashed_addresses_stay_equal_and_say_nothing_else() {
        let mut a = SocketRecord { version: 4, port: 1, ..Default::default() };
        a.addr[..4].copy_from_slice(&[10, 0, 0, 1]);
        a.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
        let mine = Addresses::Hashed([1; 16]);
        let (x, y) = (mine.socket(a), mine.socket(SocketRecord { port: 3, ..a }));
        assert_eq!((x.addr, x.privacy), (y.addr, Privacy::Hashed));
        let other = Addresses::Hashed([2; 16]).socket(a);
        assert!(x.addr != a.addr && x.addr != other.addr && x.addr != x.peer);
        let none = Addresses::LeftOut.socket(a);
        assert_eq!((none.addr, none.peer, none.port), ([0; 16], [0; 16], 1));
        // An announcement of the same address has the same hash, and so has what a program calls by it.
        let peer = format!("h:{:032x}", u128::from_be_bytes(x.peer));
        let text = mine.event(&event(EventKind::Neighbour, "10.0.0.2 dev x REACHABLE")).text;
        assert_eq!(text, format!("{peer} dev x REACHABLE"));
        for (asked, shown) in [
            ("10.0.0.2", peer.clone()),
            ("::ffff:10.0.0.2", peer),
            ("fe80::1%eth0", format!("{}%eth0", mine.name("fe80::1"))),
            ("", String::new()),
        ] {
            assert_eq!(mine.name(asked), shown);
            assert_eq!(Addresses::Plain.name(asked), asked);
        }
        assert!(mine.name("a.example").starts_with("h:") && mine.name("10.0.0.2x") != mine.name("10.0.0.2"));
        assert_eq!(Addresses::LeftOut.name("fe80::1%enx001122aabbcc"), "-%enx-");
    }

    /// A file that was given, the process in it, and a name out of an address.
    #[test]
    fn a_namespace_names_no_folder_and_no_address() {
        for (name, shown) in [
            ("/run/user/1000/netns/alice", "alice"),
            ("web or /home/alice smith/ns", "web or ns"),
            ("/home/alice/ns or pid 7 (nginx)", "ns or pid 7 (nginx)"),
            ("pid 7 (enx001122aabbcc) or vpn-enx001122aabbcc", "pid 7 (enx-) or vpn-enx-"),
            ("pid 7 (a/b) or pid 8 ((sd-pam))", "pid 7 (a/b) or pid 8 ((sd-pam))"),
            ("10.0.0.1", "-"),
            ("link-netnsid 3", "link-netnsid 3"),
            ("cni-1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809", "cni-1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809"),
            ("", ""),
        ] {
            let device = Device { netns_name: name.into(), ..Device::default() };
            assert_eq!(Addresses::LeftOut.device(device).netns_name, shown);
            assert_eq!(Addresses::LeftOut.event(&event(EventKind::Namespace, name)).text, shown);
            assert_eq!(Addresses::Plain.event(&event(EventKind::Namespace, name)).text, name);
        }
    }

    #[test]
    fn no_address_stays_in_an_announcement() {
        let texts = [
            (EventKind::Neighbour, "10.77.0.2 lladdr 6a:1f:36:70:e4:8e dev sv0 REACHABLE"),
            (EventKind::Neighbour, "fe80::1 lladdr 6a:1f:36:70:e4:8e dev sv0 STALE"),
            (EventKind::Neighbour, "6a:1f:36:70:e4:8e dev sv0 fdb NOARP"),
            (EventKind::Address, "10.77.9.9/24 dev sv0 peer 10.77.9.8 tentative"),
            (EventKind::Route, "10.88.0.0/16 via 10.77.0.2 dev sv0 table local src 10.77.9.9 metric 1"),
            (EventKind::Route, "2001:db8::/64 nexthop via fe80::2 dev sv0 weight 1"),
            (EventKind::Link, "sv0 up mtu 1500 address 6a:1f:36:70:e4:8e"),
            (EventKind::Control, "filter host 10.77.0.2"),
            (EventKind::Control, "chosen: comm=10.77.0.2"),
        ];
        for hide in [Addresses::Hashed([7; 16]), Addresses::LeftOut] {
            for (kind, text) in texts {
                let out = hide.event(&event(kind, text)).text;
                for part in ["10.", "fe80", "2001:", "6a:1f", "e4:8e"] {
                    assert!(!out.contains(part) || out.contains("h:"), "{out}");
                    assert!(
                        !out.split([' ', '/']).any(|w| !w.starts_with("h:") && w.contains(part)),
                        "{out}"
                    );
                }
            }
            let route = hide.event(&event(texts[4].0, texts[4].1)).text;
            assert!(route.contains("/16 via ") && route.ends_with("metric 1"), "{route}");
        }
    }

    /// Also where the device has another address than it is named by, and wherever the name stands.
    #[test]
    fn names_made_of_addresses_are_addresses() {
        let d = |name: &str, mac: &str| Device { name: name.into(), mac: mac.into(), ..Device::default() };
        let out = Addresses::LeftOut.device(d("enx001122aabbcc", "00:11:22:aa:bb:cc"));
        assert_eq!((out.name.as_str(), out.mac.as_str()), ("enx-", "-"));
        for hide in [Addresses::LeftOut, Addresses::Hashed([7; 16])] {
            let named = hide.device(d("enx001122aabbcc", "02:00:00:00:00:01")).name;
            assert!(named.starts_with("enx") && !named.contains("1122"), "{named}");
            assert_eq!(hide.device(d("enx001122AABBCC.7", "")).name, format!("{named}.7"));
            let text = hide.event(&event(EventKind::Link, "enx001122aabbcc up carrier (before: down)")).text;
            assert_eq!(text, format!("{named} up carrier (before: down)"));
            let text = hide.event(&event(EventKind::Route, "10.0.0.0/8 dev enx001122aabbcc metric 7")).text;
            assert!(text.ends_with(&format!("/8 dev {named} metric 7")), "{text}");
            for plain in ["eth0", "br-1a2b3c4d5e6f", "vethf00ba12", "x0011223344556", "x00112233445", "é", ""]
            {
                assert_eq!(hide.device(d(plain, "")).name, plain);
            }
            let text = hide.event(&event(EventKind::Link, "eth0 after 123456789012 ns")).text;
            assert_eq!(text, "eth0 after 123456789012 ns");
        }
        let two =
            ["enx001122aabbcc", "enx001122aabbcd"].map(|n| Addresses::Hashed([7; 16]).device(d(n, "")).name);
        assert_ne!(two[0], two[1]);
    }

    #[test]
    fn a_thread_that_is_named_by_a_device_tells_no_address() {
        let told = |comm: &str| match Addresses::LeftOut
            .json(Json::Tasks(vec![Task { comm: comm.into(), ..Task::default() }]))
        {
            Json::Tasks(all) => all[0].comm.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told("napi/enx0011223"), "napi/enx-");
        assert_eq!(told("irq/128-wlx00c0"), "irq/128-wlx-");
        assert_eq!(told("enx001122aabbcc"), "enx-", "a program of this name");
        for name in [
            "napi/eth0-8193",
            "kworker/u16:3-e",
            "systemd-network",
            "ksoftirqd/0",
            "irq/128-eth0",
            "nginx",
            "",
        ] {
            assert_eq!(told(name), name);
        }
    }

    fn mapping() -> Mapping {
        let (at, what) = (BootNs(1), kpat_model::MappingKind::File);
        Mapping {
            at,
            process: 1,
            what,
            start: 0,
            length: 1,
            offset: 0,
            name: String::new(),
            build_id: Vec::new(),
        }
    }

    /// A program, its library, and what it compiled lie in somebody's folder.
    #[test]
    fn no_folder_stays() {
        for (name, shown) in [
            ("/home/alice/lib/libssl.so.3", "libssl.so.3"),
            ("/home/alice smith/a (deleted)", "a (deleted)"),
            ("JS:*answer /home/alice smith/app.js:3:1", "JS:*answer app.js:3:1"),
            ("JS:~go file:///home/alice/app.mjs:3:1", "JS:~go file:app.mjs:3:1"),
            ("py::answer:/home/alice/app.py", "py::answer:app.py"),
            ("JS:*answer [eval]:1:2", "JS:*answer [eval]:1:2"),
            ("[heap]", "[heap]"),
        ] {
            let m = Mapping { name: name.into(), ..mapping() };
            assert_eq!(Addresses::LeftOut.mapping(m.clone()).name, shown);
            assert_eq!(Addresses::Plain.mapping(m).name, name);
        }
        let place = Function {
            name: "libssl.so.3:SSL_read".into(),
            module: "/home/alice/lib/libssl.so.3".into(),
            kind: "program".into(),
            via: "tls /home/alice/lib/libssl.so* SSL_read span - TLS reads a/b".into(),
            ..Function::default()
        };
        let kernel = Function { kind: "function".into(), via: "arg 1 -> a/b".into(), ..Function::default() };
        let left_out = ["/home/alice/lib/libssl.so.3 SSL_peek", "libc.so.6 x", "frames of tcp/x"]
            .map(|name| LeftOut { name: name.into(), reason: "no".into() });
        let (functions, left_out) = (vec![place, kernel.clone()], left_out.to_vec());
        let meta = Meta { functions, left_out, ..Meta::default() };
        let Json::Meta(out) = Addresses::LeftOut.json(Json::Meta(Box::new(meta))) else { panic!() };
        let first = &out.functions[0];
        assert_eq!(first.module, "libssl.so.3");
        assert_eq!(first.via, "tls libssl.so* SSL_read span - TLS reads a/b");
        assert_eq!(out.functions[1], kernel);
        let names: Vec<&str> = out.left_out.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["libssl.so.3 SSL_peek", "libc.so.6 x", "frames of tcp/x"]);
    }

    #[test]
    fn of_the_command_line_the_options_stay() {
        let words =
            ["/usr/bin/kpat", "record", "-p", "app", "-fhost 10.0.0.1", "--filter=host x", "10.0.0.1"];
        let shown: Vec<String> = words.iter().enumerate().map(|(i, w)| flag_only(i, w)).collect();
        assert_eq!(shown, ["kpat", "record", "-p", "…", "-f", "--filter", "…"]);
    }
}
