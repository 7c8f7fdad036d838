//! Generated from bpf/include/wire.h by way of the object's BTF (`UPDATE_WIRE=1 cargo test -p kpat-probe --test wire`).
//! Not edited by hand: a test compares it with the object.

#![allow(dead_code)]

/// `enum kp_kind`
pub mod kind {
    pub const NONE: u32 = 0;
    pub const CALL: u32 = 1;
    pub const POINT: u32 = 2;
    pub const MEMBER: u32 = 3;
    pub const FOOTPRINT: u32 = 4;
    pub const LINEAGE: u32 = 5;
    pub const EVENT: u32 = 6;
    pub const PROCESS: u32 = 7;
    pub const PLACE: u32 = 8;
    pub const PAUSE: u32 = 9;
}

/// `enum kp_loss`
pub mod loss {
    pub const LOSS_RING_FULL: u32 = 1;
    pub const LOSS_CALL_TABLE: u32 = 2;
    pub const LOSS_PACKET_TABLE: u32 = 3;
    pub const LOSS_NO_RETURN: u32 = 5;
    pub const LOSS_LIST_CUT: u32 = 6;
    pub const LOSS_READ_FAULT: u32 = 10;
    pub const LOSS_TASK_TABLE: u32 = 12;
    pub const LOSS_MAX: u32 = 16;
}

/// `enum kp_event_kind`
pub mod event_kind {
    pub const EV_DROP: u32 = 1;
    pub const EV_RETRANSMIT: u32 = 2;
    pub const EV_TCP_STATE: u32 = 3;
}

/// `enum kp_lineage_kind`
pub mod lineage_kind {
    pub const LIN_CLONE: u32 = 1;
    pub const LIN_COPY: u32 = 2;
    pub const LIN_SEGMENT: u32 = 3;
    pub const LIN_GRO: u32 = 4;
    pub const LIN_FRAGMENT: u32 = 5;
    pub const LIN_REALLOC: u32 = 7;
}

/// `struct kp_head`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub kind: u8,
    pub slots: u8,
    pub func: u16,
    pub pid: u32,
    pub ts: u64,
}
const _: () = assert!(size_of::<Head>() == 16);

/// `struct kp_call`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub h: Head,
    pub dur_lo: u32,
    pub dur_hi: u16,
    pub skb_tag: u16,
    pub packet: u32,
    pub ctx: u8,
    pub flags: u8,
    pub pad: u16,
}
const _: () = assert!(size_of::<Call>() == 32);

/// `struct kp_point`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub h: Head,
    pub len: u32,
    pub packet: u32,
    pub skb_tag: u16,
    pub ctx: u8,
    pub flags: u8,
    pub pad: u32,
}
const _: () = assert!(size_of::<Point>() == 32);

/// `struct kp_member`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub h: Head,
    pub packet: u32,
    pub pad: [u32; 3],
}
const _: () = assert!(size_of::<Member>() == 32);

/// `struct kp_lineage`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lineage {
    pub h: Head,
    pub parent: u32,
    pub child: u32,
    pub pad: u64,
}
const _: () = assert!(size_of::<Lineage>() == 32);

/// `struct kp_process`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub h: Head,
    pub tgid: u32,
    pub pad: u32,
    pub comm: [u8; 16],
    pub pad2: [u64; 3],
}
const _: () = assert!(size_of::<Process>() == 64);

/// `struct kp_event`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub h: Head,
    pub packet: u32,
    pub netns: u32,
    pub a: u64,
    pub b: u64,
    pub ctx: u8,
    pub pad: [u8; 7],
    pub pad2: [u64; 2],
}
const _: () = assert!(size_of::<Event>() == 64);

/// `struct kp_footprint`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub h: Head,
    pub packet: u32,
    pub ifindex: u32,
    pub netns: u32,
    pub len: u32,
    pub gso_size: u16,
    pub gso_segs: u16,
    pub protocol: u16,
    pub link_type: u16,
    pub skb_tag: u16,
    pub start_layer: u8,
    pub ip_proto: u8,
    pub header_len: u8,
    pub ctx: u8,
    pub vlan_tci: u16,
    pub header: [u8; 112],
}
const _: () = assert!(size_of::<Footprint>() == 160);

/// `struct kp_place`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub h: Head,
    pub packet: u32,
    pub ifindex: u32,
    pub netns: u32,
    pub link_type: u16,
    pub skb_tag: u16,
}
const _: () = assert!(size_of::<Place>() == 32);

/// `struct kp_pause`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub h: Head,
    pub dur: u64,
    pub wait: u32,
    pub cpu_out: u16,
    pub cpu_in: u16,
}
const _: () = assert!(size_of::<Pause>() == 32);

/// `struct kp_ring_ctl`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingCtl {
    pub prod: u64,
    pub pad0: [u64; 7],
    pub cons: u64,
    pub pad1: [u64; 7],
    pub lost: [u64; 16],
    pub last_pid: [u32; 2],
}
const _: () = assert!(size_of::<RingCtl>() == 264);
