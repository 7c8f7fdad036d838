//! Which packets are fragments of which: logged by no function, concluded from headers.

use crate::judge;
use crate::world;

use judge::run;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::{Store, verdict};
use world::*;

const SEC: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const MINE: Mac = [2, 0, 0, 0, 0, 1];
const OTHER: Mac = [2, 0, 0, 0, 0, 2];

/// An IPv4 header in which `offset` and `more` stand; `None`: whole.
fn header(proto: u8, id: u16, fragment: Option<(u16, bool)>) -> Vec<u8> {
    let mut ip = ipv4([10, 0, 0, 1], [10, 0, 0, 9], id, proto, 64, 1_400, &udp(4_000, 53, 4_000));
    let (offset, more) = fragment.unwrap_or((0, false));
    let field = offset >> 3 | u16::from(more) << 13;
    ip[6..8].copy_from_slice(&field.to_be_bytes());
    ether(OTHER, MINE, 0x800, &ip)
}

fn at(packet: u64) -> At {
    At { cpu: 0, ctx: Context::Softirq, pid: 0, packet }
}

/// Parents, children and whether inferred, of these packets; and what became of each.
type Stored = (Vec<(i32, i64, i64, bool)>, Vec<(i64, i32)>);

fn stored(name: &str, packets: &[i64], fill: impl Fn(&mut LogWriter)) -> Stored {
    let dir = Dir::new(&format!("fragments-{name}"));
    let anchor = ClockAnchor { boot: BootNs(SEC), wall: WallNs(1_700_000_000 * SEC), uncertainty_ns: 500 };
    let functions = &["napi_gro_receive", "dev_hard_start_xmit"];
    let mut log = LogWriter::create(&dir.path("x.kbl"), functions, &[(2, "eth0", MINE)], anchor);
    fill(&mut log);
    // The log goes on for a while.
    log.call(at(99), "napi_gro_receive", 10 * SEC, 10 * SEC + 1_000);
    log.close();
    let (_, out) = run(&dir, &[]);
    let store = Store::open(&out).unwrap();
    let details: Vec<_> = packets.iter().map(|p| store.packet(*p).unwrap()).collect();
    let mut rows: Vec<(i32, i64, i64, bool)> = details
        .iter()
        .flat_map(|d| &d.lineage)
        .map(|l| (l.kind, l.parent_id, l.child_id, l.inferred.is_some()))
        .collect();
    rows.sort_unstable();
    rows.dedup();
    (rows, details.iter().map(|d| (d.packet.packet_id, d.packet.verdict)).collect())
}

const FRAGMENT: i32 = LineageKind::Fragment as i32;
const REASSEMBLY: i32 = LineageKind::Reassembly as i32;

fn sent(log: &mut LogWriter, packet: u64, t: i64, header: &[u8]) {
    log.print(at(packet), t, 2, header, 1_434, (0, 0));
    log.call(at(packet), "dev_hard_start_xmit", t, t + 1_000);
    log.free(at(packet), t + 2_000);
}

fn received(log: &mut LogWriter, packet: u64, t: i64, header: &[u8]) {
    log.print(at(packet), t, 2, header, 1_434, (0, 0));
    log.call(at(packet), "napi_gro_receive", t, t + 1_000);
}

#[test]
fn what_the_sender_put_together_is_cut_where_it_lies() {
    let (rows, verdicts) = stored("sender", &[1, 2, 3], |log| {
        log.print(at(1), 2 * SEC, 2, &header(17, 7, None), 4_000, (0, 0));
        for (packet, offset) in [(1, 0), (2, 1_480), (3, 2_960)] {
            sent(
                log,
                packet,
                2 * SEC + packet as i64 * 10_000,
                &header(17, 7, Some((offset, offset < 2_960))),
            );
        }
    });
    assert_eq!(rows, [(FRAGMENT, 1, 2, true), (FRAGMENT, 1, 3, true)]);
    assert!(verdicts.iter().all(|v| v.1 == verdict::SENT), "{verdicts:?}");
}

