//! Frames with the kernel's path while they come: a recording and a sniffer run on, what they have written is joined again
//! and again, and of each join the frames since the last one are given out.
//!
//! So a packet is late by some seconds, and nothing falls between two windows. A join takes longer the more there is to
//! join, therefore a recording that has grown is followed by another, which begins before the first one ends.

use crate::output::{Output, usage};
use crate::probes::level;
use crate::render::parse_duration;
use anyhow::{Context, bail};
use kpat_formats::pcapng::{Live, Sources};
use kpat_integrate::{Options, integrate};
use kpat_probe::profile::Detail;
use kpat_query::Store;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What was recorded so long ago is in the files.
const LATE_NS: i64 = 2_000_000_000;
/// A CPU's records wait so long before they are in the log.
const CHUNK_NS: i64 = 600_000_000;
/// A log that has nothing newer by then has nothing to tell.
const LAGS_NS: i64 = 8_000_000_000;
/// Between two joins at least.
const PAUSE: Duration = Duration::from_millis(500);
/// A log of that size is followed by another.
const FULL_BYTES: u64 = 16 << 20;
/// For attaching everything.
const START: Duration = Duration::from_secs(60);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where frames are captured (NAME or NETNS:NAME); any: at all interfaces
    #[arg(long, short, value_name = "IF")]
    pub interface: String,
    /// In this network namespace (a name of `ip netns`)
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// Which functions: path, router, tcp, socket, driver:NAME, all, none
    #[arg(long, short, default_value = "path", value_name = "PROFILE")]
    pub profile: String,
    /// How much of the profile [default: steps with the profile path, else full]
    #[arg(long, value_name = "LEVEL", value_parser = level())]
    pub detail: Option<Detail>,
    /// How functions are probed [default: the best that works here]
    #[arg(long, value_name = "NAME")]
    pub mechanism: Option<String>,
    /// Only these packets are followed through the kernel (pcap-filter syntax)
    #[arg(long, short, default_value = "", value_name = "FILTER", hide_default_value = true)]
    pub filter: String,
    /// Stop after this time (10s, 2m)
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub duration_ns: Option<i64>,
}

