//! The modules of a guest by three ways that its kernel keeps apart: the list that `/proc/modules` shows, the folder `/sys/module`, and the tree in which it looks for whose code an
//! address is. Who hides a module takes it out of the list, often out of the folder, and seldom out of the tree: without that its code has no owner when it faults.

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::Memory;
use crate::symbols::Symbols;
use kpat_btf::kind;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

const MOST: usize = 1 << 14;
const LOOKS: usize = 3;
/// `enum module_state`: live, coming, going, unformed.
const UNFORMED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Of its `struct module`.
    pub address: u64,
    pub name: String,
    /// Where its code is, and how many bytes it has in memory in all.
    pub base: u64,
    pub size: u64,
    /// `None`: its state is none that the kernel has.
    pub state: Option<State>,
    /// Who uses it, without itself; `None`: it is being unloaded.
    pub users: Option<u32>,
    pub listed: bool,
    /// `None`: the guest's kernel keeps no such thing, or its types do not say where.
    pub in_sysfs: Option<bool>,
    pub in_tree: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Live,
    Coming,
    Going,
}

impl Loaded {
    /// One way has it and another has not.
    pub fn hidden(&self) -> bool {
        let ways = [Some(self.listed), self.in_sysfs, self.in_tree];
        ways.contains(&Some(true)) && ways.contains(&Some(false))
    }
}

/// All modules, by the address of their code. What looks hidden is looked at again: modules come and go.
pub fn modules(guest: &Guest) -> Result<Vec<Loaded>> {
    let look = Look { memory: guest.memory(), symbols: guest.symbols()? };
    let mut all = look.once()?;
    for _ in 1..LOOKS {
        let suspects: HashSet<u64> = all.iter().filter(|(_, m)| m.hidden()).map(|(a, _)| *a).collect();
        if suspects.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        all = look.once()?;
        // One that was not suspected before has come or gone just now.
        all.retain(|a, m| !m.hidden() || suspects.contains(a));
    }
    let mut rows: Vec<Loaded> = all.into_values().collect();
    rows.sort_by_key(|m| (m.base, m.address));
    Ok(rows)
}

struct Look<'g> {
    memory: &'g Memory,
    symbols: &'g Symbols,
}

