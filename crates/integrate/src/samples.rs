//! Samples of a profile: their stacks with names, and whom each served.
//!
//! Within a softirq a packet's owner is found while it is handled. A sample that comes before waits in the kernel until it is found; one that comes before the
//! first packet belongs to all of that softirq, and is given to one of them by lot. Only where a second sample comes while one waits its owner is not known:
//! such samples are divided among those who were served on that CPU in softirqs upon the same process, by the time that each was charged with. Both are
//! estimates, and marked as drawn.
//!
//! Who that was is known when the log is read, so samples and stacks wait on disk. What stays in memory is what there is once however long a recording
//! is: twenty bytes for each stack, code that was met and what was mapped.

use crate::charges::{Charges, Served, User};
use crate::error::Result;
use crate::spill::{Fixed, Put, Sorter, Take};
use crate::symbols::{Mapped, Named, Place, Wanted, names};
use kpat_model::{BootNs, Busy, CpuSample, Mapping, MappingKind, ProcessNumber, Purpose, SampledStack};
use kpat_store::TableWriter;
use kpat_store::tables::{SampleRow, StackRow};
use mappings::Mappings;
use stacks::Stacks;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

mod mappings;
mod stacks;

pub(super) struct Samples {
    all: Sorter<Sample>,
    stacks: Stacks,
    mappings: Mappings,
}

/// A sample and where it was taken.
#[derive(Clone, Copy)]
struct Sample {
    cpu: u16,
    of: CpuSample,
}

impl Fixed for Sample {
    const BYTES: usize = 8 + 2 + 4 + 4 + 3 + 4 * 8;
    type Key = (i64, u16);

    fn key(&self) -> (i64, u16) {
        (self.of.at.0, self.cpu)
    }

    fn write(&self, to: &mut Put<'_>) {
        let s = &self.of;
        to.i64(s.at.0).u16(self.cpu).u32(s.thread).u32(s.process);
        to.u8(s.busy as u8).u8(s.purpose as u8).u8(s.flags);
        to.u64(s.socket).u64(s.kernel).u64(s.user).u64(s.period_ns);
    }

    fn read(from: &mut Take<'_>) -> Self {
        let (at, cpu, thread, process) = (BootNs(from.i64()), from.u16(), from.u32(), from.u32());
        let (busy, purpose, flags) = (from.u8(), from.u8(), from.u8());
        let (socket, kernel, user, period_ns) = (from.u64(), from.u64(), from.u64(), from.u64());
        // Only codes that are known were written.
        let busy = Busy::from_u8(busy).unwrap_or(Busy::Idle);
        let purpose = Purpose::from_u8(purpose).unwrap_or(Purpose::Unknown);
        let of = CpuSample { at, thread, process, busy, purpose, flags, socket, kernel, user, period_ns };
        Sample { cpu, of }
    }
}

/// Samples held in memory at most.
const MOST_HELD: usize = 1 << 16;

/// One frame: a function, or several where they are inlined, or only where it is.
struct Frame {
    file: Option<String>,
    offset: Option<i64>,
    named: Vec<Named>,
}

impl Samples {
    /// `dir`: for what must wait until the log is read.
    pub fn new(dir: &Path) -> Samples {
        Samples {
            all: Sorter::new(dir, "samples", MOST_HELD),
            stacks: Stacks::new(dir),
            mappings: Mappings::default(),
        }
    }

    pub fn sample(&mut self, cpu: u16, s: &CpuSample) -> Result<()> {
        self.all.push(Sample { cpu, of: *s })
    }

    pub fn stack(&mut self, s: &SampledStack) -> Result<()> {
        self.stacks.add(s)
    }

    pub fn mapping(&mut self, m: Mapping) {
        self.mappings.add(m);
    }

