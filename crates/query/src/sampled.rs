//! Which functions the CPUs' time went to: the samples of a profile by whom they served, with one stack from user mode into the kernel.
//!
//! A stack ends where somebody else's begins: of a softirq or an interrupt only its own part counts, not what it interrupted. Shares are of samples; the
//! exact times beside them are those of [`crate::profile`], and [`agreement`] holds one against the other.

pub mod difference;
pub mod timed;
pub mod tree;
pub mod worked;

use crate::error::Result;
use crate::profile::{OTHERS, Profile, called};
use crate::store::Store;
use kpat_model::{Busy, ProcessNumber, Purpose};
use kpat_store::tables::{ProcessLabelRow, ProcessRow, SampleRow, StackRow};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A function of a process, or of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function {
    /// Whom it is charged to, by number; 0: no process.
    pub process: i32,
    pub is_kernel: bool,
    /// What it is called; where the name is unknown the file and the place in it.
    pub name: String,
    pub file: String,
}

impl Function {
    /// `PIDk:function`, `PIDu:function`.
    pub fn label(&self) -> String {
        format!(
            "{}{}:{}",
            ProcessNumber::from(self.process),
            if self.is_kernel { 'k' } else { 'u' },
            self.name
        )
    }
}

/// Samples of one stack for one process out of one victim's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighted {
    pub busy: Busy,
    pub purpose: Purpose,
    /// Process whose time it was; `None`: the CPU was idle otherwise.
    pub victim: Option<i32>,
    pub served: Option<i32>,
    /// Places in [`Sampled::functions`], outermost first.
    pub functions: Vec<u32>,
    pub samples: i64,
    pub ns: i64,
}

pub struct Sampled {
    pub functions: Vec<Function>,
    /// Without those of idle CPUs.
    pub stacks: Vec<Weighted>,
    pub names: BTreeMap<i32, String>,
    /// All samples, of idle CPUs, and those of which for whom was drawn.
    pub samples: i64,
    pub idle: i64,
    pub drawn: i64,
    /// Time that a sample stands for, on average: it is not the same for all.
    pub period_ns: i64,
    /// What all stand for but those of idle CPUs.
    pub busy_ns: i64,
    /// So many samples of the same time each would be as good.
    pub worth: f64,
}

/// Functions of the kernel with which softirqs begin, outermost first: what is outside of them was interrupted.
const SOFTIRQ_BEGINS: [&str; 3] = ["handle_softirqs", "__do_softirq", "__softirqentry_text_start"];

/// `None`: the log has no samples. Whom they `served`; `None`: all.
pub fn sampled(log: &Store, served: Option<&BTreeSet<i32>>) -> Result<Option<Sampled>> {
    let table = log.table::<SampleRow>()?;
    if table.rows() == 0 {
        return Ok(None);
    }
    let mut sums = Sums::default();
    table.each((0..table.groups()).collect(), |r: SampleRow| sums.add(&r, served))?;
    Ok(Some(of(sums, &log.all::<StackRow>()?, &log.all::<ProcessRow>()?, &log.all::<ProcessLabelRow>()?)))
}

/// What samples that are one row have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Alike {
    busy: i32,
    purpose: i32,
    victim: Option<i32>,
    charged: Option<i32>,
    kernel_stack: Option<i32>,
    user_stack: Option<i32>,
    user_mode: bool,
}

impl Alike {
    fn of(r: &SampleRow) -> Alike {
        Alike {
            busy: r.busy,
            purpose: r.purpose,
            victim: r.victim,
            charged: charged(r),
            kernel_stack: r.kernel_stack,
            user_stack: r.user_stack,
            user_mode: r.user_mode != 0,
        }
    }
}

/// Samples added up as they are read: there is one for each stack and purpose, however long a recording was.
#[derive(Default)]
struct Sums {
    of: HashMap<Alike, (i64, i64)>,
    samples: i64,
    idle: i64,
    drawn: i64,
    /// Of what samples stand for the sum, without idle CPUs', and the sum of the squares.
    all_ns: i64,
    busy_ns: i64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, r: &SampleRow, served: Option<&BTreeSet<i32>>) {
        self.samples += 1;
        self.all_ns += r.period_ns;
        self.squares += (r.period_ns as f64).powi(2);
        if r.busy == Busy::Idle as i32 {
            self.idle += 1;
            return;
        }
        self.busy_ns += r.period_ns;
        if served.is_some_and(|s| !charged(r).is_some_and(|p| s.contains(&p))) {
            return;
        }
        self.drawn += i64::from(r.drawn);
        let sum = self.of.entry(Alike::of(r)).or_default();
        *sum = (sum.0 + 1, sum.1 + r.period_ns);
    }

    /// Kish's effective size of a sample with weights.
    fn worth(&self) -> f64 {
        if self.squares > 0.0 { (self.all_ns as f64).powi(2) / self.squares } else { self.samples as f64 }
    }
}

