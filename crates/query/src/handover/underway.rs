//! A join that had begun when the recording began: its first part is not in the log, and its end shows that it was there.
//!
//! A station's port is opened once in a link's life. Where it is opened, and nothing before shows that this link began in the log, the host was without a network from the log's beginning
//! on. Keys alone show nothing: they are made anew while data flows. Nor does a port alone: an access point's stations have ports, too, and so have others that a station talks to directly.

use super::machine::Handover;
use super::mark::{Mark, Source, What};
use super::open::{Open, Peer, SENT};
use super::phase::Phase;
use super::words::Kind;

/// What came before it, at most.
const MOST: usize = 256;
/// What is said of a join so soon after the recording began is of one that had begun before.
const SOON_NS: i64 = 10_000_000_000;
/// The operational state goes up with the port, and may be announced after it.
const OPENED_NS: i64 = 1_000_000_000;

/// What is known of an interface whose link was not seen to begin.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// When the recording began; `None`: not known, and nothing is concluded.
    began_ns: Option<i64>,
    /// Its state was seen.
    known: bool,
    /// Keys, carriers and answers so far.
    marks: Vec<Mark>,
    /// Something that only a station has to do with.
    station: bool,
    port: Option<Mark>,
}

impl Early {
    pub fn since(began_ns: i64) -> Early {
        Early { began_ns: Some(began_ns), ..Early::default() }
    }

    /// The next mark of an interface of which nothing goes on; `up`: it had a link by all that is known. A handover whose beginning is not in the log, if it shows one.
    pub fn look(&mut self, mark: &Mark, up: bool) -> Option<Open> {
        let began_ns = self.began_ns.filter(|_| !self.known)?;
        let soon = mark.at_ns - began_ns <= SOON_NS;
        match mark.what {
            What::AuthReply { .. } | What::AssocStart { .. } if soon && !up => {
                return Some(self.open(mark, began_ns, false));
            }
            What::AssocReply { status: 0 } => self.station = true,
            What::KeyFrame(n @ 1..=4) => self.station |= (mark.text.as_deref() == Some(SENT)) == (n % 2 == 0),
            What::OperState(6) if self.port.as_ref().is_some_and(|p| mark.at_ns - p.at_ns <= OPENED_NS) => {
                let port = self.port.take()?;
                return Some(self.open(&port, began_ns, true));
            }
            What::OperState(6) => self.station = true,
            What::PortAuthorised if self.station => return Some(self.open(mark, began_ns, true)),
            What::PortAuthorised => self.port = Some(mark.clone()),
            // A station answers, and is asked.
            What::Eap { sent, code, .. } => self.station |= sent == matches!(code, 0 | 2),
            What::KeyFrame(_) | What::KeyAdded { .. } | What::CarrierOn => {}
            What::Received
            | What::PortClosed
            | What::AuthStart { .. }
            | What::AuthReply { .. }
            | What::AssocStart { .. }
            | What::Deauthenticated { .. }
            | What::Disconnected { .. }
            | What::CarrierOff
            | What::AdminDown
            | What::Removed
            | What::Serves
            | What::BridgePort(_)
            | What::Found { .. } => {
                self.known = true;
                self.marks.clear();
                return None;
            }
            _ => return None,
        }
        if self.marks.len() < MOST {
            self.marks.push(mark.clone());
        }
        None
    }

    /// `joined`: it was associated when the recording began, or is by what came since.
    fn open(&mut self, mark: &Mark, began_ns: i64, joined: bool) -> Open {
        self.known = true;
        let marks = std::mem::take(&mut self.marks);
        let at_ns = marks.first().map_or(mark.at_ns, |m| m.at_ns).min(began_ns);
        let mut begin = Mark::new(at_ns, What::Other, Source::Unknown);
        begin.text = Some("the recording begins".into());
        let mut open = Open::begin(begin, Peer::default());
        (open.facts.first_join, open.facts.underway, open.facts.own, open.facts.radio) =
            (true, true, true, true);
        open.tiles.rename(Phase::Unknown);
        open.joined = joined;
        if joined {
            open.to.bssid = mark.bssid;
        }
        marks.iter().for_each(|m| open.apply(m));
        // How long it has gone on says nothing against it.
        open.progress = mark.clone();
        open
    }
}

