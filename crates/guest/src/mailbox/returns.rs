//! Calls that are open when the probes' code goes: their return addresses lead into it, and become their own again.
//!
//! Such an address is where the function's caller put it, on the stack; not where the guest's own tracer or a return probe of its own
//! came behind ours and took it away, to return to it at last (`ftrace_ret_stack`, `rethook_node`).

use super::layout::*;
use super::region::Region;
use crate::error::Result;
use crate::guest::Guest;
use crate::memory::Memory;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What the tracer has at most for one task (`SHADOW_STACK_SIZE`, `FTRACE_RETFUNC_DEPTH`), and how many of its return probes are followed.
const SHADOW: usize = 4096;
const MOST_HOOKS: usize = 4096;

/// How many calls have their own return address again, and of how many that are open nobody knows where it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Open {
    pub back: usize,
    pub kept: usize,
}

/// The guest has to be stopped.
pub(super) fn restore(guest: &Guest, base: u64) -> Result<Open> {
    let mut calls = Calls::read(guest.memory(), base)?;
    let mut open = Open::default();
    let mut elsewhere = Vec::new();
    for n in 0..INSTANCE_COUNT {
        let Some(call) = calls.armed(n) else { continue };
        let Ok(now) = guest.memory().u64_at(call.place) else { continue };
        match calls.own(now) {
            Some(own) => {
                guest.memory().write(call.place, &own.to_le_bytes())?;
                calls.end(guest.memory(), now)?;
                open.back += 1;
            }
            None if Some(now) == calls.own(calls.trampoline(n)) => {}
            None => elsewhere.push(n),
        }
    }
    let Some(shape) = Shape::of(guest).filter(|_| !elsewhere.is_empty()) else { return Ok(open) };
    for n in elsewhere {
        // Of several that are open at one place the first one's search has found all.
        let Some(call) = calls.armed(n).filter(|call| shape.is_on_stack(guest.memory(), call)) else {
            continue;
        };
        let mut found = false;
        for at in shape.kept_by_others(guest.memory(), call.task) {
            let Ok(now) = guest.memory().u64_at(at) else { continue };
            if let Some(own) = calls.own(now) {
                guest.memory().write(at, &own.to_le_bytes())?;
                calls.end(guest.memory(), now)?;
                open.back += 1;
            }
            found |= calls.armed(n).is_none();
        }
        open.kept += usize::from(!found);
    }
    Ok(open)
}

/// Open calls of threads that have ended since, which never return: their room is free again. How many. Each is looked at twice, so that it is not one that has just
/// begun in the room of another.
pub(crate) fn free_ended(guest: &Guest, region: &Region, calls: Range<usize>) -> u64 {
    let Some(shape) = Shape::of(guest) else { return 0 };
    let mut count = 0;
    for n in calls {
        let at = INSTANCES + n % INSTANCE_COUNT * INSTANCE_SIZE;
        let look = || {
            let state = region.get32(at + IN_STATE);
            (state == IN_ARMED)
                .then(|| (region.get64(at + IN_TSC), region.get64(at + IN_TASK), region.get32(at + IN_PID)))
        };
        let Some(call) = look() else { continue };
        if shape.has_ended(guest.memory(), call.1, call.2)
            && look() == Some(call)
            && region
                .word32(at + IN_STATE)
                .compare_exchange(IN_ARMED, IN_FREE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            count += 1;
        }
    }
    count
}

/// An open call, as the guest's memory has it.
#[derive(Debug, Clone, Copy)]
struct Call {
    place: u64,
    returns_to: u64,
    task: u64,
    pid: u32,
}

struct Calls {
    base: u64,
    all: Vec<Option<Call>>,
}

impl Calls {
    fn read(memory: &Memory, base: u64) -> Result<Calls> {
        let mut bytes = vec![0; INSTANCE_COUNT * INSTANCE_SIZE];
        memory.read(base + INSTANCES as u64, &mut bytes)?;
        let all = bytes.chunks_exact(INSTANCE_SIZE).map(|instance| {
            let word =
                |at: usize| instance[at..at + 8].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
            (word(IN_STATE) as u32 == IN_ARMED).then(|| Call {
                place: word(IN_PLACE),
                returns_to: word(IN_RETURN),
                task: word(IN_TASK),
                pid: word(IN_PID) as u32,
            })
        });
        Ok(Calls { base, all: all.collect() })
    }

    fn armed(&self, n: usize) -> Option<Call> {
        self.all.get(n).copied().flatten()
    }

    fn trampoline(&self, n: usize) -> u64 {
        self.base + (TRAMPOLINES + n * TRAMPOLINE) as u64
    }

    /// The open call whose code is at this address.
    fn at(&self, address: u64) -> Option<usize> {
        let n = address.checked_sub(self.trampoline(0))?;
        (n % TRAMPOLINE as u64 == 0 && n / (TRAMPOLINE as u64) < INSTANCE_COUNT as u64)
            .then_some(n as usize / TRAMPOLINE)
    }

