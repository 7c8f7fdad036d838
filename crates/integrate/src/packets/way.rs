//! The way that a packet takes through the kernel, as the roles of the functions tell that had it: received, queued, given to drivers,
//! shown to sniffers.

use super::Touch;
use super::live::emptied;
use super::verdict::NEVER;
use kpat_model::Context;
use kpat_query::roles::*;

const MAX_SPANS: usize = 24;

pub(super) struct Way {
    /// Roles seen, as bits.
    pub(super) roles: u32,
    /// Earliest entry with a role that receives, and that makes or sends.
    rx_at: i64,
    tx_at: i64,
    /// Latest entry that only a received packet has, and of receive offload.
    pub(super) rx_last: i64,
    pub(super) gro_at: i64,
    /// Latest entry of what receives from a device, whichever it is, and on which CPU and in which context.
    pub(super) came_at: i64,
    came_on: Option<(u16, Context)>,
    /// Latest entry of what a driver, or a virtual link, gives a packet to: the CPU's backlog, receive offload.
    arrived_at: i64,
    /// Latest entry of a queue above a device, and of a driver.
    pub(super) queue_at: i64,
    pub(super) xmit_at: i64,
    /// Latest entry of what asks for the next hop's link address.
    pub(super) asked_at: i64,
    /// When it was last given to a process that switches packets.
    pub(super) upcall_at: i64,
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
    /// Where it was last given to a driver: CPU and context.
    pub(super) xmit_on: Option<(u16, Context)>,
    /// That was a point, not a function.
    pub(super) by_moments: bool,
    /// Cut from a packet that was received.
    pub(super) received_by_parent: bool,
    /// Made of one that this host made: its headers begin at the device that sends that one.
    pub(super) sent_by_parent: bool,
}

impl Default for Way {
    fn default() -> Way {
        Way {
            roles: 0,
            rx_at: i64::MAX,
            tx_at: i64::MAX,
            rx_last: NEVER,
            gro_at: NEVER,
            came_at: NEVER,
            came_on: None,
            arrived_at: NEVER,
            queue_at: NEVER,
            xmit_at: NEVER,
            asked_at: NEVER,
            upcall_at: NEVER,
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
            xmit_on: None,
            by_moments: false,
            received_by_parent: false,
            sent_by_parent: false,
        }
    }
}

impl Way {
    pub(super) fn renewed(&mut self) -> Way {
        Way {
            received: emptied(&mut self.received),
            xmits: emptied(&mut self.xmits),
            queued: emptied(&mut self.queued),
            taps: emptied(&mut self.taps),
            drivers: emptied(&mut self.drivers),
            hands: emptied(&mut self.hands),
            stamped: emptied(&mut self.stamped),
            ..Way::default()
        }
    }

    /// Came in from outside, as far as its functions tell.
    pub(super) fn was_received(&self) -> bool {
        self.received_by_parent
            || (self.rx_at != i64::MAX && self.rx_at <= self.tx_at)
            || (self.tx_at == i64::MAX && self.roles & (LOCAL_IN | FORWARD) != 0)
    }

    /// From when on its headers are those that it was received with: a radio that is simulated, or a loop in the device, gives a copy of
    /// what was sent to another device.
    pub(super) fn received_from(&self) -> i64 {
        if self.sent_by_parent && !self.received_by_parent { self.rx_at } else { i64::MIN }
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

    /// What was dropped there is a second copy of what was received and has been sent on: a bridge that is promiscuous shows it to its own host, in the
    /// same flow of control. What comes over a virtual link arrives first.
    pub(super) fn shown_beside(&self, at: i64, on: (u16, Context)) -> bool {
        let out = self.queue_at.max(self.xmit_at);
        let shown = out < self.came_at && self.came_at <= at && self.came_on == Some(on);
        out != NEVER && shown && self.arrived_at < out && self.rx_at < out
    }

    /// It was last received in a softirq, not left to another, and that has not sent it on: what is done with it there is done before the softirq ends.
    pub(super) fn is_within_softirq(&self) -> bool {
        let received = self.came_on.is_some_and(|(_, ctx)| ctx == Context::Softirq);
        received && self.came_at > self.arrived_at.max(self.queue_at).max(self.xmit_at)
    }

    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        self.roles |= roles.0;
        let span = (t.entry, t.end);
        if roles.has(RX) {
            self.rx_at = self.rx_at.min(t.entry);
            add_span(&mut self.received, span);
            if t.entry >= self.came_at {
                (self.came_at, self.came_on) = (t.entry, Some((t.cpu, t.ctx)));
            }
        }
        if roles.has(BACKLOG_IN | GRO) {
            self.arrived_at = self.arrived_at.max(t.entry);
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
            self.by_moments = t.moment;
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
        if roles.has(NEIGHBOUR) {
            self.asked_at = self.asked_at.max(t.entry);
        }
        if roles.has(UPCALL) {
            self.upcall_at = self.upcall_at.max(t.entry);
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
        if roles.has(TAP) {
            add_span(&mut self.taps, span);
        }
    }
}

/// An outermost span replaces those within it.
fn add_span(spans: &mut Vec<(i64, i64)>, span: (i64, i64)) {
    while spans.last().is_some_and(|s| s.0 >= span.0 && s.1 <= span.1) {
        spans.pop();
    }
    if spans.len() >= MAX_SPANS {
        spans.pop();
    }
    spans.push(span);
}
