//! Heads of requests and responses: parsed by httparse, then held to what is the same for every reader.
//!
//! Source: RFC 9112 (HTTP/1.1), RFC 9110 (semantics).

/// Longest head.
pub(crate) const MOST_HEAD_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// Fields that say where a message ends, who asks and what is meant: doubled, two readers may believe different ones.
const SINGLE: [&str; 7] =
    ["authorization", "connection", "content-length", "expect", "host", "origin", "sec-fetch-site"];
/// kpat's own fields are all of that kind.
const OWN: &str = "x-kpat-";

/// Why a request is not served: status and reason for the answer. The connection is closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

/// The head of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// As it was sent: a path, perhaps with a question.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body that follows.
    pub body_bytes: u64,
    /// The connection is for further requests.
    pub stays: bool,
}

/// The head of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body that follows.
    pub body_bytes: u64,
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|h| h.0 == name).map(|h| h.1.as_str())
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// It asks this machine by a name that it alone has for itself, with a port or without. Any other name may be somebody else's that was made
    /// to point here.
    pub fn is_for_this_machine(&self) -> bool {
        let host = self.header("host").unwrap_or_default();
        let names = ["127.0.0.1", "localhost", "[::1]"];
        let behind = names.iter().find_map(|n| {
            let (name, behind) = host.split_at_checked(n.len())?;
            name.eq_ignore_ascii_case(n).then_some(behind)
        });
        let is_port = |p: &str| (1..=5).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit());
        behind.is_some_and(|b| b.is_empty() || b.strip_prefix(':').is_some_and(is_port))
    }

    /// The target without the question, percent signs undone; `None`: it is not UTF-8.
    pub fn path(&self) -> Option<String> {
        decode(self.target.split('?').next().unwrap_or_default(), false)
    }

    /// The parts of the question, percent signs undone; `None`: it is not UTF-8.
    pub fn query(&self) -> Option<Vec<(String, String)>> {
        let query = self.target.split_once('?').map_or("", |t| t.1);
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode(name, true)?, decode(value, true)?))
        };
        query.split('&').filter(|p| !p.is_empty()).map(pair).collect()
    }

    /// A request and the bytes that its head took; `None`: more is needed.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Refusal> {
        let mut room = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Request::new(&mut room);
        let Some(used) = complete(parsed.parse(bytes), bytes)? else { return Ok(None) };
        if parsed.version != Some(1) {
            return Err(VERSION);
        }
        let target = parsed.path.unwrap_or_default();
        if !target.starts_with('/') {
            return Err(Refusal(400, "the target is not a path"));
        }
        let headers = fields(parsed.headers)?;
        if find(&headers, "host").is_none() {
            return Err(Refusal(400, "the field Host is missing"));
        }
        if find(&headers, "expect").is_some() {
            return Err(Refusal(417, "expectations are not supported"));
        }
        Ok(Some((
            Request {
                method: parsed.method.unwrap_or_default().to_owned(),
                target: target.to_owned(),
                body_bytes: body_bytes(&headers)?.unwrap_or(0),
                stays: !find(&headers, "connection")
                    .is_some_and(|c| c.split(',').any(|w| w.trim().eq_ignore_ascii_case("close"))),
                headers,
            },
            used,
        )))
    }
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// A response and the bytes that its head took; `None`: more is needed. The refusal's status has no meaning here.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>, Refusal> {
        let mut room = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Response::new(&mut room);
        let Some(used) = complete(parsed.parse(bytes), bytes)? else { return Ok(None) };
        let headers = fields(parsed.headers)?;
        // Without a length a response ends with its connection: no further answer could be separated from its body.
        let body_bytes = body_bytes(&headers)?.ok_or(LENGTH)?;
        Ok(Some((Response { status: parsed.code.unwrap_or(0), headers, body_bytes }, used)))
    }
}

const VERSION: Refusal = Refusal(505, "only HTTP/1.1 is supported");
const LENGTH: Refusal = Refusal(400, "a body needs one Content-Length of digits");
const LINES: Refusal = Refusal(400, "lines of a head end with CR LF");

