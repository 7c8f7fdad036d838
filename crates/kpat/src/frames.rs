//! `kpat frames`: the frames of the captures, each with its packet in the kernel; of several devices, who sent it and who
//! received it.

use crate::devices;
use crate::info::link_type;
use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::packets::hint_hidden;
use crate::render::{Column, Style, Table, count, duration_aligned};
use crate::times::{self, Times};
use kpat_capture::decode;
use kpat_query::devices::Several;
use kpat_query::frame_text;
use kpat_query::{FrameFilter, FrameWithPackets, PacketOfFrame, match_key, side};
use kpat_store::Manifest;
use kpat_store::tables::InterfaceRow;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    /// Only frames of this capture (file name, or the part of it before a dot)
    #[arg(long, short, value_name = "NAME")]
    capture: Option<String>,
    /// Only frames without a matching packet; with several devices: frames that were not matched at both ends
    #[arg(long)]
    unmatched: bool,
    /// Only frames that match several packets equally well
    #[arg(long, conflicts_with = "unmatched")]
    ambiguous: bool,
    #[command(flatten)]
    times: times::Clock,
    #[command(flatten)]
    listing: Listing,
    /// Show at most this many; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    // Which packet a frame may be of is a question about one device.
    if (args.device.name.is_none() && !args.ambiguous)
        && let Ok(several) = Several::open(&args.log)
    {
        return crossings(args, &several, out);
    }
    let log = open::integrated(&args.log, &args.device)?;
    let capture_id = args.capture.as_deref().map(|name| capture_named(&log.manifest, name)).transpose()?;
    let filter = FrameFilter { capture_id, unmatched: args.unmatched, ambiguous: args.ambiguous };
    if out.json {
        return as_list(&log, &filter, args.limit, out);
    }
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.head(out)?;
        let mut shown = 0;
        log.each_frame(&filter, &mut |f| -> anyhow::Result<bool> {
            tsv.row(&in_one_line(&log, &f), out)?;
            shown += 1;
            Ok(shown < limit)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    let mut more = false;
    log.each_frame(&filter, &mut |f| -> anyhow::Result<bool> {
        more = rows.len() == limit;
        if !more {
            rows.push(f);
        }
        Ok(!more)
    })?;
    if rows.is_empty() {
        out.say(log.no_frame());
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = args.listing.print(table(&log, &Times::of(&args.times, &log)?, &rows)?, out)?;
    if more {
        out.say(&format!("first {} frames shown; --limit 0 shows all", count(rows.len() as u64)));
    }
    hint_hidden(out, &hidden);
    Ok(ExitCode::SUCCESS)
}

/// Of several devices: who sent each frame and who received it.
fn crossings(args: &Args, log: &Several, out: &Output) -> anyhow::Result<ExitCode> {
    if args.listing.is_tsv() || args.times.utc {
        return Err(usage(
            "this is a log of several devices: --tsv and --utc are of one, named by --device NAME",
        ));
    }
    let capture_id = args.capture.as_deref().map(|name| capture_named(&log.manifest, name)).transpose()?;
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let (mut rows, mut more) = (Vec::new(), false);
    log.each_frame(&mut |frame, crossings| -> anyhow::Result<bool> {
        let fits =
            capture_id.is_none_or(|c| c == frame.capture_id) && (!args.unmatched || crossings.is_empty());
        more = fits && rows.len() == limit;
        if fits && !more {
            rows.push((frame, crossings.to_vec()));
        }
        Ok(!more)
    })?;
    if rows.is_empty() && !out.json {
        out.say("no frame matches");
        return Ok(ExitCode::SUCCESS);
    }
    devices::frames(log, &rows, &args.listing, out)?;
    if more && !out.json {
        out.say(&format!("first {} frames shown; --limit 0 shows all", count(rows.len() as u64)));
    }
    Ok(ExitCode::SUCCESS)
}

fn capture_named(manifest: &Manifest, name: &str) -> anyhow::Result<i32> {
    let captures = || manifest.sources.iter().filter(|s| s.role == "capture");
    // Without its ending, or without all of them: a name that means one capture.
    let only = |stem: fn(&str, char) -> Option<(&str, &str)>| {
        let mut fit = captures().filter(move |s| stem(&s.name, '.').is_some_and(|(stem, _)| stem == name));
        fit.next().filter(|_| fit.next().is_none())
    };
    captures()
        .find(|s| s.name == name)
        .or_else(|| only(|n, at| n.rsplit_once(at)))
        .or_else(|| only(|n, at| n.split_once(at)))
        .map(|s| s.capture_id)
        .ok_or_else(|| {
            let have: Vec<&str> = captures().map(|s| s.name.as_str()).collect();
            usage(format!("no capture `{name}`; there are: {}", have.join(", ")))
        })
}

/// One frame per line, written as it is read.
fn as_list(log: &Integrated, filter: &FrameFilter, limit: usize, out: &Output) -> anyhow::Result<ExitCode> {
    let mut shown = 0u64;
    out.raw(b"{\n  \"frames\": [")?;
    log.each_frame(filter, &mut |f| -> anyhow::Result<bool> {
        let head = if shown == 0 { "\n    " } else { ",\n    " };
        out.json_text(&format!("{head}{}", as_json(log, &f)))?;
        shown += 1;
        Ok(limit == 0 || shown < limit as u64)
    })?;
    out.raw(
        format!(
            "\n  ],\n  \"shown\": {shown},\n  \"start_boot_ns\": {},\n  \"start_wall_ns\": {}\n}}\n",
            log.start_ns(),
            json!(times::wall(log, log.start_ns()))
        )
        .as_bytes(),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// A frame in one row: fields of its packets are separated by commas.
const FIELDS: [&str; 13] = [
    "capture",
    "number",
    "wall_ns",
    "boot_ns",
    "len_bytes",
    "packet_id",
    "family_id",
    "key",
    "confidence_percent",
    "side",
    "kernel_boot_ns",
    "residual_ns",
    "bound_ns",
];

fn in_one_line(log: &Integrated, f: &FrameWithPackets) -> Value {
    let mut row = as_json(log, f);
    let packets = row["packets"].take();
    for field in &FIELDS[5..] {
        row[*field] = packets.as_array().into_iter().flatten().map(|p| p[*field].clone()).collect();
    }
    row
}

fn as_json(log: &Integrated, f: &FrameWithPackets) -> Value {
    json!({
        "capture": log.capture(f.frame.capture_id),
        "number": f.frame.number,
        "wall_ns": f.frame.wall_ns,
        "boot_ns": f.frame.boot_ns,
        "len_bytes": f.frame.len_bytes,
        "packets": f.packets.iter().map(|p: &PacketOfFrame| json!({
            "packet_id": p.association.packet_id,
            "family_id": p.family,
            "key": match_key::name(p.association.key),
            "confidence_percent": p.association.confidence,
            "alternatives": p.association.alternatives,
            "side": side::name(p.association.side),
            "kernel_boot_ns": p.association.kernel_ns,
            "residual_ns": p.association.residual_ns,
            "bound_ns": p.association.bound_ns,
            "seq_offset_bytes": p.association.seq_offset,
        })).collect::<Vec<_>>(),
    })
}

/// Link type of each interface of which nothing is decoded.
fn not_decoded(log: &Integrated) -> anyhow::Result<HashMap<(i32, i32), String>> {
    let interfaces = log.store.table::<InterfaceRow>()?.all::<InterfaceRow>()?;
    let unknown = |i: &InterfaceRow| u16::try_from(i.link_type).is_ok_and(|t| !decode::is_decoded(t));
    Ok(interfaces
        .into_iter()
        .filter(unknown)
        .map(|i| ((i.capture_id, i.interface), link_type(i.link_type)))
        .collect())
}

fn table(log: &Integrated, times: &Times, rows: &[FrameWithPackets]) -> anyhow::Result<Table> {
    let unknown = not_decoded(log)?;
    let mut table = Table::new(&[
        Column::left("capture", 0, 8),
        Column::right("frame", 0),
        Column::right(times.heading(), 0),
        Column::left("source", 0, 13),
        Column::left("destination", 0, 13),
        Column::left("proto", 0, 0),
        Column::right("length", 5),
        Column::left("info", 9, 12),
        Column::right("packet", 0),
        Column::left("side", 7, 0),
        Column::left("by", 6, 12),
        Column::right("match", 0),
        Column::right("wire − kernel", 8),
    ]);
    for f in rows {
        let plain = |text: String| (text, Style::Plain);
        let best = f.packets.first().map(|p| &p.association);
        let packets: Vec<String> = f.packets.iter().map(|p| p.association.packet_id.to_string()).collect();
        let [from, to] = frame_text::ends(&f.frame);
        let time = f.frame.boot_ns.map(|t| times.show(t)).unwrap_or_default();
        table.row(vec![
            plain(log.capture(f.frame.capture_id).to_owned()),
            (f.frame.number.to_string(), Style::Wire),
            plain(time),
            plain(from),
            plain(to),
            match unknown.get(&(f.frame.capture_id, f.frame.interface)) {
                Some(words) => (words.clone(), Style::Warn),
                None => plain(frame_text::name(&f.frame)),
            },
            plain(f.frame.len_bytes.to_string()),
            plain(frame_text::summary(&f.frame)),
            plain(packets.join(" ")),
            plain(best.map(|a| side::name(a.side).to_owned()).unwrap_or_default()),
            plain(best.map(|a| match_key::name(a.key).to_owned()).unwrap_or_default()),
            (
                best.map(|a| format!("{} %", a.confidence)).unwrap_or_default(),
                if f.is_ambiguous() { Style::Warn } else { Style::Plain },
            ),
            plain(best.map(|a| duration_aligned(a.residual_ns)).unwrap_or_default()),
        ]);
    }
    Ok(table)
}
