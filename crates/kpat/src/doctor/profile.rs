//! What a profile costs here, measured: the same calls and datagrams with nothing recorded and beside `kpat record -p profile`, as a user would start it.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BATCHES: usize = 12;
const CALLS: u32 = 10_000;
const DATAGRAMS: u32 = 500;
/// Until a recorder is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nanoseconds of one, the least of some batches: what other programs take is in all but that.
#[derive(Clone, Copy)]
pub struct Least {
    /// A system call that does nothing.
    pub call: f64,
    /// A datagram that is sent and received over the loopback device.
    pub datagram: f64,
}

pub struct Cost {
    pub without: Least,
    pub beside: Least,
}

/// A recorder that ends with this, and its files.
struct Recorder {
    child: Child,
    folder: PathBuf,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: no memory is passed; the child was not waited for, so the number is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Recorder {
    fn start() -> anyhow::Result<Recorder> {
        let folder = std::env::temp_dir().join(format!("kpat-doctor-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let ready = folder.join("ready");
        let child = Command::new(std::env::current_exe()?)
            .args(["-q", "record", "-p", "profile", "--no-cost", "--ring", "1M", "-o"])
            .arg(folder.join("x.kbl"))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut recorder = match child {
            Ok(child) => Recorder { child, folder },
            Err(e) => {
                let _ = std::fs::remove_dir_all(&folder);
                return Err(e.into());
            }
        };
        let until = Instant::now() + PATIENCE;
        while !ready.exists() {
            if recorder.child.try_wait()?.is_some() {
                anyhow::bail!("it did not start; `kpat record -p profile` says why");
            }
            if Instant::now() > until {
                anyhow::bail!("it was not ready after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(recorder)
    }
}

fn least(batches: impl Iterator<Item = f64>) -> f64 {
    batches.fold(f64::INFINITY, f64::min)
}

fn each(times: u32, mut what: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    let begun = Instant::now();
    for _ in 0..times {
        what()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(times))
}

fn measure() -> std::io::Result<Least> {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    b.set_read_timeout(Some(Duration::from_secs(2)))?;
    let to = b.local_addr()?;
    let mut buffer = [0; 64];
    let (mut calls, mut datagrams) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        calls.push(each(CALLS, || {
            // SAFETY: no memory is passed; it only asks for a number.
            unsafe { libc::syscall(libc::SYS_getppid) };
            Ok(())
        })?);
        datagrams.push(each(DATAGRAMS, || {
            a.send_to(&[0; 64], to)?;
            b.recv(&mut buffer).map(drop)
        })?);
    }
    Ok(Least { call: least(calls.into_iter()), datagram: least(datagrams.into_iter()) })
}

/// *Errors*: no profile can be recorded here, or this process may not.
pub fn cost() -> anyhow::Result<Cost> {
    let without = measure()?;
    let recorder = Recorder::start()?;
    let beside = measure()?;
    drop(recorder);
    Ok(Cost { without, beside })
}

impl Cost {
    pub fn words(&self) -> String {
        let (w, b) = (self.without, self.beside);
        format!(
            "a system call takes {:.0} ns, beside a profile {:.0} ns; a datagram over the loopback device {:.1} µs, beside a profile {:.1} µs",
            w.call,
            b.call,
            w.datagram / 1e3,
            b.datagram / 1e3
        )
    }
}
