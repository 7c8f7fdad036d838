//! What coding costs, in time and bytes: `cargo run --release -p kpat-klog --example encode_speed`.
//!
//! The stream looks like a CPU of a forwarding and serving host: packets arrive one after another, each goes through one
//! of a few call trees of 12 to 40 functions, calls end innermost first, tasks change now and then.

use kpat_klog::{Codec, Encoder, Log, Writer};
use kpat_model::meta::{Json, Meta};
use kpat_model::record::{Call, FootprintRecord};
use kpat_model::*;
use std::hint::black_box;
use std::time::Instant;

/// Records of the stream: as many as stay in the cache, since a drain takes them from a ring that it just read.
const CALLS: usize = 20_000;
/// Times that the stream is coded in one go.
const TIMES: usize = 100;
const ROUNDS: usize = 15;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A call tree as (function, children), cut out of a made-up kernel of 3000 functions.
fn tree(rng: &mut Rng, depth: u64) -> (u16, Vec<usize>, u64) {
    let width = if depth > 4 { 0 } else { rng.below(4) };
    (rng.below(3000) as u16, (0..width as usize).collect(), 40 + rng.below(400))
}

struct Node {
    func: u16,
    own_ns: u64,
    children: Vec<Node>,
}

fn grow(rng: &mut Rng, depth: u64, left: &mut i32) -> Node {
    let (func, slots, own_ns) = tree(rng, depth);
    *left -= 1;
    let mut children = Vec::new();
    for _ in slots {
        if *left > 0 {
            children.push(grow(rng, depth + 1, left));
        }
    }
    Node { func, own_ns, children }
}

fn run(node: &Node, rng: &mut Rng, now: &mut i64, base: &Call, out: &mut Vec<Record>) {
    let entry = *now;
    let jitter = |rng: &mut Rng| (node.own_ns / 2 + rng.below(node.own_ns)) as i64;
    *now += jitter(rng) / 2;
    for child in &node.children {
        // A branch that is not always taken.
        if rng.below(16) != 0 {
            run(child, rng, now, base, out);
        }
    }
    *now += jitter(rng) / 2;
    let dur_ns = (*now - entry) as u64;
    out.push(Record::Call(Call { func: FuncId(node.func), entry: BootNs(entry), dur_ns, ..*base }));
}

fn stream(footprints: bool) -> Vec<Record> {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let trees: Vec<Node> = (0..6)
        .map(|_| {
            loop {
                let mut left = 40;
                let node = grow(&mut rng, 0, &mut left);
                if left <= 28 {
                    break node;
                }
            }
        })
        .collect();
    let mut out = Vec::with_capacity(CALLS + 100);
    let (mut now, mut packet) = (86_400_000_000_000i64, 1u64);
    let mut header: Vec<u8> = (0..54).map(|i| i * 3).collect();
    while out.len() < CALLS {
        packet += 1 + rng.below(3);
        now += rng.below(3000) as i64;
        let task = rng.below(5) == 0;
        let base = Call {
            func: FuncId(0),
            ctx: if task { Context::Task } else { Context::Softirq },
            flags: 0,
            skb_tag: (rng.below(64) * 256) as u16,
            pid: if task { 4000 + rng.below(3) as u32 } else { 0 },
            packet: PacketId(packet),
            entry: BootNs(0),
            dur_ns: 0,
        };
        if footprints {
            // What changes from packet to packet: identification, checksums, sequence, acknowledgement.
            for at in [19, 24, 25, 40, 41, 44, 45, 50, 51] {
                header[at] = rng.below(256) as u8;
            }
            out.push(Record::Footprint(Box::new(FootprintRecord {
                packet: base.packet,
                at: BootNs(now),
                ifindex: 2,
                netns: 4_026_531_840,
                len_bytes: 1514,
                gso_size: 0,
                gso_segs: 0,
                protocol: 0x800,
                start_layer: 2,
                ip_proto: 0,
                link_type: 1,
                skb_tag: base.skb_tag,
                header: HeaderBytes::new(&header),
            })));
        }
        run(&trees[rng.below(6) as usize], &mut rng, &mut now, &base, &mut out);
    }
    out
}

