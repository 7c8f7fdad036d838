//! Text that somebody else chose (names of tasks, devices, functions, files), made fit to be shown: no character moves a
//! terminal or the text around it, ends a line or a cell, or is calculated by a spreadsheet.

pub use kpat_text::is_hidden;
use std::io::{self, Write};

/// Hidden characters as `\x1b`.
pub fn clean(text: &str) -> String {
    if !text.contains(is_hidden) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| if is_hidden(c) { format!("\\x{:02x}", u32::from(c)) } else { c.to_string() })
        .collect()
}

/// Text of a tab separated cell. What a spreadsheet would take for a formula gets an apostrophe, which those take for "this
/// is text"; a number is none.
pub fn cell(text: &str) -> String {
    let text = clean(text);
    let begins = text.trim_start().chars().next();
    let formula = begins.is_some_and(|c| matches!(c, '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠'));
    if formula && text.parse::<f64>().is_err() { format!("'{text}") } else { text }
}

/// JSON on its way out: hidden characters, which JSON allows in strings, become `\u....`; the value stays the same.
///
/// Whoever writes to it gives whole characters at a time, as serde does.
pub struct PlainJson<W>(pub W);

impl<W: Write> Write for PlainJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Line ends and blanks stand between values; all hidden characters begin with one of these bytes.
        let odd = |b: &u8| *b == 0x7f || matches!(b, 0xc2 | 0xe2 | 0xef);
        if !bytes.iter().any(odd) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.write_all(plain_json(text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The same of JSON text that is there already.
pub fn plain_json(text: &str) -> String {
    let odd = |c: char| !c.is_ascii_control() && is_hidden(c) || c == '\u{7f}';
    if !text.contains(odd) {
        return text.to_owned();
    }
    text.chars().map(|c| if odd(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_and_numbers_stay_numbers() {
        for (text, shown) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1+1", "'+1+1"),
            ("-bash", "'-bash"),
            ("@SUM(A1)", "'@SUM(A1)"),
            (" =1+1", "' =1+1"),
            ("＝1+1", "'＝1+1"),
            ("\t=1", "\\x09=1"),
            ("a\tb\nc\r", "a\\x09b\\x0ac\\x0d"),
            ("\u{1b}]0;x\u{7}", "\\x1b]0;x\\x07"),
            ("\u{9b}31m\u{202e}", "\\x9b31m\\x202e"),
            ("-12", "-12"),
            ("+3.5", "+3.5"),
            ("swapper/0", "swapper/0"),
            ("", ""),
        ] {
            assert_eq!(cell(text), shown);
        }
    }

    #[test]
    fn json_stays_what_it_is() {
        let value = serde_json::json!({"a\u{9b}": "\u{1b}[31m \u{85} \u{7f} \u{202e} \u{feff} → é \u{2066}\n", "n": [1, null]});
        let mut out = Vec::new();
        serde_json::to_writer_pretty(PlainJson(&mut out), &value).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.chars().any(|c| is_hidden(c) && c != '\n'), "{text:?}");
        assert!(text.contains("→ é"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert_eq!(plain_json(&serde_json::to_string_pretty(&value).unwrap()), text);
    }
}
