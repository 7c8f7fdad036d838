//! The sums of the kernel side that says whom each CPU works for (bpf/profile.bpf.c): its accounts are opened, brought up to now and closed CPU by CPU,
//! and the sums become records.
//!
//! There are two sets of sums. Each second each CPU brings its account up to now and turns to the other set, and the one before is taken at the next look,
//! when no program that began before adds to it any more. So the sums of a file of a recording are of the time between its first and its last
//! [`CpuTime`], also where files are removed.

mod choice;
mod labels;

use crate::object::Loaded;
use crate::{sys, wire};
pub use choice::{ChangeChoice, Choice, Resources, Term};
use kpat_model::{
    BlockRequests, BootNs, Busy, CpuPackets, CpuTime, Purpose, Record, SocketUse, UseKind, Work,
};
pub use labels::Labels;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often sums are taken.
const EVERY: Duration = Duration::from_secs(1);

/// `OPEN` and its neighbours of the kernel side.
#[derive(Clone, Copy)]
enum Do {
    Tell = 0,
    Open = 1,
    Close = 2,
}

/// The program that the kernel's events of page faults run.
pub const FAULT_DONE: &str = "fault_done";

/// `PERF_COUNT_SW_PAGE_FAULTS_MIN` and `_MAJ`.
const FAULTS: [u64; 2] = [5, 6];

