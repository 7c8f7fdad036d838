//! The kernel's own table of its symbols, found in its image by what it looks like.
//!
//! Names are strings of tokens, of which there are 256. Between Linux 6.1 and 7.2 the order of the tables, their alignment and the
//! meaning of an offset changed, with no number that says so: what fits is tried, and checked by the address of `_text`.
//!
//! ```text
//! 6.1   offsets  base  count  names  markers  [sequence]  tokens  token index
//! 6.4   count  names  markers  tokens  token index  offsets  base  sequence
//! 7.x   the same without base: offsets count from _text
//! ```

use super::table::Builder;
use crate::error::{Error, Result};

/// More symbols than any kernel has; Debian's have some 200,000.
const MOST: usize = 4 << 20;
/// How far before the tokens their neighbours may begin.
const FAR: usize = 64 << 20;
/// Longer than the longest name that the kernel makes room for.
const LONGEST_NAME: usize = 1024;

/// What an offset means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Not negative: an absolute address; negative: the base less one less it (per-CPU symbols that begin at zero, up to 6.14).
    Signed { base: u64 },
    /// From a base that is stored, or `_text`.
    From { base: u64 },
    /// From where the offset itself is stored.
    Place,
}

/// What was found of the layout, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub offsets: Offsets,
    /// There is a table of the names' order between markers and tokens (6.1's later versions).
    pub sequence_first: bool,
    pub count: usize,
}

/// Bytes of an image, by place, and the address of the first.
struct Bytes<'a>(&'a [u8], u64);

impl Bytes<'_> {
    fn u16(&self, at: usize) -> Option<usize> {
        Some(u16::from_le_bytes(self.0.get(at..at.checked_add(2)?)?.try_into().ok()?).into())
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }

    /// Behind the entry of a name at `at`, and where its tokens are.
    fn name(&self, at: usize) -> Option<std::ops::Range<usize>> {
        let first = usize::from(*self.0.get(at)?);
        let (from, len) = match first & 0x80 {
            0 => (at + 1, first),
            _ => (at + 2, (first & 0x7f) | usize::from(*self.0.get(at + 1)?) << 7),
        };
        (len > 0 && len < LONGEST_NAME).then_some(from..from + len)
    }

    /// Where the name `n` behind that at `at` begins.
    fn skip(&self, mut at: usize, n: usize) -> Option<usize> {
        for _ in 0..n {
            at = self.name(at)?.end;
        }
        (at <= self.0.len()).then_some(at)
    }
}

struct Tokens {
    at: usize,
    /// Behind the index.
    end: usize,
    index: Vec<usize>,
}

/// The symbols of a kernel whose `_text` is at `base`; `image` is a part of it, at `at`.
pub fn read(image: &[u8], at: u64, base: u64, into: &mut Builder) -> Result<Layout> {
    let b = Bytes(image, at);
    let mut why = "there is no table of tokens";
    for tokens in tokens(&b).take(16) {
        match read_at(&b, base, &tokens, into) {
            Ok(layout) => return Ok(layout),
            Err(w) => why = w,
        }
    }
    Err(Error::damaged("the kernel's symbols", why))
}

/// Places that look like the tables of tokens: the digits are tokens of their own, one behind the other.
fn tokens<'a>(b: &'a Bytes<'a>) -> impl Iterator<Item = Tokens> + 'a {
    const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
    memchr::memmem::find_iter(b.0, DIGITS).filter_map(|digits| {
        let mut end = digits;
        for _ in usize::from(b'0')..256 {
            let rest = b.0.get(end..)?;
            let len = memchr::memchr(0, &rest[..rest.len().min(LONGEST_NAME)])?;
            end += len + 1;
        }
        (0..8).find_map(|gap| {
            let index: Vec<usize> = (0..256).map_while(|i| b.u16(end + gap + i * 2)).collect();
            if index.len() != 256 || index[0] != 0 {
                return None;
            }
            let at = digits.checked_sub(index[usize::from(b'0')])?;
            // Each token begins where the one before it ended.
            let whole = (1..256).all(|i| {
                index[i] > index[i - 1]
                    && b.0.get(at + index[i] - 1) == Some(&0)
                    && !b.0.get(at + index[i - 1]..at + index[i] - 1).is_none_or(|t| t.contains(&0))
            });
            (whole && at + index[255] < end).then_some(Tokens { at, end: end + gap + 512, index })
        })
    })
}

fn read_at(
    b: &Bytes<'_>,
    base: u64,
    t: &Tokens,
    into: &mut Builder,
) -> std::result::Result<Layout, &'static str> {
    let mut why = "there are no markers before the tokens";
    let lowest = t.at.saturating_sub(FAR);
    let mut at = t.at & !3;
    // From the tokens down: zero, then the places of each 256th name.
    while at > lowest {
        at -= 4;
        if b.u32(at) != Some(0) {
            continue;
        }
        let markers = markers(b, at, t.at);
        if markers.len() < 4 {
            continue;
        }
        let Some(names) = names(b, at, &markers) else {
            why = "there are no names before the markers";
            continue;
        };
        let Some((count_at, count)) = count(b, names, at, markers.len()) else {
            why = "there is no count before the names";
            continue;
        };
        let Some(decoded) = decode(b, t, names, count) else {
            why = "a name is damaged";
            continue;
        };
        let Some((place, offsets)) = offsets(b, base, t, count_at, count, &decoded) else {
            why = "no reading of the offsets gives the address of _text";
            continue;
        };
        for (i, name) in decoded.iter().enumerate() {
            let Some(virt) = address(b, place, i, offsets) else { continue };
            into.add(virt, name[0], &name[1..], 0);
        }
        let sequence_first = at + markers.len() * 4 + count * 3 <= t.at + 8;
        return Ok(Layout { offsets, sequence_first, count });
    }
    Err(why)
}

