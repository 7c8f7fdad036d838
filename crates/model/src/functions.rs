//! The one table of kernel functions and tracepoints that kpat knows by name: where each is in the stack, what it does to packets, and on which
//! kernels it was found. `functions.txt` has a row for each and says at its head what the columns mean; profiles, roles, stages and
//! phase boundaries are questions to it. `lab/tests/functions.py` holds its kernels to the BTF of the lab's.
//!
//! A name that is not there tells nothing, so a kernel that renames a function costs detail, never truth. Rejected: a list beside each use. A
//! renamed function was an edit in five files then, and a forgotten one went unnoticed.

use std::collections::HashMap;
use std::sync::LazyLock;

const TEXT: &str = include_str!("functions.txt");

/// Layers of the stack, in the order in which a received packet meets them.
pub const LAYERS: [&str; 5] = ["driver", "link", "network", "transport", "socket"];

/// Series of the kernels that the table is held to.
pub const KERNELS: [&str; 3] = ["6.1", "6.12", "7.2"];

/// How much of a packet's way is probed. Each has what those before it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Where a step of the way begins or ends: what phases, verdicts, matching and lineage rest on.
    #[default]
    Steps,
    /// The functions that hand a packet from layer to layer: what fits a mechanism that loads a program per function (fentry).
    Spine,
    /// Every function of the profile.
    Full,
}

impl Detail {
    pub const ALL: [Detail; 3] = [Detail::Steps, Detail::Spine, Detail::Full];

