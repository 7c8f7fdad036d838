//! One interface: when a handover begins and when it is over. Marks come about in order of time and each once or twice or not at all; memory is
//! one handover's.

use super::addresses::Held;
use super::asked;
use super::lead::{self, SIGN_NS};
use super::mark::{Mark, Source, What, ends_link, is_sign, is_word};
use super::open::{Open, Peer};
use super::pace::Pace;
use super::phase::{Phase, Span};
use super::underway::Early;
use super::why;
use super::words::{Cause, Ended, Kind};

/// Marks before the data stops that may belong to it.
pub(super) const MOST_LEAD: usize = 2_048;
/// All was there, and no data came: the handover was over with what came last.
const QUIET_NS: i64 = 10_000_000_000;
/// A link that stood so long with nothing left to do but to wait for data was there: what ends it is another handover.
const STOOD_NS: i64 = 2_000_000_000;
/// An interface is announced so soon after it was made.
const MADE_NS: i64 = 1_000_000_000;
/// A router answers within half a second, and is asked again after 4 s (RFC 4861): then there is none.
const NO_ROUTER_NS: i64 = 4_600_000_000;
/// A client that has no answer asks again, later and later.
pub(super) const PATIENT_NS: i64 = 130_000_000_000;

/// One handover, of which every moment has a phase.
#[derive(Clone, Debug)]
pub struct Handover {
    /// From 1, in order of `begin_ns` over all interfaces of a log.
    pub number: u32,
    pub netns: Option<i64>,
    pub ifindex: i32,
    /// The interface was removed, and came again with these.
    pub again: Vec<i32>,
    /// Interfaces above it, as VLANs are: their data is its own.
    pub above: Vec<i32>,
    pub interface: String,
    pub kind: Kind,
    pub cause: Cause,
    pub from: Peer,
    pub to: Peer,
    pub begin_ns: i64,
    pub end_ns: i64,
    pub begin: Mark,
    /// What ended it; of [`Ended::Quiet`] and [`Ended::LogEnd`] the last mark that changed something.
    pub end: Mark,
    pub ended: Ended,
    /// The access point's request to go elsewhere (802.11v), where that is why.
    pub asked: Option<Mark>,
    /// The first of link-down and port closed.
    pub stop: Option<Mark>,
    pub link_down: Option<Mark>,
    /// Carrier, and on a radio the authorised port.
    pub link_up: Option<Mark>,
    pub first_auth: Option<Mark>,
    pub attempts: u32,
    pub refusals: Vec<String>,
    /// They tile it.
    pub spans: Vec<Span>,
    pub marks: Vec<Mark>,
    pub marks_left_out: u64,
    /// Some spans stand for several.
    pub joined: bool,
    /// Records that are missing in a time that it has part in: marks may be among them.
    pub lost: u64,
    /// What the application saw of it, where its data is in the log.
    pub flow: Option<super::flow::FlowGap>,
    /// What other hosts recorded of it.
    pub beside: Vec<super::beside::Beside>,
}

impl Handover {
    /// Its interface has, or had, this index.
    pub fn is_of(&self, ifindex: i32) -> bool {
        ifindex == self.ifindex || self.again.contains(&ifindex)
    }

    /// What that interface receives or sends goes through its own.
    pub fn carries(&self, ifindex: i32) -> bool {
        self.is_of(ifindex) || self.above.contains(&ifindex)
    }

    pub fn whole_ns(&self) -> i64 {
        self.end_ns - self.begin_ns
    }

    pub fn first_data(&self) -> Option<&Mark> {
        (self.ended == Ended::Data).then_some(&self.end)
    }

    /// Without a data path: from its end to the first data, or to what came last.
    pub fn outage_ns(&self) -> Option<i64> {
        Some(self.end_ns - self.stop.as_ref()?.at_ns)
    }

    /// As the paper counts: link-down to link-up.
    pub fn link_ns(&self) -> Option<i64> {
        let down = self.link_down.as_ref().or(self.stop.as_ref())?;
        Some((self.link_up.as_ref()?.at_ns - down.at_ns).max(0))
    }

