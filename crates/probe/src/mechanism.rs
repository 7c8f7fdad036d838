//! The ways to get at a function's entry and return, best first, and which of them this kernel offers: found by trying
//! each on one harmless function (with every function switched off in the program), never by the version alone.

use crate::btf::{Btf, kind};
use crate::choose::Candidate;
use crate::kernel;
use crate::object::{Build, Loaded, Plan, Side};
use crate::profile::Detail;
use crate::sys;
use std::collections::HashMap;
use std::ffi::CString;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    FsessionMulti,
    KprobeSession,
    KprobeMulti,
    Fentry,
    Kprobe,
    Tracepoint,
}

impl Mechanism {
    /// In the order in which they are preferred.
    pub const ALL: [Mechanism; 6] = [
        Mechanism::FsessionMulti,
        Mechanism::KprobeSession,
        Mechanism::KprobeMulti,
        Mechanism::Fentry,
        Mechanism::Kprobe,
        Mechanism::Tracepoint,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Mechanism::FsessionMulti => "fsession.multi",
            Mechanism::KprobeSession => "kprobe.session",
            Mechanism::KprobeMulti => "kprobe.multi",
            Mechanism::Fentry => "fentry",
            Mechanism::Kprobe => "kprobe",
            Mechanism::Tracepoint => "tracepoint",
        }
    }

    pub fn parse(s: &str) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|m| m.name() == s)
    }

    /// What brings it.
    pub fn needs(self) -> &'static str {
        match self {
            Mechanism::FsessionMulti => {
                "Linux 7.2 or newer on x86-64 with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"
            }
            Mechanism::KprobeSession => "Linux 6.10 or newer, 64 bit, CONFIG_FPROBE",
            Mechanism::KprobeMulti => "Linux 5.18 or newer, 64 bit, CONFIG_FPROBE",
            Mechanism::Fentry => {
                "Linux 5.5 or newer on x86-64 (arm64: 6.4), CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, attach permitted"
            }
            Mechanism::Kprobe => "CONFIG_KPROBES and CONFIG_BPF_EVENTS",
            Mechanism::Tracepoint => "Linux 5.8 or newer, CONFIG_BPF_EVENTS",
        }
    }

    /// What recording adds to one packet, in instructions: a datagram of 64 bytes from a namespace over a router to another, whose way
    /// alone takes 11,100 to 11,900. `entry_only`: with entries alone of all functions. Measured on the kernel named, in a deterministic
    /// guest (bench/README.md, Detail and Entries alone).
    pub fn measured(self, detail: Detail, entry_only: bool) -> Option<(&'static str, u32)> {
        let (kernel, [steps, spine, full]) = match (self, entry_only) {
            (Mechanism::FsessionMulti, false) => ("7.2", [22_900, 32_700, 55_500]),
            (Mechanism::FsessionMulti, true) => ("7.2", [16_600, 0, 36_100]),
            (Mechanism::KprobeSession, false) => ("6.12", [27_100, 0, 72_400]),
            (Mechanism::KprobeSession, true) => ("6.12", [20_000, 0, 44_700]),
            // 0: not measured
            (Mechanism::Fentry, false) => ("6.12", [24_900, 0, 0]),
            _ => return None,
        };
        let each = match detail {
            Detail::Steps => steps,
            Detail::Spine => spine,
            Detail::Full => full,
        };
        (each > 0).then_some((kernel, each))
    }

    /// What is lost without anything better than this.
    pub fn limits(self) -> &'static str {
        match self {
            Mechanism::FsessionMulti => {
                "functions of modules and those with odd arguments go by kprobe.session"
            }
            Mechanism::KprobeSession => {
                "twice to three times the cost per call of fsession.multi; functions that are hit most go by fentry, if that is offered"
            }
            Mechanism::KprobeMulti => "entry and return are two programs; a return can be missed (counted)",
            Mechanism::Fentry => {
                "a program per function: of detail full the spine (some 80 functions) instead"
            }
            Mechanism::Kprobe => "attaching takes 10 to 30 ms a function: short lists only",
            Mechanism::Tracepoint => {
                "no function path: only the kernel's fixed points in the stack, without durations"
            }
        }
    }

    /// Programs to load: name, and program and attach type where the section does not say.
    pub fn programs(self) -> &'static [(&'static str, Option<(u32, u32)>)] {
        match self {
            Mechanism::FsessionMulti => &[("fsession_multi", Some((26, sys::ATTACH_FSESSION_MULTI)))],
            Mechanism::KprobeSession => &[("kprobe_session", Some((2, sys::ATTACH_KPROBE_SESSION)))],
            Mechanism::KprobeMulti => &[
                ("kprobe_entry", Some((2, sys::ATTACH_KPROBE_MULTI))),
                ("kprobe_return", Some((2, sys::ATTACH_KPROBE_MULTI))),
            ],
            Mechanism::Fentry => &[
                ("fentry_special", None),
                ("fexit_special", None),
                ("fentry_plain", None),
                ("fentry_settled", None),
                ("fexit_plain", None),
            ],
            Mechanism::Kprobe => &[("kprobe_entry", None), ("kprobe_return", None)],
            Mechanism::Tracepoint => &[],
        }
    }
}

