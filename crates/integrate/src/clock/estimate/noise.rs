//! How much the sniffer's stamps scatter, from the data alone and whatever their distribution.
//!
//! What a match shows is delay plus or minus the stamp's error, two independent parts. Of a sum of independent parts each part is
//! at most as spread as the sum (the concentration function, Lévy 1937: `Q(X + Y; l) <= min(Q(X; l), Q(Y; l))`): the shortest window
//! that holds 90 % of one direction's residuals is no shorter than the shortest one that holds 90 % of the stamps' errors. So the
//! steadier direction's window bounds the jitter from above.

use super::points::{Pair, Point, Points, quantile};

/// Matches of one direction in a row within which drift can be taken out and a window of 90 % means something.
const BLOCK: usize = 64;
const LEAST: usize = 12;
/// Share of the stamps whose errors are within one window around 0.
const SHARE: f64 = 0.9;
/// Of a block all but the furthest.
const NEARLY_ALL: f64 = 0.98;
/// The scatter of the packets' delays has a tail of its own: so much of what is seen is taken to be the stamps'.
const OF_STAMPS: f64 = 0.25;
/// Blocks that are measured at most.
const MOST: usize = 2_000;
/// Reading two clocks, and the instructions between the kernel's edge and the stamp.
pub(super) const FLOOR_NS: f64 = 50.0;
/// Scatter that is assumed where too few matches show any.
pub(super) const ASSUMED_NS: f64 = 100_000.0;

#[derive(Clone, Debug)]
pub(super) struct Noise {
    /// 90 % of the stamps' errors lie in a window no wider than this.
    pub width: f64,
    /// The same of nearly all of a block.
    whole: f64,
    /// Measured, not assumed.
    pub known: bool,
    /// What may be noise before it is a step: too few matches to measure may scatter more than is assumed.
    pub doubt: f64,
    /// By the number of a frame near: how much more than usual the stamps scatter there.
    local: Vec<(f64, f64)>,
}

impl Noise {
    pub fn of(points: &Points, resolution: i64, batch: f64) -> Noise {
        let sides: Vec<Blocks> = [true, false].into_iter().filter_map(|r| Blocks::of(points, r)).collect();
        let least = |f: fn(&Blocks) -> f64| sides.iter().map(f).fold(f64::INFINITY, f64::min);
        let res = resolution as f64;
        let measured = if sides.is_empty() { ASSUMED_NS } else { least(|b| b.usual) };
        let width = if resolution > 1 {
            // Truncation alone makes a window of its share of a step; stamps that keep step with the traffic make less.
            (measured - SHARE * res).max(0.5 * measured.min(res)).max(FLOOR_NS)
        } else {
            measured.max(FLOOR_NS)
        };
        let width = width.max(batch);
        let longer = if sides.is_empty() { 1.0 } else { least(|b| b.usual_whole) / measured.max(1.0) };
        let whole = width * longer.max(1.0);
        let (usual, usual_half) = (least(|b| b.usual).max(FLOOR_NS), least(|b| b.usual_half).max(FLOOR_NS));
        let mut at: Vec<f64> = sides.iter().flat_map(|b| b.at.iter().copied()).collect();
        at.sort_unstable_by(f64::total_cmp);
        let local = |n: f64| {
            let of = |f: fn(&Blocks) -> &Vec<f64>| {
                sides.iter().map(|b| between(&b.at, f(b), n)).fold(f64::INFINITY, f64::min)
            };
            // A step in a block leaves the larger part in the window of the half; two kinds of stamps only widen the whole one.
            (n, (of(|b| &b.half) / usual_half).min(of(|b| &b.full) / usual))
        };
        // Few blocks do not tell a noisy time from a step.
        let enough = sides.iter().all(|b| b.at.len() >= 5);
        let local = if enough { at.into_iter().map(local).collect() } else { Vec::new() };
        let doubt = if sides.is_empty() { seen(points).max(width) } else { width };
        Noise { width, whole, known: !sides.is_empty(), doubt, local }
    }

