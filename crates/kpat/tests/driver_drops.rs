//! What a driver drops is distinguished from what it took, with tracepoints alone. Truth comes from outside: the driver's own counter
//! (`ip -s link`), and what a reader of its other end got. Needs root and /dev/net/tun.

mod place;

use place::{Place, ip, json, kpat, record, until, words};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::Command;

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");
const SENT: u32 = 400;
/// Packets that the device keeps for whoever reads it.
const ROOM: u32 = 50;

/// A device whose other end is a descriptor, made in this thread's namespace.
fn tun(name: &str) -> Option<std::fs::File> {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TUN_WITHOUT_INFORMATION: i16 = 0x1001;
    let file = std::fs::File::options().read(true).write(true).open("/dev/net/tun").ok()?;
    // SAFETY: ifreq is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = TUN_WITHOUT_INFORMATION;
    // SAFETY: the request is ours and of the kind that the call takes.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &mut request) };
    // SAFETY: plain system call.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    (r == 0 && set == 0).then_some(file)
}

#[test]
fn what_a_full_driver_drops_is_what_it_counts() {
    let Some(p) = Place::new("drops") else { return };
    assert!(ip(&format!("netns add {}", p.name)));
    let inside = || {
        let file = std::fs::File::open(format!("/run/netns/{}", p.name)).expect("the namespace");
        // SAFETY: changes the namespace of this thread alone, which ends with this closure.
        assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        tun("kt0")
    };
    let device = std::thread::scope(|s| s.spawn(inside).join().expect("a thread"));
    let Some(mut device) = device else {
        eprintln!("SKIPPED: there is no tun device");
        ip(&format!("netns del {}", p.name));
        return;
    };
    let within = |words: &str| ip(&format!("-n {} {words}", p.name));
    // What IPv6 says of itself would be dropped and counted among the others.
    assert!(within("link set kt0 addrgenmode none"));
    assert!(within("addr add 10.99.0.1/24 dev kt0"));
    until("the device is up", || within(&format!("link set kt0 txqueuelen {ROOM} up")));
    let file = p.path("x.kbl");
    let send = format!(
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         for i in range({SENT}): s.sendto(i.to_bytes(4, 'big') + b'x' * 60, ('10.99.0.2', 4040))"
    );
    let out = record(&[
        "-o",
        &file,
        "--netns",
        &p.name,
        "-f",
        "udp port 4040",
        "--",
        "ip",
        "netns",
        "exec",
        &p.name,
        "python3",
        "-c",
        &send,
    ]);
    assert!(out.status.success(), "{}", words(&out));
    let link = Command::new("ip").args(["-n", &p.name, "-s", "-j", "link", "show", "kt0"]).output();
    let link: serde_json::Value = serde_json::from_slice(&link.expect("ip runs").stdout).expect("JSON");
    let counted = link[0]["stats64"]["tx"]["dropped"].as_u64().expect("a counter");
    // Behind IP and UDP headers, the number: which of them came through.
    let mut came = Vec::new();
    let mut packet = [0u8; 2048];
    while let Ok(n) = device.read(&mut packet) {
        if n == 92 && packet[9] == 17 {
            came.push(u64::from(u32::from_be_bytes([packet[28], packet[29], packet[30], packet[31]])));
        }
    }
    drop(device);
    assert!(ip(&format!("netns del {}", p.name)));
    assert_eq!(counted + came.len() as u64, u64::from(SENT), "{link}");
    assert!(counted > 0 && came.len() as u32 >= ROOM / 2, "{link}");

    let log = p.path("x.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());
    let rows = json(&["packets", &log, "--limit", "0", "--sort", "time", "--json"]);
    let rows = rows["packets"].as_array().or(rows.as_array()).expect("packets");
    let verdicts: Vec<&str> = rows.iter().map(|r| r["verdict"].as_str().expect("a verdict")).collect();
    assert_eq!(verdicts.len(), SENT as usize, "{:?} {:?}", p.names(), verdicts.len());
    for (number, verdict) in (0..).zip(&verdicts) {
        let want = if came.contains(&number) { "sent" } else { "dropped" };
        assert_eq!(*verdict, want, "{number}");
    }
}
