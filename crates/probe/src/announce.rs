//! The kernel side that stamps announcements of rtnetlink (bpf/announce.bpf.c): loaded, attached, emptied. What belongs to which
//! message is [`crate::netlink`]'s to find.

use crate::{elf, mechanism, object, sys, wire};
use libbpf_rs::{MapCore, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

static ANNOUNCE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/announce-read.bpf.o"));
static ANNOUNCE_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/announce-read-traced.bpf.o"));

/// The function that all announcements of rtnetlink pass.
pub const FUNCTION: &str = "nlmsg_notify";

/// Attached until it is dropped.
pub struct Announcements {
    // Dropped in this order: nothing runs when the rest goes.
    _links: Vec<OwnedFd>,
    ring: RingBuffer<'static>,
    arrived: Arc<Mutex<Vec<wire::Announcement>>>,
    lost: sys::Mapping,
    _object: Object,
}

impl Announcements {
    /// Of these groups of rtnetlink: by fentry, where the kernel refuses that by a kprobe.
    ///
    /// *Errors*: why neither is available, as text.
    pub fn start(build: object::Build, groups: &[u32]) -> Result<Announcements, String> {
        let fentry = Announcements::by(build, groups, "announce_fentry");
        fentry.or_else(|fentry| {
            Announcements::by(build, groups, "announce_kprobe")
                .map_err(|kprobe| format!("fentry: {fentry}; kprobe: {kprobe}"))
        })
    }

    fn by(build: object::Build, groups: &[u32], program: &str) -> Result<Announcements, String> {
        let object = load(build, groups, program)?;
        let links = attach(&object, program).map_err(|e| e.to_string())?;
        let map = |name: &str| {
            object
                .maps()
                .find(|m| m.name() == name)
                .ok_or_else(|| format!("kpat's own object has no map {name}"))
        };
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&arrived);
        let taken = map("announcements")?;
        let mut builder = RingBufferBuilder::new();
        let each = move |bytes: &[u8]| {
            if bytes.len() >= size_of::<wire::Announcement>() {
                // SAFETY: as long as the structure, which is plain numbers; read without asking for its alignment.
                let a = unsafe { bytes.as_ptr().cast::<wire::Announcement>().read_unaligned() };
                into.lock().unwrap_or_else(PoisonError::into_inner).push(a);
            }
            0
        };
        builder.add(&taken, each).map_err(|e| format!("{e:#}"))?;
        let ring = builder.build().map_err(|e| format!("{e:#}"))?;
        let lost =
            sys::Mapping::new(map(".data.lost")?.as_fd(), size_of::<u64>()).map_err(|e| e.to_string())?;
        Ok(Announcements { _links: links, ring, arrived, lost, _object: object })
    }

    /// What was announced since the last call. Does not wait.
    pub(crate) fn take(&mut self) -> Vec<wire::Announcement> {
        self.ring.consume_raw();
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announcements for which there was no room, since the beginning.
    pub(crate) fn lost(&self) -> u64 {
        // SAFETY: the mapping is of a page that begins with this aligned number, and lives as long as self.
        unsafe { AtomicU64::from_ptr(self.lost.as_ptr().cast()) }.load(Ordering::Relaxed)
    }
}

fn load(build: object::Build, groups: &[u32], program: &str) -> Result<Object, String> {
    let mut bytes = if build.traced_context { ANNOUNCE_TRACED } else { ANNOUNCE }.to_vec();
    let at = elf::map(&bytes).and_then(|m| m.symbols.get("groups").map(|s| s.offset));
    let at = at.ok_or("kpat's own object has no groups")?;
    let bits = groups.iter().filter(|g| **g < 64).fold(0u64, |bits, g| bits | 1 << g);
    bytes[at..at + 8].copy_from_slice(&bits.to_le_bytes());
    object::quiet();
    let mut open = ObjectBuilder::default().open_memory(&bytes).map_err(|e| format!("{e:#}"))?;
    for mut p in open.progs_mut() {
        let wanted = p.name() == program;
        p.set_autoload(wanted);
    }
    open.load().map_err(|e| format!("{e:#} ({})", object::last_words()))
}

fn attach(object: &Object, program: &str) -> std::io::Result<Vec<OwnedFd>> {
    let p = object.progs().find(|p| p.name() == program);
    let p = p.ok_or_else(|| std::io::Error::other("program is not in the object"))?;
    // SAFETY: the descriptor belongs to the object, which outlives this call.
    let p = unsafe { BorrowedFd::borrow_raw(p.as_fd().as_raw_fd()) };
    if program == "announce_fentry" {
        return Ok(vec![sys::link_tracing(p, sys::ATTACH_FENTRY, 0)?]);
    }
    let pmu = mechanism::kprobe_pmu();
    let pmu = pmu.ok_or_else(|| std::io::Error::other("there is no kprobe event source"))?;
    let name = std::ffi::CString::new(FUNCTION).map_err(std::io::Error::other)?;
    let event = sys::perf_kprobe(pmu, &name, false)?;
    let link = sys::link_perf(p, event.as_fd(), 0)?;
    Ok(vec![link, event])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::Mechanism;
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// The kernel's own clock and task of a change that a command of a known pid makes, by either way of being there.
    #[test]
    fn either_program_sees_who_announces_and_when() {
        let config = crate::kernel::config();
        let Ok(picked) = mechanism::pick_build() else {
            eprintln!("SKIPPED: no program loads here, or this is not root");
            return;
        };
        for (m, program) in [(Mechanism::Fentry, "announce_fentry"), (Mechanism::Kprobe, "announce_kprobe")] {
            if let Err(why) = mechanism::attempt(m, picked.build, &config) {
                eprintln!("SKIPPED: {}: {why}", m.name());
                continue;
            }
            let mut a = Announcements::by(picked.build, &[1], program).expect(program);
            let name = format!("kpat-ann-{}", std::process::id());
            let ip = |words: &[&str]| {
                let mut child = Command::new("/sbin/ip").args(words).spawn().expect("iproute2 is installed");
                assert!(child.wait().expect("it ends").success(), "{words:?}");
                child.id()
            };
            ip(&["netns", "add", &name]);
            let from = sys::boot_now();
            let pid = ip(&["-n", &name, "link", "set", "lo", "up"]);
            let to = sys::boot_now();
            ip(&["netns", "del", &name]);
            let end = Instant::now() + Duration::from_secs(10);
            let seen = loop {
                if let Some(one) = a.take().into_iter().find(|a| a.pid == pid) {
                    break one;
                }
                assert!(Instant::now() < end, "{program} saw nothing of {pid}");
                std::thread::yield_now();
            };
            assert!(seen.ts as i64 >= from.0 && seen.ts as i64 <= to.0, "{from:?} {seen:?} {to:?}");
            assert_eq!((seen.tgid, &seen.comm[..3], a.lost()), (pid, &b"ip\0"[..], 0));
            // RTM_NEWLINK, and the length that its header says.
            assert_eq!(seen.message[4..6], 16u16.to_ne_bytes());
            assert_eq!(seen.message[..4], seen.len.to_ne_bytes());
        }
    }
}
