//! Listeners of which user space found the process: into a file goes such a one when a connection that came to it does, and no other.

use crate::netlink::Listener;
use kpat_model::SocketRecord;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Listeners {
    /// By namespace and port, each with: the file has it.
    all: HashMap<(u32, u16), Vec<(Listener, bool)>>,
}

impl Listeners {
    pub(super) fn new(found: Vec<Listener>) -> Listeners {
        let mut out = Listeners::default();
        for l in found {
            out.all.entry((l.socket.netns, l.socket.port)).or_default().push((l, false));
        }
        out
    }

    /// Those that the file does not have and to which this socket, which was seen without a process, may have come; if it is one itself, it.
    pub(super) fn take(&mut self, r: &SocketRecord) -> Vec<Listener> {
        let there = self.all.get_mut(&(r.netns, r.port)).into_iter().flatten();
        let fits = |l: &Listener| {
            let s = &l.socket;
            s.cookie == r.cookie || s.addr == [0; 16] || (s.version, s.addr) == (r.version, r.addr)
        };
        let due = there.filter(|(l, written)| !written && fits(l));
        due.map(|(l, written)| {
            *written = true;
            l.clone()
        })
        .collect()
    }

    /// A process did something with this socket: it ends. Whoever listens at its port next is announced.
    pub(super) fn used(&mut self, r: &SocketRecord) {
        if let Some(there) = self.all.get_mut(&(r.netns, r.port)) {
            there.retain(|(l, _)| l.socket.cookie != r.cookie);
        }
    }

    /// A file begins that has none of them.
    pub(super) fn again(&mut self) {
        self.all.values_mut().flatten().for_each(|(_, written)| *written = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::Process;

    #[test]
    fn a_listener_is_told_once_a_file_and_not_after_its_end() {
        let socket = |cookie, addr: u8, port| {
            let mut s =
                SocketRecord { cookie, netns: 1, version: 4, port, protocol: 6, ..Default::default() };
            s.addr[0] = addr;
            s
        };
        let listener = |socket: SocketRecord| {
            let process = Process { at: socket.at, pid: 7, tgid: 7, comm: "x".into() };
            Listener { socket: SocketRecord { pid: 7, ..socket }, process }
        };
        let mut all = Listeners::new(vec![
            listener(socket(1, 0, 80)),
            listener(socket(2, 9, 80)),
            listener(socket(3, 9, 81)),
        ]);
        let told = |r: &SocketRecord, all: &mut Listeners| -> Vec<u64> {
            all.take(r).iter().map(|l| l.socket.cookie).collect()
        };
        assert_eq!(told(&socket(10, 9, 82), &mut all), [0; 0], "another port");
        assert_eq!(
            told(&SocketRecord { netns: 2, ..socket(10, 9, 80) }, &mut all),
            [0; 0],
            "another namespace"
        );
        assert_eq!(told(&socket(10, 8, 80), &mut all), [1]);
        assert_eq!(told(&socket(11, 9, 80), &mut all), [2]);
        assert_eq!(told(&socket(12, 9, 80), &mut all), [0; 0], "the file has both");
        all.again();
        all.used(&socket(2, 9, 80));
        assert_eq!(told(&socket(13, 9, 80), &mut all), [1]);
        assert_eq!(told(&socket(3, 9, 81), &mut all), [3], "itself");
    }
}
