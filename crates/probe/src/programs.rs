//! Places in programs: which files the table of programs ([`kpat_model::programs`]) means on this machine, where in them its functions and probes
//! are, and how each argument is reached there. What is not found is named, with the reason; the others are recorded.

mod files;
pub(crate) mod symbols;
mod usdt;

use crate::object::{Loaded, MAX_FUNCS};
use crate::sys;
use crate::wire::{self, argument_flag as flag, argument_from as at, call_side};
use files::Binary;
use kpat_model::meta;
use kpat_model::programs::{ARGUMENTS, Argument, From, Kind, Place, Row, Shape, Stage};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use symbols::Elf;

/// Numbers in the log: those of functions, tracepoints and crossings are below.
const FIRST_NUMBER: usize = MAX_FUNCS;
/// Hooks at most (`KP_MAX_HOOKS`).
const MOST_HOOKS: usize = 1024;
/// Stretches of time in a second in each of which hits are counted anew (`KP_RATE_NS`).
const RATES_A_SECOND: u32 = 10;

/// One hook of the kernel side.
pub struct Hook {
    /// Its place in the kernel's table: the cookie.
    pub number: u32,
    /// It is open, as another may stand at its path by the time that it is attached to.
    file: Arc<File>,
    pub offset: u64,
    pub returns: bool,
    /// Offset in the file of a USDT probe's count of those who watch it; 0: it has none.
    pub semaphore: u64,
    /// What the log has of the place, of which this may be one of several hooks.
    pub function: meta::Function,
    /// The first of them.
    pub first: bool,
    data: wire::Hook,
}

/// What can be recorded here.
#[derive(Default)]
pub struct Found {
    /// They live as long as the recording, which is the process.
    pub hooks: Vec<&'static Hook>,
    /// Functions and probes, each of one file.
    pub places: usize,
    pub left_out: Vec<(String, String)>,
}

impl Hook {
    /// Which of the switches turns it on and off: those of one place have one.
    pub fn switch(&self) -> usize {
        usize::from(self.data.mode)
    }

    /// By which the kernel finds the file, wherever and whether it still has a path.
    fn path(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd())).unwrap_or_default()
    }
}

/// Looks for all places of a table.
pub fn find(rows: &[Row]) -> Found {
    let mut out = Found::default();
    out.add(rows);
    out
}

impl Found {
    /// Looks for more.
    pub fn add(&mut self, rows: &[Row]) {
        look(rows, self);
    }
}

fn look(rows: &[Row], out: &mut Found) {
    let mapped = files::mapped();
    let mut opened: BTreeMap<(u64, u64), (Binary, Result<Elf, String>)> = BTreeMap::new();
    for row in rows {
        let title = format!("{} {}", row.binary, place_name(&row.place));
        let binaries = files::of(&row.binary, &mapped);
        if binaries.is_empty() {
            out.left_out.push((title, "no such file here, and no process has one mapped".into()));
            continue;
        }
        for found in binaries {
            let (b, elf) = opened.entry(found.file).or_insert_with(|| {
                let elf = Elf::read(&found.opened);
                (found, elf)
            });
            let sited = match elf {
                Ok(elf) => site(row, b, elf, out),
                Err(why) => Err(why.clone()),
            };
            if let Err(why) = sited {
                out.left_out.push((format!("{} {}", b.shown, place_name(&row.place)), why));
            }
        }
    }
}

fn place_name(place: &Place) -> String {
    match place {
        Place::Function(name) => name.clone(),
        Place::Usdt(provider, name) => format!("{provider}:{name}"),
        Place::Offset(n) => format!("{n:#x}"),
    }
}

