//! Handovers as text.

use super::{Args, Read};
use crate::open::Integrated;
use crate::output::Output;
use crate::packets::hint_hidden;
use crate::render::{
    Column, Line, Pairs, Style, Table, duration, duration_aligned, percent, plural, seconds, wrap,
};
use crate::times::Times;
use kpat_query::handover::{Ended, Group, Handover, Mark, Phase, Span, Statistics};

const BAR: usize = 20;
/// More steps than this are shown on demand.
const STEPS: usize = 12;

fn share(ns: i64, of: i64) -> String {
    percent(ns.max(0).unsigned_abs(), of.max(1).unsigned_abs())
}

fn style(group: Group) -> Style {
    match group {
        Group::Search => Style::Warn,
        Group::Unknown => Style::Faint,
        _ => Style::Plain,
    }
}

pub fn list(args: &Args, logs: &[Read], all: &[(&Read, &Handover)], out: &Output) -> anyhow::Result<()> {
    if all.is_empty() {
        if let Some(interface) = &args.interface {
            out.say(&format!("no handover of {interface}; without --interface all others are shown"));
            return Ok(());
        }
        match logs {
            [log] => out.say(&format!("no handover: {}", log.found.none())),
            // One log's reason is not the other's.
            _ => {
                for log in logs {
                    out.say(&format!("no handover in {}: {}", log.name, log.found.none()));
                }
            }
        }
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::right("#", 0),
        Column::right("time s", 0),
        Column::left("interface", 3, 0),
        Column::left("kind", 0, 0),
        Column::left("cause", 2, 14),
        Column::left("from", 5, 0),
        Column::left("to", 4, 0),
        Column::right("in all", 0),
        Column::right("without data", 0),
        Column::right("link", 6),
        Column::left("mostly", 1, 0),
    ]);
    let time = |ns: Option<i64>| (ns.map(duration).unwrap_or_default(), Style::Plain);
    for (read, h) in all {
        let plain = |text: String| (text, Style::Plain);
        let short = |p: &kpat_query::handover::Peer| match (&p.ssid, p.bssid) {
            (Some(ssid), _) => ssid.to_string(),
            (None, bssid) => bssid.map(kpat_model::link_address::text).unwrap_or_default(),
        };
        let mostly = h.longest().map(|(p, ns)| format!("{} {}", p.label(), share(ns, h.whole_ns())));
        let whole = match h.ended {
            _ if h.ended == Ended::LogEnd || h.begin_words().is_some() => {
                format!("> {}", duration(h.whole_ns()))
            }
            _ => duration(h.whole_ns()),
        };
        table.row(vec![
            plain(h.number.to_string()),
            plain(Times::of(&args.times, &read.log)?.show(h.begin_ns)),
            plain(h.interface.clone()),
            (h.kind.label().to_owned(), Style::Strong),
            plain(h.cause.label()),
            plain(short(&h.from)),
            plain(short(&h.to)),
            plain(whole),
            time(h.outage_ns()),
            time(h.link_ns()),
            plain(mostly.unwrap_or_default()),
        ]);
    }
    let mut hidden = args.listing.print(table, out)?;
    if all.len() > 1 {
        out.line(&Line::new())?;
        let sums = Statistics::of(all.iter().map(|(_, h)| *h));
        out.line(&Line::of(sums.words(), Style::Strong))?;
        if sums.count > 0 {
            hidden.extend(statistics(&sums, out)?);
        }
    }
    let left: u64 = logs.iter().map(|l| l.found.left_out).sum();
    if left > 0 {
        out.say(&format!("{left} more are not shown"));
    }
    hint_hidden(out, &hidden);
    out.say("kpat handover X.kpat NUMBER shows one phase by phase");
    Ok(())
}

fn statistics(sums: &Statistics, out: &Output) -> anyhow::Result<Vec<&'static str>> {
    let mut table = Table::new(&[
        Column::left("phase", 0, 0),
        Column::right("in", 0),
        Column::right("median  ", 0),
        Column::right("longest  ", 0),
        Column::right("of #", 1),
        Column::right("share", 2),
    ]);
    for p in &sums.phases {
        table.row(vec![
            (p.phase.label().to_owned(), style(p.phase.group())),
            (p.count.to_string(), Style::Faint),
            (duration_aligned(p.median_ns), Style::Plain),
            (duration_aligned(p.max_ns), Style::Plain),
            (p.longest.to_string(), Style::Faint),
            (share(p.total_ns, sums.whole_ns.2), Style::Plain),
        ]);
    }
    let (median, most, _) = sums.whole_ns;
    let whole = |ns| (duration_aligned(ns), Style::Strong);
    let empty = || (String::new(), Style::Plain);
    table.row(vec![("in all".into(), Style::Strong), empty(), whole(median), whole(most), empty(), empty()]);
    let (lines, hidden) = table.render(out.width);
    out.lines(&lines)?;
    Ok(hidden)
}

