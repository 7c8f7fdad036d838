//! What the radios' clocks of a capture of the air (TSFT, beacons) are worth: a sniffer's clock that is wrong where nothing of the device is heard, and radios' clocks that are none.
//!
//! Recorded matches whose true relation is known, of which those of a long gap are taken away; the sniffer's clock is spoiled there, the radio's is made here. The share of
//! captures and frames inside of their bound is printed, with the radio's clock and without.

use crate::judge;
use crate::recorded::{self, Case, Given, Random, Recorded};
use crate::world::{At, CLIENT, Capture, Dir, LogWriter, R0, R1, ROUTER, SEC, SERVER, icmp, ipv4};
use kpat_integrate::clock::radio::{Stamp, more, radios};
use kpat_integrate::clock::{Estimate, Given as Known, Pair, estimate};

use kpat_model::meta::ClockAnchor;
use kpat_model::{BootNs, Context, WallNs};
use kpat_query::Store;

const MS: f64 = 1e6;
/// Two readings of one kernel's clock are known to this.
const KNOWN_NS: i64 = 60;
const KNOWN: Known = Known { one_way_ns: 1_000_000, resolution_ns: 1 };

/// By the part of the gap, and its length.
type Wall = fn(f64, f64) -> f64;
/// By the true time, and the part of the gap.
type Radio = fn(f64, f64, &mut Random) -> f64;

/// What the sniffer's clock does in the gap, which is from 0 to 1.
const WALLS: &[(&str, Wall)] = &[
    ("nothing", |_, _| 0.0),
    ("set 3 s back", |p, _| if p > 0.5 { -3e9 } else { 0.0 }),
    ("set 40 ms ahead and back", |p, _| if (0.3..0.6).contains(&p) { 40.0 * MS } else { 0.0 }),
    ("set 2 ms ahead", |p, _| if p > 0.4 { 2.0 * MS } else { 0.0 }),
    ("a slew of 300 ppm in its midst", |p, len| (p.clamp(0.3, 0.7) - 0.3) * len * 300e-6),
];

/// What the radio's clock does there: microseconds by the true ones, and the part of the gap.
const RADIOS: &[(&str, Radio)] = &[
    ("runs", |t, _, _| t),
    ("stands still", |_, _, _| 77.0),
    ("32 bits wrap", |t, p, _| if p > 0.5 { t } else { t + 4_294_967_296.0 }),
    ("begins again", |t, p, _| if p > 0.5 { t - 8e9 } else { t }),
    ("jumps by 300 ms", |t, p, _| if p > 0.5 { t + 3e5 } else { t }),
    ("jumps by 7 ms", |t, p, _| if p > 0.5 { t + 7e3 } else { t }),
    ("jumps all the time", |t, _, r| t + r.between(-1e6, 1e6)),
    ("some stamps damaged", |t, _, r| if r.unit() < 0.01 { r.between(1.0, 1e15) } else { t }),
];

/// When a frame was on the air, when the sniffer says so, its interface, and its bytes.
type OnAir = (i64, i64, u32, Vec<u8>);

struct Made {
    given: Given,
    stamps: Vec<Stamp>,
    /// Those that are left.
    pairs: Vec<Pair>,
}

