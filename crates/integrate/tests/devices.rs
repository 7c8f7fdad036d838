//! Several devices in a made-up world whose truth is known: which packet of one kernel is which of the other, when it
//! left and when it arrived by three or more clocks that differ in offset and drift.

use crate::world;

use kpat_integrate::devices::integrate_devices;
use kpat_integrate::{Error, Options};
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::devices::Several;
use kpat_store::TableFile;
use kpat_store::tables::{CROSSING, CrossingRow};
use std::collections::HashMap;
use std::path::PathBuf;
use world::*;

const SEC: i64 = 1_000_000_000;
const FUNCTIONS: &[&str] = &["napi_gro_receive", "ip_rcv", "ip_forward", "dev_hard_start_xmit"];
/// The sniffers' clocks over true time.
const SNIFFERS: [Clock; 2] = [
    Clock { offset: 1_700_000_000 * SEC, drift: -15e-6 },
    Clock { offset: 1_700_000_050 * SEC, drift: 30e-6 },
];
/// The boot clocks of client, server and router over true time.
const BOOT: [Clock; 3] = [
    Clock { offset: 7_000 * SEC, drift: 20e-6 },
    Clock { offset: 90_000 * SEC, drift: -40e-6 },
    Clock { offset: 300 * SEC, drift: 5e-6 },
];
const CLIENT: usize = 0;
const SERVER: usize = 1;
const ROUTER: usize = 2;
const NAMES: [&str; 3] = ["client", "server", "router"];

fn mac(last: u8) -> Mac {
    [2, 0, 0, 0, 0, last]
}

/// One way of a frame: device and packet that sent, device and packet that received.
type Hop = (usize, i64, usize, i64);

/// What each frame (capture, number) is, and whether both kernels logged it.
type Truth = HashMap<(i32, i64), (Hop, bool)>;

struct Worlds {
    logs: Vec<LogWriter>,
    captures: Vec<Capture>,
    /// By the number that the capture keeps with each frame.
    hops: Vec<(Hop, bool)>,
}

impl Worlds {
    fn new(dir: &Dir, devices: usize, captures: usize) -> Worlds {
        let interfaces: [Vec<(u32, &str, Mac)>; 3] = [
            vec![(2, "eth0", mac(1))],
            vec![(2, "eth0", mac(4))],
            vec![(2, "r0", mac(2)), (3, "r1", mac(3))],
        ];
        let logs = (0..devices)
            .map(|d| {
                let boot = BOOT[d].wall(SEC);
                // A wall clock that nobody set: nothing may rest on it.
                let wall = WallNs(1_600_000_000 * SEC + d as i64 * 77 * SEC);
                let anchor = ClockAnchor { boot: BootNs(boot), wall, uncertainty_ns: 1_000 };
                let path = dir.path(&format!("{}.kbl", NAMES[d]));
                LogWriter::create(&path, FUNCTIONS, &interfaces[d], anchor)
            })
            .collect();
        let captures =
            (0..captures).map(|c| Capture::new(&dir.path(&format!("w{c}.pcapng")), &[""])).collect();
        Worlds { logs, captures, hops: vec![((0, 0, 0, 0), false)] }
    }

    fn at(packet: i64, ctx: Context) -> At {
        At { cpu: (packet % 2) as u16, ctx, pid: 0, packet: packet as u64 }
    }

    fn send(&mut self, device: usize, packet: i64, true_ns: i64, ifindex: u32, header: &[u8]) {
        let (log, at) = (&mut self.logs[device], Self::at(packet, Context::Task));
        let t = BOOT[device].wall(true_ns);
        log.print(at, t - 3_000, ifindex, header, header.len() as u32 + 100, (0, 0));
        log.call(at, "dev_hard_start_xmit", t, t + 2_000);
        log.free(at, t + 9_000);
    }

