//! What made a phase long, where a rule knows: a sentence each.

use super::mark::{Mark, Source, What};
use super::open::Open;
use super::phase::{Phase, Span, Step};
use super::words::{reason_words, status_words};

/// A scan of so many channels looked everywhere.
const FULL: usize = 6;
/// A channel that was listened on longer was listened on without probe requests.
const PASSIVE_NS: i64 = 95_000_000;
const MS: i64 = 1_000_000;
/// A request for a neighbour is repeated after 1 s, and has its answer by then, also on a busy host.
const REPEATED_NS: i64 = 2_000 * MS;

/// `over`: it came to an end before the log's.
pub(super) fn explain(spans: &mut [Span], o: &Open, over: bool) {
    let mut answered = false;
    // Which of the failed attempts a wait is of, where each has its own.
    let mut failed = 0;
    let each = spans.iter().filter(|s| s.phase == Phase::Retry).count() == o.facts.refusals.len();
    for i in 0..spans.len() {
        let next = spans.get(i + 1);
        let ends = next.is_none() && !over;
        let asked = spans[..i].iter().any(|s| s.phase == Phase::Dhcp);
        let tried = spans[..i].iter().any(|s| s.phase == Phase::Retry);
        answered |= matches!(spans[i].begin.what, What::ArpReply { sent: false });
        let words = match spans[i].phase {
            Phase::Dhcp => dhcp(&spans[i], next, o, ends),
            Phase::Retry if each => {
                failed += 1;
                Some(refused(o, failed))
            }
            Phase::ClientStart if asked && spans[i].dur_ns() >= 300 * MS => Some(
                "the client had asked already when the link was lost once more: it asks again by its own timer".into(),
            ),
            Phase::Neighbour | Phase::FirstData => {
                shut_there(&spans[i], o).or_else(|| unsent(&spans[i], o)).or_else(|| neighbour(&spans[i], o, answered))
            }
            Phase::ProbingPause if tried => Some(
                "nothing was joined: what failed before the supplicant leaves out for a while, also where the scan found it (wpa_supplicant: 10 s and more behind a wrong password)".into(),
            ),
            // Of the whole scan and the whole handshake nothing can be concluded.
            Phase::Probing if ends => None,
            Phase::KeyExchange if ends && messages(&spans[i], 1) < 3 => repeated(&spans[i]),
            Phase::Probing if tried => of(&spans[i], None, o),
            _ => of(&spans[i], next.map(|s| s.phase), o),
        };
        let words = match words {
            Some(rule) if ends => Some(format!("{rule}; {}", unfinished(&spans[i]))),
            None if ends => Some(unfinished(&spans[i])),
            words => words,
        };
        spans[i].why = words;
    }
}

/// The log ended in it: what may be known of how far it had come. It was not the network that failed.
fn unfinished(s: &Span) -> String {
    let rest = match s.phase {
        Phase::Probing => {
            let mut heard: Vec<&str> = channels(&s.steps).iter().map(|c| c.words.as_str()).collect();
            heard.sort_unstable();
            heard.dedup();
            match heard.len() {
                0 => "what this scan would have found is not known".to_owned(),
                1 => "the scan had come to 1 channel, and what it would have found is not known".to_owned(),
                n => format!("the scan had come to {n} channels, and what it would have found is not known"),
            }
        }
        Phase::Dhcp => {
            let (words, since_ns) =
                s.steps.last().map_or((s.begin.words(), s.from_ns), |x| (x.words.clone(), x.from_ns));
            if is_message(&words, &ASKS) {
                let waited = milliseconds(s.to_ns - since_ns);
                format!(
                    "{words} had no answer in the {waited} until then, and whether it would have had one is not known"
                )
            } else {
                format!("after {words}; what would have come next is not known")
            }
        }
        Phase::KeyWait | Phase::Eap | Phase::KeyExchange | Phase::KeyInstall => {
            "whether the handshake would have come to its end is not known".to_owned()
        }
        _ => "what would have come next is not known".to_owned(),
    };
    format!("the recording ends here: {rest}")
}

