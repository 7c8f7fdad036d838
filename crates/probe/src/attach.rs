//! Puts programs on functions. A multi link refuses a whole set for one bad function: the set is then halved until the
//! bad ones are alone, and what is good stays attached. Links are closed in parallel, because each detach of the
//! one-by-one mechanisms waits for a grace period.

use crate::choose::Candidate;
use crate::mechanism::{self, Mechanism};
use crate::object::Loaded;
use crate::profile;
use crate::sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is attached; dropping it detaches.
#[derive(Default)]
pub struct Attached {
    links: Vec<OwnedFd>,
    /// Links of programs that have one fixed place; they can be taken off and put on again.
    points: Vec<OwnedFd>,
    /// Clones of programs and perf events that must live as long as the links.
    held: Vec<OwnedFd>,
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

/// One function with its number.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub candidate: &'a Candidate,
    pub func: u16,
}

impl Attached {
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Attaches `targets` (indices in refusals are into this slice). Progress: done, of.
    pub fn functions(
        &mut self,
        loaded: &Loaded,
        m: Mechanism,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let prog = |n: &'static str| loaded.program(n).ok_or(Error::NoProgram(n));
        let before = self.links.len();
        let all: Vec<usize> = (0..targets.len()).collect();
        progress(0, targets.len());
        match m {
            Mechanism::FsessionMulti => {
                let mut copies: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
                for i in all {
                    let c = targets[i].candidate;
                    let layer = if c.module.is_empty() { profile::layer(&c.name) } else { "" };
                    copies.entry((&c.module, layer)).or_default().push(i);
                }
                for ((module, _), part) in copies {
                    self.fsession(loaded, module, targets, &part)?;
                }
            }
            Mechanism::KprobeSession => {
                let p = prog("kprobe_session")?;
                self.halve(&all, &mut |part| {
                    kprobe_link(p, sys::ATTACH_KPROBE_SESSION, false, targets, part)
                });
            }
            Mechanism::KprobeMulti => {
                let (entry, ret) = (prog("kprobe_entry")?, prog("kprobe_return")?);
                // returns first: an entry without its return would fill the table of open calls
                self.halve(&all, &mut |part| kprobe_link(ret, sys::ATTACH_KPROBE_MULTI, true, targets, part));
                let bad: Vec<usize> = self.refused.iter().map(|r| r.0).collect();
                let good: Vec<usize> = all.iter().copied().filter(|i| !bad.contains(i)).collect();
                self.halve(&good, &mut |part| {
                    kprobe_link(entry, sys::ATTACH_KPROBE_MULTI, false, targets, part)
                });
            }
            Mechanism::Fentry => self.fentry(loaded, targets, progress)?,
            Mechanism::Kprobe => {
                self.kprobes(prog("kprobe_entry")?, prog("kprobe_return")?, targets, progress)
            }
            Mechanism::Tracepoint => {}
        }
        progress(targets.len(), targets.len());
        if self.links.len() == before && !targets.is_empty() {
            let reason = self.refused.first().map_or("no reason given".into(), |r| r.1.clone());
            return Err(Error::Nothing { mechanism: m.name(), reason });
        }
        Ok(())
    }

    fn halve(&mut self, part: &[usize], link: &mut dyn FnMut(&[usize]) -> io::Result<OwnedFd>) {
        if part.is_empty() {
            return;
        }
        match link(part) {
            Ok(fd) => self.links.push(fd),
            Err(e) if part.len() == 1 => self.refused.push((part[0], e.to_string())),
            Err(_) => {
                let (a, b) = part.split_at(part.len() / 2);
                self.halve(a, link);
                self.halve(b, link);
            }
        }
    }

