//! `record --print`: packets as they are recorded. A process of its own reads the log as it is written (`kpat packets --follow`), at the
//! lowest priority: neither the packets nor the recorder wait for it, and what it cannot keep up with comes later.

use crate::output::Output;
use anyhow::Context;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

pub struct Printer(Child);

impl Printer {
    /// Follows a log that has its name.
    pub fn start(log: &Path, out: &Output) -> anyhow::Result<Printer> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["packets", "--follow"]).arg(log);
        if out.is_quiet() {
            command.arg("-q");
        }
        let parent = std::process::id();
        // SAFETY: only system calls that take numbers, between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // Ctrl-C ends the recording; this one reads on to its end, and ends if there will be none.
                libc::setpgid(0, 0);
                libc::setpriority(libc::PRIO_PROCESS, 0, 19);
                // Else root's child would have again what the recorder gave up, and the kernel would forget the signal.
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() as u32 != parent {
                    return Err(std::io::ErrorKind::NotFound.into());
                }
                Ok(())
            });
        }
        Ok(Printer(command.spawn().context("cannot print packets")?))
    }

    /// Waits for the last line, once the recording has ended.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.0.wait().context("cannot wait for the last packets")?;
        Ok(())
    }
}
