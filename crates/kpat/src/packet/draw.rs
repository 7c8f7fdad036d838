//! The timeline as text: numbers on the left, the nesting beside them, and on wide terminals every call as a bar over the
//! packet's life.

use super::timeline::{Row, Timeline, What, end_ns};
use crate::events;
use crate::function::{context, flag_notes};
use crate::open::Integrated;
use crate::render::{Branches, Line, Style, TimeAxis, duration, duration_aligned, shorten, wrap};
use kpat_model::LineageKind;
use kpat_query::{CallNode, FrameOfPacket, HandoverKind, call_flag, event_kind, side};
use kpat_store::tables::LineageRow;

/// From here on context and process have columns of their own.
const WIDE: usize = 120;
const NUMBER: usize = 10;

pub struct Drawing<'a> {
    pub log: &'a Integrated,
    /// The packet, and what times count from.
    pub packet: i64,
    pub zero_ns: i64,
    /// What changed with each footprint.
    pub changes: &'a [Vec<String>],
    pub width: usize,
}

struct Layout {
    axis: TimeAxis,
    branches: Branches,
    wide: bool,
    process: usize,
    /// Where the tree starts, and how many columns it has (0: as many as needed).
    left: usize,
    room: usize,
    /// Columns of the bars, 0: none.
    bars: usize,
    range: (i64, i64),
}

