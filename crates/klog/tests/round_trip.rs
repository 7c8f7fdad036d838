//! What goes in comes out: every kind of record, every field, both codecs.

#![allow(clippy::unwrap_used)]

mod sample;

use kpat_klog::*;
use kpat_model::meta::{ClockAnchor, Device, Json, Symbol};
use kpat_model::record::{Call, Event};
use kpat_model::*;
use sample::{Rng, Source};

#[test]
fn every_record_comes_back() {
    for seed in 0..24 {
        let codec = if seed % 3 == 0 { Codec::Zstd } else { Codec::None };
        let (bytes, records) = sample::log(seed, 8, 500, codec);
        let log = Log::from_bytes(bytes).unwrap();
        assert_eq!(log.cpus(), [0, 5]);
        assert!(log.records(0).eq(records[0].iter().cloned()), "seed {seed}, CPU 0");
        assert!(log.records(5).eq(records[1].iter().cloned()), "seed {seed}, CPU 5");
        assert_eq!(log.records(1).count(), 0);
        assert_eq!(*log.end_state(), EndState::Complete);
        assert_eq!(log.verify(), []);
    }
}

#[test]
fn what_the_log_says_of_itself_comes_back() {
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    let anchor = ClockAnchor { boot: BootNs(5), wall: WallNs(6), uncertainty_ns: 7 };
    let device = Device { ifindex: 3, name: "eth0".into(), ..Device::default() };
    // Enough of them that the chunk is packed.
    let symbols: Vec<Symbol> =
        (0..500).map(|i| Symbol { addr: i, text: format!("tcp_v4_rcv+{i:#x}") }).collect();
    w.json(&Json::Anchor(anchor)).unwrap();
    w.json(&Json::Devices(vec![device.clone()])).unwrap();
    w.json(&Json::Symbols(symbols.clone())).unwrap();
    w.json(&sample::summary(false)).unwrap();
    let open = Log::from_bytes(w.into_inner()).unwrap();
    assert_eq!(Json::Meta(Box::new(open.meta().clone())), sample::meta());
    assert_eq!(open.devices(), [device]);
    assert_eq!(open.symbols(), symbols);
    assert_eq!(open.anchors().iter().map(|a| a.boot.0).collect::<Vec<_>>(), [1, 5, 9]);
    assert!(!open.summary().unwrap().complete);
    assert_eq!(*open.end_state(), EndState::Open { tail_bytes: 0 });
}

fn call(entry: i64, dur_ns: u64) -> Call {
    Call {
        func: FuncId(1),
        ctx: Context::Softirq,
        flags: 0,
        skb_tag: 0,
        pid: 0,
        packet: PacketId(1),
        entry: BootNs(entry),
        dur_ns,
    }
}

#[test]
fn a_chunk_says_what_is_in_it() {
    let mut e = Encoder::new(3, Codec::None);
    assert!(e.finish().is_none());
    e.call(&call(500, 10));
    e.call(&call(100, 900));
    assert_eq!(e.count(), 2);
    assert!(e.raw_len() > 0 && !e.is_full());
    let chunk = e.finish().unwrap();
    assert_eq!((chunk.cpu, chunk.count, chunk.first, chunk.last), (3, 2, BootNs(100), BootNs(1000)));
    let len = chunk.len_bytes();
    assert_eq!((e.count(), e.raw_len()), (0, 0));
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    let before = w.bytes_written();
    w.chunk(chunk).unwrap();
    assert_eq!(w.bytes_written() - before, len as u64);
    let log = Log::from_bytes(w.into_inner()).unwrap();
    let info = log.chunk_index()[2];
    assert_eq!((info.kind, info.cpu, info.count), (ChunkKind::Records, 3, 2));
    assert_eq!((info.first, info.last, info.offset), (BootNs(100), BootNs(1000), before));
}

