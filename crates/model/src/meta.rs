//! What a log says of itself: written as JSON chunks, so a reader of any version can show it. Every field that a
//! writer may not know has a default; readers ignore fields they do not know.

use crate::Sample;
use crate::ids::{BootNs, WallNs};
use serde::{Deserialize, Serialize};

/// First chunk of a log: fixed when recording starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Version of kpat that wrote it.
    pub writer: String,
    pub hostname: String,
    /// `uname -r`, `-v`, `-m`.
    pub kernel_release: String,
    pub kernel_version: String,
    pub arch: String,
    /// "little" or "big".
    pub endian: String,
    /// /proc/sys/kernel/random/boot_id: two logs with the same one share a clock.
    pub boot_id: String,
    pub cpus: u32,
    pub mechanism: String,
    /// Why not a better one: one sentence per mechanism that was passed over.
    pub passed_over: Vec<String>,
    /// Which build of the BPF program recorded, empty: not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// Why not a faster one: one sentence for each that was passed over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub build_passed_over: Vec<String>,
    /// With commas between them, if there are several.
    pub profile: String,
    /// What was recorded, by what. Empty: one source, that of `mechanism`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Of a guest that its host recorded by the host's clock: its own `boot_id`. Empty: a kernel recorded itself, or the guest has none yet.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_boot_id: String,
    /// How much of it: steps, spine or full. Empty: not functions, or an earlier writer, which recorded all of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// pcap-filter text, empty: all packets.
    pub filter: String,
    /// Only this part of the packets was recorded; `None`: all that the filter wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Only packets and sockets of processes that fit one of these, as `kpat record --only` has them; empty: of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Inode numbers of the namespaces recorded, empty: all.
    pub netns: Vec<u32>,
    /// Command line that started the recording.
    pub command: Vec<String>,
    pub ring_bytes_per_cpu: u64,
    pub functions: Vec<Function>,
    /// Functions that were wanted and could not be probed, with the reason.
    pub left_out: Vec<LeftOut>,
    /// Ticks a second (CONFIG_HZ), 0: unknown. TCP's timers are counted in them.
    pub hz: u32,
    /// Number and name, from the kernel's own BTF.
    pub drop_reasons: Vec<(u32, String)>,
    /// When tasks that handle packets were off the CPU is in the log ([`crate::OffCpu`]).
    pub pauses: bool,
    /// When the recording started; the same in all its parts.
    pub started: ClockAnchor,
    /// Which recording, and which file of it.
    pub part: Part,
}

/// One of the things that a recording is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// `packets` or `applications`.
    pub name: String,
    pub mechanism: String,
    pub build: String,
}

/// One part of a recording that rotates its files. Each is self-contained; together they are one log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// Random, the same in all files of one recording. Empty: the writer did not say.
    pub recording: String,
    /// From 1 on; 0: the recording is one file.
    pub number: u32,
    /// When this file was begun.
    pub began: ClockAnchor,
    /// Records in the files before it: tells how many a missing file held.
    pub records_before: u64,
}

/// A task that was known already when a part of a recording was begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// When it was first seen, or took this name.
    pub at: BootNs,
    /// Thread id.
    pub pid: u32,
    /// Thread group id.
    pub tgid: u32,
    pub comm: String,
}

/// A probed function or tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Function {
    pub id: u16,
    /// As in kallsyms; a tracepoint is `group:name`.
    pub name: String,
    /// Empty: vmlinux.
    pub module: String,
    /// "function" or "tracepoint".
    pub kind: String,
    /// Kernel address, 0: unknown.
    pub addr: u64,
    /// driver, link, network, transport, socket or other (by the source file's place in the tree, where known by name).
    pub layer: String,
    /// How the packet is reached: "arg 1", "arg 2 -> nft_pktinfo.skb", "return".
    pub via: String,
    /// What probes it, where that is not the recording's mechanism; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mechanism: String,
    /// Its returns were not recorded, by choice.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub entry_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    pub name: String,
    pub reason: String,
}

/// The same moment by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockAnchor {
    pub boot: BootNs,
    pub wall: WallNs,
    /// The true offset lies within plus or minus this.
    pub uncertainty_ns: i64,
}

