//! A packet while it is alive: what is remembered of it, and how each record adds to that.

use super::super::arrivals::Arrival;
use super::super::stamps::Stamp;
use super::Touch;
use super::control::At;
use super::verdict::{Drop, NEVER};
use crate::matching::keys::Keys;
use kpat_model::codes::match_key;
use kpat_model::{Context, Footprint, FootprintRecord};
use kpat_query::roles::*;

pub(super) const MAX_PRINTS: usize = 16;
const MAX_SPANS: usize = 24;
const MAX_READERS: usize = 4;

/// The packet's keys from a moment on.
pub(super) struct Print {
    pub(super) at: i64,
    pub(super) ifindex: u32,
    pub(super) netns: u32,
    pub(super) keys: Vec<Keys>,
}

impl Print {
    /// An 802.11 frame in which nothing else can be read.
    pub(super) fn on_air(&self) -> bool {
        self.keys.first().is_some_and(|k| k.kind == match_key::WIFI)
    }

    /// For sniffers at a device.
    pub(super) fn is_usable(&self) -> bool {
        !self.keys.is_empty() && !self.on_air()
    }
}

/// See [`super::datagrams`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Fragment {
    /// It was a whole datagram, or no IP at all, in some header before.
    pub whole: bool,
    /// Of the datagram that it is, or was, a fragment of; 0: never was.
    pub key: u64,
    /// What the whole of that has in common with it.
    pub same: u64,
    /// The kernel told which packet it was cut from.
    pub told: bool,
}

/// Who took it from a socket, first and last.
pub(super) struct Reader {
    /// Thread id; 0: not a task.
    pub(super) pid: u32,
    pub(super) from: i64,
    pub(super) to: i64,
}

pub(super) struct Live {
    pub(super) first: i64,
    pub(super) last: i64,
    /// Of its earliest call or point: when that was, the CPU, the context.
    pub(super) cpu: (i64, u16, Context),
    /// As it was first seen.
    pub(super) arrival: Option<Arrival>,
    pub(super) stamp: Option<Stamp>,
    pub(super) kernel_ns: i64,
    pub(super) calls: u32,
    pub(super) points: u32,
    pub(super) len_bytes: u32,
    /// `len_bytes` is from the headers, not from a point, whose length may include a link header.
    pub(super) len_known: bool,
    /// Roles seen, as bits.
    pub(super) roles: u32,
    /// Earliest entry with a role that receives, and that makes or sends.
    pub(super) rx_at: i64,
    pub(super) tx_at: i64,
    /// Latest entry that only a received packet has, and of receive offload.
    pub(super) rx_last: i64,
    pub(super) gro_at: i64,
    /// Latest entry of a queue above a device, and of a driver.
    pub(super) queue_at: i64,
    pub(super) xmit_at: i64,
    /// Earliest entry of either, and earliest that takes out of a queue.
    pub(super) out_first: i64,
    pub(super) dequeued_first: i64,
    /// Outermost calls that received, and that gave it to a device or to the queue above.
    pub(super) received: Vec<(i64, i64)>,
    pub(super) xmits: Vec<(i64, i64)>,
    pub(super) queued: Vec<(i64, i64)>,
    /// Last call that put it into a queueing discipline.
    pub(super) enqueued: (i64, i64),
    /// Shown to sniffers.
    pub(super) taps: Vec<(i64, i64)>,
    /// Where a driver began with it, behind the device's sniffers.
    pub(super) drivers: Vec<i64>,
    /// Calls within which first the sniffers and then the driver had it.
    pub(super) hands: Vec<(i64, i64)>,
    /// When it was received and had its time stamp.
    pub(super) stamped: Vec<i64>,
    pub(super) local_in_at: i64,
    /// First and last entry with a role that queues to a socket.
    pub(super) queued_at: (i64, i64),
    pub(super) prints: Vec<Print>,
    pub(super) shown: Option<Box<Footprint>>,
    /// The newest footprint: a packet that comes to another device has its headers.
    pub(super) newest: Option<Box<FootprintRecord>>,
    /// The functions that had it, a bit each.
    funcs: Vec<u64>,
    /// Of any of its copies.
    pub(super) drops: Vec<Drop>,
    /// Where it was last given to a driver: CPU and context.
    pub(super) xmit_on: Option<(u16, Context)>,
    /// That was a point, not a function.
    pub(super) by_points: bool,
    /// Last time that a copy of it was seen to be freed, and the last one.
    pub(super) free_at: i64,
    pub(super) ended_at: i64,
    /// On which CPU that was, and what that was at.
    pub(super) ended_on: Option<(u16, Context, At)>,
    /// When it last went on as another packet, or as several.
    pub(super) transformed_at: i64,
    /// Put together with others to the datagram that they were cut from.
    pub(super) whole_again_at: i64,
    /// What its headers said of fragments so far.
    pub(super) fragment: Fragment,
    /// Cut from a packet that was received.
    pub(super) received_by_parent: bool,
    pub(super) task_pid: u32,
    /// The first few.
    pub(super) readers: Vec<Reader>,
}

