//! Thousands of damaged logs, the same ones in every run: nothing panics, nothing hangs, and no chunk gives records
//! that were not written. A stand-in for coverage-guided fuzzing, which needs a nightly compiler.

#![allow(clippy::unwrap_used)]

mod sample;

use kpat_klog::*;
use kpat_model::Record;
use sample::Rng;
use std::collections::HashSet;
use std::time::{Duration, Instant};

const HEADER_CRC_AT: usize = 56;
const CRC_AT: usize = 60;

/// Reads all there is to read; the number of records.
fn read(bytes: Vec<u8>) -> Option<(Log, usize)> {
    let log = Log::from_bytes(bytes).ok()?;
    let claimed: u64 = log.chunk_index().iter().map(|c| u64::from(c.count)).sum();
    let count = log.all_merged().count();
    assert!(count as u64 <= claimed);
    let issues = log.issues();
    assert!(issues.is_sorted_by_key(|i| i.offset));
    let records: u64 =
        log.chunk_index().iter().filter(|c| c.kind == ChunkKind::Records).map(|c| u64::from(c.count)).sum();
    assert!(count as u64 == records || !issues.is_empty(), "records are missing and no issue was reported");
    Some((log, count))
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(6) {
        let len = bytes.len() as u64;
        if len < 4 {
            return;
        }
        let at = rng.below(len) as usize;
        let span = (1 + rng.below(200).min(len - at as u64 - 1)) as usize;
        match rng.below(9) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, 0x89][rng.below(6) as usize],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + span).min(bytes.len()))),
            4 => {
                let copy = bytes[at..(at + span).min(bytes.len())].to_vec();
                let to = rng.below(len) as usize;
                bytes.splice(to..to, copy);
            }
            5 => {
                let noise: Vec<u8> = (0..span).map(|_| rng.next() as u8).collect();
                bytes.splice(at..at, noise);
            }
            6 => {
                let end = (at + span).min(bytes.len());
                bytes[at..end].fill(0);
            }
            7 => bytes.splice(at..at, *b"\x89KBL\r\n\x1a\x01").for_each(drop),
            _ => {
                let end = (at + 4).min(bytes.len());
                let value = (rng.wide() as u32).to_le_bytes();
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
        }
    }
}

/// Runs until the number of cases or the time is used up; at least a few hundred cases in any case.
fn cases(most: u64, time: Duration, mut case: impl FnMut(u64)) {
    let start = Instant::now();
    for seed in 0..most {
        case(seed);
        if seed >= 300 && start.elapsed() > time {
            break;
        }
    }
}

#[test]
fn damaged_logs_give_only_what_was_written() {
    let logs: Vec<(Vec<u8>, HashSet<String>)> = (0..6)
        .map(|seed| {
            let codec = if seed % 2 == 0 { Codec::None } else { Codec::Zstd };
            let (bytes, records) = sample::log(seed, 5, 30, codec);
            (bytes, records.iter().flatten().map(|r| format!("{r:?}")).collect())
        })
        .collect();
    cases(6000, Duration::from_millis(2000), |seed| {
        let mut rng = Rng::new(seed + 1);
        let (bytes, written) = &logs[rng.below(6) as usize];
        let mut bytes = bytes.clone();
        mutate(&mut rng, &mut bytes);
        if let Some((log, _)) = read(bytes) {
            let strange = |r: &Record| !written.contains(&format!("{r:?}"));
            assert!(!log.cpus().into_iter().any(|cpu| log.records(cpu).any(|r| strange(&r))), "seed {seed}");
        }
    });
}

/// Payload and header fields are damaged and the checksums made right again: the decoder itself is under test.
#[test]
fn lies_under_a_right_checksum_do_no_harm() {
    let logs: Vec<Vec<u8>> =
        (0..6).map(|s| sample::log(s, 3, 60, if s == 5 { Codec::Zstd } else { Codec::None }).0).collect();
    cases(20_000, Duration::from_millis(2500), |seed| {
        let mut rng = Rng::new(seed + 77);
        let mut bytes = logs[rng.below(6) as usize].clone();
        let index = Log::from_bytes(bytes.clone()).unwrap().chunk_index().to_vec();
        for info in &index {
            let start = info.offset as usize;
            let end = start + HEADER_LEN + info.stored_len as usize;
            let chunk = &mut bytes[start..end];
            for _ in 0..rng.below(5) {
                let at = HEADER_LEN as u64 + rng.below(u64::from(info.stored_len));
                let bit = rng.below(8);
                chunk[at as usize] =
                    if rng.one_in(2) { rng.next() as u8 } else { chunk[at as usize] ^ 1 << bit };
            }
            if rng.one_in(4) {
                let at = 8 + rng.below(48) as usize;
                chunk[at] = rng.next() as u8;
            }
            let crc = crc32c::crc32c(&chunk[..HEADER_CRC_AT]);
            chunk[HEADER_CRC_AT..CRC_AT].copy_from_slice(&crc.to_le_bytes());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&chunk[..CRC_AT]), &chunk[HEADER_LEN..]);
            chunk[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        }
        read(bytes);
    });
}

#[test]
fn noise_is_no_log() {
    cases(2000, Duration::from_millis(500), |seed| {
        let mut rng = Rng::new(seed + 5);
        let len = rng.below(600);
        let mut noise: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        if rng.one_in(2) {
            noise.splice(0..0, *b"\x89KBL\r\n\x1a\x01");
        }
        assert!(Log::from_bytes(noise).is_err());
    });
}

/// Headers that each claim the rest of the file, every 64 bytes: looking for whole chunks must stay linear.
#[test]
fn nested_claims_do_not_cost_quadratic_time() {
    let (log, _) = sample::log(1, 1, 5, Codec::None);
    let first = &Log::from_bytes(log.clone()).unwrap().chunk_index()[0].clone();
    let head_len = HEADER_LEN + first.stored_len as usize;
    let template = &log[head_len..head_len + HEADER_LEN];
    let n = 20_000;
    for overrun in [0u32, 1, 64] {
        let mut bytes = log[..head_len].to_vec();
        for i in 0..n {
            let mut head = template.to_vec();
            let claim = (n - 1 - i) as u32 * HEADER_LEN as u32 + overrun;
            head[16..20].copy_from_slice(&claim.to_le_bytes());
            head[20..24].copy_from_slice(&claim.to_le_bytes());
            head[12..16].fill(0);
            let crc = crc32c::crc32c(&head[..HEADER_CRC_AT]);
            head[HEADER_CRC_AT..CRC_AT].copy_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&head);
        }
        // Something that makes the walk doubt the last chunk.
        bytes.extend_from_slice(&[0x55; 32]);
        let start = Instant::now();
        read(bytes);
        assert!(start.elapsed() < Duration::from_secs(5), "overrun {overrun}: {:?}", start.elapsed());
    }
}
