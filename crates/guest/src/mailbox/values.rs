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
    /// Added at last: the address of what lies inside of a structure.
    pub plus: i32,
    /// Of what was read only these bits, of a bit field: the first, and how many. 0: all.
    pub shift: u8,
    pub bits: u8,
}

impl Value {
    pub fn of(base: Base) -> Value {
        Value { base, steps: Vec::new(), width: 8, signed: false, plus: 0, shift: 0, bits: 0 }
    }

    pub fn register(register: Register) -> Value {
        Value::of(Base::Register(register))
    }

    /// Argument `n` of the function that is entered, from 0.
    pub fn argument(n: usize) -> Option<Value> {
        Register::argument(n).map(Value::register)
    }
}

impl Value {
    /// Of a bit field.
    pub fn mask(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.bits.clamp(1, 64)))
    }

    /// The same by who stands outside, and has stopped the guest. `base`: what it begins with; `read`: copies memory. `None`: there is nothing.
    pub fn read_outside(
        &self,
        base: impl Fn(Base) -> Option<u64>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<u64> {
        let mut now = base(self.base)?;
        for (n, step) in self.steps.iter().enumerate() {
            let width = if n + 1 == self.steps.len() { usize::from(self.width) } else { 8 };
            let mut bytes = [0; 8];
            read(now.wrapping_add_signed((*step).into()), &mut bytes[..width.min(8)]).then_some(())?;
            now = u64::from_le_bytes(bytes);
        }
        now = now.wrapping_add_signed(self.plus.into());
        if self.bits > 0 {
            now = now >> self.shift & self.mask();
        }
        let unused = 64 - 8 * u32::from(self.width.clamp(1, 8));
        let left = now << unused;
        Some(if self.signed { (left as i64 >> unused) as u64 } else { left >> unused })
    }
}

impl Condition {
    pub fn holds(&self, value: u64) -> bool {
        let (signed, with) = ((value as i64, self.with as i64), self.with);
        match (self.compare, self.value.signed) {
            (Compare::Equal, _) => value == with,
            (Compare::NotEqual, _) => value != with,
            (Compare::AnyOf, _) => value & with != 0,
            (Compare::Less, true) => signed.0 < signed.1,
            (Compare::AtMost, true) => signed.0 <= signed.1,
            (Compare::Greater, true) => signed.0 > signed.1,
            (Compare::AtLeast, true) => signed.0 >= signed.1,
            (Compare::Less, false) => value < with,
            (Compare::AtMost, false) => value <= with,
            (Compare::Greater, false) => value > with,
            (Compare::AtLeast, false) => value >= with,
        }
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
