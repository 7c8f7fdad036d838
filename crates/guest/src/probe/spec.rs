//! A probe in one line: where, what, and on which condition.
//!
//! ```text
//! PLACE [count] [VALUE...] [ret] [if VALUE COMPARE NUMBER [and ...]]
//! PLACE    function, function+0x10, 0xffffffff81234567, net/ipv4/ip_input.c:523, function@include/linux/skbuff.h:100,
//!          ip_input.c:523#2
//! VALUE    BASE[:STRUCT.MEMBER or :+OFFSET ...][:FORMAT]
//! BASE     arg1 to arg6; sys1 to sys6, of a function __x64_sys_*; a register; pid, tgid, task; @VARIABLE or @0xADDRESS; ret
//! FORMAT   str, x, u8 to u64, s8 to s64
//! ```
//!
//! With `ret` the entry is written when the function returns: values are those of the entry, texts are read at the return, when the kernel
//! has brought in what they are in.

use super::{Handle, Probes, Recorder, What, WhatReturns, Xp, Xrp};
use crate::error::{Error, Result};
use crate::mailbox::host::Read;
use crate::mailbox::layout::SAVED_MAX;
use crate::mailbox::values::{Base, Compare, Condition, Item, Value};
use crate::symbols::{Place, Symbols};
use crate::x86::Register;

/// Bytes of a text that are read.
const TEXT: usize = 96;
/// Where the arguments of a system call are in the registers that its function is given.
const SYSTEM_CALL: [i32; 6] = [112, 104, 96, 56, 72, 64];
const SYSTEM_CALL_OF_32: [i32; 6] = [40, 88, 96, 104, 112, 32];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum From {
    Register(Register),
    /// A variable, or an address in hexadecimal digits.
    Variable(String),
    SystemCall {
        n: usize,
        of_32: bool,
    },
    Task,
    Pid(&'static str),
    Return,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Auto,
    Text,
    /// So many bytes of a register, where its type says that.
    Hex {
        width: u8,
    },
    Number {
        width: u8,
        signed: bool,
    },
    /// By its type. One without a sign may be a mask; of 64 bits it may be an address, or an error.
    Typed {
        width: u8,
        signed: bool,
    },
    /// The function returns nothing.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) name: String,
    pub(super) from: From,
    pub(super) members: Vec<String>,
    pub(super) format: Format,
}

/// A line, understood but for names of the guest's kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub(super) place: String,
    count: bool,
    returns: bool,
    duration: bool,
    pub(super) terms: Vec<Term>,
    /// Numbers as they were written: those of 64 bits without a sign are others than those below zero.
    pub(super) conditions: Vec<(Term, Compare, i128)>,
}

/// What [`Spec::outside`] says.
pub(super) struct Outside {
    pub items: Vec<(Item, bool)>,
    pub at_entry: Vec<Condition>,
    pub at_return: Vec<Condition>,
}

/// What one value of an entry is called, and how it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    format: Format,
}

/// As it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    Number(i128),
    Hex(u64),
    Text(String),
    /// Its memory was not there.
    Unread,
}

impl Field {
    pub fn show(&self, read: &Read) -> Shown {
        let value = match read {
            Read::Unread => return Shown::Unread,
            Read::Text(bytes) => return Shown::Text(String::from_utf8_lossy(bytes).into_owned()),
            Read::Number(n) => *n,
        };
        match self.format {
            Format::Hex { .. } => Shown::Hex(value),
            Format::Nothing => Shown::Unread,
            Format::Number { signed: true, .. } | Format::Typed { signed: true, .. } => {
                Shown::Number((value as i64).into())
            }
            Format::Number { .. } => Shown::Number(value.into()),
            // Small ones, and small negative ones of 32 or 64 bits, are numbers; others look like addresses and masks.
            _ if value <= 0x7fff_ffff => Shown::Number(value.into()),
            Format::Typed { width: ..8, .. } => Shown::Hex(value),
            _ if value >> 32 == 0 && value as u32 >= 0xffff_f000 => {
                Shown::Number((value as u32 as i32).into())
            }
            _ if value as i64 >= -0x1_0000 && (value as i64) < 0 => Shown::Number((value as i64).into()),
            _ => Shown::Hex(value),
        }
    }
}

fn digits(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |h| u64::from_str_radix(h, 16).ok())
}

pub(super) fn wrong(what: impl std::fmt::Display) -> Error {
    Error::Unsupported(what.to_string())
}

