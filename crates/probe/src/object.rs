//! The kernel side as an object file: configured (variables and packet filter written into the bytes) and then loaded
//! by libbpf. Configuring is pure, so the same plan gives the same bytes anywhere; all that depends on the running
//! kernel happens in [`Plan::load`].

use crate::{elf, whose};
use libbpf_rs::libbpf_sys as ffi;
use libbpf_rs::{MapCore, ObjectBuilder};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

static DIRECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kpat-direct.bpf.o"));
static DIRECT_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kpat-direct-traced.bpf.o"));
static READ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kpat-read.bpf.o"));
static READ_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kpat-read-traced.bpf.o"));

static PROFILE_DIRECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profile-direct-traced.bpf.o"));
static PROFILE_READ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profile-read-traced.bpf.o"));

static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/programs-read.bpf.o"));

static WIFI: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wifi-read.bpf.o"));
static WIFI_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wifi-read-traced.bpf.o"));

static APP_DIRECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app-direct.bpf.o"));
static APP_DIRECT_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app-direct-traced.bpf.o"));
static APP_READ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app-read.bpf.o"));
static APP_READ_TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app-read-traced.bpf.o"));

/// At the end of a program's name: it is the one that is loaded in place of the program without, where [`Plan::within`] is set.
const WITHIN: &str = "_within";

/// Bytes of the page before and the page after the ring itself, as in wire.h.
pub const RING_DATA: usize = 4096;
pub const RING_TAIL: usize = 4096;
pub const MAX_FUNCS: usize = 8192;

/// Which build of the kernel side fits the kernel (see bpf/include/kernel.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Typed loads, 6.2 and newer; else a helper call a member.
    pub direct: bool,
    /// The context is kept by tracepoints around interrupts, because the kernel does not give its preemption count.
    pub traced_context: bool,
}

impl Build {
    /// Best first.
    pub const ALL: [Build; 4] = [
        Build { direct: true, traced_context: false },
        Build { direct: true, traced_context: true },
        Build { direct: false, traced_context: false },
        Build { direct: false, traced_context: true },
    ];

    pub fn name(self) -> &'static str {
        match (self.direct, self.traced_context) {
            (true, false) => "direct",
            (true, true) => "direct, context by tracepoints",
            (false, false) => "read",
            (false, true) => "read, context by tracepoints",
        }
    }

    /// The object file as compiled.
    pub fn object(self, side: Side) -> &'static [u8] {
        if let Some(other) = self.compiled_elsewhere(side) {
            return other;
        }
        match (side, self.direct, self.traced_context) {
            (Side::Packets, true, false) => DIRECT,
            (Side::Packets, true, true) => DIRECT_TRACED,
            (Side::Packets, false, false) => READ,
            (Side::Packets, false, true) => READ_TRACED,
            (Side::Application, true, false) => APP_DIRECT,
            (Side::Application, true, true) => APP_DIRECT_TRACED,
            (Side::Application, false, false) => APP_READ,
            (Side::Application, false, true) => APP_READ_TRACED,
            (Side::Profile, true, _) => PROFILE_DIRECT,
            (Side::Profile, false, _) => PROFILE_READ,
            (Side::Programs, ..) => PROGRAMS,
            (Side::Wifi, _, false) => WIFI,
            (Side::Wifi, _, true) => WIFI_TRACED,
        }
    }
}

impl Build {
    /// To try a change of `bpf/` without building all of kpat: the objects in the folder that `KPAT_BPF` names, as `cargo build -p kpat-probe`
    /// leaves them. For developers of kpat; it must match this binary's records.
    fn compiled_elsewhere(self, side: Side) -> Option<&'static [u8]> {
        let folder = std::env::var_os("KPAT_BPF")?;
        let name = format!(
            "{}-{}{}.bpf.o",
            match side {
                Side::Packets => "kpat",
                Side::Application => "app",
                Side::Profile => "profile",
                Side::Programs => "programs",
                Side::Wifi => "wifi",
            },
            if self.direct { "direct" } else { "read" },
            if self.traced_context || side == Side::Profile { "-traced" } else { "" }
        );
        Some(std::fs::read(std::path::Path::new(&folder).join(name)).ok()?.leak())
    }
}

