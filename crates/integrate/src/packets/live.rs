//! A packet while it is alive: what is remembered of it, each concern by itself ([`Way`], [`Taken`], [`Prints`], [`Fate`], [`Counted`]), and
//! what takes several of them to say.

use super::super::arrivals::Arrival;
use super::super::stamps::Stamp;
use super::Touch;
use super::counted::Counted;
use super::fate::Fate;
use super::prints::{Print, Prints};
use super::taken::Taken;
use super::way::Way;
use kpat_query::roles::*;

/// See [`super::datagrams`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Fragment {
    /// It was a whole datagram, or no IP at all, in some header before.
    pub whole: bool,
    /// Of the datagram that it is, or was, a fragment of; 0: never was.
    pub key: u64,
    /// What the whole of that has in common with it.
    pub same: u64,
    /// The kernel reported which packet it was cut from.
    pub logged: bool,
}

pub(super) struct Live {
    pub(super) first: i64,
    pub(super) last: i64,
    /// As it was first seen.
    pub(super) arrival: Option<Arrival>,
    pub(super) stamp: Option<Stamp>,
    pub(super) counted: Counted,
    pub(super) way: Way,
    pub(super) taken: Taken,
    pub(super) headers: Prints,
    /// What they showed of fragments so far.
    pub(super) fragment: Fragment,
    pub(super) fate: Fate,
}

/// The memory of one that is over.
pub(super) fn emptied<T>(of: &mut Vec<T>) -> Vec<T> {
    let mut all = std::mem::take(of);
    all.clear();
    all
}

impl Live {
    pub(super) fn new(at: i64) -> Live {
        Live {
            first: at,
            last: at,
            arrival: None,
            stamp: None,
            counted: Counted::default(),
            way: Way::default(),
            taken: Taken::default(),
            headers: Prints::default(),
            fragment: Fragment::default(),
            fate: Fate::default(),
        }
    }

    /// Another packet, in the memory of one that is over.
    pub(super) fn renewed(mut self: Box<Self>, at: i64) -> Box<Live> {
        *self = Live {
            counted: self.counted.renewed(),
            way: self.way.renewed(),
            taken: self.taken.renewed(),
            headers: self.headers.renewed(),
            fate: self.fate.renewed(),
            ..Live::new(at)
        };
        self
    }

    /// What a function's roles tell.
    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        self.headers.turn_to(t.skb_tag, t.entry);
        if roles.0 != 0 {
            self.way.play(t, roles);
            self.taken.play(t, roles);
            self.fate.play(t, roles);
        }
    }

    /// The device that it was last given to. Within the call the other end of a virtual link may already have it.
    pub(super) fn out_by(&self) -> Option<&Print> {
        let (from, to) = self.way.sent()?;
        if let Some((_, there)) = self.taken_copy() {
            return self.headers.before(there);
        }
        let until = if self.way.hopped_at().is_some() { from } else { to };
        let with_device = || self.headers.all.iter().filter(|p| p.ifindex != 0);
        with_device().rev().find(|p| p.at <= until).or_else(|| with_device().find(|p| p.at <= to))
    }
}
