//! The figures of the router study of 2009, to be set beside ours. They are its authors', from one machine with Intel
//! e100 cards and 56-byte ICMP echo requests; where the study names two numbers for one phase, both stand here.

use super::phase::Phase;

/// What the study says a packet takes in all.
pub const TOTAL_NS: i64 = 29_120;

/// Share of a phase in percent; a second number where the study gives another one elsewhere.
pub struct StudyShare {
    pub phase: Phase,
    pub percent: f64,
    pub elsewhere: Option<f64>,
}

const fn share(phase: Phase, percent: f64, elsewhere: Option<f64>) -> StudyShare {
    StudyShare { phase, percent, elsewhere }
}

pub const SHARES: [StudyShare; 6] = [
    share(Phase::DmaRx, 3.0, None),
    share(Phase::LinkRx, 37.0, None),
    share(Phase::NetworkRx, 25.0, None),
    share(Phase::NetworkTx, 5.0, Some(14.0)),
    share(Phase::LinkTx, 27.0, Some(18.0)),
    share(Phase::DmaTx, 3.0, None),
];

/// What has to be said of them.
pub const REMARK: &str = "the study's own numbers disagree: link tx is 27 % in one place and 18 % in another, network \
                          tx 5 % and 14 %. Either pair adds up to 100 % with the rest, so 9 % moves across the boundary \
                          between the two";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_add_up() {
        let sum = |f: &dyn Fn(&StudyShare) -> f64| SHARES.iter().map(f).sum::<f64>();
        assert_eq!(sum(&|s| s.percent), 100.0);
        assert_eq!(sum(&|s| s.elsewhere.unwrap_or(s.percent)), 100.0);
    }
}
