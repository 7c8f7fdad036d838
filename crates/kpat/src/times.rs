//! How moments are shown in lists: seconds since the start of the log, or time of day.

use crate::open::Integrated;
use crate::output::usage;
use crate::render::{seconds, time_of_day};

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Clock {
    /// Show the time of day (UTC, by the device's clock) instead of seconds since the start of the log
    #[arg(long)]
    pub utc: bool,
}

/// Wall time of the device, ns since 1970, as its clock was when recording began; `None`: the log does not know it.
pub fn wall(log: &Integrated, boot_ns: i64) -> Option<i64> {
    log.wall_offset_ns().map(|offset| boot_ns.saturating_sub(offset))
}

/// Of one log.
pub struct Times {
    start_ns: i64,
    /// Boot time less wall time, if times of day are wanted.
    offset_ns: Option<i64>,
    dated: bool,
}

impl Times {
    pub fn of(args: &Clock, log: &Integrated) -> anyhow::Result<Times> {
        let offset_ns = match args.utc {
            false => None,
            true => Some(log.wall_offset_ns().ok_or_else(|| {
                usage("this log has no wall-clock time of the device; --utc cannot be used")
            })?),
        };
        let start_ns = log.start_ns();
        let day = |boot: i64| offset_ns.map(|o| boot.saturating_sub(o).div_euclid(86_400_000_000_000));
        Ok(Times { start_ns, offset_ns, dated: day(start_ns) != day(log.manifest.last_ns) })
    }

    pub fn heading(&self) -> &'static str {
        self.heading_of("time s", "time UTC")
    }

    pub fn heading_of(&self, since: &'static str, of_day: &'static str) -> &'static str {
        if self.offset_ns.is_some() { of_day } else { since }
    }

    /// If times of day are wanted.
    pub fn of_day(&self, boot_ns: i64) -> Option<String> {
        self.offset_ns.map(|offset| time_of_day(boot_ns.saturating_sub(offset), self.dated))
    }

    pub fn show(&self, boot_ns: i64) -> String {
        self.of_day(boot_ns).unwrap_or_else(|| seconds(boot_ns.saturating_sub(self.start_ns)))
    }
}
