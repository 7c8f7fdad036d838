//! Where a probe may be. Refused by name: what runs before the kernel has its own stack and tables, what handles the probes' own
//! exceptions, and code that the kernel changes while it runs.

use super::Names;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::x86::{Displaced, own_breakpoint, starts_at};

const COPIED: &str = "code that the kernel copies for its tracer, and rewrites";
const EARLY: &str = "code that a processor executes before it has the kernel's own tables";

/// Parts of the kernel's code by the symbols around them, and why no probe is put there.
const PARTS: [(&str, &str, &str); 6] = [
    (
        "__entry_text_start",
        "__entry_text_end",
        "code at the kernel's entry, which may run with a process's tables and stack",
    ),
    (
        "__noinstr_text_start",
        "__noinstr_text_end",
        "code that handles breakpoints, NMIs and machine checks, or runs before the kernel knows where it is",
    ),
    ("__kprobes_text_start", "__kprobes_text_end", "code that handles probes of the kernel's own"),
    ("_sinittext", "_einittext", "code that is used while starting only, and then freed"),
    ("ftrace_caller", "ftrace_caller_end", COPIED),
    ("ftrace_regs_caller", "ftrace_regs_caller_end", COPIED),
];
/// Functions whose code the kernel writes anew as a whole, or where nothing of ours is mapped yet, by how their names begin and end.
const FUNCTIONS: [(&str, &str, &str); 10] = [
    ("__SCT__", "", "the kernel changes the target of a jump there"),
    ("bpf_dispatcher_", "_func", "the kernel writes the programs of BPF there"),
    ("startup_64", "", EARLY),
    ("secondary_startup_64", "", EARLY),
    ("common_startup_64", "", EARLY),
    ("verify_cpu", "", EARLY),
    ("sev_verify_cbit", "", EARLY),
    ("start_cpu0", "", EARLY),
    ("soft_restart_cpu", "", EARLY),
    ("wakeup_long64", "", EARLY),
];
/// Tables of places that the kernel rewrites: begin, end, bytes of an entry, why. An entry begins with the place's distance from itself.
const TABLES: [(&str, &str, u64, &str); 3] = [
    ("__start___jump_table", "__stop___jump_table", 16, "the kernel switches a branch on and off there"),
    (
        "__start_static_call_sites",
        "__stop_static_call_sites",
        8,
        "the kernel changes the target of a call there",
    ),
    (
        "__start___ex_table",
        "__stop___ex_table",
        12,
        "the instruction may fault, and the kernel looks for its address then",
    ),
];
/// The same of a module, by members of its structure: the table, how many entries it has, and so on.
const MODULE_TABLES: [(&str, &str, u64, &str); 3] = [
    ("jump_entries", "num_jump_entries", TABLES[0].2, TABLES[0].3),
    ("static_call_sites", "num_static_call_sites", TABLES[1].2, TABLES[1].3),
    ("extable", "num_exentries", TABLES[2].2, TABLES[2].3),
];
/// Where the part begins, its bytes, and why.
const MODULE_PARTS: [(&str, &str, &str); 2] = [
    ("noinstr_text_start", "noinstr_text_size", PARTS[1].2),
    ("kprobes_text_start", "kprobes_text_size", PARTS[2].2),
];
const MOST: u64 = 1 << 20;

/// Reads the guest's own code, without the probes that are in it.
pub type Code<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<()>;

