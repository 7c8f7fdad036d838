//! Which rows of a table come into question: conditions on integer columns, held against the least and greatest value of
//! each row group first, then against the rows.

use crate::cache::Group;
use kpat_store::TableFile;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Eq,
    /// One of several.
    In,
    Greater,
    AtLeast,
    Less,
    AtMost,
}

impl Op {
    pub fn letter(self) -> char {
        match self {
            Op::Eq => '=',
            Op::In => 'i',
            Op::Greater => '>',
            Op::AtLeast => 'g',
            Op::Less => '<',
            Op::AtMost => 'l',
        }
    }

    pub fn of(letter: char) -> Option<Op> {
        [Op::Eq, Op::In, Op::Greater, Op::AtLeast, Op::Less, Op::AtMost]
            .into_iter()
            .find(|o| o.letter() == letter)
    }
}

/// A condition on an integer column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub column: usize,
    pub test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Within, both ends included.
    Range(i64, i64),
    /// One of these, ascending.
    Among(Vec<i64>),
}

impl Test {
    /// The range that a comparison with this number leaves.
    pub fn compare(op: Op, value: i64) -> Test {
        match op {
            Op::Eq | Op::In => Test::Range(value, value),
            Op::Greater => value.checked_add(1).map_or(Test::Among(Vec::new()), |v| Test::Range(v, i64::MAX)),
            Op::AtLeast => Test::Range(value, i64::MAX),
            Op::Less => value.checked_sub(1).map_or(Test::Among(Vec::new()), |v| Test::Range(i64::MIN, v)),
            Op::AtMost => Test::Range(i64::MIN, value),
        }
    }

    fn fits(&self, value: i64) -> bool {
        match self {
            Test::Range(from, to) => (*from..=*to).contains(&value),
            Test::Among(values) => values.binary_search(&value).is_ok(),
        }
    }

    /// May something between these fit?
    fn may(&self, least: i64, most: i64) -> bool {
        match self {
            Test::Range(from, to) => *from <= most && *to >= least,
            Test::Among(values) => {
                values.get(values.partition_point(|v| *v < least)).is_some_and(|v| *v <= most)
            }
        }
    }

    /// The only value that fits.
    pub fn single(&self) -> Option<i64> {
        match self {
            Test::Range(from, to) if from == to => Some(*from),
            Test::Among(values) if values.len() == 1 => values.first().copied(),
            _ => None,
        }
    }
}

/// Row groups that may have a row that fits; null fits no condition.
pub(crate) fn groups(file: &TableFile, names: &[&'static str], conditions: &[Condition]) -> Vec<usize> {
    let may = |group: usize| {
        conditions.iter().all(|c| {
            file.range(group, names[c.column]).is_none_or(|have| c.test.may(*have.start(), *have.end()))
        })
    };
    (0..file.groups()).filter(|g| may(*g)).collect()
}

/// The row fits all conditions.
pub(crate) fn fits(group: &Group, row: usize, conditions: &[Condition]) -> bool {
    conditions.iter().all(|c| group.int(c.column, row).is_some_and(|v| c.test.fits(v)))
}

/// How many row groups a value of this column is looked for in, on average: 1 where the table is in its order.
pub(crate) fn spread(file: &TableFile, name: &str) -> f64 {
    let ranges: Vec<(f64, f64)> = (0..file.groups())
        .filter_map(|g| file.range(g, name))
        .map(|r| (*r.start() as f64, *r.end() as f64))
        .collect();
    if ranges.len() < file.groups() || ranges.is_empty() {
        return file.groups().max(1) as f64;
    }
    let least = ranges.iter().map(|r| r.0).fold(f64::INFINITY, f64::min);
    let most = ranges.iter().map(|r| r.1).fold(f64::NEG_INFINITY, f64::max);
    let widths: f64 = ranges.iter().map(|r| r.1 - r.0 + 1.0).sum();
    (widths / (most - least + 1.0)).clamp(1.0, ranges.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests() {
        for (op, value, fits, not) in [
            (Op::Eq, 5, vec![5], vec![4, 6]),
            (Op::Greater, 5, vec![6, i64::MAX], vec![5, i64::MIN]),
            (Op::AtLeast, 5, vec![5], vec![4]),
            (Op::Less, 5, vec![4, i64::MIN], vec![5]),
            (Op::AtMost, 5, vec![5], vec![6]),
            (Op::Greater, i64::MAX, vec![], vec![i64::MAX, 0]),
            (Op::Less, i64::MIN, vec![], vec![i64::MIN]),
        ] {
            let test = Test::compare(op, value);
            assert!(fits.iter().all(|v| test.fits(*v)), "{op:?} {value}");
            assert!(!not.iter().any(|v| test.fits(*v)), "{op:?} {value}");
            assert_eq!(Op::of(op.letter()), Some(op));
        }
        let among = Test::Among(vec![3, 9]);
        assert!(among.may(1, 3) && among.may(4, 100) && !among.may(4, 8) && !among.may(10, 12));
    }
}