impl Mechanism {
    /// The program for functions of which only entries are recorded, as [`Mechanism::programs`].
    pub fn entry_program(self) -> Option<(&'static str, Option<(u32, u32)>)> {
        match self {
            Mechanism::FsessionMulti => Some((ENTRY_MULTI, Some((26, sys::ATTACH_FENTRY_MULTI)))),
            Mechanism::KprobeSession | Mechanism::KprobeMulti => {
                Some((KPROBE_ENTRY_ONLY, Some((2, sys::ATTACH_KPROBE_MULTI))))
            }
            Mechanism::Fentry => Some((FENTRY_ENTRY_ONLY, None)),
            Mechanism::Kprobe => Some((KPROBE_ENTRY_ONLY, None)),
            Mechanism::Tracepoint => None,
        }
    }
}

pub const ENTRY_MULTI: &str = "entry_multi";
pub const KPROBE_ENTRY_ONLY: &str = "kprobe_entry_only";
const FENTRY_ENTRY_ONLY: &str = "fentry_entry_only";

/// Programs that fentry loads anew for this function: of its entry, and of its return if that is recorded.
pub fn clones(c: &Candidate) -> &'static [&'static str] {
    match (c.entry_only, c.special(), c.settled) {
        (true, ..) => &[FENTRY_ENTRY_ONLY],
        (_, true, _) => &["fentry_special", "fexit_special"],
        (_, false, true) => &["fentry_settled", "fexit_plain"],
        (_, false, false) => &["fentry_plain", "fexit_plain"],
    }
}

/// One mechanism on this kernel.
#[derive(Clone, Debug)]
pub struct Offer {
    pub mechanism: Mechanism,
    pub offered: bool,
    /// Why not; empty when offered.
    pub reason: String,
}

/// Privilege and basics: one sentence when nothing at all can work.
pub fn refusal() -> Option<String> {
    if let Some(lacks) = crate::capability::missing() {
        return Some(format!(
            "recording needs CAP_BPF and CAP_PERFMON, and this process lacks {lacks}; run it with sudo, or give it capabilities"
        ));
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("this kernel has no BTF (/sys/kernel/btf/vmlinux); it takes a kernel built with CONFIG_DEBUG_INFO_BTF".into());
    }
    None
}

/// The build of the kernel side that loads here.
#[derive(Clone, Debug)]
pub struct Picked {
    pub build: Build,
    /// Better ones, and why each is not taken.
    pub passed_over: Vec<(Build, String)>,
    /// Typed loads are refused though this kernel has what they need: each packet costs more than it should.
    pub slower_than_needed: bool,
}

impl Picked {
    /// One sentence on a build that is slower than this kernel allows.
    pub fn warning(&self) -> Option<String> {
        let (_, why) = self.passed_over.first().filter(|_| self.slower_than_needed)?;
        Some(format!(
            "the fast build of the BPF program was refused, so the slow one records (a helper call for each member read): {why}; \
             KPAT_LIBBPF_LOG=1 shows the verifier's whole log"
        ))
    }

    /// For the log: a sentence for each build that was passed over.
    pub fn reasons(&self) -> Vec<String> {
        self.passed_over.iter().map(|(b, why)| format!("{}: {why}", b.name())).collect()
    }
}

/// What typed loads need of a kernel's types.
struct TypedLoads {
    /// `bpf_rdonly_cast` is there (6.2).
    cast: bool,
    /// Protocol, transport, network and mac header offsets lie in one word (bpf/footprint.bpf.h).
    one_word: bool,
}

impl TypedLoads {
    fn here() -> TypedLoads {
        let Ok(btf) = Btf::open(std::path::Path::new("/sys/kernel/btf/vmlinux"), None) else {
            return TypedLoads { cast: false, one_word: false };
        };
        TypedLoads {
            cast: btf.find(kind::FUNC, "bpf_rdonly_cast").is_some(),
            one_word: headers_are_one_word(&btf),
        }
    }

    fn missing(&self) -> Option<&'static str> {
        match (self.cast, self.one_word) {
            (false, _) => Some("this kernel has no typed loads (bpf_rdonly_cast, Linux 6.2)"),
            (true, false) => {
                Some("this kernel's sk_buff does not have protocol and header offsets side by side")
            }
            (true, true) => None,
        }
    }
}

