//! What a recording is asked to probe: profiles by name, and what is added or left out.

use super::{Detail, LAYERS, glob, is_module};
use kpat_model::functions;

/// What a user asked for: a profile and globs added or removed.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// One or more, with commas between them.
    pub profile: String,
    pub detail: Detail,
    pub add: Vec<String>,
    pub remove: Vec<String>,
    /// Functions without a packet, recorded within calls of packets: globs.
    pub also: Vec<String>,
    /// The same of functions that take a structure in which a packet lies so deep at most ([`crate::also`]); 0: none.
    pub depth: u8,
    /// Functions whose returns are not recorded: globs, [`LEAVES`] or [`ALL`].
    pub entry_only: Vec<String>,
}

/// In [`Selection::entry_only`]: functions that do a short, fixed piece of work, as the table of functions has them.
pub const LEAVES: &str = "leaves";
/// In [`Selection::entry_only`]: all but those whose returns keep packets apart.
pub const ALL: &str = "all";

/// Profiles by name, each with what it has; beside them `driver:NAME`.
pub const NAMES: [(&str, &str); 10] = [
    ("path", "functions that move a packet"),
    ("router", "a packet's way through a router"),
    ("tcp", "TCP"),
    ("socket", "the socket's side"),
    ("all", "every function that has a packet"),
    ("none", "only what --add names"),
    (APPLICATIONS, "what applications ask of the network"),
    (WORK, "whom each CPU works for"),
    (PROGRAMS, "what programs say of their work"),
    (WIFI, "what radios and links do to have a network"),
];

/// The profiles that are no lists of functions: they go beside any other.
pub const APPLICATIONS: &str = "app";
pub const WORK: &str = "profile";
pub const PROGRAMS: &str = "programs";
pub const WIFI: &str = "wifi";

/// Does a recording of these profiles (with commas between them) follow packets? One that does not say may.
pub fn has_packets(profiles: &str) -> bool {
    profiles.split(',').any(|p| ![APPLICATIONS, WORK, PROGRAMS, WIFI].contains(&p))
}

#[derive(Debug, thiserror::Error)]
#[error(
    "there is no profile {0:?}; use path, router, tcp, socket, driver:NAME, all, app, profile, programs and wifi"
)]
pub struct UnknownProfile(pub String);

impl Selection {
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profile.split(',')
    }

    pub fn names(&self, profile: &str) -> bool {
        self.profiles().any(|p| p == profile)
    }

    pub fn check(&self) -> Result<(), UnknownProfile> {
        let known = |p: &str| {
            NAMES.iter().any(|(name, _)| *name == p && ![APPLICATIONS, WORK, PROGRAMS, WIFI].contains(name))
                || p.strip_prefix("driver:").is_some_and(|n| !n.is_empty())
        };
        match self.profiles().find(|p| !known(p)) {
            None => Ok(()),
            Some(unknown) => Err(UnknownProfile(unknown.to_owned())),
        }
    }

    /// Are functions without a packet wanted?
    pub fn has_within(&self) -> bool {
        !self.also.is_empty() || self.depth > 0
    }

    /// Of this function are the returns not wanted?
    pub fn only_entries(&self, name: &str) -> bool {
        self.entry_only.iter().any(|p| match p.as_str() {
            ALL => true,
            LEAVES => functions::of(name).is_some_and(|f| f.leaf),
            p => glob(p, name),
        })
    }

    /// Is this function wanted?
    pub fn wants(&self, name: &str, module: &str) -> bool {
        if self.remove.iter().any(|p| glob(p, name)) {
            return false;
        }
        self.add.iter().any(|p| glob(p, name))
            || self.profiles().any(|profile| self.in_profile(profile, name, module))
    }

    fn in_profile(&self, profile: &str, name: &str, module: &str) -> bool {
        let full = self.detail == Detail::Full;
        let path = |layers: &[&str]| {
            functions::known(name)
                .any(|f| layers.contains(&f.layer) && f.detail.is_some_and(|d| d <= self.detail))
        };
        match profile {
            "all" => true,
            "none" => false,
            "router" => {
                path(&["driver", "link", "network"])
                    || (full
                        && ["nf_*", "nft_*", "br_*", "fib_*", "ip_*", "ip6_*", "skb_*"]
                            .iter()
                            .any(|p| glob(p, name)))
            }
            "tcp" => path(&LAYERS) || (full && (name.starts_with("tcp_") || name.starts_with("__tcp"))),
            "socket" => path(&["transport", "socket"]),
            p => path(&LAYERS) || p.strip_prefix("driver:").is_some_and(|m| is_module(m, module)),
        }
    }
}
