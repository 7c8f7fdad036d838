//! The files of the page, which are part of the program.

mod built {
    include!(concat!(env!("OUT_DIR"), "/page.rs"));
}

const WITHOUT: &[u8] = b"<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>kpat</title>\
    <body><h1>kpat view</h1><p>This kpat was built without its page; build it with <code>make ui</code> and build kpat again.</p>";

/// A file and its type, by the path of a request.
pub fn file(path: &str) -> Option<(&'static [u8], &'static str)> {
    let name = if path == "/" { "index.html" } else { path.strip_prefix('/')? };
    if built::FILES.is_empty() && name == "index.html" {
        return Some((WITHOUT, "text/html; charset=utf-8"));
    }
    let (name, content) = built::FILES.iter().find(|f| f.0 == name)?;
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("json" | "webmanifest") => "application/json",
        _ => "application/octet-stream",
    };
    Some((content, kind))
}

/// Is the page in the program?
pub fn is_built() -> bool {
    !built::FILES.is_empty()
}