impl Drawing<'_> {
    pub fn lines(&self, timeline: &Timeline<'_>) -> Vec<Line> {
        let Some(range) = timeline.range() else { return Vec::new() };
        let rows = timeline.rows();
        let layout = self.layout(&rows, range);
        let mut lines = vec![self.head(&layout)];
        // Context, CPU and thread of the flow of control that the line before belongs to.
        let mut flow: Option<(i32, i32, i32)> = None;
        for row in &rows {
            if let (What::Call(node), true, false) = (row.what, row.starts, layout.wide) {
                let now = (node.call.ctx, node.call.cpu, node.call.pid);
                if row.cut_in || flow != Some(now) {
                    lines.push(self.flow_line(&layout, row, node));
                }
                // After interrupt work the old flow goes on without a new heading.
                if !row.cut_in {
                    flow = Some(now);
                }
            }
            lines.extend(self.row(&layout, row));
        }
        lines
    }

    fn process(&self, node: &CallNode) -> String {
        let name = self.log.process_name(node.call.pid, node.call.entry_ns);
        // In an interrupt it is whoever happened to run.
        if node.call.ctx == 0 { name } else { format!("({name})") }
    }

    fn layout(&self, rows: &[Row<'_>], range: (i64, i64)) -> Layout {
        let axis =
            TimeAxis::for_range(range.0.saturating_sub(self.zero_ns), range.1.saturating_sub(self.zero_ns));
        let wide = self.width == 0 || self.width >= WIDE;
        let process = rows
            .iter()
            .filter_map(
                |r| if let What::Call(n) = r.what { Some(self.process(n).chars().count()) } else { None },
            )
            .max()
            .unwrap_or(0)
            .max(7);
        let time = axis.width().max("entry ".len() + axis.unit.chars().count());
        let mut left = time + 2 + NUMBER + 2 + NUMBER + 2;
        if wide {
            left += 3 + 2 + 7 + 2 + process + 2;
        }
        let depth = rows.iter().map(|r| r.last.len()).max().unwrap_or(0);
        let all = if self.width == 0 { 0 } else { self.width.saturating_sub(left).max(20) };
        let branches = Branches::fit(depth, all, 26);
        // What is no call may be broken into several lines.
        let needed = rows
            .iter()
            .filter(|r| matches!(r.what, What::Call(_) | What::Handover(_)))
            .map(|r| branches.lines(&r.last).chars().count() + self.content(r).width())
            .max()
            .unwrap_or(0)
            .max(48);
        // Bars get what the tree leaves.
        let (room, bars) = match all {
            0 => (0, 0),
            all if wide && all >= needed + 2 + 20 => (needed, (all - needed - 2).min(80)),
            all => (all, 0),
        };
        Layout { axis, branches, wide, process, left, room, bars, range }
    }

    fn head(&self, l: &Layout) -> Line {
        let time = format!("entry {}", l.axis.unit);
        let mut text =
            format!("{time:>w$}  {:>NUMBER$}  {:>NUMBER$}  ", "duration", "self", w = l.left_time());
        if l.wide {
            text += &format!("CPU  context  {:<w$}  ", "process", w = l.process);
        }
        text += "function";
        let mut line = Line::of(text, Style::Faint);
        if l.bars > 0 {
            let (from, to) = (l.range.0 - self.zero_ns, l.range.1 - self.zero_ns);
            let (from, to) = (duration(from), duration(to));
            let fill = l.bars.saturating_sub(from.chars().count() + to.chars().count());
            line = line.pad_to(l.left + l.room + 2).faint(format!("{from}{}{to}", " ".repeat(fill)));
        }
        line
    }

    /// Narrow terminals: who runs what follows.
    fn flow_line(&self, l: &Layout, row: &Row<'_>, node: &CallNode) -> Line {
        let name = context(node.call.ctx);
        let process = self.log.process_name(node.call.pid, node.call.entry_ns);
        let text = match node.call.ctx {
            // On the CPU that the lines before are about.
            _ if row.cut_in => format!("{name} cuts in"),
            0 => format!("{name}, CPU {}, {process}", node.call.cpu),
            _ if node.call.pid != 0 => format!("{name}, CPU {} (over {process})", node.call.cpu),
            _ => format!("{name}, CPU {}", node.call.cpu),
        };
        let lines = l.branches.beside(&row.last);
        let room = l.room.saturating_sub(lines.chars().count() + 3);
        let text = if l.room == 0 { text } else { shorten(&text, room) };
        Line::new().pad_to(l.left).faint(lines).put("▷ ", Style::Faint).put(text, Style::Strong)
    }

    fn row(&self, l: &Layout, row: &Row<'_>) -> Vec<Line> {
        let mut line = Line::new();
        let number = |ns: Option<i64>| ns.map_or(" ".repeat(NUMBER), duration_aligned);
        let time = l.axis.show(row.at.saturating_sub(self.zero_ns));
        line.push(format!("{time:>w$}  ", w = l.left_time()), Style::Plain);
        match row.what {
            What::Call(node) => {
                // Where nothing below it took time, self time says nothing new.
                let own = node.call.self_ns.filter(|s| node.call.dur_ns != Some(*s));
                line = line.plain(number(node.call.dur_ns)).plain("  ").faint(number(own)).plain("  ");
                if l.wide {
                    line = line
                        .plain(format!("{:>3}  {:<7}  ", node.call.cpu, context(node.call.ctx)))
                        .plain(format!("{:<w$}  ", self.process(node), w = l.process));
                }
            }
            What::Handover(h) => line = line.put(number(Some(h.wait_ns)), Style::Warn),
            What::Frame(f) => {
                let bound = format!("± {}", duration(f.association.bound_ns));
                line = line.put(format!("{bound:>NUMBER$}"), Style::Wire);
            }
            _ => {}
        }
        let mut line = line.pad_to(l.left);
        let lines = if row.last.is_empty() {
            String::new()
        } else if matches!(row.what, What::Call(_)) && !row.cut_in {
            l.branches.lines(&row.last)
        } else {
            l.branches.beside(&row.last)
        };
        let used = lines.chars().count();
        line.push(&lines, Style::Faint);
        let content = self.content(row);
        let room = if l.room == 0 { usize::MAX } else { l.room.saturating_sub(used).max(12) };
        let mut parts = match row.what {
            What::Call(_) => vec![fit(&content, room)],
            // The sign at the start is two columns wide.
            _ => wrap(&content, room.saturating_sub(2)),
        }
        .into_iter();
        line.append(parts.next().unwrap_or_default());
        if l.bars > 0 {
            line = line.pad_to(l.left + l.room + 2);
            line.append(bar(l, row));
        }
        let mut out = vec![line];
        for part in parts {
            let mut line = Line::new().pad_to(l.left).faint(&lines).plain("  ");
            line.append(fit(&part, room));
            out.push(line);
        }
        out
    }

    /// What happened, without lines and numbers.
    fn content(&self, row: &Row<'_>) -> Line {
        match row.what {
            What::Call(node) => {
                let mut line = Line::new();
                if node.is_point() {
                    line = line.put("◆ ", Style::Faint);
                } else if node.entry_only() {
                    line = line.put("◇ ", Style::Faint);
                } else if row.cut_in {
                    line = line.put("▷ ", Style::Faint);
                }
                let style = match row.last.is_empty() {
                    _ if node.call.flags & call_flag::WITHIN != 0 => Style::Faint,
                    true => Style::Strong,
                    false => Style::Plain,
                };
                line = line.put(&node.name, style);
                if !node.module.is_empty() {
                    line = line.faint(format!(" [{}]", node.module));
                }
                if let Some(value) = &node.returned {
                    line = line.faint(format!(" = {value}"));
                }
                if let Some(len) = node.call.len_bytes {
                    line = line.faint(format!(" {len} B"));
                }
                if let Some(irq) = node.call.irq_ns.filter(|n| *n > 0) {
                    line = line.put(format!(" interrupted for {}", duration(irq)), Style::Warn);
                }
                if let Some(off) = node.call.off_ns.filter(|n| *n > 0) {
                    line = line.put(format!(" off the CPU for {}", duration(off)), Style::Warn);
                }
                let drawn = if node.entry_only() { call_flag::NO_RETURN } else { 0 };
                let notes = flag_notes(node.call.flags & !drawn).join(", ");
                if !notes.is_empty() {
                    line = line.put(format!(" ({notes})"), Style::Warn);
                }
                line
            }
            What::Handover(h) if h.kind == HandoverKind::Unrecorded => {
                Line::of("⋯ caller not recorded", Style::Faint)
            }
            What::Handover(h) => Line::of(format!("⇢ {}", waits(h.kind)), Style::Warn)
                .faint(format!("  {} → {}", h.from, h.to)),
            What::Frame(f) => self.frame(f),
            What::Event(e) => {
                let mut line =
                    Line::of(format!("✱ {}", event_kind(e.event.kind)), events::kind_style(e.event.kind));
                let what = e.what();
                if what != "freed" {
                    line = line.put(format!(" {what}"), events::kind_style(e.event.kind));
                }
                if !e.place.is_empty() {
                    line = line.plain(format!(" at {}", e.place));
                }
                line
            }
            What::Lineage(l) => Line::of(format!("⑂ {}", self.lineage(l)), Style::Plain),
            What::Headers(n) => Line::of("~ ", Style::Faint)
                .faint(self.changes.get(n).map(|c| c.join(", ")).unwrap_or_default()),
        }
    }

    fn frame(&self, f: &FrameOfPacket) -> Line {
        let way = match f.association.side {
            side::RECEIVED => "received",
            side::TRANSMITTED => "transmitted",
            _ => "seen",
        };
        let mut line = Line::of(format!("● wire: frame {} {way}", f.frame.number), Style::Wire);
        line = line.faint(format!(" {}", f.capture));
        if !f.interface.is_empty() {
            line = line.faint(format!(" {}", f.interface));
        }
        if f.via_packet != self.packet {
            line = line.plain(format!(", by packet {}", f.via_packet));
        }
        line
    }

    /// One phrase, seen from the packet that was asked for.
    pub fn lineage(&self, l: &LineageRow) -> String {
        lineage(l, self.packet)
    }
}

