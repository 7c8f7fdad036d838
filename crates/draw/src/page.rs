//! Pages: a head, tables, and pictures between them.

use crate::svg::escape;
use std::fmt::Write as _;

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
        escape(title),
    )
}

/// The head of a table: columns of text, then columns of numbers.
pub(crate) fn table(body: &mut String, texts: &[&'static str], numbers: &[&'static str]) {
    body.push_str("<table><thead><tr>");
    texts.iter().for_each(|c| _ = write!(body, "<th>{c}"));
    numbers.iter().for_each(|c| _ = write!(body, "<th class=n>{c}"));
    body.push_str("</tr></thead><tbody>\n");
}

/// A row but for its end: what it is of, which is markup, then text, then numbers.
pub(crate) fn cells(body: &mut String, head: &str, texts: &[&str], numbers: &[String]) {
    let _ = write!(body, "<tr><th scope=row>{head}");
    texts.iter().for_each(|c| _ = write!(body, "<td>{}", escape(c)));
    numbers.iter().for_each(|c| _ = write!(body, "<td class=n>{}", escape(c)));
}

pub(crate) fn row(body: &mut String, head: &str, texts: &[&str], numbers: &[String]) {
    cells(body, head, texts, numbers);
    body.push_str("</tr>\n");
}
