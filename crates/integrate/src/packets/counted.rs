//! What is counted of a packet: calls, points, time, length; where it was first seen and for which task.

use super::Touch;
use super::live::emptied;
use kpat_model::Context;

pub(super) struct Counted {
    /// Of its earliest call or point: when that was, the CPU, the context.
    pub(super) cpu: (i64, u16, Context),
    /// The thread that ran then.
    first_pid: u32,
    pub(super) kernel_ns: i64,
    pub(super) calls: u32,
    pub(super) points: u32,
    pub(super) len_bytes: u32,
    /// `len_bytes` is from the headers, not from a point, whose length may include a link header.
    pub(super) len_known: bool,
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
            first_pid: 0,
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
            self.first_pid = t.pid;
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
    }

    /// The thread whose call the packet begins in; 0: it begins in an interrupt. Whoever takes it out of a queue or frees it later may be
    /// another one: a thread sends what others queued, and frees what a processor kept for it.
    pub(super) fn sender(&self) -> u32 {
        if self.cpu.2 == Context::Task { self.first_pid } else { 0 }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(entry: i64, ctx: Context, pid: u32) -> Touch {
        let (end, self_ns, point_len) = (entry, 0, None);
        Touch {
            packet: 1,
            func: 1,
            cpu: 0,
            entry,
            end,
            self_ns,
            ctx,
            pid,
            skb_tag: 0,
            point_len,
            moment: false,
            ends: false,
            put_off: false,
        }
    }

    fn sender(touches: &[(i64, Context, u32)]) -> u32 {
        let mut counted = Counted::default();
        touches.iter().for_each(|&(at, ctx, pid)| counted.count(&touch(at, ctx, pid)));
        counted.sender()
    }

    #[test]
    fn the_sender_is_whose_call_it_begins_in() {
        let (task, softirq) = (Context::Task, Context::Softirq);
        // A call is counted when it is over: those within it come first.
        assert_eq!(sender(&[(20, task, 5), (10, task, 5), (30, softirq, 6)]), 5);
        // Another thread takes it out of the queueing discipline.
        assert_eq!(sender(&[(10, task, 5), (20, task, 6)]), 5);
        // An acknowledgement begins in an interrupt, and whoever runs when the processor's list of buffers is freed has nothing to do with it.
        assert_eq!(sender(&[(10, softirq, 5), (20, task, 6)]), 0);
        assert_eq!(sender(&[(10, Context::Unknown, 5), (20, task, 6)]), 0);
    }
}