/// `ends`: nothing is heard of the device from the gap on.
fn make(r: &Recorded, wall: Wall, radio: Radio, beacons: bool, ends: bool, seed: u64) -> Made {
    let mut random = Random(seed);
    let n = r.walls.len();
    let (from, to) = (random.between(0.25, 0.4), if ends { 1.0 } else { random.between(0.65, 0.85) });
    let at = |part: f64| r.walls[((n - 1) as f64 * part) as usize];
    let (begin, end) = (at(from), at(to));
    let len = (end - begin) as f64;
    let part = |w: i64| (w - begin) as f64 / len;
    let jitter = random.scale(2e3, 60e3);
    let late: Vec<f64> = (0..n).map(|_| jitter * random.exponential()).collect();
    let ppm = random.between(-30.0, 30.0);
    let clock = r.walls.iter().map(|w| 5e9 + wall(part(*w), len) + ppm * 1e-6 * (*w - r.walls[0]) as f64);
    let case = Case {
        group: "",
        name: String::new(),
        clock: clock.collect(),
        error: late,
        keep: vec![true; n],
        wrong: 0.0,
        swap: 0.0,
        only: None,
        resolution: 1_000,
        seed,
    };
    let given = r.apply(&case);
    let inside = |number: u64| (begin..=end).contains(&r.walls[given.kept[number as usize - 1]]);
    let pairs = given.pairs.iter().filter(|p| !inside(p.number)).copied().collect();
    let (base, drift) = (random.between(1e6, 1e12), random.between(-40e-6, 40e-6));
    let senders: Vec<(f64, f64)> =
        (0..2).map(|_| (random.between(1e6, 1e12), random.between(-20e-6, 20e-6))).collect();
    let mut next = 0.0;
    let stamps = (0..given.stamps.len()).map(|i| {
        let us = (given.boot[i] - given.boot[0]) as f64 / 1e3;
        let p = part(r.walls[given.kept[i]]);
        let tsft = radio(base + us * (1.0 + drift), p, &mut random) + random.exponential();
        let due = beacons && us >= next;
        let sender = due.then(|| {
            next = us + 102_400.0;
            let s = random.below(2);
            ([2, 0, 0, 0, s as u8, 0], (senders[s].0 + us * (1.0 + senders[s].1)) as i64)
        });
        Stamp {
            number: i as u64 + 1,
            interface: 0,
            wall: given.stamps[i],
            tsft_us: Some(tsft as i64),
            sender,
            drawn: i % 3 == 0,
        }
    });
    let stamps = stamps.collect();
    Made { given, stamps, pairs }
}

/// Frames outside of their bound, and half of the middle one's.
fn judge(made: &Made, e: &Estimate) -> (usize, f64) {
    let mut halves: Vec<i64> = Vec::new();
    let outside = |i: &usize| {
        let (low, high) = e.between(*i as u64 + 1, made.given.stamps[*i]);
        let t = made.given.truth[*i];
        (low - t).max(t - high) > KNOWN_NS
    };
    for i in 0..made.given.stamps.len() {
        let (low, high) = e.between(i as u64 + 1, made.given.stamps[i]);
        halves.push((high - low) / 2);
    }
    halves.sort_unstable();
    ((0..made.given.stamps.len()).filter(outside).count(), halves[halves.len() / 2] as f64 / 1e3)
}

#[derive(Default)]
struct Sum {
    cases: usize,
    right: usize,
    frames: usize,
    outside: usize,
    halves: Vec<f64>,
}

impl Sum {
    fn add(&mut self, frames: usize, (outside, half): (usize, f64)) {
        self.cases += 1;
        self.right += usize::from(outside == 0);
        self.frames += frames;
        self.outside += outside;
        self.halves.push(half);
    }

    fn text(&mut self) -> String {
        self.halves.sort_by(f64::total_cmp);
        let inside = 100.0 * (1.0 - self.outside as f64 / self.frames as f64);
        format!(
            "{} of {}, frames {inside:.2} %, {:.0} us",
            self.right,
            self.cases,
            self.halves[self.halves.len() / 2]
        )
    }
}

fn with_radio(m: &Made) -> Option<Estimate> {
    let runs = radios(&m.stamps).runs;
    let pairs =
        [m.pairs.clone(), more(&runs, &m.pairs, KNOWN.one_way_ns).map(|m| m.pairs).unwrap_or_default()]
            .concat();
    estimate(&pairs, &KNOWN)
}

