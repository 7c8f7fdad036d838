//! What programs said of a handover: lines of their logs (`kpat integrate --log`) and places in them (`record -p programs`), as marks, and as steps of phases in which the kernel
//! waits for a program. Phases begin by the kernel's marks: what a program writes comes when it has the time.

use crate::error::Result;
use crate::handover::machine::Handover;
use crate::handover::mark::{Mark, Source, What};
use crate::handover::phase::{Phase, Span, Step};
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::tables::EventRow;
use std::collections::BTreeMap;

const LINES: &str = include_str!("../lines.txt");
/// What programs logged before and after it.
const AROUND_NS: i64 = 200_000_000;
/// Of one log, and of one handover.
const MOST: usize = 200_000;
const MOST_OF_ONE: usize = 1_500;
/// A stamp that is less precise has no place among steps.
const PRECISE_NS: i64 = 5_000_000;
/// A phase that took longer is worth a word on what was waited for.
const LONG_NS: i64 = 50_000_000;
/// What DHCP clients say, or are called by, when they begin.
const CLIENTS: [&str; 5] =
    ["sbin/dhclient", "Consortium DHCP Client", "udhcpc: started", "dhcpcd-", "dhcpcd["];
/// So much of a line is shown.
const MOST_WORDS: usize = 110;

/// All that programs said, in order of time.
pub(in crate::handover) struct Said(Vec<Mark>);

/// Which lines are shown.
struct Chosen {
    words: Vec<&'static str>,
    never: Vec<&'static str>,
    /// Places in these are all shown.
    programs: Vec<&'static str>,
}

impl Chosen {
    fn read() -> Chosen {
        let lines = LINES.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let mut out = Chosen { words: Vec::new(), never: Vec::new(), programs: Vec::new() };
        for line in lines {
            match (line.strip_prefix('!'), line.strip_prefix('@')) {
                (Some(never), _) => out.never.push(never),
                (_, Some(program)) => out.programs.push(program),
                _ => out.words.push(line),
            }
        }
        out
    }

    fn takes(&self, line: &str) -> bool {
        self.words.iter().any(|w| line.contains(w)) && !self.never.iter().any(|w| line.contains(w))
    }
}

/// A line without what it begins with of date and time: those are the mark's.
pub(in crate::handover) fn without_stamp(line: &str) -> &str {
    let line = line.trim_start_matches('[');
    let stamp = |c: char| c.is_ascii_digit() || "-:.,+TZ/".contains(c);
    let is_word = |w: &str| {
        w.len() > 4
            && w.starts_with(|c: char| c.is_ascii_digit())
            && w.trim_end_matches(']').chars().all(stamp)
    };
    let mut rest = line;
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    if MONTHS.iter().any(|m| rest.starts_with(m)) && rest.as_bytes().get(3) == Some(&b' ') {
        let day = rest[4..].trim_start();
        rest = day.split_once(' ').map_or("", |(_, r)| r);
    }
    while let Some((_, after)) = rest.split_once(' ').filter(|(word, _)| is_word(word)) {
        rest = after.trim_start();
    }
    rest
}

impl Said {
    pub(in crate::handover) fn all(&self) -> &[Mark] {
        &self.0
    }

    pub(in crate::handover) fn read(store: &Store) -> Result<Said> {
        let table = store.table::<EventRow>()?;
        let (line, hit) = (i64::from(EventKind::LogLine as i32), i64::from(EventKind::Program as i32));
        let chosen = Chosen::read();
        // Of each file the lines that have the words, and as long as none has any all of them.
        let mut files: BTreeMap<i64, (bool, Vec<Mark>)> = BTreeMap::new();
        let (mut all, mut before) = (Vec::new(), 0);
        for group in 0..table.groups() {
            let kinds = table.ints(group, "kind")?;
            let number = before;
            before += kinds.len() as i64;
            if !kinds.iter().any(|k| *k == line || *k == hit) {
                continue;
            }
            let mut at = number;
            table.each(vec![group], |row: EventRow| {
                let number = at;
                at += 1;
                let is_line = i64::from(row.kind) == line;
                if !is_line && i64::from(row.kind) != hit {
                    return;
                }
                let mut mark = Mark::new(row.at_ns, What::Program, Source::Event(number));
                mark.within_ns = row.after_ns.map_or(0, |after| (row.at_ns - after).max(0));
                if !is_line {
                    let of_network =
                        row.text.split_once(": ").is_some_and(|(p, _)| chosen.programs.contains(&p));
                    if !of_network && !chosen.takes(&row.text) {
                        return;
                    }
                    mark.text = Some(shown(&row.text).into());
                    if all.len() < MOST {
                        all.push(mark);
                    }
                    return;
                }
                let Some((name, text)) = row.text.split_once(": ") else { return };
                let (seen, marks) = files.entry(row.a).or_default();
                let takes = chosen.takes(text);
                if takes && !*seen {
                    *seen = true;
                    marks.clear();
                }
                if (takes || !*seen) && marks.len() < MOST {
                    mark.text = Some(shown(&format!("{name}: {}", without_stamp(text))).into());
                    marks.push(mark);
                }
            })?;
        }
        all.extend(files.into_values().flat_map(|(_, marks)| marks));
        all.sort_by_key(|m| m.at_ns);
        Ok(Said(all))
    }

