//! When bytes of a socket lay in the queue of its own device, by what crossed into and out of it.

/// Bytes of one socket in the device's queue.
pub(super) struct Queue {
    /// Behind the last byte that entered it, and that left it.
    pub entered: i64,
    pub left: i64,
    since: Option<i64>,
    times: Vec<(i64, i64)>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { entered: i64::MIN, left: i64::MIN, since: None, times: Vec::new() }
    }
}

impl Queue {
    /// Shorter ones are the way through it.
    const SHORTEST_NS: i64 = 20_000;

    pub fn pass(&mut self, at_ns: i64, entered: i64, left: i64) {
        (self.entered, self.left) = (entered, left);
        if entered > left {
            self.since = self.since.or(Some(at_ns));
        } else if let Some(since) = self.since.take().filter(|since| at_ns - since > Queue::SHORTEST_NS) {
            self.times.push((since, at_ns));
        }
    }

    /// When there were some: in order, without overlap.
    pub fn over(mut self, at_ns: i64) -> Vec<(i64, i64)> {
        self.pass(at_ns, i64::MIN, i64::MIN);
        self.times
    }
}
