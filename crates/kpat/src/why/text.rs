//! Why a connection is slow, as a screen of text.

use super::drops;
use crate::listing::Listing;
use crate::open::OfDevice;
use crate::output::Output;
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count, duration, plural, seconds};
use kpat_query::app;
use kpat_query::why::{
    Beside, ByStage, End, Meanwhile, Opener, PathQueue, Stage, Sum, TooLarge, Trouble, Until, Waited, Why,
    slept_for,
};
use kpat_store::tables::{DeviceRow, SocketRow};

/// More stages of one write than a line needs.
const STAGES_OF_A_WRITE: usize = 4;
const BAR: usize = 12;

pub fn show(
    logs: &[OfDevice],
    w: &Why,
    beside: &[(usize, Beside)],
    listing: &Listing,
    out: &Output,
) -> anyhow::Result<()> {
    let mut facts = Pairs::new();
    let log = &logs[w.host].log;
    facts.add("connection", ends(logs, w));
    if let Some(first) = w.first() {
        let mut why = Line::of(format!("{} {}", first.stage.name(), percent(w.share(first))), Style::Strong);
        why = why.plain(format!(": {}", w.meaning(first.stage)));
        for more in more(logs, w, first) {
            why = why.plain(format!("; {more}"));
        }
        facts.line("why", why);
        if !w.is_certain() {
            let word = "with what is not known, another stage could be the first";
            facts.line("", Line::of(word, Style::Warn));
        }
    }
    let has = |stage: Stage| w.stages.iter().any(|s| s.stage == stage);
    let from = match has(Stage::Handshake) || w.writes() == 0 {
        true => "from when it began to connect",
        false => "from the first write",
    };
    let until = match (w.writes(), w.connected, w.until_answer) {
        (0, true, _) => "it was connected",
        (0, false, _) => "it gave up, or the log ended",
        (_, _, true) => "it had read the answer to the last write",
        _ => "the last write was over",
    };
    let mut what = format!("{} s, {from} until {until}", seconds(w.whole_ns()));
    if w.writes() > 0 {
        what += "; each moment counts once, divided among the writes then under way";
    }
    facts.add("time", what);
    if let Some(words) = app::ended_in_words(w.sender.error, Some(&w.ending)) {
        facts.add("ended by", words);
    }
    facts.add("writes", if w.writes() > 0 { writes(w) } else { no_writes(w) });
    if let Some(s) = w.silent_after.filter(|s| s.ns * 10 > w.whole_ns()) {
        let until = match s.until {
            Until::Closed => "it was closed",
            Until::Reset => "it was reset",
            Until::LogEnded => "the log ended",
        };
        facts.add(
            "then",
            format!("{} until {until}, in which nothing came; not part of the time", duration(s.ns)),
        );
    }
    if let Some(c) = &w.clock {
        let text = format!(
            "the peer's is another kernel's: related by what the two sent each other, ± {}, by which the way between them may be shorter or longer",
            duration(c.bound_ns)
        );
        facts.add("clock", text);
    }
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    table(w, listing, out)?;
    out.line(&Line::new())?;
    let mut notes = Pairs::new();
    for (name, l) in w.asked.iter().map(|l| ("this one", l)).chain(w.slowest.first().map(|l| ("slowest", l)))
    {
        let at = seconds(l.from_ns.saturating_sub(log.start_ns()));
        let took = duration(l.to_ns - l.from_ns);
        let carried = match (name, w.is_of_datagrams()) {
            ("slowest", false) => ", its last byte in packet",
            _ => ", packet",
        };
        let packet = l.packet.map(|p| format!("{carried} {p}")).unwrap_or_default();
        let what = format!("write {} of {}{packet}", l.number, bytes(l.bytes as u64));
        let (way, ended) = (stages(&l.stages), ended(l.end));
        notes.add(
            name,
            format!("{what}, at {at} s: {took}{}{way}{ended}", if way.is_empty() { "" } else { ": " }),
        );
    }
    for (n, (stage, words)) in w.stages.iter().filter_map(|s| Some((s.stage, threads(w, s)?))).enumerate() {
        notes.add(if n == 0 { "threads" } else { "" }, format!("{}: {words}", stage.name()));
    }
    if let Some(m) = w.meanwhile.as_ref().filter(|m| m.ns * 10 > m.of_ns) {
        notes.add("meanwhile", meanwhile(logs, w, m));
    }
    let on_path = w.path.as_ref().filter(|_| w.first().is_none_or(|s| s.stage != Stage::Path));
    if let Some(p) = on_path {
        notes.add("on the path", in_queue(p));
    }
    drops::add(logs, &w.drops, &mut notes);
    if w.is_unheard() {
        let text = "the listener's ss -lnt: with more in Recv-Q than in Send-Q its program accepts too slowly, and it drops SYNs without naming a reason; TcpExtListenOverflows, TcpExtListenDrops";
        notes.line("look at", Line::of(text, Style::Faint));
    }
    for (n, b) in beside.iter().enumerate() {
        notes.add(if n == 0 { "beside it" } else { "" }, in_trouble(logs, b));
    }
    let what = match w.is_of_datagrams() {
        true => "its calls, and how long it waited for answers",
        false => "what TCP itself was waiting for, by its state",
    };
    let held = format!("kpat app --socket {}: {what}", w.sender.socket_id);
    notes.line("see also", Line::of(held, Style::Faint));
    for (n, text) in unknown(w).into_iter().enumerate() {
        notes.line(if n == 0 { "not known" } else { "" }, Line::of(text, Style::Faint));
    }
    out.lines(&notes.render(out.width))
}

