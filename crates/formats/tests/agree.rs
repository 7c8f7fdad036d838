//! One log in all formats: what the formats say, read by others' programs where there are any, is what the log says.

#![allow(clippy::unwrap_used, reason = "a test")]

mod judge;
mod small;

use kpat_formats::folded::Weight;
use kpat_formats::{Counts, folded, json, perfetto, pprof, tsv};
use kpat_query::PacketFilter;
use kpat_query::trace::Chosen;
use kpat_store::tables::{CallMemberRow, CallRow};
use serde_json::Value;
use small::Small;
use std::collections::{BTreeMap, BTreeSet};

/// What there is to say of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Of {
    calls: i64,
    self_ns: i64,
    total_ns: i64,
    packets: BTreeSet<i64>,
}

type Functions = BTreeMap<String, Of>;

/// From the tables, row by row.
fn truth(small: &Small, only: Option<i64>) -> Functions {
    let members: Vec<CallMemberRow> = small.store.table::<CallMemberRow>().unwrap().all().unwrap();
    let mut out = Functions::new();
    for row in small.store.table::<CallRow>().unwrap().all::<CallRow>().unwrap() {
        let mut packets: BTreeSet<i64> = row.packet_id.into_iter().collect();
        packets.extend(members.iter().filter(|m| m.call_id == row.call_id).map(|m| m.packet_id));
        if let Some(only) = only {
            packets.retain(|p| *p == only);
            if packets.is_empty() {
                continue;
            }
        }
        let of = out.entry(small.store.function_name(row.func_id).to_owned()).or_default();
        of.calls += 1;
        of.self_ns += row.self_ns.unwrap_or(0);
        of.total_ns += row.dur_ns.unwrap_or(0);
        of.packets.extend(packets);
    }
    out
}

fn without_packets(all: &Functions) -> Functions {
    all.iter().map(|(n, of)| (n.clone(), Of { packets: BTreeSet::new(), ..of.clone() })).collect()
}

fn ignore(_: u64, _: u64) -> bool {
    true
}

fn check(small: &Small, chosen: &Chosen, truth: &Functions) {
    let mut all: Vec<(&str, Counts)> = Vec::new();
    let store = &small.store;

    let mut text = Vec::new();
    all.push(("tsv", tsv::write(store, chosen, &mut text, &mut ignore).unwrap()));
    assert_eq!(of_tsv(&String::from_utf8(text).unwrap()), *truth, "tsv");

    let mut text = Vec::new();
    all.push(("json", json::write(store, chosen, &mut text, &mut ignore).unwrap()));
    let packets: BTreeSet<i64> = of_json(&String::from_utf8(text).unwrap(), truth);

    for weight in [Weight::SelfTime, Weight::Calls] {
        let mut text = Vec::new();
        all.push(("folded", folded::write(store, chosen, weight, &mut text, &mut ignore).unwrap()));
        let mut found: BTreeMap<String, i64> = BTreeMap::new();
        for line in String::from_utf8(text).unwrap().lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            let (_, leaf) = stack.rsplit_once(';').unwrap();
            *found.entry(leaf.to_owned()).or_default() += value.parse::<i64>().unwrap();
        }
        let wanted = |of: &Of| if weight == Weight::Calls { of.calls } else { of.self_ns };
        let wanted: BTreeMap<String, i64> =
            truth.iter().map(|(n, of)| (n.clone(), wanted(of))).filter(|(_, v)| *v != 0).collect();
        assert_eq!(found, wanted, "folded {weight:?}");
    }

    let mut bytes = Vec::new();
    all.push(("pprof", pprof::write(store, chosen, &mut bytes, &mut ignore).unwrap()));
    let path = small.dir.path("out.pb.gz");
    std::fs::write(&path, bytes).unwrap();
    if judge::has_pprof()
        && let Some(text) = judge::output("go", "version", &["tool", "pprof", "-raw", path.to_str().unwrap()])
    {
        assert_eq!(of_pprof(&text), without_packets(truth), "pprof");
    }

    let mut bytes = Vec::new();
    all.push(("perfetto", perfetto::write(store, chosen, &mut bytes, &mut ignore).unwrap()));
    let path = small.dir.path("out.pftrace");
    std::fs::write(&path, bytes).unwrap();
    if let Some(python) = judge::python("perfetto") {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/judge/read_trace.py");
        let reported: Value =
            serde_json::from_str(&judge::run(&python, &[script, path.to_str().unwrap()])).unwrap();
        of_perfetto(&reported, truth, &packets, chosen.is_all());
    }

    let first = all[0].1;
    for (name, counts) in &all {
        let same = |c: &Counts| (c.calls, c.points, c.self_ns);
        assert_eq!(same(counts), same(&first), "{name}");
        if counts.packets > 0 {
            assert_eq!(counts.packets, packets.len() as u64, "{name}");
        }
    }
    assert_eq!(first.calls as i64 + first.points as i64, truth.values().map(|of| of.calls).sum::<i64>());
}

fn of_tsv(text: &str) -> Functions {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split('\t').collect();
    assert_eq!(head, tsv::COLUMNS.map(|c| c.0));
    let place = |name: &str| head.iter().position(|h| *h == name).unwrap();
    let mut out = Functions::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        assert_eq!(cells.len(), head.len(), "{line}");
        let number = |name: &str| cells[place(name)].parse::<i64>().unwrap_or(0);
        let of = out.entry(cells[place("function")].to_owned()).or_default();
        of.calls += 1;
        of.self_ns += number("self_ns");
        of.total_ns += number("dur_ns");
        let ids = cells[place("packet_ids")].split(',').filter(|p| !p.is_empty());
        of.packets.extend(ids.map(|p| p.parse::<i64>().unwrap()));
    }
    out
}

