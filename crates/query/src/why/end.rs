//! How a write's line ends.

/// How a write's line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its last byte was read by the peer.
    Read,
    /// It was acknowledged; the peer's reads are not in the log.
    Acknowledged,
    /// It could be read; of the peer no read at all is in the log.
    Readable,
    /// Not read when the log ended.
    Open,
    /// Not read when the connection was reset.
    Reset,
    /// Not read when the sender's kernel gave the connection up, as nothing was answered.
    GivenUp,
    /// It was read, as later bytes were, but the log does not say when. A datagram: what became of it is not in the log.
    Unseen,
    /// A datagram that left this host, whose reader is not in the log.
    Sent,
    /// A datagram that the kernel dropped.
    Dropped,
}

impl End {
    pub const ALL: [End; 9] = [
        End::Read,
        End::Acknowledged,
        End::Readable,
        End::Open,
        End::Reset,
        End::GivenUp,
        End::Unseen,
        End::Sent,
        End::Dropped,
    ];

    pub fn name(self) -> &'static str {
        match self {
            End::Read => "read",
            End::Acknowledged => "acknowledged",
            End::Readable => "readable",
            End::Open => "open",
            End::Reset => "reset",
            End::GivenUp => "given_up",
            End::Unseen => "unseen",
            End::Sent => "sent",
            End::Dropped => "dropped",
        }
    }
}
