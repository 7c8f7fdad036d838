//! Probes of functions that have packets: what they copy goes to one handler, in the order in which the hits were.

use super::*;
use crate::mailbox::host::Entry;
use crate::mailbox::skb::{Function, PacketCode, PacketHit, Shape, packet_code};

/// A hit, and the host's clock when it was there: the hit was before that.
pub type Packets<'h> = Box<dyn FnMut(PacketHit, u64) + 'h>;

/// What all of them have in common.
pub(super) struct Hits<'h> {
    code: PacketCode,
    to: Packets<'h>,
    /// Entries that no code of ours wrote.
    pub(super) damaged: u64,
}

/// The host's boot clock.
pub fn host_now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Hits<'_> {
    pub(super) fn take(&mut self, entry: &Entry) {
        match PacketHit::of(entry) {
            Some(hit) => (self.to)(hit, host_now()),
            None => self.damaged += 1,
        }
    }
}

impl<'h> Probes<'h> {
    /// Before the first [`Probes::register_packets`]: where members are, and who gets the hits.
    pub fn take_packets(&mut self, shape: &Shape, to: Packets<'h>) -> Result<()> {
        if self.instances > SHARED_FIRST {
            return Err(Error::Unsupported(
                "calls of other probes take the room for those with packets".into(),
            ));
        }
        let make = |e| failed(Failed::Code(format!("{e}")));
        let (code, parts) = packet_code(&self.place, self.shared, shape, self.place.base + self.stubs as u64)
            .map_err(make)?;
        self.installed.write(self.stubs, &code);
        self.stubs += code.len().next_multiple_of(64);
        let maker = Maker { place: &self.place, shared: self.shared };
        let at = self.place.base + self.stubs as u64;
        let back = maker.packet_return(at, parts).map_err(failed)?;
        self.installed.write(self.stubs, &back);
        self.stubs += back.len().next_multiple_of(64);
        for n in SHARED_FIRST..SHARED_FIRST + SHARED_COUNT {
            self.installed.write(TRAMPOLINES + n * TRAMPOLINE, &maker.trampoline(n, at).map_err(failed)?);
        }
        self.hits = Some(Hits { code: parts, to, damaged: 0 });
        Ok(())
    }

    /// The function that begins at `function`, behind whose mark the probe goes.
    pub fn register_packets(&mut self, function: u64, which: &Function) -> Result<Handle> {
        self.watch()?;
        let address = self.entry(function)?;
        self.give_up_watching(address)?;
        let Some(code) = self.hits.as_ref().map(|h| h.code) else {
            return Err(Error::Unsupported("nobody takes packets".into()));
        };
        let (displaced, at_entry) = self.site(address)?;
        self.is_free(address, at_entry)?;
        let id = self.room(1)?;
        let handle = Handle(id as u32);
        let maker = Maker { place: &self.place, shared: self.shared };
        let made = maker
            .packet_site(self.place.base + self.stubs as u64, &displaced, id, which, code)
            .map_err(failed)?;
        self.probes.push(Probe {
            does: Does::Packets,
            of: handle,
            address,
            after: false,
            entry: false,
            instances: 0..0,
            exit: made.exit,
            live: true,
        });
        self.put(handle, &displaced, made.code, made.entry)?;
        Ok(handle)
    }

    /// No hit begins any more; open calls still return.
    pub fn disable_entries(&mut self, probe: Handle) {
        let id = probe.number() as usize;
        self.installed.region.set32(CONTROLS + id % PROBES * CONTROL + ENABLED, RETURNS_ONLY);
    }

    /// Entries of the ring that no code of ours wrote, or that it did not finish before the guest was over.
    pub fn damaged(&self) -> u64 {
        self.host.damaged + self.hits.as_ref().map_or(0, |h| h.damaged)
    }
}