    /// Probing as the paper counts it: from link-down to the first authentication frame, of the attempt that came last: those before it
    /// found nothing that answered. `None` in a roam, whose link goes down after that.
    pub fn search_ns(&self) -> Option<i64> {
        let down = self.link_down.as_ref().or(self.stop.as_ref())?.at_ns;
        let auth = self.first_auth.as_ref()?.at_ns;
        (auth >= down).then_some(auth - down)
    }

    /// What is to be known of a handover during which records were lost.
    pub fn loss_words(&self) -> Option<String> {
        let n = self.lost;
        (n > 0).then(|| {
            let (records, are) = if n == 1 { ("record", "is") } else { ("records", "are") };
            format!("{n} {records} of its time {are} missing: a phase whose beginning is among them is part of the one before it")
        })
    }

    /// A sign of the next one ended it, which was known only later.
    fn ends_before(&mut self, next: &Mark) {
        // Its last phase goes on to the sign; marks whose times go back change nothing.
        let within = |s: &Span| next.at_ns > s.from_ns && next.at_ns < s.to_ns;
        if !self.spans.last().is_some_and(within) {
            return;
        }
        (self.end, self.end_ns) = (next.clone(), next.at_ns);
        if let Some(last) = self.spans.last_mut() {
            last.to_ns = next.at_ns;
            last.steps.retain(|x| x.from_ns < next.at_ns);
            if let Some(step) = last.steps.last_mut() {
                step.to_ns = next.at_ns;
            }
        }
        self.marks.retain(|m| m.at_ns <= next.at_ns);
    }

    pub fn share(&self, ns: i64) -> f64 {
        ns as f64 / self.whole_ns().max(1) as f64
    }

    pub fn of(&self, phase: Phase) -> i64 {
        self.spans.iter().filter(|s| s.phase == phase).map(Span::dur_ns).sum()
    }

    /// Phases begin with the handover, end with it, and leave nothing out.
    pub fn tiles(&self) -> bool {
        let mut at = self.begin_ns;
        for s in &self.spans {
            if s.from_ns != at || s.to_ns < s.from_ns {
                return false;
            }
            at = s.to_ns;
        }
        at == self.end_ns
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Unknown,
    Up,
    Down,
}

/// What finds the handovers of one interface.
#[derive(Debug)]
pub struct Machine {
    link: Link,
    pub(super) lead: Vec<Mark>,
    pace: Pace,
    pub(super) open: Option<Box<Open>>,
    peer: Peer,
    /// An access point or a mesh: it has no handovers, until it joins something itself.
    serves: bool,
    /// Without a link when it was first looked at: there is none to lose.
    found_down: bool,
    /// The log has no data, so that none ends a handover.
    without_data: bool,
    /// It has no access point's requests to go elsewhere.
    without_requests: bool,
    /// As long as its link was not seen to begin.
    early: Early,
    held: Held,
    /// Where the radio listens; 0: not known.
    tuned_mhz: i64,
    /// The radio's stations are known, so ports open when they say.
    stations: bool,
    /// It is no more: what still comes is its radio's.
    gone: bool,
    /// The newest time seen.
    last_ns: i64,
    done: Vec<Handover>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            link: Link::Unknown,
            lead: Vec::new(),
            pace: Pace::default(),
            open: None,
            peer: Peer::default(),
            serves: false,
            found_down: false,
            without_data: false,
            without_requests: false,
            early: Early::default(),
            held: Held::default(),
            tuned_mhz: 0,
            stations: false,
            gone: false,
            last_ns: i64::MIN,
            done: Vec::new(),
        }
    }
}

impl Machine {
    /// Of an interface that had a link when the recording began, or had none.
    pub fn starting(up: bool) -> Machine {
        let link = if up { Link::Up } else { Link::Unknown };
        Machine { link, found_down: !up, ..Machine::default() }
    }

    /// Of a log that has no data: a neighbour that is asked for long after all was there is no part of a handover, but of what is sent then.
    pub fn without_data(self, without_data: bool) -> Machine {
        Machine { without_data, ..self }
    }

