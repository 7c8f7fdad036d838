//! What befell a packet: its copies dropped and freed, made into others.

use super::Touch;
use super::control::At;
use super::live::emptied;
use super::verdict::{DROP_FREES_NS, Drop, NEVER};
use kpat_model::{Context, Lineage, LineageKind};
use kpat_query::roles::*;

/// Drops of copies that are kept of a packet.
const MAX_DROPS: usize = 8;

pub(super) struct Fate {
    /// Of any of its copies.
    pub(super) drops: Vec<Drop>,
    /// The drop that was the last that befell it: what frees as dropped next on that CPU frees that copy.
    unfreed: bool,
    /// Last time that a copy of it was seen to be freed, and the last one.
    pub(super) free_at: i64,
    pub(super) ended_at: i64,
    /// On which CPU that was, and what that was at.
    pub(super) ended_on: Option<(u16, Context, At)>,
    /// What freed it then says that it was used, not dropped.
    pub(super) consumed: bool,
    /// When it last went on as another packet, or as several.
    pub(super) transformed_at: i64,
    /// When it was last copied.
    pub(super) copied_at: i64,
    /// When it was freed as a part of another packet, which nobody dropped.
    pub(super) joined_at: i64,
    /// Put together with others to the datagram that they were cut from.
    pub(super) whole_again_at: i64,
}

impl Default for Fate {
    fn default() -> Fate {
        Fate {
            drops: Vec::new(),
            unfreed: false,
            free_at: NEVER,
            ended_at: NEVER,
            ended_on: None,
            consumed: false,
            transformed_at: NEVER,
            copied_at: NEVER,
            joined_at: NEVER,
            whole_again_at: i64::MIN,
        }
    }
}

impl Fate {
    pub(super) fn renewed(&mut self) -> Fate {
        Fate { drops: emptied(&mut self.drops), ..Fate::default() }
    }

    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        if roles.has(FREE) {
            self.free_at = self.free_at.max(t.entry);
        } else if self.drops.last().is_some_and(|d| t.entry > d.at) {
            self.unfreed = false;
        }
    }

    pub(super) fn dropped(&mut self, drop: Drop) {
        self.drops.retain(|d| d.code.is_some() || !at_once(d, &drop));
        if self.drops.len() >= MAX_DROPS {
            self.drops.pop();
        }
        self.unfreed = drop.code.is_some();
        self.drops.push(drop);
    }

    /// A copy was freed where what is dropped is: of the drop before it, if nothing else befell the packet in between. However long that took: a virtual processor may
    /// stand still there.
    pub(super) fn frees_dropped(&mut self, t: &Touch) -> bool {
        let drop = self
            .drops
            .last_mut()
            .filter(|d| self.unfreed && (d.cpu, d.ctx) == (t.cpu, t.ctx) && d.at <= t.entry);
        self.unfreed = false;
        drop.map(|d| d.freed_at = t.entry).is_some()
    }

    /// Its buffer was freed where what is dropped is, which is an event of its own. If that is missing (its program was hit while it ran), it was dropped all the same.
    pub(super) fn freed_as_dropped(&mut self, drop: Drop) {
        let joined = drop.at.saturating_sub(self.joined_at) < DROP_FREES_NS;
        if !joined && !self.drops.iter().any(|d| at_once(d, &drop)) {
            self.dropped(drop);
        }
    }

    /// It was freed as a part of another packet, which nobody dropped, by what frees what is dropped.
    pub(super) fn joined(&mut self, at: i64) {
        self.joined_at = at;
        self.drops.retain(|d| d.code.is_some() || at.abs_diff(d.at) >= DROP_FREES_NS as u64);
    }

    /// Its buffer was freed; `at`: what the CPU was at.
    pub(super) fn ends(&mut self, t: &Touch, roles: Roles, at: At) {
        if t.entry >= self.ended_at {
            (self.ended_at, self.ended_on) = (t.entry, Some((t.cpu, t.ctx, at)));
            self.consumed = roles.has(CONSUMED);
        }
    }

    /// It was made into another. `goes_on`: the datagram's own buffer, as its first fragment.
    pub(super) fn became(&mut self, l: &Lineage, goes_on: bool) {
        if l.kind == LineageKind::Copy {
            self.copied_at = self.copied_at.max(l.at.0);
        } else if !goes_on {
            self.transformed_at = self.transformed_at.max(l.at.0);
        }
        if l.kind == LineageKind::Reassembly {
            self.whole_again_at = l.at.0;
        }
    }
}

/// What is dropped is freed at once.
fn at_once(a: &Drop, b: &Drop) -> bool {
    (a.cpu, a.ctx) == (b.cpu, b.ctx) && a.at.abs_diff(b.at) < DROP_FREES_NS as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::Reason;
    use crate::packets::tests::touch;

    #[test]
    fn what_is_freed_as_dropped_was_dropped_once() {
        let (code, reason, within) = (Some(7), Reason::Packet, At::default());
        let event = |at| Drop { at, code, reason, cpu: 1, ctx: Context::Softirq, within, freed_at: NEVER };
        let free = |at| Drop { code: None, reason: Reason::Unspecified, ..event(at) };
        let drops = |fate: &Fate| fate.drops.iter().map(|d| (d.at, d.code)).collect::<Vec<_>>();
        let mut fate = Fate::default();
        fate.freed_as_dropped(free(10));
        assert_eq!(drops(&fate), [(10, None)], "its event is missing");
        // the event comes behind the free, and before it
        fate.dropped(event(900));
        fate.freed_as_dropped(free(1_000));
        assert_eq!(drops(&fate), [(900, Some(7))]);
        // a part of another packet, which nobody dropped
        let mut part = Fate::default();
        part.freed_as_dropped(free(5));
        part.joined(10);
        part.freed_as_dropped(free(20));
        assert_eq!(drops(&part), []);
        // another copy's
        fate.freed_as_dropped(Drop { cpu: 0, ..free(1_100) });
        assert_eq!(drops(&fate), [(900, Some(7)), (1_100, None)]);
    }

    #[test]
    fn a_copy_is_freed_by_its_drop_however_long_that_takes() {
        let drop = |at| Drop {
            at,
            code: Some(7),
            reason: Reason::Packet,
            cpu: 1,
            ctx: Context::Softirq,
            within: At::default(),
            freed_at: NEVER,
        };
        let free = |at, cpu| Touch { cpu, ..touch(at, at, Context::Softirq) };
        let late = 10 + 6 * DROP_FREES_NS;
        let mut fate = Fate::default();
        fate.dropped(drop(10));
        assert!(fate.frees_dropped(&free(late, 1)) && fate.drops[0].freed_at == late);
        assert!(!fate.frees_dropped(&free(late + 1, 1)), "it was freed");
        fate.dropped(drop(late + 2));
        assert!(!fate.frees_dropped(&free(late + 3, 0)), "on another CPU");
        fate.dropped(drop(late + 4));
        fate.play(&free(late + 5, 1), Roles(SOCK_QUEUE));
        assert!(!fate.frees_dropped(&free(late + 6, 1)), "another copy went on since");
    }
}