pub fn lineage(l: &LineageRow, packet: i64) -> String {
    let text = lineage_words(l, packet);
    if l.inferred.is_some() { text + ", by their headers" } else { text }
}

fn lineage_words(l: &LineageRow, packet: i64) -> String {
    let kind = LineageKind::from_number(l.kind);
    let to_child = l.parent_id == packet;
    match kind {
        Some(LineageKind::Clone) => "cloned: a second sk_buff over the same data".to_owned(),
        Some(LineageKind::Realloc) => "header buffer replaced".to_owned(),
        Some(LineageKind::Copy) if to_child => format!("copied to packet {}", l.child_id),
        Some(LineageKind::Copy) => format!("copied from packet {}", l.parent_id),
        Some(LineageKind::Segment) if to_child => format!("segmented, packet {} is one segment", l.child_id),
        Some(LineageKind::Segment) => format!("born as a segment of packet {}", l.parent_id),
        Some(LineageKind::GroMerge) if to_child => format!("merged into packet {} by GRO", l.child_id),
        Some(LineageKind::GroMerge) => format!("takes in packet {} by GRO", l.parent_id),
        Some(LineageKind::Fragment) if to_child => {
            format!("fragmented, packet {} is one fragment", l.child_id)
        }
        Some(LineageKind::Fragment) => format!("born as a fragment of packet {}", l.parent_id),
        Some(LineageKind::Reassembly) if to_child => format!("reassembled into packet {}", l.child_id),
        Some(LineageKind::Reassembly) => format!("takes in fragment packet {}", l.parent_id),
        None => format!("packet {} → packet {}", l.parent_id, l.child_id),
    }
}