impl Live {
    pub(super) fn new(at: i64) -> Live {
        Live {
            first: at,
            last: at,
            cpu: (i64::MAX, 0, Context::Unknown),
            arrival: None,
            stamp: None,
            kernel_ns: 0,
            calls: 0,
            points: 0,
            len_bytes: 0,
            len_known: false,
            roles: 0,
            rx_at: i64::MAX,
            tx_at: i64::MAX,
            rx_last: NEVER,
            gro_at: NEVER,
            queue_at: NEVER,
            xmit_at: NEVER,
            out_first: i64::MAX,
            dequeued_first: i64::MAX,
            received: Vec::new(),
            xmits: Vec::new(),
            queued: Vec::new(),
            enqueued: (NEVER, NEVER),
            taps: Vec::new(),
            drivers: Vec::new(),
            hands: Vec::new(),
            stamped: Vec::new(),
            local_in_at: i64::MIN,
            queued_at: (i64::MAX, i64::MIN),
            prints: Vec::new(),
            shown: None,
            newest: None,
            funcs: Vec::new(),
            drops: Vec::new(),
            xmit_on: None,
            by_points: false,
            free_at: NEVER,
            ended_at: NEVER,
            ended_on: None,
            transformed_at: NEVER,
            whole_again_at: i64::MIN,
            fragment: Fragment::default(),
            received_by_parent: false,
            task_pid: 0,
            readers: Vec::new(),
        }
    }

    /// Another packet, in the memory of one that is over.
    pub(super) fn renewed(mut self: Box<Self>, at: i64) -> Box<Live> {
        fn emptied<T>(of: &mut Vec<T>) -> Vec<T> {
            let mut all = std::mem::take(of);
            all.clear();
            all
        }
        *self = Live {
            received: emptied(&mut self.received),
            xmits: emptied(&mut self.xmits),
            queued: emptied(&mut self.queued),
            taps: emptied(&mut self.taps),
            drivers: emptied(&mut self.drivers),
            hands: emptied(&mut self.hands),
            stamped: emptied(&mut self.stamped),
            prints: emptied(&mut self.prints),
            funcs: emptied(&mut self.funcs),
            drops: emptied(&mut self.drops),
            readers: emptied(&mut self.readers),
            ..Live::new(at)
        };
        self
    }

    /// Came in from outside, as far as its functions tell.
    pub(super) fn was_received(&self) -> bool {
        self.received_by_parent
            || (self.rx_at != i64::MAX && self.rx_at <= self.tx_at)
            || (self.tx_at == i64::MAX && self.roles & (LOCAL_IN | FORWARD) != 0)
    }

    /// Last given to a device or to the queue above it.
    pub(super) fn sent(&self) -> Option<(i64, i64)> {
        self.xmits.last().or(self.queued.last()).copied()
    }

    /// Received again after that: a virtual link to another namespace.
    pub(super) fn hopped_at(&self) -> Option<i64> {
        let sent = self.sent()?;
        self.received.iter().map(|r| r.0).filter(|at| *at > sent.0).min()
    }

