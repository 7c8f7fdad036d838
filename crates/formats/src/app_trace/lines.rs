//! What stands in the lines. One declaration for writing and reading.

use serde::{Deserialize, Serialize};

/// Another meaning of what is there is another version; a new field is not.
pub const FORMAT_VERSION: u32 = 1;

/// A call of the kernel moves no more (MAX_RW_COUNT, include/linux/fs.h, with pages of 4 KiB).
pub const MOST_BYTES: i64 = 0x7fff_f000;

/// The first line.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Header {
    /// The version, and by its name what this file is.
    pub kpat_app_trace: u32,
    pub time_unit: String,
    pub size_unit: String,
    pub clock: String,
    /// `application`: as written; `network`: as handed to the driver.
    pub layer: String,
    pub source: Source,
    /// Events that are missing in the source; 0: none.
    pub events_lost: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Source {
    pub log: String,
    pub host: String,
    pub kernel: String,
    pub writer: String,
    pub started_wall_ns: i64,
}

/// One of a connection's ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct EndLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
    pub port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<i64>,
    /// `written`, or `read`: from what the other end read.
    pub seen: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct ConnectionLine {
    pub connection: i64,
    /// First write, since the first of the trace.
    pub at: i64,
    /// `tcp`, `udp`, or the number.
    pub proto: String,
    pub ip: i32,
    pub a: EndLine,
    pub b: EndLine,
}

/// A write; names are short because most lines are these.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct WriteLine {
    /// Connection.
    pub c: i64,
    /// `a` or `b`.
    pub s: char,
    /// Since the connection's first write.
    pub t: i64,
    pub n: i64,
    /// All bytes read before, where that is more than before this end's last write.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r: Option<i64>,
    /// And how long ago the last of these reads was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct GapLine {
    pub t: i64,
    pub until: i64,
    pub lost: i64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Sums {
    pub connections: i64,
    pub writes: i64,
    pub bytes: i64,
    pub lost: i64,
}