    /// Adds to a handover's marks what programs logged in its time, and to its phases steps.
    pub(super) fn add(&self, store: &Store, h: &mut Handover) {
        let range = h.begin_ns.saturating_sub(AROUND_NS)..=h.end_ns.saturating_add(AROUND_NS);
        let from = self.0.partition_point(|m| m.at_ns < *range.start());
        let others: Vec<String> =
            store.devices.iter().map(|d| d.name.clone()).filter(|n| *n != h.interface).collect();
        let of_this = |m: &&Mark| {
            // `w2: State: ...` of another interface is another's.
            let words = m.text.as_deref().unwrap_or_default().split(": ").nth(1).unwrap_or_default();
            !others.iter().any(|o| o == words)
        };
        let during = self.0[from..].iter().take_while(|m| range.contains(&m.at_ns)).filter(of_this);
        let mut said: Vec<Mark> = during.cloned().collect();
        if said.len() > MOST_OF_ONE {
            // The beginning and the end tell most.
            h.marks_left_out += (said.len() - MOST_OF_ONE) as u64;
            said.drain(MOST_OF_ONE / 2..said.len() - MOST_OF_ONE / 2);
        }
        if said.is_empty() {
            return;
        }
        for s in &mut h.spans {
            steps(s, &said);
        }
        h.marks.extend(said);
        h.marks.sort_by_key(|m| m.at_ns);
    }
}

fn shown(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut words: String = clean.trim_end().chars().take(MOST_WORDS).collect();
    if words.len() < clean.trim_end().len() {
        words.push('…');
    }
    words
}

/// The kernel waits for a program in these.
fn is_of_programs(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Reaction
            | Phase::ProbingPause
            | Phase::Selection
            | Phase::PreAssociation
            | Phase::KeyWait
            | Phase::KeyInstall
            | Phase::PortOpening
            | Phase::Retry
            | Phase::ClientStart
            | Phase::Address
            | Phase::FirstData
    )
}

/// What programs logged in a phase divides it.
pub(in crate::handover) fn steps(s: &mut Span, said: &[Mark]) {
    if !is_of_programs(s.phase) {
        return;
    }
    let within = |m: &&Mark| m.within_ns <= PRECISE_NS && m.at_ns > s.from_ns && m.at_ns < s.to_ns;
    let lines: Vec<&Mark> = said.iter().filter(within).collect();
    if lines.is_empty() {
        return;
    }
    let mut begins: Vec<(i64, String)> = s.steps.drain(..).map(|x| (x.from_ns, x.words)).collect();
    if begins.is_empty() {
        begins.push((s.from_ns, s.begin.words()));
    }
    begins.extend(lines.iter().map(|m| (m.at_ns, m.words())));
    begins.sort_by_key(|b| b.0);
    let ends: Vec<i64> = begins.iter().skip(1).map(|b| b.0).chain([s.to_ns]).collect();
    s.steps = begins
        .into_iter()
        .zip(ends)
        .map(|((from_ns, words), to_ns)| Step { from_ns, to_ns, words })
        .collect();
    if let Some(words) = why(s, &lines) {
        s.why = Some(match s.why.take() {
            Some(rule) => format!("{rule}; {words}"),
            None => words,
        });
    }
}