/// Which build of the kernel side loads here: tried with a tracepoint program.
pub fn pick_build() -> Result<Picked, String> {
    pick(&TypedLoads::here(), &mut |build| {
        small_plan(build).load(&[(POINT, None)]).map(drop).map_err(|e| e.to_string())
    })
}

fn pick(typed: &TypedLoads, load: &mut dyn FnMut(Build) -> Result<(), String>) -> Result<Picked, String> {
    let mut passed_over = Vec::new();
    for build in Build::ALL {
        let tried = match typed.missing() {
            Some(why) if build.direct => Err(why.to_string()),
            _ => load(build),
        };
        match tried {
            Ok(()) => {
                let slower_than_needed = !build.direct && typed.missing().is_none();
                return Ok(Picked { build, passed_over, slower_than_needed });
            }
            Err(why) => passed_over.push((build, why)),
        }
    }
    Err(passed_over.pop().map_or_else(String::new, |(_, why)| why))
}

/// The direct build reads protocol, transport, network and mac header offsets by one load (bpf/footprint.bpf.h).
fn headers_are_one_word(btf: &Btf) -> bool {
    let Some(skb) = btf.find(kind::STRUCT, "sk_buff") else { return false };
    let at = |name: &str| btf.member_offset(skb, name);
    let first = at("protocol");
    first.is_some()
        && ["transport_header", "network_header", "mac_header"]
            .iter()
            .zip([2, 4, 6])
            .all(|(n, d)| at(n) == first.map(|f| f + d))
}

fn small_plan(build: Build) -> Plan {
    Plan {
        build,
        side: Side::Packets,
        ring_bytes: 1 << 16,
        cpus: kernel::possible_cpus(),
        packet_buckets: 64,
        netns: Vec::new(),
        ifindex: Vec::new(),
        filter: None,
        guess_reuse: false,
        own_packets: false,
        within: false,
        by_process: false,
        clone_cookies: Vec::new(),
        constants: Vec::new(),
    }
}

const HARMLESS: &str = "icmp_rcv";

/// Of a tracepoint that every kernel has; the direct build's knows its types.
const POINT: &str = "point_3_netif_receive_skb";

/// Tries one mechanism; the error says why it is unavailable.
pub fn attempt(m: Mechanism, build: Build, config: &HashMap<String, String>) -> Result<(), String> {
    if let Some(missing) = known_missing(m, config) {
        return Err(format!("{missing}; it needs {}", m.needs()));
    }
    let plan = small_plan(build);
    if m == Mechanism::Tracepoint {
        let loaded = plan.load(&[(POINT, None)]).map_err(|e| e.to_string())?;
        let prog = loaded.program(POINT).ok_or("program is not in the object")?;
        let link = if build.direct {
            sys::link_tracing(prog, sys::ATTACH_RAW_TP, 0)
        } else {
            sys::raw_tracepoint(prog, c"netif_receive_skb")
        };
        return link.map(drop).map_err(|e| e.to_string());
    }
    let loaded = plan.load(m.programs()).map_err(|e| why(m, &e.to_string()))?;
    try_link(m, &loaded).map_err(|e| why(m, &e.to_string()))
}

fn try_link(m: Mechanism, loaded: &Loaded) -> std::io::Result<()> {
    let prog =
        |n: &str| loaded.program(n).ok_or_else(|| std::io::Error::other("program is not in the object"));
    let name = CString::new(HARMLESS).expect("no zero byte");
    match m {
        Mechanism::FsessionMulti => {
            let btf = Btf::open(std::path::Path::new("/sys/kernel/btf/vmlinux"), None)
                .map_err(std::io::Error::other)?;
            let id = btf
                .find(kind::FUNC, HARMLESS)
                .ok_or_else(|| std::io::Error::other("icmp_rcv is not in BTF"))?;
            sys::link_tracing_multi(prog("fsession_multi")?, sys::ATTACH_FSESSION_MULTI, &[id], &[0])
                .map(drop)
        }
        Mechanism::KprobeSession => {
            sys::link_kprobe_multi(prog("kprobe_session")?, sys::ATTACH_KPROBE_SESSION, false, &[name], &[0])
                .map(drop)
        }
        Mechanism::KprobeMulti => {
            sys::link_kprobe_multi(prog("kprobe_entry")?, sys::ATTACH_KPROBE_MULTI, false, &[name], &[0])
                .map(drop)
        }
        Mechanism::Fentry => sys::link_tracing(prog("fentry_plain")?, sys::ATTACH_FENTRY, 0).map(drop),
        Mechanism::Kprobe => {
            let pmu = kprobe_pmu().ok_or_else(|| std::io::Error::other("there is no kprobe event source"))?;
            let event = sys::perf_kprobe(pmu, &name, false)?;
            sys::link_perf(prog("kprobe_entry")?, std::os::fd::AsFd::as_fd(&event), 0).map(drop)
        }
        Mechanism::Tracepoint => Ok(()),
    }
}