#[test]
fn a_router_cuts_what_it_received() {
    let (rows, verdicts) = stored("router", &[1, 2, 3], |log| {
        received(log, 1, 2 * SEC, &header(17, 7, None));
        log.free(at(1), 2 * SEC + 90_000);
        sent(log, 2, 2 * SEC + 10_000, &header(17, 7, Some((0, true))));
        sent(log, 3, 2 * SEC + 20_000, &header(17, 7, Some((1_480, false))));
    });
    assert_eq!(rows, [(FRAGMENT, 1, 2, true), (FRAGMENT, 1, 3, true)]);
    assert_eq!(verdicts, [(1, verdict::TRANSFORMED), (2, verdict::FORWARDED), (3, verdict::FORWARDED)]);
}

#[test]
fn what_the_kernel_logged_is_not_concluded_once_more() {
    let (rows, _) = stored("decided", &[1, 2], |log| {
        received(log, 1, 2 * SEC, &header(17, 7, None));
        let l = Lineage {
            kind: LineageKind::Fragment,
            at: BootNs(2 * SEC + 5_000),
            parent: PacketId(1),
            child: PacketId(2),
        };
        log.push(0, Record::Lineage(l));
        sent(log, 2, 2 * SEC + 10_000, &header(17, 7, Some((0, true))));
    });
    assert_eq!(rows, [(FRAGMENT, 1, 2, false)]);
}

/// Two datagrams at once, the second with its parts in the wrong order; the whole has the buffer of the first part.
#[test]
fn fragments_become_one_packet() {
    let (rows, verdicts) = stored("whole", &[1, 2, 3, 4, 5], |log| {
        received(log, 1, 2 * SEC, &header(17, 7, Some((0, true))));
        received(log, 4, 2 * SEC + 1_500, &header(17, 8, Some((1_480, false))));
        received(log, 2, 2 * SEC + 3_000, &header(17, 7, Some((1_480, true))));
        received(log, 3, 2 * SEC + 5_000, &header(17, 7, Some((2_960, false))));
        received(log, 5, 2 * SEC + 7_000, &header(17, 8, Some((0, true))));
        log.print(at(1), 2 * SEC + 6_500, 2, &header(17, 7, None), 4_000, (0, 0));
        log.print(at(5), 2 * SEC + 8_500, 2, &header(17, 8, None), 4_000, (0, 0));
        (1..=5).for_each(|p| log.free(at(p), 2 * SEC + MS));
    });
    assert_eq!(rows, [(REASSEMBLY, 2, 1, true), (REASSEMBLY, 3, 1, true), (REASSEMBLY, 4, 5, true)]);
    for p in [1, 2, 3] {
        assert_eq!(verdicts[p].1, verdict::TRANSFORMED, "{verdicts:?}");
    }
}

#[test]
fn nothing_is_made_up() {
    // A tunnel's header around a fragment; the same identification seconds later; fragments that only pass.
    let (rows, _) = stored("nothing", &[1, 2, 3, 4, 5], |log| {
        received(log, 1, 2 * SEC, &header(17, 7, Some((1_480, false))));
        received(log, 2, 2 * SEC + 2_000, &header(17, 7, Some((0, true))));
        for p in [1, 2] {
            log.print(at(p), 2 * SEC + 10_000 * p as i64, 2, &header(4, 300 + p as u16, None), 1_454, (0, 0));
        }
        received(log, 3, 4 * SEC, &header(17, 7, Some((0, true))));
        log.print(at(3), 4 * SEC + 9_000, 2, &header(17, 7, None), 1_454, (0, 0));
        received(log, 4, 5 * SEC, &header(17, 9, Some((0, true))));
        received(log, 5, 5 * SEC + 2_000, &header(17, 9, Some((1_480, false))));
        sent(log, 4, 5 * SEC + 4_000, &header(17, 9, Some((0, true))));
        sent(log, 5, 5 * SEC + 6_000, &header(17, 9, Some((1_480, false))));
    });
    assert_eq!(rows, []);
}
