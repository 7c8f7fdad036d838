//! Frames per second of reading and decoding a capture: `decode_speed FILE [PASSES]`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use kpat_capture::{Error, Reader, decode};

/// Frames, captured bytes, and how many frames had a transport header.
fn pass(path: &Path, decoded: bool) -> Result<(u64, u64, u64), Error> {
    let mut reader = Reader::open(path)?;
    let (mut frames, mut bytes, mut transports) = (0, 0, 0);
    while let Some(frame) = reader.next()? {
        frames += 1;
        bytes += frame.data.len() as u64;
        if decoded {
            let footprint = black_box(decode::frame(frame.link_type, frame.data, frame.len_wire));
            transports += u64::from(footprint.transport.is_some());
        }
    }
    Ok((frames, bytes, transports))
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let Some(file) = args.get(1) else {
        eprintln!("usage: decode_speed FILE [PASSES]");
        std::process::exit(2);
    };
    let passes = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(5);
    for decoded in [false, true] {
        let mut best = f64::MAX;
        let mut seen = (0, 0, 0);
        for _ in 0..passes {
            let started = Instant::now();
            seen = pass(Path::new(file), decoded)?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        let (frames, bytes, transports) = seen;
        let what = if decoded { "read+decode" } else { "read" };
        println!(
            "{what}: {frames} frames, {bytes} bytes, {transports} with transport, best of {passes}: {best:.4} s, {:.2} M frames/s",
            frames as f64 / best / 1e6
        );
    }
    Ok(())
}
