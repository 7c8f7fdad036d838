//! The proof on packets of our own: it passes where the kernel side finds them, and names what it does not find. Needs root.

use kpat_probe::mechanism::{self, Mechanism};
use kpat_probe::proof::Prover;

fn prover() -> Option<Prover> {
    if let Some(why) = mechanism::refusal() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let picked = mechanism::pick_build().expect("a build loads");
    Some(Prover::new(picked).expect("test packets can be sent"))
}

#[test]
fn packets_of_our_own_are_found() {
    let Some(p) = prover() else { return };
    p.prove(Mechanism::Tracepoint).expect("tracepoints find the test packets");
}

/// As on a kernel whose addresses or inode numbers are not what the kernel side takes them for: every device pointer leads nowhere.
#[test]
fn a_kernel_whose_devices_cannot_be_read_is_found_out() {
    let Some(mut p) = prover() else { return };
    p.constants = vec![("first_netns", u32::MAX.into())];
    let why = p.prove(Mechanism::Tracepoint).expect_err("no device can be plausible");
    assert!(why.contains("device or namespace could not be read"), "{why}");
    let offered = mechanism::Offer { mechanism: Mechanism::Tracepoint, offered: true, reason: String::new() };
    let checked = p.check(offered);
    assert!(!checked.offered && checked.reason.starts_with("it attaches, but: "), "{}", checked.reason);
}
