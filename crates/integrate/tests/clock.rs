//! Sniffers' clocks that are set, steered, of another scale, or seen from one side only: the true time of every frame has
//! to be within the bound that is claimed for it.

use crate::judge;
use crate::world;

use judge::{run, score};
use kpat_integrate::Report;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::{TimeScale, clock_method, time_scale};
use kpat_store::TableFile;
use kpat_store::tables::*;
use std::collections::HashMap;
use std::ops::Range;
use world::*;

const WALL: i64 = 1_700_000_000 * SEC;

#[derive(Clone)]
struct Case {
    name: &'static str,
    /// What the sniffer's clock shows.
    wall: fn(i64) -> i64,
    /// Late by, of each stamp.
    jitter: fn(&mut Random) -> i64,
    /// Only what the DUT receives is captured.
    one_way: bool,
    /// From this packet on the sniffer sees only what the DUT receives.
    one_way_from: i64,
    /// So many packets still wait in a queue when the log ends: no driver is known to have had them, and frames are late.
    queued: i64,
    names: [&'static str; 2],
    /// No packets in this time.
    gap: i64,
    packets: i64,
    /// Time between two packets.
    every: i64,
    /// After so many packets the identifications come round again, and nothing else tells packets apart.
    round: i64,
    /// The packets that are in the log, and in the capture.
    logged: Range<i64>,
    captured: Range<i64>,
}

impl Case {
    fn of(name: &'static str, wall: fn(i64) -> i64) -> Case {
        let all = 0..i64::MAX;
        let (logged, captured) = (all.clone(), all);
        Case {
            name,
            wall,
            jitter: |_| 0,
            one_way: false,
            one_way_from: i64::MAX,
            queued: 0,
            names: ["tap-in", "tap-out"],
            gap: 0,
            packets: 600,
            every: 50_000_000,
            round: 9_000,
            logged,
            captured,
        }
    }
}

/// A router's log and a capture of both links; every frame's time judged by the truth.
fn judged(case: &Case) -> Report {
    let dir = Dir::new(&format!("clock-{}", case.name));
    let anchor = ClockAnchor { boot: BootNs(99 * SEC), wall: WallNs(WALL + 99 * SEC), uncertainty_ns: 500 };
    let mut log = LogWriter::create(&dir.path("x.kbl"), ROUTER, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &case.names);
    cap.as_given = true;
    let mut random = Random(11);
    let mut stamps = Random(23);
    // When each frame was on the wire, and when its stamp says that it was.
    let mut truth: Vec<(i64, i64)> = Vec::new();
    let mut behind = Vec::new();
    let (c, s) = ([10, 0, 0, 2], [198, 51, 100, 7]);
    for i in 0..case.packets {
        let mut at = 100 * SEC + i * case.every + random.below(2_000_000.min(case.every / 2));
        if i >= case.packets / 2 {
            at += case.gap;
        }
        let (logged, captured) = (case.logged.contains(&i), case.captured.contains(&i));
        let packet = i as u64 + 1;
        // Frames of packets that the log does not hold have none.
        let of = if logged { packet } else { 0 };
        let i = i % case.round;
        let (ident, body) = ((i * 7) as u16 | 1, icmp(8, 77, i as u16, 5));
        let before = ether(R0, CLIENT, 0x800, &ipv4(c, s, ident, 1, 64, 8, &body));
        let after = ether(SERVER, R1, 0x800, &ipv4(c, s, ident, 1, 63, 8, &body));
        let known = at + 8_000 + random.below(40_000);
        let sent = known + 15_000 + 6_000 + random.below(30_000);
        let number = packet as i64 - 1;
        let waits = number - (case.packets - case.queued);
        let sent = if waits >= 0 { sent + (waits + 1) * 15_000_000 } else { sent };
        if captured {
            let late = (case.jitter)(&mut stamps);
            cap.frame((case.wall)(at) + late, 0, before.clone(), 42, of);
            truth.push((at, at + late));
        }
        if captured && !case.one_way && number < case.one_way_from {
            let late = (case.jitter)(&mut stamps);
            let frame = ((case.wall)(sent) + late, after.clone(), of, (sent, sent + late));
            behind.push(frame);
        }
        // Nothing else was captured meanwhile, unless packets wait.
        if waits < 0 {
            for (wall, bytes, of, when) in behind.drain(..) {
                cap.frame(wall, 1, bytes, 42, of);
                truth.push(when);
            }
        }
        if !logged {
            continue;
        }
        let soft = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet };
        log.print(soft, known + 100, 2, &before, 42, (0, 0));
        log.call(soft, "ip_rcv", known + 1_000, known + 3_000);
        if case.one_way {
            log.call(soft, "ip_local_deliver", known + 3_100, known + 9_000);
            log.call(soft, "napi_gro_receive", known, known + 12_000);
        } else {
            log.call(soft, "ip_forward", known + 4_000, known + 20_000);
            log.print(soft, known + 14_500, 3, &after, 42, (0, 0));
            if waits < 0 {
                log.call(soft, "dev_hard_start_xmit", known + 15_000, known + 18_000);
            }
            log.call(soft, "__dev_queue_xmit", known + 14_000, known + 19_000);
            log.call(soft, "napi_gro_receive", known, known + 26_000);
        }
        log.free(soft, known + 40_000);
    }
    for (wall, bytes, of, when) in behind.drain(..) {
        cap.frame(wall, 1, bytes, 42, of);
        truth.push(when);
    }
    log.close();
    let numbers = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[numbers]);
    let associations: Vec<AssociationRow> = TableFile::open(&out, &ASSOCIATION).unwrap().all().unwrap();
    let bounds: HashMap<i64, i64> = associations.iter().map(|a| (a.number, a.bound_ns)).collect();
    let frames: Vec<FrameRow> = TableFile::open(&out, &FRAME).unwrap().all().unwrap();
    assert_eq!(frames.len(), truth.len());
    let (mut worst, mut widest) = (0, 0);
    // Of a frame that the log does not hold: the line goes on, and its drift's bound with it.
    let span = truth.iter().max().unwrap().0 - truth.iter().min().unwrap().0;
    let further = |c: &ClockRow| c.bound_ns + (c.drift_bound_ppb as f64 * span as f64 / 1e9) as i64;
    let beside = report.clocks.iter().map(further).max().unwrap();
    for f in &frames {
        let error = (f.boot_ns.unwrap() - truth[f.number as usize - 1].1).abs();
        let bound = *bounds.get(&f.number).unwrap_or(&beside);
        worst = worst.max(error);
        widest = widest.max(bound);
        assert!(
            error <= bound + 1,
            "{}: frame {} is off by {error} ns, bound {bound} ns",
            case.name,
            f.number
        );
    }
    rows_hold(case, &report.clocks, &frames, &truth);
    println!(
        "{}: precision {:.4} recall {:.4} of {} frames; {} segments, error at most {worst} ns, bound at most {widest} ns",
        case.name,
        score.precision,
        score.recall,
        score.frames,
        report.clocks.len()
    );
    let jitters = (case.jitter)(&mut Random(5)) != 0;
    let least = if jitters { 0.99 } else { 1.0 };
    assert!(score.precision == 1.0 && score.recall >= least, "{}", case.name);
    report
}

