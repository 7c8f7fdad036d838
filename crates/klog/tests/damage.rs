//! Cut, flipped, foreign and growing files: everything whole is read, what is not is reported, nothing panics.

#![allow(clippy::unwrap_used)]

mod sample;

use kpat_klog::*;
use kpat_model::Record;
use kpat_model::meta::Json;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Chunks before the first records: the recording, and its kinds of records.
const BEFORE: usize = 2;

/// Offsets at which a chunk of this undamaged log ends.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let log = Log::from_bytes(bytes.to_vec()).unwrap();
    log.chunk_index().iter().map(|c| c.offset as usize + HEADER_LEN + c.stored_len as usize).collect()
}

fn all(log: &Log) -> usize {
    log.cpus().into_iter().map(|cpu| log.records(cpu).count()).sum()
}

#[test]
fn a_log_cut_anywhere_keeps_its_whole_chunks() {
    let (bytes, _) = sample::log(3, 4, 12, Codec::None);
    let ends = ends(&bytes);
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|e| **e <= cut).count();
        let result = Log::from_bytes(bytes[..cut].to_vec());
        if whole == 0 {
            match result {
                Err(Error::Empty { .. }) => assert_eq!(cut, 0),
                Err(Error::NoMeta { .. }) => assert!(cut > 0),
                _ => panic!("cut at {cut}"),
            }
            continue;
        }
        let log = result.unwrap();
        assert_eq!(log.chunk_index().len(), whole, "cut at {cut}");
        assert_eq!(all(&log), 12 * whole.saturating_sub(BEFORE).min(4), "cut at {cut}");
        assert_eq!(log.issues(), [], "cut at {cut}");
        let tail_bytes = (cut - ends[whole - 1]) as u64;
        if whole == ends.len() {
            assert_eq!(*log.end_state(), EndState::Complete);
        } else {
            assert_eq!(*log.end_state(), EndState::Open { tail_bytes }, "cut at {cut}");
        }
    }
}

#[test]
fn a_flipped_bit_costs_one_chunk_and_is_told() {
    for codec in [Codec::None, Codec::Zstd] {
        let (bytes, _) = sample::log(5, 4, 12, codec);
        let ends = ends(&bytes);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let hit = ends.iter().position(|e| at < *e).unwrap();
            match Log::from_bytes(damaged) {
                Ok(log) => {
                    assert!(hit > 0, "a damaged description was taken, byte {at}");
                    let lost = if (BEFORE..BEFORE + 4).contains(&hit) { 12 } else { 0 };
                    assert_eq!(all(&log), 48 - lost, "byte {at}");
                    if matches!(log.end_state(), EndState::Complete) {
                        assert_eq!(log.issues().len(), 1, "byte {at}: {:?}", log.issues());
                    } else {
                        assert_eq!(hit, BEFORE + 4, "byte {at}");
                        assert_eq!(log.issues().len(), 1, "byte {at}: {:?}", log.issues());
                    }
                }
                Err(Error::NoMeta { why, .. }) => {
                    assert_eq!(hit, 0, "byte {at}");
                    assert!(why.starts_with("damaged"), "{why}");
                }
                Err(e) => panic!("byte {at}: {e}"),
            }
        }
    }
}

#[test]
fn garbage_between_chunks_is_stepped_over() {
    let (bytes, records) = sample::log(7, 6, 40, Codec::None);
    let ends = ends(&bytes);
    for garbage in [&b"\x89"[..], b"\x89KBL\r\n\x1a\x01", &[0; 64], &[0x89; 700], &[0xff; 300_000]] {
        let mut damaged = Vec::new();
        let mut start = 0;
        for end in &ends {
            damaged.extend_from_slice(&bytes[start..*end]);
            damaged.extend_from_slice(garbage);
            start = *end;
        }
        let log = Log::from_bytes(damaged).unwrap();
        assert!(log.records(0).eq(records[0].iter().cloned()));
        assert!(log.records(5).eq(records[1].iter().cloned()));
        let logged: u64 = log.issues().iter().map(|i| i.len).sum();
        assert!(logged >= (garbage.len() * (ends.len() - 1)) as u64);
        assert_eq!(*log.end_state(), EndState::Complete);
    }
}

#[test]
fn a_chunk_cut_in_the_middle_of_a_log_costs_itself_only() {
    let (bytes, _) = sample::log(9, 4, 40, Codec::None);
    let ends = ends(&bytes);
    for lost in [1, 63, 64, 65, 200] {
        for i in BEFORE..ends.len() - 1 {
            let mut damaged = bytes[..ends[i] - lost].to_vec();
            damaged.extend_from_slice(&bytes[ends[i]..]);
            let log = Log::from_bytes(damaged).unwrap();
            assert_eq!(all(&log), 120, "chunk {i} short of {lost} bytes");
            assert_eq!(log.issues().len(), 1, "{:?}", log.issues());
        }
    }
}

