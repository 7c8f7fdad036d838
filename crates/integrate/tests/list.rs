//! The list of packets in memory, the filter language over a log, call paths: each against the tables they come from.

use crate::known;
use crate::world;

use kpat_model::meta::{ClockAnchor, Cost};
use kpat_model::*;
use kpat_query::Error;
use kpat_query::catalog::{Catalog, Column};
use kpat_query::filter::Filter;
use kpat_query::phases::{Boundaries, phases, ways};
use kpat_query::{PacketFilter, PacketSort, Store};
use world::*;

const FUNCTIONS: &[&str] =
    &["napi_gro_receive", "ip_rcv", "ip_forward", "ip_local_deliver", "udp_rcv", "dev_hard_start_xmit"];
const PACKETS: u64 = 3_000;
const SEC: i64 = 1_000_000_000;

/// Packets of two kinds: even ones are forwarded TCP, odd ones delivered UDP; each seventh TCP packet was sent again.
fn store(dir: &Dir) -> Store {
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", [2; 6])], ClockAnchor::default());
    let mut random = Random(3);
    for packet in 1..=PACKETS {
        let at = SEC + packet as i64 * 100_000;
        let a = At { cpu: (packet % 2) as u16, ctx: Context::Softirq, pid: 0, packet };
        let is_tcp = packet % 2 == 0;
        let rest = if is_tcp { tcp(2_000, 443, packet as u32, 1, 0x10) } else { udp(1_000, 53, 100) };
        let (proto, len) = if is_tcp { (6, 40) } else { (17, 128) };
        let src = [10, (packet % 3) as u8, 0, 1];
        let header =
            ether([2; 6], [3; 6], 0x800, &ipv4(src, [10, 9, 0, 1], packet as u16, proto, 64, len, &rest));
        log.print(a, at + 10, 2, &header, len as u32 + 14, (0, 0));
        let end = at + 20_000 + random.below(30_000);
        log.call(a, "ip_rcv", at + 200, at + 400 + random.below(1_000));
        if is_tcp {
            log.call(a, "dev_hard_start_xmit", at + 6_000, at + 9_000);
            log.call(a, "ip_forward", at + 5_000, end - 2_000);
        } else {
            log.call(a, "udp_rcv", at + 5_000, at + 6_000 + random.below(500));
            log.call(a, "ip_local_deliver", at + 4_000, at + 8_000);
        }
        log.call(a, "napi_gro_receive", at, end);
        if is_tcp && packet % 7 == 0 {
            log.event(a, at + 300, EventKind::Retransmit, 443);
        }
        log.free(a, end + 100);
        if packet % 100 == 0 {
            log.flush();
        }
    }
    log.close();
    known::open(dir, "x", &|_| "network", Cost::default())
}

fn chosen(store: &Store, catalog: &Catalog, text: &str) -> Vec<i64> {
    let filter = Filter::parse(text).unwrap().unwrap();
    let condition = filter.prepare(store, &mut |_, _| true).unwrap();
    let places = catalog.fitting(Some(&condition), &mut |_, _| true).unwrap();
    places.iter().map(|&i| catalog.entries[i as usize].id).collect()
}

