//! Spans without gap or overlap: each begins where the one before it ended, whatever order marks come in.

use super::mark::Mark;
use super::phase::{Phase, Span, Step};

/// Spans of one handover: a host that finds no network for days scans a million times.
const MOST_SPANS: usize = 2_000;
/// Of one span.
const MOST_STEPS: usize = 256;

#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    done: Vec<Span>,
    now: Option<Span>,
    /// Some were joined.
    pub joined: bool,
}

impl Tiles {
    pub fn begin(phase: Phase, at_ns: i64, mark: &Mark) -> Tiles {
        let now = Some(span(phase, at_ns, mark));
        Tiles { now, ..Tiles::default() }
    }

    pub fn phase(&self) -> Phase {
        self.now.as_ref().map_or(Phase::Unknown, |s| s.phase)
    }

    /// When the span of now began.
    pub fn since_ns(&self) -> i64 {
        self.now.as_ref().map_or(i64::MIN, |s| s.from_ns)
    }

    pub fn enter(&mut self, phase: Phase, mark: &Mark) {
        let Some(now) = &mut self.now else { return };
        let at_ns = mark.at_ns.max(last_of(now));
        let next = span(phase, at_ns, mark);
        let mut over = std::mem::replace(now, next);
        end(&mut over, at_ns);
        self.keep(over);
    }

    fn keep(&mut self, over: Span) {
        if over.dur_ns() == 0 {
            return;
        }
        self.done.push(over);
        if self.done.len() >= MOST_SPANS {
            self.join();
        }
    }

    /// A moment within the span of now.
    pub fn step(&mut self, mark: &Mark, words: String) {
        let Some(now) = &mut self.now else { return };
        let at_ns = mark.at_ns.max(last_of(now));
        if now.steps.len() >= MOST_STEPS {
            return;
        }
        match now.steps.last_mut() {
            Some(last) => last.to_ns = at_ns,
            // What is before the first is the phase's beginning.
            None if at_ns > now.from_ns => {
                let words = now.begin.words();
                now.steps.push(Step { from_ns: now.from_ns, to_ns: at_ns, words });
            }
            None => {}
        }
        now.steps.push(Step { from_ns: at_ns, to_ns: at_ns, words });
    }

    /// The span of now was something else, as it turns out.
    pub fn rename(&mut self, phase: Phase) {
        if let Some(now) = &mut self.now {
            now.phase = phase;
        }
    }

    pub fn finish(mut self, at_ns: i64) -> Vec<Span> {
        if let Some(mut now) = self.now.take() {
            let at_ns = at_ns.max(last_of(&now));
            end(&mut now, at_ns);
            self.keep(now);
        }
        merge(&mut self.done);
        self.done
    }

    /// The older half becomes one span for each run of scans and pauses, or attempts.
    fn join(&mut self) {
        self.joined = true;
        let half = self.done.len() / 2;
        let mut out: Vec<Span> = Vec::with_capacity(self.done.len());
        for (i, s) in self.done.drain(..).enumerate() {
            match out.last_mut() {
                Some(last) if i > 0 && i < half => {
                    // What took longest names the whole.
                    if s.dur_ns() > last.dur_ns() {
                        last.phase = s.phase;
                    }
                    last.to_ns = s.to_ns;
                    last.times += s.times;
                    last.steps.clear();
                }
                _ => out.push(s),
            }
        }
        self.done = out;
    }
}

/// Neighbours of one phase are one.
pub(super) fn merge(spans: &mut Vec<Span>) {
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for s in spans.drain(..) {
        match out.last_mut() {
            Some(last) if last.phase == s.phase && s.phase != Phase::Probing => {
                last.to_ns = s.to_ns;
                last.times += s.times - 1;
                if last.steps.is_empty() {
                    let (from_ns, to_ns, words) = (last.from_ns, s.from_ns, last.begin.words());
                    last.steps.push(Step { from_ns, to_ns, words });
                }
                if s.steps.is_empty() {
                    last.steps.push(Step { from_ns: s.from_ns, to_ns: s.to_ns, words: s.begin.words() });
                } else {
                    last.steps.extend(s.steps);
                }
            }
            _ => out.push(s),
        }
    }
    *spans = out;
}

fn span(phase: Phase, at_ns: i64, mark: &Mark) -> Span {
    Span { phase, from_ns: at_ns, to_ns: at_ns, begin: mark.clone(), steps: Vec::new(), times: 1, why: None }
}

fn last_of(s: &Span) -> i64 {
    s.steps.last().map_or(s.from_ns, |l| l.from_ns).max(s.from_ns)
}

fn end(s: &mut Span, at_ns: i64) {
    s.to_ns = at_ns;
    if let Some(last) = s.steps.last_mut() {
        last.to_ns = at_ns;
    }
}
