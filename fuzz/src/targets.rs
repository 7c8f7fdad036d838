//! Everything of kpat that reads what strangers write, each as a function of bytes that must return: no panic, no loop without
//! end, no memory beyond the stated limits. libFuzzer's programs call them, and so does `crates/kpat/tests/fuzz.rs`.

use kpat_model::{BootNs, FootprintRecord, HeaderBytes, PacketId};
use std::io::Cursor;
use std::path::{Path, PathBuf};

pub type Target = fn(&[u8]);

/// By name.
pub const ALL: &[(&str, Target)] = &[
    ("kbl", kbl),
    ("capture", capture),
    ("decode", decode),
    ("message", message),
    ("table", table),
    ("http", http),
    ("filter", filter),
    ("control", control),
    ("trace", trace),
    ("gather", gather),
    ("log_lines", log_lines),
    ("announce", announce),
    ("program", program),
    ("guest_memory", guest_memory),
    ("guest_lines", guest_lines),
    ("guest_text", guest_text),
];

/// A folder of this thread's own, for readers that want files.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Scratch {
        let thread = format!("{:?}", std::thread::current().id());
        let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
        let path = std::env::temp_dir().join(format!("kpat-fuzz-{}-{digits}-{what}", std::process::id()));
        let _ = std::fs::create_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A kernel behaviour log: as it is, and with all checksums made right, so that the decoders behind them are reached.
pub fn kbl(bytes: &[u8]) {
    read_kbl(bytes.to_vec());
    read_kbl(sealed(bytes));
}

fn read_kbl(bytes: Vec<u8>) {
    let Ok(mut log) = kpat_klog::Log::from_bytes(bytes) else { return };
    let claimed: u64 = log.chunk_index().iter().map(|c| u64::from(c.count)).sum();
    assert!(log.all_merged().count() as u64 <= claimed, "more records than the headers claim");
    log.verify();
    let _ = (log.meta(), log.devices(), log.symbols(), log.summary(), log.end_state());
    // Followed: what is older than the chunk in the middle is forgotten, and nothing came.
    let all = log.all_merged().count() as u64;
    let Some(middle) = log.chunk_index().get(log.chunk_index().len() / 2).map(|c| c.last) else { return };
    log.forget(middle);
    assert!(
        log.all_merged().count() as u64 + log.forgotten().map_or(0, |f| f.records) == all,
        "forgotten twice, or lost"
    );
    assert!(matches!(log.grow(), Ok(false)), "nothing can have come");
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    const MAGIC: &[u8] = b"\x89KBL\r\n\x1a";
    let mut out = bytes.to_vec();
    let starts: Vec<usize> =
        out.windows(MAGIC.len()).enumerate().filter(|w| w.1 == MAGIC).map(|w| w.0).collect();
    for (i, &at) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(out.len());
        let chunk = &mut out[at..end];
        if chunk.len() < 64 {
            continue;
        }
        let stored = (chunk.len() - 64) as u32;
        chunk[16..20].copy_from_slice(&stored.to_le_bytes());
        if chunk[9] == 0 {
            chunk[20..24].copy_from_slice(&stored.to_le_bytes());
        }
        let crc = crc32c::crc32c(&chunk[..56]);
        chunk[56..60].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&chunk[..60]), &chunk[64..]);
        chunk[60..64].copy_from_slice(&crc.to_le_bytes());
    }
    out
}

/// pcap, pcapng, and either in gzip or zstd, with the decoder behind it.
pub fn capture(bytes: &[u8]) {
    let Ok(mut reader) = kpat_capture::Reader::from_read(Cursor::new(bytes.to_vec()), Path::new("fuzz"))
    else {
        return;
    };
    while let Ok(Some(f)) = reader.next() {
        let (interface, data, len) = (f.interface, f.data.to_vec(), f.len_wire);
        let link_type = reader.interfaces().get(interface as usize).map_or(1, |i| i.link_type);
        let _ = kpat_capture::decode::frame(link_type, &data, len);
    }
    let _ = (reader.warnings(), reader.interfaces());
}