    /// How far the most extreme of so many stamps may be off, if what is behind the window of 90 % falls off as steeply as it is seen to within a block:
    /// by as much again each time that there are so many times more.
    pub fn tail(&self, of: usize) -> f64 {
        let (behind, in_block) = ((1.0 - SHARE) * of as f64, (1.0 - SHARE) * BLOCK as f64);
        let times = (behind.max(1.0).ln() / in_block.ln()).max(1.0);
        self.width + OF_STAMPS * times * (self.whole - self.width)
    }

    /// What was stamped in a noisy time says less: by how much its bound moves away.
    pub fn extra(&self, number: u64) -> f64 {
        if self.local.is_empty() {
            return 0.0;
        }
        let n = number as f64;
        let i = self.local.partition_point(|l| l.0 <= n);
        let ratio = match (i.checked_sub(1).map(|i| self.local[i]), self.local.get(i)) {
            (Some(a), Some(b)) if b.0 > a.0 => a.1 + (b.1 - a.1) * (n - a.0) / (b.0 - a.0),
            (Some(a), _) => a.1,
            (None, b) => b.map_or(1.0, |b| b.1),
        };
        // More than that is a step of the clock, not noise.
        if ratio > 2.0 && ratio < 30.0 { 1.5 * self.width * (ratio - 1.0) } else { 0.0 }
    }
}

/// What few matches scatter in the steadier direction. It may be a step as well, which so few cannot tell.
fn seen(points: &Points) -> f64 {
    const LEAST: usize = 4;
    let seen = [true, false].into_iter().filter_map(|received| {
        let rows = points.of(received, |p| !p.weak);
        let mut rows: Vec<(f64, f64)> = rows.iter().map(|i| (points.all[*i].x, points.all[*i].z)).collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        (rows.len() >= LEAST).then(|| windows(&rows, [SHARE])[0])
    });
    seen.reduce(f64::min).unwrap_or(0.0)
}

/// Stamps that several frames bear at once are of batches: the shortest time from one to the next, which is as long as their errors
/// differ. 0: none. Their errors are alike from frame to frame, so no window of neighbours shows them.
pub(super) fn batch(pairs: &[Pair], resolution: i64) -> f64 {
    let mut stamps: Vec<(u64, i64)> = pairs.iter().map(|p| (p.number, p.wall)).collect();
    stamps.sort_unstable();
    stamps.dedup_by_key(|s| s.0);
    let steps: Vec<i64> = stamps.windows(2).map(|w| w[1].1 - w[0].1).collect();
    let equal = steps.iter().filter(|s| **s == 0).count();
    if equal * 50 < steps.len() || equal < 8 {
        return 0.0;
    }
    let mut apart: Vec<f64> = steps.iter().filter(|s| **s > 0).map(|s| *s as f64).collect();
    let shortest = if apart.is_empty() { 0.0 } else { quantile(&mut apart, 0.02) };
    if shortest > 4.0 * resolution as f64 { shortest.min(ASSUMED_NS * 10.0) } else { 0.0 }
}

/// Windows of one direction, by block.
struct Blocks {
    at: Vec<f64>,
    full: Vec<f64>,
    half: Vec<f64>,
    /// Queues and load only widen a block, so the narrower ones show the stamps.
    usual: f64,
    usual_half: f64,
    usual_whole: f64,
}

