//! A made-up world whose truth is known: headers, a kernel behaviour log through the real encoder, captures as pcapng.
//! Shared by the tests and by `examples/synth.rs`.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use kpat_klog::{Codec, Encoder, Writer, end_time};
use kpat_model::meta::{ClockAnchor, Device, Function, Json, Meta, Summary};
use kpat_model::*;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub type Mac = [u8; 6];

/// Functions of a small router's log, and the cards of the router and of those beside it.
pub const ROUTER: &[&str] = &[
    "napi_gro_receive",
    "ip_rcv",
    "ip_forward",
    "ip_local_deliver",
    "__dev_queue_xmit",
    "dev_hard_start_xmit",
    "kfree_skb_reason",
];
/// The function in which a buffer is freed: probed by every recorder.
pub const ENDS: &str = "skb_release_data";
pub const R0: Mac = [2, 0, 0, 0, 0, 2];
pub const R1: Mac = [2, 0, 0, 0, 0, 3];
pub const CLIENT: Mac = [2, 0, 0, 0, 0, 1];
pub const SERVER: Mac = [2, 0, 0, 0, 0, 4];
pub const SEC: i64 = 1_000_000_000;

/// A folder that goes away.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kpat-integrate-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// xorshift64*: the same world at every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: i64) -> i64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as i64) % n.max(1)
    }
}

pub fn ether(dst: Mac, src: Mac, ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(14 + rest.len());
    out.extend_from_slice(&dst);
    out.extend_from_slice(&src);
    out.extend_from_slice(&ethertype.to_be_bytes());
    out.extend_from_slice(rest);
    out
}

/// `len`: bytes behind the header, which may be more than `rest` holds.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], id: u16, proto: u8, ttl: u8, len: usize, rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend_from_slice(&((20 + len) as u16).to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[0x40, 0, ttl, proto, 0, 0]);
    out.extend_from_slice(&src);
    out.extend_from_slice(&dst);
    out.extend_from_slice(rest);
    out
}

pub fn icmp(kind: u8, id: u16, seq: u16, checksum: u16) -> Vec<u8> {
    let mut out = vec![kind, 0];
    for v in [checksum, id, seq] {
        out.extend_from_slice(&v.to_be_bytes());
    }
    out
}

pub fn udp(sport: u16, dport: u16, payload: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for v in [sport, dport, (8 + payload) as u16, 0x1234] {
        out.extend_from_slice(&v.to_be_bytes());
    }
    out
}

pub fn tcp(sport: u16, dport: u16, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&sport.to_be_bytes());
    out.extend_from_slice(&dport.to_be_bytes());
    out.extend_from_slice(&seq.to_be_bytes());
    out.extend_from_slice(&ack.to_be_bytes());
    out.extend_from_slice(&[0x50, flags, 0xff, 0xff, 0xab, 0xcd, 0, 0]);
    out
}

/// A kernel behaviour log in the making.
pub struct LogWriter {
    writer: Writer<File>,
    encoders: BTreeMap<u16, Encoder>,
    waiting: Vec<(u16, Record)>,
    ids: HashMap<&'static str, FuncId>,
    pub calls: u64,
}

/// A call about to be logged.
#[derive(Clone, Copy)]
pub struct At {
    pub cpu: u16,
    pub ctx: Context,
    pub pid: u32,
    pub packet: u64,
}