/// The header decoder: two bytes of link type or layer, then a frame or a packet of the kernel's.
pub fn decode(bytes: &[u8]) {
    let Some((head, data)) = bytes.split_first_chunk::<4>() else { return };
    let link_type = u16::from_le_bytes([head[0], head[1]]);
    let _ = kpat_capture::decode::frame(link_type, data, data.len() as u32 + u32::from(head[2]));
    let _ = kpat_capture::decode::l3(link_type, data, data.len() as u32);
    let _ = kpat_capture::decode::packet(&FootprintRecord {
        packet: PacketId(1),
        at: BootNs(1),
        ifindex: 1,
        netns: 0,
        len_bytes: u32::from(head[2]) * 16,
        gso_size: u16::from(head[3] & 8) * 100,
        gso_segs: 0,
        protocol: [0, 0x0800, 0x86dd, 0x0806, 0x8100, link_type][usize::from(head[2]) % 6],
        start_layer: head[3] & 7,
        ip_proto: head[2],
        link_type,
        skb_tag: 0,
        header: HeaderBytes::new(data),
    });
}

/// What stands behind headers, or in their options: a text of bounded length without control characters.
pub fn message(bytes: &[u8]) {
    let Some((&kind, data)) = bytes.split_first() else { return };
    let data = &data[..data.len().min(1400)];
    let udp = |port: u16| {
        let len = (data.len() as u16 + 8).to_be_bytes();
        (17, [&port.to_be_bytes()[..], &port.to_be_bytes(), &len, &[0, 0], data].concat())
    };
    let tcp = |words: u8, port: u16| {
        let head = [0, 0, 0, 1, 0, 0, 0, 2, words << 4, 2, 1, 0, 0, 0, 0, 0];
        (6, [&port.to_be_bytes()[..], &port.to_be_bytes(), &head, data].concat())
    };
    let (proto, payload) = match kind % 12 {
        0 => udp(53),
        1 => udp(67),
        2 => udp(546),
        3 => udp(5353),
        4 => tcp(15, 9),
        5 => tcp(kind >> 4, 53),
        6 => tcp(5, 53),
        7 => (1, data.to_vec()),
        8 => (58, data.to_vec()),
        // ARP, RARP.
        kind => (kind, data.to_vec()),
    };
    let (ethertype, packet) = match (kind % 12, proto) {
        (9, _) => (0x0806, payload),
        (10, _) => (0x8035, [&[0, 1, 8, 0, 6, 4][..], &payload].concat()),
        (_, 58) => {
            let len = (payload.len() as u16).to_be_bytes();
            (0x86dd, [&[0x60, 0, 0, 0][..], &len, &[58, 64], &[0; 32], &payload].concat())
        }
        _ => {
            let len = (payload.len() as u16 + 20).to_be_bytes();
            (0x0800, [&[0x45, 0][..], &len, &[0, 0, 0, 0, 64, proto, 0, 0], &[0; 8], &payload].concat())
        }
    };
    let print = kpat_capture::decode::l3(ethertype, &packet, packet.len() as u32);
    if let Some(message) = print.message {
        assert!(message.text.len() < 1500, "{} bytes", message.text.len());
        assert!(!message.text.chars().any(char::is_control), "{:?}", message.text);
    }
}

/// A table of an integrated log.
pub fn table(bytes: &[u8]) {
    use kpat_store::tables::{EVENT, EventRow};
    let folder = Scratch::new("table");
    if std::fs::write(folder.0.join(EVENT.file_name()), bytes).is_err() {
        return;
    }
    let Ok(t) = kpat_store::TableFile::open(&folder.0, &EVENT) else { return };
    for g in 0..t.groups().min(64) {
        let _ = t.ints(g, "at_ns");
        let _ = t.rows_at::<EventRow>(g, &[1, 50]);
    }
    let _ = t.rows_equal::<EventRow>("packet_id", &[3, 30]);
    let _ = t.all::<EventRow>();
}

/// Heads and bodies of requests and answers.
pub fn http(bytes: &[u8]) {
    use kpat_http::{Request, Response, Untimed, Wire};
    if let Ok(Some((r, used))) = Request::parse(bytes) {
        assert!(used <= bytes.len(), "a head that is longer than what came");
        let _ = (r.path(), r.query(), r.header("host"));
    }
    let _ = Response::parse(bytes);
    let mut wire = Wire::new(Untimed(bytes), std::io::sink());
    // Requests without a body, one after the other, as a connection that stays has them.
    for _ in 0..64 {
        if wire.request().is_err() {
            break;
        }
    }
    let mut wire = Wire::new(Untimed(bytes), std::io::sink());
    if wire.response().is_ok() {
        let _ = std::io::copy(&mut wire.body(1000), &mut std::io::sink());
    }
}

