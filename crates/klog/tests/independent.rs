//! A reader that was written from `docs/kbl-format.md` alone (`kbl.py`) reads the same records as this one, of made logs with every value that
//! a field can have, and of logs that recorders wrote.

#![allow(clippy::unwrap_used)]

mod sample;

use kpat_klog::*;
use kpat_model::*;
use std::path::{Path, PathBuf};
use std::process::Command;

fn task(pid: u32, ctx: Context) -> u64 {
    u64::from(pid) << 3 | ctx as u64
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn end_of(address: &[u8; 16]) -> &[u8] {
    &address[..address.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1)]
}

fn line(r: &Record) -> String {
    match r {
        Record::Call(c) => format!(
            "call end={} duration={} function={} packet={} skb_tag={} task={} flags={}",
            c.entry.0.wrapping_add(c.dur_ns as i64),
            c.dur_ns,
            c.func.0,
            c.packet.0,
            c.skb_tag,
            task(c.pid, c.ctx),
            c.flags
        ),
        Record::Point(p) => format!(
            "point at={} function={} length={} ends={} packet={} skb_tag={} task={} put_off={}",
            p.at.0,
            p.func.0,
            p.len_bytes,
            u8::from(p.ends),
            p.packet.0,
            p.skb_tag,
            task(p.pid, p.ctx),
            u8::from(p.put_off)
        ),
        Record::Member(m) => {
            format!("member entry={} function={} packet={}", m.entry.0, m.func.0, m.packet.0)
        }
        Record::Footprint(f) => format!(
            "footprint at={} packet={} skb_tag={} ifindex={} netns={} link_type={} length={} gso_size={} gso_segs={} \
             protocol={} start_layer={} ip_proto={} header={}",
            f.at.0,
            f.packet.0,
            f.skb_tag,
            f.ifindex,
            f.netns,
            f.link_type,
            f.len_bytes,
            f.gso_size,
            f.gso_segs,
            f.protocol,
            f.start_layer,
            f.ip_proto,
            hex(&f.header)
        ),
        Record::Lineage(l) => {
            format!(
                "lineage at={} lineage={} parent={} child={}",
                l.at.0, l.kind as u8, l.parent.0, l.child.0
            )
        }
        Record::Place(p) => format!(
            "place at={} packet={} skb_tag={} ifindex={} netns={} link_type={}",
            p.at.0, p.packet.0, p.skb_tag, p.ifindex, p.netns, p.link_type
        ),
        Record::Event(e) => {
            let (timed, within) = match e.timed {
                Timed::Kernel => (0, 0),
                Timed::Recorder => (1, 0),
                Timed::Read { within_ns } => (2, within_ns),
            };
            format!(
                "event at={} task={} event={} timed={timed} within={within} packet={} netns={} a={} b={} text={}",
                e.at.0,
                task(e.pid, e.ctx),
                e.kind as u8,
                e.packet.0,
                e.netns,
                e.a,
                e.b,
                hex(e.text.as_bytes())
            )
        }
        Record::Process(p) => {
            format!("process at={} pid={} tgid={} name={}", p.at.0, p.pid, p.tgid, hex(p.comm.as_bytes()))
        }
        Record::Loss(l) => format!(
            "loss to={} from={} cause={} cpu={} count={}",
            l.to.0, l.from.0, l.cause as u8, l.cpu, l.count
        ),
        Record::OffCpu(p) => format!(
            "pause to={} task={} duration={} flags={} wait={} cpu_out={} cpu_in={}",
            p.to.0,
            task(p.pid, Context::Task),
            p.to.0.wrapping_sub(p.from.0) as u64,
            u16::from(p.preempted) | u16::from(p.more) << 1 | p.sleep.map_or(0, |s| s as u16) << 8,
            p.wait_ns,
            p.cpu_out,
            p.cpu_in
        ),
        Record::Poll(p) => format!(
            "poll at={} packet={} since={} wait={}",
            p.at.0,
            p.packet.0,
            p.since_ns.map_or(0, |ns| ns + 1),
            p.wait_ns.map_or(0, |ns| ns + 1)
        ),
        Record::PollEnd(p) => format!(
            "poll-end at={} packet={} taken={} budget={} round={}",
            p.at.0, p.packet.0, p.taken, p.budget, p.round
        ),
        Record::CardStamp(s) => format!(
            "card-stamp at={} packet={} netns={} ifindex={} card={}",
            s.at.0, s.packet.0, s.netns, s.ifindex, s.card_ns as u64
        ),
        Record::CardReading(r) => format!(
            "card-reading at={} netns={} ifindex={} card={} bound={} clock={}",
            r.at.0,
            r.netns,
            r.ifindex,
            r.card_ns as u64,
            r.bound_ns,
            hex(r.clock.as_bytes())
        ),
        Record::Work(w) => format!(
            "work at={} busy={} purpose={} victim={} socket={} took={} packets={} bytes={}",
            w.at.0, w.busy as u8, w.purpose as u8, w.victim, w.socket, w.ns, w.packets, w.bytes
        ),
        Record::SocketUse(u) => format!(
            "socket-use at={} how={} socket={} process={} bytes={} times={}",
            u.at.0, u.how as u8, u.socket, u.process, u.bytes, u.times
        ),
        Record::CpuTime(c) => format!(
            "cpu-time at={} opened={} unplaced={} user={} system={} idle={} irq={} softirq={} steal={}",
            c.at.0,
            c.opened.0,
            c.unplaced_ns,
            c.user_ns,
            c.system_ns,
            c.idle_ns,
            c.irq_ns,
            c.softirq_ns,
            c.steal_ns
        ),
        Record::CpuPackets(p) => format!(
            "cpu-packets at={} opened={} counted={} received={}",
            p.at.0, p.opened.0, p.counted, p.received
        ),
        Record::BlockRequests(b) => format!(
            "block-requests at={} opened={} counted={} completed={}",
            b.at.0, b.opened.0, b.counted, b.completed
        ),
        Record::Peer(p) => format!(
            "peer at={} number={} socket={} process={} datagrams={} local_port={} peer_port={} local={} peer={}",
            p.at.0,
            p.number,
            p.socket,
            p.process,
            u8::from(p.datagrams),
            p.local_port,
            p.peer_port,
            hex(p.local.as_bytes()),
            hex(p.peer.as_bytes())
        ),
        Record::ProcessLabel(l) => format!(
            "process-label at={} started={} process={} uid={} cgroup={} path={} name={} user={}",
            l.at.0,
            l.started.0,
            l.process,
            l.uid,
            l.cgroup,
            hex(l.path.as_bytes()),
            hex(l.name.as_bytes()),
            hex(l.user.as_bytes())
        ),
        Record::Sample(s) => format!(
            "sample at={} thread={} process={} busy={} purpose={} flags={} socket={} kernel={} user={} period={}",
            s.at.0,
            s.thread,
            s.process,
            s.busy as u8,
            s.purpose as u8,
            s.flags,
            s.socket,
            s.kernel,
            s.user,
            s.period_ns
        ),
        Record::Stack(s) => {
            format!("stack at={} number={} process={} frames={}", s.at.0, s.number, s.process, hex(&s.frames))
        }
        Record::Mapping(m) => format!(
            "mapping at={} process={} what={} start={} length={} offset={} name={} build={}",
            m.at.0,
            m.process,
            m.what as u8,
            m.start,
            m.length,
            m.offset,
            hex(m.name.as_bytes()),
            hex(&m.build_id)
        ),
        Record::Program(p) => format!(
            "program at={} task={} place={} stage={} faults={} v0={} v1={} v2={} v3={} text={}",
            p.at.0,
            task(p.pid, Context::Task),
            p.func.0,
            p.stage as u8,
            p.faults,
            p.values[0],
            p.values[1],
            p.values[2],
            p.values[3],
            hex(p.text.as_bytes())
        ),
        Record::Wifi(w) => format!(
            "wifi-event at={} task={} point={} event={} netns={} ifindex={} frequency={} a={} b={} c={} address={} wiphy={} text={}",
            w.at.0,
            task(w.pid, w.ctx),
            w.point.0,
            w.what as u8,
            w.netns,
            w.ifindex,
            w.frequency,
            w.a as u64,
            w.b as u64,
            w.c as u64,
            hex(w.address.as_ref().map_or(&[], |a| &a[..])),
            hex(w.wiphy.as_bytes()),
            hex(w.text.as_bytes())
        ),
        Record::Link(l) => {
            let (timed, within) = match l.timed {
                Timed::Kernel => (0, 0),
                Timed::Recorder => (1, 0),
                Timed::Read { within_ns } => (2, within_ns),
            };
            format!(
                "link-event at={} task={} event={} timed={timed} within={within} function={} netns={} ifindex={} a={} b={}",
                l.at.0,
                task(l.pid, l.ctx),
                l.what as u8,
                u8::from(l.function),
                l.netns,
                l.ifindex,
                l.a as u64,
                l.b as u64
            )
        }
        Record::Exchange(x) => format!(
            "exchange at={} task={} protocol={} message={} sent={} netns={} ifindex={} length={} id={} link={} network={} subject={}",
            x.at.0,
            task(x.pid, x.ctx),
            x.protocol as u8,
            x.message,
            u8::from(x.sent),
            x.netns,
            x.ifindex,
            x.length,
            x.id,
            hex(x.link.as_ref().map_or(&[], |l| l.as_flattened())),
            hex(&x.network),
            hex(&x.subject)
        ),
        Record::GuestClock(r) => {
            format!("guest-clock at={} guest={} bound={}", r.at.0, r.guest.0 as u64, r.bound_ns)
        }
    }
}

