//! The sockets of a log, by their addresses and ports: every packet of TCP asks for two. Of what this host itself translates (a redirected port, a
//! service's address) a packet may be seen with other addresses than its socket has; its numbers do not change.

use super::Store;
use crate::error::Result;
use kpat_model::hash::Map;
use kpat_store::tables::SocketRow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

const TCP: i32 = 6;

/// Address and port.
type End = (Option<String>, i32);

#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub rows: Vec<SocketRow>,
    by_id: Map<i64, u32>,
    /// Places in `rows`.
    by_ends: HashMap<(i32, End, End), Vec<u32>>,
    /// Those of TCP without another end, by namespace and port.
    by_port: HashMap<(Option<i64>, i32), Vec<u32>>,
    /// Those that sent or received something, by what translation leaves: their own end; their own address and the other end; the other end. As hashes.
    by_part: HashMap<u64, Vec<u32>>,
}

/// Once they were asked for.
pub(crate) type Known = Mutex<Option<Arc<Sockets>>>;

fn part(of: &dyn Fn(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of(&mut hasher);
    hasher.finish()
}

/// What of a socket's ends a translated packet still has: all of its own, or all but the port of its own, or only the other one.
fn parts(own: (Option<&str>, i32), peer: (Option<&str>, i32)) -> [u64; 3] {
    [part(&|h| (0, own).hash(h)), part(&|h| (1, own.0, peer).hash(h)), part(&|h| (2, peer).hash(h))]
}

impl Sockets {
    fn new(rows: Vec<SocketRow>) -> Sockets {
        let mut by_ends: HashMap<_, Vec<u32>> = HashMap::new();
        for (i, s) in rows.iter().enumerate() {
            let (own, peer) = ((s.local_addr.clone(), s.local_port), (s.peer_addr.clone(), s.peer_port));
            by_ends.entry((s.proto, own, peer)).or_default().push(i as u32);
        }
        let mut by_part: HashMap<_, Vec<u32>> = HashMap::new();
        for (i, s) in rows.iter().enumerate().filter(|(_, s)| s.sent_seq.or(s.received_seq).is_some()) {
            let (own, peer) =
                ((s.local_addr.as_deref(), s.local_port), (s.peer_addr.as_deref(), s.peer_port));
            parts(own, peer).into_iter().for_each(|p| by_part.entry(p).or_default().push(i as u32));
        }
        let mut by_port: HashMap<_, Vec<u32>> = HashMap::new();
        for (i, s) in
            rows.iter().enumerate().filter(|(_, s)| s.proto == TCP && s.peer_port == 0 && s.local_port != 0)
        {
            by_port.entry((s.netns, s.local_port)).or_default().push(i as u32);
        }
        // Of rows with one number the first.
        let by_id = rows.iter().enumerate().rev().map(|(i, s)| (s.socket_id, i as u32)).collect();
        Sockets { rows, by_id, by_ends, by_port, by_part }
    }

    /// The socket of that number.
    pub fn get(&self, socket_id: i64) -> Option<&SocketRow> {
        self.by_id.get(&socket_id).map(|i| &self.rows[*i as usize])
    }

    /// Place of the only socket that has these bytes although its addresses are others: `own` and `peer` are the packet's. `ended_here`: it began, or ended, at a
    /// socket of this host, so that where its own end is the one that is translated (a source address by which all leaves), the other end is enough.
    pub fn translated(
        &self,
        own: (Option<&str>, i32),
        peer: (Option<&str>, i32),
        ended_here: bool,
        has_bytes: impl Fn(&SocketRow) -> bool,
    ) -> Option<u32> {
        let [all_own, address, other] = parts(own, peer);
        let fits = |s: &SocketRow| {
            let has_own = s.local_addr.as_deref() == own.0 && s.local_port == own.1;
            let has_peer = (s.peer_addr.as_deref(), s.peer_port) == peer;
            has_own || has_peer && (ended_here || s.local_addr.as_deref() == own.0)
        };
        let near = self.only(&[all_own, address], |s| fits(s) && has_bytes(s));
        match near {
            None if ended_here => self.only(&[other], |s| fits(s) && has_bytes(s)).flatten(),
            near => near.flatten(),
        }
    }

    /// Place of the only socket with one of these parts for which this holds; `Some(None)`: there are several.
    fn only(&self, parts: &[u64], fits: impl Fn(&SocketRow) -> bool) -> Option<Option<u32>> {
        let all = parts.iter().filter_map(|p| self.by_part.get(p)).flatten();
        let mut those = all.copied().filter(|place| fits(&self.rows[*place as usize]));
        let first = those.next()?;
        Some(those.all(|place| place == first).then_some(first))
    }

    /// The listener to which a connection came that no process has used: the one with its address, else one for all addresses. `None`: a process has used it,
    /// or the log has no listener of which a process is known, or those of several.
    pub fn listener(&self, s: &SocketRow) -> Option<&SocketRow> {
        if s.proto != TCP || s.pid.is_some() || s.kernels != 0 || s.peer_port == 0 {
            return None;
        }
        let there = self.by_port.get(&(s.netns, s.local_port))?.iter().map(|i| &self.rows[*i as usize]);
        let (own, all): (Vec<&SocketRow>, Vec<&SocketRow>) = there
            .filter(|l| l.local_addr.is_none() || l.local_addr == s.local_addr)
            .partition(|l| l.local_addr.is_some());
        let those = if own.is_empty() { all } else { own };
        let first = *those.first()?;
        (first.pid.is_some() && those.iter().all(|l| l.pid == first.pid)).then_some(first)
    }

    /// Is there a listener at its port?
    pub fn listens(&self, s: &SocketRow) -> bool {
        s.proto == TCP && self.by_port.contains_key(&(s.netns, s.local_port))
    }

    /// Those between two ends, in the order of the table.
    pub fn between(&self, proto: i32, own: End, peer: End) -> impl Iterator<Item = &SocketRow> {
        self.by_ends.get(&(proto, own, peer)).into_iter().flatten().map(|i| &self.rows[*i as usize])
    }
}

impl Store {
    pub(crate) fn sockets(&self) -> Result<Arc<Sockets>> {
        let mut known = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sockets) = &*known {
            return Ok(Arc::clone(sockets));
        }
        let sockets = Arc::new(Sockets::new(self.all()?));
        *known = Some(Arc::clone(&sockets));
        Ok(sockets)
    }

    /// What the process is called that used this socket first.
    pub fn socket_process(&self, s: &SocketRow) -> Option<&str> {
        if s.kernels != 0 {
            return Some("kernel");
        }
        self.process(s.pid?, s.last_ns).map(|p| p.comm.as_str())
    }

    /// The listener to which this connection came, if no process has used it: it is in that one's accept queue, or was taken and left.
    pub fn listener_of(&self, s: &SocketRow) -> Result<Option<SocketRow>> {
        if s.pid.is_some() {
            return Ok(None);
        }
        Ok(self.sockets()?.listener(s).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_process_came_to_the_only_listener() {
        let row = |socket_id, addr: Option<&str>, pid, peer_port| SocketRow {
            socket_id,
            proto: TCP,
            local_addr: addr.map(str::to_owned),
            local_port: 80,
            peer_port,
            pid,
            ..SocketRow::default()
        };
        let one = row(9, Some("10.0.0.1"), None, 1234);
        let of =
            |rows: &[SocketRow], s: &SocketRow| Sockets::new(rows.to_vec()).listener(s).map(|l| l.socket_id);
        let all = row(1, None, Some(5), 0);
        let own = row(2, Some("10.0.0.1"), Some(6), 0);
        let another = row(3, Some("10.0.0.2"), Some(7), 0);
        assert_eq!(of(&[all.clone(), another.clone()], &one), Some(1));
        assert_eq!(of(&[all.clone(), own.clone(), another.clone()], &one), Some(2));
        assert_eq!(of(&[another], &one), None, "another address");
        assert_eq!(of(&[own.clone(), row(4, Some("10.0.0.1"), Some(8), 0)], &one), None, "of two processes");
        assert_eq!(of(&[own.clone(), row(4, Some("10.0.0.1"), None, 0)], &one), None, "one is not known");
        assert_eq!(
            of(&[own.clone(), row(4, Some("10.0.0.1"), Some(6), 0)], &one),
            Some(2),
            "both of one process"
        );
        assert_eq!(
            of(std::slice::from_ref(&own), &row(9, Some("10.0.0.1"), Some(3), 1234)),
            None,
            "a process used it"
        );
        assert_eq!(of(&[SocketRow { netns: Some(3), ..own }], &one), None, "elsewhere");
    }
}
