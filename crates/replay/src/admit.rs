//! Who may connect to the end that serves: whoever shows its secret, in a connection of its own before the first one of the trace. What then comes
//! from that address is the trace's, so no connection has a word that the trace does not have. Without, a datagram with a forged sender would have the trace's
//! answers sent to somebody else.
//!
//! Each word is [`MAGIC`], a letter, what it says. `?` asks for a challenge; `!` is one, of 16 random bytes; `=` is [`Secret::proof`] of it; `+` and `-` say
//! whether that was right. The secret itself is not sent. It proves who begins, not each packet after it: use a network that you trust.

use crate::reads::LOOK;
use crate::wire::{Until, is_pause};
use sha2::{Digest, Sha256};
use std::collections::{HashSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"kpatrpl1";
const WORD: usize = MAGIC.len() + 1;
const CHALLENGE: usize = 16;
const PROOF: usize = 32;
/// Addresses that may connect to one server, and those that are asked for the secret at once.
const MOST: usize = 4_096;
const MOST_ASKED: usize = 64;
/// For all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// 32 random bytes that both ends have in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Secret {
    /// Of a file with 64 hexadecimal digits, which nobody else may read.
    pub fn read(path: &Path) -> io::Result<Secret> {
        let invalid = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(invalid("not a file"));
        }
        if about.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "others may read it; run: chmod 600 on it",
            ));
        }
        let mut text = String::new();
        file.take(256).read_to_string(&mut text)?;
        let text = text.trim();
        let digits = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let mut secret = [0; 32];
        for (i, byte) in secret.iter_mut().enumerate() {
            let of = digits.then(|| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).flatten();
            *byte = of.ok_or_else(|| invalid("no secret: 64 hexadecimal digits"))?;
        }
        Ok(Secret(secret))
    }

    /// Makes the file if there is none (mode 0600, its folder 0700).
    pub fn read_or_make(path: &Path) -> io::Result<Secret> {
        match Secret::read(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            known => return known,
        }
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let secret = random()?;
        let text: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => file.write_all(format!("{text}\n").as_bytes())?,
            // Another one made it meanwhile.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Secret::read(path),
            Err(e) => return Err(e),
        }
        Ok(Secret(secret))
    }

    fn proof(&self, challenge: &[u8]) -> [u8; 32] {
        // Twice, as HMAC does, so that nothing can be added to what was proven.
        let inner = Sha256::new().chain_update(self.0).chain_update(challenge).finalize();
        Sha256::new()
            .chain_update(b"kpat app replay")
            .chain_update(self.0)
            .chain_update(inner)
            .finalize()
            .into()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn word(letter: u8, what: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &[letter], what].concat()
}

/// The next word, if it has this letter and length.
fn heard<const N: usize>(s: &mut impl Read, letter: u8) -> io::Result<Option<[u8; N]>> {
    let (mut begin, mut rest) = ([0; WORD], [0; N]);
    s.read_exact(&mut begin)?;
    if begin[..MAGIC.len()] != MAGIC[..] || begin[MAGIC.len()] != letter {
        return Ok(None);
    }
    s.read_exact(&mut rest)?;
    Ok(Some(rest))
}

/// A connection that may take so long in all.
struct Bounded<'a> {
    s: &'a TcpStream,
    until: Until<'a>,
    deadline: Instant,
}

impl Read for Bounded<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while !self.until.is_now() && Instant::now() < self.deadline {
            match self.s.read(bytes) {
                Err(e) if is_pause(&e) => {}
                done => return done,
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.s.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.s.flush()
    }
}

/// Whom the end that serves has let in.
pub struct Door {
    /// `None`: anyone may come.
    secret: Option<Secret>,
    inside: Mutex<HashSet<IpAddr>>,
    /// Who is being asked, in order of their coming.
    asked: Mutex<VecDeque<Arc<TcpStream>>>,
}

impl Door {
    pub fn new(secret: Option<Secret>) -> Door {
        Door { secret, inside: Mutex::default(), asked: Mutex::default() }
    }

    pub fn lets_in(&self, from: SocketAddr) -> bool {
        self.secret.is_none() || self.inside().contains(&from.ip().to_canonical())
    }

