#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kpat_fuzz::targets::log_lines(bytes));