/// Expressions: of packets in look-ups, and pcap's in recordings, the latter asked of a packet, too.
pub fn filter(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = kpat_query::filter::Filter::parse(&text);
    let _ = kpat_query::filter::parse_duration(&text);
    // What follows the first line is the packet.
    let (expression, packet) = text.split_once('\n').unwrap_or((&text, ""));
    // libpcap asks the network for names that it does not know, and that is not what is under test.
    let known = |w: &str| {
        const WORDS: &str = "tcp udp icmp icmp6 ip ip6 arp port portrange host net src dst and or not vlan ether less greater \
                             proto broadcast multicast len mask gateway mpls inbound outbound";
        w.starts_with(|c: char| c.is_ascii_digit()) || WORDS.split_whitespace().any(|k| k == w)
    };
    let mut words = expression.split(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | ':' | '_' | '-'));
    if !words.all(|w| w.is_empty() || known(w)) {
        return;
    }
    let _ = kpat_probe::filter::compile(expression);
    if let Ok(program) = kpat_probe::filter::pcap::compile(expression, 1)
        && !program.is_empty()
    {
        let _ = kpat_probe::filter::pcap::matches(&program, packet.as_bytes());
    }
}

/// A line to a recorder's socket.
pub fn control(bytes: &[u8]) {
    use kpat_probe::control::{Reply, Request, Status};
    let text = String::from_utf8_lossy(bytes);
    if let Ok(r) = serde_json::from_str::<Request>(&text) {
        let again = serde_json::to_string(&r).unwrap_or_default();
        assert!(serde_json::from_str::<Request>(&again).is_ok(), "what is written can be read: {again}");
    }
    let _ = serde_json::from_str::<Reply>(&text);
    let _ = serde_json::from_str::<Status>(&text);
}

/// An application trace.
pub fn trace(bytes: &[u8]) {
    let _ = kpat_formats::app_trace::read(Cursor::new(bytes));
}

/// What a device says to the gathering side; what it leaves there is a file of its own folder.
pub fn gather(bytes: &[u8]) {
    let root = Scratch::new("gather");
    let _ = kpat_collect::receive::serve(&root.0, "dev1", Some(1 << 20), bytes, std::io::sink(), &mut |_| {});
    let Ok(entries) = std::fs::read_dir(&root.0) else { return };
    for e in entries.flatten() {
        assert!(e.file_name() == "dev1", "a file outside of the device's folder: {:?}", e.file_name());
    }
}

/// Log files of a device: text with dates, the journal's exports. What becomes an event is short, and its bounds are in order.
pub fn log_lines(bytes: &[u8]) {
    // 2026-11-22 10:22:30 UTC, a minute after boot.
    let anchor = kpat_model::meta::ClockAnchor {
        boot: BootNs(60_000_000_000),
        wall: kpat_model::WallNs(1_795_342_950_000_000_000),
        ..Default::default()
    };
    let Ok(rows) = kpat_integrate::events_of_lines(bytes, anchor, 3_600_000_000_000) else { return };
    // An entry of the journal has more than one line.
    let lines = bytes.iter().filter(|b| **b == b'\n').count() + 2;
    assert!(rows.len() <= lines, "{} events of {lines} lines", rows.len());
    for row in rows {
        assert!(row.after_ns.is_some_and(|after| after <= row.at_ns), "{row:?}");
        assert!(row.text.len() < 500 && (1..=lines as i64).contains(&row.b), "{row:?}");
    }
}

/// Announcements of links, addresses, routes and neighbours.
pub fn announce(bytes: &[u8]) {
    let mut decoder = kpat_probe::netlink::Decoder::new(1);
    let mut events = 0;
    decoder.decode(bytes, BootNs(1), &mut |e| {
        events += 1;
        let _ = kpat_probe::app::Addresses::LeftOut.event(&e);
    });
    assert!(events <= bytes.len(), "more announcements than bytes");
}

