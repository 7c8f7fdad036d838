//! Signals that would end this process: Ctrl-C is waited for, a limit of files is an error like others.

use crate::output::is_broken_off;
use anyhow::bail;
use std::path::PathBuf;

/// By what a shell knows that a command was ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// From here on SIGINT and SIGTERM remove what is half made at this path, and end the program. To be called before any
/// thread is made.
pub fn leave_nothing(half_made: PathBuf) -> anyhow::Result<()> {
    let signals = Signals::block()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        // What fails from now on fails because of this.
        is_broken_off(true);
        for _ in 0..100 {
            // A file that is made meanwhile keeps its folder.
            let gone =
                |e: std::io::Result<()>| e.err().is_none_or(|e| e.kind() == std::io::ErrorKind::NotFound);
            let removed = if half_made.is_dir() {
                std::fs::remove_dir_all(&half_made)
            } else {
                std::fs::remove_file(&half_made)
            };
            if gone(removed) && !half_made.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        crate::output::say_last("interrupted; partial results were removed");
        std::process::exit(INTERRUPTED.into());
    })?;
    Ok(())
}

/// A file that would become too large (`ulimit -f`) is an error of a write, and not the end of this process.
pub fn size_is_an_error() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; unlike SIG_IGN it is not inherited by commands.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as *const () as libc::sighandler_t) };
}

/// SIGINT and SIGTERM, waited for instead of dying by them.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// To be called before any thread is made, so that all of them leave these signals to the one that waits.
    pub fn block() -> anyhow::Result<Signals> {
        // SAFETY: sigset_t is plain data, filled by sigemptyset before use; all pointers are to locals.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                bail!("cannot wait for signals");
            }
            Ok(Signals(set))
        }
    }

    pub fn wait(&self) {
        let mut signal = 0;
        // SAFETY: the set is initialised and both pointers are to live data.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }
}
