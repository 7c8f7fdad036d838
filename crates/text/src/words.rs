//! Words that somebody else chose: no character of them moves a terminal or the text around it.

use std::fmt::Write as _;

/// Control characters, C1 among them, and what turns the direction of text around or has no width.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Control characters made visible; line ends become spaces.
pub fn clean(text: &str) -> String {
    if !text.contains(is_hidden) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c if is_hidden(c) => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// At most `most` characters; what is too long loses its middle, since names differ at both ends.
pub fn shorten(text: &str, most: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= most {
        return text.to_owned();
    }
    if most == 0 {
        return String::new();
    }
    let front = most / 2;
    let back = most - 1 - front;
    chars[..front].iter().chain(['…'].iter()).chain(&chars[chars.len() - back..]).collect()
}

/// As the first word of a line.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_goes() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdef", 5), "ab…ef");
        assert_eq!(shorten("abcdef", 1), "…");
        assert_eq!(shorten("abcdef", 0), "");
    }

    #[test]
    fn what_is_hidden_is_shown() {
        assert_eq!(clean("x\u{1b}]0;pwn\u{7}\n\u{202e}y"), "x\\x1b]0;pwn\\x07 \\x202ey");
    }
}
