//! A filter's text as words and signs, each with its place.

use super::FilterError;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Open,
    Close,
    SetOpen,
    SetClose,
    Comma,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    More,
    MoreEqual,
    And,
    Or,
    Not,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Word(String),
    Quoted(String),
    Sign(Sign),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub what: What,
    /// Bytes of the text.
    pub at: Range<usize>,
}

const SIGNS: [(&str, Sign); 15] = [
    ("==", Sign::Equal),
    ("!=", Sign::NotEqual),
    ("<=", Sign::LessEqual),
    (">=", Sign::MoreEqual),
    ("&&", Sign::And),
    ("||", Sign::Or),
    ("<", Sign::Less),
    (">", Sign::More),
    ("=", Sign::Equal),
    ("!", Sign::Not),
    ("(", Sign::Open),
    (")", Sign::Close),
    ("{", Sign::SetOpen),
    ("}", Sign::SetClose),
    (",", Sign::Comma),
];

/// Errors: a quote that is not closed.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, FilterError> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if c.is_whitespace() {
            at += c.len_utf8();
        } else if c == '"' || c == '\'' {
            let Some(len) = rest[1..].find(c) else {
                return Err(FilterError::new(format!("the {c} is not closed"), at..text.len()));
            };
            out.push(Token { what: What::Quoted(rest[1..=len].to_owned()), at: at..at + len + 2 });
            at += len + 2;
        } else if let Some((sign, kind)) = SIGNS.iter().find(|s| rest.starts_with(s.0)) {
            out.push(Token { what: What::Sign(*kind), at: at..at + sign.len() });
            at += sign.len();
        } else {
            let ends = |c: char| c.is_whitespace() || "(){},<>=!\"'".contains(c);
            let mut len = rest.find(ends).unwrap_or(rest.len());
            for double in ["&&", "||"] {
                len = rest.find(double).unwrap_or(len).min(len);
            }
            out.push(Token { what: What::Word(rest[..len].to_owned()), at: at..at + len });
            at += len;
        }
    }
    Ok(out)
}
