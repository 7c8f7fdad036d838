//! A roam that the access point asked for (802.11v, BSS transition management): when it is that, and not the station's own choice.
//!
//! The kernel knows of no such roam: it hands the request to the supplicant, and is told to join elsewhere as always. So what counts is a request of the access point that is left, and
//! that the station accepted it. Where it did not answer, or requests were not recorded, the supplicant's log may say more; else a choice may have been asked for, and its name says so.

use super::machine::Handover;
use super::mark::{Mark, What};
use super::open::{NO_LONGER_VALID, Open};
use super::words::Cause;

/// What wpa_supplicant logs of a request, and when it follows it.
const REQUESTED: &str = "WNM: BSS Transition Management Request";
const FOLLOWED: &str = "WNM: Transition to BSS ";

impl Open {
    /// The station left its access point only to ask the same one anew, as after `wpa_cli reassociate`: the supplicant says farewell for the kernel to take the new request, which names
    /// the access point that it comes from.
    pub(super) fn is_anew(&self) -> bool {
        let f = &self.facts;
        let same = self.from.bssid.is_some() && self.from.bssid == self.to.bssid;
        same && f.again
            && f.unprotected.is_none()
            && !f.beacon_loss
            && f.deauth == Some((true, NO_LONGER_VALID))
    }

    /// A request or the answer to it, as long as the old link stands.
    pub(super) fn requested(&mut self, mark: &Mark) {
        let elsewhere = mark.bssid.is_some() && self.from.bssid.is_some() && mark.bssid != self.from.bssid;
        if self.stop.is_some() || elsewhere {
            return;
        }
        match mark.what {
            What::AskedToGo { .. } => {
                (self.facts.asked, self.facts.agreed) = (Some(mark.clone()), false);
            }
            What::AnswersRequest { status: 0 } => self.facts.agreed = self.facts.asked.is_some(),
            What::AnswersRequest { .. } => self.facts.asked = None,
            _ => {}
        }
    }
}

/// Of what led to a handover: a request that was refused led to none.
pub(super) fn refused(lead: &mut Vec<Mark>, mark: &Mark) {
    if matches!(mark.what, What::AnswersRequest { status } if status != 0) {
        lead.retain(|m| !matches!(m.what, What::AskedToGo { .. }));
    }
}

