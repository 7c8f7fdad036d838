//! How values are spread, by powers of two.

/// Sum, least, greatest and a count for each power of two.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    pub count: u64,
    pub sum: i128,
    pub min: i64,
    pub max: i64,
    /// `classes[i]`: values from 2^(i-1) to below 2^i; the first is those below 1.
    pub classes: Vec<u64>,
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
        let class = (64 - value.leading_zeros()) as usize;
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0);
        }
        self.classes[class] += weight;
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// No more than a power of two above the value below which this share lies.
    pub fn quantile(&self, share: f64) -> Option<i64> {
        let want = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.classes.iter().enumerate() {
            seen += n;
            if seen >= want {
                let top = if i == 0 { 0 } else { (1i128 << i) - 1 };
                return Some((top.min(i128::from(self.max)) as i64).max(self.min));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_power_of_two() {
        let mut s = Spread::default();
        assert_eq!((s.mean(), s.quantile(0.5)), (None, None));
        (1..=1000).for_each(|v| s.add(v, 1));
        assert_eq!((s.min, s.max, s.mean()), (1, 1000, Some(500.5)));
        let median = s.quantile(0.5).unwrap();
        assert!((500..=1000).contains(&median), "{median}");
        assert_eq!(s.quantile(1.0), Some(1000));
        s.add(-5, 1);
        assert_eq!(s.min, 0);
    }
}
