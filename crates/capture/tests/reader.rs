//! Every form of file that the reader must understand, and those that it must survive.

mod generate;

use std::io::{Cursor, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use generate::files::{MICRO, MODIFIED, NANO, Ng, ORDERS, Order, pcap};
use generate::frames;
use kpat_capture::{Direction, Error, Reader, decode};

/// What a frame is compared by.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    number: u64,
    interface: u32,
    at: i64,
    len_wire: u32,
    data: Vec<u8>,
    direction: Option<Direction>,
    offset: u64,
}

fn open(bytes: &[u8]) -> Result<Reader, Error> {
    Reader::from_read(Cursor::new(bytes.to_vec()), Path::new("test"))
}

/// All frames, and the error that ended them.
fn drain(reader: &mut Reader) -> (Vec<Got>, Option<Error>) {
    let mut got = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(f)) => got.push(Got {
                number: f.number,
                interface: f.interface,
                at: f.at.0,
                len_wire: f.len_wire,
                data: f.data.to_vec(),
                direction: f.direction,
                offset: f.offset,
            }),
            Ok(None) => return (got, None),
            Err(e) => {
                assert!(matches!(reader.next(), Ok(None)), "an error is given once");
                return (got, Some(e));
            }
        }
    }
}

fn read(bytes: &[u8]) -> (Vec<Got>, Reader) {
    let mut reader = open(bytes).expect("it is a capture");
    let (got, error) = drain(&mut reader);
    assert!(error.is_none(), "{error:?}");
    (got, reader)
}

const TIMES: [u64; 3] = [0, 1_700_000_000_123_456_789, 4_294_967_295_999_999_999];

fn three() -> Vec<(u64, u32, Vec<u8>)> {
    TIMES.into_iter().zip(1u8..).map(|(t, i)| (t, 1000 + u32::from(i), vec![i; 13 * i as usize])).collect()
}

#[test]
fn classic_files_of_every_kind() {
    for order in ORDERS {
        for (magic, step, header) in [(MICRO, 1000, 16), (NANO, 1, 16), (MODIFIED, 1000, 24)] {
            // The upper bits of the link type are about the frame check sequence.
            let (got, reader) = read(&pcap(order, magic, 0x1400_0001, &three()));
            let interface = &reader.interfaces()[0];
            assert_eq!((interface.link_type, interface.snaplen), (1, 262_144));
            assert_eq!(interface.ts_resolution_ns, step);
            let mut offset = 24;
            for (g, (ns, len_wire, data)) in got.iter().zip(three()) {
                assert_eq!(g.at as u64, ns / step * step, "{order:?} {magic:x}");
                assert_eq!((g.len_wire, &g.data, g.offset), (len_wire, &data, offset));
                offset += header + data.len() as u64;
            }
            assert_eq!(got.iter().map(|g| g.number).collect::<Vec<_>>(), [1, 2, 3]);
            assert_eq!(reader.warnings(), []);
        }
    }
}

#[test]
fn compressed_files() {
    let plain = pcap(Order::Little, NANO, 1, &three());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::stream::encode_all(&plain[..], 3).unwrap();
    let (expected, _) = read(&plain);
    for packed in [gzip, zstd] {
        assert_eq!(read(&packed).0, expected);
        // Torn anywhere: a prefix of the frames, or no capture; never an error while reading.
        for len in 0..packed.len() {
            if let Ok(mut reader) = open(&packed[..len]) {
                let (got, error) = drain(&mut reader);
                assert!(error.is_none(), "{error:?}");
                assert_eq!(got, expected[..got.len()]);
            }
        }
        let mut damaged = packed.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0xff;
        if let Ok(mut reader) = open(&damaged) {
            let (_, error) = drain(&mut reader);
            assert!(matches!(error, None | Some(Error::Corrupt { .. })), "{error:?}");
        }
    }
}

