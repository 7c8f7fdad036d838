//! Does a mechanism really find packets here? Proved on packets of our own before it is offered: that a program can be attached says
//! nothing of whether device, namespace and headers are found in what it sees.
//!
//! The packets are UDP datagrams on the loopback device of a new network namespace that no other process uses and that is removed with
//! our sockets. They are recorded by the real kernel side with the real filter, and what comes out of the rings is compared with what was
//! sent.

use crate::attach::Attached;
use crate::btf::Btf;
use crate::choose::{self, Candidate};
use crate::kernel::{self, Symbols};
use crate::mechanism::{Mechanism, Offer, Picked};
use crate::object::{MAX_FUNCS, Plan, Side};
use crate::plan::{self, Decision};
use crate::profile::Selection;
use crate::ring::{Raw, Rings};
use crate::{filter, sys, wire};
use kpat_model::{LossCause, functions};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const DATAGRAMS: usize = 8;
const PAYLOAD: &[u8] = b"kpat doctor's own packet";
/// `lo` is the first interface of each namespace.
const LOOPBACK: u32 = 1;
/// Before the transport header: IPv4 without options.
const IP_BYTES: usize = 20;
const ETHERNET_BYTES: usize = 14;

/// Two sockets that talk over a loopback device.
struct Traffic {
    sender: UdpSocket,
    receiver: UdpSocket,
    netns: u32,
}

impl Traffic {
    /// In a namespace of their own, or in this one where none can be made.
    fn new() -> io::Result<Traffic> {
        let own = std::thread::spawn(|| {
            // SAFETY: no memory is passed; only this thread leaves its namespace, and it ends immediately.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            loopback_up()?;
            Traffic::here()
        });
        match own.join().map_err(|_| io::Error::other("a thread ended early"))? {
            Ok(t) => Ok(t),
            Err(_) => Traffic::here(),
        }
    }

    fn here() -> io::Result<Traffic> {
        let bind = || UdpSocket::bind("127.0.0.1:0");
        let (sender, receiver) = (bind()?, bind()?);
        receiver.set_read_timeout(Some(Duration::from_secs(5)))?;
        let netns = std::fs::metadata("/proc/thread-self/ns/net")?.ino() as u32;
        Ok(Traffic { sender, receiver, netns })
    }

    fn send(&self) -> io::Result<()> {
        let to = self.receiver.local_addr()?;
        let mut buffer = [0; 64];
        for _ in 0..DATAGRAMS {
            self.sender.send_to(PAYLOAD, to)?;
            self.receiver.recv(&mut buffer)?;
        }
        Ok(())
    }

    fn ports(&self) -> io::Result<(u16, u16)> {
        Ok((self.sender.local_addr()?.port(), self.receiver.local_addr()?.port()))
    }

    /// Is this network and transport header one of ours?
    fn is_ours(&self, ip: &[u8]) -> bool {
        let Ok((from, to)) = self.ports() else { return false };
        let lo = [127, 0, 0, 1];
        ip.len() >= IP_BYTES + 4
            && ip[0] == 0x45
            && ip[9] == 17
            && ip[12..16] == lo
            && ip[16..20] == lo
            && ip[20..22] == from.to_be_bytes()
            && ip[22..24] == to.to_be_bytes()
    }
}

/// The loopback device of the current namespace is down when the namespace is new.
fn loopback_up() -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    // SAFETY: an interface request is plain bytes, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is whole and outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What was found of the packets that were sent.
#[derive(Default)]
struct Seen {
    packets: u64,
    /// Records of their passing a function or tracepoint.
    passed: u64,
    footprints: u64,
    devices: BTreeSet<u32>,
    namespaces: BTreeSet<u32>,
    ours: bool,
    refused: u64,
    unreadable: u64,
}

impl Seen {
    fn take(&mut self, raw: &Raw<'_>, traffic: &Traffic) {
        match raw {
            Raw::Call(_) | Raw::Point(_) => self.passed += 1,
            Raw::Footprint(f) => self.footprint(f, traffic),
            _ => {}
        }
    }

    fn footprint(&mut self, f: &wire::Footprint, traffic: &Traffic) {
        self.footprints += 1;
        if f.ifindex != 0 {
            self.devices.insert(f.ifindex);
        }
        self.namespaces.insert(f.netns);
        let header = &f.header[..usize::from(f.header_len).min(f.header.len())];
        let skip = if f.start_layer == 2 { ETHERNET_BYTES } else { 0 };
        self.ours |= f.start_layer <= 3 && header.get(skip..).is_some_and(|ip| traffic.is_ours(ip));
    }

    /// What is missing, in one sentence.
    fn missing(&self, netns: u32) -> Option<String> {
        let why = if self.packets == 0 && self.unreadable > 0 {
            format!(
                "{} probe hits saw {DATAGRAMS} test packets whose device or namespace could not be read",
                self.unreadable
            )
        } else if self.packets == 0 && self.refused > 0 {
            format!(
                "{} probe hits saw the test packets and took none of them for a packet of the test",
                self.refused
            )
        } else if self.packets == 0 {
            format!("{DATAGRAMS} test packets were sent and no probe recognised one")
        } else if !self.namespaces.contains(&netns) {
            "the network namespace of the test packets was not found".to_string()
        } else if !self.devices.contains(&LOOPBACK) {
            "the device of the test packets was not found".to_string()
        } else if !self.ours {
            format!(
                "{} headers of the test packets were read, and none was what had been sent",
                self.footprints
            )
        } else if self.passed == 0 {
            "the test packets were found, and no call of theirs was recorded".to_string()
        } else {
            return None;
        };
        Some(why)
    }
}