/// One table: of each clock without and with the radio's. Gives the sums with it.
fn table<T: Copy>(
    kinds: &[(&'static str, T)],
    make: impl Fn(&Recorded, T, bool, u64) -> Made,
) -> Vec<(&'static str, Sum, Sum)> {
    let count = std::env::var("CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(3);
    let first: u64 = std::env::var("SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let all = recorded::all();
    kinds
        .iter()
        .map(|(name, kind)| {
            let (mut without, mut with) = (Sum::default(), Sum::default());
            for (r, ends, seed) in all.iter().flat_map(|r| {
                (0..count).flat_map(move |s| [(r, false, first * 1000 + s), (r, true, first * 1000 + s)])
            }) {
                let m = make(r, *kind, ends, seed);
                let n = m.given.stamps.len();
                let Some(bare) = estimate(&m.pairs, &KNOWN) else { continue };
                without.add(n, judge(&m, &bare));
                with.add(n, judge(&m, &with_radio(&m).unwrap()));
            }
            println!("{name}: without {}; with {}", without.text(), with.text());
            (*name, without, with)
        })
        .collect()
}

/// The sniffer's clock is set, steered or slow while nothing of the device is heard, and the radio's runs on.
#[test]
fn clocks_that_are_set_in_a_gap_are_inside() {
    let all = table(WALLS, |r, wall, ends, seed| make(r, wall, RADIOS[0].1, true, ends, seed));
    let (right, cases) = all.iter().fold((0, 0), |s, a| (s.0 + a.2.right, s.1 + a.2.cases));
    println!("{right} of {cases}");
    assert!(right * 100 >= cases * 95, "{right} of {cases}");
    for (name, without, with) in all.iter().skip(1) {
        assert!(without.right * 3 < with.right * 2, "{name}: {} and {}", without.right, with.right);
    }
}

/// The radio's clock is none, and the sniffer's is right: nothing is claimed that was not before.
#[test]
fn radios_that_do_not_run_mislead_nobody() {
    for beacons in [false, true] {
        println!("beacons: {beacons}");
        let all = table(RADIOS, |r, radio, ends, seed| make(r, WALLS[0].1, radio, beacons, ends, seed));
        for (name, without, with) in all {
            assert!(with.right * 100 >= without.right * 97, "{name}: {} and {}", without.right, with.right);
        }
    }
}

/// Radiotap with the radio's clock, and an 802.11 frame.
fn on_air(tsft_ns: i64, frame_control: u16, [to, from]: [[u8; 6]; 2], sequence: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 16, 0, 1, 0, 0, 0];
    out.extend((tsft_ns as u64 / 1_000).to_le_bytes());
    out.extend(frame_control.to_le_bytes());
    out.extend([0, 0]);
    [to, from, from].iter().for_each(|a| out.extend(a));
    out.extend((sequence << 4).to_le_bytes());
    out.extend(body);
    out
}

const ACCESS_POINT: [u8; 6] = [2, 0, 0, 0, 1, 0];
const STATION: [u8; 6] = [2, 0, 0, 0, 2, 0];

/// Two sniffers: one hears what the device forwards, before and after, but for half a minute, in which its clock is set; the other nothing of it, only beacons that the first hears, too, and
/// what the station sends in that time. Both orders of the files.
#[test]
fn sniffers_are_tied_by_beacons() {
    const WALL: i64 = 1_700_000_000 * SEC;
    let far = |at: i64| WALL - 3_600 * SEC + at + at / 12_500 + if at > 125 * SEC { SEC } else { 0 };
    let near = |at: i64| WALL + at - if at > 128 * SEC { 2 * SEC } else { 0 };
    for names in [["near.pcapng", "far.pcapng"], ["far.pcapng", "near.pcapng"]] {
        let dir = Dir::new(&format!("beacons-{}", names[0]));
        let anchor =
            ClockAnchor { boot: BootNs(99 * SEC), wall: WallNs(WALL + 99 * SEC), uncertainty_ns: 500 };
        let mut log =
            LogWriter::create(&dir.path("x.kbl"), ROUTER, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
        let mut random = Random(5);
        // What each sniffer wrote: when, and of which channel.
        let mut heard: [Vec<OnAir>; 2] = [Vec::new(), Vec::new()];
        let radio = |of: usize, at: i64| {
            if of == 0 { 7 * SEC + at + at / 50_000 } else { 999 * SEC + at - at / 40_000 }
        };
        let mut frame =
            |of: usize, at: i64, interface: u32, fc: u16, who: [[u8; 6]; 2], sequence: u16, body: &[u8]| {
                let late = (random.exponential() * 20e3) as i64;
                let wall = if of == 0 { near(at) } else { far(at) };
                heard[of].push((at, wall + late, interface, on_air(radio(of, at), fc, who, sequence, body)));
            };
        let (c, s) = ([10, 0, 0, 2], [198, 51, 100, 7]);
        let mut delays = Random(6);
        for i in 0..500i64 {
            let at = 100 * SEC + i * 50_000_000 + if i > 400 { 30 * SEC } else { 0 };
            let packet = i as u64 + 1;
            let body = icmp(8, 77, i as u16, 5);
            let ip = |ttl| ipv4(c, s, (i * 7) as u16 | 1, 1, ttl, 8, &body);
            let air = |ttl| [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip(ttl)].concat();
            let known = at + 8_000 + (delays.exponential() * 20e3) as i64;
            let sent = known + 21_000 + (delays.exponential() * 20e3) as i64;
            frame(0, at, 0, 0x0108, [R0, CLIENT], i as u16, &air(64));
            frame(0, sent, 0, 0x0208, [SERVER, R1], i as u16, &air(63));
            let soft = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet };
            log.print(soft, known + 100, 2, &crate::world::ether(R0, CLIENT, 0x800, &ip(64)), 42, (0, 0));
            log.call(soft, "ip_rcv", known + 1_000, known + 3_000);
            log.call(soft, "ip_forward", known + 4_000, known + 20_000);
            log.print(soft, known + 14_500, 3, &crate::world::ether(SERVER, R1, 0x800, &ip(63)), 42, (0, 0));
            log.call(soft, "dev_hard_start_xmit", known + 15_000, known + 18_000);
            log.call(soft, "__dev_queue_xmit", known + 14_000, known + 19_000);
            log.call(soft, "napi_gro_receive", known, known + 26_000);
            log.free(soft, known + 40_000);
        }
        for i in 0..550i64 {
            let at = 99 * SEC + i * 102_400_000;
            let time = ((at - 50 * SEC + at / 90_000) / 1_000) as u64;
            for of in 0..2 {
                frame(of, at, 0, 0x0080, [[0xff; 6], ACCESS_POINT], i as u16, &time.to_le_bytes());
            }
            // Probe requests.
            frame(1, at + 51_000_000, 0, 0x0040, [[0xff; 6], STATION], i as u16, &[0, 0]);
        }
        log.close();
        for (name, mut frames) in ["near.pcapng", "far.pcapng"].into_iter().zip(heard.clone()) {
            let mut cap = Capture::new(&dir.path(name), &["mon0"]);
            (cap.as_given, cap.link_type) = (true, 127);
            frames.sort_by_key(|f| f.0);
            frames.into_iter().for_each(|(_, wall, interface, data)| {
                let len = data.len() as u32;
                cap.frame(wall, interface, data, len, 0);
            });
            cap.close();
        }
        let (_, out) = judge::run(&dir, &names);
        let store = Store::open(&out).unwrap();
        for (of, name) in ["near.pcapng", "far.pcapng"].into_iter().enumerate() {
            let capture = names.iter().position(|n| *n == name).unwrap() as i32;
            let mut when: Vec<i64> = heard[of].iter().map(|f| f.0).collect();
            when.sort_unstable();
            let (mut inside, mut bounds) = (0, Vec::new());
            for (i, at) in when.iter().enumerate() {
                let f = store.frame(capture, i as i64 + 1).unwrap();
                let (boot, bound) = (f.frame.boot_ns.expect("its clock is known"), f.bound_ns.unwrap());
                // The stamp of a frame is late by itself: 99 % by less than 100 us.
                inside += usize::from((boot - at).abs() <= bound + 100_000);
                bounds.push(bound);
            }
            bounds.sort_unstable();
            let share = |part: f64| bounds[(bounds.len() as f64 * part) as usize] / 1_000;
            let (half, most) = (share(0.5), share(0.95));
            println!(
                "{name}, {names:?}: {inside} of {} frames, bounds {half} us, of 95 % {most} us",
                when.len()
            );
            // All but those beside the moment at which the clock was set.
            assert!(most < 1_000, "{name}: {most} us");
            assert!(inside * 100 >= when.len() * 98, "{name}: {inside} of {}", when.len());
        }
    }
}
