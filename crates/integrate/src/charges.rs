//! Whom each CPU worked for: the recorder's sums added up over the whole recording, and work for a socket charged to whoever used it.
//!
//! Who uses a socket is known when the recording is over, so it is decided then: those who read it share its work; where nobody read, those who wrote, by bytes; where
//! nobody did either, those who opened it. Work for a socket that nobody used stays the socket's.
//!
//! A stream is shared by the bytes that each read. A datagram has one taker, so datagrams are shared by their number, and what packets there are beyond it (fragments) by bytes.

use crate::error::Result;
use handed::{Part, Rows, tell_parts};
use kpat_model::{
    BlockRequests, BootNs, Busy, CpuPackets, CpuTime, OTHERS, Peer, ProcessLabel, Purpose, SocketUse,
    UseKind, Work,
};
use kpat_store::TableWriter;
use kpat_store::tables::{BlockAccountRow, CpuAccountRow, PeerRow, ProcessLabelRow, WorkRow};
use shares::{Shares, shares_of_datagrams};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) use shares::User;

mod handed;
mod shares;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    ns: u64,
    packets: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, o: Sum) {
        self.ns = self.ns.saturating_add(o.ns);
        self.packets = self.packets.saturating_add(o.packets);
        self.bytes = self.bytes.saturating_add(o.bytes);
    }
}

/// How a process used a socket.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    bytes: u64,
    times: u64,
}

/// What a sum is of, without whom it was for.
type Of = (u16, Busy, Purpose, u32);

/// For what, and for which process, if it is one's.
pub(super) type Served = (Purpose, Option<u32>);

/// Of an account: the first moment that was logged, the last but one and the last.
#[derive(Clone, Copy)]
struct Moments<T> {
    first: T,
    before: T,
    last: T,
}

impl<T: Copy> Moments<T> {
    fn begun(at: T) -> Moments<T> {
        Moments { first: at, before: at, last: at }
    }

    fn goes_on(&mut self, at: T) {
        (self.before, self.last) = (self.last, at);
    }
}

/// Programs that run while a CPU turns to the other set of sums add to the one before or behind; a recording that was cut lacks more.
const APART_NS: u64 = 1_000_000;

#[derive(Default)]
pub(super) struct Charges {
    /// Sums of a CPU since its last moment: those up to that moment, and complete only if another moment follows or the log was closed.
    newest: BTreeMap<u16, Vec<Work>>,
    own: BTreeMap<Of, Sum>,
    /// By socket, too.
    of_sockets: BTreeMap<(u64, Of), Sum>,
    /// What was forwarded, by its way, too.
    of_ways: BTreeMap<(u64, Of), Sum>,
    /// By socket all that was received for it.
    received: BTreeMap<u64, Sum>,
    /// By socket and kind of use: who, and how much.
    uses: BTreeMap<(u64, UseKind), BTreeMap<u32, Use>>,
    /// By CPU and the opening of its account.
    cpus: BTreeMap<(u16, i64), Moments<CpuTime>>,
    /// The same of packets.
    packets: BTreeMap<(u16, i64), Moments<CpuPackets>>,
    /// Requests of disks, by the opening of the accounts.
    requests: BTreeMap<i64, Moments<BlockRequests>>,
    /// Work for a process, or in the name of one, that is known without a socket.
    of_processes: BTreeMap<(u32, Of), Sum>,
    labels: Vec<ProcessLabel>,
    /// Since messages of other hosts, by the number of their ends.
    of_peers: BTreeMap<(u64, Of), Sum>,
    peers: BTreeMap<u64, Peer>,
    /// Parts of what stands in `own`: what was handed from thread to thread, by the client's process or the number of its ends.
    handed: BTreeMap<(u64, Of), Sum>,
}

impl Charges {
    pub fn work(&mut self, cpu: u16, w: &Work) {
        self.newest.entry(cpu).or_default().push(*w);
    }

