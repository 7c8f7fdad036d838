//! What was handed from one thread of a server to another: the recorder counts it with the process itself, and beside it says for which client parts of it were. Here these parts are taken
//! out, so that each nanosecond stands once.
//!
//! A part is known when the answer is sent, which may be on another CPU than that of the time that it is a part of. So what a CPU has not enough of is taken from the others' time of the
//! same process: the sums of a process are exact, and of each CPU what its time adds up to.

use super::{Charges, Of, Served, Sum};
use kpat_model::{Purpose, UseKind};
use std::collections::BTreeMap;

/// By what it is, the process that is charged or is the client, and the way of what is forwarded.
pub(super) type Rows = BTreeMap<(Of, Option<u32>, u64), Sum>;

/// Of what (its purpose does not count), to which purpose, for whom, and how much.
pub(super) struct Part {
    pub of: Of,
    pub purpose: Purpose,
    pub client: Option<u32>,
    pub ns: u64,
    /// Of these it is not sure.
    pub unsure_ns: u64,
}

impl Charges {
    /// What was handed to a process, or done since a message of another host: also of a process that was made for the client by who answers it.
    pub(super) fn part_for(&self, process: u32, purpose: Purpose, client: u64) -> Served {
        let made = UseKind::Made;
        let makers = self.uses.get(&(process.into(), made)).into_iter().flat_map(|m| m.keys().copied());
        let mut served = std::iter::once(process).chain(makers).map(|server| match purpose {
            Purpose::Handed => self.since_message(server, client as u32),
            _ => self.since_remote(server, client),
        });
        served.find(|s| s.0 == Purpose::Client).unwrap_or((Purpose::Itself, Some(process)))
    }
}

/// Takes parts out of what processes did for themselves. `handed`: all that was handed; what is no part for a client is told apart, too.
pub(super) fn tell_parts(all: &mut Rows, parts: &[Part], handed: &BTreeMap<Of, u64>) {
    let mut left: BTreeMap<_, u64> = BTreeMap::new();
    for ((_, busy, _, victim), ns) in handed {
        *left.entry((*busy, *victim)).or_default() += ns;
    }
    for part in parts {
        let (_, busy, _, victim) = part.of;
        let to = (part.purpose, part.client);
        let taken = take(all, part.of, part.ns, to);
        if let Some(sum) = all.get_mut(&((part.of.0, busy, to.0, victim), to.1, 0)) {
            sum.bytes += part.unsure_ns.min(taken);
        }
        if let Some(left) = left.get_mut(&(busy, victim)) {
            *left = left.saturating_sub(taken);
        }
    }
    for (of, ns) in handed {
        let Some(left) = left.get_mut(&(of.1, of.3)) else { continue };
        *left -= take(all, *of, (*ns).min(*left), (Purpose::HandedOn, Some(of.3)));
    }
}

/// How much was there to take.
fn take(all: &mut Rows, of: Of, ns: u64, to: (Purpose, Option<u32>)) -> u64 {
    let (cpu, busy, _, victim) = of;
    let is_own = |((_, b, p, v), who, _): &(Of, Option<u32>, u64)| {
        *b == busy && *p == Purpose::Itself && *v == victim && *who == Some(victim)
    };
    let others = all.keys().filter(|k| is_own(k) && k.0.0 != cpu).map(|k| k.0.0).collect::<Vec<_>>();
    let mut left = ns;
    for cpu in std::iter::once(cpu).chain(others) {
        let from = ((cpu, busy, Purpose::Itself, victim), Some(victim), 0);
        let Some(own) = all.get_mut(&from) else { continue };
        let taken = own.ns.min(left);
        own.ns -= taken;
        left -= taken;
        if taken > 0 {
            all.entry(((cpu, busy, to.0, victim), to.1, 0)).or_default().ns += taken;
        }
        if left == 0 {
            break;
        }
    }
    ns - left
}

#[cfg(test)]
mod tests {
    use super::super::tests::reaches;
    use super::*;
    use kpat_model::{BootNs, Busy, SocketUse, Work};

    const SERVER: u32 = 7;

    fn own(cpu: u16, busy: Busy) -> Of {
        (cpu, busy, Purpose::Itself, SERVER)
    }

    fn rows(all: &Rows) -> Vec<(u16, Purpose, Option<u32>, u64)> {
        all.iter().map(|(((cpu, _, purpose, _), who, _), sum)| (*cpu, *purpose, *who, sum.ns)).collect()
    }

    fn world() -> Rows {
        let cell = |cpu, ns| ((own(cpu, Busy::User), Some(SERVER), 0), Sum { ns, packets: 3, bytes: 0 });
        BTreeMap::from([cell(0, 100), cell(1, 50)])
    }

    fn part(cpu: u16, client: Option<u32>, ns: u64) -> Part {
        Part { of: own(cpu, Busy::User), purpose: Purpose::Handed, client, ns, unsure_ns: ns / 2 }
    }