/// Frames of a stack, innermost first.
type Frames<'a> = HashMap<i32, Vec<&'a StackRow>>;

/// Busy, purpose, victim, whom it is charged to, functions.
type Row = (i32, i32, Option<i32>, Option<i32>, Vec<u32>);

fn of(read: Sums, stacks: &[StackRow], names: &[ProcessRow], labels: &[ProcessLabelRow]) -> Sampled {
    let mut frames: Frames<'_> = HashMap::new();
    for r in stacks {
        frames.entry(r.stack).or_default().push(r);
    }
    let mut found = Sampled {
        functions: Vec::new(),
        stacks: Vec::new(),
        names: BTreeMap::new(),
        samples: read.samples,
        idle: read.idle,
        drawn: read.drawn,
        period_ns: read.all_ns / read.samples.max(1),
        busy_ns: read.busy_ns,
        worth: read.worth(),
    };
    let mut numbers: HashMap<Function, u32> = HashMap::new();
    let mut rows: BTreeMap<Row, (i64, i64)> = BTreeMap::new();
    let mut sums: Vec<(Alike, (i64, i64))> = read.of.into_iter().collect();
    sums.sort_unstable_by_key(|(alike, _)| *alike);
    for (a, (samples, ns)) in sums {
        let mut number = |f: Function| {
            *numbers.entry(f).or_insert_with_key(|f| {
                found.functions.push(f.clone());
                found.functions.len() as u32 - 1
            })
        };
        let path = functions(&a, &frames).into_iter().map(&mut number).collect();
        let row = rows.entry((a.busy, a.purpose, a.victim, a.charged, path)).or_default();
        *row = (row.0 + samples, row.1 + ns);
    }
    for ((busy, purpose, victim, served, functions), (samples, ns)) in rows {
        let busy = Busy::from_number(busy).unwrap_or(Busy::Hardirq);
        let purpose = Purpose::from_number(purpose).unwrap_or(Purpose::Kernel);
        found.stacks.push(Weighted { busy, purpose, victim, served, functions, samples, ns });
    }
    found.names = called(names, labels).into_iter().map(|(process, c)| (process, c.name)).collect();
    found
}

/// The process whose functions these are: what a server does for a client is the server's, as in the account.
pub(crate) fn charged(r: &SampleRow) -> Option<i32> {
    if r.purpose == Purpose::Client as i32 { r.victim } else { r.beneficiary }
}

fn functions(r: &Alike, frames: &Frames<'_>) -> Vec<Function> {
    let process = r.charged.unwrap_or(0);
    let is_own = r.busy != Busy::Softirq as i32
        && r.busy != Busy::Hardirq as i32
        && r.busy != Busy::SoftirqThread as i32;
    let of = |stack: Option<i32>| stack.and_then(|s| frames.get(&s)).map_or(&[][..], Vec::as_slice);
    let mut kernel = of(r.kernel_stack);
    if !is_own {
        let begins = |f: &StackRow| f.function.as_deref().is_some_and(|n| SOFTIRQ_BEGINS.contains(&n));
        if let Some(end) = kernel.iter().position(|f| begins(f)) {
            kernel = &kernel[..=end];
        }
    }
    let user = if is_own { with_callers(of(r.user_stack)) } else { &[] };
    let function = |is_kernel| {
        move |f: &&StackRow| Function {
            process,
            is_kernel,
            name: name_of(f),
            file: f.file.clone().unwrap_or_default(),
        }
    };
    let mut all: Vec<Function> = user.iter().rev().map(function(false)).collect();
    all.extend(kernel.iter().rev().map(function(true)));
    if all.is_empty() {
        let is_kernel = !r.user_mode;
        all.push(Function { process, is_kernel, name: "[no stack]".into(), file: String::new() });
    }
    all
}