    /// Nothing more comes. Of a recording that was not `closed` the sums of a CPU's last second may be cut: then it ends a moment before.
    pub fn settle(&mut self, closed: bool) {
        let newest: BTreeMap<u16, i64> = self.cpus.keys().copied().collect();
        for (cpu, opened) in newest.into_iter().filter(|_| !closed) {
            let Some(account) = self.cpus.get_mut(&(cpu, opened)) else { continue };
            let (before, last) = (account.before, account.last);
            let works = self.newest.get(&cpu).into_iter().flatten();
            let whole = works.filter(|w| !w.purpose.is_part());
            let there = whole.fold(0u64, |sum, w| sum.saturating_add(w.ns));
            let unplaced = last.unplaced_ns.saturating_sub(before.unplaced_ns);
            let passed = last.at.0.abs_diff(before.at.0);
            if there.saturating_add(unplaced).saturating_add(APART_NS) >= passed {
                continue;
            }
            account.last = before;
            self.newest.remove(&cpu);
            if let Some(p) = self.packets.get_mut(&(cpu, opened)).filter(|p| p.last.at == last.at) {
                p.last = p.before;
            }
            if let Some(r) = self.requests.get_mut(&opened).filter(|r| r.last.at == last.at) {
                r.last = r.before;
            }
        }
        for (cpu, works) in std::mem::take(&mut self.newest) {
            works.iter().for_each(|w| self.add(cpu, w));
        }
    }

    fn add(&mut self, cpu: u16, w: &Work) {
        let of = (cpu, w.busy, w.purpose, w.victim);
        let more = Sum { ns: w.ns, packets: w.packets, bytes: w.bytes };
        if w.purpose == Purpose::Socket {
            self.received.entry(w.socket).or_default().add(more);
        }
        let sum = match w.purpose {
            Purpose::Socket => self.of_sockets.entry((w.socket, of)).or_default(),
            Purpose::Forward if w.socket != 0 => self.of_ways.entry((w.socket, of)).or_default(),
            Purpose::Drop if w.socket != 0 => self.of_sockets.entry((w.socket, of)).or_default(),
            Purpose::Remote => self.of_peers.entry((w.socket, of)).or_default(),
            p if p.is_part() => self.handed.entry((w.socket, of)).or_default(),
            p if p.is_of_process() => self.of_processes.entry((w.socket as u32, of)).or_default(),
            _ => self.own.entry(of).or_default(),
        };
        sum.add(more);
    }

    /// Is this moment behind the last one up to which a CPU's time is charged? So it is of samples at the end of a recording that was cut.
    pub fn is_behind(&self, cpu: u16, at: BootNs) -> bool {
        let newest = self.cpus.range((cpu, i64::MIN)..=(cpu, i64::MAX)).next_back();
        newest.is_some_and(|(_, m)| at.0 > m.last.at.0.saturating_add(APART_NS as i64))
    }

    pub fn used(&mut self, u: &SocketUse) {
        let sum = self.uses.entry((u.socket, u.how)).or_default().entry(u.process).or_default();
        sum.bytes = sum.bytes.saturating_add(u.bytes);
        sum.times = sum.times.saturating_add(u.times);
    }

    pub fn time(&mut self, cpu: u16, t: &CpuTime) {
        for w in self.newest.remove(&cpu).unwrap_or_default() {
            self.add(cpu, &w);
        }
        self.cpus.entry((cpu, t.opened.0)).or_insert_with(|| Moments::begun(*t)).goes_on(*t);
    }

    pub fn packets(&mut self, cpu: u16, p: &CpuPackets) {
        self.packets.entry((cpu, p.opened.0)).or_insert_with(|| Moments::begun(*p)).goes_on(*p);
    }

    pub fn requests(&mut self, b: &BlockRequests) {
        self.requests.entry(b.opened.0).or_insert_with(|| Moments::begun(*b)).goes_on(*b);
    }

    pub fn label(&mut self, label: ProcessLabel) {
        self.labels.push(label);
    }

    pub fn peer(&mut self, peer: &Peer) {
        self.peers.entry(peer.number).or_insert_with(|| peer.clone());
    }

    /// Those who are charged for a socket.
    pub fn users(&self, socket: u64) -> Vec<User> {
        if socket == u64::from(OTHERS) {
            return vec![User { process: OTHERS, packets: 1, bytes: 1 }];
        }
        let of = |how| self.uses.get(&(socket, how)).filter(|u| !u.is_empty());
        if let Some(takers) = of(UseKind::Take) {
            return shares_of_datagrams(takers, self.received.get(&socket).copied().unwrap_or_default());
        }
        let users = [UseKind::Read, UseKind::Write, UseKind::Open].into_iter().find_map(of);
        let by_bytes = |(process, u): (&u32, &Use)| {
            let weight = u.bytes.max(1);
            User { process: *process, packets: weight, bytes: weight }
        };
        users.into_iter().flatten().map(by_bytes).collect()
    }

