//! The samples of a profile in the formats of profilers: gprof's text, folded stacks, pprof, Perfetto, JSON lines.

mod gprof;
mod perfetto;

use crate::Result;
use crate::names::clean;
use kpat_model::ProcessNumber;
use kpat_query::profile::pid;
use kpat_query::sampled::tree::Context;
use kpat_query::sampled::{Sampled, Weighted};
use serde_json::json;
use std::io::Write;

pub use crate::pprof::sampled::write as pprof;
pub use gprof::{flat, graph};
pub use perfetto::write as perfetto;

/// One line per stack, nanoseconds at its end; the outermost frames are the process that is charged and, where it was in an interrupt, the context.
pub fn folded(s: &Sampled, out: &mut dyn Write) -> Result<()> {
    for w in &s.stacks {
        write!(out, "{}", frame(&served(s, w)))?;
        if let Some(context) = context(w) {
            write!(out, ";[{context}]")?;
        }
        for f in &w.functions {
            write!(out, ";{}", frame(&s.function(*f).label()))?;
        }
        writeln!(out, " {}", w.ns)?;
    }
    Ok(())
}

/// One JSON object per line: a stack.
pub fn json(s: &Sampled, out: &mut dyn Write) -> Result<()> {
    for w in &s.stacks {
        let functions: Vec<_> = w
            .functions
            .iter()
            .map(|f| s.function(*f))
            .map(|f| json!({"process": pid(f.process), "instance": instance(f.process), "kernel": f.is_kernel, "function": f.name, "file": f.file}))
            .collect();
        let line = json!({
            "served": w.served.map(pid), "served_instance": w.served.map(instance), "served_name": w.served.map(|p| s.process_name(p)),
            "victim": w.victim.map(pid), "victim_instance": w.victim.map(instance), "victim_name": w.victim.map(|p| s.process_name(p)), "busy": w.busy.name(), "for": w.purpose.name(),
            "samples": w.samples, "ns": w.ns, "functions": functions,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn instance(number: i32) -> u32 {
    ProcessNumber::from(number).instance()
}

fn frame(text: &str) -> String {
    clean(text).replace(';', ":")
}

/// Whom a stack is charged to, as people call it.
pub(crate) fn served(s: &Sampled, w: &Weighted) -> String {
    match w.served {
        Some(n) => format!("{} {}", s.process_name(n), ProcessNumber::from(n)),
        None => format!("({})", w.purpose.name()),
    }
}

/// Whose time it was, where that is another question.
pub(crate) fn victim(s: &Sampled, w: &Weighted) -> String {
    w.victim.map_or_else(|| "(idle)".into(), |n| format!("{} {}", s.process_name(n), ProcessNumber::from(n)))
}

pub(crate) fn context(w: &Weighted) -> Option<&'static str> {
    Some(Context::of(w.busy)).filter(|c| *c != Context::Task).map(Context::name)
}
