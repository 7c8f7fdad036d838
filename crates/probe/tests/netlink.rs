//! Real changes in a namespace of our own become events with the right text; any bytes are survived. The first part needs
//! root and `ip`; without root the test says so.

use kpat_model::{BootNs, Event, EventKind};
use kpat_probe::netlink::{self, Decoder, Error, Monitor, Seen};
use kpat_probe::sys::boot_now;
use std::process::Command;
use std::time::{Duration, Instant};

fn root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: network namespaces need root");
    }
    root
}

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output().expect("iproute2 is installed");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A namespace that goes whatever happens.
struct Namespace(String);

impl Namespace {
    fn new(what: &str) -> Namespace {
        let name = format!("kpat-{what}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Namespace(name)
    }

    fn ip(&self, args: &str) {
        ip(&format!("-n {} {args}", self.0));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Waits for an event of that kind and exact text.
fn expect(monitor: &Monitor, seen: &mut Vec<Event>, kind: EventKind, text: &str) -> Event {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        monitor.drain(&mut |s| {
            if let Seen::Event(e, after) = s {
                assert!(after <= e.at, "{after:?} {e:?}");
                seen.push(e);
            }
        });
        if let Some(n) = seen.iter().position(|e| e.kind == kind && e.text == text) {
            return seen.remove(n);
        }
        assert!(
            Instant::now() < end,
            "no {text:?} in {:#?}",
            seen.iter().map(|e| &e.text).collect::<Vec<_>>()
        );
        std::thread::yield_now();
    }
}

#[test]
fn changes_become_events() {
    if !root() {
        return;
    }
    let ns = Namespace::new("nl");
    ns.ip("link add c0 type veth peer name c1");
    ns.ip("addr add 10.7.1.2/24 dev c0");
    let netns = netlink::by_name(&ns.0).unwrap();
    let before = boot_now();
    let monitor = Monitor::start(std::slice::from_ref(&netns), false, None).unwrap();
    let mut seen = Vec::new();
    let mut expect = |kind, text: &str| expect(&monitor, &mut seen, kind, text);

    ns.ip("link set c0 up");
    let e = expect(EventKind::Link, "c0 up no-carrier (before: down)");
    assert_eq!((e.netns, e.b & 1), (netns.inum, 1));
    assert!(e.at > before && e.at <= boot_now());
    ns.ip("link set c1 up");
    expect(EventKind::Link, "c1 up carrier (before: down)");
    expect(EventKind::Link, "c0 up carrier (before: up no-carrier)");

    ns.ip("route add default via 10.7.1.1 dev c0");
    assert_eq!(expect(EventKind::Route, "default via 10.7.1.1 dev c0").a, 1);
    ns.ip("route del default via 10.7.1.1 dev c0");
    assert_eq!(expect(EventKind::Route, "default via 10.7.1.1 dev c0").a, 0);
    ns.ip("route add blackhole 10.9.0.0/16 metric 7");
    expect(EventKind::Route, "blackhole 10.9.0.0/16 metric 7");
    ns.ip("route add 10.8.0.1 nexthop via 10.7.1.1 dev c0 nexthop via 10.7.1.3 dev c0 weight 3");
    expect(
        EventKind::Route,
        "10.8.0.1 nexthop via 10.7.1.1 dev c0 weight 1 nexthop via 10.7.1.3 dev c0 weight 3",
    );
    ns.ip("route add 2001:db8::/32 dev c0 metric 5");
    expect(EventKind::Route, "2001:db8::/32 dev c0 metric 5");

    ns.ip("neigh add 10.7.1.1 lladdr 02:00:00:00:00:09 dev c0 nud reachable");
    let e = expect(EventKind::Neighbour, "10.7.1.1 lladdr 02:00:00:00:00:09 dev c0 REACHABLE");
    assert_eq!(e.a, 2);
    ns.ip("neigh del 10.7.1.1 dev c0");
    expect(EventKind::Neighbour, "10.7.1.1 dev c0 removed");

    ns.ip("link set c0 mtu 1400");
    expect(EventKind::Link, "c0 up carrier mtu 1400");
    ns.ip("link set c0 down");
    expect(EventKind::Link, "c0 down (before: up carrier)");
    ns.ip("link set c0 name r0");
    expect(EventKind::Link, "r0 down (was c0)");
    ns.ip("link add b0 type bridge");
    expect(EventKind::Link, "b0 down (new)");
    ns.ip("link set r0 master b0");
    expect(EventKind::Link, "r0 down master b0");
    ns.ip("link del r0");
    expect(EventKind::Link, "r0 removed");
    assert_eq!(monitor.overruns(), 0);
}

#[test]
fn devices_and_namespaces_are_listed() {
    if !root() {
        return;
    }
    let ns = Namespace::new("dev");
    ns.ip("link add c0 address 02:00:00:00:00:07 mtu 1300 type veth peer name c1");
    let netns = netlink::by_name(&ns.0).unwrap();
    assert!(netlink::named_netns().contains(&netns));
    let found = netlink::devices(&netns).unwrap();
    let names: Vec<&str> = found.iter().map(|d| d.name.as_str()).collect();
    assert!(names.starts_with(&["lo"]) && names.contains(&"c0") && names.contains(&"c1"), "{names:?}");
    let c0 = found.iter().find(|d| d.name == "c0").unwrap();
    assert_eq!(
        (c0.mac.as_str(), c0.mtu, c0.link_type, c0.driver.as_str()),
        ("02:00:00:00:00:07", 1300, 1, "veth")
    );
    assert_eq!((c0.netns, c0.netns_name.as_str()), (netns.inum, ns.0.as_str()));
    assert_eq!(found[0].link_type, 772);

    // A macvlan is above a link, in its namespace; the other end of a veth is none that it is above.
    let other = Namespace::new("up");
    ns.ip("link add m0 link c1 type macvlan");
    ns.ip("link add m1 link m0 type macvlan");
    ns.ip(&format!("link add m2 link c1 netns {} type macvlan", other.0));
    let above = |ns: &Namespace, name: &str| {
        let all = netlink::devices(&netlink::by_name(&ns.0).unwrap()).unwrap();
        let below = all.iter().find(|d| d.name == name).unwrap().above?;
        Some(all.iter().find(|d| d.ifindex == below).unwrap().name.clone())
    };
    // As many as the kernel flattens: a macvlan of a macvlan is one of the same link.
    for (name, below) in [("m0", Some("c1")), ("m1", Some("c1")), ("c0", None), ("c1", None), ("lo", None)] {
        assert_eq!(above(&ns, name).as_deref(), below, "{name}");
    }
    assert_eq!(above(&other, "m2"), None);

    let own = netlink::current_netns().unwrap();
    assert_ne!(own.inum, netns.inum);
    assert!(netlink::devices(&own).unwrap().iter().any(|d| d.name == "lo"));
    let reported = netlink::by_name("kpat-no-such").unwrap_err();
    assert!(matches!(&reported, Error::NoSuchName { known, .. } if known.contains(&ns.0)), "{reported}");
}

/// Everything a monitor tells, until something fits.
fn until(monitor: &Monitor, all: &mut Vec<Seen>, fits: impl Fn(&[Seen]) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !fits(all) {
        assert!(Instant::now() < end, "{all:#?}");
        monitor.drain(&mut |s| all.push(s));
        std::thread::yield_now();
    }
}

/// Events that were reported, each with the moment after which it happened.
fn events(all: &[Seen]) -> impl Iterator<Item = (&Event, BootNs)> {
    all.iter().filter_map(|s| match s {
        Seen::Event(e, after) => Some((e, *after)),
        _ => None,
    })
}

fn has(all: &[Seen], text: &str) -> bool {
    events(all).any(|(e, _)| e.text == text)
}

/// What a namespace that came does is reported with bounds that the commands' own times lie in, its devices are named, and it is let go.
#[test]
fn a_namespace_that_comes_is_followed_and_one_that_goes_is_let_go() {
    if !root() {
        return;
    }
    let outside = Namespace::new("far");
    outside.ip("link add far0 type veth peer name near0");
    let monitor = Monitor::start(&[netlink::by_name(&outside.0).unwrap()], true, None).unwrap();
    let mut all = Vec::new();

    let before = boot_now();
    let came = Namespace::new("came");
    came.ip("addr add 10.7.9.1/24 dev lo");
    let netns = netlink::by_name(&came.0).unwrap();
    until(&monitor, &mut all, |all| events(all).any(|(e, _)| e.text.starts_with("10.7.9.1/24 dev lo")));
    let of_it = |e: &Event| e.netns == netns.inum;
    let (e, after) = events(&all).find(|(e, _)| of_it(e) && e.kind == EventKind::Link).unwrap();
    assert!(e.text.starts_with("lo down"), "{e:?}");
    assert!(after <= boot_now() && e.at > before, "{after:?} {e:?} {before:?}");

    // a cable from outside into it
    let begun = boot_now();
    outside.ip(&format!("link set near0 netns {}", came.0));
    let moved = boot_now();
    until(&monitor, &mut all, |all| has(all, "near0 removed") && has(all, "near0 down (new)"));
    let (e, after) = events(&all).find(|(e, _)| e.text == "near0 down (new)").unwrap();
    assert!(of_it(e) && after < moved && e.at > begun, "{begun:?} {moved:?} {after:?} {e:?}");
    until(&monitor, &mut all, |all| {
        let named = |s: &Seen| {
            matches!(s, Seen::Device(d) if d.netns == netns.inum && d.name == "near0"
            && d.netns_name == came.0 && d.driver == "veth" && d.mac.len() == 17)
        };
        all.iter().any(named)
    });

    // nobody else has it: it goes with its name, and the cable's other end with it
    let gone = came.0.clone();
    drop(came);
    until(&monitor, &mut all, |all| has(all, "far0 removed"));
    until(&monitor, &mut all, |all| events(all).any(|(e, _)| e.text == gone && e.a == 0));
    assert!(!all.iter().any(|s| matches!(s, Seen::Unread { .. })), "{all:#?}");
}

#[test]
fn namespaces_that_vanish_are_passed_over_and_counted() {
    if !root() {
        return;
    }
    let there = Namespace::new("there");
    let lasting = netlink::by_name(&there.0).unwrap();
    let vanished = {
        let short = Namespace::new("short");
        netlink::by_name(&short.0).unwrap()
    };
    // one of those asked for by name: an error; of all that are there: one less
    assert!(matches!(
        Monitor::start(std::slice::from_ref(&vanished), false, None),
        Err(Error::Namespace { .. })
    ));
    let monitor = Monitor::start(&[lasting, vanished], true, None).unwrap();
    let mut all = Vec::new();
    until(&monitor, &mut all, |all| {
        all.iter().any(|s| matches!(s, Seen::Unread { from, to, .. } if from <= to))
    });
    // and each that comes and goes is either read or counted
    for n in 0..20 {
        drop(Namespace::new(&format!("storm{n}")));
    }
    there.ip("link set lo up");
    until(&monitor, &mut all, |all| has(all, "lo up carrier (before: down)"));
    until(&monitor, &mut all, |all| (0..20).all(|n| read_or_counted(all, &format!("kpat-storm{n}-"))));
}

fn read_or_counted(all: &[Seen], name: &str) -> bool {
    let came = |s: &Seen| match s {
        Seen::Event(e, _) if e.kind == EventKind::Namespace && e.a == 1 && e.text.starts_with(name) => {
            Some(e.netns)
        }
        _ => None,
    };
    let Some(at) = all.iter().position(|s| came(s).is_some()) else { return false };
    let netns = came(&all[at]);
    all[at..].iter().any(|s| match s {
        Seen::Event(e, _) => Some(e.netns) == netns && e.text == "lo down (found)",
        Seen::Unread { why, .. } => why.contains(name),
        _ => false,
    })
}

#[test]
fn a_burst_arrives_whole() {
    if !root() {
        return;
    }
    let ns = Namespace::new("burst");
    ns.ip("link set lo up");
    let monitor = Monitor::start(&[netlink::by_name(&ns.0).unwrap()], false, None).unwrap();
    let path = std::env::temp_dir().join(&ns.0);
    let lines: Vec<String> =
        (0..5000).map(|n| format!("route add 10.1.{}.{} dev lo\n", n >> 8, n & 255)).collect();
    std::fs::write(&path, lines.concat()).unwrap();
    ns.ip(&format!("-batch {}", path.display()));
    std::fs::remove_file(&path).unwrap();
    let mut seen = Vec::new();
    expect(&monitor, &mut seen, EventKind::Route, "10.1.19.135 dev lo");
    assert_eq!(seen.iter().filter(|e| e.text.starts_with("10.1.")).count() as u64 + 1, 5000);
    assert_eq!(monitor.overruns(), 0);
}

/// Seen until something is true.
fn until_all(monitor: &Monitor, seen: &mut Vec<Event>, mut done: impl FnMut(&[Event]) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done(seen) {
        monitor.drain(&mut |s| {
            if let Seen::Event(e, _) = s {
                seen.push(e);
            }
        });
        assert!(Instant::now() < end, "{:#?}", seen.iter().map(|e| &e.text).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ports_of_a_bridge_change_their_state() {
    if !root() {
        return;
    }
    let ns = Namespace::new("port");
    ns.ip("link add b0 type bridge forward_delay 200 stp_state 1");
    ns.ip("link add p0 type veth peer name p1");
    for link in ["b0", "p0", "p1"] {
        ns.ip(&format!("link set {link} up"));
    }
    let netns = netlink::by_name(&ns.0).unwrap();
    let monitor = Monitor::start(std::slice::from_ref(&netns), false, None).unwrap();
    let mut seen = Vec::new();
    ns.ip("link set p0 master b0");
    let of_port = |all: &[Event]| {
        let ports = all.iter().filter(|e| e.kind == EventKind::BridgePort);
        ports.map(|e| (e.a, e.text.clone())).collect::<Vec<_>>()
    };
    // As the standard has it, 2 s each: a bridge of the kernel's.
    until_all(&monitor, &mut seen, |all| of_port(all).last().is_some_and(|p| p.0 == 3));
    let states: Vec<u64> = of_port(&seen).iter().map(|p| p.0).filter(|a| *a != 0).collect();
    assert_eq!(states, [1, 2, 3], "{:?}", of_port(&seen));
    assert!(of_port(&seen).iter().any(|p| p.1 == "p0 forwarding (b0)"), "{:?}", of_port(&seen));
    ns.ip("link set p1 down");
    until_all(&monitor, &mut seen, |all| of_port(all).last().is_some_and(|p| p.0 == 0));
}

#[test]
fn carriers_that_were_lost_and_back_before_they_were_announced_are_found() {
    if !root() {
        return;
    }
    let ns = Namespace::new("flap");
    let far = Namespace::new("far");
    // Of one index, as a card is its own link: the kernel takes its time to announce those.
    ns.ip(&format!("link add c0 index 77 type veth peer name c1 index 77 netns {}", far.0));
    ns.ip("link set c0 up");
    far.ip("link set c1 up");
    let lost = || {
        let args = ["netns", "exec", &ns.0, "cat", "/sys/class/net/c0/carrier_down_count"];
        let out = Command::new("ip").args(args).output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().parse::<u64>().unwrap()
    };
    let netns = netlink::by_name(&ns.0).unwrap();
    let monitor = Monitor::start(std::slice::from_ref(&netns), false, None).unwrap();
    let mut seen = Vec::new();
    let before = lost();
    for _ in 0..8 {
        far.ip("link set c1 down");
        far.ip("link set c1 up");
    }
    let times = |e: &Event| match e.text.strip_prefix("c0 up no-carrier") {
        Some(" (before: up carrier)") | Some(" (announced when it was back)") => 1,
        Some(rest) => {
            rest.rsplit(", ").next().and_then(|n| n.strip_suffix(" times")?.parse().ok()).unwrap_or(0)
        }
        None => 0,
    };
    // By the kernel's own count.
    until_all(&monitor, &mut seen, |all| all.iter().map(times).sum::<u64>() == lost() - before);
    assert_eq!(lost() - before, 8);
    assert!(seen.iter().any(|e| e.text.contains("announced when it was back")), "{seen:#?}");
}

#[test]
fn any_bytes_are_survived() {
    let mut x = 0x6b70_6174_0003_u64;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut decoder = Decoder::new(1);
    let mut events = 0;
    for _ in 0..50_000 {
        // well-formed on the outside, so that the inside is reached, then a few bytes are spoilt
        let n = (next() % 40) as usize;
        let mut attributes = vec![];
        for _ in 0..n {
            let value = (next() % 24) as usize;
            attributes.extend((4 + value as u16).to_ne_bytes());
            attributes.extend(((next() % 52) as u16).to_ne_bytes());
            attributes.extend((0..value.div_ceil(4) * 4).map(|_| next() as u8 & 15));
        }
        let mut m = (16 + 12 + attributes.len() as u32).to_ne_bytes().to_vec();
        m.extend(
            [16, 17, 24, 25, 28, 29, 3][(next() % 7) as usize..][..1]
                .iter()
                .flat_map(|t: &u16| t.to_ne_bytes()),
        );
        m.extend([0; 10]);
        m.extend((0..12).map(|_| next() as u8 & 15));
        m.extend(attributes);
        for _ in 0..next() % 4 {
            let at = next() as usize % m.len();
            m[at] = next() as u8;
        }
        m.truncate(m.len() - (next() % 8) as usize);
        decoder.decode(&m, BootNs(1), &mut |_| events += 1);
    }
    assert!(events > 1000, "{events}");
}
