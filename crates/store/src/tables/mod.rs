//! The tables of the integrated log, declared once. A declaration gives the row type, the Parquet schema and the
//! reference page ([`markdown`]); there is no second list anywhere.

mod codes;
mod identity;
mod list;
mod network;
mod profile;

pub use codes::codes;
pub use identity::{Identity, identity};
pub use list::*;
pub use network::*;
pub use profile::*;

use crate::batch::Batch;
use kpat_model::codes::list;
use std::fmt::Write as _;

/// Version of this set of tables. A new column that may be null does not change it (readers ignore what they do not
/// know and read what is missing as null); anything else does.
///
/// 3: `call_index` and `duration`, so that a look-up of one function does not read all calls.
/// 4: `call_path`, so that a flame graph does not either.
/// 5: `pause`, so that sleeping is not self time; `socket`, `app_event`, `tcp_state`, `gap`: what applications ask of the network.
/// 6: `driver_ns` and `softirq_ns` of a packet.
/// 7: clocks piece by piece with what they rest on, `event.cpu` and `event.pid` null where user space saw the event, verdicts by cases,
/// sizes of crossings as taken.
/// 8: `message`, TCP's timestamps and ICMP's code.
pub const SCHEMA_VERSION: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColType {
    I32,
    I64,
    Text,
}

/// How a column is encoded on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// DELTA_BINARY_PACKED: times, ids, durations.
    Delta,
    /// Dictionary: few different values.
    Dict,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub ty: ColType,
    pub encoding: Encoding,
    /// "ns", "bytes", "code" ...; empty: a plain number or text.
    pub unit: &'static str,
    /// "boot", "wall" (of the capture), empty: not a time.
    pub clock: &'static str,
    /// What null means; empty: never null.
    pub null: &'static str,
    pub meaning: &'static str,
}

