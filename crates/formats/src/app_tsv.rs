//! Tab separated: what applications asked of the network and what became of it, an event a line in order of time, as
//! MAGNeT's tools have it; for awk, R and spreadsheets.
//!
//! A socket's ends stand once, in a line of its own before its first event, and TCP's state in lines of its own where it
//! was recorded: repeated with each event they would be most of the file. What is missing stands at its place.

use crate::Result;
use crate::names::context;
use crate::text::cell;
use kpat_model::Crossing;
use kpat_query::Store;
use kpat_query::app::{Moment, in_order};
use kpat_store::tables::{AppEventRow, SocketRow, TcpStateRow};
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// The columns, in order, and what they mean. Empty means: not known, or does not apply.
pub const COLUMNS: [(&str, &str); 46] = [
    ("at_ns", "when, boot clock of the device under test, ns"),
    ("socket", "number of the socket, as `ss -e` shows it, in decimal"),
    ("event", "name of a crossing; or socket, tcp-state, headers (of a datagram), gap"),
    ("size_bytes", "application data; negative: the error number of the call"),
    ("process", "name of the thread"),
    ("pid", "thread"),
    ("segments", "frames that a packet becomes or came from"),
    ("offset_bytes", "TCP: place of the first byte in its direction's stream"),
    ("tag", "not TCP: distinguishes packets of one socket at one time"),
    ("context", "task, softirq, hardirq, nmi or ?"),
    ("cpu", "CPU"),
    ("proto", "socket: IP protocol, 6 TCP, 17 UDP"),
    ("local", "socket: own address and port"),
    ("peer", "socket: the other side's"),
    ("lost", "gap: events that are missing"),
    ("until_ns", "gap: from then on events fitted again"),
    ("state", "tcp-state: TCP_* of the kernel, 1 established"),
    ("ca_state", "0 open, 1 disorder, 2 cwr, 3 recovery, 4 loss"),
    ("snd_cwnd_segments", "congestion window"),
    ("snd_ssthresh_segments", "slow start threshold"),
    ("snd_wnd_bytes", "window that the other side offers"),
    ("rcv_wnd_bytes", "window offered to it"),
    ("srtt_ns", "smoothed round trip"),
    ("rttvar_ns", "its variation"),
    ("rto_ns", "retransmission timeout"),
    ("in_flight_segments", "sent, neither acknowledged nor taken for lost"),
    ("retrans_segments", "of these sent again"),
    ("lost_segments", "taken for lost"),
    ("sacked_segments", "acknowledged selectively"),
    ("write_seq", "behind the last byte written by the application"),
    ("copied_seq", "next byte that the application will read"),
    ("snd_una", "first byte not acknowledged"),
    ("snd_nxt", "next byte to be sent"),
    ("rate_bytes_s", "newest delivery rate"),
    ("pacing_bytes_s", "pacing rate"),
    ("app_limited", "1: the application had nothing to send while the window was open"),
    ("pacing", "who paces: 0 none, 1 TCP by its own timer, 2 the fq qdisc"),
    ("crossing", "tcp-state, headers: the crossing that it goes with"),
    ("ip_version", "tcp-state, headers: of the packet at hand, as the next ones"),
    ("ip_protocol", "6 TCP, 17 UDP"),
    ("tos", "differentiated services and ECN"),
    ("ttl", "time to live or hop limit"),
    ("ip_id", "IPv4: identification"),
    ("ip_fragment", "IPv4: flags and fragment offset"),
    ("tcp_flags", "FIN = 1"),
    ("asked_bytes", "to-transport: what the call gave; size_bytes of it was taken"),
];

const TCP: i32 = 6;

/// Columns before those of TCP's state.
const BEFORE_STATE: usize = 16;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub events: u64,
    pub states: u64,
    pub sockets: u64,
    pub gaps: u64,
    /// Events missing in those gaps.
    pub lost: u64,
}

/// Text of a number that may be missing.
fn opt(v: Option<i64>) -> String {
    v.map(|v| v.to_string()).unwrap_or_default()
}

/// `only`: of these sockets; empty: of all.
pub fn write(store: &Store, only: &[i64], out: &mut dyn Write) -> Result<Counts> {
    let head: Vec<&str> = COLUMNS.iter().map(|c| c.0).collect();
    writeln!(out, "{}", head.join("\t"))?;
    let sockets: HashMap<i64, SocketRow> =
        store.table::<SocketRow>()?.all::<SocketRow>()?.into_iter().map(|s| (s.socket_id, s)).collect();
    let mut reported: HashSet<i64> = HashSet::new();
    let mut counts = Counts::default();
    let no_state = "\t".repeat(COLUMNS.len() - BEFORE_STATE);
    in_order(store, only, |moment| -> Result<()> {
        let (at_ns, id) = match moment {
            Moment::Crossing(e) => (e.at_ns, Some(e.socket_id)),
            Moment::State(s) => (s.at_ns, Some(s.socket_id)),
            Moment::Gap(_) => (0, None),
        };
        if let Some(id) = id.filter(|id| reported.insert(*id)) {
            counts.sockets += 1;
            socket(store, at_ns, id, sockets.get(&id), &no_state, out)?;
        }
        match moment {
            Moment::Crossing(e) => {
                counts.events += 1;
                crossing(store, e, &no_state, out)
            }
            Moment::State(s) => {
                counts.states += 1;
                state(s, sockets.get(&s.socket_id), out)
            }
            Moment::Gap(g) => {
                counts.gaps += 1;
                counts.lost += g.lost.max(0) as u64;
                let (from, cpu, lost, to) = (g.from_ns, g.cpu, g.lost, g.to_ns);
                writeln!(out, "{from}\t\tgap\t\t\t\t\t\t\t\t{cpu}\t\t\t\t{lost}\t{to}{no_state}")?;
                Ok(())
            }
        }
    })?;
    Ok(counts)
}