    fn receive(&mut self, device: usize, packet: i64, true_ns: i64, ifindex: u32, header: &[u8]) {
        let (log, at) = (&mut self.logs[device], Self::at(packet, Context::Softirq));
        let t = BOOT[device].wall(true_ns);
        log.print(at, t, ifindex, header, header.len() as u32 + 100, (0, 0));
        log.call(at, "napi_gro_receive", t, t + 1_000);
        log.call(at, "ip_rcv", t + 1_500, t + 5_000);
        log.free(at, t + 6_000);
    }

    fn forward(&mut self, packet: i64, came: i64, went: i64, from: u32, header: [&[u8]; 2]) {
        let (log, at) = (&mut self.logs[ROUTER], Self::at(packet, Context::Softirq));
        let (t, u) = (BOOT[ROUTER].wall(came), BOOT[ROUTER].wall(went));
        log.print(at, t, from, header[0], header[0].len() as u32 + 100, (0, 0));
        log.call(at, "napi_gro_receive", t, t + 1_000);
        log.call(at, "ip_rcv", t + 1_500, u - 4_000);
        log.call(at, "ip_forward", t + 2_000, u - 5_000);
        log.print(at, u - 500, 5 - from, header[1], header[1].len() as u32 + 100, (0, 0));
        log.call(at, "dev_hard_start_xmit", u, u + 2_000);
        log.free(at, u + 9_000);
    }

    /// `known`: both kernels logged it.
    fn wire(&mut self, capture: usize, true_ns: i64, header: &[u8], hop: Hop, known: bool) {
        let n = self.hops.len() as u64;
        self.hops.push((hop, known));
        let wall = SNIFFERS[capture].wall(true_ns);
        self.captures[capture].frame(wall, 0, header.to_vec(), header.len() as u32 + 100, n);
    }

    /// Integrates, and gives the rows with what they should be by (capture, frame).
    fn join(self, dir: &Dir) -> (Several, Vec<CrossingRow>, Truth) {
        let devices = self.logs.len();
        self.logs.into_iter().for_each(LogWriter::close);
        let mut truth = HashMap::new();
        let mut paths = Vec::new();
        for (c, capture) in self.captures.into_iter().enumerate() {
            paths.push(dir.path(&format!("w{c}.pcapng")));
            truth.extend(capture.close().into_iter().map(|(n, id)| ((c as i32, n), self.hops[id as usize])));
        }
        let logs: Vec<PathBuf> = (0..devices).map(|d| dir.path(&format!("{}.kbl", NAMES[d]))).collect();
        let out = dir.path("out.kpat");
        let report = integrate_devices(&logs, &paths, &out, &Options::default(), &mut |_, _| ()).unwrap();
        let rows: Vec<CrossingRow> = TableFile::open(&out, &CROSSING).unwrap().all().unwrap();
        let c = &report.crossings;
        println!("{c:?}");
        assert_eq!(c.frames, truth.len() as u64);
        assert_eq!(c.frames, c.unmatched + c.one_kernel + c.crossed + c.ambiguous + c.undirected);
        assert_eq!(c.rows, rows.len() as u64);
        // Taken again: refused, and what stood there stays.
        let again = integrate_devices(&logs, &paths, &out, &Options::default(), &mut |_, _| ());
        assert!(matches!(again, Err(Error::Exists { .. })));
        (Several::open(&out).unwrap(), rows, truth)
    }
}