/// Median and best: on a machine that others use too, the best is what the code costs.
fn median_best(mut v: Vec<f64>) -> String {
    v.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1})", v[v.len() / 2], v[0])
}

fn main() -> Result<(), kpat_klog::Error> {
    println!("{:<22} {:<6} {:>14} {:>11} {:>14}", "stream", "codec", "encode ns", "bytes/event", "decode ns");
    for (name, footprints) in [("calls", false), ("calls and footprints", true)] {
        let records = stream(footprints);
        for (codec_name, codec) in [("none", Codec::None), ("zstd-1", Codec::Zstd)] {
            let (mut encode, mut decode) = (Vec::new(), Vec::new());
            let mut bytes_per_event = 0.0;
            for _ in 0..ROUNDS {
                let mut out = vec![1; 12 * CALLS * TIMES];
                out.clear();
                let mut writer = Writer::new(out);
                writer.json(&Json::Meta(Box::<Meta>::default()))?;
                let mut encoder = Encoder::new(0, codec);
                let empty = writer.bytes_written();
                let start = Instant::now();
                for record in (0..TIMES).flat_map(|_| &records) {
                    encoder.record(black_box(record));
                    if encoder.is_full()
                        && let Some(chunk) = encoder.finish()
                    {
                        writer.chunk(chunk)?;
                    }
                }
                if let Some(chunk) = encoder.finish() {
                    writer.chunk(chunk)?;
                }
                let n = (records.len() * TIMES) as f64;
                encode.push(start.elapsed().as_nanos() as f64 / n);
                bytes_per_event = (writer.bytes_written() - empty) as f64 / n;
                let log = Log::from_bytes(writer.into_inner())?;
                let start = Instant::now();
                let mut count = 0;
                for record in log.records(0) {
                    black_box(&record);
                    count += 1;
                }
                assert_eq!(count, records.len() * TIMES);
                decode.push(start.elapsed().as_nanos() as f64 / n);
            }
            println!(
                "{name:<22} {codec_name:<6} {:>14} {bytes_per_event:>11.2} {:>14}",
                median_best(encode),
                median_best(decode)
            );
        }
    }
    coder_alone();
    open_speed()
}

/// Only the coding of calls, without checksum and output.
fn coder_alone() {
    let calls: Vec<Call> = stream(false)
        .into_iter()
        .filter_map(|r| match r {
            Record::Call(c) => Some(c),
            _ => None,
        })
        .collect();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let mut encoder = Encoder::new(0, Codec::None);
        let start = Instant::now();
        for _ in 0..TIMES {
            for call in &calls {
                encoder.call(black_box(call));
                if encoder.is_full() {
                    black_box(encoder.finish());
                }
            }
        }
        times.push(start.elapsed().as_nanos() as f64 / (calls.len() * TIMES) as f64);
    }
    println!("coder alone: {} ns per call", median_best(times));
}

/// How long a log takes to open, for each GB of it.
fn open_speed() -> Result<(), kpat_klog::Error> {
    let path = std::env::temp_dir().join(format!("kpat-encode-speed-{}.kbl", std::process::id()));
    let mut writer = Writer::create(&path)?;
    writer.json(&Json::Meta(Box::<Meta>::default()))?;
    let mut encoder = Encoder::new(0, Codec::None);
    stream(false).iter().for_each(|r| encoder.record(r));
    if let Some(chunk) = encoder.finish() {
        for _ in 0..2000 {
            writer.chunk(chunk.clone())?;
        }
    }
    let gigabytes = writer.bytes_written() as f64 / 1e9;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        black_box(Log::open(&path)?);
        times.push(start.elapsed().as_secs_f64() * 1e3 / gigabytes);
    }
    // Left behind in a temporary directory it would do no harm.
    let _ = std::fs::remove_file(&path);
    println!("open: {} ms per GB, in the page cache", median_best(times));
    Ok(())
}
