//! The kinds of records of this version: what each is called, its columns, and how a record becomes a row of them and comes back.

mod accounts;
mod cards;
mod guest;
mod program;
mod samples;
mod threads;
mod wifi;

use crate::columns::{Column, Row, Type};
use kpat_model::*;

/// How a record of a kind is written.
pub enum Coding {
    /// By hand, since it is written for each call or packet: the page on the format has a section of that name.
    Own(&'static str),
    /// Column by column.
    Records(fn(&Row<'_>) -> Option<Record>),
    /// The same, in chunks of application records.
    Application(fn(&Row<'_>) -> Option<AppRecord>),
}

pub struct Kind {
    pub id: u16,
    pub name: &'static str,
    pub columns: &'static [Column],
    pub coding: Coding,
}

/// A record that is written column by column.
pub trait InColumns {
    /// Its place in [`KINDS`].
    const PLACE: usize;
    fn row(&self) -> Row<'_>;
}

/// The first kind that is written column by column; those before have a tag of their own.
pub const FIRST_DECLARED: u16 = 8;

macro_rules! columns {
    ($($name:literal $of:ident),* $(,)?) => { &[$(Column { name: $name, of: Type::$of },)*] };
}

const fn kind(id: u16, name: &'static str, columns: &'static [Column], coding: Coding) -> Kind {
    Kind { id, name, columns, coding }
}

/// By id, without a gap: a new one is added at the end.
pub static KINDS: [Kind; 34] = [
    kind(
        0,
        "point",
        columns!["at" Time, "function" Function, "length" Integer, "ends" Integer, "packet" Packet, "skb_tag" Integer, "task" Task, "put_off" Integer],
        Coding::Own("point"),
    ),
    kind(1, "member", columns!["entry" Time, "function" Function, "packet" Packet], Coding::Own("member")),
    kind(
        2,
        "footprint",
        columns![
            "at" Time, "packet" Packet, "skb_tag" Integer, "ifindex" Integer, "netns" Integer, "link_type" Integer,
            "length" Integer, "gso_size" Integer, "gso_segs" Integer, "protocol" Integer, "start_layer" Integer,
            "ip_proto" Integer, "header" Bytes,
        ],
        Coding::Own("footprint"),
    ),
    kind(
        3,
        "lineage",
        columns!["at" Time, "lineage" Integer, "parent" Packet, "child" Packet],
        Coding::Own("lineage"),
    ),
    kind(
        4,
        "place",
        columns!["at" Time, "packet" Packet, "skb_tag" Integer, "ifindex" Integer, "netns" Integer, "link_type" Integer],
        Coding::Own("place"),
    ),
    kind(
        5,
        "call",
        columns![
            "end" Time, "duration" Duration, "function" Function, "packet" Packet, "skb_tag" Integer, "task" Task,
            "flags" Integer,
        ],
        Coding::Own("call"),
    ),
    kind(
        6,
        "crossing",
        columns![
            "at" Time, "crossing" Integer, "socket" Socket, "size" Integer, "segments" Integer, "sequence" Integer, "task" Task,
        ],
        Coding::Own("crossing"),
    ),
    // After the time and the socket the values of `TcpRecord::values`, in that order.
    kind(7, "tcp-state", columns!["at" Time, "socket" Socket], Coding::Own("tcp-state")),
    kind(
        8,
        "event",
        columns![
            "at" Time, "task" Task, "event" Integer, "timed" Integer, "within" Duration, "packet" Packet, "netns" Integer,
            "a" Integer, "b" Integer, "text" Text,
        ],
        Coding::Records(event),
    ),
    kind(
        9,
        "process",
        columns!["at" Time, "pid" Integer, "tgid" Integer, "name" Text],
        Coding::Records(process),
    ),
    kind(
        10,
        "loss",
        columns!["to" Time, "from" Time, "cause" Integer, "cpu" Cpu, "count" Integer],
        Coding::Records(loss),
    ),
    kind(
        11,
        "pause",
        columns![
            "to" Time, "task" Task, "duration" Duration, "flags" Integer, "wait" Duration, "cpu_out" Cpu, "cpu_in" Cpu,
        ],
        Coding::Records(off_cpu),
    ),
    kind(
        12,
        "poll",
        columns!["at" Time, "packet" Packet, "since" OptionalDuration, "wait" OptionalDuration],
        Coding::Records(poll),
    ),
    kind(
        13,
        "poll-end",
        columns!["at" Time, "packet" Packet, "taken" Integer, "budget" Integer, "round" Integer],
        Coding::Records(poll_end),
    ),
    kind(
        14,
        "card-stamp",
        columns!["at" Time, "packet" Packet, "netns" Integer, "ifindex" Integer, "card" Integer],
        Coding::Records(cards::card_stamp),
    ),
    kind(
        15,
        "card-reading",
        columns!["at" Time, "netns" Integer, "ifindex" Integer, "card" Integer, "bound" Duration, "clock" Text],
        Coding::Records(cards::card_reading),
    ),
    kind(
        16,
        "socket",
        columns![
            "at" Time, "cookie" Integer, "cgroup" Integer, "netns" Integer, "version" Integer, "protocol" Integer,
            "state" Integer, "pid" Integer, "ports" Integer, "privacy" Integer, "owner" Integer, "error" Integer, "above" Integer, "address" Bytes,
            "peer" Bytes, "congestion" Text,
        ],
        Coding::Application(socket),
    ),
    kind(17, "gap", columns!["until" Time, "since" Time, "lost" Integer], Coding::Application(gap)),
    kind(
        18,
        "work",
        columns![
            "at" Time, "busy" Integer, "purpose" Integer, "victim" Integer, "socket" Integer, "took" Duration,
            "packets" Integer, "bytes" Integer,
        ],
        Coding::Records(accounts::work),
    ),
    kind(
        19,
        "socket-use",
        columns![
            "at" Time, "how" Integer, "socket" Integer, "process" Integer, "bytes" Integer, "times" Integer,
        ],
        Coding::Records(accounts::socket_use),
    ),
    kind(
        20,
        "cpu-time",
        columns![
            "at" Time, "opened" Time, "unplaced" Duration, "user" Duration, "system" Duration, "idle" Duration,
            "irq" Duration, "softirq" Duration, "steal" Duration,
        ],
        Coding::Records(accounts::cpu_time),
    ),
    kind(
        21,
        "sample",
        columns![
            "at" Time, "thread" Integer, "process" Integer, "busy" Integer, "purpose" Integer, "flags" Integer,
            "socket" Integer, "kernel" Stack, "user" Stack, "period" Duration,
        ],
        Coding::Records(samples::sample),
    ),
    kind(
        22,
        "stack",
        columns!["at" Time, "number" Stack, "process" Integer, "frames" Bytes],
        Coding::Records(samples::stack),
    ),
    kind(
        23,
        "mapping",
        columns![
            "at" Time, "process" Integer, "what" Integer, "start" Integer, "length" Integer, "offset" Integer, "name" Text,
            "build" Bytes,
        ],
        Coding::Records(samples::mapping),
    ),
    kind(
        24,
        "cpu-packets",
        columns!["at" Time, "opened" Time, "counted" Integer, "received" Integer],
        Coding::Records(accounts::cpu_packets),
    ),
    kind(
        25,
        "process-label",
        columns!["at" Time, "started" Time, "process" Integer, "uid" Integer, "cgroup" Integer, "path" Text, "name" Text, "user" Text],
        Coding::Records(accounts::process_label),
    ),
    kind(
        26,
        "program",
        columns![
            "at" Time, "task" Task, "place" Function, "stage" Integer, "faults" Integer, "v0" Integer, "v1" Integer, "v2" Integer,
            "v3" Integer, "text" Text,
        ],
        Coding::Records(program::program),
    ),
    kind(
        27,
        "wifi-event",
        columns![
            "at" Time, "task" Task, "point" Function, "event" Integer, "netns" Integer, "ifindex" Integer, "frequency" Integer,
            "a" Integer, "b" Integer, "c" Integer, "address" Bytes, "wiphy" Text, "text" Text,
        ],
        Coding::Records(wifi::wifi_event),
    ),
    kind(
        28,
        "link-event",
        columns![
            "at" Time, "task" Task, "event" Integer, "timed" Integer, "within" Duration, "function" Integer, "netns" Integer,
            "ifindex" Integer, "a" Integer, "b" Integer,
        ],
        Coding::Records(wifi::link_event),
    ),
    kind(
        29,
        "exchange",
        columns![
            "at" Time, "task" Task, "protocol" Integer, "message" Integer, "sent" Integer, "netns" Integer, "ifindex" Integer,
            "length" Integer, "id" Integer, "link" Bytes, "network" Bytes, "subject" Bytes,
        ],
        Coding::Records(wifi::exchange),
    ),
    kind(
        30,
        "guest-clock",
        columns!["at" Time, "guest" Integer, "bound" Duration],
        Coding::Records(guest::guest_clock),
    ),
    kind(
        31,
        "block-requests",
        columns!["at" Time, "opened" Time, "counted" Integer, "completed" Integer],
        Coding::Records(accounts::block_requests),
    ),
    kind(
        32,
        "peer",
        columns![
            "at" Time, "number" Integer, "socket" Integer, "process" Integer, "datagrams" Integer, "local_port" Integer,
            "peer_port" Integer, "local" Text, "peer" Text,
        ],
        Coding::Records(accounts::peer),
    ),
    kind(
        33,
        "thread-time",
        columns!["until" Time, "since" Time, "socket" Integer, "thread" Integer, "ran" Duration, "waited" Duration, "slept" Integer],
        Coding::Application(threads::thread_time),
    ),
];

fn at(row: &Row<'_>) -> BootNs {
    BootNs(row.numbers[0] as i64)
}

fn narrow<T: TryFrom<u64>>(v: u64) -> Option<T> {
    T::try_from(v).ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Texts are cut to this many bytes.
const MAX_TEXT: usize = 65535;

/// At most [`MAX_TEXT`] bytes, whole characters.
fn cut(text: &str) -> &[u8] {
    if text.len() <= MAX_TEXT {
        return text.as_bytes();
    }
    let end = (0..=MAX_TEXT).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text.as_bytes()[..end]
}

/// How a moment is known, as two columns.
fn timed_key(timed: Timed) -> (u64, u64) {
    match timed {
        Timed::Kernel => (0, 0),
        Timed::Recorder => (1, 0),
        Timed::Read { within_ns } => (2, within_ns),
    }
}

fn timed_of(timed: u64, within_ns: u64) -> Option<Timed> {
    match timed {
        0 => Some(Timed::Kernel),
        1 => Some(Timed::Recorder),
        2 => Some(Timed::Read { within_ns }),
        _ => None,
    }
}

impl InColumns for Event {
    const PLACE: usize = 8;

    fn row(&self) -> Row<'_> {
        let (timed, within) = timed_key(self.timed);
        Row::new(
            [
                self.at.0 as u64,
                task_key(self.pid, self.ctx),
                self.kind as u64,
                timed,
                within,
                self.packet.0,
                u64::from(self.netns),
                self.a,
                self.b,
            ],
            [cut(&self.text)],
        )
    }
}

fn event(row: &Row<'_>) -> Option<Record> {
    let [_, task, kind, timed, within_ns, packet, netns, a, b, ..] = row.numbers;
    Some(Record::Event(Box::new(Event {
        kind: EventKind::from_u8(narrow(kind)?)?,
        ctx: Context::from_u8(task as u8 & 7),
        pid: narrow(task >> 3)?,
        at: at(row),
        timed: timed_of(timed, within_ns)?,
        packet: PacketId(packet),
        netns: narrow(netns)?,
        a,
        b,
        text: text(row.bytes[0]),
    })))
}

impl InColumns for Process {
    const PLACE: usize = 9;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.pid.into(), self.tgid.into()], [cut(&self.comm)])
    }
}

fn process(row: &Row<'_>) -> Option<Record> {
    let (pid, tgid) = (narrow(row.numbers[1])?, narrow(row.numbers[2])?);
    Some(Record::Process(Box::new(Process { at: at(row), pid, tgid, comm: text(row.bytes[0]) })))
}

impl InColumns for Loss {
    const PLACE: usize = 10;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.to.0 as u64, self.from.0 as u64, self.cause as u64, i64::from(self.cpu) as u64, self.count],
            [],
        )
    }
}

