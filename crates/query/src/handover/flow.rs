//! A handover as an application saw it: the gap in what it received, and what was lost or late of it.

use super::pace::STOPPED;
use std::collections::VecDeque;

/// The gap of one flow, by its packets or its application's reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGap {
    /// Which flow.
    pub words: String,
    /// The last received before, and the first after.
    pub last_ns: i64,
    pub first_ns: Option<i64>,
    /// Usual time between two, before the gap.
    pub pace_ns: i64,
    /// Sent by this host in the gap, and of these dropped by its kernel or refused.
    pub sent: u64,
    pub refused: u64,
    /// From the last received on, while the link stood, this host itself sent nothing, though it had: what it did not ask for is not missing.
    pub paused_ns: i64,
    /// Of what the application wanted to send in the gap the kernel took none: how often for want of a way there, and the error that was met most (errno).
    pub failed: u64,
    pub error: i32,
    /// What applications gave to the kernel is in the log: a pause is one.
    pub sends_known: bool,
    /// Within the pause its own address was taken away, without which nothing can be sent: so long after the last received.
    pub unaddressed_ns: Option<i64>,
    /// By the pace, as many should have come in the gap.
    pub missing: u64,
    /// Came close behind each other after the gap: they had been held somewhere.
    pub late: u64,
    /// Received by other interfaces of this host in the time of the handover.
    pub elsewhere: u64,
}

impl FlowGap {
    pub fn gap_ns(&self) -> Option<i64> {
        Some(self.first_ns? - self.last_ns)
    }

    /// What this host sent of it, in order of time: where each that it received was an answer, and the link stood until `stop_ns`, it may have paused.
    pub(super) fn pauses(&mut self, received: &[i64], sent: &[i64], stop_ns: i64) {
        let since = received.first().max(sent.first()).map_or(i64::MAX, |at| at.saturating_sub(self.pace_ns));
        let before = |times: &[i64]| times.iter().filter(|at| (since..=self.last_ns).contains(at)).count();
        let (came, went) = (before(received), before(sent));
        let answers = went >= STEADY && came.abs_diff(went) * 4 <= went;
        let next_ns = sent.iter().find(|at| **at > self.last_ns).copied();
        let end_ns = self.first_ns.unwrap_or(i64::MAX).min(next_ns.unwrap_or(i64::MAX));
        if answers
            && self.pace_ns > 0
            && end_ns < i64::MAX
            && stop_ns.min(end_ns) - self.last_ns > STOPPED * self.pace_ns
        {
            self.paused_ns = end_ns - self.last_ns;
        }
    }

    /// `before`: what is known of the handover before; where this gap began with it, the link had not stood since.
    pub(super) fn without_pause(mut self, before: Option<&FlowGap>) -> FlowGap {
        if let Some(before) = before.filter(|b| b.last_ns == self.last_ns) {
            self.paused_ns = self.paused_ns.min(before.paused_ns);
        }
        let unasked = self.paused_ns / self.pace_ns.max(1);
        self.missing = self.missing.saturating_sub(unasked.unsigned_abs());
        self
    }

    /// The application's loss, in a sentence.
    pub fn sentence(&self) -> String {
        let ms = |ns: i64| format!("{:.1} ms", ns as f64 / 1e6);
        let gap = match self.gap_ns() {
            Some(ns) => format!("nothing received for {}", ms(ns)),
            None => "nothing received any more".to_owned(),
        };
        let mut words = format!("{}, one packet every {}: {gap}", self.words, ms(self.pace_ns));
        if self.missing > 0 {
            let packets = if self.missing == 1 { "packet" } else { "packets" };
            words += &format!(", about {} {packets} missing by that pace", self.missing);
        }
        if self.late > 0 {
            words += &format!(", {} came late and together", self.late);
        }
        if self.elsewhere > 0 {
            words += &format!(", {} came by other interfaces meanwhile", self.elsewhere);
        }
        if self.paused_ns > 0 {
            words += &format!("; this host itself sent nothing in the first {}", ms(self.paused_ns));
            if let Some(ns) = self.unaddressed_ns.filter(|_| !self.sends_known) {
                words += &format!(
                    " (its address was taken away after {}, and from then on sends may have failed: with profile app that is recorded)",
                    ms(ns)
                );
            } else if !self.sends_known {
                words += " (its program paused, or its sends failed: with profile app that is recorded)";
            }
        }
        if self.failed > 0 {
            let sends = if self.failed == 1 { "send" } else { "sends" };
            words +=
                &format!("; {} {sends} failed for want of a way there ({})", self.failed, no_way(self.error));
        }
        if self.sent > 0 {
            let were = if self.sent == 1 { "was" } else { "were" };
            words += &format!("; {} {were} sent meanwhile", self.sent);
            if self.refused > 0 {
                words += &format!(", {} of them dropped by this kernel", self.refused);
            }
        }
        words
    }
}

