//! What a probe's code reads by itself at a hit: values, texts and conditions on values.

use crate::x86::Register;

/// Where the first step towards a value begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Register(Register),
    /// What the function returned.
    Result,
    /// Value `n` of those that were saved at the entry of the function that returns.
    Saved(usize),
    /// A fixed address, of a variable.
    Address(u64),
    /// The running task's structure.
    Task,
}

/// A number: what `base` has and, for each of `steps`, what is in memory at that plus the step.
///
/// Each step but the last reads 8 bytes, the last `width`. Without steps it is the lowest `width` bytes of what `base` has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub base: Base,
    pub steps: Vec<i32>,
    /// 1, 2, 4 or 8.
    pub width: u8,
    pub signed: bool,
}

impl Value {
    pub fn of(base: Base) -> Value {
        Value { base, steps: Vec::new(), width: 8, signed: false }
    }

    pub fn register(register: Register) -> Value {
        Value::of(Base::Register(register))
    }

    /// Argument `n` of the function that is entered, from 0.
    pub fn argument(n: usize) -> Option<Value> {
        Register::argument(n).map(Value::register)
    }
}

/// Longest text in an entry.
pub const TEXT_MAX: usize = 256;

/// One thing that an entry of the ring has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Value(Value),
    /// The bytes up to a zero, at most `max`, at the address that the value is; kernel's or process's.
    Text {
        at: Value,
        max: usize,
    },
    /// Ticks between entry and return.
    Duration,
}

impl Item {
    /// Bytes in the entry: a number, or the length and the bytes of a text.
    pub fn room(&self) -> usize {
        match self {
            Item::Text { max, .. } => 8 + max.next_multiple_of(8),
            _ => 8,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
    /// Any of these bits is set.
    AnyOf,
}

/// A hit counts if this is so. A value that cannot be read fulfils nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub value: Value,
    pub compare: Compare,
    pub with: u64,
}

/// What happens at a hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A counter in the shared memory goes up by one.
    Count,
    /// An entry is written into the ring.
    Record(Vec<Item>),
    /// The host's handler runs, and the hit waits for it.
    Call,
}
