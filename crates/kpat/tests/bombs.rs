//! Small files that stand for much: a log of few kilobytes with millions of records, tables of millions of equal rows, captures
//! in gzip. Each is refused with a sentence or read with the memory that its size allows. The program runs with little
//! address space, and what it took at most is measured.

use crate::fixture;

use fixture::Folder;
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What the program has. Without a bomb, integrating takes two thirds of it, most of it threads' stacks and the program itself.
const MIB: u32 = 600;

/// Status and words of the program with so much address space, MiB: where it would take more, it aborts. 40 seconds of CPU at most.
fn kpat(folder: &Path, mib: u32, args: &[&str]) -> (Option<i32>, String) {
    let script = format!("ulimit -v {}; ulimit -t 40; exec \"$@\"", mib * 1024);
    let done = Command::new("bash")
        .args(["-c", &script, "-", env!("CARGO_BIN_EXE_kpat")])
        .args(args)
        .current_dir(folder)
        // Else each thread reserves 64 MiB and more, which it never touches.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

/// A chunk of footprints of ever new packets: 8 bytes each, all alike.
fn chunk(folder: &Path, seq: u32, records: u32) -> Vec<u8> {
    use kpat_klog::{Codec, Encoder};
    use kpat_model::{BootNs, FootprintRecord, HeaderBytes, PacketId, Record};
    let print = |i: u64| FootprintRecord {
        packet: PacketId(i),
        at: BootNs(1_000_000 + i as i64),
        ifindex: 1,
        netns: 1,
        len_bytes: 60,
        gso_size: 0,
        gso_segs: 0,
        protocol: 0x800,
        start_layer: 2,
        ip_proto: 0,
        link_type: 1,
        skb_tag: 0,
        header: HeaderBytes::new(&[0x45; 14]),
    };
    let payload = |n: u64| {
        let mut e = Encoder::new(0, Codec::None);
        (1..=n).for_each(|i| e.record(&Record::Footprint(Box::new(print(i)))));
        let path = folder.join("chunk");
        let mut w = kpat_klog::Writer::create(&path).unwrap();
        w.chunk(e.finish().unwrap()).unwrap();
        w.flush().unwrap();
        std::fs::read(path).unwrap()
    };
    // The second and every later one are the same bytes.
    let (one, two, three) = (payload(1), payload(2), payload(3));
    let each = three.len() - two.len();
    assert_eq!(two.len() - one.len(), each);
    let mut raw = two[64..].to_vec();
    let repeated = two[two.len() - each..].to_vec();
    assert_eq!(&three[three.len() - each..], repeated.as_slice());
    (2..records).for_each(|_| raw.extend_from_slice(&repeated));
    let stored = zstd::bulk::compress(&raw, 3).unwrap();
    let mut out = one[..64].to_vec();
    out[9] = 1;
    out[12..16].copy_from_slice(&records.to_le_bytes());
    out[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    out[20..24].copy_from_slice(&(raw.len() as u32).to_le_bytes());
    out[24..28].copy_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&stored);
    let crc = crc32c::crc32c(&out[..56]);
    out[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..60]), &out[64..]);
    out[60..64].copy_from_slice(&crc.to_le_bytes());
    out
}

fn log(path: &Path, chunks: u32, records: u32) -> u64 {
    let head = path.with_extension("head");
    let mut w = kpat_klog::Writer::create(&head).unwrap();
    w.json(&kpat_model::meta::Json::Meta(Box::default())).unwrap();
    w.flush().unwrap();
    drop(w);
    let mut bytes = std::fs::read(head).unwrap();
    (1..=chunks).for_each(|seq| bytes.extend(chunk(path.parent().unwrap(), seq, records)));
    std::fs::write(path, &bytes).unwrap();
    bytes.len() as u64
}

