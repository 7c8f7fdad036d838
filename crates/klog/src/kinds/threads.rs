//! What threads of applications did between their calls.

use super::*;

impl InColumns for ThreadTime {
    const PLACE: usize = 33;

    fn row(&self) -> Row<'_> {
        let (until, since) = (self.until.0 as u64, self.since.0 as u64);
        let numbers = [
            until,
            since,
            self.sock.into(),
            self.thread.into(),
            self.ran_ns,
            self.waited_ns,
            self.slept.into(),
        ];
        Row::new(numbers, [])
    }
}

pub(super) fn thread_time(row: &Row<'_>) -> Option<AppRecord> {
    let [until, since, sock, thread, ran_ns, waited_ns, slept, ..] = row.numbers;
    Some(AppRecord::ThreadTime(ThreadTime {
        since: BootNs(since as i64),
        until: BootNs(until as i64),
        sock: narrow(sock)?,
        thread: narrow(thread)?,
        ran_ns,
        waited_ns,
        slept: narrow(slept)?,
    }))
}