    /// `kernel`: names of the kernel's addresses, `function+0x12`.
    pub fn finish(mut self, dir: &Path, charges: &Charges, kernel: &HashMap<u64, String>) -> Result<()> {
        self.stacks.end()?;
        self.mappings.end();
        self.write_stacks(dir, kernel)?;
        let mut lots = Lots::default();
        let mut rows = TableWriter::<SampleRow>::create(dir)?;
        let sorted = self.all.finish()?;
        let mut all = sorted.iter()?;
        while let Some(Sample { cpu, of: s }) = all.next()? {
            if charges.is_behind(cpu, s.at) {
                continue;
            }
            let is_open = s.flags & CpuSample::OPEN != 0;
            let lot = is_open.then(|| lots.draw(charges, cpu, s.busy, s.process)).flatten();
            let (purpose, beneficiary) = match lot {
                Some(served) => served,
                None if s.purpose == Purpose::Socket => {
                    (s.purpose, lots.user(s.socket, &charges.users(s.socket)))
                }
                None if s.purpose == Purpose::Asker => charges.since_message(s.process, s.socket as u32),
                None if s.purpose == Purpose::Remote => charges.since_remote(s.process, s.socket),
                None if s.purpose.is_of_process() => (s.purpose, Some(s.socket as u32)),
                None => (s.purpose, (s.purpose == Purpose::Itself && s.process != 0).then_some(s.process)),
            };
            let stack = |number: u64| self.stacks.place(number);
            rows.push(&SampleRow {
                at_ns: s.at.0,
                cpu: cpu.into(),
                thread: (s.thread != 0).then_some(s.thread as i32),
                victim: (s.process != 0).then_some(s.process as i32),
                busy: s.busy as i32,
                purpose: purpose as i32,
                beneficiary: beneficiary.map(|b| b as i32),
                drawn: (lot.is_some() || s.flags & CpuSample::DRAWN != 0).into(),
                user_mode: (s.flags & CpuSample::USER_MODE != 0).into(),
                period_ns: s.period_ns.min(i64::MAX as u64) as i64,
                kernel_stack: stack(s.kernel),
                user_stack: stack(s.user),
            })?;
        }
        rows.finish()?;
        Ok(())
    }

    fn write_stacks(&self, dir: &Path, kernel: &HashMap<u64, String>) -> Result<()> {
        let mut wanted: BTreeMap<Mapped, Wanted> = BTreeMap::new();
        let mut stacks = self.stacks.read()?;
        while let Some(s) = stacks.next()? {
            for (i, at) in s.addresses().enumerate().filter(|_| s.process != 0) {
                let Some(m) = self.mappings.at(s.process, at, s.at) else { continue };
                let Some((file, offset)) = of_file(m, at, i) else { continue };
                let wanted = wanted.entry(file).or_default();
                wanted.offsets.insert(offset);
                let pid = ProcessNumber(s.process).pid();
                wanted.places.insert(Place { pid, start: m.start, length: m.length });
            }
        }
        let found = names(&wanted);
        let mut rows = TableWriter::<StackRow>::create(dir)?;
        let (mut stacks, mut number) = (self.stacks.read()?, -1);
        while let Some(s) = stacks.next()? {
            number += 1;
            let mut depth = 0;
            for (i, at) in s.addresses().enumerate() {
                let frame =
                    if s.process == 0 { of_kernel(kernel, at) } else { self.of_process(&s, at, i, &found) };
                let none = [Named::default()];
                for n in if frame.named.is_empty() { &none[..] } else { &frame.named } {
                    rows.push(&StackRow {
                        stack: number,
                        depth,
                        function: Some(n.function.clone()).filter(|f| !f.is_empty()),
                        file: frame.file.clone(),
                        offset: frame.offset,
                        line: Some(n.line.clone()).filter(|l| !l.is_empty()),
                        inlined: n.inlined.into(),
                    })?;
                    depth += 1;
                }
            }
        }
        rows.finish()?;
        Ok(())
    }

    fn of_process(
        &self,
        s: &SampledStack,
        at: u64,
        i: usize,
        found: &BTreeMap<(Mapped, u64), Vec<Named>>,
    ) -> Frame {
        match self.mappings.at(s.process, at, s.at) {
            None => Frame { file: None, offset: None, named: Vec::new() },
            Some(m) if m.what == MappingKind::Function => {
                let named = vec![Named { function: m.name.clone(), ..Named::default() }];
                Frame { file: None, offset: Some((at - m.start) as i64), named }
            }
            Some(m) => {
                let place = of_file(m, at, i);
                let named = place.clone().and_then(|p| found.get(&p).cloned()).unwrap_or_default();
                Frame { file: Some(m.name.clone()), offset: place.map(|(_, o)| o as i64), named }
            }
        }
    }
}