/// Other sockets in trouble, and where to look.
fn in_trouble(logs: &[OfDevice], (at, b): &(usize, Beside)) -> String {
    let of = match logs[*at].name.as_str() {
        "" => String::new(),
        name => format!(" --device {name}"),
    };
    let (those, were) = (plural(b.sockets, "socket"), if b.sockets == 1 { "was" } else { "were" });
    let took = match b.sockets {
        1 => duration(b.ns),
        _ => format!("{} at most", duration(b.ns)),
    };
    let words = match b.trouble {
        Trouble::NoPort => format!("{those} {were} never connected: {}", app::NO_PORT),
        Trouble::NotConnected(Some(e)) => format!("{those} {were} not connected: {}, {took}", app::errno(e)),
        Trouble::NotConnected(None) => format!("{those} {were} not connected, {took}"),
        Trouble::ConnectedLate => format!("{those} {were} connected late, {took}"),
        Trouble::Ended(e) => format!("{those} ended with {}", app::errno(e)),
    };
    let look = match b.trouble {
        Trouble::NoPort | Trouble::Ended(_) => "kpat app --socket",
        _ => "kpat why",
    };
    format!("{words}: {look} {}{of}", b.worst)
}

/// What the threads did in a stage that is their program's; not of a small one.
fn threads(w: &Why, s: &Sum) -> Option<String> {
    let t = s.threads.filter(|t| w.share(s) >= 0.05 && t.known_ns() * 20.0 >= s.ns)?;
    let known = t.known_ns();
    let did = [(t.ran_ns, "they ran"), (t.waited_ns, "waited for a CPU"), (t.slept_ns, "slept")];
    let did = did.into_iter().filter(|(ns, _)| ns * 1000.0 >= known);
    let did =
        did.map(|(ns, what)| format!("{what} {} ({})", duration(ns.round() as i64), percent(ns / known)));
    let mut words = did.collect::<Vec<_>>().join(", ");
    let most =
        t.slept_for.longest().into_iter().filter(|(_, ns)| ns * 50.0 >= t.slept_ns && ns * 1000.0 >= known);
    let most: Vec<String> =
        most.map(|(sleep, ns)| format!("{} {}", slept_for(sleep), duration(ns.round() as i64))).collect();
    if !most.is_empty() {
        words += &format!(": {}", most.join(", "));
    }
    if t.waited_ns * 10.0 > known {
        words += "; who waits is ready, but others run there, or its group has used up its share";
    }
    if known < s.ns * 0.9 {
        words += &format!("; of the other {} it is not known", duration((s.ns - known).round() as i64));
    }
    Some(words)
}

