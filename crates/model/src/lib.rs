//! The words of kpat as types. Nothing here reads a file, a kernel or a clock: rooms that do
//! (`klog`, `probe`, `capture`, `store`) speak to each other in these types and know nothing else of one another.

pub mod announced;
pub mod application;
pub mod build_id;
pub mod codes;
pub mod explained;
pub mod flow;
pub mod footprint;
pub mod functions;
pub mod hash;
pub mod ids;
pub mod link_address;
pub mod meta;
pub mod programs;
pub mod random;
pub mod record;
pub mod sample;
mod stacks;
pub mod wall;
mod weight;
pub mod wifi;
mod work;

pub use application::{
    AppRecord, Crossing, CrossingRecord, Gap, Privacy, SocketRecord, TcpRecord, ThreadTime,
};
pub use codes::{EventKind, LineageKind, LossCause, Sleep};
pub use footprint::{Footprint, Link, Message, Network, Transport, Wifi};
pub use ids::{BootNs, FuncId, PacketId, WallNs};
pub use programs::{ProgramRecord, Stage};
pub use record::{
    Call, CardReading, CardStamp, Context, Event, FootprintRecord, GuestClock, HeaderBytes, Lineage, Loss,
    Member, OffCpu, Owner, Place, Point, Poll, PollEnd, Process, Record, Timed,
};
pub use sample::Sample;
pub use stacks::{CpuSample, Mapping, MappingKind, SampledStack};
pub use weight::json_weight;
pub use wifi::{Exchange, Exchanged, LinkEvent, LinkWhat, WifiEvent, WifiWhat};
pub use work::{
    BlockRequests, Busy, CpuPackets, CpuTime, OTHERS, Peer, ProcessLabel, ProcessNumber, Purpose, SocketUse,
    UseKind, Work,
};