fn loss(row: &Row<'_>) -> Option<Record> {
    let [_, from, cause, cpu, count, ..] = row.numbers;
    Some(Record::Loss(Loss {
        cause: LossCause::from_u8(narrow(cause)?)?,
        cpu: i32::try_from(cpu as i64).ok()?,
        from: BootNs(from as i64),
        to: at(row),
        count,
    }))
}

impl InColumns for OffCpu {
    const PLACE: usize = 11;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.to.0 as u64,
                task_key(self.pid, Context::Task),
                self.to.0.wrapping_sub(self.from.0) as u64,
                self.flags().into(),
                self.wait_ns.into(),
                self.cpu_out.into(),
                self.cpu_in.into(),
            ],
            [],
        )
    }
}

fn off_cpu(row: &Row<'_>) -> Option<Record> {
    let [_, task, duration, flags, wait, cpu_out, cpu_in, ..] = row.numbers;
    let flags = flags as u16;
    Some(Record::OffCpu(OffCpu {
        pid: narrow(task >> 3)?,
        from: BootNs(at(row).0.wrapping_sub(duration as i64)),
        to: at(row),
        preempted: flags & OffCpu::PREEMPTED != 0,
        wait_ns: narrow(wait)?,
        more: flags & OffCpu::MORE != 0,
        cpu_out: narrow(cpu_out)?,
        cpu_in: narrow(cpu_in)?,
        sleep: OffCpu::sleep_of(flags),
    }))
}

