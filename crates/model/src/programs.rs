//! What programs themselves say of their work: a table of places in programs (functions and USDT probes), what is read there and what it means.
//! The recorder attaches by it, and the log has each row, so that whoever integrates knows the meaning of the values.

mod names;

use crate::codes::{Code, code_type};
use crate::functions::glob;
use crate::ids::{BootNs, FuncId};
use names::Names;
pub use names::Words;
use std::fmt::Write;

/// The rows that kpat has itself.
pub const BUILT_IN: &str = include_str!("programs.txt");

/// Values of a record that are not text; there is one text.
pub const VALUES: usize = 4;
/// Arguments of a row.
pub const ARGUMENTS: usize = 6;

code_type! {
    /// What a hit of a place means.
    Stage {
        Mark = 0, "mark", "Something happened.", "";
        Begin = 1, "begin", "Something begins.", "";
        End = 2, "end", "What had begun is over.", "";
    }
}

/// A place in a program was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRecord {
    pub at: BootNs,
    /// Thread.
    pub pid: u32,
    /// Which place: the log's table of functions has the row.
    pub func: FuncId,
    pub stage: Stage,
    /// A bit for each value, and behind them one for the text, that could not be read.
    pub faults: u8,
    pub values: [u64; VALUES],
    pub text: String,
}

impl ProgramRecord {
    pub const TEXT_FAULT: u8 = 1 << VALUES;
}

/// Where in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Function(String),
    /// Provider and name.
    Usdt(String, String),
    /// In the file.
    Offset(u64),
}

/// What the place is to what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The entry of the function is the beginning, its return the end.
    Span,
    At(Stage),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// From 1 on.
    Argument(u8),
    Return,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number {
        bytes: u8,
        signed: bool,
    },
    Hex,
    /// A descriptor. Its value has above its 32 bits, if it is a socket of IP, the local port and the peer's.
    Descriptor,
    /// The object that it is about. Tells what begins from what else begins in the same thread, and need not end there.
    Key,
    /// Up to its zero, or of the length that this argument has.
    Text {
        length: Option<u8>,
    },
}

