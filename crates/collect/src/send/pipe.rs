//! The receiver's requests through whatever carries bytes both ways: a socket, `ssh`, or `openssl` for TLS. A connection
//! stays for the next file; one that broke is made anew.

use super::{Access, Target, full, open_at, words};
use crate::error::{Error, Result};
use crate::shelf::Item;
use kpat_http::{Response, Untimed, Wire};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing moves for so long: the far end is away.
const IDLE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);

/// A receiver on the network.
pub(super) struct Receiver {
    /// Host and port to connect to.
    at: String,
    /// The host as the target names it, by which a proxy for several tells them apart.
    host: String,
    /// The secret.
    token: String,
}

pub(super) enum Carrier {
    Socket(Receiver),
    /// `openssl` with these arguments, its standard input and output are the connection.
    Tls(Receiver, Vec<String>),
    /// `ssh`, in the same way; it knows who we are.
    Ssh(Vec<String>),
}

struct Open {
    wire: Wire<Untimed<Box<dyn Read>>, Box<dyn Write>>,
    child: Option<Child>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) struct Pipe {
    carrier: Carrier,
    open: Option<Open>,
}

/// Neither an option nor anything that a shell at the far end would take for more than a word.
fn plain(text: &str, also: &[u8]) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b) || also.contains(&b))
}

impl Carrier {
    pub(super) fn network(target: &str, access: &Access) -> Result<Carrier> {
        let odd = |why: &str| Error::Target(format!("{target}: {why}"));
        let (tls, rest) = match target.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, target.strip_prefix("http://").unwrap_or(target)),
        };
        let host = rest.strip_suffix('/').unwrap_or(rest);
        if !plain(host, b":[]") {
            return Err(odd("a receiver is http://HOST:PORT or https://HOST:PORT, nothing behind it"));
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(h, p)| p.parse::<u16>().is_ok() && (!h.contains(':') || h.ends_with(']')));
        let at = match (has_port, tls) {
            (true, _) => host.to_owned(),
            (false, true) => format!("{host}:443"),
            (false, false) => format!("{host}:80"),
        };
        let token = access.token.clone().ok_or_else(|| odd("a receiver wants a token; give --token-file"))?;
        let receiver = Receiver { at, host: host.to_owned(), token };
        if !tls {
            return Ok(Carrier::Socket(receiver));
        }
        let name = receiver.at.rsplit_once(':').map_or(receiver.at.as_str(), |(h, _)| h);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let mut argv: Vec<String> =
            ["openssl", "s_client", "-quiet", "-verify_return_error"].map(str::to_owned).into();
        // In a certificate an address is another kind of name, and no name to ask a proxy for.
        let names = match bare.parse::<IpAddr>() {
            Ok(_) => vec!["-verify_ip", bare],
            Err(_) => vec!["-verify_hostname", name, "-servername", name],
        };
        argv.extend(names.into_iter().map(str::to_owned));
        match &access.ca {
            Some(ca) => argv.extend(["-CAfile".to_owned(), ca.display().to_string()]),
            None => argv.extend(["-CApath".to_owned(), "/etc/ssl/certs".to_owned()]),
        }
        argv.extend(["-connect".to_owned(), receiver.at.clone()]);
        Ok(Carrier::Tls(receiver, argv))
    }

    pub(super) fn ssh(target: &str, access: &Access) -> Result<Carrier> {
        let odd = |why: &str| Error::Target(format!("{target}: {why}"));
        let rest = target.strip_prefix("ssh://").unwrap_or(target);
        let (host, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match host.rsplit_once(':') {
            Some((h, p)) => (h, Some(p.parse::<u16>().map_err(|_| odd("the port is no number"))?)),
            None => (host, None),
        };
        if !plain(host, b"@") || !(folder.is_empty() || plain(folder, b"/")) {
            return Err(odd(
                "write ssh://[USER@]HOST[:PORT]/FOLDER, of letters, digits, `.`, `_`, `-` and `/`",
            ));
        }
        let mut argv = if access.ssh.is_empty() { vec!["ssh".to_owned()] } else { access.ssh.clone() };
        let options =
            ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=20", "-o", "ConnectTimeout=10"];
        argv.extend(options.map(str::to_owned));
        if let Some(port) = port {
            argv.extend(["-p".to_owned(), port.to_string()]);
        }
        argv.push(host.to_owned());
        // With a forced command at the far end these words are not used.
        let words = ["kpat", "collect", "accept", &format!("/{folder}"), "--device", &access.device];
        argv.extend(words.map(str::to_owned));
        Ok(Carrier::Ssh(argv))
    }

    fn receiver(&self) -> Option<&Receiver> {
        match self {
            Carrier::Socket(receiver) | Carrier::Tls(receiver, _) => Some(receiver),
            Carrier::Ssh(_) => None,
        }
    }

    /// What a program that carried the bytes printed when it ended.
    fn last_words(&self, open: &mut Open) -> Option<String> {
        let text = open.last_text()?;
        match self {
            Carrier::Tls(receiver, _) => words::of_openssl(&text, &receiver.at),
            Carrier::Socket(_) | Carrier::Ssh(_) => words::last(&text),
        }
    }

    fn open(&self) -> Result<Open> {
        match self {
            Carrier::Socket(Receiver { at, .. }) => {
                let away = |e: io::Error| Error::Away(format!("{at}: {e}"));
                let mut last = io::Error::other("no such host");
                for address in at.to_socket_addrs().map_err(away)? {
                    match connect(&address) {
                        Ok((from, to)) => {
                            let wire = Wire::new(Untimed(Box::new(from) as _), Box::new(to) as _);
                            return Ok(Open { wire, child: None });
                        }
                        Err(e) => last = e,
                    }
                }
                Err(away(last))
            }
            Carrier::Tls(_, argv) | Carrier::Ssh(argv) => {
                let failed = |e: io::Error| Error::Target(format!("cannot run {}: {e}", argv[0]));
                // A socket, not two pipes: reading from it can end in time.
                let (ours, theirs) = UnixStream::pair().map_err(failed)?;
                let to = ours.try_clone().map_err(failed)?;
                for end in [&ours, &to] {
                    end.set_read_timeout(Some(IDLE)).map_err(failed)?;
                    end.set_write_timeout(Some(IDLE)).map_err(failed)?;
                }
                let input = OwnedFd::from(theirs.try_clone().map_err(failed)?);
                let child = Command::new(&argv[0])
                    .args(&argv[1..])
                    .stdin(Stdio::from(input))
                    .stdout(Stdio::from(OwnedFd::from(theirs)))
                    .stderr(Stdio::piped())
                    .spawn()
                    .map_err(failed)?;
                let wire = Wire::new(Untimed(Box::new(ours) as _), Box::new(to) as _);
                Ok(Open { wire, child: Some(child) })
            }
        }
    }
}