fn optional(ns: Option<u64>) -> u64 {
    ns.map_or(0, |ns| ns.saturating_add(1))
}

impl InColumns for Poll {
    const PLACE: usize = 12;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.packet.0, optional(self.since_ns), optional(self.wait_ns)], [])
    }
}

fn poll(row: &Row<'_>) -> Option<Record> {
    let [_, packet, since, wait, ..] = row.numbers;
    let (since_ns, wait_ns) = (since.checked_sub(1), wait.checked_sub(1));
    Some(Record::Poll(Poll { at: at(row), packet: PacketId(packet), since_ns, wait_ns }))
}

impl InColumns for PollEnd {
    const PLACE: usize = 13;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.packet.0, self.taken.into(), self.budget.into(), self.round], [])
    }
}

fn poll_end(row: &Row<'_>) -> Option<Record> {
    let [_, packet, taken, budget, round, ..] = row.numbers;
    let (taken, budget) = (narrow(taken)?, narrow(budget)?);
    Some(Record::PollEnd(PollEnd { at: at(row), packet: PacketId(packet), taken, budget, round }))
}

/// Zeros at the end are not written.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    &bytes[..end]
}

fn padded(bytes: &[u8]) -> Option<[u8; 16]> {
    let mut all = [0; 16];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(all)
}