#[test]
fn the_list_says_what_the_tables_say() {
    let dir = Dir::new("list");
    let store = store(&dir);
    let catalog = Catalog::load(&store, &mut |_, _| true).unwrap();
    let rows = store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows;
    assert_eq!(catalog.entries.len() as u64, PACKETS);
    for (e, p) in catalog.entries.iter().zip(&rows) {
        assert_eq!(
            (e.id, e.first_ns, e.path_ns, e.kernel_ns),
            (p.packet_id, p.first_ns, p.path_ns, p.kernel_ns)
        );
        let src = kpat_query::protocol::endpoint(p.src_addr.as_deref(), p.sport);
        let dst = kpat_query::protocol::endpoint(p.dst_addr.as_deref(), p.dport);
        assert_eq!((e.src_text(&catalog.names), e.dst_text(&catalog.names)), (src, dst));
        assert_eq!(e.info_text(&catalog.names), kpat_query::protocol::summary(p));
        assert_eq!((i64::from(e.len_bytes), i32::from(e.verdict)), (p.len_bytes, p.verdict));
    }
    assert!(std::mem::size_of_val(&catalog.entries[0]) <= 128);

    // Both ways to ask, the list's and the table's, agree.
    for text in [
        "tcp",
        "func ip_forward",
        "udp and not func ip_forward",
        "retransmission",
        "ip.src == 10.1.0.0/16 or port 53 and path > 40us",
        "func in {udp_rcv, ip_forward} and path < 30us",
        "time < 0.1s",
    ] {
        let from_list = chosen(&store, &catalog, text);
        let filter = PacketFilter { expression: Filter::parse(text).unwrap(), ..PacketFilter::default() };
        let from_table = store.packets(&filter, PacketSort::Time, false, 0).unwrap();
        let ids: Vec<i64> = from_table.rows.iter().map(|p| p.packet_id).collect();
        assert_eq!(from_list, ids, "{text}");
        assert!(!ids.is_empty() && ids.len() < PACKETS as usize, "{text}: {}", ids.len());
        let few = store.packets(&filter, PacketSort::Path, false, 10).unwrap();
        assert_eq!(few.total as usize, ids.len(), "{text}");
    }
    assert_eq!(chosen(&store, &catalog, "func ip_forward").len() as u64, PACKETS / 2);

    // What functions touched may be kept in memory: the answers stay.
    let by_function = ["func ip_forward", "func in {udp_rcv, ip_forward}", "func *", "func ip_*"];
    let read = by_function.map(|text| chosen(&store, &catalog, text));
    assert!(matches!(store.keep_touching(&mut |_, _| false), Err(Error::Abandoned)));
    store.keep_touching(&mut |_, _| true).unwrap();
    assert_eq!(by_function.map(|text| chosen(&store, &catalog, text)), read);
    assert_eq!(chosen(&store, &catalog, "retransmission").len() as u64, PACKETS / 14);

    // Orders are orders, and equals stay in order of time.
    let mut places: Vec<u32> = (0..PACKETS as u32).collect();
    catalog.sort(&mut places, Column::Path, true);
    let by_path: Vec<(i64, u32)> =
        places.iter().map(|&i| (-catalog.entries[i as usize].path_ns, i)).collect();
    assert!(by_path.is_sorted());
    catalog.sort(&mut places, Column::Src, false);
    let by_src: Vec<(u128, u32)> = places.iter().map(|&i| (catalog.entries[i as usize].src, i)).collect();
    assert!(by_src.is_sorted());
    let density = catalog.density(&places, SEC, SEC + 100_000 * (PACKETS as i64 + 1), 17);
    assert_eq!(density.packets.iter().map(|n| u64::from(*n)).sum::<u64>(), PACKETS);
    assert_eq!(catalog.place(77).map(|i| catalog.entries[i].id), Some(77));

    let beginning = Catalog::beginning(&store).unwrap();
    assert!(beginning.entries[..100] == catalog.entries[..100]);
}

