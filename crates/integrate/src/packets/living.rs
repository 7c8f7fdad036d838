//! The packets that are not over, by number. Records of one packet come in a row, or a few packets take turns: which were asked for last is
//! remembered, so most records need no hash table.

use super::live::Live;
use crate::ahead;
use kpat_model::hash::Map;

/// Packets that are over whose memory the next ones take.
const MAX_SPARE: usize = 1 << 12;
/// Packets that were asked for last, by their last bits.
const RECENT: usize = 1 << 6;

/// Where a packet is, as long as none is removed.
#[derive(Clone, Copy)]
pub(super) struct At(u32);

pub(super) struct Living {
    places: Map<u64, u32>,
    /// Apart from each other: they are a kilobyte, and the list grows.
    all: Vec<Option<Box<Live>>>,
    /// Places that nobody has.
    free: Vec<u32>,
    /// Number and place; no packet has the number 0.
    recent: [(u64, u32); RECENT],
    /// Of packets that are over, for their memory.
    #[expect(clippy::vec_box, reason = "they go back among the living as they are")]
    spare: Vec<Box<Live>>,
}

impl Default for Living {
    fn default() -> Living {
        Living {
            places: Map::default(),
            all: Vec::new(),
            free: Vec::new(),
            recent: [(0, 0); RECENT],
            spare: Vec::new(),
        }
    }
}

impl Living {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub fn find(&mut self, packet: u64) -> Option<At> {
        let recent = &mut self.recent[packet as usize % RECENT];
        if recent.0 == packet && packet != 0 {
            return Some(At(recent.1));
        }
        let place = *self.places.get(&packet)?;
        *recent = (packet, place);
        Some(At(place))
    }

    #[inline]
    pub fn at(&mut self, place: At) -> &mut Live {
        self.all[place.0 as usize].as_mut().expect("a place that was found is taken")
    }

    /// One that was not there.
    pub fn add(&mut self, packet: u64, at: i64) -> At {
        let new = match self.spare.pop() {
            Some(over) => {
                // Many are over at once, long after they were looked at.
                if let Some(next) = self.spare.last() {
                    ahead::fetch_one(&**next);
                }
                over.renewed(at)
            }
            None => Box::new(Live::new(at)),
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            (self.all.len() - 1) as u32
        });
        self.all[place as usize] = Some(new);
        self.places.insert(packet, place);
        self.recent[packet as usize % RECENT] = (packet, place);
        At(place)
    }

    /// It is asked for in a moment.
    pub fn expect(&self, packet: u64) {
        let place = self.places.get(&packet).and_then(|p| self.all[*p as usize].as_deref());
        place.into_iter().for_each(ahead::fetch_one);
    }

    pub fn remove(&mut self, packet: u64) -> Option<Box<Live>> {
        let place = self.places.remove(&packet)?;
        let recent = &mut self.recent[packet as usize % RECENT];
        if recent.0 == packet {
            *recent = (0, 0);
        }
        self.free.push(place);
        self.all[place as usize].take()
    }

    /// What one had that is over, for those to come.
    pub fn keep_memory(&mut self, of: Box<Live>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(of);
        }
    }

    /// In any order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Live)> {
        let live = |(packet, place): (&u64, &u32)| Some((*packet, self.all[*place as usize].as_deref()?));
        self.places.iter().filter_map(live)
    }
}