/// Of one row in one file.
fn site(row: &Row, b: &Binary, elf: &Elf, out: &mut Found) -> Result<(), String> {
    let file = b.shown.rsplit('/').next().unwrap_or(&b.shown);
    let func = u16::try_from(FIRST_NUMBER + out.places).map_err(|_| "too many places")?;
    // Offset, where the arguments are if a probe says so, offset of its semaphore.
    let mut places: Vec<(u64, Option<Vec<usdt::Operand>>, u64)> = Vec::new();
    match &row.place {
        Place::Function(name) => {
            let offset = elf.function(name).ok_or_else(|| elf.why_no(name))?;
            places.push((offset, None, 0));
        }
        Place::Offset(offset) if elf.is_code(*offset) => places.push((*offset, None, 0)),
        Place::Offset(offset) => return Err(format!("the file has no code at {offset:#x}")),
        Place::Usdt(provider, name) => {
            for probe in elf.probes().iter().filter(|p| p.provider == *provider && p.name == *name) {
                let operands = usdt::operands(&probe.arguments)?;
                places.push((probe.offset, Some(operands), probe.semaphore));
            }
            if places.is_empty() {
                return Err("the file has no such USDT probe".into());
            }
        }
    }
    let of_go = elf.is_go() && !matches!(&row.place, Place::Function(name) if !name.contains('.'));
    if of_go && row.shape == Shape::Span {
        return Err("a program in Go moves its stacks, and ends where a return is waited for: take begin, end or mark".into());
    }
    let call = if of_go { Given::Go } else { Given::C };
    let stages: &[(Stage, bool)] = match row.shape {
        Shape::Span => &[(Stage::Begin, false), (Stage::End, true)],
        Shape::At(stage) => &[(stage, false)],
    };
    if out.hooks.len() + places.len() * stages.len() > MOST_HOOKS {
        return Err(format!("more than {MOST_HOOKS} places in all"));
    }
    let function = meta::Function {
        id: func,
        name: format!("{file}:{}", place_name(&row.place)),
        module: b.shown.clone(),
        kind: "program".into(),
        addr: 0,
        layer: String::new(),
        via: row.line.clone(),
        mechanism: String::new(),
        entry_only: false,
    };
    let mut hooks: Vec<&'static Hook> = Vec::new();
    for (offset, operands, semaphore) in &places {
        for (stage, returns) in stages {
            let given = operands.as_deref().map_or(call, Given::Probe);
            let argument = arguments(row, &given, *returns)?;
            let number = (out.hooks.len() + hooks.len()) as u32;
            let mode = func - FIRST_NUMBER as u16;
            let of_call = match (row.shape, returns) {
                (Shape::Span, false) => call_side::CALL_ENTRY,
                (Shape::Span, true) => call_side::CALL_RETURN,
                _ => call_side::CALL_NONE,
            } as u8;
            // The entry is the hook before.
            let begins = (number - u32::from(*returns)) as u16;
            let stage = *stage as u8;
            let (only, wanted) = row.only().map_or((0, 0), |(slot, wanted)| (1 + slot as u32, wanted as u64));
            let data = wire::Hook { id: func, mode, stage, of_call, begins, most: 0, only, wanted, argument };
            let (file, offset, semaphore) = (Arc::clone(&b.opened), *offset, *semaphore);
            let (function, first, returns) = (function.clone(), hooks.is_empty(), *returns);
            let hook = Hook { number, file, offset, returns, semaphore, function, first, data };
            hooks.push(Box::leak(Box::new(hook)));
        }
    }
    out.hooks.extend(hooks);
    out.places += 1;
    Ok(())
}

const NO_ARGUMENT: wire::Argument =
    wire::Argument { from: at::ARG_NONE as u8, flags: 0, size: 8, slot: 0, reg: 0, then: 0, offset: 0 };

/// Where a place has its arguments.
#[derive(Clone, Copy)]
enum Given<'a> {
    /// By the calling convention of C, or of Go.
    C,
    Go,
    /// As a USDT probe says.
    Probe(&'a [usdt::Operand]),
}