/// The errors of a send that has no way to the other side: no interface, address or route.
pub(super) fn no_way(error: i32) -> &'static str {
    match error {
        19 => "no such device",
        99 => "no such address here",
        100 => "network is down",
        101 => "network is unreachable",
        112 => "host is down",
        113 => "no route to host",
        _ => "",
    }
}

/// What comes between as many packets is a flow's pace.
const PACE: usize = 256;

/// So many packets that come as they should show that nothing is held any more.
const STEADY: usize = 8;

/// So many show whether packets come close together.
const FEW: usize = 4;

/// Times at which one flow received, from before a handover to after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub times: Vec<i64>,
    /// Of what is farther back the last ones, for its pace: shortly after another handover there is little else than the burst that it held.
    earlier: VecDeque<i64>,
}

/// From one packet to the next, without earlier gaps and what was held in them and came close together: first as it is with them, which shows them.
fn pace(times: &[i64]) -> i64 {
    let (rough, usual) = middle(times);
    let (mut at, mut held) = (0, false);
    let mut steady = vec![0];
    for w in times.windows(2) {
        let step = w[1] - w[0];
        held = step > usual.max(5 * rough) || held && step < rough / 2;
        if !held {
            at += step;
            steady.push(at);
        }
    }
    if steady.len() > STEADY { middle(&steady).0 } else { rough }
}

/// What averages over some packets are for the middle half of the time, in which none counts for more than the usual one, and how long that many usually take. So neither one gap
/// changes it, nor that a busy host has packets in bursts, nor what was held and came in a few seconds.
fn middle(times: &[i64]) -> (i64, i64) {
    let each = (times.len() / 8).clamp(1, 16);
    let ends: Vec<i64> = times.iter().rev().step_by(each).copied().collect();
    let mut durations: Vec<i64> = ends.windows(2).map(|w| w[0] - w[1]).collect();
    durations.sort_unstable();
    let most = durations.get(durations.len() / 2).copied().unwrap_or(0);
    let whole: i64 = durations.iter().map(|d| most.min(*d)).sum();
    let (from, to) = (whole / 4, whole - whole / 4);
    let (mut at, mut ns, mut packets) = (0, 0, 0.0);
    for d in durations.into_iter().filter(|d| *d > 0) {
        let next = at + most.min(d);
        let share = (to.min(next) - from.max(at)).max(0) as f64 / d as f64;
        (at, ns) = (next, ns + (share * d as f64) as i64);
        packets += share * each as f64;
    }
    (if packets > 0.0 { (ns as f64 / packets) as i64 } else { 0 }, most)
}

/// How many more came behind a gap than the pace has: what was held, which comes close together, and on a busy host with holes in between. Known when as many come again as should.
fn held(after: &[i64], pace_ns: i64) -> f64 {
    // The first two, or the first few, as a busy host may have a hole behind the first one.
    let close = |n: usize| after.len() > n && after[n] - after[0] < n as i64 * pace_ns / 2;
    if !close(1) && !close(FEW) {
        return 0.0;
    }
    let more = |i: usize| i as f64 - (after[i] - after[0]) as f64 / pace_ns as f64;
    let steady = |i: &usize| after[i + STEADY] - after[*i] >= STEADY as i64 * pace_ns * 3 / 4;
    let over = (0..after.len().saturating_sub(STEADY)).find(steady);
    let mut then: Vec<f64> = match over {
        Some(i) => (i..=i + STEADY).map(more).collect(),
        // It goes on to the end of what is known.
        None => vec![more(after.len() - 1)],
    };
    then.sort_by(f64::total_cmp);
    then[then.len() / 2].max(0.0)
}

impl Received {
    pub fn earlier(&mut self, at_ns: i64) {
        if self.earlier.len() == PACE {
            self.earlier.pop_front();
        }
        self.earlier.push_back(at_ns);
    }

    /// Before that time, as far as it is kept.
    pub fn before(&self, at_ns: i64) -> usize {
        self.earlier.len() + self.times.iter().filter(|t| **t < at_ns).count()
    }

    /// All that came is known.
    pub fn sort(&mut self) {
        self.times.extend(self.earlier.drain(..));
        self.times.sort_unstable();
    }