/// What is recorded: each has a kernel side of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Functions and tracepoints that handle packets (bpf/kpat.bpf.c).
    Packets,
    /// Bytes crossing from layer to layer (bpf/app.bpf.c).
    Application,
    /// Whom each CPU works for (bpf/profile.bpf.c).
    Profile,
    /// What programs say of their work (bpf/programs.bpf.c).
    Programs,
    /// What a device does to have a network (bpf/wifi.bpf.c).
    Wifi,
}

impl Side {
    /// What it records.
    pub fn name(self) -> &'static str {
        match self {
            Side::Packets => "packets",
            Side::Application => "applications",
            Side::Profile => "profile",
            Side::Programs => "programs",
            Side::Wifi => "wifi",
        }
    }

    /// Slots of the records of which most are: points and calls, crossings.
    pub fn slots_of_most(self) -> u64 {
        if self == Side::Application { 3 } else { 1 }
    }

    /// Records in the ring are multiples of this (`KP_SLOT` of bpf/include/wire.h).
    pub fn slot(self) -> usize {
        match self {
            Side::Packets => 32,
            Side::Application | Side::Profile | Side::Programs | Side::Wifi => 8,
        }
    }
}

/// What is fixed before loading.
#[derive(Clone, Debug)]
pub struct Plan {
    pub build: Build,
    pub side: Side,
    /// Power of two, at least 64 KiB.
    pub ring_bytes: usize,
    pub cpus: usize,
    /// Buckets of four packets; a power of two.
    pub packet_buckets: u32,
    pub netns: Vec<u32>,
    pub ifindex: Vec<u32>,
    /// eBPF for link-layer and network-layer start, from [`crate::filter`].
    pub filter: Option<crate::filter::Compiled>,
    /// Frees are not seen: recognise reused buffers by content.
    pub guess_reuse: bool,
    /// Attach cookies of programs that are loaded once for each function, in their order.
    pub clone_cookies: Vec<u64>,
    /// This process reads packets itself (a capture): its own doings as a task are left out.
    pub own_packets: bool,
    /// Functions without a packet are recorded within calls of packets: other programs, of [`WITHIN`]'s names.
    pub within: bool,
    /// Only packets or sockets of chosen processes are recorded: the tables for that have their lengths.
    pub by_process: bool,
    /// Further variables of the kernel side, by name, of 32 or 64 bits.
    pub constants: Vec<(&'static str, u64)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("kpat's own BPF object is damaged: {0}")]
    Object(String),
    #[error("the kernel refused the program: {0}")]
    Load(String),
    #[error("more than 16 namespaces or interfaces to filter by")]
    TooManyIds,
}

impl Plan {
    /// The configured object file.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        let mut b = self.build.object(self.side).to_vec();
        let map = elf::map(&b).ok_or_else(|| Error::Object("not an ELF file".into()))?;
        let mut set = |name: &str, value: &[u8]| -> Result<(), Error> {
            let s = map.symbols.get(name).ok_or_else(|| Error::Object(format!("no variable {name}")))?;
            if value.len() > s.size {
                return Err(Error::TooManyIds);
            }
            b[s.offset..s.offset + value.len()].copy_from_slice(value);
            Ok(())
        };
        let words = |v: &[u32]| v.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        set("ring_mask", &(self.ring_bytes as u64 - 8).to_le_bytes())?;
        set("ring_limit", &((self.ring_bytes - RING_TAIL) as u64).to_le_bytes())?;
        set("bucket_mask", &(self.packet_buckets - 1).to_le_bytes())?;
        set("has_filter", &(self.filter.is_some() as u32).to_le_bytes())?;
        set("guess_reuse", &(self.guess_reuse as u32).to_le_bytes())?;
        set("own_tgid", &if self.own_packets { std::process::id() } else { 0 }.to_le_bytes())?;
        set("clone_cookies", &self.clone_cookies.iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<u8>>())?;
        set("netns_count", &(self.netns.len() as u32).to_le_bytes())?;
        set("netns_ids", &words(&self.netns))?;
        set("ifindex_count", &(self.ifindex.len() as u32).to_le_bytes())?;
        set("ifindex_ids", &words(&self.ifindex))?;
        for (name, value) in &self.constants {
            let bytes = map.symbols.get(*name).map_or(0, |s| s.size.min(8));
            set(name, &value.to_le_bytes()[..bytes])?;
        }
        if self.side != Side::Packets {
            return Ok(b);
        }
        let text = map
            .sections
            .iter()
            .find(|s| s.name == ".text")
            .ok_or_else(|| Error::Object("no .text".into()))?;
        crate::filter::patch(&mut b[text.offset..text.offset + text.size], self.filter.as_ref())
            .map_err(Error::Object)?;
        Ok(b)
    }

