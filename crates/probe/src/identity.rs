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

    fn device(&self, mut d: Device) -> Device {
        // All are named, so that a new one is thought of.
        let Device {
            netns_name,
            name,
            mac,
            netns: _,
            netns_since: _,
            ifindex: _,
            link_type: _,
            mtu: _,
            driver: _,
            phc: _,
            above: _,
            master: _,
        } = &mut d;
        *netns_name = self.namespace(netns_name);
        *name = self.if_address(name);
        *mac = self.word(mac);
        d
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
            kernels,
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
            kernels,
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
mod tests;
