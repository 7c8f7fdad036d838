//! Records of a profile's samples out of its ring.

use crate::wire;
use kpat_model::{BootNs, Busy, CpuSample, Purpose};

/// `None`: a code that this version does not know.
pub fn sample(r: &wire::Sample, period_ns: u64) -> Option<CpuSample> {
    Some(CpuSample {
        at: BootNs(r.h.ts as i64),
        thread: r.h.pid,
        process: r.process,
        busy: Busy::from_u8(r.busy)?,
        purpose: Purpose::from_u8(r.purpose)?,
        flags: r.flags,
        socket: r.socket,
        kernel: r.kernel,
        user: r.user,
        period_ns,
    })
}

/// The frames that a stack has: behind them in the ring is another record.
pub fn frames(r: &wire::Stack) -> &[u64] {
    &r.frames[..usize::from(r.h.func).min(r.frames.len())]
}