impl Blocks {
    fn of(points: &Points, received: bool) -> Option<Blocks> {
        let rows = points.of(received, |p| !p.weak);
        let size = BLOCK.min(rows.len());
        if size < LEAST {
            return None;
        }
        let stride = size * (rows.len() / size / MOST).max(1);
        let (mut at, mut full, mut half, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut from = 0;
        while from + size <= rows.len() {
            let mut block: Vec<&Point> = rows[from..from + size].iter().map(|i| &points.all[*i]).collect();
            at.push(block[size / 2].number as f64);
            block.sort_by(|a, b| a.x.total_cmp(&b.x));
            let block: Vec<(f64, f64)> = block.iter().map(|p| (p.x, p.z)).collect();
            let [of_share, of_half, of_whole] = windows(&block, [SHARE, 0.5, NEARLY_ALL]);
            full.push(of_share);
            half.push(of_half);
            whole.push(of_whole);
            from += stride;
        }
        let (usual, usual_half) = (quantile(&mut full.clone(), 0.25), quantile(&mut half.clone(), 0.25));
        let usual_whole = quantile(&mut whole, 0.25);
        Some(Blocks { at, full: smooth(&full), half: smooth(&half), usual, usual_half, usual_whole })
    }
}

/// The middle of each with its neighbours.
fn smooth(v: &[f64]) -> Vec<f64> {
    if v.len() < 3 {
        return v.to_vec();
    }
    let near = |i: usize| {
        let from = i.saturating_sub(1).min(v.len() - 3);
        let mut three = [v[from], v[from + 1], v[from + 2]];
        three.sort_unstable_by(f64::total_cmp);
        three[1]
    };
    (0..v.len()).map(near).collect()
}

/// Linearly between, at the ends as there.
fn between(at: &[f64], values: &[f64], x: f64) -> f64 {
    let i = at.partition_point(|a| *a <= x);
    if i == 0 {
        return values[0];
    }
    if i == at.len() {
        return values[i - 1];
    }
    let share = (x - at[i - 1]) / (at[i] - at[i - 1]);
    values[i - 1] + (values[i] - values[i - 1]) * share
}

/// Length of the shortest window that holds so many of the sorted values.
pub(super) fn shortest(sorted: &[f64], need: usize) -> f64 {
    let need = need.clamp(1, sorted.len());
    (0..=sorted.len() - need).map(|i| sorted[i + need - 1] - sorted[i]).fold(f64::INFINITY, f64::min)
}

/// Shortest windows of shares of the values, of each the drift within taken out by the slope that makes it shortest. `rows`: by time.
fn windows<const N: usize>(rows: &[(f64, f64)], shares: [f64; N]) -> [f64; N] {
    let mut turned = Turned::new(rows);
    let span = rows[rows.len() - 1].0 - rows[0].0;
    let mut firsts = vec![0.0];
    if span > 0.0 {
        let (a, b) = rows.split_at(rows.len() / 2);
        let middle = |part: &[(f64, f64)]| {
            let mean = part.iter().map(|r| r.0).sum::<f64>() / part.len() as f64;
            (mean, quantile(&mut part.iter().map(|r| r.1).collect::<Vec<_>>(), 0.5))
        };
        let ((xa, za), (xb, zb)) = (middle(a), middle(b));
        let first = (zb - za) / (xb - xa).max(1.0);
        firsts.extend([first, first * 0.5, first * 1.5].into_iter().filter(|s| s.abs() <= 2e-3));
    }
    shares.map(|share| {
        let need = ((share * rows.len() as f64).ceil() as usize).max(2);
        let (mut best, mut slope) = (turned.shortest(firsts[0], need), firsts[0]);
        for s in &firsts[1..] {
            let w = turned.shortest(*s, need);
            if w < best {
                (best, slope) = (w, *s);
            }
        }
        if span <= 0.0 {
            return best;
        }
        let mut step = (best / span).max(1e-9);
        for _ in 0..12 {
            let (down, up) = (turned.shortest(slope - step, need), turned.shortest(slope + step, need));
            if down < best && down <= up {
                (best, slope) = (down, slope - step);
            } else if up < best {
                (best, slope) = (up, slope + step);
            } else {
                step /= 2.0;
            }
        }
        best
    })
}

/// So few ends of windows are found without putting all values in order.
const FEW: usize = 16;

/// Values from which slopes are taken away.
struct Turned {
    /// Time from the first one, and value.
    rows: Vec<(f64, f64)>,
    /// Values as whole numbers in the same order, which [`f64::total_cmp`] makes anew for each comparison.
    keys: Vec<i64>,
}

impl Turned {
    fn new(rows: &[(f64, f64)]) -> Turned {
        Turned { rows: rows.iter().map(|r| (r.0 - rows[0].0, r.1)).collect(), keys: Vec::new() }
    }

