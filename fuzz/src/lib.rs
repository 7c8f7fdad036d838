//! The targets as a library, for libFuzzer's programs.

pub mod targets;
