//! Puts programs on functions. A multi link refuses a whole set for one bad function: the set is then halved until the
//! bad ones are alone, and what is good stays attached. Links are closed in parallel, because each detach of the
//! one-by-one mechanisms waits for a grace period.

use crate::choose::Candidate;
use crate::mechanism::{self, Mechanism};
use crate::object::{Code, Loaded};
use crate::profile;
use crate::sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// What is attached; dropping it detaches.
#[derive(Default)]
pub struct Attached {
    links: Vec<OwnedFd>,
    /// Links of a program with many functions each; they can be detached and attached again.
    sets: Vec<Set>,
    /// Links of programs that have one fixed hook; they can be detached and attached again.
    points: Vec<OwnedFd>,
    /// Links of programs of one function each, beside sets; they can be detached and attached again.
    own: Vec<Own>,
    /// Clones of programs and perf events that must live as long as the links.
    held: Vec<OwnedFd>,
    /// Links of pairs that are being closed: the kernel waits for a grace period for each, one after the other.
    closing: Vec<JoinHandle<()>>,
    /// Functions that the kernel refused: index into the list, reason.
    pub refused: Vec<(usize, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("program {0} is not loaded")]
    NoProgram(&'static str),
    #[error("no function could be attached by {mechanism}: {reason}")]
    Nothing { mechanism: &'static str, reason: String },
    #[error("cannot read the kernel's types: {0}")]
    Btf(io::Error),
}

/// A program for many functions by one link of trampolines.
#[derive(Clone, Copy, PartialEq)]
struct Traced {
    program: &'static str,
    attach: u32,
}

const FSESSION: Traced = Traced { program: "fsession_multi", attach: sys::ATTACH_FSESSION_MULTI };
const ENTRIES: Traced = Traced { program: mechanism::ENTRY_MULTI, attach: sys::ATTACH_FENTRY_MULTI };

/// A program on many functions by one link.
struct Set {
    program: Program,
    functions: Vec<Function>,
    link: Option<OwnedFd>,
}

/// The programs of one function.
struct Own {
    name: String,
    cookie: u64,
    /// Their places in [`Attached::held`], each with where it is attached.
    programs: Vec<(usize, u32)>,
    /// Empty: they are not attached.
    links: Vec<OwnedFd>,
}

/// How many programs are loaded and attached at one time: their verification takes most of it and needs no lock, but who attaches spins for the
/// locks of others, which on few processors takes longer than one after the other.
fn at_one_time() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get() / 2).clamp(1, 4)
}

#[derive(Clone, Copy)]
enum Program {
    /// As it was loaded with the object.
    Original(Traced),
    /// A copy of it, by its place in [`Attached::held`].
    Copy(Traced, usize),
    Kprobe {
        name: &'static str,
        attach: u32,
        returns: bool,
    },
}

#[derive(Clone)]
struct Function {
    name: CString,
    btf_id: u32,
    cookie: u64,
}

/// Entries alone, by kprobe.multi.
const KPROBE_ENTRIES: Program =
    Program::Kprobe { name: mechanism::KPROBE_ENTRY_ONLY, attach: sys::ATTACH_KPROBE_MULTI, returns: false };

impl Program {
    /// Each function is in another set, too.
    fn of_returns(self) -> bool {
        matches!(self, Program::Kprobe { returns: true, .. })
    }
}

impl Function {
    fn new(t: &Target<'_>) -> Function {
        Function { name: c_name(t), btf_id: t.candidate.btf_id, cookie: cookie(t) }
    }
}

/// One function with its number.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub candidate: &'a Candidate,
    pub func: u16,
}

impl Attached {
    pub fn links(&self) -> usize {
        self.links.len() + self.sets.len() + self.own.len()
    }

