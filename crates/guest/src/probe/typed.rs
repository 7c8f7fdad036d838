//! What the kernel's own types say of a probe's values: how wide a number is, and whether it has a sign.
//!
//! A register has more than its argument or result: the compiler leaves in the rest what was there. Without a type a number is shown as what it looks like.

use super::spec::{Format, From, Spec, Term, wrong};
use crate::error::Result;
use crate::symbols::{Kind, Place, Symbols};
use crate::x86::Register;

/// Of functions of system calls: those whose first argument is the registers of a process in 64-bit code, or in 32-bit code.
const CALLS: [&str; 3] = ["__x64_sys_", "do_syscall_64", "x64_sys_call"];
const CALLS_OF_32: [&str; 3] = ["__ia32_sys_", "__ia32_compat_sys_", "ia32_sys_call"];

impl Spec {
    /// The same with the types of this guest's kernel. `place`: what [`Symbols::place`] makes of [`Spec::place`].
    pub fn typed(mut self, symbols: &Symbols, place: &Place) -> Result<Spec> {
        let written = self.place().split(['+', '@']).next().unwrap_or_default().to_owned();
        let found = symbols.at(place.address);
        let entered = place.begins || found.is_some_and(|(_, offset)| offset <= 4);
        let names: Vec<&str> =
            [Some(written.as_str()), found.map(|(s, _)| s.name)].into_iter().flatten().collect();
        let named = |all: &[&str]| names.iter().any(|n| all.iter().any(|c| n.starts_with(c)));
        let function = names.iter().find_map(|n| symbols.function(n)).filter(|_| entered);
        let all = self.terms.iter_mut().chain(self.conditions.iter_mut().map(|(t, ..)| t));
        for term in all {
            if let From::SystemCall { of_32, .. } = &mut term.from {
                *of_32 = named(&CALLS_OF_32);
                if !*of_32 && !named(&CALLS) {
                    return Err(wrong(format!(
                        "{}: {} is not given the registers of a system call; its own arguments are arg1 to arg6",
                        term.name, self.place
                    )));
                }
            }
            let hex = matches!(term.format, Format::Hex { .. });
            if term.format != Format::Auto && !hex {
                continue;
            }
            let kind = match (&term.from, term.members.last()) {
                (_, Some(member)) if member.starts_with('+') => None,
                (_, Some(member)) => symbols.field(member).ok().filter(|f| f.bits == 0).map(|f| f.kind),
                (From::Register(register), None) => {
                    let n = (0..6).find(|n| Register::argument(*n) == Some(*register));
                    // A register is what was asked for, whatever argument it has.
                    n.filter(|n| term.name.split(':').next() == Some(&format!("arg{}", n + 1)))
                        .and_then(|n| function.as_ref()?.parameters.get(n).copied())
                }
                (From::Return, None) => function.as_ref().map(|f| f.result),
                (From::Pid(member), None) => symbols.field(member).ok().map(|f| f.kind),
                _ => None,
            };
            term.format = match kind {
                Some(Kind::Number { width, .. }) if hex => Format::Hex { width },
                Some(Kind::Nothing) if hex => Format::Nothing,
                _ if hex => continue,
                Some(Kind::Number { width, signed }) => Format::Typed { width, signed },
                Some(Kind::Nothing) => Format::Nothing,
                // A pointer, maybe an error in its place: all of the register.
                Some(Kind::Other) if term.members.is_empty() => Format::Typed { width: 8, signed: false },
                _ => term.format,
            };
        }
        Ok(self)
    }
}

impl Term {
    /// Compared with a number below zero: without a type that is an `int`, as errors and descriptors are; and so is what is returned, compared with any that an `int` has room for.
    pub(super) fn is_int(&self, with: i128) -> bool {
        let below_zero = (i128::from(i32::MIN)..0).contains(&with);
        let fits = below_zero || (0..=i128::from(u32::MAX)).contains(&with);
        self.members.is_empty()
            && self.format == Format::Auto
            && match self.from {
                From::Register(_) | From::SystemCall { .. } => below_zero,
                From::Return => fits,
                _ => false,
            }
    }
}