/// Every row is true, every frame that both kernels logged has one, and the true times lie within the bounds.
fn judge(rows: &[CrossingRow], truth: &Truth) {
    let mut widest = 0;
    for r in rows {
        let (hop, known) = truth[&(r.capture_id, r.number)];
        let got = (r.from_device as usize, r.from_packet_id, r.to_device as usize, r.to_packet_id);
        assert_eq!((got, true), (hop, known), "frame {} of capture {}", r.number, r.capture_id);
        let sniffer = SNIFFERS[r.capture_id as usize];
        let on_capture = |device: i32, t: i64| sniffer.wall(BOOT[device as usize].boot(t).round() as i64);
        let left = on_capture(r.from_device, r.left_ns);
        let arrived = on_capture(r.to_device, r.arrived_ns);
        // 600 ns: what a 64 bit float makes of times as long as these.
        for (got, real, bound) in [
            (r.left_wall_ns, left, r.left_bound_ns),
            (r.arrived_wall_ns, arrived, r.arrived_bound_ns),
            (r.flight_ns, arrived - left, r.flight_bound_ns),
        ] {
            assert!((got - real).abs() <= bound + 600, "{got} is not {real} ± {bound}");
        }
        assert!(left < r.wall_ns && r.wall_ns < arrived);
        widest = widest.max(r.flight_bound_ns);
    }
    println!("{} crossings, flight time within ± {widest} ns", rows.len());
    // The stamps are exact here, which nobody knows: their scatter is bounded by that of the delays, some 20 us.
    assert!(widest < 120_000, "a bound that says nothing: {widest} ns");
    let both = truth.values().filter(|(_, known)| *known).count();
    assert_eq!(rows.len(), both, "frames that both kernels logged");
}

/// Offset and drift of every two devices are what they were made to be.
fn judge_clocks(log: &Several, pairs: usize) {
    let clocks = log.clocks().unwrap();
    assert_eq!(clocks.len(), pairs);
    for c in clocks {
        let t = SNIFFERS[c.capture_id as usize].boot(c.at_wall_ns).round() as i64;
        let (a, b) = (BOOT[c.from_device as usize], BOOT[c.to_device as usize]);
        let real = b.wall(t) - a.wall(t);
        assert!((c.offset_ns - real).abs() <= c.bound_ns + 600, "{c:?}: {real}");
        let drift = ((b.drift - a.drift) * 1e9) as i64;
        assert!((c.drift_ppb - drift).abs() <= c.drift_bound_ppb + 10, "{c:?}: {drift} ppb");
    }
}

fn datagram(
    dst: Mac,
    src: Mac,
    from: [u8; 4],
    to: [u8; 4],
    ports: (u16, u16),
    ident: u16,
    ttl: u8,
) -> Vec<u8> {
    ether(dst, src, 0x800, &ipv4(from, to, ident, 17, ttl, 108, &udp(ports.0, ports.1, 100)))
}

