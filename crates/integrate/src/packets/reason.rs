//! Who dropped, as the kernel's reason and the place of the drop say.

use kpat_model::functions::{self, Drops};

/// What a drop's reason says of who dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The checksum was found wrong, or the data could not be read: it is no good for anybody.
    Checksum,
    /// One socket did not take it.
    Refused,
    /// Shown to a sniffer, which did not take it.
    Sniffer,
    /// A raw socket's copy, which that did not take: the kernel's own protocols have another.
    Raw,
    /// It is for another host, and was shown because a device is promiscuous.
    OtherHost,
    /// It lay in the queue of a socket that was closed.
    Unread,
    /// A connection in TIME-WAIT took it, as its peer's FIN; it is freed like what is dropped, with no reason.
    TimeWait,
    /// So with an acknowledgement that a connection took which is being closed.
    Closing,
    /// The driver at a virtual link's other end did not take it: its XDP program said so.
    FarEnd,
    /// Copies were made of it for where it goes on, if any were made since it came there.
    Copied,
    /// A protocol of this host took it, ICMPv6 of older kernels or spanning tree's; it is freed like what is dropped, with no reason.
    Handled,
    /// So with a frame of spanning tree, if it came in by a port of a bridge.
    Port,
    /// Freed as a part of another packet, if it is one: see [`super::parts`].
    Part,
    /// The kernel does not say why.
    Unspecified,
    /// Anything else: the packet itself was the reason.
    Packet,
}

impl Reason {
    /// By the name in the log's metadata; `None`: it has none.
    pub(crate) fn of(name: Option<&str>) -> Reason {
        match name {
            Some(n) if n.ends_with("_CSUM") => Reason::Checksum,
            Some("SOCKET_RCVBUFF" | "SOCKET_BACKLOG" | "SOCKET_FILTER" | "PROTO_MEM") => Reason::Refused,
            Some("PACKET_SOCK_ERROR") => Reason::Sniffer,
            Some("OTHERHOST") => Reason::OtherHost,
            Some("NOT_SPECIFIED" | "QUEUE_PURGE" | "SOCKET_CLOSE") | None => Reason::Unspecified,
            Some(_) => Reason::Packet,
        }
    }
}

/// Who dropped, where the function that did tells more than the reason.
pub(crate) fn dropper(place: &str) -> Option<Reason> {
    let function = place.split(['+', '.', ' ']).next().unwrap_or(place);
    match functions::of(function)?.drops? {
        // What shows packets to sniffers drops the sniffer's copy.
        Drops::Sniffer => Some(Reason::Sniffer),
        // Older kernels (6.12) give no reason where the reader finds the checksum wrong. What was read well is consumed.
        Drops::Checksum => Some(Reason::Checksum),
        Drops::Raw => Some(Reason::Raw),
        Drops::Unread => Some(Reason::Unread),
        Drops::TimeWait => Some(Reason::TimeWait),
        Drops::Closing => Some(Reason::Closing),
        Drops::FarEnd => Some(Reason::FarEnd),
        Drops::Copied => Some(Reason::Copied),
        Drops::Handled => Some(Reason::Handled),
        Drops::Port => Some(Reason::Port),
        Drops::Part => Some(Reason::Part),
    }
}
