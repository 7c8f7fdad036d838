//! Tasks that handle packets: no pause of theirs is lost.

use super::place::{Place, json, kpat, until};
use super::{KPAT, Pinged, Running};
use std::path::Path;
use std::process::{Command, Stdio};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Starts `ping` under this very process id, if it is free.
fn ping_as(pid: u32, ns: &str) -> Option<Running> {
    std::fs::write(LAST_PID, (pid - 1).to_string()).ok()?;
    let enter = format!("--net=/run/netns/{ns}");
    let ping = ["ping", "-q", "-i", "0.01", "-c", "150", "127.0.0.1"];
    let child =
        Command::new("nsenter").arg(enter).args(ping).stdout(Stdio::null()).spawn().expect("nsenter runs");
    let child = Running(child);
    (child.0.id() == pid).then_some(child)
}

/// Pauses are kept by thread id: of two that sleep in turns and share their low bits none is lost.
#[test]
fn tasks_whose_ids_share_their_low_bits_lose_no_pause() {
    let Some(p) = Place::new("alike") else { return };
    if !Path::new(LAST_PID).exists() {
        eprintln!("SKIPPED: this kernel lets nobody choose a process id ({LAST_PID})");
        return;
    }
    let pinged = Pinged::new(&p);
    let file = p.path("x.kbl");
    let mut recorder = Running(
        Command::new(KPAT)
            .args(["record", "--mechanism", "tracepoint", "--netns", &pinged.0, "-f", "icmp", "-o", &file])
            .stderr(Stdio::null())
            .spawn()
            .expect("kpat runs"),
    );
    until("it records", || Path::new(&file).exists() || Path::new(&format!("{file}.part")).exists());
    let both = (0..200).find_map(|n| {
        let low = 1000 + n * 30;
        Some((ping_as(low, &pinged.0)?, ping_as(low + 8192, &pinged.0)?))
    });
    let (mut one, mut other) = both.expect("two free ids, 8192 apart");
    let ids = [one.0.id(), other.0.id()];
    assert!(one.0.wait().expect("it ends").success() && other.0.wait().expect("it ends").success());
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(recorder.0.id().cast_signed(), libc::SIGINT) };
    assert!(recorder.0.wait().expect("it ends").success());
    let info = json(&["info", &file, "--json"]);
    let lost = info["losses"].as_array().expect("losses");
    assert!(!lost.iter().any(|l| l["cause"] == "task-table-full"), "{lost:?}");
    // and they were there: each slept 150 times
    let log = p.path("x.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());
    for id in ids {
        let rows =
            json(&["sql", &log, &format!("select count(*) as n from pause where pid = {id}"), "--json"]);
        let n = rows[0]["n"].as_u64().expect("a number");
        assert!(n >= 100, "{id}: {n} of 150 pauses");
    }
}
