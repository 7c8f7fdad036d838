//! `kpat packet`: everything known of one packet.

mod draw;
mod json;
mod layers;
mod meanwhile;
mod timeline;

use crate::devices;
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::packets::{title, verdict_style};
use crate::render::{
    Column, Line, Pairs, Style, Table, TimeAxis, bytes, count, duration, plural, seconds, time_of_day, wrap,
};
use anyhow::bail;
use draw::Drawing;
use kpat_model::LossCause;
use kpat_query::devices::Several;
use kpat_query::{Carried, FrameOfPacket, PacketDetail, app, match_key, side, verdict};
use kpat_store::TableFile;
use kpat_store::tables::{DEVICE, DeviceRow, FRAME, FootprintRow, FrameRow};
use std::path::Path;
use std::process::ExitCode;
use timeline::{Timeline, What};

#[derive(clap::Args)]
#[command(
    override_usage = "kpat packet [OPTIONS] <ID> <X.kpat>\n       kpat packet [OPTIONS] --frame <[CAPTURE:]NUMBER> <X.kpat>"
)]
pub struct Args {
    /// Number of the packet (see kpat packets), or several as 7,9,20-25, and the integrated log; with --frame the log alone
    #[arg(value_names = ["ID", "X.kpat"], num_args = 1..=2, required = true)]
    words: Vec<String>,
    /// The packet of this frame: its number in the capture, as Wireshark counts; with several captures NAME:NUMBER
    #[arg(long, value_name = "[CAPTURE:]NUMBER")]
    frame: Option<String>,
    /// Leave the call tree out
    #[arg(long)]
    no_calls: bool,
    /// With several devices: this packet's whole way, each kernel and the wires between, in order
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    device: open::Device,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let (ids, path) = match (&args.frame, args.words.as_slice()) {
        (Some(_), [log]) => (Vec::new(), Path::new(log)),
        (Some(_), _) => {
            return Err(usage("--frame takes the place of the packet's number; give the log alone"));
        }
        (None, words) => {
            let (id, path) = open::thing_and_log(words, "packet ID")?;
            let ids = numbers(id).ok_or_else(|| {
                usage(format!(
                    "`{id}` is not the number of a packet; kpat packets {} lists them",
                    path.display()
                ))
            })?;
            (ids, path)
        }
    };
    let log = open::integrated(path, &args.device)?;
    if let Some(why) = log.no_packets().filter(|_| args.frame.is_none()) {
        return Err(usage(why));
    }
    let id = match (ids.as_slice(), &args.frame) {
        ([id], _) => *id,
        ([], frame) => by_frame(&log, frame.as_deref().unwrap_or_default(), out)?,
        _ if args.follow => return Err(usage("--follow is of one packet")),
        (several, _) => return list(&log, several, args, out),
    };
    if args.follow {
        let Some((several, device)) = &log.among else {
            return Err(usage("--follow goes from device to device; this log is of one device"));
        };
        return follow(several, *device, id, args, out);
    }
    let detail = log.packet(id)?;
    let way = log.among.as_ref().map(|(several, device)| several.way(*device, id)).transpose()?;
    if out.json {
        let mut value = json::value(&log, &detail, log.carried(&detail)?.as_ref(), args.no_calls);
        if let (Some(way), Some((several, device))) = (&way, &log.among) {
            value["device"] = several.name(*device).into();
            value["came"] = way.came.iter().map(|c| devices::as_json(several, c)).collect();
            value["went"] = way.went.iter().map(|c| devices::as_json(several, c)).collect();
        }
        out.value(&value)?;
    } else {
        text(&log, &detail, None, args, out)?;
        if let (Some(way), Some((several, _))) = (&way, &log.among) {
            out.lines(&devices::way_lines(several, way, out.width))?;
        }
    }
    Ok(out.ended(!detail.losses.is_empty()))
}

/// `7`, `#7`, `7,9,20-25`; `None`: something else.
fn numbers(text: &str) -> Option<Vec<i64>> {
    let mut out = Vec::new();
    for part in text.trim_start_matches('#').split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (i64, i64) = (from.parse().ok()?, to.parse().ok()?);
        // More than any look-up is for; a slip of the finger otherwise fills the memory.
        if from > to || to - from >= 1_000_000 {
            return None;
        }
        out.extend(from..=to);
    }
    Some(out)
}

