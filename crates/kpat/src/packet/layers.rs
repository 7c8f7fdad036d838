//! The header fields of a packet, layer by layer, and how they change.

use crate::render::{Line, Style, count, wrap};
pub use kpat_query::layers::{Layer, matched, of_footprint};
use kpat_store::tables::{FootprintRow, FrameRow};
use serde_json::{Map, Value, json};

/// The layers as a small tree; a field that a wire frame was recognised by has a check mark.
pub fn draw(layers: &[Layer], matched: &[&str], width: usize) -> Vec<Line> {
    let names = layers.iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        let last = i + 1 == layers.len();
        let mut text = Line::new();
        for field in &layer.fields {
            // No-break spaces keep a field in one piece when the line is broken.
            let hard = |s: &str| s.replace(' ', "\u{a0}");
            if text.width() > 0 {
                text.push("  ", Style::Plain);
            }
            if !field.label.is_empty() {
                text.push(hard(field.label) + "\u{a0}", Style::Faint);
            }
            if matched.contains(&field.id) {
                text.push(hard(&field.text) + "\u{a0}✓", Style::Good);
            } else {
                text.push(hard(&field.text), Style::Plain);
            }
        }
        let room = if width == 0 { usize::MAX } else { width.saturating_sub(names + 5).max(20) };
        for (k, part) in wrap(&text, room).into_iter().enumerate() {
            let branch = match (k, last) {
                (0, true) => "└─ ",
                (0, false) => "├─ ",
                (_, true) => "   ",
                (_, false) => "│  ",
            };
            let mut line = Line::of(branch, Style::Faint)
                .put(if k == 0 { &layer.name } else { "" }, Style::Strong)
                .pad_to(names + 5);
            for (text, style) in part.spans() {
                line.push(text, style);
            }
            lines.push(line);
        }
    }
    lines
}

/// What changed from one footprint to the next. `device`: name of an interface.
pub fn changes(
    before: &FootprintRow,
    after: &FootprintRow,
    device: &dyn Fn(&FootprintRow) -> String,
) -> Vec<String> {
    let mut out = Vec::new();
    let (a, b) = (device(before), device(after));
    if a != b && !b.is_empty() {
        out.push(if a.is_empty() { format!("device {b}") } else { format!("device {a} → {b}") });
    }
    if before.len_bytes != after.len_bytes {
        let n = |n: i64| count(n.unsigned_abs());
        out.push(format!("{} → {} B", n(before.len_bytes), n(after.len_bytes)));
    }
    if before.gso_segs != after.gso_segs {
        out.push(match (after.gso_segs, after.gso_size) {
            (Some(n), Some(size)) => format!("{n} segments of {size} B"),
            _ => "no segmentation".to_owned(),
        });
    }
    let (old, new) = (of_footprint(before), of_footprint(after));
    let in_old = |id: &str| old.iter().flat_map(|l| &l.fields).find(|f| f.id == id);
    // Addresses of the link change at every hop; what else changed comes first.
    let (link, rest): (Vec<&Layer>, Vec<&Layer>) =
        new.iter().partition(|l| l.name == "link" || l.name == "802.11");
    for layer in rest.into_iter().chain(link) {
        for field in &layer.fields {
            let what = if field.label.is_empty() { String::new() } else { format!(" {}", field.label) };
            match in_old(field.id) {
                Some(was) if was.text != field.text => {
                    out.push(format!("{}{what} {} → {}", layer.name, was.text, field.text));
                }
                _ => {}
            }
        }
    }
    let names = |l: &[Layer]| l.iter().map(|l| l.name.clone()).collect::<Vec<_>>();
    let (old, new) = (names(&old), names(&new));
    out.extend(new.iter().filter(|n| !old.contains(n)).map(|n| format!("{n} header there")));
    out.extend(old.iter().filter(|n| !new.contains(n)).map(|n| format!("{n} header gone")));
    out
}

macro_rules! json_of {
    ($name:ident, $row:ty) => {
        /// Layer columns under their own names; what is not there is left out.
        pub fn $name(r: &$row) -> Value {
            let mut map = Map::new();
            json_of!(@ map, r, mac_src mac_dst ethertype vlan vlan_inner wifi_fc wifi_ra wifi_ta wifi_seq ip_src ip_dst
                ip_id ip_proto ttl ip_len frag_offset more_frags arp_op sport dport tcp_seq tcp_ack tcp_flags
                tcp_window l4_checksum payload_bytes icmp_kind icmp_code icmp_id icmp_seq
                tcp_tsval tcp_tsecr message);
            Value::Object(map)
        }
    };
    (@ $map:ident, $r:ident, $($field:ident)*) => {
        $(if let Some(value) = &$r.$field { $map.insert(stringify!($field).to_owned(), json!(value)); })*
    };
}

json_of!(footprint_json, FootprintRow);
json_of!(frame_json, FrameRow);
