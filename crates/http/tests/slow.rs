//! Connections over real sockets: those who send slowly, too much or nonsense do not keep others from being answered.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_http::{Connection, Pool, Refusal, Unreadable, accept};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const ROOM: usize = 4;

/// A service that answers with the target, and panics at `/panic`.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        accept(&listener, &Pool::new(ROOM), "test", |stream, seat| {
            let Ok(mut connection) = Connection::new(stream) else { return };
            loop {
                match connection.request() {
                    Ok(r) => {
                        seat.works(&r.target);
                        assert_ne!(r.target, "/panic");
                        if r.body_bytes > 0 {
                            // Never comes whole.
                            connection.wire().body(r.body_bytes).skip(u64::MAX);
                            return;
                        }
                        connection.answer(200, &[], r.target.as_bytes()).unwrap();
                        if r.target.starts_with("/last") {
                            return connection.close(seat);
                        }
                        seat.waits();
                    }
                    Err(Unreadable::Over) => return,
                    Err(Unreadable::Refused(Refusal(status, why))) => {
                        let _ = connection.answer(status, &[("Connection", "close")], why.as_bytes());
                        return connection.close(seat);
                    }
                }
            }
        })
    });
    at
}

fn ask(at: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn half_heads_keep_nobody_out() {
    let at = service();
    let half = || {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").unwrap();
        stream
    };
    let slow: Vec<TcpStream> = (0..5 * ROOM).map(|_| half()).collect();
    for i in 0..20 {
        assert!(ask(at, &format!("/{i}")).ends_with(&format!("\r\n\r\n/{i}")));
    }
    drop(slow);
}

/// One that may ask holds its share of a full room and no more.
#[test]
fn slow_bodies_of_one_client_keep_no_other_out() {
    let at = service();
    let slow = |target: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "PUT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx").unwrap();
        stream
    };
    let greedy: Vec<TcpStream> = (0..5 * ROOM).map(|_| slow("/greedy")).collect();
    for i in 0..20 {
        assert!(ask(at, &format!("/{i}")).ends_with(&format!("\r\n\r\n/{i}")), "{i}");
    }
    drop(greedy);
}

/// Those that have their answer and do not close, each a client of its own.
#[test]
fn answered_connections_keep_nobody_out() {
    let at = service();
    let last = |i: usize| {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "GET /last{i} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        stream
    };
    let answered: Vec<TcpStream> = (0..5 * ROOM).map(last).collect();
    assert!(ask(at, "/after").ends_with("/after"));
    drop(answered);
}

/// All at work when it comes, one of them for a moment only.
#[test]
fn one_that_is_soon_done_keeps_nobody_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let pool = Pool::new(ROOM);
    let mut seats: Vec<_> = (0..ROOM).map(|_| pool.take(&stream).unwrap()).collect();
    seats.iter().enumerate().for_each(|(i, seat)| seat.works(&i.to_string()));
    assert!(pool.take(&stream).is_none());
    let first = seats.remove(0);
    let done = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        first.waits();
        first
    });
    assert!(pool.take(&stream).is_some());
    drop(done.join());
}

#[test]
fn a_panic_gives_its_place_back() {
    let at = service();
    for _ in 0..5 * ROOM {
        assert_eq!(ask(at, "/panic"), "");
    }
    assert!(ask(at, "/after").ends_with("/after"));
}

#[test]
fn after_a_refusal_nothing_more_is_answered() {
    let at = service();
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .write_all(b"GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
}
