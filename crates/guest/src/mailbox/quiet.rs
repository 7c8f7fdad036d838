//! When has the last thread left the probes' code? Only then may the code be unmapped.
//!
//! Nothing there sleeps: a thread leaves a processor inside of it only by an interrupt. Then its stack has the frame that the processor pushed,
//! with an address of that code, above where the stack ends.

use super::patience::Patience;
use crate::error::{Error, Result};
use crate::gdb::Gdb;
use crate::guest::Guest;
use crate::task::Tasks;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Code and data segment of 64-bit Linux: what an interrupt of the kernel pushes.
const KERNEL_CODE: u64 = 0x10;
const KERNEL_DATA: u64 = 0x18;
/// The largest stack that a kernel has (with KASAN).
const STACK: u64 = 64 << 10;

/// Waits until no processor executes there and no thread will go on there, then does `then` while the guest is stopped.
pub fn wait<T>(
    guest: &Guest,
    code: &[Range<u64>],
    patience: Duration,
    mut then: impl FnMut(&mut Gdb) -> Result<T>,
) -> Result<T> {
    let patience = Patience::new(guest, patience);
    // Symbols and types are read while the guest runs.
    let tasks = guest.tasks()?;
    let layout = Layout::of(guest)?;
    loop {
        let mut gdb = guest.gdb()?;
        if layout.left(guest, &tasks, &mut gdb, code)? {
            let done = then(&mut gdb);
            gdb.detach()?;
            return done;
        }
        gdb.detach()?;
        if patience.is_over() {
            return Err(Error::Unsupported(
                "a thread of the guest is still in the code of a probe; the code stays mapped".into(),
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Layout {
    stack: u64,
    sp: u64,
    size: u64,
}

impl Layout {
    fn of(guest: &Guest) -> Result<Layout> {
        let symbols = guest.symbols()?;
        // The first task's stack is a variable; its neighbours in memory say how large it is at most.
        let size = match (
            symbols.address("__start_init_stack").or_else(|| symbols.address("init_stack")),
            symbols.address("__end_init_stack").or_else(|| symbols.address("__end_init_task")),
        ) {
            (Some(from), Some(to))
                if (8192..=STACK).contains(&to.wrapping_sub(from)) && (to - from).is_power_of_two() =>
            {
                to - from
            }
            _ => 16384,
        };
        Ok(Layout {
            stack: symbols.offset("task_struct.stack")?,
            sp: symbols.offset("task_struct.thread.sp")?,
            size,
        })
    }

    fn left(&self, guest: &Guest, tasks: &Tasks, gdb: &mut Gdb, code: &[Range<u64>]) -> Result<bool> {
        let memory = guest.memory();
        let within = |address: u64| code.iter().any(|part| part.contains(&address));
        let mut lowest: HashMap<u64, u64> = HashMap::new();
        for vcpu in 0..guest.vcpus() {
            let r = gdb.registers(vcpu)?;
            if !r.is_long() {
                continue;
            }
            let current = tasks.current(vcpu)?.address;
            let stack = memory.u64_at(current.wrapping_add(self.stack))?;
            if within(r.rip) {
                return Ok(false);
            }
            let from = if r.cpl != 0 { stack + self.size } else { r.rsp };
            // On a stack of interrupts: what was interrupted is not known yet.
            if !(stack..=stack + self.size).contains(&from) {
                return Ok(false);
            }
            lowest.insert(current, from);
        }
        let mut all: Vec<u64> = tasks.numbered()?.iter().map(|t| t.address).collect();
        all.extend(lowest.keys().filter(|k| !all.contains(k)).copied().collect::<Vec<_>>());
        let mut bytes = vec![0; self.size as usize];
        for task in all {
            // A task that ends has no stack any more.
            let Ok(stack) = memory.u64_at(task.wrapping_add(self.stack)) else { continue };
            let from = match lowest.get(&task) {
                Some(from) => *from,
                None => memory.u64_at(task.wrapping_add(self.sp))?,
            };
            let Some(used) = (stack + self.size).checked_sub(from).filter(|u| *u <= self.size) else {
                continue;
            };
            let bytes = &mut bytes[..used as usize];
            if memory.read(from, bytes).is_err() {
                continue;
            }
            let words: Vec<u64> =
                bytes.chunks_exact(8).map(|w| w.try_into().map_or(0, u64::from_le_bytes)).collect();
            if words.windows(5).any(|w| within(w[0]) && w[1] == KERNEL_CODE && w[4] == KERNEL_DATA) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