impl Kind {
    pub fn bytes(self) -> u8 {
        match self {
            Kind::Number { bytes, .. } => bytes,
            Kind::Descriptor => 4,
            Kind::Hex | Kind::Key | Kind::Text { .. } => 8,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Kind::Descriptor | Kind::Number { signed: true, .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub from: From,
    /// What it is from is an address; the value lies so many bytes behind it, or behind the address that lies there.
    pub offsets: Vec<i64>,
    pub kind: Kind,
    /// The argument is the value's address; where the place is a span, the value is read when the function returns.
    pub pointed: bool,
    /// It is filled in only if the function returns something else than 0.
    pub if_returned: bool,
    /// Of its numbers.
    pub words: Option<Words>,
    /// A hit with another value is not recorded.
    pub only: Option<i64>,
}

impl Argument {
    /// Is it read where a span ends?
    pub fn at_return(&self) -> bool {
        self.from == From::Return || self.pointed
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the place belongs to: begin and end in two rows are of one.
    pub program: String,
    /// Path, or name of a file, with `*` and `?`.
    pub binary: String,
    pub place: Place,
    pub shape: Shape,
    pub arguments: Vec<Argument>,
    /// With the names of arguments in braces.
    pub sentence: String,
    /// As it was written, with single spaces.
    pub line: String,
}

/// What a text has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub rows: Vec<Row>,
    /// Rows of other tables that it leaves out: `!PROGRAM` or `!PROGRAM PLACE`, with `*` and `?`.
    pub without: Vec<(String, String)>,
}

impl Table {
    /// Does it leave this one out?
    pub fn is_without(&self, row: &Row) -> bool {
        let place = row.line.split(' ').nth(2).unwrap_or_default();
        self.without.iter().any(|(program, of)| glob(program, &row.program) && glob(of, place))
    }
}

/// All rows of a text.
///
/// *Errors*: the line, and what is wrong with it.
pub fn parse(text: &str) -> Result<Table, String> {
    let mut table = Table::default();
    let mut names = Names::in_text(BUILT_IN);
    for (i, line) in text.lines().enumerate() {
        if let Some(line) = line.trim().strip_prefix('=') {
            names.line(line).map_err(|why| format!("line {}: {why}", i + 1))?;
        }
    }
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = |why: String| format!("line {}: {why}", i + 1);
        if let Some(without) = line.strip_prefix('!') {
            let words: Vec<&str> = without.split_whitespace().collect();
            let (program, place) = match words[..] {
                [program] => (program, "*"),
                [program, place] => (program, place),
                _ => return Err(at(format!("`{line}` is not !PROGRAM or !PROGRAM PLACE"))),
            };
            table.without.push((program.into(), place.into()));
        } else if !line.is_empty() && !line.starts_with(['#', '=']) {
            let row = names.put_into(line).and_then(|line| Row::parse(&line));
            table.rows.push(row.map_err(at)?);
        }
    }
    Ok(table)
}

impl Row {
    pub fn parse(line: &str) -> Result<Row, String> {
        let mut words = line.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
        let (program, binary) = (next("the program")?.to_owned(), next("the binary")?.to_owned());
        let place = place(next("the function or probe")?)?;
        let shape = match next("span, begin, end or mark")? {
            "span" => Shape::Span,
            name => Shape::At(
                Stage::from_name(name)
                    .ok_or_else(|| format!("`{name}` is not one of span, begin, end, mark"))?,
            ),
        };
        let arguments = arguments(next("arguments (or -)")?)?;
        let sentence = words.collect::<Vec<_>>().join(" ");
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let row = Row { program, binary, place, shape, arguments, sentence, line };
        row.check()?;
        Ok(row)
    }

    fn check(&self) -> Result<(), String> {
        let named = |name: &str| self.arguments.iter().any(|a| a.name == name);
        for part in parts(&self.sentence) {
            if let Part::Name(name) = part
                && !named(name)
            {
                return Err(format!("the sentence has {{{name}}}, which is no argument"));
            }
        }
        if self.sentence.is_empty() {
            return Err("the sentence is missing".into());
        }
        let is_text = |a: &&Argument| matches!(a.kind, Kind::Text { .. });
        if self.arguments.iter().filter(is_text).count() > 1 {
            return Err("one argument may be a string".into());
        }
        if self.arguments.iter().filter(|a| !is_text(a)).count() > VALUES {
            return Err(format!("at most {VALUES} arguments and one string"));
        }
        let returned = self.arguments.iter().any(|a| a.from == From::Return);
        let twice = |(i, a): (usize, &Argument)| {
            self.arguments[..i].iter().any(|b| b.name == a.name).then(|| a.name.clone())
        };
        if let Some(name) = self.arguments.iter().enumerate().find_map(twice) {
            return Err(format!("two arguments are called {name}"));
        }
        if self.arguments.iter().any(|a| a.if_returned) && !returned {
            return Err("/return needs an argument NAME=return:TYPE".into());
        }
        let usdt = matches!(self.place, Place::Usdt(..));
        if returned && self.shape != Shape::Span {
            return Err("only a span has a returned value".into());
        }
        if self.shape == Shape::Span && self.arguments.iter().any(|a| a.only.is_some()) {
            return Err("only hits of a begin, an end or a mark are chosen by a value".into());
        }
        if usdt && self.shape == Shape::Span {
            return Err("a USDT probe is a begin, an end or a mark".into());
        }
        if self.arguments.iter().any(|a| is_text(&a) && (a.pointed || a.from == From::Return)) {
            return Err("a string is an argument of the function".into());
        }
        Ok(())
    }

    /// Of each argument its value in a record; `None`: the text.
    pub fn slots(&self) -> impl Iterator<Item = (Option<usize>, &Argument)> {
        let mut n = 0;
        self.arguments.iter().map(move |a| {
            if matches!(a.kind, Kind::Text { .. }) {
                return (None, a);
            }
            n += 1;
            (Some(n - 1), a)
        })
    }

    /// Which value tells what begins and ends apart.
    pub fn key(&self) -> Option<usize> {
        self.slots().find(|(_, a)| a.kind == Kind::Key)?.0
    }

    /// Which value has to be what for a hit to be recorded.
    pub fn only(&self) -> Option<(usize, i64)> {
        self.slots().find_map(|(slot, a)| slot.zip(a.only))
    }

    /// Does a span end with 0?
    fn returns_nothing(&self, end: &ProgramRecord) -> bool {
        let returned = self.slots().find(|(_, a)| a.from == From::Return && a.offsets.is_empty());
        returned.is_some_and(|(slot, _)| slot.is_some_and(|i| end.values[i] == 0))
    }

    /// Ports of the connection that it names by its descriptor: local and the peer's.
    pub fn connection(&self, values: &[u64; VALUES]) -> Option<(u16, u16)> {
        let of = |(slot, a): (Option<usize>, &Argument)| {
            (a.kind == Kind::Descriptor).then(|| ports(values[slot?])).flatten()
        };
        self.slots().find_map(of)
    }

    /// The sentence with the values in it. Of a span: `begin` as far as it was recorded, `end` where it is over.
    pub fn say(&self, begin: Option<&ProgramRecord>, end: Option<&ProgramRecord>) -> String {
        let mut out = String::new();
        for part in parts(&self.sentence) {
            let name = match part {
                Part::Plain(text) => {
                    out += text;
                    continue;
                }
                Part::Name(name) => name,
            };
            let Some((slot, a)) = self.slots().find(|(_, a)| a.name == name) else { continue };
            let late = self.shape == Shape::Span && a.at_return();
            let record = if late { end } else { begin.or(end.filter(|_| self.shape != Shape::Span)) };
            let _ = match (record, slot) {
                (None, _) => write!(out, "…"),
                (Some(r), None) if r.faults & ProgramRecord::TEXT_FAULT != 0 => write!(out, "?"),
                (Some(r), None) => write!(out, "{}", r.text),
                (Some(r), Some(i)) if r.faults >> i & 1 != 0 => write!(out, "?"),
                (Some(r), Some(i)) => {
                    let v = if a.if_returned && self.returns_nothing(r) { 0 } else { r.values[i] };
                    if let Some(word) = a.words.as_ref().and_then(|w| w.of(v as i64)) {
                        out += word;
                        continue;
                    }
                    match a.kind {
                        Kind::Hex | Kind::Key => write!(out, "{v:#x}"),
                        Kind::Descriptor => match ports(v) {
                            Some((local, peer)) => write!(out, "{} (port {local}, peer's {peer})", v as i32),
                            None => write!(out, "{}", v as i32),
                        },
                        kind if kind.is_signed() => write!(out, "{}", v as i64),
                        _ => write!(out, "{v}"),
                    }
                }
            };
        }
        out
    }
}

fn ports(descriptor: u64) -> Option<(u16, u16)> {
    let (local, peer) = ((descriptor >> 48) as u16, (descriptor >> 32) as u16);
    (descriptor as i32 >= 0 && local != 0 && peer != 0).then_some((local, peer))
}

enum Part<'a> {
    Plain(&'a str),
    Name(&'a str),
}

fn parts(sentence: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = sentence;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('{')
            && let Some((name, behind)) = inner.split_once('}')
        {
            rest = behind;
            return Some(Part::Name(name));
        }
        let end = rest.char_indices().skip(1).find(|(_, c)| *c == '{').map_or(rest.len(), |(i, _)| i);
        let (plain, behind) = rest.split_at(end);
        rest = behind;
        Some(Part::Plain(plain))
    })
}

fn place(word: &str) -> Result<Place, String> {
    if let Some(usdt) = word.strip_prefix("usdt:") {
        let (provider, name) =
            usdt.split_once(':').ok_or_else(|| format!("`{word}` is not usdt:PROVIDER:NAME"))?;
        return Ok(Place::Usdt(provider.into(), name.into()));
    }
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map(Place::Offset).map_err(|_| format!("`{word}` is no offset"));
    }
    Ok(Place::Function(word.into()))
}

