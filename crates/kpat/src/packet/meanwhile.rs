//! What programs reported of their work while a packet was under way in their threads.

use crate::open::Integrated;
use crate::render::{Pairs, count, duration};
use kpat_model::Stage;
use kpat_query::{EventOfPacket, PacketDetail};

/// Lines of them at most.
const MOST: usize = 12;

pub fn add(pairs: &mut Pairs, log: &Integrated, d: &PacketDetail) {
    for (i, e) in d.programs.iter().take(MOST).enumerate() {
        pairs.add(if i == 0 { "meanwhile" } else { "" }, words(log, e, d.packet.first_ns));
    }
    if d.programs.len() > MOST {
        let more = (d.programs.len() - MOST) as u64;
        pairs.add("", format!("and {} more (--json lists all)", count(more)));
    }
}

/// Who, what, and when it began, against the packet.
fn words(log: &Integrated, e: &EventOfPacket, zero_ns: i64) -> String {
    let took = if e.event.a == Stage::End as i64 { e.event.b.max(0) } else { 0 };
    let from = e.event.at_ns.saturating_sub(took).saturating_sub(zero_ns);
    let when =
        if from < 0 { format!("{} before", duration(-from)) } else { format!("at +{}", duration(from)) };
    let who = e.event.pid.map(|pid| log.process_name(pid, e.event.at_ns)).unwrap_or_default();
    let begun = if e.event.a == Stage::Mark as i64 { "" } else { "begun " };
    format!("{who}: {}; {begun}{when}", e.what())
}