    pub fn name(self) -> &'static str {
        match self {
            Detail::Steps => "steps",
            Detail::Spine => "spine",
            Detail::Full => "full",
        }
    }

    pub fn parse(s: &str) -> Option<Detail> {
        Detail::ALL.into_iter().find(|d| d.name() == s)
    }

    /// What it is, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Detail::Steps => "A function for each step of a packet's way",
            Detail::Spine => "The functions that hand a packet from layer to layer",
            Detail::Full => "Every function of the profile",
        }
    }

    /// What a profile is recorded with unless somebody says otherwise: the default is cheap, and who names a part of the stack
    /// wants to see it.
    pub fn of_profile(profile: &str) -> Detail {
        if profile == "path" { Detail::Steps } else { Detail::Full }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $Type:ident { $($(#[$about:meta])* $Variant:ident $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Type { $($(#[$about])* $Variant,)* }

        impl $Type {
            fn parse(word: &str) -> Option<$Type> {
                match word {
                    $($word => Some($Type::$Variant),)*
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// What a function does to the identity of packets.
    Identity {
        Free "free";
        Alloc "alloc";
        Expand "expand";
        Clone "clone";
        Copy "copy";
        Segment "segment";
        Gro "gro";
        Fragment "fragment";
        Link "link";
        Air "air";
        Moved "moved";
        Flow "flow";
        Read "read";
    }
}

words! {
    /// Why a function that has a packet is not probed.
    Never {
        /// Called with an skb whose header buffer has just been given back: what it points to is somebody else's already.
        Freed "freed";
        /// Reports its caller's address as the place of the drop; probed, it would report the probe's trampoline.
        Caller "caller";
    }
}

words! {
    /// What it says of a drop that it was this function that dropped.
    Drops {
        /// The copy that was shown to a sniffer.
        Sniffer "sniffer";
        /// The checksum was found wrong.
        Checksum "checksum";
        /// A raw socket's copy of what the kernel's own protocols take.
        Raw "raw";
        /// It lay in the queue of a socket that was closed.
        Unread "unread";
        /// A connection in TIME-WAIT took it, which is freed as what is dropped is. Only where the function gave no reason.
        TimeWait "time-wait";
        /// A connection that is being closed took it, as an acknowledgement of its FIN. Only where the function gave no reason, and nothing is in it to read.
        Closing "closing";
        /// It had come to a virtual link's other end, and nobody there had it but that device's driver.
        FarEnd "far-end";
        /// It goes on in copies that were made of it there, one for each way (HSR, PRP). Of what was not copied it was the packet: a duplicate.
        Copied "copied";
        /// ICMPv6 took it, which frees all that it takes as what is dropped is. Only of kernels (before 6.3) that give none of its reasons.
        Handled "handled";
        /// A bridge takes the frames of spanning tree that its ports receive, and frees them as what is dropped is. Only where the function gave no reason.
        Port "port";
        /// It was freed with a packet that it was a part of, without a reason of its own. Only where receive offload had it last.
        Part "part";
    }
}

/// What a function says about a packet's way: a set of bits.
pub mod stage {
    macro_rules! stages {
        ($($(#[$doc:meta])* $NAME:ident $word:literal $bit:literal;)*) => {
            $($(#[$doc])* pub const $NAME: u32 = 1 << $bit;)*

            pub(super) fn parse(word: &str) -> Option<u32> {
                match word {
                    $($word => Some($NAME),)*
                    _ => None,
                }
            }
        };
    }

    stages! {
        /// Came in from a device.
        RX "rx" 0;
        /// Given to this host's own protocols.
        LOCAL_IN "local-in" 1;
        /// Routed or bridged on.
        FORWARD "forward" 2;
        /// Made by this host's own protocols.
        LOCAL_OUT "local-out" 3;
        /// Given to the device; from its entry on the packet may be on the wire.
        XMIT "xmit" 4;
        /// Given to the queueing layer above the device: as XMIT where that was not recorded.
        XMIT_QUEUE "xmit-queue" 5;
        /// Put into a socket's queue.
        SOCK_QUEUE "sock-queue" 6;
        /// Taken by a reader.
        SOCK_READ "sock-read" 7;
        /// Into the per-CPU backlog.
        BACKLOG_IN "backlog-in" 8;
        /// Out of the per-CPU backlog.
        BACKLOG_OUT "backlog-out" 9;
        /// Into a queueing discipline.
        QDISC_IN "qdisc-in" 10;
        /// Out of a queueing discipline.
        QDISC_OUT "qdisc-out" 11;
        /// Receive offload: may wait for more segments.
        GRO "gro" 12;
        /// Retransmission or write queue.
        SEND_QUEUE "send-queue" 13;
        /// Freeing.
        FREE "free" 14;
        /// Shown to a sniffer of this host, on its way in or out: says nothing of the way.
        TAP "tap" 15;
        /// The driver has returned.
        XMIT_DONE "xmit-done" 16;
        /// Within a socket of a transport protocol, which no sniffer has.
        TRANSPORT "transport" 17;
        /// Shows the packet to the device's sniffers, and only then gives it to the driver.
        HAND_ON "hand-on" 18;
        /// What was received has its time stamp by now (`net_timestamp_check` of net/core/dev.c comes before, unless
        /// net.core.netdev_tstamp_prequeue is off).
        STAMPED "stamped" 19;
        /// Freed because it was used, not dropped.
        CONSUMED "consumed" 20;
        /// Put into the queue of a socket that is not of TCP or UDP: a raw socket's copy of what those have.
        OTHER_QUEUE "other-queue" 21;
        /// Asks for its next hop's link address; until that is known, it waits.
        NEIGHBOUR "neighbour" 22;
        /// Given to a process that switches packets (Open vSwitch, for flows that the kernel does not know yet): that sends it on as another one, or drops it.
        UPCALL "upcall" 23;
        /// One `sk_buff` less that holds the packet's data.
        RELEASED "released" 24;
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Function {
    /// May hold `*` and `?`; a tracepoint's is `group:name`.
    pub name: &'static str,
    /// Of [`KERNELS`], those whose BTF has it.
    pub kernels: Vec<&'static str>,
    /// Where Debian's kernels have it; empty: vmlinux.
    pub modules: Vec<&'static str>,
    pub layer: &'static str,
    /// The least detail with which profiles probe it; `None`: no profile names it.
    pub detail: Option<Detail>,
    pub identity: Option<Identity>,
    /// It need not look whether headers or device have changed: those that call it, directly or by one that leaves the packet alone, have
    /// looked if they are probed. Empty: called where a packet ends, when it is too late.
    pub settled_by: Option<Vec<&'static str>>,
    /// Of [`stage`].
    pub stage: u32,
    /// Rules of the phase boundaries (crates/query/src/phases/boundaries.txt) that it is one of.
    pub begins: Vec<&'static str>,
    pub never: Option<Never>,
    pub drops: Option<Drops>,
    /// Recordings of applications see a crossing here.
    pub crossing: bool,
    /// On the way of the packets by which a mechanism is proved.
    pub proof: bool,
    /// Calls for 100 packets, as counted on 6.12; 0: few.
    pub hits: u32,
    /// Does a short, fixed piece of work: under probes its duration is mostly theirs.
    pub leaf: bool,
}

impl Function {
    fn is_pattern(&self) -> bool {
        self.name.contains(['*', '?'])
    }
}

struct Table {
    rows: Vec<Function>,
    by_name: HashMap<&'static str, usize>,
    patterns: Vec<usize>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let rows = read(TEXT).expect("the table is tested");
    let names = rows.iter().enumerate().filter(|(_, f)| !f.is_pattern());
    let by_name = names.map(|(i, f)| (f.name, i)).collect();
    let patterns = (0..rows.len()).filter(|i| rows[*i].is_pattern()).collect();
    Table { rows, by_name, patterns }
});

/// Every row, in the table's order.
pub fn all() -> &'static [Function] {
    &TABLE.rows
}

/// The row of exactly this name.
pub fn of(name: &str) -> Option<&'static Function> {
    TABLE.by_name.get(name).map(|i| &TABLE.rows[*i])
}

/// What is known of a name: its own row, else those whose patterns it fits.
pub fn known(name: &str) -> impl Iterator<Item = &'static Function> {
    let own = of(name);
    let fits = move |i: &&usize| own.is_none() && glob(TABLE.rows[**i].name, name);
    let patterns: Vec<&Function> = TABLE.patterns.iter().filter(fits).map(|i| &TABLE.rows[*i]).collect();
    own.into_iter().chain(patterns)
}

/// What a name says about a packet's way, 0 if nothing: a function's as in kallsyms, or a tracepoint's as `group:name`.
pub fn stage_of(name: &str) -> u32 {
    // Compiler clones: `name.isra.0`, `name.constprop.0`, `name.part.0`.
    let name = name.split('.').next().unwrap_or(name);
    known(name).fold(0, |stages, f| stages | f.stage)
}

/// How a log says of a function that it has no packet and is recorded within the calls of packets. `returns`: what it returns, empty: nothing.
pub fn within(returns: &str) -> String {
    if returns.is_empty() { WITHIN.into() } else { format!("{WITHIN}{RETURNS}{returns}") }
}

const WITHIN: &str = "enclosing call";
const RETURNS: &str = ", returns ";
pub const NUMBER: &str = "a number";
pub const POINTER: &str = "a pointer";
pub const TRUTH: &str = "true or false";

/// What a call of such a function returned. `value`: what is logged of it, 16 bits; `None`: nothing, or it was too large.
pub fn returned(via: &str, value: u16) -> Option<String> {
    match (via.strip_prefix(WITHIN)?.strip_prefix(RETURNS)?, value as i16) {
        (NUMBER, i16::MIN) => None,
        (NUMBER, n) => Some(n.to_string()),
        (POINTER, 0) => Some("NULL".into()),
        (POINTER, error @ ..0) => Some(error.to_string()),
        (POINTER, _) => Some("pointer".into()),
        (TRUTH, n) => Some((n != 0).to_string()),
        _ => None,
    }
}

/// Names of a boundary rule, in the table's order.
pub fn of_boundary(rule: &str) -> impl Iterator<Item = &'static str> {
    all().iter().filter(move |f| f.begins.contains(&rule)).map(|f| f.name)
}

/// Layer of a function: as the table says, else by how its name starts.
pub fn layer(name: &str) -> &'static str {
    static STARTS: &[(&str, &[&str])] = &[
        ("transport", &["tcp", "udp", "sctp", "dccp", "mptcp", "__tcp", "__udp"]),
        (
            "network",
            &[
                "ip", "__ip", "icmp", "arp", "neigh", "nf_", "nft_", "__nf", "xfrm", "esp", "ah_", "inet",
                "raw", "ndisc", "igmp", "fib", "mld", "rt6",
            ],
        ),
        (
            "socket",
            &[
                "sock",
                "__sock",
                "sk_",
                "__sk_",
                "skb_",
                "__skb",
                "kfree_skb",
                "consume_skb",
                "unix_",
                "packet_",
                "tpacket",
            ],
        ),
        (
            "link",
            &[
                "dev_",
                "__dev",
                "netif",
                "__netif",
                "br_",
                "__br",
                "qdisc",
                "sch_",
                "eth_",
                "vlan",
                "llc",
                "tcf",
                "napi",
                "gro",
                "ieee80211",
                "cfg80211",
                "bond",
            ],
        ),
    ];
    if let Some(f) = known(name).next() {
        return f.layer;
    }
    STARTS.iter().find(|(_, s)| s.iter().any(|p| name.starts_with(p))).map_or("driver", |(l, _)| l)
}

/// Shell-style match with `*` and `?`.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut i, mut j, mut star, mut mark) = (0, 0, usize::MAX, 0);
    while j < n.len() {
        if i < p.len() && (p[i] == b'?' || p[i] == n[j]) {
            (i, j) = (i + 1, j + 1);
        } else if i < p.len() && p[i] == b'*' {
            (star, mark) = (i, j);
            i += 1;
        } else if star != usize::MAX {
            mark += 1;
            (i, j) = (star + 1, mark);
        } else {
            return false;
        }
    }
    p[i..].iter().all(|c| *c == b'*')
}

fn read(text: &'static str) -> Result<Vec<Function>, String> {
    let mut rows: Vec<Function> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let row = row_of(line).map_err(|why| format!("line {}: {why}", i + 1))?;
        rows.push(row);
    }
    Ok(rows)
}

fn row_of(line: &'static str) -> Result<Function, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(kernels), Some(layer), Some(detail)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("needs name, kernels, layer and detail".into());
    };
    let unknown = |what: &str, word: &str| format!("{name}: {what} `{word}` is unknown");
    let one_of = |all: &[&'static str], what: &str, word: &str| {
        all.iter().copied().find(|w| *w == word).ok_or_else(|| unknown(what, word))
    };
    let kernels = match kernels {
        "all" => KERNELS.into(),
        "-" => Vec::new(),
        some => some.split(',').map(|k| one_of(&KERNELS, "kernel", k)).collect::<Result<_, _>>()?,
    };
    let detail = match detail {
        "-" => None,
        word => Some(Detail::parse(word).ok_or_else(|| unknown("detail", word))?),
    };
    let mut f = Function {
        name,
        kernels,
        modules: Vec::new(),
        layer: one_of(&LAYERS, "layer", layer)?,
        detail,
        identity: None,
        settled_by: None,
        stage: 0,
        begins: Vec::new(),
        never: None,
        drops: None,
        crossing: false,
        proof: false,
        hits: 0,
        leaf: false,
    };
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| unknown("word", word))?;
        let values = || value.split(',');
        match key {
            "in" => f.modules = values().collect(),
            "identity" => f.identity = Some(Identity::parse(value).ok_or_else(|| unknown(key, value))?),
            "settled-by" if value == "end" => f.settled_by = Some(Vec::new()),
            "settled-by" => f.settled_by = Some(values().collect()),
            "stage" => {
                for v in values() {
                    f.stage |= stage::parse(v).ok_or_else(|| unknown(key, v))?;
                }
            }
            "begins" => f.begins = values().collect(),
            "never" => f.never = Some(Never::parse(value).ok_or_else(|| unknown(key, value))?),
            "drops" => f.drops = Some(Drops::parse(value).ok_or_else(|| unknown(key, value))?),
            "hits" => f.hits = value.parse().map_err(|_| unknown(key, value))?,
            "is" if value == "leaf" => f.leaf = true,
            "for" => {
                for v in values() {
                    match v {
                        "crossings" => f.crossing = true,
                        "proof" => f.proof = true,
                        _ => return Err(unknown(key, v)),
                    }
                }
            }
            _ => return Err(unknown("key", key)),
        }
    }
    Ok(f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_row_is_read_once_and_names_others_that_are_there() {
        let rows = read(TEXT).unwrap_or_else(|e| panic!("{e}"));
        let names: HashSet<&str> = rows.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), rows.len(), "a name has two rows");
        for f in &rows {
            for caller in f.settled_by.iter().flatten() {
                assert!(names.contains(caller), "{}: {caller} has no row", f.name);
            }
            let says = f.detail.is_some()
                || f.identity.is_some()
                || f.settled_by.is_some()
                || f.stage != 0
                || !f.begins.is_empty()
                || f.never.is_some()
                || f.drops.is_some()
                || f.crossing
                || f.proof
                || f.hits > 0;
            assert!(says, "{} says nothing", f.name);
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (line, says) in [
            ("f all link", "needs name"),
            ("f 6.1,5.0 link -", "kernel `5.0`"),
            ("f all links -", "layer `links`"),
            ("f all link some", "detail `some`"),
            ("f all link - identity=clones", "identity `clones`"),
            ("f all link - stage=rx,out", "stage `out`"),
            ("f all link - drop=sniffer", "key `drop`"),
            ("f all link - hits=many", "hits `many`"),
            ("f all link - steps", "word `steps`"),
        ] {
            let e = row_of(line).unwrap_err();
            assert!(e.contains(says), "{line}: {e}");
        }
    }

    #[test]
    fn a_row_counts_more_than_a_pattern() {
        assert_eq!(known("dev_hard_start_xmit").count(), 1);
        assert_eq!(of("dev_hard_start_xmit").and_then(|f| f.identity), Some(Identity::Link));
        assert!(stage_of("dev_hard_start_xmit.part.0") & stage::HAND_ON != 0);
        assert_eq!(stage_of("foo_start_xmit"), stage::XMIT);
        assert_eq!(stage_of("some_other_function"), 0);
    }

    #[test]
    fn values() {
        for (returns, value, want) in [
            (NUMBER, 0, Some("0")),
            (NUMBER, -11i16 as u16, Some("-11")),
            (NUMBER, 0x8000, None),
            (POINTER, 0, Some("NULL")),
            (POINTER, 1, Some("pointer")),
            (POINTER, -12i16 as u16, Some("-12")),
            (TRUTH, 1, Some("true")),
            ("", 5, None),
        ] {
            assert_eq!(returned(&within(returns), value).as_deref(), want, "{returns} {value}");
        }
        assert_eq!(returned("arg 1", 1), None);
    }

    #[test]
    fn globs() {
        for (p, n, want) in [
            ("ip_rcv", "ip_rcv", true),
            ("ip_rcv*", "ip_rcv_finish", true),
            ("*_xmit", "veth_xmit", true),
            ("*_xmit", "veth_xmit_frame", false),
            ("nf_nat_*fn", "nf_nat_ipv4_fn", true),
            ("a?c", "abc", true),
            ("", "x", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(p, n), want, "{p} {n}");
        }
    }

    #[test]
    fn of_leaves_the_duration_is_no_boundary() {
        let leaves: Vec<&Function> = all().iter().filter(|f| f.leaf).collect();
        assert!(leaves.len() > 15);
        for f in leaves {
            // What comes out of a call is known at its return.
            assert!(matches!(f.identity, None | Some(Identity::Free)) && !f.is_pattern(), "{}", f.name);
            // Where it was given to a driver or read, the time in it is the time that one asks for.
            assert_eq!(f.stage & (stage::XMIT | stage::SOCK_READ | stage::HAND_ON), 0, "{}", f.name);
        }
    }

    #[test]
    fn layers() {
        assert_eq!(
            ["ip_rcv", "tcp_foo", "veth_xmit", "e100_poll"].map(layer),
            ["network", "transport", "driver", "driver"]
        );
    }
}