impl Spec {
    pub fn parse(text: &str) -> Result<Spec> {
        let mut words = text.split_whitespace();
        let place = words.next().ok_or_else(|| wrong("a probe needs a place: a function's name"))?.to_owned();
        let mut spec = Spec {
            place,
            count: false,
            returns: false,
            duration: false,
            terms: Vec::new(),
            conditions: Vec::new(),
        };
        let (mut conditions, mut given) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            match word {
                "count" | "ret" if given.contains(&word) => {
                    return Err(wrong(format!("\"{text}\": \"{word}\" stands there twice")));
                }
                "count" => spec.count = true,
                "if" => conditions = words.by_ref().collect(),
                _ => spec.terms.push(Term::parse(word)?),
            }
            given.push(word);
        }
        if let Some(word) = conditions.iter().find(|w| matches!(**w, "or" | "||" | "&&" | "if")) {
            return Err(wrong(format!(
                "\"{text}\": conditions are joined by \"and\", not by \"{word}\"; for one or the other leave it out and show the value"
            )));
        }
        spec.returns = spec.terms.iter().any(|t| t.from == From::Return);
        if text.split_whitespace().any(|w| w == "if") && conditions.is_empty() {
            return Err(wrong(format!("\"{text}\": there is nothing behind \"if\"")));
        }
        for one in conditions.split(|w| *w == "and") {
            if !one.is_empty() {
                spec.conditions.push(condition(&one.concat())?);
            } else if !conditions.is_empty() {
                return Err(wrong(format!("\"{text}\": a condition is missing beside \"and\"")));
            }
        }
        if spec.count && !spec.terms.is_empty() {
            return Err(wrong(format!(
                "\"{text}\": what is counted is not shown; leave out \"count\" or the values"
            )));
        }
        if !spec.returns && spec.conditions.iter().any(|(t, ..)| t.from == From::Return) {
            return Err(wrong(format!("\"{text}\": a condition on ret needs ret among the values")));
        }
        Ok(spec)
    }

    /// Where, as it was written.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn counts(&self) -> bool {
        self.count
    }

    /// Nothing is asked for but the place, or a condition.
    pub fn is_bare(&self) -> bool {
        self.terms.is_empty() && !self.count
    }

    /// Also measure how long each call took; it is the last value then.
    pub fn with_duration(mut self) -> Spec {
        (self.returns, self.duration, self.count) = (true, true, false);
        self
    }

    /// Of an entry's values, in their order; `duration_ticks` is the last of a function's that returns.
    pub fn fields(&self) -> Vec<Field> {
        let mut all: Vec<Field> =
            self.terms.iter().map(|t| Field { name: t.name.clone(), format: t.format }).collect();
        if self.returns {
            all.push(Field {
                name: "duration_ticks".into(),
                format: Format::Number { width: 8, signed: false },
            });
        }
        all
    }

    pub fn returns(&self) -> bool {
        self.returns
    }

    /// Puts the probe into the guest; `place` is what [`Symbols::place`] makes of [`Spec::place`].
    pub fn register<'h>(
        &self,
        place: &Place,
        probes: &mut Probes<'h>,
        maxactive: usize,
        to: Recorder<'h>,
    ) -> Result<Handle> {
        let address = probes.address(place)?;
        let guest = probes.guest().clone();
        let symbols = guest.symbols()?;
        let value = |t: &Term| t.value(symbols);
        let conditions = |at_return: bool| self.conditions(symbols, at_return);
        if !self.returns {
            let what = if self.count {
                What::Count
            } else {
                let items = self.terms.iter().map(|t| Ok(t.item(value(t)?))).collect::<Result<_>>()?;
                What::Record(items, to)
            };
            return probes.register(Xp { address, conditions: conditions(false)?, what });
        }
        let (mut saved, mut items) = (Vec::new(), Vec::new());
        for term in &self.terms {
            let value = value(term)?;
            if term.from == From::Return {
                items.push(term.item(value));
            } else {
                items.push(term.item(Value::of(Base::Saved(saved.len()))));
                saved.push(value);
            }
        }
        if saved.len() > SAVED_MAX {
            return Err(wrong(format!(
                "{}: at most {SAVED_MAX} values are kept from the entry to the return",
                self.place
            )));
        }
        items.push(Item::Duration);
        let (at_entry, at_return) = (conditions(false)?, conditions(true)?);
        probes.register_return(Xrp {
            address,
            conditions: at_entry,
            at_return,
            maxactive,
            what: WhatReturns::Record(saved, items, to),
        })
    }

    fn conditions(&self, symbols: &Symbols, at_return: bool) -> Result<Vec<Condition>> {
        let mine = self.conditions.iter().filter(|(t, ..)| (t.from == From::Return) == at_return);
        mine.map(|(t, compare, with)| {
            let mut value = t.value(symbols)?;
            value.signed |= *with < 0;
            if t.is_int(*with) {
                (value.width, value.signed) = (4, true);
            }
            Ok(Condition { compare: *compare, with: with_sign(*with, &value) as u64, value })
        })
        .collect()
    }

    /// For probes that are not in the guest: the values' items with whether each is of the return, and the conditions at entry and return.
    pub(super) fn outside(&self, symbols: &Symbols) -> Result<Outside> {
        if let Some(t) = self
            .terms
            .iter()
            .chain(self.conditions.iter().map(|(t, ..)| t))
            .find(|t| matches!(t.from, From::Task | From::Pid(_)))
        {
            return Err(wrong(format!(
                "{}: which process runs is known with probes in a guest of Linux only",
                t.name
            )));
        }
        let items = self.terms.iter().map(|t| Ok((t.item(t.value(symbols)?), t.from == From::Return)));
        Ok(Outside {
            items: items.collect::<Result<_>>()?,
            at_entry: self.conditions(symbols, false)?,
            at_return: self.conditions(symbols, true)?,
        })
    }
}

