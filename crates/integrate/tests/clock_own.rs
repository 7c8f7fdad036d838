//! Which captures are taken for the device's own, on a slow host whose edges are tens of microseconds apart.
//!
//! Of one kernel, so every stamp's true relation is known; the neighbours' are moved, steered and blurred as another machine's clock
//! would be.

use crate::recorded;

use kpat_integrate::clock::{Pair, Side, own};
use kpat_model::meta::ClockAnchor;
use kpat_model::{BootNs, WallNs};
use recorded::{Random, Tapped, cut, tapped};

const US: i64 = 1_000;

fn anchor(t: &Tapped) -> ClockAnchor {
    let (boot, wall, uncertainty_ns) = t.anchor;
    ClockAnchor { boot: BootNs(boot), wall: WallNs(wall), uncertainty_ns }
}

/// As a sniffer at the other end of a wire of so many ns would have stamped it: before the first edge, behind the last.
fn behind_a_wire(c: &Tapped, wire: i64) -> Vec<Pair> {
    let offset = c.offset();
    let stamp = |p: &Pair| match p.side {
        Side::Received if p.tap.0 != 0 => p.at.min(p.tap.0) - wire,
        Side::Received => p.at - wire,
        _ => p.tap.1.max(p.at) + wire,
    };
    c.pairs.iter().map(|p| Pair { wall: stamp(p) - offset, ..*p }).collect()
}

/// As a sniffer on the other side of a bridge would: what comes in here it has seen go, and the other way round.
fn beyond_the_host(c: &Tapped, way: i64) -> Vec<Pair> {
    let offset = c.offset();
    let stamp = |p: &Pair| if p.side == Side::Received { p.tap.1.max(p.at) + way } else { p.tap.0 - way };
    c.pairs.iter().map(|p| Pair { wall: stamp(p) - offset, ..*p }).collect()
}

/// The same, where of what came in no second edge is known.
fn one_edge(pairs: &[Pair]) -> Vec<Pair> {
    let tap = |p: &Pair| if p.side == Side::Received { (0, 0) } else { p.tap };
    pairs.iter().map(|p| Pair { tap: tap(p), ..*p }).collect()
}

/// Other clocks: by how much a stamp is late, by frame.
fn errors(random: &mut Random, n: usize, kind: usize) -> Vec<i64> {
    let walk = random.normal() * 200.0;
    let at = |i: usize| i as f64 / n as f64;
    let mut each = |f: &mut dyn FnMut(&mut Random, usize) -> f64| -> Vec<i64> {
        (0..n).map(|i| f(random, i) as i64).collect()
    };
    match kind {
        0 => each(&mut |_, _| 0.0),
        // Disciplined by PTP: wanders by some hundred ns.
        1 => each(&mut |r, i| r.normal() * 30.0 + walk * (9.0 * at(i)).sin()),
        2 => each(&mut |r, _| r.normal() * 3e3),
        3 => each(&mut |r, _| r.normal() * 30e3),
        4 => each(&mut |r, _| r.between(-100e3, 100e3)),
        5 => each(&mut |r, _| r.exponential() * 10e3),
        6 => each(&mut |r, _| r.exponential() * 100e3),
        _ => each(&mut |r, _| r.exponential() * 500e3),
    }
}

const KINDS: usize = 8;

/// Stamps as files of nanoseconds and of microseconds have them: of the latter the rest is cut off.
const RESOLUTIONS: [i64; 2] = [1, US];

#[test]
fn captures_at_the_slow_devices_are_proved() {
    for c in tapped().iter().filter(|c| c.is_own()) {
        let truth = c.offset();
        let known = c.anchor.2;
        for (part, resolution) in [c.pairs.len(), 80].into_iter().flat_map(|n| RESOLUTIONS.map(|r| (n, r))) {
            let pairs = &cut(&c.pairs[..part.min(c.pairs.len())], resolution);
            let found = own(pairs, &[anchor(c)], resolution)
                .unwrap_or_else(|| panic!("{}, {part}, stamps of {resolution} ns: not proved", c.name));
            let mut widest = 0;
            for p in pairs {
                let (low, high) = found.between(p.number, p.wall);
                assert!(low - known <= truth && truth <= high + known, "{}: {low} {truth} {high}", c.name);
                widest = widest.max(high - low);
            }
            println!("{}, {} matches: proved, ± {:.1} us", c.name, pairs.len(), widest as f64 / 2e3);
        }
    }
}

/// Whatever the clock of a capture behind a wire shows, it is not taken for the device's own.
#[test]
fn no_capture_behind_a_wire_is_proved() {
    let mut random = Random(77);
    let all = tapped();
    let foreign = all.iter().filter(|c| !c.is_own()).map(|c| (c, c.pairs.clone(), c.name.clone()));
    let short = all.iter().filter(|c| c.is_own()).flat_map(|c| {
        [500, 2_000, 20_000]
            .map(|wire| (c, behind_a_wire(c, wire), format!("{} by a wire of {wire} ns", c.name)))
    });
    let beyond = all.iter().filter(|c| c.is_own()).flat_map(|c| {
        [5_000, 50_000].into_iter().flat_map(move |way| {
            let (both, name) = (beyond_the_host(c, way), format!("{} beyond, {way} ns", c.name));
            [(c, one_edge(&both), format!("{name}, one edge")), (c, both, name)]
        })
    });
    let mut tried = 0;
    for (c, pairs, name) in foreign.chain(short).chain(beyond) {
        for kind in 0..KINDS {
            for us in [0, 3, -3, 10, -10, 50, -50, 100, -100, 300, -300, 1_000, -1_000] {
                let late = errors(&mut random, pairs.len(), kind);
                let moved: Vec<Pair> =
                    pairs.iter().zip(&late).map(|(p, e)| Pair { wall: p.wall + us * US + e, ..*p }).collect();
                for (part, resolution) in
                    [moved.len(), 80].into_iter().flat_map(|n| RESOLUTIONS.map(|r| (n, r)))
                {
                    let stamped = cut(&moved[..part.min(moved.len())], resolution);
                    let found = own(&stamped, &[anchor(c)], resolution);
                    assert!(
                        found.is_none(),
                        "{name}, moved by {us} us, error {kind}, {part} matches, stamps of {resolution} ns"
                    );
                    tried += 1;
                }
            }
        }
    }
    println!("{tried} captures behind a wire, none taken for the device's own");
}

/// The device's own stamps moved afterwards: refused, or the relation of what the file shows is within the bound all the same.
#[test]
fn a_moved_capture_is_refused_or_in_its_bound() {
    let (mut tried, mut accepted) = (0, 0);
    for c in tapped().iter().filter(|c| c.is_own()) {
        for us in -400..=400 {
            let pairs: Vec<Pair> = c.pairs.iter().map(|p| Pair { wall: p.wall + us * US, ..*p }).collect();
            tried += 1;
            let Some(found) = own(&pairs, &[anchor(c)], 1) else { continue };
            accepted += 1;
            let truth = c.offset() - us * US;
            for p in &pairs {
                let (low, high) = found.between(p.number, p.wall);
                let known = c.anchor.2;
                assert!(low - known <= truth && truth <= high + known, "{} moved by {us} us", c.name);
            }
        }
    }
    println!("{tried} moved, {accepted} taken, each within its bound");
}