fn of(s: &Span, next: Option<Phase>, o: &Open) -> Option<String> {
    let long = |ms: i64| s.dur_ns() >= ms * MS;
    match s.phase {
        Phase::Detection if o.facts.asked.is_some() && o.facts.agreed => {
            Some("the access point asked the station to go elsewhere (802.11v): when it does is the supplicant's".into())
        }
        Phase::Detection if s.begin.what == What::Received && long(300) && !o.facts.radio && o.from.bssid.is_none() => {
            Some("nothing came any more, and the kernel had not announced why: it takes up to a second for a carrier".into())
        }
        Phase::Detection if s.begin.what == What::Received && long(300) && o.left_by_itself() => {
            Some("nothing came any more while the link stood, and then this station left: that its access point was silent is not in the log".into())
        }
        Phase::Detection if o.facts.queried && long(300) => {
            Some("the access point's word that this station is unknown came without protection, which anybody can send (802.11w): the station asked (SA query), had no answer, and left".into())
        }
        Phase::Detection if s.begin.what == What::Received && long(300) && matches!(o.facts.deauth, Some((false, _))) => {
            Some(if scanned(s, o) {
                "nothing came any more, and a scan was going on: what an access point says meanwhile the kernel looks at only after it".into()
            } else {
                "nothing came any more, and then the access point sent this station away: what was before that is not in the log".into()
            })
        }
        Phase::Detection if s.begin.what == What::Received && long(300) => {
            Some("nothing came any more; the access point is given up when its beacons and the answers to probes have stayed away".into())
        }
        Phase::Detection => None,
        Phase::Reaction if long(1000) => reaction(s, o),
        Phase::Probing => probing(s, next).map(|words| words + ended_early(s, o)),
        Phase::ProbingPause => Some("the scan found no network to join: the next one waits for the supplicant's timer".into()),
        Phase::Authentication if s.begin.what == (What::AuthStart { algorithm: 4 }) => {
            Some("SAE: a commit and a confirm each way, with the elliptic curve's work in between".into())
        }
        Phase::Retry => o.facts.refusals.last().map(|_| refused(o, o.facts.refusals.len())),
        Phase::KeyExchange if messages(s, 1) > 1 && messages(s, 3) == 0 => Some(format!(
            "message 1 came {} times and no message 3: the access point does not accept message 2, as with a wrong passphrase",
            messages(s, 1)
        )),
        Phase::Association if o.facts.over_ds && o.facts.attempts == 1 => put_off(s).or_else(|| {
            Some("no authentication before it: fast transition over the distribution system, by which the old access point passed it on".into())
        }),
        Phase::Association => put_off(s),
        Phase::KeyWait if long(1000) => Some(match next {
            Some(Phase::KeyExchange) => "the access point had taken this station, and began the 4-way handshake only then".into(),
            _ => "the access point had taken this station, and sent no first message of the 4-way handshake".into(),
        }),
        Phase::Eap => super::eap::why(s),
        Phase::KeyExchange => repeated(s),
        Phase::KeyInstall if o.facts.first_key == 0 && o.facts.algorithm == 2 => {
            Some("no 4-way handshake: fast transition has the keys already".into())
        }
        Phase::PortOpening if long(300) => {
            Some("no keys are exchanged, as in an open network: until the port is opened the time is the supplicant's".into())
        }
        Phase::LinkDown if o.facts.removed && !o.facts.gone && long(300) => Some("the interface itself was gone".into()),
        Phase::LinkDown if long(1000) => Some("the wire had no carrier".into()),
        Phase::BridgePort if long(1000) => Some("the port listens and learns first: the bridge's forward delay, twice".into()),
        Phase::ClientStart if long(300) => {
            let early = match o.facts.early_dhcp {
                0 => String::new(),
                n => format!("{n} DHCP message{} sent before the port was authorised {} lost; ", if n == 1 { "" } else { "s" }, if n == 1 { "was" } else { "were" }),
            };
            Some(early + "the time until the client asks is user space's: events, scripts, the start of a program")
        }
        Phase::RouterWait if long(500) && !o.facts.solicited => {
            Some("nobody asked for a router, and the network changed unnoticed: its next regular announcement brought the prefix".into())
        }
        Phase::RouterWait if long(500) => Some("a router may wait up to half a second before it answers, and a lost solicitation is repeated after 4 s".into()),
        Phase::DuplicateCheck if o.facts.duplicate => {
            let what = s.steps.iter().rev().map(|x| x.words.as_str()).find(|w| w.starts_with("duplicate address ") && !w.ends_with("probe"));
            let of = what.and_then(|w| w.strip_prefix("duplicate address ")).or(o.facts.probed.as_deref());
            Some(format!("another host has {} already: it cannot be used", of.unwrap_or("this address")))
        }
        Phase::DuplicateCheck if long(500) => {
            Some("duplicate address detection listens about 1 s for another owner; optimistic DAD or accept_dad=0 would not wait".into())
        }
        _ => None,
    }
}

