//! Room for so many connections, of which none can be held by those who send nothing: where the room is full, the connection
//! that has waited longest for its head gives way to the new one.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The connections of a service.
pub struct Pool {
    most: usize,
    open: Mutex<Open>,
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
    /// Its head has not come yet, or what it asked was refused.
    waits: bool,
}

/// A connection's place; given back when it is dropped, also by a panic.
pub struct Seat {
    pool: Arc<Pool>,
    id: u64,
}

impl Pool {
    pub fn new(most: usize) -> Arc<Pool> {
        Arc::new(Pool { most, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection; `None`: all are at work.
    pub fn take(self: &Arc<Pool>, stream: &TcpStream) -> Option<Seat> {
        let stream = stream.try_clone().ok()?;
        let mut open = self.open();
        if open.taken.len() >= self.most {
            let idle = open.taken.iter().position(|t| t.waits)?;
            // Its thread finds the connection closed and ends.
            let _ = open.taken.remove(idle).stream.shutdown(Shutdown::Both);
        }
        let id = open.next;
        open.next += 1;
        open.taken.push(Taken { id, stream, waits: true });
        Some(Seat { pool: Arc::clone(self), id })
    }
}

impl Seat {
    /// It has shown that it may ask, and is being answered: it does not give way.
    pub fn works(&self) {
        self.set(false);
    }

    /// It waits for a head again.
    pub fn waits(&self) {
        self.set(true);
    }

    fn set(&self, waits: bool) {
        if let Some(t) = self.pool.open().taken.iter_mut().find(|t| t.id == self.id) {
            t.waits = waits;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pool.open().taken.retain(|t| t.id != self.id);
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
