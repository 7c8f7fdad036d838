//! Which packets a function touched: read of the calls, or kept in memory as a bit for each packet and function.

use super::Store;
use crate::abreast::abreast;
use crate::codes::call_flag;
use crate::error::Result;
use kpat_model::hash::{Map, Numbers};
use kpat_store::NULL;
use kpat_store::tables::*;
use std::collections::BTreeSet;

/// Memory that the kept bits of all functions may take, bytes.
const MOST: u64 = 64 << 20;

/// The packets of each function that has some, by its id.
pub(crate) type Touching = Vec<Numbers>;

impl Store {
    /// Reads once what every function touched and keeps it, so that filters by function answer at once. Nothing is kept
    /// of a log with too many functions and packets. `progress` gets row groups of calls.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub fn keep_touching(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let with_calls = self.functions.iter().filter(|f| f.calls > 0).count() as u64;
        let packets = self.table::<PacketRow>()?.rows();
        if self.touching.get().is_some() || with_calls * packets.next_power_of_two() / 8 > MOST {
            return Ok(());
        }
        let mut all: Touching = vec![Numbers::default(); self.functions.len()];
        self.each_touched(&vec![true; self.functions.len()], progress, &mut |func, packet| {
            all[func as usize].insert(packet);
        })?;
        let _ = self.touching.set(all);
        Ok(())
    }

    /// Packets that some function whose name fits touched. `progress` gets row groups of calls.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub(crate) fn packets_of_functions(
        &self,
        fits: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Numbers> {
        let wanted: Vec<bool> = self.functions.iter().map(|f| !f.name.is_empty() && fits(&f.name)).collect();
        let mut out = Numbers::default();
        if let Some(all) = self.touching.get() {
            all.iter().zip(&wanted).filter(|(_, w)| **w).for_each(|(packets, _)| out.unite(packets));
        } else {
            self.each_touched(&wanted, progress, &mut |_, packet| out.insert(packet))?;
        }
        Ok(out)
    }

    /// Tells of every function wanted, and every packet that it touched, at least once.
    fn each_touched(
        &self,
        wanted: &[bool],
        progress: &mut dyn FnMut(u64, u64) -> bool,
        tell: &mut dyn FnMut(i64, i64),
    ) -> Result<()> {
        let ids: Vec<i64> = (0..wanted.len()).filter(|&i| wanted[i]).map(|i| i as i64).collect();
        let (Some(&low), Some(&high)) = (ids.first(), ids.last()) else { return Ok(()) };
        let fits = |f: i64| wanted.get(f as usize).copied().unwrap_or(false);
        let calls = self.table::<CallRow>()?;
        let members = self.table::<CallMemberRow>()?;
        let index = self.table::<CallIndexRow>()?;
        let mut in_groups: BTreeSet<usize> = BTreeSet::new();
        index.each(index.groups_where("func_id", &(low..=high)), |i: CallIndexRow| {
            if fits(i64::from(i.func_id)) {
                in_groups.insert(i.row_group as usize);
            }
        })?;
        let groups: Vec<usize> = in_groups.into_iter().filter(|g| *g < calls.groups()).collect();
        let touched = |group: &usize, _: &dyn Fn() -> bool| {
            let funcs = calls.ints(*group, "func_id")?;
            let packets = calls.ints(*group, "packet_id")?;
            let hits = funcs.iter().zip(&packets).filter(|(f, p)| **p != NULL && fits(**f));
            let mut pairs: Vec<(i64, i64)> = hits.map(|(f, p)| (*f, *p)).collect();
            pairs.dedup();
            let mut of_lists = Vec::new();
            if members.rows() > 0 {
                let ids = calls.ints(*group, "call_id")?;
                let flags = calls.ints(*group, "flags")?;
                let list = i64::from(call_flag::LIST);
                let hits = (0..ids.len()).filter(|&i| flags[i] & list != 0 && fits(funcs[i]));
                of_lists.extend(hits.map(|i| (ids[i], funcs[i])));
            }
            Ok((pairs, of_lists))
        };
        let mut lists: Map<i64, i64> = Map::default();
        abreast(&groups, progress, &touched, &mut |(pairs, of_lists)| {
            pairs.into_iter().for_each(|(func, packet)| tell(func, packet));
            lists.extend(of_lists);
        })?;
        if !lists.is_empty() {
            for group in 0..members.groups() {
                let ids = members.ints(group, "call_id")?;
                let packets = members.ints(group, "packet_id")?;
                let hits = ids.iter().zip(&packets).filter_map(|(id, p)| Some((*lists.get(id)?, *p)));
                hits.for_each(|(func, packet)| tell(func, packet));
            }
        }
        Ok(())
    }
}
