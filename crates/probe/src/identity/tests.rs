//! Nothing that identifies stays in what is written, and what differed differs still.

use super::*;
use kpat_model::{BootNs, Context, PacketId, Privacy, Timed};

fn event(kind: EventKind, text: &str) -> Event {
    let (ctx, packet) = (Context::Unknown, PacketId::NONE);
    let timed = Timed::Recorder;
    Event { kind, ctx, pid: 0, at: BootNs(0), timed, packet, netns: 0, a: 0, b: 0, text: text.into() }
}

#[test]
fn hashed_addresses_stay_equal_and_say_nothing_else() {
    let mut a = SocketRecord { version: 4, port: 1, ..Default::default() };
    a.addr[..4].copy_from_slice(&[10, 0, 0, 1]);
    a.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
    let mine = Addresses::Hashed([1; 16]);
    let (x, y) = (mine.socket(a), mine.socket(SocketRecord { port: 3, ..a }));
    assert_eq!((x.addr, x.privacy), (y.addr, Privacy::Hashed));
    let other = Addresses::Hashed([2; 16]).socket(a);
    assert!(x.addr != a.addr && x.addr != other.addr && x.addr != x.peer);
    let none = Addresses::LeftOut.socket(a);
    assert_eq!((none.addr, none.peer, none.port), ([0; 16], [0; 16], 1));
    // An announcement of the same address has the same hash, and so has what a program calls by it.
    let peer = format!("h:{:032x}", u128::from_be_bytes(x.peer));
    let text = mine.event(&event(EventKind::Neighbour, "10.0.0.2 dev x REACHABLE")).text;
    assert_eq!(text, format!("{peer} dev x REACHABLE"));
    for (asked, shown) in [
        ("10.0.0.2", peer.clone()),
        ("::ffff:10.0.0.2", peer),
        ("fe80::1%eth0", format!("{}%eth0", mine.name("fe80::1"))),
        ("", String::new()),
    ] {
        assert_eq!(mine.name(asked), shown);
        assert_eq!(Addresses::Plain.name(asked), asked);
    }
    assert!(mine.name("a.example").starts_with("h:") && mine.name("10.0.0.2x") != mine.name("10.0.0.2"));
    assert_eq!(Addresses::LeftOut.name("fe80::1%enx001122aabbcc"), "-%enx-");
}

/// A file that was given, the process in it, and a name out of an address.
#[test]
fn a_namespace_names_no_folder_and_no_address() {
    for (name, shown) in [
        ("/run/user/1000/netns/alice", "alice"),
        ("web or /home/alice smith/ns", "web or ns"),
        ("/home/alice/ns or pid 7 (nginx)", "ns or pid 7 (nginx)"),
        ("pid 7 (enx001122aabbcc) or vpn-enx001122aabbcc", "pid 7 (enx-) or vpn-enx-"),
        ("pid 7 (a/b) or pid 8 ((sd-pam))", "pid 7 (a/b) or pid 8 ((sd-pam))"),
        ("10.0.0.1", "-"),
        ("link-netnsid 3", "link-netnsid 3"),
        ("cni-1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809", "cni-1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809"),
        ("", ""),
    ] {
        let device = Device { netns_name: name.into(), ..Device::default() };
        assert_eq!(Addresses::LeftOut.device(device).netns_name, shown);
        assert_eq!(Addresses::LeftOut.event(&event(EventKind::Namespace, name)).text, shown);
        assert_eq!(Addresses::Plain.event(&event(EventKind::Namespace, name)).text, name);
    }
}

#[test]
fn no_address_stays_in_an_announcement() {
    let texts = [
        (EventKind::Neighbour, "10.77.0.2 lladdr 6a:1f:36:70:e4:8e dev sv0 REACHABLE"),
        (EventKind::Neighbour, "fe80::1 lladdr 6a:1f:36:70:e4:8e dev sv0 STALE"),
        (EventKind::Neighbour, "6a:1f:36:70:e4:8e dev sv0 fdb NOARP"),
        (EventKind::Address, "10.77.9.9/24 dev sv0 peer 10.77.9.8 tentative"),
        (EventKind::Route, "10.88.0.0/16 via 10.77.0.2 dev sv0 table local src 10.77.9.9 metric 1"),
        (EventKind::Route, "2001:db8::/64 nexthop via fe80::2 dev sv0 weight 1"),
        (EventKind::Link, "sv0 up mtu 1500 address 6a:1f:36:70:e4:8e"),
        (EventKind::Control, "filter host 10.77.0.2"),
        (EventKind::Control, "chosen: comm=10.77.0.2"),
    ];
    for hide in [Addresses::Hashed([7; 16]), Addresses::LeftOut] {
        for (kind, text) in texts {
            let out = hide.event(&event(kind, text)).text;
            for part in ["10.", "fe80", "2001:", "6a:1f", "e4:8e"] {
                assert!(!out.contains(part) || out.contains("h:"), "{out}");
                assert!(!out.split([' ', '/']).any(|w| !w.starts_with("h:") && w.contains(part)), "{out}");
            }
        }
        let route = hide.event(&event(texts[4].0, texts[4].1)).text;
        assert!(route.contains("/16 via ") && route.ends_with("metric 1"), "{route}");
    }
}