/// Client and server on one wire; the server's log is given second, what it sends goes the other way.
#[test]
fn two_ends_of_a_wire() {
    let dir = Dir::new("two-ends");
    let mut w = Worlds::new(&dir, 2, 1);
    let mut random = Random(11);
    for n in 0..3_000i64 {
        let there = n % 2 == 0;
        let (from, to) = if there { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let left = SEC + n * 1_000_000 + random.below(300_000);
        let tap = left + 6_000 + random.below(40_000);
        let arrived = tap + 6_000 + random.below(40_000);
        let (ours, theirs) = (10_000 + n, 50_000 + n);
        let header = if there {
            datagram(mac(4), mac(1), [10, 0, 0, 1], [10, 0, 0, 2], (4_000, 53), n as u16 + 1, 64)
        } else {
            datagram(mac(1), mac(4), [10, 0, 0, 2], [10, 0, 0, 1], (53, 4_000), n as u16 + 1, 64)
        };
        // The server's log lacks some; the sniffer missed others.
        let known = n % 11 != 3;
        let logged = |device| known || device != SERVER;
        if logged(from) {
            w.send(from, ours, left, 2, &header);
        }
        if logged(to) {
            w.receive(to, theirs, arrived, 2, &header);
        }
        if n % 7 != 5 {
            w.wire(0, tap, &header, (from, ours, to, theirs), known);
        }
    }
    let (log, rows, truth) = w.join(&dir);
    judge(&rows, &truth);
    judge_clocks(&log, 1);
    let directions = log.directions().unwrap();
    assert_eq!(directions.len(), 2);
    assert_eq!(directions.values().map(|(_, packets)| packets).sum::<u64>(), rows.len() as u64);
    let r = &rows[500];
    let way = log.way(r.to_device, r.to_packet_id).unwrap();
    assert_eq!((way.came.as_slice(), way.went.len()), (std::slice::from_ref(r), 0));
}

/// Client, router, server; a capture on either side of the router. `nat`: the router gives its own address.
fn over_a_router(name: &str, nat: bool) {
    let dir = Dir::new(name);
    let mut w = Worlds::new(&dir, 3, 2);
    let mut random = Random(5);
    let (c, s, r) = ([10, 1, 0, 2], [10, 2, 0, 9], [10, 2, 0, 1]);
    let mut whole = 0;
    for n in 0..3_000i64 {
        let there = n % 2 == 0;
        let mut clock = SEC + n * 1_000_000 + random.below(200_000);
        let mut later = |most: i64| {
            clock += 6_000 + random.below(most);
            clock
        };
        let times: [i64; 6] = std::array::from_fn(|i| later(if i == 3 { 200_000 } else { 30_000 }));
        let [left, tap, came, went, tap2, arrived] = times.map(|t| t + 20_000);
        let went = went.max(came + 12_000);
        let (tap2, arrived) = (tap2.max(went + 4_000), arrived.max(went + 9_000));
        let ident = n as u16 + 1;
        let (seen, port) = if nat { (r, 61_000) } else { (c, 4_000) };
        let (from, to, first, second, in_by, wires) = if there {
            let first = datagram(mac(2), mac(1), c, s, (4_000, 53), ident, 64);
            let second = datagram(mac(4), mac(3), seen, s, (port, 53), ident, 63);
            (CLIENT, SERVER, first, second, 2, [0, 1])
        } else {
            let first = datagram(mac(3), mac(4), s, seen, (53, port), ident, 64);
            let second = datagram(mac(1), mac(2), s, c, (53, 4_000), ident, 63);
            (SERVER, CLIENT, first, second, 3, [1, 0])
        };
        let (ours, routed, theirs) = (10_000 + n, 30_000 + n, 50_000 + n);
        w.send(from, ours, left, 2, &first);
        w.forward(routed, came, went, in_by, [&first, &second]);
        w.receive(to, theirs, arrived, 2, &second);
        let (have1, have2) = (n % 7 != 5, n % 5 != 4);
        if have1 {
            w.wire(wires[0], tap, &first, (from, ours, ROUTER, routed), true);
        }
        if have2 {
            w.wire(wires[1], tap2, &second, (ROUTER, routed, to, theirs), true);
        }
        whole += i64::from(have1 && have2);
    }
    let (log, rows, truth) = w.join(&dir);
    judge(&rows, &truth);
    // Client and server have no capture in common.
    judge_clocks(&log, 2);
    // The chain is whole where both sniffers saw it, from whichever packet one starts.
    let mut chains = 0;
    for n in (0..3_000i64).step_by(97) {
        let expected = [if n % 2 == 0 { 0 } else { 1 }, 2, if n % 2 == 0 { 1 } else { 0 }];
        let packets = [10_000 + n, 30_000 + n, 50_000 + n];
        if n % 7 == 5 || n % 5 == 4 {
            continue;
        }
        let want: Vec<(i32, i64)> = expected.into_iter().zip(packets).collect();
        for &(device, packet) in &want {
            let chain = log.chain(device, packet).unwrap();
            assert_eq!((&chain.packets, chain.crossings.len(), chain.cut), (&want, 2, false));
        }
        chains += 1;
    }
    assert!(chains > 10 && whole > 1_000);
}

#[test]
fn over_a_router_that_translates() {
    over_a_router("nat", true);
}

/// Without translation all three kernels know each frame by the same addresses: the hop must still be the right one.
#[test]
fn over_a_router_that_does_not() {
    over_a_router("routed", false);
}
