//! How a socket's work is divided among those who use it: weights, and whole numbers by weight of which nothing is lost.

use super::{Sum, Use};
use std::collections::BTreeMap;

/// One who is charged for a socket, with what weight; none is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub process: u32,
    /// Of packets and their time.
    pub packets: u64,
    pub bytes: u64,
}

/// Whole numbers of which one is this part of a packet or byte.
const PARTS: u128 = 1 << 10;

/// Each taker has as many packets as it took datagrams; those beyond, parts of large ones, are shared by bytes. Bytes beyond what was taken are packets' headers.
pub(super) fn shares_of_datagrams(takers: &BTreeMap<u32, Use>, received: Sum) -> Vec<User> {
    let sum = |of: fn(&Use) -> u64| takers.values().map(|u| u128::from(of(u))).sum::<u128>();
    let (times, bytes) = (sum(|u| u.times), sum(|u| u.bytes));
    let beyond = |received: u64, took: u128| u128::from(received).saturating_sub(took) * PARTS;
    let weight = |n: u128| u64::try_from(n).unwrap_or(u64::MAX).max(1);
    let packets = |u: &Use| {
        let parts = beyond(received.packets, times) * u128::from(u.bytes) / bytes.max(1);
        u128::from(u.times) * PARTS + parts
    };
    let all: u128 = takers.values().map(packets).sum();
    let headers = |u: &Use| beyond(received.bytes, bytes) * packets(u) / all.max(1);
    let user = |(process, u): (&u32, &Use)| User {
        process: *process,
        packets: weight(packets(u)),
        bytes: weight(u128::from(u.bytes) * PARTS + headers(u)),
    };
    takers.iter().map(user).collect()
}

/// Divides what comes by weight, in whole numbers: what is left over each time goes to whom most is missing of all that came, so a great many small sums are
/// divided as their sum is.
#[derive(Default)]
struct Dealer {
    came: u64,
    given: Vec<u64>,
}

impl Dealer {
    fn deal(&mut self, n: u64, weights: &[u64]) -> Vec<u64> {
        let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
        self.came = self.came.saturating_add(n);
        self.given.resize(weights.len(), 0);
        let part = |weight: u64| (u128::from(n) * u128::from(weight) / total.max(1)) as u64;
        let mut parts: Vec<u64> = weights.iter().map(|w| part(*w)).collect();
        let left = n - parts.iter().sum::<u64>();
        if left > 0 {
            // Of what each has too little, in parts of the whole weight.
            let missing = |i: &usize| {
                let has = u128::from(self.given[*i]) + u128::from(parts[*i]);
                (u128::from(weights[*i]) * u128::from(self.came)) as i128 - (has * total) as i128
            };
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by_cached_key(|i| std::cmp::Reverse(missing(i)));
            order.iter().take(left as usize).for_each(|i| parts[*i] += 1);
        }
        self.given.iter_mut().zip(&parts).for_each(|(g, p)| *g = g.saturating_add(*p));
        parts
    }
}

/// A socket's work, divided among those who use it.
#[derive(Default)]
pub(super) struct Shares {
    ns: Dealer,
    packets: Dealer,
    bytes: Dealer,
}

impl Shares {
    pub(super) fn of(&mut self, sum: Sum, users: &[User]) -> Vec<(u32, Sum)> {
        let weights = |of: fn(&User) -> u64| users.iter().map(of).collect::<Vec<u64>>();
        let (by_packets, by_bytes) = (weights(|u| u.packets), weights(|u| u.bytes));
        let ns = self.ns.deal(sum.ns, &by_packets);
        let packets = self.packets.deal(sum.packets, &by_packets);
        let bytes = self.bytes.deal(sum.bytes, &by_bytes);
        let part = |i: usize| Sum { ns: ns[i], packets: packets[i], bytes: bytes[i] };
        users.iter().enumerate().map(|(i, u)| (u.process, part(i))).collect()
    }
}