    /// The longest time without data that touches `from_ns..=to_ns`.
    pub fn gap(&self, (from_ns, to_ns): (i64, i64), words: String) -> Option<FlowGap> {
        let t = &self.times;
        let touches = |i: &usize| t[i + 1] >= from_ns && t[*i] <= to_ns;
        let i = (0..t.len().saturating_sub(1)).filter(touches).max_by_key(|i| t[i + 1] - t[*i]);
        // It never came again, and that is longer.
        let open_ns = t.last().filter(|at| **at <= to_ns).map_or(0, |at| to_ns - at);
        let i = i.filter(|i| t[i + 1] - t[*i] >= open_ns);
        let (last, first) = match i {
            Some(i) => (i, Some(t[i + 1])),
            None => (t.iter().rposition(|at| *at <= to_ns)?, None),
        };
        let before = &t[last.saturating_sub(PACE)..=last];
        let pace_ns = pace(before);
        let end = first.unwrap_or(to_ns);
        let due = if pace_ns > 0 { (end - t[last]) as f64 / pace_ns as f64 - 1.0 } else { 0.0 };
        let held = i.filter(|_| pace_ns > 0).map_or(0.0, |i| held(&t[i + 1..], pace_ns));
        let missing = if held < 0.5 { due } else { (due - held).round() }.max(0.0) as u64;
        Some(FlowGap {
            words,
            last_ns: t[last],
            first_ns: first,
            pace_ns,
            sent: 0,
            refused: 0,
            failed: 0,
            error: 0,
            sends_known: false,
            unaddressed_ns: None,
            paused_ns: 0,
            missing,
            late: (due.max(0.0) as u64).saturating_sub(missing),
            elsewhere: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// A flow of 200 ms, a gap, and what came behind it; times of the voice flow's own log, ms.
    fn gap(last: i64, after: &[i64], pace: i64) -> FlowGap {
        let mut received = Received::default();
        received.times.extend((0..60).map(|i| (last - i * pace) * MS));
        received.times.extend(after.iter().map(|ms| ms * MS));
        received.sort();
        received.gap(((last + 1) * MS, after[0] * MS), "a flow".into()).unwrap()
    }

    /// As recorded on 6.12: an access point sent the station away and queued its packets for 2.3 s. All of them came, by their numbers, with holes of 67 and 74 ms between.
    #[test]
    fn what_was_held_comes_with_holes_between() {
        let came = [
            2284, 2306, 2345, 2448, 2468, 2497, 2529, 2550, 2646, 2671, 2676, 2696, 2715, 2805, 3028, 3247,
            3424, 3618, 3805, 4053, 4205, 4409,
        ];
        let g = gap(0, &came, 200);
        assert_eq!((g.late, g.missing), (10, 0));
        // The same, and the first six lost.
        assert_eq!(gap(0, &came[6..], 200).missing, 6);
    }

    /// As recorded on 6.1, with a hole of 109 ms behind the first one: 277 to 290 came late, 274 to 276 never, by their numbers.
    #[test]
    fn what_was_held_comes_with_a_hole_behind_the_first() {
        let came = [
            2841, 2949, 2958, 2958, 3102, 3108, 3112, 3116, 3139, 3306, 3377, 3421, 3506, 3583, 3652, 3768,
            3945, 4145, 4340, 4533, 4745, 5083, 5182, 5382, 5589, 5780, 5947, 6193,
        ];
        let g = gap(0, &came, 199);
        assert!((2..=4).contains(&g.missing) && g.late + g.missing == 13, "{g:?}");
    }

    /// What comes unevenly on a busy host, each in its time, is not late: all of the gap is missing.
    #[test]
    fn what_comes_unevenly_is_not_late() {
        let jitter = [0, 45, 12, 60, 30, 5, 48, 22, 40, 15, 33, 8];
        let came: Vec<i64> = (0..12).map(|i| 4_000 + i as i64 * 100 + jitter[i as usize]).collect();
        let g = gap(0, &came, 100);
        assert_eq!((g.late, g.missing), (0, 39));
        // In bursts of three.
        let came: Vec<i64> = (0..12).map(|i| 4_000 + i / 3 * 60 + i % 3).collect();
        let g = gap(0, &came, 20);
        assert!(g.late <= 2 && g.missing >= 197 && g.late + g.missing == 199, "{g:?}");
    }

    /// As recorded on 6.12: 100 packets that had been held came 62 ms apart, and soon after them the next gap began.
    #[test]
    fn what_was_held_is_no_pace() {
        let mut received = Received::default();
        (0..160).for_each(|i| received.earlier((i * 200) * MS));
        received.times.extend((0..63).map(|i| (34_800 + i * 62) * MS));
        received.times.extend((1..=12).map(|i| (38_706 + i * 200) * MS));
        received.times.push(113_506 * MS);
        received.sort();
        let g = received.gap((41_200 * MS, 100_000 * MS), "a flow".into()).unwrap();
        assert_eq!((g.gap_ns(), g.missing), (Some(72_400 * MS), 361));
    }

    #[test]
    fn what_was_not_asked_for_is_not_missing() {
        let sent = |from: i64| {
            (-60..=0)
                .map(|i| i * 200 - 20)
                .chain((from..).step_by(200).take(20))
                .map(|ms| ms * MS)
                .collect::<Vec<i64>>()
        };
        let came: Vec<i64> = (0..20).map(|i| 9_020 + i * 200).collect();
        let received: Vec<i64> =
            (-60..=0).map(|i| i * 200).chain(came.iter().copied()).map(|ms| ms * MS).collect();
        // It paused for 9 s, in which the link was down from 4 s on.
        let mut g = gap(0, &came, 200);
        g.pauses(&received, &sent(9_000), 4_000 * MS);
        // That is so unless the gap began with the handover before, whose link ended then.
        let late = g.clone().without_pause(Some(&gap(0, &came, 200)));
        assert_eq!((late.paused_ns, late.missing), (0, 44));
        let g = g.without_pause(None);
        assert_eq!((g.paused_ns, g.missing), (9_000 * MS, 0));
        // It asked all the time, or stopped with the link, as without an address.
        for (from, stop) in [(180, 4_000), (9_000, 300)] {
            let mut g = gap(0, &came, 200);
            g.pauses(&received, &sent(from), stop * MS);
            let g = g.without_pause(None);
            assert_eq!((g.paused_ns, g.missing), (0, 44));
        }
    }

    /// As recorded on 6.12 with `app` and without: sends without a route are no pause, and where they are not recorded there may have been some.
    #[test]
    fn what_failed_is_no_pause() {
        let came: Vec<i64> = (0..20).map(|i| 12_000 + i * 200).collect();
        let mut g = gap(0, &came, 200);
        (g.paused_ns, g.unaddressed_ns) = (11_800 * MS, Some(80 * MS));
        assert!(g.sentence().contains("sent nothing in the first 11800.0 ms (its address was taken away after 80.0 ms, and from then on sends may have failed"), "{}", g.sentence());
        g.unaddressed_ns = None;
        assert!(g.sentence().contains("(its program paused, or its sends failed"), "{}", g.sentence());
        g.sends_known = true;
        assert!(g.sentence().ends_with("sent nothing in the first 11800.0 ms"), "{}", g.sentence());
        (g.paused_ns, g.failed, g.error) = (0, 58, 101);
        assert!(
            g.sentence().ends_with("; 58 sends failed for want of a way there (network is unreachable)"),
            "{}",
            g.sentence()
        );
    }

    /// Handovers one after the other, in which packets were lost or held, drawn by chance; and bursts.
    #[test]
    fn earlier_gaps_are_no_pace() {
        let mut state = 1u64;
        let mut draw = |n: i64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i64 % n
        };
        let (mut off, all) = (0, 2_000);
        for _ in 0..all {
            let (step, total) = ([20, 100, 200][draw(3) as usize], 20 + draw(238) as usize);
            let (mut now, mut times) = (0, Vec::new());
            while times.len() < total {
                for _ in 0..8 + draw(52) {
                    now += step * (900 + draw(200)) / 1_000;
                    times.push(now * MS);
                }
                let gap = 1_000 + draw(9_000);
                now += gap;
                let held = if draw(2) == 0 { draw((gap / step).min(30) + 1) } else { 0 };
                times.extend((0..held).map(|i| now * MS + i * MS));
                now += held;
            }
            for _ in 0..8 + draw(22) {
                now += step * (900 + draw(200)) / 1_000;
                times.push(now * MS);
            }
            let found = pace(&times[times.len().saturating_sub(PACE)..]) as f64 / (step * MS) as f64;
            off += i32::from((found - 1.0).abs() > 0.1);
        }
        println!("of {all} flows with gaps {off} have a pace that is off by more than a tenth");
        assert!(off * 50 < all, "{off} of {all}");
        for together in [2, 5, 12, 15] {
            let times: Vec<i64> = (0..256).map(|i| i / together * together * 20 * MS).collect();
            let found = pace(&times) as f64 / (20 * MS) as f64;
            assert!((0.75..1.25).contains(&found), "{together} together: {found}");
        }
    }
}