/// The ends of page faults, on all CPUs; dropping it detaches. A CPU that is not there has none.
pub fn faults(loaded: &Loaded) -> io::Result<Vec<OwnedFd>> {
    let program = loaded.program(FAULT_DONE).ok_or_else(|| io::Error::other("no program for page faults"))?;
    let mut held = Vec::new();
    for cpu in 0..loaded.cpus as u32 {
        for event in FAULTS {
            match sys::perf_software(event, cpu) {
                Ok(event) => {
                    held.push(sys::link_perf(program, event.as_fd(), 0)?);
                    held.push(event);
                }
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(held)
}

/// A record, and the CPU that it is about.
pub type OfCpu = (u16, Record);

pub struct Accounts {
    turn: u64,
    /// What was logged last ended a file: the next one begins with the same moment.
    begins: bool,
    unplaced_uses: sys::Mapping,
    stack_round: sys::Mapping,
    /// When each CPU's account was opened; `None`: it is closed, or there is no such CPU.
    opened: Vec<Option<BootNs>>,
    logged: Instant,
    /// The set of sums that is to be taken, and since when nobody was asked to write it.
    left: Option<(u64, BootNs)>,
    /// Uses of sockets that were lost, as far as they were reported.
    lost: u64,
    ready: Vec<OfCpu>,
    choice: Choice,
    resources: Resources,
}

impl Accounts {
    pub fn new(loaded: &Loaded, cpus: usize, chosen: &[Term], resources: Resources) -> io::Result<Accounts> {
        let word = |name: &str| {
            let fd = loaded.map_fd(name).ok_or_else(|| io::Error::other(format!("no map {name}")))?;
            sys::Mapping::new(fd, size_of::<u64>())
        };
        Ok(Accounts {
            turn: 0,
            begins: false,
            unplaced_uses: word(".data.unplaced")?,
            stack_round: word(".data.round")?,
            opened: vec![None; cpus],
            logged: Instant::now(),
            left: None,
            lost: 0,
            ready: Vec::new(),
            choice: Choice::new(loaded, chosen)?,
            resources,
        })
    }

    /// Charging begins or ends, on all CPUs.
    pub fn switch(&mut self, loaded: &Loaded, paused: bool) {
        if !paused && self.opened.iter().all(Option::is_none) {
            self.each_cpu(loaded, Do::Open);
            let now = self.heads(loaded);
            for (cpu, head) in now.into_iter().enumerate() {
                self.opened[cpu] = (head.opened != 0).then_some(BootNs(head.opened as i64));
            }
            self.tell_times(loaded);
            self.logged = Instant::now();
        } else if paused && self.opened.iter().any(Option::is_some) {
            // A file that nothing was taken for yet begins where the one before ended.
            if std::mem::take(&mut self.begins) {
                self.tell_times(loaded);
            }
            self.each_cpu(loaded, Do::Close);
            self.tell_times(loaded);
            self.opened.fill(None);
        }
    }

    /// Whatever is due; `all`: everything.
    pub fn take(&mut self, loaded: &Loaded, all: bool) -> Vec<OfCpu> {
        if let Some((turn, at)) = self.left.take() {
            self.take_sums(loaded, turn, at);
        }
        let open = self.opened.iter().any(Option::is_some);
        if std::mem::take(&mut self.begins) && open {
            self.tell_times(loaded);
        }
        if all {
            if open {
                self.turn(loaded);
                self.begins = true;
                sys::wait_for_running_code();
            }
            for turn in [self.turn ^ 1, self.turn] {
                if turn != self.turn || !open {
                    self.take_sums(loaded, turn, sys::boot_now());
                }
            }
        } else if self.logged.elapsed() >= EVERY && open {
            self.turn(loaded);
            self.left = Some((self.turn ^ 1, sys::boot_now()));
        }
        std::mem::take(&mut self.ready)
    }

    /// Uses of sockets for which there was no room, since the last call.
    pub fn lost_uses(&mut self) -> u64 {
        // SAFETY: the mapping is of a page that begins with this word.
        let lost = unsafe { self.unplaced_uses.as_ptr().cast::<u64>().read_volatile() };
        lost - std::mem::replace(&mut self.lost, lost)
    }

    /// Every account is brought up to now, and what comes goes to the other set of sums.
    fn turn(&mut self, loaded: &Loaded) {
        self.logged = Instant::now();
        self.choice.next_round();
        self.turn ^= 1;
        self.each_cpu(loaded, Do::Tell);
        self.tell_times(loaded);
    }

    /// From now on each stack is logged once more.
    pub fn log_stacks_again(&mut self) {
        let at = self.stack_round.as_ptr().cast::<u64>();
        // SAFETY: as in take(); nobody else writes it.
        unsafe { at.write_volatile(at.read_volatile().wrapping_add(1)) };
    }

    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Who is profiled for itself changes; sums before are those of the choice before.
    pub fn change_choice(&mut self, loaded: &Loaded, change: &ChangeChoice) -> io::Result<()> {
        self.choice.change(loaded, change)?;
        if self.opened.iter().any(Option::is_some) {
            // The tasks that run now are looked at once more; the set of sums stays.
            self.each_cpu(loaded, Do::Tell);
        }
        Ok(())
    }

    /// A CPU that is not there, or went, has no account.
    fn each_cpu(&self, loaded: &Loaded, what: Do) {
        let Some(program) = loaded.program("account") else { return };
        for cpu in 0..self.opened.len() {
            let _ = sys::run_on_cpu(program, cpu as u32, what as u64 | self.turn << 8);
        }
    }

    fn heads(&self, loaded: &Loaded) -> Vec<wire::AccountHead> {
        let Some(map) = loaded.map("accounts") else { return Vec::new() };
        let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        values.iter().take(self.opened.len()).filter_map(|v| as_struct(v)).collect()
    }

    fn tell_times(&mut self, loaded: &Loaded) {
        let (kernels, received) = (kernels_times(), kernels_packets());
        let heads = self.heads(loaded);
        self.tell_requests(&heads);
        for (cpu, head) in heads.into_iter().enumerate() {
            let Some(opened) = self.opened[cpu] else { continue };
            let [user_ns, system_ns, idle_ns, irq_ns, softirq_ns, steal_ns] =
                kernels.get(cpu).copied().flatten().unwrap_or_default();
            let time = CpuTime {
                at: BootNs(head.logged as i64),
                opened,
                unplaced_ns: head.unplaced_ns,
                user_ns,
                system_ns,
                idle_ns,
                irq_ns,
                softirq_ns,
                steal_ns,
            };
            self.ready.push((cpu as u16, Record::CpuTime(Box::new(time))));
            if let Some(received) = received.get(&cpu).filter(|_| self.resources.packets) {
                let (at, counted) = (BootNs(head.logged as i64), head.packets);
                let packets = CpuPackets { at, opened, counted, received: *received };
                self.ready.push((cpu as u16, Record::CpuPackets(Box::new(packets))));
            }
        }
    }

    /// How many requests of disks: the kernel has them by disk, not by CPU, so they are in the chunks of the first CPU that has an account.
    fn tell_requests(&mut self, heads: &[wire::AccountHead]) {
        let first = self.opened.iter().enumerate().find_map(|(cpu, o)| Some((cpu, (*o)?)));
        let completed = if self.resources.blocks { kernels_requests() } else { None };
        let (Some((cpu, opened)), Some(completed)) = (first, completed) else { return };
        let Some(head) = heads.get(cpu) else { return };
        let (at, counted) = (BootNs(head.logged as i64), heads.iter().map(|h| h.requests).sum());
        let requests = BlockRequests { at, opened, counted, completed };
        self.ready.push((cpu as u16, Record::BlockRequests(Box::new(requests))));
    }

    fn take_sums(&mut self, loaded: &Loaded, turn: u64, at: BootNs) {
        let most = self.opened.len() as u16;
        let ready = &mut self.ready;
        take_all(loaded, "works", |key: &wire::WorkKey, w: &wire::Work| {
            if key.turn != turn & 1 {
                return false;
            }
            let (busy, purpose) = (Busy::from_u8(key.what), Purpose::from_u8(key.purpose));
            let (Some(busy), Some(purpose)) = (busy, purpose) else { return true };
            let wire::Work { ns, packets, bytes } = *w;
            let work = Work { at, busy, purpose, victim: key.victim, socket: key.socket, ns, packets, bytes };
            ready.push((key.cpu.min(most - 1), Record::Work(Box::new(work))));
            true
        });
        take_all(loaded, "uses", |key: &wire::UseKey, u: &wire::Use| {
            if u64::from(key.turn) != turn & 1 {
                return false;
            }
            let Some(how) = UseKind::from_u8(key.how) else { return true };
            let (socket, process) = (key.socket, key.process);
            let r = SocketUse { at, how, socket, process, bytes: u.bytes, times: u.times };
            ready.push((key.cpu.min(most - 1), Record::SocketUse(Box::new(r))));
            true
        });
    }
}

/// Gives each entry of a table, and removes those of which `f` says so.
fn take_all<K: Copy, V: Copy>(loaded: &Loaded, map: &str, mut f: impl FnMut(&K, &V) -> bool) {
    let Some(map) = loaded.map(map) else { return };
    // Removing while going through would begin anew each time.
    let keys: Vec<Vec<u8>> = map.keys().collect();
    for key in keys {
        let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY) else { continue };
        if let (Some(k), Some(v)) = (as_struct(&key), as_struct(&value))
            && f(&k, &v)
        {
            // Gone already: nobody but this thread removes.
            let _ = map.delete(&key);
        }
    }
}

/// One of the generated types, out of the bytes that the kernel gave.
fn as_struct<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as the type has, which is plain numbers; read without asking for its alignment.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// By CPU what /proc/stat says: user, system, idle, interrupts, softirqs, stolen; in nanoseconds.
fn kernels_times() -> Vec<Option<[u64; 6]>> {
    // SAFETY: no memory is passed.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    kernels_times_of(&std::fs::read_to_string("/proc/stat").unwrap_or_default(), 1_000_000_000 / ticks)
}

fn kernels_times_of(text: &str, tick_ns: u64) -> Vec<Option<[u64; 6]>> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let cpu = words.next().and_then(|w| w.strip_prefix("cpu")?.parse::<usize>().ok());
        let Some(cpu) = cpu.filter(|c| *c < 1 << 16) else { continue };
        let of: Vec<u64> = words.map_while(|w| w.parse::<u64>().ok()).map(|t| t * tick_ns).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = of[..] else { continue };
        if out.len() <= cpu {
            out.resize(cpu + 1, None);
        }
        out[cpu] = Some([user + nice, system, idle + iowait, irq, softirq, steal]);
    }
    out
}