pub fn one(args: &Args, log: &Integrated, h: &Handover, out: &Output) -> anyhow::Result<()> {
    let times = Times::of(&args.times, log)?;
    let mut facts = Pairs::new();
    facts.line("handover", Line::of(h.headline(), Style::Strong));
    facts.add("when", format!("{} s to {} s", times.show(h.begin_ns), times.show(h.end_ns)));
    facts.add("in all", format!("{}; {}", duration(h.whole_ns()), h.ended.words()));
    if let Some(words) = h.begin_words() {
        facts.add("beginning", words);
    }
    if let Some(asked) = &h.asked {
        facts.add("asked", format!("{} ({})", asked.words(), asked.evidence()));
    }
    if let (Some(stop), Some(ns)) = (&h.stop, h.outage_ns()) {
        facts.add("without data", format!("{} from {} on ({})", duration(ns), stop.words(), stop.evidence()));
    }
    if let Some(ns) = h.link_ns() {
        let down = h.link_down.as_ref().or(h.stop.as_ref()).map(Mark::words).unwrap_or_default();
        let search = h
            .search_ns()
            .filter(|s| *s <= ns)
            .map(|s| format!("; until the authentication {}, {} of it", duration(s), share(s, ns)));
        let up = h.link_up.as_ref().map(Mark::words).unwrap_or_default();
        facts.add("link", format!("{} from {down} to {up}{}", duration(ns), search.unwrap_or_default()));
    }
    if h.attempts > 1 {
        let why = if h.refusals.is_empty() { String::new() } else { format!(": {}", h.refusals.join("; ")) };
        facts.add("attempts", format!("{}{why}", h.attempts));
    } else if !h.refusals.is_empty() {
        facts.add("meanwhile", h.refusals.join("; "));
    }
    if let Some(g) = &h.flow {
        facts.add("application", g.sentence());
    }
    for b in &h.beside {
        facts.add(
            "beside",
            match b.marks.len() as u64 {
                0 => format!(
                    "{}: its log has nothing of this handover's stations in its time ({})",
                    b.name,
                    b.clock()
                ),
                n => format!("{}: {}, {}", b.name, plural(n, "mark"), b.clock()),
            },
        );
    }
    if let Some(words) = h.loss_words() {
        facts.line("losses", Line::of(words, Style::Bad));
    }
    if h.joined {
        facts.add("", "older scans and pauses are shown as one, there were too many");
    }
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    if args.marks {
        return marks(h, out);
    }
    phases(args, h, out)
}

fn phases(args: &Args, h: &Handover, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("at s", 0),
        Column::left("phase", 0, 0),
        Column::right("time   ", 0),
        Column::right("share", 0),
        Column::left("", 4, 0),
        Column::left("began by", 1, 0),
        Column::left("known by", 3, 0),
    ]);
    let whole = h.whole_ns().max(1);
    for s in &h.spans {
        let part = (s.dur_ns().max(0) as i128 * 10_000 / i128::from(whole)) as u64;
        table.row(vec![
            (seconds(s.from_ns - h.begin_ns), Style::Faint),
            (label(s), style(s.phase.group())),
            (duration_aligned(s.dur_ns()), Style::Plain),
            (share(s.dur_ns(), whole), Style::Plain),
            (crate::function::bar_of(part, 10_000, BAR), style(s.phase.group())),
            (s.begin.words(), Style::Plain),
            (s.begin.evidence(), Style::Faint),
        ]);
    }
    let empty = || (String::new(), Style::Plain);
    table.row(vec![
        (seconds(h.end_ns - h.begin_ns), Style::Faint),
        ("end".into(), Style::Strong),
        (duration_aligned(h.whole_ns()), Style::Strong),
        empty(),
        empty(),
        (h.end.words(), Style::Plain),
        (h.end.evidence(), Style::Faint),
    ]);
    let hidden = args.listing.print(table, out)?;
    let with_words = h.spans.iter().filter(|s| s.why.is_some() || has_steps(args, s));
    for (i, s) in with_words.enumerate() {
        if i == 0 {
            out.line(&Line::new())?;
        }
        let words = Line::of(s.phase.label(), Style::Strong).plain(format!(" {}", duration(s.dur_ns())));
        let words = match &s.why {
            Some(why) => words.plain(format!(": {why}")),
            None => words,
        };
        out.lines(&wrap(&words, if out.width == 0 { usize::MAX } else { out.width }))?;
        if has_steps(args, s) {
            for x in &s.steps {
                let at = format!("  {:>12}  ", seconds(x.from_ns - h.begin_ns));
                let line =
                    Line::of(at, Style::Faint).plain(format!("{:>12}  ", duration(x.to_ns - x.from_ns)));
                out.line(&line.plain(&x.words))?;
            }
        }
    }
    hint_hidden(out, &hidden);
    Ok(())
}

fn has_steps(args: &Args, s: &Span) -> bool {
    let telling = matches!(
        s.phase,
        Phase::Dhcp | Phase::Eap | Phase::KeyExchange | Phase::Authentication | Phase::Neighbour
    );
    s.steps.len() > 1 && (args.steps || telling && s.steps.len() <= STEPS)
}

fn label(s: &Span) -> String {
    if s.times > 1 {
        format!("{} and others ({})", s.phase.label(), s.times)
    } else {
        s.phase.label().to_owned()
    }
}

fn marks(h: &Handover, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("at s", 0),
        Column::left("lane", 2, 0),
        Column::left("mark", 0, 0),
        Column::left("known by", 1, 0),
    ]);
    let own = h.marks.iter().map(|m| (kpat_query::handover::Lane::of(m).name(), m));
    let mut all: Vec<(&str, &Mark)> =
        own.chain(h.beside.iter().flat_map(|b| b.marks.iter().map(|m| (b.name.as_str(), m)))).collect();
    all.sort_by_key(|(_, m)| m.at_ns);
    for (lane, m) in all {
        table.row(vec![
            (seconds(m.at_ns - h.begin_ns), Style::Faint),
            (crate::render::clean(lane).to_string(), Style::Faint),
            (m.words(), Style::Plain),
            (m.evidence(), Style::Faint),
        ]);
    }
    let (lines, hidden) = table.render(out.width);
    out.lines(&lines)?;
    if h.marks_left_out > 0 {
        out.say(&format!("{} marks of its middle are left out", h.marks_left_out));
    }
    hint_hidden(out, &hidden);
    Ok(())
}
