//! The columns of a packet's row, declared once: how each is called in the table for people, in JSON, in the list of the page and
//! in the filter language, and which columns of the stored table it is made of. JSON and `--tsv` are made from here; tests hold the
//! others to it, so that a column that is added is added everywhere or says here why not. `docs/columns.md` is written from it.
//!
//! Rejected: one struct for all. The page and filters hold all packets of a log and have 128 bytes for each
//! ([`crate::catalog::Entry`]), the command line prints each once and has everything.

use crate::codes::verdict;
use crate::owners::{Name, Owner};
use crate::protocol;
use crate::store::Store;
use kpat_store::tables::{PacketRow, ProcessRow};

/// What a column is called somewhere; or why it is not there.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    As(&'static [&'static str]),
    Absent(&'static str),
}

impl Named {
    pub fn names(&self) -> &'static [&'static str] {
        match self {
            Named::As(names) => names,
            Named::Absent(_) => &[],
        }
    }
}

/// How its first field is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Plain,
    /// A time of the boot clock.
    Moment,
    /// Nanoseconds.
    Duration,
    Percent,
}

/// A value in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Number(i64),
    Text(String),
}

/// A field of JSON and of `--tsv`.
pub struct PacketField {
    pub name: &'static str,
    pub get: fn(&Store, &PacketRow) -> Value,
}

pub struct PacketColumn {
    /// Head in the table for people.
    pub head: Named,
    pub unit: Unit,
    /// None where there is no head either.
    pub fields: &'static [PacketField],
    /// Fields of the page's row.
    pub page: Named,
    /// Fields of the filter language that ask for it.
    pub filter: Named,
    /// Columns of table `packet`; none: other tables tell.
    pub stored: &'static [&'static str],
}

impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Number(n)
    }
}