    /// Attaches `targets` (indices in refusals are into this slice). Progress: done, of.
    pub fn functions(
        &mut self,
        loaded: &Loaded,
        m: Mechanism,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let before = self.links();
        let all: Vec<usize> = (0..targets.len()).collect();
        progress(0, targets.len());
        match m {
            Mechanism::FsessionMulti => {
                let mut copies: BTreeMap<(&str, &str, bool), Vec<usize>> = BTreeMap::new();
                for i in all {
                    let c = targets[i].candidate;
                    let layer = match c.module.is_empty() {
                        _ if c.is_within() => "within",
                        true => profile::layer(&c.name),
                        false => "",
                    };
                    copies.entry((&c.module, layer, c.entry_only)).or_default().push(i);
                }
                for ((module, _, entry_only), part) in copies {
                    self.traced(loaded, if entry_only { ENTRIES } else { FSESSION }, module, targets, &part)?;
                }
            }
            Mechanism::KprobeSession => {
                let (entries, both) = apart(targets);
                let (name, attach) = ("kprobe_session", sys::ATTACH_KPROBE_SESSION);
                self.halve(loaded, Program::Kprobe { name, attach, returns: false }, targets, &both);
                self.halve(loaded, KPROBE_ENTRIES, targets, &entries);
            }
            Mechanism::KprobeMulti => {
                let (entries, both) = apart(targets);
                let attach = sys::ATTACH_KPROBE_MULTI;
                // returns first: an entry without its return would fill the table of open calls
                let of = |name, returns| Program::Kprobe { name, attach, returns };
                self.halve(loaded, of("kprobe_return", true), targets, &both);
                let bad: Vec<usize> = self.refused.iter().map(|r| r.0).collect();
                let good: Vec<usize> = both.iter().copied().filter(|i| !bad.contains(i)).collect();
                self.halve(loaded, of("kprobe_entry", false), targets, &good);
                self.halve(loaded, KPROBE_ENTRIES, targets, &entries);
            }
            Mechanism::Fentry => self.fentry(loaded, targets, progress)?,
            Mechanism::Kprobe => self.kprobes(loaded, targets, progress)?,
            Mechanism::Tracepoint => {}
        }
        progress(targets.len(), targets.len());
        if self.links() == before && !targets.is_empty() {
            let reason = self.refused.first().map_or("no reason given".into(), |r| r.1.clone());
            return Err(Error::Nothing { mechanism: m.name(), reason });
        }
        Ok(())
    }

    fn halve(&mut self, loaded: &Loaded, program: Program, targets: &[Target<'_>], part: &[usize]) {
        if part.is_empty() {
            return;
        }
        let functions: Vec<Function> = part.iter().map(|i| Function::new(&targets[*i])).collect();
        match self.link(loaded, program, &functions) {
            Ok(fd) => self.sets.push(Set { program, functions, link: Some(fd) }),
            Err(e) if part.len() == 1 => self.refused.push((part[0], e.to_string())),
            Err(_) => {
                let (a, b) = part.split_at(part.len() / 2);
                self.halve(loaded, program, targets, a);
                self.halve(loaded, program, targets, b);
            }
        }
    }

    fn link(&self, loaded: &Loaded, program: Program, functions: &[Function]) -> io::Result<OwnedFd> {
        let cookies: Vec<u64> = functions.iter().map(|f| f.cookie).collect();
        let traced = |program: BorrowedFd<'_>, attach| {
            let ids: Vec<u32> = functions.iter().map(|f| f.btf_id).collect();
            sys::link_tracing_multi(program, attach, &ids, &cookies)
        };
        match program {
            Program::Original(t) => traced(loaded_program(loaded, t.program)?, t.attach),
            Program::Copy(t, copy) => traced(self.held[copy].as_fd(), t.attach),
            Program::Kprobe { name, attach, returns } => {
                let names: Vec<CString> = functions.iter().map(|f| f.name.clone()).collect();
                sys::link_kprobe_multi(loaded_program(loaded, name)?, attach, returns, &names, &cookies)
            }
        }
    }