/// A file of user space in which functions and probes are looked for, and rows of a table of programs.
pub fn program(bytes: &[u8]) {
    let _ = kpat_probe::programs::probes_in(bytes.to_vec());
    let text = String::from_utf8_lossy(bytes);
    for row in kpat_model::programs::parse(&text).unwrap_or_default().rows {
        let again = kpat_model::programs::Row::parse(&row.line).expect("a row that was read is read again");
        assert_eq!(again, row);
        let _ = row.say(None, None);
    }
}

/// The memory of a guest: page tables, the kernel's image, its table of symbols, its types; and the same bytes as a file of symbols.
pub fn guest_memory(bytes: &[u8]) {
    use kpat_guest::symbols::{Builder, files, kallsyms};
    use kpat_guest::{Memory, Registers, Symbols};
    const BASE: u64 = 0xffff_ffff_9aa0_0000;
    for levels in [0, 1 << 12] {
        let r = Registers {
            cr0: 1 << 31,
            cr3: 0x1000,
            cr4: 1 << 5 | levels,
            efer: 1 << 10,
            idt_base: BASE + 511 * 4096,
            ..Registers::default()
        };
        let Ok(memory) = Memory::of_dump(bytes, &r) else { continue };
        if let Ok(s) = Symbols::read(&memory, &r) {
            let _ = (s.at(BASE + 100), s.parse("_text+4"), s.member("task_struct.comm"), s.release().len());
        }
        for at in [BASE, 0, u64::MAX, r.idt_base] {
            let _ = (memory.string_at(at, 1000), memory.write(at, &[0; 20]));
        }
    }
    let mut symbols = Builder::default();
    let _ = kallsyms::read(bytes, BASE, BASE, &mut symbols);
    let _ = files::read(&bytes, &mut symbols);
    assert!(symbols.len() <= bytes.len(), "more symbols than bytes");
}

/// A file with the source lines of a guest's kernel or module: sections, packed or not, what is filled in of one without addresses, programs of lines.
pub fn guest_lines(bytes: &[u8]) {
    use kpat_guest::symbols::elf::{self, Elf};
    use kpat_guest::symbols::lines::{Found, Lines, Search};
    let _ = elf::build_id(bytes);
    let Ok(elf) = Elf::read(&bytes) else { return };
    let _ = elf.build_id();
    let Ok(Some(lines)) = Lines::read(&elf) else { return };
    for (path, line) in [("a.c", 5), ("/src/a.h", 3), ("../b.c", u64::MAX)] {
        let mut search = Search::new(path, line);
        let _ = lines
            .search(&mut search, &|a| lines.code.iter().any(|(_, place)| place.contains(&a)).then_some(a));
        match search.found() {
            Found::Rows { rows, .. } => assert!(rows.is_sorted(), "{rows:?}"),
            Found::NoCode { next, last, .. } => assert!(next.is_none_or(|n| line < n && n <= last)),
            _ => {}
        }
        let _ = lines.like(&search);
    }
}

/// What a guest's QEMU says: the layout of memory, registers, packets of its debugger, events; and its command line.
pub fn guest_text(bytes: &[u8]) {
    use kpat_guest::gdb::{Block, Stop, packet, xp::Skip};
    use kpat_guest::{Registers, discover::Asked, memory::layout, qmp};
    let text = String::from_utf8_lossy(bytes);
    for r in layout::parse(&text).unwrap_or_default() {
        assert!(r.end() > r.physical);
    }
    let _ = Registers::parse(&text).map(|r| r.levels());
    let _ = Asked::read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let mut rest = bytes.to_vec();
    let mut packets = 0;
    while let Ok(Some(got)) = packet::take(&mut rest) {
        packets += 1;
        if let packet::Got::Packet(p) = got {
            let _ = (Stop::parse(&p), Block::parse(&p).map(|b| b.registers()));
        }
    }
    assert!(packets <= bytes.len(), "more packets than bytes");
    let _ = (Stop::parse(bytes), Skip::of(bytes), Block::parse(bytes));
    if let Ok(v) = serde_json::from_str(&text) {
        let _ = qmp::read_event(&v);
    }
}
