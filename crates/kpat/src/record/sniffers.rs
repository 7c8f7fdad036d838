//! Captures of the wire beside the log: which interfaces, what of their frames, under which names.

use super::Args;
use crate::output::usage;
use anyhow::{Context, bail};
use kpat_capture::sniff::{SniffStats, Sniffer, Want};
use kpat_model::BootNs;
use kpat_model::meta::Device;
use kpat_probe::capability::{self, Cap};
use kpat_probe::filter::{classic, for_capture};
use kpat_probe::netlink;
use kpat_probe::recorder::{Beside, BesideLoss, clear_part, may_write, part_name};
use kpat_probe::sys::boot_now;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

/// A capture that ended.
pub struct Capture {
    pub interface: String,
    pub path: PathBuf,
    pub stats: SniffStats,
}

struct Running {
    interface: String,
    part: PathBuf,
    path: PathBuf,
    placed: bool,
    sniffer: Sniffer,
    ended: Option<Result<SniffStats, String>>,
}

/// Shared with the recorder, which signals when they get their names and when they end.
#[derive(Clone, Default)]
pub struct Sniffers {
    all: Rc<RefCell<Vec<Running>>>,
    replace: bool,
}

/// Where each capture goes, in the order of the options.
fn places(args: &Args) -> Vec<(String, PathBuf)> {
    let stem = args.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let path = |spec: &String| match args.sniff.len() {
        1 => args.output.with_extension("pcapng"),
        _ => args.output.with_file_name(format!("{stem}.{}.pcapng", spec.replace(':', "-"))),
    };
    args.sniff.iter().map(|spec| (spec.clone(), path(spec))).collect()
}

/// Refuses early what would fail after attaching.
pub fn check(args: &Args) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for (spec, path) in places(args) {
        let takes = [(Cap::NetRaw, true), (Cap::SysAdmin, parted(&spec).0.is_some())];
        if let Some((cap, _)) = takes.into_iter().find(|(cap, needed)| *needed && !capability::has(*cap)) {
            bail!(
                "--sniff {spec} needs {}, which this process lacks; run it with sudo, or give it that",
                cap.name()
            );
        }
        if names.contains(&path) {
            return Err(usage(format!("--sniff {spec} is given twice")));
        }
        exists(&spec, &args.netns)?;
        may_write(&path, args.force)?;
        names.push(path);
    }
    if let Some(own) = args.sniff_filter.as_deref().filter(|f| *f != "none") {
        classic(own, 1).map_err(|why| usage(format!("--sniff-filter {own}: {why}")))?;
    }
    Ok(())
}

/// `NETNS:IF`; no interface's name has a colon.
fn parted(spec: &str) -> (Option<&str>, &str) {
    spec.rsplit_once(':').map_or((None, spec), |(n, i)| (Some(n), i))
}

/// Is there such an interface? If that cannot be checked, the capture will fail.
fn exists(spec: &str, recorded: &[String]) -> anyhow::Result<()> {
    let (netns, name) = parted(spec);
    let netns = match netns {
        None => netlink::current_netns(),
        Some(netns) => Ok(netlink::find(netns).map_err(|e| usage(format!("--sniff {spec}: {e}")))?),
    };
    let Ok(devices) = netns.and_then(|n| netlink::devices(&n)) else { return Ok(()) };
    let is_in = |devices: &[Device]| devices.iter().any(|d| d.name == name);
    if name == kpat_capture::sniff::ANY || is_in(&devices) {
        return Ok(());
    }
    let has_it = |n: &&String| {
        netlink::find(n).ok().and_then(|n| netlink::devices(&n).ok()).is_some_and(|devices| is_in(&devices))
    };
    let meant: Vec<String> = recorded.iter().filter(has_it).map(|n| format!("--sniff {n}:{name}")).collect();
    if !meant.is_empty() {
        return Err(usage(format!(
            "--sniff {spec}: there is no interface {name} here; {}",
            meant.join(" or ")
        )));
    }
    let there: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    Err(usage(format!("--sniff {spec}: there is no interface {name}; there are {}", there.join(", "))))
}

fn want(args: &Args) -> Want {
    let settled = Some((|| capability::keep(&[])) as fn());
    let all = Want { snaplen: args.snaplen, sample: args.sample, settled, ..Want::default() };
    match args.sniff_filter.as_deref() {
        Some("none") => all,
        Some(own) => Want { filter: Some(classic), filter_text: own.to_owned(), ..all },
        None => Want { filter: Some(for_capture), filter_text: args.filter.clone(), ..all },
    }
}

/// Starts them; their files have other names until the recording runs.
pub fn start(args: &Args) -> anyhow::Result<Sniffers> {
    let sniffers = Sniffers { replace: args.force, ..Sniffers::default() };
    let want = want(args);
    for (spec, path) in places(args) {
        let (netns, name) = parted(&spec);
        // A namespace without a name has a path.
        let found =
            netns.map(netlink::find).transpose().map_err(|e| usage(format!("--sniff {spec}: {e}")))?;
        let netns = found.map(|n| match n.name {
            Some(name) if n.path.ends_with(&name) => name,
            _ => n.path.display().to_string(),
        });
        let part = part_name(&path);
        clear_part(&part)?;
        let sniffer = Sniffer::start(name, netns.as_deref(), &part, &want).with_context(|| {
            let _ = std::fs::remove_file(&part);
            format!("cannot capture at {spec}")
        })?;
        let interface = spec.clone();
        sniffers.all.borrow_mut().push(Running {
            interface,
            part,
            path,
            placed: false,
            sniffer,
            ended: None,
        });
    }
    Ok(sniffers)
}

impl Sniffers {
    /// What they saw, once the recording has ended.
    pub fn ended(&self) -> anyhow::Result<Vec<Capture>> {
        let mut out = Vec::new();
        for r in self.all.borrow_mut().drain(..).map(Running::end) {
            let stats = match r.ended.clone() {
                Some(Ok(stats)) => stats,
                Some(Err(why)) => bail!("the capture at {} failed: {why}", r.interface),
                None => SniffStats::default(),
            };
            out.push(Capture { interface: r.interface.clone(), path: r.path.clone(), stats });
        }
        Ok(out)
    }
}

impl Running {
    fn end(mut self) -> Running {
        self.stop();
        self
    }

    fn stop(&mut self) {
        let sniffer = &mut self.sniffer;
        self.ended.get_or_insert_with(|| sniffer.stop().map_err(|e| e.to_string()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if !self.placed {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

impl Beside for Sniffers {
    fn started(&mut self) -> Result<(), String> {
        for r in self.all.borrow_mut().iter_mut() {
            kpat_klog::place(&r.part, &r.path, self.replace).map_err(|e| match e.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    format!("{} exists; use --force to replace it, or -o for another name", r.path.display())
                }
                _ => format!("{}: {e}", r.path.display()),
            })?;
            r.placed = true;
        }
        Ok(())
    }

    fn stopping(&mut self) {
        self.all.borrow_mut().iter_mut().for_each(Running::stop);
    }

    fn losses(&mut self) -> Vec<BesideLoss> {
        let (now, boot) = (Instant::now(), boot_now());
        let at = |t: Instant| BootNs(boot.0 - now.saturating_duration_since(t).as_nanos() as i64);
        let all = self.all.borrow();
        let lost = all.iter().flat_map(|r| {
            r.sniffer.dropped().into_iter().map(|d| BesideLoss {
                place: r.interface.clone(),
                from: at(d.from),
                to: at(d.to),
                count: d.frames,
            })
        });
        lost.collect()
    }
}
