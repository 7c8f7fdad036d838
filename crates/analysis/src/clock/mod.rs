//! Two clocks that saw the same packets, related: DUT boot time as a line over the sniffer's wall time, with a bound.
//!
//! A frame that the DUT received was on the wire no later than the kernel knew it; one that it transmitted no earlier than
//! the kernel gave it away. Each match so bounds the line from one side, and the true line lies between the two hulls
//! ([`hull`]). Where the sniffer ran on the DUT itself both taps lie within the packet's life, and each match bounds the
//! line from both sides. Which of the two it was is tried, not asked for: the wrong one contradicts itself.
//!
//! One line per stretch of time: where no line agrees with all matches the clock was set or slewed ([`pieces`]).

pub(crate) mod evidence;
pub(crate) mod fit;
pub(crate) mod hull;
pub(crate) mod pieces;
pub(crate) mod sample;
pub(crate) mod vote;

/// boot = wall + offset + drift * (wall - origin)
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    pub origin: i64,
    pub offset: i64,
    pub drift: f64,
}

impl Line {
    #[inline]
    pub fn boot(&self, wall: i64) -> i64 {
        let since = wall.wrapping_sub(self.origin);
        wall.wrapping_add(self.offset).wrapping_add((self.drift * since as f64) as i64)
    }
}
