//! What a device did to have a network, as tables: events of radios, of links, and messages by which addresses are found, each in order of time.
//!
//! They come from rings of their own and from announcements, so what is read is in no order; there are some hundred of them for a change of network.

use crate::error::Result;
use kpat_model::meta::Function;
use kpat_model::{Context, Exchange, LinkEvent, Timed, WifiEvent, link_address};
use kpat_store::TableWriter;
use kpat_store::tables::{ExchangeRow, LinkEventRow, WifiEventRow};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

pub(super) struct Network {
    /// Names of tracepoints.
    points: HashMap<u16, String>,
    radios: Vec<(u16, WifiEvent)>,
    links: Vec<(u16, LinkEvent)>,
    exchanges: Vec<(u16, Exchange)>,
}

impl Network {
    pub fn new(functions: &[Function]) -> Network {
        let points = functions.iter().filter(|f| f.kind == "wifi");
        Network {
            points: points.map(|f| (f.id, f.name.clone())).collect(),
            radios: Vec::new(),
            links: Vec::new(),
            exchanges: Vec::new(),
        }
    }

    pub fn radio(&mut self, cpu: u16, e: WifiEvent) {
        self.radios.push((cpu, e));
    }

    pub fn link(&mut self, cpu: u16, e: LinkEvent) {
        self.links.push((cpu, e));
    }

    pub fn exchange(&mut self, cpu: u16, e: Exchange) {
        self.exchanges.push((cpu, e));
    }

    pub fn finish(mut self, dir: &Path) -> Result<()> {
        self.radios.sort_by_key(|(_, e)| e.at);
        self.links.sort_by_key(|(_, e)| e.at);
        self.exchanges.sort_by_key(|(_, e)| e.at);
        let mut rows = TableWriter::<WifiEventRow>::create(dir)?;
        for (cpu, e) in self.radios {
            rows.push(&WifiEventRow {
                at_ns: e.at.0,
                event: e.what as i32,
                point: self.points.get(&e.point.0).cloned().unwrap_or_default(),
                netns: some(e.netns).map(i64::from),
                ifindex: some(e.ifindex).map(|n| n as i32),
                wiphy: Some(e.wiphy).filter(|w| !w.is_empty()),
                address: e.address.as_ref().map(link_address::text),
                frequency: some(e.frequency).map(|n| n as i32),
                a: e.a,
                b: e.b,
                c: e.c,
                text: e.text,
                cpu: cpu.into(),
                ctx: e.ctx as i32,
                pid: thread(e.ctx, e.pid),
            })?;
        }
        rows.finish()?;
        let mut rows = TableWriter::<LinkEventRow>::create(dir)?;
        for (cpu, e) in self.links {
            let kernel = e.timed == Timed::Kernel;
            rows.push(&LinkEventRow {
                at_ns: e.at.0,
                after_ns: match e.timed {
                    Timed::Read { within_ns } => Some(e.at.0.saturating_sub_unsigned(within_ns)),
                    Timed::Kernel | Timed::Recorder => None,
                },
                event: e.what as i32,
                function: e.function.into(),
                netns: some(e.netns).map(i64::from),
                ifindex: e.ifindex as i32,
                a: e.a,
                b: e.b,
                cpu: kernel.then_some(cpu.into()),
                pid: if kernel { thread(e.ctx, e.pid) } else { None },
            })?;
        }
        rows.finish()?;
        let mut rows = TableWriter::<ExchangeRow>::create(dir)?;
        for (cpu, e) in self.exchanges {
            let half = e.network.len() / 2;
            rows.push(&ExchangeRow {
                at_ns: e.at.0,
                protocol: e.protocol as i32,
                message: e.message.into(),
                sent: e.sent.into(),
                netns: some(e.netns).map(i64::from),
                ifindex: e.ifindex as i32,
                id: e.id as i64,
                mac_src: e.link.as_ref().map(|l| link_address::text(l[0])),
                mac_dst: e.link.as_ref().map(|l| link_address::text(l[1])),
                source: address(&e.network[..half]),
                destination: address(&e.network[half..]),
                subject: address(&e.subject),
                len_bytes: e.length.into(),
                cpu: cpu.into(),
                ctx: e.ctx as i32,
                pid: thread(e.ctx, e.pid),
            })?;
        }
        rows.finish()?;
        Ok(())
    }
}

fn some(n: u32) -> Option<u32> {
    (n != 0).then_some(n)
}

/// Whose event it is: in an interrupt the thread is whoever was running.
fn thread(ctx: Context, pid: u32) -> Option<i32> {
    (ctx == Context::Task).then_some(pid as i32)
}

fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let any = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    any.ok().map(|a| a.to_string())
}
