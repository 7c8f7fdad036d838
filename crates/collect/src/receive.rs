//! The way in: requests of one device, over the network or through ssh.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `HEAD /v1/NAME` | 200: it is here; 404 with `x-kpat-have: N`: the first N bytes are |
//! | `PUT /v1/NAME`, `x-kpat-offset: N`, the bytes from N on | 201: now it is here; 409 with `x-kpat-have`: go on from there |
//!
//! Both name the whole file's `x-kpat-size` and `x-kpat-sha256`. 401: no such secret; 400: no such name; 422: the bytes are
//! not those of the checksum; 507: no room. There is nothing else: no reading, no listing, no replacing, no removing.

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::http::{First, Head, Wire};
use crate::shelf::{Have, Item, Shelf, Unadded, is_file_name};
use crate::token;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longest body that is read only to be able to answer.
const SKIP: u64 = 1 << 20;
/// A connection on which nothing moves for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Connections at a time.
const MOST: usize = 64;
/// Longest file.
const MOST_BYTES: u64 = 1 << 36;

/// How a connection's device is known.
pub enum Who<'a> {
    /// ssh has seen to it.
    Known(&'a str),
    /// By the secret that each request shows.
    Token,
}

/// Something that happened, for whoever watches.
pub enum Event {
    Added { device: String, name: String, bytes: u64 },
    Refused { from: String, why: String },
}

struct Answer {
    status: &'static str,
    have: Option<u64>,
    /// The body was not read; what follows on the connection cannot be understood.
    close: bool,
}

fn answer(status: &'static str) -> Answer {
    Answer { status, have: None, close: false }
}

/// Answers the requests of one connection until it ends.
pub fn serve<R: Read, W: Write>(
    root: &Path,
    who: &Who<'_>,
    limit: Option<u64>,
    from: R,
    to: W,
    tell: &mut dyn FnMut(Event),
) -> io::Result<()> {
    let mut wire = Wire::new(from, to);
    while let Some(head) = wire.head(true)? {
        let a = one(root, who, limit, &mut wire, &head, tell);
        let have = a.have.map(|n| n.to_string());
        let mut headers = vec![("content-length", "0")];
        headers.extend(have.as_deref().map(|n| ("x-kpat-have", n)));
        if a.close {
            headers.push(("connection", "close"));
        }
        wire.say(&format!("HTTP/1.1 {}", a.status), &headers)?;
        if a.close {
            break;
        }
    }
    Ok(())
}

fn one<R: Read, W: Write>(
    root: &Path,
    who: &Who<'_>,
    limit: Option<u64>,
    wire: &mut Wire<R, W>,
    head: &Head,
    tell: &mut dyn FnMut(Event),
) -> Answer {
    let First::Request { method, path } = &head.first else { return answer("400 Bad Request") };
    let len = head.number("content-length").unwrap_or(0);
    let mut refuse = |status: &'static str, device: &str, why: String| {
        tell(Event::Refused { from: device.to_owned(), why });
        answer(status)
    };
    let refused = match admit(root, who, head) {
        Err(e) => refuse("500 Internal Server Error", "?", e.to_string()),
        Ok(None) => refuse("401 Unauthorized", "?", "unknown token".into()),
        Ok(Some(device)) => match item(path, head) {
            None => refuse("400 Bad Request", &device, format!("{method} {path}")),
            Some(item) => match method.as_str() {
                "HEAD" => return have(root, &device, limit, &item),
                "PUT" => match head.number("x-kpat-offset") {
                    Some(offset) if offset <= item.bytes && item.bytes - offset == len => {
                        return put(root, &device, limit, &item, offset, wire, tell);
                    }
                    _ => refuse("400 Bad Request", &device, format!("{}: odd offset or length", item.name)),
                },
                _ => refuse("405 Method Not Allowed", &device, format!("{method} {path}")),
            },
        },
    };
    // Without its body having been read, the answer would be lost on the way.
    let close = head.has("transfer-encoding") || !wire.body(len).skip(SKIP);
    Answer { close, ..refused }
}

