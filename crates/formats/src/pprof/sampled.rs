//! Samples of a profile: types `samples` and `cpu`, with whom each served, whose time it was and in what context as labels.

use super::{Function, Label, LineOf, Location, Mapping, Profile, Sample, Strings, ValueType};
use crate::Result;
use crate::names::clean;
use crate::sampled::{context, served, victim};
use flate2::Compression;
use flate2::write::GzEncoder;
use kpat_query::Store;
use kpat_query::sampled::Sampled;
use prost::Message;
use std::collections::HashMap;
use std::io::Write;

/// Labels: `served`, `victim` (only where it is somebody else's time), `context`.
pub fn write(store: &Store, s: &Sampled, out: &mut dyn Write) -> Result<()> {
    let mut strings = Strings::default();
    let mut of = |t: &str| strings.of(&clean(t));
    of("");
    let (cpu, ns) = (of("cpu"), of("nanoseconds"));
    let mut profile = Profile {
        sample_type: vec![
            ValueType { r#type: of("samples"), unit: of("count") },
            ValueType { r#type: cpu, unit: ns },
        ],
        period_type: Some(ValueType { r#type: cpu, unit: ns }),
        period: s.period_ns,
        time_nanos: store.manifest().log.started.wall.0,
        duration_nanos: store.manifest().last_ns.saturating_sub(store.manifest().first_ns),
        default_sample_type: cpu,
        ..Profile::default()
    };
    let mut mappings: HashMap<&str, u64> = HashMap::new();
    for (f, id) in s.functions.iter().zip(1..) {
        let file = if f.file.is_empty() { "[made at run time]" } else { &f.file };
        let next = mappings.len() as u64 + 1;
        let mapping_id = *mappings.entry(file).or_insert_with(|| {
            profile.mapping.push(Mapping { id: next, filename: of(file), has_functions: true });
            next
        });
        let (name, system_name) = (of(&f.label()), of(&f.name));
        profile.function.push(Function { id, name, system_name, filename: of(file) });
        profile.location.push(Location { id, mapping_id, line: vec![LineOf { function_id: id }] });
    }
    for w in &s.stacks {
        let mut label = vec![Label { key: of("served"), str: of(&served(s, w)) }];
        if w.victim != w.served {
            label.push(Label { key: of("victim"), str: of(&victim(s, w)) });
        }
        label.push(Label { key: of("context"), str: of(context(w).unwrap_or("task")) });
        profile.sample.push(Sample {
            location_id: w.functions.iter().rev().map(|f| u64::from(*f) + 1).collect(),
            value: vec![w.samples, w.ns],
            label,
        });
    }
    profile.string_table = strings.all;
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&profile.encode_to_vec())?;
    gz.finish()?;
    Ok(())
}