fn arguments(word: &str) -> Result<Vec<Argument>, String> {
    if word == "-" {
        return Ok(Vec::new());
    }
    let all: Vec<Argument> = word.split(',').map(argument).collect::<Result<_, _>>()?;
    if all.len() > ARGUMENTS - 1 {
        return Err(format!("at most {} arguments", ARGUMENTS - 1));
    }
    Ok(all)
}

fn argument(word: &str) -> Result<Argument, String> {
    let wrong = || format!("`{word}` is not NAME=WHERE:TYPE");
    let (name, rest) = word.split_once('=').ok_or_else(wrong)?;
    let (from, kind) = rest.split_once(':').ok_or_else(wrong)?;
    let (from, offsets) = match from.split_once('+') {
        Some((from, behind)) => (from, offsets(behind)?),
        None => (from, Vec::new()),
    };
    let number = |text: &str| {
        let n: u8 = text.parse().map_err(|_| format!("`{text}` is not the number of an argument"))?;
        (1..=12).contains(&n).then_some(n).ok_or_else(|| format!("argument {n}: there are 12 at most"))
    };
    let from = match from {
        "return" => From::Return,
        n => From::Argument(number(n)?),
    };
    let (pointed, kind) = kind.strip_prefix('*').map_or((false, kind), |k| (true, k));
    let (if_returned, kind) =
        kind.strip_suffix("/return").filter(|_| pointed).map_or((false, kind), |k| (true, k));
    let (only, kind) = match kind.split_once('=').filter(|_| !kind.contains('(')) {
        Some((kind, n)) => (Some(n.parse().map_err(|_| format!("`{n}` is no number to ask for"))?), kind),
        None => (None, kind),
    };
    let (words, kind) = match kind.strip_suffix(')').and_then(|k| k.split_once('(')) {
        Some((kind, of)) => {
            let (_, words) = of.split_once(':').unwrap_or(("", of));
            (Some(Words::parse(words)?), kind)
        }
        None => (None, kind),
    };
    let of = |bytes, signed| Ok(Kind::Number { bytes, signed });
    let kind = match kind {
        "int" => of(4, true),
        "uint" => of(4, false),
        "long" => of(8, true),
        "size" => of(8, false),
        "short" => of(2, true),
        "ushort" => of(2, false),
        "byte" => of(1, false),
        "hex" => Ok(Kind::Hex),
        "fd" => Ok(Kind::Descriptor),
        "key" => Ok(Kind::Key),
        "string" => Ok(Kind::Text { length: None }),
        other => match other.strip_prefix("string/") {
            Some(length) => Ok(Kind::Text { length: Some(number(length)?) }),
            None => Err(format!(
                "`{other}` is no type: int, uint, long, size, short, ushort, byte, hex, fd, key, string, string/N"
            )),
        },
    }?;
    if words.is_some() && !matches!(kind, Kind::Number { .. }) {
        return Err(format!("`{rest}` is no type: only numbers have words"));
    }
    if only.is_some() && !matches!(kind, Kind::Number { .. }) {
        return Err(format!("`{rest}` is no type: only a number can be asked for"));
    }
    Ok(Argument { name: name.into(), from, offsets, kind, pointed, if_returned, words, only })
}