/// Without the outermost frames that are nowhere: what a walk along frame pointers finds where a program keeps none. One frame stays in any case.
fn with_callers<'a, 'b>(frames: &'a [&'b StackRow]) -> &'a [&'b StackRow] {
    let somewhere = |f: &&StackRow| f.function.is_some() || f.file.is_some();
    let last = frames.iter().rposition(somewhere).unwrap_or(0);
    &frames[..frames.len().min(last + 1)]
}

fn name_of(f: &StackRow) -> String {
    if let Some(name) = &f.function {
        return name.clone();
    }
    match (&f.file, f.offset) {
        (Some(file), Some(offset)) => format!("[{}+{offset:#x}]", base(file)),
        (Some(file), None) => format!("[{}]", base(file)),
        _ => "[unknown]".into(),
    }
}

/// `libc.so.6` of `/usr/lib/libc.so.6`, `vdso` of `[vdso]`.
fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file).trim_matches(['[', ']'])
}

/// What the samples of a function sum up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// In it.
    pub self_ns: i64,
    pub samples: i64,
    /// In it and in what it called; of a recursive call once.
    pub total_ns: i64,
}

impl Time {
    pub fn children_ns(&self) -> i64 {
        self.total_ns - self.self_ns
    }
}

/// A function, its callers and what it calls.
pub struct Node {
    pub function: u32,
    pub time: Time,
    /// By function; the times are those of this call's part.
    pub callers: Vec<(u32, Time)>,
    pub callees: Vec<(u32, Time)>,
    /// Part that nobody in the stacks called.
    pub spontaneous: Time,
}

impl Sampled {
    /// Time of the samples that were chosen.
    pub fn total_ns(&self) -> i64 {
        self.stacks.iter().map(|s| s.ns).sum()
    }

    /// Of each function, in the order of [`Sampled::functions`].
    pub fn times(&self) -> Vec<Time> {
        let mut times = vec![Time::default(); self.functions.len()];
        for s in &self.stacks {
            for f in s.functions.iter().collect::<BTreeSet<_>>() {
                times[*f as usize].total_ns += s.ns;
            }
            if let Some(leaf) = s.functions.last() {
                times[*leaf as usize].self_ns += s.ns;
                times[*leaf as usize].samples += s.samples;
            }
        }
        times
    }

    /// Who calls whom, what has most time first.
    pub fn graph(&self) -> Vec<Node> {
        let times = self.times();
        let mut arcs: BTreeMap<(u32, u32), Time> = BTreeMap::new();
        let mut roots: BTreeMap<u32, Time> = BTreeMap::new();
        for s in &self.stacks {
            let Some((leaf, first)) = s.functions.last().zip(s.functions.first()) else { continue };
            let root = roots.entry(*first).or_default();
            root.total_ns += s.ns;
            if s.functions.len() == 1 {
                root.self_ns += s.ns;
            }
            let calls = || s.functions.windows(2).map(|w| (w[0], w[1])).filter(|(a, b)| a != b);
            for arc in calls().collect::<BTreeSet<_>>() {
                let time = arcs.entry(arc).or_default();
                time.total_ns += s.ns;
                if arc.1 == *leaf && calls().next_back() == Some(arc) {
                    time.self_ns += s.ns;
                }
            }
        }
        let mut nodes: Vec<Node> = (0..)
            .zip(&times)
            .map(|(function, time)| {
                let spontaneous = roots.get(&function).copied().unwrap_or_default();
                Node { function, time: *time, callers: Vec::new(), callees: Vec::new(), spontaneous }
            })
            .collect();
        for ((caller, callee), time) in arcs {
            nodes[callee as usize].callers.push((caller, time));
            nodes[caller as usize].callees.push((callee, time));
        }
        for n in &mut nodes {
            n.callers.sort_by_key(|(f, t)| (t.total_ns, std::cmp::Reverse(*f)));
            n.callees.sort_by_key(|(f, t)| (std::cmp::Reverse(t.total_ns), *f));
        }
        nodes.sort_by(|a, b| {
            let key = |n: &Node| (std::cmp::Reverse(n.time.total_ns), n.function);
            key(a).cmp(&key(b))
        });
        nodes
    }

