//! What is counted of a packet: calls, points, time, length; where it was first seen and for which task.

use super::Touch;
use super::live::emptied;
use kpat_model::Context;

pub(super) struct Counted {
    /// Of its earliest call or point: when that was, the CPU, the context.
    pub(super) cpu: (i64, u16, Context),
    pub(super) kernel_ns: i64,
    pub(super) calls: u32,
    pub(super) points: u32,
    pub(super) len_bytes: u32,
    /// `len_bytes` is from the headers, not from a point, whose length may include a link header.
    pub(super) len_known: bool,
    pub(super) task_pid: u32,
    /// The functions that had it, a bit each.
    funcs: Vec<u64>,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted {
            cpu: (i64::MAX, 0, Context::Unknown),
            kernel_ns: 0,
            calls: 0,
            points: 0,
            len_bytes: 0,
            len_known: false,
            task_pid: 0,
            funcs: Vec::new(),
        }
    }
}

impl Counted {
    pub(super) fn renewed(&mut self) -> Counted {
        Counted { funcs: emptied(&mut self.funcs), ..Counted::default() }
    }

    pub(super) fn count(&mut self, t: &Touch) {
        if t.entry < self.cpu.0 {
            self.cpu = (t.entry, t.cpu, t.ctx);
        }
        self.kernel_ns = self.kernel_ns.saturating_add(t.self_ns);
        match t.point_len {
            Some(len) => {
                self.points += 1;
                if self.len_bytes == 0 {
                    self.len_bytes = len;
                }
            }
            None => self.calls += 1,
        }
        if self.task_pid == 0 && t.ctx == Context::Task {
            self.task_pid = t.pid;
        }
    }

    /// Says whether it is its first meeting with the function of that number ([`super::Numbers`]).
    pub(super) fn meets(&mut self, number: u32) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.funcs.len() <= word {
            self.funcs.resize(word + 1, 0);
        }
        let first = self.funcs[word] & bit == 0;
        self.funcs[word] |= bit;
        first
    }
}