fn connect(address: &std::net::SocketAddr) -> io::Result<(TcpStream, TcpStream)> {
    let stream = TcpStream::connect_timeout(address, CONNECT)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    Ok((stream.try_clone()?, stream))
}

impl Open {
    fn last_text(&mut self) -> Option<String> {
        let child = self.child.as_mut()?;
        let patience = Instant::now();
        while patience.elapsed() < Duration::from_secs(2) && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let mut text = Vec::new();
        child.stderr.take()?.take(8192).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Pipe {
    pub(super) fn new(carrier: Carrier) -> Pipe {
        Pipe { carrier, open: None }
    }

    fn ask(&mut self, method: &str, item: &Item, offset: u64, path: Option<&Path>) -> Result<Response> {
        let fresh = self.open.is_none();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.carrier.open()?,
        };
        match exchange(&mut open, self.carrier.receiver(), method, item, offset, path) {
            Ok(head) => {
                if !head.header("connection").is_some_and(|c| c.eq_ignore_ascii_case("close")) {
                    self.open = Some(open);
                }
                Ok(head)
            }
            // The other side may have closed a connection that rested.
            Err(_) if !fresh && method == "HEAD" => self.ask(method, item, offset, path),
            // It was carried, and answered with something else.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::Away(e.to_string())),
            Err(e) => {
                let words = self.carrier.last_words(&mut open);
                Err(Error::Away(words.unwrap_or_else(|| format!("the connection broke: {e}"))))
            }
        }
    }
}

/// A number that no other request has.
fn nonce() -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|b| format!("{b:02x}")).collect())
}

fn exchange(
    open: &mut Open,
    receiver: Option<&Receiver>,
    method: &str,
    item: &Item,
    offset: u64,
    path: Option<&Path>,
) -> io::Result<Response> {
    let left = if path.is_some() { item.bytes - offset } else { 0 };
    let bearer = receiver.map(|r| format!("Bearer {}", r.token));
    let (len, size, offset_text) = (left.to_string(), item.bytes.to_string(), offset.to_string());
    let nonce = nonce()?;
    let own =
        [("x-kpat-request", nonce.as_str()), ("x-kpat-size", &size), ("x-kpat-sha256", item.digest.text())];
    let mut headers = vec![
        ("host", receiver.map_or("kpat", |r| r.host.as_str())),
        ("content-length", &len),
        ("x-kpat-offset", &offset_text),
    ];
    headers.extend(own);
    headers.extend(bearer.as_deref().map(|b| ("authorization", b)));
    open.wire.send(&format!("{method} /v1/{} HTTP/1.1", item.name), &headers)?;
    if let Some(path) = path {
        let mut file = open_at(path, offset).map_err(io::Error::other)?;
        open.wire.send_body(&mut file, left)?;
    }
    let answer = open.wire.response()?;
    // A file is removed only after its receiver has confirmed this request by its number, which no other party knows.
    let confirmed = own.iter().all(|(name, value)| answer.header(name) == Some(value))
        && answer.header("x-kpat-name") == Some(&item.name)
        && answer.body_bytes == 0;
    if matches!(answer.status, 200 | 201 | 404 | 409) && !confirmed {
        let why =
            "an answer that does not name this file: no receiver of kpat's, or another request's answer";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(answer)
}

impl Target for Pipe {
    fn send(&mut self, item: &Item, path: &Path) -> Result<bool> {
        let refused = |why: &str| Error::Refused { name: item.name.clone(), why: why.into() };
        let mut offset = None;
        // A conflict says where to go on; one that repeats itself is another sender's.
        for _ in 0..3 {
            let answer = match offset {
                None => self.ask("HEAD", item, 0, None)?,
                Some(n) => self.ask("PUT", item, n, Some(path))?,
            };
            let have = || answer.header("x-kpat-have")?.parse().ok().filter(|n| *n <= item.bytes);
            match answer.status {
                200 => return Ok(true),
                201 => return Ok(false),
                404 | 409 => match have() {
                    Some(n) => offset = Some(n),
                    None => return Err(Error::Denied("the target is not a kpat receiver".into())),
                },
                401 | 403 => return Err(Error::Denied("the target does not accept our token".into())),
                422 => return Err(refused("the data were changed on the way")),
                507 => return Err(full(answer.header("x-kpat-limit").and_then(|n| n.parse().ok()))),
                500..=599 => {
                    let status = answer.status;
                    return Err(Error::Away(format!("the target reported an error ({status})")));
                }
                status => return Err(refused(&format!("the target refused it ({status})"))),
            }
        }
        Err(refused("another process is sending it"))
    }
}