/// One after the other, each as if asked for alone.
fn list(log: &Integrated, ids: &[i64], args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let mut lost = false;
    if out.json {
        out.raw(b"{\n  \"packets\": [")?;
    }
    for (n, id) in ids.iter().enumerate() {
        let detail = log.packet(*id)?;
        lost |= !detail.losses.is_empty();
        if out.json {
            let head = if n == 0 { "\n    " } else { ",\n    " };
            out.raw(
                format!("{head}{}", json::value(log, &detail, log.carried(&detail)?.as_ref(), args.no_calls))
                    .as_bytes(),
            )?;
            continue;
        }
        if n > 0 {
            out.line(&Line::new())?;
        }
        text(log, &detail, None, args, out)?;
    }
    if out.json {
        out.raw(b"\n  ]\n}\n")?;
    }
    Ok(out.ended(lost))
}

/// The whole way, device by device and wire by wire.
fn follow(several: &Several, device: i32, id: i64, args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let chain = several.chain(device, id)?;
    let shifts = chain.shifts();
    let mut lost = false;
    // When the way began, by the clock of where it did.
    let mut began = None;
    let mut packets = Vec::new();
    for (n, (device, packet)) in chain.packets.iter().enumerate() {
        let log = open::of_device(several.again()?, *device)?;
        let detail = log.packet(*packet)?;
        lost |= !detail.losses.is_empty();
        let way = several.way(*device, *packet)?;
        let shift = shifts.get(device).copied();
        let began = *began.get_or_insert(detail.packet.first_ns);
        if out.json {
            let mut value = json::value(&log, &detail, log.carried(&detail)?.as_ref(), args.no_calls);
            value["device"] = several.name(*device).into();
            value["way_ns"] =
                shift.map(|s| detail.packet.first_ns.saturating_add(s).saturating_sub(began)).into();
            packets.push(value);
            continue;
        }
        if n > 0 {
            out.line(&Line::new())?;
        }
        out.line(&Line::of(format!("Device {}", several.name(*device)), Style::Strong))?;
        let zero = shift
            .filter(|_| n > 0)
            .map(|s| Axis { zero_ns: began.saturating_sub(s), of: several.name(chain.packets[0].0) });
        text(&log, &detail, zero, args, out)?;
        out.lines(&devices::wire_lines(several, &way.went, out.width))?;
    }
    if out.json {
        let wires: Vec<_> = chain.crossings.iter().map(|c| devices::as_json(several, c)).collect();
        out.value(&serde_json::json!({ "packets": packets, "crossings": wires, "cut": chain.cut }))?;
    } else if chain.cut {
        out.say(&format!("the first {} packets of the way are shown", chain.packets.len()));
    }
    Ok(out.ended(lost))
}

/// The packet that a frame most likely is.
pub fn by_frame(log: &Integrated, text: &str, out: &Output) -> anyhow::Result<i64> {
    let captures: Vec<(i32, &str)> = log
        .manifest
        .sources
        .iter()
        .filter(|s| s.role == "capture")
        .map(|s| (s.capture_id, s.name.as_str()))
        .collect();
    let names = || captures.iter().map(|(_, n)| *n).collect::<Vec<_>>().join(", ");
    if captures.is_empty() {
        bail!("{} was integrated without a capture, so it has no frames", log.dir.display());
    }
    let (capture, number) = match text.rsplit_once(':') {
        Some((capture, number)) => {
            let wanted = |(id, name): &&(i32, &str)| {
                *name == capture
                    || Path::new(name).with_extension("").as_os_str() == capture
                    || id.to_string() == capture
            };
            let found = captures.iter().find(wanted);
            (
                found
                    .ok_or_else(|| {
                        anyhow::anyhow!("no capture `{capture}` in this log (it has {})", names())
                    })?
                    .0,
                number,
            )
        }
        None if captures.len() == 1 => (captures[0].0, text),
        None => {
            return Err(usage(format!(
                "this log has several captures ({}); give --frame NAME:{text}",
                names()
            )));
        }
    };
    let number: i64 =
        number.parse().map_err(|_| usage(format!("`{number}` is not the number of a frame")))?;
    let found = log.packets_of_frame(capture, number)?;
    let name = log.capture(capture);
    let Some(best) = found.first() else {
        let rows = TableFile::open(&log.dir, &FRAME)?.rows_equal::<FrameRow>("number", &[number])?;
        if rows.iter().any(|r| r.capture_id == capture) {
            bail!("frame {number} of {name} was not matched with any packet of the kernel");
        }
        bail!("{name} has no frame {number}");
    };
    if found.len() > 1 {
        let others: Vec<String> =
            found[1..].iter().take(8).map(|a| format!("{} ({} %)", a.packet_id, a.confidence)).collect();
        out.say(&format!(
            "frame {number} of {name} belongs to {} packets; this is {} ({} %), also: {}",
            found.len(),
            best.packet_id,
            best.confidence,
            others.join(", ")
        ));
    }
    Ok(best.packet_id)
}

