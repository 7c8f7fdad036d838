//! The filter expression as it is typed: what the language offers in short, and how a mistake is shown.

use kpat_query::filter::{FIELDS, Filter, FilterError};
use std::ops::Range;

pub const HELP: &str = "\
Expressions (all of it: docs/filter.md); side by side means and:
  tcp, udp, icmp, icmpv6, arp, ip, ipv6
  host ADDRESS, ip.src == 10.0.0.0/8
  port N, port in {80, 443, 8000..8080}
  delivered, forwarded, dropped, sent, in-flight, transformed
  func GLOB             handled by a function of that name
  path > 10us           time in the kernel
  after 1.5s, before 2s seconds since the start of the log
  pid N, process == nc, drop contains socket, if_in == eth0
  write > 50ms, read > 1ms, qdisc > 10ms, socket N, writer == nc
                        with -p path,app: how long its bytes waited, and for whom
  wire, no wire         with, without a frame in the captures
  ambiguous, retransmission, confidence < 60
  'TEXT'                occurs in an address, drop reason or process name
  not A, A and B, A or B, (A or B) and C";

/// `None`: everything fits.
pub fn parse(text: &str) -> Result<Option<Filter>, String> {
    Filter::parse(text).map_err(|e| shown(text, &e))
}

/// The same of writes, which have no headers, no way and no frames.
pub fn of_writes(text: &str) -> Result<Option<Filter>, String> {
    let filter = parse(text)?;
    match filter.as_ref().and_then(Filter::not_of_writes) {
        None => Ok(filter),
        Some(name) => {
            let fields: Vec<&str> = FIELDS.iter().filter(|f| f.of_writes()).map(|f| f.name).collect();
            let words = format!("`{name}` is of packets; a write has {}", fields.join(", "));
            Err(shown(text, &FilterError { words, at: place(text, name) }))
        }
    }
}

/// Where a field stands, by any of its names.
fn place(text: &str, field: &str) -> Range<usize> {
    let also = FIELDS.iter().find(|f| f.name == field).map_or(&[][..], |f| f.also);
    let is_part = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let words = text.split(|c| !is_part(c));
    let mut places = words.map(|w| (w, w.as_ptr() as usize - text.as_ptr() as usize));
    let found = places.find(|(w, _)| *w == field || also.contains(w));
    found.map_or(0..0, |(w, at)| at..at + w.len())
}

/// The mistake and its place, in one line: messages are.
fn shown(text: &str, e: &FilterError) -> String {
    let from = text.get(..e.at.start).map_or(0, |before| before.chars().count());
    let part = text.get(e.at.clone()).filter(|p| !p.is_empty() && !e.words.contains(*p));
    let part = part.map(|p| format!(" at `{p}`")).unwrap_or_default();
    format!("{e}{part} (character {} of: {text})", from + 1)
}

pub fn address(text: &str) -> Result<String, String> {
    // As the tables have it: RFC 5952.
    text.parse::<std::net::IpAddr>()
        .map(|a| a.to_string())
        .map_err(|_| format!("`{text}` is not an IP address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_its_place() {
        let reported = parse("'größe' port http").unwrap_err();
        assert_eq!(reported, "`http` is not a port (character 14 of: 'größe' port http)");
        let reported = of_writes("process == nc and dropped").unwrap_err();
        assert!(reported.starts_with("`dropped` is of packets; a write has tcp, ip,"), "{reported}");
        assert!(reported.ends_with("(character 19 of: process == nc and dropped)"), "{reported}");
        assert!(of_writes("writer == nc and acked > 1ms after 1s or not port 80 'x'").is_ok());
        let reported = parse("(tcp").unwrap_err();
        assert_eq!(reported, "this `(` is not closed (character 1 of: (tcp)");
        assert!(
            parse("tcp port 80 dropped path>10us path < 1ms after 1us no wire 'NO_SOCKET' func ip_*").is_ok()
        );
    }
}
