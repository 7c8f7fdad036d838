//! The guest's loaded modules: the list `modules`, walked by the kernel's own description of its types.

use super::table::Builder;
use crate::error::{Error, Result};
use crate::memory::Memory;
use kpat_btf::{Btf, kind};

const MOST_MODULES: usize = 4096;
const MOST_SYMBOLS: u64 = 1 << 20;
const MOST_STRINGS: u64 = 16 << 20;
/// Of all modules' memory: text, data, read-only data ...
const MOST_PARTS: u32 = 16;
/// `MODULE_STATE_UNFORMED`: it is still being loaded.
const UNFORMED: u32 = 3;
const NAME: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Of its code.
    pub base: u64,
    /// Of all that it has in memory.
    pub size: u64,
    pub(super) parts: Vec<(u64, u64)>,
    /// Of its `struct module`.
    pub(super) at: u64,
}

impl Module {
    pub fn contains(&self, address: u64) -> bool {
        self.parts.iter().any(|(at, len)| address.checked_sub(*at).is_some_and(|o| o < *len))
    }
}

/// Where members are.
struct Shape {
    list: u64,
    name: u64,
    state: u64,
    kallsyms: u64,
    symtab: u64,
    num_symtab: u64,
    strtab: u64,
    typetab: Option<u64>,
    /// (base, size) of each part.
    parts: Vec<(u64, u64)>,
}

impl Shape {
    fn of(btf: &Btf) -> Result<Shape> {
        let id = |name: &str| {
            btf.find(kind::STRUCT, name)
                .ok_or_else(|| Error::Unsupported(format!("the guest's kernel has no struct {name}")))
        };
        let module = id("module")?;
        let tables = id("mod_kallsyms")?;
        let at = |id: u32, path: &str| {
            btf.path(id, path)
                .map(|(at, _)| u64::from(at))
                .ok_or_else(|| Error::Unsupported(format!("struct {} has no {path}", btf.name_of(id))))
        };
        let mut parts = Vec::new();
        // One array since 6.4, before that one structure for what stays and one for what is for init only.
        if let Some((start, array)) = btf.path(module, "mem")
            && let Some((element, n)) = btf.array(btf.strip(array))
        {
            let (base, size) = (at(btf.strip(element), "base")?, at(btf.strip(element), "size")?);
            let each = u64::from(btf.size_of(element));
            parts.extend(
                (0..n.min(MOST_PARTS))
                    .map(|i| u64::from(start) + u64::from(i) * each)
                    .map(|s| (s + base, s + size)),
            );
        } else {
            for part in ["core_layout", "init_layout"] {
                parts.push((at(module, &format!("{part}.base"))?, at(module, &format!("{part}.size"))?));
            }
        }
        Ok(Shape {
            list: at(module, "list")?,
            name: at(module, "name")?,
            state: at(module, "state")?,
            kallsyms: at(module, "kallsyms")?,
            symtab: at(tables, "symtab")?,
            num_symtab: at(tables, "num_symtab")?,
            strtab: at(tables, "strtab")?,
            typetab: at(tables, "typetab").ok(),
            parts,
        })
    }
}

/// All modules, newest first, their symbols added to `into`, if that is given.
pub fn read(memory: &Memory, btf: &Btf, list: u64, mut into: Option<&mut Builder>) -> Result<Vec<Module>> {
    let shape = Shape::of(btf)?;
    let mut all = Vec::new();
    let mut next = memory.u64_at(list)?;
    while next != list {
        if all.len() == MOST_MODULES || into.as_ref().is_some_and(|i| i.full()) {
            return Err(Error::damaged("the list of modules", "it does not end"));
        }
        let at = next.wrapping_sub(shape.list);
        // A module that is being removed may be gone by now: what was read so far is good.
        let Ok(follows) = memory.u64_at(next) else { break };
        next = follows;
        if memory.u32_at(at.wrapping_add(shape.state))? == UNFORMED {
            continue;
        }
        let name = memory.string_at(at.wrapping_add(shape.name), NAME)?;
        let mut parts = Vec::new();
        for (base, size) in &shape.parts {
            parts.push((
                memory.u64_at(at.wrapping_add(*base))?,
                u64::from(memory.u32_at(at.wrapping_add(*size))?),
            ));
        }
        if let Some(into) = into.as_deref_mut() {
            let number = all.len() as u16 + 1;
            // Without its symbols it is still a module.
            let _ = symbols(memory, &shape, memory.u64_at(at.wrapping_add(shape.kallsyms))?, number, into);
        }
        all.push(Module {
            name: String::from_utf8_lossy(&name).into_owned(),
            base: parts.first().map_or(0, |p| p.0),
            size: parts.iter().fold(0u64, |s, p| s.saturating_add(p.1)),
            parts: parts.into_iter().filter(|p| p.1 != 0).collect(),
            at,
        });
    }
    Ok(all)
}

/// The ELF symbols that the kernel kept of a module.
fn symbols(memory: &Memory, shape: &Shape, tables: u64, module: u16, into: &mut Builder) -> Result<()> {
    const ENTRY: usize = 24;
    let n = memory.u32_at(tables.wrapping_add(shape.num_symtab))?;
    if u64::from(n) > MOST_SYMBOLS {
        return Err(Error::damaged("a module's symbols", format!("there are {n}")));
    }
    let mut table = vec![0; n as usize * ENTRY];
    memory.read(memory.u64_at(tables.wrapping_add(shape.symtab))?, &mut table)?;
    let mut kinds = vec![b'?'; n as usize];
    if let Some(t) = shape.typetab {
        memory.read(memory.u64_at(tables.wrapping_add(t))?, &mut kinds)?;
    }
    let strings = memory.u64_at(tables.wrapping_add(shape.strtab))?;
    let field =
        |e: &[u8], at: usize, len: usize| e[at..at + len].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    // The strings lie together: one reading up to the last, and a little more for its end.
    let last = table.chunks_exact(ENTRY).map(|e| field(e, 0, 4)).max().unwrap_or(0);
    if last > MOST_STRINGS {
        return Err(Error::damaged("a module's symbols", "a name is far away"));
    }
    let mut names = vec![0; last as usize];
    memory.read(strings, &mut names)?;
    names.extend(memory.string_at(strings.wrapping_add(last), 512)?);
    names.push(0);
    for (e, kind) in table.chunks_exact(ENTRY).zip(kinds) {
        let from = field(e, 0, 4) as usize;
        let Some(len) = names.get(from..).and_then(|rest| memchr::memchr(0, rest)) else { continue };
        // The first is nothing; and so is one without a name.
        if len > 0 {
            into.add(field(e, 8, 8), kind, &names[from..from + len], module);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::symbols::{Module, Symbols};

    #[test]
    fn code_of_a_module_goes_with_it() {
        let symbols = Symbols { base: 0x8000, end: 0x9000, ..Symbols::none() };
        let module = |base: u64| Module {
            name: "tun".into(),
            base,
            size: 0x300,
            parts: vec![(base, 0x100), (base + 0x1000, 0x200)],
            at: 0,
        };
        let now = [module(0xa000), module(0xc000)];
        for there in [0x8000, 0x8fff, 0xa000, 0xa0ff, 0xb000, 0xd1ff] {
            assert!(!symbols.is_gone(there, &now), "{there:#x}");
        }
        for gone in [0x7fff, 0x9000, 0xa100, 0xb200, 0xe000] {
            assert!(symbols.is_gone(gone, &now), "{gone:#x}");
        }
    }
}
