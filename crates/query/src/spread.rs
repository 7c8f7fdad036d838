//! A distribution of times: exact while it is small, then in logarithmic steps of which 64 make a power of two (a
//! quantile is then within 0.8 %). Count, sum, least and greatest are always exact.

/// Values kept one by one.
const FEW: usize = 4096;
const STEPS: u64 = 64;
const BITS: u64 = STEPS.trailing_zeros() as u64;

#[derive(Clone, Debug, Default)]
pub struct Spread {
    count: u64,
    sum: i64,
    /// For the variance.
    squares: f64,
    min: i64,
    max: i64,
    few: Vec<i64>,
    steps: Vec<u64>,
}

fn step_of(v: i64) -> usize {
    let v = v.max(0) as u64;
    if v < 2 * STEPS {
        return v as usize;
    }
    let power = 63 - u64::from(v.leading_zeros());
    ((power - BITS) * STEPS + STEPS + ((v >> (power - BITS)) & (STEPS - 1))) as usize
}

/// Least value of a step, and how many it spans.
fn span_of(step: usize) -> (i64, i64) {
    let step = step as u64;
    if step < 2 * STEPS {
        return (step as i64, 1);
    }
    let power = (step - STEPS) / STEPS + BITS;
    let low = (STEPS + (step - STEPS) % STEPS) << (power - BITS);
    (low as i64, 1 << (power - BITS))
}

/// Times between two powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub from_ns: i64,
    pub below_ns: i64,
    pub count: u64,
}

impl Spread {
    pub fn push(&mut self, ns: i64) {
        (self.min, self.max) = if self.count == 0 { (ns, ns) } else { (self.min.min(ns), self.max.max(ns)) };
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
        self.squares += ns as f64 * ns as f64;
        if self.steps.is_empty() {
            self.few.push(ns);
            if self.few.len() > FEW {
                for v in std::mem::take(&mut self.few) {
                    self.step(v);
                }
            }
        } else {
            self.step(ns);
        }
    }

    fn step(&mut self, ns: i64) {
        let step = step_of(ns);
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
    }

    /// Takes all values of another one.
    pub fn merge(&mut self, other: &Spread) {
        if other.steps.is_empty() {
            other.few.iter().for_each(|v| self.push(*v));
            return;
        }
        (self.min, self.max) = if self.count == 0 {
            (other.min, other.max)
        } else {
            (self.min.min(other.min), self.max.max(other.max))
        };
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.squares += other.squares;
        for v in std::mem::take(&mut self.few) {
            self.step(v);
        }
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        self.steps.iter_mut().zip(&other.steps).for_each(|(a, b)| *a += b);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn sum(&self) -> i64 {
        self.sum
    }

    pub fn min(&self) -> Option<i64> {
        (self.count > 0).then_some(self.min)
    }

    pub fn max(&self) -> Option<i64> {
        (self.count > 0).then_some(self.max)
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Of the sample (n - 1); `None` below two values.
    pub fn variance(&self) -> Option<f64> {
        let n = self.count as f64;
        let mean = self.mean()?;
        (self.count > 1).then(|| ((self.squares - n * mean * mean) / (n - 1.0)).max(0.0))
    }

    /// The value at `ceil(count * q)` in order of size.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        self.quantiles(&[q])[0]
    }

    /// As [`Spread::quantile`], sorted once.
    pub fn quantiles(&self, qs: &[f64]) -> Vec<Option<i64>> {
        let mut few = self.few.clone();
        few.sort_unstable();
        let mut below = 0;
        let sums: Vec<u64> = self
            .steps
            .iter()
            .map(|n| {
                below += n;
                below
            })
            .collect();
        qs.iter()
            .map(|q| {
                if self.count == 0 {
                    return None;
                }
                let wanted = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count);
                if self.steps.is_empty() {
                    return few.get(wanted as usize - 1).copied();
                }
                let step = sums.partition_point(|s| *s < wanted);
                let (low, width) = span_of(step);
                Some((low + width / 2).clamp(self.min, self.max))
            })
            .collect()
    }

