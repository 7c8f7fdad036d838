//! Reads the per-CPU rings: one consumer, no system call, no copy but into the encoder. Layout and rules:
//! bpf/include/wire.h.

use crate::object::{RING_DATA, RING_TAIL};
use crate::sys::Mapping;
use crate::wire;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a ring may be made smaller to.
pub const LEAST_RING: u64 = 4096;

pub struct Rings {
    mapping: Mapping,
    ids: Mapping,
    limit: Mapping,
    ring_bytes: usize,
    cpus: usize,
    /// Records are whole multiples of this.
    slot: usize,
}

/// One record as it lies in the ring. Only fields of the kind that `kind` says may be read.
pub enum Raw<'a> {
    Call(&'a wire::Call),
    Point(&'a wire::Point),
    Member(&'a wire::Member),
    Footprint(&'a wire::Footprint),
    Lineage(&'a wire::Lineage),
    Event(&'a wire::Event),
    Process(&'a wire::Process),
    Place(&'a wire::Place),
    Pause(&'a wire::Pause),
    Crossing(&'a wire::Crossing),
    Socket(&'a wire::Socket),
    Tcp(&'a wire::Tcp),
    Gap(&'a wire::Gap),
    ThreadTime(&'a wire::ThreadTime),
    Sample(&'a wire::Sample),
    Stack(&'a wire::Stack),
    Program(&'a wire::Program),
    Radio(&'a wire::Radio),
    Carrier(&'a wire::Carrier),
    Frame(&'a wire::Frame),
    Peer(&'a wire::Peer),
}

impl Rings {
    /// `ids`: the map whose first word is the number of the next packet; `limit`: how much may wait in a ring.
    pub fn new(
        fd: BorrowedFd<'_>,
        ids: BorrowedFd<'_>,
        limit: BorrowedFd<'_>,
        ring_bytes: usize,
        cpus: usize,
        slot: usize,
    ) -> std::io::Result<Rings> {
        let mapping = Mapping::new(fd, cpus * (RING_DATA + ring_bytes + RING_TAIL))?;
        let word = |fd| Mapping::new(fd, size_of::<u64>());
        Ok(Rings { mapping, ids: word(ids)?, limit: word(limit)?, ring_bytes, cpus, slot })
    }

    /// Number of the next packet: every record that is in a ring now is about an older one.
    pub fn next_packet(&self) -> u64 {
        self.word(self.ids.as_ptr().cast()).load(Ordering::Acquire)
    }

    pub fn cpus(&self) -> usize {
        self.cpus
    }

    fn base(&self, cpu: usize) -> *mut u8 {
        assert!(cpu < self.cpus);
        // SAFETY: cpu is in range, so the offset lies inside the mapping.
        unsafe { self.mapping.as_ptr().add(cpu * (RING_DATA + self.ring_bytes + RING_TAIL)) }
    }

    fn ctl(&self, cpu: usize) -> *mut wire::RingCtl {
        self.base(cpu).cast()
    }

    fn word(&self, at: *mut u64) -> &AtomicU64 {
        // SAFETY: at is an aligned field of a control page inside the mapping, shared with the kernel and only ever
        // accessed atomically here; it lives as long as self.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Losses by cause number, since loading.
    pub fn losses(&self, cpu: usize) -> [u64; 16] {
        let ctl = self.ctl(cpu);
        std::array::from_fn(|i| {
            // SAFETY: ctl points to a control page of the mapping, i is below the array's length.
            self.word(unsafe { (&raw mut (*ctl).lost).cast::<u64>().add(i) }).load(Ordering::Relaxed)
        })
    }

    /// Probe hits on a CPU of packets that were not asked for, since loading; one in an interrupt of another may be missing.
    pub fn refused(&self, cpu: usize) -> u64 {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        self.word(unsafe { &raw mut (*ctl).refused }).load(Ordering::Relaxed)
    }

    /// Packets that were given a number since loading.
    pub fn packets(&self) -> u64 {
        self.next_packet() - 1
    }

    /// Crossings lost on a CPU since the last that fitted: since when, how many. To be asked while no program runs.
    pub fn take_unlogged(&self, cpu: usize) -> Option<(u64, u64)> {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        let (n, since) =
            unsafe { (self.word(&raw mut (*ctl).unlogged), self.word(&raw mut (*ctl).unlogged_since)) };
        let lost = n.swap(0, Ordering::AcqRel);
        (lost > 0).then(|| (since.load(Ordering::Relaxed), lost))
    }

    /// Softirqs of the network that began on a CPU since loading.
    pub fn softirqs(&self, cpu: usize) -> u64 {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        let (received, sent) =
            unsafe { (self.word(&raw mut (*ctl).rounds), self.word(&raw mut (*ctl).sends)) };
        received.load(Ordering::Relaxed) + sent.load(Ordering::Relaxed)
    }

    /// Nothing was seen of the polls of late: what is being polled is not known (bpf/polls.bpf.h).
    pub fn forget_polls(&self) {
        const POLL_MIXED: u64 = 1;
        for cpu in 0..self.cpus {
            let ctl = self.ctl(cpu);
            // SAFETY: as in losses().
            let words = unsafe {
                [
                    (&raw mut (*ctl).poll, POLL_MIXED),
                    (&raw mut (*ctl).poll_wait, 0),
                    (&raw mut (*ctl).raised, 0),
                ]
            };
            words.into_iter().for_each(|(at, to)| self.word(at).store(to, Ordering::Relaxed));
        }
    }

    /// Slots that records took so far, and records that found no room.
    pub fn taken_slots(&self, cpu: usize) -> u64 {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        let taken = self.word(unsafe { &raw mut (*ctl).prod }).load(Ordering::Relaxed);
        taken / self.slot as u64 + self.losses(cpu)[kpat_model::LossCause::RingFull as usize]
    }

    /// Bytes not yet read.
    pub fn backlog(&self, cpu: usize) -> u64 {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        let (prod, cons) = unsafe { (self.word(&raw mut (*ctl).prod), self.word(&raw mut (*ctl).cons)) };
        prod.load(Ordering::Relaxed).wrapping_sub(cons.load(Ordering::Relaxed))
    }

    /// As they were made.
    pub fn allocated_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// As they are used now.
    pub fn ring_bytes(&self) -> usize {
        let limit = self.word(self.limit.as_ptr().cast()).load(Ordering::Relaxed) as usize;
        if limit == self.ring_bytes - RING_TAIL { self.ring_bytes } else { limit }
    }

    /// From now on each is used as if it had so many bytes, at least [`LEAST_RING`], at most what it has.
    pub fn resize(&self, bytes: u64) {
        let most = (self.ring_bytes - RING_TAIL) as u64;
        let limit = bytes.max(LEAST_RING).min(most);
        self.word(self.limit.as_ptr().cast()).store(limit, Ordering::Relaxed);
    }

    /// Hands over all whole records of a CPU's ring, oldest first, each with the number of a packet newer than all of
    /// them, and frees their space. Returns how many.
    pub fn drain(&self, cpu: usize, each: &mut dyn FnMut(Raw<'_>, u64)) -> u64 {
        let ctl = self.ctl(cpu);
        // SAFETY: as in losses().
        let (prod, cons) = unsafe { (self.word(&raw mut (*ctl).prod), self.word(&raw mut (*ctl).cons)) };
        let end = prod.load(Ordering::Acquire);
        let mut at = cons.load(Ordering::Relaxed);
        let next = self.next_packet();
        let mut n = 0;
        // SAFETY: the data area starts one page after the control page.
        let data = unsafe { self.base(cpu).add(RING_DATA) };
        while at < end {
            let offset = at as usize & (self.ring_bytes - 1);
            // SAFETY: offset is below ring_bytes and a multiple of the slot; a record is at most 1040 bytes, less than the tail page, and may run into
            // the tail page, which belongs to the mapping.
            let p = unsafe { data.add(offset) };
            let head = self.word(p.cast()).load(Ordering::Acquire);
            let (kind, slots) = ((head & 0xff) as u32, (head >> 8 & 0xff) as usize);
            if kind == wire::kind::NONE || slots == 0 || slots * self.slot > RING_TAIL {
                // reserved and not yet written: an interrupt handler or another task holds it for a moment
                break;
            }
            // SAFETY: the kernel has committed the record (its head was read with acquire) and does not touch it until
            // cons moves past it; p is aligned to 8 bytes at least, as the types are, and every bit pattern is valid for them.
            unsafe {
                match kind {
                    wire::kind::CALL => each(Raw::Call(&*p.cast()), next),
                    wire::kind::POINT => each(Raw::Point(&*p.cast()), next),
                    wire::kind::MEMBER => each(Raw::Member(&*p.cast()), next),
                    wire::kind::FOOTPRINT => each(Raw::Footprint(&*p.cast()), next),
                    wire::kind::LINEAGE => each(Raw::Lineage(&*p.cast()), next),
                    wire::kind::EVENT => each(Raw::Event(&*p.cast()), next),
                    wire::kind::PROCESS => each(Raw::Process(&*p.cast()), next),
                    wire::kind::PLACE => each(Raw::Place(&*p.cast()), next),
                    wire::kind::PAUSE => each(Raw::Pause(&*p.cast()), next),
                    wire::kind::CROSSING => each(Raw::Crossing(&*p.cast()), next),
                    wire::kind::SOCKET => each(Raw::Socket(&*p.cast()), next),
                    wire::kind::TCP => each(Raw::Tcp(&*p.cast()), next),
                    wire::kind::GAP => each(Raw::Gap(&*p.cast()), next),
                    wire::kind::THREAD_TIME => each(Raw::ThreadTime(&*p.cast()), next),
                    wire::kind::SAMPLE => each(Raw::Sample(&*p.cast()), next),
                    wire::kind::STACK => each(Raw::Stack(&*p.cast()), next),
                    wire::kind::PROGRAM => each(Raw::Program(&*p.cast()), next),
                    wire::kind::RADIO => each(Raw::Radio(&*p.cast()), next),
                    wire::kind::CARRIER => each(Raw::Carrier(&*p.cast()), next),
                    wire::kind::FRAME => each(Raw::Frame(&*p.cast()), next),
                    wire::kind::PEER => each(Raw::Peer(&*p.cast()), next),
                    _ => {}
                }
            }
            for i in 0..slots {
                // SAFETY: the same bytes as the record read above.
                self.word(unsafe { p.add(i * self.slot) }.cast()).store(0, Ordering::Relaxed);
            }
            at += (slots * self.slot) as u64;
            n += 1;
            if n & 1023 == 0 {
                cons.store(at, Ordering::Release);
            }
        }
        cons.store(at, Ordering::Release);
        n
    }
}
