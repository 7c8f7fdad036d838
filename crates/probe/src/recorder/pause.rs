//! A pause: nothing is logged, and as little as possible of the recorder stays on the packets' way.
//!
//! Programs with a fixed place (all of a recording of applications, the tracepoints of others) are taken off it and put on
//! again, which takes milliseconds, and so are those on hundreds of functions by one link (fsession.multi, kprobe.session, kprobe.multi). Where each
//! function has links of its own (fentry, kprobe) they stay, because putting those on takes seconds: their switches are off, they leave at once. What a program noted of what it saw is not true any more after a pause that it
//! did not see, and is forgotten.

use super::Recorder;
use crate::control::Reply;
use crate::{object, plan, sys};
use std::time::Instant;

pub(super) struct Pausing {
    pub(super) paused: bool,
    /// Programs with a fixed place, when they are on it.
    pub(super) points: usize,
    /// How long the last resumption took.
    pub(super) resume_ns: u64,
}

/// Tables of the kernel side whose entries are about a moment: packets and datagrams under way by their addresses, which are
/// used again, when tasks went off the CPU, what a CPU was interrupted by.
/// A function's address may be another's after its module was unloaded.
const OF_THE_MOMENT: [&str; 6] =
    [".bss.arrivals", ".bss.firsts", ".data.packets", ".data.tasks", ".data.ctx", ".data.cookies"];

impl Pausing {
    pub(super) fn new(paused: bool, points: usize) -> Pausing {
        Pausing { paused, points, resume_ns: 0 }
    }
}

impl Recorder {
    /// The recording starts, logging or paused.
    pub(super) fn begin(&mut self) {
        self.switch();
        if self.pausing.paused {
            self.attached.take_off();
        }
    }

    pub(super) fn pause(&mut self) -> Reply {
        if self.pausing.paused {
            return Reply::Done("paused already".into());
        }
        self.pausing.paused = true;
        self.switch();
        self.note("paused");
        let now = sys::boot_now();
        self.attached.take_off();
        // programs that stay on functions may still run, but they count only crossings, of which they make none
        sys::wait_for_running_code();
        self.sink.tell_gaps(&self.rings, now);
        Reply::Done(match self.attached.staying(self.decision.functions.len()) {
            0 => "paused: loaded, on no function and no tracepoint".into(),
            n => format!("paused: on no tracepoint; programs stay on {n} functions and leave at once"),
        })
    }

    /// Everything is put on while nothing is logged yet, so that logging begins at one moment.
    pub(super) fn resume(&mut self) -> Reply {
        if !self.pausing.paused {
            return Reply::Done("logging already".into());
        }
        let clock = Instant::now();
        // whoever ran when the pause began has noted what it saw
        sys::wait_for_running_code();
        let forgotten = OF_THE_MOMENT.iter().try_for_each(|map| object::clear(&self.loaded, map));
        self.rings.forget_polls();
        let want = self.pausing.points;
        let put =
            forgotten.and_then(|()| plan::put_on(&self.loaded, &self.tracepoints, &mut self.attached, want));
        if let Err(e) = put {
            return Reply::Refused(format!("still paused: the kernel does not let it go on: {e}"));
        }
        let gone = self.attached.put_back(&self.loaded);
        if let Some(sockets) = &mut self.sink.sockets {
            sockets.announce_again();
        }
        self.pausing.paused = false;
        self.switch();
        self.pausing.resume_ns = clock.elapsed().as_nanos() as u64;
        self.note("resumed");
        let mut reply = format!("logging, after {:.1} ms", self.pausing.resume_ns as f64 / 1e6);
        if let Some((function, why)) = gone.first() {
            let note =
                format!("{} functions are probed no more after the pause: {function}: {why}", gone.len());
            self.note(&note);
            reply = format!("{reply}; {note}");
        }
        Reply::Done(reply)
    }
}