fn table_of_ids(store: &Store) -> Vec<i64> {
    let rows = store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows;
    let mut ids: Vec<i64> = rows.iter().map(|p| p.packet_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn call_paths_are_the_calls() {
    let dir = Dir::new("list-paths");
    let store = store(&dir);
    let flame = store.flame().unwrap();
    let name = |i: usize| store.function_name(flame.nodes[i].func_id).to_owned();
    let paths: Vec<Vec<String>> = (0..flame.nodes.len())
        .map(|i| {
            let mut way = vec![name(i)];
            let mut at = i;
            while let Some(p) = flame.nodes[at].parent {
                way.insert(0, name(p));
                at = p;
            }
            way
        })
        .collect();
    assert!(
        paths.contains(&["napi_gro_receive", "ip_forward", "dev_hard_start_xmit"].map(str::to_owned).into())
    );
    assert_eq!(paths.len(), 7);
    // Everything again by walking over all packets.
    let all = store.touched(&PacketFilter::default(), (None, None), &mut |_, _| true, &mut |_| ()).unwrap();
    assert_eq!((all.packets, &all.flame), (PACKETS, &flame));
    let table = store.functions(&Default::default(), Default::default(), 0);
    for f in &table.rows {
        let found = all.functions.iter().find(|t| t.func_id == f.func_id).unwrap();
        assert_eq!((found.calls as i64, found.packets as i64), (f.calls, f.packets), "{}", f.name);
        assert_eq!((found.total.sum(), found.self_ns), (f.total_ns, f.self_ns), "{}", f.name);
        assert_eq!((found.total.max(), found.max_packet), (f.max_ns, f.max_packet_id), "{}", f.name);
    }
    // And slice by slice: the first account is of the first packets, the last one of all.
    let ids: Vec<i64> = table_of_ids(&store);
    let by_number = PacketFilter { ids: Some(ids.into()), ..PacketFilter::default() };
    let mut parts = Vec::new();
    let sliced =
        store.touched(&by_number, (None, None), &mut |_, _| true, &mut |t| parts.push(t.packets)).unwrap();
    assert!(parts[0] > 0 && parts[0] < PACKETS, "{parts:?}");
    assert_eq!((sliced.packets, &sliced.flame), (PACKETS, &flame));
    for (a, b) in all.functions.iter().zip(&sliced.functions) {
        let of = |f: &kpat_query::FunctionCount| {
            (f.func_id, f.calls, f.packets, f.self_ns, f.max_packet, f.total.sum(), f.total.median())
        };
        assert_eq!(of(a), of(b));
    }
    let of_one = PacketFilter { ids: Some([8].into()), ..PacketFilter::default() };
    let one = store.touched(&of_one, (None, None), &mut |_, _| true, &mut |_| ()).unwrap();
    assert_eq!((one.packets, one.functions.len(), one.flame.nodes.len()), (1, 5, 5));
    let slow = store.touched(&of_one, (Some(3_000), None), &mut |_, _| true, &mut |_| ()).unwrap();
    assert_eq!(slow.functions.iter().map(|f| f.calls).sum::<u64>(), 3);
    // A few packets' ways are those of all.
    let some = ways(&store, &[5, 8, 2_000], &Boundaries::default(), &mut |_, _| true).unwrap();
    assert_eq!(some.len(), 3);
    for w in some {
        let path: i64 = w.segments.iter().map(|s| s.dur_ns()).sum();
        assert_eq!(path, store.packet(w.packet_id).unwrap().packet.path_ns);
    }
}

/// Whoever does not wait any more is not worked for.
#[test]
fn questions_may_be_left() {
    let dir = Dir::new("list-left");
    let store = store(&dir);
    let mut no = |_, _| false;
    let all = PacketFilter::default();
    let func = Filter::parse("func ip_*").unwrap().unwrap();
    assert!(matches!(Catalog::load(&store, &mut no), Err(Error::Abandoned)));
    assert!(matches!(store.touched(&all, (None, None), &mut no, &mut |_| ()), Err(Error::Abandoned)));
    assert!(matches!(
        phases(&store, &all, &Boundaries::default(), &mut no, &mut |_| ()),
        Err(Error::Abandoned)
    ));
    assert!(matches!(func.prepare(&store, &mut no), Err(Error::Abandoned)));
    let catalog = Catalog::load(&store, &mut |_, _| true).unwrap();
    let condition = func.prepare(&store, &mut |_, _| true).unwrap();
    assert!(matches!(catalog.fitting(Some(&condition), &mut no), Err(Error::Abandoned)));
    assert!(matches!(store.moments(&[], None, 0, 10, &mut no), Err(Error::Abandoned)));
}
