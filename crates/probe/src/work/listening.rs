//! Ports on which somebody listened before charging began: who listens on one is the server of those who connect there (bpf/messages.bpf.h), and the kernel side sees
//! only who begins to.
//!
//! Rejected: the ports' numbers and who spoke first alone. A server's port may be a number that clients have, too (gRPC's 50051), and many servers greet.

use crate::netlink;
use crate::object::Loaded;
use libbpf_rs::{MapCore, MapFlags};
use std::time::{Duration, Instant};

/// Very many namespaces may take longer than anybody wants to wait: of the rest the numbers tell.
const MOST: Duration = Duration::from_millis(300);

pub(super) fn tell(loaded: &Loaded) {
    let Some(map) = loaded.map("listening") else { return };
    let until = Instant::now() + MOST;
    let mut all: Vec<_> = netlink::current_netns().into_iter().collect();
    all.extend(netlink::named_netns());
    all.extend(netlink::process_netns());
    for port in netlink::listened_on(&all, until) {
        // A full table forgets another one.
        let _ = map.update(&u64::from(port).to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY);
    }
}