/// The length of a complete head; `None`: more is needed.
fn complete(parsed: httparse::Result<usize>, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
    // httparse skips empty lines before a head and takes a bare line feed for an end of line; others may not.
    if bytes.first().is_some_and(|b| matches!(b, b'\r' | b'\n')) {
        return Err(LINES);
    }
    let used = match parsed {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) if bytes.len() >= MOST_HEAD_BYTES => {
            return Err(Refusal(431, "the head is too long"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::Version) => return Err(VERSION),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal(431, "the head has too many fields")),
        Err(_) => return Err(Refusal(400, "this is not HTTP")),
    };
    let head = &bytes[..used];
    let bare = |i: usize, b: &u8| match b {
        b'\n' => i == 0 || head[i - 1] != b'\r',
        b'\r' => head.get(i + 1) != Some(&b'\n'),
        _ => false,
    };
    if head.iter().enumerate().any(|(i, b)| bare(i, b)) {
        return Err(LINES);
    }
    if used > MOST_HEAD_BYTES {
        return Err(Refusal(431, "the head is too long"));
    }
    Ok(Some(used))
}

fn fields(parsed: &[httparse::Header<'_>]) -> Result<Vec<(String, String)>, Refusal> {
    let mut headers: Vec<(String, String)> = Vec::with_capacity(parsed.len());
    for h in parsed {
        let name = h.name.to_ascii_lowercase();
        let value = std::str::from_utf8(h.value).map_err(|_| Refusal(400, "a field is not UTF-8"))?;
        let single = SINGLE.contains(&name.as_str()) || name.starts_with(OWN);
        if single && headers.iter().any(|h| h.0 == name) {
            return Err(Refusal(400, "a field is there twice"));
        }
        // Proxies and gateways may take an underscore for a hyphen.
        match name.replace('_', "-").as_str() {
            "transfer-encoding" => {
                return Err(Refusal(
                    400,
                    "a body needs a Content-Length; Transfer-Encoding is not supported",
                ));
            }
            "content-encoding" => return Err(Refusal(400, "a body is sent as it is, without an encoding")),
            plain if plain != name && (SINGLE.contains(&plain) || plain.starts_with(OWN)) => {
                return Err(Refusal(400, "a field has an underscore for a hyphen"));
            }
            _ => {}
        }
        headers.push((name, value.trim_matches([' ', '\t']).to_owned()));
    }
    Ok(headers)
}

fn body_bytes(headers: &[(String, String)]) -> Result<Option<u64>, Refusal> {
    let Some(text) = find(headers, "content-length") else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(LENGTH); // Also `+5` and `5, 5`.
    }
    text.parse().map(Some).map_err(|_| LENGTH)
}

