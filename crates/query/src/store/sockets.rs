//! The sockets of a log, by their addresses and ports: every packet of TCP asks for two. Of what this host itself translates (a redirected port, a
//! service's address) a packet may be seen with other addresses than its socket has; its numbers do not change.

use super::Store;
use crate::error::Result;
use kpat_model::hash::Map;
use kpat_store::tables::SocketRow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Address and port.
type End = (Option<String>, i32);

#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub rows: Vec<SocketRow>,
    by_id: Map<i64, u32>,
    /// Places in `rows`.
    by_ends: HashMap<(i32, End, End), Vec<u32>>,
    /// Those that sent or received something, by what translation leaves: their own end; their own address and the other end. As hashes.
    by_part: HashMap<u64, Vec<u32>>,
}

/// Once they were asked for.
pub(crate) type Known = Mutex<Option<Arc<Sockets>>>;

fn part(of: &dyn Fn(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of(&mut hasher);
    hasher.finish()
}

/// What of a socket's ends a translated packet still has: all of its own, or all but the port of its own.
fn parts(own: (Option<&str>, i32), peer: (Option<&str>, i32)) -> [u64; 2] {
    [part(&|h| (0, own).hash(h)), part(&|h| (1, own.0, peer).hash(h))]
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
        // Of rows with one number the first.
        let by_id = rows.iter().enumerate().rev().map(|(i, s)| (s.socket_id, i as u32)).collect();
        Sockets { rows, by_id, by_ends, by_part }
    }

    /// The socket of that number.
    pub fn get(&self, socket_id: i64) -> Option<&SocketRow> {
        self.by_id.get(&socket_id).map(|i| &self.rows[*i as usize])
    }

    /// Place of the only socket that has these bytes although its addresses are others: `own` and `peer` are the packet's.
    pub fn translated(
        &self,
        own: (Option<&str>, i32),
        peer: (Option<&str>, i32),
        has_bytes: impl Fn(&SocketRow) -> bool,
    ) -> Option<u32> {
        let mut found = None;
        for place in parts(own, peer).iter().filter_map(|p| self.by_part.get(p)).flatten() {
            let s = &self.rows[*place as usize];
            let has_own = s.local_addr.as_deref() == own.0 && s.local_port == own.1;
            let has_peer = (s.peer_addr.as_deref(), s.peer_port) == peer && s.local_addr.as_deref() == own.0;
            if (has_own || has_peer) && has_bytes(s) && found != Some(*place) {
                if found.is_some() {
                    return None;
                }
                found = Some(*place);
            }
        }
        found
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
}