impl Look<'_> {
    fn once(&self) -> Result<BTreeMap<u64, Loaded>> {
        let listed = self.listed()?;
        let (sysfs, tree) = (self.sysfs().ok(), self.tree().ok());
        let mut all = BTreeMap::new();
        for at in [&listed].into_iter().chain(&sysfs).chain(&tree).flatten() {
            // One that is gone by now, or not there yet.
            if !all.contains_key(at)
                && let Ok(Some(mut module)) = self.module(*at)
            {
                module.listed = listed.contains(at);
                module.in_sysfs = sysfs.as_ref().map(|found| found.contains(at));
                module.in_tree = tree.as_ref().map(|found| found.contains(at));
                all.insert(*at, module);
            }
        }
        Ok(all)
    }

    fn offset(&self, path: &str) -> Result<u64> {
        self.symbols.offset(path)
    }

    fn variable(&self, name: &str) -> Result<u64> {
        self.symbols
            .address(name)
            .ok_or_else(|| Error::Unsupported(format!("the guest's kernel has no {name}")))
    }

    /// What hangs in a list, by the address of the link in it.
    fn links(&self, head: u64) -> Result<Vec<u64>> {
        let (mut all, mut next) = (Vec::new(), self.memory.u64_at(head)?);
        while next != head {
            if all.len() == MOST {
                return Err(Error::damaged("a list of modules", "it does not end"));
            }
            all.push(next);
            next = self.memory.u64_at(next)?;
        }
        Ok(all)
    }

    fn listed(&self) -> Result<HashSet<u64>> {
        let link = self.offset("module.list")?;
        Ok(self.links(self.variable("modules")?)?.into_iter().map(|at| at.wrapping_sub(link)).collect())
    }

    /// By the objects behind `/sys/module`; the kernel's own parts have some there, too, without a module.
    fn sysfs(&self) -> Result<HashSet<u64>> {
        let set = self.memory.u64_at(self.variable("module_kset")?)?;
        let entry = self.offset("module_kobject.kobj")?.wrapping_add(self.offset("kobject.entry")?);
        let of = self.offset("module_kobject.mod")?;
        let mut found = HashSet::new();
        for link in self.links(set.wrapping_add(self.offset("kset.list")?))? {
            let module = self.memory.u64_at(link.wrapping_sub(entry).wrapping_add(of))?;
            if module != 0 {
                found.insert(module);
            }
        }
        Ok(found)
    }

    /// The first of the two trees of which one is always whole.
    fn tree(&self) -> Result<HashSet<u64>> {
        let root = self.variable("mod_tree")?.wrapping_add(self.offset("mod_tree_root.root.tree")?);
        let node = self.offset("mod_tree_node.node.node")?;
        let module = self.offset("mod_tree_node.mod")?;
        let (left, right) = (self.offset("rb_node.rb_left")?, self.offset("rb_node.rb_right")?);
        let (mut found, mut seen) = (HashSet::new(), HashSet::new());
        let mut open = vec![self.memory.u64_at(root.wrapping_add(self.offset("rb_root.rb_node")?))?];
        while let Some(at) = open.pop() {
            if at == 0 {
                continue;
            }
            if seen.len() == MOST || !seen.insert(at) {
                return Err(Error::damaged("the tree of modules", "a node is below itself"));
            }
            found.insert(self.memory.u64_at(at.wrapping_sub(node).wrapping_add(module))?);
            open.push(self.memory.u64_at(at.wrapping_add(left))?);
            open.push(self.memory.u64_at(at.wrapping_add(right))?);
        }
        found.remove(&0);
        Ok(found)
    }

    /// `None`: it is no module yet.
    fn module(&self, at: u64) -> Result<Option<Loaded>> {
        let member = |path: &str| -> Result<u64> { Ok(at.wrapping_add(self.offset(path)?)) };
        let state = self.memory.u32_at(member("module.state")?)?;
        if state == UNFORMED {
            return Ok(None);
        }
        let name = self.memory.string_at(member("module.name")?, 64)?;
        let parts = self.parts(at)?;
        // The kernel keeps one use of its own until it unloads the module.
        let users = self.memory.u32_at(member("module.refcnt")?).ok().and_then(|n| n.checked_sub(1));
        Ok(Some(Loaded {
            address: at,
            name: String::from_utf8_lossy(&name).into_owned(),
            base: parts.first().map_or(0, |p| p.0),
            size: parts.iter().fold(0, |sum, p| sum.saturating_add(p.1)),
            state: [State::Live, State::Coming, State::Going].get(state as usize).copied(),
            users,
            listed: false,
            in_sysfs: None,
            in_tree: None,
        }))
    }

    /// Where its memory is, the code first: an array since 6.4, before that one structure for what stays and one for what is for init only.
    fn parts(&self, at: u64) -> Result<Vec<(u64, u64)>> {
        let read = |base: u64, size: u64| -> Result<(u64, u64)> {
            Ok((self.memory.u64_at(base)?, u64::from(self.memory.u32_at(size)?)))
        };
        let Ok((first, whole)) = self.symbols.member("module.mem") else {
            let parts = ["core_layout", "init_layout"].map(|part| -> Result<(u64, u64)> {
                let member = |name: &str| self.offset(&format!("module.{part}.{name}"));
                read(at.wrapping_add(member("base")?), at.wrapping_add(member("size")?))
            });
            return parts.into_iter().collect();
        };
        let each = self.symbols.btf().and_then(|b| Some(b.size_of(b.find(kind::STRUCT, "module_memory")?)));
        let each = u64::from(each.unwrap_or(0)).max(1);
        let (base, size) = (self.offset("module_memory.base")?, self.offset("module_memory.size")?);
        (0..(whole / each).min(16))
            .map(|n| at.wrapping_add(first).wrapping_add(n * each))
            .map(|part| read(part.wrapping_add(base), part.wrapping_add(size)))
            .collect()
    }
}
