//! The way in: requests of one device, over the network or through ssh.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `HEAD /v1/NAME` | 200: it is here; 404 with `x-kpat-have: N`: the first N bytes are |
//! | `PUT /v1/NAME`, `x-kpat-offset: N`, the bytes from N on | 201: now it is here; 409 with `x-kpat-have`: go on from there |
//!
//! Both name the whole file's `x-kpat-size` and `x-kpat-sha256`, and a number of their own, `x-kpat-request`. An answer that says
//! what is here repeats all of them, with the name as `x-kpat-name`: a sender removes a file by no other word, since whatever lies
//! between the two may confuse connections. 401: no such secret; 400: no such name; 422: the bytes are not those of the
//! checksum; 507: no room, with `x-kpat-limit: N` if it is the device that has all of its N bytes. There is nothing else: no reading, no listing, no replacing, no removing.

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::shelf::{Have, Item, Shelf, Unadded, is_file_name};
use crate::token;
use kpat_http::{Connection, Deadline, Pool, Refusal, Request, Seat, Unreadable, Untimed, Wire};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest body that is read only to be able to answer.
const SKIP: u64 = 1 << 20;
/// Connections at a time.
const MOST: usize = 64;
/// Longest file.
const MOST_BYTES: u64 = 1 << 36;

/// How a connection's device is known.
enum Who<'a> {
    /// ssh has seen to it.
    Known(&'a str),
    /// By the secret that each request shows.
    Token,
}

/// Something that happened, to be reported.
pub enum Event {
    Added { device: String, name: String, bytes: u64 },
    Refused { from: String, why: String },
}

struct Answer {
    status: &'static str,
    have: Option<u64>,
    /// Most bytes that the device may have, where that is why it is refused.
    limit: Option<u64>,
    /// The file that the answer is about.
    of: Option<Item>,
    /// The body was not read; what follows on the connection cannot be understood.
    close: bool,
}

fn answer(status: &'static str) -> Answer {
    Answer { status, have: None, limit: None, of: None, close: false }
}

/// Answers the requests of one connection through a program, `ssh`, until it ends.
pub fn serve(
    root: &Path,
    device: &str,
    limit: Option<u64>,
    from: impl Read,
    to: impl Write,
    tell: &mut dyn FnMut(Event),
) -> io::Result<()> {
    let mut wire = Wire::new(Untimed(from), to);
    requests(root, &Who::Known(device), limit, &mut wire, None, tell)
}

fn requests<R: Read + Deadline, W: Write>(
    root: &Path,
    who: &Who<'_>,
    limit: Option<u64>,
    wire: &mut Wire<R, W>,
    seat: Option<&Seat>,
    tell: &mut dyn FnMut(Event),
) -> io::Result<()> {
    loop {
        let head = match wire.request() {
            Ok(head) => head,
            Err(Unreadable::Over) => return Ok(()),
            Err(Unreadable::Refused(Refusal(status, why))) => {
                tell(Event::Refused { from: "?".into(), why: why.into() });
                return wire.send(&format!("HTTP/1.1 {status} {why}"), &LAST);
            }
        };
        let a = one(root, who, limit, wire, &head, seat, tell);
        let (have, size) = (a.have.map(|n| n.to_string()), a.of.as_ref().map(|i| i.bytes.to_string()));
        let most = a.limit.map(|n| n.to_string());
        let mut headers = vec![("content-length", "0")];
        if let (Some(item), Some(size)) = (&a.of, &size) {
            headers.extend([("x-kpat-name", item.name.as_str()), ("x-kpat-size", size)]);
            headers.push(("x-kpat-sha256", item.digest.text()));
            headers.extend(head.header("x-kpat-request").map(|r| ("x-kpat-request", r)));
        }
        headers.extend(have.as_deref().map(|n| ("x-kpat-have", n)));
        headers.extend(most.as_deref().map(|n| ("x-kpat-limit", n)));
        let close = a.close || !head.stays;
        if close {
            headers.push(("connection", "close"));
        }
        wire.send(&format!("HTTP/1.1 {}", a.status), &headers)?;
        if close {
            return Ok(());
        }
        if let Some(seat) = seat {
            seat.waits();
        }
    }
}

/// Headers of an answer after which nothing is.
const LAST: [(&str, &str); 2] = [("content-length", "0"), ("connection", "close")];