    /// Says whether it is its first meeting with the function of that number ([`super::Numbers`]).
    pub(super) fn meets(&mut self, number: u32) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.funcs.len() <= word {
            self.funcs.resize(word + 1, 0);
        }
        let first = self.funcs[word] & bit == 0;
        self.funcs[word] |= bit;
        first
    }

    /// What a function's roles tell of the packet's way.
    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        if roles.0 == 0 {
            return;
        }
        self.roles |= roles.0;
        let span = (t.entry, t.end);
        if roles.has(RX) {
            self.rx_at = self.rx_at.min(t.entry);
            add_span(&mut self.received, span);
        }
        // What receives may be among the calls that were lost.
        if roles.has(RX | TRANSPORT) || roles.has(LOCAL_IN) && !roles.has(SOCK_QUEUE) {
            self.rx_last = self.rx_last.max(t.entry);
        }
        if roles.has(STAMPED) && self.stamped.len() < MAX_SPANS {
            self.stamped.push(t.entry);
        }
        if roles.has(GRO) {
            self.gro_at = self.gro_at.max(t.entry);
        }
        if roles.has(LOCAL_OUT | XMIT | XMIT_QUEUE) {
            self.tx_at = self.tx_at.min(t.entry);
        }
        if roles.has(XMIT) {
            add_span(&mut self.xmits, span);
            self.xmit_at = self.xmit_at.max(t.entry);
            self.xmit_on = Some((t.cpu, t.ctx));
            self.by_points = t.point_len.is_some();
            if roles.has(HAND_ON) {
                add_span(&mut self.hands, span);
            } else if self.drivers.len() < MAX_SPANS {
                self.drivers.push(t.entry);
            }
        }
        if roles.has(XMIT_QUEUE) {
            add_span(&mut self.queued, span);
        }
        if roles.has(XMIT_QUEUE | QDISC_IN) {
            self.queue_at = self.queue_at.max(t.entry);
        }
        if roles.has(QDISC_IN) && !roles.has(XMIT_QUEUE) && t.entry > self.enqueued.0 {
            self.enqueued = span;
        }
        if roles.has(XMIT | QDISC_IN) {
            self.out_first = self.out_first.min(t.entry);
        }
        if roles.has(QDISC_OUT) {
            self.dequeued_first = self.dequeued_first.min(t.entry);
        }
        // A point is where the driver's function begins; this is where it has returned.
        if roles.has(XMIT_DONE)
            && self.xmit_on == Some((t.cpu, t.ctx))
            && let Some(x) = self.xmits.last_mut().filter(|x| x.0 == x.1)
        {
            x.1 = t.entry;
        }
        if roles.has(LOCAL_IN) {
            self.local_in_at = self.local_in_at.max(t.entry);
        }
        if roles.has(FREE) {
            self.free_at = self.free_at.max(t.entry);
        }
        if roles.has(TAP) {
            add_span(&mut self.taps, span);
        }
        if roles.has(SOCK_QUEUE) {
            self.queued_at = (self.queued_at.0.min(t.entry), self.queued_at.1.max(t.entry));
        }
        if roles.has(SOCK_READ) {
            self.read(t);
        }
    }

    pub(super) fn read(&mut self, t: &Touch) {
        let pid = if t.ctx == Context::Task { t.pid } else { 0 };
        if let Some(r) = self.readers.iter_mut().find(|r| r.pid == pid) {
            (r.from, r.to) = (r.from.min(t.entry), r.to.max(t.entry));
        } else if self.readers.len() < MAX_READERS {
            self.readers.push(Reader { pid, from: t.entry, to: t.entry });
        }
    }

    /// The task that took it as its receiver: not a sniffer, who can read it before, or without, its being queued to a
    /// socket of its own.
    pub(super) fn reader(&self, sniffers: &[u32]) -> Option<u32> {
        let tapped = self.roles & TAP != 0;
        let early = |at: i64| tapped && at < self.queued_at.0;
        let fits = |r: &&Reader| r.pid != 0 && !early(r.from) && !sniffers.contains(&r.pid);
        self.readers.iter().find(fits).map(|r| r.pid)
    }

    /// Header fields at a time: the last that were logged until then, else the first after.
    pub(super) fn print_at(&self, at: i64) -> Option<&Print> {
        let usable = || self.prints.iter().filter(|p| p.is_usable());
        usable().rev().find(|p| p.at <= at).or_else(|| usable().next())
    }

    /// The device that it was last given to. Within the call the other end of a virtual link may already have it.
    pub(super) fn out_by(&self) -> Option<&Print> {
        let (from, to) = self.sent()?;
        let until = if self.hopped_at().is_some() { from } else { to };
        let with_device = || self.prints.iter().filter(|p| p.ifindex != 0);
        with_device().rev().find(|p| p.at <= until).or_else(|| with_device().find(|p| p.at <= to))
    }
}

/// An outermost span replaces those within it.
pub(super) fn add_span(spans: &mut Vec<(i64, i64)>, span: (i64, i64)) {
    while spans.last().is_some_and(|s| s.0 >= span.0 && s.1 <= span.1) {
        spans.pop();
    }
    if spans.len() >= MAX_SPANS {
        spans.pop();
    }
    spans.push(span);
}
