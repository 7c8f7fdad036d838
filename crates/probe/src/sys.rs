//! The bpf() calls that the bindings do not know yet or not in this form: multi links with cookies, clones of a loaded
//! program for another function, program statistics. Layouts are those of `union bpf_attr` in include/uapi/linux/bpf.h.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// `BPF_TRACE_RAW_TP`: a tracepoint whose arguments have types.
pub const ATTACH_RAW_TP: u32 = 23;
pub const ATTACH_FENTRY: u32 = 24;
pub const ATTACH_FEXIT: u32 = 25;
pub const ATTACH_PERF_EVENT: u32 = 41;
pub const ATTACH_KPROBE_MULTI: u32 = 42;
pub const ATTACH_UPROBE_MULTI: u32 = 48;
pub const ATTACH_KPROBE_SESSION: u32 = 56;
pub const ATTACH_FENTRY_MULTI: u32 = 59;
pub const ATTACH_FSESSION_MULTI: u32 = 61;

const CMD_PROG_LOAD: u32 = 5;
const CMD_PROG_TEST_RUN: u32 = 10;
const CMD_OBJ_GET_INFO: u32 = 15;
const CMD_BTF_GET_FD_BY_ID: u32 = 19;
const CMD_BTF_GET_NEXT_ID: u32 = 23;
const CMD_LINK_CREATE: u32 = 28;
const CMD_ENABLE_STATS: u32 = 32;
const CMD_RAW_TRACEPOINT_OPEN: u32 = 17;

fn bpf<T>(cmd: u32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: attr is a live, initialised repr(C) value and its own size is passed; pointers in it are kept alive by the callers.
    let r = unsafe { libc::syscall(libc::SYS_bpf, cmd, attr as *mut T, size_of::<T>()) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor to us and nobody else holds it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// One link for many functions by name: kprobe.multi (`returns`: at the return) or kprobe.session.
pub fn link_kprobe_multi(
    prog: BorrowedFd<'_>,
    attach: u32,
    returns: bool,
    syms: &[std::ffi::CString],
    cookies: &[u64],
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog: u32,
        target: u32,
        attach: u32,
        flags: u32,
        kflags: u32,
        cnt: u32,
        syms: u64,
        addrs: u64,
        cookies: u64,
    }
    let ptrs: Vec<*const libc::c_char> = syms.iter().map(|s| s.as_ptr()).collect();
    let mut a = Attr {
        prog: prog.as_raw_fd() as u32,
        target: 0,
        attach,
        flags: 0,
        kflags: returns as u32,
        cnt: syms.len() as u32,
        syms: ptrs.as_ptr() as u64,
        addrs: 0,
        cookies: cookies.as_ptr() as u64,
    };
    bpf(CMD_LINK_CREATE, &mut a).map(owned)
}

/// A place in a file of a program.
pub struct Place {
    pub offset: u64,
    /// Offset in the file of its count of those who watch it; 0: it has none.
    pub counter: u64,
    pub cookie: u64,
}

/// One link for many places of one file.
pub fn link_uprobe_multi(
    prog: BorrowedFd<'_>,
    path: &std::ffi::CStr,
    returns: bool,
    places: &[Place],
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog: u32,
        target: u32,
        attach: u32,
        flags: u32,
        path: u64,
        offsets: u64,
        counters: u64,
        cookies: u64,
        cnt: u32,
        uflags: u32,
        pid: u32,
        pad: u32,
    }
    let all = |of: fn(&Place) -> u64| places.iter().map(of).collect::<Vec<u64>>();
    let (offsets, counters, cookies) = (all(|p| p.offset), all(|p| p.counter), all(|p| p.cookie));
    let mut a = Attr {
        prog: prog.as_raw_fd() as u32,
        target: 0,
        attach: ATTACH_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: counters.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: places.len() as u32,
        uflags: returns as u32,
        pid: 0,
        pad: 0,
    };
    bpf(CMD_LINK_CREATE, &mut a).map(owned)
}

/// One link for many functions by BTF id. The order of ids need not be sorted; cookies go with ids.
pub fn link_tracing_multi(
    prog: BorrowedFd<'_>,
    attach: u32,
    ids: &[u32],
    cookies: &[u64],
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog: u32,
        target: u32,
        attach: u32,
        flags: u32,
        ids: u64,
        cookies: u64,
        cnt: u32,
        pad: u32,
    }
    let mut a = Attr {
        prog: prog.as_raw_fd() as u32,
        target: 0,
        attach,
        flags: 0,
        ids: ids.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: ids.len() as u32,
        pad: 0,
    };
    bpf(CMD_LINK_CREATE, &mut a).map(owned)
}