/// Also where the device has another address than it is named by, and wherever the name stands.
#[test]
fn names_made_of_addresses_are_addresses() {
    let d = |name: &str, mac: &str| Device { name: name.into(), mac: mac.into(), ..Device::default() };
    let out = Addresses::LeftOut.device(d("enx001122aabbcc", "00:11:22:aa:bb:cc"));
    assert_eq!((out.name.as_str(), out.mac.as_str()), ("enx-", "-"));
    for hide in [Addresses::LeftOut, Addresses::Hashed([7; 16])] {
        let named = hide.device(d("enx001122aabbcc", "02:00:00:00:00:01")).name;
        assert!(named.starts_with("enx") && !named.contains("1122"), "{named}");
        assert_eq!(hide.device(d("enx001122AABBCC.7", "")).name, format!("{named}.7"));
        let text = hide.event(&event(EventKind::Link, "enx001122aabbcc up carrier (before: down)")).text;
        assert_eq!(text, format!("{named} up carrier (before: down)"));
        let text = hide.event(&event(EventKind::Route, "10.0.0.0/8 dev enx001122aabbcc metric 7")).text;
        assert!(text.ends_with(&format!("/8 dev {named} metric 7")), "{text}");
        for plain in ["eth0", "br-1a2b3c4d5e6f", "vethf00ba12", "x0011223344556", "x00112233445", "é", ""] {
            assert_eq!(hide.device(d(plain, "")).name, plain);
        }
        let text = hide.event(&event(EventKind::Link, "eth0 after 123456789012 ns")).text;
        assert_eq!(text, "eth0 after 123456789012 ns");
    }
    let two =
        ["enx001122aabbcc", "enx001122aabbcd"].map(|n| Addresses::Hashed([7; 16]).device(d(n, "")).name);
    assert_ne!(two[0], two[1]);
}

#[test]
fn a_thread_that_is_named_by_a_device_tells_no_address() {
    let told = |comm: &str| match Addresses::LeftOut
        .json(Json::Tasks(vec![Task { comm: comm.into(), ..Task::default() }]))
    {
        Json::Tasks(all) => all[0].comm.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(told("napi/enx0011223"), "napi/enx-");
    assert_eq!(told("irq/128-wlx00c0"), "irq/128-wlx-");
    assert_eq!(told("enx001122aabbcc"), "enx-", "a program of this name");
    for name in
        ["napi/eth0-8193", "kworker/u16:3-e", "systemd-network", "ksoftirqd/0", "irq/128-eth0", "nginx", ""]
    {
        assert_eq!(told(name), name);
    }
}

fn mapping() -> Mapping {
    let (at, what) = (BootNs(1), kpat_model::MappingKind::File);
    Mapping {
        at,
        process: 1,
        what,
        start: 0,
        length: 1,
        offset: 0,
        name: String::new(),
        build_id: Vec::new(),
    }
}

/// A program, its library, and what it compiled lie in somebody's folder.
#[test]
fn no_folder_stays() {
    for (name, shown) in [
        ("/home/alice/lib/libssl.so.3", "libssl.so.3"),
        ("/home/alice smith/a (deleted)", "a (deleted)"),
        ("JS:*answer /home/alice smith/app.js:3:1", "JS:*answer app.js:3:1"),
        ("JS:~go file:///home/alice/app.mjs:3:1", "JS:~go file:app.mjs:3:1"),
        ("py::answer:/home/alice/app.py", "py::answer:app.py"),
        ("JS:*answer [eval]:1:2", "JS:*answer [eval]:1:2"),
        ("[heap]", "[heap]"),
    ] {
        let m = Mapping { name: name.into(), ..mapping() };
        assert_eq!(Addresses::LeftOut.mapping(m.clone()).name, shown);
        assert_eq!(Addresses::Plain.mapping(m).name, name);
    }
    let place = Function {
        name: "libssl.so.3:SSL_read".into(),
        module: "/home/alice/lib/libssl.so.3".into(),
        kind: "program".into(),
        via: "tls /home/alice/lib/libssl.so* SSL_read span - TLS reads a/b".into(),
        ..Function::default()
    };
    let kernel = Function { kind: "function".into(), via: "arg 1 -> a/b".into(), ..Function::default() };
    let left_out = ["/home/alice/lib/libssl.so.3 SSL_peek", "libc.so.6 x", "frames of tcp/x"]
        .map(|name| LeftOut { name: name.into(), reason: "no".into() });
    let (functions, left_out) = (vec![place, kernel.clone()], left_out.to_vec());
    let meta = Meta { functions, left_out, ..Meta::default() };
    let Json::Meta(out) = Addresses::LeftOut.json(Json::Meta(Box::new(meta))) else { panic!() };
    let first = &out.functions[0];
    assert_eq!(first.module, "libssl.so.3");
    assert_eq!(first.via, "tls libssl.so* SSL_read span - TLS reads a/b");
    assert_eq!(out.functions[1], kernel);
    let names: Vec<&str> = out.left_out.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["libssl.so.3 SSL_peek", "libc.so.6 x", "frames of tcp/x"]);
}

#[test]
fn of_the_command_line_the_options_stay() {
    let words = ["/usr/bin/kpat", "record", "-p", "app", "-fhost 10.0.0.1", "--filter=host x", "10.0.0.1"];
    let shown: Vec<String> = words.iter().enumerate().map(|(i, w)| flag_only(i, w)).collect();
    assert_eq!(shown, ["kpat", "record", "-p", "…", "-f", "--filter", "…"]);
}
