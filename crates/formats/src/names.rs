//! What ids and codes of the tables are called in other tools.

use kpat_model::{Context, LossCause};
use kpat_query::protocol;
use kpat_query::{FunctionFilter, FunctionSort, Store, verdict};
use kpat_store::tables::{DeviceRow, FunctionRow, PacketRow};
use std::collections::HashMap;

/// Functions and devices of a log, by number.
pub(crate) struct Names {
    /// By `func_id`; numbers that the log does not use are empty.
    functions: Vec<FunctionRow>,
    devices: Vec<DeviceRow>,
    /// The last of each namespace and number, and of each number.
    device_of: HashMap<(Option<i64>, i32), usize>,
}

impl Names {
    pub fn of(store: &Store) -> crate::Result<Names> {
        let all = FunctionFilter { unused: true, ..FunctionFilter::default() };
        let mut functions: Vec<FunctionRow> = Vec::new();
        for f in store.functions(&all, FunctionSort::Name, 0).rows {
            // A damaged table has others.
            let Ok(id) = u16::try_from(f.func_id).map(usize::from) else { continue };
            if functions.len() <= id {
                functions.resize_with(id + 1, FunctionRow::default);
            }
            functions[id] = f;
        }
        let devices: Vec<DeviceRow> = store.table::<DeviceRow>()?.all()?;
        let keys = |d: &DeviceRow| [(Some(d.netns), d.ifindex), (None, d.ifindex)];
        let device_of = devices.iter().enumerate().flat_map(|(i, d)| keys(d).map(|key| (key, i))).collect();
        Ok(Names { functions, devices, device_of })
    }

    pub fn functions(&self) -> impl Iterator<Item = &FunctionRow> {
        self.functions.iter().filter(|f| !f.name.is_empty())
    }

    pub fn function(&self, func_id: i32) -> Option<&FunctionRow> {
        self.functions.get(usize::try_from(func_id).ok()?).filter(|f| !f.name.is_empty())
    }

    pub fn name(&self, func_id: i32) -> &str {
        self.function(func_id).map_or("?", |f| &f.name)
    }

    pub fn module(&self, func_id: i32) -> &str {
        self.function(func_id).map_or("", |f| if f.module.is_empty() { "vmlinux" } else { &f.module })
    }

    pub fn layer(&self, func_id: i32) -> &str {
        self.function(func_id).map_or("", |f| &f.layer)
    }

    pub fn device(&self, netns: Option<i64>, ifindex: i32) -> Option<&DeviceRow> {
        self.devices.get(*self.device_of.get(&(netns, ifindex))?)
    }
}

pub(crate) fn context(code: i32) -> &'static str {
    Context::from_u8(u8::try_from(code).unwrap_or(u8::MAX)).name()
}

pub(crate) fn loss(cause: i32) -> String {
    let known = LossCause::from_number(cause);
    known.map_or_else(|| format!("cause {cause}"), |c| c.name().to_owned())
}

/// `UDP 10.0.1.2:40000 → 10.0.2.2:53`.
pub(crate) fn packet(p: &PacketRow) -> String {
    let from = protocol::endpoint(p.src_addr.as_deref(), p.sport);
    let to = protocol::endpoint(p.dst_addr.as_deref(), p.dport);
    let mut out = protocol::name(p.ethertype, p.proto);
    if !from.is_empty() || !to.is_empty() {
        out += &format!(" {from} → {to}");
    }
    out
}

/// What became of a packet, with the reason of a drop.
pub(crate) fn fate(store: &Store, p: &PacketRow) -> String {
    let reason = drop_reason(store, p).map(|r| format!(" ({r})")).unwrap_or_default();
    format!("{}{reason}", verdict::name(p.verdict))
}

pub(crate) fn drop_reason(store: &Store, p: &PacketRow) -> Option<String> {
    let reason = p.drop_reason?;
    Some(store.drop_reason(reason).map_or_else(|| format!("reason {reason}"), str::to_owned))
}

pub(crate) fn process<'a>(store: &'a Store, p: &PacketRow) -> Option<(i32, &'a str)> {
    let pid = p.pid?;
    Some((pid, store.process(pid, p.last_ns).map_or("", |q| q.comm.as_str())))
}

pub(crate) use crate::text::clean;