/// Names of the DUT's interfaces.
struct Devices(Vec<DeviceRow>);

impl Devices {
    /// An ifindex is a name only within its namespace; without one, only where all namespaces agree.
    fn name(&self, netns: Option<i64>, ifindex: Option<i32>) -> Option<String> {
        let ifindex = ifindex?;
        let mut here =
            self.0.iter().rev().filter(|d| d.ifindex == ifindex && netns.is_none_or(|n| n == d.netns));
        let found = here.next().filter(|f| netns.is_some() || here.all(|d| d.name == f.name));
        Some(found.map_or_else(|| format!("ifindex {ifindex}"), |d| d.name.clone()))
    }

    fn netns(&self, netns: i64) -> String {
        match self.0.iter().rev().find(|d| d.netns == netns && !d.netns_name.is_empty()) {
            Some(d) => d.netns_name.clone(),
            None => netns.to_string(),
        }
    }
}

/// Times are those since the way's beginning in another device, not since the packet was first seen here.
struct Axis<'a> {
    zero_ns: i64,
    of: &'a str,
}

fn text(
    log: &Integrated,
    d: &PacketDetail,
    axis: Option<Axis>,
    args: &Args,
    out: &Output,
) -> anyhow::Result<()> {
    let devices = Devices(TableFile::open(&log.dir, &DEVICE)?.all::<DeviceRow>()?);
    out.lines(&wrap(&title(&d.packet), if out.width == 0 { usize::MAX } else { out.width }))?;
    let mut pairs = facts(log, d, &devices);
    if let Some(carried) = log.carried(d)? {
        add_ends(&mut pairs, log, &carried, d.packet.first_ns);
    }
    meanwhile::add(&mut pairs, log, d);
    out.lines(&pairs.render(out.width))?;
    let device = |f: &FootprintRow| devices.name(f.netns, f.ifindex).unwrap_or_default();
    let mut changes = vec![Vec::new()];
    changes.extend(d.footprints.windows(2).map(|w| layers::changes(&w[0], &w[1], &device)));
    if let Some(first) = d.footprints.first() {
        out.line(&Line::new())?;
        let layers = layers::of_footprint(first);
        let matched = layers::matched(&layers, &d.frames);
        let mut head = Line::of("Headers", Style::Strong).faint(" when first seen");
        if !matched.is_empty() {
            head = head.faint("; ✓ equal in a wire frame, and what it was recognised by");
        }
        out.line(&head)?;
        out.lines(&layers::draw(&layers, &matched, out.width))?;
        if let (Some(n), Some(size)) = (first.gso_segs, first.gso_size) {
            out.line(&Line::new().plain(format!("   segmentation offload: {n} segments of {size} B")))?;
        }
    }
    let mut timeline = Timeline::new(if args.no_calls { &[] } else { &d.calls });
    d.frames.iter().for_each(|f| timeline.frame(f));
    d.events.iter().for_each(|e| timeline.moment(e.event.at_ns, What::Event(e)));
    d.lineage.iter().for_each(|l| timeline.moment(l.at_ns, What::Lineage(l)));
    for (n, change) in changes.iter().enumerate().filter(|(_, c)| !c.is_empty()) {
        debug_assert!(!change.is_empty());
        timeline.moment(d.footprints[n].at_ns, What::Headers(n));
    }
    if !d.frames.is_empty() {
        out.line(&Line::new())?;
        out.line(&Line::of("On the wire", Style::Strong))?;
        out.lines(&frames(d, out.width))?;
    }
    out.line(&Line::new())?;
    let mut head = Line::of("In the kernel", Style::Strong);
    if let Some(axis) = &axis {
        head = head.faint(format!(" since it was first seen in {}", axis.of));
    }
    out.line(&head)?;
    let drawing = Drawing {
        log,
        packet: d.packet.packet_id,
        zero_ns: axis.map_or(d.packet.first_ns, |a| a.zero_ns),
        changes: &changes,
        width: out.width,
    };
    let lines = drawing.lines(&timeline);
    if lines.is_empty() {
        out.say("no call, event or frame of this packet is in the log");
    }
    out.lines(&lines)
}