/// Nothing was searched, though there was no link.
fn reaction(s: &Span, o: &Open) -> Option<String> {
    let spent = |begins: &dyn Fn(&Mark) -> bool, ends: &dyn Fn(&Mark) -> bool| -> i64 {
        let (mut since, mut ns) = (None, 0);
        for m in o.marks.iter().filter(|m| (s.from_ns..=s.to_ns).contains(&m.at_ns)) {
            if begins(m) {
                since = since.or(Some(m.at_ns));
            } else if ends(m) {
                ns += since.take().map_or(0, |at| m.at_ns - at);
            }
        }
        ns + since.map_or(0, |at| s.to_ns - at)
    };
    let other = |m: &Mark, name: &str| m.what == What::Other && m.text.as_deref() == Some(name);
    let slept_ns = spent(&|m| other(m, "suspend"), &|m| other(m, "resume"));
    if slept_ns > 0 {
        return Some(format!(
            "the radio was suspended for {} of it: this host slept",
            milliseconds(slept_ns)
        ));
    }
    let shut_ns = spent(&|m| m.what == What::AdminDown, &|m| m.what == What::AdminUp);
    if shut_ns > 0 {
        return Some(format!("the interface was shut for {} of it", milliseconds(shut_ns)));
    }
    let nobody = "nobody looked for a network until then";
    Some(match o.facts.left_by.as_deref().filter(|_| o.facts.taken.is_none() && !o.facts.left) {
        Some(name) if name.starts_with("kworker/") => {
            format!(
                "the kernel itself left the access point, as when the program that had joined it ends, and {nobody}"
            )
        }
        Some(name) => format!("{name} left the access point, and {nobody}"),
        None if o.facts.left => {
            "the station had left by its supplicant, which looked for no network until then".to_owned()
        }
        None => format!("{nobody}: the time is the supplicant's, which asks for scans, or it did not run"),
    })
}

/// A supplicant does not wait for a scan without end (wpa_supplicant: 10 s).
fn ended_early(s: &Span, o: &Open) -> &'static str {
    let abort = |m: &Mark| m.what == What::Other && m.text.as_deref() == Some("scan-abort");
    if o.marks.iter().any(|m| abort(m) && (s.from_ns..=s.to_ns).contains(&m.at_ns)) {
        "; it was ended by request, before its last channels"
    } else {
        ""
    }
}

/// A scan went on for most of it. mac80211 leaves frames of access points in their queue until its own scan is over (net/mac80211/iface.c, ieee80211_iface_work).
fn scanned(s: &Span, o: &Open) -> bool {
    let (mut since, mut ns) = (None, 0);
    for m in o.marks.iter().filter(|m| m.at_ns <= s.to_ns) {
        match m.what {
            What::ScanStart => since = since.or(Some(m.at_ns)),
            What::ScanDone { .. } => ns += since.take().map_or(0, |at| m.at_ns - at.max(s.from_ns)).max(0),
            _ => {}
        }
    }
    ns += since.map_or(0, |at| s.to_ns - at.max(s.from_ns));
    ns * 2 > s.dur_ns()
}

