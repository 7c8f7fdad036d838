//! Polls of cards: what the driver says that it took, and how many packets were first seen meanwhile.

use crate::arrivals::began_raised;
use kpat_model::hash::Map;
use kpat_model::{FootprintRecord, Poll, PollEnd};
use kpat_store::tables::PollRow;

struct Open {
    packet: u64,
    began: Option<(i64, Option<i64>)>,
    /// Namespace and interface of the first packet, 0: unknown.
    card: (u32, u32),
    seen: i64,
}

/// The poll that each CPU is in.
#[derive(Default)]
pub(super) struct Polls {
    open: Map<u16, Open>,
}

impl Polls {
    /// A poll's first packet, or the first after some that are not in the log.
    pub fn began(&mut self, cpu: u16, p: &Poll) {
        let began = began_raised(p);
        // Within a poll that is known, as packets were left out: the same poll.
        if began.is_some() || !self.open.contains_key(&cpu) {
            self.open.insert(cpu, Open { packet: p.packet.0, began, card: (0, 0), seen: 0 });
        }
    }

    /// A packet is seen for the first time.
    pub fn first(&mut self, cpu: u16, f: &FootprintRecord) {
        // An answer that is made in the same softirq has no link header yet.
        if f.start_layer != 2 {
            return;
        }
        if let Some(open) = self.open.get_mut(&cpu) {
            if open.seen == 0 {
                open.card = (f.netns, f.ifindex);
            }
            open.seen += 1;
        }
    }

    pub fn ended(&mut self, cpu: u16, p: &PollEnd) -> PollRow {
        let open = self.open.remove(&cpu).filter(|o| o.packet == p.packet.0);
        let card = open.as_ref().map(|o| o.card).filter(|c| c.1 != 0);
        let began = open.as_ref().and_then(|o| o.began);
        PollRow {
            ended_ns: p.at.0,
            cpu: i32::from(cpu),
            packet_id: p.packet.0 as i64,
            netns: card.map(|c| i64::from(c.0)),
            ifindex: card.map(|c| c.1 as i32),
            began_ns: began.map(|b| b.0),
            raised_ns: began.and_then(|b| b.1),
            taken: p.taken.into(),
            budget: p.budget.into(),
            seen: open.map(|o| o.seen),
            round: p.round.min(i64::MAX as u64) as i64,
        }
    }
}