    /// Places for the recorded calls that tasks and each CPU's interrupts are in, where something within them is recorded.
    fn withins(&self) -> u32 {
        const TASKS: u32 = 4096; // WITHIN_TASKS of bpf/config.bpf.h
        if self.within { TASKS + 3 * self.cpus as u32 } else { 1 }
    }

    /// Loads the named programs. `types`: program, and the program and attach type it takes where the section does
    /// not say.
    pub fn load(&self, programs: &[(&str, Option<(u32, u32)>)]) -> Result<Loaded, Error> {
        quiet();
        let bytes = self.bytes()?;
        let mut open = ObjectBuilder::default()
            .open_memory(&bytes)
            .map_err(|e| Error::Object(format!("libbpf cannot open it: {e:#}")))?;
        let bucket_bytes = elf::map(&bytes)
            .and_then(|m| m.symbols.get("packet_buckets").map(|s| s.size as u32))
            .or((self.side != Side::Packets).then_some(0))
            .ok_or_else(|| Error::Object("no packet table".into()))?;
        let clone_cookies_at = elf::map(&bytes)
            .and_then(|m| {
                let constants = m.sections.iter().find(|s| s.name == ".rodata")?.offset;
                Some(m.symbols.get("clone_cookies")?.offset - constants)
            })
            .ok_or_else(|| Error::Object("no cookies".into()))?;
        for mut m in open.maps_mut() {
            let set = |r: libbpf_rs::Result<()>| r.map_err(|e| Error::Load(format!("map size: {e:#}")));
            match m.name().to_str() {
                Some("rings") => {
                    set(m.set_value_size((RING_DATA + self.ring_bytes + RING_TAIL) as u32))?;
                    set(m.set_max_entries(self.cpus as u32))?;
                }
                Some(name) if let Some((_, most)) = whose::TABLES.iter().find(|(n, _)| *n == name) => {
                    set(m.set_max_entries(if self.by_process { *most } else { 1 }))?;
                }
                Some(name)
                    if whose::TABLES_OF_CHOICE.contains(&name)
                        && !self.by_process
                        && self.side != Side::Profile =>
                {
                    set(m.set_max_entries(1))?;
                }
                Some("withins") => set(m.set_max_entries(self.withins()))?,
                Some(".data.packets") => set(m.set_value_size(self.packet_buckets * bucket_bytes))?,
                _ => {}
            }
        }
        let twice: BTreeSet<String> = open
            .progs()
            .filter_map(|p| p.name().to_string_lossy().strip_suffix(WITHIN).map(str::to_owned))
            .collect();
        for mut p in open.progs_mut() {
            let name = p.name().to_string_lossy().into_owned();
            let listed = match name.strip_suffix(WITHIN) {
                Some(plain) if self.within => programs.iter().find(|(n, _)| *n == plain),
                _ if self.within && twice.contains(&name) => None,
                _ => programs.iter().find(|(n, _)| *n == name),
            };
            match listed {
                None => p.set_autoload(false),
                Some((_, Some((kind, attach)))) => {
                    p.set_autoload(true);
                    set_types(&mut p, *kind, *attach);
                }
                Some(_) => p.set_autoload(true),
            }
        }
        let object = open.load().map_err(|e| Error::Load(format!("{e:#} ({})", last_words())))?;
        let (ring_bytes, cpus, within) = (self.ring_bytes, self.cpus, self.within);
        Ok(Loaded { object, ring_bytes, cpus, within, clone_cookies_at })
    }
}

/// Attach types that the bindings do not know have to be set by number.
fn set_types(p: &mut libbpf_rs::OpenProgramMut<'_>, kind: u32, attach: u32) {
    use libbpf_rs::AsRawLibbpf;
    let raw = p.as_libbpf_object().as_ptr();
    // SAFETY: raw is the open program that p stands for; both calls only store a number in it.
    unsafe {
        ffi::bpf_program__set_type(raw, kind);
        ffi::bpf_program__set_expected_attach_type(raw, attach);
    }
}

