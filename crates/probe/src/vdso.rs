//! The functions that the kernel maps into each process (vdso), by their place in it: of programs that ask for the time it may be most of what they do, and no file has
//! their names. It is the same in all processes of 64 bits, so our own is read.

use crate::programs::symbols::{DYNSYM, Elf};
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

/// Out of the table of dynamic symbols; of several names of one function the longest, which says the most.
fn functions(elf: &[u8]) -> Vec<Function> {
    let mut all: Vec<Function> = Vec::new();
    let Some(elf) = Elf::parse(elf.to_vec()) else { return all };
    for f in elf.functions(&[DYNSYM]).filter(|f| f.length > 0 && f.address.checked_add(f.length).is_some()) {
        match all.iter_mut().find(|known| known.offset == f.address) {
            Some(known) if known.name.len() >= f.name.len() => {}
            Some(known) => known.name = f.name.to_owned(),
            None => all.push(Function { offset: f.address, length: f.length, name: f.name.to_owned() }),
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
