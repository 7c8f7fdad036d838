//! The names of the locations where packets are dropped, and of the reasons: also of addresses in code that was loaded after the recorder read the kernel's symbols, in
//! trampolines of our own probes, and of reasons that a module loaded later brought with it.
//!
//! Modules are loaded while a recording runs (the first rule of nftables loads one), and a module may be unloaded before it ends. So an address is
//! resolved soon after it is first seen, and symbols are read again if it is not in the kernel's own text. Where a function ends in a jump to what frees
//! the packet, and is probed, the caller is the probe's trampoline: that is known by the number of the function's type, which is in its name.

use super::sources::Sources;
use crate::btf::Btf;
use crate::choose::Candidate;
use crate::kernel::Symbols;
use crate::reasons::drop_reasons;
use crate::sink::Sink;
use kpat_model::meta;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// Minimum interval between two readings of the kernel's symbols, of which each takes up to 0.1 s.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct DropSites {
    /// By address; empty: unknown.
    named: BTreeMap<u64, String>,
    looked: Option<Instant>,
    reasons: BTreeMap<u32, String>,
    /// Reasons for which the kernel's types were read again, without finding them.
    nameless: BTreeSet<u32>,
}

impl DropSites {
    /// Names what is new. `now`: do not wait until symbols may be read again.
    fn look<'a>(
        &mut self,
        addresses: impl Iterator<Item = &'a u64>,
        known: &Symbols,
        functions: &[Candidate],
        now: bool,
        read: &mut dyn FnMut() -> Symbols,
    ) {
        let mut later = Vec::new();
        for addr in addresses {
            if self.named.contains_key(addr) {
                continue;
            }
            match known.resolve_own(*addr) {
                Some(text) => _ = self.named.insert(*addr, text),
                None => later.push(*addr),
            }
        }
        if later.is_empty() || (!now && self.looked.is_some_and(|t| t.elapsed() < AGAIN)) {
            return;
        }
        self.looked = Some(Instant::now());
        let fresh = read();
        for addr in later {
            let text = fresh.resolve(addr).map(|text| of_trampoline(&text, functions).unwrap_or(text));
            self.named.insert(addr, text.unwrap_or_default());
        }
    }

    /// Names what came into the stream. `now`: do not wait until symbols may be read again; frames of stacks, too, which are thousands, and some of them
    /// in programs of ours that are new every time.
    pub(super) fn name(&mut self, sources: &Sources, sink: &Sink, now: bool) {
        let d = &sources.first().decision;
        let frames = sink.frames.iter().filter(|_| now);
        let all = sink.drops.addresses.iter().chain(frames);
        self.look(all, &d.symbols, &d.functions, now, &mut Symbols::running);
        // A module that cannot be read any more has taken their names with it.
        self.name_reasons(&sink.drops.reasons, &d.drop_reasons, &mut || {
            Btf::running().map_or(Vec::new(), |btfs| drop_reasons(&btfs))
        });
    }

    /// Names reasons that are not among the `known`; the kernel's types are read once for each that is new.
    fn name_reasons(
        &mut self,
        seen: &HashSet<u32>,
        known: &[(u32, String)],
        read: &mut dyn FnMut() -> Vec<(u32, String)>,
    ) {
        let named = |r: &u32| self.reasons.contains_key(r) || known.iter().any(|(k, _)| k == r);
        let new: BTreeSet<u32> =
            seen.iter().copied().filter(|r| !self.nameless.contains(r) && !named(r)).collect();
        if new.is_empty() {
            return;
        }
        self.reasons.extend(read().into_iter().filter(|(r, _)| new.contains(r)));
        self.nameless.extend(new.into_iter().filter(|r| !self.reasons.contains_key(r)));
    }

    pub(super) fn reasons(&self) -> Vec<(u32, String)> {
        self.reasons.iter().map(|(r, name)| (*r, name.clone())).collect()
    }

    pub(super) fn symbols(&self) -> Vec<meta::Symbol> {
        let named = self.named.iter().filter(|(_, text)| !text.is_empty());
        named.map(|(addr, text)| meta::Symbol { addr: *addr, text: text.clone() }).collect()
    }
}