/// Gives the packets.
fn of_json(text: &str, truth: &Functions) -> BTreeSet<i64> {
    let mut found = Functions::new();
    let mut packets = BTreeSet::new();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let v: Value = serde_json::from_str(line).unwrap();
        let kind = v["kind"].as_str().unwrap().to_owned();
        *kinds.entry(kind.clone()).or_default() += 1;
        match kind.as_str() {
            "packet" => {
                packets.insert(v["packet_id"].as_i64().unwrap());
            }
            "call" | "point" => {
                let of = found.entry(v["function"].as_str().unwrap().to_owned()).or_default();
                of.calls += 1;
                of.self_ns += v["self_ns"].as_i64().unwrap_or(0);
                of.total_ns += v["dur_ns"].as_i64().unwrap_or(0);
                of.packets.extend(v["packet_ids"].as_array().unwrap().iter().map(|p| p.as_i64().unwrap()));
            }
            _ => {}
        }
    }
    assert_eq!(found, *truth, "json");
    assert_eq!((kinds["log"], kinds["loss"]), (1, 1));
    packets
}

/// `calls self irq total: LOCATION ...`, the innermost first; then `LOCATION: 0x0 M=1 NAME ...`.
fn of_pprof(text: &str) -> Functions {
    let (samples, rest) = text.split_once("\nLocations\n").unwrap();
    let names: BTreeMap<&str, &str> = rest
        .lines()
        .take_while(|l| !l.starts_with("Mappings"))
        .map(|l| {
            let mut words = l.split_whitespace();
            let id = words.next().unwrap().trim_end_matches(':');
            (id, words.find(|w| !w.starts_with("0x") && !w.starts_with("M=")).unwrap())
        })
        .collect();
    let mut out = Functions::new();
    for line in samples.lines() {
        let Some((values, stack)) = line.split_once(": ") else { continue };
        let values: Vec<i64> = values.split_whitespace().filter_map(|v| v.parse().ok()).collect();
        let [calls, self_ns, _irq, total_ns] = values[..] else { continue };
        let leaf = names[stack.split_whitespace().next().unwrap()];
        let of = out.entry(leaf.to_owned()).or_default();
        of.calls += calls;
        of.self_ns += self_ns;
        of.total_ns += total_ns;
    }
    out
}

fn of_perfetto(reported: &Value, truth: &Functions, packets: &BTreeSet<i64>, all: bool) {
    let found: Functions = reported["functions"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, f)| {
            let number = |k: &str| f[k].as_i64().unwrap();
            let of = Of {
                calls: number("calls") + number("points"),
                self_ns: number("self_ns"),
                total_ns: number("total_ns"),
                packets: BTreeSet::new(),
            };
            (name.clone(), of)
        })
        .collect();
    assert_eq!(found, without_packets(truth), "perfetto");
    let ids: BTreeSet<i64> =
        reported["packets"].as_array().unwrap().iter().map(|p| p.as_i64().unwrap()).collect();
    assert_eq!(ids, *packets);
    for fault in ["open", "wrong_ends", "unknown_tracks"] {
        assert_eq!(reported[fault], 0, "{fault}: {reported}");
    }
    // CLOCK_BOOTTIME.
    assert_eq!(reported["clock"], 6);
    assert_eq!(reported["lost"], 17);
    assert_eq!(reported["counters"]["packets in flight"]["last"], 0);
    for p in packets {
        // The packet's own slice, and at least the outermost of its calls.
        assert!(reported["flows"][p.to_string()].as_u64().unwrap() >= 2, "packet {p} has no arrow");
    }
    if all {
        assert_eq!(reported["counters"]["packets dropped"]["last"], 3);
        let tracks: Vec<&str> =
            reported["tracks"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        for wanted in ["CPU 0 softirq", "CPU 1 hardirq", "lane 1"] {
            assert!(tracks.contains(&wanted), "{tracks:?}");
        }
    }
}

#[test]
fn all_formats_say_what_the_log_says() {
    let small = small::make("agree");
    check(&small, &Chosen::default(), &truth(&small, None));
}

#[test]
fn a_choice_of_packets_is_the_same_in_all() {
    let small = small::make("agree-one");
    // It was on a list.
    let chosen = Chosen { packet: Some(29), ..Chosen::default() };
    check(&small, &chosen, &truth(&small, Some(29)));
    let filter = PacketFilter { port: Some(1029), ..PacketFilter::default() };
    check(&small, &Chosen { filter, packet: None }, &truth(&small, Some(29)));
}

#[test]
fn the_first_error_ends_it() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let small = small::make("agree-full");
    for result in [
        tsv::write(&small.store, &Chosen::default(), &mut Full, &mut ignore),
        json::write(&small.store, &Chosen::default(), &mut Full, &mut ignore),
        perfetto::write(&small.store, &Chosen::default(), &mut Full, &mut ignore),
        pprof::write(&small.store, &Chosen::default(), &mut Full, &mut ignore),
        folded::write(&small.store, &Chosen::default(), Weight::SelfTime, &mut Full, &mut ignore),
    ] {
        assert!(matches!(result, Err(kpat_formats::Error::Write(_))), "{result:?}");
    }
}