/// What one hook reads.
fn arguments(row: &Row, given: &Given<'_>, returns: bool) -> Result<[wire::Argument; ARGUMENTS], String> {
    let span = row.shape == Shape::Span;
    let mut all = Vec::new();
    for (slot, a) in row.slots() {
        let slot = slot.unwrap_or(0) as u8;
        if !span || a.at_return() == returns {
            if let (false, Kind::Text { length: Some(n) }) = (returns, a.kind) {
                let length = Argument {
                    name: String::new(),
                    from: From::Argument(n),
                    offsets: Vec::new(),
                    kind: Kind::Number { bytes: 4, signed: false },
                    pointed: false,
                    if_returned: false,
                    words: None,
                    only: None,
                };
                let mut length = reach(&length, given)?;
                length.flags |= flag::ARG_LENGTH as u8;
                all.push(length);
            }
            let mut found = if returns && a.pointed {
                wire::Argument { from: at::ARG_KEPT as u8, ..shape(a) }
            } else {
                reach(a, given)?
            };
            found.slot = slot;
            if a.pointed {
                found.flags |= flag::ARG_POINTED as u8;
            }
            all.push(found);
        } else if !returns && a.pointed {
            let mut kept = reach(a, given)?;
            let then = kept.flags & flag::ARG_THEN as u8;
            (kept.size, kept.flags, kept.slot) = (8, flag::ARG_KEEP as u8 | then, slot);
            all.push(kept);
        }
    }
    if all.len() > ARGUMENTS {
        return Err(format!("more than {ARGUMENTS} values to read"));
    }
    all.resize(ARGUMENTS, NO_ARGUMENT);
    all.try_into().map_err(|_| "more values than there is room for".into())
}

fn shape(a: &Argument) -> wire::Argument {
    let kind = match a.kind {
        Kind::Text { .. } => flag::ARG_TEXT,
        Kind::Descriptor => flag::ARG_DESCRIPTOR | flag::ARG_SIGNED,
        kind if kind.is_signed() => flag::ARG_SIGNED,
        _ => 0,
    };
    wire::Argument { flags: kind as u8, size: a.kind.bytes(), ..NO_ARGUMENT }
}

/// Where an argument is: by the processor's calling convention, or as the probe says.
fn reach(a: &Argument, given: &Given<'_>) -> Result<wire::Argument, String> {
    let mut out = shape(a);
    let place = match (a.from, given) {
        (From::Return, _) => usdt::Operand::register(usdt::RESULT),
        (From::Argument(n), Given::Probe(all)) => {
            let operand = all.get(usize::from(n) - 1);
            let operand = *operand.ok_or_else(|| format!("the probe has no argument {n}"))?;
            if !a.pointed && a.offsets.is_empty() && !matches!(a.kind, Kind::Text { .. }) {
                out.size = out.size.min(operand.size);
            }
            operand
        }
        (From::Argument(n), Given::C) => usdt::of_call(n),
        (From::Argument(n), Given::Go) => usdt::of_go_call(n)
            .ok_or_else(|| format!("argument {n} of a Go function is not in a register"))?,
    };
    match place.place {
        usdt::Where::Register(reg) => (out.from, out.reg) = (at::ARG_REGISTER as u8, reg),
        usdt::Where::Memory(reg, offset) => {
            (out.from, out.reg, out.offset) = (at::ARG_MEMORY as u8, reg, offset);
        }
        usdt::Where::Constant(n) => (out.from, out.offset) = (at::ARG_CONSTANT as u8, n),
    }
    let mut behind = a.offsets.iter().copied();
    if out.from == at::ARG_REGISTER as u8
        && let Some(first) = behind.next()
    {
        (out.from, out.offset) = (at::ARG_MEMORY as u8, first);
    }
    if let Some(then) = behind.next() {
        out.flags |= flag::ARG_THEN as u8;
        out.then = u16::try_from(then).map_err(|_| format!("{then} is no offset in a structure"))?;
    }
    if behind.next().is_some() || !a.offsets.is_empty() && out.from == at::ARG_CONSTANT as u8 {
        return Err(format!("{} is too far from where the argument is", a.name));
    }
    Ok(out)
}

/// Reads a file as one that is looked for functions and probes: how many probes it has whose arguments can be reached.
pub fn probes_in(bytes: Vec<u8>) -> Option<usize> {
    let elf = Elf::parse(bytes)?;
    let _ = (elf.function("main"), elf.why_no("main"));
    Some(elf.probes().iter().filter(|p| usdt::operands(&p.arguments).is_ok()).count())
}