    /// One link for functions of one kernel object, to a copy of the program: a program knows one object only, and does not
    /// run inside itself (bpf/functions.bpf.h). The first of the kernel proper takes the program as it was loaded, as each copy is verified anew.
    fn traced(
        &mut self,
        loaded: &Loaded,
        traced: Traced,
        module: &str,
        targets: &[Target<'_>],
        part: &[usize],
    ) -> Result<(), Error> {
        let taken = |s: &Set| matches!(s.program, Program::Original(t) if t == traced);
        if module.is_empty() && !self.sets.iter().any(taken) {
            self.halve(loaded, Program::Original(traced), targets, part);
            return Ok(());
        }
        let code = loaded.code(traced.program).ok_or(Error::NoProgram(traced.program))?;
        let types = match module {
            "" => None,
            _ => sys::kernel_btfs().map_err(Error::Btf)?.into_iter().find(|(name, _)| name == module),
        };
        let copy = if types.is_none() && !module.is_empty() {
            Err(io::Error::other(format!("the type information of module {module} is unavailable")))
        } else {
            let types = types.as_ref().map(|(_, fd)| fd.as_fd());
            sys::load_tracing(&code, traced.attach, 0, types)
        };
        match copy {
            Ok(fd) => {
                self.held.push(fd);
                self.halve(loaded, Program::Copy(traced, self.held.len() - 1), targets, part);
            }
            Err(e) => self.refused.extend(part.iter().map(|i| (*i, e.to_string()))),
        }
        Ok(())
    }

    fn fentry(
        &mut self,
        loaded: &Loaded,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let made = self.made(loaded, targets, progress)?;
        for (i, made) in made {
            match made {
                Ok(Made { programs, links }) => {
                    self.held.extend(programs.into_iter().map(|(program, _)| program));
                    self.links.extend(links);
                }
                Err(reason) => self.refused.push((i, reason)),
            }
        }
        Ok(())
    }

    /// By fentry, beside what other functions have by links of many: they are taken off and put on with those.
    pub fn beside(
        &mut self,
        loaded: &Loaded,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        for (i, made) in self.made(loaded, targets, progress)? {
            match made {
                Ok(Made { programs, links }) => {
                    let made = programs.into_iter().map(|(program, attach)| {
                        self.held.push(program);
                        (self.held.len() - 1, attach)
                    });
                    let programs = made.collect();
                    let name = targets[i].candidate.name.clone();
                    self.own.push(Own { name, cookie: cookie(&targets[i]), programs, links });
                }
                Err(reason) => self.refused.push((i, reason)),
            }
        }
        Ok(())
    }

    /// Programs of their own for each function, attached.
    fn made(
        &self,
        loaded: &Loaded,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<(usize, Making)>, Error> {
        let mut modules: HashMap<String, OwnedFd> = HashMap::new();
        if targets.iter().any(|t| !t.candidate.module.is_empty()) {
            modules = sys::kernel_btfs().map_err(Error::Btf)?.into_iter().collect();
        }
        let mut originals: BTreeMap<&str, Code> = BTreeMap::new();
        for name in targets.iter().flat_map(|t| mechanism::clones(t.candidate)) {
            if !originals.contains_key(name) {
                originals.insert(name, loaded.code(name).ok_or(Error::NoProgram(name))?);
            }
        }
        let copier = loaded.copier().ok_or(Error::NoProgram("with constants"))?;
        let make = |i: usize| -> Making {
            let c = targets[i].candidate;
            let object = match c.module.as_str() {
                "" => None,
                m => match modules.get(m) {
                    Some(fd) => Some(fd.as_fd()),
                    None => return Err(format!("the type information of module {m} is unavailable")),
                },
            };
            let mut made = Made::default();
            let places = mechanism::clones(c).iter().zip([sys::ATTACH_FENTRY, sys::ATTACH_FEXIT]);
            // exit first: an entry without its exit would fill the table of open calls
            for (name, attach) in places.rev() {
                let code = copier.code_for(&originals[name], i);
                let program =
                    sys::load_tracing(&code, attach, c.btf_id, object).map_err(|e| e.to_string())?;
                let link = sys::link_tracing(program.as_fd(), attach, cookie(&targets[i]));
                made.links.push(link.map_err(|e| e.to_string())?);
                made.programs.push((program, attach));
            }
            Ok(made)
        };
        Ok(abreast(targets.len(), &make, progress))
    }

    fn kprobes(
        &mut self,
        loaded: &Loaded,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let prog = |n: &'static str| loaded.program(n).ok_or(Error::NoProgram(n));
        let Some(pmu) = mechanism::kprobe_pmu() else {
            self.refused
                .extend((0..targets.len()).map(|i| (i, "there is no kprobe event source".to_string())));
            return Ok(());
        };
        for (i, t) in targets.iter().enumerate() {
            let programs = match t.candidate.entry_only {
                true => vec![(prog(mechanism::KPROBE_ENTRY_ONLY)?, false)],
                false => vec![(prog("kprobe_return")?, true), (prog("kprobe_entry")?, false)],
            };
            let attached = programs.into_iter().map(|(prog, retprobe)| {
                let event = sys::perf_kprobe(pmu, &c_name(t), retprobe)?;
                let link = sys::link_perf(prog, event.as_fd(), cookie(t))?;
                io::Result::Ok((event, link))
            });
            match attached.collect::<io::Result<Vec<_>>>() {
                Ok(all) => {
                    for (event, link) in all {
                        self.held.push(event);
                        self.links.push(link);
                    }
                }
                Err(e) => self.refused.push((i, e.to_string())),
            }
            progress(i + 1, targets.len());
        }
        Ok(())
    }

    /// A link of [`tracepoint`] or [`typed`]; `stays`: it is not taken off.
    pub fn hold(&mut self, link: OwnedFd, stays: bool) {
        if stays { &mut self.links } else { &mut self.points }.push(link);
    }

    /// Programs with a fixed place that are on it.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Functions whose programs stay attached while paused: each has its own links, which take seconds to make.
    pub fn staying(&self, functions: usize) -> usize {
        let of_sets: usize =
            self.sets.iter().filter(|s| !s.program.of_returns()).map(|s| s.functions.len()).sum();
        functions.saturating_sub(of_sets + self.own.len())
    }

    /// Takes those off that can be.
    pub fn take_off(&mut self) {
        let mut links = std::mem::take(&mut self.points);
        links.extend(self.sets.iter_mut().filter_map(|s| s.link.take()));
        close(links);
        let own: Vec<OwnedFd> = self.own.iter_mut().flat_map(|o| std::mem::take(&mut o.links)).collect();
        if !own.is_empty() {
            self.closing.push(std::thread::spawn(move || drop(own)));
        }
    }

    /// Until nothing is being detached any more.
    fn wait_until_closed(&mut self) {
        for thread in self.closing.drain(..) {
            // a thread that closes descriptors does not panic
            thread.join().ok();
        }
    }

    /// Puts the programs of many functions on them again. Returns the functions that the kernel takes no more, as where a module has been
    /// unloaded meanwhile, each with its reason.
    pub fn put_back(&mut self, loaded: &Loaded) -> Vec<(String, String)> {
        let (mut sets, off): (Vec<Set>, Vec<Set>) =
            std::mem::take(&mut self.sets).into_iter().partition(|s| s.link.is_some());
        let mut gone = Vec::new();
        let mut parts: Vec<(Program, Vec<Function>)> =
            off.into_iter().map(|s| (s.program, s.functions)).collect();
        while let Some((program, mut functions)) = parts.pop() {
            match self.link(loaded, program, &functions) {
                Ok(link) => sets.push(Set { program, functions, link: Some(link) }),
                Err(e) if functions.len() == 1 => {
                    gone.push((functions[0].name.to_string_lossy().into_owned(), e.to_string()));
                }
                Err(_) => {
                    let rest = functions.split_off(functions.len() / 2);
                    parts.extend([(program, functions), (program, rest)]);
                }
            }
        }
        self.sets = sets;
        self.put_own_back(&mut gone);
        gone
    }

    fn put_own_back(&mut self, gone: &mut Vec<(String, String)>) {
        self.wait_until_closed();
        let (own, held) = (&self.own, &self.held);
        let again = |i: usize| -> io::Result<Vec<OwnedFd>> {
            let link =
                |&(at, attach): &(usize, u32)| sys::link_tracing(held[at].as_fd(), attach, own[i].cookie);
            own[i].programs.iter().map(link).collect()
        };
        for (i, links) in abreast(own.len(), &again, &mut |_, _| {}) {
            match links {
                Ok(links) => self.own[i].links = links,
                Err(e) => gone.push((self.own[i].name.clone(), e.to_string())),
            }
        }
        self.own.retain(|o| !o.links.is_empty());
    }

    /// Descriptors of the clones, for statistics.
    pub fn clones(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.held.iter().map(AsFd::as_fd)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut links = std::mem::take(&mut self.links);
        links.append(&mut self.points);
        links.extend(self.sets.iter_mut().filter_map(|s| s.link.take()));
        links.extend(self.own.iter_mut().flat_map(|o| std::mem::take(&mut o.links)));
        close(links);
        self.wait_until_closed();
    }
}

/// Of one function: its return, if that is recorded, and its entry.
#[derive(Default)]
struct Made {
    /// Each with where it is attached.
    programs: Vec<(OwnedFd, u32)>,
    links: Vec<OwnedFd>,
}

/// Or why the kernel refuses it.
type Making = Result<Made, String>;

/// What `make` makes of 0 to `n`, several at one time.
fn abreast<T: Send>(
    n: usize,
    make: &(dyn Fn(usize) -> T + Sync),
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<(usize, T)> {
    let next = AtomicUsize::new(0);
    let mut all: Vec<(usize, T)> = Vec::with_capacity(n);
    std::thread::scope(|s| {
        let (sender, made) = mpsc::channel();
        for _ in 0..n.min(at_one_time()) {
            let (next, sender) = (&next, sender.clone());
            s.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n || sender.send((i, make(i))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for one in made {
            all.push(one);
            progress(all.len(), n);
        }
    });
    all.sort_by_key(|(i, _)| *i);
    all
}

fn close(mut links: Vec<OwnedFd>) {
    let per = links.len().div_ceil(16).max(1);
    std::thread::scope(|s| {
        while !links.is_empty() {
            let rest = links.split_off(links.len().saturating_sub(per));
            s.spawn(move || drop(rest));
        }
    });
}

fn loaded_program<'a>(loaded: &'a Loaded, program: &str) -> io::Result<BorrowedFd<'a>> {
    loaded.program(program).ok_or_else(|| io::Error::other(format!("program {program} is not loaded")))
}

/// A program on a raw tracepoint.
pub fn tracepoint(loaded: &Loaded, program: &str, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    sys::raw_tracepoint(loaded_program(loaded, program)?, &name)
}

/// A program on an event of tracefs, by its number there.
pub fn event(loaded: &Loaded, program: &str, number: u64) -> io::Result<OwnedFd> {
    let event = sys::perf_tracepoint(number)?;
    sys::link_perf(loaded_program(loaded, program)?, event.as_fd(), 0)
}

/// A program at a function's entry.
pub fn kprobe(loaded: &Loaded, program: &str, function: &str) -> io::Result<OwnedFd> {
    let pmu = mechanism::kprobe_pmu().ok_or_else(|| io::Error::other("there is no kprobe event source"))?;
    let name = CString::new(function).map_err(io::Error::other)?;
    let event = sys::perf_kprobe(pmu, &name, false)?;
    sys::link_perf(loaded_program(loaded, program)?, event.as_fd(), 0)
}

/// Places of functions of which only entries are recorded, and of the others.
fn apart(targets: &[Target<'_>]) -> (Vec<usize>, Vec<usize>) {
    (0..targets.len()).partition(|i| targets[*i].candidate.entry_only)
}

/// A program where its section says.
pub fn typed(loaded: &Loaded, program: &str, attach: u32) -> io::Result<OwnedFd> {
    sys::link_tracing(loaded_program(loaded, program)?, attach, 0)
}

fn cookie(t: &Target<'_>) -> u64 {
    t.candidate.cookie(t.func)
}

fn c_name(t: &Target<'_>) -> CString {
    CString::new(t.candidate.name.as_str()).unwrap_or_default()
}
