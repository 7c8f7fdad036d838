//! Symbols by name and by address.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The longest name of a module or symbol that is kept.
const LONGEST_NAME: usize = 1024;
/// Symbols and bytes of names that are kept, whatever a guest claims to have.
const MOST: usize = 8 << 20;
const MOST_BYTES: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    pub address: u64,
    /// As `nm` has it: T or t code, D or d data ...
    pub kind: char,
    pub name: &'a str,
    /// `None`: of the kernel itself.
    pub module: Option<&'a str>,
}

#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    name: u32,
    len: u16,
    /// 0: of the kernel itself; others one more than its place in the list.
    module: u16,
    kind: u8,
}

/// Collects symbols in any order.
#[derive(Default)]
pub struct Builder {
    names: String,
    entries: Vec<Entry>,
}

impl Builder {
    /// `module` is 0, or one more than the module's place in the list.
    pub fn add(&mut self, address: u64, kind: u8, name: &[u8], module: u16) {
        if self.full() {
            return;
        }
        let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]);
        let Ok(at) = u32::try_from(self.names.len()) else { return };
        let kind = if kind.is_ascii_graphic() { kind } else { b'?' };
        self.names.push_str(&name);
        self.entries.push(Entry { address, name: at, len: name.len() as u16, module, kind });
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// No more are kept.
    pub fn full(&self) -> bool {
        self.entries.len() >= MOST || self.names.len() >= MOST_BYTES
    }

    pub fn build(mut self, modules: Vec<String>) -> Table {
        // Of symbols at one address the order stays as it came.
        self.entries.sort_by_key(|e| e.address);
        Table { names: self.names, entries: self.entries, modules, by_name: OnceLock::new() }
    }
}

pub struct Table {
    names: String,
    entries: Vec<Entry>,
    modules: Vec<String>,
    /// The hash of a name, and the places of symbols with it.
    by_name: OnceLock<HashMap<u64, Vec<u32>>>,
}

impl Table {
    fn symbol(&self, e: &Entry) -> Symbol<'_> {
        Symbol {
            address: e.address,
            kind: char::from(e.kind),
            name: &self.names[e.name as usize..e.name as usize + usize::from(e.len)],
            module: usize::from(e.module)
                .checked_sub(1)
                .and_then(|m| self.modules.get(m))
                .map(String::as_str),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All, by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|e| self.symbol(e))
    }

    /// All of that name, by address: static functions of several files may share one.
    pub fn named(&self, name: &str) -> Vec<Symbol<'_>> {
        let index = self.by_name.get_or_init(|| {
            let mut index: HashMap<u64, Vec<u32>> = HashMap::with_capacity(self.entries.len());
            for (i, e) in self.entries.iter().enumerate() {
                index.entry(hash(self.symbol(e).name)).or_default().push(i as u32);
            }
            index
        });
        let places = index.get(&hash(name)).map_or(&[][..], Vec::as_slice);
        places.iter().map(|i| self.symbol(&self.entries[*i as usize])).filter(|s| s.name == name).collect()
    }

    /// The last symbol at or before `address`. Of several at one place: code before data, global before local, the first that came.
    pub fn before(&self, address: u64) -> Option<Symbol<'_>> {
        let after = self.entries.partition_point(|e| e.address <= address);
        let last = self.entries.get(after.checked_sub(1)?)?.address;
        let from = self.entries.partition_point(|e| e.address < last);
        let rank = |kind: char| match kind {
            'T' => 0,
            't' => 1,
            'W' | 'w' => 2,
            k if k.is_ascii_uppercase() => 3,
            _ => 4,
        };
        // A table of a hostile guest may have all its symbols at one place.
        self.entries[from..after].iter().take(64).map(|e| self.symbol(e)).min_by_key(|s| rank(s.kind))
    }
}

fn hash(name: &str) -> u64 {
    // FNV-1a; who fills a bucket on purpose has made its own look-ups slow.
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_by_address() {
        let mut b = Builder::default();
        for (a, k, n, m) in
            [(0x3000, b't', "b", 0), (0x1000, b'd', "x", 0), (0x1000, b'T', "a", 0), (0x2000, b't', "b", 1)]
        {
            b.add(a, k, n.as_bytes(), m);
        }
        let t = b.build(vec!["mod".into()]);
        assert_eq!(t.len(), 4);
        let b = t.named("b");
        assert_eq!(
            (b[0].address, b[0].module, b[1].address, b[1].module),
            (0x2000, Some("mod"), 0x3000, None)
        );
        assert!(t.named("c").is_empty());
        assert_eq!(t.before(0x1fff).map(|s| s.name), Some("a"));
        assert_eq!(t.before(0x2000).map(|s| s.name), Some("b"));
        assert_eq!(t.before(0xfff), None);
    }
}
