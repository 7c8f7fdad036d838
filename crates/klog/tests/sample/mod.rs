//! Logs out of a seed, shared by the tests. Values are drawn so that borders and repetitions are frequent, since
//! those are what delta coding can get wrong.
#![allow(dead_code)]
#![allow(clippy::unwrap_used)]

use kpat_klog::{Codec, Encoder, Writer};
use kpat_model::meta::*;
use kpat_model::record::{Call, Event, FootprintRecord, Lineage, Loss, Member, Point, Process};
use kpat_model::*;

/// xorshift64*: small, seeded, the same on every machine.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Any magnitude alike likely, and the extremes.
    pub fn wide(&mut self) -> u64 {
        match self.below(16) {
            0 => 0,
            1 => u64::MAX,
            2 => i64::MAX as u64,
            3 => i64::MIN as u64,
            _ => {
                let shift = self.below(64);
                self.next() >> shift
            }
        }
    }
}

/// Draws records; in `wild` mode fields take any value, otherwise they look like a recording.
pub struct Source {
    pub rng: Rng,
    wild: bool,
    now: i64,
    packet: u64,
}

impl Source {
    pub fn new(seed: u64, wild: bool) -> Source {
        Source { rng: Rng::new(seed), wild, now: 1_000_000_000_000, packet: 1 }
    }

    fn time(&mut self) -> BootNs {
        if self.wild && self.rng.one_in(8) {
            return BootNs(self.rng.wide() as i64);
        }
        self.now += self.rng.below(400) as i64;
        BootNs(self.now)
    }

    fn packet(&mut self) -> PacketId {
        if self.wild && self.rng.one_in(8) {
            return PacketId(self.rng.wide());
        }
        if self.rng.one_in(12) {
            self.packet += 1;
        }
        PacketId(self.packet.saturating_sub(self.rng.below(8) / 6))
    }

    fn num32(&mut self) -> u32 {
        if self.wild { self.rng.wide() as u32 } else { self.rng.below(3) as u32 }
    }

    fn num16(&mut self) -> u16 {
        if self.wild { self.rng.wide() as u16 } else { self.rng.below(300) as u16 }
    }

    fn ctx(&mut self) -> Context {
        Context::from_u8(self.rng.below(5) as u8)
    }

    fn tag(&mut self) -> u16 {
        if self.wild { self.rng.next() as u16 } else { (self.packet as u16).wrapping_mul(640) }
    }

    fn text(&mut self) -> String {
        let len = self.rng.below(20);
        (0..len).map(|_| ['a', 'Z', ' ', 'é', '\u{1f980}', '\0'][self.rng.below(6) as usize]).collect()
    }

    pub fn call(&mut self) -> Call {
        let dur_ns = if self.wild { self.rng.wide() } else { self.rng.below(20_000) };
        let end = self.time();
        Call {
            func: FuncId(self.num16()),
            ctx: self.ctx(),
            flags: if self.rng.one_in(20) { self.rng.next() as u8 } else { 0 },
            skb_tag: self.tag(),
            pid: self.num32(),
            packet: self.packet(),
            entry: BootNs(end.0.wrapping_sub(dur_ns as i64)),
            dur_ns,
        }
    }

    fn footprint(&mut self) -> FootprintRecord {
        let len = if self.wild { self.rng.below(FootprintRecord::MAX_HEADER as u64 + 1) } else { 54 };
        let mut header: Vec<u8> = (0..len).map(|i| i as u8).collect();
        for _ in 0..self.rng.below(12) {
            if len > 0 {
                header[self.rng.below(len) as usize] = self.rng.next() as u8;
            }
        }
        FootprintRecord {
            packet: self.packet(),
            at: self.time(),
            ifindex: self.num32(),
            netns: self.num32(),
            len_bytes: self.num32(),
            gso_size: self.num16(),
            gso_segs: self.num16(),
            protocol: self.num16(),
            start_layer: self.rng.next() as u8,
            ip_proto: self.rng.next() as u8,
            link_type: self.num16(),
            skb_tag: self.tag(),
            header: HeaderBytes::new(&header),
        }
    }