    /// One link for functions of one kernel object, to a copy of the program: a program knows one object only, and does not
    /// run inside itself (bpf/functions.bpf.h).
    fn fsession(
        &mut self,
        loaded: &Loaded,
        module: &str,
        targets: &[Target<'_>],
        part: &[usize],
    ) -> Result<(), Error> {
        let code = loaded.code("fsession_multi").ok_or(Error::NoProgram("fsession_multi"))?;
        let types = match module {
            "" => None,
            _ => sys::kernel_btfs().map_err(Error::Btf)?.into_iter().find(|(name, _)| name == module),
        };
        let copy = if types.is_none() && !module.is_empty() {
            Err(io::Error::other(format!("the types of module {module} are not to be had")))
        } else {
            let types = types.as_ref().map(|(_, fd)| fd.as_fd());
            sys::load_tracing(&code, sys::ATTACH_FSESSION_MULTI, 0, types)
        };
        let p = match &copy {
            Ok(fd) => fd.as_fd(),
            Err(e) => {
                self.refused.extend(part.iter().map(|i| (*i, e.to_string())));
                return Ok(());
            }
        };
        self.halve(part, &mut |part| {
            let ids: Vec<u32> = part.iter().map(|i| targets[*i].candidate.btf_id).collect();
            let cookies: Vec<u64> = part.iter().map(|i| cookie(&targets[*i])).collect();
            sys::link_tracing_multi(p, sys::ATTACH_FSESSION_MULTI, &ids, &cookies)
        });
        self.held.extend(copy);
        Ok(())
    }

    fn fentry(
        &mut self,
        loaded: &Loaded,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let mut modules: HashMap<String, OwnedFd> = HashMap::new();
        if targets.iter().any(|t| !t.candidate.module.is_empty()) {
            modules = sys::kernel_btfs().map_err(Error::Btf)?.into_iter().collect();
        }
        let entry = loaded.code("fentry_one").ok_or(Error::NoProgram("fentry_one"))?;
        let exit = loaded.code("fexit_one").ok_or(Error::NoProgram("fexit_one"))?;
        for (i, t) in targets.iter().enumerate() {
            let object = match t.candidate.module.as_str() {
                "" => None,
                m => match modules.get(m) {
                    Some(fd) => Some(fd.as_fd()),
                    None => {
                        self.refused.push((i, format!("the types of module {m} are not to be had")));
                        continue;
                    }
                },
            };
            let (Some(exit), Some(entry)) = (loaded.code_for(&exit, i), loaded.code_for(&entry, i)) else {
                self.refused.push((i, "kpat's own object has no constants".into()));
                continue;
            };
            // exit first: an entry without its exit would fill the table of open calls
            let both = [(&exit, sys::ATTACH_FEXIT), (&entry, sys::ATTACH_FENTRY)].map(|(code, attach)| {
                let p = sys::load_tracing(code, attach, t.candidate.btf_id, object)?;
                let l = sys::link_tracing(p.as_fd(), attach, cookie(t))?;
                io::Result::Ok((p, l))
            });
            match both {
                [Ok((p, l)), Ok((q, k))] => {
                    self.held.extend([p, q]);
                    self.links.extend([l, k]);
                }
                [Err(e), _] | [_, Err(e)] => self.refused.push((i, e.to_string())),
            }
            progress(i + 1, targets.len());
        }
        Ok(())
    }

    fn kprobes(
        &mut self,
        entry: BorrowedFd<'_>,
        ret: BorrowedFd<'_>,
        targets: &[Target<'_>],
        progress: &mut dyn FnMut(usize, usize),
    ) {
        let Some(pmu) = mechanism::kprobe_pmu() else {
            self.refused
                .extend((0..targets.len()).map(|i| (i, "there is no kprobe event source".to_string())));
            return;
        };
        for (i, t) in targets.iter().enumerate() {
            let both = [(ret, true), (entry, false)].map(|(prog, retprobe)| {
                let event = sys::perf_kprobe(pmu, &c_name(t), retprobe)?;
                let link = sys::link_perf(prog, event.as_fd(), cookie(t))?;
                io::Result::Ok((event, link))
            });
            match both {
                [Ok((p, l)), Ok((q, k))] => {
                    self.held.extend([p, q]);
                    self.links.extend([l, k]);
                }
                [Err(e), _] | [_, Err(e)] => self.refused.push((i, e.to_string())),
            }
            progress(i + 1, targets.len());
        }
    }

    /// A link of [`tracepoint`] or [`typed`]; `stays`: it is not taken off.
    pub fn hold(&mut self, link: OwnedFd, stays: bool) {
        if stays { &mut self.links } else { &mut self.points }.push(link);
    }

    /// Programs with a fixed place that are on it.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Takes those off that can be.
    pub fn take_off(&mut self) {
        close(std::mem::take(&mut self.points));
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
        close(links);
    }
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

fn kprobe_link(
    p: BorrowedFd<'_>,
    attach: u32,
    returns: bool,
    targets: &[Target<'_>],
    part: &[usize],
) -> io::Result<OwnedFd> {
    let names: Vec<CString> = part.iter().map(|i| c_name(&targets[*i])).collect();
    let cookies: Vec<u64> = part.iter().map(|i| cookie(&targets[*i])).collect();
    sys::link_kprobe_multi(p, attach, returns, &names, &cookies)
}
