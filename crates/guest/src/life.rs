//! What happens to a guest as a whole, from the events of its QEMU.

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::qmp::Event;
use serde_json::Value;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is off, for a reason such as guest-shutdown, host-qmp-quit.
    Shutdown {
        reason: String,
    },
    /// Its memory begins anew: symbols, page tables and probes are gone.
    Reset {
        reason: String,
    },
    /// Its processors stand still.
    Stop,
    Resume,
    /// It is being moved to another host; the status is QEMU's word.
    Migration {
        status: String,
    },
    Panicked,
    /// QEMU has ended.
    Gone,
    /// Another event of QEMU, by its name.
    Other(String),
}

impl Life {
    pub fn of(event: &Event) -> Life {
        let word = |key: &str| event.data[key].as_str().unwrap_or("").to_owned();
        match event.name.as_str() {
            "SHUTDOWN" => Life::Shutdown { reason: word("reason") },
            "RESET" => Life::Reset { reason: word("reason") },
            "STOP" => Life::Stop,
            "RESUME" => Life::Resume,
            "MIGRATION" => Life::Migration { status: word("status") },
            "GUEST_PANICKED" => Life::Panicked,
            other => Life::Other(other.into()),
        }
    }

    /// What is known of the guest's memory does not hold any more.
    pub fn invalidates(&self) -> bool {
        matches!(self, Life::Shutdown { .. } | Life::Reset { .. } | Life::Gone)
    }
}

/// The events of a guest, oldest first.
pub struct Events<'g> {
    guest: &'g Guest,
    over: bool,
}

impl<'g> Events<'g> {
    pub(crate) fn new(guest: &'g Guest) -> Events<'g> {
        Events { guest, over: false }
    }

    /// The next; `None`: nothing happened for so long. After [`Life::Gone`] nothing happens any more.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Life>> {
        if self.over {
            return Ok(None);
        }
        match self.guest.qmp().event(patience) {
            Ok(e) => Ok(e.as_ref().map(Life::of)),
            Err(Error::Gone(_)) => {
                self.over = true;
                Ok(Some(Life::Gone))
            }
            Err(e) => Err(e),
        }
    }

    /// Does it run now?
    pub fn running(&self) -> Result<bool> {
        let status = self.guest.qmp().command("query-status", Value::Object(Default::default()))?;
        Ok(status["running"].as_bool() == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_as_qemu_sends_them() {
        for (text, want) in [
            (
                r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
                Life::Shutdown { reason: "guest-shutdown".into() },
            ),
            (
                r#"{"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#,
                Life::Reset { reason: "guest-reset".into() },
            ),
            (r#"{"event": "STOP"}"#, Life::Stop),
            (
                r#"{"event": "MIGRATION", "data": {"status": "active"}}"#,
                Life::Migration { status: "active".into() },
            ),
            (r#"{"event": "RTC_CHANGE", "data": {"offset": 1}}"#, Life::Other("RTC_CHANGE".into())),
        ] {
            let e = crate::qmp::read_event(&serde_json::from_str(text).unwrap()).unwrap();
            assert_eq!(Life::of(&e), want);
            assert_eq!(want.invalidates(), text.contains("S") && text.contains("reason"));
        }
    }
}
