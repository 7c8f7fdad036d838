//! The calls of libpcap that turn pcap-filter text into classic BPF and run it, without opening a device. Nothing of libpcap
//! leaves this file.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

/// `DLT_EN10MB`.
pub const ETHERNET: i32 = 1;
/// `DLT_RAW`: starts with the IPv4 or IPv6 header.
pub const RAW_IP: i32 = 12;

/// `struct bpf_insn` of <pcap/bpf.h>: a classic BPF instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut Instruction,
}

#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut Handle;
    fn pcap_compile(
        handle: *mut Handle,
        program: *mut Program,
        text: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_geterr(handle: *mut Handle) -> *const c_char;
    fn pcap_freecode(program: *mut Program);
    fn pcap_close(handle: *mut Handle);
    fn bpf_filter(program: *const Instruction, packet: *const u8, len: c_uint, kept: c_uint) -> c_uint;
}

/// Runs a compiled filter over a packet.
pub fn matches(program: &[Instruction], packet: &[u8]) -> bool {
    matches_start(program, packet, packet.len())
}

/// The same where only the first bytes of `whole` are there.
pub fn matches_start(program: &[Instruction], start: &[u8], whole: usize) -> bool {
    // SAFETY: the program is what libpcap compiled and ends in a return; bytes and their number belong together.
    unsafe { bpf_filter(program.as_ptr(), start.as_ptr(), whole as c_uint, start.len() as c_uint) != 0 }
}

const SNAPLEN: c_int = 262_144;
const NETMASK_UNKNOWN: u32 = 0xffff_ffff;

/// Compiles for one link type. The error is libpcap's own message.
pub fn compile(text: &str, link_type: i32) -> Result<Vec<Instruction>, String> {
    let text = CString::new(text).map_err(|_| "it contains a zero byte".to_string())?;
    // SAFETY: opens nothing; the handle is closed below on every path.
    let handle = unsafe { pcap_open_dead(link_type, SNAPLEN) };
    if handle.is_null() {
        return Err("libpcap: out of memory".into());
    }
    let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
    // SAFETY: the handle is open, the program is ours to be filled in, the text is zero-terminated and lives on.
    let result = unsafe { pcap_compile(handle, &mut program, text.as_ptr(), 1, NETMASK_UNKNOWN) };
    let out = if result == 0 && !program.instructions.is_null() {
        // SAFETY: libpcap has just filled in a pointer to that many instructions; they are copied before being freed.
        let copy = unsafe { std::slice::from_raw_parts(program.instructions, program.len as usize) }.to_vec();
        // SAFETY: frees what pcap_compile allocated, once.
        unsafe { pcap_freecode(&mut program) };
        Ok(copy)
    } else {
        // SAFETY: the message is a zero-terminated buffer inside the handle, which is still open; it is copied.
        let message = unsafe { CStr::from_ptr(pcap_geterr(handle)) };
        Err(message.to_string_lossy().trim().to_string())
    };
    // SAFETY: the handle came from pcap_open_dead and is not used again.
    unsafe { pcap_close(handle) };
    out
}
