//! Pages and pictures as files: what stands at their head, and that they were written.

use crate::open::Integrated;
use crate::output::Output;
use anyhow::Context;
use std::path::Path;

/// One line on what the numbers are of.
pub fn about(log: &Integrated) -> String {
    let meta = &log.manifest.log;
    let name = log.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let parts = [name, format!("Linux {}", meta.kernel_release), meta.mechanism.clone()];
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty() && p != "Linux ").collect();
    parts.join(", ")
}

/// Writes a file and says so.
pub fn write(path: &Path, words: &str, out: &Output) -> anyhow::Result<()> {
    std::fs::write(path, words).with_context(|| format!("cannot write {}", path.display()))?;
    out.say(&format!("wrote {}", path.display()));
    Ok(())
}
