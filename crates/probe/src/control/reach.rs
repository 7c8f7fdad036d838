//! A connection to a recording's socket, within a time: of one that is stopped (SIGSTOP, a frozen cgroup, a debugger) the queue may be full, and a plain
//! connect() waits for it without end.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Errors: [`io::ErrorKind::WouldBlock`] where that took too long; writes to it have the same limit.
pub fn connect(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let stream = socket()?;
    // Linux limits connect() of a local socket by it, too (unix_stream_connect() of net/unix/af_unix.c).
    stream.set_write_timeout(Some(within))?;
    let (address, length) = address(path)?;
    loop {
        // SAFETY: the address is valid for its length during the call.
        let done = unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) };
        let error = io::Error::last_os_error();
        match error.kind() {
            _ if done == 0 => return Ok(stream),
            io::ErrorKind::Interrupted => {}
            _ => return Err(error),
        }
    }
}

fn socket() -> io::Result<UnixStream> {
    // SAFETY: socket() takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeros are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    // With its terminating zero.
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path of the socket is too long"));
    }
    address.sun_path.iter_mut().zip(name).for_each(|(to, from)| *to = *from as libc::c_char);
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + name.len() + 1;
    Ok((address, length as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    #[test]
    fn a_full_queue_is_waited_for_no_longer() {
        let path = std::env::temp_dir().join(format!("kpat-reach-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        // SAFETY: listen() takes no pointers.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 2) }, 0);
        let within = Duration::from_millis(50);
        let mut all = Vec::new();
        let started = Instant::now();
        let full = loop {
            match connect(&path, within) {
                Ok(stream) => all.push(stream),
                Err(e) => break e,
            }
            assert!(all.len() < 10);
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!((within..Duration::from_secs(10)).contains(&started.elapsed()));
        all[0].write_all(b"here").unwrap();
        let mut first = [0; 4];
        listener.accept().unwrap().0.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"here");
        drop(listener);
        assert_eq!(connect(&path, within).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(connect(&path, within).unwrap_err().kind(), ErrorKind::NotFound);
        let long = Path::new("/").join("x".repeat(200));
        assert_eq!(connect(&long, within).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
