//! `kpat why`: why a connection is slow, on one screen.

mod drops;
mod json;
mod text;

use crate::listing::Listing;
use crate::open::{self, Device, Integrated, OfDevice};
use crate::output::{Meter, Output, usage};
use anyhow::bail;
use kpat_query::PacketDetail;
use kpat_query::app;
use kpat_query::why::{self, Beside, Host, Stage, Why};
use kpat_store::tables::{PacketRow, SocketRow};
use std::cmp::Reverse;
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    override_usage = "kpat why [OPTIONS] [SOCKET] <X.kpat>\n       kpat why [OPTIONS] --packet <ID> <X.kpat>\n       kpat why [OPTIONS] --frame <[CAPTURE:]NUMBER> <X.kpat>"
)]
pub struct Args {
    /// The socket that writes, by its number in `kpat app`, and the integrated log [default: of the TCP connection in which one wrote most, the end that asks, or if that waited for its answer's way above all, the end that answers; where nothing was written by TCP, a socket of another protocol, or the one that waited longest to be connected]
    #[arg(value_names = ["SOCKET", "X.kpat"], num_args = 1..=2, required = true)]
    words: Vec<String>,
    /// The socket that wrote the data in this packet
    #[arg(long, value_name = "ID", conflicts_with = "frame")]
    packet: Option<i64>,
    /// The socket that wrote the data in this frame: its number in the capture; with several captures NAME:NUMBER
    #[arg(long, value_name = "[CAPTURE:]NUMBER")]
    frame: Option<String>,
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    listing: Listing,
}

const NOTHING: &str =
    "this log has no application that wrote to a socket; record it with `kpat record -p path,app`";
const TCP: i32 = 6;

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let named = args.packet.is_some() || args.frame.is_some();
    let (id, path) = match args.words.as_slice() {
        [log] if log.parse::<i64>().is_err() || Path::new(log).exists() => (None, Path::new(log)),
        _ if named => {
            return Err(usage("--packet and --frame replace the socket's number; give only the log"));
        }
        words => {
            let (id, path) = open::thing_and_log(words, "why SOCKET")?;
            let number = id.parse::<i64>();
            let list = || {
                usage(format!("`{id}` is not the number of a socket; kpat app {} lists them", path.display()))
            };
            (Some(number.map_err(|_| list())?), path)
        }
    };
    // Nobody chose what is asked about.
    let unchosen = id.is_none() && !named;
    let logs = open::each_device(path, &Device::default())?;
    let hosts: Vec<Host<'_>> =
        logs.iter().map(|l| Host { store: &l.log, boot_id: l.log.manifest.log.boot_id.clone() }).collect();
    let (at, socket, packet) = match (named, id) {
        (true, _) => {
            let at = place(path, &logs, &args.device)?;
            let (socket, packet) = of_packet(&logs[at].log, args, out)?;
            (at, socket, Some(packet))
        }
        (false, id) => {
            let (at, socket) = match id {
                Some(id) => numbered(path, &logs, &args.device, id)?,
                None => most(path, &logs, &args.device)?,
            };
            (at, socket, None)
        }
    };
    if socket.proto != TCP && logs[at].log.table::<PacketRow>()?.rows() == 0 {
        bail!(
            "socket {} is {}, whose datagrams are followed from packet to packet, and this log has none; record with `kpat record -p path,app`",
            socket.socket_id,
            app::protocol(socket.proto)
        );
    }
    let mut meter = Meter::default();
    let found = why::why(&hosts, at, &socket, packet.as_ref(), &mut |done, parts| {
        out.progress(&mut meter, "following writes", done, parts);
        true
    })?;
    let found = match found {
        Some(found) if unchosen => Some(way_that_tells(&hosts, found)?),
        found => found,
    };
    out.clear_progress();
    let Some(found) = found else {
        if let Some(own) = socket.mptcp_socket {
            bail!(
                "socket {} is a connection below MPTCP: what was written is in the calls of socket {own} (kpat app --socket {own}), and which connection carried it is not recorded",
                socket.socket_id
            );
        }
        if app::had_no_port(&socket) {
            bail!(
                "socket {} was never connected: {}; kpat app lists what has the ports of this address",
                socket.socket_id,
                app::NO_PORT
            );
        }
        let ends = if socket.proto == TCP { "neither end of the connection of" } else { "no call of" };
        bail!("{ends} socket {} has a write in the log", socket.socket_id)
    };
    if !unchosen && (found.host, found.sender.socket_id) != (at, socket.socket_id) {
        out.say(&format!(
            "socket {} wrote nothing; this is what its peer, socket {}, wrote",
            socket.socket_id, found.sender.socket_id
        ));
    }
    let beside = if unchosen { beside(&logs, &found)? } else { Vec::new() };
    if out.json {
        out.value(&json::value(&logs, &found, &beside))?;
    } else if let Some(tsv) = args.listing.tsv(&json::FIELDS)? {
        tsv.rows(json::stages_of(&found), out)?;
    } else {
        text::show(&logs, &found, &beside, &args.listing, out)?;
    }
    Ok(out.ended(found.lost > 0))
}