fn facts(log: &Integrated, d: &PacketDetail, devices: &Devices) -> Pairs {
    let p = &d.packet;
    let mut pairs = Pairs::new();
    let mut fate = Line::of(verdict::name(p.verdict), verdict_style(p.verdict));
    if let Some(reason) = p.drop_reason {
        let name = d.drop_reason.clone().unwrap_or_else(|| format!("reason {reason}"));
        fate = fate.put(format!(": {name}"), Style::Bad);
        if let Some(e) = d.dropped_at() {
            fate = fate.plain(format!(" at {}", e.place));
            let f = d.place(e.event.at_ns).filter(|f| f.netns.is_some() && f.netns != p.netns);
            if let Some((device, netns)) = f.and_then(|f| devices.name(f.netns, f.ifindex).zip(f.netns)) {
                fate = fate.plain(format!(", on {device} of {}", devices.netns(netns)));
            }
        }
    }
    for (name, netns, ifindex) in [("in", p.if_in_netns, p.if_in), ("out", p.if_out_netns, p.if_out)] {
        if let Some(device) = devices.name(netns, ifindex) {
            fate = fate.plain(format!(", {name} {device}"));
            if let Some(other) = netns.filter(|n| p.netns != Some(*n)) {
                fate = fate.plain(format!(" of {}", devices.netns(other)));
            }
        }
    }
    pairs.line("verdict", fate);
    if let Some(e) = d.drop_explained() {
        pairs.add("that is", e.does);
        pairs.add("look at", e.slow);
    }
    let mut counts = vec![plural(p.calls.unsigned_abs().into(), "call")];
    if p.points > 0 {
        counts.push(plural(p.points.unsigned_abs().into(), "tracepoint"));
    }
    pairs.add(
        "path",
        format!(
            "{}, of it {} in functions; {}",
            duration(p.path_ns),
            duration(p.kernel_ns),
            counts.join(", ")
        ),
    );
    let rest = p.last_ns.saturating_sub(p.first_ns).saturating_sub(p.path_ns);
    if rest > 0 {
        pairs.add("freed", format!("{} later, which is no part of its path", duration(rest)));
    }
    if let Some(driver) = p.driver_ns {
        let wait = p.softirq_ns.map(|ns| format!(", {} after its softirq had been asked for", duration(ns)));
        let words = format!("{} in the poll that received it{}", duration(driver), wait.unwrap_or_default());
        pairs.add("driver", words + "; before it is first seen");
    }
    if let (Some(card), Some(bound)) = (p.card_ns, p.card_bound_ns) {
        pairs.add(
            "card",
            format!("stamped it {} ±{} before it is first seen", duration(card), duration(bound)),
        );
    } else if p.stamp_ns.is_some() {
        pairs.add("card", "stamped it by its own clock, which is not known at that time");
    }
    let after =
        format!("{} s after the start of the log", seconds(p.first_ns.saturating_sub(log.start_ns())));
    if let Some(wall) = log.wall_ns(p.first_ns) {
        pairs.add("first seen", format!("{} UTC, {after}", time_of_day(wall, true)));
    } else {
        pairs.add("first seen", after);
    }
    if let Some(pid) = p.pid {
        pairs.add("process", log.process_name(pid, p.last_ns));
    }
    if let Some(netns) = p.netns {
        pairs.add("namespace", devices.netns(netns));
    }
    for loss in &d.losses {
        let cause = LossCause::from_number(loss.cause).map_or("?", LossCause::name);
        let cpu = loss.cpu.map(|c| format!(" on CPU {c}")).unwrap_or_default();
        pairs.line(
            "incomplete",
            Line::of(
                format!(
                    "{} records lost in this time ({cause}{cpu}): calls may be missing",
                    count(loss.count.unsigned_abs())
                ),
                Style::Bad,
            ),
        );
    }
    pairs
}

const TCP: i32 = 6;

/// Who wrote what it carries, and who read it.
fn add_ends(pairs: &mut Pairs, log: &Integrated, c: &Carried, seen_ns: i64) {
    let written = c.written.iter().map(|e| ("written by", e, "write"));
    let read = c.read.iter().chain(&c.also_read).map(|e| ("read by", e, "read"));
    for (key, end, call) in written.chain(read) {
        let user = end.calls.first().and_then(|b| b.pid).or(end.socket.pid);
        let user = user.map_or_else(String::new, |pid| format!("{}, ", log.process_name(pid, seen_ns)));
        let socket = format!("{user}socket {}", end.socket.socket_id);
        let mut words = match end.offset {
            Some(offset) => {
                let size = bytes(c.payload_bytes as u64);
                let before = if offset < 0 { "-" } else { "" };
                vec![format!("{socket}: {size} from byte {before}{} on", count(offset.unsigned_abs()))]
            }
            None if end.socket.proto == TCP => {
                pairs.add(key, format!("{socket}: no bytes of an application"));
                continue;
            }
            None => vec![format!("{socket}: a datagram of {}", bytes(c.payload_bytes as u64))],
        };
        if let Some(first) = end.calls.first() {
            let apart = first.at_ns.saturating_sub(seen_ns);
            let when = if apart <= 0 { "before" } else { "after" };
            let of = match end.calls.len() {
                1 => {
                    let refused = first.error.map(|e| format!(", refused with {}", app::errno(e)));
                    let (size, refused) = (bytes(first.bytes as u64), refused.unwrap_or_default());
                    format!("a {call} of {size}{refused} (call {})", first.id)
                }
                n => format!("{n} {call}s, the first of {} (call {})", bytes(first.bytes as u64), first.id),
            };
            // of a datagram's write the end is known
            let over = if end.offset.is_none() { "over " } else { "" };
            words.push(format!("{of}, {over}{} {when} it was first seen", duration(apart.abs())));
        }
        if end.calls.is_empty() && end.offset.is_none() {
            words.push(format!("which {call} is not known"));
        } else if end.missing_bytes > 0 {
            words.push(format!("{} of it in no {call} of the log", bytes(end.missing_bytes as u64)));
        }
        pairs.add(key, words.join("; "));
    }
}