/// Names of all raw tracepoint programs in the object: (program, tracepoint).
pub fn tracepoint_programs(build: Build, side: Side) -> Vec<(String, String)> {
    programs_of(build, side, "raw_tp/")
}

/// Programs at events of tracefs: (program, group/event).
pub fn event_programs(build: Build, side: Side) -> Vec<(String, String)> {
    programs_of(build, side, "tracepoint/")
}

/// The same of those that know their tracepoint's types.
pub fn typed_programs(build: Build, side: Side) -> Vec<(String, String)> {
    programs_of(build, side, "tp_btf/")
}

/// Programs of the object at the entries of functions, and at their returns: (program, function).
pub fn function_programs(build: Build, side: Side) -> [Vec<(String, String)>; 2] {
    ["fentry/", "fexit/"].map(|kind| programs_of(build, side, kind))
}

fn programs_of(build: Build, side: Side, kind: &str) -> Vec<(String, String)> {
    let Some(map) = elf::map(build.object(side)) else { return Vec::new() };
    let mut out: Vec<(String, String)> = Vec::new();
    for (name, s) in &map.symbols {
        let section = map
            .sections
            .iter()
            .find(|x| x.offset <= s.offset && s.offset < x.offset + x.size && x.name.starts_with(kind));
        if let Some(tp) = section
            && s.size > 0
        {
            out.push((name.clone(), tp.name[kind.len()..].to_string()));
        }
    }
    out.sort();
    out
}

/// Relocated instructions, and what the verifier wants to know of the functions in them.
#[derive(Clone)]
pub struct Code {
    pub insns: Vec<ffi::bpf_insn>,
    pub functions: Vec<ffi::bpf_func_info>,
    /// Descriptor of the object's types, negative: none.
    pub types: i32,
}

/// Makes copies of a loaded object's programs.
#[derive(Clone, Copy)]
pub struct Copier {
    /// Descriptor of the constants' map.
    constants: i32,
    clone_cookies_at: usize,
}

impl Copier {
    /// A program for the `n`-th function of [`Plan::clone_cookies`].
    pub fn code_for(self, code: &Code, n: usize) -> Code {
        const LOAD_WIDE: u8 = 0x18; // BPF_LD | BPF_IMM | BPF_DW
        const MAP_VALUE: u8 = 2; // BPF_PSEUDO_MAP_VALUE
        let mut code = code.clone();
        let mut at = 0;
        while at + 1 < code.insns.len() {
            let i = code.insns[at];
            if i.code == LOAD_WIDE {
                let of_constants = i.src_reg() == MAP_VALUE && i.imm == self.constants;
                if of_constants && code.insns[at + 1].imm as usize == self.clone_cookies_at {
                    code.insns[at + 1].imm += 8 * n as i32;
                }
                at += 1;
            }
            at += 1;
        }
        code
    }
}

/// A loaded object: programs and maps live as long as it does.
pub struct Loaded {
    object: libbpf_rs::Object,
    pub ring_bytes: usize,
    pub cpus: usize,
    within: bool,
    /// Offset of the cookies among the constants.
    clone_cookies_at: usize,
}