    pub fn record(&mut self) -> Record {
        match self.rng.below(31) {
            0 => Record::Point(Point {
                func: FuncId(self.num16()),
                ctx: self.ctx(),
                skb_tag: self.tag(),
                pid: self.num32(),
                packet: self.packet(),
                at: self.time(),
                len_bytes: self.num32(),
                ends: self.rng.below(2) == 0,
                put_off: self.rng.below(2) == 0,
            }),
            1 => Record::Member(Member {
                func: FuncId(self.rng.below(2) as u16),
                packet: self.packet(),
                entry: BootNs(self.now),
            }),
            2 => Record::Footprint(Box::new(self.footprint())),
            7 | 8 => Record::Place(Place {
                packet: self.packet(),
                at: self.time(),
                ifindex: self.rng.below(5) as u32,
                netns: self.rng.below(2) as u32,
                link_type: self.num16(),
                skb_tag: self.tag(),
            }),
            3 => Record::Lineage(Lineage {
                kind: LineageKind::from_u8(1 + self.rng.below(7) as u8).unwrap(),
                at: self.time(),
                parent: self.packet(),
                child: self.packet(),
            }),
            4 => {
                let kind = EventKind::ALL[self.rng.below(EventKind::ALL.len() as u64) as usize];
                Record::Event(Box::new(Event {
                    kind,
                    ctx: self.ctx(),
                    pid: self.num32(),
                    at: self.time(),
                    timed: match self.rng.below(4) {
                        0 => Timed::Recorder,
                        1 => Timed::Read { within_ns: self.rng.wide() },
                        _ => Timed::Kernel,
                    },
                    packet: if self.rng.one_in(3) { PacketId::NONE } else { self.packet() },
                    netns: self.num32(),
                    a: if self.rng.one_in(2) { self.rng.wide() } else { 7 },
                    b: if self.rng.one_in(2) { self.rng.wide() } else { 0xffff_ffff_8100_0000 },
                    text: if self.rng.one_in(2) { self.text() } else { String::new() },
                }))
            }
            5 => {
                let pid = self.num32();
                Record::Process(Box::new(Process {
                    at: self.time(),
                    pid,
                    tgid: if self.rng.one_in(2) { pid } else { self.num32() },
                    comm: self.text(),
                }))
            }
            6 => Record::Loss(Loss {
                cause: LossCause::ALL[self.rng.below(10) as usize],
                cpu: self.num32() as i32 - 1,
                from: self.time(),
                to: self.time(),
                count: self.rng.wide(),
            }),
            9 => {
                let to = self.time();
                Record::OffCpu(OffCpu {
                    pid: self.num32(),
                    from: BootNs(to.0.wrapping_sub(self.rng.wide() as i64)),
                    to,
                    preempted: self.rng.one_in(2),
                    wait_ns: self.num32(),
                    more: self.rng.one_in(3),
                    cpu_out: self.num16(),
                    cpu_in: self.num16(),
                    sleep: Sleep::from_u8(self.rng.below(11) as u8),
                })
            }
            10 => {
                let mut optional = |n| (!self.rng.one_in(n)).then(|| self.rng.wide().min(u64::MAX - 1));
                let (since_ns, wait_ns) = (optional(3), optional(2));
                Record::Poll(Poll { at: self.time(), packet: self.packet(), since_ns, wait_ns })
            }
            11 => Record::PollEnd(PollEnd {
                at: self.time(),
                packet: self.packet(),
                taken: self.num32(),
                budget: self.num32(),
                round: self.rng.wide(),
            }),
            12 => Record::CardStamp(CardStamp {
                at: self.time(),
                packet: self.packet(),
                netns: self.num32(),
                ifindex: self.num32(),
                card_ns: self.rng.wide() as i64,
            }),
            13 => Record::CardReading(Box::new(CardReading {
                at: self.time(),
                netns: self.num32(),
                ifindex: self.num32(),
                card_ns: self.rng.wide() as i64,
                bound_ns: self.num32(),
                clock: self.text(),
            })),
            14 => Record::Work(Box::new(Work {
                at: self.time(),
                busy: Busy::ALL[self.rng.below(Busy::ALL.len() as u64) as usize],
                purpose: Purpose::ALL[self.rng.below(Purpose::ALL.len() as u64) as usize],
                victim: self.num32(),
                socket: self.rng.wide(),
                ns: self.rng.wide(),
                packets: self.rng.wide(),
                bytes: self.rng.wide(),
            })),
            15 => Record::SocketUse(Box::new(SocketUse {
                at: self.time(),
                how: UseKind::ALL[self.rng.below(UseKind::ALL.len() as u64) as usize],
                socket: self.rng.wide(),
                process: self.num32(),
                bytes: self.rng.wide(),
                times: self.rng.wide(),
            })),
            16 => Record::CpuTime(Box::new(CpuTime {
                at: self.time(),
                opened: self.time(),
                unplaced_ns: self.rng.wide(),
                user_ns: self.rng.wide(),
                system_ns: self.rng.wide(),
                idle_ns: self.rng.wide(),
                irq_ns: self.rng.wide(),
                softirq_ns: self.rng.wide(),
                steal_ns: self.rng.wide(),
            })),
            17 => Record::CpuPackets(Box::new(CpuPackets {
                at: self.time(),
                opened: self.time(),
                counted: self.rng.wide(),
                received: self.rng.wide(),
            })),
            18 => Record::ProcessLabel(Box::new(ProcessLabel {
                at: self.time(),
                started: self.time(),
                process: self.num32(),
                uid: self.num32(),
                cgroup: self.rng.wide(),
                path: self.text(),
                name: self.text(),
                user: self.text(),
            })),
            19 => Record::Sample(Box::new(CpuSample {
                at: self.time(),
                thread: self.num32(),
                process: self.num32(),
                busy: Busy::ALL[self.rng.below(7) as usize],
                purpose: Purpose::ALL[self.rng.below(6) as usize],
                flags: self.rng.below(4) as u8,
                socket: self.rng.wide(),
                kernel: self.rng.wide(),
                user: self.rng.wide(),
                period_ns: self.rng.wide(),
            })),
            20 => {
                let frames: Vec<u64> = (0..self.rng.below(128)).map(|_| self.rng.wide()).collect();
                Record::Stack(Box::new(SampledStack::new(
                    self.time(),
                    self.rng.wide(),
                    self.num32(),
                    &frames,
                )))
            }
            21 => Record::Mapping(Box::new(Mapping {
                at: self.time(),
                process: self.num32(),
                what: MappingKind::ALL[self.rng.below(2) as usize],
                start: self.rng.wide(),
                length: self.rng.wide(),
                offset: self.rng.wide(),
                name: self.text(),
                build_id: (0..self.rng.below(21)).map(|i| i as u8).collect(),
            })),
            22 => Record::Program(Box::new(ProgramRecord {
                at: self.time(),
                pid: self.num32(),
                func: FuncId(self.num16()),
                stage: Stage::ALL[self.rng.below(3) as usize],
                faults: self.num16() as u8,
                values: std::array::from_fn(|_| self.rng.wide()),
                text: self.text(),
            })),
            23 => Record::Wifi(Box::new(WifiEvent {
                at: self.time(),
                ctx: Context::from_u8(self.rng.below(5) as u8),
                pid: self.num32() & 0x3fff_ffff,
                point: FuncId(self.num16()),
                what: WifiWhat::ALL[self.rng.below(WifiWhat::ALL.len() as u64) as usize],
                netns: self.num32(),
                ifindex: self.num32(),
                frequency: self.num32(),
                a: self.rng.wide() as i64,
                b: self.rng.wide() as i64,
                c: self.rng.wide() as i64,
                address: self.rng.one_in(2).then(|| self.link_address()),
                wiphy: self.text(),
                text: self.text(),
            })),
            24 => Record::Link(Box::new(LinkEvent {
                at: self.time(),
                ctx: Context::from_u8(self.rng.below(5) as u8),
                pid: self.num32() & 0x3fff_ffff,
                what: LinkWhat::ALL[self.rng.below(LinkWhat::ALL.len() as u64) as usize],
                timed: match self.rng.below(3) {
                    0 => Timed::Kernel,
                    1 => Timed::Recorder,
                    _ => Timed::Read { within_ns: self.rng.wide() },
                },
                function: self.rng.one_in(2),
                netns: self.num32(),
                ifindex: self.num32(),
                a: self.rng.wide() as i64,
                b: self.rng.wide() as i64,
            })),
            25 => Record::Exchange(Box::new(Exchange {
                at: self.time(),
                ctx: Context::from_u8(self.rng.below(5) as u8),
                pid: self.num32() & 0x3fff_ffff,
                protocol: Exchanged::ALL[self.rng.below(Exchanged::ALL.len() as u64) as usize],
                message: self.num16() as u8,
                sent: self.rng.one_in(2),
                netns: self.num32(),
                ifindex: self.num32(),
                length: self.num32(),
                id: self.rng.wide(),
                link: self.rng.one_in(2).then(|| [self.link_address(), self.link_address()]),
                network: (0..self.rng.below(33)).map(|i| i as u8).collect(),
                subject: (0..self.rng.below(17)).map(|i| i as u8).collect(),
            })),
            26 => Record::GuestClock(GuestClock {
                at: self.time(),
                guest: BootNs(self.rng.wide() as i64),
                bound_ns: self.num32(),
            }),
            27 => Record::BlockRequests(Box::new(BlockRequests {
                at: self.time(),
                opened: self.time(),
                counted: self.rng.wide(),
                completed: self.rng.wide(),
            })),
            28 => Record::Peer(Box::new(Peer {
                at: self.time(),
                number: self.rng.wide(),
                socket: self.rng.wide(),
                process: self.num32(),
                datagrams: self.rng.one_in(2),
                local: "2001:db8::7".into(),
                local_port: self.rng.wide() as u16,
                peer: if self.rng.one_in(2) { String::new() } else { "10.1.2.3".into() },
                peer_port: self.rng.wide() as u16,
            })),
            _ => Record::Call(self.call()),
        }
    }

