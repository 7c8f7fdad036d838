//! A profile as Perfetto's trace: each sample with its stack at the process that it served, as samples of a profiler; and of each process what it is
//! charged, as counters that grow from nothing to the exact sums.
//!
//! A sample in a softirq is shown at the process whose packet was handled, with the softirq's own functions. What is of no process is at process 0.

use crate::Result;
use crate::names::clean;
use kpat_model::ProcessNumber;
use kpat_query::profile::{OTHERS, OfProcess, Profile};
use kpat_query::sampled::timed::Timed;
use messages::*;
use prost::Message;
use std::collections::BTreeSet;
use std::io::Write;

const SEQUENCE: u32 = 1;
const BUCKETS: u64 = 1;
const FIRST_TRACK: u64 = 16;
const COUNTER: i32 = 4;

/// With its id, where another process had that before: a trace has one process of each number.
fn called(x: &OfProcess) -> String {
    let name = x.name.as_deref().map(clean).unwrap_or_default();
    let number = ProcessNumber::from(x.number);
    if number.instance() > 1 { format!("{name} {number}") } else { name }
}

/// What a counter adds up.
type Sum = (&'static str, i64);

pub fn write(p: &Profile, samples: Option<&Timed>, out: &mut dyn Write) -> Result<()> {
    let mut w = Writer { out, next_track: FIRST_TRACK, buffer: Vec::new() };
    w.put(&TracePacket {
        sequence_flags: Some(1),
        trace_packet_defaults: Some(Defaults { timestamp_clock_id: Some(6) }),
        interned_data: samples.map(interned),
        ..TracePacket::default()
    })?;
    w.processes(p, samples)?;
    let begin = p.accounts.iter().map(|a| a.from_ns).min().unwrap_or(0);
    let end = p.accounts.iter().map(|a| a.to_ns).max().unwrap_or(0);
    let b = &p.buckets;
    w.track(Track { uuid: Some(BUCKETS), name: Some("CPU time by bucket".into()), ..Track::default() })?;
    let buckets = [
        ("processes", b.process_ns),
        ("other processes", b.other_ns),
        ("kernel", b.kernel_ns),
        ("idle", b.idle_ns),
        ("without room in the tables", b.unplaced_ns),
        ("not seen", b.unseen_ns),
    ];
    w.counters(Some(BUCKETS), &buckets, begin, end)?;
    for x in &p.processes {
        let own = w.next();
        let process = Described { pid: Some(x.number), name: Some(called(x)) };
        w.track(Track { uuid: Some(own), process: Some(process), ..Track::default() })?;
        let sums = [
            ("charged: user mode", x.user_ns),
            ("charged: system calls", x.kernel_ns),
            ("charged: page faults", x.fault_ns),
            ("charged: done for it", x.served_ns),
            ("taken from it", x.taken_ns),
        ];
        w.counters(Some(own), &sums, begin, end)?;
    }
    for m in samples.iter().flat_map(|s| &s.moments) {
        let pid = m.served.filter(|p| *p != OTHERS).unwrap_or(0);
        let sample = PerfSample {
            cpu: u32::try_from(m.cpu).ok(),
            pid: u32::try_from(pid).ok(),
            tid: u32::try_from(pid).ok(),
            callstack_iid: Some(u64::from(m.stack) + 1),
            cpu_mode: Some(if m.busy == kpat_model::Busy::User { 2 } else { 1 }),
        };
        let packet = TracePacket {
            timestamp: Some(m.at_ns.max(0) as u64),
            sequence_flags: Some(2),
            perf_sample: Some(sample),
            ..TracePacket::default()
        };
        w.put(&packet)?;
    }
    Ok(())
}

/// Functions, frames and stacks, each with its place plus one as a number; the kernel's and the processes' files are not distinguished by mapping but by
/// name, as everywhere (`1234k:udp_rcv`).
fn interned(s: &Timed) -> Interned {
    let numbered = |n: usize| Some(n as u64 + 1);
    let frame = |i: usize| Frame { iid: numbered(i), function_name_id: numbered(i), mapping_id: Some(1) };
    Interned {
        function_names: (s.functions.iter().enumerate())
            .map(|(i, f)| Text { iid: numbered(i), text: Some(clean(&f.label()).into_bytes()) })
            .collect(),
        frames: (0..s.functions.len()).map(frame).collect(),
        callstacks: (s.stacks.iter().enumerate())
            .map(|(i, stack)| Callstack {
                iid: numbered(i),
                frame_ids: stack.iter().map(|f| u64::from(*f) + 1).collect(),
            })
            .collect(),
        mapping_paths: vec![Text { iid: Some(1), text: Some(b"kpat".to_vec()) }],
        mappings: vec![Mapping { iid: Some(1), path_string_ids: vec![1] }],
    }
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    next_track: u64,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    fn put(&mut self, packet: &TracePacket) -> Result<()> {
        self.buffer.clear();
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet.clone() };
        prost::encoding::message::encode(1, &packet, &mut self.buffer);
        Ok(self.out.write_all(&self.buffer)?)
    }

    fn next(&mut self) -> u64 {
        self.next_track += 1;
        self.next_track - 1
    }

    fn track(&mut self, descriptor: Track) -> Result<()> {
        self.put(&TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn processes(&mut self, p: &Profile, samples: Option<&Timed>) -> Result<()> {
        let named = p.processes.iter().map(|x| (x.number, called(x)));
        let mut all: Vec<(i32, String)> = named.collect();
        let known: BTreeSet<i32> = all.iter().map(|(pid, _)| *pid).collect();
        let served = samples.iter().flat_map(|s| &s.moments).filter_map(|m| m.served);
        let more: BTreeSet<i32> = served.filter(|pid| *pid != OTHERS && !known.contains(pid)).collect();
        all.extend(more.into_iter().map(|n| (n, ProcessNumber::from(n).to_string())));
        let tree = ProcessTree {
            processes: all
                .iter()
                .map(|(pid, name)| Process { pid: Some(*pid), cmdline: vec![name.clone()] })
                .collect(),
            threads: all
                .iter()
                .map(|(pid, name)| Thread { tid: Some(*pid), name: Some(name.clone()), tgid: Some(*pid) })
                .collect(),
        };
        self.put(&TracePacket { process_tree: Some(tree), ..TracePacket::default() })
    }

    fn counters(&mut self, parent: Option<u64>, sums: &[Sum], begin: i64, end: i64) -> Result<()> {
        for (name, ns) in sums.iter().filter(|(_, ns)| *ns != 0) {
            let uuid = self.next();
            self.track(Track {
                uuid: Some(uuid),
                name: Some((*name).into()),
                parent_uuid: parent,
                counter: Some(Counted { unit: Some(1) }),
                ..Track::default()
            })?;
            for (at, value) in [(begin, 0), (end, *ns)] {
                let event = Event { kind: Some(COUNTER), track_uuid: Some(uuid), counter_value: Some(value) };
                self.put(&TracePacket {
                    timestamp: Some(at.max(0) as u64),
                    sequence_flags: Some(2),
                    track_event: Some(event),
                    ..TracePacket::default()
                })?;
            }
        }
        Ok(())
    }
}

/// Those of Perfetto's messages that are written here, with the numbers of its `perfetto_trace.proto`.
mod messages {
    use super::Message;

    #[derive(Clone, PartialEq, Message)]
    pub struct TracePacket {
        #[prost(message, optional, tag = "2")]
        pub process_tree: Option<ProcessTree>,
        #[prost(uint64, optional, tag = "8")]
        pub timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub track_event: Option<Event>,
        #[prost(message, optional, tag = "12")]
        pub interned_data: Option<Interned>,
        #[prost(uint32, optional, tag = "13")]
        pub sequence_flags: Option<u32>,
        #[prost(message, optional, tag = "59")]
        pub trace_packet_defaults: Option<Defaults>,
        #[prost(message, optional, tag = "60")]
        pub track_descriptor: Option<Track>,
        #[prost(message, optional, tag = "66")]
        pub perf_sample: Option<PerfSample>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Defaults {
        #[prost(uint32, optional, tag = "58")]
        pub timestamp_clock_id: Option<u32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ProcessTree {
        #[prost(message, repeated, tag = "1")]
        pub processes: Vec<Process>,
        #[prost(message, repeated, tag = "2")]
        pub threads: Vec<Thread>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Process {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(string, repeated, tag = "3")]
        pub cmdline: Vec<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Thread {
        #[prost(int32, optional, tag = "1")]
        pub tid: Option<i32>,
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        #[prost(int32, optional, tag = "3")]
        pub tgid: Option<i32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Track {
        #[prost(uint64, optional, tag = "1")]
        pub uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub process: Option<Described>,
        #[prost(uint64, optional, tag = "5")]
        pub parent_uuid: Option<u64>,
        #[prost(message, optional, tag = "8")]
        pub counter: Option<Counted>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Described {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub name: Option<String>,
    }

    /// `unit` 1: nanoseconds.
    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Counted {
        #[prost(int32, optional, tag = "3")]
        pub unit: Option<i32>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Event {
        #[prost(int32, optional, tag = "9")]
        pub kind: Option<i32>,
        #[prost(uint64, optional, tag = "11")]
        pub track_uuid: Option<u64>,
        #[prost(int64, optional, tag = "30")]
        pub counter_value: Option<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Interned {
        #[prost(message, repeated, tag = "5")]
        pub function_names: Vec<Text>,
        #[prost(message, repeated, tag = "6")]
        pub frames: Vec<Frame>,
        #[prost(message, repeated, tag = "7")]
        pub callstacks: Vec<Callstack>,
        #[prost(message, repeated, tag = "17")]
        pub mapping_paths: Vec<Text>,
        #[prost(message, repeated, tag = "19")]
        pub mappings: Vec<Mapping>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Text {
        #[prost(uint64, optional, tag = "1")]
        pub iid: Option<u64>,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub text: Option<Vec<u8>>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Frame {
        #[prost(uint64, optional, tag = "1")]
        pub iid: Option<u64>,
        #[prost(uint64, optional, tag = "2")]
        pub function_name_id: Option<u64>,
        #[prost(uint64, optional, tag = "3")]
        pub mapping_id: Option<u64>,
    }

    /// Outermost first.
    #[derive(Clone, PartialEq, Message)]
    pub struct Callstack {
        #[prost(uint64, optional, tag = "1")]
        pub iid: Option<u64>,
        #[prost(uint64, repeated, packed = "false", tag = "2")]
        pub frame_ids: Vec<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Mapping {
        #[prost(uint64, optional, tag = "1")]
        pub iid: Option<u64>,
        #[prost(uint64, repeated, packed = "false", tag = "7")]
        pub path_string_ids: Vec<u64>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct PerfSample {
        #[prost(uint32, optional, tag = "1")]
        pub cpu: Option<u32>,
        #[prost(uint32, optional, tag = "2")]
        pub pid: Option<u32>,
        #[prost(uint32, optional, tag = "3")]
        pub tid: Option<u32>,
        #[prost(uint64, optional, tag = "4")]
        pub callstack_iid: Option<u64>,
        #[prost(int32, optional, tag = "5")]
        pub cpu_mode: Option<i32>,
    }
}