/// Place of the device that was named, or of the only one.
fn place(path: &Path, logs: &[OfDevice], device: &Device) -> anyhow::Result<usize> {
    if logs.len() == 1 && device.name.is_none() {
        return Ok(0);
    }
    // It refuses what is no device's name, and no name where there are several.
    let one = open::integrated(path, device)?;
    Ok(logs.iter().position(|l| l.log.dir == one.dir).unwrap_or(0))
}

fn of_packet(log: &Integrated, args: &Args, out: &Output) -> anyhow::Result<(SocketRow, PacketDetail)> {
    let packet = match (args.packet, &args.frame) {
        (Some(id), _) => id,
        (None, frame) => crate::packet::by_frame(log, frame.as_deref().unwrap_or_default(), out)?,
    };
    let detail = log.packet(packet)?;
    let found = why::socket_of_packet(log, &detail)?;
    let found = found.ok_or_else(|| anyhow::anyhow!("no socket in the log wrote or read packet {packet}"))?;
    Ok((found, detail))
}

/// Of a connection that nobody chose an end of: the whole time is that of the end that asks; if an answer's way had most of that, its own direction tells why.
fn way_that_tells(hosts: &[Host<'_>], found: Why) -> kpat_query::Result<Why> {
    let waits_for_its_way = |w: &Why| w.first().is_some_and(|s| s.stage == Stage::Answer);
    if found.is_of_datagrams() || found.asks && !waits_for_its_way(&found) {
        return Ok(found);
    }
    let other = match &found.peer {
        Some(peer) => why::why(hosts, found.peer_host, peer, None, &mut |_, _| true)?,
        None => None,
    };
    let Some(other) = other.filter(|o| o.sender.socket_id != found.sender.socket_id && o.asks != found.asks)
    else {
        return Ok(found);
    };
    let (asks, answers) = if found.asks { (found, other) } else { (other, found) };
    Ok(if waits_for_its_way(&asks) { answers } else { asks })
}

/// Sockets of all logs that are in trouble, and none of this connection; each with the place of its log.
fn beside(logs: &[OfDevice], found: &Why) -> kpat_query::Result<Vec<(usize, Beside)>> {
    let own = |at: usize| {
        let sender = Some(found.sender.socket_id).filter(|_| found.host == at);
        let peer = found.peer.as_ref().filter(|_| found.peer_host == at).map(|p| p.socket_id);
        sender.into_iter().chain(peer).collect::<Vec<_>>()
    };
    let mut out = Vec::new();
    for (at, l) in logs.iter().enumerate() {
        out.extend(why::beside(&l.log, &own(at))?.into_iter().map(|b| (at, b)));
    }
    Ok(out)
}

/// The sockets of this device or of any, each with the place of its log.
fn sockets(path: &Path, logs: &[OfDevice], device: &Device) -> anyhow::Result<Vec<(usize, SocketRow)>> {
    let only = if device.name.is_some() { Some(place(path, logs, device)?) } else { None };
    let mut all: Vec<(usize, SocketRow)> = Vec::new();
    for (at, l) in logs.iter().enumerate().filter(|(at, _)| only.is_none_or(|o| o == *at)) {
        all.extend(l.log.all::<SocketRow>()?.into_iter().map(|s| (at, s)));
    }
    Ok(all)
}

/// The socket that wrote most (of two the older: who connects has a socket first), of TCP if there is one; else the one that waited longest to be connected.
fn most(path: &Path, logs: &[OfDevice], device: &Device) -> anyhow::Result<(usize, SocketRow)> {
    let all = sockets(path, logs, device)?;
    let wrote = all.iter().filter(|(_, s)| s.sent_bytes > 0);
    if let Some(most) = wrote.max_by_key(|(_, s)| (s.proto == TCP, s.sent_bytes, Reverse(s.first_ns))) {
        return Ok(most.clone());
    }
    let mut waited: Option<(i64, (usize, i64))> = None;
    for (at, l) in logs.iter().enumerate() {
        let worst = why::beside(&l.log, &[])?.into_iter().map(|b| (b.ns, (at, b.worst)));
        waited = waited.into_iter().chain(worst).max();
    }
    let is = |(at, s): &&(usize, SocketRow)| waited.is_some_and(|(_, of)| of == (*at, s.socket_id));
    let connects = |(_, s): &&(usize, SocketRow)| s.proto == TCP && s.peer_port != 0;
    let found = all.iter().find(is).or_else(|| all.iter().find(connects)).or(all.first());
    found.cloned().ok_or_else(|| usage(NOTHING))
}

fn numbered(path: &Path, logs: &[OfDevice], device: &Device, id: i64) -> anyhow::Result<(usize, SocketRow)> {
    let all = sockets(path, logs, device)?;
    let mut those: Vec<(usize, SocketRow)> = all.into_iter().filter(|(_, s)| s.socket_id == id).collect();
    match those.len() {
        0 => Err(usage(format!("the log has no socket {id}; kpat app {} lists them", path.display()))),
        1 => Ok(those.remove(0)),
        _ => {
            let names: Vec<&str> = those.iter().map(|(at, _)| logs[*at].name.as_str()).collect();
            Err(usage(format!(
                "several devices have a socket {id}; choose one: --device {}",
                names.join(" or --device ")
            )))
        }
    }
}
