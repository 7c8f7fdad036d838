//! How moments are shown in lists: seconds since the start of the log, or time of day.

use crate::open::Integrated;
use crate::output::usage;
use crate::render::{seconds, time_of_day};
use kpat_query::clock::OwnClock;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Clock {
    /// Show the time of day (UTC, by the device's clock) instead of seconds since the start of the log
    #[arg(long)]
    pub utc: bool,
}

/// Wall time of the device, ns since 1970, as its clock stood then; `None`: the log does not know it.
pub fn wall(log: &Integrated, boot_ns: i64) -> Option<i64> {
    log.wall_ns(boot_ns)
}

/// Of one log.
pub struct Times {
    start_ns: i64,
    /// If times of day are wanted.
    own: Option<OwnClock>,
    dated: bool,
}

impl Times {
    pub fn of(args: &Clock, log: &Integrated) -> anyhow::Result<Times> {
        let own = match args.utc {
            false => None,
            true => Some(log.own_clock().cloned().ok_or_else(|| {
                usage("this log has no wall-clock time of the device; --utc cannot be used")
            })?),
        };
        let start_ns = log.start_ns();
        let day = |boot: i64| own.as_ref().map(|c| c.wall(boot).div_euclid(86_400_000_000_000));
        let mut days = log.manifest.wall_steps.iter().flat_map(|s| [s.after.0, s.before.0]);
        let first = day(start_ns);
        let dated = first != day(log.manifest.last_ns) || days.any(|at| day(at) != first);
        Ok(Times { start_ns, own, dated })
    }

    pub fn heading(&self) -> &'static str {
        self.heading_of("time s", "time UTC")
    }

    pub fn heading_of(&self, since: &'static str, of_day: &'static str) -> &'static str {
        if self.own.is_some() { of_day } else { since }
    }

    /// If times of day are wanted.
    pub fn of_day(&self, boot_ns: i64) -> Option<String> {
        self.own.as_ref().map(|c| time_of_day(c.wall(boot_ns), self.dated))
    }

    pub fn show(&self, boot_ns: i64) -> String {
        self.of_day(boot_ns).unwrap_or_else(|| seconds(boot_ns.saturating_sub(self.start_ns)))
    }
}
