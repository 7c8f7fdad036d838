//! How a recording ends: functions off, rings emptied, losses and summary written, then detached.

use super::parts::Parts;
use super::source::Source;
use super::{Error, Note, Outcome, Recorder};
use crate::sys;
use kpat_klog::Room;
use kpat_model as model;
use kpat_model::LossCause;
use std::time::{Duration, Instant};

impl Recorder {
    pub(super) fn finish(
        mut self,
        reason: &str,
        command_code: Option<i32>,
        tell: &mut dyn FnMut(Note),
    ) -> Result<Outcome, Error> {
        if let Some(beside) = &mut self.beside {
            // Before the log ends: what was captured has its place in it.
            beside.stopping();
        }
        self.pausing.paused = true;
        self.switch();
        self.ended = Some((Instant::now(), self.taken_slots()));
        self.sample_cost(true);
        self.drain();
        // Open calls return within this, but those whose task sleeps or was put aside; what is open still is counted.
        sys::wait_for_running_code();
        std::thread::sleep(Duration::from_millis(20));
        self.drain();
        let now = sys::boot_now();
        self.tell_gaps(now);
        let open = self.sources.iter().map(Source::open_calls).sum::<Option<u64>>();
        if let Some(count) = open.filter(|n| *n > 0) {
            let from = self.meta.started.boot;
            self.sink.loss(&model::Loss { cause: LossCause::NoReturn, cpu: -1, from, to: now, count });
        }
        self.housekeeping(tell, true)?;
        if self.memory.is_some() {
            if self.dumped.suppressed > 0 {
                self.note(&format!("{} triggers of a dump were suppressed", self.dumped.suppressed));
            }
            self.dump(tell)?;
        }
        tell(Note::Detaching);
        let clock = Instant::now();
        self.sources.iter_mut().for_each(Source::detach);
        self.cost.detach_ns = clock.elapsed().as_nanos() as u64;
        let reason = match self.full {
            None => reason,
            Some(Room::Disk | Room::Quota) => "disk full",
            Some(Room::FileSize) => "file size limit",
        };
        self.room_for_the_end();
        // losses that went into the stream after the last chunk was written
        self.housekeeping(tell, true)?;
        self.write_disk_losses(tell)?;
        let name = self.parts.as_ref().map_or_else(|| self.options.output.clone(), Parts::name);
        let written = self.end_file(reason, open, &name, tell)?;
        let summary = self.summary(true, reason, open);
        if self.memory.is_none() {
            self.remember(written);
        }
        self.end_parts(tell);
        let (mut left_out, mut unmet) = (Vec::new(), Vec::new());
        for s in &mut self.sources {
            left_out.append(&mut s.decision.left_out);
            unmet.append(&mut s.decision.unmet);
        }
        let packets = || self.sources.iter().filter(|s| s.is_packets());
        let first = &self.first().decision;
        Ok(Outcome {
            functions: self.meta.functions.len(),
            summary,
            left_out,
            unmet,
            mechanism: first.mechanism,
            build: first.build.name(),
            build_passed_over: first.build_passed_over.clone(),
            packets: packets().map(|s| s.rings.packets()).sum(),
            refused_hits: packets()
                .map(|s| (0..s.rings.cpus()).map(|cpu| s.rings.refused(cpu)).sum::<u64>())
                .sum(),
            command_code,
            outputs: std::mem::take(&mut self.outputs),
            suppressed: self.dumped.suppressed,
        })
    }
}