#[test]
fn a_log_of_few_bytes_is_no_log_of_millions_of_records() {
    let folder = Folder::new("bomb-log");
    let bytes = log(&folder.0.join("x.kbl"), 2, 2_000_000);
    assert!(bytes < 40_000, "{bytes}");
    let (code, words) = kpat(&folder.0, MIB, &["info", "x.kbl"]);
    assert!(code.is_some(), "{code:?}: {words}");
    let (code, words) = kpat(&folder.0, MIB, &["integrate", "x.kbl", "-o", "x.kpat", "--strict"]);
    assert!(code == Some(3), "{code:?}: {words}");
    assert!(words.contains("pair of lengths") || words.contains("damaged"), "{words}");
    // As tight as a log may be: 64 bytes for one. Memory does not grow with its records.
    let bytes = log(&folder.0.join("tight.kbl"), 40, 900);
    let (code, words) = kpat(&folder.0, MIB, &["integrate", "tight.kbl", "-o", "tight.kpat"]);
    assert!(code == Some(0), "{bytes} bytes: {code:?}: {words}");
}

fn equal_rows<R: kpat_store::Row>(dir: &Path, row: R, n: u64) -> u64 {
    let path = dir.join(R::TABLE.file_name());
    let _ = std::fs::remove_file(&path);
    let mut w = TableWriter::create(dir).unwrap();
    (0..n).for_each(|_| w.push(&row).unwrap());
    w.finish().unwrap();
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn a_table_of_few_bytes_is_no_table_of_millions_of_rows() {
    let folder = Folder::new("bomb-table");
    let dir = fixture::integrated(&folder);
    let process = dir.join("process.parquet");
    let good = std::fs::read(&process).unwrap();
    let task = ProcessRow { at_ns: 1, pid: 1, tgid: 1, comm: "a".into() };
    let bytes = equal_rows(&dir, task, 3_000_000);
    assert!(bytes < 200_000, "{bytes}");
    let (code, words) = kpat(&folder.0, MIB, &["info", "x.kpat"]);
    assert!(code == Some(1), "{code:?}: {words}");
    assert!(words.contains("rows in") && words.contains("process.parquet"), "{words}");
    // A dictionary of one long text, and many rows that name it.
    let long = ProcessRow { at_ns: 1, pid: 1, tgid: 1, comm: "x".repeat(900_000) };
    let bytes = equal_rows(&dir, long, 200);
    assert!(bytes < 200_000, "{bytes}");
    let (code, words) = kpat(&folder.0, MIB, &["info", "x.kpat"]);
    assert!(code == Some(1), "{code:?}: {words}");
    assert!(words.contains("process.parquet"), "{words}");
    // One page that unpacks to much.
    let long = ProcessRow { at_ns: 1, pid: 1, tgid: 1, comm: "x".repeat(100 << 20) };
    let bytes = equal_rows(&dir, long, 1);
    assert!(bytes < 200_000, "{bytes}");
    let (code, words) = kpat(&folder.0, MIB, &["info", "x.kpat"]);
    assert!(code == Some(1), "{code:?}: {words}");
    assert!(words.contains("unpacks to"), "{words}");
    std::fs::write(process, good).unwrap();
    assert_eq!(kpat(&folder.0, MIB, &["info", "x.kpat"]).0, Some(0));
}

/// Interfaces of a capture, each with what its section says of the system.
#[test]
fn a_capture_of_few_bytes_has_not_millions_of_interfaces() {
    let folder = Folder::new("bomb-capture");
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let os = [&[3, 0, 0x00, 0xf0][..], &[b'x'; 0xf000], &[0; 4]].concat();
    let head = [&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8], &os].concat();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(&block(0x0a0d_0d0a, &head)).unwrap();
    let port = block(1, &[1, 0, 0, 0, 0, 0, 4, 0]);
    (0..1_000_000).for_each(|_| gz.write_all(&port).unwrap());
    let bytes = gz.finish().unwrap();
    assert!(bytes.len() < 200_000, "{}", bytes.len());
    std::fs::write(folder.0.join("w.pcapng.gz"), bytes).unwrap();
    fixture::recorded(&folder);
    let log = std::fs::read_dir(&folder.0).unwrap().flatten().map(|e| e.path());
    let log = log.into_iter().find(|p| p.extension().is_some_and(|e| e == "kbl")).unwrap();
    let name = log.file_name().unwrap().to_str().unwrap();
    let (code, words) = kpat(&folder.0, MIB, &["integrate", name, "w.pcapng.gz", "-o", "y.kpat"]);
    assert!(code.is_some(), "{code:?}: {words}");
    assert!(words.contains("interfaces"), "{words}");
}