fn app_line(r: &AppRecord) -> String {
    match r {
        AppRecord::Crossing(c) => format!(
            "crossing at={} crossing={} socket={} size={} segments={} sequence={} task={}",
            c.at.0,
            c.what as u8,
            c.sock,
            c.size,
            c.segments,
            c.seq,
            task(c.pid, c.ctx)
        ),
        AppRecord::Socket(s) => format!(
            "socket at={} cookie={} cgroup={} netns={} version={} protocol={} state={} pid={} ports={} privacy={} owner={} error={} above={} \
             address={} peer={} congestion={}",
            s.at.0,
            s.cookie,
            s.cgroup,
            s.netns,
            s.version,
            s.protocol,
            u32::from(s.state) | u32::from(s.kernels) << 8,
            s.pid,
            u64::from(s.port) << 16 | u64::from(s.peer_port),
            s.privacy as u8,
            s.uid.map_or(0, |uid| u64::from(uid) + 1),
            s.error,
            s.above,
            hex(end_of(&s.addr)),
            hex(end_of(&s.peer)),
            hex(end_of(&s.congestion))
        ),
        AppRecord::Tcp(t) => {
            let values: Vec<String> =
                t.values().iter().enumerate().map(|(i, v)| format!("value{i}={v}")).collect();
            format!("tcp-state at={} socket={} {}", t.at.0, t.sock, values.join(" "))
        }
        AppRecord::Gap(g) => format!("gap until={} since={} lost={}", g.until.0, g.since.0, g.lost),
        AppRecord::ThreadTime(t) => format!(
            "thread-time until={} since={} socket={} thread={} ran={} waited={} slept={}",
            t.until.0, t.since.0, t.sock, t.thread, t.ran_ns, t.waited_ns, t.slept
        ),
    }
}

