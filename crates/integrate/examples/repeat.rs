//! A long log out of a recorded one, for the benchmark: `repeat X.kbl TO.kbl TIMES`.

#![allow(clippy::unwrap_used, reason = "a tool for benchmarks; a panic is its error message")]

#[path = "../tests/repeat/mod.rs"]
mod repeat;

use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [from, to, times] => repeat::repeat(Path::new(from), Path::new(to), times.parse().unwrap()),
        _ => eprintln!("repeat X.kbl TO.kbl TIMES"),
    }
}
