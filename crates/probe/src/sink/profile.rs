//! A profile: its ring emptied, samples and stacks made records; what processes belong to, in any recording.

use super::{Sink, comm, process, task};
use crate::app::Addresses;
use crate::ring::{Raw, Rings};
use crate::sampling::Clocks;
use crate::{sys, wire};
use kpat_model::{BootNs, Busy, CpuSample, Peer, ProcessNumber, Purpose, Record, SampledStack};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `None`: a code that this version does not know.
fn sample(r: &wire::Sample, clocks: &Clocks) -> Option<CpuSample> {
    Some(CpuSample {
        at: BootNs(r.h.ts as i64),
        thread: r.h.pid,
        process: r.process,
        busy: Busy::from_u8(r.busy)?,
        purpose: Purpose::from_u8(r.purpose)?,
        flags: r.flags,
        socket: r.socket,
        kernel: r.kernel,
        user: r.user,
        period_ns: clocks.period_at(BootNs(r.h.ts as i64)) * u64::from(r.periods.max(1)),
    })
}

fn peer(r: &wire::Peer, identity: &Addresses) -> Peer {
    let shown = |a: &[u8; 16]| {
        let v6 = Ipv6Addr::from(*a);
        let ip = match v6.to_ipv4_mapped() {
            _ if r.version == 4 => IpAddr::V4(Ipv4Addr::new(a[0], a[1], a[2], a[3])),
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        };
        if ip.is_unspecified() { String::new() } else { identity.address(ip) }
    };
    Peer {
        at: BootNs(r.h.ts as i64),
        number: r.number,
        socket: r.socket,
        process: r.h.pid,
        datagrams: r.datagrams != 0,
        local: shown(&r.near),
        local_port: r.near_port,
        peer: shown(&r.far),
        peer_port: r.far_port,
    }
}

/// The frames that a stack has: behind them in the ring is another record.
fn frames(r: &wire::Stack) -> &[u64] {
    &r.frames[..usize::from(r.h.func).min(r.frames.len())]
}

impl Sink {
    /// What the file before knew of processes; names of users and paths of cgroups as the recording treats identities.
    pub(super) fn label_again(&mut self, cpu: usize) {
        self.labels.without_names = self.identity != Addresses::Plain;
        for label in self.labels.of_before(sys::boot_now()) {
            self.cpus[cpu].encoder.record(&label);
            self.records += 1;
        }
    }

    /// What processes belong to that were there before and are `wanted`, once for each file.
    pub fn label_all(&mut self, now: BootNs, wanted: impl Fn(u32) -> bool) {
        self.labels.without_names = self.identity != Addresses::Plain;
        for label in self.labels.of_all(now, wanted) {
            self.of_cpu(0, &label);
        }
    }

    /// What the processes of a sum belonged to that were gone before this file began.
    pub fn label_of(&mut self, now: BootNs, cpu: u16, sum: &Record) {
        for label in self.labels.of_sum(now, sum) {
            self.of_cpu(cpu, &label);
        }
    }

    /// What compilers wrote of their functions after these were seen.
    pub fn name_late(&mut self) {
        for m in self.mappings.late() {
            self.cpus[0].encoder.columns(&self.identity.mapping(m));
            self.records += 1;
        }
    }

    /// Takes everything out of one CPU's ring of a profile: names of tasks, samples by these `clocks`, and their stacks.
    pub fn drain_profile(&mut self, rings: &Rings, cpu: usize, clocks: &Clocks) {
        let (state, tasks, ready) = (&mut self.cpus[cpu], &mut self.tasks, &mut self.ready);
        let (mappings, addresses) = (&mut self.mappings, &mut self.frames);
        if cpu == 0 {
            mappings.follow();
        }
        let mut mapped = 0;
        let (labels, identity) = (&mut self.labels, &self.identity);
        self.records += rings.drain(cpu, &mut |raw, _| {
            match raw {
                Raw::Process(r) => {
                    if let Some(label) = labels.of(r, comm(r)) {
                        state.encoder.record(&label);
                    }
                    if let Some(tasks) = tasks {
                        tasks.insert(r.h.pid, task(r));
                    }
                    if r.h.pid == r.tgid {
                        mappings.forget(ProcessNumber(r.tgid));
                    }
                    state.encoder.process(&process(r, identity));
                }
                Raw::Sample(r) => {
                    if let Some(sample) = sample(r, clocks) {
                        state.encoder.columns(&sample);
                    }
                }
                Raw::Peer(r) => state.encoder.record(&Record::Peer(Box::new(peer(r, identity)))),
                Raw::Stack(r) => {
                    let frames = frames(r);
                    let at = BootNs(r.h.ts as i64);
                    let mut shown = frames.to_vec();
                    if r.h.pid == 0 {
                        addresses.extend(frames);
                    } else {
                        let process = ProcessNumber(r.h.pid);
                        for m in mappings.of_stack(process, frames, at) {
                            mapped += 1;
                            state.encoder.columns(&identity.mapping(m));
                        }
                        mappings.leave_code(process, &mut shown);
                    }
                    state.encoder.columns(&SampledStack::new(at, r.number, r.h.pid, &shown));
                }
                _ => {}
            }
            if state.encoder.is_full() {
                ready.extend(state.encoder.finish());
            }
        });
        self.records += mapped;
    }
}
