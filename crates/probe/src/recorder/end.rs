//! How a recording ends: functions off, rings emptied, losses and summary written, then detached.

use super::parts::Parts;
use super::{Error, Note, Outcome, Recorder};
use crate::mechanism::Mechanism;
use crate::sys;
use kpat_klog::Room;
use kpat_model as model;
use kpat_model::LossCause;
use std::time::{Duration, Instant};

/// Entries of the kernel side's table of open calls (bpf/config.bpf.h).
const OPEN_CALLS: usize = 4096;

impl Recorder {
    /// Calls in the kernel side's table whose return did not come. Session mechanisms keep calls in the call itself:
    /// what is open there when recording ends is not known, and the log says so.
    fn open_calls(&self) -> Option<u64> {
        const ENTRY: usize = 24;
        match self.decision.mechanism {
            _ if self.decision.functions.is_empty() => return Some(0),
            Mechanism::FsessionMulti | Mechanism::KprobeSession => return None,
            Mechanism::Tracepoint => return Some(0),
            _ => {}
        }
        let map = sys::Mapping::new(self.loaded.map_fd("open_calls")?, OPEN_CALLS * ENTRY).ok()?;
        let key = |i: usize| {
            // SAFETY: i is below the number of entries, the first word of each is its key; only counted.
            unsafe { map.as_ptr().add(i * ENTRY).cast::<u64>().read_volatile() }
        };
        Some((0..OPEN_CALLS).filter(|i| key(*i) != 0).count() as u64)
    }

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
        self.ended = Some((Instant::now(), self.rings.taken_slots()));
        self.sample_cost(true);
        self.drain();
        // Open calls return within this, but those whose task sleeps or was put aside; what is open still is counted.
        sys::wait_for_running_code();
        std::thread::sleep(Duration::from_millis(20));
        self.drain();
        let now = sys::boot_now();
        self.sink.tell_gaps(&self.rings, now);
        let open = self.open_calls();
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
        drop(std::mem::take(&mut self.attached));
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
        Ok(Outcome {
            functions: self.meta.functions.len(),
            summary,
            left_out: std::mem::take(&mut self.decision.left_out),
            unmet: std::mem::take(&mut self.decision.unmet),
            mechanism: self.decision.mechanism,
            build: self.decision.build.name(),
            build_passed_over: std::mem::take(&mut self.decision.build_passed_over),
            packets: self.rings.packets(),
            refused_hits: (0..self.rings.cpus()).map(|cpu| self.rings.refused(cpu)).sum(),
            command_code,
            outputs: std::mem::take(&mut self.outputs),
            suppressed: self.dumped.suppressed,
        })
    }
}