/// A row is of a time and not of a moment, the next goes on where it ends, and the true relation of each of its frames is within its bound.
fn rows_hold(case: &Case, rows: &[ClockRow], frames: &[FrameRow], truth: &[(i64, i64)]) {
    let numbers = |c: &ClockRow| c.from_number.unwrap()..=c.to_number.unwrap();
    for c in rows {
        assert!(rows.len() == 1 || c.to_wall_ns > c.from_wall_ns, "{}: of a moment: {c:?}", case.name);
        let set = c.method == clock_method::BETWEEN;
        for f in frames.iter().filter(|f| !set && numbers(c).contains(&f.number)) {
            let (at, stamped) = truth[f.number as usize - 1];
            // Of a stamp that is not late the row's moment is known.
            let line = c.offset_ns + (c.drift_ppb as f64 / 1e9 * (f.wall_ns - c.from_wall_ns) as f64) as i64;
            let off = (line - (at - (case.wall)(at))).abs();
            let known = stamped == at && rows.iter().filter(|c| numbers(c).contains(&f.number)).count() == 1;
            assert!(!known || off <= c.bound_ns + 2, "{}: frame {} {off} {c:?}", case.name, f.number);
        }
    }
    for two in rows.windows(2) {
        assert!(two[1].from_number <= two[0].to_number.map(|n| n + 1), "{}: {two:?}", case.name);
    }
}

