//! The shared memory as the host sees it: words at offsets, each access within bounds, none of them trusted.

use super::layout::SIZE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

pub struct Region {
    start: *mut u8,
}

// SAFETY: all access is by atomic operations, from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first [`SIZE`] bytes of `file`, which must have them: it is extended where it has not.
    pub fn map(file: &File) -> io::Result<Region> {
        if file.metadata()?.len() < SIZE as u64 {
            file.set_len(SIZE as u64)?;
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Region { start: start.cast() })
    }

    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= SIZE,
            "offset {offset:#x} is outside of the shared memory"
        );
        // SAFETY: within the mapping, which lives as long as self, aligned; only accessed atomically by this process.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= SIZE,
            "offset {offset:#x} is outside of the shared memory"
        );
        // SAFETY: as in word32.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    pub fn get32(&self, offset: usize) -> u32 {
        self.word32(offset).load(Ordering::Acquire)
    }

    pub fn get64(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Acquire)
    }

    pub fn set32(&self, offset: usize, value: u32) {
        self.word32(offset).store(value, Ordering::Release);
    }

    pub fn set64(&self, offset: usize, value: u64) {
        self.word64(offset).store(value, Ordering::Release);
    }

    /// Writes bytes that the guest does not read yet, code for example.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset + bytes.len() <= SIZE,
            "{} bytes at {offset:#x} are outside of the shared memory",
            bytes.len()
        );
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping.
            unsafe { AtomicU8::from_ptr(self.start.add(offset + n)) }.store(*byte, Ordering::Relaxed);
        }
    }

    /// Sets all of it to 0.
    pub fn clear(&self) {
        for offset in (0..SIZE).step_by(8) {
            self.word64(offset).store(0, Ordering::Relaxed);
        }
    }

    /// Gives the memory back: all of it is 0 then. QEMU keeps the mapping of a device that is gone.
    pub fn discard(&self) {
        // SAFETY: the whole mapping, which stays.
        unsafe { libc::madvise(self.start.cast(), SIZE, libc::MADV_REMOVE) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing refers to any more.
        unsafe { libc::munmap(self.start.cast(), SIZE) };
    }
}