/// Attaches an fentry or fexit program to the function it was loaded for.
pub fn link_tracing(prog: BorrowedFd<'_>, attach: u32, cookie: u64) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog: u32,
        target: u32,
        attach: u32,
        flags: u32,
        btf_id: u32,
        pad: u32,
        cookie: u64,
    }
    let mut a =
        Attr { prog: prog.as_raw_fd() as u32, target: 0, attach, flags: 0, btf_id: 0, pad: 0, cookie };
    bpf(CMD_LINK_CREATE, &mut a).map(owned)
}

/// Attaches a kprobe program to a perf event that stands for a probe.
pub fn link_perf(prog: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog: u32,
        target: u32,
        attach: u32,
        flags: u32,
        cookie: u64,
    }
    let (prog, target) = (prog.as_raw_fd() as u32, event.as_raw_fd() as u32);
    let mut a = Attr { prog, target, attach: ATTACH_PERF_EVENT, flags: 0, cookie };
    bpf(CMD_LINK_CREATE, &mut a).map(owned)
}

pub fn raw_tracepoint(prog: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        name: u64,
        prog: u32,
        pad: u32,
    }
    let mut a = Attr { name: name.as_ptr() as u64, prog: prog.as_raw_fd() as u32, pad: 0 };
    bpf(CMD_RAW_TRACEPOINT_OPEN, &mut a).map(owned)
}

/// A type of perf events, and where `struct perf_event_attr` has a word (include/uapi/linux/perf_event.h).
const SOFTWARE: u32 = 1;
const CONFIG: usize = 8;
const SAMPLE_PERIOD: usize = 16;
const SAMPLE_TYPE: usize = 24;
const FLAGS: usize = 40;
const CONFIG_1: usize = 56;
const CONFIG_2: usize = 64;
const CLOCK: usize = 88;

/// A perf event of this type, of all processes, with these words in its attributes. What a word points to has to live until the call returns.
fn perf_event(kind: u32, cpu: u32, words: &[(usize, u64)]) -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: u64 = 8;
    let mut attr = [0u8; 128];
    attr[0..4].copy_from_slice(&kind.to_ne_bytes());
    attr[4..8].copy_from_slice(&128u32.to_ne_bytes());
    for (at, word) in words {
        attr[*at..*at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    // SAFETY: attr is 128 bytes as its size field says; what its words point to is the caller's, for as long as this takes.
    let r =
        unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1, cpu as i32, -1, CLOSE_ON_EXEC) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(owned(r as i32)) }
}

/// A perf event for an event of tracefs, by its number there: programs on it run on every CPU.
pub fn perf_tracepoint(event: u64) -> io::Result<OwnedFd> {
    const TRACEPOINT: u32 = 2;
    perf_event(TRACEPOINT, 0, &[(CONFIG, event)])
}

/// A perf event for the entry (or return) of one kernel function: the "kprobe" PMU.
pub fn perf_kprobe(pmu: u32, name: &std::ffi::CStr, retprobe: bool) -> io::Result<OwnedFd> {
    perf_event(pmu, 0, &[(CONFIG, retprobe.into()), (CONFIG_1, name.as_ptr() as u64)])
}

/// Opens a file at a path that somebody else may change meanwhile: a fifo there does not hold us up, and what is no regular file is refused.
/// `flags`: more of open(2).
pub fn open_regular(path: &str, flags: i32) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// A software event of the kernel (`PERF_COUNT_SW_*`), each time that it happens on this CPU.
pub fn perf_software(event: u64, cpu: u32) -> io::Result<OwnedFd> {
    perf_event(SOFTWARE, cpu, &[(CONFIG, event), (SAMPLE_PERIOD, 1)])
}

/// What [`crate::mappings`] reads: changes of the address spaces of what runs on this CPU, in time since boot.
pub fn address_spaces(cpu: u32) -> io::Result<OwnedFd> {
    const DUMMY: u64 = 9;
    const SAMPLE_TIME: u64 = 4;
    // mmap, comm, task, sample_id_all, mmap2, comm_exec, use_clockid
    const CHANGES: u64 = 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 25;
    const BOOTTIME: u64 = 7;
    let clock = BOOTTIME << 32; // the upper half of its word
    perf_event(
        SOFTWARE,
        cpu,
        &[(CONFIG, DUMMY), (SAMPLE_TYPE, SAMPLE_TIME), (FLAGS, CHANGES), (CLOCK, clock)],
    )
}