/// One time, in every resolution that holds it.
#[test]
fn resolutions_of_pcapng() {
    let second = 1_700_000_000u64;
    let check = |order, tsresol: Option<u8>, ts: u64, ns: i64, resolution: u64| {
        let mut ng = Ng::new(order);
        let value = [tsresol.unwrap_or(0)];
        let options: &[(u16, &[u8])] = if tsresol.is_some() { &[(9, &value)] } else { &[] };
        ng.interface(1, 0, options);
        ng.frame(0, ts, 60, &[1; 60], &[]);
        let (got, reader) = read(&ng.out);
        assert_eq!(got[0].at, ns, "{tsresol:?} {order:?}");
        assert_eq!(reader.interfaces()[0].ts_resolution_ns, resolution, "{tsresol:?}");
    };
    for order in ORDERS {
        let s = second as i64 * 1_000_000_000;
        check(order, None, second * 1_000_000 + 7, s + 7_000, 1_000);
        check(order, Some(0), second, s, 1_000_000_000);
        check(order, Some(3), second * 1_000 + 7, s + 7_000_000, 1_000_000);
        check(order, Some(6), second * 1_000_000 + 7, s + 7_000, 1_000);
        check(order, Some(9), second * 1_000_000_000 + 7, s + 7, 1);
        check(order, Some(10), second * 10_000_000_000 + 79, s + 7, 1);
        // 2^64 picoseconds are 213 days.
        check(order, Some(12), 1_234_567_890_123, 1_234_567_890, 1);
        check(order, Some(0x80), second, s, 1_000_000_000);
        check(order, Some(0x80 | 10), second << 10 | 512, s + 500_000_000, 976_563);
        check(order, Some(0x80 | 32), second << 32 | 1 << 31, s + 500_000_000, 1);
        // Absurd ones: no overflow, no panic.
        check(order, Some(127), u64::MAX, 0, 1);
        check(order, Some(0xff), u64::MAX, 0, 1);
        check(order, Some(0), u64::MAX, i64::MAX, 1_000_000_000);
    }
}

#[test]
fn time_offset() {
    for order in ORDERS {
        for seconds in [1_600_000_000i64, -5, i64::MAX, i64::MIN] {
            let mut ng = Ng::new(order);
            let value = order.u64(seconds as u64);
            ng.interface(1, 0, &[(14, &value), (9, &[9])]);
            ng.frame(0, 10_000_000_001, 60, &[1; 60], &[]);
            let (got, reader) = read(&ng.out);
            assert_eq!(reader.interfaces()[0].ts_offset_s, seconds);
            let expected = i128::from(seconds) * 1_000_000_000 + 10_000_000_001;
            let held = expected.clamp(i64::MIN.into(), i64::MAX.into());
            assert_eq!(i128::from(got[0].at), held);
            let said = reader.warnings().iter().filter(|w| w.text.contains("the year 2262")).count();
            assert_eq!(said, usize::from(held != expected), "{seconds}");
        }
    }
}

/// Two sections of different byte order, with every kind of block, ending in a gap.
fn everything() -> Vec<u8> {
    let mut ng = Ng::new(Order::Big);
    let named: &[(u16, &[u8])] =
        &[(2, b"eth0"), (3, b"the first"), (9, &[9]), (11, b"\0tcp port 80"), (12, b"BSD")];
    ng.interface(1, 0, named);
    ng.interface(101, 40, &[]);
    ng.frame(0, 5, 60, &[1; 60], &[(1, b"a comment"), (2, &ng.order.u32(1))]);
    ng.block(0x7777, &[7; 33], &[]);
    ng.frame(1, 6, 90, &[2; 37], &[(2, &ng.order.u32(2))]);
    ng.simple(61, &[3; 61]);
    ng.block(4, &[0; 8], &[]);
    ng.old(1, 7_000_001, 38, &[4; 38]);
    // The systemd journal: Wireshark counts it as a frame.
    ng.block(9, b"MESSAGE=hello\n", &[]);
    ng.statistics(1, 12);
    ng.section(Order::Little);
    ng.interface(113, 8, &[(2, b"any")]);
    ng.frame(0, 8, 62, &frames::sll(0x0800, 4, &[5; 8]), &[]);
    ng.simple(62, &[0, 0, 9, 9, 9, 9, 9, 9]);
    ng.out
}