impl InColumns for SocketRecord {
    const PLACE: usize = 16;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.cookie,
                self.cgroup,
                self.netns.into(),
                self.version.into(),
                self.protocol.into(),
                u64::from(self.state) | u64::from(self.kernels) << 8,
                self.pid.into(),
                u64::from(self.port) << 16 | u64::from(self.peer_port),
                self.privacy as u64,
                self.uid.map_or(0, |uid| u64::from(uid) + 1),
                self.error.into(),
                self.above,
            ],
            [trimmed(&self.addr), trimmed(&self.peer), trimmed(&self.congestion)],
        )
    }
}

fn socket(row: &Row<'_>) -> Option<AppRecord> {
    let [_, cookie, cgroup, netns, version, protocol, state, pid, ports, privacy, owner, error, above] =
        row.numbers;
    Some(AppRecord::Socket(Box::new(SocketRecord {
        at: at(row),
        cookie,
        cgroup,
        netns: narrow(netns)?,
        version: narrow(version)?,
        protocol: narrow(protocol)?,
        state: state as u8,
        kernels: match state >> 8 {
            0 => false,
            1 => true,
            _ => return None,
        },
        pid: narrow(pid)?,
        port: narrow(ports >> 16)?,
        peer_port: ports as u16,
        privacy: Privacy::from_u8(narrow(privacy)?),
        addr: padded(row.bytes[0])?,
        peer: padded(row.bytes[1])?,
        congestion: padded(row.bytes[2])?,
        uid: match owner.checked_sub(1) {
            Some(uid) => Some(narrow(uid)?),
            None => None,
        },
        error: narrow(error)?,
        above,
    })))
}

impl InColumns for Gap {
    const PLACE: usize = 17;

    fn row(&self) -> Row<'_> {
        Row::new([self.until.0 as u64, self.since.0 as u64, self.lost.into()], [])
    }
}

fn gap(row: &Row<'_>) -> Option<AppRecord> {
    let [until, since, lost, ..] = row.numbers;
    let (since, until) = (BootNs(since as i64), BootNs(until as i64));
    Some(AppRecord::Gap(Gap { since, until, lost: narrow(lost)? }))
}

#[inline(always)]
pub fn task_key(pid: u32, ctx: Context) -> u64 {
    u64::from(pid) << 3 | ctx as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{MOST, MOST_BYTES};

    #[test]
    fn kinds_stand_in_the_order_of_their_ids_and_their_bytes_last() {
        assert!(KINDS.windows(2).all(|k| k[0].id < k[1].id));
        for kind in &KINDS {
            assert_eq!(kind.columns[0].of, Type::Time, "{}", kind.name);
            assert_eq!(kind.id < FIRST_DECLARED, matches!(kind.coding, Coding::Own(_)), "{}", kind.name);
            if matches!(kind.coding, Coding::Own(_)) {
                continue;
            }
            let numbers = kind.columns.iter().take_while(|c| !c.of.is_bytes()).count();
            assert!(kind.columns[numbers..].iter().all(|c| c.of.is_bytes()), "{}", kind.name);
            assert!(numbers <= MOST && kind.columns.len() - numbers <= MOST_BYTES, "{}", kind.name);
        }
    }
}
