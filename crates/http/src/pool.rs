//! Room for so many connections, which neither those who send nothing can hold, nor one client alone: where the room is full, the
//! connection that has waited longest for its head gives way to the new one, else the oldest of the client that has most.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A client's share of a full room is one place in so many.
const SHARE: usize = 4;
/// A room in which all are at work is looked at again for so long: a place that was answered is free a moment later.
const PATIENCE: Duration = Duration::from_millis(200);

/// The connections of a service.
pub struct Pool {
    most: usize,
    open: Mutex<Open>,
    /// Somebody left, or works no more.
    freed: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// In order of their coming.
    taken: Vec<Taken>,
}

struct Taken {
    id: u64,
    stream: TcpStream,
    /// Whom it works for; `None`: its head has not come yet, or what it asked was refused or is for anybody.
    client: Option<String>,
}

/// A connection's place; given back when it is dropped, also by a panic.
pub struct Seat {
    pool: Arc<Pool>,
    id: u64,
}

impl Pool {
    pub fn new(most: usize) -> Arc<Pool> {
        Arc::new(Pool { most, open: Mutex::default(), freed: Condvar::new() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, waited for if need be; `None`: all stay at work, and no client has more than its share.
    pub fn take(self: &Arc<Pool>, stream: &TcpStream) -> Option<Seat> {
        let stream = stream.try_clone().ok()?;
        let full = |open: &mut Open| open.taken.len() >= self.most && open.first_to_go().is_none();
        let (mut open, _) = self
            .freed
            .wait_timeout_while(self.open(), PATIENCE, full)
            .unwrap_or_else(PoisonError::into_inner);
        if open.taken.len() >= self.most {
            let goes = open.first_to_go()?;
            // Its thread finds the connection closed and ends.
            let _ = open.taken.remove(goes).stream.shutdown(Shutdown::Both);
        }
        let id = open.next;
        open.next += 1;
        open.taken.push(Taken { id, stream, client: None });
        Some(Seat { pool: Arc::clone(self), id })
    }
}

impl Open {
    fn first_to_go(&self) -> Option<usize> {
        if let Some(idle) = self.taken.iter().position(|t| t.client.is_none()) {
            return Some(idle);
        }
        let mut of: HashMap<&Option<String>, usize> = HashMap::new();
        self.taken.iter().for_each(|t| *of.entry(&t.client).or_default() += 1);
        let most = of.values().copied().max()?;
        let greedy = |t: &Taken| of.get(&t.client) == Some(&most);
        if most * SHARE > self.taken.len() { self.taken.iter().position(greedy) } else { None }
    }
}

impl Seat {
    /// It has shown that it may ask, and is being answered: it does not give way to others, unless this client has more than its share.
    pub fn works(&self, client: &str) {
        self.set(Some(client.to_owned()));
    }

    /// It waits for a head again.
    pub fn waits(&self) {
        self.set(None);
    }

    fn set(&self, client: Option<String>) {
        if let Some(t) = self.pool.open().taken.iter_mut().find(|t| t.id == self.id) {
            t.client = client;
        }
        self.pool.freed.notify_one();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pool.open().taken.retain(|t| t.id != self.id);
        self.pool.freed.notify_one();
    }
}

/// Hands connections to threads of their own, for ever. A panic ends its connection and nothing else.
pub fn accept(
    listener: &TcpListener,
    pool: &Arc<Pool>,
    name: &str,
    work: impl Fn(TcpStream, &Seat) + Send + Sync + 'static,
) -> ! {
    let work = Arc::new(work);
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            // No file left, for example: later there may be one.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(seat) = pool.take(&stream) else { continue };
        let work = Arc::clone(&work);
        // Where no thread can be started the connection is closed.
        let _ = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = catch_unwind(AssertUnwindSafe(|| work(stream, &seat)));
        });
    }
}