#[test]
fn merged_records_are_in_order_of_their_ends() {
    let (bytes, records) = sample::log(7, 10, 300, Codec::None);
    let log = Log::from_bytes(bytes).unwrap();
    let merged: Vec<(u16, Record)> = log.all_merged().collect();
    assert_eq!(merged.len(), records[0].len() + records[1].len());
    for (cpu, side) in [(0, 0), (5, 1)] {
        let own: Vec<Record> = merged.iter().filter(|(c, _)| *c == cpu).map(|(_, r)| r.clone()).collect();
        assert_eq!(own.len(), records[side].len());
        let of_kernel = |r: &&Record| match r {
            Record::Event(e) => !e.kind.is_of_user_space(),
            r => !matches!(
                r,
                Record::Loss(_)
                    | Record::CardReading(_)
                    | Record::Work(_)
                    | Record::SocketUse(_)
                    | Record::CpuTime(_)
                    | Record::CpuPackets(_)
                    | Record::BlockRequests(_)
                    | Record::ProcessLabel(_)
                    | Record::Peer(_)
                    | Record::Sample(_)
                    | Record::Stack(_)
                    | Record::Mapping(_)
                    | Record::Program(_)
                    | Record::Wifi(_)
                    | Record::Link(_)
                    | Record::Exchange(_)
                    | Record::GuestClock(_)
            ),
        };
        let written = records[side].iter().filter(of_kernel);
        assert!(own.iter().filter(of_kernel).eq(written), "order within CPU {cpu}");
    }
    // Only calls: losses and members of the sample have other times than the records beside them.
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    for cpu in 0..4u16 {
        let (mut s, mut e) = (Source::new(u64::from(cpu) * 2 + 1, false), Encoder::new(cpu, Codec::Zstd));
        for _ in 0..5000 {
            e.call(&s.call());
        }
        w.chunk(e.finish().unwrap()).unwrap();
    }
    let log = Log::from_bytes(w.into_inner()).unwrap();
    let ends: Vec<BootNs> = log.all_merged().map(|(_, r)| end_time(&r)).collect();
    assert_eq!(ends.len(), 20_000);
    assert!(ends.is_sorted());
}

/// A neighbour became known at 900. The recorder noted it at once and read CPU 0's ring, with records from 100 on, later.
#[test]
fn what_the_recorder_noted_waits_for_its_time() {
    let call = |entry| call(entry, 10);
    let noted = Event {
        kind: EventKind::Neighbour,
        ctx: Context::Unknown,
        pid: 0,
        at: BootNs(900),
        timed: Timed::Read { within_ns: 7 },
        packet: PacketId::NONE,
        netns: 0,
        a: 2,
        b: 7,
        text: "10.9.2.2".into(),
    };
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    let mut e = Encoder::new(0, Codec::None);
    e.event(&noted);
    e.loss(&Loss { cause: LossCause::Recursion, cpu: 0, from: BootNs(100), to: BootNs(950), count: 1 });
    [100, 300, 1000].into_iter().for_each(|at| e.call(&call(at)));
    w.chunk(e.finish().unwrap()).unwrap();
    let mut e = Encoder::new(1, Codec::None);
    [200, 400, 800].into_iter().for_each(|at| e.call(&call(at)));
    w.chunk(e.finish().unwrap()).unwrap();
    let log = Log::from_bytes(w.into_inner()).unwrap();
    let ends: Vec<i64> = log.all_merged().map(|(_, r)| end_time(&r).0).collect();
    assert_eq!(ends, [110, 210, 310, 410, 810, 900, 950, 1010]);
}

#[test]
fn long_texts_and_overfull_chunks_are_kept() {
    let mut e = Encoder::new(0, Codec::None);
    let mut s = Source::new(3, false);
    while e.raw_len() < 5 * TARGET_BYTES {
        e.call(&s.call());
    }
    assert!(e.is_full());
    let text = "é".repeat(40_000);
    let event = Event {
        kind: EventKind::Control,
        ctx: Context::Task,
        pid: 1,
        at: BootNs(5),
        timed: Timed::Recorder,
        packet: PacketId::NONE,
        netns: 0,
        a: 0,
        b: 0,
        text: text.clone(),
    };
    e.event(&event);
    let count = e.count();
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    w.chunk(e.finish().unwrap()).unwrap();
    let log = Log::from_bytes(w.into_inner()).unwrap();
    assert_eq!(log.records(0).count(), count as usize);
    let Some(Record::Event(last)) = log.records(0).last() else { panic!("an event") };
    assert_eq!(last.text, text[..65534]);
    assert_eq!(log.issues(), []);
}

#[test]
fn chunks_kept_in_memory_are_written_later_or_never() {
    let (mut e, mut s) = (Encoder::new(1, Codec::None), Source::new(9, false));
    let mut rng = Rng::new(4);
    let mut kept = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..20 {
        let records: Vec<Record> = (0..50).map(|_| s.record()).collect();
        records.iter().for_each(|r| e.record(r));
        let chunk = e.finish().unwrap();
        if rng.one_in(2) {
            kept.push(chunk);
            expected.extend(records);
        }
    }
    let mut w = Writer::new(Vec::new());
    w.json(&sample::meta()).unwrap();
    kept.into_iter().for_each(|c| w.chunk(c).unwrap());
    let log = Log::from_bytes(w.into_inner()).unwrap();
    assert!(log.records(1).eq(expected));
    assert_eq!(log.issues(), []);
}