    /// Of a log that cannot have an access point's requests to go elsewhere (802.11v).
    pub fn without_requests(self, without_requests: bool) -> Machine {
        Machine { without_requests, ..self }
    }

    /// Of a recording that began then (boot clock).
    pub fn recorded_since(self, began_ns: i64) -> Machine {
        Machine { early: Early::since(began_ns), ..self }
    }

    pub fn push(&mut self, mark: &Mark) {
        if self.gone {
            return;
        }
        self.last_ns = self.last_ns.max(mark.at_ns);
        self.held.see(mark);
        match mark.what {
            What::Gone => {
                self.push(&Mark { what: What::Removed, ..mark.clone() });
                if let Some(open) = &mut self.open {
                    open.facts.gone = true;
                    self.close(mark, Ended::Gone);
                }
                self.gone = true;
                return;
            }
            What::Serves => {
                self.serves = true;
                (self.open, self.link) = (None, Link::Up);
                self.lead.clear();
            }
            What::AuthStart { .. } | What::AssocStart { .. } => self.serves = false,
            What::Channel { mhz } => self.tuned_mhz = mhz,
            What::PortAuthorised | What::PortClosed => self.stations = true,
            What::Station => {
                self.stations = true;
                return;
            }
            What::Found { up } => {
                // Its driver says that it has no carrier when it is made, and it is announced then.
                let made = |o: &Open| {
                    o.begin.what == What::CarrierOff
                        && !o.facts.removed
                        && mark.at_ns - o.begin.at_ns <= MADE_NS
                };
                if !up && self.open.as_deref().is_some_and(made) {
                    (self.open, self.link) = (None, Link::Unknown);
                }
                if self.open.is_none() && self.link == Link::Unknown {
                    self.link = if up { Link::Up } else { Link::Unknown };
                    self.found_down = !up;
                }
                return;
            }
            _ => {}
        }
        if self.open.is_none()
            && let Some(mut open) = self.early.look(mark, self.link == Link::Up)
        {
            (open.tuned_mhz, open.stations) = (self.tuned_mhz, self.stations);
            self.lead.clear();
            (self.open, self.link) = (Some(Box::new(open)), Link::Down);
        }
        if self.serves {
            return;
        }
        if mark.what == What::Received && self.open.as_ref().is_some_and(|o| !o.rest.is_empty()) {
            self.was_over();
        }
        if let Some(open) = &mut self.open {
            open.stations = self.stations;
            if mark.what == What::Sent {
                if open.ready {
                    open.facts.first_sent.get_or_insert(mark.at_ns);
                }
                if open.stop.is_none() {
                    self.pace.sent(mark.at_ns);
                }
                return;
            }
            if mark.what == What::Received {
                open.is_open();
                if open.ready && mark.at_ns >= open.tiles.since_ns() {
                    self.close(mark, Ended::Data);
                } else if open.stop.is_none() {
                    self.pace.push(mark);
                }
                if self.open.is_none() {
                    self.pace.push(mark);
                }
                return;
            }
            let waited = mark.at_ns - open.progress.at_ns;
            let enough = match open.phase() {
                Phase::RouterWait if ends_link(mark.what) => NO_ROUTER_NS,
                Phase::Dhcp | Phase::RouterWait => PATIENT_NS,
                _ if ends_link(mark.what) => STOOD_NS,
                _ if self.without_data && mark.what == (What::ArpRequest { sent: true }) => STOOD_NS,
                _ => QUIET_NS,
            };
            if open.ready && waited > enough || !open.rest.is_empty() {
                if self.rests(mark) {
                    return;
                }
            } else if open.stop.is_none() && waited > SIGN_NS {
                // Nothing came of it.
                self.open = None;
            }
        }
        if self.moved_on(mark) {
            return;
        }
        match &mut self.open {
            Some(open) => {
                open.confirmed = self.held.has(mark);
                open.apply(mark);
                if open.stop.is_none() && !open.facts.first_join && open.link_up.is_some() {
                    open.stop = Some(mark.clone());
                }
            }
            None => self.idle(mark),
        }
    }

