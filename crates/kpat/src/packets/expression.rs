//! The filter expression of `kpat packets`: conditions that must all hold, in the words of pcap-filter where it has them.
//! There is no `or`: a list is narrowed step by step, and questions beyond that are for SQL.

use kpat_analysis::query::{PacketFilter, verdict};

use crate::render::parse_duration;

pub const HELP: &str = "\
Conditions, all of which must hold (`and` may be written between them):
  tcp, udp, icmp, icmpv6, arp, ip, ip6, proto N
  host ADDRESS          source or destination
  port N                source or destination
  delivered, forwarded, dropped, sent, in-flight, transformed
  func GLOB             handled by a function of that name
  path > 10us           time in the kernel; also <
  after 1.5s, before 2s seconds since the start of the log
  pid N
  wire, no wire         with, without a frame in the captures
  'TEXT'                occurs in an address, drop reason or process name";

/// `start_ns`: what `after` and `before` count from.
pub fn parse(text: &str, filter: &mut PacketFilter, start_ns: i64) -> Result<(), String> {
    let mut words = tokens(text)?.into_iter().peekable();
    while let Some(word) = words.next() {
        if word.quoted {
            set(&mut filter.text, word.text, "text")?;
            continue;
        }
        let mut value = |what: &str| -> Result<String, String> {
            words.next().map(|w| w.text).ok_or_else(|| format!("`{}` needs {what} after it", word.text))
        };
        match word.text.as_str() {
            "and" | "&&" => {}
            "or" | "||" => return Err("`or` is not supported: conditions must all hold".to_owned()),
            "not" | "!" => {
                return Err("`not` is only known as `no wire`".to_owned());
            }
            "tcp" | "udp" | "icmp" | "icmpv6" | "icmp6" | "arp" | "ip" | "ipv4" | "ip6" | "ipv6" => {
                set(&mut filter.proto, word.text, "protocol")?;
            }
            "proto" => set(&mut filter.proto, value("a protocol")?, "protocol")?,
            "host" | "addr" => set(&mut filter.addr, address(&value("an address")?)?, "address")?,
            "port" => set(&mut filter.port, number(&value("a port")?, "port")?, "port")?,
            "pid" => set(&mut filter.pid, number(&value("a thread id")?, "pid")?, "pid")?,
            "func" => set(&mut filter.func, value("a function name or glob")?, "func")?,
            "after" => set(
                &mut filter.from_ns,
                start_ns.saturating_add(parse_duration(&value("a time")?)?),
                "after",
            )?,
            "before" => {
                set(&mut filter.to_ns, start_ns.saturating_add(parse_duration(&value("a time")?)?), "before")?
            }
            "wire" => set(&mut filter.on_wire, true, "wire")?,
            "no" => match value("`wire`")?.as_str() {
                "wire" => set(&mut filter.on_wire, false, "wire")?,
                other => return Err(format!("`no {other}` is not known, only `no wire`")),
            },
            "path" => {
                let sign = value("> or < and a duration")?;
                let ns = parse_duration(&value("> or < and a duration")?)?;
                match sign.as_str() {
                    ">" | ">=" => set(&mut filter.min_path_ns, ns, "path >")?,
                    "<" | "<=" => set(&mut filter.max_path_ns, ns, "path <")?,
                    other => {
                        return Err(format!("`path {other}` is not known, write path > 10us or path < 1ms"));
                    }
                }
            }
            other => match verdict::from_name(other) {
                Some(code) => set(&mut filter.verdict, code, "verdict")?,
                None => return Err(format!("`{other}` is not a condition; text to look for goes in quotes")),
            },
        }
    }
    Ok(())
}

pub fn address(text: &str) -> Result<String, String> {
    // As the tables have it: RFC 5952.
    text.parse::<std::net::IpAddr>()
        .map(|a| a.to_string())
        .map_err(|_| format!("`{text}` is not an IP address"))
}

fn set<T>(place: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{what} is given twice, and both cannot be asked for")),
    }
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a {what}"))
}

struct Token {
    text: String,
    quoted: bool,
}

/// Words, `<`, `>`, `<=`, `>=`, and quoted text.
fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out: Vec<Token> = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c.is_whitespace() {
            chars.next();
        } else if c == '\'' || c == '"' {
            chars.next();
            let mut word = String::new();
            loop {
                match chars.next() {
                    Some(d) if d == c => break,
                    Some(d) => word.push(d),
                    None => return Err(format!("the {c} in `{text}` is not closed")),
                }
            }
            out.push(Token { text: word, quoted: true });
        } else {
            let sign = |c: char| c == '<' || c == '>';
            let mut word = String::new();
            while let Some(&d) = chars.peek() {
                let same = if sign(c) { sign(d) || d == '=' } else { !sign(d) && !d.is_whitespace() };
                if !same {
                    break;
                }
                word.push(d);
                chars.next();
            }
            out.push(Token { text: word, quoted: false });
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<PacketFilter, String> {
        let mut f = PacketFilter::default();
        parse(text, &mut f, 1_000).map(|()| f)
    }

    #[test]
    fn conditions() {
        let f = check("tcp and port 80 dropped path>10us path < 1ms after 1us no wire 'NO_SOCKET' func ip_*")
            .unwrap();
        assert_eq!((f.proto.as_deref(), f.port, f.verdict), (Some("tcp"), Some(80), Some(verdict::DROPPED)));
        assert_eq!((f.min_path_ns, f.max_path_ns, f.from_ns), (Some(10_000), Some(1_000_000), Some(2_000)));
        assert_eq!(
            (f.on_wire, f.text.as_deref(), f.func.as_deref()),
            (Some(false), Some("NO_SOCKET"), Some("ip_*"))
        );
        assert_eq!(check("host fe80::0:1").unwrap().addr.as_deref(), Some("fe80::1"));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (text, says) in [
            ("tcp or udp", "`or` is not supported"),
            ("port http", "`http` is not a port"),
            ("port", "`port` needs a port after it"),
            ("path > 10", "needs a unit"),
            ("host x", "not an IP address"),
            ("tcp udp", "given twice"),
            ("frobnicate", "is not a condition"),
            ("'open", "not closed"),
        ] {
            let e = check(text).unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
    }
}
