//! BTF, the kernel's own description of its types and functions, read from `/sys/kernel/btf` or out of a guest's memory. A module's BTF continues
//! the numbering and the strings of vmlinux ("split BTF"). Layout: Documentation/bpf/btf.rst of the kernel.
//!
//! Own reader because choosing functions needs a walk over every type of every module (300,000 types in 0.2 s), which
//! the loader's bindings do not offer. Hostile input gives an error or fewer types, never a panic.

use std::path::Path;
use std::sync::Arc;

/// Anonymous structures within each other; a damaged object may have one within itself.
const NESTED: u8 = 12;
/// Members looked at for one name; the largest structures of a kernel have some hundred.
const MOST_MEMBERS: u32 = 100_000;

pub mod kind {
    pub const INT: u8 = 1;
    pub const PTR: u8 = 2;
    pub const ARRAY: u8 = 3;
    pub const STRUCT: u8 = 4;
    pub const UNION: u8 = 5;
    pub const ENUM: u8 = 6;
    pub const FWD: u8 = 7;
    pub const TYPEDEF: u8 = 8;
    pub const VOLATILE: u8 = 9;
    pub const CONST: u8 = 10;
    pub const RESTRICT: u8 = 11;
    pub const FUNC: u8 = 12;
    pub const FUNC_PROTO: u8 = 13;
    pub const VAR: u8 = 14;
    pub const DATASEC: u8 = 15;
    pub const FLOAT: u8 = 16;
    pub const DECL_TAG: u8 = 17;
    pub const TYPE_TAG: u8 = 18;
    pub const ENUM64: u8 = 19;
}

#[derive(Clone, Copy, Debug)]
pub struct Type {
    pub name_off: u32,
    pub kind: u8,
    pub kind_flag: bool,
    pub vlen: u16,
    /// Size in bytes, or the id of the type referred to.
    pub size_or_type: u32,
    /// Where what follows the type lies in the type section.
    at: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{0}: not BTF, or damaged at byte {1}")]
    Damaged(String, usize),
}

/// One BTF object; `base` is vmlinux for a module.
pub struct Btf {
    /// "vmlinux" or the module's name.
    pub name: String,
    base: Option<Arc<Btf>>,
    types: Vec<Type>,
    data: Vec<u8>,
    strings: Vec<u8>,
    first_id: u32,
    first_string: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub name_off: u32,
    pub type_id: u32,
    pub bit_offset: u32,
    /// Of a bit field; otherwise 0.
    pub bits: u8,
}

/// What a path through structures leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub bit_offset: u32,
    pub type_id: u32,
    /// Of a bit field; otherwise 0.
    pub bits: u8,
}