    /// A link that was open is ended before any data came: the handover to it is over, and the mark is of the next one. An attempt that fails never had its port open.
    fn moved_on(&mut self, mark: &Mark) -> bool {
        let Some(open) = self.open.as_mut().filter(|_| ends_link(mark.what)) else { return false };
        open.opened_by_state(mark.at_ns, true);
        if !open.is_ended_by(mark) {
            return false;
        }
        let last = open.progress.clone();
        let signs: Vec<Mark> =
            open.marks.iter().filter(|m| m.at_ns > last.at_ns && is_sign(m.what)).cloned().collect();
        let before = self.done.len();
        // What was asked for did not come while there was a link.
        if matches!(open.phase(), Phase::Dhcp | Phase::Address | Phase::DuplicateCheck) {
            self.close(mark, Ended::LinkEnd);
        } else {
            self.close(&last, Ended::Quiet);
        }
        signs.iter().for_each(|m| self.idle(m));
        self.idle(mark);
        if let (Some(next), Some(over)) = (&self.open, self.done[before..].first_mut()) {
            over.ends_before(&next.begin);
        }
        true
    }

    fn idle(&mut self, mark: &Mark) {
        match mark.what {
            What::Received => {
                self.link = Link::Up;
                self.pace.push(mark);
                // It is heard again: its beacons were lost for a while, and the link was not.
                self.lead.retain(|m| !matches!(m.what, What::BeaconLoss | What::Leaves | What::LeftBy));
            }
            What::Sent => self.pace.sent(mark.at_ns),
            what if is_sign(what) => {
                asked::refused(&mut self.lead, mark);
                if self.lead.last().is_some_and(|l| mark.at_ns - l.at_ns > SIGN_NS)
                    || self.lead.len() >= MOST_LEAD
                {
                    self.lead.clear();
                }
                self.lead.push(mark.clone());
            }
            What::CarrierOff
            | What::Disconnected { .. }
            | What::AdminDown
            | What::Removed
            | What::BridgePort(_)
                if self.found_down && self.link == Link::Unknown => {}
            What::CarrierOff
            | What::PortClosed
            | What::Disconnected { .. }
            | What::AdminDown
            | What::Removed
                if self.link != Link::Down =>
            {
                self.begin(mark, false);
            }
            What::BridgePort(state) if state != 3 && self.link != Link::Down => self.begin(mark, false),
            What::AuthStart { .. } | What::AssocStart { .. } | What::AuthReply { .. } => {
                self.begin(mark, self.link != Link::Up);
            }
            What::CarrierOn | What::KeyFrame(1) if self.link == Link::Down => self.begin(mark, true),
            What::PortAuthorised | What::BridgePort(3) | What::CarrierOn => {
                self.link = Link::Up;
                self.peer.bssid = mark.bssid.or(self.peer.bssid);
            }
            _ => {}
        }
    }

    fn begin(&mut self, mark: &Mark, first_join: bool) {
        let mut lead = std::mem::take(&mut self.lead);
        let absent = (!first_join).then(|| self.pace.absent_since(mark.at_ns)).flatten();
        let fell = lead::keep(&mut lead, mark.at_ns, first_join, absent.map(|m| m.at_ns));
        let sign = lead.iter().find(|m| !is_word(m.what));
        let begin = match (absent, sign) {
            (Some(a), Some(s)) => {
                if a.at_ns < s.at_ns {
                    a
                } else {
                    s
                }
            }
            (a, s) => a.or(s).unwrap_or(mark),
        };
        let mut open =
            Open::begin(begin.clone(), if first_join { Peer::default() } else { self.peer.clone() });
        (open.tuned_mhz, open.stations) = (self.tuned_mhz, self.stations);
        (open.facts.first_join, open.facts.requests_unknown) = (first_join, self.without_requests);
        open.data = if first_join { None } else { self.pace.awaited(mark.at_ns).cloned() };
        if first_join {
            // There was nothing to detect.
            open.tiles.rename(Phase::Reaction);
        }
        open.facts.signal_low = fell;
        for m in &lead {
            open.apply(m);
        }
        open.apply(mark);
        self.open = Some(Box::new(open));
        self.link = Link::Down;
    }

