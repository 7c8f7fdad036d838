//! Which of two rows in order of time are one thing: no pair crosses another, and together they are nearest. Rejected: for each the nearest
//! that is left, which gives a message the frame of the next one where both came within milliseconds, and the next one that of the first.

/// Pairs of `rows` and `columns`, each by its place, in order. `apart`: the cost of a pair; `None`: they are none. `alone`: that of one without another.
pub(super) fn aligned(
    rows: usize,
    columns: usize,
    alone: i64,
    apart: impl Fn(usize, usize) -> Option<i64>,
) -> Vec<(usize, usize)> {
    const ROW: u8 = 0;
    const COLUMN: u8 = 1;
    const PAIR: u8 = 2;
    let width = columns + 1;
    let mut before: Vec<i64> = (0..width as i64).map(|j| j * alone).collect();
    let mut way = vec![COLUMN; (rows + 1) * width];
    for i in 1..=rows {
        let mut now = vec![before[0] + alone; width];
        way[i * width] = ROW;
        for j in 1..width {
            let (row, column) = (before[j] + alone, now[j - 1] + alone);
            let (mut least, mut by) = if row <= column { (row, ROW) } else { (column, COLUMN) };
            if let Some(cost) = apart(i - 1, j - 1).map(|c| before[j - 1] + c).filter(|c| *c <= least) {
                (least, by) = (cost, PAIR);
            }
            (now[j], way[i * width + j]) = (least, by);
        }
        before = now;
    }
    let (mut i, mut j) = (rows, columns);
    let mut pairs = Vec::new();
    while i > 0 && j > 0 {
        match way[i * width + j] {
            PAIR => {
                (i, j) = (i - 1, j - 1);
                pairs.push((i, j));
            }
            ROW => i -= 1,
            _ => j -= 1,
        }
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[i64], b: &[i64]) -> Vec<(usize, usize)> {
        let apart = |i: usize, j: usize| Some((a[i] - b[j]).abs()).filter(|d| *d <= 100);
        aligned(a.len(), b.len(), 75, apart)
    }

    #[test]
    fn what_came_within_milliseconds_keeps_its_order() {
        // As recorded on 6.1: messages 1 and 3 of a handshake, each read 13 and 6 ms after its frame.
        assert_eq!(of(&[605, 621, 733], &[592, 615, 724]), [(0, 0), (1, 1), (2, 2)]);
        // One that no sniffer heard, and one that the kernel has no mark of.
        assert_eq!(of(&[10, 30, 300], &[29, 301]), [(1, 0), (2, 1)]);
        assert_eq!(of(&[30], &[5, 29, 60]), [(0, 1)]);
        assert_eq!(of(&[30], &[131]), []);
        assert_eq!(of(&[], &[1]), []);
        assert_eq!(of(&[1], &[]), []);
    }

    /// Against each way to pair them.
    #[test]
    fn no_other_way_is_nearer() {
        fn least(a: &[i64], b: &[i64]) -> i64 {
            let (Some(x), Some(y)) = (a.first(), b.first()) else { return (a.len() + b.len()) as i64 * 75 };
            let pair = Some((x - y).abs()).filter(|d| *d <= 100).map(|d| d + least(&a[1..], &b[1..]));
            let alone = 75 + least(&a[1..], b).min(least(a, &b[1..]));
            pair.map_or(alone, |p| p.min(alone))
        }
        let mut seed = 7u64;
        let mut roll = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..2_000 {
            let mut times = || {
                let mut all: Vec<i64> = (0..roll(6)).map(|_| roll(400) as i64).collect();
                all.sort_unstable();
                all
            };
            let (a, b) = (times(), times());
            let pairs = of(&a, &b);
            assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
            let near: i64 = pairs.iter().map(|(i, j)| (a[*i] - b[*j]).abs()).sum();
            let left = (a.len() + b.len() - 2 * pairs.len()) as i64 * 75;
            assert_eq!(near + left, least(&a, &b), "{a:?} {b:?}");
        }
    }
}