pub fn page_bytes() -> usize {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Has `prog` run on a CPU once in each `period_ns` of its time, whatever it is doing.
pub fn cpu_clock(prog: BorrowedFd<'_>, cpu: u32, period_ns: u64) -> io::Result<OwnedFd> {
    const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
    let event = perf_event(SOFTWARE, cpu, &[(SAMPLE_PERIOD, period_ns)])?;
    // SAFETY: both descriptors are open; the kernel takes a reference to the program.
    let r = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_BPF as _, prog.as_raw_fd()) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(event) }
}

/// The clock of [`cpu_clock`] begins anew with this period.
pub fn set_period(clock: &OwnedFd, period_ns: u64) -> io::Result<()> {
    const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
    // SAFETY: the kernel reads one number of 64 bits.
    let r = unsafe { libc::ioctl(clock.as_raw_fd(), IOC_PERIOD as _, &raw const period_ns) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A perf event for an offset in a file that is executed, when it is reached, or when the function that begins there returns. `counter`: offset
/// of the count of those who watch it, 0: none.
pub fn perf_uprobe(
    pmu: u32,
    path: &std::ffi::CStr,
    offset: u64,
    returns: bool,
    counter: u64,
) -> io::Result<OwnedFd> {
    let what = counter << 32 | u64::from(returns);
    perf_event(pmu, 0, &[(CONFIG, what), (CONFIG_1, path.as_ptr() as u64), (CONFIG_2, offset)])
}

/// Loads an already relocated program again for the BTF function `btf_id` of kernel object `btf_obj` (None: vmlinux); a program
/// for many functions of one object has no `btf_id`.
pub fn load_tracing(
    code: &crate::object::Code,
    attach: u32,
    btf_id: u32,
    btf_obj: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        flags: u32,
        name: [u8; 16],
        ifindex: u32,
        attach: u32,
        btf_fd: u32,
        func_info_rec_size: u32,
        func_info: u64,
        func_info_cnt: u32,
        line_info_rec_size: u32,
        line_info: u64,
        line_info_cnt: u32,
        attach_btf_id: u32,
        attach_btf_obj_fd: u32,
        pad: u32,
    }
    let mut a = Attr {
        prog_type: 26,
        insn_cnt: code.insns.len() as u32,
        insns: code.insns.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        flags: 0,
        name: *b"kpat_tracing\0\0\0\0",
        ifindex: 0,
        attach,
        btf_fd: code.types.max(0) as u32,
        func_info_rec_size: size_of::<libbpf_rs::libbpf_sys::bpf_func_info>() as u32,
        func_info: code.functions.as_ptr() as u64,
        func_info_cnt: if code.types < 0 { 0 } else { code.functions.len() as u32 },
        line_info_rec_size: 0,
        line_info: 0,
        line_info_cnt: 0,
        attach_btf_id: btf_id,
        attach_btf_obj_fd: btf_obj.map_or(0, |f| f.as_raw_fd() as u32),
        pad: 0,
    };
    bpf(CMD_PROG_LOAD, &mut a).map(owned)
}

/// Runs a raw tracepoint's program once on a CPU, with one argument.
pub fn run_on_cpu(prog: BorrowedFd<'_>, cpu: u32, argument: u64) -> io::Result<()> {
    const ON_CPU: u32 = 1; // BPF_F_TEST_RUN_ON_CPU
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        fd: u32,
        retval: u32,
        data_sizes: [u32; 2],
        data: [u64; 2],
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
    }
    let arguments = [argument];
    let mut a = Attr {
        fd: prog.as_raw_fd() as u32,
        ctx_size_in: size_of_val(&arguments) as u32,
        ctx_in: arguments.as_ptr() as u64,
        flags: ON_CPU,
        cpu,
        ..Attr::default()
    };
    bpf(CMD_PROG_TEST_RUN, &mut a).map(drop)
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ProgStats {
    pub run_ns: u64,
    pub runs: u64,
    pub recursion_misses: u64,
}

/// Statistics of one program; zeros unless [`enable_stats`] is held.
pub fn prog_stats(prog: BorrowedFd<'_>) -> io::Result<ProgStats> {
    #[repr(C)]
    struct Attr {
        fd: u32,
        len: u32,
        info: u64,
    }
    // struct bpf_prog_info: run_time_ns at 192, run_cnt at 200, recursion_misses at 208
    let mut info = [0u8; 232];
    let mut a = Attr { fd: prog.as_raw_fd() as u32, len: info.len() as u32, info: info.as_mut_ptr() as u64 };
    bpf(CMD_OBJ_GET_INFO, &mut a)?;
    let word = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight bytes"));
    Ok(ProgStats { run_ns: word(192), runs: word(200), recursion_misses: word(208) })
}

/// The kernel counts runs and run time of all BPF programs while the descriptor lives.
pub fn enable_stats() -> io::Result<OwnedFd> {
    let mut kind = 0u32;
    bpf(CMD_ENABLE_STATS, &mut kind).map(owned)
}

/// BTF objects of the kernel and its modules: name and descriptor.
pub fn kernel_btfs() -> io::Result<Vec<(String, OwnedFd)>> {
    let mut out = Vec::new();
    let mut id = 0u32;
    loop {
        let mut next = [id, 0, 0];
        if bpf(CMD_BTF_GET_NEXT_ID, &mut next).is_err() {
            return Ok(out);
        }
        id = next[1];
        let mut get = [id, 0, 0];
        let Ok(fd) = bpf(CMD_BTF_GET_FD_BY_ID, &mut get).map(owned) else { continue };
        #[repr(C)]
        struct Info {
            btf: u64,
            btf_size: u32,
            id: u32,
            name: u64,
            name_len: u32,
            kernel_btf: u32,
        }
        #[repr(C)]
        struct Attr {
            fd: u32,
            len: u32,
            info: u64,
        }
        let mut name = [0u8; 64];
        let mut info =
            Info { btf: 0, btf_size: 0, id: 0, name: name.as_mut_ptr() as u64, name_len: 64, kernel_btf: 0 };
        let mut a =
            Attr { fd: fd.as_raw_fd() as u32, len: size_of::<Info>() as u32, info: &raw mut info as u64 };
        if bpf(CMD_OBJ_GET_INFO, &mut a).is_ok() && info.kernel_btf != 0 {
            let end = name.iter().position(|c| *c == 0).unwrap_or(0);
            out.push((String::from_utf8_lossy(&name[..end]).into_owned(), fd));
        }
    }
}

/// A shared mapping of a map's memory.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

// SAFETY: the memory is shared with the kernel anyway; every access goes through raw or atomic reads of the holder.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        // SAFETY: a fresh shared mapping, length and descriptor are the kernel's to check.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if p == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { at: p.cast(), len })
        }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what new() mapped; holders of pointers into it do not outlive self.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Boot-time and wall clock of the same moment; the uncertainty is half the time that reading took.
