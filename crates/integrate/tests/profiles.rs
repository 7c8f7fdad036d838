//! Samples of a profile: how many there are must not decide how much memory they take.

use crate::world::{Dir, LogWriter, SEC};
use kpat_integrate::{Options, integrate};
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_store::tables::{SampleRow, StackRow};
use kpat_store::{Row, TableFile};
use std::path::Path;
use std::process::Command;

/// Names the folder to the process that integrates.
const FOLDER: &str = "KPAT_TEST_PROFILE";
const FRAMES: u64 = 30;
const PERIOD: i64 = 1_000_000;

/// Four CPUs that are sampled in turn, each sample with one of some stacks; every tenth comes late, as from another ring.
fn make(path: &Path, samples: u64, stacks: u64) {
    let wall = ClockAnchor { boot: BootNs(SEC), wall: WallNs(1_700_000_000 * SEC), uncertainty_ns: 1 };
    let mut log = LogWriter::create(path, &["ip_rcv"], &[], wall);
    for i in 0..samples {
        let at = BootNs(2 * SEC + i as i64 * PERIOD);
        let (cpu, number) = ((i % 4) as u16, 1 + i % stacks);
        if i < stacks {
            let frames: Vec<u64> = (0..FRAMES).map(|f| frame(number, f)).collect();
            log.push(cpu, Record::Stack(Box::new(SampledStack::new(at, number, 0, &frames))));
        }
        let taken = if i % 10 == 9 { BootNs(at.0 - 7 * PERIOD) } else { at };
        log.push(
            cpu,
            Record::Sample(Box::new(CpuSample {
                at: taken,
                thread: 7,
                process: 7,
                busy: Busy::Kernel,
                purpose: Purpose::Itself,
                flags: 0,
                socket: 0,
                kernel: number,
                user: 0,
                period_ns: PERIOD as u64,
            })),
        );
        if i % 4096 == 0 {
            log.flush();
        }
    }
    log.close();
}

/// Addresses that no two stacks share.
fn frame(stack: u64, depth: u64) -> u64 {
    0xffff_8000_0000_0000 + stack * FRAMES + depth
}

/// What the test below runs as a process of its own; without its folder there is nothing to do.
#[test]
fn integrate_a_profile() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    integrate(&folder.join("x.kbl"), &[], &folder.join("x.kpat"), &Options::default(), &mut |_| ()).unwrap();
    std::fs::copy("/proc/self/status", folder.join("status")).unwrap();
}

/// The most memory that a process had which integrated such a profile, as the kernel says of it, in KiB.
fn peak(dir: &Dir, samples: u64, stacks: u64) -> u64 {
    make(&dir.path("x.kbl"), samples, stacks);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "profiles::integrate_a_profile"])
        .env(FOLDER, &dir.0)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let status = std::fs::read_to_string(dir.path("status")).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn samples_and_stacks_wait_on_disk() {
    const SHORT: (u64, u64) = (70_000, 2_000);
    const LONG: (u64, u64) = (250_000, 42_000);
    let (short, long) = (Dir::new("profile-short"), Dir::new("profile-long"));
    let peaks = (peak(&short, SHORT.0, SHORT.1), peak(&long, LONG.0, LONG.1));
    println!("{SHORT:?}: {} KiB; {LONG:?}: {} KiB", peaks.0, peaks.1);
    // In memory 180,000 samples and 40,000 stacks of 30 frames would be 20 MiB.
    assert!(peaks.1 < peaks.0 + 6 * 1024, "{peaks:?} KiB");

    let out = long.path("x.kpat");
    let samples = TableFile::open(&out, SampleRow::TABLE).unwrap().all::<SampleRow>().unwrap();
    assert_eq!(samples.len() as u64, LONG.0);
    assert!(samples.is_sorted_by_key(|s| (s.at_ns, s.cpu)));
    let stacks = TableFile::open(&out, StackRow::TABLE).unwrap();
    assert_eq!(stacks.rows(), LONG.1 * FRAMES);
    // Each sample has the stack that it was logged with, whose number counts from 0 in the table.
    for s in &samples {
        let i = (s.at_ns - 2 * SEC) / PERIOD;
        let came = (i..=i + 7)
            .filter(|k| k % 4 == i64::from(s.cpu))
            .find(|k| if k % 10 == 9 { *k == i + 7 } else { *k == i });
        assert_eq!(s.kernel_stack.map(i64::from), came.map(|k| k % LONG.1 as i64), "{s:?}");
    }
    let _ = std::fs::read_dir(&out).unwrap().map(|e| assert_ne!(e.unwrap().file_name(), "early")).count();
}