/// By CPU the packets that /proc/net/softnet_stat counts, modulo 2^32. The last column is the CPU, from 5.10 on.
fn kernels_packets() -> HashMap<usize, u64> {
    kernels_packets_of(&std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default())
}

fn kernels_packets_of(text: &str) -> HashMap<usize, u64> {
    const CPU: usize = 12;
    let line = |line: &str| {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|w| u64::from_str_radix(w, 16).ok()).collect();
        Some((usize::try_from(*words.get(CPU)?).ok()?, *words.first()?))
    };
    text.lines().filter_map(line).collect()
}

/// Requests of disks that /proc/diskstats counts. Only disks that have queues of requests: others pass on what they are asked for, and count it, too.
fn kernels_requests() -> Option<u64> {
    let queues = |disk: &str| Path::new("/sys/block").join(disk).join("mq").exists();
    Some(kernels_requests_of(&std::fs::read_to_string("/proc/diskstats").ok()?, queues))
}

fn kernels_requests_of(text: &str, queues: impl Fn(&str) -> bool) -> u64 {
    const NAME: usize = 2;
    /// Reads, writes, discards, flushes; the last two came with 4.18 and 5.5.
    const COMPLETED: [usize; 4] = [3, 7, 14, 18];
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| words.get(column)?.parse::<u64>().ok();
        words
            .get(NAME)
            .filter(|disk| queues(disk))
            .map_or(0, |_| COMPLETED.into_iter().filter_map(number).sum())
    };
    text.lines().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_packets_by_cpu() {
        let text = "0012812e 00000000 00000001 00000000 0 0 0 0 0 00000000 00000000 00000000 00000002 00000000 00000000\n00000003 00000000\n";
        assert_eq!(kernels_packets_of(text), [(2, 0x12812e)].into());
    }

    #[test]
    fn the_kernels_requests_are_those_of_disks_with_queues() {
        let text = " 254 0 vda 10 1 2 3 20 4 5 6 7 8 9 100 0 0 0 1000 0\n 254 1 vda1 9 1 2 3 9 4 5 6 7 8 9 9 0 0 0 9 0\n   8 0 sda 1 1 2 3 2\n";
        assert_eq!(kernels_requests_of(text, |disk| !disk.ends_with('1')), 10 + 20 + 100 + 1000 + 3);
    }

    #[test]
    fn the_kernels_times_by_cpu() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu2 10 0 0 0 0 0 0 0 0 0\nintr 1 2 3\n";
        let times = kernels_times_of(text, 10);
        assert_eq!(times, [Some([30, 30, 90, 60, 70, 80]), None, Some([100, 0, 0, 0, 0, 0])]);
    }
}
