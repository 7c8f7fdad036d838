//! Captures made by the tests: frames layer by layer, and the files around them. It shares no code with the reader.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod files;
pub mod frames;
