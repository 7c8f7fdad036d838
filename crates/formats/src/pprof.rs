//! pprof's profile.proto, gzip: stacks of functions with calls and times, for `go tool pprof` and what else reads it.
//!
//! The messages are written down here, numbers and names as in pprof's profile.proto; only what is written is here.

pub(crate) mod sampled;

use crate::names::{Names, clean, context};
use crate::stacks::Stacks;
use crate::{Counts, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use kpat_query::Parts;
use kpat_query::Store;
use kpat_query::trace::Chosen;
use prost::Message;
use std::collections::HashMap;
use std::io::Write;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<LineOf>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LineOf {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[derive(Default)]
struct Strings {
    all: Vec<String>,
    known: HashMap<String, i64>,
}

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        if self.all.is_empty() {
            self.all.push(String::new());
            self.known.insert(String::new(), 0);
        }
        if let Some(i) = self.known.get(text) {
            return *i;
        }
        let i = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), i);
        i
    }
}

/// Sample types: `calls`, `self`, `irq` (interrupts within) and `total`, which is entry to return and only to be read flat:
/// a caller's total has its callees' in it. The context is the label `context`, the module is the mapping, the layer stands
/// where pprof expects a file.
pub fn write(store: &Store, chosen: &Chosen, out: &mut dyn Write, progress: Parts<'_>) -> Result<Counts> {
    let names = Names::of(store)?;
    let stacks = Stacks::gather(store, chosen, progress)?;
    let mut strings = Strings::default();
    let mut of = |t: &str| strings.of(t);
    of("");
    let ns = of("nanoseconds");
    let mut profile = Profile {
        sample_type: vec![
            ValueType { r#type: of("calls"), unit: of("count") },
            ValueType { r#type: of("self"), unit: ns },
            ValueType { r#type: of("irq"), unit: ns },
            ValueType { r#type: of("total"), unit: ns },
        ],
        time_nanos: store.manifest().log.started.wall.0,
        duration_nanos: store.manifest().last_ns.saturating_sub(store.manifest().first_ns),
        comment: vec![of(
            "kpat: calls and times by the functions that enclose them; read total flat, not cumulated",
        )],
        default_sample_type: of("self"),
        ..Profile::default()
    };
    let key = of("context");
    let mut mappings: HashMap<String, u64> = HashMap::new();
    // pprof's own rule is that the first mapping is the main program.
    for f in names.functions() {
        let module = names.module(f.func_id).to_owned();
        let next = mappings.len() as u64 + 1;
        let mapping_id = *mappings.entry(module.clone()).or_insert_with(|| {
            profile.mapping.push(Mapping { id: next, filename: of(&clean(&module)), has_functions: true });
            next
        });
        let id = number(f.func_id);
        let name = of(&clean(&f.name));
        profile.function.push(Function { id, name, system_name: name, filename: of(&f.layer) });
        profile.location.push(Location { id, mapping_id, line: vec![LineOf { function_id: id }] });
    }
    let sorted = stacks.sorted(&names);
    // Calls of functions that the log does not name.
    let unknown = u64::from(u32::MAX);
    let id_of = |f: i32| if names.function(f).is_some() { number(f) } else { unknown };
    if sorted.iter().any(|s| s.functions.iter().any(|f| names.function(*f).is_none())) {
        let name = of("?");
        profile.function.push(Function { id: unknown, name, system_name: name, filename: 0 });
        profile.location.push(Location {
            id: unknown,
            mapping_id: 0,
            line: vec![LineOf { function_id: unknown }],
        });
    }
    for s in sorted {
        profile.sample.push(Sample {
            location_id: s.functions.iter().rev().map(|f| id_of(*f)).collect(),
            value: vec![s.sums.calls, s.sums.self_ns, s.sums.irq_ns, s.sums.total_ns],
            label: vec![Label { key, str: of(context(s.context)) }],
        });
    }
    profile.string_table = strings.all;
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&profile.encode_to_vec())?;
    gz.finish()?;
    Ok(stacks.counts)
}

/// Ids begin at 1.
fn number(func_id: i32) -> u64 {
    u64::try_from(func_id).unwrap_or(0) + 1
}
