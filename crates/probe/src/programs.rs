//! Places in programs: which files the table of programs ([`kpat_model::programs`]) means on this machine, where in them its functions and probes
//! are, and how each argument is reached there. What is not found is named, with the reason; the others are recorded.

mod files;
pub(crate) mod symbols;
mod usdt;

use crate::object::{Loaded, MAX_FUNCS};
use crate::sys;
use crate::wire::{self, argument_flag as flag, argument_from as at};
use files::Binary;
use kpat_model::meta;
use kpat_model::programs::{ARGUMENTS, Argument, From, Kind, Place, Row, Shape, Stage};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use symbols::Elf;

/// Numbers in the log: those of functions, tracepoints and crossings are below.
const FIRST_NUMBER: usize = MAX_FUNCS;
/// Hooks at most (`KP_MAX_HOOKS`).
const MOST_HOOKS: usize = 1024;

/// One hook of the kernel side.
pub struct Hook {
    /// Its place in the kernel's table: the cookie.
    pub number: u32,
    pub path: String,
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
    let mut opened: Vec<(String, Result<Elf, String>)> = Vec::new();
    for row in rows {
        let title = format!("{} {}", row.binary, place_name(&row.place));
        let binaries = files::of(&row.binary, &mapped);
        if binaries.is_empty() {
            out.left_out.push((title, "no such file here, and no process has one mapped".into()));
            continue;
        }
        for b in binaries {
            if !opened.iter().any(|(path, _)| *path == b.path) {
                opened.push((b.path.clone(), Elf::open(&b.path)));
            }
            let elf = opened.iter().find(|(path, _)| *path == b.path).map(|(_, e)| e);
            let sited = match elf {
                Some(Ok(elf)) => site(row, &b, elf, out),
                Some(Err(why)) => Err(why.clone()),
                None => continue,
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
        Place::Offset(offset) => places.push((*offset, None, 0)),
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
            let argument = arguments(row, operands.as_deref(), *returns)?;
            let number = (out.hooks.len() + hooks.len()) as u32;
            let mode = func - FIRST_NUMBER as u16;
            let data = wire::Hook { id: func, mode, stage: *stage as u8, pad: [0; 3], argument };
            let (path, offset, semaphore) = (b.path.clone(), *offset, *semaphore);
            let (function, first, returns) = (function.clone(), hooks.is_empty(), *returns);
            let hook = Hook { number, path, offset, returns, semaphore, function, first, data };
            hooks.push(Box::leak(Box::new(hook)));
        }
    }
    out.hooks.extend(hooks);
    out.places += 1;
    Ok(())
}

const NO_ARGUMENT: wire::Argument =
    wire::Argument { from: at::ARG_NONE as u8, flags: 0, size: 8, slot: 0, reg: 0, pad: 0, offset: 0 };

/// What one hook reads.
fn arguments(
    row: &Row,
    operands: Option<&[usdt::Operand]>,
    returns: bool,
) -> Result<[wire::Argument; ARGUMENTS], String> {
    let span = row.shape == Shape::Span;
    let mut all = Vec::new();
    for (slot, a) in row.slots() {
        let slot = slot.unwrap_or(0) as u8;
        if !span || a.at_return() == returns {
            if let (false, Kind::Text { length: Some(n) }) = (returns, a.kind) {
                let length = Argument {
                    name: String::new(),
                    from: From::Argument(n),
                    kind: Kind::Number { bytes: 4, signed: false },
                    pointed: false,
                };
                let mut length = reach(&length, operands)?;
                length.flags |= flag::ARG_LENGTH as u8;
                all.push(length);
            }
            let mut found = if returns && a.pointed {
                wire::Argument { from: at::ARG_KEPT as u8, ..shape(a) }
            } else {
                reach(a, operands)?
            };
            found.slot = slot;
            if a.pointed {
                found.flags |= flag::ARG_POINTED as u8;
            }
            all.push(found);
        } else if !returns && a.pointed {
            let mut kept = reach(a, operands)?;
            (kept.size, kept.flags, kept.slot) = (8, flag::ARG_KEEP as u8, slot);
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
    let signed = if a.kind.is_signed() { flag::ARG_SIGNED as u8 } else { 0 };
    let text = if matches!(a.kind, Kind::Text { .. }) { flag::ARG_TEXT as u8 } else { 0 };
    wire::Argument { flags: signed | text, size: a.kind.bytes(), ..NO_ARGUMENT }
}

/// Where an argument is: by the processor's calling convention, or as the probe says.
fn reach(a: &Argument, operands: Option<&[usdt::Operand]>) -> Result<wire::Argument, String> {
    let mut out = shape(a);
    let place = match (a.from, operands) {
        (From::Return, _) => usdt::Operand::register(usdt::RESULT),
        (From::Argument(n), Some(all)) => {
            let operand = all.get(usize::from(n) - 1);
            let operand = *operand.ok_or_else(|| format!("the probe has no argument {n}"))?;
            if !a.pointed && !matches!(a.kind, Kind::Text { .. }) {
                out.size = out.size.min(operand.size);
            }
            operand
        }
        (From::Argument(n), None) => usdt::of_call(n),
    };
    match place.place {
        usdt::Where::Register(reg) => (out.from, out.reg) = (at::ARG_REGISTER as u8, reg),
        usdt::Where::Memory(reg, offset) => {
            (out.from, out.reg, out.offset) = (at::ARG_MEMORY as u8, reg, offset);
        }
        usdt::Where::Constant(n) => (out.from, out.offset) = (at::ARG_CONSTANT as u8, n),
    }
    Ok(out)
}

/// Reads a file as one that is looked for functions and probes: how many probes it has whose arguments can be reached.
pub fn probes_in(bytes: Vec<u8>) -> Option<usize> {
    let elf = Elf::parse(bytes)?;
    let _ = (elf.function("main"), elf.why_no("main"));
    Some(elf.probes().iter().filter(|p| usdt::operands(&p.arguments).is_ok()).count())
}

/// Gives the kernel side what it has to know of each hook.
pub fn configure(loaded: &Loaded, hooks: &[&Hook]) -> io::Result<()> {
    let map = loaded.map("hooks").ok_or_else(|| io::Error::other("no map of hooks"))?;
    for h in hooks {
        // SAFETY: the structure is plain data without padding (its parts fill it: wire.h), read as bytes of its own size.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const h.data).cast::<u8>(), size_of::<wire::Hook>()) };
        map.update(&h.number.to_ne_bytes(), bytes, MapFlags::ANY).map_err(io::Error::other)?;
    }
    Ok(())
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
    let mut files: BTreeMap<(&str, bool), Vec<&'static Hook>> = BTreeMap::new();
    for h in hooks {
        files.entry((&h.path, h.returns)).or_default().push(h);
    }
    // A link takes all or nothing: where one is refused, its places are tried by halves.
    let mut todo: Vec<Vec<&'static Hook>> = files.into_values().collect();
    while let Some(part) = todo.pop() {
        let place =
            |h: &&Hook| sys::Place { offset: h.offset, counter: h.semaphore, cookie: h.number.into() };
        let places: Vec<sys::Place> = part.iter().map(place).collect();
        let path = std::ffi::CString::new(part[0].path.as_str()).map_err(io::Error::other);
        match path.and_then(|path| sys::link_uprobe_multi(program, &path, part[0].returns, &places)) {
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
    let path = std::ffi::CString::new(h.path.as_str()).map_err(io::Error::other)?;
    let event = crate::sys::perf_uprobe(pmu, &path, h.offset, h.returns, h.semaphore)?;
    crate::sys::link_perf(program, std::os::fd::AsFd::as_fd(&event), h.number.into())
}
