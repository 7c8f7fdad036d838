//! A service over a log, and questions to it over real sockets.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use kpat_server::{Service, Start};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub struct Running {
    pub service: Arc<Service>,
    pub port: u16,
    pub token: String,
}

/// Answers until the test ends.
pub fn serve(log: &Path, compare: Option<&Path>) -> Running {
    let compare = compare.into_iter().map(Path::to_owned).collect();
    let start = Start { log: log.to_owned(), compare, beside: Vec::new(), port: 0 };
    let service = Service::start(&start).unwrap();
    let address = service.address();
    let (rest, token) = address.split_once("/#token=").unwrap();
    let port = rest.rsplit(':').next().unwrap().parse().unwrap();
    let token = token.to_owned();
    let answering = Arc::clone(&service);
    std::thread::spawn(move || answering.run());
    Running { service, port, token }
}

/// Status, head and body.
pub fn send(port: u16, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let text = String::from_utf8(all).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    (status, head.to_owned(), if chunked { whole(body) } else { body.to_owned() })
}

fn whole(mut chunked: &str) -> String {
    let mut out = String::new();
    while let Some((len, rest)) = chunked.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        out.push_str(&rest[..len]);
        chunked = rest[len..].trim_start_matches("\r\n");
    }
    out
}

impl Running {
    pub fn get(&self, target: &str, more: &str) -> (u16, String, String) {
        let port = self.port;
        send(
            port,
            &format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{more}\r\n"),
        )
    }

    /// The last line of an answer.
    pub fn line(&self, target: &str) -> Value {
        let (status, head, body) = self.get(target, &format!("X-Kpat-Token: {}\r\n", self.token));
        assert_eq!(status, 200, "{target}: {head} {body}");
        assert!(head.contains("application/x-ndjson"), "{head}");
        let lines: Vec<Value> = body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        for step in &lines[..lines.len() - 1] {
            // Of the packets so far, in the form of the answer.
            if step["part"].is_object() {
                let fields = |v: &Value| v.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>());
                assert_eq!(
                    fields(&step["part"]),
                    lines.last().and_then(|l| fields(&l["result"])),
                    "{target}"
                );
                continue;
            }
            assert!(step["progress"].as_f64().is_some_and(|p| (0.0..=1.0).contains(&p)), "{step}");
        }
        lines.last().cloned().unwrap()
    }

    pub fn ask(&self, target: &str) -> Value {
        let line = self.line(target);
        assert!(line["error"].is_null(), "{target}: {line}");
        line["result"].clone()
    }

    pub fn error(&self, target: &str) -> Value {
        let line = self.line(target);
        assert!(line["result"].is_null(), "{target}: {line}");
        line["error"].clone()
    }
}