fn frames(d: &PacketDetail, width: usize) -> Vec<Line> {
    let relative = |f: &FrameOfPacket| f.frame.boot_ns.map(|t| t.saturating_sub(d.packet.first_ns));
    let times: Vec<i64> = d.frames.iter().filter_map(relative).collect();
    let axis = TimeAxis::for_range(
        times.iter().copied().min().unwrap_or(0).min(0),
        times.iter().copied().max().unwrap_or(0).max(d.packet.path_ns),
    );
    let dut = if axis.unit == "µs" {
        "device µs"
    } else if axis.unit == "ms" {
        "device ms"
    } else {
        "device s"
    };
    let mut table = Table::new(&[
        Column::right("frame", 0),
        Column::left("capture", 0, 8),
        Column::left("interface", 2, 6),
        Column::left("way", 0, 0),
        Column::right("bytes", 5),
        Column::left("sniffer's clock, UTC", 0, 0),
        Column::right(dut, 0),
        Column::left("±", 0, 0),
        Column::left("recognised by", 4, 0),
        Column::right("sure", 3),
    ]);
    for f in &d.frames {
        let plain = |text: String| (text, Style::Plain);
        let sure = f.association.confidence;
        let mut by = match_key::name(f.association.key).to_owned();
        if f.via_packet != d.packet.packet_id {
            by += &format!(", by packet {}", f.via_packet);
        }
        by += &others(f);
        table.row(vec![
            (f.frame.number.to_string(), Style::Wire),
            plain(f.capture.clone()),
            plain(f.interface.clone()),
            plain(if f.association.side == side::UNKNOWN {
                "seen".to_owned()
            } else {
                side::name(f.association.side).to_owned()
            }),
            plain(f.frame.len_bytes.to_string()),
            plain(time_of_day(f.frame.wall_ns, false)),
            plain(relative(f).map_or("?".to_owned(), |t| axis.show(t))),
            plain(duration(f.association.bound_ns)),
            plain(by),
            (format!("{sure} %"), if sure >= 90 { Style::Good } else { Style::Warn }),
        ]);
    }
    let (mut lines, hidden) = table.render(width);
    if hidden.contains(&"recognised by") || hidden.contains(&"sure") {
        // No room in the line: a second one each.
        let mut both = vec![lines.remove(0)];
        for (line, f) in lines.into_iter().zip(&d.frames) {
            both.push(line);
            let by = match_key::name(f.association.key);
            let mut text = format!("       {} B, by {by}", f.frame.len_bytes);
            if hidden.contains(&"sure") {
                text += &format!(", {} % sure", f.association.confidence);
            }
            text += &others(f);
            if !f.interface.is_empty() && hidden.contains(&"interface") {
                text = format!("       {}, {}", f.interface, text.trim_start());
            }
            if f.via_packet != d.packet.packet_id {
                text += &format!(", by packet {}", f.via_packet);
            }
            both.push(Line::of(text, Style::Faint));
        }
        return both;
    }
    lines
}

fn others(f: &FrameOfPacket) -> String {
    match f.association.alternatives {
        0 => String::new(),
        1 => ", 1 other fits".to_owned(),
        n => format!(", {n} others fit"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn several_packets_may_be_asked_for() {
        use super::numbers;
        assert_eq!(numbers("#7"), Some(vec![7]));
        assert_eq!(numbers("7,9,20-22"), Some(vec![7, 9, 20, 21, 22]));
        assert!(["", "x", "7,", "9-7", "1-99999999", "1--2"].iter().all(|t| numbers(t).is_none()));
    }
}