/// File and offset of a frame. But for the innermost an address is that after a call, which may be the next function's: the call is before it.
fn of_file(m: &Mapping, at: u64, frame: usize) -> Option<(Mapped, u64)> {
    let offset = (at - m.start).wrapping_add(m.offset).wrapping_sub(u64::from(frame > 0));
    let file = Mapped { path: m.name.clone(), build_id: m.build_id.clone() };
    (m.what == MappingKind::File).then_some((file, offset))
}

fn of_kernel(kernel: &HashMap<u64, String>, at: u64) -> Frame {
    let Some(text) = kernel.get(&at) else {
        return Frame { file: Some("[kernel]".into()), offset: None, named: Vec::new() };
    };
    let (function, offset) = text.split_once('+').unwrap_or((text, "0x0"));
    let offset = i64::from_str_radix(offset.trim_start_matches("0x"), 16).ok();
    let named = vec![Named { function: function.into(), ..Named::default() }];
    Frame { file: Some("[kernel]".into()), offset, named }
}

/// What is divided by weight and cannot be cut: each goes to whom most is missing.
#[derive(Default)]
struct Lots {
    softirqs: HashMap<(u16, Busy, u32), Shares<Served>>,
    sockets: HashMap<u64, Shares<u32>>,
}

struct Shares<T> {
    /// Whom, by what weight, and how many so far.
    of: Vec<(T, u64, u64)>,
    total: u64,
    given: u64,
}

impl<T: Copy> Shares<T> {
    fn new(of: impl IntoIterator<Item = (T, u64)>) -> Shares<T> {
        let of: Vec<(T, u64, u64)> = of.into_iter().map(|(t, w)| (t, w, 0)).collect();
        Shares { total: of.iter().map(|(_, w, _)| w).sum(), of, given: 0 }
    }

    fn draw(&mut self) -> Option<T> {
        let (total, n) = (i128::from(self.total), i128::from(self.given) + 1);
        let missing = |(_, w, has): &&mut (T, u64, u64)| i128::from(*w) * n - i128::from(*has) * total;
        let to = self.of.iter_mut().max_by_key(missing)?;
        to.2 += 1;
        self.given += 1;
        Some(to.0)
    }
}

impl Lots {
    fn draw(&mut self, charges: &Charges, cpu: u16, busy: Busy, victim: u32) -> Option<Served> {
        let key = (cpu, busy, victim);
        self.softirqs.entry(key).or_insert_with(|| Shares::new(charges.served(cpu, busy, victim))).draw()
    }

    fn user(&mut self, socket: u64, users: &[User]) -> Option<u32> {
        let weights = || users.iter().map(|u| (u.process, u.packets));
        self.sockets.entry(socket).or_insert_with(|| Shares::new(weights())).draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_keep_to_the_weights_at_any_time() {
        let mut shares = Shares::new([('a', 50), ('b', 30), ('c', 20)]);
        let drawn: Vec<char> = (0..1000).filter_map(|_| shares.draw()).collect();
        for end in [10, 100, 1000] {
            let count = |x: char| drawn[..end].iter().filter(|d| **d == x).count();
            assert_eq!([count('a'), count('b'), count('c')], [end / 2, end * 3 / 10, end / 5]);
        }
        assert_eq!(Shares::<u32>::new([]).draw(), None);
    }

    #[test]
    fn a_frame_that_called_is_where_the_call_was() {
        let m = Mapping {
            at: kpat_model::BootNs(0),
            process: 1,
            what: MappingKind::File,
            start: 0x5000,
            length: 0x1000,
            offset: 0x2000,
            name: "/bin/x".into(),
            build_id: vec![1],
        };
        assert_eq!(of_file(&m, 0x5010, 0).map(|f| f.1), Some(0x2010));
        assert_eq!(of_file(&m, 0x5010, 1).map(|f| f.1), Some(0x200f));
    }
}