impl LogWriter {
    pub fn create(
        path: &Path,
        functions: &[&'static str],
        devices: &[(u32, &str, Mac)],
        anchor: ClockAnchor,
    ) -> LogWriter {
        LogWriter::create_of(path, functions, devices, Meta { started: anchor, ..Meta::default() })
    }

    /// With what else the log says of its host.
    pub fn create_of(
        path: &Path,
        functions: &[&'static str],
        devices: &[(u32, &str, Mac)],
        host: Meta,
    ) -> LogWriter {
        let mut writer = Writer::create(path).unwrap();
        let mut functions = functions.to_vec();
        if functions.iter().any(|f| !f.contains(':')) && !functions.contains(&ENDS) {
            functions.push(ENDS);
        }
        let meta = Meta {
            writer: "world".into(),
            functions: functions
                .iter()
                .enumerate()
                .map(|(i, name)| Function {
                    id: i as u16,
                    name: (*name).into(),
                    kind: "function".into(),
                    ..Function::default()
                })
                .collect(),
            drop_reasons: vec![(2, "NOT_SPECIFIED".into())],
            ..host
        };
        writer.json(&Json::Meta(Box::new(meta))).unwrap();
        let devices = devices
            .iter()
            .map(|(ifindex, name, mac)| Device {
                ifindex: *ifindex,
                name: (*name).into(),
                link_type: 1,
                mac: mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"),
                ..Device::default()
            })
            .collect();
        writer.json(&Json::Devices(devices)).unwrap();
        let ids = functions.iter().enumerate().map(|(i, n)| (*n, FuncId(i as u16))).collect();
        LogWriter { writer, encoders: BTreeMap::new(), waiting: Vec::new(), ids, calls: 0 }
    }

    /// What is known of devices from now on.
    pub fn devices(&mut self, devices: Vec<Device>) {
        self.writer.json(&Json::Devices(devices)).unwrap();
    }

    pub fn push(&mut self, cpu: u16, record: Record) {
        self.waiting.push((cpu, record));
    }

    pub fn func(&self, name: &str) -> FuncId {
        self.ids[name]
    }

    pub fn call(&mut self, at: At, name: &str, entry: i64, end: i64) {
        self.calls += 1;
        let call = Call {
            func: self.ids[name],
            ctx: at.ctx,
            flags: 0,
            skb_tag: 1,
            pid: at.pid,
            packet: PacketId(at.packet),
            entry: BootNs(entry),
            dur_ns: (end - entry) as u64,
        };
        self.push(at.cpu, Record::Call(call));
    }

    /// `header` from the link layer on.
    pub fn print(&mut self, at: At, when: i64, ifindex: u32, header: &[u8], len: u32, gso: (u16, u16)) {
        let record = FootprintRecord {
            packet: PacketId(at.packet),
            at: BootNs(when),
            ifindex,
            netns: 0,
            len_bytes: len,
            gso_size: gso.0,
            gso_segs: gso.1,
            protocol: 0x0800,
            start_layer: 2,
            ip_proto: 0,
            link_type: 1,
            skb_tag: 1,
            header: HeaderBytes::new(&header[..header.len().min(FootprintRecord::MAX_HEADER)]),
        };
        self.push(at.cpu, Record::Footprint(Box::new(record)));
    }

    pub fn place(&mut self, at: At, when: i64, ifindex: u32, netns: u32) {
        let place =
            Place { packet: PacketId(at.packet), at: BootNs(when), ifindex, netns, link_type: 1, skb_tag: 1 };
        self.push(at.cpu, Record::Place(place));
    }

    /// The packet's last holder lets go of its buffer: what a recorder writes where functions are probed.
    pub fn free(&mut self, at: At, when: i64) {
        let call = Call {
            func: self.ids[ENDS],
            ctx: at.ctx,
            flags: Call::ENDS,
            skb_tag: 1,
            pid: at.pid,
            packet: PacketId(at.packet),
            entry: BootNs(when),
            dur_ns: 0,
        };
        self.calls += 1;
        self.push(at.cpu, Record::Call(call));
    }

    pub fn event(&mut self, at: At, when: i64, kind: EventKind, a: u64) {
        let event = Event {
            kind,
            ctx: at.ctx,
            pid: at.pid,
            at: BootNs(when),
            timed: if kind.is_of_user_space() { Timed::Recorder } else { Timed::Kernel },
            packet: PacketId(at.packet),
            netns: 0,
            a,
            b: 0,
            text: String::new(),
        };
        self.push(at.cpu, Record::Event(Box::new(event)));
    }

    /// Encodes what was pushed; later records must end later.
    pub fn flush(&mut self) {
        self.waiting.sort_by_key(|(cpu, r)| (end_time(r), *cpu));
        for (cpu, record) in std::mem::take(&mut self.waiting) {
            let encoder = self.encoders.entry(cpu).or_insert_with(|| Encoder::new(cpu, Codec::None));
            encoder.record(&record);
            if encoder.is_full() {
                self.writer.chunk(encoder.finish().unwrap()).unwrap();
            }
        }
    }

    pub fn close(mut self) {
        self.flush();
        for encoder in self.encoders.values_mut() {
            if let Some(chunk) = encoder.finish() {
                self.writer.chunk(chunk).unwrap();
            }
        }
        let summary = Summary { complete: true, end_reason: "stopped".into(), ..Summary::default() };
        self.writer.json(&Json::Summary(Box::new(summary))).unwrap();
        self.writer.flush().unwrap();
    }
}

/// The sniffer's clock: wall time of a boot time.
#[derive(Clone, Copy)]
pub struct Clock {
    pub offset: i64,
    pub drift: f64,
}

impl Clock {
    pub fn wall(self, boot: i64) -> i64 {
        boot + self.offset + (boot as f64 * self.drift) as i64
    }

    pub fn boot(self, wall: i64) -> f64 {
        (wall - self.offset) as f64 / (1.0 + self.drift)
    }
}

/// A pcapng file in the making; frames are sorted by time when it is closed.
pub struct Capture {
    path: PathBuf,
    interfaces: Vec<String>,
    frames: Vec<(i64, u32, Vec<u8>, u32, u64)>,
    /// The file is in the order in which frames were given, whatever their times: as a sniffer writes whose clock is set.
    pub as_given: bool,
    pub link_type: u8,
}

impl Capture {
    pub fn new(path: &Path, interfaces: &[&str]) -> Capture {
        let interfaces = interfaces.iter().map(|s| (*s).to_owned()).collect();
        Capture { path: path.to_owned(), interfaces, frames: Vec::new(), as_given: false, link_type: 1 }
    }

    /// `truth`: the packet, 0 none.
    pub fn frame(&mut self, wall: i64, interface: u32, data: Vec<u8>, len_wire: u32, truth: u64) {
        self.frames.push((wall, interface, data, len_wire, truth));
    }

    /// Writes the file; gives (frame number, packet) of every frame.
    pub fn close(mut self) -> Vec<(i64, u64)> {
        let mut out = BufWriter::new(File::create(&self.path).unwrap());
        let block = |out: &mut BufWriter<File>, kind: u32, body: &[u8]| {
            let padded = body.len().div_ceil(4) * 4;
            let len = (padded + 12) as u32;
            out.write_all(&kind.to_le_bytes()).unwrap();
            out.write_all(&len.to_le_bytes()).unwrap();
            out.write_all(body).unwrap();
            out.write_all(&[0; 3][..padded - body.len()]).unwrap();
            out.write_all(&len.to_le_bytes()).unwrap();
        };
        let mut shb = 0x1a2b_3c4du32.to_le_bytes().to_vec();
        shb.extend_from_slice(&[1, 0, 0, 0]);
        shb.extend_from_slice(&[0xff; 8]);
        block(&mut out, 0x0a0d_0d0a, &shb);
        for name in &self.interfaces {
            let mut idb = vec![self.link_type, 0, 0, 0, 0, 0, 4, 0];
            if !name.is_empty() {
                idb.extend_from_slice(&[2, 0]);
                idb.extend_from_slice(&(name.len() as u16).to_le_bytes());
                idb.extend_from_slice(name.as_bytes());
                idb.resize(idb.len().div_ceil(4) * 4, 0);
            }
            idb.extend_from_slice(&[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
            block(&mut out, 1, &idb);
        }
        if !self.as_given {
            self.frames.sort_by_key(|f| f.0);
        }
        let mut truth = Vec::new();
        for (i, (wall, interface, data, len_wire, packet)) in self.frames.iter().enumerate() {
            let mut epb = interface.to_le_bytes().to_vec();
            let at = *wall as u64;
            for v in [(at >> 32) as u32, at as u32, data.len() as u32, *len_wire] {
                epb.extend_from_slice(&v.to_le_bytes());
            }
            epb.extend_from_slice(data);
            block(&mut out, 6, &epb);
            truth.push((i as i64 + 1, *packet));
        }
        out.flush().unwrap();
        truth
    }
}
