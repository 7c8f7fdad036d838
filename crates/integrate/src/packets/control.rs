//! In which driver's function a CPU is, from the order of records: of one flow of control (a CPU and a context) the functions nest.
//!
//! A point says that a driver was given a packet. The point behind it is missing where the driver freed the packet, for there is no
//! packet then to write it of; so what ends the function is the next thing that cannot happen within it. Rejected: a time, which a
//! machine that stands still exceeds and a quick one falls below.

use super::Touch;
use kpat_model::Context;
use kpat_model::hash::Map;
use kpat_query::roles::*;

/// Drivers' functions within each other that are kept: devices over devices.
const MAX_DEEP: usize = 8;

/// One flow of control.
#[derive(Default)]
struct Flow {
    /// Packets that a driver was given and has not returned, and when.
    open: Vec<(u64, i64)>,
    /// The packets that went last from place to place, the last one first, and when they last did.
    last: [(u64, i64); 2],
}

/// All of them.
#[derive(Default)]
pub(super) struct Control {
    flows: Map<(u16, u8), Flow>,
    /// Where the last thing that happened is that packets were dropped, and of which datagram they are fragments (0: of none).
    dropping: Vec<(u16, Context, u64)>,
}

/// What a flow of control was at, as far as one packet is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    /// Within a driver's function that was given the packet.
    pub driver: bool,
    /// When another packet last went from place to place here.
    pub other: i64,
}

impl Control {
    /// `made`: the packet was first seen then and was not received, else [`i64::MIN`].
    pub(super) fn touch(&mut self, t: &Touch, roles: Roles, made: i64) {
        // What a driver that is another device's other end receives waits for its turn.
        let moves = roles.has(RX | XMIT | XMIT_DONE | XMIT_QUEUE | QDISC_IN | QDISC_OUT);
        if !self.dropping.is_empty() && (moves || roles.has(CONSUMED | SOCK_READ)) {
            self.dropping.retain(|d| (d.0, d.1) != (t.cpu, t.ctx));
        }
        if !moves || roles.has(BACKLOG_IN) {
            return;
        }
        let flow = self.flows.entry((t.cpu, t.ctx as u8)).or_default();
        if flow.last[0].0 != t.packet {
            flow.last[1] = flow.last[0];
        }
        flow.last[0] = (t.packet, t.entry);
        if !t.moment {
            return;
        }
        if let Some(n) = flow.open.iter().rposition(|o| o.0 == t.packet) {
            // Its own next step, perhaps to a device below; the driver's return ends also what was within.
            if roles.has(XMIT_DONE) {
                flow.open.truncate(n);
            } else if roles.has(RX) {
                flow.open.truncate(n + 1);
            }
        } else if let Some(&(_, since)) = flow.open.first() {
            // A tunnel's answer to a packet that is too long, or its question for a neighbour, is made within. A task's next
            // packet is made after.
            let within = t.ctx != Context::Task && made > since && !roles.has(RX);
            if !within {
                flow.open.clear();
            }
        }
        if roles.has(XMIT) {
            flow.open.retain(|o| o.0 != t.packet);
            if flow.open.len() == MAX_DEEP {
                flow.open.remove(0);
            }
            flow.open.push((t.packet, t.entry));
        }
    }

    /// A packet was dropped.
    pub(super) fn dropped(&mut self, cpu: u16, ctx: Context, datagram: u64) {
        self.dropping.retain(|d| (d.0, d.1) != (cpu, ctx));
        self.dropping.push((cpu, ctx, datagram));
    }

    /// What is freed now as a part is a part of what was dropped.
    pub(super) fn drops_parts(&self, cpu: u16, ctx: Context, datagram: u64) -> bool {
        self.dropping.contains(&(cpu, ctx, datagram))
    }

    /// A driver's poll is over: whatever ran within has returned.
    pub(super) fn polled(&mut self, cpu: u16) {
        if let Some(flow) = self.flows.get_mut(&(cpu, Context::Softirq as u8)) {
            flow.open.clear();
        }
    }

    pub(super) fn at(&self, cpu: u16, ctx: Context, packet: u64) -> At {
        let Some(flow) = self.flows.get(&(cpu, ctx as u8)) else {
            return At { driver: false, other: i64::MIN };
        };
        let other = flow.last.iter().find(|l| l.0 != packet && l.0 != 0).map_or(i64::MIN, |l| l.1);
        At { driver: flow.open.iter().any(|o| o.0 == packet), other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of (roles, packet, made), a millisecond or an hour apart; is the last packet in a driver then?
    fn check(steps: &[(u32, u64, i64)], ctx: Context, expected: bool) {
        for apart in [1_000, 3_600_000_000_000] {
            let mut c = Control::default();
            for (n, &(roles, packet, made)) in (1..).zip(steps) {
                let at = n * apart;
                let made = if made < 0 { i64::MIN } else { made * apart };
                let t = Touch {
                    packet,
                    func: 0,
                    cpu: 1,
                    entry: at,
                    end: at,
                    self_ns: 0,
                    ctx,
                    pid: 7,
                    skb_tag: 0,
                    point_len: Some(100),
                    moment: true,
                    ends: false,
                    put_off: false,
                };
                c.touch(&t, Roles(roles), made);
            }
            let last = steps.last().map_or(0, |s| s.1);
            assert_eq!(c.at(1, ctx, last).driver, expected, "{steps:?} {apart}");
            assert!(!c.at(0, ctx, last).driver && !c.at(1, Context::Hardirq, last).driver);
        }
    }

    #[test]
    fn order_and_no_clock_says_whether_the_driver_is_at_it() {
        const QUEUE: u32 = XMIT_QUEUE | QDISC_IN;
        let (soft, task) = (Context::Softirq, Context::Task);
        check(&[(QUEUE, 1, 0), (XMIT, 1, 0)], soft, true);
        check(&[(XMIT, 1, 0), (XMIT_DONE, 1, 0)], soft, false);
        // its own freeing and its sniffers' say nothing
        check(&[(XMIT, 1, 0), (FREE, 1, 0)], task, true);
        // another was received, or queued, or sent: the driver has returned
        for other in [RX, QUEUE, XMIT, QDISC_OUT, XMIT_DONE] {
            check(&[(XMIT, 1, 0), (other, 2, 0), (FREE, 1, 0)], soft, false);
        }
        check(&[(XMIT, 1, 0), (QUEUE, 2, 2), (FREE, 1, 0)], task, false);
        // an answer that is made within a tunnel's function, up to its own driver and back
        check(&[(XMIT, 1, 0), (QUEUE, 2, 2), (XMIT, 2, 2), (XMIT_DONE, 2, 2), (FREE, 1, 0)], soft, true);
        check(&[(XMIT, 1, 0), (QUEUE, 2, 2), (XMIT, 2, 2), (FREE, 2, 2)], soft, true);
        // over the device below and back
        check(&[(XMIT, 1, 0), (QUEUE, 1, 0), (XMIT, 1, 0), (XMIT_DONE, 1, 0)], soft, false);
        // a virtual cable's far end queues it while the driver is at it
        check(&[(XMIT, 1, 0), (RX | BACKLOG_IN, 1, 0)], task, true);
    }
}
