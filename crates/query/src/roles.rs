//! What well-known functions and tracepoints say about a packet's way ([`kpat_model::functions`]). Names, because the log has nothing else;
//! an unknown name says nothing, so a kernel that renames a function costs detail, never truth.

use kpat_model::functions;
pub use kpat_model::functions::stage::*;

/// A set of what [`functions::stage`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(pub u32);

impl Roles {
    pub fn has(self, role: u32) -> bool {
        self.0 & role != 0
    }

    /// By a function's name as in kallsyms, or a tracepoint's as `group:name`.
    pub fn of(name: &str) -> Roles {
        Roles(functions::stage_of(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_clones_keep_their_role() {
        assert!(Roles::of("__netif_receive_skb_core.constprop.0").has(RX));
        assert!(Roles::of("virtio_net_start_xmit").has(XMIT));
        assert_eq!(Roles::of("some_other_function"), Roles(0));
    }
}
