//! The fuzz targets for a short while each, with any compiler: what is in the corpora, and mutations of it that are the same in
//! each run. `KPAT_FUZZ_SECONDS` for longer. `scripts/fuzz` runs libFuzzer, which knows what it has covered.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../fuzz/src/targets.rs"]
mod targets;

use std::path::Path;
use std::time::{Duration, Instant};

/// Source: Marsaglia, Xorshift RNGs, 2003.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Numbers at which readers err.
const ODD: [u64; 8] = [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, u64::MAX];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + random.below(6) {
        let len = bytes.len();
        let at = random.below(len + 1);
        let span = 1 + random.below(64);
        let end = (at + span).min(len);
        match random.below(10) {
            0 if at < len => bytes[at] ^= 1 << random.below(8),
            1 if at < len => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(len + 1);
                bytes.splice(to..to, copy);
            }
            5 => {
                let noise: Vec<u8> = (0..span).map(|_| random.below(256) as u8).collect();
                bytes.splice(at..at, noise);
            }
            6 => bytes[at..end].fill(0),
            7 => {
                let value = ODD[random.below(ODD.len())];
                let size = [1, 2, 4, 8][random.below(4)].min(len - at);
                let value = if random.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                bytes[at..at + size].copy_from_slice(&value[..size]);
            }
            _ if !other.is_empty() => {
                let from = random.below(other.len());
                let to = (from + span).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            _ => {}
        }
    }
    bytes.truncate(1 << 17);
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    files.sort();
    let found: Vec<Vec<u8>> = files.iter().map(|p| std::fs::read(p).unwrap()).collect();
    assert!(!found.is_empty(), "{name} has no corpus");
    found
}

fn drive(name: &str) {
    let target = targets::ALL.iter().find(|t| t.0 == name).unwrap().1;
    let seconds = std::env::var("KPAT_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let seeds = corpus(name);
    seeds.iter().for_each(|s| target(s));
    target(&[]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (started, mut cases, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    // However busy the machine is, some hundred.
    while cases < 300 || started.elapsed() < Duration::from_secs(seconds) {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut random, &mut bytes, other);
        let begun = Instant::now();
        if let Err(panic) = std::panic::catch_unwind(|| target(&bytes)) {
            let file = std::env::temp_dir().join(format!("kpat-fuzz-{name}-{cases}"));
            std::fs::write(&file, &bytes).unwrap();
            println!("{name}, case {cases}: its input is in {}", file.display());
            std::panic::resume_unwind(panic);
        }
        slowest = slowest.max(begun.elapsed());
        cases += 1;
    }
    println!("{name}: {cases} cases, slowest {slowest:?}");
    // Nothing that small takes long, on any machine.
    assert!(slowest < Duration::from_secs(20), "{name}: {slowest:?}");
}

macro_rules! each {
    ($($name:ident)*) => { $(#[test] fn $name() { drive(stringify!($name)); })* };
}

each! { kbl capture decode message table http filter control trace gather log_lines announce program guest_memory guest_lines guest_text }

#[test]
fn every_target_is_driven_here_and_there() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, _) in targets::ALL {
        assert!(fuzz.join(format!("fuzz_targets/{name}.rs")).exists(), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(
            include_str!("fuzz.rs")
                .split("each! {")
                .nth(1)
                .unwrap()
                .split('}')
                .next()
                .unwrap()
                .contains(name),
            "{name}"
        );
    }
}
