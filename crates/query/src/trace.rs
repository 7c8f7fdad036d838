//! Everything of a log, or of the packets that fit, in one pass: for writers of other formats.
//!
//! A call stands in exactly one tree and is given once, whatever it touched; a packet's calls are given when all of them
//! are read. Memory is what is open at one time ([`crate::walk`]).

use crate::abreast::Progress;
use crate::choice::PacketFilter;
use crate::error::Error;
use crate::store::Store;
use crate::walk::{Asked, Life, Sum, Tree, numbers, walk, walk_slices};
use kpat_model::hash::Map;
use kpat_store::tables::{CallRow, PacketRow};
use std::cell::RefCell;

/// Makes something of a packet and its calls; several threads do at once.
pub type OfLife<'a, T> = &'a (dyn Fn(&PacketRow, &[CallRow]) -> T + Sync);

/// What was made of the packets of one slice.
struct Made<'a, T> {
    of: OfLife<'a, T>,
    packets: Map<i64, PacketRow>,
    made: Vec<T>,
}

impl<T: Send> Sum for Made<'_, T> {
    fn packet(&mut self, p: &PacketRow) {
        self.packets.insert(p.packet_id, p.clone());
    }

    fn life(&mut self, life: Life) {
        if let Some(p) = self.packets.remove(&life.brief.packet_id) {
            self.made.push((self.of)(&p, &life.rows));
        }
    }
}

/// Packets in memory at a time, for each thread.
const SLICE: usize = 4_096;

/// Which packets.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    pub filter: PacketFilter,
    /// Only this one.
    pub packet: Option<i64>,
}

impl Chosen {
    /// Nothing in particular: calls without a known packet belong to it as well.
    pub fn is_all(&self) -> bool {
        self.packet.is_none() && self.filter == PacketFilter::default()
    }
}

/// A whole tree of calls, parents before children, children in order of entry; calls that were not asked for included, for
/// they are the callers of others.
pub struct TreeOfCalls<'a> {
    tree: &'a Tree<'a>,
    at: RefCell<usize>,
}

impl TreeOfCalls<'_> {
    pub fn rows(&self) -> &[CallRow] {
        self.tree.rows
    }

    /// The call at `i` touched a chosen packet, or all calls were asked for.
    pub fn is_chosen(&self, i: usize) -> bool {
        self.tree.groups[i].is_some()
    }

    /// Chosen packets that the call at `i` touched, those of its list included.
    pub fn packets(&self, i: usize) -> impl Iterator<Item = i64> {
        let all = self.tree.packets;
        let mut at = self.at.borrow_mut();
        // As a rule the places are asked for in their order.
        if all.get(*at).is_none_or(|p| p.0 != i) || (*at > 0 && all[*at - 1].0 == i) {
            *at = all.partition_point(|p| p.0 < i);
        }
        let from = *at;
        let to = from + all[from..].iter().take_while(|p| p.0 == i).count();
        *at = to;
        all[from..to].iter().map(|p| p.1)
    }

    /// Place of the caller of the call at `i`.
    pub fn parent(&self, i: usize) -> Option<usize> {
        self.tree.parent(i)
    }
}

impl Store {
    /// Gives every tree with a chosen call; the first error ends it.
    pub fn each_tree<E: From<Error>>(
        &self,
        chosen: &Chosen,
        progress: Progress<'_>,
        give: &mut dyn FnMut(&TreeOfCalls<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let failed: RefCell<Option<E>> = RefCell::new(None);
        let asked = Asked { filter: &chosen.filter, packet: chosen.packet };
        let mut tree = |tree: &Tree<'_>| {
            let mut failed = failed.borrow_mut();
            if failed.is_none() {
                *failed = give(&TreeOfCalls { tree, at: RefCell::new(0) }).err();
            }
        };
        let mut waits = |done, of| failed.borrow().is_none() && progress(done, of);
        let walked = walk(self, &asked, &mut waits, &mut |_| 0, &mut tree, &mut |_| ());
        failed.into_inner().map_or(walked.map_err(E::from), Err)
    }

    /// Gives what `of` makes of every chosen packet and its calls and points in order of entry; the first error ends it.
    pub fn each_life<T: Send, E: From<Error>>(
        &self,
        chosen: &Chosen,
        progress: Progress<'_>,
        of: OfLife<'_, T>,
        give: &mut dyn FnMut(T) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut found: Vec<i64> = Vec::new();
        let ids = match (chosen.packet, numbers(&chosen.filter)) {
            (None, Some(ids)) => ids,
            _ => {
                self.each_chosen(chosen, &mut |p| -> std::result::Result<(), E> {
                    found.push(p.packet_id);
                    Ok(())
                })?;
                found.sort_unstable();
                Some(found.as_slice())
            }
        };
        let failed: RefCell<Option<E>> = RefCell::new(None);
        let mut waits = |done, of| failed.borrow().is_none() && progress(done, of);
        let new = || Made { of, packets: Map::default(), made: Vec::new() };
        let walked = walk_slices(self, ids, SLICE, &mut waits, &new, &mut |slice| {
            let mut failed = failed.borrow_mut();
            if failed.is_none() {
                *failed = slice.made.into_iter().try_for_each(&mut *give).err();
            }
        });
        failed.into_inner().map_or(walked.map_err(E::from), Err)
    }

    /// Gives the chosen packets in the order of their first moment; the first error ends it.
    ///
    /// Errors: [`Error::NoSuchPacket`] where one was asked for and is not there.
    pub fn each_chosen<E: From<Error>>(
        &self,
        chosen: &Chosen,
        give: &mut dyn FnMut(PacketRow) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let Some(id) = chosen.packet else {
            return self.each_packet(&chosen.filter, Default::default(), false, &mut |p| {
                give(p)?;
                Ok(true)
            });
        };
        let table = self.table::<PacketRow>()?;
        let found = table.rows_equal::<PacketRow>("packet_id", &[id]).map_err(Error::from)?;
        let Some(packet) = found.into_iter().next() else {
            return Err(Error::NoSuchPacket { id, count: table.rows() }.into());
        };
        give(packet)?;
        Ok(1)
    }
}