impl Args {
    /// The command line that says the same.
    pub fn words(&self) -> Vec<String> {
        let mut out = vec!["wireshark", "stream", "--interface", &self.interface, "--profile", &self.profile];
        if let Some(netns) = &self.netns {
            out.extend(["--netns", netns]);
        }
        if let Some(detail) = self.detail {
            out.extend(["--detail", detail.name()]);
        }
        if let Some(mechanism) = &self.mechanism {
            out.extend(["--mechanism", mechanism]);
        }
        if !self.filter.is_empty() {
            out.extend(["--filter", &self.filter]);
        }
        let mut out: Vec<String> = out.into_iter().map(str::to_owned).collect();
        if let Some(ns) = self.duration_ns {
            out.extend(["--for".to_owned(), format!("{ns}ns")]);
        }
        out
    }
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    if io::stdout().is_terminal() {
        return Err(usage(
            "this is not for a terminal; for example: kpat wireshark stream -i eth0 | wireshark -k -i -",
        ));
    }
    let mut to = BufWriter::with_capacity(1 << 16, io::stdout());
    stream(args, &mut to, libc::STDOUT_FILENO, out)?;
    Ok(ExitCode::SUCCESS)
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

fn catch_signals() {
    let handler = on_signal as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zero is a valid `sigaction`: no flags, so that a read that waits is left; the handler only stores into
        // an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

pub fn is_stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Repeats `step` until it says false or the user stops; then `child` is asked to end.
pub fn until_stopped(
    child: &mut Child,
    mut step: impl FnMut(&mut Child) -> io::Result<bool>,
) -> anyhow::Result<()> {
    catch_signals();
    loop {
        match step(child) {
            Ok(true) if !is_stopped() => {}
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted && !is_stopped() => {}
            Err(_) if is_stopped() => break,
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
            Err(e) => {
                end(child);
                return Err(e.into());
            }
        }
    }
    end(child);
    Ok(())
}

fn end(child: &mut Child) {
    // SAFETY: a child that was not waited for keeps its number.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

fn wall_now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

/// A folder of our own that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("kpat-live-{}-{}", std::process::id(), wall_now()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A recording with its sniffer: this program once more, as `kpat record`.
struct Recording {
    child: Child,
    kbl: PathBuf,
    capture: PathBuf,
    integrated: PathBuf,
    words: PathBuf,
    /// Its log is whole.
    has_ended: bool,
}

impl Recording {
    fn start(args: &Args, folder: &Path, number: u32) -> anyhow::Result<Recording> {
        let file = |ending: &str| folder.join(format!("{number}.{ending}"));
        let (kbl, ready, words) = (file("kbl"), file("ready"), file("words"));
        let place = match &args.netns {
            Some(netns) if !args.interface.contains(':') => format!("{netns}:{}", args.interface),
            _ => args.interface.clone(),
        };
        let netns = place.rsplit_once(':').map(|(n, _)| n.to_owned());
        let mut own = Command::new(std::env::current_exe().context("cannot tell where this program is")?);
        own.arg("record").arg("-o").arg(&kbl).arg("--ready-file").arg(&ready);
        own.args(["--sniff", &place, "--snaplen", "0", "--profile", &args.profile, "--no-cost"]);
        if !args.filter.is_empty() {
            own.args(["-f", &args.filter]);
        }
        if let Some(detail) = args.detail {
            own.args(["--detail", detail.name()]);
        }
        if let Some(mechanism) = &args.mechanism {
            own.args(["--mechanism", mechanism]);
        }
        own.args(["--netns", netns.as_deref().unwrap_or("self")]);
        own.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&words)?);
        // SAFETY: prctl and setpgid are async-signal-safe. The recording must not outlive us, whatever ends us, and must not be
        // stopped by a Ctrl-C that is meant for us: its end has to be read.
        unsafe {
            own.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT);
                libc::setpgid(0, 0);
                Ok(())
            });
        }
        let child = own.spawn().context("cannot start the recording")?;
        let mut recording = Recording {
            child,
            capture: kbl.with_extension("pcapng"),
            integrated: file("kpat"),
            kbl,
            words,
            has_ended: false,
        };
        let began = Instant::now();
        while !ready.exists() || !recording.capture.exists() {
            if recording.child.try_wait()?.is_some() {
                bail!("{}", recording.last_words());
            }
            if began.elapsed() > START {
                bail!("the recording did not begin within {} s", START.as_secs());
            }
            if is_stopped() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(recording)
    }

    /// Why it ended by itself.
    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.words).unwrap_or_default();
        let last = text.lines().last().unwrap_or("the recording ended without a message");
        last.trim_start_matches("kpat: ").to_owned()
    }

    /// Joins what is there and gives out frames from `from` on and before `to`, or as far as the log reaches; says how far, and
    /// how many records were lost so far.
    fn piece(&self, live: &mut Live<'_>, from: i64, to: i64) -> anyhow::Result<(i64, u64)> {
        let options = Options { overwrite: true, ..Options::default() };
        let captures = [self.capture.clone()];
        integrate(&self.kbl, &captures, &self.integrated, &options, &mut |_| ())?;
        let store = Store::open(&self.integrated)?;
        let sources = Sources {
            capture: Some((self.capture.clone(), 0)),
            log: vec![self.kbl.clone()],
            as_frames: false,
            beside: self.integrated.parent().unwrap_or(Path::new(".")).to_owned(),
        };
        let to = if self.has_ended {
            to
        } else {
            // The log may lag behind the capture; where nothing happens in the kernel it does not go on at all.
            let clock = store.wall_clock(0).unwrap_or_else(|| store.own_wall_clock());
            let reach = clock.wall(store.manifest().last_ns).0.saturating_sub(CHUNK_NS);
            to.min(reach.max(to.saturating_sub(LAGS_NS))).max(from)
        };
        live.piece(&store, &sources, from, to)?;
        let losses = store.info()?.losses;
        Ok((to, losses.iter().map(|l| l.count.unsigned_abs()).sum()))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            end(&mut self.child);
            self.child.wait()?;
        }
        self.has_ended = true;
        Ok(())
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.integrated);
        for file in [&self.kbl, &self.capture] {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Nobody reads at the other end of this pipe any more; without a frame to write one would not learn it.
fn is_deserted(pipe: RawFd) -> bool {
    let mut fd = libc::pollfd { fd: pipe, events: 0, revents: 0 };
    // SAFETY: one entry that outlives the call.
    let ready = unsafe { libc::poll(&raw mut fd, 1, 0) };
    ready > 0 && fd.revents & (libc::POLLERR | libc::POLLNVAL) != 0
}

/// Captures until it is stopped or its reader has gone; `pipe` is what `out` writes into.
pub fn stream(args: &Args, out: &mut dyn Write, pipe: RawFd, words: &Output) -> anyhow::Result<()> {
    catch_signals();
    let folder = Folder::new()?;
    let os = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut live = Live::begin(out, &format!("Linux {}", os.trim()))?;
    let mut number = 0;
    let mut now = Recording::start(args, &folder.0, number)?;
    words.say(&format!("capturing at {}; packets are shown some seconds late", args.interface));
    let began = Instant::now();
    // What was captured before the recording began has no path.
    let mut from = wall_now();
    let is_over = || {
        let late = args.duration_ns.is_some_and(|ns| began.elapsed().as_nanos() >= ns.unsigned_abs().into());
        late || is_stopped() || is_deserted(pipe)
    };
    let mut pause = PAUSE;
    loop {
        let until = Instant::now() + pause;
        while !is_over() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let ended = now.child.try_wait()?.is_some();
        if is_over() || ended {
            break;
        }
        let joining = Instant::now();
        let to = wall_now() - LATE_NS;
        // A log whose first chunk is not written yet cannot be read yet.
        if to > from {
            let early = |e| unless_early(e).map(|()| (from, 0));
            let (reached, lost) = now.piece(&mut live, from, to).or_else(early)?;
            if lost > 0 {
                words.say("records were lost; the statistics at the end say how many");
            }
            from = reached;
        }
        pause = PAUSE.max(joining.elapsed());
        if std::fs::metadata(&now.kbl).is_ok_and(|m| m.len() > FULL_BYTES) {
            number += 1;
            let next = Recording::start(args, &folder.0, number)?;
            let switch = wall_now();
            now.stop()?;
            let (_, lost) = now.piece(&mut live, from, switch)?;
            live.lost(lost);
            live.another_log();
            now.remove();
            (now, from) = (next, switch);
        }
    }
    let by_itself = now.child.try_wait()?.is_some_and(|s| !s.success());
    if by_itself && !is_stopped() {
        bail!("{}", now.last_words());
    }
    // The sniffer ends after the recording: what it captured in between has no path.
    let until = wall_now();
    now.stop()?;
    let (_, lost) = now.piece(&mut live, from, until)?;
    live.lost(lost);
    Ok(live.end(wall_now())?)
}

/// `Ok`: there is nothing to read yet.
fn unless_early(e: anyhow::Error) -> anyhow::Result<()> {
    let early = e.chain().any(|c| {
        let text = c.to_string();
        text.contains("not yet written") || text.contains("is empty")
    });
    if early { Ok(()) } else { Err(e) }
}