    #[test]
    fn parts_are_taken_out_and_nothing_is_lost_or_counted_twice() {
        let mut all = world();
        let handed = BTreeMap::from([(own(0, Busy::User), 70), (own(1, Busy::User), 40)]);
        tell_parts(&mut all, &[part(0, Some(20), 60), part(1, None, 30)], &handed);
        assert_eq!(
            rows(&all),
            [
                (0, Purpose::Itself, Some(SERVER), 20),
                (0, Purpose::Handed, Some(20), 60),
                (0, Purpose::HandedOn, Some(SERVER), 20),
                (1, Purpose::Itself, Some(SERVER), 20),
                (1, Purpose::Handed, None, 30),
            ]
        );
        let sum: u64 = all.values().map(|s| s.ns).sum();
        assert_eq!((sum, all.values().map(|s| s.packets).sum::<u64>()), (150, 6));
    }

    #[test]
    fn what_a_cpu_has_not_is_taken_from_another() {
        let mut all = world();
        tell_parts(&mut all, &[part(1, Some(20), 80)], &BTreeMap::new());
        assert_eq!(
            rows(&all),
            [
                (0, Purpose::Itself, Some(SERVER), 70),
                (0, Purpose::Handed, Some(20), 30),
                (1, Purpose::Itself, Some(SERVER), 0),
                (1, Purpose::Handed, Some(20), 50),
            ]
        );
    }

    #[test]
    fn of_what_is_not_there_nothing_is_taken() {
        let mut all = world();
        tell_parts(&mut all, &[part(0, Some(20), 1000)], &BTreeMap::from([(own(0, Busy::Kernel), 5)]));
        assert_eq!(all.values().map(|s| s.ns).sum::<u64>(), 150);
        assert!(all.keys().all(|k| k.0.1 == Busy::User));
    }

    fn work(purpose: Purpose, socket: u64, ns: u64) -> Work {
        let (at, busy) = (BootNs(1), Busy::User);
        Work { at, busy, purpose, victim: SERVER, socket, ns, packets: 0, bytes: 0 }
    }

    #[test]
    fn a_part_is_for_whom_it_answers_if_that_one_took_an_answer() {
        let mut c = Charges::default();
        for (purpose, client, ns) in [
            (Purpose::Itself, 0, 100),
            (Purpose::HandedOn, 0, 80),
            (Purpose::Handed, 20, 50),
            (Purpose::Handed, 30, 20),
        ] {
            c.work(0, &work(purpose, client, ns));
        }
        let how = UseKind::Answer;
        c.used(&SocketUse { at: BootNs(1), how, socket: SERVER.into(), process: 20, bytes: 0, times: 1 });
        c.settle(true);
        let server = Some(SERVER as i32);
        let rows: Vec<_> = c.rows().iter().map(|r| (r.purpose, r.victim, r.beneficiary, r.time_ns)).collect();
        let row = |purpose: Purpose, who, ns| (purpose as i32, server, who, ns);
        assert_eq!(
            rows,
            [
                row(Purpose::Itself, server, 20),
                row(Purpose::Handed, Some(20), 50),
                row(Purpose::HandedOn, server, 30),
            ]
        );
    }

    #[test]
    fn a_part_of_a_process_that_a_server_made_is_for_whom_the_server_answers() {
        const MADE: u32 = 8;
        let mut c = Charges::default();
        for (victim, purpose, client, ns) in [
            (MADE, Purpose::Itself, 0, 100),
            (MADE, Purpose::Handed, 20, 50),
            (MADE, Purpose::Handed, 30, 20),
            (9, Purpose::Itself, 0, 10),
            (9, Purpose::Handed, 20, 10),
        ] {
            c.work(0, &Work { victim, ..work(purpose, client, ns) });
        }
        for (how, socket, process) in [(UseKind::Answer, SERVER, 20), (UseKind::Made, MADE, SERVER)] {
            c.used(&SocketUse { at: BootNs(1), how, socket: socket.into(), process, bytes: 0, times: 1 });
        }
        c.settle(true);
        let rows: Vec<_> = c.rows().iter().map(|r| (r.purpose, r.victim, r.beneficiary, r.time_ns)).collect();
        let row = |purpose: Purpose, who, whom, ns| (purpose as i32, Some(who), Some(whom), ns);
        assert_eq!(
            rows,
            [
                row(Purpose::Itself, MADE as i32, MADE as i32, 50),
                row(Purpose::Itself, 9, 9, 10),
                row(Purpose::Handed, MADE as i32, 20, 50),
            ]
        );
    }

    #[test]
    fn parts_do_not_stand_for_what_a_cut_recording_lacks() {
        let ends = |parts_ns: u64| {
            let mut c = Charges::default();
            c.time(0, &reaches(BootNs(0)));
            c.work(0, &work(Purpose::Itself, 0, 6_000_000));
            c.work(0, &work(Purpose::HandedOn, 0, parts_ns));
            c.cpus.values_mut().for_each(|m| m.goes_on(reaches(BootNs(10_000_000))));
            c.settle(false);
            c.cpus.values().next().map(|m| m.last.at)
        };
        assert_eq!((ends(0), ends(5_000_000)), (Some(BootNs(0)), Some(BootNs(0))));
    }
}
