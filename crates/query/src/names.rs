//! Names that a person typed: patterns, and what was meant by a mistyped one.

/// `*` stands for any text, `?` for one character.
pub fn glob_fits(glob: &str, text: &str) -> bool {
    let (g, t): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut i, mut k) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while k < t.len() {
        if i < g.len() && g[i] == '*' {
            star = Some((i, k));
            i += 1;
        } else if i < g.len() && (g[i] == '?' || g[i] == t[k]) {
            i += 1;
            k += 1;
        } else if let Some((si, sk)) = star {
            i = si + 1;
            k = sk + 1;
            star = Some((si, sk + 1));
        } else {
            return false;
        }
    }
    g[i..].iter().all(|&c| c == '*')
}

/// The one of these names that may have been meant: at most a third of a name is assumed to be mistyped.
pub fn nearest<'a>(name: &str, of: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (apart, _, near) = of.map(|n| (edit_distance(n, name), n.len(), n)).min()?;
    (apart <= (name.chars().count() / 3).max(usize::from(name.len() > 1))).then_some(near)
}

/// Letters that are wrong, missing or too many; two that changed places count once.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for k in 0..=b.len() {
            rows[i][k] = match (i, k) {
                (0, n) | (n, 0) => n,
                _ => {
                    let changed = rows[i - 1][k - 1] + usize::from(a[i - 1] != b[k - 1]);
                    let swapped = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
                    let swap = if swapped { rows[i - 2][k - 2] + 1 } else { changed };
                    changed.min(swap).min(rows[i - 1][k] + 1).min(rows[i][k - 1] + 1)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_meant() {
        let names = ["ip_rcv", "gap", "call", "name", "from", "arp", "len"];
        for (typed, meant) in [
            ("ip_rvc", Some("ip_rcv")),
            ("calls", Some("call")),
            ("form", Some("from")),
            ("foo", None),
            ("nope", None),
            ("vlan", None),
            ("mark", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names.into_iter()), meant, "{typed}");
        }
    }

    #[test]
    fn globs() {
        for (glob, text, fits) in [
            ("ip_*", "ip_rcv", true),
            ("*rcv", "ip_rcv", true),
            ("i?_rcv", "ip_rcv", true),
            ("ip_rcv", "ip_rcv_core", false),
            ("", "x", false),
            ("**", "", true),
            ("a*b*c", "a__b__b_c", true),
        ] {
            assert_eq!(glob_fits(glob, text), fits, "{glob} {text}");
        }
    }
}