fn waits(kind: HandoverKind) -> String {
    match kind {
        HandoverKind::Device => "wire or virtual device".to_owned(),
        HandoverKind::Softirq => "softirq raised".to_owned(),
        HandoverKind::Backlog => "per-CPU backlog".to_owned(),
        HandoverKind::SocketQueue => "socket queue, until read".to_owned(),
        HandoverKind::Freed => "freed later, no part of its path".to_owned(),
        HandoverKind::Neighbour => "neighbour, until its link address is known".to_owned(),
        other => other.name().to_owned(),
    }
}

impl Layout {
    fn left_time(&self) -> usize {
        self.axis.width().max("entry ".len() + self.axis.unit.chars().count())
    }
}

/// Shortened to the room: notes at the end go first, then the middle of what stands first.
fn fit(content: &Line, room: usize) -> Line {
    if content.width() <= room {
        return content.clone();
    }
    let mut line = Line::new();
    for (text, style) in content.spans() {
        let left = room - line.width();
        let len = text.chars().count();
        if len <= left {
            line.push(text, style);
        } else if line.width() == 0 || left >= 12 {
            line.push(shorten(text, left), style);
        } else if line.width() <= 2 {
            line.push(shorten(text, left), style);
            break;
        }
    }
    line
}

fn bar(l: &Layout, row: &Row<'_>) -> Line {
    let span = l.range.1.saturating_sub(l.range.0).max(1);
    let column = |t: i64| {
        let part = i128::from(t.clamp(l.range.0, l.range.1) - l.range.0) * l.bars as i128 / i128::from(span);
        (part as usize).min(l.bars - 1)
    };
    let (from, to, sign, style) = match row.what {
        What::Call(n) if n.is_point() => (n.call.entry_ns, n.call.entry_ns, "◆", Style::Plain),
        What::Call(n) if n.entry_only() => (n.call.entry_ns, n.call.entry_ns, "◇", Style::Plain),
        What::Call(n) => (n.call.entry_ns, end_ns(&n.call), "━", Style::Plain),
        What::Handover(h) => (h.from_ns, h.to_ns, "┄", Style::Warn),
        What::Frame(_) => (row.at, row.at, "●", Style::Wire),
        What::Event(e) => (row.at, row.at, "✱", events::kind_style(e.event.kind)),
        What::Lineage(_) => (row.at, row.at, "⑂", Style::Plain),
        What::Headers(_) => (row.at, row.at, "~", Style::Faint),
    };
    let (a, b) = (column(from), column(to));
    Line::of(" ".repeat(a), Style::Plain).put(sign.repeat(b - a + 1), style)
}