impl Column {
    pub fn nullable(&self) -> bool {
        !self.null.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub name: &'static str,
    pub meaning: &'static str,
    /// In what order the rows are, and where they come from.
    pub order: &'static str,
    pub columns: &'static [Column],
    /// Rows per row group: what one look-up decodes at least, and what a writer holds in memory.
    pub group_rows: usize,
}

impl Table {
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    pub fn file_name(&self) -> String {
        format!("{}.parquet", self.name)
    }
}

/// What a column means, its codes included.
fn meaning(table: &str, column: &Column) -> String {
    match codes(table, column.name) {
        codes if codes.is_empty() => column.meaning.to_owned(),
        codes => format!("{} {}.", column.meaning, list(&codes)),
    }
}

/// A row of a declared table.
pub trait Row: Sized {
    const TABLE: &'static Table;
    fn put(&self, to: &mut Batch);
    /// The same of many rows, column by column.
    fn put_all(rows: &[Self], to: &mut Batch);
    fn get(from: &Batch, row: usize) -> Self;
}

/// Declares one table and its row type. `layers` at the end adds the flattened protocol layers.
macro_rules! table {
    ($table:ident, $row:ident, $name:literal, $group:literal, $meaning:literal, $order:literal, {
        $($body:tt)*
    } layers) => {
        table! { $table, $row, $name, $group, $meaning, $order, {
            $($body)*
            mac_src: Option<String>, Dict, "", "", "no link layer seen", "Link source address, `aa:bb:cc:dd:ee:ff`.";
            mac_dst: Option<String>, Dict, "", "", "no link layer seen", "Link destination address.";
            ethertype: Option<i32>, Dict, "code", "", "unknown", "EtherType after VLAN tags; of a frame without one 0x0042, spanning tree, or 0x0004, another with an LLC header.";
            vlan: Option<i32>, Dict, "", "", "untagged", "Outer VLAN id.";
            vlan_inner: Option<i32>, Dict, "", "", "not double tagged", "Inner VLAN id.";
            wifi_fc: Option<i32>, Dict, "code", "", "not 802.11", "802.11 frame control.";
            wifi_ra: Option<String>, Dict, "", "", "not 802.11", "802.11 receiver address.";
            wifi_ta: Option<String>, Dict, "", "", "not 802.11", "802.11 transmitter address.";
            wifi_seq: Option<i32>, Delta, "", "", "not 802.11", "802.11 sequence control.";
            ip_src: Option<String>, Dict, "", "", "not IP or ARP", "Network source address (ARP: sender), RFC 5952 text.";
            ip_dst: Option<String>, Dict, "", "", "not IP or ARP", "Network destination address (ARP: target).";
            ip_id: Option<i64>, Delta, "", "", "no identification in the header", "IPv4 identification, or that of the IPv6 fragment header.";
            ip_proto: Option<i32>, Dict, "code", "", "not IP", "IP protocol, after IPv6 extension headers.";
            ttl: Option<i32>, Dict, "", "", "not IP", "Time to live or hop limit.";
            ip_len: Option<i32>, Dict, "bytes", "", "not IP", "Total length (IPv4) or payload length (IPv6).";
            frag_offset: Option<i32>, Dict, "bytes", "", "not a fragment", "Offset of a fragment.";
            more_frags: Option<i32>, Dict, "", "", "not a fragment", "1: more fragments follow.";
            arp_op: Option<i32>, Dict, "code", "", "not ARP", "ARP operation.";
            sport: Option<i32>, Dict, "", "", "not TCP or UDP", "Source port.";
            dport: Option<i32>, Dict, "", "", "not TCP or UDP", "Destination port.";
            tcp_seq: Option<i64>, Delta, "", "", "not TCP", "Sequence number.";
            tcp_ack: Option<i64>, Delta, "", "", "not TCP", "Acknowledgement number.";
            tcp_flags: Option<i32>, Dict, "code", "", "not TCP", "Flags, FIN = 1.";
            tcp_window: Option<i32>, Delta, "", "", "not TCP", "Window, unscaled.";
            l4_checksum: Option<i32>, Delta, "", "", "no transport header", "Transport checksum; on transmission the kernel may leave it to the device, so it may differ between packet and frame.";
            payload_bytes: Option<i64>, Delta, "bytes", "", "not TCP or UDP", "Transport payload, of the whole unit where offload makes one of many frames.";
            icmp_kind: Option<i32>, Dict, "code", "", "not ICMP", "ICMP or ICMPv6 type.";
            icmp_code: Option<i32>, Dict, "code", "", "not ICMP", "ICMP code.";
            icmp_id: Option<i32>, Dict, "", "", "not ICMP", "Echo identifier, else 0.";
            icmp_seq: Option<i32>, Delta, "", "", "not ICMP", "Echo sequence, else 0.";
            tcp_tsval: Option<i64>, Delta, "", "", "not TCP, or without timestamps", "Value of TCP's timestamps option.";
            tcp_tsecr: Option<i64>, Delta, "", "", "not TCP, or without timestamps", "Value that it echoes.";
            message: Option<String>, Dict, "", "", "nothing beyond the other columns", "What it says, as text: DNS, DHCP, ARP, TCP's other options, what an ICMP message is about. DNS, DHCP and what else is behind the headers is in captures alone.";
        } }
    };
    ($table:ident, $row:ident, $name:literal, $group:literal, $meaning:literal, $order:literal, {
        $($col:ident: $ty:ty, $enc:ident, $unit:literal, $clock:literal, $null:literal, $text:literal;)*
    }) => {
        #[doc = $meaning]
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $row { $(#[doc = $text] pub $col: $ty,)* }

        #[doc = $meaning]
        pub const $table: $crate::tables::Table = $crate::tables::Table {
            name: $name,
            meaning: $meaning,
            order: $order,
            group_rows: $group,
            columns: &[$({
                assert!(<$ty as $crate::batch::Cell>::NULLABLE == !$null.is_empty());
                $crate::tables::Column {
                    name: stringify!($col),
                    ty: <$ty as $crate::batch::Cell>::TYPE,
                    encoding: $crate::tables::Encoding::$enc,
                    unit: $unit,
                    clock: $clock,
                    null: $null,
                    meaning: $text,
                }
            },)*],
        };

        impl $crate::tables::Row for $row {
            const TABLE: &'static $crate::tables::Table = &$table;

            fn put(&self, to: &mut $crate::batch::Batch) {
                let mut columns = to.columns.iter_mut();
                $(if let Some(c) = columns.next() { $crate::batch::Cell::put(&self.$col, c); })*
                to.rows += 1;
            }

            fn put_all(rows: &[Self], to: &mut $crate::batch::Batch) {
                let mut columns = to.columns.iter_mut();
                $(if let Some(c) = columns.next() {
                    <$ty as $crate::batch::Cell>::put_all(rows.iter().map(|r| &r.$col), c);
                })*
                to.rows += rows.len();
            }

            fn get(from: &$crate::batch::Batch, row: usize) -> Self {
                let mut columns = from.columns.iter();
                let absent = $crate::batch::Values::Absent;
                $(let $col = $crate::batch::Cell::get(columns.next().unwrap_or(&absent), row);)*
                $row { $($col,)* }
            }
        }
    };
}
pub(crate) use table;

/// The reference page: every table and column.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Tables of the integrated log\n\nGenerated from `crates/store/src/tables/list.rs`. Integers are signed; times are \
         nanoseconds and name their clock: *boot* is the DUT's `CLOCK_BOOTTIME`, *wall* the wall clock of whoever wrote the \
         capture. Readers ignore columns they do not know.\n",
    );
    for t in ALL.iter().chain(SEVERAL) {
        let _ = write!(out, "\n## `{}`\n\n{}\n\nOrder: {}\n\n", t.name, t.meaning, t.order);
        out.push_str("| Column | Type | Unit | Clock | Null means | Meaning |\n| --- | --- | --- | --- | --- | --- |\n");
        for c in t.columns {
            let ty = match c.ty {
                ColType::I32 => "int32",
                ColType::I64 => "int64",
                ColType::Text => "text",
            };
            let null = if c.nullable() { c.null } else { "never" };
            let meaning = meaning(t.name, c);
            let _ = writeln!(out, "| `{}` | {ty} | {} | {} | {null} | {meaning} |", c.name, c.unit, c.clock);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_documented() {
        let all: Vec<&Table> = ALL.iter().chain(SEVERAL).copied().collect();
        for (i, t) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|u| u.name != t.name), "{} twice", t.name);
            for (k, c) in t.columns.iter().enumerate() {
                assert!(t.columns[..k].iter().all(|d| d.name != c.name), "{}.{} twice", t.name, c.name);
                assert!(!c.meaning.is_empty());
                assert!(c.ty != ColType::Text || c.encoding == Encoding::Dict);
                assert_eq!(
                    c.name.ends_with("_ns") && c.clock.is_empty(),
                    c.unit == "ns" && c.clock.is_empty()
                );
            }
        }
        assert!(markdown().contains("## `association`"));
    }
}
