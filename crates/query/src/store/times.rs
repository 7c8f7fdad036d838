//! Where in a table a time is: its rows are nearly in order of time, and its statistics say how far they are not.

use kpat_store::TableFile;

/// When the row groups of a table begin and end.
#[derive(Debug, Default)]
pub(crate) struct Times {
    groups: Vec<(i64, i64)>,
    /// The latest end of those until each, and the earliest beginning of each and those behind it.
    ends: Vec<i64>,
    begins: Vec<i64>,
}

impl Times {
    /// By this column of the table.
    pub fn of(table: &TableFile, column: &str) -> Times {
        let of = |group| table.range(group, column).map_or((i64::MIN, i64::MAX), |r| (*r.start(), *r.end()));
        Times::new((0..table.groups()).map(of).collect())
    }

    pub fn new(groups: Vec<(i64, i64)>) -> Times {
        let (mut latest, mut earliest) = (i64::MIN, i64::MAX);
        let ends = groups.iter().map(|g| {
            latest = latest.max(g.1);
            latest
        });
        let ends = ends.collect();
        let mut begins: Vec<i64> = groups
            .iter()
            .rev()
            .map(|g| {
                earliest = earliest.min(g.0);
                earliest
            })
            .collect();
        begins.reverse();
        Times { groups, ends, begins }
    }

    /// Row groups with a time between these.
    pub fn between(&self, from_ns: i64, to_ns: i64) -> impl Iterator<Item = usize> + '_ {
        let first = self.ends.partition_point(|end| *end < from_ns);
        let end = self.begins.partition_point(|begin| *begin <= to_ns);
        (first..end.max(first)).filter(move |g| self.groups[*g].0 <= to_ns && self.groups[*g].1 >= from_ns)
    }

    /// The earliest time in this row group and all behind it.
    pub fn earliest_from(&self, group: usize) -> i64 {
        self.begins.get(group).copied().unwrap_or(i64::MAX)
    }

    /// The earliest time in any row group behind this one.
    pub fn earliest_behind(&self, group: usize) -> i64 {
        self.earliest_from(group + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Times;

    #[test]
    fn a_time_is_found_in_groups_that_overlap() {
        let times = Times::new(vec![(10, 20), (5, 12), (21, 30), (28, 40)]);
        let between = |from, to| times.between(from, to).collect::<Vec<_>>();
        assert_eq!(between(11, 11), [0, 1]);
        assert_eq!(between(6, 6), [1]);
        assert_eq!(between(13, 21), [0, 2]);
        assert_eq!(between(29, 100), [2, 3]);
        assert!(between(0, 4).is_empty() && between(41, 50).is_empty());
        assert_eq!([0, 1, 2, 3].map(|g| times.earliest_behind(g)), [5, 21, 28, i64::MAX]);
    }
}
