//! How moments are shown in lists: seconds since the start of the log, or time of day.

use crate::open::Integrated;
use crate::output::usage;
use crate::render::{seconds, time_of_day};

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Clock {
    /// Times of day (UTC, by the device's clock) in place of seconds since the start of the log
    #[arg(long)]
    pub utc: bool,
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
        let offset_ns =
            match args.utc {
                false => None,
                true => Some(log.wall_offset_ns().ok_or_else(|| {
                    usage("this log does not know the device's wall clock; leave --utc out")
                })?),
            };
        let start_ns = log.start_ns();
        let day = |boot: i64| offset_ns.map(|o| boot.saturating_sub(o).div_euclid(86_400_000_000_000));
        Ok(Times { start_ns, offset_ns, dated: day(start_ns) != day(log.manifest.last_ns) })
    }

    pub fn heading(&self) -> &'static str {
        if self.offset_ns.is_some() { "time UTC" } else { "time s" }
    }

    pub fn show(&self, boot_ns: i64) -> String {
        match self.offset_ns {
            Some(offset) => time_of_day(boot_ns.saturating_sub(offset), self.dated),
            None => seconds(boot_ns.saturating_sub(self.start_ns)),
        }
    }
}
