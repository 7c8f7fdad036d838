//! Texts and what they choose. Rows are made by hand; a log is not needed where no function is asked for.

use super::parse::parse;
use super::*;
use crate::entry::mapped;
use std::net::IpAddr;

fn entry(src: &str, ports: (u16, u16), proto: u8) -> Entry {
    let flags = flag::SRC | flag::DST | flag::SPORT | flag::DPORT | flag::ETHER | flag::PROTO;
    let addr = |a: &str| mapped(a.parse::<IpAddr>().unwrap());
    Entry {
        id: 7,
        src: addr(src),
        dst: addr("10.0.2.2"),
        sport: ports.0,
        dport: ports.1,
        proto,
        ethertype: 0x800,
        first_ns: 2_000_000_000,
        path_ns: 50_000,
        verdict: 3,
        confidence: 55,
        flags: flags | flag::CONFIDENCE | flag::CPU | flag::NETNS,
        frames: 1,
        frame: 17,
        len_bytes: 84,
        points: 5,
        cpu: 3,
        netns: 4_026_531_840,
        ..Entry::default()
    }
}

/// A packet from 10.0.1.2:40000 to 10.0.2.2:53 by UDP, dropped after 50 us, one second into the log; match 55 %.
fn fits(text: &str) -> bool {
    let mut names = Names::default();
    names.start_ns = 1_000_000_000;
    let expr = parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).expect("not empty");
    eval(&expr, &entry("10.0.1.2", (40_000, 53), 17), &names)
}

/// As `compile`, for what needs no log.
fn eval(expr: &Expr, e: &Entry, n: &Names) -> bool {
    match expr {
        Expr::And(of) => of.iter().all(|x| eval(x, e, n)),
        Expr::Or(of) => of.iter().any(|x| eval(x, e, n)),
        Expr::Not(x) => !eval(x, e, n),
        Expr::Has(i) => match FIELDS[*i].get {
            Get::Flag(f) => f(e),
            Get::Number(f) => any(f(e, n), |_| true),
            Get::Text(f) => any(f(e, n), |_| true),
            Get::Address(f) => any(f(e), |_| true),
            _ => unreachable!("no log here"),
        },
        Expr::Numbers { field, ranges, none } => {
            let Get::Number(f) = FIELDS[*field].get else { unreachable!("no log here") };
            holds(f(e, n), *none, |v| ranges.iter().any(|r| r.contains(&v)))
        }
        Expr::Addresses { field, nets, none } => addresses(*field, nets.clone(), *none)(e, n),
        Expr::After(When::Since(t)) => e.last_ns() >= n.start_ns + t,
        Expr::Before(When::Since(t)) => e.first_ns <= n.start_ns + t,
        Expr::Mentions(text) => mentions(e, n, text),
        Expr::After(_) | Expr::Before(_) => unreachable!("no clock here"),
        Expr::Texts { .. } => unreachable!("no log here"),
    }
}

#[test]
fn what_fits() {
    for text in [
        "udp",
        "udp and ip",
        "udp ip dropped",
        "not tcp",
        "!tcp && udp || arp",
        "tcp or udp",
        "arp or (udp and port == 53)",
        "port 53",
        "port != 80",
        "port in {80, 53}",
        "port in {1..1023 8080}",
        "sport > 1024",
        "ip.addr == 10.0.1.0/24",
        "host 10.0.1.2",
        "ip.src in {10.0.1.2, fe80::1}",
        "ip.dst != 10.0.1.2",
        "path > 10us path < 1ms",
        "path_time >= 50us",
        "time > 0.5s and time < 1.5 s".replace("1.5 s", "1.5s").as_str(),
        "after 0.9s before 1.1s",
        "verdict == dropped",
        "verdict in {dropped, sent}",
        "wire",
        "ambiguous",
        "confidence < 60%",
        "proto udp",
        "proto 17",
        "ethertype == 0x0800",
        "'10.0.1'",
        "\"DROPPED\"",
        "frame 17 and packet",
        "not (tcp or arp)",
        "len == 84",
        "cpu == 3 points in {4..6} netns 4026531840",
    ] {
        assert!(fits(text), "{text}");
    }
}

