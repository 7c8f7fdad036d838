//! `kpat why`: why a connection is slow, on one screen.

mod json;
mod text;

use crate::listing::Listing;
use crate::open;
use crate::output::{Meter, Output, usage};
use anyhow::bail;
use kpat_query::app;
use kpat_query::why;
use kpat_store::tables::SocketRow;
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    override_usage = "kpat why [OPTIONS] [SOCKET] <X.kpat>\n       kpat why [OPTIONS] --packet <ID> <X.kpat>\n       kpat why [OPTIONS] --frame <[CAPTURE:]NUMBER> <X.kpat>"
)]
pub struct Args {
    /// The socket that writes, by its number in `kpat app`, and the integrated log [default: the TCP socket that wrote most]
    #[arg(value_names = ["SOCKET", "X.kpat"], num_args = 1..=2, required = true)]
    words: Vec<String>,
    /// The socket that wrote the data in this packet
    #[arg(long, value_name = "ID", conflicts_with = "frame")]
    packet: Option<i64>,
    /// The socket that wrote the data in this frame: its number in the capture; with several captures NAME:NUMBER
    #[arg(long, value_name = "[CAPTURE:]NUMBER")]
    frame: Option<String>,
    #[command(flatten)]
    device: open::Device,
    #[command(flatten)]
    listing: Listing,
}

const NOTHING: &str =
    "this log has no TCP connection of an application; record it with `kpat record -p path,app`";
const TCP: i32 = 6;

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let named = args.packet.is_some() || args.frame.is_some();
    let (id, path) = match args.words.as_slice() {
        [log] => (None, Path::new(log)),
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
    let log = open::integrated(path, &args.device)?;
    let sockets: Vec<SocketRow> = log.table::<SocketRow>()?.all::<SocketRow>()?;
    let mut tcp = sockets.iter().filter(|s| s.proto == TCP);
    let socket = if named {
        let packet = match (args.packet, &args.frame) {
            (Some(id), _) => id,
            (None, frame) => crate::packet::by_frame(&log, frame.as_deref().unwrap_or_default(), out)?,
        };
        let found = why::socket_of_packet(&log, &log.packet(packet)?)?;
        let none =
            || anyhow::anyhow!("packet {packet} belongs to no TCP connection whose socket is in the log");
        found.ok_or_else(none)?
    } else if let Some(id) = id {
        let Some(socket) = tcp.find(|s| s.socket_id == id) else {
            let other = sockets.iter().find(|s| s.socket_id == id).map(|s| app::protocol(s.proto));
            return Err(usage(match other {
                Some(proto) => {
                    format!("socket {id} is {proto}; only a TCP connection can be followed byte by byte")
                }
                None => format!("the log has no socket {id}; kpat app {} lists them", path.display()),
            }));
        };
        socket.clone()
    } else {
        tcp.max_by_key(|s| s.sent_bytes).ok_or_else(|| usage(NOTHING))?.clone()
    };
    let mut meter = Meter::default();
    let found = why::why(&log, &socket, &mut |done, parts| {
        out.progress(&mut meter, "following writes", done, parts);
        true
    })?;
    out.clear_progress();
    let Some(found) = found else {
        bail!("neither end of the connection of socket {} has a write in the log", socket.socket_id)
    };
    if found.sender.socket_id != socket.socket_id {
        out.say(&format!(
            "socket {} wrote nothing; this is what its peer, socket {}, wrote",
            socket.socket_id, found.sender.socket_id
        ));
    }
    if out.json {
        out.value(&json::value(&log, &found))?;
    } else if let Some(tsv) = args.listing.tsv(&json::FIELDS)? {
        tsv.rows(json::stages_of(&found), out)?;
    } else {
        text::show(&log, &found, &args.listing, out)?;
    }
    Ok(out.ended(found.lost > 0))
}