fn admit(root: &Path, who: &Who<'_>, head: &Head) -> Result<Option<String>> {
    match who {
        Who::Known(device) => Ok(Some((*device).to_owned())),
        Who::Token => match head.get("authorization").and_then(|a| a.strip_prefix("Bearer ")) {
            Some(token) => token::device(root, token.trim()),
            None => Ok(None),
        },
    }
}

fn item(path: &str, head: &Head) -> Option<Item> {
    let name = path.strip_prefix("/v1/").filter(|n| is_file_name(n))?.to_owned();
    let bytes = head.number("x-kpat-size").filter(|n| *n <= MOST_BYTES)?;
    Some(Item { name, bytes, digest: Digest::parse(head.get("x-kpat-sha256")?)? })
}

fn have(root: &Path, device: &str, limit: Option<u64>, item: &Item) -> Answer {
    match Shelf::open(root, device, limit).and_then(|s| s.have(item)) {
        Ok(Have::Whole) => answer("200 OK"),
        Ok(Have::Part(n)) => Answer { have: Some(n), ..answer("404 Not Found") },
        Err(_) => answer("500 Internal Server Error"),
    }
}

fn put<R: Read, W: Write>(
    root: &Path,
    device: &str,
    limit: Option<u64>,
    item: &Item,
    offset: u64,
    wire: &mut Wire<R, W>,
    tell: &mut dyn FnMut(Event),
) -> Answer {
    let mut body = wire.body(item.bytes - offset);
    let done = match Shelf::open(root, device, limit) {
        Ok(shelf) => shelf.add(item, offset, &mut body),
        Err(e) => Err(e.into()),
    };
    let mut why = |words: String| tell(Event::Refused { from: device.to_owned(), why: words });
    let a = match done {
        Ok(()) => {
            tell(Event::Added { device: device.to_owned(), name: item.name.clone(), bytes: item.bytes });
            return answer("201 Created");
        }
        Err(Unadded::Busy(Have::Whole)) => answer("200 OK"),
        Err(Unadded::Busy(Have::Part(n))) => Answer { have: Some(n), ..answer("409 Conflict") },
        Err(Unadded::Wrong) => {
            why(format!("{}: the bytes are not those of the checksum", item.name));
            answer("422 Unprocessable Content")
        }
        Err(Unadded::Full) => {
            why(format!("{}: no room", item.name));
            answer("507 Insufficient Storage")
        }
        Err(Unadded::Broken(_)) => return Answer { close: true, ..answer("400 Bad Request") },
        Err(Unadded::Own(e)) => {
            why(e.to_string());
            answer("500 Internal Server Error")
        }
    };
    let close = !body.skip(SKIP);
    Answer { close, ..a }
}

/// A listening service for all devices that have a secret.
pub struct Service {
    listener: TcpListener,
    root: PathBuf,
    limit: Option<u64>,
}

impl Service {
    pub fn bind(root: &Path, at: SocketAddr, limit: Option<u64>) -> Result<Service> {
        let listener =
            TcpListener::bind(at).map_err(|e| Error::Target(format!("cannot listen at {at}: {e}")))?;
        Ok(Service { listener, root: root.to_owned(), limit })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Until the process ends: a thread for each connection.
    pub fn run(self, tell: Arc<dyn Fn(Event) + Send + Sync>) {
        let open = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if open.fetch_add(1, Ordering::Relaxed) >= MOST {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (root, limit, tell, count) = (self.root.clone(), self.limit, tell.clone(), open.clone());
            let work = move || {
                // A connection that breaks is the sender's affair: it comes again.
                let _ = connection(&root, limit, &stream, &mut |e| tell(e));
                count.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().spawn(work).is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn connection(
    root: &Path,
    limit: Option<u64>,
    stream: &TcpStream,
    tell: &mut dyn FnMut(Event),
) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    serve(root, &Who::Token, limit, stream, stream, tell)
}