fn socket(
    store: &Store,
    at_ns: i64,
    id: i64,
    of: Option<&SocketRow>,
    no_state: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let end = |addr: Option<&String>, port: i32| match (addr, port) {
        (None, 0) => String::new(),
        (addr, port) => {
            let addr = cell(addr.map_or("*", String::as_str));
            if addr.contains(':') && !addr.starts_with("h:") {
                format!("[{addr}]:{port}")
            } else {
                format!("{addr}:{port}")
            }
        }
    };
    let Some(s) = of else {
        writeln!(out, "{at_ns}\t{id}\tsocket{}{no_state}", "\t".repeat(BEFORE_STATE - 3))?;
        return Ok(());
    };
    let comm = store.socket_process(s).unwrap_or_default();
    writeln!(
        out,
        "{at_ns}\t{id}\tsocket\t\t{}\t{}\t\t\t\t\t\t{}\t{}\t{}\t\t{no_state}",
        cell(comm),
        opt(s.pid.map(i64::from)),
        s.proto,
        end(s.local_addr.as_ref(), s.local_port),
        end(s.peer_addr.as_ref(), s.peer_port),
    )?;
    Ok(())
}

fn crossing(store: &Store, e: &AppEventRow, no_state: &str, out: &mut dyn Write) -> Result<()> {
    let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
    write!(out, "{}\t{}\t", e.at_ns, e.socket_id)?;
    match what {
        Some(c) => write!(out, "{}", c.name())?,
        None => write!(out, "crossing-{}", e.crossing)?,
    }
    let comm = e.pid.and_then(|p| store.process(p, e.at_ns)).map_or("", |p| p.comm.as_str());
    writeln!(
        out,
        "\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t\t\t\t\t{}{}",
        e.size_bytes,
        cell(comm),
        opt(e.pid.map(i64::from)),
        e.segments,
        opt(e.offset),
        opt(e.tag),
        context(e.ctx),
        e.cpu,
        no_state,
        opt(e.asked_bytes),
    )?;
    Ok(())
}

fn state(s: &TcpStateRow, of: Option<&SocketRow>, out: &mut dyn Write) -> Result<()> {
    // One without a state is a datagram's network header.
    let tcp = s.state != 0 || of.is_none_or(|o| o.proto == TCP);
    let event = if tcp { "tcp-state" } else { "headers" };
    write!(out, "{}\t{}\t{event}{}", s.at_ns, s.socket_id, "\t".repeat(BEFORE_STATE - 3))?;
    let state = [
        Some(i64::from(s.state)),
        Some(i64::from(s.ca_state)),
        Some(s.snd_cwnd),
        s.snd_ssthresh,
        Some(s.snd_wnd),
        Some(s.rcv_wnd),
        Some(s.srtt_ns),
        Some(s.rttvar_ns),
        s.rto_ns,
        Some(s.in_flight),
        Some(s.retrans_out),
        Some(s.lost_out),
        Some(s.sacked_out),
        Some(s.write_seq),
        Some(s.copied_seq),
        Some(s.snd_una),
        Some(s.snd_nxt),
        s.rate_bytes_s,
        s.pacing_bytes_s,
        Some(i64::from(s.app_limited)),
        s.pacing.map(i64::from),
    ];
    let proto = of.map(|o| i64::from(o.proto)).filter(|_| s.ip_version.is_some());
    let headers = [
        Some(i64::from(s.crossing)),
        s.ip_version.map(i64::from),
        proto,
        s.tos.map(i64::from),
        s.ttl.map(i64::from),
        s.ip_id.map(i64::from),
        s.ip_fragment.map(i64::from),
        s.tcp_flags.map(i64::from),
    ];
    debug_assert_eq!(state.len() + headers.len() + 1, COLUMNS.len() - BEFORE_STATE);
    for value in state.into_iter().map(|v| v.filter(|_| tcp)) {
        write!(out, "\t{}", opt(value))?;
    }
    let name = |c: i64| u8::try_from(c).ok().and_then(Crossing::from_u8).map_or("", Crossing::name);
    write!(out, "\t{}", headers[0].map_or("", name))?;
    for value in &headers[1..] {
        write!(out, "\t{}", opt(*value))?;
    }
    writeln!(out, "\t")?;
    Ok(())
}
