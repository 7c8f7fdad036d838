//! What the probes' code has to know of the kernel: where all memory is mapped, and where a processor keeps its task.

use crate::error::Result;
use crate::guest::Guest;
use crate::mailbox::code::{Kernel, Task};
use std::sync::Arc;

/// A kernel's names, from its memory or from a file.
pub trait Names: Send + Sync {
    fn address(&self, name: &str) -> Option<u64>;
    /// The function or variable with this address, and where it begins.
    fn at(&self, address: u64) -> Option<(String, u64)>;
    /// Of a member, such as `task_struct.pid`, in bytes.
    fn offset(&self, member: &str) -> Option<u64>;
    /// The structure of the module that has this address, if one has.
    fn module(&self, address: u64) -> Option<u64>;
}

/// Those that the guest's kernel has in its own memory, or that the guest was given.
pub struct Own(pub Arc<Guest>);

impl Names for Own {
    fn address(&self, name: &str) -> Option<u64> {
        self.0.symbols().ok()?.address(name)
    }

    fn at(&self, address: u64) -> Option<(String, u64)> {
        let (symbol, offset) = self.0.symbols().ok()?.at(address)?;
        Some((symbol.name.to_owned(), address - offset))
    }

    fn offset(&self, member: &str) -> Option<u64> {
        self.0.symbols().ok()?.offset(member).ok()
    }

    fn module(&self, address: u64) -> Option<u64> {
        self.0.symbols().ok()?.module_at(address)
    }
}

pub fn kernel(guest: &Guest, names: &dyn Names) -> Result<Kernel> {
    let levels = u32::from(guest.memory().kernel_space().levels);
    let usual = if levels == 5 { 0xff11_0000_0000_0000 } else { 0xffff_8880_0000_0000 };
    let direct_map = names
        .address("page_offset_base")
        .and_then(|a| guest.memory().u64_at(a).ok())
        .filter(|a| a >> 63 == 1)
        .unwrap_or(usual);
    // A processor's own variables: one structure of hot ones (6.2 to 6.14), or each by itself.
    let hot = |member: &str| Some(names.address("pcpu_hot")? + names.offset(&format!("pcpu_hot.{member}"))?);
    let current = hot("current_task")
        .or_else(|| names.address("const_current_task"))
        .or_else(|| names.address("current_task"));
    let own = |name: &str, member: &str| hot(member).or_else(|| names.address(name)).map(|a| a as i32);
    let (cpu, contexts) = (own("cpu_number", "cpu_number"), own("__preempt_count", "preempt_count"));
    let member =
        |name: &str| names.offset(&format!("task_struct.{name}")).and_then(|o| i32::try_from(o).ok());
    let task = (|| {
        Some(Task {
            current: current? as i32,
            pid: member("pid")?,
            tgid: member("tgid")?,
            comm: member("comm")?,
        })
    })();
    Ok(Kernel { direct_map, levels, task, cpu, contexts })
}

/// The oldest models of 64-bit processors, and QEMU's kvm64, have no `sahf` in 64-bit code.
pub fn has_sahf(guest: &Guest, names: &dyn Names) -> bool {
    // X86_FEATURE_LAHF_LM of arch/x86/include/asm/cpufeatures.h.
    let at = || names.address("boot_cpu_data")?.checked_add(names.offset("cpuinfo_x86.x86_capability")?);
    at().and_then(|at| guest.memory().u32_at(at + 4 * 6).ok()).is_some_and(|word| word & 1 != 0)
}

/// `SYSTEM_RUNNING` of include/linux/kernel.h, the same from 6.1 to 7.2.
const RUNNING: u32 = 3;

/// The kernel has not come to running processes: until then it writes its own code (alternatives, its tracer's calls), and frees parts of it.
pub fn is_starting(guest: &Guest, names: &dyn Names) -> bool {
    let state = names.address("system_state").and_then(|at| guest.memory().u32_at(at).ok());
    state.is_some_and(|state| state < RUNNING)
}

/// Of the guest's time stamp counter.
pub fn ticks_per_second(guest: &Guest, names: &dyn Names) -> f64 {
    let khz = names.address("tsc_khz").and_then(|a| guest.memory().u32_at(a).ok()).unwrap_or(0);
    // What no processor has is no measurement; then the processor's own rate is a bound that is too long rather than too short.
    if (100_000..20_000_000).contains(&khz) { f64::from(khz) * 1000.0 } else { 3e9 }
}
