//! QEMU's debugger interface (gdbstub): works for every guest and every accelerator, and stops all processors for each hit.
//!
//! A session is started on a running guest over QMP, through a socket pair that nobody else can connect to, and stops the guest. At its end
//! breakpoints are gone and the guest runs, if it ran; also if this process is killed ([`guard`]). What QEMU's interface does differently
//! from what a debugger expects is listed at the tests, each with one.

mod guard;
pub mod packet;
mod registers;
pub mod xp;

use crate::error::{Error, Result};
use crate::qmp::Qmp;
use crate::registers::Registers;
use guard::Guard;
use packet::{Link, unhex};
pub use registers::Block;
use serde_json::json;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const SIGINT: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointKind {
    /// Under TCG kept by QEMU; under KVM an int3 in the guest's memory.
    Software,
    /// A debug register of the processor, of which there are four.
    Hardware,
}

/// Why the guest stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A breakpoint or a step of this processor.
    Trap { vcpu: u32 },
    /// It was asked to.
    Interrupted { vcpu: u32 },
    /// The guest is off.
    Ended,
}

impl Stop {
    /// From a stop packet; `None`: it is none.
    pub fn parse(p: &[u8]) -> Option<Stop> {
        match p.first()? {
            b'W' | b'X' => return Some(Stop::Ended),
            b'T' | b'S' => {}
            _ => return None,
        }
        let signal = *unhex(p.get(1..3)?)?.first()?;
        let text = std::str::from_utf8(p.get(3..)?).ok()?;
        // `thread:01;` or, with several processes, `thread:p01.01;`.
        let thread = text
            .split(';')
            .find_map(|f| f.strip_prefix("thread:"))
            .and_then(|t| u32::from_str_radix(t.rsplit('.').next()?, 16).ok())
            .unwrap_or(1);
        let vcpu = thread.saturating_sub(1);
        Some(if signal == SIGINT { Stop::Interrupted { vcpu } } else { Stop::Trap { vcpu } })
    }
}

pub struct Gdb {
    link: Link,
    /// Data bytes that fit into one `m` or `M`.
    piece: usize,
    running: bool,
    ended: bool,
    vcpu: Option<u32>,
    breakpoints: Vec<(BreakpointKind, u64)>,
    owner: Option<Owner>,
}

/// What a session on a real guest has to put back.
struct Owner {
    qmp: Arc<Qmp>,
    resume: bool,
    guard: Option<Guard>,
}

static SESSIONS: AtomicU32 = AtomicU32::new(0);

impl Gdb {
    /// Starts a session. The guest is stopped when this returns.
    pub fn start(qmp: &Arc<Qmp>) -> Result<Gdb> {
        let status = qmp.command("query-status", json!({}))?;
        let resume = status["running"].as_bool() == Some(true);
        let (mine, theirs) = UnixStream::pair().map_err(Error::io("a pair of sockets"))?;
        let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let id = format!("kpat-gdb-{}-{number}", std::process::id());
        qmp.pass(&id, &theirs)?;
        drop(theirs);
        let address = json!({"type": "fd", "data": {"str": id}});
        let backend = json!({"type": "socket", "data": {"addr": address, "server": false}});
        qmp.command("chardev-add", json!({"id": id, "backend": backend}))?;
        // Before the guest is stopped.
        let guard = Guard::new(mine.as_raw_fd(), qmp.descriptor(), resume)?;
        let owner = Owner { qmp: qmp.clone(), resume, guard: Some(guard) };
        let said = qmp.monitor(&format!("gdbserver chardev:{id}"))?;
        if !said.contains("Waiting") {
            drop(owner);
            let _ = qmp.command("chardev-remove", json!({"id": id}));
            return Err(Error::Refused { command: "gdbserver".into(), words: said.trim().into() });
        }
        let mut gdb = Gdb::greet(mine)?;
        gdb.owner = Some(owner);
        Ok(gdb)
    }

