//! What a device does to have a network: its ring emptied.

use super::{Sink, process, task};
use crate::radios::exchange;
use crate::ring::{Raw, Rings};
use crate::wire;
use kpat_model::{BootNs, Context, Event, LinkEvent, LinkWhat, Timed};

/// `None`: a code that this version does not know.
fn carrier(r: &wire::Carrier) -> Option<LinkEvent> {
    Some(LinkEvent {
        at: BootNs(r.h.ts as i64),
        ctx: Context::from_u8(r.ctx),
        pid: r.h.pid,
        what: LinkWhat::from_u8(u8::try_from(r.h.func).ok()?)?,
        timed: Timed::Kernel,
        function: true,
        netns: r.netns,
        ifindex: r.ifindex,
        a: 0,
        b: 0,
    })
}

impl Sink {
    /// What an announcement says of a link's carrier, where that is recorded.
    pub(super) fn link(&mut self, cpu: usize, e: &Event) {
        let Some(links) = &mut self.links else { return };
        for l in links.look(e) {
            self.cpus[cpu].encoder.columns(&l);
            self.records += 1;
        }
    }

    /// Takes everything out of one CPU's ring of radios and links.
    pub fn drain_wifi(&mut self, rings: &Rings, cpu: usize) {
        let (state, tasks, ready) = (&mut self.cpus[cpu], &mut self.tasks, &mut self.ready);
        let (radios, identity) = (&mut self.radios, &self.identity);
        let mut left = 0;
        self.records += rings.drain(cpu, &mut |raw, _| {
            match raw {
                Raw::Process(r) => {
                    if let Some(tasks) = tasks {
                        tasks.insert(r.h.pid, task(r));
                    }
                    state.encoder.process(&process(r, identity));
                }
                Raw::Radio(r) => match radios.event(r) {
                    Some(e) => state.encoder.columns(&identity.wifi(e)),
                    None => left += 1,
                },
                Raw::Carrier(r) => match carrier(r) {
                    Some(e) => state.encoder.columns(&e),
                    None => left += 1,
                },
                Raw::Frame(r) => match exchange(r) {
                    Some(e) => state.encoder.columns(&identity.exchange(e)),
                    None => left += 1,
                },
                _ => debug_assert!(false, "the kernel side of radios writes no such record"),
            }
            if state.encoder.is_full() {
                ready.extend(state.encoder.finish());
            }
        });
        self.records -= left;
    }
}
