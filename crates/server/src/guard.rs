//! Who may ask. The service listens on 127.0.0.1 only; that keeps other machines out, not other users of this one and not
//! pages of the web in the same browser. Those are kept out by a secret in the address that was printed, by the name that
//! the browser says it talks to (`Host`, against names that point here), and by where it says that the question came from
//! (`Origin`, `Sec-Fetch-Site`). Nothing is answered to other origins, and nothing can be changed by any question.

use crate::question::Question;
use std::fs::File;
use std::io::{self, Read};

/// A secret for one run.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// 128 bits from the kernel.
    pub fn new() -> io::Result<Token> {
        let mut bytes = [0u8; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Token(bytes.iter().map(|b| format!("{b:02x}")).collect()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// In the same time wherever they differ.
    fn is(&self, given: &str) -> bool {
        given.len() == self.0.len()
            && given.bytes().zip(self.0.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

/// Errors: status and reason.
///
/// The port is not looked at: behind `ssh -L 9999:127.0.0.1:PORT` the browser has another one. A name that somebody else
/// points here stays a name; a page of another service on this machine has another origin than the address it asks.
pub fn check(request: &Question, token: &Token) -> Result<(), (u16, &'static str)> {
    if request.method() != "GET" {
        return Err((405, "only GET is allowed: nothing can be changed here"));
    }
    let Some(host) = request.header("host").filter(|_| request.is_for_this_machine()) else {
        return Err((
            421,
            "open this page as http://127.0.0.1:PORT or http://localhost:PORT: it answers to no other name",
        ));
    };
    let ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if !request.header("origin").is_none_or(ours) {
        return Err((403, "requests from another origin are refused"));
    }
    let api = request.path.starts_with("/api/");
    if let Some(site) = request.header("sec-fetch-site") {
        // Somebody may follow a link to the page itself.
        let fits = site == "same-origin" || site == "none" || (!api && request.path == "/");
        if !fits {
            return Err((403, "requests from another site are refused"));
        }
    }
    if !api {
        return Ok(()); // The page holds nothing of any log.
    }
    // Server-sent events cannot carry a header.
    let in_address = request.get("token").filter(|_| request.path == "/api/changes");
    match request.header("x-kpat-token").or(in_address) {
        Some(given) if token.is(given) => Ok(()),
        Some(_) => Err((403, "wrong token: open the address that `kpat view` printed")),
        None => Err((403, "no token: open the address that `kpat view` printed")),
    }
}

/// For every answer: what is here is for this page alone, and the page loads and runs nothing from elsewhere.
pub const HEADERS: [(&str, &str); 7] = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_http::Request;

    fn ask(path: &str, headers: &[(&str, &str)]) -> u16 {
        let headers = headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        let head = Request { method: "GET".into(), target: path.into(), headers, ..Request::default() };
        let request = Question::of(head).unwrap();
        check(&request, &Token("secret".into())).map_or_else(|e| e.0, |()| 200)
    }

    #[test]
    fn who_may_ask() {
        let host = ("host", "127.0.0.1:8000");
        let token = ("x-kpat-token", "secret");
        assert_eq!(ask("/", &[host]), 200);
        assert_eq!(ask("/", &[]), 421);
        assert_eq!(ask("/", &[("host", "evil.example:8000")]), 421);
        for host in [
            "127.0.0.2",
            "127.0.0.1:",
            "127.0.0.1:80a",
            "127.0.0.1:8000.evil.example",
            "localhost.evil.example:8000",
        ] {
            assert_eq!(ask("/", &[("host", host)]), 421, "{host}");
        }
        // --port 80
        assert_eq!(ask("/api/info", &[("host", "127.0.0.1"), token, ("origin", "http://127.0.0.1")]), 200);
        // ssh -L 9999:127.0.0.1:8000
        let tunnel = ("host", "localhost:9999");
        assert_eq!(ask("/", &[tunnel]), 200);
        assert_eq!(ask("/api/info", &[tunnel]), 403);
        assert_eq!(ask("/api/info", &[tunnel, token, ("origin", "http://localhost:9999")]), 200);
        assert_eq!(ask("/api/info", &[tunnel, token, ("origin", "http://localhost:8000")]), 403);
        assert_eq!(ask("/", &[host, ("sec-fetch-site", "cross-site")]), 200);
        assert_eq!(ask("/app.js", &[host, ("sec-fetch-site", "cross-site")]), 403);
        assert_eq!(ask("/api/info", &[host]), 403);
        assert_eq!(ask("/api/info", &[host, ("x-kpat-token", "secreT")]), 403);
        assert_eq!(ask("/api/info", &[host, ("x-kpat-token", "")]), 403);
        assert_eq!(ask("/api/info", &[host, token]), 200);
        assert_eq!(ask("/api/info", &[host, token, ("origin", "http://127.0.0.1:8000")]), 200);
        for origin in ["http://127.0.0.1:8001", "https://127.0.0.1:8000", "null", "http://evil.example"] {
            assert_eq!(ask("/api/info", &[host, token, ("origin", origin)]), 403, "{origin}");
        }
        assert_eq!(ask("/api/info", &[host, token, ("sec-fetch-site", "same-site")]), 403);
    }
}