/// Proves mechanisms, one after the other.
pub struct Prover {
    picked: Picked,
    found: choose::Found,
    symbols: Symbols,
    traceable: Option<HashMap<String, u32>>,
    traffic: Traffic,
    /// Further variables of the kernel side, for tests that spoil them.
    pub constants: Vec<(&'static str, u64)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the kernel's types: {0}")]
    Btf(#[from] crate::btf::Error),
    #[error("cannot send test packets over the loopback device: {0}")]
    Traffic(io::Error),
}

impl Prover {
    pub fn new(picked: Picked) -> Result<Prover, Error> {
        Ok(Prover {
            picked,
            found: choose::candidates(&Btf::running()?),
            symbols: Symbols::running(),
            traceable: kernel::traceable(),
            traffic: Traffic::new().map_err(Error::Traffic)?,
            constants: Vec::new(),
        })
    }

    /// An offer is one only if it is proved.
    pub fn check(&self, offer: Offer) -> Offer {
        if !offer.offered {
            return offer;
        }
        match self.prove(offer.mechanism) {
            Ok(()) => offer,
            Err(reason) => Offer { offered: false, reason: format!("it attaches, but: {reason}"), ..offer },
        }
    }

    /// Records packets of our own; the error says in one sentence what of them was not found.
    pub fn prove(&self, m: Mechanism) -> Result<(), String> {
        let failed = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
        let points = m == Mechanism::Tracepoint;
        let selection = Selection {
            profile: if points { "path" } else { "none" }.into(),
            // A kernel has most of them.
            add: functions::all().iter().filter(|f| f.proof).map(|f| f.name.into()).collect(),
            ..Selection::default()
        };
        let mut decision =
            self.decide(m, &selection).map_err(|e| failed("functions cannot be chosen", &e))?;
        let tracepoints = plan::tracepoints(self.picked.build, &selection, points);
        let object = self.object(points, &decision).map_err(|e| failed("the program cannot be made", &e))?;
        let loaded = plan::load(&object, &decision, &tracepoints).map_err(|e| failed("loading", &e))?;
        let map = |name: &str| loaded.map_fd(name).ok_or_else(|| format!("no map {name}"));
        let rings = Rings::new(
            map("rings")?,
            map(".data.ids")?,
            map(".data.limit")?,
            object.ring_bytes,
            object.cpus,
            Side::Packets.slot(),
        )
        .map_err(|e| failed("the rings cannot be mapped", &e))?;
        let switches = sys::Mapping::new(map(".data.modes")?, MAX_FUNCS)
            .map_err(|e| failed("the switches cannot be mapped", &e))?;
        let attached: Attached = plan::attach(&loaded, &mut decision, &tracepoints, &mut |_, _| {})
            .map_err(|e| failed("attaching", &e))?;
        // SAFETY: the mapping is as long as it says; the kernel reads single bytes, any value is valid.
        unsafe { switches.as_ptr().write_bytes(3, switches.len()) };
        let sent = self.traffic.send();
        // calls that the datagrams made return before this does
        sys::wait_for_running_code();
        let mut seen = Seen { packets: rings.packets(), ..Seen::default() };
        for cpu in 0..rings.cpus() {
            seen.refused += rings.refused(cpu);
            seen.unreadable += rings.losses(cpu)[LossCause::NoDevice as usize];
            rings.drain(cpu, &mut |raw, _| seen.take(&raw, &self.traffic));
        }
        drop(attached);
        sent.map_err(|e| failed("sending test packets", &e))?;
        seen.missing(self.traffic.netns).map_or(Ok(()), Err)
    }

    fn decide(&self, m: Mechanism, selection: &Selection) -> Result<Decision, plan::Error> {
        let (functions, logged, left_out, detail): (Vec<Candidate>, Vec<bool>, _, _) = match m {
            Mechanism::Tracepoint => Default::default(),
            _ => plan::select(m, selection, &self.found, &self.symbols, self.traceable.as_ref())?,
        };
        // what keeps packets apart over longer than this is left out: each function costs up to a tenth of a second
        let mut keep = logged.iter();
        let functions: Vec<_> = functions.into_iter().filter(|_| keep.next() == Some(&true)).collect();
        let logged = vec![true; functions.len()];
        Ok(Decision {
            mechanism: m,
            detail,
            build: self.picked.build,
            build_passed_over: Vec::new(),
            build_warning: None,
            passed_over: Vec::new(),
            unmet: Vec::new(),
            functions,
            often: Vec::new(),
            logged,
            left_out,
            drop_reasons: Vec::new(),
            point_constants: Vec::new(),
            symbols: Symbols::parse(""),
        })
    }

    fn object(&self, points: bool, decision: &Decision) -> Result<Plan, String> {
        let (_, to) = self.traffic.ports().map_err(|e| e.to_string())?;
        Ok(Plan {
            build: self.picked.build,
            side: Side::Packets,
            ring_bytes: 1 << 18,
            cpus: kernel::possible_cpus(),
            packet_buckets: 64,
            netns: vec![self.traffic.netns],
            ifindex: Vec::new(),
            filter: filter::compile(&format!("udp port {to}")).map_err(|e| e.to_string())?,
            guess_reuse: points,
            own_packets: false,
            within: false,
            by_process: false,
            clone_cookies: plan::clone_cookies(decision),
            constants: self.constants.clone(),
        })
    }
}