    /// Only what is charged to this process; `None`: to no process.
    pub fn of(&self, served: Option<i32>) -> Sampled {
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let mut functions = Vec::new();
        let mut stacks: Vec<Weighted> = self.stacks.iter().filter(|w| w.served == served).cloned().collect();
        for f in stacks.iter_mut().flat_map(|w| &mut w.functions) {
            let known = numbers.entry(*f).or_insert_with(|| {
                functions.push(self.function(*f).clone());
                functions.len() as u32 - 1
            });
            *f = *known;
        }
        let names = self.names.clone();
        let (samples, idle, drawn, period_ns, busy_ns, worth) =
            (self.samples, self.idle, self.drawn, self.period_ns, self.busy_ns, self.worth);
        Sampled { functions, stacks, names, samples, idle, drawn, period_ns, busy_ns, worth }
    }

    pub fn function(&self, number: u32) -> &Function {
        &self.functions[number as usize]
    }

    /// Of a process, 0: no process.
    pub fn process_name(&self, process: i32) -> &str {
        match process {
            0 => "no process",
            OTHERS => "others",
            number => self.names.get(&number).map_or("?", String::as_str),
        }
    }
}

/// The share of one process by samples beside that by the exact sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Of the process.
    pub number: i32,
    /// Its own time; else what was done for it.
    pub is_own: bool,
    pub exact_ns: i64,
    pub samples: i64,
    /// Shares of all CPU time that passed.
    pub exact: f64,
    pub sampled: f64,
    /// Where the true share is with a confidence of 95 %, by the samples alone (Wilson's interval).
    pub low: f64,
    pub high: f64,
}

impl Agreement {
    pub fn is_inside(&self) -> bool {
        (self.low..=self.high).contains(&self.exact)
    }
}

/// Each process that has at least one sample or as much time as one; what has most time first.
pub fn agreement(profile: &Profile, s: &Sampled) -> Vec<Agreement> {
    let mut counts: HashMap<(i32, bool), (i64, i64)> = HashMap::new();
    for w in &s.stacks {
        // What a server does for a client is the server's own time.
        let is_own = w.purpose.is_own();
        if let Some(pid) = if is_own { w.victim } else { w.served } {
            let sum = counts.entry((pid, is_own)).or_default();
            *sum = (sum.0 + w.samples, sum.1 + w.ns);
        }
    }
    // Of the time in which CPUs were busy, as the clock of an idle one comes late; samples of those who were not chosen are not in the log.
    let busy = &profile.buckets;
    let busy_ns = (profile.passed_ns - busy.idle_ns - busy.unseen_ns).max(1) as f64;
    let all_ns: i64 = s.stacks.iter().map(|w| w.ns).sum();
    let of_ns = if profile.is_of_chosen { busy_ns } else { all_ns.max(1) as f64 };
    let worth = s.worth * of_ns / (s.samples * s.period_ns).max(1) as f64;
    let part = busy_ns / profile.passed_ns.max(1) as f64;
    let mut all = Vec::new();
    for p in &profile.processes {
        for (is_own, exact_ns) in [(true, p.user_ns + p.kernel_ns + p.fault_ns), (false, p.served_ns)] {
            let (samples, ns) = counts.get(&(p.number, is_own)).copied().unwrap_or((0, 0));
            if samples == 0 && exact_ns < s.period_ns.max(1) {
                continue;
            }
            let sampled = ns as f64 / of_ns;
            let (low, high) = wilson(sampled, worth);
            let (sampled, low, high) = (sampled * part, low * part, high * part);
            all.push(Agreement {
                number: p.number,
                is_own,
                exact_ns,
                samples,
                exact: exact_ns as f64 / profile.passed_ns.max(1) as f64,
                sampled,
                low,
                high,
            });
        }
    }
    all.sort_by_key(|a| (-a.exact_ns, a.number, a.is_own));
    all
}