    pub(super) fn close(&mut self, end: &Mark, ended: Ended) {
        let Some(mut o) = self.open.take().map(|o| *o) else { return };
        self.link = if o.ready { Link::Up } else { Link::Down };
        self.lead.clear();
        // What was received before it is no beginning of the next one.
        self.pace = Pace::default();
        if !o.facts.own && !o.facts.first_join {
            return;
        }
        let tiles = std::mem::take(&mut o.tiles);
        let joined = tiles.joined;
        let mut spans = tiles.finish(end.at_ns.max(o.begin.at_ns));
        o.begins_with_the_loss(&mut spans);
        let begin_ns = o.begin.at_ns;
        if ended == Ended::Data && o.facts.unseen {
            o.was_there(&mut spans);
        }
        o.settle(&mut spans);
        why::explain(&mut spans, &o, ended != Ended::LogEnd);
        let end_ns = spans.last().map_or(begin_ns, |s| s.to_ns);
        let ready = o.ready;
        let cause = Cause::of(&o, &spans);
        let to = if o.to.bssid.is_some() || !ready { o.to.clone() } else { o.from.clone() };
        let handover = Handover {
            number: 0,
            netns: None,
            ifindex: 0,
            again: Vec::new(),
            above: Vec::new(),
            interface: String::new(),
            kind: Kind::of(&o),
            cause,
            asked: o.facts.asked.filter(|_| matches!(cause, Cause::Asked | Cause::ChosenOrAsked)),
            from: o.from,
            to,
            begin_ns,
            end_ns,
            begin: o.begin,
            end: end.clone(),
            ended,
            stop: o.stop,
            link_down: o.link_down,
            link_up: o.link_up,
            first_auth: o.facts.first_auth,
            attempts: o.facts.attempts,
            refusals: o.facts.refusals,
            spans,
            marks: o.marks,
            marks_left_out: o.marks_left_out,
            joined,
            lost: 0,
            flow: None,
            beside: Vec::new(),
        };
        if ready {
            self.peer = handover.to.clone();
        }
        self.done.push(handover);
    }

    /// Those that are over since the last call.
    pub fn take(&mut self) -> Vec<Handover> {
        std::mem::take(&mut self.done)
    }

    /// The log ends.
    pub fn finish(mut self, last_ns: i64) -> Vec<Handover> {
        if let Some(open) = &mut self.open {
            open.opened_by_state(last_ns, true);
            let mut end = open.progress.clone();
            let waits = matches!(open.phase(), Phase::Dhcp | Phase::RouterWait | Phase::DuplicateCheck);
            let quiet = open.ready && !waits;
            if !quiet {
                // It has no end in the log: it lasted until there at least.
                end = Mark::new(last_ns.max(end.at_ns), What::Other, Source::Unknown);
                end.text = Some("the log ends".into());
            }
            // What came after it is none of it, as where a later mark closes it.
            open.marks.retain(|m| m.at_ns <= end.at_ns);
            if open.stop.is_some() || open.facts.first_join {
                self.close(&end, if quiet { Ended::Quiet } else { Ended::LogEnd });
            }
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AP1, at, before, of, run};
    use super::*;

    /// As recorded on 6.12, on a busy machine: beacons were lost, the access point answered, data went on for six seconds, and then the supplicant was told to leave.
    #[test]
    fn lost_beacons_of_an_access_point_that_is_heard_again_are_no_loss() {
        let mut all = before(0);
        all.push(of(0, What::BeaconLoss, AP1));
        all.extend((0..31).map(|i| at(2_100 + i * 200, What::Received)));
        all.push(of(8_900, What::PortClosed, AP1));
        all.push(at(9_140, What::CarrierOff));
        all.push(of(9_150, What::Deauthenticated { own: true, reason: 1 }, AP1));
        let h = &run(&all)[0];
        assert_eq!((h.cause, h.begin_ns / 1_000_000), (Cause::Left { reason: 1 }, 8_100));
        // Where nothing came after them they are the sign of it.
        all.retain(|m| m.what != What::Received || m.at_ns <= 0);
        let h = &run(&all)[0];
        assert_eq!((h.cause, h.begin_ns), (Cause::Silent, 0));
    }
}
