//! Tracepoints of radios: which of the table ([`kpat_model::wifi`]) this kernel has, where their fields are, by the format files of tracefs, and what becomes of
//! what the kernel side copied out of them. A tracepoint or a field that is not here is left out and named.

mod frames;
mod scope;

pub use frames::exchange;
pub use scope::Radios;

use crate::object::{Loaded, MAX_FUNCS};
use crate::{kernel, sys, wire};
use kpat_model::wifi::{GIVEN, Slot, WifiPoint};
use kpat_model::{WifiWhat, meta};
use libbpf_rs::{MapCore, MapFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Numbers in the log: those of functions, tracepoints, crossings and places in programs are below.
const FIRST_NUMBER: usize = MAX_FUNCS + 2048;
/// Switches of frames and carriers are before those of tracepoints.
const FIRST_SWITCH: usize = 2;
/// Tracepoints at most (`KP_MAX_RADIOS`), and fields of each (`KP_RADIO_COPIES`).
const MOST_POINTS: usize = 128;
const MOST_COPIES: usize = 10;

/// Where in the record's data a value is (bpf/include/radio.h).
mod place {
    pub const WIPHY: usize = 0;
    pub const INTERFACE: usize = 32;
    pub const IFINDEX: usize = 48;
    pub const FREQUENCY: usize = 56;
    pub const A: usize = 64;
    pub const B: usize = 72;
    pub const C: usize = 80;
    pub const ADDRESS: usize = 88;
    pub const TEXT: usize = 96;
    pub const MOST_TEXT: usize = 64;
}

/// One tracepoint of this kernel.
pub struct Point {
    pub row: WifiPoint,
    pub function: meta::Function,
    /// Its number in tracefs.
    event: u64,
    number: u32,
    data: wire::RadioPoint,
    /// Of a, b and c: bytes in the event, and whether they have a sign.
    numbers: [(u8, bool); 3],
    /// Which of them has its bytes in the order of the wire.
    wire_order: [bool; 3],
}

/// Those that were found, and those that were not, with the reason.
#[derive(Default)]
pub struct Found {
    pub points: Vec<&'static Point>,
    pub left_out: Vec<(String, String)>,
}

impl Point {
    /// Which of the switches turns it on and off.
    pub fn switch(&self) -> usize {
        usize::from(self.data.mode)
    }

    /// Which of the kernel side's table it is.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its event has nothing that is recorded: a program of its own reads what the tracepoint is given.
    pub fn has_only_given(&self) -> bool {
        self.row.fields.iter().all(|(_, from)| from.starts_with(GIVEN)) && !self.row.fields.is_empty()
    }

    /// What the tracepoint is given says all that its event does: where that is read, the event is not.
    pub fn is_said_by_given(&self) -> bool {
        self.has_only_given() || self.row.what == WifiWhat::AssocFrame
    }
}

/// Looks for the tracepoints of a table.
pub fn find(rows: &[WifiPoint]) -> Found {
    let mut out = Found::default();
    let Some(tracefs) = kernel::tracefs() else {
        out.left_out.push(("tracepoints of radios".into(), "tracefs is not mounted".into()));
        return out;
    };
    for group in ["cfg80211", "mac80211"] {
        if !std::path::Path::new(&format!("{tracefs}/events/{group}")).exists() {
            let why = "the module is not loaded, or the kernel has no such events";
            out.left_out.push((format!("tracepoints of {group}"), why.into()));
        }
    }
    let there = |r: &&WifiPoint| !out.left_out.iter().any(|(name, _)| name.ends_with(&r.group));
    let rows: Vec<&WifiPoint> = rows.iter().filter(there).collect();
    for row in rows {
        let folder = format!("{tracefs}/events/{}/{}", row.group, row.name);
        let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}"));
        let found = read("id").and_then(|id| {
            let id = id.trim().parse().map_err(io::Error::other)?;
            Ok((id, read("format")?))
        });
        match found {
            Ok((event, format)) if out.points.len() < MOST_POINTS => {
                out.points.push(Box::leak(Box::new(point(row, event, &format, out.points.len()))));
            }
            Ok(_) => out.left_out.push((row.name.clone(), format!("more than {MOST_POINTS} tracepoints"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let name = format!("{}:{}", row.group, row.name);
                out.left_out.push((name, "this kernel has no such tracepoint".into()));
            }
            Err(e) => out.left_out.push((row.name.clone(), e.to_string())),
        }
    }
    out
}

/// A field of a tracepoint's event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    offset: u16,
    size: u16,
    signed: bool,
    dynamic: bool,
    /// Its bytes are in the order of the wire: an address, or a number that is declared so.
    wire: bool,
}

/// The fields of a format file.
fn fields(format: &str) -> Vec<Field> {
    let field = |line: &str| {
        let mut parts = line.trim().split(';').map(str::trim);
        let declared = parts.next()?.strip_prefix("field:")?;
        let mut numbers = parts.filter_map(|p| p.split_once(':')).filter_map(|(k, v)| {
            let v: u16 = v.parse().ok()?;
            Some((k.to_owned(), v))
        });
        let mut find = |key: &str| numbers.find(|(k, _)| k == key).map(|(_, v)| v);
        let (offset, size) = (find("offset")?, find("size")?);
        let signed = find("signed") == Some(1);
        let dynamic = declared.starts_with("__data_loc");
        let wire = declared.ends_with(']') || declared.starts_with("__be");
        let name = declared.rsplit(' ').next()?.split('[').next()?.trim_start_matches('*').to_owned();
        Some(Field { name, offset, size, signed, dynamic, wire })
    };
    format.lines().filter_map(field).collect()
}

fn point(row: &WifiPoint, event: u64, format: &str, at: usize) -> Point {
    let fields = fields(format);
    let find = |name: &str| fields.iter().find(|f| f.name == name);
    let none = wire::RadioCopy { from: 0, to: 0, size: 0, dynamic: 0, pad: [0; 3] };
    let mut copies = Vec::new();
    let mut copy = |f: &Field, to: usize, most: usize| {
        let size = if f.dynamic { most } else { most.min(f.size.into()) } as u8;
        copies.push(wire::RadioCopy {
            from: f.offset,
            to: to as u8,
            size,
            dynamic: f.dynamic.into(),
            ..none
        });
    };
    for (name, to, most) in [
        ("wiphy_name", place::WIPHY, 32),
        ("name", place::INTERFACE, 16),
        ("vif_name", place::INTERFACE, 16),
        ("ifindex", place::IFINDEX, 4),
    ] {
        if let Some(f) = find(name) {
            copy(f, to, most);
        }
    }
    let (mut numbers, mut wire_order) = ([(8, false); 3], [false; 3]);
    let mut filled = Vec::new();
    for (slot, name) in &row.fields {
        let Some(f) = find(name).filter(|_| !filled.contains(slot)) else { continue };
        filled.push(*slot);
        let mut number = |n: usize| {
            numbers[n] = (f.size.min(8) as u8, f.signed);
            wire_order[n] = f.wire;
        };
        match slot {
            Slot::Address => copy(f, place::ADDRESS, 6),
            Slot::Frequency => copy(f, place::FREQUENCY, 4),
            Slot::A => {
                number(0);
                copy(f, place::A, 8);
            }
            Slot::B => {
                number(1);
                copy(f, place::B, 8);
            }
            Slot::C => {
                number(2);
                copy(f, place::C, 8);
            }
            Slot::Text | Slot::Frame => copy(f, place::TEXT, place::MOST_TEXT),
        }
    }
    copies.truncate(MOST_COPIES);
    copies.resize(MOST_COPIES, none);
    let (id, mode) = ((FIRST_NUMBER + at) as u16, (FIRST_SWITCH + at) as u16);
    let mut all = [none; MOST_COPIES];
    all.copy_from_slice(&copies);
    Point {
        row: row.clone(),
        function: meta::Function {
            id,
            name: format!("{}:{}", row.group, row.name),
            module: row.group.clone(),
            kind: "wifi".into(),
            addr: 0,
            layer: String::new(),
            via: row.line.clone(),
            mechanism: String::new(),
            entry_only: false,
        },
        event,
        number: at as u32,
        data: wire::RadioPoint { id, mode, pad: 0, copy: all },
        numbers,
        wire_order,
    }
}

/// Gives the kernel side what it has to know of each tracepoint.
pub fn configure(loaded: &Loaded, points: &[&Point]) -> io::Result<()> {
    let Some(map) = loaded.map("radio_points") else { return Ok(()) };
    for p in points {
        // SAFETY: the structure is plain data without padding (its parts fill it: radio.h), read as bytes of its own size.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const p.data).cast::<u8>(), size_of::<wire::RadioPoint>())
        };
        map.update(&p.number.to_ne_bytes(), bytes, MapFlags::ANY).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Puts the program on a tracepoint.
pub fn attach(loaded: &Loaded, program: &str, p: &Point) -> io::Result<OwnedFd> {
    let program = loaded.program(program).ok_or_else(|| io::Error::other("its program is not loaded"))?;
    let event = sys::perf_tracepoint(p.event)?;
    sys::link_perf(program, event.as_fd(), p.number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: cfg80211_rx_mlme_mgmt
ID: 1800
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:char name[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:int ifindex;\toffset:24;\tsize:4;\tsigned:1;
\tfield:__data_loc u8[] frame;\toffset:28;\tsize:4;\tsigned:0;
\tfield:u8 bssid[6];\toffset:32;\tsize:6;\tsigned:0;
\tfield:bool aborted;\toffset:38;\tsize:1;\tsigned:0;

print fmt: \"netdev:%s(%d), ftype:0x%.2x\", REC->name
";

    #[test]
    fn fields_are_where_the_format_says() {
        let all = fields(FORMAT);
        let names: Vec<&str> = all.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["common_type", "name", "ifindex", "frame", "bssid", "aborted"]);
        assert!(all[3].dynamic && all[3].offset == 28);
        assert!(all[2].signed && !all[5].signed && all[4].wire);
    }

    #[test]
    fn a_row_takes_the_first_field_that_is_there() {
        let row =
            WifiPoint::parse("g:x frame-received frame=buf,frame a=aborted address=ap_addr,bssid").unwrap();
        let p = point(&row, 7, FORMAT, 3);
        let copies: Vec<(u16, u8, u8)> =
            p.data.copy.iter().filter(|c| c.size > 0).map(|c| (c.from, c.to, c.size)).collect();
        assert_eq!(copies, [(8, 32, 16), (24, 48, 4), (28, 96, 64), (38, 64, 1), (32, 88, 6)]);
        assert_eq!((p.data.id, p.data.mode, p.numbers[0]), ((FIRST_NUMBER + 3) as u16, 5, (1, false)));
    }
}