impl Loaded {
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the object, which outlives the borrow.
        self.loaded(name).map(|p| unsafe { BorrowedFd::borrow_raw(raw(&p)) })
    }

    /// By the name that it has where nothing within calls is recorded.
    fn loaded(&self, name: &str) -> Option<libbpf_rs::Program<'_>> {
        let find = |name: &str| self.object.progs().find(|p| p.name() == name);
        let within = if self.within { find(&format!("{name}{WITHIN}")) } else { None };
        within.or_else(|| find(name))
    }

    /// A program as it was loaded, for clones.
    pub fn code(&self, name: &str) -> Option<Code> {
        use libbpf_rs::AsRawLibbpf;
        let p = self.loaded(name)?;
        let raw = p.as_libbpf_object().as_ptr();
        // SAFETY: raw is the loaded program; libbpf keeps the table of its functions, of the length it says, as long as
        // the object lives, and it is copied here.
        let functions = unsafe {
            let (at, n) = (ffi::bpf_program__func_info(raw), ffi::bpf_program__func_info_cnt(raw));
            if at.is_null() { Vec::new() } else { std::slice::from_raw_parts(at, n as usize).to_vec() }
        };
        // SAFETY: the object is loaded, so it has (or is known to lack) a descriptor of its types.
        let types = unsafe { ffi::bpf_object__btf_fd(self.object.as_libbpf_object().as_ptr()) };
        Some(Code { insns: p.insns().to_vec(), functions, types })
    }

    /// What makes copies of programs for single functions.
    pub fn copier(&self) -> Option<Copier> {
        let constants = self.object.maps().find(|m| m.name().to_string_lossy().ends_with(".rodata"))?;
        let constants = std::os::fd::AsRawFd::as_raw_fd(&constants.as_fd());
        Some(Copier { constants, clone_cookies_at: self.clone_cookies_at })
    }

    /// A table of the kernel side.
    pub fn map(&self, name: &str) -> Option<libbpf_rs::Map<'_>> {
        self.object.maps().find(|m| m.name() == name)
    }

    pub fn map_fd(&self, name: &str) -> Option<BorrowedFd<'_>> {
        // SAFETY: as in program().
        self.object
            .maps()
            .find(|m| m.name() == name)
            .map(|m| unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&m.as_fd())) })
    }
}

/// Makes everything zero in a map of variables. An object without it has nothing to clear.
pub fn clear(loaded: &Loaded, map: &str) -> std::io::Result<()> {
    let Some(m) = loaded.object.maps().find(|m| m.name() == map) else { return Ok(()) };
    let bytes = m.value_size() as usize * m.max_entries() as usize;
    let memory = crate::sys::Mapping::new(m.as_fd(), bytes)?;
    // SAFETY: the mapping is as long as it says; the kernel side takes any value in it, and zero for "nothing here".
    unsafe { memory.as_ptr().write_bytes(0, memory.len()) };
    Ok(())
}

fn raw(p: &libbpf_rs::Program<'_>) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(&p.as_fd())
}

std::thread_local! {
    static LAST_WORDS: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// What libbpf logged since the last load: all of it if `KPAT_LIBBPF_LOG` is set, else the line that says why.
pub(crate) fn last_words() -> String {
    LAST_WORDS.with(|l| {
        let text = l.borrow().join("");
        if std::env::var_os("KPAT_LIBBPF_LOG").is_some() { text } else { reason(&text) }
    })
}

/// The line of a log of libbpf that says why: the verifier's last one before its statistics, else libbpf's first.
fn reason(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|l| !l.is_empty());
    let verifier = lines()
        .skip_while(|l| !l.contains("BEGIN PROG LOAD LOG"))
        .skip(1)
        .take_while(|l| !l.contains("END PROG LOAD LOG"))
        .filter(|l| {
            !l.starts_with("processed ") && !l.starts_with(';') && !l.starts_with("verification time")
        })
        .last();
    verifier.or_else(|| lines().next()).unwrap_or_default().to_string()
}

pub(crate) fn quiet() {
    LAST_WORDS.with(|l| l.borrow_mut().clear());
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| {
        LAST_WORDS.with(|l| l.borrow_mut().push(text));
    })));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_reason_is_one_line() {
        let log = "libbpf: prog 'point': BPF program load failed: Permission denied\n\
            libbpf: prog 'point': -- BEGIN PROG LOAD LOG --\n0: R1=ctx() R10=fp0\n; struct sk_buff *skb = ... @ x.h:3\n\
            7: (79) r3 = *(u64 *)(r1 +0)\nR1 invalid mem access 'scalar'\nverification time 12 usec\n\
            processed 8 insns (limit 1000000) max_states_per_insn 0\n-- END PROG LOAD LOG --\n\
            libbpf: prog 'point': failed to load: -13\nlibbpf: failed to load object\n";
        assert_eq!(reason(log), "R1 invalid mem access 'scalar'");
        let early = "libbpf: extern 'bpf_rdonly_cast': not found\nlibbpf: failed to load object\n";
        assert_eq!(reason(early), "libbpf: extern 'bpf_rdonly_cast': not found");
        assert_eq!(reason(""), "");
    }
}