    /// Who was served on a CPU in softirqs that received packets upon a process, and how long.
    pub fn served(&self, cpu: u16, busy: Busy, victim: u32) -> BTreeMap<Served, u64> {
        let mut all = BTreeMap::new();
        let of = (cpu, busy, Purpose::Socket, victim);
        for ((socket, _), sum) in self.of_sockets.iter().filter(|((_, o), _)| *o == of) {
            let users = self.users(*socket);
            if users.is_empty() {
                *all.entry((Purpose::Socket, None)).or_default() += sum.ns;
            }
            for (process, part) in Shares::default().of(*sum, &users) {
                *all.entry((Purpose::Socket, Some(process))).or_default() += part.ns;
            }
        }
        for purpose in [Purpose::Forward, Purpose::Drop, Purpose::Unknown, Purpose::Answer] {
            if let Some(sum) = self.own.get(&(cpu, busy, purpose, victim)) {
                all.insert((purpose, None), sum.ns);
            }
        }
        for (purpose, sums) in [(Purpose::Drop, &self.of_sockets), (Purpose::Forward, &self.of_ways)] {
            let of = (cpu, busy, purpose, victim);
            for (_, sum) in sums.iter().filter(|((_, o), _)| *o == of) {
                *all.entry((purpose, None)).or_default() += sum.ns;
            }
        }
        all
    }

    /// What a process did after it took a message: for who sent it, if that one took an answer, which may be known later only; else for itself.
    pub fn since_message(&self, process: u32, sender: u32) -> Served {
        let answered = self.uses.get(&(process.into(), UseKind::Answer));
        if answered.is_some_and(|by| by.contains_key(&sender)) {
            (Purpose::Client, Some(sender))
        } else {
            (Purpose::Itself, Some(process))
        }
    }

    /// The same after a message of another host: for a client there, if it wrote to that socket.
    pub fn since_remote(&self, process: u32, ends: u64) -> Served {
        let wrote = |p: &Peer| self.uses.get(&(p.socket, UseKind::Write));
        let answers = self.peers.get(&ends).and_then(wrote).is_some_and(|by| by.contains_key(&process));
        if answers { (Purpose::Client, None) } else { (Purpose::Itself, Some(process)) }
    }

    /// Parts of what processes did for themselves, and by whose time it was all of them.
    fn parts(&self) -> (Vec<Part>, BTreeMap<Of, u64>) {
        let (mut parts, mut handed) = (Vec::new(), BTreeMap::new());
        for ((client, of), sum) in &self.handed {
            let (for_whom, client) = match of.2 {
                Purpose::Handed | Purpose::HandedRemote => self.part_for(of.3, of.2, *client),
                _ => {
                    *handed.entry(*of).or_default() += sum.ns;
                    continue;
                }
            };
            if for_whom == Purpose::Client {
                parts.push(Part {
                    of: *of,
                    purpose: Purpose::Handed,
                    client,
                    ns: sum.ns,
                    unsure_ns: sum.bytes,
                });
            }
        }
        (parts, handed)
    }

    /// One for each of this host's ends, and for each server that took messages there.
    fn peer_rows(&self) -> Vec<PeerRow> {
        let mut served: BTreeMap<(u64, u32), u64> = BTreeMap::new();
        let handed = self.handed.iter().filter(|((_, of), _)| of.2 == Purpose::HandedRemote);
        for ((ends, (_, _, purpose, victim)), sum) in self.of_peers.iter().chain(handed) {
            if self.part_for(*victim, *purpose, *ends).0 == Purpose::Client {
                *served.entry((*ends, *victim)).or_default() += sum.ns;
            }
        }
        let mut rows = Vec::new();
        for p in self.peers.values() {
            let servers: Vec<(u32, u64)> =
                served.range((p.number, 0)..=(p.number, u32::MAX)).map(|((_, s), ns)| (*s, *ns)).collect();
            let most = self.users(p.socket).into_iter().max_by_key(|u| u.bytes);
            let user = most.map_or(p.process, |u| u.process);
            let text = |t: &String| Some(t.clone()).filter(|t| !t.is_empty());
            let row = |process: u32, served_ns: Option<u64>| PeerRow {
                at_ns: p.at.0,
                socket_id: p.socket as i64,
                process: process as i32,
                proto: if p.datagrams { 17 } else { 6 },
                local_addr: text(&p.local),
                local_port: p.local_port.into(),
                peer_addr: text(&p.peer),
                peer_port: p.peer_port.into(),
                served_ns: served_ns.map(|ns| ns.min(i64::MAX as u64) as i64),
            };
            if servers.is_empty() {
                rows.push(row(user, None));
            }
            rows.extend(servers.into_iter().map(|(process, ns)| row(process, Some(ns))));
        }
        rows
    }

