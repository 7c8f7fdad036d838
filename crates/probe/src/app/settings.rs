//! What of an application recording can be changed while it runs: how often TCP's state is written, and whether
//! crossings without data count.

use crate::object::Loaded;
use crate::sys::Mapping;
use std::cell::Cell;
use std::time::Duration;

/// When TCP's state is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    Off,
    /// When something of weight changed (windows of congestion, losses, timers), at least once a second of activity.
    Changed,
    /// Also when so much time has gone by; zero: with every event.
    Every(Duration),
}

impl States {
    /// `off`, `change`, `all`, or a time.
    pub fn parse(text: &str, duration: impl Fn(&str) -> Option<Duration>) -> Option<States> {
        Some(match text {
            "off" => States::Off,
            "change" => States::Changed,
            "all" => States::Every(Duration::ZERO),
            time => States::Every(duration(time)?),
        })
    }

    /// After so long it is written though nothing changed.
    pub fn every_ns(self) -> u64 {
        match self {
            States::Off | States::Changed => HEARTBEAT,
            States::Every(d) => d,
        }
        .as_nanos() as u64
    }
}

/// The kernel side's `struct app_settings`.
pub struct Settings {
    mapping: Mapping,
    /// Number of the times that it was not paused, and whether it is so.
    epoch: Cell<(u64, bool)>,
}

/// In `struct app_settings`.
const WORDS: usize = 3;
const EPOCH: usize = 2;

const HEARTBEAT: Duration = Duration::from_secs(1);

impl Settings {
    pub fn new(loaded: &Loaded) -> std::io::Result<Settings> {
        let fd = loaded
            .map_fd(".data.settings")
            .ok_or_else(|| std::io::Error::other("kpat's own object has no settings"))?;
        Ok(Settings { mapping: Mapping::new(fd, WORDS * size_of::<u64>())?, epoch: Cell::new((0, false)) })
    }

    pub fn states(&self, states: States) {
        self.state_every_ns(states.every_ns());
    }

    pub fn state_every_ns(&self, every: u64) {
        self.set(0, every);
    }

    /// Acknowledgements that carry nothing are crossings, too.
    pub fn empty(&self, count: bool) {
        self.set(1, u64::from(count));
    }

    /// While paused the programs return immediately; records from after a pause can be distinguished from those before it.
    pub fn pause(&self, paused: bool) {
        let (number, running) = self.epoch.get();
        if running == paused {
            self.epoch.set((number + u64::from(running), !paused));
            self.set(EPOCH, if paused { 0 } else { number + 1 });
        }
    }

    fn set(&self, word: usize, value: u64) {
        // SAFETY: word is one of the mapped words; the kernel reads them whole, any value is valid.
        unsafe { self.mapping.as_ptr().cast::<u64>().add(word).write_volatile(value) };
    }
}
