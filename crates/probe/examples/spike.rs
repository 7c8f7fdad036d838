use kpat_probe::object::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let plan = Plan {
        build: Build::ALL[a.get(1).and_then(|x| x.parse().ok()).unwrap_or(0)],
        ring_bytes: 1 << 20,
        cpus: 2,
        packet_buckets: 4096,
        netns: vec![],
        ifindex: vec![],
        filter: None,
        guess_reuse: true,
    };
    let mut list: Vec<(String, Option<(u32, u32)>)> =
        tracepoint_programs(Build::ALL[a.get(1).and_then(|x| x.parse::<usize>().ok()).unwrap_or(0)])
            .into_iter()
            .map(|p| (p.0, None))
            .collect();
    for (n, ty) in [
        ("kprobe_session", Some((2u32, 56u32))),
        ("fsession_multi", Some((26, 61))),
        ("fentry_one", None),
        ("fexit_one", None),
        ("kprobe_entry", Some((2, 42))),
        ("kprobe_entry", None),
        ("kprobe_return", None),
    ] {
        list.push((n.into(), ty))
    }
    for (n, ty) in list {
        if a.len() > 2 && a[2] != n {
            continue;
        }
        match plan.load(&[(&n, ty)]) {
            Ok(_) => println!("{n} {ty:?} ok"),
            Err(e) => println!("{n} {ty:?} ERR {e}"),
        }
    }
}