impl Handover {
    /// What is to be known of its beginning, if that is not in the log.
    pub fn begin_words(&self) -> Option<&'static str> {
        (self.kind == Kind::Underway).then_some(
            "it had begun before the recording: how long before, and what the host had then, is not in it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AP1, AP2, at, join, of};
    use super::super::{Cause, Ended, Machine};
    use super::*;

    const MS: i64 = 1_000_000;

    /// A recording that begins at 0 of a join that began at `from`.
    fn cut(from: i64, up: bool) -> Vec<Handover> {
        let marks: Vec<Mark> =
            [join(from, AP2), vec![at(from + 360, What::OperState(6)), at(from + 700, What::Received)]]
                .concat();
        let mut marks: Vec<Mark> = marks.into_iter().filter(|m| m.at_ns >= 0).collect();
        marks.sort_by_key(|m| m.at_ns);
        let mut m = Machine::starting(up).recorded_since(0);
        marks.iter().for_each(|x| m.push(x));
        m.finish(2_000 * MS)
    }

    #[test]
    fn a_join_that_had_begun_is_shown_without_its_beginning() {
        for (from, first) in
            [(-100, Phase::KeyExchange), (-210, Phase::KeyExchange), (-255, Phase::KeyInstall)]
        {
            let found = cut(from, true);
            assert_eq!(found.len(), 1, "{from}: {found:#?}");
            let h = &found[0];
            assert!(h.tiles() && h.begin_words().is_some());
            assert_eq!((h.kind, h.cause, h.ended), (Kind::Underway, Cause::Unknown, Ended::Data));
            assert_eq!((h.begin_ns, h.link_up.as_ref().map(|m| m.at_ns / MS)), (0, Some(from + 368)));
            assert_eq!((h.spans[0].phase, h.spans[1].phase), (Phase::Unknown, first), "{from}");
            assert_eq!(h.to.bssid, Some(AP2));
        }
        // The recording began behind the keys, or before them.
        assert_eq!((cut(-340, true)[0].kind, cut(-340, true).len()), (Kind::Underway, 1));
        for from in [-10, -30, -60] {
            let h = &cut(from, false)[0];
            assert_eq!(
                (h.kind, h.link_up.as_ref().map(|m| m.at_ns / MS)),
                (Kind::Underway, Some(from + 368)),
                "{from}"
            );
        }
        // It began with the join, or after it.
        assert_eq!(cut(0, false)[0].kind, Kind::Join);
        assert!(cut(-400, true).is_empty());
    }

    #[test]
    fn keys_that_are_made_anew_and_ports_of_others_are_no_join() {
        let none = |marks: &[Mark]| {
            let mut m = Machine::starting(true).recorded_since(0);
            marks.iter().for_each(|x| m.push(x));
            assert!(m.finish(9_000 * MS).is_empty());
        };
        let sent = |ms: i64, n: i64| Mark { text: Some(SENT.into()), ..at(ms, What::KeyFrame(n)) };
        let anew = [
            at(100, What::KeyFrame(1)),
            sent(120, 2),
            at(140, What::KeyFrame(3)),
            sent(160, 4),
            at(180, What::KeyAdded { pairwise: true }),
        ];
        none(&anew);
        // Of an access point, whose own messages are the first and the third.
        let port = of(300, What::PortAuthorised, AP1);
        none(&[
            sent(100, 1),
            at(120, What::KeyFrame(2)),
            sent(140, 3),
            at(160, What::KeyFrame(4)),
            at(180, What::KeyAdded { pairwise: true }),
            port.clone(),
        ]);
        none(std::slice::from_ref(&port));
        // Data was received before: there was a link.
        none(&[&[at(50, What::Received)], &anew[..], &[port]].concat());
    }

    /// Until then a silent access point, a scan, and a handshake whose first message came twice.
    #[test]
    fn what_the_end_of_a_recording_cut_off_did_not_fail() {
        let mut all = super::super::tests::before(0);
        all.push(of(1_018, What::BeaconLoss, AP1));
        all.push(at(1_021, What::CarrierOff));
        all.push(at(1_448, What::ScanStart));
        all.extend((0..3).map(|i| at(1_450 + i * 100, What::Channel { mhz: 2_412 + i * 5 })));
        all.push(at(2_500, What::ScanDone { aborted: false }));
        all.extend(join(2_600, AP2).into_iter().take(6));
        all.push(at(3_800, What::KeyFrame(1)));
        let until = |ms: i64| {
            let mut m = Machine::default();
            all.iter().filter(|x| x.at_ns <= ms * MS).for_each(|x| m.push(x));
            let h = m.finish(ms * MS).remove(0);
            let last = h.spans.last().cloned();
            (
                h.kind,
                h.ended,
                last.map(|s| (s.phase, s.why.unwrap_or_default())).unwrap_or((Phase::Unknown, String::new())),
            )
        };
        let scan = until(2_000);
        assert_eq!((scan.0, scan.1, scan.2.0), (Kind::Unfinished, Ended::LogEnd, Phase::Probing));
        assert_eq!(
            scan.2.1,
            "the recording ends here: the scan had come to 3 channels, and what it would have found is not known"
        );
        let keys = until(3_900);
        assert_eq!((keys.0, keys.1, keys.2.0), (Kind::Unfinished, Ended::LogEnd, Phase::KeyExchange));
        assert!(
            keys.2.1.ends_with(
                "the recording ends here: whether the handshake would have come to its end is not known"
            ),
            "{}",
            keys.2.1
        );
        assert!(!keys.2.1.contains("wrong passphrase"), "{}", keys.2.1);
    }
}