/// Segments that are no doubtful times.
fn lines(r: &Report) -> Vec<&ClockRow> {
    r.clocks.iter().filter(|c| c.method != clock_method::BETWEEN).collect()
}

#[test]
fn straight_clocks_stay_one_line() {
    for case in [
        Case::of("even", |b| b + WALL + 1_234_567),
        Case::of("drift", |b| b + WALL + b / 10_000),
        Case { gap: 3_600 * SEC, ..Case::of("suspended", |b| b + WALL - 700_000 - b / 50_000) },
    ] {
        let r = judged(&case);
        assert_eq!(r.clocks.len(), 1, "{}", case.name);
        assert!(r.clocks[0].bound_ns < 50_000, "{}", case.name);
    }
}

#[test]
fn steps_are_found() {
    const MID: i64 = 115 * SEC;
    for (case, step) in [
        (Case::of("step-small", |b| b + WALL + if b > MID { 300_000 } else { 0 }), 300_000),
        (Case::of("step-forward", |b| b + WALL + if b > MID { 5_000_000 } else { 0 }), 5_000_000),
        (Case::of("step-back", |b| b + WALL - if b > MID { 5_000_000 } else { 0 }), -5_000_000),
        (Case::of("step-second", |b| b + WALL + if b > MID { SEC } else { 0 }), SEC),
        (Case::of("step-hour", |b| b + WALL + if b > MID { 3_600 * SEC } else { 0 }), 3_600 * SEC),
        (Case::of("step-hour-back", |b| b + WALL - if b > MID { 3_600 * SEC } else { 0 }), -3_600 * SEC),
    ] {
        let r = judged(&case);
        let mut found = lines(&r);
        found.sort_by_key(|c| c.to_wall_ns - c.from_wall_ns < SEC);
        assert!(found.len() >= 2, "{}: {:?}", case.name, r.clocks);
        // In the order of the true time.
        let mut offsets: Vec<i64> = found[..2].iter().map(|c| c.offset_ns).collect();
        if (offsets[0] < offsets[1]) == (step > 0) {
            offsets.swap(0, 1);
        }
        let got = offsets[0] - offsets[1];
        assert!((got - step).abs() < 120_000, "{}: step of {got} ns", case.name);
    }
}

/// Identifications that come round again every two seconds, and a capture that goes on when the log has ended, or begins before it:
/// no clock jumped by a round, and frames from outside of the log have no packet in it.
#[test]
fn identifications_that_come_round_are_no_step() {
    let case = |name, logged, captured| Case {
        packets: 12_000,
        every: 1_000_000,
        round: 2_000,
        logged,
        captured,
        ..Case::of(name, |b| b + WALL + 1_234_567)
    };
    for case in [
        case("round-behind", 0..3_000, 0..12_000),
        case("round-later", 0..3_000, 1_500..12_000),
        case("round-before", 9_000..12_000, 0..12_000),
        case("round-within", 4_000..7_000, 0..12_000),
    ] {
        let r = judged(&case);
        let steps = r.clocks.iter().filter(|c| c.method == clock_method::BETWEEN);
        assert_eq!(steps.count(), 0, "{}: {:?}", case.name, r.clocks);
    }
}

