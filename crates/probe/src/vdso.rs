//! The functions that the kernel maps into each process (vdso), by their place in it: of programs that ask for the time it may be most of what they do, and no file has
//! their names. It is the same in all processes of 64 bits, so our own is read.

use std::sync::OnceLock;

pub(crate) struct Function {
    pub offset: u64,
    pub length: u64,
    pub name: String,
}

/// Of this offset in it; `None`: between two functions, or it has no table of them.
pub(crate) fn function_at(offset: u64) -> Option<&'static Function> {
    static OWN: OnceLock<Vec<Function>> = OnceLock::new();
    let all = OWN.get_or_init(|| functions(&own().unwrap_or_default()));
    all.iter().find(|f| (f.offset..f.offset + f.length).contains(&offset))
}

/// The bytes of our own.
fn own() -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|l| l.ends_with("[vdso]"))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut bytes = vec![0; end.checked_sub(start)? as usize];
    std::fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// Out of the table of dynamic symbols of an ELF file of 64 bits; of several names of one function the longest, which says the most.
fn functions(elf: &[u8]) -> Vec<Function> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const FUNCTION: u8 = 2;
    const LEFT_OUT: usize = 56; // shorter ones are no section headers of 64 bits
    let number = |at: usize, bytes: usize| {
        let b = elf.get(at..at.checked_add(bytes)?)?;
        Some(b.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
    };
    let section = |i: u64| {
        let (at, size) = (number(40, 8)? as usize, number(58, 2)? as usize);
        at.checked_add(size.checked_mul(i as usize)?).filter(|_| size > LEFT_OUT)
    };
    let mut all: Vec<Function> = Vec::new();
    for h in (0..number(60, 2).unwrap_or(0)).filter_map(section) {
        if number(h + 4, 4) != Some(DYNAMIC_SYMBOLS) {
            continue;
        }
        let names = number(h + 40, 4).and_then(section).and_then(|h| number(h + 24, 8)).unwrap_or(0) as usize;
        let (at, bytes) = (number(h + 24, 8).unwrap_or(0) as usize, number(h + 32, 8).unwrap_or(0) as usize);
        let symbols = at.checked_add(bytes).and_then(|end| elf.get(at..end)).unwrap_or_default();
        for s in symbols.chunks_exact(24).filter(|s| s[4] & 15 == FUNCTION) {
            let long = |i: usize| s[i..i + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let name = names.saturating_add(u32::from_le_bytes([s[0], s[1], s[2], s[3]]) as usize);
            let name = elf.get(name..).and_then(|n| n.split(|b| *b == 0).next()).unwrap_or_default();
            let (offset, length) = (long(8), long(16));
            let name = String::from_utf8_lossy(name).into_owned();
            if length == 0 || offset.checked_add(length).is_none() {
                continue;
            }
            match all.iter_mut().find(|f| f.offset == offset) {
                Some(known) if known.name.len() >= name.len() => {}
                Some(known) => known.name = name,
                None => all.push(Function { offset, length, name }),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the C library has found in it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_function_that_tells_the_time_is_where_it_is_called() {
        // SAFETY: both only look a number up.
        let (start, time) = unsafe {
            let start = libc::getauxval(libc::AT_SYSINFO_EHDR);
            (
                start,
                libc::dlsym(
                    libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD),
                    c"__vdso_clock_gettime".as_ptr(),
                ),
            )
        };
        let found = function_at(time as u64 - start).expect("a function");
        assert_eq!(found.name, "__vdso_clock_gettime");
        assert!(function_at(u64::MAX).is_none());
    }

    #[test]
    fn what_is_cut_or_hostile_has_none_or_others() {
        let whole = own().expect("there is one");
        for len in (0..whole.len()).step_by(61) {
            functions(&whole[..len]);
        }
        for i in (0..whole.len().min(4096)).chain(whole.len().saturating_sub(4096)..whole.len()) {
            let mut bad = whole.clone();
            bad[i] = 0xff;
            functions(&bad);
        }
    }
}
