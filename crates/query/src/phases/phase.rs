//! The phases of a packet's way through a host, and what it waits for in between.

macro_rules! phases {
    ($($name:ident $id:literal $label:literal $wait:literal;)*) => {
        /// What happens to a packet at one moment. `name()` is for files, `label()` for people.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Phase { $($name),* }

        impl Phase {
            /// In the order in which a forwarded packet, then a local one, meets them; then the waits.
            pub const ALL: &[Phase] = &[$(Phase::$name),*];

            pub fn name(self) -> &'static str {
                match self { $(Phase::$name => $id),* }
            }

            pub fn label(self) -> &'static str {
                match self { $(Phase::$name => $label),* }
            }

            /// Nobody works on the packet; it lies somewhere.
            pub fn is_wait(self) -> bool {
                match self { $(Phase::$name => $wait),* }
            }
        }
    };
}

phases! {
    DmaRx "dma-rx" "DMA rx" false;
    LinkRx "link-rx" "link rx" false;
    NetworkRx "network-rx" "network rx" false;
    TransportRx "transport-rx" "transport rx" false;
    SocketRx "socket-rx" "socket rx" false;
    CopyToUser "copy-to-user" "copy to user" false;
    SocketTx "socket-tx" "socket tx" false;
    TransportTx "transport-tx" "transport tx" false;
    AboveLink "above-link" "above link" false;
    NetworkTx "network-tx" "network tx" false;
    LinkTx "link-tx" "link tx" false;
    DmaTx "dma-tx" "DMA tx" false;
    Freeing "freeing" "freeing" false;
    GivenAway "given-away" "after sending" false;
    Backlog "backlog" "backlog" true;
    Gro "gro" "GRO" true;
    Softirq "softirq" "softirq" true;
    OtherCpu "other-cpu" "other CPU" true;
    Qdisc "qdisc" "qdisc" true;
    Neighbour "neighbour" "neighbour" true;
    SocketQueue "socket-queue" "socket queue" true;
    Held "held" "held until freed" true;
    Scheduled "scheduled" "scheduler" true;
    Asleep "asleep" "asleep" true;
}

impl Phase {
    /// The six of a router, as the study of 2009 counts them.
    pub const ROUTER: [Phase; 6] =
        [Phase::DmaRx, Phase::LinkRx, Phase::NetworkRx, Phase::NetworkTx, Phase::LinkTx, Phase::DmaTx];

    pub fn from_name(name: &str) -> Option<Phase> {
        Phase::ALL.iter().copied().find(|p| p.name() == name)
    }

    /// This host's CPUs work on the packet; else it waits, or the card has it.
    pub fn is_work(self) -> bool {
        !self.is_wait() && !matches!(self, Phase::DmaRx | Phase::DmaTx | Phase::GivenAway)
    }

    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }

    /// On the way out; a packet that is received after this has been through the host, and comes again.
    pub(crate) fn leaves(self) -> bool {
        matches!(self, Phase::LinkTx | Phase::Qdisc | Phase::DmaTx)
    }

    pub(crate) fn receives(self) -> bool {
        matches!(
            self,
            Phase::DmaRx
                | Phase::LinkRx
                | Phase::NetworkRx
                | Phase::TransportRx
                | Phase::SocketRx
                | Phase::CopyToUser
                | Phase::AboveLink
                | Phase::Backlog
                | Phase::Gro
                | Phase::SocketQueue
        )
    }

    pub(crate) fn sends(self) -> bool {
        matches!(
            self,
            Phase::SocketTx
                | Phase::TransportTx
                | Phase::NetworkTx
                | Phase::LinkTx
                | Phase::DmaTx
                | Phase::Qdisc
        )
    }

    /// What it means, in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Phase::DmaRx => "the card writes the packet to memory and interrupts",
            Phase::LinkRx => "driver and link layer, until a network protocol takes the packet",
            Phase::NetworkRx => {
                "from the network protocol's entry to the decision where it goes, netfilter included"
            }
            Phase::TransportRx => "TCP, UDP, ICMP on the way in",
            Phase::SocketRx => "put into a socket's queue",
            Phase::CopyToUser => "copied to the reader",
            Phase::SocketTx => "made by a local sender, before transport or network know it",
            Phase::TransportTx => "TCP or UDP on the way out",
            Phase::AboveLink => "network layer and above, which this log cannot tell apart",
            Phase::NetworkTx => {
                "from the output of the network layer to the device's queue, netfilter included"
            }
            Phase::LinkTx => "from the device's queue until the driver has it",
            Phase::DmaTx => "the card has it, until the driver frees it as sent",
            Phase::Freeing => "being freed",
            Phase::GivenAway => "given to the device; the log does not say when it was sent",
            Phase::Backlog => "in a CPU's backlog or a virtual device's ring, until the softirq takes it",
            Phase::Gro => "held for further segments or the end of the batch",
            Phase::Softirq => "until the softirq runs",
            Phase::OtherCpu => "until another CPU takes it",
            Phase::Qdisc => "in a queueing discipline",
            Phase::Neighbour => "until the neighbour's link address is known",
            Phase::SocketQueue => {
                "until a reader comes; where pauses are recorded, without its waiting for a CPU"
            }
            Phase::Held => {
                "not yet freed: the rest of what was read in part, retransmission queue, another reference, freeing deferred"
            }
            Phase::Scheduled => "until a task runs (again) that could: preempted, or woken and not yet there",
            Phase::Asleep => "the task that works on the packet sleeps in the midst of it",
        }
    }
}
