//! Memory that is needed in a moment. What was written long ago and is visited in another order (trees of calls, frames by key) is in no cache,
//! and waiting for it was a tenth of an integration.

/// Bytes of a cache line, and lines that are asked for at most.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
#[cfg(target_arch = "x86_64")]
const MOST: usize = 16;

/// Asks for the memory of these, and goes on.
#[inline(always)]
pub(crate) fn fetch<T>(of: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(of).min(MOST * LINE)).step_by(LINE) {
        let address = of.as_ptr().cast::<i8>().wrapping_add(at);
        // SAFETY: it changes nothing but which memory is in the cache, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch(address, std::arch::x86_64::_MM_HINT_T0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = of;
}

/// The same of one.
#[inline(always)]
pub(crate) fn fetch_one<T>(of: &T) {
    fetch(std::slice::from_ref(of));
}
