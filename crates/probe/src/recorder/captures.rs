//! Captures of the wire that run beside a recording: they begin and end with it, and what they lose is in the log.

use super::{Beside, Error};
use crate::sink::Sink;
use kpat_model as model;
use kpat_model::LossCause;

#[derive(Default)]
pub(super) struct Captures(Option<Box<dyn Beside>>);

impl Captures {
    pub(super) fn are(&mut self, beside: Box<dyn Beside>) {
        self.0 = Some(beside);
    }

    pub(super) fn started(&mut self) -> Result<(), Error> {
        self.0.as_mut().map_or(Ok(()), |b| b.started()).map_err(Error::Beside)
    }

    /// Before the log ends: what was captured has its place in it.
    pub(super) fn stopping(&mut self) {
        self.0.iter_mut().for_each(|b| b.stopping());
    }

    /// Frames that they lost, by interface as events, together as a loss.
    pub(super) fn look(&mut self, sink: &mut Sink) {
        for l in self.0.as_mut().map_or_else(Vec::new, |b| b.losses()) {
            let (cause, cpu) = (LossCause::SnifferFull, -1);
            sink.loss(&model::Loss { cause, cpu, from: l.from, to: l.to, count: l.count });
            super::note(sink, &format!("the sniffer at {} lost {} frames", l.place, l.count));
        }
    }
}