/// Percent signs undone; `plus`: `+` is a space.
fn decode(text: &str, plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                out.push((high * 16 + low) as u8);
            }
            b'+' if plus => out.push(b' '),
            b => out.push(b),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> u16 {
        match Request::parse(text.as_bytes()) {
            Err(Refusal(status, _)) => status,
            Ok(Some(_)) => 200,
            Ok(None) => 0,
        }
    }

    #[test]
    fn names_of_this_machine_for_itself() {
        let own = |host: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            Request::parse(text.as_bytes()).unwrap().unwrap().0.is_for_this_machine()
        };
        // A browser leaves the port out if it is 80. Names of hosts have no case (RFC 9110, 4.2.3).
        for host in ["127.0.0.1", "127.0.0.1:8000", "localhost:80", "LocalHost", "[::1]", "[::1]:9435"] {
            assert!(own(host), "{host}");
        }
        for host in [
            "evil.example:8000",
            "127.0.0.2",
            "127.0.0.1:",
            "127.0.0.1:80a",
            "127.0.0.1:123456",
            "127.0.0.1:8000.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8000",
            "localhost\u{e9}",
            "[::1",
            "::1",
            "",
        ] {
            assert!(!own(host), "{host}");
        }
    }

    #[test]
    fn what_is_understood() {
        let text = "PUT /api/packets?where=ip.src+%3D%3D+10.0.0.1%2F8&x HTTP/1.1\r\nHost: a\r\nX-Kpat-Token:  t \r\nContent-Length: 3\r\n\r\nabcGET";
        let (r, used) = Request::parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((r.method.as_str(), r.path().unwrap().as_str()), ("PUT", "/api/packets"));
        let query = [("where", "ip.src == 10.0.0.1/8"), ("x", "")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(r.query().unwrap(), query);
        assert_eq!((r.header("x-kpat-token"), r.body_bytes, r.stays), (Some("t"), 3, true));
        assert_eq!(used, text.len() - "abcGET".len());
        assert_eq!(status("GET / HTTP/1.1\r\nHost"), 0);
        let (r, _) =
            Request::parse(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").unwrap().unwrap();
        assert!(!r.stays);
        let (r, used) =
            Response::parse(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\nHTTP").unwrap().unwrap();
        assert_eq!((r.status, r.body_bytes, used), (201, 0, 43));
    }

    /// Each can be read in two ways; a proxy in front may have chosen the other.
    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (want, fields) in [
            (400, "Content-Length: 3\r\nContent-Length: 3\r\n"),
            (400, "Content-Length: 0\r\nContent-Length: 5\r\n"),
            (400, "Content-Length: +3\r\n"),
            (400, "Content-Length: 3, 3\r\n"),
            (400, "Content-Length: 0x3\r\n"),
            (400, "Content-Length:\r\n"),
            (400, "Content-Length: 99999999999999999999\r\n"),
            (400, "Transfer-Encoding: chunked\r\n"),
            (400, "Transfer-Encoding: identity\r\nContent-Length: 3\r\n"),
            (400, "Transfer-Encoding : chunked\r\n"),
            (400, "X: a\nContent-Length: 3\r\n"),
            (400, "X: a\rb\r\n"),
            (400, "X: a\r\n folded\r\n"),
            (400, "X-Kpat-Size: 1\r\nX-Kpat-Size: 2\r\n"),
            (400, "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"),
            (400, "Host: a\r\nHOST: b\r\n"),
            (417, "Expect: 100-continue\r\n"),
            (400, "Transfer_Encoding: chunked\r\n"),
            (400, "Content_Length: 3\r\n"),
            (400, "X_Kpat_Size: 3\r\n"),
            (400, "Content-Encoding: gzip\r\n"),
            (200, "Content-Length: 03\r\nAccept: a\r\nAccept: b\r\n"),
        ] {
            let host = if fields.starts_with("Host") { "" } else { "Host: a\r\n" };
            assert_eq!(status(&format!("PUT /v1/a HTTP/1.1\r\n{host}{fields}\r\n")), want, "{fields:?}");
        }
        for (want, text) in [
            (400, "GET / HTTP/1.1\r\n\r\n"),
            (505, "GET / HTTP/1.0\r\n\r\n"),
            (505, "GET / HTTP/2.0\r\n\r\n"),
            (400, "\x16\x03\x01\x02\r\n\r\n"),
            (400, "\r\nGET / HTTP/1.1\r\n\r\n"),
            (400, "GET / HTTP/1.1\n\n"),
            (400, "GET http://a/ HTTP/1.1\r\n\r\n"),
            (400, "OPTIONS * HTTP/1.1\r\n\r\n"),
        ] {
            assert_eq!(status(text), want, "{text:?}");
        }
        assert_eq!(status(&format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MOST_HEAD_BYTES))), 431);
        assert_eq!(status(&format!("GET /{}", "a".repeat(MOST_HEAD_BYTES))), 431);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65))), 431);
        assert!(Response::parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(
            Response::parse(
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Kpat-Name: a\r\nX-Kpat-Name: b\r\n\r\n"
            )
            .is_err()
        );
    }

    #[test]
    fn an_address_that_is_no_text() {
        for target in ["/%ff%fe", "/%zz", "/%a"] {
            let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            let (r, _) = Request::parse(text.as_bytes()).unwrap().unwrap();
            assert_eq!(r.path(), None, "{target}");
        }
    }
}
