//! Generated from bpf/include/wire.h by way of the object's BTF (`UPDATE_WIRE=1 cargo test -p kpat-probe --test wire`).
//! Not edited by hand: a test compares it with the object. `struct kp_x_y` is `XY` here, `enum kp_x_y` the module `x_y`.

#![allow(dead_code)]

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
    pub const CROSSING: u32 = 10;
    pub const SOCKET: u32 = 11;
    pub const TCP: u32 = 12;
    pub const GAP: u32 = 13;
    pub const SAMPLE: u32 = 14;
    pub const STACK: u32 = 15;
    pub const PROGRAM: u32 = 16;
    pub const RADIO: u32 = 17;
    pub const CARRIER: u32 = 18;
    pub const FRAME: u32 = 19;
    pub const PEER: u32 = 20;
    pub const THREAD_TIME: u32 = 21;
}
pub mod crossing_kind {
    pub const X_ASK: u32 = 1;
    pub const X_SEND: u32 = 2;
    pub const X_TO_TRANSPORT: u32 = 3;
    pub const X_TO_NETWORK: u32 = 4;
    pub const X_TO_DEVICE: u32 = 5;
    pub const X_TO_DRIVER: u32 = 6;
    pub const X_FROM_DEVICE: u32 = 7;
    pub const X_FROM_NETWORK: u32 = 8;
    pub const X_TO_SOCKET: u32 = 9;
    pub const X_RECV: u32 = 10;
    pub const X_RETRANSMIT: u32 = 11;
    pub const X_ACKED: u32 = 12;
}
pub mod loss {
    pub const LOSS_RING_FULL: u32 = 1;
    pub const LOSS_CALL_TABLE: u32 = 2;
    pub const LOSS_PACKET_TABLE: u32 = 3;
    pub const LOSS_NO_RETURN: u32 = 5;
    pub const LOSS_LIST_CUT: u32 = 6;
    pub const LOSS_READ_FAULT: u32 = 10;
    pub const LOSS_TASK_TABLE: u32 = 12;
    pub const LOSS_NO_DEVICE: u32 = 15;
    pub const LOSS_MAX: u32 = 16;
}
pub mod event_kind {
    pub const EV_DROP: u32 = 1;
    pub const EV_RETRANSMIT: u32 = 2;
    pub const EV_TCP_STATE: u32 = 3;
    pub const EV_POLL: u32 = 6;
    pub const EV_POLLED: u32 = 7;
    pub const EV_STAMP: u32 = 8;
}
pub mod lineage_kind {
    pub const LIN_CLONE: u32 = 1;
    pub const LIN_COPY: u32 = 2;
    pub const LIN_SEGMENT: u32 = 3;
    pub const LIN_GRO: u32 = 4;
    pub const LIN_FRAGMENT: u32 = 5;
    pub const LIN_REALLOC: u32 = 7;
}
pub mod sleep {
    pub const SLEEP_STOPPED: u32 = 1;
    pub const SLEEP_FROZEN: u32 = 2;
    pub const SLEEP_UNINTERRUPTIBLE: u32 = 3;
    pub const SLEEP_LOCK: u32 = 4;
    pub const SLEEP_TIMER: u32 = 5;
    pub const SLEEP_CHILD: u32 = 6;
    pub const SLEEP_DESCRIPTORS: u32 = 7;
    pub const SLEEP_DATA: u32 = 8;
    pub const SLEEP_ROOM: u32 = 9;
    pub const SLEEP_OTHER: u32 = 10;
}
pub mod work_kind {
    pub const WORK_USER: u32 = 1;
    pub const WORK_KERNEL: u32 = 2;
    pub const WORK_IDLE: u32 = 3;
    pub const WORK_THREAD: u32 = 4;
    pub const WORK_SOFTIRQ: u32 = 5;
    pub const WORK_HARDIRQ: u32 = 6;
    pub const WORK_SOFTIRQ_THREAD: u32 = 7;
    pub const WORK_FAULT: u32 = 8;
    pub const WORK_UNSEEN: u32 = 9;
}
pub mod purpose {
    pub const FOR_ITSELF: u32 = 0;
    pub const FOR_SOCKET: u32 = 1;
    pub const FOR_FORWARD: u32 = 2;
    pub const FOR_DROP: u32 = 3;
    pub const FOR_UNKNOWN: u32 = 4;
    pub const FOR_KERNEL: u32 = 5;
    pub const FOR_WRITEBACK: u32 = 6;
    pub const FOR_BLOCK: u32 = 7;
    pub const FOR_CLIENT: u32 = 8;
    pub const FOR_ANSWER: u32 = 9;
    pub const FOR_ITEM: u32 = 10;
    pub const FOR_ASKER: u32 = 11;
    pub const FOR_REMOTE: u32 = 12;
    pub const FOR_HANDED: u32 = 13;
    pub const FOR_HANDED_REMOTE: u32 = 14;
    pub const FOR_HANDED_ON: u32 = 15;
}
pub mod use_kind {
    pub const USE_READ: u32 = 1;
    pub const USE_WRITE: u32 = 2;
    pub const USE_OPEN: u32 = 3;
    pub const USE_TAKE: u32 = 5;
    pub const USE_ANSWER: u32 = 4;
    pub const USE_MADE: u32 = 6;
}
pub mod rule_kind {
    pub const RULE_COMM: u32 = 1;
    pub const RULE_CGROUP: u32 = 2;
    pub const RULE_USER: u32 = 3;
}
pub mod argument_from {
    pub const ARG_NONE: u32 = 0;
    pub const ARG_REGISTER: u32 = 1;
    pub const ARG_MEMORY: u32 = 2;
    pub const ARG_CONSTANT: u32 = 3;
    pub const ARG_KEPT: u32 = 4;
}
pub mod argument_flag {
    pub const ARG_SIGNED: u32 = 1;
    pub const ARG_TEXT: u32 = 2;
    pub const ARG_LENGTH: u32 = 4;
    pub const ARG_POINTED: u32 = 8;
    pub const ARG_KEEP: u32 = 16;
    pub const ARG_THEN: u32 = 32;
    pub const ARG_DESCRIPTOR: u32 = 64;
}
pub mod call_side {
    pub const CALL_NONE: u32 = 0;
    pub const CALL_ENTRY: u32 = 1;
    pub const CALL_RETURN: u32 = 2;
}

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

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub h: Head,
    pub packet: u32,
    pub pad: [u32; 3],
}
const _: () = assert!(size_of::<Member>() == 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lineage {
    pub h: Head,
    pub parent: u32,
    pub child: u32,
    pub pad: u64,
}
const _: () = assert!(size_of::<Lineage>() == 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub h: Head,
    pub tgid: u32,
    pub uid: u32,
    pub comm: [u8; 16],
    pub cgroup: u64,
    pub started: u64,
    pub number: u64,
}
const _: () = assert!(size_of::<Process>() == 64);

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

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    pub kind: u8,
    pub slots: u8,
    pub what: u8,
    pub pid_hi: u8,
    pub sock: u32,
    pub ts_pid: u64,
    pub size: i32,
    pub seq: u32,
}
const _: () = assert!(size_of::<Crossing>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub kind: u8,
    pub slots: u8,
    pub what: u8,
    pub state: u8,
    pub sock: u32,
    pub ts: u64,
    pub cookie: u64,
    pub cgroup: u64,
    pub slot: u32,
    pub netns: u32,
    pub family: u16,
    pub protocol: u16,
    pub port: u16,
    pub peer_port: u16,
    pub addr: [u8; 16],
    pub peer: [u8; 16],
    pub congestion: [u8; 16],
    pub pid: u32,
    pub uid: u32,
    pub above: u64,
}
const _: () = assert!(size_of::<Socket>() == 112);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub kind: u8,
    pub slots: u8,
    pub what: u8,
    pub ca_state: u8,
    pub sock: u32,
    pub ts: u64,
    pub ip_id: u16,
    pub ip_frag: u16,
    pub tos: u8,
    pub ttl: u8,
    pub version: u8,
    pub tcp_flags: u8,
    pub state: u8,
    pub limit: u8,
    pub mss: u16,
    pub snd_cwnd: u32,
    pub snd_ssthresh: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub srtt_us8: u32,
    pub rttvar_us4: u32,
    pub rto_jiffies: u32,
    pub in_flight: u32,
    pub retrans_out: u32,
    pub lost_out: u32,
    pub sacked_out: u32,
    pub total_retrans: u32,
    pub write_seq: u32,
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub app_limited: u32,
    pub delivered: u32,
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
    pub wmem_queued: u32,
    pub rmem_alloc: u32,
    pub pacing_rate: u64,
}
const _: () = assert!(size_of::<Tcp>() == 128);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub kind: u8,
    pub slots: u8,
    pub pad: u16,
    pub lost: u32,
    pub since: u64,
    pub until: u64,
}
const _: () = assert!(size_of::<Gap>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThreadTime {
    pub kind: u8,
    pub slots: u8,
    pub pad: u16,
    pub sock: u32,
    pub ts: u64,
    pub since: u64,
    pub ran: u64,
    pub waited: u64,
    pub thread: u32,
    pub slept: u32,
}
const _: () = assert!(size_of::<ThreadTime>() == 48);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub h: Head,
    pub kernel: u64,
    pub user: u64,
    pub socket: u64,
    pub process: u32,
    pub busy: u8,
    pub purpose: u8,
    pub flags: u8,
    pub periods: u8,
}
const _: () = assert!(size_of::<Sample>() == 48);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub h: Head,
    pub number: u64,
    pub frames: [u64; 127],
}
const _: () = assert!(size_of::<Stack>() == 1040);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Announcement {
    pub ts: u64,
    pub netns: u32,
    pub len: u32,
    pub cpu: u32,
    pub pid: u32,
    pub tgid: u32,
    pub ctx: u8,
    pub pad: [u8; 3],
    pub comm: [u8; 16],
    pub message: [u8; 128],
}
const _: () = assert!(size_of::<Announcement>() == 176);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    pub from: u8,
    pub flags: u8,
    pub size: u8,
    pub slot: u8,
    pub reg: u16,
    pub then: u16,
    pub offset: i64,
}
const _: () = assert!(size_of::<Argument>() == 16);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    pub id: u16,
    pub mode: u16,
    pub stage: u8,
    pub of_call: u8,
    pub begins: u16,
    pub most: u32,
    pub only: u32,
    pub wanted: u64,
    pub argument: [Argument; 6],
}
const _: () = assert!(size_of::<Hook>() == 120);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub since: u64,
    pub left_out: u64,
    pub hits: u32,
    pub pad: u32,
}
const _: () = assert!(size_of::<Rate>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub h: Head,
    pub value: [u64; 4],
    pub stage: u8,
    pub text_len: u8,
    pub faults: u8,
    pub pad: u8,
    pub text: [u8; 64],
    pub pad2: [u8; 4],
}
const _: () = assert!(size_of::<Program>() == 120);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RadioCopy {
    pub from: u16,
    pub to: u8,
    pub size: u8,
    pub dynamic: u8,
    pub pad: [u8; 3],
}
const _: () = assert!(size_of::<RadioCopy>() == 8);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RadioPoint {
    pub id: u16,
    pub mode: u16,
    pub pad: u32,
    pub copy: [RadioCopy; 10],
}
const _: () = assert!(size_of::<RadioPoint>() == 88);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Radio {
    pub h: Head,
    pub ctx: u8,
    pub text_len: u8,
    pub pad: [u8; 6],
    pub data: [u8; 160],
}
const _: () = assert!(size_of::<Radio>() == 184);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Carrier {
    pub h: Head,
    pub netns: u32,
    pub ifindex: u32,
    pub ctx: u8,
    pub pad: [u8; 7],
}
const _: () = assert!(size_of::<Carrier>() == 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub h: Head,
    pub netns: u32,
    pub ifindex: u32,
    pub len: u32,
    pub protocol: u16,
    pub copied: u16,
    pub ctx: u8,
    pub sent: u8,
    pub has_link: u8,
    pub pad: u8,
    pub link: [u8; 12],
    pub bytes: [u8; 352],
}
const _: () = assert!(size_of::<Frame>() == 400);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkKey {
    pub socket: u64,
    pub victim: u32,
    pub cpu: u16,
    pub what: u8,
    pub purpose: u8,
    pub turn: u64,
}
const _: () = assert!(size_of::<WorkKey>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub ns: u64,
    pub packets: u64,
    pub bytes: u64,
}
const _: () = assert!(size_of::<Work>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UseKey {
    pub socket: u64,
    pub process: u32,
    pub cpu: u16,
    pub how: u8,
    pub turn: u8,
}
const _: () = assert!(size_of::<UseKey>() == 16);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub bytes: u64,
    pub times: u64,
}
const _: () = assert!(size_of::<Use>() == 16);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub h: Head,
    pub number: u64,
    pub socket: u64,
    pub near: [u8; 16],
    pub far: [u8; 16],
    pub near_port: u16,
    pub far_port: u16,
    pub version: u8,
    pub datagrams: u8,
    pub pad: u16,
    pub pad2: u64,
}
const _: () = assert!(size_of::<Peer>() == 80);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccountHead {
    pub opened: u64,
    pub logged: u64,
    pub unplaced_ns: u64,
    pub packets: u64,
    pub requests: u64,
}
const _: () = assert!(size_of::<AccountHead>() == 40);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub kind: u64,
    pub number: u64,
    pub mask: [u64; 2],
    pub name: [u64; 2],
}
const _: () = assert!(size_of::<Rule>() == 48);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingCtl {
    pub prod: u64,
    pub unlogged: u64,
    pub unlogged_since: u64,
    pub pad0: [u64; 5],
    pub cons: u64,
    pub pad1: [u64; 7],
    pub lost: [u64; 16],
    pub last_pid: [u32; 2],
    pub poll: u64,
    pub poll_wait: u64,
    pub raised: u64,
    pub refused: u64,
    pub moving: [u64; 4],
    pub moving_id: [u64; 4],
    pub no_match: u64,
    pub polled: u64,
    pub rounds: u64,
    pub sends: u64,
    pub arrived: u64,
    pub moment: [u64; 4],
}
const _: () = assert!(size_of::<RingCtl>() == 432);