    /// Over a connection to a stub that has stopped its guest.
    pub fn greet(stream: UnixStream) -> Result<Gdb> {
        let mut gdb = Gdb {
            link: Link::new(stream),
            piece: 512,
            running: false,
            ended: false,
            vcpu: None,
            breakpoints: Vec::new(),
            owner: None,
        };
        // QEMU 7.2 says that it stopped before it was asked, 10 does not: until the answer to this, stops are passed over.
        gdb.link.send(b"qSupported")?;
        let features = loop {
            let p = gdb.answer("qSupported")?;
            if Stop::parse(&p).is_none() {
                break String::from_utf8_lossy(&p).into_owned();
            }
        };
        let size = features.split(';').find_map(|f| f.strip_prefix("PacketSize="));
        if let Some(n) = size.and_then(|n| usize::from_str_radix(n, 16).ok()) {
            gdb.piece = (n.clamp(64, 1 << 16) - 32) / 2;
        }
        // Until this was asked once, single registers are answered by nothing.
        gdb.ask(b"qXfer:features:read:target.xml:0,ffb")?;
        Ok(gdb)
    }

    pub fn running(&self) -> bool {
        self.running
    }

    /// The guest is off, or QEMU has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    fn answer(&mut self, to: &str) -> Result<Vec<u8>> {
        let got = self.link.receive(Instant::now() + PATIENCE)?;
        got.ok_or_else(|| Error::Timeout(format!("QEMU's debugger interface to {to}")))
    }

    /// A command and its answer; only while the guest is stopped, since any byte would stop it and be swallowed.
    fn ask(&mut self, command: &[u8]) -> Result<Vec<u8>> {
        if self.running || self.ended {
            let state = if self.ended { "off" } else { "running" };
            return Err(Error::Unsupported(format!(
                "the debugger's interface was asked while the guest was {state}"
            )));
        }
        self.link.send(command)?;
        let name = String::from_utf8_lossy(&command[..command.len().min(24)]).into_owned();
        self.answer(&name)
    }

    fn done(&mut self, command: &[u8]) -> Result<()> {
        let answer = self.ask(command)?;
        if answer == b"OK" {
            return Ok(());
        }
        let words = match answer.as_slice() {
            b"" => "not supported".into(),
            a => String::from_utf8_lossy(a).into_owned(),
        };
        let command = String::from_utf8_lossy(&command[..command.len().min(24)]).into_owned();
        Err(Error::Refused { command: format!("the debugger's command {command}"), words })
    }

    fn select(&mut self, vcpu: u32) -> Result<()> {
        if self.vcpu != Some(vcpu) {
            self.done(format!("Hg{:x}", vcpu + 1).as_bytes())?;
            self.vcpu = Some(vcpu);
        }
        Ok(())
    }

    /// All registers of a processor. Under KVM this is what fetches them from it; single ones would be stale.
    pub fn block(&mut self, vcpu: u32) -> Result<Block> {
        self.select(vcpu)?;
        Block::parse(&self.ask(b"g")?)
    }

    pub fn registers(&mut self, vcpu: u32) -> Result<Registers> {
        Ok(self.block(vcpu)?.registers())
    }

    /// Writes all registers; `block` has to be of this stop, or writing is lost under KVM.
    pub fn set_block(&mut self, vcpu: u32, block: &Block) -> Result<()> {
        self.select(vcpu)?;
        self.done(format!("G{}", block.text()).as_bytes())
    }

    /// By the page tables of the processor that was selected last.
    pub fn read(&mut self, virt: u64, to: &mut [u8]) -> Result<()> {
        let piece = self.piece;
        for (i, part) in to.chunks_mut(piece).enumerate() {
            let at = virt.wrapping_add((i * piece) as u64);
            let got = self.ask(format!("m{at:x},{:x}", part.len()).as_bytes())?;
            let bytes = unhex(&got).filter(|b| b.len() == part.len()).ok_or(Error::NotMapped(at))?;
            part.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The way to write code under emulation: translations of it are dropped.
    pub fn write(&mut self, virt: u64, from: &[u8]) -> Result<()> {
        let piece = self.piece;
        for (i, part) in from.chunks(piece).enumerate() {
            let at = virt.wrapping_add((i * piece) as u64);
            let command = format!("M{at:x},{:x}:{}", part.len(), packet::hex(part));
            self.done(command.as_bytes()).map_err(|e| match e {
                Error::Refused { .. } => Error::NotMapped(at),
                e => e,
            })?;
        }
        Ok(())
    }

    /// The same by guest-physical address: no matter whose page tables a processor has.
    pub fn write_physical(&mut self, physical: u64, from: &[u8]) -> Result<()> {
        self.done(b"Qqemu.PhyMemMode:1")?;
        let written = self.write(physical, from);
        self.done(b"Qqemu.PhyMemMode:0")?;
        written
    }

    pub fn insert(&mut self, kind: BreakpointKind, virt: u64) -> Result<()> {
        if self.breakpoints.contains(&(kind, virt)) {
            return Ok(());
        }
        self.done(format!("Z{},{virt:x},1", kind as u8).as_bytes())?;
        self.breakpoints.push((kind, virt));
        Ok(())
    }

    pub fn remove(&mut self, kind: BreakpointKind, virt: u64) -> Result<()> {
        if let Some(i) = self.breakpoints.iter().position(|b| *b == (kind, virt)) {
            self.done(format!("z{},{virt:x},1", kind as u8).as_bytes())?;
            self.breakpoints.swap_remove(i);
        }
        Ok(())
    }

    fn remove_all(&mut self) -> Result<()> {
        self.breakpoints.clone().into_iter().try_for_each(|(kind, virt)| self.remove(kind, virt))
    }

    /// Lets all processors run.
    pub fn resume(&mut self) -> Result<()> {
        self.go(b"vCont;c")
    }

    /// The same, and the processor that stopped goes on elsewhere: one packet instead of two.
    pub fn resume_at(&mut self, rip: u64) -> Result<()> {
        self.go(format!("c{rip:x}").as_bytes())
    }

    fn go(&mut self, command: &[u8]) -> Result<()> {
        if self.running {
            return Ok(());
        }
        self.link.send(command)?;
        self.running = true;
        self.vcpu = None;
        Ok(())
    }

    /// Waits until the guest stops by itself. `None`: it still runs.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<Stop>> {
        let until = Instant::now() + patience;
        while self.running {
            let packet = match self.link.receive(until) {
                Err(Error::Gone(_)) => {
                    (self.running, self.ended) = (false, true);
                    return Ok(Some(Stop::Ended));
                }
                other => other?,
            };
            let Some(p) = packet else { return Ok(None) };
            // Console output and answers that nobody waits for any more are passed over.
            if let Some(stop) = Stop::parse(&p) {
                self.running = false;
                self.ended = stop == Stop::Ended;
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    /// Stops a guest that runs. What stopped it may be a breakpoint that was hit just before.
    pub fn interrupt(&mut self) -> Result<Option<Stop>> {
        if !self.running {
            return Ok(None);
        }
        self.link.send_byte(3)?;
        match self.wait(PATIENCE)? {
            Some(s) => {
                // A hit that crossed the request is answered; the request itself was swallowed or is answered later, and is passed over.
                Ok(Some(s))
            }
            None => Err(Error::Timeout("the guest, which was asked to stop".into())),
        }
    }

    /// One instruction of one processor, the others stopped. Under emulation a step may come back without having done anything:
    /// then it is made again.
    pub fn step(&mut self, vcpu: u32) -> Result<Stop> {
        let before = self.registers(vcpu)?;
        for _ in 0..16 {
            self.go(format!("vCont;s:{:x}", vcpu + 1).as_bytes())?;
            let stop = self.wait(PATIENCE)?.ok_or_else(|| Error::Timeout("a single step".into()))?;
            if stop == Stop::Ended {
                return Ok(stop);
            }
            let now = self.registers(vcpu)?;
            if (now.rip, now.rsp, now.rcx) != (before.rip, before.rsp, before.rcx) {
                return Ok(stop);
            }
        }
        Err(Error::Unsupported(format!("the instruction at {:#x} cannot be stepped", before.rip)))
    }

    /// Ends the session: breakpoints removed, the guest runs if it ran before.
    pub fn detach(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut owner) = self.owner.take() else { return Ok(()) };
        let mut first = self.interrupt().map(drop);
        if !self.ended && first.is_ok() {
            // With the debugger's own word QEMU lets the guest run.
            first = if owner.resume { self.done(b"D;1") } else { self.remove_all() };
        }
        // The session is over whatever was said to that.
        let end = owner.qmp.monitor("gdbserver none").map(drop);
        let last =
            if owner.resume && !self.ended { owner.qmp.command("cont", json!({})).map(drop) } else { Ok(()) };
        owner.guard = None;
        first.and(end).and(last)
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // Whoever wants to know calls `detach`.
        let _ = self.close();
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
