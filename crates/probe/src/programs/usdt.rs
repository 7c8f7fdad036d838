//! Where the processor has arguments: of a function by its calling convention, of a USDT probe as the probe says, as offsets in `struct pt_regs`.

/// A probe as its file describes it.
pub struct Probe {
    pub provider: String,
    pub name: String,
    /// As the assembler wrote them, one for each argument.
    pub arguments: String,
    pub offset: u64,
    pub semaphore: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Register(u16),
    Memory(u16, i64),
    Constant(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub size: u8,
    pub place: Where,
}

impl Operand {
    pub fn register(at: u16) -> Operand {
        Operand { size: 8, place: Where::Register(at) }
    }
}

#[cfg(target_arch = "x86_64")]
mod here {
    /// In the order of `struct pt_regs` (bpf/arch/x86_64.h), eight bytes each.
    const ORDER: [&str; 21] = [
        "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
        "orig", "ip", "cs", "flags", "sp", "ss",
    ];
    const ARGUMENTS: [&str; 6] = ["di", "si", "dx", "cx", "r8", "r9"];
    pub const RESULT: u16 = 80;

    fn at(name: &str) -> Option<u16> {
        ORDER.iter().position(|r| *r == name).map(|i| 8 * i as u16)
    }

    /// By any of its names: %rax, %eax, %ax, %al; %r8, %r8d, %r8w, %r8b.
    pub fn register(name: &str) -> Option<u16> {
        let name = name.strip_prefix('%')?;
        if let Some(of) = name.strip_prefix('r').filter(|n| n.starts_with(|c: char| c.is_ascii_digit())) {
            return at(&format!("r{}", of.trim_end_matches(['d', 'w', 'b'])));
        }
        let low =
            |n: &str| n.strip_suffix('l').map(|n| if n.len() == 1 { format!("{n}x") } else { n.to_owned() });
        let wide = name.strip_prefix(['r', 'e']).and_then(at);
        wide.or_else(|| at(name)).or_else(|| at(&low(name)?))
    }

    pub fn argument(n: u8) -> Result<u16, i64> {
        let n = usize::from(n) - 1;
        ARGUMENTS.get(n).and_then(|r| at(r)).ok_or(8 * (n as i64 - 5))
    }

    /// Whole numbers and addresses of a Go function, since Go 1.17.
    pub fn go_argument(n: u8) -> Option<u16> {
        const GO: [&str; 9] = ["ax", "bx", "cx", "di", "si", "r8", "r9", "r10", "r11"];
        GO.get(usize::from(n) - 1).and_then(|r| at(r))
    }

    pub const STACK: u16 = 152;
}

#[cfg(target_arch = "aarch64")]
mod here {
    pub const RESULT: u16 = 0;
    pub const STACK: u16 = 8 * 31;

    pub fn register(name: &str) -> Option<u16> {
        if name == "sp" {
            return Some(STACK);
        }
        let n: u16 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
        (n < 31).then_some(8 * n)
    }

    pub fn go_argument(n: u8) -> Option<u16> {
        (n <= 16).then(|| 8 * u16::from(n - 1))
    }

    pub fn argument(n: u8) -> Result<u16, i64> {
        if n <= 8 { Ok(8 * u16::from(n - 1)) } else { Err(8 * (i64::from(n) - 9)) }
    }
}

pub const RESULT: u16 = here::RESULT;

/// Argument `n`, from 1 on, at a function's entry.
pub fn of_call(n: u8) -> Operand {
    match here::argument(n) {
        Ok(register) => Operand::register(register),
        Err(offset) => Operand { size: 8, place: Where::Memory(here::STACK, offset) },
    }
}

/// The same of a function in Go: of its words, as of a slice that has three; a number with a point is none.
pub fn of_go_call(n: u8) -> Option<Operand> {
    here::go_argument(n).map(Operand::register)
}

/// Arguments of a probe: `-4@%edi 8@-16(%rbp) 4@$5`, or on arm64 `8@x0 4@[sp, 16] -4@5`.
pub fn operands(text: &str) -> Result<Vec<Operand>, String> {
    // A space stands in arm64's own.
    let text = text.replace(", ", ",");
    text.split_ascii_whitespace()
        .map(|word| {
            operand(word).ok_or_else(|| format!("an argument of the probe is where kpat cannot read: {word}"))
        })
        .collect()
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |d| (true, d));
    let n = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { n.wrapping_neg() } else { n })
}

fn operand(word: &str) -> Option<Operand> {
    let (size, place) = word.split_once('@')?;
    let size = size.trim_start_matches('-').trim_end_matches('f').parse().ok()?;
    if ![1, 2, 4, 8].contains(&size) {
        return None;
    }
    let memory = |offset: &str, register: &str| {
        let offset = if offset.is_empty() { Some(0) } else { integer(offset) };
        Some(Where::Memory(here::register(register)?, offset?))
    };
    let place = if let Some(n) = place.strip_prefix('$') {
        Where::Constant(integer(n)?)
    } else if let Some(inner) = place.strip_prefix('[').and_then(|p| p.strip_suffix(']')) {
        let (register, offset) = inner.split_once(',').unwrap_or((inner, ""));
        memory(offset, register)?
    } else if let Some((offset, register)) = place.strip_suffix(')').and_then(|p| p.split_once('(')) {
        memory(offset, register)?
    } else if let Some(register) = here::register(place) {
        Where::Register(register)
    } else {
        Where::Constant(integer(place)?)
    };
    Some(Operand { size, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn operands_of_probes() {
        let one = |text: &str| operands(text).map(|o| (o[0].size, o[0].place)).ok();
        assert_eq!(one("-4@%edi"), Some((4, Where::Register(112))));
        assert_eq!(one("8@%rax"), Some((8, Where::Register(80))));
        assert_eq!(one("1@%al"), Some((1, Where::Register(80))));
        assert_eq!(one("1@%sil"), Some((1, Where::Register(104))));
        assert_eq!(one("4@%r9d"), Some((4, Where::Register(64))));
        assert_eq!(one("8@-16(%rbp)"), Some((8, Where::Memory(32, -16))));
        assert_eq!(one("8@(%rsp)"), Some((8, Where::Memory(152, 0))));
        assert_eq!(one("-4@$-5"), Some((4, Where::Constant(-5))));
        assert_eq!(one("8@8(%rax,%rbx,4)"), None);
        assert_eq!(one("8@name(%rip)"), None);
        assert_eq!(of_call(7).place, Where::Memory(152, 8));
        assert_eq!(of_call(4).place, Where::Register(88));
    }
}