impl Handover {
    /// What programs logged of it shows that it was asked for.
    pub(super) fn asked_by_log(&mut self) {
        if self.cause != Cause::ChosenOrAsked {
            return;
        }
        let Some(stop) = &self.stop else { return };
        let says = |m: &&Mark, words: &str| {
            m.what == What::Program
                && m.at_ns <= stop.at_ns
                && m.text.as_deref().is_some_and(|t| t.contains(words))
        };
        let asked = self.marks.iter().rfind(|m| says(m, REQUESTED)).cloned();
        let followed = |asked: &Mark| self.marks.iter().any(|m| m.at_ns >= asked.at_ns && says(&m, FOLLOWED));
        if let Some(asked) = asked.filter(followed) {
            (self.cause, self.asked) = (Cause::Asked, Some(asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::Source;
    use super::super::tests::{AP1, AP2, at, before, join, of, run};
    use super::super::{Kind, Machine};
    use super::*;

    const MS: i64 = 1_000_000;

    fn asked(ms: i64) -> Mark {
        of(ms, What::AskedToGo { leaves: false }, AP1)
    }

    fn answer(ms: i64, status: i64) -> Mark {
        of(ms, What::AnswersRequest { status }, AP1)
    }

    fn roam(said: &[Mark]) -> Vec<Mark> {
        let mut all = before(3_000);
        all.extend_from_slice(said);
        all.push(of(3_010, What::PortClosed, AP1));
        all.extend(join(3_060, AP2));
        all.push(of(3_062, What::Deauthenticated { own: true, reason: 3 }, AP1));
        all.push(at(3_063, What::CarrierOff));
        all.push(at(4_000, What::Received));
        all.sort_by_key(|m| m.at_ns);
        all
    }

    #[test]
    fn a_roam_that_was_asked_for_is_no_own_choice() {
        let h = &run(&roam(&[asked(2_800), answer(2_960, 0)]))[0];
        assert_eq!((h.kind, h.cause, h.begin_ns / MS), (Kind::Roam, Cause::Asked, 2_800));
        assert_eq!(h.asked.as_ref().map(|m| m.at_ns / MS), Some(2_800));
        assert!(h.tiles());
        // Whether one that it did not answer was why is not known.
        let h = &run(&roam(&[asked(2_800)]))[0];
        assert_eq!((h.cause, h.asked.is_some()), (Cause::ChosenOrAsked, true));
        // It looked for the place first.
        let scan = [at(2_850, What::ScanStart), at(2_940, What::ScanDone { aborted: false })];
        assert_eq!(
            run(&roam(&[&[asked(2_800)], &scan[..], &[answer(2_960, 0)]].concat()))[0].cause,
            Cause::Asked
        );
    }

    #[test]
    fn what_was_refused_or_is_long_ago_led_to_no_roam() {
        let choice = |said: &[Mark]| {
            let h = run(&roam(said)).remove(0);
            (h.cause, h.asked.is_some())
        };
        assert_eq!(choice(&[asked(2_800), answer(2_900, 7)]), (Cause::Chosen, false));
        // Refused after its scan.
        let scan = [at(2_850, What::ScanStart), at(2_940, What::ScanDone { aborted: false })];
        assert_eq!(
            choice(&[&[asked(2_800)], &scan[..], &[answer(2_960, 7)]].concat()),
            (Cause::Chosen, false)
        );
        assert_eq!(choice(&[asked(-9_000)]), (Cause::Chosen, false));
        assert_eq!(choice(&[of(2_800, What::AskedToGo { leaves: false }, AP2)]), (Cause::Chosen, false));
    }

    /// As recorded of `wpa_cli reassociate` on 6.12: the kernel takes no request to the access point that it is at, and the supplicant leaves that first.
    #[test]
    fn who_joins_the_same_access_point_anew_lost_none() {
        let anew = |reason: i64, again: bool| {
            let mut all = before(0);
            all.push(of(0, What::PortClosed, AP1));
            all.push(of(149, What::Leaves, AP1));
            all.push(at(155, What::CarrierOff));
            all.push(of(268, What::Deauthenticated { own: true, reason }, AP1));
            all.extend(join(342, AP1).into_iter().map(|m| match m.what {
                What::AssocStart { .. } => Mark { what: What::AssocStart { again }, ..m },
                _ => m,
            }));
            all.push(at(2_455, What::Received));
            let h = run(&all).remove(0);
            (h.kind, h.cause)
        };
        assert_eq!(anew(2, true), (Kind::Anew, Cause::Chosen));
        // It left, and came back.
        assert_eq!(anew(3, false), (Kind::Rejoin, Cause::Left { reason: 3 }));
        assert_eq!(anew(2, false), (Kind::Rejoin, Cause::Left { reason: 2 }));
    }

    /// An access point that sends the station away after it asked it has sent it away.
    #[test]
    fn who_is_sent_away_was_not_only_asked() {
        let mut all = before(3_000);
        all.push(asked(2_000));
        all.push(of(3_005, What::Deauthenticated { own: false, reason: 5 }, AP1));
        all.push(at(3_010, What::CarrierOff));
        all.extend(join(3_060, AP2));
        all.push(at(4_000, What::Received));
        assert_eq!(run(&all)[0].cause, Cause::SentAway { reason: 5 });
    }

    #[test]
    fn where_requests_were_not_recorded_a_choice_may_have_been_asked_for() {
        let mut m = Machine::default().without_requests(true);
        roam(&[]).iter().for_each(|x| m.push(x));
        let mut h = m.finish(5_000 * MS).remove(0);
        assert_eq!(h.cause, Cause::ChosenOrAsked);
        let line = |ms: i64, text: &str| Mark {
            text: Some(format!("supplicant.log: {text}").into()),
            ..Mark::new(ms * MS, What::Program, Source::Event(ms))
        };
        h.marks.push(line(2_900, "WNM: BSS Transition Management Request: dialog_token=1 request_mode=0x3"));
        h.asked_by_log();
        assert_eq!(h.cause, Cause::ChosenOrAsked);
        h.marks.push(line(2_990, "w2: WNM: Transition to BSS 02:00:00:00:01:00 based on BSS Transition"));
        h.asked_by_log();
        assert_eq!((h.cause, h.asked.map(|m| m.at_ns / MS)), (Cause::Asked, Some(2_900)));
    }
}