    pub fn median(&self) -> Option<i64> {
        self.quantile(0.5)
    }

    /// By powers of two, from the first that is not empty to the last.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut counts = [0u64; 64];
        let power = |ns: i64| if ns <= 0 { 0 } else { 64 - (ns as u64).leading_zeros() as usize };
        self.few.iter().for_each(|&v| counts[power(v).min(63)] += 1);
        for (step, n) in self.steps.iter().enumerate() {
            counts[power(span_of(step).0).min(63)] += n;
        }
        let Some(first) = counts.iter().position(|n| *n > 0) else { return Vec::new() };
        let last = counts.iter().rposition(|n| *n > 0).unwrap_or(first);
        (first..=last)
            .map(|b| Bucket {
                from_ns: if b == 0 { 0 } else { 1 << (b - 1) },
                below_ns: 1 << b.min(62),
                count: counts[b],
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_order_and_fine() {
        let mut last = 0;
        for v in (0..100_000i64).chain((17..61).map(|p| (1 << p) + (1 << p) / 3)) {
            let step = step_of(v);
            assert!(step >= last, "{v}");
            last = step;
            let (low, width) = span_of(step);
            assert!((low..low + width).contains(&v) && width * 64 <= v.max(64), "{v}: {low} {width}");
        }
    }

    #[test]
    fn few_are_exact_and_many_are_near() {
        let mut s = Spread::default();
        for n in [100, 3_000, 10_000] {
            while s.count() < n {
                s.push((s.count() as i64 + 1) * 1_000);
            }
            let n = n as i64;
            let near = |got: Option<i64>, want: i64, exact: bool| {
                let got = got.unwrap();
                assert!((got - want).abs() <= if exact { 0 } else { want / 120 }, "{got} {want}");
            };
            near(s.median(), n / 2 * 1_000, n < 4_096);
            near(s.quantile(0.99), n * 990, n < 4_096);
            assert_eq!((s.min(), s.max(), s.sum()), (Some(1_000), Some(n * 1_000), n * (n + 1) / 2 * 1_000));
            assert_eq!(s.buckets().iter().map(|b| b.count).sum::<u64>(), n as u64);
        }
        let sd = s.variance().unwrap().sqrt();
        assert!((sd - 10_000_000.0 / 12f64.sqrt()).abs() < 1_000.0, "{sd}");
        assert_eq!((Spread::default().median(), Spread::default().mean()), (None, None));
    }

    #[test]
    fn merged_is_as_if_pushed() {
        for (a, b) in [(10, 20), (10_000, 20), (20, 10_000), (0, 9_000), (7_000, 8_000)] {
            let (mut all, mut left, mut right) = (Spread::default(), Spread::default(), Spread::default());
            (0..a).for_each(|v| left.push(v * 13));
            (0..b).for_each(|v| right.push(v * 17 + 5));
            (0..a).map(|v| v * 13).chain((0..b).map(|v| v * 17 + 5)).for_each(|v| all.push(v));
            left.merge(&right);
            assert_eq!(
                (left.count(), left.sum(), left.min(), left.max()),
                (all.count(), all.sum(), all.min(), all.max())
            );
            assert_eq!(left.buckets(), all.buckets(), "{a} {b}");
            let near = |x: Option<i64>, y: Option<i64>| (x.unwrap() - y.unwrap()).abs() <= y.unwrap() / 60;
            assert!(near(left.median(), all.median()), "{a} {b}");
        }
    }

    #[test]
    fn buckets_are_powers_of_two() {
        let mut s = Spread::default();
        [0, 1, 1023, 1024, 5_000].into_iter().for_each(|v| s.push(v));
        let b = s.buckets();
        assert_eq!((b[0].from_ns, b[0].below_ns, b[0].count), (0, 1, 1));
        assert_eq!(b.last().map(|b| (b.from_ns, b.below_ns, b.count)), Some((4_096, 8_192, 1)));
    }
}
