//! The pause command: nothing is logged, and as few programs as possible stay attached.
//!
//! Programs with a fixed place (all of a recording of applications, the tracepoints of others) are taken off it and put on
//! again, which takes milliseconds, and so are those on hundreds of functions by one link (fsession.multi, kprobe.session, kprobe.multi), and those
//! of some functions by fentry beside them, whose detaching goes on in the background. Where each
//! function has links of its own (fentry, kprobe as the mechanism) they stay attached, because attaching those takes seconds: their switches are off, they return immediately. What a program stored about what it saw is stale after a pause that it
//! did not see, and is forgotten.

use super::note;
use super::source;
use super::sources::Sources;
use crate::control::Reply;
use crate::sink::Sink;
use crate::sys;
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

    /// The recording starts, logging or paused.
    pub(super) fn begin(&self, sources: &mut Sources) {
        sources.switch(self.paused);
        if self.paused {
            sources.take_off();
        }
    }

    /// The recording ends: nothing is logged any more.
    pub(super) fn end(&mut self, sources: &Sources) {
        self.paused = true;
        sources.switch(true);
    }

    pub(super) fn pause(&mut self, sources: &mut Sources, sink: &mut Sink) -> Reply {
        if self.paused {
            return Reply::Done("paused already".into());
        }
        self.paused = true;
        sources.switch(true);
        note(sink, "paused");
        let now = sys::boot_now();
        let staying = sources.take_off();
        // programs that stay on functions may still run, but they count only crossings, of which they make none
        sys::wait_for_running_code();
        sources.tell_gaps(sink, now);
        source::taken_off(staying)
    }

    /// Everything is put on while nothing is logged yet, so that logging begins at one moment.
    pub(super) fn resume(&mut self, sources: &mut Sources, sink: &mut Sink) -> Reply {
        if !self.paused {
            return Reply::Done("logging already".into());
        }
        let clock = Instant::now();
        // whoever ran when the pause began has noted what it saw
        sys::wait_for_running_code();
        let gone = match sources.put_on() {
            Ok(gone) => gone,
            Err(e) => {
                sources.take_off();
                return Reply::Refused(format!("still paused: the kernel refused to attach: {e}"));
            }
        };
        if let Some(sockets) = &mut sink.sockets {
            sockets.announce_again();
        }
        self.paused = false;
        sources.switch(false);
        self.resume_ns = clock.elapsed().as_nanos() as u64;
        note(sink, "resumed");
        let mut reply = format!("logging, after {:.1} ms", self.resume_ns as f64 / 1e6);
        if let Some((function, why)) = gone.first() {
            let words =
                format!("{} functions are no longer probed after the pause: {function}: {why}", gone.len());
            note(sink, &words);
            reply = format!("{reply}; {words}");
        }
        Reply::Done(reply)
    }
}