#[test]
fn a_slew_is_found() {
    // 400 ppm for ten seconds, as adjtime does it.
    let r = judged(&Case::of("slew", |b| b + WALL + (b - 110 * SEC).clamp(0, 10 * SEC) / 2_500));
    let steep =
        lines(&r).into_iter().filter(|c| (c.drift_ppb + 400_000).abs() <= c.drift_bound_ppb.max(40_000));
    assert!(lines(&r).len() >= 3, "{:?}", r.clocks);
    assert!(steep.count() >= 1, "{:?}", r.clocks);
}

#[test]
fn other_scales_are_named() {
    for (case, want) in [
        (Case::of("utc", |b| b + WALL + 40_000_000), TimeScale::Utc),
        (Case::of("tai", |b| b + WALL + 37 * SEC + 3_000_000), TimeScale::Tai),
        (Case::of("gps", |b| b + WALL + 18 * SEC - 2_000_000), TimeScale::Gps),
        (Case::of("adapter", |b| b + 12_345 * SEC), TimeScale::Own),
        (Case::of("wrong", |b| b + WALL + 1_000 * SEC), TimeScale::Other),
    ] {
        let r = judged(&case);
        assert_eq!(time_scale(&r.clocks[0], Some(-WALL)), want, "{}", case.name);
    }
}

#[test]
fn one_way_traffic_has_an_honest_bound() {
    let r = judged(&Case { one_way: true, ..Case::of("one-way", |b| b + WALL + 9_000_000 + b / 40_000) });
    assert_eq!(r.clocks[0].method, clock_method::ONE_WAY);
    // One side is assumed: the bound is no less than that assumption's half.
    assert!(r.clocks[0].bound_ns >= 100_000, "{}", r.clocks[0].bound_ns);
}

/// Stamps that scatter are no steps, and cost no matches.
#[test]
fn jitter_is_in_the_bound() {
    let off = |b: i64| b + WALL + 12 * SEC + 345_678;
    let case = |name, jitter| Case { jitter, packets: 1_200, every: 20_000_000, ..Case::of(name, off) };
    for case in [
        case("jitter-10", |r| r.below(20_000) - 10_000),
        case("jitter-80", |r| r.below(160_000) - 80_000),
        case("late", |r| r.below(60_000) * r.below(60_000) / 60_000),
        case("late-outliers", |r| if r.below(100) < 3 { 2_000_000 } else { r.below(200) }),
    ] {
        let r = judged(&case);
        let steps = r.clocks.iter().filter(|c| c.method == clock_method::BETWEEN);
        assert_eq!(steps.count(), 0, "{}: {:?}", case.name, r.clocks);
    }
}

#[test]
fn a_second_step_in_one_way_traffic_is_covered() {
    for (name, add) in [("second-forward", 300_000_000), ("second-back", -300_000_000)] {
        let wall = match add {
            300_000_000 => {
                |b: i64| b + WALL + 300_000_000 * (i64::from(b > 110 * SEC) + i64::from(b > 122 * SEC))
            }
            _ => |b: i64| b + WALL - 300_000_000 * (i64::from(b > 110 * SEC) + i64::from(b > 122 * SEC)),
        };
        let r = judged(&Case { one_way_from: 360, ..Case::of(name, wall) });
        assert!(lines(&r).len() >= 3, "{name}: {:?}", r.clocks);
    }
}

/// Another machine's capture with the device's interface names, and a clock that is nearly right.
#[test]
fn a_name_proves_nothing() {
    let case = |name, wall| Case { names: ["eth0", "eth1"], ..Case::of(name, wall) };
    for case in [case("foreign-3", |b| b + WALL + 3_000), case("foreign-10", |b| b + WALL - 10_000)] {
        let r = judged(&case);
        assert!(r.clocks.iter().all(|c| c.method != clock_method::ON_DUT), "{}", case.name);
    }
}

/// What waits in a queue when the log ends is no step of the clock.
#[test]
fn a_queue_at_the_end_is_no_step() {
    let r = judged(&Case { queued: 20, ..Case::of("queued", |b| b + WALL + 5 * SEC) });
    assert_eq!(lines(&r).len(), r.clocks.len(), "{:?}", r.clocks);
}