/// Ascending words from `at`, as far as they may be markers.
fn markers(b: &Bytes<'_>, at: usize, end: usize) -> Vec<u32> {
    let mut all = vec![0u32];
    while all.len() < MOST / 256
        && let place = at + all.len() * 4
        && place + 4 <= end
        && let Some(m) = b.u32(place)
        && let Some(last) = all.last()
        // 256 names of two bytes at least, and not all of them the longest.
        && m.checked_sub(*last).is_some_and(|d| (512..65536).contains(&d))
    {
        all.push(m);
    }
    all
}

/// Where names begin whose every 256th is at the markers, which lie at `at`.
fn names(b: &Bytes<'_>, at: usize, markers: &[u32]) -> Option<usize> {
    // The last may be no marker any more; an early one that is checked says enough for now.
    let (second, third) = (*markers.get(1)? as usize, *markers.get(2)? as usize);
    let least = markers[..markers.len() - 1].last().copied()? as usize;
    let from = at.checked_sub(least)? & !3;
    let lowest = from.saturating_sub(1 << 17);
    (lowest..=from)
        .rev()
        .step_by(4)
        .find(|s| b.skip(*s, 256) == Some(s + second) && b.skip(s + second, 256) == Some(s + third))
}

/// Where the number of symbols stands, and that number: so many names end just before the markers.
fn count(b: &Bytes<'_>, names: usize, markers_at: usize, markers: usize) -> Option<(usize, usize)> {
    [8, 4].into_iter().find_map(|before| {
        let at = names.checked_sub(before)?;
        let n = b.u32(at)? as usize;
        if n > MOST || n.div_ceil(256) > markers || n.div_ceil(256) + 2 < markers {
            return None;
        }
        let end = b.skip(names, n)?;
        (end <= markers_at && markers_at - end < 16).then_some((at, n))
    })
}

/// All names, each with its type before it.
fn decode(b: &Bytes<'_>, t: &Tokens, names: usize, count: usize) -> Option<Vec<Box<[u8]>>> {
    let token = |i: u8| -> Option<&[u8]> {
        let from = t.at + t.index[usize::from(i)];
        let len = memchr::memchr(0, b.0.get(from..)?)?;
        Some(&b.0[from..from + len])
    };
    let all: Vec<&[u8]> = (0..=255).map(token).collect::<Option<_>>()?;
    let mut at = names;
    let mut out = Vec::with_capacity(count);
    let mut name = Vec::with_capacity(128);
    for _ in 0..count {
        let entry = b.name(at)?;
        name.clear();
        for i in b.0.get(entry.clone())? {
            name.extend_from_slice(all[usize::from(*i)]);
        }
        if name.len() < 2 || name.len() > LONGEST_NAME {
            return None;
        }
        out.push(name.as_slice().into());
        at = entry.end;
    }
    Some(out)
}

fn address(b: &Bytes<'_>, place: usize, i: usize, offsets: Offsets) -> Option<u64> {
    let at = place + i * 4;
    let raw = b.u32(at)?;
    Some(match offsets {
        Offsets::Signed { base } if (raw as i32) < 0 => {
            base.wrapping_sub(1).wrapping_sub(raw as i32 as i64 as u64)
        }
        Offsets::Signed { .. } => raw.into(),
        Offsets::From { base } => base.wrapping_add(raw.into()),
        Offsets::Place => b.1.wrapping_add(at as u64).wrapping_add(raw as i32 as i64 as u64),
    })
}

/// Where the offsets are and what they mean: the reading by which `_text` is where the image begins and all addresses ascend.
fn offsets(
    b: &Bytes<'_>,
    base: u64,
    t: &Tokens,
    count_at: usize,
    count: usize,
    names: &[Box<[u8]>],
) -> Option<(usize, Offsets)> {
    let text = names
        .iter()
        .position(|n| &n[1..] == b"_text")
        .or_else(|| names.iter().position(|n| &n[1..] == b"_stext"))?;
    let bytes = count * 4;
    // (offsets, base) in the order of 6.1: both before the count.
    let before = (0..16).step_by(4).filter_map(|gap| {
        let base_at = count_at.checked_sub(8 + gap)?;
        Some(((base_at & !7).checked_sub(bytes)?, base_at))
    });
    let before = before.flat_map(|(o, base_at)| [(o & !7, base_at), (o & !3, base_at)]);
    // And since 6.4: both behind the tokens.
    let behind = (0..8).step_by(2).flat_map(|gap| {
        let o = t.end + gap;
        let end = o + bytes;
        [(o, end), (o, (end + 7) & !7)]
    });
    let fits = |place: usize, how: Offsets| -> bool {
        if address(b, place, text, how) != Some(base) {
            return false;
        }
        let mut last = 0;
        let mut wrong = 0;
        for i in 0..count {
            let Some(a) = address(b, place, i, how) else { return false };
            wrong += usize::from(a < last);
            last = a;
        }
        wrong * 1000 <= count
    };
    for (place, base_at) in before.chain(behind) {
        let stored = b.u64(base_at).filter(|v| *v >> 63 != 0);
        let with_base =
            stored.into_iter().flat_map(|base| [Offsets::From { base }, Offsets::Signed { base }]);
        for how in with_base.chain([Offsets::From { base }, Offsets::Place]) {
            if fits(place, how) {
                return Some((place, how));
            }
        }
    }
    None
}

#[cfg(test)]
#[path = "kallsyms_tests.rs"]
mod tests;