    fn link_address(&mut self) -> [u8; 6] {
        std::array::from_fn(|_| self.rng.wide() as u8)
    }
}

pub fn meta() -> Json {
    Json::Meta(Box::new(Meta {
        writer: "kpat test".into(),
        cpus: 2,
        functions: vec![Function { id: 1, name: "ip_rcv".into(), ..Function::default() }],
        started: ClockAnchor { boot: BootNs(1), wall: WallNs(2), uncertainty_ns: 3 },
        ..Meta::default()
    }))
}

pub fn summary(complete: bool) -> Json {
    Json::Summary(Box::new(Summary {
        complete,
        end_reason: "stopped".into(),
        at: ClockAnchor { boot: BootNs(9), wall: WallNs(10), uncertainty_ns: 1 },
        ..Summary::default()
    }))
}

/// A closed log of `chunks` record chunks of `per_chunk` records each, over two CPUs, and its records by CPU.
pub fn log(seed: u64, chunks: usize, per_chunk: usize, codec: Codec) -> (Vec<u8>, [Vec<Record>; 2]) {
    let mut writer = Writer::new(Vec::new());
    writer.json(&meta()).unwrap();
    let wild = seed.is_multiple_of(2);
    let mut sources = [Source::new(seed, wild), Source::new(seed + 1, wild)];
    let mut encoders = [Encoder::new(0, codec), Encoder::new(5, codec)];
    let mut records = [Vec::new(), Vec::new()];
    for i in 0..chunks {
        let side = i % 2;
        for _ in 0..per_chunk {
            let record = sources[side].record();
            encoders[side].record(&record);
            records[side].push(record);
        }
        writer.chunk(encoders[side].finish().unwrap()).unwrap();
    }
    writer.json(&summary(true)).unwrap();
    (writer.into_inner(), records)
}