pub fn clock_anchor() -> kpat_model::meta::ClockAnchor {
    let read = |id| {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: t is a valid timespec to write to.
        unsafe { libc::clock_gettime(id, &mut t) };
        t.tv_sec * 1_000_000_000 + t.tv_nsec
    };
    let mut best = kpat_model::meta::ClockAnchor { uncertainty_ns: i64::MAX, ..Default::default() };
    for _ in 0..8 {
        let (before, wall, after) =
            (read(libc::CLOCK_BOOTTIME), read(libc::CLOCK_REALTIME), read(libc::CLOCK_BOOTTIME));
        let half = (after - before) / 2 + 1;
        if half < best.uncertainty_ns {
            best.boot = kpat_model::BootNs(before + (after - before) / 2);
            best.wall = kpat_model::WallNs(wall);
            best.uncertainty_ns = half;
        }
    }
    best
}

/// Memory that was freed goes back to the kernel. Preparing and ending a file takes much for a moment (the kernel's types and symbols), which the allocator would
/// keep for as long as something small lies above it.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory is passed.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits until every CPU has left what it was running in the kernel without sleeping (an RCU grace period, some 10 ms).
pub fn wait_for_running_code() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: no memory is passed. Where the call is unavailable, nothing is waited for.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// The kernel's unit of times in /proc.
pub fn ns_per_tick() -> u64 {
    // SAFETY: no memory is passed.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

pub fn boot_now() -> kpat_model::BootNs {
    clock_read(libc::CLOCK_BOOTTIME)
}

/// Nanoseconds of any clock; `None` where it cannot be read.
pub fn clock_now(id: libc::clockid_t) -> Option<i64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid timespec to write to.
    let r = unsafe { libc::clock_gettime(id, &mut t) };
    (r == 0).then(|| t.tv_sec * 1_000_000_000 + t.tv_nsec)
}

fn clock_read(id: libc::clockid_t) -> kpat_model::BootNs {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid timespec to write to.
    unsafe { libc::clock_gettime(id, &mut t) };
    kpat_model::BootNs(t.tv_sec * 1_000_000_000 + t.tv_nsec)
}