/// What the other reader prints: lines of each CPU's records in order, and those of applications, which this reader sorts by time.
fn compare(path: &Path) -> usize {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kbl.py");
    let out = Command::new("python3").arg(script).arg(path).output().unwrap();
    assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
    let theirs = String::from_utf8(out.stdout).unwrap();
    let log = Log::open(path).unwrap();
    let of_application = |l: &str| {
        let kind = l.split(' ').nth(1).unwrap();
        ["crossing", "socket", "tcp-state", "gap", "thread-time"].contains(&kind)
    };
    let (mut app, records): (Vec<&str>, Vec<&str>) = theirs.lines().partition(|l| of_application(l));
    for cpu in log.cpus() {
        let begins = format!("{cpu} ");
        let mut theirs = records.iter().filter(|l| l.starts_with(&begins));
        for r in log.records(cpu) {
            let ours = begins.clone() + &line(&r);
            assert_eq!(theirs.next(), Some(&ours.as_str()), "{}, CPU {cpu}", path.display());
        }
        assert_eq!(theirs.next(), None, "{}, CPU {cpu}", path.display());
    }
    let mut ours: Vec<String> = log.app_records().map(|(cpu, r)| format!("{cpu} {}", app_line(&r))).collect();
    ours.sort_unstable();
    app.sort_unstable();
    assert!(ours.iter().eq(app.iter()), "{}: application records differ", path.display());
    assert_eq!(log.verify(), []);
    theirs.lines().count()
}