#[test]
fn a_missing_chunk_is_told() {
    let (bytes, _) = sample::log(9, 4, 40, Codec::None);
    let ends = ends(&bytes);
    let mut damaged = bytes[..ends[BEFORE]].to_vec();
    damaged.extend_from_slice(&bytes[ends[BEFORE + 2]..]);
    let issues = Log::from_bytes(damaged).unwrap().issues();
    assert_eq!(issues.len(), 1);
    assert_eq!(
        (issues[0].offset, issues[0].reason.as_str()),
        (ends[BEFORE] as u64, "2 chunks are missing here")
    );
}

#[test]
fn foreign_files_are_named() {
    let cases: [(&[u8], &str); 6] = [
        (b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00", "pcap"),
        (b"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00", "pcapng"),
        (b"#!/bin/sh\necho hello\n", "text"),
        (b"\x7fELF\x02\x01\x01", "ELF"),
        (&[0; 5000], "zero"),
        (b"\x00\x01\x02\xfe\xff", "unknown"),
    ];
    for (bytes, word) in cases {
        let Err(e) = Log::from_bytes(bytes.to_vec()) else { panic!("{word} was taken for a log") };
        assert!(matches!(e, Error::NotALog { .. }), "{e}");
        assert!(e.to_string().contains(word), "{e}");
    }
    assert!(matches!(Log::from_bytes(Vec::new()), Err(Error::Empty { .. })));
    let missing = Log::open(std::path::Path::new("/nonexistent/x.kbl")).err().unwrap().to_string();
    assert!(missing.contains("/nonexistent/x.kbl"), "{missing}");
    for (path, word) in [("/dev/null", "device"), ("/", "directory")] {
        let e = Log::open(std::path::Path::new(path)).err().unwrap();
        assert!(matches!(&e, Error::NotALog { found, .. } if found.contains(word)), "{e}");
    }
}

#[test]
fn another_version_is_refused_by_name() {
    let refused = |version: u8| {
        let (mut bytes, _) = sample::log(1, 1, 5, Codec::None);
        bytes[7] = version;
        let crc = crc32c::crc32c(&bytes[..56]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        Log::from_bytes(bytes).err().unwrap()
    };
    assert!(matches!(refused(9), Error::TooNew { version: 9, .. }));
    for version in [1, 2] {
        let old = refused(version);
        assert!(matches!(old, Error::TooOld { version: v, .. } if v == version));
        let words = format!("version {version} of the log format (offset 7), this kpat reads version 3 only");
        assert!(old.to_string().contains(&words), "{old}");
    }
}

#[test]
fn claimed_lengths_are_not_believed() {
    for (at, value) in [(16, u32::MAX), (20, u32::MAX), (12, u32::MAX), (16, 16 << 20), (20, 16 << 20)] {
        let (mut bytes, _) = sample::log(2, 2, 30, Codec::Zstd);
        let start = ends(&bytes)[BEFORE - 1];
        let chunk = &mut bytes[start..];
        chunk[at..at + 4].copy_from_slice(&value.to_le_bytes());
        // A header that agrees with itself: only its claim is wrong.
        let crc = crc32c::crc32c(&chunk[..56]);
        chunk[56..60].copy_from_slice(&crc.to_le_bytes());
        let log = Log::from_bytes(bytes).unwrap();
        assert_eq!(all(&log), 30, "claim {value} at {at}");
        assert_eq!(log.issues().len(), 1, "claim {value} at {at}: {:?}", log.issues());
    }
}

/// Takes `room` bytes, then is full.
struct Small {
    bytes: Vec<u8>,
    room: usize,
}

impl Write for Small {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(self.room - self.bytes.len());
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(&buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn chunk_of(seed: u64, count: usize) -> Chunk {
    let (mut e, mut s) = (Encoder::new(0, Codec::None), sample::Source::new(seed, false));
    for _ in 0..count {
        e.call(&s.call());
    }
    e.finish().unwrap()
}

#[test]
fn a_full_disk_loses_chunks_not_the_log() {
    for room in (3000..4000).step_by(37) {
        let mut w = Writer::new(Small { bytes: Vec::new(), room });
        w.json(&sample::meta()).unwrap_or_else(|e| panic!("{room}: {e}"));
        let mut kept = 0;
        let error = loop {
            match w.chunk(chunk_of(1, 20)) {
                Ok(()) => kept += 1,
                Err(e) => break e,
            }
        };
        let whole = w.bytes_written();
        assert!(matches!(error, Error::DiskFull { offset, .. } if offset == whole), "{error}");
        let mut small = w.into_inner();
        let log = Log::from_bytes(small.bytes.clone()).unwrap();
        assert_eq!(all(&log), kept * 20);
        // Space comes back; this sink cannot be cut, so the torn chunk stays and is stepped over.
        small.room = 100_000;
        let mut again = Writer::new(small);
        again.chunk(chunk_of(2, 20)).unwrap();
        let log = Log::from_bytes(again.into_inner().bytes).unwrap();
        assert_eq!(all(&log), (kept + 1) * 20);
    }
}

#[test]
fn a_full_device_is_called_by_its_name() {
    let mut w = Writer::create(std::path::Path::new("/dev/full")).unwrap();
    let e = w.json(&sample::meta()).unwrap_err();
    assert!(matches!(e, Error::DiskFull { .. }), "{e}");
    assert!(e.to_string().contains("/dev/full"), "{e}");
}

struct TempDir(std::path::PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("kpat-klog-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_log_is_read_while_it_is_written() {
    let dir = TempDir::new("grow");
    let path = dir.0.join("x.kbl");
    let mut w = Writer::create(&path).unwrap();
    w.json(&sample::meta()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut seen, mut rounds) = (0, 0);
            loop {
                let last = done.load(Ordering::Acquire);
                let log = Log::open(&path).unwrap();
                let now = all(&log);
                assert!(now >= seen && now.is_multiple_of(100), "{seen} then {now}");
                assert_eq!(log.issues(), []);
                (seen, rounds) = (now, rounds + 1);
                if last {
                    assert_eq!(*log.end_state(), EndState::Complete);
                    return (seen, rounds);
                }
                assert!(matches!(log.end_state(), EndState::Open { .. } | EndState::Complete));
            }
        });
        for seed in 0..300 {
            w.chunk(chunk_of(seed, 100)).unwrap();
        }
        w.json(&sample::summary(true)).unwrap();
        w.flush().unwrap();
        done.store(true, Ordering::Release);
        let (seen, rounds) = reader.join().unwrap();
        assert_eq!(seen, 30_000);
        assert!(rounds > 0);
    });
    let records: Vec<Record> = Log::open(&path).unwrap().records(0).collect();
    assert_eq!(records.len(), 30_000);
}

#[test]
fn a_summary_that_is_not_last_does_not_close_the_log() {
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    w.json(&sample::summary(true)).unwrap();
    w.chunk(chunk_of(1, 3)).unwrap();
    let log = Log::from_bytes(w.into_inner()).unwrap();
    assert_eq!(*log.end_state(), EndState::Open { tail_bytes: 0 });
    let json = Json::Anchor(Default::default());
    let mut w = Writer::new(Vec::new());
    w.json(&json).unwrap();
    assert!(matches!(Log::from_bytes(w.into_inner()), Err(Error::NoMeta { .. })));
}

/// A chunk of JSON, packed as tightly as it may be.
fn words(seq: u32, text: &[u8]) -> Vec<u8> {
    let mut stored = zstd::bulk::compress(text, 3).unwrap();
    // A frame that unpacking passes over.
    let more = (text.len() / 64).saturating_sub(stored.len());
    stored.extend([&0x184d_2a50u32.to_le_bytes()[..], &(more as u32).to_le_bytes(), &vec![0; more]].concat());
    let mut out = vec![0; HEADER_LEN];
    out[..8].copy_from_slice(b"\x89KBL\r\n\x1a\x03");
    (out[8], out[9]) = (1, 1);
    out[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    out[20..24].copy_from_slice(&(text.len() as u32).to_le_bytes());
    out[24..28].copy_from_slice(&seq.to_le_bytes());
    out.extend(stored);
    let crc = crc32c::crc32c(&out[..56]);
    out[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..60]), &out[HEADER_LEN..]);
    out[60..64].copy_from_slice(&crc.to_le_bytes());
    out
}

#[test]
fn few_bytes_of_json_are_not_millions_of_structures() {
    let (bytes, _) = sample::log(3, 4, 12, Codec::None);
    let last = Log::from_bytes(bytes.clone()).unwrap().chunk_index().len() as u32;
    let devices = |n: usize| format!("{{\"devices\":[{}{{}}]}}", "{},".repeat(n)).into_bytes();
    // Few are read.
    let log = Log::from_bytes([bytes.clone(), words(last, &devices(1000))].concat()).unwrap();
    assert_eq!(log.issues(), []);
    let bomb = words(last, &devices(5_500_000));
    assert!(bomb.len() < 300_000, "{}", bomb.len());
    let log = Log::from_bytes([bytes.clone(), bomb].concat()).unwrap();
    assert!(log.issues().iter().any(|i| i.reason.contains("bytes of memory")), "{:?}", log.issues());
    assert_eq!(all(&log), 48);
    // Nor many chunks of less.
    let many = (0..40).flat_map(|i| words(last + i, &devices(100_000))).collect::<Vec<u8>>();
    let log = Log::from_bytes([bytes, many].concat()).unwrap();
    assert!(log.issues().iter().any(|i| i.reason.contains("bytes of memory")), "{:?}", log.issues());
}