impl Term {
    fn parse(word: &str) -> Result<Term> {
        let mut parts = word.split(':');
        let base = parts.next().unwrap_or_default();
        let argument = |prefix: &str| {
            base.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok()).filter(|n| (1..=6).contains(n))
        };
        let from = match base {
            "ret" => From::Return,
            "task" => From::Task,
            "pid" => From::Pid("task_struct.pid"),
            "tgid" => From::Pid("task_struct.tgid"),
            _ if base.len() > 1 && base.starts_with('@') => From::Variable(base[1..].to_owned()),
            _ => match (argument("arg"), argument("sys"), Register::by_name(base)) {
                (Some(n), ..) => From::Register(Register::argument(n - 1).unwrap_or(Register::Rdi)),
                (_, Some(n), _) => From::SystemCall { n: n - 1, of_32: false },
                (_, _, Some(register)) => From::Register(register),
                _ => {
                    return Err(wrong(format!(
                        "\"{word}\" is no value: arg1 to arg6, sys1 to sys6, a register, pid, tgid, task, @VARIABLE or ret, then :STRUCT.MEMBER or :+OFFSET, and :FORMAT"
                    )));
                }
            },
        };
        let mut term = Term {
            name: word.trim_end_matches(":str").to_owned(),
            from,
            members: Vec::new(),
            format: Format::Auto,
        };
        for part in parts {
            let number = |prefix: char| {
                part.strip_prefix(prefix)
                    .and_then(|n| n.parse::<u8>().ok())
                    .filter(|n| [8, 16, 32, 64].contains(n))
            };
            let format = match (part, number('u'), number('s')) {
                ("str", ..) => Format::Text,
                ("x", ..) => Format::Hex { width: 8 },
                (_, Some(bits), _) => Format::Number { width: bits / 8, signed: false },
                (_, _, Some(bits)) => Format::Number { width: bits / 8, signed: true },
                _ if part.contains('.') || part.strip_prefix('+').is_some_and(|o| digits(o).is_some()) => {
                    term.members.push(part.to_owned());
                    continue;
                }
                _ => {
                    return Err(wrong(format!(
                        "\"{word}\": \"{part}\" is neither STRUCT.MEMBER, +OFFSET nor a format (str, x, u8 to u64, s8 to s64)"
                    )));
                }
            };
            if std::mem::replace(&mut term.format, format) != Format::Auto {
                return Err(wrong(format!("\"{word}\" has several formats")));
            }
        }
        Ok(term)
    }

    fn value(&self, symbols: &Symbols) -> Result<Value> {
        let mut value = match &self.from {
            From::Register(register) => Value::register(*register),
            From::SystemCall { n, of_32: false } => {
                Value { steps: vec![SYSTEM_CALL[*n]], ..Value::register(Register::Rdi) }
            }
            From::SystemCall { n, of_32: true } => {
                Value { steps: vec![SYSTEM_CALL_OF_32[*n]], width: 4, ..Value::register(Register::Rdi) }
            }
            From::Task | From::Pid(_) => Value::of(Base::Task),
            From::Variable(name) => {
                Value { steps: vec![0], ..Value::of(Base::Address(symbols.parse(name)?)) }
            }
            From::Return => Value::of(Base::Result),
        };
        let pid = if let From::Pid(member) = self.from { Some(member.to_owned()) } else { None };
        // A member of a variable is in it, not behind a pointer in it.
        if matches!(self.from, From::Variable(_)) && self.members.first().is_some_and(|m| !m.starts_with('+'))
        {
            value.steps.clear();
        }
        let last = self.members.last();
        for member in pid.iter().chain(&self.members) {
            if let Some(offset) = member.strip_prefix('+').and_then(digits) {
                let offset = i32::try_from(offset).map_err(|_| wrong(format!("{member} is too far")))?;
                value.steps.push(offset + std::mem::take(&mut value.plus));
                value.width = 8;
                continue;
            }
            let field = symbols.field(member)?;
            let offset = i32::try_from(field.at)
                .map_err(|_| wrong(format!("{member} is too far into its structure")))?;
            // What is in the structure itself is where its text is, or the next member: no step of its own.
            if field.inside && (last != Some(member) || self.format == Format::Text) {
                value.plus += offset;
                value.width = 8;
                continue;
            }
            value.steps.push(offset + std::mem::take(&mut value.plus));
            (value.shift, value.bits) = (field.shift, field.bits);
            let size = match field.bits {
                0 => field.size,
                bits => (u64::from(field.shift) + u64::from(bits)).div_ceil(8).next_power_of_two(),
            };
            value.width = match size {
                1 | 2 | 4 | 8 => size as u8,
                _ => {
                    return Err(wrong(format!(
                        "{member} has {size} bytes: not a number; :str shows it as a text"
                    )));
                }
            };
        }
        match self.format {
            Format::Number { width, signed } | Format::Typed { width, signed } => {
                (value.width, value.signed) = (width, signed);
            }
            Format::Hex { width } if self.members.is_empty() => value.width = value.width.min(width),
            _ => {}
        }
        Ok(value)
    }

    fn item(&self, value: Value) -> Item {
        match self.format {
            Format::Text => Item::Text { at: value, max: TEXT },
            _ => Item::Value(value),
        }
    }
}

