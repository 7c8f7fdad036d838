//! Does a packet fit? What a filter needs of other tables is read once, before the first packet is asked about.

use crate::codes::verdict;
use crate::entry::{Entry, Facts, Names, facts};
use crate::error::Result;
use crate::filter::{Condition, Filter};
use crate::names::glob_fits;
use crate::store::Store;
use kpat_model::hash::Numbers;
use kpat_store::TableFile;
use kpat_store::tables::PacketRow;
use std::cell::RefCell;
use std::sync::Arc;

/// Which packets; every given condition must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketFilter {
    /// "tcp", "udp", "icmp", "icmpv6", "arp", "ip", "ipv6", or an IP protocol number.
    pub proto: Option<String>,
    /// Source or destination address, as text.
    pub addr: Option<String>,
    /// Source or destination port.
    pub port: Option<u16>,
    pub min_path_ns: Option<i64>,
    pub max_path_ns: Option<i64>,
    /// Code, see [`verdict`].
    pub verdict: Option<i32>,
    /// Touched by a function that fits this glob.
    pub func: Option<String>,
    /// Alive at some time at or after this ...
    pub from_ns: Option<i64>,
    /// ... and at or before this.
    pub to_ns: Option<i64>,
    pub pid: Option<i32>,
    /// Only packets with (true) or without (false) a frame.
    pub on_wire: Option<bool>,
    /// Occurs in an address, the verdict's name, the drop reason's name or the process name.
    pub text: Option<String>,
    /// What the filter language says.
    pub expression: Option<Filter>,
    /// Only these, sorted.
    pub ids: Option<Arc<[i64]>>,
}

/// A filter made ready for one log.
pub(crate) struct Choice<'a> {
    store: &'a Store,
    filter: &'a PacketFilter,
    /// Packets that a function touched, if that was asked for.
    touched: Option<Numbers>,
    expression: Option<Expression>,
}

struct Expression {
    condition: Condition,
    names: RefCell<Names>,
    facts: Facts,
}

impl<'a> Choice<'a> {
    pub fn new(
        store: &'a Store,
        filter: &'a PacketFilter,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Choice<'a>> {
        let touched = match &filter.func {
            Some(glob) => Some(store.packets_of_functions(&|name| glob_fits(glob, name), progress)?),
            None => None,
        };
        let expression = match &filter.expression {
            Some(e) => Some(Expression {
                condition: e.prepare(store, progress)?,
                names: RefCell::new(Names::of(store)?),
                facts: if e.needs_facts() { facts(store)? } else { Facts::default() },
            }),
            None => None,
        };
        Ok(Choice { store, filter, touched, expression })
    }

    /// Columns of the packet table that it looks at besides those of the filter's own conditions.
    pub fn columns(filter: &PacketFilter) -> Vec<&'static str> {
        filter.expression.as_ref().map(|e| e.columns()).unwrap_or_default()
    }

    /// May this row group hold packets that fit?
    pub fn may(&self, table: &TableFile, group: usize) -> bool {
        let filter = self.filter;
        let overlaps = |column, from: i64, to: i64| {
            table.range(group, column).is_none_or(|have| *have.start() <= to && *have.end() >= from)
        };
        filter.from_ns.is_none_or(|from| overlaps("last_ns", from, i64::MAX))
            && filter.to_ns.is_none_or(|to| overlaps("first_ns", i64::MIN, to))
            && filter.ids.as_ref().is_none_or(|ids| {
                table.range(group, "packet_id").is_none_or(|have| {
                    let next = ids.partition_point(|id| id < have.start());
                    ids.get(next).is_some_and(|id| id <= have.end())
                })
            })
    }

    pub fn fits(&self, p: &PacketRow) -> bool {
        self.filter.ids.as_ref().is_none_or(|ids| ids.binary_search(&p.packet_id).is_ok())
            && self.touched.as_ref().is_none_or(|t| t.contains(p.packet_id))
            && self.store.fits(self.filter, p)
            && self.expression.as_ref().is_none_or(|e| {
                let mut names = e.names.borrow_mut();
                let entry = Entry::of_packet(p, &mut names, &e.facts);
                let fits = e.condition.fits(&entry, &names);
                names.forget_messages();
                fits
            })
    }
}

impl Store {
    fn fits(&self, f: &PacketFilter, p: &PacketRow) -> bool {
        let addr_is = |a: &String| p.src_addr.as_ref() == Some(a) || p.dst_addr.as_ref() == Some(a);
        let port_is = |n: &u16| [p.sport, p.dport].contains(&Some(i32::from(*n)));
        f.proto.as_ref().is_none_or(|proto| proto_fits(proto, p))
            && f.addr.as_ref().is_none_or(addr_is)
            && f.port.as_ref().is_none_or(port_is)
            && f.min_path_ns.is_none_or(|n| p.path_ns >= n)
            && f.max_path_ns.is_none_or(|n| p.path_ns <= n)
            && f.verdict.is_none_or(|v| p.verdict == v)
            && f.from_ns.is_none_or(|t| p.last_ns >= t)
            && f.to_ns.is_none_or(|t| p.first_ns <= t)
            && f.pid.is_none_or(|pid| p.pid == Some(pid))
            && f.on_wire.is_none_or(|w| (p.frames > 0) == w)
            && f.text.as_ref().is_none_or(|t| self.mentions(p, t))
    }

    fn mentions(&self, p: &PacketRow, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |s: &str| s.to_lowercase().contains(&text);
        p.src_addr.as_deref().is_some_and(has)
            || p.dst_addr.as_deref().is_some_and(has)
            || has(verdict::name(p.verdict))
            || p.drop_reason.and_then(|r| self.drop_reason(r)).is_some_and(has)
            || p.pid.and_then(|pid| self.process(pid, p.last_ns)).is_some_and(|q| has(&q.comm))
    }
}

fn proto_fits(proto: &str, p: &PacketRow) -> bool {
    match proto.to_ascii_lowercase().as_str() {
        "tcp" => p.proto == Some(6),
        "udp" => p.proto == Some(17),
        "icmp" => p.proto == Some(1),
        "icmpv6" | "icmp6" => p.proto == Some(58),
        "arp" => p.ethertype == Some(0x0806),
        "ip" | "ipv4" => p.ethertype == Some(0x0800),
        "ipv6" | "ip6" => p.ethertype == Some(0x86dd),
        other => other.parse::<i32>().is_ok_and(|n| p.proto == Some(n)),
    }
}
