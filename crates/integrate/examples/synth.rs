//! A log of N calls and a capture of M frames for the benchmark: `synth DIR [CALLS] [FRAMES]` writes DIR/x.kbl and
//! DIR/w.pcapng; `synth integrate DIR` joins them, or what else has those names; `synth look DIR` times the look-ups; `synth read DIR` decodes both and
//! does nothing else, which is the least that joining them can cost.

#![allow(clippy::unwrap_used, reason = "a tool for benchmarks; a panic is its error message")]

#[path = "../tests/world/mod.rs"]
mod world;

use kpat_integrate::{Options, integrate};
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::{CallFilter, FunctionFilter, FunctionSort, PacketFilter, PacketSort, Store};
use std::path::Path;
use std::time::Instant;
use world::*;

const PATH: [&str; 24] = [
    "napi_gro_receive",
    "dev_gro_receive",
    "inet_gro_receive",
    "udp4_gro_receive",
    "netif_receive_skb_list_internal",
    "__netif_receive_skb_core",
    "ip_rcv",
    "ip_rcv_core",
    "nf_hook_slow",
    "nf_conntrack_in",
    "ip_rcv_finish",
    "ip_route_input_noref",
    "ip_forward",
    "ip_forward_finish",
    "ip_output",
    "nf_nat_inet_fn",
    "ip_finish_output2",
    "neigh_resolve_output",
    "__dev_queue_xmit",
    "validate_xmit_skb",
    "dev_hard_start_xmit",
    "start_xmit",
    "consume_skb",
    "skb_release_data",
];
const SEC: i64 = 1_000_000_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map(String::as_str);
    match (arg(0), arg(1)) {
        (Some("integrate"), Some(dir)) => join(Path::new(dir)),
        (Some("look"), Some(dir)) => look(Path::new(dir)),
        (Some("read"), Some(dir)) => read(Path::new(dir)),
        (Some(dir), _) => {
            let number = |i: usize, default| arg(i).map_or(default, |n| n.parse().unwrap());
            make(Path::new(dir), number(1, 10_000_000), number(2, 1_000_000));
        }
        _ => eprintln!("synth DIR [CALLS] [FRAMES] | synth integrate DIR | synth look DIR | synth read DIR"),
    }
}

/// Four CPUs forward packets, 24 nested and following calls each; a frame on each link until there are enough.
fn make(dir: &Path, calls: u64, frames: u64) {
    std::fs::create_dir_all(dir).unwrap();
    let r: [Mac; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
    let hosts: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 4]];
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let mut log =
        LogWriter::create(&dir.join("x.kbl"), &PATH, &[(2, "eth0", r[0]), (3, "eth1", r[1])], anchor);
    let mut cap = Capture::new(&dir.join("w.pcapng"), &["tap0", "tap1"]);
    let clock = Clock { offset: 1_700_000_000 * SEC + 3_000_000, drift: 30e-6 };
    let mut random = Random(11);
    let (mut packet, mut captured) = (0u64, 0u64);
    while log.calls < calls {
        packet += 1;
        let cpu = (packet % 4) as u16;
        // 80,000 packets each second over all CPUs: 1.9 million calls per second.
        let at = 10 * SEC + (packet / 4) as i64 * 50_000 + random.below(1000);
        let a = At { cpu, ctx: Context::Softirq, pid: 0, packet };
        let flow = (packet * 7919 % 1000) as u16;
        let rest = if packet % 3 == 0 {
            udp(1000 + flow, 53, 400)
        } else {
            tcp(2000 + flow, 443, (packet as u32).wrapping_mul(1448), 1, 0x10)
        };
        let proto = if packet % 3 == 0 { 17 } else { 6 };
        let (src, dst) = ([10, 1, (flow >> 8) as u8, flow as u8], [10, 2, 0, 1]);
        let len = if proto == 17 { 408 } else { 1468 };
        let ident = (packet / 1000) as u16 | 1;
        let before = ether(r[0], hosts[0], 0x800, &ipv4(src, dst, ident, proto, 64, len, &rest));
        let after = ether(hosts[1], r[1], 0x800, &ipv4(src, dst, ident, proto, 63, len, &rest));
        log.print(a, at + 50, 2, &before, len as u32 + 34, (0, 0));
        log.print(a, at + 17_000, 3, &after, len as u32 + 34, (0, 0));
        // Nested in fours: each group of four is one tree.
        for (k, name) in PATH.iter().enumerate() {
            let (group, depth) = ((k / 4) as i64, (k % 4) as i64);
            let entry = at + group * 4000 + depth * 300;
            let end = at + group * 4000 + 3800 - depth * (300 + random.below(100));
            log.call(a, name, entry, end);
        }
        log.free(a, at + 24_000);
        if captured < frames {
            captured += 1;
            cap.frame(clock.wall(at - 15_000 - random.below(30_000)), 0, before, len as u32 + 34, packet);
        }
        if captured < frames {
            captured += 1;
            cap.frame(clock.wall(at + 30_000 + random.below(30_000)), 1, after, len as u32 + 34, packet);
        }
        if packet % 4 == 0 {
            log.flush();
        }
    }
    println!("{} calls, {packet} packets, {captured} frames", log.calls);
    log.close();
    cap.close();
}