/// How often this message of the handshake came in one attempt.
fn messages(s: &Span, number: u8) -> usize {
    s.steps.iter().filter(|x| x.words == format!("EAPOL-Key message {number}")).count()
}

/// The answer to the request was to come back later.
fn put_off(s: &Span) -> Option<String> {
    let times = s.steps.iter().filter(|x| x.words.starts_with("association put off")).count();
    (times > 0).then(|| {
        let again = if times == 1 { String::new() } else { format!(", {times} times") };
        format!(
            "the access point refused the request for now (status 30){again}, and the kernel asked again after the time that it was given: with protected management frames (802.11w) an access point that still has this station asks first whether it is there (SA query)"
        )
    })
}

/// What the access point sent more than once.
fn repeated(s: &Span) -> Option<String> {
    let words: Vec<String> = [1, 3]
        .into_iter()
        .filter(|n| messages(s, *n) > 1)
        .map(|n| format!("message {n} came {} times", messages(s, n)))
        .collect();
    (!words.is_empty()).then(|| {
        format!(
            "{}: the access point repeats what it has no answer to in time, or the answer was lost",
            words.join(" and ")
        )
    })
}

/// `which` of the attempts that failed, from 1.
fn refused(o: &Open, which: usize) -> String {
    let all = &o.facts.refusals;
    let words = which.checked_sub(1).and_then(|i| all.get(i)).map_or("", String::as_str);
    match all.len() {
        1 if taken(words) => {
            format!("{words} in the middle of an attempt: nothing can be tried until it is there again")
        }
        1 => format!("{words}{}: the supplicant waits before it tries again", meaning(o, words)),
        n => format!("failed attempt {which} of {n}: {words}{}", meaning(o, words)),
    }
}

/// What a link's end does, without who ended it.
pub(super) fn is_effect(words: &str) -> bool {
    words.starts_with("carrier off") || words == "port closed"
}

/// The interface itself was not there: marks' own words.
fn taken(words: &str) -> bool {
    [What::AdminDown, What::Removed].iter().any(|what| Mark::new(0, *what, Source::Unknown).words() == words)
}

/// Of an attempt that was refused with a status, or ended by a farewell with a reason: what that says. With SAE a confirm that does not fit is refused with 1 by hostapd, with 15 by the standard.
fn meaning(o: &Open, words: &str) -> &'static str {
    let number = |name: &str| words.rsplit_once(name).and_then(|(_, n)| n.parse().ok());
    if let Some(reason) = number(", reason ") {
        return reason_words(reason);
    }
    let status = number(", status ");
    let sae = || o.marks.iter().any(|m| m.what == What::AuthStart { algorithm: 4 });
    match status {
        Some(1 | 15) if sae() => " (as with a wrong password)",
        Some(status) => status_words(status),
        None => "",
    }
}

/// Channels as the kernel or the air named them.
fn channels(steps: &[Step]) -> Vec<&Step> {
    steps.iter().filter(|s| s.words.ends_with("MHz")).collect()
}

