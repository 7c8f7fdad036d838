//! The program for tracepoints of radios, on tracepoints that every kernel has: what it copies is what tracefs' own text says.

use kpat_model::wifi::WifiPoint;
use kpat_probe::object::{Build, Plan, Side};
use kpat_probe::ring::{Raw, Rings};
use kpat_probe::{kernel, mechanism, radios, sys};
use std::collections::BTreeSet;
use std::process::Command;

fn run(words: &[&str]) {
    let status = Command::new("/sbin/ip").args(words).status().expect("iproute2 is installed");
    assert!(status.success(), "{words:?}");
}

struct Netns(String);

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/ip").args(["netns", "del", &self.0]).status();
    }
}

struct Instance(String);

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{}/tracing_on", self.0), "0");
        let _ = std::fs::write(format!("{}/events/enable", self.0), "0");
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn fields_are_read_where_the_kernels_format_has_them() {
    let (Ok(picked), Some(tracefs)) = (mechanism::pick_build(), kernel::tracefs()) else {
        eprintln!("SKIPPED: no program loads here, there is no tracefs, or this is not root");
        return;
    };
    let row = WifiPoint::parse("net:net_dev_queue frame-request a=len text=name").expect("a row");
    let found = radios::find(&[row]);
    let [point] = found.points[..] else { panic!("{:?}", found.left_out) };
    let plan = Plan {
        build: Build { direct: false, ..picked.build },
        side: Side::Wifi,
        ring_bytes: 1 << 16,
        cpus: kernel::possible_cpus(),
        packet_buckets: 16,
        netns: Vec::new(),
        ifindex: Vec::new(),
        filter: None,
        guess_reuse: false,
        clone_cookies: Vec::new(),
        own_packets: false,
        within: false,
        by_process: false,
        constants: Vec::new(),
    };
    let loaded = plan.load(&[("radio_point", None)]).unwrap_or_else(|e| panic!("{e}"));
    radios::configure(&loaded, &[point]).expect("the table is written");
    let map = |name: &str| loaded.map_fd(name).expect(name);
    let rings =
        Rings::new(map("rings"), map(".data.ids"), map(".data.limit"), 1 << 16, plan.cpus, Side::Wifi.slot())
            .expect("rings");
    let modes = sys::Mapping::new(map(".data.modes"), 8192).expect("switches");
    // SAFETY: the switch lies inside of the mapping; the kernel reads single bytes.
    unsafe { modes.as_ptr().add(point.switch()).write_volatile(3) };
    let own = std::process::id();
    let (netns, device) = (Netns(format!("kpat-radio-{own}")), format!("kr{own}"));
    run(&["netns", "add", &netns.0]);
    run(&["-n", &netns.0, "link", "set", "lo", "up"]);
    run(&["-n", &netns.0, "link", "add", &device, "type", "veth", "peer", "name", "peer"]);
    run(&["-n", &netns.0, "link", "set", "peer", "up"]);
    run(&["-n", &netns.0, "addr", "add", "10.78.0.1/24", "dev", &device]);
    let instance = Instance(format!("{tracefs}/instances/kpat-radio-{own}"));
    std::fs::create_dir(&instance.0).expect("an instance of tracefs");
    let write = |file: &str, text: &str| {
        std::fs::write(format!("{}/{file}", instance.0), text).unwrap_or_else(|e| panic!("{file}: {e}"))
    };
    write("trace_clock", "boot");
    write("events/net/net_dev_queue/filter", &format!("name == \"{device}\""));
    let link = radios::attach(&loaded, "radio_point", point).unwrap_or_else(|e| panic!("{e}"));
    write("events/net/net_dev_queue/enable", "1");
    run(&["-n", &netns.0, "link", "set", &device, "up"]);
    for size in ["10", "100", "1000"] {
        let ping = ["netns", "exec", &netns.0, "ping", "-c", "1", "-W", "1", "-s", size, "-b", "10.78.0.255"];
        let _ = Command::new("/sbin/ip").args(ping).output();
    }
    write("events/net/net_dev_queue/enable", "0");
    drop(link);
    let text = std::fs::read_to_string(format!("{}/trace", instance.0)).expect("the trace");
    // `... [001] ..... 123.456789: net_dev_queue: dev=kr7 skbaddr=... len=52`
    let traced: Vec<(i64, u64)> = text
        .lines()
        .filter(|l| l.contains(&format!("dev={device} ")))
        .map(|l| {
            let at =
                l.split(": net_dev_queue").next().and_then(|l| l.split(' ').next_back()).expect("a time");
            let len = l.rsplit("len=").next().and_then(|n| n.trim().parse().ok()).expect("a length");
            ((at.parse::<f64>().expect("seconds") * 1e9) as i64, len)
        })
        .collect();
    let mut recorded: Vec<(i64, u64)> = Vec::new();
    for cpu in 0..plan.cpus {
        rings.drain(cpu, &mut |raw, _| {
            let Raw::Radio(r) = raw else { return };
            let name = &r.data[96..][..usize::from(r.text_len)];
            assert_eq!(r.h.func, point.function.id);
            if name.strip_suffix(b"\0") == Some(device.as_bytes()) {
                let len = u64::from_le_bytes(r.data[64..72].try_into().expect("eight bytes"));
                recorded.push((r.h.ts as i64, len));
            }
        });
    }
    recorded.sort_unstable();
    assert!(traced.len() >= 3, "{text}");
    // The kernel's own tracer was off first, and the kernel announces itself over IPv6 when it likes.
    let last = traced.iter().map(|t| t.0).max().expect("three");
    recorded.retain(|r| r.0 < last + 1_000_000);
    let lengths: BTreeSet<u64> = traced.iter().map(|t| t.1).collect();
    assert!(lengths.len() >= 3, "{lengths:?}");
    assert_eq!(recorded.len(), traced.len(), "{recorded:?}\n{text}");
    for (ours, theirs) in recorded.iter().zip(&traced) {
        assert!(ours.1 == theirs.1 && (ours.0 - theirs.0).abs() < 1_000_000, "{ours:?} {theirs:?}");
    }
}