fn one<R: Read + Deadline, W: Write>(
    root: &Path,
    who: &Who<'_>,
    limit: Option<u64>,
    wire: &mut Wire<R, W>,
    head: &Request,
    seat: Option<&Seat>,
    tell: &mut dyn FnMut(Event),
) -> Answer {
    let (method, path) = (head.method.as_str(), head.target.as_str());
    let mut refuse = |status: &'static str, device: &str, why: String| {
        tell(Event::Refused { from: device.to_owned(), why });
        answer(status)
    };
    let refused = match admit(root, who, head) {
        Err(e) => refuse("500 Internal Server Error", "?", e.to_string()),
        Ok(None) => refuse("401 Unauthorized", "?", "unknown token".into()),
        Ok(Some(device)) => {
            if let Some(seat) = seat {
                seat.works(&device);
            }
            match item(path, head) {
                None => refuse("400 Bad Request", &device, format!("{method} {path}")),
                Some(item) => match method {
                    "HEAD" if head.body_bytes > 0 => {
                        refuse("400 Bad Request", &device, format!("{}: a question with a body", item.name))
                    }
                    "HEAD" => return Answer { of: Some(item.clone()), ..have(root, &device, limit, &item) },
                    "PUT" => match number(head, "x-kpat-offset") {
                        Some(offset) if offset <= item.bytes && item.bytes - offset == head.body_bytes => {
                            let done = put(root, &device, limit, &item, offset, wire, tell);
                            return Answer { of: Some(item), ..done };
                        }
                        _ => {
                            refuse("400 Bad Request", &device, format!("{}: odd offset or length", item.name))
                        }
                    },
                    _ => refuse("405 Method Not Allowed", &device, format!("{method} {path}")),
                },
            }
        }
    };
    // Without its body having been read, the answer would be lost on the way. What came with it is not believed further.
    wire.body(head.body_bytes).skip(SKIP);
    Answer { close: true, ..refused }
}

/// A header of digits alone.
fn number(head: &Request, name: &str) -> Option<u64> {
    head.header(name).filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

fn admit(root: &Path, who: &Who<'_>, head: &Request) -> Result<Option<String>> {
    match who {
        Who::Known(device) => Ok(Some((*device).to_owned())),
        Who::Token => match head.header("authorization").and_then(|a| a.strip_prefix("Bearer ")) {
            Some(token) => token::device(root, token.trim()),
            None => Ok(None),
        },
    }
}

fn item(path: &str, head: &Request) -> Option<Item> {
    let name = path.strip_prefix("/v1/").filter(|n| is_file_name(n))?.to_owned();
    let bytes = number(head, "x-kpat-size").filter(|n| (1..=MOST_BYTES).contains(n))?;
    Some(Item { name, bytes, digest: Digest::parse(head.header("x-kpat-sha256")?)? })
}

fn have(root: &Path, device: &str, limit: Option<u64>, item: &Item) -> Answer {
    match Shelf::open(root, device, limit).and_then(|s| s.have(item)) {
        Ok(Have::Whole) => answer("200 OK"),
        Ok(Have::Part(n)) => Answer { have: Some(n), ..answer("404 Not Found") },
        Err(_) => answer("500 Internal Server Error"),
    }
}

fn put<R: Read + Deadline, W: Write>(
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
        Err(Unadded::Share(limit)) => {
            why(format!("{}: the device has its share of {limit} bytes (--limit)", item.name));
            Answer { limit: Some(limit), ..answer("507 Insufficient Storage") }
        }
        Err(Unadded::Full) => {
            why(format!("{}: no room on this disk", item.name));
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
    pub fn run(self, tell: Arc<dyn Fn(Event) + Send + Sync>) -> ! {
        let Service { listener, root, limit } = self;
        kpat_http::accept(&listener, &Pool::new(MOST), "device", move |stream, seat| {
            // A connection that breaks is the sender's affair: it comes again.
            let _ = connection(&root, limit, stream, seat, &mut |e| tell(e));
        })
    }
}

fn connection(
    root: &Path,
    limit: Option<u64>,
    stream: TcpStream,
    seat: &Seat,
    tell: &mut dyn FnMut(Event),
) -> io::Result<()> {
    let mut connection = Connection::new(stream)?;
    let done = requests(root, &Who::Token, limit, connection.wire(), Some(seat), tell);
    connection.close(seat);
    done
}