impl From<i32> for Value {
    fn from(n: i32) -> Value {
        Value::Number(n.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

const NO_ROOM: &str = "a row of the list has 128 bytes, with no room for one more time";
const SUM: &str = "first moment and path time say it";
const BY_NAME: &str = "an interface is asked for by its name";
const OTHER_TABLE: &str = "another table would be read for each packet";
const AFTER: &str = "`after` and `before` ask for it";

macro_rules! named {
    (none $why:ident) => { Named::Absent($why) };
    ($($name:literal)+) => { Named::As(&[$($name),+]) };
}

macro_rules! columns {
    ($([$($head:tt)+] $unit:ident {$($field:literal $get:expr;)*}
        page [$($page:tt)+] filter [$($filter:tt)+] stored [$($stored:literal)*];)*) => {
        /// All columns, in the order of the fields of `--tsv`.
        pub const PACKET_COLUMNS: &[PacketColumn] = &[$(PacketColumn {
            head: named!($($head)+),
            unit: Unit::$unit,
            fields: &[$(PacketField { name: $field, get: $get }),*],
            page: named!($($page)+),
            filter: named!($($filter)+),
            stored: &[$($stored),*],
        }),*];
    };
}

columns! {
    ["id"] Plain { "packet_id" |_, p| p.packet_id.into(); }
        page ["id"] filter ["packet"] stored ["packet_id"];
    ["time"] Moment {
        "first_boot_ns" |_, p| p.first_ns.into();
        "first_wall_ns" |s, p| wall(s, p.first_ns);
    } page ["t"] filter ["time"] stored ["first_ns"];
    ["last"] Moment {
        "last_boot_ns" |_, p| p.last_ns.into();
        "last_wall_ns" |s, p| wall(s, p.last_ns);
    } page [none SUM] filter [none AFTER] stored ["last_ns"];
    ["path"] Duration { "path_ns" |_, p| p.path_ns.into(); }
        page ["path_ns"] filter ["path_time"] stored ["path_ns"];
    ["kernel"] Duration { "kernel_ns" |_, p| p.kernel_ns.into(); }
        page ["kernel_ns"] filter ["kernel_time"] stored ["kernel_ns"];
    ["driver"] Duration { "driver_ns" |_, p| p.driver_ns.into(); }
        page [none NO_ROOM] filter [none NO_ROOM] stored ["driver_ns"];
    ["softirq"] Duration { "softirq_ns" |_, p| p.softirq_ns.into(); }
        page [none NO_ROOM] filter [none NO_ROOM] stored ["softirq_ns"];
    ["card"] Duration {
        "card_ns" |_, p| p.card_ns.into();
        "card_bound_ns" |_, p| p.card_bound_ns.into();
        "stamp_ns" |_, p| p.stamp_ns.into();
    } page [none NO_ROOM] filter [none NO_ROOM] stored ["card_ns" "card_bound_ns" "stamp_ns"];
    ["proto"] Plain {
        "protocol" |_, p| protocol::name(p.ethertype, p.proto).into();
        "ethertype" |_, p| p.ethertype.into();
        "ip_proto" |_, p| p.proto.into();
    } page ["proto"] filter ["proto" "ethertype" "tcp" "udp" "icmp" "icmpv6" "arp" "ip" "ipv6"] stored ["ethertype" "proto"];
    ["source"] Plain {
        "src_addr" |_, p| p.src_addr.clone().into();
        "src_port" |_, p| p.sport.into();
    } page ["src"] filter ["ip.src" "ip.addr" "port.src" "port"] stored ["src_addr" "sport"];
    ["destination"] Plain {
        "dst_addr" |_, p| p.dst_addr.clone().into();
        "dst_port" |_, p| p.dport.into();
    } page ["dst"] filter ["ip.dst" "ip.addr" "port.dst" "port"] stored ["dst_addr" "dport"];
    ["info"] Plain {
        "tcp_flags" |_, p| p.tcp_flags.into();
        "tcp_seq" |_, p| p.tcp_seq.into();
        "icmp_type" |_, p| p.icmp_kind.into();
        "icmp_code" |_, p| p.icmp_code.into();
        "icmp_id" |_, p| p.icmp_id.into();
        "icmp_seq" |_, p| p.icmp_seq.into();
        "arp_op" |_, p| p.arp_op.into();
        "tcp_tsval" |_, p| p.tcp_tsval.into();
        "tcp_tsecr" |_, p| p.tcp_tsecr.into();
        "message" |_, p| p.message.clone().into();
        "message_of_frame" |_, p| p.message.is_some().then(|| i64::from(p.message_frame.is_some())).into();
        "info" |_, p| protocol::summary(p).into();
    } page ["info"]
        filter ["tcp.flags" "tcp.syn" "tcp.fin" "tcp.rst" "tcp.ack" "tcp.seq" "icmp.type" "icmp.code" "icmp.id" "icmp.seq" "arp.op" "message"]
        stored ["tcp_flags" "tcp_seq" "icmp_kind" "icmp_code" "icmp_id" "icmp_seq" "arp_op" "tcp_tsval" "tcp_tsecr" "message" "message_frame"];
    ["length"] Plain { "len_bytes" |_, p| p.len_bytes.into(); }
        page ["len"] filter ["len"] stored ["len_bytes"];
    ["frames"] Plain { "frames" |_, p| p.frames.into(); }
        page ["frames"] filter ["frames" "wire"] stored ["frames"];
    ["calls"] Plain { "calls" |_, p| p.calls.into(); }
        page ["calls"] filter ["calls"] stored ["calls"];
    ["points"] Plain { "points" |_, p| p.points.into(); }
        page ["points"] filter ["points"] stored ["points"];
    ["verdict"] Plain { "verdict" |_, p| verdict::name(p.verdict).into(); }
        page ["verdict"]
        filter ["verdict" "delivered" "forwarded" "dropped" "sent" "in-flight" "transformed"]
        stored ["verdict"];
    ["drop reason"] Plain { "drop_reason" |s, p| p.drop_reason.map(|r| reason(s, r)).into(); }
        page ["drop"] filter ["drop"] stored ["drop_reason"];
    ["process"] Plain {
        "pid" |_, p| p.pid.into();
        "tgid" |s, p| process(s, p).map(|q| q.tgid).into();
        "process" |s, p| process(s, p).map(|q| q.comm.as_str()).into();
    } page ["process" "pid" "tgid"] filter ["process" "pid"] stored ["pid"];
    [none OTHER_TABLE] Plain {} page [none NO_ROOM] filter ["writer" "writer.pid" "reader" "reader.pid" "socket"] stored [];
    ["user"] Plain {
        "user" |s, p| owner(s, p, Name::User);
        "uid" |s, p| of_thread(s, p).and_then(|o| o.uid).into();
    } page [none OTHER_TABLE] filter ["user"] stored ["pid"];
    ["cgroup"] Plain {
        "cgroup" |s, p| owner(s, p, Name::Cgroup);
        "unit" |s, p| owner(s, p, Name::Unit);
        "container" |s, p| owner(s, p, Name::Container);
        "pod" |s, p| owner(s, p, Name::Pod);
    } page [none OTHER_TABLE] filter ["cgroup" "unit" "container" "pod"] stored ["pid"];
    [none OTHER_TABLE] Plain {} page [none NO_ROOM] filter ["write" "read" "acked" "qdisc"] stored [];
    ["netns"] Plain { "netns" |_, p| p.netns.into(); }
        page ["netns"] filter ["netns"] stored ["netns"];
    ["ifindex"] Plain {
        "in_ifindex" |_, p| p.if_in.into();
        "in_netns" |_, p| p.if_in_netns.into();
        "out_ifindex" |_, p| p.if_out.into();
        "out_netns" |_, p| p.if_out_netns.into();
    } page [none BY_NAME] filter [none BY_NAME] stored ["if_in" "if_in_netns" "if_out" "if_out_netns"];
    ["match"] Percent { "match_confidence_percent" |_, p| p.confidence.into(); }
        page ["confidence" "ambiguous"] filter ["confidence" "ambiguous"] stored ["confidence"];
    ["interfaces"] Plain {
        "in_interface" |s, p| p.if_in.map(|i| s.interface(i, p.if_in_netns)).into();
        "out_interface" |s, p| p.if_out.map(|i| s.interface(i, p.if_out_netns)).into();
    } page ["if_in" "if_out"] filter ["if_in" "if_out" "interface"]
        stored ["if_in" "if_in_netns" "if_out" "if_out_netns"];
    ["cpu"] Plain { "cpu" |_, p| p.cpu.into(); }
        page ["cpu"] filter ["cpu"] stored ["cpu"];
    ["end"] Moment {
        "end_boot_ns" |_, p| p.end_ns.into();
        "end_wall_ns" |s, p| p.end_ns.map_or(Value::Null, |at| wall(s, at));
    } page [none NO_ROOM] filter [none NO_ROOM] stored ["end_ns"];
    [none OTHER_TABLE] Plain {} page ["frame" "frame_id"] filter ["frame" "capture"] stored [];
    [none OTHER_TABLE] Plain {} page ["retransmission"] filter ["retransmission"] stored [];
}

impl PacketColumn {
    /// The column with this head.
    pub fn with_head(head: &str) -> Option<&'static PacketColumn> {
        PACKET_COLUMNS.iter().find(|c| c.head.names() == [head])
    }
}

/// All fields of JSON, in the order of `--tsv`.
pub fn packet_fields() -> impl Iterator<Item = &'static PacketField> {
    PACKET_COLUMNS.iter().flat_map(|c| c.fields)
}

/// The process of the thread that sent or received it, as it was called then.
fn process<'s>(store: &'s Store, p: &PacketRow) -> Option<&'s ProcessRow> {
    p.pid.and_then(|pid| store.process(pid, p.last_ns))
}