/// An interface, named when first seen and at every change of name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    pub netns: u32,
    /// Before this moment the number was another namespace's: the kernel gives numbers out again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns_since: Option<BootNs>,
    /// Name of the namespace under /run/netns, else a process in it, `pid 1234 (nginx)`; empty: unknown, or the recorder's own.
    pub netns_name: String,
    pub ifindex: u32,
    pub name: String,
    /// ARPHRD_*.
    pub link_type: u16,
    pub mac: String,
    pub mtu: u32,
    /// Kernel driver, empty: unknown.
    pub driver: String,
    /// Number N of its clock /dev/ptpN, if it stamped what it received when the recording began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phc: Option<u32>,
    /// Index of the interface of the same namespace that it is above: a VLAN's, a macvlan's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<u32>,
    /// Index of the bridge, bond or other device that it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
}

/// A symbol that a drop event's address resolves to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Symbol {
    pub addr: u64,
    /// `function+0x12`.
    pub text: String,
}

/// Last chunk of a log that was closed in order; also written every few seconds, the newest counts. In a part of a
/// recording all numbers are of that part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// True only in the last one of a log that was closed in order.
    pub complete: bool,
    /// Why the recording ended: "stopped", "time is up", "command ended", "disk full" ...; [`ROTATED`]: it continues in the
    /// next file.
    pub end_reason: String,
    /// When logging ended, which is before the probes are detached.
    pub at: ClockAnchor,
    /// Taken from the kernel, also those that there was no room for; see [`Summary::written_records`].
    pub records: u64,
    pub bytes: u64,
    pub cost: Cost,
    pub losses: Vec<LossTotal>,
    /// Calls that had not returned at the end; they are among the losses (no-return). None: not known, because the mechanism keeps an
    /// open call in the call itself, or the recording has not ended.
    pub open_calls: Option<u64>,
    /// Drop reasons of modules that were loaded after the recording began, as [`Meta::drop_reasons`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_reasons: Vec<(u32, String)>,
}

impl Summary {
    /// Of the records taken from the kernel those that are in the log: a full disk loses the others.
    pub fn written_records(&self) -> u64 {
        let lost = self.losses.iter().filter(|l| l.cause == crate::LossCause::Disk.name());
        self.records.saturating_sub(lost.map(|l| l.count).sum())
    }
}

/// [`Summary::end_reason`] of a file after which another of the same recording comes.
pub const ROTATED: &str = "rotated";

/// What the measuring cost, as the kernel's own BPF statistics and `getrusage` say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Runs of our programs where packets pass. This and the three below are estimates, within `bounds`.
    pub probe_hits: u64,
    /// Nanoseconds inside our programs (`run_time_ns`).
    pub probe_ns: u64,
    /// Runs of those at the scheduler's switches and wake-ups, of all tasks, and at softirqs and polls of devices, and the time in
    /// them; not among `probe_hits`.
    pub switch_hits: u64,
    pub switch_ns: u64,
    /// CPU time of the recorder (user + system).
    pub drain_cpu_ns: u64,
    pub wall_ns: u64,
    pub cpus: u32,
    pub attach_ns: u64,
    pub detach_ns: u64,
    /// None: the runs were not counted, or by a recorder that gave no bounds.
    pub bounds: Option<CostBounds>,
}

/// How the runs of our programs are known: the kernel counted them in windows only, the rest is estimated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostBounds {
    pub windows: u64,
    /// Length of all windows, and what was counted in them.
    pub sampled_ns: u64,
    pub sampled_hits: u64,
    pub sampled_probe_ns: u64,
    pub sampled_switches: u64,
    pub sampled_switch_ns: u64,
    /// Where the truth lies in 95 of 100 recordings; None: the windows do not tell, and the figure in [`Cost`] is 0.
    pub probe_hits: Option<Interval>,
    pub probe_ns: Option<Interval>,
    pub switch_hits: Option<Interval>,
    pub switch_ns: Option<Interval>,
    /// Of the mean of one run.
    pub ns_per_hit: Option<Interval>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    pub low: u64,
    pub high: u64,
}

impl Interval {
    /// Of what two parts sum up to, whatever their errors have in common.
    pub fn plus(self, more: Interval) -> Interval {
        Interval { low: self.low.saturating_add(more.low), high: self.high.saturating_add(more.high) }
    }
}

