//! Recorded pairs of frame and packet, and what other clocks than the sniffer's own would have made of them.
//!
//! The files hold what a router's namespace logged and what `tcpdump` saw at the two neighbours of one kernel: one clock, so the
//! relation of every stamp is known to 28 ns. `a`: pings, TCP, idle, one-way UDP. `q`, `q2`: a token bucket in which packets wait up
//! to 340 ms; `q2` ends with 27 packets in it. Second letter: at the client or at the server.

#![allow(dead_code, clippy::unwrap_used, reason = "a test")]

use kpat_analysis::clock::{Pair, Side};

pub struct Recorded {
    pub name: &'static str,
    /// Boot less wall.
    pub offset: i64,
    pub walls: Vec<i64>,
    pub pairs: Vec<Row>,
}

#[derive(Clone, Copy)]
pub struct Row {
    /// Index of the frame.
    pub frame: usize,
    /// Kernel's edge, boot clock.
    pub at: i64,
    /// Edge of the queue before it; `at` for received ones.
    pub queue: i64,
    pub received: bool,
    pub weak: bool,
}

pub fn all() -> Vec<Recorded> {
    let read = |name, bytes: &[u8]| {
        let mut bytes = bytes.strip_prefix(b"KPCL1\n").unwrap();
        let mut next = || varint(&mut bytes);
        let (offset, count) = (next(), next());
        let mut wall = 0;
        let walls: Vec<i64> = (0..count)
            .map(|_| {
                wall += next();
                wall
            })
            .collect();
        let (count, mut frame) = (next(), 0);
        let pairs = (0..count).map(|_| {
            frame += next();
            let flags = next();
            let at = walls[frame as usize] + offset + next();
            let queue = at - next();
            Row { frame: frame as usize, at, queue, received: flags >> 1 == 1, weak: flags & 1 == 1 }
        });
        let pairs = pairs.collect();
        Recorded { name, offset, walls, pairs }
    };
    vec![
        read("a/c", include_bytes!("ac.pairs")),
        read("a/s", include_bytes!("as.pairs")),
        read("q/c", include_bytes!("qc.pairs")),
        read("q/s", include_bytes!("qs.pairs")),
        read("q2/s", include_bytes!("q2s.pairs")),
    ]
}

fn varint(bytes: &mut &[u8]) -> i64 {
    let (mut v, mut shift) = (0u64, 0);
    loop {
        let b = bytes[0];
        *bytes = &bytes[1..];
        v |= u64::from(b & 127) << shift;
        shift += 7;
        if b < 128 {
            return (v >> 1) as i64 ^ -((v & 1) as i64);
        }
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, a: f64, b: f64) -> f64 {
        a + (b - a) * self.unit()
    }

    pub fn sign(&mut self) -> f64 {
        if self.next() & 1 == 0 { 1.0 } else { -1.0 }
    }

    /// Evenly by size.
    pub fn scale(&mut self, a: f64, b: f64) -> f64 {
        self.between(a.ln(), b.ln()).exp()
    }

    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What another clock makes of a capture.
#[derive(Clone)]
pub struct Case {
    pub group: &'static str,
    pub name: String,
    /// What the clock shows more than the real one, by frame.
    pub clock: Vec<f64>,
    /// Error of each stamp, late is positive.
    pub error: Vec<f64>,
    pub keep: Vec<bool>,
    /// Share of pairs with another packet near.
    pub wrong: f64,
    /// Share of frames that change places with the next.
    pub swap: f64,
    pub only: Option<bool>,
    pub resolution: i64,
    pub seed: u64,
}

/// A case as the estimator gets it.
pub struct Given {
    pub pairs: Vec<Pair>,
    /// Stamps of all frames, by number less 1.
    pub stamps: Vec<i64>,
    /// The clock's true boot less wall of each frame.
    pub truth: Vec<i64>,
    /// True boot time of each frame.
    pub boot: Vec<i64>,
    /// Index of each frame in the recording.
    pub kept: Vec<usize>,
}

impl Recorded {
    /// Half of what the two directions' fastest leave open.
    pub fn limit(&self) -> f64 {
        let delay = |r: &Row| {
            let d = r.at - self.walls[r.frame] - self.offset;
            if r.received { d } else { -d }
        };
        let least = |received| self.pairs.iter().filter(|r| r.received == received).map(delay).min().unwrap();
        (least(true) + least(false)) as f64 / 2.0
    }

    pub fn apply(&self, case: &Case) -> Given {
        let mut random = Random(case.seed ^ 0x5eed);
        let clock = |i: usize| self.walls[i] + case.clock[i].round() as i64;
        let mut side = vec![None; self.walls.len()];
        self.pairs.iter().for_each(|r| side[r.frame] = Some(r.received));
        let kept: Vec<usize> = (0..self.walls.len())
            .filter(|i| case.keep[*i] && case.only.is_none_or(|only| side[*i] == Some(only)))
            .collect();
        let mut place = vec![None; self.walls.len()];
        kept.iter().enumerate().for_each(|(j, i)| place[*i] = Some(j));
        let stamps: Vec<i64> = kept
            .iter()
            .map(|i| {
                let stamp = clock(*i) + case.error[*i].round() as i64;
                stamp - stamp.rem_euclid(case.resolution.max(1))
            })
            .collect();
        let rows: Vec<&Row> = self
            .pairs
            .iter()
            .filter(|r| place[r.frame].is_some() && case.only.is_none_or(|only| r.received == only))
            .collect();
        let mut pairs: Vec<Pair> = Vec::new();
        for (k, r) in rows.iter().enumerate() {
            let j = place[r.frame].unwrap();
            let mut at = r.at;
            if case.wrong > 0.0 && rows.len() > 10 && random.unit() < case.wrong {
                let other = (k + random.below(61)).saturating_sub(30).min(rows.len() - 1);
                at = rows[other].at;
            }
            let side = if r.received { Side::Received } else { Side::Transmitted };
            pairs.push(Pair {
                number: j as u64 + 1,
                wall: stamps[j],
                at,
                side,
                weak: r.weak,
                tap: (at - (r.at - r.queue), at),
            });
        }
        for k in 1..pairs.len() {
            if case.swap > 0.0 && random.unit() < case.swap {
                let (a, b) = (pairs[k - 1].number, pairs[k].number);
                (pairs[k - 1].number, pairs[k].number) = (b, a);
            }
        }
        let boot: Vec<i64> = kept.iter().map(|i| self.walls[*i] + self.offset).collect();
        let truth = kept.iter().map(|i| self.walls[*i] + self.offset - clock(*i)).collect();
        Given { pairs, stamps, truth, boot, kept }
    }
}
