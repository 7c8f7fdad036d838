//! What could be written at a place of a filter.

use super::fields::{FIELDS, Field};
use super::token::{Sign, Token, What, tokens};
use super::tree::Kind;
use crate::entry::Names;
use crate::owners::{Name, Owner};
use crate::store::Store;
use kpat_store::tables::SocketRow;

/// Proposals for the bytes `from..to` of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    pub from: usize,
    pub to: usize,
    pub items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub text: String,
    pub words: String,
}

/// Proposals at most.
const MOST: usize = 40;

fn item(text: impl Into<String>, words: impl Into<String>) -> Item {
    Item { text: text.into(), words: words.into() }
}

/// `at`: byte of the cursor.
pub fn complete(store: &Store, names: &Names, text: &str, at: usize) -> Completion {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    // A quote that is not closed yet: what it holds is not ours to propose.
    let Ok(mut before) = tokens(&text[..at]) else {
        return Completion { from: at, to: at, items: Vec::new() };
    };
    let part = match before.last() {
        Some(Token { what: What::Word(w), at: place }) if place.end == at => {
            let part = (w.clone(), place.start);
            before.pop();
            part
        }
        _ => (String::new(), at),
    };
    let to = text[at..]
        .find(|c: char| c.is_whitespace() || "(){},<>=!&|\"'".contains(c))
        .map_or(text.len(), |n| at + n);
    let mut items = match asked(&before) {
        Asked::Condition => conditions(),
        // A value may stand beside its field.
        Asked::Sign(field) => signs(field).into_iter().chain(values(store, names, field)).collect(),
        Asked::Value(field) => values(store, names, field),
    };
    items.retain(|i| i.text != part.0);
    let rank = |i: &Item| (!i.text.starts_with(&part.0), !i.text.contains(&part.0));
    items.retain(|i| i.text.to_lowercase().contains(&part.0.to_lowercase()));
    items.sort_by_key(rank);
    items.truncate(MOST);
    Completion { from: part.1, to, items }
}

enum Asked {
    Condition,
    Sign(&'static Field),
    Value(&'static Field),
}

fn asked(before: &[Token]) -> Asked {
    let field = |t: Option<&Token>| match t {
        Some(Token { what: What::Word(w), .. }) => {
            Field::find(w).map(|i| &FIELDS[i]).filter(|f| f.kind != Kind::Flag)
        }
        _ => None,
    };
    let compares = |t: &Token| match &t.what {
        What::Sign(s) => matches!(
            s,
            Sign::Equal | Sign::NotEqual | Sign::Less | Sign::LessEqual | Sign::More | Sign::MoreEqual
        ),
        What::Word(w) => ["contains", "matches"].contains(&w.as_str()),
        What::Quoted(_) => false,
    };
    // Within braces the field stands before `in`.
    if let Some(open) = before.iter().rposition(|t| t.what == What::Sign(Sign::SetOpen))
        && !before[open..].iter().any(|t| t.what == What::Sign(Sign::SetClose))
        && open >= 2
        && let Some(f) = field(before.get(open - 2))
    {
        return Asked::Value(f);
    }
    match before {
        [.., f, sign] if compares(sign) => field(Some(f)).map_or(Asked::Condition, Asked::Value),
        // `port 80`: 80 is its value, not a field.
        [.., f] => field(Some(f)).map_or(Asked::Condition, Asked::Sign),
        [] => Asked::Condition,
    }
}

/// What a condition may begin with.
pub fn conditions() -> Vec<Item> {
    let mut items: Vec<Item> = FIELDS.iter().map(|f| item(f.name, f.words)).collect();
    items.push(item("not", "the opposite"));
    items.push(item("and", "both; may be left out"));
    items.push(item("or", "one of both"));
    items
}

fn signs(field: &Field) -> Vec<Item> {
    let mut items =
        vec![item("==", "is"), item("!=", "is there and is not"), item("in", "is one of { ... }")];
    match field.kind {
        Kind::Number | Kind::Duration => {
            items.extend(
                [(">", "more than"), (">=", "at least"), ("<", "less than"), ("<=", "at most")]
                    .map(|(sign, words)| item(sign, words)),
            );
        }
        Kind::Text => {
            items.push(item("contains", "has this text in it, whatever the case"));
            items.push(item("matches", "fits this pattern: * any text, ? one character"));
        }
        _ => {}
    }
    items.push(item("and", "both"));
    items.push(item("or", "one of both"));
    items
}

fn values(store: &Store, names: &Names, field: &Field) -> Vec<Item> {
    let quoted = |text: &str| {
        let plain = text.chars().all(|c| c.is_alphanumeric() || "_-.:/@*".contains(c)) && !text.is_empty();
        if plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "?")) }
    };
    let of = |texts: &[String], words: &str| -> Vec<Item> {
        let mut texts: Vec<&String> = texts.iter().filter(|t| !t.is_empty()).collect();
        texts.sort_unstable();
        texts.dedup();
        texts.into_iter().map(|t| item(quoted(t), words)).collect()
    };
    match field.name {
        "func" => {
            let mut rows: Vec<_> = store.functions.iter().filter(|f| f.calls > 0).collect();
            rows.sort_by_key(|f| -f.calls);
            rows.iter().map(|f| item(quoted(&f.name), format!("{} calls", f.calls))).collect()
        }
        "process" | "writer" | "reader" => of(&names.processes, "process"),
        "user" | "cgroup" | "unit" | "container" | "pod" => {
            let asked = match field.name {
                "user" => Name::User,
                "cgroup" => Name::Cgroup,
                "unit" => Name::Unit,
                "container" => Name::Container,
                _ => Name::Pod,
            };
            let name = |o: &Owner| o.names(asked).into_iter().flatten().next();
            of(&store.all_owners().iter().filter_map(name).collect::<Vec<_>>(), field.name)
        }
        "socket" => {
            // A list of values, not worth a refusal.
            let sockets: Vec<SocketRow> = store.all().unwrap_or_default();
            let mut all: Vec<(i64, &SocketRow)> = sockets.iter().map(|s| (s.socket_id, s)).collect();
            all.sort_by_key(|(n, s)| (std::cmp::Reverse(s.sent_bytes + s.received_bytes), *n));
            let whose =
                |s: &SocketRow| s.pid.and_then(|pid| store.process(pid, s.last_ns)).map(|p| p.comm.clone());
            all.iter().map(|(n, s)| item(n.to_string(), whose(s).unwrap_or_default())).collect()
        }
        "if_in" | "if_out" | "interface" => of(&names.devices, "interface"),
        "capture" => of(&names.captures, "capture"),
        "drop" => {
            let mut reasons: Vec<String> = store.drop_reasons.values().cloned().collect();
            reasons.sort_unstable();
            of(&reasons, "drop reason")
        }
        _ if field.kind == Kind::Duration => {
            ["10us", "100us", "1ms", "10ms", "1s"].map(|t| item(t, "")).into()
        }
        _ => field.values().into_iter().map(|v| item(v, "")).collect(),
    }
}