    fn rows(&self) -> Vec<WorkRow> {
        let mut all = Rows::new();
        for (of, sum) in &self.own {
            let for_itself = of.2 == Purpose::Itself && of.3 != 0;
            all.entry((*of, for_itself.then_some(of.3), 0)).or_default().add(*sum);
        }
        for ((way, of), sum) in &self.of_ways {
            all.entry((*of, None, *way)).or_default().add(*sum);
        }
        let (mut at, mut users, mut shares) = (None, Vec::new(), Shares::default());
        for ((socket, of), sum) in &self.of_sockets {
            if at != Some(*socket) {
                (at, users, shares) = (Some(*socket), self.users(*socket), Shares::default());
            }
            if users.is_empty() {
                all.entry((*of, None, 0)).or_default().add(*sum);
                continue;
            }
            for (process, part) in shares.of(*sum, &users) {
                all.entry((*of, Some(process), 0)).or_default().add(part);
            }
        }
        for ((process, of), sum) in &self.of_processes {
            let (cpu, busy, purpose, victim) = *of;
            let (purpose, process) = match purpose {
                Purpose::Asker => self.since_message(victim, *process),
                p => (p, Some(*process)),
            };
            all.entry(((cpu, busy, purpose, victim), process, 0)).or_default().add(*sum);
        }
        for ((ends, of), sum) in &self.of_peers {
            let (cpu, busy, _, victim) = *of;
            let (purpose, process) = self.since_remote(victim, *ends);
            all.entry(((cpu, busy, purpose, victim), process, 0)).or_default().add(*sum);
        }
        let (parts, handed) = self.parts();
        tell_parts(&mut all, &parts, &handed);
        let whole = |n: u64| n.min(i64::MAX as u64) as i64;
        all.into_iter()
            .map(|(((cpu, busy, purpose, victim), beneficiary, way), sum)| WorkRow {
                cpu: cpu.into(),
                busy: busy as i32,
                purpose: purpose as i32,
                victim: (victim != 0).then_some(victim as i32),
                beneficiary: beneficiary.map(|b| b as i32),
                time_ns: whole(sum.ns),
                packets: whole(sum.packets),
                bytes: whole(sum.bytes),
                netns: (way != 0).then_some((way >> 32) as i64),
                in_ifindex: (way != 0).then_some((way >> 16 & 0xffff) as i32),
                out_ifindex: (way != 0).then_some((way & 0xffff) as i32),
            })
            .collect()
    }