/// Whose process sent or received it.
fn of_thread(store: &Store, p: &PacketRow) -> Option<Owner> {
    p.pid.and_then(|pid| store.owner_of_thread(pid, p.last_ns))
}

fn owner(store: &Store, p: &PacketRow, asked: Name) -> Value {
    of_thread(store, p).and_then(|o| o.names(asked).into_iter().flatten().next()).into()
}

fn wall(store: &Store, boot_ns: i64) -> Value {
    store.wall_ns(boot_ns).into()
}

fn reason(store: &Store, reason: i32) -> String {
    store.drop_reason(reason).map_or_else(|| format!("reason {reason}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FIELDS;
    use kpat_store::tables::PACKET;
    use std::collections::BTreeSet;

    fn all(of: impl Fn(&PacketColumn) -> Vec<&'static str>) -> Vec<&'static str> {
        PACKET_COLUMNS.iter().flat_map(of).collect()
    }

    #[test]
    fn every_stored_column_is_in_the_row() {
        let used: BTreeSet<&str> = all(|c| c.stored.to_vec()).into_iter().collect();
        let stored: BTreeSet<&str> = PACKET.columns.iter().map(|c| c.name).collect();
        assert_eq!(used, stored);
    }

    #[test]
    fn every_field_of_the_filter_language_asks_for_a_column() {
        let asked: BTreeSet<&str> = all(|c| c.filter.names().to_vec()).into_iter().collect();
        // Functions are in the calls, not in the row.
        let fields: BTreeSet<&str> = FIELDS.iter().map(|f| f.name).filter(|f| *f != "func").collect();
        assert_eq!(asked, fields);
        // And what a condition reads is what the column is made of.
        for c in PACKET_COLUMNS {
            for f in c.filter.names().iter().filter_map(|n| FIELDS.iter().find(|f| f.name == *n)) {
                let others = PACKET_COLUMNS.iter().filter(|o| o.filter.names().contains(&f.name));
                let of_all: Vec<&str> = others.flat_map(|o| o.stored).copied().collect();
                // The number is read always; a process's name is the one at its last moment.
                for column in f.columns.iter().filter(|c| !["packet_id", "last_ns"].contains(c)) {
                    assert!(of_all.contains(column), "{} reads {column}", f.name);
                }
            }
        }
    }

    #[test]
    fn every_column_of_the_page_can_be_sorted_by() {
        for name in all(|c| c.page.names().to_vec()) {
            // A frame's key sorts as its number does, and a thread's process stands beside the thread.
            assert_eq!(
                crate::catalog::Column::from_name(name).is_ok(),
                !["frame_id", "tgid"].contains(&name),
                "{name}"
            );
        }
    }

    #[test]
    fn names_are_used_once() {
        let heads = all(|c| c.head.names().to_vec());
        // `--columns` takes the first word.
        let heads = heads.iter().map(|h| h.split(' ').next().unwrap_or_default()).collect::<Vec<_>>();
        for names in [heads, all(|c| c.page.names().to_vec()), packet_fields().map(|f| f.name).collect()] {
            let different: BTreeSet<&str> = names.iter().copied().collect();
            assert_eq!(different.len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn every_field_of_json_is_documented() {
        let page = include_str!("../../../docs/cli.md");
        let line = page.lines().find(|l| l.starts_with("| packet | ")).unwrap();
        for field in packet_fields() {
            assert!(line.contains(&format!("`{}`", field.name)), "docs/cli.md, packet: {}", field.name);
        }
    }

    /// The page about it, as the list has it. `UPDATE_DOCS=1` writes it.
    #[test]
    fn the_page_lists_the_columns() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/columns.md");
        let have = std::fs::read_to_string(&path).unwrap();
        let (head, _) = have.split_once("| --- | --- | --- | --- |\n").unwrap();
        let names = |n: &[&str]| n.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        let named = |n: &Named| match n {
            Named::As(of) => names(of),
            Named::Absent(why) => format!("no: {why}"),
        };
        let rows: String = PACKET_COLUMNS
            .iter()
            .map(|c| {
                let fields: Vec<&str> = c.fields.iter().map(|f| f.name).collect();
                let fields = if fields.is_empty() { named(&c.head) } else { names(&fields) };
                format!("| {} | {fields} | {} | {} |\n", named(&c.head), named(&c.page), named(&c.filter))
            })
            .collect();
        let want = format!("{head}| --- | --- | --- | --- |\n{rows}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &want).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == want,
            "docs/columns.md: UPDATE_DOCS=1 writes the columns"
        );
    }
}
