//! Do two groups of runs differ, and where? A permutation test over the runs, of all rows at once.
//!
//! Calls of one run share its machine, its caches and its neighbours, so a thousand calls of one run are one observation, not
//! a thousand. If A and B are the same, any other division of the runs among the two sides was as likely; so the largest
//! studentised difference of any row is taken for every division, and a row differs where its own is beyond what 97 %
//! of the divisions reach in their largest (Westfall and Young 1993, single step). That holds the chance of one or more false alarms
//! in the whole table at 3 %, whatever the distribution and however the rows depend on each other. Rejected: Welch's
//! test per row with a correction for their number, which assumes a normal distribution in the very tail where four runs
//! tell nothing of it.

/// Chance of any false alarm in one comparison: the nearest below 5 % that four runs a side can have (2 of 70 divisions).
const ALARM: f64 = 0.03;
/// Divisions that are tried one by one; of more so many are drawn.
const MOST: usize = 10_000;
/// Part of the rows' middle deviation that is added to each: a row that happens to repeat itself nearly exactly is no proof.
const FUDGE: f64 = 0.25;
/// And at least so much, of logarithms: on a deterministic machine most rows repeat themselves to the nanosecond.
const LEAST: f64 = 0.002;

/// A row's difference, B less A, and half of its interval; the intervals hold for all rows together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tested {
    pub diff: f64,
    pub half: f64,
}

/// Can so many runs show a difference at all?
pub(super) fn enough(a: usize, b: usize) -> bool {
    let mirrored = if a == b { 2.0 } else { 1.0 };
    a >= 2 && b >= 2 && mirrored / divisions(a + b, a) <= ALARM
}

/// Ways to choose `a` of `n`.
fn divisions(n: usize, a: usize) -> f64 {
    (0..a).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}

/// `rows`: of each row a value per run, those of A first. `None`: too few runs.
pub(super) fn test(rows: &[Vec<f64>], a: usize) -> Option<Vec<Tested>> {
    let n = rows.first().map_or(0, Vec::len);
    if !enough(a, n - a.min(n)) {
        return None;
    }
    let mut deviations: Vec<f64> = rows.iter().map(|r| deviation(r)).collect();
    deviations.sort_by(f64::total_cmp);
    let floor = (FUDGE * deviations[deviations.len() / 2]).max(LEAST);
    let largest = |side: &[bool]| {
        rows.iter().map(|r| studentised(r, side, floor)).fold(0.0, |m: f64, (d, e)| m.max((d / e).abs()))
    };
    let mut all = Vec::new();
    let first: Vec<bool> = (0..n).map(|i| i < a).collect();
    if divisions(n, a) <= MOST as f64 {
        let mut side = first.clone();
        loop {
            all.push(largest(&side));
            if !next(&mut side) {
                break;
            }
        }
    } else {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut side = first.clone();
        all.push(largest(&side));
        while all.len() < MOST {
            random.shuffle(&mut side);
            all.push(largest(&side));
        }
    }
    all.sort_by(|x, y| y.total_cmp(x));
    let critical = all[(all.len() as f64 * ALARM) as usize];
    let tested = |r: &Vec<f64>| {
        let (diff, error) = studentised(r, &first, floor);
        // What just reaches the critical value is not beyond it.
        Tested { diff, half: critical * error * (1.0 + 1e-9) }
    };
    Some(rows.iter().map(tested).collect())
}

/// Difference of the means and its error, of one division: those with `side` are A.
fn studentised(row: &[f64], side: &[bool], floor: f64) -> (f64, f64) {
    let (mut n, mut sum) = ([0.0; 2], [0.0; 2]);
    for (v, a) in row.iter().zip(side) {
        n[usize::from(!a)] += 1.0;
        sum[usize::from(!a)] += v;
    }
    let mean = [sum[0] / n[0], sum[1] / n[1]];
    let squares: f64 = row.iter().zip(side).map(|(v, a)| (v - mean[usize::from(!a)]).powi(2)).sum();
    let pooled = (squares / (n[0] + n[1] - 2.0)).sqrt();
    (mean[1] - mean[0], (pooled + floor) * (1.0 / n[0] + 1.0 / n[1]).sqrt())
}

fn deviation(row: &[f64]) -> f64 {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// The next division in order, `true` before `false` first; false: that was the last.
fn next(side: &mut [bool]) -> bool {
    // The rightmost `true` that has a `false` behind it moves there; those behind it come back.
    let Some(at) = side.windows(2).rposition(|w| w[0] && !w[1]) else { return false };
    side.swap(at, at + 1);
    side[at + 2..].sort_by(|x, y| y.cmp(x));
    true
}

/// xorshift64*.
pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
    }

    fn shuffle(&mut self, side: &mut [bool]) {
        for i in (1..side.len()).rev() {
            let k = self.below(i + 1);
            side.swap(i, k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roughly normal: the sum of twelve uniform ones.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
    }

    #[test]
    fn every_division_comes_once() {
        let mut side = vec![true, true, true, false, false, false, false];
        let mut seen = std::collections::BTreeSet::from([side.clone()]);
        while next(&mut side) {
            assert_eq!(side.iter().filter(|s| **s).count(), 3);
            assert!(seen.insert(side.clone()));
        }
        assert_eq!(seen.len(), 35);
        assert_eq!(divisions(7, 3), 35.0);
    }

    #[test]
    fn how_many_runs_it_takes() {
        assert!(!enough(1, 1) && !enough(1, 50) && !enough(3, 3) && !enough(2, 5));
        assert!(enough(4, 4) && enough(3, 4) && enough(2, 7) && enough(10, 10));
    }

    /// Rows that depend on each other, with few runs and a heavy tail: one or more alarms in 3 of 100 tables; and a
    /// difference of five deviations in one of twelve rows is found.
    #[test]
    fn alarms_are_as_rare_as_it_says() {
        let mut random = Random(3);
        for (a, b) in [(4, 4), (5, 4)] {
            let tables = 200;
            let (mut alarms, mut found, mut others) = (0, 0, 0);
            for _ in 0..tables {
                let machine: Vec<f64> = (0..a + b).map(|_| normal(&mut random)).collect();
                let mut rows: Vec<Vec<f64>> = (0..12)
                    .map(|_| {
                        machine
                            .iter()
                            .map(|m| {
                                let tail = if random.below(20) == 0 { 8.0 } else { 1.0 };
                                m + tail * normal(&mut random)
                            })
                            .collect()
                    })
                    .collect();
                let differs = |t: &Tested| t.diff.abs() > t.half;
                alarms += u32::from(test(&rows, a).unwrap().iter().any(differs));
                for (i, v) in rows[7].iter_mut().enumerate() {
                    *v = normal(&mut random) / 2.0 + if i >= a { 10.0 } else { 0.0 };
                }
                let after = test(&rows, a).unwrap();
                found += u32::from(differs(&after[7]));
                others += u32::from(after.iter().enumerate().any(|(i, t)| i != 7 && differs(t)));
            }
            // 3 %, and three deviations of a count of so many.
            let most = tables * 3 / 100 + 7;
            assert!(alarms <= most && others <= most, "{a} and {b}: {alarms} and {others} of {tables}");
            assert!(found >= tables * 9 / 10, "{a} and {b}: found {found} of {tables}");
        }
    }

    #[test]
    fn what_does_not_vary_is_no_alarm() {
        let rows = vec![vec![2.0; 8], vec![1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.1]];
        assert!(test(&rows, 4).unwrap().iter().all(|t| t.diff.abs() <= t.half));
        assert_eq!(test(&rows, 1), None);
        assert_eq!(test(&[], 0), None);
    }
}
