//! The samples one by one, in order of time: for formats that have a time axis.

use super::{Alike, Frames, Function, functions};
use crate::error::Result;
use crate::store::Store;
use kpat_model::{Busy, Purpose};
use kpat_store::tables::{SampleRow, StackRow};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub at_ns: i64,
    pub cpu: i32,
    pub busy: Busy,
    pub purpose: Purpose,
    pub served: Option<i32>,
    pub victim: Option<i32>,
    /// Place in [`Timed::stacks`].
    pub stack: u32,
    /// What it stands for.
    pub ns: i64,
}

pub struct Timed {
    pub functions: Vec<Function>,
    /// Places in `functions`, outermost first; each stack once.
    pub stacks: Vec<Vec<u32>>,
    /// Without those of idle CPUs.
    pub moments: Vec<Moment>,
}

/// `None`: the log has no samples.
pub fn timed(log: &Store) -> Result<Option<Timed>> {
    let table = log.table::<SampleRow>()?;
    if table.rows() == 0 {
        return Ok(None);
    }
    let stacks = log.all::<StackRow>()?;
    let mut frames: Frames<'_> = HashMap::new();
    for r in &stacks {
        frames.entry(r.stack).or_default().push(r);
    }
    let mut found = Timed { functions: Vec::new(), stacks: Vec::new(), moments: Vec::new() };
    let mut numbers: HashMap<Function, u32> = HashMap::new();
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let mut met: HashMap<Alike, u32> = HashMap::new();
    table.each((0..table.groups()).collect(), |r: SampleRow| {
        if r.busy == Busy::Idle as i32 {
            return;
        }
        let stack = *met.entry(Alike::of(&r)).or_insert_with_key(|alike| {
            let mut number = |f: Function| {
                *numbers.entry(f).or_insert_with_key(|f| {
                    found.functions.push(f.clone());
                    found.functions.len() as u32 - 1
                })
            };
            let path: Vec<u32> = functions(alike, &frames).into_iter().map(&mut number).collect();
            *known.entry(path).or_insert_with_key(|path| {
                found.stacks.push(path.clone());
                found.stacks.len() as u32 - 1
            })
        });
        found.moments.push(Moment {
            at_ns: r.at_ns,
            cpu: r.cpu,
            busy: Busy::from_number(r.busy).unwrap_or(Busy::Hardirq),
            purpose: Purpose::from_number(r.purpose).unwrap_or(Purpose::Kernel),
            served: super::charged(&r),
            victim: r.victim,
            stack,
            ns: r.period_ns,
        });
    })?;
    found.moments.sort_by_key(|m| (m.at_ns, m.cpu));
    Ok(Some(found))
}