/// Number of the kprobe event source, where the kernel has kprobes.
pub fn kprobe_pmu() -> Option<u32> {
    kernel::read_line("/sys/bus/event_source/devices/kprobe/type").parse().ok()
}

/// What is certain without trying, so that a recording starts quickly: loading a program takes a fifth of a second.
fn known_missing(m: Mechanism, config: &HashMap<String, String>) -> Option<&'static str> {
    let off = |option: &str| !config.is_empty() && !config.contains_key(option);
    match m {
        Mechanism::KprobeSession | Mechanism::KprobeMulti | Mechanism::Kprobe if off("KPROBES") => {
            Some("built without CONFIG_KPROBES")
        }
        Mechanism::KprobeSession | Mechanism::KprobeMulti if off("FPROBE") => {
            Some("built without CONFIG_FPROBE")
        }
        Mechanism::FsessionMulti | Mechanism::Fentry if off("DYNAMIC_FTRACE_WITH_DIRECT_CALLS") => {
            Some("built without CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS")
        }
        Mechanism::Kprobe if kprobe_pmu().is_none() => Some("there is no kprobe event source"),
        _ => None,
    }
}

/// Turns the kernel's bare refusal into a reason a person can act on.
fn why(m: Mechanism, refusal: &str) -> String {
    let lockdown = kernel::lockdown();
    let reason = match m {
        Mechanism::FsessionMulti if refusal.contains("Invalid argument") => {
            "this kernel does not know fsession.multi"
        }
        Mechanism::KprobeSession if refusal.contains("Invalid argument") => {
            "this kernel does not know kprobe.session"
        }
        _ if lockdown == "confidentiality" => "kernel lockdown (confidentiality) forbids it",
        _ if refusal.contains("not permitted") => {
            "the kernel forbids it (policy or lockdown), although it has the feature"
        }
        _ => return format!("{refusal}; it needs {}", m.needs()),
    };
    format!("{reason}; it needs {}", m.needs())
}

/// Tries them all.
pub fn offers(build: Build) -> Vec<Offer> {
    let config = kernel::config();
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| match attempt(mechanism, build, &config) {
            Ok(()) => Offer { mechanism, offered: true, reason: String::new() },
            Err(reason) => Offer { mechanism, offered: false, reason },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: TypedLoads = TypedLoads { cast: true, one_word: true };

    #[test]
    fn a_refused_fast_build_is_warned_of_with_the_verifiers_reason() {
        let mut tried = Vec::new();
        let picked = pick(&MODERN, &mut |b| {
            tried.push(b);
            if b.direct {
                Err("the kernel refused the program: R1 invalid mem access".into())
            } else {
                Ok(())
            }
        })
        .expect("the slow build loads");
        assert_eq!(tried, Build::ALL[..3]);
        assert!(!picked.build.direct);
        let words = picked.warning().expect("it is slower than needed");
        assert!(words.contains("R1 invalid mem access") && words.contains("slow"), "{words}");
        assert_eq!(picked.reasons().len(), 2);
    }

    /// The verifier refuses an exchange at any other place, which is how a record is committed on arm64; on x86-64 it allows a store anywhere.
    #[test]
    fn places_in_a_ring_are_aligned_by_their_mask() {
        for build in Build::ALL {
            let plan = small_plan(build);
            let bytes = plan.bytes().expect("an object");
            let mask = crate::elf::map(&bytes).expect("an ELF file").symbols["ring_mask"].offset;
            let mask = u64::from_le_bytes(bytes[mask..mask + 8].try_into().expect("eight bytes"));
            assert_eq!((mask % 8, mask + 8), (0, plan.ring_bytes as u64));
        }
    }

    #[test]
    fn an_old_kernel_is_not_warned_of_and_the_reason_is_kept() {
        for (typed, why) in [
            (TypedLoads { cast: false, one_word: true }, "bpf_rdonly_cast"),
            (TypedLoads { cast: true, one_word: false }, "side by side"),
        ] {
            let picked = pick(&typed, &mut |b| {
                assert!(!b.direct, "not tried where it cannot work");
                Ok(())
            })
            .expect("it loads");
            assert_eq!(picked.warning(), None);
            assert!(picked.reasons().iter().all(|r| r.contains(why)));
        }
    }

    #[test]
    fn the_best_build_has_no_reasons() {
        let picked = pick(&MODERN, &mut |_| Ok(())).expect("it loads");
        assert_eq!((picked.build, picked.reasons().len(), picked.warning()), (Build::ALL[0], 0, None));
        assert!(pick(&MODERN, &mut |_| Err("no".into())).is_err_and(|e| e == "no"));
    }
}