/// The supplicant's own word on when it scans next, or what most of the time was after.
fn why(s: &Span, lines: &[&Mark]) -> Option<String> {
    if s.dur_ns() < LONG_NS {
        return None;
    }
    let timer = lines.iter().rev().find_map(|m| {
        let text = m.text.as_deref()?;
        let (_, rest) = text.split_once("Setting scan request: ")?;
        rest.split(' ').next()?.parse::<f64>().ok().filter(|seconds| *seconds > 0.05)
    });
    if let Some(seconds) = timer {
        return Some(format!("the supplicant's log: it scans {seconds:.1} s later"));
    }
    let began = |m: &&&Mark| CLIENTS.iter().any(|c| m.text.as_deref().is_some_and(|t| t.contains(c)));
    if let Some(first) = lines.iter().find(began).filter(|_| s.phase == Phase::ClientStart) {
        let ms = |ns: i64| (ns + 500_000) / 1_000_000;
        return Some(format!(
            "the client was there {} ms after the port was opened, and asked {} ms later",
            ms(first.at_ns - s.from_ns),
            ms(s.to_ns - first.at_ns)
        ));
    }
    let longest = s.steps.iter().max_by_key(|x| x.to_ns - x.from_ns)?;
    let took = longest.to_ns - longest.from_ns;
    (took * 5 >= s.dur_ns() * 2).then(|| {
        let next = s.steps.iter().find(|x| x.from_ns == longest.to_ns);
        let until = next.map_or(String::new(), |n| format!(", until \"{}\"", n.words));
        format!("{} ms of it after \"{}\"{until}", (took + 500_000) / 1_000_000, longest.words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_without_its_stamp() {
        for (line, rest) in [
            (
                "1795518204.572008: w2: State: SCANNING -> AUTHENTICATING",
                "w2: State: SCANNING -> AUTHENTICATING",
            ),
            (
                "Nov 24 11:21:54 dnsmasq-dhcp[7]: DHCPACK(e0) 10.1.0.5",
                "dnsmasq-dhcp[7]: DHCPACK(e0) 10.1.0.5",
            ),
            ("Nov  4 11:21:54 vm dhclient[3]: bound", "vm dhclient[3]: bound"),
            ("2026-11-24T11:21:54.572008+00:00 vm x: y", "vm x: y"),
            ("[2026-11-24T11:21:54.572008] 2: e0: <UP>", "2: e0: <UP>"),
            ("2026-11-24 11:21:54,572 INFO up", "INFO up"),
            ("wpa_supplicant[9]: w2: Trying", "wpa_supplicant[9]: w2: Trying"),
            ("", ""),
        ] {
            assert_eq!(without_stamp(line), rest, "{line}");
        }
    }

    #[test]
    fn what_programs_say_is_chosen() {
        let chosen = Chosen::read();
        for line in [
            "w2: State: SCANNING -> AUTHENTICATING",
            "w2: Setting scan request: 5.000000 sec",
            "w0: STA 02:00:00:00:02:00 IEEE 802.11: associated (aid 1)",
            "DHCPDISCOVER on w2 to 255.255.255.255 port 67 interval 4",
            "systemd-networkd[1]: eth0: Lost carrier",
        ] {
            assert!(chosen.takes(line), "{line}");
        }
        assert!(!chosen.takes("nl80211: Scan SSID - hexdump(len=0): [NULL]"));
        assert!(!chosen.takes("random: Got 20/20 random bytes"));
        assert_eq!(chosen.programs[0], "dhcp");
    }

    #[test]
    fn programs_divide_the_phases_that_wait_for_them() {
        let ms = 1_000_000;
        let begin = Mark::new(0, What::ScanDone { aborted: false }, Source::Wifi(1));
        let span = |phase| Span {
            phase,
            from_ns: 0,
            to_ns: 5_300 * ms,
            begin: begin.clone(),
            steps: Vec::new(),
            times: 1,
            why: Some("rule".into()),
        };
        let said = |at_ms: i64, text: &str, within_ns| Mark {
            text: Some(text.into()),
            within_ns,
            ..Mark::new(at_ms * ms, What::Program, Source::Event(at_ms))
        };
        let all = [
            said(20, "s.log: w2: No suitable network found", 1_000),
            said(21, "s.log: w2: Setting scan request: 5.000000 sec", 1_000),
            said(4_000, "d.log: in this second", 1_000_000_000),
        ];
        let mut pause = span(Phase::ProbingPause);
        steps(&mut pause, &all);
        assert_eq!(
            pause.steps.iter().map(|s| (s.to_ns - s.from_ns) / ms).collect::<Vec<_>>(),
            [20, 1, 5_279]
        );
        assert_eq!(pause.why.as_deref(), Some("rule; the supplicant's log: it scans 5.0 s later"));
        let mut start = span(Phase::ClientStart);
        start.why = None;
        steps(&mut start, &[said(2_760, "dhcp: Internet Systems Consortium DHCP Client 4.4.3", 0)]);
        assert_eq!(
            start.why.as_deref(),
            Some("the client was there 2760 ms after the port was opened, and asked 2540 ms later")
        );
        // The kernel's own time has no steps of programs.
        let mut probing = span(Phase::Probing);
        steps(&mut probing, &all);
        assert!(probing.steps.is_empty());
    }
}
