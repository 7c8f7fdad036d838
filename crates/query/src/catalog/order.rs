//! The list in another order.

use super::{Catalog, Entry, Names, flag};

/// A column that the list can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    Id,
    Frame,
    Time,
    Src,
    Dst,
    Proto,
    Len,
    Info,
    Path,
    Kernel,
    Frames,
    Calls,
    Points,
    Verdict,
    Drop,
    Process,
    Pid,
    Confidence,
    Ambiguous,
    Retransmission,
    IfIn,
    IfOut,
    Netns,
    Cpu,
}

/// No column is called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownColumn;

const COLUMNS: [(&str, Column); 24] = [
    ("id", Column::Id),
    ("frame", Column::Frame),
    ("t", Column::Time),
    ("src", Column::Src),
    ("dst", Column::Dst),
    ("proto", Column::Proto),
    ("len", Column::Len),
    ("info", Column::Info),
    ("path_ns", Column::Path),
    ("kernel_ns", Column::Kernel),
    ("frames", Column::Frames),
    ("calls", Column::Calls),
    ("points", Column::Points),
    ("verdict", Column::Verdict),
    ("drop", Column::Drop),
    ("process", Column::Process),
    ("pid", Column::Pid),
    ("confidence", Column::Confidence),
    ("ambiguous", Column::Ambiguous),
    ("retransmission", Column::Retransmission),
    ("if_in", Column::IfIn),
    ("if_out", Column::IfOut),
    ("netns", Column::Netns),
    ("cpu", Column::Cpu),
];

impl Column {
    pub fn from_name(name: &str) -> Result<Column, UnknownColumn> {
        COLUMNS.iter().find(|c| c.0 == name).map(|c| c.1).ok_or(UnknownColumn)
    }
}

impl Catalog {
    /// Puts places into the order of a column; what has no value stands last either way, equals stay in order of time.
    pub fn sort(&self, places: &mut [u32], by: Column, descending: bool) {
        if by == Column::Time {
            places.sort_unstable();
            if descending {
                places.reverse();
            }
            return;
        }
        let ranks = self.ranks(by);
        let names = &self.names;
        let mut keyed: Vec<(u128, u32)> = Vec::with_capacity(places.len());
        let mut without: Vec<u32> = Vec::new();
        for &i in places.iter() {
            match key(&self.entries[i as usize], by, &ranks, names) {
                None => without.push(i),
                Some(k) => keyed.push((if descending { !k } else { k }, i)),
            }
        }
        without.sort_unstable();
        keyed.sort_unstable();
        let order = keyed.into_iter().map(|k| k.1).chain(without);
        places.iter_mut().zip(order).for_each(|(p, i)| *p = i);
    }

    /// Places of names in their alphabet.
    fn ranks(&self, by: Column) -> Vec<u128> {
        let of = |names: &[String]| {
            let mut order: Vec<usize> = (0..names.len()).collect();
            order.sort_by(|a, b| names[*a].cmp(&names[*b]));
            let mut ranks = vec![0; names.len()];
            order.into_iter().enumerate().for_each(|(rank, i)| ranks[i] = rank as u128);
            ranks
        };
        match by {
            Column::Process => of(&self.names.processes),
            Column::IfIn | Column::IfOut => of(&self.names.devices),
            _ => Vec::new(),
        }
    }
}

fn key(e: &Entry, by: Column, ranks: &[u128], names: &Names) -> Option<u128> {
    let signed = |n: i64| (n as u128 ^ 1 << 63) & u128::from(u64::MAX);
    let known = |bit: u16, v: u128| e.has(bit).then_some(v);
    let rank = |place: usize| ranks.get(place).copied().filter(|_| place > 0);
    match by {
        Column::Id => e.is_packet().then_some(signed(e.id)),
        Column::Frame => (e.frame > 0).then_some(u128::from(e.capture) << 32 | u128::from(e.frame)),
        Column::Time => Some(signed(e.first_ns)),
        Column::Src => known(flag::SRC, e.src),
        Column::Dst => known(flag::DST, e.dst),
        Column::Proto => {
            let name = e.proto_text(names);
            Some(
                name.bytes().take(8).fold(0u128, |k, b| k << 8 | u128::from(b))
                    << (8 * (8 - name.len().min(8))),
            )
        }
        Column::Len => Some(u128::from(e.len_bytes)),
        Column::Info => {
            let class = e.flags & (flag::TCP | flag::ICMP | flag::ARP);
            let text = |m: &str| m.bytes().chain([0; 8]).take(8).fold(0, |k, b| k << 8 | u128::from(b));
            match class {
                0 => names.message_of(e).map(text),
                _ => Some(u128::from(class) << 64 | u128::from(e.kind) << 32 | u128::from(e.detail)),
            }
        }
        Column::Path => e.is_packet().then_some(signed(e.path_ns)),
        Column::Kernel => e.is_packet().then_some(signed(e.kernel_ns)),
        Column::Frames => Some(u128::from(e.frames)),
        Column::Points => e.is_packet().then_some(u128::from(e.points)),
        Column::Calls => e.is_packet().then_some(u128::from(e.calls)),
        Column::Verdict => e.is_packet().then_some(u128::from(e.verdict)),
        Column::Drop => names.drop_of(e).map(|_| u128::from(e.drop_reason.unsigned_abs())),
        Column::Process => rank(e.process as usize),
        Column::Pid => known(flag::PID, u128::from(e.pid.unsigned_abs())),
        Column::Confidence => known(flag::CONFIDENCE, u128::from(e.confidence)),
        Column::Ambiguous => Some(u128::from(e.is_ambiguous())),
        Column::Retransmission => Some(u128::from(e.has(flag::RETRANSMITTED))),
        Column::IfIn => rank(usize::from(e.if_in)),
        Column::IfOut => rank(usize::from(e.if_out)),
        Column::Netns => known(flag::NETNS, e.netns.into()),
        Column::Cpu => known(flag::CPU, e.cpu.into()),
    }
}