fn word(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

impl Btf {
    pub fn parse(name: &str, bytes: &[u8], base: Option<Arc<Btf>>) -> Result<Btf, Error> {
        let damaged = |at| Error::Damaged(name.to_string(), at);
        let field = |at| word(bytes, at).ok_or(damaged(at)).map(|v| v as usize);
        if bytes.get(..2) != Some(&[0x9f, 0xeb]) {
            return Err(damaged(0));
        }
        let (header, type_off, type_len, str_off, str_len) =
            (field(4)?, field(8)?, field(12)?, field(16)?, field(20)?);
        let part = |off: usize, len: usize| {
            let from = header.checked_add(off)?;
            bytes.get(from..from.checked_add(len)?)
        };
        let data = part(type_off, type_len).ok_or(damaged(12))?.to_vec();
        let strings = part(str_off, str_len).ok_or(damaged(20))?.to_vec();
        let (first_id, first_string) = base
            .as_ref()
            .map_or((1, 0), |b| (b.first_id + b.types.len() as u32, b.first_string + b.strings.len() as u32));
        let mut types = Vec::with_capacity(data.len() / 24);
        let mut at = 0;
        while at + 12 <= data.len() {
            let (name_off, info, st) = (
                word(&data, at).unwrap_or(0),
                word(&data, at + 4).unwrap_or(0),
                word(&data, at + 8).unwrap_or(0),
            );
            let t = Type {
                name_off,
                kind: (info >> 24 & 31) as u8,
                kind_flag: info >> 31 != 0,
                vlen: (info & 0xffff) as u16,
                size_or_type: st,
                at: at as u32 + 12,
            };
            let n = t.vlen as usize;
            let extra = match t.kind {
                kind::INT | kind::VAR | kind::DECL_TAG => 4,
                kind::ARRAY => 12,
                kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * n,
                kind::ENUM | kind::FUNC_PROTO => 8 * n,
                1..=19 => 0,
                _ => return Err(damaged(header + at)),
            };
            types.push(t);
            at += 12 + extra;
        }
        Ok(Btf { name: name.to_string(), base, types, data, strings, first_id, first_string })
    }

    pub fn open(path: &Path, base: Option<Arc<Btf>>) -> Result<Btf, Error> {
        let bytes =
            std::fs::read(path).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        let name = path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        Btf::parse(&name, &bytes, base)
    }

    /// vmlinux and every loaded module that has BTF.
    pub fn running() -> Result<Vec<Arc<Btf>>, Error> {
        let dir = Path::new("/sys/kernel/btf");
        let base = Arc::new(Btf::open(&dir.join("vmlinux"), None)?);
        let mut all = vec![base.clone()];
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .map(|d| {
                d.flatten()
                    .map(|e| e.path())
                    .filter(|p| p.file_name().is_some_and(|n| n != "vmlinux"))
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        for p in names {
            // a module may go away while we look
            if let Ok(m) = Btf::open(&p, Some(base.clone())) {
                all.push(Arc::new(m));
            }
        }
        Ok(all)
    }

    /// Ids of the types of this object itself (not of its base).
    pub fn own_ids(&self) -> std::ops::Range<u32> {
        self.first_id..self.first_id + self.types.len() as u32
    }

    pub fn get(&self, id: u32) -> Option<&Type> {
        if id < self.first_id {
            return self.base.as_ref()?.get(id);
        }
        self.types.get((id - self.first_id) as usize)
    }

    pub fn str(&self, off: u32) -> &str {
        if off < self.first_string {
            return self.base.as_ref().map_or("", |b| b.str(off));
        }
        let rest = self.strings.get((off - self.first_string) as usize..).unwrap_or(&[]);
        let end = rest.iter().position(|c| *c == 0).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or("")
    }

    pub fn name_of(&self, id: u32) -> &str {
        self.get(id).map_or("", |t| self.str(t.name_off))
    }

    fn extra(&self, id: u32) -> Option<(&Btf, &Type)> {
        if id < self.first_id {
            return self.base.as_deref()?.extra(id);
        }
        Some((self, self.types.get((id - self.first_id) as usize)?))
    }

    fn words(&self, id: u32, per: usize) -> Vec<[u32; 3]> {
        let Some((b, t)) = self.extra(id) else { return Vec::new() };
        (0..t.vlen as usize)
            .map(|i| {
                let at = t.at as usize + i * per * 4;
                [0, 1, 2].map(|k| if k < per { word(&b.data, at + k * 4).unwrap_or(0) } else { 0 })
            })
            .collect()
    }

    /// Parameters of a FUNC_PROTO: (name offset, type).
    pub fn params(&self, proto: u32) -> Vec<(u32, u32)> {
        self.words(proto, 2).into_iter().map(|w| (w[0], w[1])).collect()
    }

    pub fn members(&self, id: u32) -> Vec<Member> {
        let flag = self.get(id).is_some_and(|t| t.kind_flag);
        self.words(id, 3)
            .into_iter()
            .map(|w| Member {
                name_off: w[0],
                type_id: w[1],
                bit_offset: if flag { w[2] & 0xff_ffff } else { w[2] },
                bits: if flag { (w[2] >> 24) as u8 } else { 0 },
            })
            .collect()
    }

    /// Byte offset of a member, looked for in anonymous inner structures too.
    pub fn member_offset(&self, id: u32, name: &str) -> Option<u32> {
        self.member_of(id, name).map(|(at, _)| at)
    }

    /// Byte offset and type of a member.
    pub fn member_of(&self, id: u32, name: &str) -> Option<(u32, u32)> {
        self.member(id, name, NESTED, &mut { MOST_MEMBERS }).map(|f| (f.bit_offset / 8, f.type_id))
    }

    /// The same of a member of one bit: its byte, and which bit of that it is.
    pub fn bit_of(&self, id: u32, name: &str) -> Option<(u32, u8)> {
        self.member(id, name, NESTED, &mut { MOST_MEMBERS })
            .map(|f| (f.bit_offset / 8, (f.bit_offset % 8) as u8))
    }

    /// Byte offset and type of what a path such as `sk.__sk_common.skc_dport` leads to, within one structure.
    pub fn path(&self, id: u32, path: &str) -> Option<(u32, u32)> {
        path.split('.').try_fold((0u32, id), |(at, id), name| {
            let (more, inner) = self.member_of(self.strip(id), name)?;
            Some((at.checked_add(more)?, inner))
        })
    }

    /// The same with what tells a bit field from a whole number.
    pub fn field(&self, id: u32, path: &str) -> Option<Field> {
        let start = Field { bit_offset: 0, type_id: id, bits: 0 };
        path.split('.').try_fold(start, |outer, name| {
            let inner = self.member(self.strip(outer.type_id), name, NESTED, &mut { MOST_MEMBERS })?;
            Some(Field { bit_offset: outer.bit_offset.checked_add(inner.bit_offset)?, ..inner })
        })
    }

    fn member(&self, id: u32, name: &str, levels: u8, left: &mut u32) -> Option<Field> {
        for m in self.members(id) {
            *left = left.checked_sub(1)?;
            let own = self.str(m.name_off);
            if own == name {
                return Some(Field { bit_offset: m.bit_offset, type_id: m.type_id, bits: m.bits });
            }
            if !own.is_empty() || levels == 0 {
                continue;
            }
            let inner = self.strip(m.type_id);
            if !self.get(inner).is_some_and(|t| matches!(t.kind, kind::STRUCT | kind::UNION)) {
                continue;
            }
            if let Some(f) = self.member(inner, name, levels - 1, left) {
                return Some(Field { bit_offset: m.bit_offset.checked_add(f.bit_offset)?, ..f });
            }
        }
        None
    }

    /// Element type and count of an ARRAY.
    pub fn array(&self, id: u32) -> Option<(u32, u32)> {
        let (b, t) = self.extra(id)?;
        Some((word(&b.data, t.at as usize)?, word(&b.data, t.at as usize + 8)?))
    }

    /// Of an INT or ENUM: has it a sign?
    pub fn is_signed(&self, id: u32) -> bool {
        const SIGNED: u32 = 1 << 24;
        match self.extra(id) {
            Some((b, t)) if t.kind == kind::INT => {
                word(&b.data, t.at as usize).is_some_and(|w| w & SIGNED != 0)
            }
            Some((_, t)) => matches!(t.kind, kind::ENUM | kind::ENUM64) && t.kind_flag,
            None => false,
        }
    }

    /// Names and values of an ENUM (32 bit).
    pub fn enum_values(&self, id: u32) -> Vec<(String, i32)> {
        self.words(id, 2).into_iter().map(|w| (self.str(w[0]).to_string(), w[1] as i32)).collect()
    }

    /// Without typedefs and qualifiers.
    pub fn strip(&self, mut id: u32) -> u32 {
        for _ in 0..64 {
            match self.get(id) {
                Some(t)
                    if matches!(
                        t.kind,
                        kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG
                    ) =>
                {
                    id = t.size_or_type;
                }
                _ => break,
            }
        }
        id
    }

    /// Levels of pointer taken off, and what they point to.
    pub fn pointee(&self, id: u32) -> (u32, u32) {
        let (mut id, mut levels) = (self.strip(id), 0);
        while let Some(t) = self.get(id)
            && t.kind == kind::PTR
            && levels < 8
        {
            levels += 1;
            id = self.strip(t.size_or_type);
        }
        (levels, id)
    }

    /// First own type of that kind and name.
    pub fn find(&self, k: u8, name: &str) -> Option<u32> {
        self.own_ids().find(|id| self.get(*id).is_some_and(|t| t.kind == k && self.str(t.name_off) == name))
    }

    /// Size in bytes of a struct, union or integer.
    pub fn size_of(&self, id: u32) -> u32 {
        self.get(self.strip(id)).map_or(0, |t| match t.kind {
            kind::STRUCT | kind::UNION | kind::INT | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                t.size_or_type
            }
            kind::PTR => 8,
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_knows_sk_buff() {
        let all = Btf::running().expect("this kernel has BTF");
        let v = &all[0];
        let id = v.find(kind::STRUCT, "sk_buff").expect("sk_buff");
        let members: Vec<&str> = v.members(id).iter().map(|m| v.str(m.name_off)).collect::<Vec<_>>();
        assert!(members.contains(&"len") && members.contains(&"head"), "{members:?}");
        let (at, _) = v.path(id, "users.refs.counter").expect("through structures with names");
        assert_eq!(Some(at), v.member_offset(id, "users"));
        assert!(v.member_offset(id, "next").is_some(), "through structures without names");
        let reasons = v.find(kind::ENUM, "skb_drop_reason").expect("drop reasons");
        assert!(v.enum_values(reasons).iter().any(|(n, _)| n == "SKB_DROP_REASON_NO_SOCKET"));
    }

    /// A structure of many members without a name, each of which is the structure itself.
    #[test]
    fn a_structure_within_itself_ends() {
        let n = 2000u32;
        let words = [1, u32::from(kind::STRUCT) << 24 | n, 8];
        let mut types: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        types.extend((0..n).flat_map(|_| [0u32, 1, 0]).flat_map(u32::to_le_bytes));
        let strings = b"\0own\0";
        let mut all: Vec<u8> =
            [0x0001_eb9f, 24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
        all.extend(types.iter().chain(strings));
        let b = Btf::parse("own", &all, None).expect("well formed");
        assert_eq!(b.find(kind::STRUCT, "own"), Some(1));
        let began = std::time::Instant::now();
        assert_eq!((b.member_offset(1, "x"), b.path(1, "x.y")), (None, None));
        assert!(began.elapsed().as_secs() < 10);
    }

    #[test]
    fn damage_is_an_error_or_fewer_types() {
        let good = std::fs::read("/sys/kernel/btf/vmlinux").expect("BTF");
        let small = &good[..24];
        assert!(Btf::parse("x", small, None).is_err());
        assert!(Btf::parse("x", b"", None).is_err());
        assert!(Btf::parse("x", b"\x7fELF....................", None).is_err());
        let mut wild = good[..4096.min(good.len())].to_vec();
        for at in 0..wild.len().min(200) {
            let was = wild[at];
            wild[at] = 0xff;
            if let Ok(b) = Btf::parse("x", &wild, None) {
                for id in b.own_ids() {
                    let _ = (b.members(id), b.name_of(id).len(), b.strip(id));
                }
            }
            wild[at] = was;
        }
    }
}
