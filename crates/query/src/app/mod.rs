//! What applications asked of the network and what became of it, socket by socket: how much in which sizes and how far
//! apart at each crossing, how writes became packets and frames, where bytes waited, what held TCP back.
//!
//! One pass over the events in order of time. A byte of a stream is known by its place, so whatever crosses next takes from
//! what crossed before; a datagram is known by its tag, and in a socket's queue by its turn. Memory is what is on its way.

pub mod connections;
mod ending;
pub(crate) mod flight;
mod follow;
mod limits;
mod nagle;
mod names;
mod opening;
mod order;
mod questions;
mod series;
mod spread;
mod sums;
pub mod trace;
mod ways;

use crate::abreast::Progress;
use crate::error::{Error, Result};
use crate::store::Store;
pub use ending::{Ending, NO_PORT, Which, had_no_port};
pub(crate) use follow::{Follow, Span, WITHOUT_END};
use kpat_model::Crossing;
use kpat_store::tables::*;
pub use limits::{Held, Limits};
pub use names::{INTERRUPTED, died_idle, ended_in_words, ends, errno, protocol};
use opening::Opens;
pub use opening::{OUTCOMES, Opening, Outcome};
use order::Only;
pub use order::{Moment, in_order};
pub use questions::Questions;
pub use series::{Crossed, Gap, MOST_BINS, Mark, Metric, Series, Tcp, Track, Window, series};
pub use spread::Spread;
use std::collections::BTreeMap;
pub use sums::{By, Sums, Worst, sums};
use ways::Ways;
pub use ways::{Leg, Wait};

/// A packet that one device gave to another: a tunnel, a VLAN, a bridge. It was counted where the first one got it.
pub(crate) fn given_on(e: &AppEventRow) -> bool {
    let by_device = [Crossing::ToDevice as i32, Crossing::ToDriver as i32];
    e.segments == 0 && by_device.contains(&e.crossing)
}

/// How many frames a packet is. What came from a device, and was read before its socket could tell of it, is one.
fn frames(e: &AppEventRow) -> u64 {
    let least = i32::from(e.crossing == Crossing::FromDevice as i32);
    e.segments.max(least) as u64
}

/// One crossing of one socket.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    pub events: u64,
    /// Calls that failed.
    pub errors: u64,
    /// The same by error number.
    pub by_errno: BTreeMap<i32, u64>,
    pub bytes: i64,
    /// Frames, where packets cross.
    pub segments: u64,
    pub size_bytes: Spread,
    /// From one event to the next; calls that failed moved nothing and do not count.
    pub spacing_ns: Spread,
    pub first_ns: i64,
    pub last_ns: i64,
    moved: Option<i64>,
    /// Bytes of the last event.
    newest: i64,
}

impl Layer {
    fn add(&mut self, e: &AppEventRow) {
        if e.crossing == Crossing::ToSocket as i32 && e.size_bytes < 0 {
            return self.refused(-e.size_bytes as i32);
        }
        if self.events == 0 {
            self.first_ns = e.at_ns;
        }
        self.events += 1;
        self.last_ns = e.at_ns;
        if e.size_bytes < 0 {
            self.errors += 1;
            *self.by_errno.entry(-e.size_bytes as i32).or_default() += 1;
            return;
        }
        if let Some(before) = self.moved.replace(e.at_ns) {
            self.spacing_ns.add(e.at_ns - before, 1);
        }
        self.bytes += e.size_bytes;
        self.newest = e.size_bytes;
        self.segments += frames(e);
        self.size_bytes.add(e.size_bytes, 1);
    }

    /// What was counted on its way into a socket's queue did not get in.
    fn refused(&mut self, errno: i32) {
        self.errors += 1;
        *self.by_errno.entry(errno).or_default() += 1;
        self.events = self.events.saturating_sub(1);
        self.bytes -= std::mem::take(&mut self.newest);
    }
}

/// A socket with all that is known of it.
#[derive(Clone, Debug)]
pub struct Traffic {
    pub socket: SocketRow,
    pub process: Option<String>,
    /// The listener to which it came, and that one's process, where no process has used it.
    pub listener: Option<(SocketRow, Option<String>)>,
    /// Boxed: a log has many sockets of few crossings, and a map has room for eleven at once.
    pub layers: BTreeMap<Crossing, Box<Layer>>,
    pub waits: Vec<Wait>,
    pub limits: Option<Limits>,
    /// What became of its connect(); `None`: it made none while it was recorded, or that is not known.
    pub opening: Option<Opening>,
    pub questions: Option<Questions>,
    /// Writes that shared a packet, packets that shared a write: pairs of both.
    pub writes_in_packets: u64,
}

impl Traffic {
    pub fn layer(&self, c: Crossing) -> Layer {
        self.layers.get(&c).map(|l| Layer::clone(l)).unwrap_or_default()
    }

    /// Calls that failed, by what they failed with; `None`: none did.
    pub fn failures(&self) -> Option<String> {
        let of = |c: Crossing, verb: &str| {
            let by = |(e, n): (&i32, &u64)| format!("{n} {}", errno(*e));
            let layer = self.layer(c);
            let failed = layer.by_errno.iter().filter(|(e, _)| **e != INTERRUPTED);
            let failed: Vec<String> = failed.map(by).collect();
            let failed =
                (!failed.is_empty()).then(|| format!("Calls that {verb} failed: {}.", failed.join(", ")));
            let again = layer.by_errno.get(&INTERRUPTED).map(|n| {
                format!("Calls that {verb} and waited when a signal came: {n} (begun again, or failed with EINTR).")
            });
            let all: Vec<String> = [failed, again].into_iter().flatten().collect();
            (!all.is_empty()).then(|| all.join(" "))
        };
        let refused = self.layer(Crossing::ToSocket).errors;
        let refused = (refused > 0).then(|| format!("Datagrams that the full socket refused: {refused}."));
        let all = [of(Crossing::Send, "send"), of(Crossing::Recv, "receive"), refused];
        let text = all.into_iter().flatten().collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    }