    fn inside(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, VecDeque<Arc<TcpStream>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks who connected for the secret; whether that was shown. The connection is over then. Where many are asked the one that has
    /// taken longest gives way, so those who say nothing keep nobody out.
    pub(crate) fn ask(&self, s: TcpStream, from: SocketAddr, until: Until<'_>) -> bool {
        let s = Arc::new(s);
        let gives_way = {
            let mut asked = self.asked();
            asked.push_back(Arc::clone(&s));
            if asked.len() > MOST_ASKED { asked.pop_front() } else { None }
        };
        // Its thread finds the connection closed and ends.
        gives_way.inspect(|s| drop(s.shutdown(Shutdown::Both)));
        let bounded = s.set_read_timeout(Some(LOOK)).and(s.set_write_timeout(Some(PATIENCE)));
        let bound = Bounded { s: &s, until, deadline: Instant::now() + PATIENCE };
        let shown = bounded.is_ok() && self.talk(bound, from).unwrap_or(false);
        self.asked().retain(|other| !Arc::ptr_eq(other, &s));
        shown
    }

    fn talk(&self, mut s: impl Read + Write, from: SocketAddr) -> io::Result<bool> {
        if heard::<0>(&mut s, b'?')?.is_none() {
            return Ok(false);
        }
        let random = random()?;
        let challenge = &random[..CHALLENGE];
        s.write_all(&word(b'!', challenge))?;
        let proof = heard::<PROOF>(&mut s, b'=')?;
        let right = |secret: &Secret| proof.is_some_and(|p| same(&secret.proof(challenge), &p));
        let mut inside = self.inside();
        let from = from.ip().to_canonical();
        let shown = self.secret.as_ref().is_none_or(right) && (inside.len() < MOST || inside.contains(&from));
        if shown {
            inside.insert(from);
        }
        drop(inside);
        s.write_all(&word(if shown { b'+' } else { b'-' }, &[]))?;
        Ok(shown)
    }

    /// A connection begins so that shows the secret. Waits for its first bytes.
    pub(crate) fn is_asked(s: &TcpStream, until: Until<'_>) -> bool {
        let mut begin = [0; MAGIC.len()];
        let _ = s.set_read_timeout(Some(LOOK));
        while !until.is_now() {
            match s.peek(&mut begin) {
                Ok(n) => return n == begin.len() && begin == *MAGIC,
                Err(e) if is_pause(&e) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

/// Takes as long whatever differs.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y)) == 0
}

/// Why the other end does not let this one in.
#[derive(Debug, thiserror::Error)]
pub enum NotIn {
    #[error("it has another secret")]
    Wrong,
    #[error("nothing there answers as `kpat app replay --serve` does")]
    Silent,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Shows the secret to the end that serves.
pub fn knock(to: SocketAddr, secret: Option<&Secret>) -> Result<(), NotIn> {
    let mut s = TcpStream::connect_timeout(&to, PATIENCE)?;
    s.set_read_timeout(Some(PATIENCE))?;
    show(&mut s, secret).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::ConnectionReset => NotIn::Silent,
        _ => NotIn::Io(e),
    })?
}

fn show(s: &mut (impl Read + Write), secret: Option<&Secret>) -> io::Result<Result<(), NotIn>> {
    s.write_all(&word(b'?', &[]))?;
    let Some(challenge) = heard::<CHALLENGE>(s, b'!')? else { return Ok(Err(NotIn::Silent)) };
    let proof = secret.map_or([0; PROOF], |secret| secret.proof(&challenge));
    s.write_all(&word(b'=', &proof))?;
    let mut end = [0; WORD];
    s.read_exact(&mut end)?;
    Ok(if end[..] == word(b'+', &[])[..] { Ok(()) } else { Err(NotIn::Wrong) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicBool;

    /// What both ends make of a connection over the loopback device.
    fn met(door: &Door, secret: Option<&Secret>) -> (bool, Result<(), NotIn>) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let never = AtomicBool::new(false);
                let until = Until { over: &never, stop: &never };
                server.accept().map(|(s, from)| door.ask(s, from, until)).unwrap()
            });
            let shown = knock(to, secret);
            (asked.join().unwrap(), shown)
        })
    }

    #[test]
    fn who_shows_the_secret_is_let_in_and_nobody_else() {
        let (secret, other) = (Secret([7; 32]), Secret([8; 32]));
        let door = Door::new(Some(secret.clone()));
        let [one, two]: [SocketAddr; 2] = ["127.0.0.1:5000", "127.0.0.2:5000"].map(|a| a.parse().unwrap());
        for wrong in [Some(&other), None] {
            assert!(matches!(met(&door, wrong), (false, Err(NotIn::Wrong))));
            assert!(!door.lets_in(one));
        }
        assert!(matches!(met(&door, Some(&secret)), (true, Ok(()))));
        assert!(door.lets_in(one) && !door.lets_in(two));
        assert!(door.lets_in("[::ffff:127.0.0.1]:9".parse().unwrap()));
        // An end that asks nobody takes whatever is shown.
        let open = Door::new(None);
        assert!(open.lets_in(two) && matches!(met(&open, None), (true, Ok(()))));
    }

    /// Connections that say nothing, more than are asked at once.
    #[test]
    fn silent_strangers_keep_nobody_out() {
        let secret = Secret([7; 32]);
        let door = Door::new(Some(secret.clone()));
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        let until = Until { over: &stop, stop: &stop };
        std::thread::scope(|scope| {
            let silent: Vec<TcpStream> = (0..3 * MOST_ASKED)
                .map(|_| {
                    let stream = TcpStream::connect(to).unwrap();
                    let (s, from) = server.accept().unwrap();
                    let door = &door;
                    scope.spawn(move || door.ask(s, from, until));
                    stream
                })
                .collect();
            while door.asked().len() < MOST_ASKED {
                std::thread::yield_now();
            }
            let shown = scope.spawn(|| knock(to, Some(&secret)));
            let (s, from) = server.accept().unwrap();
            let let_in = door.ask(s, from, until);
            assert!(let_in && matches!(shown.join().unwrap(), Ok(())));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            drop(silent);
        });
    }

    #[test]
    fn another_program_is_no_friend() {
        for words in
            [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"kpatrpl1", b"kpatrpl1=", b"kpatrpl1!0123456789abcdef"]
        {
            let door = Door::new(Some(Secret([7; 32])));
            let mut wire = std::io::Cursor::new(words.to_vec());
            let from = "10.0.0.1:5000".parse().unwrap();
            assert!(!door.talk(&mut wire, from).unwrap_or(false), "{words:?}");
            assert!(!door.lets_in(from));
        }
    }

    #[test]
    fn a_secret_is_made_once_and_is_its_owners_alone() {
        let folder = std::env::temp_dir().join(format!("kpat-secret-{}", std::process::id()));
        let path = folder.join("made/replay.secret");
        let made = Secret::read_or_make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Secret::read_or_make(&path).unwrap() == made && Secret::read(&path).unwrap() == made);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(Secret::read(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&path, "12").unwrap();
        assert_eq!(Secret::read(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(Secret::read(&folder).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