impl Cost {
    /// Mean time of one run where packets pass.
    ///
    /// *Units*: ns.
    pub fn ns_per_hit(&self) -> Option<f64> {
        let sampled = self.bounds.as_ref().map(|b| (b.sampled_probe_ns, b.sampled_hits));
        [(self.probe_ns, self.probe_hits)]
            .into_iter()
            .chain(sampled)
            .find(|(ns, hits)| *ns > 0 && *hits > 0)
            .map(|(ns, hits)| ns as f64 / hits as f64)
    }

    /// Cost of two neighbouring files of a recording.
    pub fn plus(mut self, more: Cost) -> Cost {
        self.drain_cpu_ns += more.drain_cpu_ns;
        self.wall_ns += more.wall_ns;
        self.attach_ns += more.attach_ns;
        self.detach_ns += more.detach_ns;
        self.cpus = self.cpus.max(more.cpus);
        let sum = |known: bool, a: u64, b: u64| if known { a.saturating_add(b) } else { 0 };
        let (hits, ns, switches, switch_ns) = match (&self.bounds, &more.bounds) {
            (Some(a), Some(b)) => (
                a.probe_hits.is_some() && b.probe_hits.is_some(),
                a.probe_ns.is_some() && b.probe_ns.is_some(),
                a.switch_hits.is_some() && b.switch_hits.is_some(),
                a.switch_ns.is_some() && b.switch_ns.is_some(),
            ),
            (None, None) => (true, true, true, true),
            _ => (false, false, false, false),
        };
        self.probe_hits = sum(hits, self.probe_hits, more.probe_hits);
        self.probe_ns = sum(ns, self.probe_ns, more.probe_ns);
        self.switch_hits = sum(switches, self.switch_hits, more.switch_hits);
        self.switch_ns = sum(switch_ns, self.switch_ns, more.switch_ns);
        self.bounds = match (self.bounds, more.bounds) {
            (Some(a), Some(b)) => Some(a.plus(b)),
            (a, b) => a.or(b).map(CostBounds::of_a_part),
        };
        self
    }
}

impl CostBounds {
    fn plus(self, b: CostBounds) -> CostBounds {
        let both = |a: Option<Interval>, b: Option<Interval>| Some(a?.plus(b?));
        let each = |a: Interval, b: Interval| Interval { low: a.low.min(b.low), high: a.high.max(b.high) };
        CostBounds {
            windows: self.windows + b.windows,
            sampled_ns: self.sampled_ns + b.sampled_ns,
            sampled_hits: self.sampled_hits + b.sampled_hits,
            sampled_probe_ns: self.sampled_probe_ns + b.sampled_probe_ns,
            sampled_switches: self.sampled_switches + b.sampled_switches,
            sampled_switch_ns: self.sampled_switch_ns + b.sampled_switch_ns,
            probe_hits: both(self.probe_hits, b.probe_hits),
            probe_ns: both(self.probe_ns, b.probe_ns),
            switch_hits: both(self.switch_hits, b.switch_hits),
            switch_ns: both(self.switch_ns, b.switch_ns),
            ns_per_hit: self
                .ns_per_hit
                .zip(b.ns_per_hit)
                .map(|(a, b)| each(a, b))
                .or(self.ns_per_hit)
                .or(b.ns_per_hit),
        }
    }

    /// Counts of one file say nothing of the sum with another of which nothing is known.
    fn of_a_part(self) -> CostBounds {
        CostBounds { probe_hits: None, probe_ns: None, switch_hits: None, switch_ns: None, ..self }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossTotal {
    pub cause: String,
    pub cpu: i32,
    pub count: u64,
}

/// A JSON chunk's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Json {
    Meta(Box<Meta>),
    Anchor(ClockAnchor),
    Devices(Vec<Device>),
    Symbols(Vec<Symbol>),
    Summary(Box<Summary>),
    /// Second and later files of a recording: whom the files before named.
    Tasks(Vec<Task>),
    /// Which kinds of records there may be.
    Schema(Vec<Kind>),
}

/// One kind of record as a log declares it, so that a reader that does not know it can step over it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kind {
    pub id: u16,
    pub name: String,
    pub columns: Vec<Column>,
    /// `columns`, or the name of a coding of its own.
    pub coding: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    pub name: String,
    /// See `docs/kbl-format.md`.
    #[serde(rename = "type")]
    pub of: String,
}