#[test]
fn sections_interfaces_and_all_blocks() {
    let (got, reader) = read(&everything());
    let brief: Vec<_> =
        got.iter().map(|g| (g.number, g.interface, g.at, g.len_wire, g.data.len(), g.direction)).collect();
    let expected = [
        (1, 0, 5, 60, 60, Some(Direction::In)),
        (2, 1, 6_000, 90, 37, Some(Direction::Out)),
        (3, 0, 0, 61, 61, None),
        (4, 1, 7_000_001_000, 38, 38, None),
        (6, 2, 8_000, 62, 24, Some(Direction::Out)),
        (7, 2, 0, 62, 8, Some(Direction::In)),
    ];
    assert_eq!(brief, expected);
    assert!(got.iter().zip(1u8..).take(4).all(|(g, i)| g.data.iter().all(|&b| b == i)));
    let [first, second, third] = reader.interfaces() else { panic!("three interfaces") };
    assert_eq!((first.name.as_str(), first.description.as_str()), ("eth0", "the first"));
    assert_eq!((first.filter.as_str(), first.os.as_str()), ("tcp port 80", "BSD"));
    assert_eq!((second.index, second.section, second.snaplen, second.drops), (1, 0, 40, Some(12)));
    assert_eq!((third.index, third.section, third.link_type, third.drops), (2, 1, 113, None));
    assert_eq!((third.os.as_str(), third.name.as_str()), ("TestOS 1", "any"));
    let [warning] = reader.warnings() else { panic!("one warning: {:?}", reader.warnings()) };
    assert!(warning.text.contains("no time"), "{warning:?}");
}

#[test]
fn interfaces_are_known_before_the_first_frame() {
    let reader = open(&everything()).unwrap();
    assert_eq!(reader.interfaces().len(), 2);
}

#[test]
fn torn_at_every_byte() {
    for whole in [everything(), pcap(Order::Big, MICRO, 1, &three())] {
        let (expected, reader) = read(&whole);
        let logged = reader.warnings().len();
        for len in 4..whole.len() {
            let Ok(mut reader) = open(&whole[..len]) else {
                assert!(len < 24, "only the file header is needed, not {len} bytes");
                continue;
            };
            let (got, error) = drain(&mut reader);
            assert!(error.is_none(), "{len}: {error:?}");
            assert_eq!(got, expected[..got.len()], "{len}");
            let missing = expected[got.len()..].iter().find(|g| end_of_record(&whole, g) <= len);
            assert!(missing.is_none(), "{len}: {missing:?}");
            let torn = reader.warnings().iter().filter(|w| w.text.contains("ends")).count();
            let at_border = reader.warnings().len() <= logged && torn == 0;
            assert!(torn == 1 || at_border, "{len}: {:?}", reader.warnings());
        }
    }
}

/// Where the record of a frame ends in a file of 16-byte record headers, or of blocks.
fn end_of_record(file: &[u8], g: &Got) -> usize {
    let at = g.offset as usize;
    if !file.starts_with(&[0x0a, 0x0d]) {
        return at + 16 + g.data.len();
    }
    let len: [u8; 4] = file[at + 4..at + 8].try_into().expect("four bytes");
    at + u32::from_le_bytes(len).min(u32::from_be_bytes(len)) as usize
}

#[test]
fn hostile_lengths_cost_nothing() {
    let huge = [0x00ff_fff0u32, 0x0100_0000, 0x7fff_fffc, 0xffff_fffc, u32::MAX];
    for order in ORDERS {
        for len in huge {
            let mut classic = pcap(order, MICRO, 1, &three());
            classic.truncate(24 + 16 + 13);
            classic.extend([order.u32(1), order.u32(2), order.u32(len), order.u32(len)].concat());
            assert_survives(&classic, 1);
            for kind in [1, 2, 3, 5, 6, 0x7777] {
                let mut ng = Ng::new(order);
                ng.interface(1, 0, &[]);
                ng.frame(0, 5, 60, &[1; 60], &[]);
                ng.out.extend([order.u32(kind), order.u32(len), order.u32(len)].concat());
                assert_survives(&ng.out, 1);
            }
            // A captured length that lies about the block it is in.
            let mut ng = Ng::new(order);
            ng.interface(1, 0, &[]);
            ng.frame(0, 5, 60, &[1; 60], &[]);
            let second = ng.out.len();
            ng.frame(0, 6, 60, &[2; 60], &[]);
            ng.out[second + 20..second + 24].copy_from_slice(&order.u32(len));
            assert_survives(&ng.out, 1);
        }
    }
}