struct File(PathBuf);

impl File {
    fn of(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("kpat-klog-{name}-{}.kbl", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn made_logs_are_read_alike() {
    for seed in 0..6 {
        let codec = if seed % 3 == 0 { Codec::Zstd } else { Codec::None };
        let (bytes, records) = sample::log(seed, 4, 400, codec);
        let file = File::of(&format!("made-{seed}"), &bytes);
        assert_eq!(compare(&file.0), records.iter().map(Vec::len).sum::<usize>());
    }
}

fn application(rng: &mut sample::Rng, at: &mut i64) -> AppRecord {
    *at += rng.below(5_000) as i64;
    let sock = (rng.below(70) as u32).wrapping_mul(0x1000_0001);
    match rng.below(12) {
        0 => {
            let mut addr = [0; 16];
            addr[..rng.below(17) as usize].fill(7);
            AppRecord::Socket(Box::new(SocketRecord {
                at: BootNs(*at),
                cookie: rng.wide(),
                cgroup: rng.wide(),
                netns: rng.wide() as u32,
                version: 4,
                protocol: rng.wide() as u16,
                state: rng.wide() as u8,
                kernels: rng.one_in(2),
                pid: rng.wide() as u32,
                port: rng.wide() as u16,
                peer_port: rng.wide() as u16,
                privacy: Privacy::from_u8(rng.below(3) as u8),
                addr,
                peer: [rng.next() as u8; 16],
                congestion: *b"cubic\0\0\0\0\0\0\0\0\0\0\0",
                uid: rng.one_in(2).then(|| rng.wide() as u32),
                error: rng.below(128) as u8,
                above: rng.wide(),
            }))
        }
        1 => {
            let mut values = [0; TcpRecord::FIELDS];
            values.iter_mut().for_each(|v| *v = if rng.one_in(3) { rng.below(100) } else { 0 });
            AppRecord::Tcp(Box::new(TcpRecord::from_values(BootNs(*at), sock, &values)))
        }
        2 => AppRecord::Gap(Gap {
            since: BootNs(*at - rng.below(1_000) as i64),
            until: BootNs(*at),
            lost: rng.wide() as u32,
        }),
        3 => AppRecord::ThreadTime(ThreadTime {
            since: BootNs(*at - rng.below(90_000_000) as i64),
            until: BootNs(*at),
            sock,
            thread: rng.wide() as u32,
            ran_ns: rng.below(90_000_000),
            waited_ns: rng.below(90_000_000),
            slept: rng.wide() as u32,
        }),
        _ => AppRecord::Crossing(CrossingRecord {
            what: Crossing::ALL[rng.below(Crossing::ALL.len() as u64) as usize],
            ctx: Context::from_u8(rng.below(4) as u8),
            pid: rng.below(3) as u32,
            sock,
            at: BootNs(*at),
            size: rng.wide() as i32,
            segments: rng.below(3) as u16,
            seq: rng.wide() as u32,
        }),
    }
}

#[test]
fn made_application_logs_are_read_alike() {
    for seed in 0..4 {
        let (mut rng, mut at) = (sample::Rng::new(seed + 77), 1_000_000);
        let mut w = Writer::new(Vec::new());
        w.json(&sample::meta()).unwrap();
        for cpu in 0..3 {
            let codec = if cpu == 0 { Codec::Zstd } else { Codec::None };
            let mut e = AppEncoder::new(cpu, codec);
            for _ in 0..600 {
                e.record(&application(&mut rng, &mut at));
            }
            w.chunk(e.finish().unwrap()).unwrap();
        }
        w.json(&sample::summary(true)).unwrap();
        let file = File::of(&format!("app-{seed}"), &w.into_inner());
        assert_eq!(compare(&file.0), 1_800);
    }
}

#[test]
fn recorded_logs_are_read_alike() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrate/tests/recorded_logs");
    let mut logs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "kbl") {
            assert!(compare(&path) > 100, "{}", path.display());
            logs += 1;
        }
    }
    assert!(logs >= 4);
}
