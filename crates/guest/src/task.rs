//! The guest's processes, out of its kernel's memory: by the list of all tasks, and by the numbers that `/proc` and `ps` go by.
//!
//! The guest goes on meanwhile. A task that ends while it is read is left out; a list that changed under the walk is walked again.

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::Memory;
use crate::symbols::Symbols;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// More tasks than any kernel allows numbers for.
const MOST: usize = 4 << 20;
/// Nodes of the tree of numbers: one for each 64, and those above.
const MOST_NODES: usize = MOST / 32;
const COMM: usize = 16;
const PF_KTHREAD: u32 = 0x20_0000;
const MOST_CPUS: u64 = 8192;
const LOOKS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Of its `task_struct`.
    pub address: u64,
    /// Of the thread.
    pub pid: u32,
    /// Of its process: the `pid` of the first thread.
    pub tgid: u32,
    /// Of the process that started it; 0: nobody.
    pub parent: u32,
    pub comm: String,
    pub kernel_thread: bool,
}

/// A process, and by which of both ways it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub task: Task,
    /// Threads by number; 0: it has no number.
    pub threads: u32,
    /// In the list of all tasks, from which the scheduler's users and the OOM killer pick.
    pub listed: bool,
    /// By its number: what `/proc`, `ps` and `kill` of the guest find.
    pub numbered: bool,
}

impl Process {
    /// One way shows it and the other does not: somebody hides it.
    pub fn hidden(&self) -> bool {
        self.listed != self.numbered
    }
}

/// Where members are, found once.
struct Shape {
    pid: u64,
    tgid: u64,
    comm: u64,
    flags: u64,
    tasks: u64,
    real_parent: u64,
    pid_links: u64,
    /// Of `struct pid`: the first task with this number.
    pid_tasks: u64,
    tree: u64,
    node_shift: u64,
    node_slots: u64,
    slots: u64,
}

/// Looks at the tasks of one guest.
pub struct Tasks<'g> {
    guest: &'g Guest,
    memory: &'g Memory,
    symbols: &'g Symbols,
    shape: Shape,
}