/// How a write's line ended, where not by being read.
fn ended(end: End) -> &'static str {
    match end {
        End::Read => "",
        End::Acknowledged => "; then it was acknowledged",
        End::Readable => "; then it could be read",
        End::Open => "; it was not over when the log ended",
        End::Reset => "; then the connection was reset",
        End::GivenUp => "; then the connection was given up",
        End::Unseen => "; the rest is not in the log",
        End::Sent => "; then it left this host",
        End::Dropped => "; then it was dropped",
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn ends(logs: &[OfDevice], w: &Why) -> String {
    let user = |at: usize, s: &SocketRow| {
        let of = &logs[at];
        let process = s.pid.map(|p| of.log.process_name(p, s.last_ns)).filter(|name| !name.is_empty());
        let process = process.or_else(|| of.log.socket_process(s).map(str::to_owned));
        let listener = || of.log.listener_of(s).ok().flatten();
        let process = process.or_else(|| {
            let l = listener()?;
            Some(format!("not used by any process; {} listens", of.log.process_name(l.pid?, l.last_ns)))
        });
        let process = process.unwrap_or_else(|| "process not known".into());
        if of.name.is_empty() { process } else { format!("{process} on {}", of.name) }
    };
    let (own, far) = app::ends(&w.sender);
    let peer = match &w.peer {
        Some(p) => format!("socket {} ({})", p.socket_id, user(w.peer_host, p)),
        None => "not in this log".to_owned(),
    };
    format!(
        "{own} > {}; socket {} ({}) > {peer}",
        far.unwrap_or_else(|| plural(w.peers, "other end")),
        w.sender.socket_id,
        user(w.host, &w.sender)
    )
}

/// What else is known of the first.
fn more(logs: &[OfDevice], w: &Why, first: &Sum) -> Vec<String> {
    let again =
        (w.syns_again > 0).then(|| format!("its SYN was sent again {}", plural(w.syns_again, "time")));
    let one = match first.stage {
        Stage::Handshake => {
            return opening(logs, w).into_iter().chain(again).chain(unreachable(w)).collect();
        }
        Stage::CongestionWindow | Stage::Loss if w.again > 0 => {
            let repairs = if w.repairs_ns > 0 {
                format!(", {} in repair", duration(w.repairs_ns))
            } else {
                String::new()
            };
            let again = format!("{} sent again{repairs}", plural(w.again, "segment"));
            return [again].into_iter().chain(w.too_large.map(too_large)).collect();
        }
        Stage::Application => Some(plural(w.pauses, "pause")),
        Stage::PeerApplication if !w.is_of_datagrams() && w.answering_ns > 0 => {
            let unread = first.ns - w.answering_ns as f64;
            Some(match w.is_mostly_answering() {
                true => format!("{} lay unread", duration(unread.round() as i64)),
                false => format!("{} it had read all and not yet written back", duration(w.answering_ns)),
            })
        }
        Stage::Answer => {
            let whole = w.peer.as_ref().map(|p| format!("; its own way: kpat why {}", p.socket_id));
            let ended = format!("{} of {} pauses ended with one", count(w.answered), count(w.pauses));
            Some(ended + &whole.unwrap_or_default())
        }
        Stage::Wire => w.waited.as_ref().map(waited),
        Stage::Path => w.path.as_ref().map(in_queue),
        Stage::Queue if w.fq_paces => Some("fq paces this socket there".to_owned()),
        _ => None,
    };
    one.into_iter().chain(mostly(first)).collect()
}

/// What the threads did for most of a stage.
fn mostly(s: &Sum) -> Option<String> {
    let t = s.threads.filter(|t| t.known_ns() * 2.0 > s.ns)?;
    let did = [(t.ran_ns, "ran"), (t.waited_ns, "waited for a CPU"), (t.slept_ns, "slept")];
    let (ns, what) = did.into_iter().find(|(ns, _)| ns * 2.0 > s.ns)?;
    let most = t.slept_for.longest().first().filter(|(_, ns)| what == "slept" && ns * 2.0 > s.ns).copied();
    let most = most.map(|(sleep, _)| format!(", {}", slept_for(sleep))).unwrap_or_default();
    Some(format!("its threads {what} for {} of it{most}", percent(ns / s.ns)))
}

/// What a path looks like that takes no large packets and does not say so.
fn too_large(t: TooLarge) -> String {
    let acked = match t.acked_bytes {
        0 => "none that had data was acknowledged".to_owned(),
        n => format!("none of more than {} was acknowledged", bytes(n as u64)),
    };
    let heard = if t.heard { "" } else { ", but nothing at all was heard from the peer then" };
    format!(
        "one of {} was sent again {}, {acked}: as where the path's MTU is smaller and its ICMP is lost{heard}",
        bytes(t.bytes as u64),
        plural(t.times, "time")
    )
}

/// Where the time between driver and device went, in the packet that had most of it.
fn waited(w: &Waited) -> String {
    format!(
        "packet {} waited {} of {} for the next hop's link address at {}",
        w.packet,
        duration(w.ns),
        duration(w.of_ns),
        device(w.device.as_ref())
    )
}

fn device(d: Option<&DeviceRow>) -> String {
    match d {
        Some(d) if d.netns_name.is_empty() => d.name.clone(),
        Some(d) => format!("{} of {}", d.name, d.netns_name),
        None => "a device".to_owned(),
    }
}

/// Where something was dropped.
pub(super) fn on(at: Option<&DeviceRow>) -> String {
    at.map(|d| format!(", on {}", device(Some(d)))).unwrap_or_default()
}

/// Where on the path packets were queued, and what that is of their round trip.
fn in_queue(p: &PathQueue) -> String {
    let round_trip =
        p.of_round_trip.map(|share| format!(", {} of their time until acknowledged", percent(share)));
    format!(
        "{} {} in the queue of {}, {} in the median, {} at most{}",
        plural(p.stays_ns.count, "packet"),
        if p.stays_ns.count == 1 { "was" } else { "were" },
        device(p.device.as_ref()),
        duration(p.stays_ns.quantile(0.5).unwrap_or_default()),
        duration(p.stays_ns.max),
        round_trip.unwrap_or_default()
    )
}

/// Which packet shows what became of the opening.
fn opening(logs: &[OfDevice], w: &Why) -> Option<String> {
    let named = |o: &Opener| match logs[o.host].name.as_str() {
        "" => format!("packet {}", o.packet),
        device => format!("packet {} of {device}", o.packet),
    };
    let refusal = w.opening.refusals.first().map(named);
    let times = |first: &Opener, times: usize| match times {
        1 => named(first),
        _ => format!("{times} times, first {}", named(first)),
    };
    if let Some((first, dropped)) = w.opening.dropped() {
        let mut text = times(first, dropped);
        if !first.reason.is_empty() {
            text += &format!(": {}", first.reason);
        }
        if !first.place.is_empty() {
            text += &format!(" at {}", first.place);
        }
        text += &on(first.device.as_ref());
        return Some(match refusal {
            Some(refusal) => format!("{refusal}, in answer to {text}"),
            None => text,
        });
    }
    refusal.or_else(|| w.opening.unanswered().map(|(first, of)| times(first, of)))
}

/// Which ICMP message may have ended it, or told its program.
fn unreachable(w: &Why) -> Option<String> {
    let first = w.unreachable.first()?;
    let messages = match w.unreachable.len() {
        1 => "an ICMP message came meanwhile".to_owned(),
        n => format!("{n} ICMP messages came meanwhile, the first"),
    };
    Some(format!(
        "{messages}: {}, packet {} (of which connection is not in the log)",
        first.what, first.packet
    ))
}

/// What the peer's process waited for itself.
fn meanwhile(logs: &[OfDevice], w: &Why, m: &Meanwhile) -> String {
    let (of, s) = (&logs[w.peer_host], &m.socket);
    let process = s.pid.map(|pid| of.log.process_name(pid, s.last_ns)).unwrap_or_default();
    let (_, far) = app::ends(s);
    let shows = if app::protocol(s.proto) == "TCP" { "kpat why" } else { "kpat app --socket" };
    format!(
        "{process} itself waited for an answer {} of the {} in which it owed one, on socket {} to {}: {shows} {}",
        duration(m.ns),
        duration(m.of_ns),
        s.socket_id,
        far.unwrap_or_else(|| "an unknown end".to_owned()),
        s.socket_id
    )
}

fn no_writes(w: &Why) -> String {
    if w.unwritten_bytes == 0 {
        return "none".to_owned();
    }
    format!(
        "none in the log, though TCP was given {}: of MPTCP, the writes are its own socket's{} (kpat app), and which connection carried them is not recorded",
        bytes(w.unwritten_bytes as u64),
        w.sender.mptcp_socket.map_or_else(String::new, |id| format!(", {id}"))
    )
}

fn writes(w: &Why) -> String {
    let median = |s: &app::Spread| s.quantile(0.5).unwrap_or_default();
    // Of those that nobody read, as long as the log shows them waiting.
    let read = w.ends[End::Read as usize];
    let until = match w.peer.is_some() {
        true if read == w.writes() => "until read".to_owned(),
        true if read == 0 => "none was seen read; waiting".to_owned(),
        true => format!("{} seen read; until read, or waiting", count(read)),
        false if w.ends[End::Dropped as usize] == w.writes() => "until it was dropped".to_owned(),
        false if w.ends[End::Dropped as usize] > 0 => {
            "until it was dropped, or this host's driver had it".to_owned()
        }
        false if w.is_of_datagrams() => "until this host's driver had it".to_owned(),
        false => "until acknowledged".to_owned(),
    };
    let mut text = format!(
        "{} of {} in the median; {until} {} in the median, {} at most",
        count(w.writes()),
        bytes(median(&w.write_bytes).max(0) as u64),
        duration(median(&w.took_ns)),
        duration(w.took_ns.max)
    );
    let dropped = w.ends[End::Dropped as usize];
    if dropped > 0 {
        text += &format!("; {} dropped", count(dropped));
    }
    if w.left_out > 0 {
        text += &format!("; the {} behind them were left out", count(w.left_out));
    }
    text
}

fn table(w: &Why, listing: &Listing, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("stage", 0, 0),
        Column::right("time", 0),
        Column::right("share", 0),
        Column::left("", 1, 0),
        Column::left("between", 2, 0),
        Column::right("writes", 4),
        Column::right("median", 5),
        Column::right("longest", 5),
        Column::left("known by", 3, 0),
    ]);
    let first = w.first().map(|s| s.stage);
    for s in &w.stages {
        let plain = |text: String| (text, Style::Plain);
        let style = match s.stage {
            stage if Some(stage) == first => Style::Strong,
            Stage::Undecided => Style::Warn,
            _ => Style::Plain,
        };
        let share = w.share(s);
        let (low, high) = w.bounds_ns(s);
        let of_whole = |ns: f64| percent((ns / w.whole_ns().max(1) as f64).clamp(0.0, 1.0));
        let (low, high) = (of_whole(low), of_whole(high));
        let between = if low == high { String::new() } else { format!("{low} and {high}") };
        let time = |ns: Option<i64>| plain(ns.map(duration).unwrap_or_default());
        table.row(vec![
            (s.stage.name().into(), style),
            plain(duration(s.ns.round() as i64)),
            (percent(share), style),
            (crate::function::bar_of((share * 10_000.0) as u64, 10_000, BAR), style),
            plain(between),
            plain(if s.of_writes.count > 0 { count(s.of_writes.count) } else { String::new() }),
            time(s.of_writes.quantile(0.5)),
            time((s.of_writes.count > 0).then_some(s.of_writes.max)),
            (w.records(s.stage).into(), Style::Faint),
        ]);
    }
    listing.print(table, out)?;
    Ok(())
}

