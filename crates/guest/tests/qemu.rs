//! Against a real QEMU with a guest that is no operating system: a boot sector that counts in a register and in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_guest::gdb::xp::{Hit, Probes, Then};
use kpat_guest::gdb::{BreakpointKind, Stop};
use kpat_guest::{Guest, Life, Target, discover};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NOP: u64 = 0x7c04;
const INCREMENT: u64 = 0x7c0a;
const COUNTER: u64 = 0x500;
/// Names a socket: this program then holds the guest behind it, stopped, until it is killed.
const HOLD: &str = "KPAT_GUEST_TEST_HOLD";

const CODE: [u8; 18] = [
    0x31, 0xc0, // xor ax, ax
    0x8e, 0xd8, // mov ds, ax
    0x90, // 7c04: nop
    0x66, 0xff, 0x06, 0x00, 0x05, // inc dword [0x500]
    0x40, // 7c0a: inc ax
    0xb9, 0x00, 0x01, // mov cx, 0x100
    0xe2, 0xfe, // loop to itself
    0xeb, 0xf2, // jmp 7c04
];

struct Qemu {
    process: Child,
    folder: PathBuf,
}

impl Qemu {
    /// `None`: there is no QEMU here, which is said.
    fn start(name: &str) -> Option<Qemu> {
        let folder = std::env::temp_dir().join(format!("kpat-guest-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut sector = CODE.to_vec();
        sector.resize(510, 0);
        sector.extend([0x55, 0xaa]);
        std::fs::write(folder.join("disk"), sector).unwrap();
        let started = Command::new("qemu-system-x86_64")
            .current_dir(&folder)
            .args([
                "-nodefaults",
                "-display",
                "none",
                "-m",
                "16",
                "-accel",
                "tcg",
                "-name",
                name,
                "-no-shutdown",
            ])
            .args(["-drive", "file=disk,format=raw,if=ide", "-qmp", "unix:qmp,server=on,wait=off"])
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = started else {
            eprintln!("not run: there is no qemu-system-x86_64 (qemu-system-x86)");
            return None;
        };
        let q = Qemu { process, folder };
        let end = Instant::now() + Duration::from_secs(20);
        while !q.socket().exists() {
            assert!(Instant::now() < end, "QEMU makes no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(q)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("qmp")
    }

    /// Once the boot sector counts.
    fn guest(&self) -> Guest {
        let g = Guest::connect(&Target::Qmp(self.socket())).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while counter(&g) < 10 {
            assert!(Instant::now() < end, "the guest does not count");
            std::thread::sleep(Duration::from_millis(20));
        }
        g
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// As QEMU itself reads it.
fn counter(g: &Guest) -> u32 {
    let text = g.qmp().monitor(&format!("xp /1wx {COUNTER:#x}")).unwrap();
    u32::from_str_radix(text.trim().rsplit_once("0x").unwrap().1, 16).unwrap()
}

fn counts(g: &Guest) -> bool {
    let first = counter(g);
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if counter(g) != first {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn each_hit_is_seen_once_with_and_without_a_step() {
    let Some(q) = Qemu::start("hits") else { return };
    let g = q.guest();
    for (address, steps) in [(NOP, false), (INCREMENT, true)] {
        let mut seen = Vec::new();
        let mut probes = Probes::new(g.gdb().unwrap());
        let handler = |h: &mut Hit<'_>| {
            let mut count = [0; 4];
            h.gdb.read(COUNTER, &mut count)?;
            seen.push((h.registers.rax as u16, u32::from_le_bytes(count)));
            Ok(if seen.len() == 40 { Then::Leave } else { Then::Continue })
        };
        probes.add(address, BreakpointKind::Software, Box::new(handler)).unwrap();
        assert_eq!(probes.run(Duration::from_secs(60)).unwrap(), Some(Stop::Trap { vcpu: 0 }));
        assert_eq!((probes.hits(address), probes.stepped() > 0), (40, steps));
        probes.into_gdb().unwrap().detach().unwrap();
        // The guest's own two counters say that none was lost and none came twice.
        for w in seen.windows(2) {
            assert_eq!((w[1].0, w[1].1), (w[0].0.wrapping_add(1), w[0].1 + 1), "{address:#x}: {seen:?}");
        }
        assert!(counts(&g), "it goes on afterwards");
    }
}

#[test]
fn a_handler_changes_registers_and_memory() {
    let Some(q) = Qemu::start("changes") else { return };
    let g = q.guest();
    let mut hits = 0;
    let mut probes = Probes::new(g.gdb().unwrap());
    let handler = |h: &mut Hit<'_>| {
        hits += 1;
        if hits == 1 {
            h.registers.rax = 0x7000;
            h.gdb.write(COUNTER, &0x1234_0000u32.to_le_bytes())?;
            return Ok(Then::Continue);
        }
        let mut count = [0; 4];
        h.gdb.read(COUNTER, &mut count)?;
        assert_eq!((h.registers.rax as u16, u32::from_le_bytes(count)), (0x7001, 0x1234_0001));
        Ok(Then::Leave)
    };
    probes.add(NOP, BreakpointKind::Hardware, Box::new(handler)).unwrap();
    probes.run(Duration::from_secs(60)).unwrap();
    drop(probes);
    assert_eq!(hits, 2);
    assert!(counter(&g) > 0x1234_0000 && counts(&g));
}

/// The tool is killed while the guest is stopped, with a breakpoint armed that nobody would serve.
#[test]
fn a_killed_tool_leaves_a_guest_that_runs() {
    if let Some(socket) = std::env::var_os(HOLD) {
        let g = Guest::connect(&Target::Qmp(socket.into())).unwrap();
        let mut gdb = g.gdb().unwrap();
        gdb.insert(BreakpointKind::Software, NOP).unwrap();
        println!("held");
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let Some(q) = Qemu::start("killed") else { return };
    drop(q.guest());
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_tool_leaves_a_guest_that_runs", "--nocapture"])
        .env(HOLD, q.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    assert!(lines.any(|l| l.unwrap().contains("held")));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let g = loop {
        // The process that watches has the socket until it is done.
        match Guest::connect(&Target::Qmp(q.socket())) {
            Ok(g) => break g,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    };
    assert!(counts(&g), "{}", g.qmp().monitor("info status").unwrap());
}

#[test]
fn a_guest_that_was_stopped_stays_so() {
    let Some(q) = Qemu::start("stopped") else { return };
    let g = q.guest();
    g.qmp().command("stop", serde_json::json!({})).unwrap();
    let first = counter(&g);
    let mut gdb = g.gdb().unwrap();
    gdb.insert(BreakpointKind::Software, NOP).unwrap();
    gdb.detach().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!g.events().running().unwrap());
    assert_eq!(counter(&g), first);
    g.qmp().command("cont", serde_json::json!({})).unwrap();
    assert!(counts(&g), "no breakpoint is left");
}

#[test]
fn it_is_found_and_its_life_is_told() {
    let Some(mut q) = Qemu::start("life") else { return };
    let found = discover::one(q.process.id()).unwrap();
    assert_eq!(
        (found.name.as_str(), found.memory_bytes, found.accelerator.as_str()),
        ("life", Some(16 << 20), "tcg")
    );
    let g = q.guest();
    assert_eq!((g.pid(), g.name(), g.vcpus()), (q.process.id(), "life", 1));
    let words = g.open_memory().err().unwrap().to_string();
    assert!(words.contains("64-bit mode"), "{words}");
    let mut events = g.events();
    let mut next = |g: &Guest, command: &str, want: fn(&Life) -> bool| {
        // The last one takes the connection with it.
        let _ = g.qmp().command(command, serde_json::json!({}));
        while let Some(e) = events.next(Duration::from_secs(10)).unwrap() {
            if want(&e) {
                return e;
            }
        }
        panic!("nothing of {command}");
    };
    next(&g, "stop", |e| *e == Life::Stop);
    next(&g, "cont", |e| *e == Life::Resume);
    assert!(next(&g, "system_reset", |e| matches!(e, Life::Reset { .. })).invalidates());
    assert!(next(&g, "quit", |e| matches!(e, Life::Shutdown { .. })).invalidates());
    next(&g, "query-status", |e| *e == Life::Gone);
    q.process.wait().unwrap();
}