/// A number that is compared with one that has a sign may be written as its bits: `0xffffff9c` is -100 of 32.
fn with_sign(with: i128, value: &Value) -> i128 {
    let bits = 8 * u32::from(value.width);
    let written = value.signed && (1 << (bits - 1)..1 << bits).contains(&with);
    if written { with - (1 << bits) } else { with }
}

fn condition(text: &str) -> Result<(Term, Compare, i128)> {
    const SIGNS: [(&str, Compare); 7] = [
        ("==", Compare::Equal),
        ("!=", Compare::NotEqual),
        ("<=", Compare::AtMost),
        (">=", Compare::AtLeast),
        ("<", Compare::Less),
        (">", Compare::Greater),
        ("&", Compare::AnyOf),
    ];
    let found = SIGNS.iter().find_map(|(sign, compare)| text.split_once(sign).map(|(a, b)| (a, *compare, b)));
    let (value, compare, number) = found.ok_or_else(|| {
        wrong(format!("\"{text}\" is no condition: VALUE==NUMBER, with !=, <, <=, >, >= or &"))
    })?;
    let (minus, digits) = number.strip_prefix('-').map_or((false, number), |d| (true, d));
    let magnitude = self::digits(digits);
    let magnitude =
        i128::from(magnitude.ok_or_else(|| wrong(format!("\"{text}\": \"{number}\" is no number")))?);
    let term = Term::parse(value)?;
    if term.format == Format::Text {
        return Err(wrong(format!("\"{text}\": a text cannot be compared")));
    }
    Ok((term, compare, if minus { -magnitude } else { magnitude }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let s = Spec::parse("do_sys_openat2 arg2:str ret if arg1 == -100 and pid != 0x10").unwrap();
        assert_eq!((s.place(), s.returns(), s.counts()), ("do_sys_openat2", true, false));
        let names: Vec<String> = s.fields().into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["arg2", "ret", "duration_ticks"]);
        let compared: Vec<(Compare, i128)> = s.conditions.iter().map(|(_, c, n)| (*c, *n)).collect();
        assert_eq!(compared, [(Compare::Equal, -100), (Compare::NotEqual, 16)]);
        let s = Spec::parse("ip_rcv+0x10 arg1:sk_buff.len arg1:sk_buff.dev:net_device.ifindex:s32").unwrap();
        assert_eq!(s.terms[1].members, ["sk_buff.dev", "net_device.ifindex"]);
        assert_eq!(s.terms[1].format, Format::Number { width: 4, signed: true });
        assert!(Spec::parse("vfs_read count").unwrap().counts());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, words) in [
            ("", "needs a place"),
            ("f arg7", "\"arg7\" is no value"),
            ("f arg1:z", "\"z\" is neither"),
            ("f arg1:str:u8", "\"arg1:str:u8\" has several formats"),
            ("f arg1 if", "nothing behind \"if\""),
            ("f arg1 if arg1==1 and", "missing beside \"and\""),
            ("f if arg1==1 or arg1==2", "not by \"or\""),
            ("f if arg1==1 || arg1==2", "show the value"),
            ("f count count", "\"count\" stands there twice"),
            ("f ret ret", "twice"),
            ("f if arg1=1", "no condition"),
            ("f if arg1==one", "\"one\" is no number"),
            ("f count arg1", "leave out"),
            ("f arg1 if ret==0", "needs ret"),
            ("f if arg1:str==1", "cannot be compared"),
        ] {
            let e = Spec::parse(line).unwrap_err().to_string();
            assert!(e.contains(words), "{line}: {e}");
        }
    }

    #[test]
    fn what_a_number_is_compared_with_is_as_wide_as_it() {
        let of = |line: &str, format: Option<Format>| {
            let mut spec = Spec::parse(line).unwrap();
            let (term, ..) = &mut spec.conditions[0];
            term.format = format.unwrap_or(term.format);
            let returns = term.from == From::Return;
            spec.conditions(&Symbols::none(), returns).unwrap().remove(0)
        };
        let typed = |width, signed| Some(Format::Typed { width, signed });
        let (low, high) = (0x7fff_0000_0000u64, 0xffff_8880_0000_0000u64);
        for (line, format, holds, fails) in [
            // Addresses of the kernel are above those of processes.
            ("f if arg2 >= 0xffff800000000000", None, high, low),
            ("f if rsi < 0xffff800000000000", typed(8, false), low, high),
            ("f if arg1:+8 > 0xffff800000000000", None, high, low),
            ("f ret if ret > 0xffff800000000000", None, high, low),
            // Bits of a number with a sign.
            ("f if arg1 == 0xffffff9c", typed(4, true), -100i64 as u64, 0xffff_ff9c),
            ("f ret if ret == 0xfffffffe", None, -2i64 as u64, 2),
            ("f ret if ret >= 0xfffffffffffff001", typed(8, true), -2i64 as u64, -5000i64 as u64),
            ("f if arg1 == -100", typed(4, true), -100i64 as u64, 100),
            ("f if arg1 == 0xffffff9c", typed(4, false), 0xffff_ff9c, -100i64 as u64),
            ("f if arg1 < -1", None, -2i64 as u64, 1),
        ] {
            let condition = of(line, format);
            assert!(condition.holds(holds), "{line}: {condition:?}");
            assert!(!condition.holds(fails), "{line}: {condition:?}");
        }
        assert_eq!(of("f ret if ret == -2", None).value.width, 4);
    }

    #[test]
    fn numbers_are_shown_as_what_they_look_like() {
        let show = |format, n| Field { name: String::new(), format }.show(&Read::Number(n));
        assert_eq!(show(Format::Auto, 3), Shown::Number(3));
        assert_eq!(show(Format::Auto, 0xffff_fffe), Shown::Number(-2));
        assert_eq!(show(Format::Auto, -2i64 as u64), Shown::Number(-2));
        assert_eq!(show(Format::Auto, 0xffff_8880_0000_0000), Shown::Hex(0xffff_8880_0000_0000));
        // By its type: without a sign, or a large number below zero.
        let typed = |width, signed| Format::Typed { width, signed };
        assert_eq!(show(typed(4, false), 0xffff_ffff), Shown::Hex(0xffff_ffff));
        assert_eq!(show(typed(8, false), -2i64 as u64), Shown::Number(-2));
        assert_eq!(show(typed(4, true), -1_000_000i64 as u64), Shown::Number(-1_000_000));
        assert_eq!(show(Format::Nothing, 7), Shown::Unread);
        assert_eq!(show(Format::Hex { width: 8 }, 16), Shown::Hex(16));
        assert_eq!(
            show(Format::Number { width: 8, signed: false }, u64::MAX),
            Shown::Number(u64::MAX.into())
        );
    }
}