fn join(dir: &Path) {
    let started = Instant::now();
    let mut last = None;
    let options = Options { overwrite: true, ..Options::default() };
    let captures: Vec<_> = Some(dir.join("w.pcapng")).filter(|c| c.exists()).into_iter().collect();
    let report = integrate(&dir.join("x.kbl"), &captures, &dir.join("x.kpat"), &options, &mut |p| {
        if last != Some(p.stage) {
            last = Some(p.stage);
            println!("{:6.2} s {:?}", started.elapsed().as_secs_f64(), p.stage);
        }
    })
    .unwrap();
    let s = started.elapsed().as_secs_f64();
    println!(
        "{s:.2} s, {:.0} records/s, {} calls, {} packets, {} of {} frames matched, {} ambiguous",
        report.records as f64 / s,
        report.calls,
        report.packets,
        report.matched,
        report.frames,
        report.ambiguous
    );
    println!("{:?} {:?}", report.clocks, report.warnings);
}

fn read(dir: &Path) {
    let started = Instant::now();
    let log = kpat_klog::Log::open(&dir.join("x.kbl")).unwrap();
    let records = log.all_merged().count();
    println!("{:.2} s: {records} records decoded, in order of time", started.elapsed().as_secs_f64());
    let started = Instant::now();
    let mut reader = kpat_capture::Reader::open(&dir.join("w.pcapng")).unwrap();
    let (mut frames, mut known) = (0u64, 0u64);
    while let Some(frame) = reader.next().unwrap() {
        frames += 1;
        let print = kpat_capture::decode::frame(frame.link_type, frame.data, frame.len_wire);
        known += u64::from(print.network.is_some());
    }
    println!("{:.2} s: {frames} frames decoded, {known} of them IP", started.elapsed().as_secs_f64());
}

fn look(dir: &Path) {
    let timed = |what: &str, f: &mut dyn FnMut() -> String| {
        let started = Instant::now();
        let reported = f();
        println!("{:8.1} ms {what}: {reported}", started.elapsed().as_secs_f64() * 1000.0);
    };
    let store = Store::open(&dir.join("x.kpat")).unwrap();
    timed("open", &mut || {
        Store::open(&dir.join("x.kpat")).unwrap();
        String::new()
    });
    for id in [5, 200_000, 400_000] {
        timed("packet", &mut || match store.packet(id) {
            Ok(p) => format!("{} calls, {} frames", p.packet.calls, p.frames.len()),
            Err(e) => e.to_string(),
        });
    }
    timed("function", &mut || {
        let f = store
            .function("ip_forward", &CallFilter { limit: 50, longest_first: true, ..Default::default() })
            .unwrap();
        format!("{} calls, {} packets", f.total, f.function.packets)
    });
    timed("functions", &mut || {
        store.functions(&FunctionFilter::default(), FunctionSort::SelfTime, 20).total.to_string()
    });
    timed("packets by path", &mut || {
        store.packets(&PacketFilter::default(), PacketSort::Path, false, 50).unwrap().total.to_string()
    });
    timed("packets of a function", &mut || {
        let filter = PacketFilter { func: Some("nf_*".into()), ..Default::default() };
        store.packets(&filter, PacketSort::Time, false, 50).unwrap().total.to_string()
    });
    timed("info", &mut || format!("{:?}", store.info().unwrap().conservation.verdicts));
}
