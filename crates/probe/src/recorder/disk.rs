//! The log's file: what is written to it, and what a full disk costs.

use super::{Error, Note, Recorder};
use crate::sys;
use kpat_klog::Writer;
use kpat_model as model;
use kpat_model::LossCause;
use kpat_model::meta::Json;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A file beside the log that holds disk blocks until the log is closed.
pub(super) struct Reserve(PathBuf);

impl Reserve {
    pub(super) fn take(log: &Path) -> Option<Reserve> {
        let name = format!(".{}.reserve", log.file_name()?.to_string_lossy());
        let path = log.with_file_name(name);
        let reserve = Reserve(path);
        std::fs::write(&reserve.0, vec![0u8; 64 << 10]).is_ok().then_some(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Recorder {
    pub(super) fn open(&mut self, path: &Path) -> Result<Writer<File>, Error> {
        let mut w = if self.parts.is_some() { Writer::create_part(path)? } else { Writer::create(path)? };
        w.json(&Json::Meta(Box::new(self.meta.clone())))?;
        w.json(&Json::Devices(self.devices.clone()))?;
        if let Some(tasks) = self.sink.tasks.as_ref().filter(|t| !t.is_empty()) {
            w.json(&Json::Tasks(tasks.values().cloned().collect()))?;
        }
        w.flush()?;
        Ok(w)
    }

    pub(super) fn write_ready(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let chunks = self.sink.take_ready();
        if chunks.is_empty() {
            return Ok(());
        }
        let now = sys::boot_now();
        for c in chunks {
            let (count, first, cpu) = (c.count as u64, c.first, c.cpu);
            let Some(w) = &mut self.writer else { continue };
            match w.chunk(c) {
                Ok(()) => {
                    self.disk_full = false;
                    self.disk_losses.drain(..).for_each(|l| self.sink.tell(&l));
                }
                Err(kpat_klog::Error::DiskFull { .. }) => {
                    if !self.disk_full {
                        tell(Note::DiskFull);
                    }
                    self.disk_full = true;
                    let loss =
                        model::Loss { cause: LossCause::Disk, cpu: cpu as i32, from: first, to: now, count };
                    self.sink.count(&loss);
                    match self.disk_losses.iter_mut().find(|l| l.cpu == loss.cpu) {
                        Some(l) => (l.to, l.count) = (now, l.count + count),
                        None => self.disk_losses.push(loss),
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(w) = &mut self.writer {
            match w.flush() {
                Ok(()) | Err(kpat_klog::Error::DiskFull { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    pub(super) fn write_json(&mut self, j: &Json, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let Some(w) = &mut self.writer else { return Ok(()) };
        match w.json(j).and_then(|()| w.flush()) {
            Ok(()) => Ok(()),
            Err(kpat_klog::Error::DiskFull { .. }) => {
                if !self.disk_full {
                    tell(Note::DiskFull);
                }
                self.disk_full = true;
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// What a full disk cost and could not be told yet: as a chunk of its own, in the room that was kept free.
    pub(super) fn write_disk_losses(&mut self) -> Result<(), Error> {
        let mut last = kpat_klog::Encoder::new(0, self.options.codec);
        self.disk_losses.iter().for_each(|l| last.loss(l));
        if let (Some(w), Some(chunk)) = (&mut self.writer, last.finish()) {
            w.chunk(chunk)?;
        }
        Ok(())
    }
}
