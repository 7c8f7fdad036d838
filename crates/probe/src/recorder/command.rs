//! The command that is recorded.

use super::Error;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// `None`: there is none.
pub(super) fn spawn(command: &[String]) -> Result<Option<Child>, Error> {
    let Some((program, args)) = command.split_first() else { return Ok(None) };
    let mut c = Command::new(program);
    c.args(args);
    use std::os::unix::process::CommandExt;
    // SAFETY: only async-signal-safe calls between fork and exec: the command does not inherit our low priority and limits.
    unsafe {
        c.pre_exec(|| {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
            super::limits::restore();
            Ok(())
        })
    };
    c.spawn().map(Some).map_err(|source| Error::Command { program: program.clone(), source })
}

/// A command that outlives its recording is asked to end, then made to.
pub(super) fn end_child(c: &mut Child) {
    // SAFETY: the pid is our own child's, which has not been waited for.
    unsafe { libc::kill(c.id() as i32, libc::SIGTERM) };
    let patience = Instant::now();
    while patience.elapsed() < Duration::from_secs(3) {
        if matches!(c.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = c.kill();
    let _ = c.wait();
}