/// The function whose trampoline this is: `bpf_trampoline_KEY`, of whose 64 bits the low 31 are the number of the function's type
/// (`bpf_trampoline_compute_key()`, include/linux/bpf_verifier.h).
fn of_trampoline(text: &str, functions: &[Candidate]) -> Option<String> {
    let key = text.strip_prefix("bpf_trampoline_")?.split('+').next()?;
    let id = (key.parse::<u64>().ok()? & 0x7fff_ffff) as u32;
    // types of modules are numbered from the same number on in each: one name only, or none
    let mut fits = functions.iter().filter(|c| c.btf_id == id).map(|c| &c.name);
    let first = fits.next()?;
    fits.all(|other| other == first).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Via;

    const BEFORE: &str = "ffffffff81000000 T _stext\nffffffff81000100 t ip_rcv\nffffffff82000000 T _etext\n\
        ffffffffc0440000 t ftrace_trampoline\t[__builtin__ftrace]\n";
    const AFTER: &str = "ffffffff81000000 T _stext\nffffffff81000100 t ip_rcv\nffffffff82000000 T _etext\n\
        ffffffffc0440000 t ftrace_trampoline\t[__builtin__ftrace]\nffffffffc044d0f0 T nft_do_chain\t[nf_tables]\n\
        ffffffffc0500000 t bpf_trampoline_6442519841\t[bpf]\n";

    fn function(name: &str, module: &str, btf_id: u32) -> Candidate {
        Candidate {
            name: name.into(),
            module: module.into(),
            btf_id,
            via: Via::Argument(0),
            roles: 0,
            odd_arguments: false,
            settled: false,
            entry_only: false,
        }
    }

    #[test]
    fn a_module_that_came_later_is_named_and_a_trampoline_is_its_function() {
        let mut sites = DropSites::default();
        let known = Symbols::parse(BEFORE);
        let id = (6_442_519_841u64 & 0x7fff_ffff) as u32;
        let functions = [function("nf_hook_slow", "", id), function("ip_rcv", "", 7)];
        let addresses =
            [0xffff_ffff_8100_0112, 0xffff_ffff_c044_d549, 0xffff_ffff_c050_0095, 0xffff_ffff_d000_0000];
        let mut reads = 0;
        for _ in 0..3 {
            sites.look(addresses.iter(), &known, &functions, false, &mut || {
                reads += 1;
                Symbols::parse(AFTER)
            });
        }
        let named: Vec<String> = sites.symbols().into_iter().map(|s| s.text).collect();
        assert_eq!(named, ["ip_rcv+0x12", "nft_do_chain+0x459", "nf_hook_slow"]);
        assert_eq!(reads, 1);
    }

    #[test]
    fn reasons_of_a_module_that_came_later_are_named_once() {
        let mut sites = DropSites::default();
        let (seen, known) = ([2, 0x10001, 0x50001].into(), [(2, "NOT_SPECIFIED".to_string())]);
        let mut reads = 0;
        for _ in 0..3 {
            sites.name_reasons(&seen, &known, &mut || {
                reads += 1;
                vec![(0x10001, "RX_DROP_U_REPLAY".into()), (0x10002, "RX_DROP_U_MIC_FAIL".into())]
            });
        }
        assert_eq!((sites.reasons(), reads), (vec![(0x10001, "RX_DROP_U_REPLAY".to_string())], 1));
    }

    #[test]
    fn two_functions_of_one_number_are_not_guessed_between() {
        let functions = [function("a", "x", 5), function("b", "y", 5)];
        assert_eq!(of_trampoline("bpf_trampoline_5+0x1", &functions), None);
        assert_eq!(of_trampoline("ip_rcv+0x1", &functions), None);
    }
}
