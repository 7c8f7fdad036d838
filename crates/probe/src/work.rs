//! The sums of the kernel side that says whom each CPU works for (bpf/profile.bpf.c): its accounts are opened, brought up to now and closed CPU by CPU,
//! and the sums become records.
//!
//! There are two sets of sums. Each second each CPU brings its account up to now and turns to the other set, and the one before is taken at the next look,
//! when no program that began before adds to it any more. So the sums of a file of a recording are of the time between its first and its last
//! [`CpuTime`], also where files are removed.

mod choice;
mod kernels;
mod labels;
mod listening;

use crate::object::Loaded;
use crate::{sys, wire};
pub use choice::{ChangeChoice, Choice, Resources, Term};
pub(crate) use choice::{forget, members_by_group, members_by_number, name_fits, user_number};
use kernels::Times;
use kpat_model::{
    BlockRequests, BootNs, Busy, CpuPackets, CpuTime, Purpose, Record, SocketUse, UseKind, Work,
};
pub use labels::Labels;
use libbpf_rs::{MapCore, MapFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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
    /// What the kernel's own account said before and after the CPUs' accounts were brought up to now.
    around: [Times; 2],
    /// The moments that were logged last, by CPU: a file that follows begins with them.
    moments: Vec<OfCpu>,
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
            around: Default::default(),
            moments: Vec::new(),
            choice: Choice::new(loaded, chosen)?,
            resources,
        })
    }

    /// Charging begins or ends, on all CPUs.
    pub fn switch(&mut self, loaded: &Loaded, paused: bool) {
        if !paused && self.opened.iter().all(Option::is_none) {
            listening::tell(loaded);
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
                self.ready.extend_from_slice(&self.moments);
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
            self.ready.extend_from_slice(&self.moments);
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
    fn each_cpu(&mut self, loaded: &Loaded, what: Do) {
        let Some(program) = loaded.program("account") else { return };
        let before = Times::read();
        for cpu in 0..self.opened.len() {
            let _ = sys::run_on_cpu(program, cpu as u32, what as u64 | self.turn << 8);
        }
        self.around = [before, Times::read()];
    }

    fn heads(&self, loaded: &Loaded) -> Vec<wire::AccountHead> {
        let Some(map) = loaded.map("accounts") else { return Vec::new() };
        let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        values.iter().take(self.opened.len()).filter_map(|v| as_struct(v)).collect()
    }

    fn tell_times(&mut self, loaded: &Loaded) {
        let received = kernels::packets();
        let heads = self.heads(loaded);
        self.moments.clear();
        self.tell_requests(&heads);
        for (cpu, head) in heads.into_iter().enumerate() {
            let Some(opened) = self.opened[cpu] else { continue };
            let [user_ns, system_ns, idle_ns, irq_ns, softirq_ns, steal_ns] =
                Times::between(&self.around, cpu, BootNs(head.logged as i64));
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
            self.moments.push((cpu as u16, Record::CpuTime(Box::new(time))));
            if let Some(received) = received.get(&cpu).filter(|_| self.resources.packets) {
                let (at, counted) = (BootNs(head.logged as i64), head.packets);
                let packets = CpuPackets { at, opened, counted, received: *received };
                self.moments.push((cpu as u16, Record::CpuPackets(Box::new(packets))));
            }
        }
        self.ready.extend_from_slice(&self.moments);
    }

    /// How many requests of disks: the kernel has them by disk, not by CPU, so they are in the chunks of the first CPU that has an account.
    fn tell_requests(&mut self, heads: &[wire::AccountHead]) {
        let first = self.opened.iter().enumerate().find_map(|(cpu, o)| Some((cpu, (*o)?)));
        let completed = if self.resources.blocks { kernels::requests() } else { None };
        let (Some((cpu, opened)), Some(completed)) = (first, completed) else { return };
        let Some(head) = heads.get(cpu) else { return };
        let (at, counted) = (BootNs(head.logged as i64), heads.iter().map(|h| h.requests).sum());
        let requests = BlockRequests { at, opened, counted, completed };
        self.moments.push((cpu as u16, Record::BlockRequests(Box::new(requests))));
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