    /// How many writes a packet carries, in the mean; `None`: not known here.
    pub fn writes_per_packet(&self) -> Option<f64> {
        let packets = self.layer(Crossing::ToDevice).events;
        (packets > 0 && self.writes_in_packets > 0).then(|| self.writes_in_packets as f64 / packets as f64)
    }
}

#[derive(Default)]
struct Open {
    layers: BTreeMap<Crossing, Box<Layer>>,
    ways: Ways,
    limits: Limits,
    opens: Opens,
    questions: Questions,
    states: bool,
}

/// Rows between two words of how far it has got.
const STEP: u64 = 1 << 16;

/// All sockets of a log; `only`: of these alone. Empty: the log has none of applications.
///
/// Errors: [`Error::Abandoned`].
pub fn traffic(store: &Store, only: &[i64], progress: Progress<'_>) -> Result<Vec<Traffic>> {
    let asked = Only::of(only);
    let sockets: Vec<SocketRow> = store.all()?;
    let mut open: BTreeMap<i64, Box<Open>> = BTreeMap::new();
    let mut follow = Follow::new(&sockets);
    // What the other end has read tells whether it is the one that is slow.
    let also = only.iter().filter_map(|id| follow.peer(*id));
    let read: Vec<i64> = only.iter().copied().chain(also).collect();
    let all = store.table::<AppEventRow>()?.rows() + store.table::<TcpStateRow>()?.rows();
    let mut done = 0;
    in_order(store, &read, |moment| {
        if done % STEP == 0 && !progress(done, all) {
            return Err(Error::Abandoned);
        }
        done += 1;
        match moment {
            Moment::Crossing(e) => {
                let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
                let Some(what) = what else { return Ok(()) };
                let spans = follow.crossing(what, e);
                if asked.has(e.socket_id) {
                    let o = open.entry(e.socket_id).or_default();
                    o.opens.crossing(e.at_ns);
                    spans.iter().for_each(|s| o.limits.span(s));
                    if !given_on(e) {
                        o.layers.entry(what).or_default().add(e);
                    }
                    o.ways.pass(what, e);
                    o.questions.pass(what, e);
                }
            }
            // One without a state is a datagram's network header.
            Moment::State(s) if s.state == 0 => {}
            Moment::State(s) => {
                let spans = follow.state(s);
                if asked.has(s.socket_id) {
                    let o = open.entry(s.socket_id).or_default();
                    spans.iter().for_each(|s| o.limits.span(s));
                    o.limits.state(s);
                    o.opens.state(s.at_ns, s.state.into());
                    o.states = true;
                }
            }
            Moment::Gap(_) => {}
        }
        Ok(())
    })?;
    follow.finish(&mut |id, span| {
        if let Some(o) = open.get_mut(&id) {
            o.limits.span(&span);
        }
    });
    let complete = store.table::<TcpStateRow>()?.rows() > 0 && lost(store)? == 0;
    let one = |socket: SocketRow| {
        let o = open.remove(&socket.socket_id).unwrap_or_default();
        let process_of = |s: &SocketRow| store.socket_process(s).map(str::to_owned);
        let process = process_of(&socket);
        let listener = store.listener_of(&socket)?.map(|l| {
            let process = process_of(&l);
            (l, process)
        });
        let Open { layers, ways, limits, opens, questions, states } = *o;
        let (waits, writes_in_packets) = ways.finish();
        let limits = states.then_some(limits);
        let opening = opens.finish(&socket, complete);
        let questions = questions.finish(&socket);
        Ok(Traffic {
            socket,
            process,
            listener,
            layers,
            waits,
            limits,
            opening,
            questions,
            writes_in_packets,
        })
    };
    sockets.into_iter().filter(|s| asked.has(s.socket_id)).map(one).collect()
}

impl Traffic {
    /// Whose it is, in words: the process that used it, else the one that listens where it came to. `None`: not known.
    pub fn user(&self) -> Option<String> {
        match (&self.process, &self.listener) {
            (Some(name), _) => Some(name.clone()),
            (None, Some((_, Some(name)))) => Some(format!("({name} listens)")),
            (None, _) => None,
        }
    }
}

/// Events that did not fit into the recorder's rings.
pub fn lost(store: &Store) -> Result<u64> {
    Ok(store.all::<GapRow>()?.iter().map(|g| g.lost.max(0) as u64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_a_signal_interrupted_is_not_said_to_have_failed() {
        let said = |by: &[(i32, u64)]| {
            let layer = Layer { by_errno: by.iter().copied().collect(), ..Layer::default() };
            let traffic = Traffic {
                socket: SocketRow::default(),
                process: None,
                listener: None,
                layers: [(Crossing::Recv, Box::new(layer))].into(),
                waits: Vec::new(),
                limits: None,
                opening: None,
                questions: None,
                writes_in_packets: 0,
            };
            traffic.failures()
        };
        let again =
            "Calls that receive and waited when a signal came: 23 (begun again, or failed with EINTR).";
        assert_eq!(said(&[(INTERRUPTED, 23)]).as_deref(), Some(again));
        let both = format!("Calls that receive failed: 2 EAGAIN. {again}");
        assert_eq!(said(&[(11, 2), (INTERRUPTED, 23)]), Some(both));
        assert_eq!(said(&[]), None);
    }
}
