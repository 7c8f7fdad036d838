//! A link that is there and over which nothing comes: the handover to it was over with what came last, unless the network is asked for only now. On a busy host a
//! DHCP client is started many seconds after the port was opened, and meanwhile the next hop of the old network is asked for in vain.

use super::machine::{MOST_LEAD, Machine, PATIENT_NS};
use super::mark::{Dhcp, Mark, What};
use super::open::Open;
use super::words::Ended;

/// May come while a link stands, and begins nothing.
fn is_idle(what: What) -> bool {
    matches!(
        what,
        What::ArpRequest { .. }
            | What::ArpReply { .. }
            | What::Duplicate
            | What::DuplicateProbe
            | What::RouterSolicit
            | What::RouterAdvert
            | What::SignalLow { .. }
            | What::ScanStart
            | What::Channel { .. }
            | What::ProbeRequest { .. }
            | What::ScanDone { .. }
            | What::Dhcp(_)
            | What::AddressFound
            | What::Program
            | What::Other
    )
}

/// The first message of a client that looks for its network. One that has its lease prolonged asks for no address in a REQUEST (RFC 2131, 4.3.2).
fn looks_for_network(mark: &Mark, open: &Open) -> bool {
    let begins = match mark.what {
        What::Dhcp(Dhcp::Request) => mark.text.is_some(),
        What::Dhcp(message) => {
            matches!(message, Dhcp::Discover | Dhcp::Solicit | Dhcp::Request6 | Dhcp::Confirm6)
        }
        _ => false,
    };
    let since = open.link_up.as_ref().map_or(0, |up| up.at_ns);
    let asked = |m: &Mark| m.at_ns >= since && matches!(m.what, What::Dhcp(d) if !d.is_aside());
    begins && !open.marks.iter().any(asked)
}

impl Machine {
    /// Nothing moved the handover on for long. True: the mark waits until it is known whether that was the end of it.
    pub(super) fn rests(&mut self, mark: &Mark) -> bool {
        let Some(open) = &mut self.open else { return false };
        let waited = mark.at_ns - open.progress.at_ns;
        if waited <= PATIENT_NS && open.rest.len() < MOST_LEAD {
            if looks_for_network(mark, open) {
                std::mem::take(&mut open.rest).iter().for_each(|m| open.keep(m));
                return false;
            }
            if is_idle(mark.what) {
                open.rest.push(mark.clone());
                return true;
            }
        }
        self.was_over();
        false
    }

    /// It was over with what came last; what came after it is gone through as if it had been known at once.
    pub(super) fn was_over(&mut self) {
        let Some(open) = &mut self.open else { return };
        let last = open.progress.clone();
        // What came after it may have led to the next one.
        let after = open.marks.partition_point(|m| m.at_ns <= last.at_ns);
        let mut later = open.marks.split_off(after);
        later.retain(|m| super::mark::is_sign(m.what));
        let rest = std::mem::take(&mut open.rest);
        self.close(&last, Ended::Quiet);
        self.lead = later;
        rest.iter().for_each(|m| self.push(m));
    }
}
