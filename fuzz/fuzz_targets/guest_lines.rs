#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpat_fuzz::targets::guest_lines(bytes));