    /// Where a call really returns to that would return to this address. A function that ends in a jump to another one leaves it its own return address,
    /// which may be of ours already.
    fn own(&self, address: u64) -> Option<u64> {
        let mut now = address;
        for _ in 0..INSTANCE_COUNT {
            match self.at(now) {
                Some(n) => now = self.armed(n)?.returns_to,
                None => return (now != address).then_some(now),
            }
        }
        None
    }

    /// Nothing returns there any more, nor to those that it would have gone on to.
    fn end(&mut self, memory: &Memory, address: u64) -> Result<()> {
        let mut now = address;
        while let Some((n, call)) = self.at(now).and_then(|n| Some((n, self.armed(n)?))) {
            self.all[n] = None;
            memory.write(
                self.base + (INSTANCES + n * INSTANCE_SIZE + IN_STATE) as u64,
                &IN_FREE.to_le_bytes(),
            )?;
            now = call.returns_to;
        }
        Ok(())
    }
}

/// Where members are; of what this kernel has.
struct Shape {
    pid: u64,
    stack: u64,
    shadow: Option<u64>,
    /// Of a task the first one; in each the next one, and the address.
    hooks: Option<(u64, u64, u64)>,
}

impl Shape {
    fn of(guest: &Guest) -> Option<Shape> {
        let symbols = guest.symbols().ok()?;
        let offset = |path: &str| symbols.offset(path).ok();
        let hooks = || {
            Some((
                offset("task_struct.rethooks")?,
                offset("rethook_node.llist")?,
                offset("rethook_node.ret_addr")?,
            ))
        };
        Some(Shape {
            pid: offset("task_struct.pid")?,
            stack: offset("task_struct.stack")?,
            shadow: offset("task_struct.ret_stack"),
            hooks: hooks(),
        })
    }

    /// A thread that has ended has no stack any more; another one in its place has another number.
    fn has_ended(&self, memory: &Memory, task: u64, pid: u32) -> bool {
        let same = memory.u32_at(task.wrapping_add(self.pid)).map(|p| p == pid);
        let stack = memory.u64_at(task.wrapping_add(self.stack));
        task != 0 && (same.is_ok_and(|same| !same) || stack.is_ok_and(|s| s == 0))
    }

    /// Its task lives still, and has that stack. Whoever ended within the function never returns.
    fn is_on_stack(&self, memory: &Memory, call: &Call) -> bool {
        const STACK: u64 = 64 << 10;
        let lives =
            call.task != 0 && memory.u32_at(call.task.wrapping_add(self.pid)).is_ok_and(|p| p == call.pid);
        let stack = memory.u64_at(call.task.wrapping_add(self.stack)).unwrap_or(0);
        lives && stack != 0 && call.place.checked_sub(stack).is_some_and(|o| o < STACK)
    }

    /// Where the kernel has return addresses that it took from this task's stack.
    fn kept_by_others(&self, memory: &Memory, task: u64) -> Vec<u64> {
        let mut all = Vec::new();
        if let Some(shadow) = self.shadow
            && let Ok(from) = memory.u64_at(task.wrapping_add(shadow))
            && from != 0
        {
            all.extend((0..SHADOW as u64).step_by(8).map(|n| from.wrapping_add(n)));
        }
        if let Some((first, next, address)) = self.hooks {
            let mut link = memory.u64_at(task.wrapping_add(first)).unwrap_or(0);
            for _ in 0..MOST_HOOKS {
                if link == 0 {
                    break;
                }
                all.push(link.wrapping_sub(next).wrapping_add(address));
                link = memory.u64_at(link).unwrap_or(0);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_b000_0000;

    fn calls(armed: &[(usize, u64)]) -> Calls {
        let mut all = vec![None; INSTANCE_COUNT];
        for (n, returns_to) in armed {
            all[*n] = Some(Call { place: 0x1000, returns_to: *returns_to, task: 0, pid: 0 });
        }
        Calls { base: BASE, all }
    }

    fn trampoline(n: usize) -> u64 {
        BASE + (TRAMPOLINES + n * TRAMPOLINE) as u64
    }

    #[test]
    fn a_call_that_another_one_jumped_to_returns_to_where_that_one_came_from() {
        let chain = calls(&[(7, 0xffff_ffff_8100_0005), (3, trampoline(7)), (4000, trampoline(3))]);
        for n in [7, 3, 4000] {
            assert_eq!(chain.own(trampoline(n)), Some(0xffff_ffff_8100_0005), "{n}");
        }
        assert_eq!(chain.own(trampoline(5)), None, "nothing is open there");
        assert_eq!(chain.own(0xffff_ffff_8100_0005), None);
        assert_eq!(chain.own(trampoline(7) + 1), None);
    }

    #[test]
    fn what_a_hostile_guest_made_a_circle_of_ends() {
        let circle = calls(&[(1, trampoline(2)), (2, trampoline(1))]);
        assert_eq!(circle.own(trampoline(1)), None);
        assert_eq!(
            calls(&[(1, trampoline(INSTANCE_COUNT))]).own(trampoline(1)),
            Some(trampoline(INSTANCE_COUNT))
        );
    }
}