fn probing(s: &Span, next: Option<Phase>) -> Option<String> {
    if s.begin.what != What::ScanStart
        && s.begin.what != (What::ProbeRequest { mhz: 0 })
        && s.steps.is_empty()
    {
        return Some("the beginning of this scan is not in the log".into());
    }
    let all = channels(&s.steps);
    let mut names: Vec<&str> = all.iter().map(|c| c.words.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let found = if next == Some(Phase::ProbingPause) { "; it found nothing to join" } else { "" };
    if names.is_empty() {
        let full = s.dur_ns() >= 1_000 * MS;
        return full.then(|| {
            format!("so long a scan goes over all channels: the target was not in the scan table{found}")
        });
    }
    let passive: Vec<_> = all.iter().filter(|c| c.to_ns - c.from_ns >= PASSIVE_NS).collect();
    let passive_ns: i64 = passive.iter().map(|c| c.to_ns - c.from_ns).sum();
    if names.len() < FULL {
        let n = names.len();
        let known = "only what the supplicant expects was looked at: the target was in the scan table, or the frequencies are configured";
        return Some(format!("{n} channel{}: {known}{found}", if n == 1 { "" } else { "s" }));
    }
    let mut words = format!(
        "a full scan of {} channels: the target was not in the scan table, so the radio looked everywhere",
        names.len()
    );
    if !passive.is_empty() {
        words += &format!(
            "; {} channels are passive, where it may only listen: {}",
            passive.len(),
            milliseconds(passive_ns)
        );
    }
    Some(words + found)
}

fn milliseconds(ns: i64) -> String {
    format!("{} ms", (ns + MS / 2) / MS)
}

const ASKS: [&str; 3] = ["DISCOVER", "REQUEST", "SOLICIT"];
const SEARCHES: [&str; 2] = ["DISCOVER", "SOLICIT"];
const CONFIRMS: [&str; 3] = ["ACK", "NAK", "REPLY"];

fn is_message(words: &str, names: &[&str]) -> bool {
    names.iter().any(|n| words.starts_with(&format!("DHCP {n}")))
}

/// Messages of these names which the client's next message follows, and no answer.
fn unanswered(steps: &[Step], names: &[&str], done: bool) -> usize {
    let is_lost = |i: &usize| {
        let answered = steps.get(i + 1).map_or(done, |next| !is_message(&next.words, &ASKS));
        is_message(&steps[*i].words, names) && !answered
    };
    (0..steps.len()).filter(is_lost).count()
}

/// `next`: what came after it, begun by the answer that ended it, if one did; `ends`: the log ended in it, so that its last message may have had an answer.
fn dhcp(s: &Span, next: Option<&Span>, o: &Open, ends: bool) -> Option<String> {
    let done = matches!(next.map(|n| n.begin.what), Some(What::Dhcp(m)) if m.is_done());
    let mut words = Vec::new();
    let is = is_message;
    // One message is no step, but the phase's beginning.
    let only = [Step { from_ns: s.from_ns, to_ns: s.to_ns, words: s.begin.words() }];
    let steps = if s.steps.is_empty() { &only[..] } else { &s.steps[..] };
    let count = |names: &[&str]| steps.iter().filter(|x| is(&x.words, names)).count();
    let refused = count(&["NAK"]);
    if refused > 0 {
        words.push(
            "the old lease was asked for first and refused (NAK): six messages instead of four".to_owned(),
        );
    }
    // A reply behind which a server is searched gave nothing.
    if steps.windows(3).any(|x| {
        is(&x[0].words, &["CONFIRM"]) && is(&x[1].words, &["REPLY"]) && is(&x[2].words, &["SOLICIT"])
    }) {
        words.push(
            "the old address was asked for first (CONFIRM) and is none of this network: six messages instead of four".to_owned(),
        );
    }
    if count(&["DECLINE"]) > 0 {
        words.push(
            "the client refused the address, as another host has it (DECLINE), and asked for another"
                .to_owned(),
        );
    }
    let answers = count(&["OFFER", "ACK", "NAK", "ADVERTISE", "REPLY"]) + usize::from(done);
    let confirmed = done || count(&CONFIRMS) > 0;
    let offer = steps.iter().position(|x| is(&x.words, &["OFFER", "ADVERTISE"]));
    match unanswered(offer.map_or(&[][..], |i| &steps[i..]), &["REQUEST"], done) {
        n @ 2.. if !confirmed && (n > 2 || !ends) => words.push("an address was offered, and no request for it was confirmed: the server, or another one that was meant, does not answer".to_owned()),
        n @ 1.. if confirmed => words.push(format!(
            "an address was offered, and {n} request{} for it had no answer: the server, or another one that was meant, did not confirm it at first",
            if n == 1 { "" } else { "s" }
        )),
        _ => {}
    }
    let (asked, searched) = (count(&ASKS), count(&SEARCHES));
    if asked > 0 && answers == 0 && (asked > 1 || s.dur_ns() >= 500 * MS && !ends) {
        let messages = if asked == 1 { "message" } else { "messages" };
        words.push(format!(
            "{asked} {messages} of the client, and no answer: no server hears them, or none gives a lease"
        ));
    } else if searched > 1 && unanswered(steps, &SEARCHES, done) > 0 {
        words.push(format!(
            "a server was searched {searched} times: the first answers were lost, or came late"
        ));
    }
    let longest = (0..steps.len())
        .filter(|i| steps[*i].to_ns - steps[*i].from_ns >= 500 * MS && !(ends && i + 1 == steps.len()))
        .max_by_key(|i| steps[*i].to_ns - steps[*i].from_ns);
    // Answers to what was asked before stand behind the one that ended the exchange.
    let soon = |m: &&Mark| m.at_ns >= s.to_ns && m.at_ns - s.to_ns <= 1_000 * MS;
    let confirmations =
        o.marks.iter().filter(soon).filter(|m| matches!(m.what, What::Dhcp(d) if d.is_done())).count();
    let requests = count(&["REQUEST", "RENEW", "REBIND"]);
    if done && requests > 1 && confirmations >= requests {
        words.push(format!(
            "{requests} requests, and the answers to all of them came together: the server, or a relay, was late"
        ));
    } else if let Some(i) = longest.filter(|_| answers > 0) {
        let step = &steps[i];
        let took = milliseconds(step.to_ns - step.from_ns);
        let asks = is(&step.words, &ASKS);
        let again = asks && steps.get(i + 1).is_some_and(|next| is(&next.words, &ASKS));
        words.push(match (asks, again) {
            (true, true) => {
                format!("{} had no answer in {took}, after which the client asked again", step.words)
            }
            (true, false) => format!("after {} the server, or a relay, took {took}", step.words),
            (false, _) => format!("after {} the client took {took}", step.words),
        });
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// The port is open here, and not at the access point, which goes on with the handshake.
fn shut_there(s: &Span, o: &Open) -> Option<String> {
    let again = |m: &&Mark| m.what == What::KeyFrame(3) && (s.from_ns..s.to_ns).contains(&m.at_ns);
    let n = o.marks.iter().filter(again).count();
    (n > 1).then(|| {
        format!("the access point sent message 3 of the handshake {n} times more: it had no answer that it accepts, and until then it lets nothing through")
    })
}

/// The network was there, and nobody used it.
fn unsent(s: &Span, o: &Open) -> Option<String> {
    let first = o.facts.first_sent?;
    let idle_ns = first.min(s.to_ns) - s.from_ns;
    // A request that was lost is repeated sooner.
    let early = o.facts.early_arp.is_some() && s.dur_ns() <= REPEATED_NS;
    let shut = o.marks.iter().any(|m| m.what == What::AdminDown);
    let why = if shut {
        "the interface had been shut, by which the kernel forgets its routes: where nobody sets them again there is no way to other networks"
    } else {
        "the network was there, and nobody asked it for anything"
    };
    (!early && idle_ns >= 300 * MS && idle_ns * 10 >= s.dur_ns() * 9)
        .then(|| format!("nothing was sent for {}: {why}", milliseconds(idle_ns)))
}

fn neighbour(s: &Span, o: &Open, answered: bool) -> Option<String> {
    let asked = s.steps.iter().filter(|x| x.words.starts_with("neighbour asked")).count();
    // The timer of that request is over a second later, and so is what it was asked for.
    let soon = o.link_up.as_ref().is_none_or(|up| s.from_ns - up.at_ns <= 1_100 * MS);
    let lost = o.facts.early_arp.is_some() && !answered && soon;
    if lost && asked < 2 && (300 * MS..=REPEATED_NS).contains(&s.dur_ns()) {
        let early = if o.facts.radio { "the port was authorised" } else { "the carrier was back" };
        return Some(format!(
            "the first request for the neighbour was sent before {early} and lost; it is repeated after 1 s"
        ));
    }
    let before = if lost { ", and before that while the link was down" } else { "" };
    (asked > 1).then(|| format!("the neighbour was asked for {asked} times, a second apart{before}"))
}
