//! The service: connections, who may ask, answers in lines, and the news that answers may have changed.

use crate::answers::typescript;
use crate::ask::{Ask, Failure, answer};
use crate::guard::{self, HEADERS, Token};
use crate::open::{Log, Opened};
use crate::question::Question;
use crate::{Error, Result, page};
use kpat_http::{Connection, Pool, Refusal, Seat, Unreadable};
use kpat_store::Manifest;
use serde_json::json;
use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Connections at a time; a browser opens six.
const MOST_CONNECTIONS: usize = 64;
/// Between two lines of progress.
const STEP: Duration = Duration::from_millis(100);
/// Between two signs of life to a page that waits for news.
const NEWS: Duration = Duration::from_secs(10);

/// What to serve.
pub struct Start {
    pub log: PathBuf,
    /// Runs to compare with; each one device's log.
    pub compare: Vec<PathBuf>,
    /// Further runs of what `log` is, for the comparison.
    pub beside: Vec<PathBuf>,
    /// 0: any.
    pub port: u16,
}

/// A running service; ends with the process.
pub struct Service {
    listener: TcpListener,
    port: u16,
    token: Token,
    opened: RwLock<Arc<Opened>>,
    live: AtomicBool,
    generation: AtomicU64,
    news: (Mutex<()>, Condvar),
    /// For threads that outlive a borrow.
    own: std::sync::Weak<Service>,
}