/// `16`, `0x8+24`: the second is read by the kernel side from 16 bits.
fn offsets(text: &str) -> Result<Vec<i64>, String> {
    let one = |word: &str| {
        let n = match word.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16),
            None => word.parse(),
        };
        n.map(i64::from).map_err(|_| format!("`{word}` is no offset in a structure: 0 to 65535, or 0x..."))
    };
    let all: Vec<i64> = text.split('+').map(one).collect::<Result<_, _>>()?;
    if all.len() > 2 {
        return Err(format!("`+{text}`: two offsets at most"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(stage: Stage, values: [u64; VALUES], text: &str) -> ProgramRecord {
        let (at, pid, func, text) = (BootNs(1), 7, FuncId(9), text.into());
        ProgramRecord { at, pid, func, stage, faults: 0, values, text }
    }

    #[test]
    fn the_built_in_table_is_read() {
        let rows = parse(BUILT_IN).unwrap_or_else(|why| panic!("{why}")).rows;
        assert!(rows.iter().any(|r| r.place == Place::Function("getaddrinfo".into())));
    }

    #[test]
    fn rows_that_are_left_out() {
        let table = parse("!tls SSL_*\n! nginx\nx y z mark - z\n").unwrap();
        let of = |program: &str| {
            let rows = parse(BUILT_IN).unwrap().rows.into_iter().filter(|r| r.program == program);
            let left = rows.filter(|r| !table.is_without(r)).map(|r| r.place);
            left.filter(|p| !matches!(p, Place::Function(name) if name.starts_with("gnutls_") || name.starts_with("ERR_"))).count()
        };
        assert_eq!((of("tls"), of("nginx"), table.rows.len()), (0, 0, 1));
        assert!(of("resolver") > 10);
        assert!(parse("\n!a b c").unwrap_err().starts_with("line 2: `!a b c` is not !PROGRAM"));
    }

    #[test]
    fn a_sentence_may_begin_with_any_letter() {
        let row = Row::parse("x libc.so.6 f mark - über é{").unwrap();
        assert_eq!(row.say(None, Some(&record(Stage::Mark, [0; VALUES], ""))), "über é{");
    }

    #[test]
    fn a_span_has_what_it_was_given_and_what_came_of_it() {
        let row = Row::parse(
            "r libc.so.6 f span name=1:string,n=2:*size,ret=return:int look up {name}: {ret} ({n})",
        );
        let row = row.unwrap();
        let begin = record(Stage::Begin, [0; 4], "example.org");
        let end = record(Stage::End, [5, -2i64 as u64, 0, 0], "");
        assert_eq!(row.say(Some(&begin), None), "look up example.org: … (…)");
        assert_eq!(row.say(Some(&begin), Some(&end)), "look up example.org: -2 (5)");
        assert_eq!(row.say(None, Some(&end)), "look up …: -2 (5)");
        let unread = ProgramRecord { faults: ProgramRecord::TEXT_FAULT, ..begin };
        assert_eq!(row.say(Some(&unread), None), "look up ?: … (…)");
    }

    #[test]
    fn marks_and_keys() {
        let row =
            Row::parse("srv nginx usdt:a:b begin r=1:key,len=2:uint,uri=3:string/2 {uri} on {r}").unwrap();
        assert_eq!(row.key(), Some(0));
        assert_eq!(row.say(Some(&record(Stage::Begin, [16, 3, 0, 0], "/x")), None), "/x on 0x10");
        assert_eq!(row.arguments[2].kind, Kind::Text { length: Some(2) });
    }

    #[test]
    fn what_is_behind_an_address_and_only_filled_in_sometimes() {
        let row = Row::parse("s x f span s=1+0x8+24:fd,n=2:*size/return,ret=return:int {s}: {n}").unwrap();
        assert_eq!(row.arguments[0].offsets, [8, 24]);
        let begin = record(Stage::Begin, [80 << 48 | 9000 << 32 | 5, 0, 0, 0], "");
        let end = |result| record(Stage::End, [0, 7, result, 0], "");
        assert_eq!(row.say(Some(&begin), Some(&end(1))), "5 (port 80, peer's 9000): 7");
        assert_eq!(row.say(Some(&begin), Some(&end(0))), "5 (port 80, peer's 9000): 0");
        assert_eq!(row.connection(&begin.values), Some((80, 9000)));
        for none in [5, 0xffff_ffff, u64::MAX] {
            assert_eq!(row.connection(&[none, 0, 0, 0]), None, "{none:#x}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, why) in [
            ("a b", "function or probe is missing"),
            ("a b f spam - x", "not one of"),
            ("a b f span n=1:float x", "no type"),
            ("a b f span n=0:int x", "there are 12"),
            ("a b f mark n=return:int x", "only a span"),
            ("a b usdt:p:q span - x", "USDT"),
            ("a b f span - {n}", "no argument"),
            ("a b f span a=1:string,b=2:string x", "one argument"),
            ("a b f mark a=1:int,a=2:int x", "two arguments are called a"),
            ("a b f mark a=1+8+8+8:int x", "two offsets"),
            ("a b f mark a=1+-8:int x", "no offset"),
            ("a b f span a=1:*int/return x", "/return needs"),
            ("a b f span -", "sentence is missing"),
            ("a b f span a=1:int=3 x", "chosen by a value"),
            ("a b f mark a=1:int=x x", "no number to ask for"),
            ("a b f mark a=1:hex=3 x", "only a number"),
        ] {
            let answer = Row::parse(line).unwrap_err();
            assert!(answer.contains(why), "{line}: {answer}");
        }
    }
}
