//! Pages and pictures that need no other file and no network: light and dark by the reader's setting, and nothing out of a
//! log can become markup. What is on them, the commands know.

use crate::open::Integrated;
use crate::output::Output;
use crate::render::clean;
use anyhow::Context;
use std::path::Path;

/// Colours and text of every picture.
pub const STYLE: &str = "
svg.kpat { --ink: #1b1f24; --faint: #59636e; --page: #ffffff; --line: #d1d9e0; font: 13px system-ui, sans-serif; background: var(--page); }
svg.kpat text { fill: var(--ink); }
svg.kpat .faint { fill: var(--faint); }
svg.kpat .head { font-size: 16px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  svg.kpat { --ink: #e6edf3; --faint: #9198a1; --page: #0d1117; --line: #3d444d; }
}
";

/// As text of XML.
pub fn text(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in clean(raw).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// One line on what the numbers are of.
pub fn about(log: &Integrated) -> String {
    let meta = &log.manifest.log;
    let name = log.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let parts = [name, format!("Linux {}", meta.kernel_release), meta.mechanism.clone()];
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty() && p != "Linux ").collect();
    parts.join(", ")
}

/// A whole SVG document around a drawing.
pub fn svg(drawing: &str) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{drawing}")
}

/// A whole page; `style`: of what is on it, `body`: markup.
pub fn html(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{}</title>\n<style>\n:root {{ color-scheme: light \
         dark; }}\nbody {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 1rem auto; padding: 0 1rem; \
         background: #fff; color: #1b1f24; }}\ntable {{ border-collapse: collapse; margin: .5rem 0 1rem; }}\nth, td {{ \
         text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #8885; font-weight: normal; }}\n\
         thead th {{ color: #59636e; }}\n.n {{ text-align: right; font-variant-numeric: tabular-nums; }}\n@media \
         (prefers-color-scheme: dark) {{ body {{ background: #0d1117; color: #e6edf3; }} thead th {{ color: #9198a1; \
         }} }}\n{style}</style></head><body>\n{body}</body></html>\n",
        text(title),
    )
}

/// Writes a file and says so.
pub fn write(path: &Path, words: &str, out: &Output) -> anyhow::Result<()> {
    std::fs::write(path, words).with_context(|| format!("cannot write {}", path.display()))?;
    out.say(&format!("wrote {}", path.display()));
    Ok(())
}