    /// As [`shortest`] of the values less the slope. Only those that a window can begin or end with are put in order.
    fn shortest(&mut self, slope: f64, need: usize) -> f64 {
        // Of a negative one all bits but the sign; done twice, it is the number again.
        let turned = |bits: i64| bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed();
        let keys = &mut self.keys;
        keys.clear();
        keys.extend(self.rows.iter().map(|r| turned((r.1 - slope * r.0).to_bits().cast_signed())));
        let len = keys.len();
        let windows = len - need.clamp(1, len) + 1;
        let value = |key: i64| f64::from_bits(turned(key).cast_unsigned());
        let shortest = |least: &[i64], greatest: &[i64]| {
            let ends = least.iter().zip(greatest);
            ends.map(|(a, b)| value(*b) - value(*a)).fold(f64::INFINITY, f64::min)
        };
        if windows <= FEW {
            let (mut least, mut greatest) = ([i64::MAX; FEW], [i64::MIN; FEW]);
            keys.iter().for_each(|key| keep(&mut least[..windows], *key, |a, b| a < b));
            keys.iter().for_each(|key| keep(&mut greatest[..windows], *key, |a, b| a > b));
            greatest[..windows].reverse();
            return shortest(&least[..windows], &greatest[..windows]);
        }
        sort(keys, &mut self.rows);
        shortest(&keys[..windows], &keys[len - windows..])
    }
}

/// Puts rows in order of their keys. The next slope is near this one, and finds them nearly in order.
fn sort(keys: &mut [i64], rows: &mut [(f64, f64)]) {
    for i in 1..keys.len() {
        let (key, row) = (keys[i], rows[i]);
        let mut at = i;
        while at > 0 && keys[at - 1] > key {
            (keys[at], rows[at]) = (keys[at - 1], rows[at - 1]);
            at -= 1;
        }
        (keys[at], rows[at]) = (key, row);
    }
}

/// Puts it among the first, in their order, and the last of them out; if it is one.
fn keep(first: &mut [i64], key: i64, before: impl Fn(i64, i64) -> bool) {
    let mut at = first.len();
    while at > 0 && before(key, first[at - 1]) {
        if at < first.len() {
            first[at] = first[at - 1];
        }
        at -= 1;
    }
    if at < first.len() {
        first[at] = key;
    }
}

/// Marks matches far outside of their neighbours on the side that bounds the clock: wrong ones, very late stamps. Several in a row
/// are none of these but perhaps a step. Gives how many.
pub(super) fn mark_outliers(points: &mut Points, width: f64) -> usize {
    let mut dropped = 0;
    for received in [true, false] {
        let rows = points.of(received, |_| true);
        let n = rows.len();
        if n < 20 {
            continue;
        }
        const HALF: usize = 32;
        let (mut outside, mut tested) = (vec![0u8; n], vec![0u8; n]);
        let mut start = 0;
        loop {
            let end = n.min(start + 2 * HALF);
            let from = end.saturating_sub(2 * HALF);
            let mut v: Vec<f64> = rows[from..end].iter().map(|i| points.all[*i].outward()).collect();
            v.sort_unstable_by(f64::total_cmp);
            let (low, middle) = (v[(0.15 * v.len() as f64) as usize], v[v.len() / 2]);
            let limit = low - (3.0 * (middle - low)).max(4.0 * width);
            for i in from..end {
                tested[i] += 1;
                outside[i] += u8::from(points.all[rows[i]].outward() < limit);
            }
            if end == n {
                break;
            }
            start += HALF;
        }
        let out = |i: usize| tested[i] > 0 && outside[i] >= tested[i];
        let mut i = 0;
        while i < n {
            let run = (i..n).take_while(|j| out(*j)).count();
            // At an end nothing shows that the clock comes back.
            if (1..4).contains(&run) && i > 0 && i + run < n {
                rows[i..i + run].iter().for_each(|j| points.all[*j].ok = false);
                dropped += run;
            }
            i += run.max(1);
        }
    }
    dropped
}
