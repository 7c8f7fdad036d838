//! One guest, attached.

use crate::discover;
use crate::error::{Error, Result};
use crate::gdb::Gdb;
use crate::life::Events;
use crate::memory::Memory;
use crate::qmp::Qmp;
use crate::registers::Registers;
use crate::symbols::Symbols;
use crate::task::Tasks;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Which guest.
#[derive(Clone, Debug)]
pub enum Target {
    /// The socket of its QEMU's machine protocol.
    Qmp(PathBuf),
    /// The process of its QEMU.
    Pid(u32),
    /// As `-name` has it.
    Name(String),
}

impl Target {
    /// What somebody typed: a path, a process or a name.
    pub fn parse(text: &str) -> Target {
        if text.contains('/') {
            return Target::Qmp(text.into());
        }
        text.parse().map_or_else(|_| Target::Name(text.into()), Target::Pid)
    }
}

pub struct Guest {
    qmp: Arc<Qmp>,
    pid: u32,
    name: String,
    accelerator: Accelerator,
    vcpus: u32,
    threads: Vec<u32>,
    memory: OnceLock<Memory>,
    symbols: OnceLock<Symbols>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    /// Emulation. Code that is written behind QEMU's back is not executed: use the debugger's interface for it.
    Tcg,
}

impl Guest {
    /// Connects to the guest's QEMU and reads where its memory is. Nothing in the guest changes.
    pub fn attach(target: &Target) -> Result<Guest> {
        let guest = Guest::connect(target)?;
        guest.open_memory()?;
        Ok(guest)
    }

    /// The same without memory, for guests whose memory cannot be read.
    pub fn connect(target: &Target) -> Result<Guest> {
        let qmp = match target {
            Target::Qmp(path) => Qmp::connect(path)?,
            Target::Pid(pid) => discover::connect(&discover::one(*pid)?)?,
            Target::Name(name) => discover::connect(&discover::named(name)?)?,
        };
        let pid = discover::process_of(&qmp)?;
        let text = |command: &str, key: &str| -> Result<Option<String>> {
            Ok(qmp.command(command, serde_json::json!({}))?[key].as_str().map(str::to_owned))
        };
        let name = text("query-name", "name")?.unwrap_or_default();
        let kvm = qmp.command("query-kvm", serde_json::json!({}))?["enabled"].as_bool() == Some(true);
        let cpus = qmp.command("query-cpus-fast", serde_json::json!({}))?;
        let vcpus = cpus.as_array().map_or(1, |a| a.len() as u32).max(1);
        let threads =
            cpus.as_array().into_iter().flatten().filter_map(|c| c["thread-id"].as_u64()?.try_into().ok());
        let accelerator = if kvm { Accelerator::Kvm } else { Accelerator::Tcg };
        Ok(Guest {
            qmp: Arc::new(qmp),
            pid,
            name,
            accelerator,
            vcpus,
            threads: threads.collect(),
            memory: OnceLock::new(),
            symbols: OnceLock::new(),
        })
    }

    /// Opens the memory of a guest that was only connected to.
    pub fn open_memory(&self) -> Result<&Memory> {
        if let Some(m) = self.memory.get() {
            return Ok(m);
        }
        // A processor that has not started yet has no page tables; the first has.
        let memory = again(|_| Memory::open(&self.qmp, self.pid, &self.registers(0)?))?;
        Ok(self.memory.get_or_init(|| memory))
    }

    /// Panics on a guest that was only connected to and whose memory is not open.
    pub fn memory(&self) -> &Memory {
        self.memory.get().expect("attached with memory")
    }

    pub fn qmp(&self) -> &Arc<Qmp> {
        &self.qmp
    }

    /// The symbols of its Linux, read at the first call: 0.1 to 0.3 s. Of modules loaded later see [`Guest::fresh_symbols`].
    pub fn symbols(&self) -> Result<&Symbols> {
        if let Some(s) = self.symbols.get() {
            return Ok(s);
        }
        let symbols = self.fresh_symbols()?;
        Ok(self.symbols.get_or_init(|| symbols))
    }

    /// Reads them anew.
    pub fn fresh_symbols(&self) -> Result<Symbols> {
        again(|before| {
            let registers = self.registers(0)?;
            if before > 0 && self.symbols.get().is_none() {
                self.memory().look_again(&registers)?;
            }
            Symbols::read(self.memory(), &registers)
        })
    }

    /// Uses these in place of its own, if none were read yet: for a kernel without a table in its memory.
    pub fn use_symbols(&self, symbols: Symbols) -> bool {
        self.symbols.set(symbols).is_ok()
    }

    /// Takes source lines of its Linux from a file with debug information, vmlinux or a module: places may then be `file.c:12`. A file of another build is
    /// refused.
    pub fn debug_file(&self, path: &Path) -> Result<()> {
        self.symbols()?.debug_file(path, Some(self.memory()))
    }

    /// Its processes.
    pub fn tasks(&self) -> Result<Tasks<'_>> {
        Tasks::new(self)
    }

    /// What happens to it as a whole: it ends, begins anew, stops, moves.
    pub fn events(&self) -> Events<'_> {
        Events::new(self)
    }

    /// A session of QEMU's debugger interface: the guest is stopped until it is resumed there, or the session ends.
    pub fn gdb(&self) -> Result<Gdb> {
        Gdb::start(&self.qmp)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// By `-name`; empty if it has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    /// Threads of its QEMU that run its processors; one may run several.
    pub fn vcpu_threads(&self) -> Vec<u32> {
        self.threads.clone()
    }

    /// Of one processor, now; see [`crate::registers`] for what "now" means under emulation.
    pub fn registers(&self, vcpu: u32) -> Result<Registers> {
        if vcpu >= self.vcpus {
            return Err(Error::Unsupported(format!(
                "the guest has {} processors, no number {vcpu}",
                self.vcpus
            )));
        }
        Registers::parse(&self.qmp.monitor_of("info registers", Some(vcpu))?)
    }
}

/// A processor is asked for its page tables, and they are read: the process that they are of may have ended between the two, and its memory be another's.
fn again<T>(mut read: impl FnMut(usize) -> Result<T>) -> Result<T> {
    const TRIES: usize = 3;
    for before in 0..TRIES {
        match read(before) {
            Err(
                Error::Unsupported(_)
                | Error::NoKernel(_)
                | Error::NotMapped(_)
                | Error::NotRam(_)
                | Error::Damaged { .. },
            ) => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    read(TRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_that_ended_made_unreadable_is_read_again() {
        let mut asked = Vec::new();
        let read = again(|before| {
            asked.push(before);
            if before < 2 { Err(Error::NotMapped(7)) } else { Ok(before) }
        });
        assert_eq!(read.unwrap(), 2);
        assert_eq!(asked, [0, 1, 2]);
        asked.clear();
        let never: Result<()> = again(|before| {
            asked.push(before);
            Err(Error::NotRam(7))
        });
        assert!(matches!(never, Err(Error::NotRam(7))));
        assert_eq!(asked.len(), 4);
        // Another mode does not go away by itself.
        asked.clear();
        let other: Result<()> = again(|before| {
            asked.push(before);
            Err(Error::NotLongMode)
        });
        assert!(matches!(other, Err(Error::NotLongMode)));
        assert_eq!(asked.len(), 1);
    }
}