/// Gives the first `frames` frames, then ends with a warning or an error, soon.
fn assert_survives(bytes: &[u8], frames: usize) {
    let started = Instant::now();
    let mut reader = open(bytes).expect("it is a capture");
    let (got, error) = drain(&mut reader);
    assert_eq!(got.len(), frames);
    assert!(error.is_some() || !reader.warnings().is_empty());
    if let Some(Error::Corrupt { offset, .. }) = &error {
        assert!(*offset <= bytes.len() as u64);
    }
    assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
}

#[test]
fn corrupt_places_are_named() {
    let mut ng = Ng::new(Order::Little);
    ng.interface(1, 0, &[]);
    ng.frame(0, 5, 60, &[1; 60], &[]);
    let place = ng.out.len();
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Ng));
    let cases: [Damage; 4] = [
        ("interface 7", &|ng| ng.frame(7, 5, 60, &[1; 60], &[])),
        ("block length 8", &|ng| ng.out.extend([6, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0])),
        ("at its end", &|ng| {
            ng.frame(0, 5, 60, &[1; 60], &[]);
            *ng.out.last_mut().unwrap() = 9;
        }),
        ("byte-order", &|ng| ng.block(0x0a0d_0d0a, &[0; 16], &[])),
    ];
    for (text, add) in cases {
        let mut bad = Ng { order: ng.order, out: ng.out.clone() };
        add(&mut bad);
        let mut reader = open(&bad.out).unwrap();
        let (got, error) = drain(&mut reader);
        assert_eq!(got.len(), 1);
        let Some(Error::Corrupt { offset, what, .. }) = error else { panic!("{text}: {error:?}") };
        assert_eq!(offset, place as u64);
        assert!(what.contains(text), "{what:?} does not say {text:?}");
    }
}

#[test]
fn foreign_files_are_refused() {
    for bytes in [&b""[..], b"abc", b"\x7fELF and so on", &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]] {
        assert!(matches!(open(bytes), Err(Error::Foreign { .. })), "{bytes:02x?}");
    }
    let missing = Reader::open(Path::new("/nonexistent/x.pcap")).err().unwrap();
    assert!(missing.to_string().contains("/nonexistent/x.pcap"), "{missing}");
}

#[test]
fn reader_and_decoder_survive_mutations() {
    let mut seeds = vec![everything()];
    let corpus: Vec<_> =
        frames::ethernet_corpus().into_iter().map(|data| (0, data.len() as u32, data)).collect();
    seeds.push(pcap(Order::Little, NANO, 1, &corpus));
    let mut ng = Ng::new(Order::Little);
    for (i, (link_type, data)) in frames::other_corpus(Order::Little).iter().enumerate() {
        ng.interface(*link_type, 0, &[(9, &[0x94])]);
        ng.frame(i as u32, 5, data.len() as u32, data, &[]);
    }
    seeds.push(ng.out);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let started = Instant::now();
    let (mut runs, mut decoded) = (0u64, 0u64);
    while started.elapsed() < Duration::from_secs(4) {
        let mut bytes = seeds[random() as usize % seeds.len()].clone();
        for _ in 0..=random() % 16 {
            let place = random() as usize % bytes.len();
            bytes[place] = match random() % 4 {
                0 => 0,
                1 => 0xff,
                2 => bytes[place] ^ 1 << (random() % 8),
                _ => random() as u8,
            };
        }
        if random() % 4 == 0 {
            bytes.truncate(random() as usize % bytes.len());
        }
        runs += 1;
        let Ok(mut reader) = open(&bytes) else { continue };
        let (got, _) = drain(&mut reader);
        for g in got {
            let link_type = reader.interfaces()[g.interface as usize].link_type;
            decode::frame(link_type, &g.data, g.len_wire);
            decoded += 1;
        }
    }
    assert!(runs > 1_000 && decoded > 10_000, "{runs} runs, {decoded} frames");
}