impl Service {
    /// Opens the log and listens. [`Service::run`] answers.
    pub fn start(start: &Start) -> Result<Arc<Service>> {
        let run = |path: &PathBuf| {
            let manifest = Manifest::read(path).map_err(kpat_query::Error::from)?;
            if let Some(d) = manifest.devices.first() {
                let first = path.join(&d.folder).display().to_string();
                return Err(Error::CompareSeveral { path: path.clone(), first });
            }
            Ok(Arc::new(Log::open(path, None)?))
        };
        let runs = |paths: &[PathBuf]| paths.iter().map(run).collect::<Result<Vec<_>>>();
        let opened = Opened::open(&start.log, runs(&start.beside)?, runs(&start.compare)?)?;
        let opened = Arc::new(opened);
        let listen = |source| Error::Listen { port: start.port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, start.port)).map_err(listen)?;
        let port = listener.local_addr().map_err(listen)?.port();
        let token = Token::new().map_err(Error::Random)?;
        let service = Arc::new_cyclic(|own| Service {
            listener,
            port,
            token,
            opened: RwLock::new(opened),
            live: AtomicBool::new(false),
            generation: AtomicU64::new(1),
            news: (Mutex::new(()), Condvar::new()),
            own: own.clone(),
        });
        if let Some(first) = service.opened().devices.first() {
            service.load(first);
        }
        Ok(service)
    }

    /// What to open in a browser. The secret stands behind `#`, which no browser sends.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/#token={}", self.port, self.token.text())
    }

    /// Answers until the process ends.
    pub fn run(&self) -> ! {
        let service = self.own.clone();
        kpat_http::accept(&self.listener, &Pool::new(MOST_CONNECTIONS), "question", move |stream, seat| {
            if let Some(service) = service.upgrade() {
                service.connection(stream, seat);
            }
        })
    }

    fn connection(&self, stream: TcpStream, seat: &Seat) {
        let Ok(mut connection) = Connection::new(stream) else { return };
        // What goes wrong while writing is that the other side has left.
        let _ = self.serve(&mut connection, seat);
        connection.close(seat);
    }

    fn serve(&self, connection: &mut Connection, seat: &Seat) -> io::Result<()> {
        loop {
            let asked = connection.request().and_then(|head| Question::of(head).map_err(Unreadable::Refused));
            let request = match asked {
                Ok(request) => request,
                Err(Unreadable::Over) => return Ok(()),
                Err(Unreadable::Refused(Refusal(status, words))) => return refuse(connection, status, words),
            };
            if let Err((status, words)) = guard::check(&request, &self.token) {
                return refuse(connection, status, words);
            }
            if request.path.starts_with("/api/") {
                seat.works("page"); // The page itself is for anybody on this machine, who may take it slowly.
            }
            if request.path == "/api/changes" {
                return self.changes(connection);
            } else if request.path.starts_with("/api/") {
                self.api(connection, &request)?;
            } else {
                match page::file(&request.path) {
                    Some((content, kind)) => {
                        connection.answer(200, &with(&[("Content-Type", kind)]), content)?;
                    }
                    None => refuse(connection, 404, "there is nothing of that name here")?,
                }
            }
            if !request.stays() {
                return Ok(());
            }
            seat.waits();
        }
    }

    fn api(&self, connection: &mut Connection, request: &Question) -> io::Result<()> {
        if request.path == "/api/types" {
            return connection.answer(
                200,
                &with(&[("Content-Type", "text/plain; charset=utf-8")]),
                typescript().as_bytes(),
            );
        }
        let opened = self.opened();
        let Some(log) = opened.device(request.get("device")) else {
            return refuse(connection, 404, "there is no device of that name in this log");
        };
        let lines = RefCell::new(Lines { begun: false, connection, looked: Instant::now() });
        let parts = |part: &[u8]| lines.borrow_mut().part(part);
        let ask = Ask { service: self, opened: &opened, log, request, parts: &parts };
        let answered =
            answer(&ask, &mut |words, done, parts| lines.borrow_mut().progress(words, done, parts));
        let lines = lines.into_inner();
        match answered {
            None => refuse(lines.connection, 404, "there is no question of that name"),
            Some(Err(Failure::Left)) => Err(io::ErrorKind::BrokenPipe.into()),
            Some(Ok(result)) => lines.end(&[b"{\"result\":".as_slice(), &result, b"}\n"].concat()),
            Some(Err(Failure::Words(words, at))) => {
                let at = at.map(|(from, to)| json!({ "from": from, "to": to }));
                lines.end(format!("{}\n", json!({ "error": { "words": words, "at": at } })).as_bytes())
            }
        }
    }

    /// Server-sent events: the generation now, and at each change.
    fn changes(&self, connection: &mut Connection) -> io::Result<()> {
        connection.begin(&with(&[("Content-Type", "text/event-stream")]))?;
        let mut logged = 0;
        let mut quiet = Instant::now();
        loop {
            let now = self.generation();
            if now != logged {
                logged = now;
                connection.piece(format!("data: {{\"generation\":{now}}}\n\n").as_bytes())?;
                quiet = Instant::now();
            } else if quiet.elapsed() >= NEWS {
                connection.piece(b": still here\n\n")?;
                quiet = Instant::now();
            }
            let waiting = self.news.0.lock().unwrap_or_else(PoisonError::into_inner);
            if self.generation() == logged {
                let _ = self.news.1.wait_timeout(waiting, Duration::from_secs(1));
            }
            if !connection.is_awaited() {
                return Ok(());
            }
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    pub fn set_live(&self, live: bool) {
        if self.live.swap(live, Ordering::Relaxed) != live {
            self.tell();
        }
    }

    fn opened(&self) -> Arc<Opened> {
        Arc::clone(&self.opened.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves another state of the log from now on. Questions that are being answered keep the old one.
    pub fn replace(&self, log: &std::path::Path) -> Result<()> {
        let old = self.opened();
        let mut opened = Opened::open(log, old.beside.clone(), old.other.clone())?;
        opened.name.clone_from(&old.name);
        // Read before anybody asks, so that the page does not see its list come in two steps.
        if let Some(first) = opened.devices.first() {
            first.load(false, || ());
            let _ = first.catalog(&mut |_, _| true);
        }
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(opened);
        self.tell();
        Ok(())
    }

    /// What the log is called.
    pub fn rename(&self, name: &str) {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = Arc::get_mut(&mut opened) {
            name.clone_into(&mut opened.name);
        }
    }

    /// Answers may be others than before.
    fn tell(&self) {
        let waiting = self.news.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::SeqCst);
        drop(waiting);
        self.news.1.notify_all();
    }

    /// Begins to read a log's packets, unless that was begun already.
    pub fn load(&self, log: &Arc<Log>) {
        let service = self.own.clone();
        log.load(!self.is_live(), move || {
            if let Some(service) = service.upgrade() {
                service.tell();
            }
        });
    }
}

/// An answer in lines: begun with the first progress, so that quick answers are one piece.
struct Lines<'a> {
    connection: &'a mut Connection,
    begun: bool,
    looked: Instant,
}

impl Lines<'_> {
    fn progress(&mut self, words: &str, done: u64, parts: u64) -> bool {
        if self.looked.elapsed() < STEP {
            return true;
        }
        self.looked = Instant::now();
        let share = if parts == 0 { 0.0 } else { (done as f64 / parts as f64).min(1.0) };
        let line = format!("{}\n", json!({ "progress": share, "words": words }));
        self.line(line.as_bytes()).is_ok() && self.connection.is_awaited()
    }

    /// Whoever has left is found out at the next progress.
    fn part(&mut self, part: &[u8]) {
        let _ = self.line(&[b"{\"part\":".as_slice(), part, b"}\n"].concat());
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if !self.begun {
            self.connection.begin(&with(&[NDJSON]))?;
            self.begun = true;
        }
        self.connection.piece(line)
    }

    fn end(self, line: &[u8]) -> io::Result<()> {
        if self.begun {
            self.connection.piece(line)?;
            self.connection.end()
        } else {
            self.connection.answer(200, &with(&[NDJSON]), line)
        }
    }
}

const NDJSON: (&str, &str) = ("Content-Type", "application/x-ndjson");

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    HEADERS.iter().copied().chain(more.iter().copied()).collect()
}

fn refuse(connection: &mut Connection, status: u16, words: &str) -> io::Result<()> {
    let allow: &[(&str, &str)] = if status == 405 { &[("Allow", "GET")] } else { &[] };
    let kind = [("Content-Type", "text/plain; charset=utf-8"), ("Connection", "close")];
    let headers: Vec<_> = with(&kind).into_iter().chain(allow.iter().copied()).collect();
    connection.answer(status, &headers, format!("{words}\n").as_bytes())?;
    Err(io::ErrorKind::ConnectionAborted.into())
}
