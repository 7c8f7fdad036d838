//! The sniffer on a cable of its own: what was sent is what is in the file, and other tools agree.

mod generate;
mod netns;

use std::path::PathBuf;
use std::process::Command;

use generate::frames;
use kpat_capture::sniff::{SniffStats, Sniffer, Want};
use kpat_capture::{Direction, Error, Reader};
use netns::Cable;

struct Out(PathBuf);

impl Out {
    fn new(name: &str) -> Out {
        Out(std::env::temp_dir().join(format!("kpat-sniff-{}-{name}.pcapng", std::process::id())))
    }

    fn frames(&self) -> Vec<(u32, Vec<u8>, Option<Direction>, i64)> {
        let mut reader = Reader::open(&self.0).expect("it is a capture");
        let mut all = Vec::new();
        while let Some(f) = reader.next().expect("it is whole") {
            all.push((f.len_wire, f.data.to_vec(), f.direction, f.at.0));
        }
        assert_eq!(reader.warnings(), []);
        all
    }

    fn capinfos(&self, option: &str) -> String {
        let out = Command::new("capinfos").args([option, "-M"]).arg(&self.0).output();
        let out = out.unwrap_or_else(|e| panic!("cannot run capinfos: {e}; run scripts/setup"));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bytes(snaplen: u32) -> Want {
    Want { snaplen, ..Want::default() }
}

#[test]
fn every_frame_is_seen_as_it_was_sent() {
    let cable = Cable::bare();
    let out = Out::new("all");
    let mut sniffer = Sniffer::start("vb", Some(&cable.b), &out.0, &bytes(0)).unwrap();
    let sent: Vec<Vec<u8>> = frames::ethernet_corpus().into_iter().cycle().take(1000).collect();
    let sent = cable.send(&sent);
    let stats = sniffer.stop().unwrap();
    // Answers of the kernel in `b` are in the file too, going out.
    let all = out.frames();
    let came: Vec<_> = all.iter().filter(|f| f.2 == Some(Direction::In)).collect();
    assert_eq!(came.len(), sent.len());
    for (n, (got, sent)) in came.iter().zip(&sent).enumerate() {
        assert_eq!((got.0 as usize, &got.1), (sent.len(), sent), "frame {n}");
    }
    let bytes = all.iter().map(|f| u64::from(f.0)).sum();
    assert_eq!(stats, SniffStats { frames: all.len() as u64, bytes, kernel_drops: 0 });
    let count = out.capinfos("-c");
    assert!(count.contains(&format!("Number of packets:   {}", all.len())), "{count}");
    let about = out.capinfos("-I");
    for text in
        ["Name = vb", "network namespace", "Time precision = nanoseconds", "Number of stat entries = 1"]
    {
        assert!(about.contains(text), "{text}: {about}");
    }
    assert!(out.capinfos("-F").contains("kpat"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    assert!(all.iter().all(|f| (0..60_000_000_000).contains(&(now - f.3))));
    let mut reader = Reader::open(&out.0).unwrap();
    while reader.next().unwrap().is_some() {}
    assert_eq!(reader.interfaces()[0].drops, Some(0));
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(reader.interfaces()[0].boot_id, boot_id.trim());
}

#[test]
fn frames_going_out_and_snapped() {
    let cable = Cable::bare();
    let out = Out::new("snap");
    let mut sniffer = Sniffer::start("va", Some(&cable.a), &out.0, &bytes(40)).unwrap();
    let sent = cable.send(&frames::ethernet_corpus());
    sniffer.stop().unwrap();
    let went: Vec<_> = out.frames().into_iter().filter(|f| f.2 == Some(Direction::Out)).collect();
    assert_eq!(went.len(), sent.len());
    for (got, sent) in went.iter().zip(&sent) {
        assert_eq!((got.0 as usize, &got.1[..]), (sent.len(), &sent[..sent.len().min(40)]));
    }
}

/// A frame every 20 ms, so that there is never a pause: whoever reads the file meanwhile finds what is older than half a second.
#[test]
fn a_steady_trickle_is_in_the_file_soon() {
    let cable = Cable::bare();
    let out = Out::new("trickle");
    let mut sniffer = Sniffer::start("va", Some(&cable.a), &out.0, &bytes(0)).unwrap();
    let one = frames::ethernet_corpus().into_iter().take(1).collect::<Vec<_>>();
    let mut in_file = Vec::new();
    for _ in 0..60 {
        cable.send(&one);
        in_file.push(std::fs::metadata(&out.0).unwrap().len());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(in_file[59] > in_file[0], "{in_file:?}");
    sniffer.stop().unwrap();
}

#[test]
fn all_interfaces_of_a_namespace() {
    let cable = Cable::bare();
    for (ns, direction) in [(&cable.b, Direction::In), (&cable.a, Direction::Out)] {
        let out = Out::new("any");
        let mut sniffer = Sniffer::start(kpat_capture::sniff::ANY, Some(ns), &out.0, &bytes(0)).unwrap();
        let sent = cable.send(&frames::ethernet_corpus());
        sniffer.stop().unwrap();
        let seen: Vec<_> = out.frames().into_iter().filter(|f| f.2 == Some(direction)).collect();
        assert_eq!(seen.len(), sent.len());
        for (got, sent) in seen.iter().zip(&sent) {
            let link = kpat_capture::decode::frame(1, sent, sent.len() as u32);
            let mut cooked = kpat_capture::decode::frame(276, &got.1, got.0);
            // Of a frame going out the kernel shows one tag only to a cooked socket.
            let tags = if direction == Direction::In { 2 } else { 1 };
            let source = |l: Option<kpat_model::Link>| l.map(|l| (l.src, l.vlan[..tags].to_vec()));
            assert_eq!(source(cooked.link), source(link.link), "{direction:?} {:02x?}", got.1);
            cooked.link = link.link;
            assert_eq!(cooked, link, "{direction:?} {:02x?}", got.1);
        }
    }
}

#[test]
fn refusals_name_the_remedy_and_leave_no_file() {
    let cable = Cable::bare();
    for (dev, ns, text) in [
        ("nope", Some(cable.a.as_str()), "ip link"),
        ("va", Some("no-such-namespace"), "ip netns"),
        ("va", Some("../etc"), "plain name"),
        ("a-name-that-is-too-long", None, "plain name"),
    ] {
        let out = Out::new("refused");
        let Err(e @ Error::Sniff { .. }) = Sniffer::start(dev, ns, &out.0, &bytes(0)) else {
            panic!("{dev} {ns:?}")
        };
        assert!(e.to_string().contains(text), "{e}");
        assert!(!out.0.exists());
    }
    let nowhere = std::path::Path::new("/nonexistent/x.pcapng");
    let refused = Sniffer::start("va", Some(&cable.a), nowhere, &bytes(0)).err();
    assert!(matches!(refused, Some(Error::Open { .. })), "{refused:?}");
}
