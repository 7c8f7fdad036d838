//! A process that lets the guest go on if this one ends while it holds the guest.
//!
//! QEMU leaves a guest stopped, and its breakpoints armed, when its debugger disappears. So for as long as a session lasts, a forked process
//! waits for the end of a pipe; if that comes without the word that all is in order, it detaches and resumes. It executes nothing
//! but system calls on three descriptors, because it was forked from a process that may have threads.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub struct Guard {
    child: libc::pid_t,
    pipe: OwnedFd,
}

/// The process is named: a client before this one may have asked for numbered processes, and QEMU remembers that.
const DETACH: &[u8] = b"$D;1#b0";

impl Guard {
    /// `gdb` and `qmp` are the sockets of the session; `resume`: the guest ran when it began.
    pub fn new(gdb: RawFd, qmp: RawFd, resume: bool) -> Result<Guard> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Error::io("a pipe")(std::io::Error::last_os_error()));
        }
        // SAFETY: both were just opened, and nobody else has them.
        let (reading, writing) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let script: &[u8] = if resume {
            b"{\"execute\":\"human-monitor-command\",\"arguments\":{\"command-line\":\"gdbserver none\"}}\n{\"execute\":\"cont\"}\n"
        } else {
            b"{\"execute\":\"human-monitor-command\",\"arguments\":{\"command-line\":\"gdbserver none\"}}\n{\"execute\":\"stop\"}\n"
        };
        // SAFETY: the child executes `watch` alone, which makes system calls only and does not return.
        let child = unsafe { libc::fork() };
        match child {
            -1 => Err(Error::io("a process that watches")(std::io::Error::last_os_error())),
            0 => watch(reading.as_raw_fd(), gdb, qmp, script),
            child => Ok(Guard { child, pipe: writing }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open and one byte is read from a constant; the child is this value's own.
        unsafe {
            libc::write(self.pipe.as_raw_fd(), b"q".as_ptr().cast(), 1);
            libc::waitpid(self.child, std::ptr::null_mut(), 0);
        }
    }
}

fn watch(pipe: RawFd, gdb: RawFd, qmp: RawFd, script: &[u8]) -> ! {
    let say = |fd: RawFd, bytes: &[u8]| {
        // SAFETY: the bytes live; MSG_NOSIGNAL, so that a closed peer is an error and not the end.
        unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    };
    let doze = || {
        // SAFETY: no descriptors are given; waits 100 ms.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 100) };
    };
    // SAFETY: system calls on descriptors that this process inherited; what others hold of them is not touched. What is not needed
    // is closed, so that nobody waits for the end of a pipe that the parent has closed.
    unsafe {
        libc::setsid();
        let mut kept = [pipe, gdb, qmp];
        kept.sort_unstable();
        let mut from = 0;
        for fd in kept {
            if fd > from {
                libc::syscall(libc::SYS_close_range, from as libc::c_uint, fd as libc::c_uint - 1, 0);
            }
            from = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, from as libc::c_uint, libc::c_uint::MAX, 0);
        let mut byte = 0u8;
        loop {
            match libc::read(pipe, (&raw mut byte).cast(), 1) {
                1 => libc::_exit(0),
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
    }
    // A byte stops a guest that runs, and is swallowed.
    say(gdb, b"\x03");
    doze();
    say(gdb, DETACH);
    doze();
    say(qmp, script);
    doze();
    // SAFETY: ends this process, nothing of the parent's is run.
    unsafe { libc::_exit(0) }
}