#[test]
fn what_does_not() {
    for text in [
        "tcp",
        "no wire",
        "port == 80",
        "not port 53",
        "ip.addr == 10.9.0.0/16",
        "ip.addr != 10.0.2.2",
        "path > 1ms",
        "before 0.5s",
        "retransmission",
        "drop",
        "cpu != 3",
        "netns == 1",
        "points < 5",
        "icmp.id",
        "udp and tcp or arp",
        "port in {8080..9000}",
        "'nothing like it'",
    ] {
        assert!(!fits(text), "{text}");
    }
}

#[test]
fn an_echo_has_identifier_and_sequence() {
    let flags = flag::ICMP | flag::DETAIL | flag::PROTO;
    let echo = Entry { proto: 1, kind: 8, detail: 0xfffe_0007, flags, ..Entry::default() };
    let fits = |text: &str| eval(&parse(text).unwrap().unwrap(), &echo, &Names::default());
    assert!(fits("icmp.id == 0xfffe and icmp.seq == 7") && !fits("icmp.id == 7") && !fits("cpu or netns"));
}

#[test]
fn what_is_not_understood_is_said_with_its_place() {
    for (text, from, to, says) in [
        ("port http", 5, 9, "`http` is not a port"),
        ("port 70000", 5, 10, "not a port"),
        ("path > 10", 7, 9, "needs a unit"),
        ("path >", 6, 6, "needs a value"),
        ("host x", 5, 6, "not an IP address"),
        ("ip.src > 10.0.0.1", 7, 8, "no order"),
        ("frobnicate", 0, 10, "is not a condition"),
        ("tcp and", 7, 7, "missing"),
        ("(tcp", 0, 1, "not closed"),
        ("tcp)", 3, 4, "no `(`"),
        ("'open", 0, 5, "not closed"),
        ("port in 80", 8, 10, "braces"),
        ("port in {80", 8, 9, "not closed"),
        ("verdict == droped", 11, 17, "is no verdict: use unknown, delivered"),
        ("udpp", 0, 4, "did you mean `udp`?"),
        ("func", 0, 4, "needs the name"),
        ("tcp == 1", 4, 6, "condition is expected"),
        ("10.0.0.0/8", 0, 10, "is not a condition"),
        ("ip.addr == 10.0.0.0/33", 11, 22, "is none"),
        ("port contains 8", 5, 13, "is no text"),
    ] {
        let e = parse(text).unwrap_err();
        assert!(e.words.contains(says), "{text}: {}", e.words);
        assert_eq!((e.at.start, e.at.end), (from, to), "{text}: {}", e.words);
    }
    let deep = "(".repeat(5_000) + "tcp";
    assert!(parse(&deep).unwrap_err().words.contains("deeply"));
    assert_eq!(parse("  "), Ok(None));
}

#[test]
fn fields_are_sound() {
    let mut names: Vec<&str> = FIELDS.iter().flat_map(|f| f.also.iter().copied().chain([f.name])).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a name twice");
    for f in FIELDS {
        assert!(!f.words.is_empty());
        for column in f.columns {
            assert!(kpat_store::tables::PACKET.column(column).is_some(), "{}: {column}", f.name);
        }
    }
}

/// Every example of the page about the language is one.
#[test]
fn the_examples_parse() {
    let page = include_str!("../../../../docs/filter.md");
    let mut examples = 0;
    for block in page.split("```filter\n").skip(1) {
        for line in block.split("```").next().unwrap_or_default().lines() {
            let text = line.split("  #").next().unwrap_or_default();
            assert!(parse(text).is_ok_and(|e| e.is_some()), "{text}: {:?}", parse(text));
            examples += 1;
        }
    }
    assert!(examples > 15, "{examples}");
}

/// The table of fields on that page, as the list has it. `UPDATE_DOCS=1` writes it.
#[test]
fn the_page_lists_the_fields() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/filter.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, _) = page.split_once("| --- | --- | --- |\n").unwrap();
    let rows: String = FIELDS
        .iter()
        .map(|f| {
            let also: Vec<String> = f.also.iter().map(|a| format!("`{a}`")).collect();
            let kind = match f.kind {
                Kind::Number => "number",
                Kind::Duration => "duration",
                Kind::Text => "text",
                Kind::Address => "address",
                Kind::Word => "word",
                Kind::Flag => "flag",
            };
            let values = f.values();
            let values = if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
            format!("| `{}` | {} | {kind}: {}{values} |\n", f.name, also.join(", "), f.words)
        })
        .collect();
    let want = format!("{head}| --- | --- | --- |\n{rows}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == want,
        "docs/filter.md: UPDATE_DOCS=1 writes the fields"
    );
}
