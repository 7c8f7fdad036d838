//! How values are spread: a histogram whose classes are narrow enough to read medians and shares from it.

/// Of values from here on 64 classes lie between one power of two and the next; each value below has its own.
const FINE: i64 = 64;

/// Values that are nearly alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    place: u16,
    count: u64,
    min: i64,
    max: i64,
}

/// Sum, least, greatest, and counts of values that differ by less than 1/64. Memory: the classes that have any.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    pub count: u64,
    pub sum: i128,
    pub min: i64,
    pub max: i64,
    classes: Vec<Class>,
    /// Where the last value went: the next mostly goes there, too.
    last: usize,
}

fn place(value: i64) -> u16 {
    if value < FINE {
        return value as u16;
    }
    let power = value.ilog2();
    let within = (value >> (power - FINE.ilog2())) - FINE;
    ((i64::from(power - FINE.ilog2()) + 1) * FINE + within) as u16
}

impl Spread {
    /// `weight` values alike.
    pub fn add(&mut self, value: i64, weight: u64) {
        let value = value.max(0);
        if weight == 0 {
            return;
        }
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += weight;
        self.sum += i128::from(value) * i128::from(weight);
        let place = place(value);
        if self.classes.get(self.last).is_none_or(|c| c.place != place) {
            let found = self.classes.binary_search_by_key(&place, |c| c.place);
            self.last = found.unwrap_or_else(|at| {
                self.classes.insert(at, Class { place, count: 0, min: value, max: value });
                at
            });
        }
        let c = &mut self.classes[self.last];
        c.count += weight;
        (c.min, c.max) = (c.min.min(value), c.max.max(value));
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value below which this share lies, exact to 1/64 of it; exact where all values of its class are alike.
    pub fn quantile(&self, share: f64) -> Option<i64> {
        let want = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut before = 0;
        for c in &self.classes {
            if before + c.count >= want {
                // Those of one class are taken as evenly apart.
                let rank = (want - before - 1) as f64 / (c.count - 1).max(1) as f64;
                return Some(c.min + ((c.max - c.min) as f64 * rank).round() as i64);
            }
            before += c.count;
        }
        None
    }

    /// How many have 2^(i-1) to below 2^i at place i; the first are those below 1.
    pub fn powers(&self) -> Vec<u64> {
        let mut out = Vec::new();
        for c in &self.classes {
            let power = (64 - c.min.leading_zeros()) as usize;
            if out.len() <= power {
                out.resize(power + 1, 0);
            }
            out[power] += c.count;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_in_sixty_four() {
        let mut s = Spread::default();
        assert_eq!((s.mean(), s.quantile(0.5)), (None, None));
        // In no order, as values come.
        let values = |i: i64| (i * 7919 % 100_003) * (i * 7919 % 100_003) + i % 3;
        (1..=100_000).for_each(|i| s.add(values(i), 1));
        let mut sorted: Vec<i64> = (1..=100_000).map(values).collect();
        sorted.sort_unstable();
        assert_eq!((s.min, s.max), (sorted[0], sorted[99_999]));
        for share in [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0] {
            let exact = sorted[(100_000.0 * share) as usize - 1];
            let reported = s.quantile(share).unwrap();
            assert!((reported - exact).abs() * 64 <= exact, "{share}: {reported}, {exact}");
        }
        let mut by_power = vec![0; 65];
        sorted.iter().for_each(|v| by_power[(64 - v.leading_zeros()) as usize] += 1);
        let powers = s.powers();
        assert_eq!(powers[..], by_power[..powers.len()]);
        s.add(-5, 1);
        assert_eq!(s.min, 0);
    }

    #[test]
    fn what_is_alike_and_what_is_small_is_exact() {
        let mut s = Spread::default();
        (0..9).for_each(|_| s.add(200_000_000, 1));
        s.add(249_854_000, 1);
        assert_eq!((s.quantile(0.5), s.quantile(0.99)), (Some(200_000_000), Some(249_854_000)));
        let mut s = Spread::default();
        (0..64).for_each(|v| s.add(v, 10));
        assert_eq!((s.quantile(0.5), s.quantile(0.25), s.quantile(1.0)), (Some(31), Some(15), Some(63)));
        s.add(i64::MAX, 1);
        assert_eq!(s.quantile(1.0), Some(i64::MAX));
    }
}