/// Wilson's interval of a share of so many samples, with a confidence of 95 %.
pub fn wilson(share: f64, of: f64) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    if of <= 0.0 {
        return (0.0, 1.0);
    }
    let (n, p) = (of, share.clamp(0.0, 1.0));
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let by = 1.0 + Z * Z / n;
    (((middle - half) / by).max(0.0), ((middle + half) / by).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stack: i32, depth: i32, function: &str) -> StackRow {
        let (function, file) = (Some(function.to_string()), Some("x".to_string()));
        StackRow { stack, depth, function, file, offset: None, line: None, inlined: 0 }
    }

    fn row(busy: Busy, purpose: Purpose, victim: i32, served: i32, kernel: i32, user: i32) -> SampleRow {
        let known = |n: i32| (n > 0).then_some(n);
        SampleRow {
            at_ns: 0,
            cpu: 0,
            thread: known(victim),
            victim: known(victim),
            busy: busy as i32,
            purpose: purpose as i32,
            beneficiary: known(served),
            drawn: 0,
            user_mode: 0,
            period_ns: 10,
            kernel_stack: known(kernel),
            user_stack: known(user),
        }
    }

    /// Stack 1: a system call; 2: main calls work twice over; 3: a softirq upon a system call.
    fn fixture() -> Sampled {
        let stacks: Vec<StackRow> = [
            (1, &["vfs_read", "do_syscall"][..]),
            (2, &["work", "work", "main"]),
            (3, &["udp_rcv", "net_rx", "handle_softirqs", "vfs_read", "do_syscall"]),
        ]
        .iter()
        .flat_map(|(n, fs)| fs.iter().zip(0..).map(|(f, d)| frame(*n, d, f)).collect::<Vec<_>>())
        .collect();
        let rows = [
            row(Busy::User, Purpose::Itself, 7, 7, 0, 2),
            row(Busy::Kernel, Purpose::Itself, 7, 7, 1, 2),
            row(Busy::Softirq, Purpose::Socket, 7, 9, 3, 0),
            row(Busy::Idle, Purpose::Itself, 0, 0, 0, 0),
        ];
        let mut sums = Sums::default();
        rows.iter().for_each(|r| sums.add(r, None));
        of(sums, &stacks, &[], &[])
    }

    #[test]
    fn outermost_callers_that_are_nowhere_are_left_out() {
        let nowhere = |depth| StackRow { file: None, function: None, ..frame(1, depth, "") };
        let names = |frames: &[StackRow]| {
            let all: Vec<&StackRow> = frames.iter().collect();
            with_callers(&all).iter().map(|f| name_of(f)).collect::<Vec<_>>()
        };
        let stack = [frame(1, 0, "f"), nowhere(1), frame(1, 2, "main"), nowhere(3), nowhere(4)];
        assert_eq!(names(&stack), ["f", "[unknown]", "main"]);
        assert_eq!(names(&stack[3..]), ["[unknown]"]);
        assert_eq!(names(&stack[..3]).len(), 3);
        assert!(names(&[]).is_empty());
    }

    #[test]
    fn one_stack_from_user_mode_into_the_kernel_and_what_was_interrupted_is_not_in_it() {
        let s = fixture();
        let stack =
            |w: &Weighted| w.functions.iter().map(|f| s.function(*f).label()).collect::<Vec<_>>().join(";");
        let all: Vec<String> = s.stacks.iter().map(stack).collect();
        assert_eq!(
            all,
            [
                "7u:main;7u:work;7u:work",
                "7u:main;7u:work;7u:work;7k:do_syscall;7k:vfs_read",
                "9k:handle_softirqs;9k:net_rx;9k:udp_rcv",
            ]
        );
        assert_eq!((s.samples, s.idle, s.total_ns()), (4, 1, 30));
    }

    #[test]
    fn a_recursive_function_counts_once() {
        let s = fixture();
        let graph = s.graph();
        let node = |label: &str| graph.iter().find(|n| s.function(n.function).label() == label).expect(label);
        let work = node("7u:work");
        assert_eq!((work.time.self_ns, work.time.total_ns), (10, 20));
        assert_eq!(work.callers.len(), 1);
        assert_eq!(work.callers[0].1, Time { self_ns: 10, samples: 0, total_ns: 20 });
        let call = node("7k:do_syscall");
        assert_eq!(s.function(call.callers[0].0).label(), "7u:work", "across the border");
        assert_eq!(node("9k:handle_softirqs").spontaneous.total_ns, 10);
        assert_eq!(graph.iter().map(|n| n.time.self_ns).sum::<i64>(), s.total_ns());
    }

    #[test]
    fn wilsons_interval() {
        // 8 of 10, as in Wilson's own tables
        let (low, high) = wilson(0.8, 10.0);
        assert!((low - 0.4902).abs() < 5e-4 && (high - 0.9433).abs() < 5e-4, "{low} {high}");
        assert_eq!(wilson(0.0, 0.0), (0.0, 1.0));
    }
}