/// Gives the kernel side what it has to know of each hook. `most_a_second`: calls or hits of each place; 0: any number.
pub fn configure(loaded: &Loaded, hooks: &[&Hook], most_a_second: u32) -> io::Result<()> {
    let map = loaded.map("hooks").ok_or_else(|| io::Error::other("no map of hooks"))?;
    for h in hooks {
        let data = wire::Hook { most: most_a_second.div_ceil(RATES_A_SECOND), ..h.data };
        // SAFETY: the structure is plain data without padding (its parts fill it: wire.h), read as bytes of its own size.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const data).cast::<u8>(), size_of::<wire::Hook>()) };
        map.update(&h.number.to_ne_bytes(), bytes, MapFlags::ANY).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Hits of places that were more than are recorded.
#[derive(Default)]
pub struct Often {
    /// Of each hook, as last seen.
    seen: BTreeMap<u32, u64>,
}

impl Often {
    /// How many more were left out, and of which places that begin to be hit too often.
    pub fn left_out(&mut self, loaded: &Loaded, hooks: &[&'static Hook]) -> (u64, Vec<&'static str>) {
        let (mut more, mut fresh) = (0, Vec::new());
        let Some(map) = loaded.map("rates") else { return (more, fresh) };
        let at = std::mem::offset_of!(wire::Rate, left_out);
        for h in hooks.iter().filter(|h| h.data.of_call != call_side::CALL_RETURN as u8) {
            let Ok(Some(value)) = map.lookup(&h.number.to_ne_bytes(), MapFlags::ANY) else { continue };
            let all = value.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
            let before = self.seen.insert(h.number, all).unwrap_or(0);
            more += all - before;
            if before == 0 && all > 0 {
                fresh.push(h.function.name.as_str());
            }
        }
        (more, fresh)
    }
}

/// Does this kernel take many places of a file by one link (6.6), as the program for that needs it? What it answers to a path that is no file says so.
pub fn links_many(loaded: &Loaded) -> bool {
    let Some(program) = loaded.program(crate::plan::MANY) else { return true };
    let place = sys::Place { offset: 1, counter: 0, cookie: 0 };
    sys::link_uprobe_multi(program, c"/", false, &[place])
        .is_err_and(|e| e.raw_os_error() == Some(libc::EBADF))
}

/// What was not taken, and why.
type Refused = Vec<(&'static Hook, io::Error)>;

/// Puts the program for many places on all of them, by one link for those of a file at which it runs on entry, and one for those on return.
pub fn attach_many(loaded: &Loaded, hooks: &[&'static Hook]) -> (Vec<OwnedFd>, Refused) {
    let (mut links, mut refused) = (Vec::new(), Vec::new());
    let Some(program) = loaded.program(crate::plan::MANY) else { return (links, refused) };
    let mut files: BTreeMap<(RawFd, bool), Vec<&'static Hook>> = BTreeMap::new();
    for h in hooks {
        files.entry((h.file.as_raw_fd(), h.returns)).or_default().push(h);
    }
    // A link takes all or nothing: where one is refused, its places are tried by halves.
    let mut todo: Vec<Vec<&'static Hook>> = files.into_values().collect();
    while let Some(part) = todo.pop() {
        let place =
            |h: &&Hook| sys::Place { offset: h.offset, counter: h.semaphore, cookie: h.number.into() };
        let places: Vec<sys::Place> = part.iter().map(place).collect();
        match sys::link_uprobe_multi(program, &part[0].path(), part[0].returns, &places) {
            Ok(link) => links.push(link),
            Err(e) if part.len() == 1 => refused.push((part[0], e)),
            Err(_) => todo.extend(part.chunks(part.len().div_ceil(2)).map(<[_]>::to_vec)),
        }
    }
    (links, refused)
}

/// Puts the program on a place.
pub fn attach(program: std::os::fd::BorrowedFd<'_>, h: &Hook) -> io::Result<std::os::fd::OwnedFd> {
    let pmu = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let pmu = pmu.trim().parse().map_err(io::Error::other)?;
    let event = crate::sys::perf_uprobe(pmu, &h.path(), h.offset, h.returns, h.semaphore)?;
    crate::sys::link_perf(program, std::os::fd::AsFd::as_fd(&event), h.number.into())
}
