//! How a recording ends: functions off, rings emptied, losses and summary written, then detached.

use super::astray::Astray;
use super::flight::Flight;
use super::{Error, Note, Outcome, Recorder, note};
use crate::sys;
use kpat_klog::Room;
use kpat_model as model;
use kpat_model::LossCause;
use std::time::{Duration, Instant};

/// That a packet arrived may show by nothing but that no more is seen of it for 100 ms (without functions); acknowledgements come as soon.
const SEES_TO_THE_END: Duration = Duration::from_millis(110);

impl Recorder {
    /// Logs on until what was under way when the end was asked for has come to its end, where packets or bytes are followed and there is room for it.
    fn see_to_the_end(&mut self) {
        let follows = self.sources.all().iter().any(|s| s.is_packets() || s.settings.is_some());
        if self.pausing.paused || self.files.full().is_some() || !follows {
            return;
        }
        let end = Instant::now() + SEES_TO_THE_END;
        while Instant::now() < end {
            self.drain();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn finish(
        mut self,
        reason: &str,
        command_code: Option<i32>,
        tell: &mut dyn FnMut(Note),
    ) -> Result<Outcome, Error> {
        self.see_to_the_end();
        self.captures.stopping();
        self.ended = Some(sys::clock_anchor());
        self.unrun.end(&self.sources, &mut self.sink);
        self.pausing.end(&self.sources);
        self.costs.end(&self.sources);
        self.drain();
        // Open calls return within this, but those whose task sleeps or was put aside; what is open still is counted.
        sys::wait_for_running_code();
        std::thread::sleep(Duration::from_millis(20));
        self.drain();
        let now = sys::boot_now();
        self.sources.tell_gaps(&mut self.sink, now);
        let open = self.sources.open_calls();
        if let Some(count) = open.filter(|n| *n > 0) {
            let from = self.meta.started.boot;
            self.sink.loss(&model::Loss { cause: LossCause::NoReturn, cpu: -1, from, to: now, count });
        }
        self.sink.name_late();
        self.housekeeping(tell, true)?;
        let suppressed = self.flight.as_ref().map_or(0, Flight::suppressed);
        if suppressed > 0 {
            note(&mut self.sink, &format!("{suppressed} triggers of a dump were suppressed"));
        }
        self.dump(tell)?;
        tell(Note::Detaching);
        let clock = Instant::now();
        self.sources.detach();
        self.costs.detached(clock.elapsed());
        let reason = match self.files.full() {
            None => reason,
            Some(Room::Disk | Room::Quota) => "disk full",
            Some(Room::FileSize) => "file size limit",
        };
        self.files.room_for_the_end();
        // losses that went into the stream after the last chunk was written
        self.housekeeping(tell, true)?;
        self.files.write_waiting(tell)?;
        self.files.look_for(tell);
        let name = self.files.name();
        let mut written = self.end_file(reason, open, &name, tell)?;
        let summary = self.summary(true, reason, open);
        match self.files.astray() {
            // A file of several that is gone is named where it is to get its name.
            Some(Astray::Removed) if !self.files.rotates() => return Err(Error::Removed(name)),
            Some(Astray::Moved(Some(to))) => written.path = to,
            _ => {}
        }
        if self.flight.is_none() {
            self.files.remember(written);
        }
        self.files.end(tell);
        let decisions = || self.sources.all().iter().map(|s| &s.decision);
        let first = &self.sources.first().decision;
        Ok(Outcome {
            functions: self.meta.functions.len(),
            summary,
            left_out: decisions().flat_map(|d| d.left_out.clone()).collect(),
            unmet: decisions().flat_map(|d| d.unmet.clone()).collect(),
            mechanism: first.mechanism,
            by_fentry: first.often.len(),
            build: first.build.name(),
            build_passed_over: first.build_passed_over.clone(),
            packets: self.sources.admitted(),
            refused_hits: self.sources.refused_hits(),
            peerless_sockets: self.sink.sockets.as_ref().map_or(0, |s| s.peerless()),
            command_code,
            outputs: self.files.take_written(),
            suppressed,
        })
    }
}
