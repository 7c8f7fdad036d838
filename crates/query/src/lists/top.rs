//! The first of an order, without sorting all.

/// The `limit` least by a key (0: all), and how many there were.
pub(crate) struct Top<T, K, F: Fn(&T) -> K> {
    rows: Vec<T>,
    limit: usize,
    total: u64,
    key: F,
}

impl<T, K: Ord, F: Fn(&T) -> K> Top<T, K, F> {
    pub(crate) fn new(limit: usize, key: F) -> Self {
        Top { rows: Vec::new(), limit, total: 0, key }
    }

    pub(crate) fn push(&mut self, row: T) {
        self.total += 1;
        self.rows.push(row);
        if self.limit > 0 && self.rows.len() >= 2 * self.limit + 1024 {
            self.rows.select_nth_unstable_by_key(self.limit, &self.key);
            self.rows.truncate(self.limit);
        }
    }

    pub(crate) fn finish(mut self) -> (Vec<T>, u64) {
        self.rows.sort_by_key(&self.key);
        if self.limit > 0 {
            self.rows.truncate(self.limit);
        }
        (self.rows, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_keeps_the_least() {
        let mut top = Top::new(3, |v: &i32| *v);
        (0..10_000).rev().for_each(|v| top.push(v));
        assert_eq!(top.finish(), (vec![0, 1, 2], 10_000));
    }
}