    pub fn finish(&self, dir: &Path) -> Result<()> {
        let mut works = TableWriter::<WorkRow>::create(dir)?;
        for row in self.rows() {
            works.push(&row)?;
        }
        works.finish()?;
        let mut accounts = TableWriter::<CpuAccountRow>::create(dir)?;
        for ((cpu, opened), Moments { first, last, .. }) in &self.cpus {
            let grown = |of: fn(&CpuTime) -> u64| of(last).saturating_sub(of(first)) as i64;
            let packets = self.packets.get(&(*cpu, *opened));
            accounts.push(&CpuAccountRow {
                cpu: (*cpu).into(),
                from_ns: first.at.0,
                to_ns: last.at.0,
                unplaced_ns: grown(|t| t.unplaced_ns),
                user_ns: grown(|t| t.user_ns),
                system_ns: grown(|t| t.system_ns),
                idle_ns: grown(|t| t.idle_ns),
                irq_ns: grown(|t| t.irq_ns),
                softirq_ns: grown(|t| t.softirq_ns),
                steal_ns: grown(|t| t.steal_ns),
                packets_counted: packets.map(|m| m.last.counted.saturating_sub(m.first.counted) as i64),
                packets_received: packets
                    .map(|m| (m.last.received as u32).wrapping_sub(m.first.received as u32).into()),
            })?;
        }
        accounts.finish()?;
        let mut requests = TableWriter::<BlockAccountRow>::create(dir)?;
        for Moments { first, last, .. } in self.requests.values() {
            requests.push(&BlockAccountRow {
                from_ns: first.at.0,
                to_ns: last.at.0,
                counted: last.counted.saturating_sub(first.counted) as i64,
                completed: last.completed.saturating_sub(first.completed) as i64,
            })?;
        }
        requests.finish()?;
        let mut peers = TableWriter::<PeerRow>::create(dir)?;
        for row in self.peer_rows() {
            peers.push(&row)?;
        }
        peers.finish()?;
        let mut labels = TableWriter::<ProcessLabelRow>::create(dir)?;
        for l in &self.labels {
            labels.push(&ProcessLabelRow {
                at_ns: l.at.0,
                process: l.process as i32,
                started_ns: (l.started.0 != 0).then_some(l.started.0),
                uid: l.uid.into(),
                cgroup: (l.cgroup != 0).then_some(l.cgroup as i64),
                path: l.path.clone(),
                name: l.name.clone(),
                user: l.user.clone(),
            })?;
        }
        labels.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(works: &mut Charges, socket: u64, victim: u32, ns: u64, packets: u64) {
        let (at, busy, purpose) = (BootNs(1), Busy::Softirq, Purpose::Socket);
        works.work(0, &Work { at, busy, purpose, victim, socket, ns, packets, bytes: packets * 100 });
    }

    fn used(works: &mut Charges, socket: u64, how: UseKind, process: u32, bytes: u64) {
        works.used(&SocketUse { at: BootNs(1), how, socket, process, bytes, times: 1 });
    }

    /// Of each row: victim, who it was for, time, packets.
    fn found(works: &mut Charges) -> Vec<(Option<i32>, Option<i32>, i64, i64)> {
        works.settle(true);
        works.rows().iter().map(|r| (r.victim, r.beneficiary, r.time_ns, r.packets)).collect()
    }

    #[test]
    fn readers_share_a_socket_by_bytes_and_nothing_is_lost() {
        let mut works = Charges::default();
        packet(&mut works, 7, 50, 1000, 10);
        used(&mut works, 7, UseKind::Read, 1, 200);
        used(&mut works, 7, UseKind::Read, 2, 100);
        used(&mut works, 7, UseKind::Write, 3, 9999);
        let rows = found(&mut works);
        assert_eq!(rows, [(Some(50), Some(1), 667, 7), (Some(50), Some(2), 333, 3)]);
    }

    /// One took ten small datagrams, another one two of four fragments each.
    #[test]
    fn a_datagram_is_whose_who_took_it() {
        let mut works = Charges::default();
        let (at, how, socket) = (BootNs(1), UseKind::Take, 7);
        works.used(&SocketUse { at, how, socket, process: 1, bytes: 0, times: 5 });
        works.used(&SocketUse { at, how, socket, process: 1, bytes: 100, times: 5 });
        works.used(&SocketUse { at, how, socket, process: 2, bytes: 8000, times: 2 });
        let (busy, purpose) = (Busy::Softirq, Purpose::Socket);
        works.work(
            0,
            &Work { at, busy, purpose, victim: 50, socket, ns: 1800, packets: 18, bytes: 8100 + 18 * 28 },
        );
        works.settle(true);
        let rows: Vec<_> =
            works.rows().iter().map(|r| (r.beneficiary, r.packets, r.bytes, r.time_ns)).collect();
        assert_eq!(rows, [(Some(1), 10, 382, 1007), (Some(2), 8, 8222, 793)]);
    }

    #[test]
    fn many_small_sums_are_shared_as_their_sum_is() {
        let mut works = Charges::default();
        (1..=300).for_each(|victim| packet(&mut works, 7, 1000 + victim, 1, 1));
        for (process, bytes) in [(1, 50), (2, 30), (3, 20)] {
            used(&mut works, 7, UseKind::Read, process, bytes);
        }
        let rows = found(&mut works);
        let of = |p: i32| rows.iter().filter(|r| r.1 == Some(p)).fold((0, 0), |s, r| (s.0 + r.2, s.1 + r.3));
        assert_eq!([of(1), of(2), of(3)], [(150, 150), (90, 90), (60, 60)]);
    }

    #[test]
    fn who_sends_gets_its_acknowledgements_and_what_nobody_uses_stays_the_sockets() {
        let mut works = Charges::default();
        packet(&mut works, 1, 0, 10, 1);
        used(&mut works, 1, UseKind::Open, 4, 0);
        used(&mut works, 1, UseKind::Write, 5, 1);
        packet(&mut works, 2, 0, 20, 2);
        used(&mut works, 2, UseKind::Open, 6, 0);
        packet(&mut works, 3, 8, 40, 4);
        let rows = found(&mut works);
        assert_eq!(rows, [(None, Some(5), 10, 1), (None, Some(6), 20, 2), (Some(8), None, 40, 4)]);
    }

    #[test]
    fn what_was_done_before_the_first_answer_is_the_clients_of_a_server_and_ones_own_else() {
        let mut works = Charges::default();
        for (victim, ns) in [(5, 10), (6, 20)] {
            let (at, busy) = (BootNs(1), Busy::User);
            let mut add = |purpose, socket| {
                works.work(0, &Work { at, busy, purpose, victim, socket, ns, packets: 0, bytes: 0 });
            };
            add(Purpose::Itself, 0);
            add(Purpose::Asker, 9);
            add(Purpose::Client, 9);
        }
        used(&mut works, 5, UseKind::Answer, 9, 0);
        used(&mut works, 6, UseKind::Answer, 8, 0);
        works.settle(true);
        let rows: Vec<_> =
            works.rows().iter().map(|r| (r.purpose, r.victim, r.beneficiary, r.time_ns)).collect();
        let (own, client) = (Purpose::Itself as i32, Purpose::Client as i32);
        let wanted = [
            (own, Some(5), Some(5), 10),
            (own, Some(6), Some(6), 40),
            (client, Some(5), Some(9), 20),
            (client, Some(6), Some(9), 20),
        ];
        assert_eq!(rows, wanted);
    }

    /// The account of a CPU reaches up to here; the kernel's own says nothing.
    pub(super) fn reaches(at: BootNs) -> CpuTime {
        CpuTime {
            at,
            opened: BootNs(0),
            unplaced_ns: 0,
            user_ns: 0,
            system_ns: 0,
            idle_ns: 0,
            irq_ns: 0,
            softirq_ns: 0,
            steal_ns: 0,
        }
    }

    fn second(works: &mut Charges, cpu: u16, n: i64, ns: &[u64]) {
        let at = BootNs(n * 1_000_000_000);
        works.time(cpu, &reaches(at));
        for ns in ns {
            let (at, busy, purpose) = (BootNs(at.0 + 50_000_000), Busy::User, Purpose::Itself);
            works.work(cpu, &Work { at, busy, purpose, victim: 9, socket: 0, ns: *ns, packets: 0, bytes: 0 });
        }
    }

    /// When the accounts of CPU 0 and 1 end, and what is charged.
    fn cut(closed: bool, newest: [&[u64]; 2]) -> ([i64; 2], i64) {
        let mut works = Charges::default();
        for (cpu, newest) in (0..).zip(newest) {
            second(&mut works, cpu, 1, &[]);
            second(&mut works, cpu, 2, &[400_000_000, 600_000_000]);
            second(&mut works, cpu, 3, newest);
        }
        works.settle(closed);
        let ends = [0, 1].map(|cpu| works.cpus[&(cpu, 0)].last.at.0 / 1_000_000_000);
        (ends, works.rows().iter().map(|r| r.time_ns / 1_000_000).sum())
    }

    #[test]
    fn the_last_second_of_a_recording_that_was_cut_counts_only_if_all_of_it_is_there() {
        let whole: &[u64] = &[1_000_000_000];
        assert_eq!(cut(false, [whole, &[999_900_000]]), ([3, 3], 3999));
        assert_eq!(cut(false, [whole, &[400_000_000]]), ([3, 2], 3000));
        assert_eq!(cut(false, [&[], &[]]), ([2, 2], 2000));
        // What is missing in one that was closed is a loss, and shown as a difference.
        assert_eq!(cut(true, [whole, &[400_000_000]]), ([3, 3], 3400));
    }

    #[test]
    fn sums_of_the_same_are_one() {
        let mut works = Charges::default();
        for ns in [1, 2] {
            works.work(
                3,
                &Work {
                    at: BootNs(ns),
                    busy: Busy::User,
                    purpose: Purpose::Itself,
                    victim: 9,
                    socket: 0,
                    ns: ns as u64,
                    packets: 0,
                    bytes: 0,
                },
            );
        }
        assert_eq!(found(&mut works), [(Some(9), Some(9), 3, 0)]);
    }
}
