//! Raw records of applications become records of the log.

use super::{Sink, comm, process, task};
use crate::app::{Sockets, Wish};
use crate::ring::{Raw, Rings};
use crate::{sys, wire};
use kpat_klog::AppEncoder;
use kpat_model as model;
use kpat_model::BootNs;

/// Of a crossing's time so many bits are in the record: three days and a bit.
const TIME_BITS: u32 = 48;
/// No record is newer than this after its ring began to be read.
const AHEAD_NS: i64 = 3_600_000_000_000;

/// The time of which the low bits are known and that is not after `latest`.
fn whole_time(latest: i64, low: u64) -> BootNs {
    BootNs(latest - ((latest as u64).wrapping_sub(low) & ((1 << TIME_BITS) - 1)) as i64)
}

impl Sink {
    /// Takes everything out of one CPU's ring of applications.
    pub fn drain_applications(&mut self, rings: &Rings, cpu: usize) {
        self.label_again(cpu);
        let Some(sockets) = &mut self.sockets else { return };
        let (labels, identity) = (&mut self.labels, &self.identity);
        let mut labelled = 0;
        let (state, ready, strangers) = (&mut self.cpus[cpu], &mut self.ready, &mut self.strangers);
        let latest = sys::boot_now().0 + AHEAD_NS;
        self.records += rings.drain(cpu, &mut |raw, _| {
            strangers.look(&raw);
            match raw {
                Raw::Process(r) => {
                    if let Some(tasks) = &mut self.tasks {
                        tasks.insert(r.h.pid, task(r));
                    }
                    if let Some(label) = labels.of(r, comm(r)) {
                        state.encoder.record(&label);
                        labelled += 1;
                    }
                    state.encoder.process(&process(r, identity));
                }
                Raw::Socket(r) => {
                    if labels.is_new(r) {
                        state.encoder.record(&labels.of_socket(r));
                        labelled += 1;
                    }
                    put(&mut state.app, sockets, latest, cpu as u16, raw);
                    for l in sockets.listeners(r) {
                        let of_log =
                            model::Process { comm: identity.thread(l.process.comm.clone()), ..l.process };
                        if let Some(tasks) = &mut self.tasks {
                            let model::Process { at, pid, tgid, .. } = of_log;
                            tasks.insert(pid, model::meta::Task { at, pid, tgid, comm: l.process.comm });
                        }
                        state.encoder.process(&of_log);
                        state.app.socket(&l.socket);
                        labelled += 2;
                    }
                }
                raw => put(&mut state.app, sockets, latest, cpu as u16, raw),
            }
            if state.app.is_full() {
                ready.extend(state.app.finish());
            }
        });
    }
}

fn put(encoder: &mut AppEncoder, sockets: &mut Sockets, latest: i64, cpu: u16, raw: Raw<'_>) {
    match raw {
        Raw::Crossing(r) => match sockets.wish(r.sock) {
            Wish::Wanted => crossing(r, latest).iter().for_each(|r| encoder.crossing(r)),
            Wish::NotKnown => {
                let event = crossing(r, latest).map(model::AppRecord::Crossing);
                event.into_iter().for_each(|e| sockets.wait(cpu, e));
            }
            Wish::Unwanted => {}
        },
        Raw::Socket(r) => {
            if let Some(r) = sockets.announced(r) {
                encoder.socket(&r);
            }
        }
        Raw::Tcp(r) => match sockets.wish(r.sock) {
            Wish::Wanted => encoder.tcp(&tcp(r)),
            Wish::NotKnown => sockets.wait(cpu, model::AppRecord::Tcp(Box::new(tcp(r)))),
            Wish::Unwanted => {}
        },
        Raw::ThreadTime(r) => match sockets.wish(r.sock) {
            Wish::Wanted => encoder.thread_time(&thread_time(r)),
            Wish::NotKnown => sockets.wait(cpu, model::AppRecord::ThreadTime(thread_time(r))),
            Wish::Unwanted => {}
        },
        Raw::Gap(r) => encoder.gap(&model::Gap {
            since: BootNs(r.since as i64),
            until: BootNs(r.until as i64),
            lost: r.lost,
        }),
        _ => debug_assert!(false, "the kernel side of applications writes no such record"),
    }
}

fn crossing(r: &wire::Crossing, latest: i64) -> Option<model::CrossingRecord> {
    let what = model::Crossing::from_u8(r.what & 0xf)?;
    let packet = what.is_packet();
    Some(model::CrossingRecord {
        what,
        ctx: model::Context::from_u8(r.what >> 4),
        pid: (r.ts_pid >> TIME_BITS) as u32 | u32::from(r.pid_hi) << 16,
        sock: r.sock,
        at: whole_time(latest, r.ts_pid),
        size: if packet { r.size & 0xf_ffff } else { r.size },
        segments: if packet { (r.size as u32 >> 20) as u16 } else { 1 },
        seq: r.seq,
    })
}

fn thread_time(r: &wire::ThreadTime) -> model::ThreadTime {
    // The kernel's counts are as of its last look at the thread: they may have risen by more than has passed.
    let passed = r.ts.saturating_sub(r.since);
    model::ThreadTime {
        since: BootNs(r.since as i64),
        until: BootNs(r.ts as i64),
        sock: r.sock,
        thread: r.thread,
        ran_ns: r.ran.min(passed),
        waited_ns: r.waited.min(passed),
        slept: r.slept,
    }
}

fn tcp(r: &wire::Tcp) -> model::TcpRecord {
    model::TcpRecord {
        at: BootNs(r.ts as i64),
        sock: r.sock,
        what: r.what,
        ca_state: r.ca_state,
        state: r.state,
        limit: r.limit,
        ip_version: r.version,
        tos: r.tos,
        ttl: r.ttl,
        tcp_flags: r.tcp_flags,
        ip_id: r.ip_id,
        ip_fragment: r.ip_frag,
        mss: r.mss,
        snd_cwnd: r.snd_cwnd,
        snd_ssthresh: r.snd_ssthresh,
        snd_wnd: r.snd_wnd,
        rcv_wnd: r.rcv_wnd,
        srtt_us8: r.srtt_us8,
        rttvar_us4: r.rttvar_us4,
        rto_jiffies: r.rto_jiffies,
        in_flight: r.in_flight,
        retrans_out: r.retrans_out,
        lost_out: r.lost_out,
        sacked_out: r.sacked_out,
        total_retrans: r.total_retrans,
        write_seq: r.write_seq,
        snd_una: r.snd_una,
        snd_nxt: r.snd_nxt,
        copied_seq: r.copied_seq,
        rcv_nxt: r.rcv_nxt,
        app_limited: r.app_limited,
        delivered: r.delivered,
        rate_delivered: r.rate_delivered,
        rate_interval_us: r.rate_interval_us,
        wmem_queued: r.wmem_queued,
        rmem_alloc: r.rmem_alloc,
        pacing_rate: r.pacing_rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_again_at_every_border() {
        for now in [5_000_000_000_000i64, 1 << 48, (1 << 48) + 10, 3 << 48, (7 << 48) - 1] {
            for ago in [0, 1, 999_999_999, 86_400_000_000_000] {
                let at = (now - ago).max(0);
                let word = at as u64 & ((1 << TIME_BITS) - 1) | 0xabcd << TIME_BITS;
                assert_eq!(whole_time(now + AHEAD_NS, word), BootNs(at), "{now} {ago}");
            }
        }
    }
}
