//! What particular functions mean for the packets that they handle, by name: the table's words ([`kpat_model::functions`]) as the kernel side
//! has them.

use crate::choose::{Candidate, Found};
use kpat_model::functions::{self, Identity};
use std::collections::HashSet;

/// What a function does to the identity of packets; bits of `KP_ROLE_*` in bpf/include/wire.h.
pub mod role {
    pub const FREE: u16 = 1;
    pub const ALLOC: u16 = 2;
    pub const EXPAND: u16 = 4;
    pub const CLONE: u16 = 8;
    pub const COPY: u16 = 16;
    pub const SEGMENT: u16 = 32;
    pub const GRO: u16 = 64;
    pub const FRAGMENT: u16 = 128;
    pub const LIST: u16 = 256;
    pub const RETURN: u16 = 512;
    pub const LINK: u16 = 1024;
    pub const AIR: u16 = 2048;
    pub const MOVED: u16 = 4096;
    pub const FLOW: u16 = 8192;
    pub const READ: u16 = 32768;
    /// No packet of its own, and then nothing else but what it returns.
    pub const WITHIN: u16 = 16384;
    pub const POINTER: u16 = 1;
    pub const TRUTH: u16 = 2;

    /// Is nothing done to packets at its return? (`KP_ROLES_AT_RETURN` of bpf/calls.bpf.h)
    pub const fn ends_at_entry(roles: u16) -> bool {
        roles & !(LIST | FREE | GRO | LINK | AIR | MOVED | FLOW | READ) == 0
    }

    /// Does identity suffer without it, so that it is probed whether its calls are wanted or not?
    pub const fn tracks(roles: u16) -> bool {
        roles & WITHIN == 0 && roles & !(LIST | RETURN | LINK | MOVED | FLOW | READ) != 0
    }
}

/// A kernel has some of those that the table names.
pub fn role_of(name: &str) -> u16 {
    let Some(identity) = functions::of(name).and_then(|f| f.identity) else { return 0 };
    match identity {
        Identity::Free => role::FREE,
        Identity::Alloc => role::ALLOC,
        Identity::Expand => role::EXPAND,
        Identity::Clone => role::CLONE,
        Identity::Copy => role::COPY,
        Identity::Segment => role::SEGMENT,
        Identity::Gro => role::GRO,
        Identity::Fragment => role::FRAGMENT,
        Identity::Link => role::LINK,
        Identity::Air => role::AIR,
        Identity::Moved => role::MOVED,
        Identity::Flow => role::FLOW,
        Identity::Read => role::READ,
    }
}

/// Marks the functions that are settled by their callers, all of which, as far as this kernel has them, are probed.
pub fn settle(chosen: &mut [Candidate], found: &Found) {
    let exists: HashSet<&str> = found.candidates.iter().map(|c| c.name.as_str()).collect();
    let probed: HashSet<String> = chosen.iter().map(|c| c.name.clone()).collect();
    for c in chosen {
        let Some(callers) = functions::of(&c.name).and_then(|f| f.settled_by.as_ref()) else { continue };
        let mut here = callers.iter().filter(|n| exists.contains(**n)).peekable();
        c.settled = callers.is_empty() || here.peek().is_some() && here.all(|n| probed.contains(*n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Via;

    fn candidate(name: &str) -> Candidate {
        Candidate {
            name: name.into(),
            module: String::new(),
            btf_id: 0,
            via: Via::Argument(0),
            roles: role_of(name),
            odd_arguments: false,
            settled: false,
            entry_only: false,
        }
    }

    #[test]
    fn a_function_is_settled_only_where_its_caller_looks() {
        let found = Found {
            candidates: ["ip_rcv", "ip_rcv_core", "consume_skb"].map(candidate).into(),
            ..Found::default()
        };
        let settled = |names: &[&str]| {
            let mut chosen: Vec<Candidate> = names.iter().map(|n| candidate(n)).collect();
            settle(&mut chosen, &found);
            chosen.iter().filter(|c| c.settled).map(|c| c.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(settled(&["ip_rcv", "ip_rcv_core"]), ["ip_rcv_core"]);
        assert!(settled(&["ip_rcv_core"]).is_empty());
        assert_eq!(settled(&["consume_skb"]), ["consume_skb"]);
        // a caller that this kernel does not have cannot have looked
        assert!(settled(&["udp_rcv"]).is_empty());
    }
}
