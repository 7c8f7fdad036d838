//! Where RAM lies in the guest-physical address space, from the text of `info mtree -f`.

use crate::error::{Error, Result};

/// Ranges of more guests' memory than any has; a text with more is not read further.
const MOST: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub physical: u64,
    pub len: u64,
    /// Of the memory region: `pc.ram`, an object's path, a device's name.
    pub name: String,
    /// Of the range's first byte in its region.
    pub offset: u64,
    /// The guest may write to it.
    pub writable: bool,
}

impl Range {
    pub fn end(&self) -> u64 {
        self.physical.saturating_add(self.len)
    }
}

/// RAM and ROM of the address space "memory", ascending and without overlap.
pub fn parse(text: &str) -> Result<Vec<Range>> {
    let mut of_memory = false;
    let mut named = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("FlatView") {
            if of_memory {
                break;
            }
            named = false;
        } else if let Some(name) = line.trim_start().strip_prefix("AS \"") {
            of_memory |= name.starts_with("memory\"");
            named = true;
        } else if of_memory
            && named
            && found.len() < MOST
            && let Some(r) = range(line)
        {
            found.push(r);
        }
    }
    found.sort_by_key(|r: &Range| r.physical);
    if found.is_empty() {
        return Err(Error::damaged("info mtree -f", "there is no RAM in it"));
    }
    if found.windows(2).any(|w| w[0].end() > w[1].physical) {
        return Err(Error::damaged("info mtree -f", "ranges overlap"));
    }
    Ok(found)
}

/// `  START-END (prio 0, ram): NAME[ @OFFSET][ KVM]`
fn range(line: &str) -> Option<Range> {
    let (place, rest) = line.trim_start().split_once(" (prio ")?;
    let (attributes, name) = rest.split_once("): ")?;
    let kind = attributes.rsplit(", ").next()?;
    let writable = matches!(kind, "ram" | "ramd" | "nv-ram");
    if !writable && kind != "rom" {
        return None;
    }
    let (from, to) = place.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    let len = to.checked_sub(from)?.checked_add(1)?;
    let name = name.strip_suffix(" KVM").unwrap_or(name);
    let (name, offset) = match name.rsplit_once(" @") {
        Some((n, o)) => (n, u64::from_str_radix(o, 16).ok()?),
        None => (name, 0),
    };
    Some(Range { physical: from, len, name: name.into(), offset, writable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_text_is_read() {
        let all = parse(include_str!("../../tests/data/mtree.txt")).unwrap();
        let short: Vec<(u64, u64, &str, u64, bool)> =
            all.iter().map(|r| (r.physical, r.len, r.name.as_str(), r.offset, r.writable)).collect();
        assert_eq!(
            short,
            [
                (0, 0xc3000, "pc.ram", 0, true),
                (0xc3000, 0x25000, "pc.ram", 0xc3000, false),
                (0xe8000, 0x8000, "pc.ram", 0xe8000, true),
                (0xf0000, 0x10000, "pc.ram", 0xf0000, false),
                (0x10_0000, 0x1ff0_0000, "pc.ram", 0x10_0000, true),
                (0xfebf_0000, 0x1000, "/objects/box one", 0, true),
                (0xfffc_0000, 0x40000, "pc.bios", 0, false),
            ]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(parse("").is_err());
        let head = "FlatView #0\n AS \"memory\", root: system\n";
        for lines in [
            "  2000-1000 (prio 0, ram): x",
            "  0-ffffffffffffffff (prio 0, ram): x",
            "  0-fff (prio 0, ram): a\n  800-17ff (prio 0, ram): b",
        ] {
            assert!(parse(&format!("{head}{lines}")).is_err(), "{lines}");
        }
        // Not of the address space that processors see.
        assert!(parse("FlatView #0\n AS \"I/O\", root: io\n  0-fff (prio 0, ram): a").is_err());
    }
}
