//! Recorded pairs of frame and packet, and what other clocks than the sniffer's own would have made of them.
//!
//! The files hold what a router's namespace logged and what `tcpdump` saw at the two neighbours of one kernel: one clock, so the
//! relation of every stamp is known to 28 ns. `a`: pings, TCP, idle, one-way UDP. `q`, `q2`: a token bucket in which packets wait up
//! to 340 ms; `q2` ends with 27 packets in it. Second letter: at the client or at the server.

#![allow(dead_code, clippy::unwrap_used, reason = "a test")]

use kpat_integrate::clock::{Pair, Side};

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

/// A capture that `guest.taps` holds.
pub struct Tapped {
    pub name: String,
    pub anchor: (i64, i64, i64),
    pub pairs: Vec<Pair>,
}

impl Tapped {
    /// At one of the router's own devices.
    pub fn is_own(&self) -> bool {
        ["nic-r", "ov-r", "ov-t", "ov-v", "ve-b"].iter().any(|own| self.name.starts_with(own))
    }

    /// Boot less wall.
    pub fn offset(&self) -> i64 {
        self.anchor.0 - self.anchor.1
    }

    fn recorded(&self) -> Recorded {
        let name = Box::leak(format!("guest {}", self.name).into_boxed_str());
        let row = |(frame, p): (usize, &Pair)| {
            let received = p.side == Side::Received;
            let queue = if received || p.tap.0 == 0 { p.at } else { p.tap.0 };
            Row { frame, at: p.at, queue, received, weak: p.weak }
        };
        let pairs = self.pairs.iter().enumerate().map(row).collect();
        Recorded { name, offset: self.offset(), walls: self.pairs.iter().map(|p| p.wall).collect(), pairs }
    }
}

/// Linux 7.2 in an emulated machine, its packets' path probed by functions, and `tcpdump` at the router's devices (emulated cards, virtual
/// links, a vxlan and an ipip tunnel) and at the neighbours': one kernel, one clock.
pub fn tapped() -> Vec<Tapped> {
    let mut bytes: &[u8] = include_bytes!("guest.taps").strip_prefix(b"KPTP1\n").unwrap();
    let count = varint(&mut bytes);
    (0..count)
        .map(|_| {
            let len = varint(&mut bytes) as usize;
            let name = String::from_utf8(bytes[..len].to_vec()).unwrap();
            bytes = &bytes[len..];
            let mut next = || varint(&mut bytes);
            let anchor = (next(), next(), next());
            let (count, mut number, mut wall) = (next(), 0, anchor.1);
            let pairs = (0..count).map(|_| {
                number += next();
                wall += next();
                let at = wall + (anchor.0 - anchor.1) + next();
                let flags = next();
                let tap = if flags & 4 != 0 { (at - next(), at + next()) } else { (0, 0) };
                let side = if flags & 2 != 0 { Side::Received } else { Side::Transmitted };
                Pair { number: number as u64, wall, at, side, weak: flags & 1 != 0, tap }
            });
            let pairs = pairs.collect();
            Tapped { name, anchor, pairs }
        })
        .collect()
}

/// The slow machine's neighbours.
pub fn slow() -> Vec<Recorded> {
    tapped().iter().filter(|t| !t.is_own()).map(Tapped::recorded).collect()
}

/// Made ones, of delays that no recording has: constant, or scattered in both directions by one or another law, packets that come one by one or in
/// bursts, of one direction or the other at random.
pub fn made(seed: u64) -> Vec<Recorded> {
    let names = ["made: constant", "made: exponential", "made: even", "made: heavy", "made: two floors"];
    let make = |(kind, name): (usize, &'static str)| {
        let mut r = Random(seed * 10 + kind as u64);
        let count = 200 + r.below(2_800);
        let (offset, mut wall) = (123_456_789_012, 1_700_000_000_000_000_000);
        let (floors, scales) =
            ([(); 2].map(|()| r.scale(300.0, 30e3)), [(); 2].map(|()| r.scale(300.0, 30e3)));
        let (gap, share, burst) = (r.scale(1e5, 2e7), r.between(0.2, 0.8), r.between(0.0, 0.9));
        let (mut walls, mut pairs) = (Vec::new(), Vec::new());
        for frame in 0..count {
            wall += 1_000 + (r.exponential() * if r.unit() < burst { 5e3 } else { gap }) as i64;
            walls.push(wall);
            let received = r.unit() < share;
            let side = usize::from(received);
            let more = match kind {
                0 => 0.0,
                1 => r.exponential(),
                2 => r.unit(),
                3 => 0.1 * (1.0 - r.unit()).powf(-1.2) - 0.1,
                _ => f64::from(u8::from(r.unit() < 0.7)) * 3.0 + 0.1 * r.exponential(),
            };
            let delay = (floors[side] + more.min(1e4) * scales[side]) as i64;
            let at = wall + offset + if received { delay } else { -delay };
            pairs.push(Row { frame, at, queue: if received { at } else { at - 700 }, received, weak: false });
        }
        Recorded { name, offset, walls, pairs }
    };
    names.into_iter().enumerate().map(make).collect()
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

/// As a file has them whose stamps are of so many ns: the rest is cut off.
pub fn cut(pairs: &[Pair], resolution: i64) -> Vec<Pair> {
    pairs.iter().map(|p| Pair { wall: p.wall - p.wall.rem_euclid(resolution), ..*p }).collect()
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

impl Case {
    /// The shortest window that holds 90 % of the errors of its stamps.
    pub fn scatter(&self) -> f64 {
        let kept = self.error.iter().zip(&self.keep).filter(|e| *e.1);
        let mut errors: Vec<f64> = kept.map(|e| *e.0).collect();
        errors.sort_by(f64::total_cmp);
        let need = (0.9 * errors.len() as f64).ceil().max(1.0) as usize;
        let widths = (0..=errors.len() - need).map(|i| errors[i + need - 1] - errors[i]);
        widths.fold(f64::INFINITY, f64::min) + 0.9 * (self.resolution - 1) as f64
    }
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
    /// What a case's matches leave open if one knew that stamps are exact and how fast the clock runs: half of what the fastest packet in and
    /// the fastest out do, between two settings of the clock; the middle one over the frames. Where all went one way the other is
    /// given `one_way`, as the estimate supposes.
    pub fn limit_of(&self, case: &Case, one_way: f64) -> f64 {
        let mut part = vec![0; self.walls.len()];
        for i in 1..self.walls.len() {
            let apart = (self.walls[i] - self.walls[i - 1]) as f64;
            let set = (case.clock[i] - case.clock[i - 1]).abs() > 100.0 + 1e-3 * apart;
            part[i] = part[i - 1] + usize::from(set);
        }
        let mut least = vec![[f64::INFINITY; 2]; part[part.len() - 1] + 1];
        let given = |r: &&Row| case.keep[r.frame] && case.only.is_none_or(|only| only == r.received);
        let rows: Vec<&Row> = self.pairs.iter().filter(given).collect();
        for r in &rows {
            let d = (r.at - self.walls[r.frame] - self.offset) as f64;
            let side = &mut least[part[r.frame]][usize::from(r.received)];
            *side = side.min(if r.received { d } else { -d });
        }
        let open = |l: &[f64; 2]| (l[0].min(l[1] + one_way) + l[1].min(l[0] + one_way)) / 2.0;
        let mut halves: Vec<f64> = rows.iter().map(|r| open(&least[part[r.frame]])).collect();
        halves.sort_by(f64::total_cmp);
        halves[halves.len() / 2]
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