fn stages(of: &ByStage) -> String {
    let mut all: Vec<Stage> = Stage::ALL.into_iter().filter(|s| of[*s as usize] > 0).collect();
    all.sort_by_key(|s| std::cmp::Reverse(of[*s as usize]));
    let rest: i64 = all.iter().skip(STAGES_OF_A_WRITE).map(|s| of[*s as usize]).sum();
    let mut words: Vec<String> = all
        .iter()
        .take(STAGES_OF_A_WRITE)
        .map(|s| format!("{} {}", s.name(), duration(of[*s as usize])))
        .collect();
    if rest > 0 {
        words.push(format!("others {}", duration(rest)));
    }
    words.join(", ")
}

/// What this log cannot tell.
fn unknown(w: &Why) -> Vec<String> {
    let mut out = Vec::new();
    let mut say = |is: bool, text: String| {
        if is {
            out.push(text);
        }
    };
    let has = |stage: Stage| w.stages.iter().any(|s| s.stage == stage);
    let ended = |e: End| w.ends[e as usize];
    let of = |e: End| plural(ended(e), "write");
    let datagrams = w.is_of_datagrams();
    say(ended(End::Sent) > 0, format!("what became of {} behind this host's driver", of(End::Sent)));
    say(
        w.peer.is_none() && !datagrams && (w.connected || w.writes() > 0),
        "the other end is not in this log, or its clock cannot be related: driver, wire, the peer's stack and its application are one, until the acknowledgement".into(),
    );
    say(has(Stage::Wire), "when the card had sent a packet: driver and wire are one".into());
    say(
        has(Stage::PeerApplication),
        "a read is logged when its call returns: the time that a waiting reader took to wake and copy is in the peer's application".into(),
    );
    say(w.answered > 0, "whether the application had to wait for what it read before it wrote again".into());
    say(
        w.silent.1 * 10 > w.whole_ns() && !datagrams,
        format!(
            "whether the application waited for an answer in {}, {} together, in which nothing came",
            plural(w.silent.0, "pause"),
            duration(w.silent.1)
        ),
    );
    say(
        w.states == 0 && !datagrams,
        "TCP's state: the log has none of this socket, so what kept bytes in it is undecided".into(),
    );
    say(
        w.begins_unknown,
        "when calls began: this kernel shows their ends, so a wait within a call is missing here".into(),
    );
    say(w.pacing_unknown, "who paces: pacing and the device cannot be distinguished".into());
    say(w.fq_paces, "in the queue: whether fq held a packet for this socket's rate or for others".into());
    say(
        w.lost > 0,
        format!("{} records are missing: each stage's time is somewhere between its bounds", count(w.lost)),
    );
    for (end, text) in [
        (End::Open, format!("how long {} would take that nobody had read when the log ended", of(End::Open))),
        (
            End::Reset,
            format!("what became of {}: the connection was reset, and no read has them", of(End::Reset)),
        ),
        (
            End::GivenUp,
            format!(
                "whether {} came, or will be read: this end gave the connection up unheard",
                of(End::GivenUp)
            ),
        ),
        (
            End::Unseen,
            match datagrams {
                true => format!("what became of {}, or which read is theirs", of(End::Unseen)),
                false => format!("when {} ended that later reads passed by", of(End::Unseen)),
            },
        ),
        (
            End::Readable,
            match datagrams {
                true => {
                    format!("when {} were read: no read in the log is known to have them", of(End::Readable))
                }
                false => "when the peer's application read: the log has no read of it".to_owned(),
            },
        ),
    ] {
        say(ended(end) > 0, text);
    }
    out
}
