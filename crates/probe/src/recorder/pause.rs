//! A pause: nothing is logged, and as little as possible of the recorder stays on the packets' way.
//!
//! Programs with a fixed place (all of a recording of applications, the tracepoints of others) are taken off it and put on
//! again, which takes milliseconds, and so are those on hundreds of functions by one link (fsession.multi, kprobe.session, kprobe.multi). Where each
//! function has links of its own (fentry, kprobe) they stay, because putting those on takes seconds: their switches are off, they leave at once. What a program noted of what it saw is not true any more after a pause that it
//! did not see, and is forgotten.

use super::Recorder;
use super::source::{self, Source};
use crate::control::Reply;
use crate::sys;
use kpat_model::BootNs;
use std::time::Instant;

pub(super) struct Pausing {
    pub(super) paused: bool,
    /// How long the last resumption took.
    pub(super) resume_ns: u64,
}

impl Pausing {
    pub(super) fn new(paused: bool) -> Pausing {
        Pausing { paused, resume_ns: 0 }
    }
}

impl Recorder {
    /// The recording starts, logging or paused.
    pub(super) fn begin(&mut self) {
        self.switch();
        if self.pausing.paused {
            self.take_off();
        }
    }

    /// Returns functions on which programs stay.
    fn take_off(&mut self) -> usize {
        self.sources.iter_mut().map(Source::take_off).sum()
    }

    pub(super) fn pause(&mut self) -> Reply {
        if self.pausing.paused {
            return Reply::Done("paused already".into());
        }
        self.pausing.paused = true;
        self.switch();
        self.note("paused");
        let now = sys::boot_now();
        let staying = self.take_off();
        // programs that stay on functions may still run, but they count only crossings, of which they make none
        sys::wait_for_running_code();
        self.tell_gaps(now);
        source::taken_off(staying)
    }

    pub(super) fn tell_gaps(&mut self, now: BootNs) {
        self.sources.iter().for_each(|s| s.tell_gaps(&mut self.sink, now));
    }

    /// Everything is put on while nothing is logged yet, so that logging begins at one moment.
    pub(super) fn resume(&mut self) -> Reply {
        if !self.pausing.paused {
            return Reply::Done("logging already".into());
        }
        let clock = Instant::now();
        // whoever ran when the pause began has noted what it saw
        sys::wait_for_running_code();
        let mut gone = Vec::new();
        for i in 0..self.sources.len() {
            match self.sources[i].put_on() {
                Ok(more) => gone.extend(more),
                Err(e) => {
                    self.take_off();
                    return Reply::Refused(format!("still paused: the kernel does not let it go on: {e}"));
                }
            }
        }
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