/// The instruction at `address`, if something can take its place; and whether a function begins there.
pub fn site(memory: &Memory, own: Code, names: &dyn Names, address: u64) -> Result<(Displaced, bool)> {
    let refuse = |why: String| Error::Unsupported(format!("no probe at {}: {why}", name(names, address)));
    let Some((function, start)) = names.at(address) else {
        return Err(refuse("no function is known there".into()));
    };
    if let Some(why) = rewritten(&function) {
        return Err(refuse(why.into()));
    }
    for (from, to, why) in PARTS {
        if let (Some(from), Some(to)) = (names.address(from), names.address(to))
            && (from..to).contains(&address)
        {
            return Err(refuse(why.into()));
        }
    }
    // Variables have names, too.
    if !memory.translate(address)?.executable {
        return Err(refuse("that is no code: the kernel cannot execute it".into()));
    }
    // Decoded from the function's beginning, the address has to come up.
    let mut code = vec![0; (address - start).min(1 << 16) as usize + 15];
    if own(start, &mut code).is_err() {
        code.truncate((address - start) as usize + 1);
        own(start, &mut code)?;
    }
    let entry = entry_in(start, &code);
    starts_at(start, &code, address).map_err(|e| refuse(e.to_string()))?;
    let displaced =
        Displaced::decode(address, &code[(address - start) as usize..]).map_err(|e| refuse(e.to_string()))?;
    let touched = (address, displaced.next());
    if let Some(before) = own_breakpoint(start, &code, address) {
        return Err(refuse(format!(
            "the guest has a breakpoint of its own {before} bytes before it, and may replace what is behind that by a jump"
        )));
    }
    for (from, to, size, why) in TABLES {
        if let (Some(from), Some(to)) = (names.address(from), names.address(to))
            && listed(memory, from, to.saturating_sub(from) / size, size, touched)?
        {
            return Err(refuse(why.into()));
        }
    }
    if let Some(module) = names.module(address) {
        let member = |name: &str| names.offset(&format!("module.{name}")).map(|o| module.wrapping_add(o));
        // What a kernel has not been built with has no member.
        let part = |from: &str, count: &str| -> Result<Option<(u64, u64)>> {
            let (Some(from), Some(count)) = (member(from), member(count)) else { return Ok(None) };
            Ok(Some((memory.u64_at(from)?, memory.u32_at(count)?.into())))
        };
        for (from, bytes, why) in MODULE_PARTS {
            if let Some((from, bytes)) = part(from, bytes)?
                && address.checked_sub(from).is_some_and(|o| o < bytes)
            {
                return Err(refuse(why.into()));
            }
        }
        for (table, count, size, why) in MODULE_TABLES {
            if let Some((table, count)) = part(table, count)?
                && listed(memory, table, count, size, touched)?
            {
                return Err(refuse(why.into()));
            }
        }
    }
    Ok((displaced, address == entry))
}

/// Has the guest put a breakpoint of its own shortly before `address`?
pub fn has_breakpoint_before(own: Code, names: &dyn Names, address: u64) -> bool {
    let Some((_, start)) = names.at(address) else { return true };
    let mut code = vec![0; (address - start).min(1 << 16) as usize];
    own(start, &mut code).is_err() || own_breakpoint(start, &code, address).is_some()
}

fn rewritten(function: &str) -> Option<&'static str> {
    FUNCTIONS
        .iter()
        .find(|(from, to, _)| function.starts_with(from) && function.ends_with(to))
        .map(|(_, _, why)| *why)
}

/// The mark of an indirect branch's target, endbr64; and what Linux writes over it where no such branch comes, up to 6.14 and later
/// (arch/x86/include/asm/ibt.h, gen_endbr_poison).
const MARKS: [[u8; 4]; 3] = [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];

/// Behind the mark of a branch's target, if the function has it.
pub fn entry(own: Code, function: u64) -> Result<u64> {
    let mut code = [0; 4];
    own(function, &mut code)?;
    Ok(entry_in(function, &code))
}

fn entry_in(function: u64, code: &[u8]) -> u64 {
    function + if MARKS.iter().any(|m| code.starts_with(m)) { 4 } else { 0 }
}

pub(super) fn name(names: &dyn Names, address: u64) -> String {
    match names.at(address) {
        Some((symbol, start)) if start == address => symbol,
        Some((symbol, start)) => format!("{symbol}+{:#x}", address - start),
        None => format!("{address:#x}"),
    }
}

/// Is a place between `from` and `to` in one of the kernel's tables?
fn listed(memory: &Memory, table: u64, entries: u64, size: u64, (from, to): (u64, u64)) -> Result<bool> {
    if entries == 0 {
        return Ok(false);
    }
    let mut bytes = vec![0; (entries.min(MOST) * size) as usize];
    memory.read(table, &mut bytes)?;
    Ok(bytes.chunks_exact(size as usize).enumerate().any(|(n, entry)| {
        let distance = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let place = (table + n as u64 * size).wrapping_add_signed(distance.into());
        (from..to).contains(&place)
    }))
}

#[cfg(test)]
mod tests {
    use super::{entry_in, rewritten};

    #[test]
    fn what_the_kernel_writes_anew_is_known_by_its_name() {
        for name in ["__SCT__might_resched", "bpf_dispatcher_xdp_func", "secondary_startup_64_no_verify"] {
            assert!(rewritten(name).is_some(), "{name}");
        }
        for name in ["__x64_sys_getppid", "bpf_dispatcher_change_prog", "do_startup_64"] {
            assert_eq!(rewritten(name), None, "{name}");
        }
    }

    #[test]
    fn a_probe_of_a_function_goes_behind_its_mark() {
        for (code, want) in [
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0][..], 0x1004),
            (&[0x66, 0x0f, 0x1f, 0, 0x0f, 0x1f, 0x44, 0, 0], 0x1004),
            (&[0x0f, 0x1f, 0x40, 0xd6, 0x0f, 0x1f, 0x44, 0, 0], 0x1004),
            (&[0x0f, 0x1f, 0x44, 0, 0], 0x1000),
            (&[], 0x1000),
        ] {
            assert_eq!(entry_in(0x1000, code), want, "{code:x?}");
        }
    }
}