impl<'g> Tasks<'g> {
    pub fn new(guest: &'g Guest) -> Result<Tasks<'g>> {
        let s = guest.symbols()?;
        let node_slots = s.member("xa_node.slots")?;
        let shape = Shape {
            pid: s.offset("task_struct.pid")?,
            tgid: s.offset("task_struct.tgid")?,
            comm: s.offset("task_struct.comm")?,
            flags: s.offset("task_struct.flags")?,
            tasks: s.offset("task_struct.tasks")?,
            real_parent: s.offset("task_struct.real_parent")?,
            pid_links: s.offset("task_struct.pid_links")?,
            pid_tasks: s.offset("pid.tasks")?,
            tree: s.offset("pid_namespace.idr.idr_rt.xa_head")?,
            node_shift: s.offset("xa_node.shift")?,
            node_slots: node_slots.0,
            slots: (node_slots.1 / 8).min(64),
        };
        Ok(Tasks { guest, memory: guest.memory(), symbols: s, shape })
    }

    /// What to add to a processor's per-CPU base (GS in the kernel) for the place of its current task's address.
    pub fn current_offset(&self) -> Result<u64> {
        // A variable of its own up to 6.1 and again since 6.15, between them a member of one.
        if let Some(hot) = self.symbols.address("pcpu_hot") {
            return Ok(hot.wrapping_add(self.symbols.offset("pcpu_hot.current_task")?));
        }
        self.symbols
            .address("current_task")
            .ok_or_else(|| Error::Unsupported("the guest's kernel does not say which task runs".into()))
    }

    /// The per-CPU base of a virtual processor.
    pub fn per_cpu_base(&self, vcpu: u32) -> Result<u64> {
        let table = self
            .symbols
            .address("__per_cpu_offset")
            .ok_or_else(|| Error::Unsupported("the guest's kernel has no __per_cpu_offset".into()))?;
        let number =
            self.symbols.address("nr_cpu_ids").and_then(|at| self.memory.u32_at(at).ok()).unwrap_or(1);
        let number = u64::from(number).clamp(1, MOST_CPUS);
        let gs = self.guest.registers(vcpu)?.gs_base;
        // Linux need not number processors as QEMU does; in the kernel GS says which it is.
        for cpu in 0..number {
            if self.memory.u64_at(table + cpu * 8)? == gs {
                return Ok(gs);
            }
        }
        if u64::from(vcpu) >= number {
            return Err(Error::Unsupported(format!("Linux does not use processor {vcpu}")));
        }
        self.memory.u64_at(table + u64::from(vcpu) * 8)
    }

    /// The task that a virtual processor runs now.
    pub fn current(&self, vcpu: u32) -> Result<Task> {
        let at = self.per_cpu_base(vcpu)?.wrapping_add(self.current_offset()?);
        self.at(self.memory.u64_at(at)?)
    }

    /// The task whose `task_struct` is there.
    pub fn at(&self, address: u64) -> Result<Task> {
        let m = self.memory;
        let s = &self.shape;
        let at = |member: u64| address.wrapping_add(member);
        let mut comm = [0; COMM];
        m.read(at(s.comm), &mut comm)?;
        let end = comm.iter().position(|b| *b == 0).unwrap_or(COMM);
        let parent = m.u64_at(at(s.real_parent)).and_then(|p| m.u32_at(p.wrapping_add(s.tgid))).unwrap_or(0);
        Ok(Task {
            address,
            pid: m.u32_at(at(s.pid))?,
            tgid: m.u32_at(at(s.tgid))?,
            parent,
            comm: String::from_utf8_lossy(&comm[..end]).into_owned(),
            kernel_thread: m.u32_at(at(s.flags))? & PF_KTHREAD != 0,
        })
    }

    /// The first thread of each process, by the list of all tasks, without the idle task.
    pub fn listed(&self) -> Result<Vec<Task>> {
        let first = self
            .symbols
            .address("init_task")
            .ok_or_else(|| Error::Unsupported("the guest's kernel has no init_task".into()))?;
        let mut last = Error::damaged("the list of tasks", "it changed at each look");
        for _ in 0..LOOKS {
            match self.walk(first.wrapping_add(self.shape.tasks)) {
                Ok(all) => return Ok(all),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn walk(&self, head: u64) -> Result<Vec<Task>> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        let mut next = self.memory.u64_at(head)?;
        while next != head {
            if !seen.insert(next) || all.len() == MOST {
                return Err(Error::damaged("the list of tasks", "it does not come back to its beginning"));
            }
            let task = self.at(next.wrapping_sub(self.shape.tasks))?;
            all.push(task);
            next = self.memory.u64_at(next)?;
        }
        Ok(all)
    }

    /// Every thread that has a number in the first namespace, by number.
    pub fn numbered(&self) -> Result<Vec<Task>> {
        let space = self
            .symbols
            .address("init_pid_ns")
            .ok_or_else(|| Error::Unsupported("the guest's kernel has no init_pid_ns".into()))?;
        let mut pids = Vec::new();
        let mut nodes = 0;
        self.entries(
            self.memory.u64_at(space.wrapping_add(self.shape.tree))?,
            u8::MAX,
            &mut nodes,
            &mut pids,
        )?;
        let mut all = Vec::new();
        for pid in pids {
            // A number may be a group's or a session's whose process is gone, or end while we look.
            let Ok(link) = self.memory.u64_at(pid.wrapping_add(self.shape.pid_tasks)) else { continue };
            if link != 0
                && let Ok(t) = self.at(link.wrapping_sub(self.shape.pid_links))
            {
                all.push(t);
            }
        }
        Ok(all)
    }

    /// What hangs below an entry of the tree; each level has a smaller shift than the one above.
    fn entries(&self, entry: u64, above: u8, nodes: &mut usize, found: &mut Vec<u64>) -> Result<()> {
        if entry & 3 != 2 {
            // Zero is nothing, odd ones are no pointers.
            if entry != 0 && entry & 1 == 0 {
                found.push(entry);
            }
            return Ok(());
        }
        *nodes += 1;
        let node = entry - 2;
        let mut shift = [0];
        self.memory.read(node.wrapping_add(self.shape.node_shift), &mut shift)?;
        if shift[0] >= above || *nodes > MOST_NODES {
            return Err(Error::damaged("the tree of process numbers", "a node is below itself"));
        }
        let mut slots = vec![0; self.shape.slots as usize * 8];
        self.memory.read(node.wrapping_add(self.shape.node_slots), &mut slots)?;
        for slot in slots.chunks_exact(8) {
            let slot = slot.try_into().map_or(0, u64::from_le_bytes);
            // Small internal entries are marks, no nodes.
            if slot & 3 == 2 && slot < 4096 {
                continue;
            }
            self.entries(slot, shift[0], nodes, found)?;
        }
        Ok(())
    }

    /// Processes by both ways. What only one way shows is looked at again, so that those that begin or end meanwhile are not
    /// taken for hidden ones.
    pub fn processes(&self) -> Result<Vec<Process>> {
        let mut all = self.once()?;
        for _ in 1..LOOKS {
            if !all.values().any(Process::hidden) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            let again = self.once()?;
            let suspects: BTreeSet<u64> = all.iter().filter(|(_, p)| p.hidden()).map(|(a, _)| *a).collect();
            all = again
                .into_iter()
                .map(|(a, mut p)| {
                    if p.hidden() && !suspects.contains(&a) {
                        (p.listed, p.numbered) = (true, true);
                    }
                    (a, p)
                })
                .collect();
        }
        let mut rows: Vec<Process> = all.into_values().collect();
        rows.sort_by_key(|p| (p.task.tgid, p.task.address));
        Ok(rows)
    }

    /// By the address of the first thread.
    fn once(&self) -> Result<BTreeMap<u64, Process>> {
        let numbered = self.numbered()?;
        let mut all: BTreeMap<u64, Process> = BTreeMap::new();
        for task in self.listed()? {
            all.insert(task.address, Process { task, threads: 0, listed: true, numbered: false });
        }
        let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
        for task in numbered {
            *threads.entry(task.tgid).or_default() += 1;
            if task.pid == task.tgid {
                let new = Process { task, threads: 0, listed: false, numbered: true };
                all.entry(new.task.address).and_modify(|p| p.numbered = true).or_insert(new);
            }
        }
        for p in all.values_mut() {
            p.threads = threads.get(&p.task.tgid).copied().unwrap_or(0);
        }
        Ok(all)
    }
}
