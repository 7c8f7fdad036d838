//! What QEMU's interface does that a debugger does not expect, each found by a hang (7.2 and 10.0).

use super::*;
use packet::{framed, hex, take};
use std::io::{Read, Write};
use std::thread::JoinHandle;

/// A line of the script: the bytes expected, and those that are answered.
type Line = (&'static [u8], Vec<u8>);

fn ok(payload: &str) -> Vec<u8> {
    [b"+".to_vec(), framed(payload.as_bytes())].concat()
}

const SUPPORTED: &str = "PacketSize=1000;qXfer:features:read+;vContSupported+";

/// A stub that says `first` when somebody comes, then follows the script and says what came instead, if something else came.
fn stub(first: &[u8], mut script: Vec<Line>) -> (Gdb, JoinHandle<()>) {
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    theirs.write_all(first).unwrap();
    script.insert(0, (b"qSupported", ok(SUPPORTED)));
    script.insert(1, (b"qXfer:features:read:target.xml:0,ffb", ok("l<target/>")));
    let peer = std::thread::spawn(move || {
        for (want, answer) in script {
            let mut bytes = Vec::new();
            let got = loop {
                let mut piece = [0; 4096];
                // One byte that is no packet.
                if want == [3] {
                    theirs.read_exact(&mut piece[..1]).unwrap();
                    break vec![piece[0]];
                }
                let n = theirs.read(&mut piece).unwrap();
                bytes.extend_from_slice(&piece[..n]);
                if bytes == b"-" {
                    break bytes.clone();
                }
                if let Some(packet::Got::Packet(p)) = take(&mut bytes).unwrap() {
                    break p;
                }
            };
            assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
            theirs.write_all(&answer).unwrap();
        }
        // What comes after the script is nothing.
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{rest:?} was not expected");
    });
    (Gdb::greet(mine).unwrap(), peer)
}

fn end(gdb: Gdb, peer: JoinHandle<()>) {
    drop(gdb);
    peer.join().unwrap();
}

/// A `g` of a processor at `rip`.
fn block(rip: u64) -> Vec<u8> {
    let mut bytes = vec![0; 608];
    bytes[0] = 7;
    bytes[16 * 8..17 * 8].copy_from_slice(&rip.to_le_bytes());
    bytes
}

/// 1: no `QStartNoAckMode`. It is not asked for; acknowledgements may be left out, and the next packet stands for one.
/// 3: `p` is answered by nothing until the target's description was asked for, which greeting does.
#[test]
fn nothing_is_acknowledged_and_the_description_is_asked_for() {
    let (gdb, peer) = stub(b"", vec![]);
    end(gdb, peer);
}

/// 2: 7.2 says that it stopped before it was asked.
#[test]
fn a_stop_before_the_first_answer_is_passed_over() {
    let (mut gdb, peer) = stub(b"$T02thread:01;#04", vec![(b"m10,2", ok("abcd"))]);
    let mut two = [0; 2];
    gdb.read(0x10, &mut two).unwrap();
    assert_eq!(two, [0xab, 0xcd]);
    end(gdb, peer);
}

/// 4: under KVM single registers are stale, and writing is lost without a `g` before: only `g` and `G` are used.
#[test]
fn registers_are_read_and_written_as_a_whole() {
    let bytes = block(0xffff_ffff_8100_0000);
    let mut changed = bytes.clone();
    changed[0] = 9;
    let want: &'static [u8] = Box::leak(format!("G{}", hex(&changed)).into_bytes().into_boxed_slice());
    let script: Vec<Line> = vec![(b"Hg2", ok("OK")), (b"g", ok(&hex(&bytes))), (want, ok("OK"))];
    let (mut gdb, peer) = stub(b"", script);
    let mut b = gdb.block(1).unwrap();
    let mut r = b.registers();
    assert_eq!((r.rax, r.rip), (7, 0xffff_ffff_8100_0000));
    r.rax = 9;
    b.set(&r);
    gdb.set_block(1, &b).unwrap();
    end(gdb, peer);
}

/// 5: any byte stops a guest that runs, and is swallowed: nothing is sent until it has stopped.
#[test]
fn a_running_guest_is_stopped_before_it_is_asked() {
    let script: Vec<Line> =
        vec![(b"vCont;c", b"+".to_vec()), (&[3], framed(b"T02thread:01;")), (b"m0,1", ok("00"))];
    let (mut gdb, peer) = stub(b"", script);
    gdb.resume().unwrap();
    let mut one = [0];
    assert!(matches!(gdb.read(0, &mut one), Err(Error::Unsupported(_))));
    assert_eq!(gdb.wait(Duration::from_millis(5)).unwrap(), None);
    assert_eq!(gdb.interrupt().unwrap(), Some(Stop::Interrupted { vcpu: 0 }));
    gdb.read(0, &mut one).unwrap();
    assert_eq!(gdb.interrupt().unwrap(), None, "it is stopped already");
    end(gdb, peer);
}

/// 6 and 7: a software breakpoint shows in memory under KVM, and its address is translated once. So code is read before a breakpoint
/// is set, and one that is set twice is asked for once.
#[test]
fn code_is_read_before_the_breakpoint_is_there() {
    let script: Vec<Line> = vec![
        (b"m1000,f", ok("0f1f440000554889e5000000000000")),
        (b"Z0,1000,1", ok("OK")),
        (b"vCont;c", [b"+".to_vec(), framed(b"T05thread:02;")].concat()),
        (b"Hg2", ok("OK")),
        (b"g", ok(&hex(&block(0x1000)))),
        // Five bytes of nop are skipped by one packet, and nothing is stepped.
        (b"c1005", b"+".to_vec()),
        (&[3], framed(b"T02thread:01;")),
        (b"z0,1000,1", ok("OK")),
    ];
    let (gdb, peer) = stub(b"", script);
    let mut seen = Vec::new();
    let mut probes = xp::Probes::new(gdb);
    let handler = |h: &mut xp::Hit<'_>| {
        seen.push((h.vcpu, h.registers.rax));
        Ok(xp::Then::Continue)
    };
    probes.add(0x1000, BreakpointKind::Software, Box::new(handler)).unwrap();
    probes.gdb().insert(BreakpointKind::Software, 0x1000).unwrap();
    assert_eq!(probes.run(Duration::from_millis(50)).unwrap(), None);
    assert_eq!((probes.hits(0x1000), probes.stepped()), (1, 0));
    end(probes.into_gdb().unwrap(), peer);
    assert_eq!(seen, [(1, 7)]);
}

/// A step that did nothing is made again; counted as one hit.
#[test]
fn a_step_that_did_nothing_is_repeated() {
    let script: Vec<Line> = vec![
        (b"m1000,f", ok("4889e5000000000000000000000000")),
        (b"Z1,1000,1", ok("OK")),
        (b"vCont;c", [b"+".to_vec(), framed(b"T05thread:01;")].concat()),
        (b"Hg1", ok("OK")),
        (b"g", ok(&hex(&block(0x1000)))),
        (b"z1,1000,1", ok("OK")),
        (b"g", ok(&hex(&block(0x1000)))),
        (b"vCont;s:1", [b"+".to_vec(), framed(b"T05thread:01;")].concat()),
        (b"Hg1", ok("OK")),
        (b"g", ok(&hex(&block(0x1000)))),
        (b"vCont;s:1", [b"+".to_vec(), framed(b"T05thread:01;")].concat()),
        (b"Hg1", ok("OK")),
        (b"g", ok(&hex(&block(0x1003)))),
        (b"Z1,1000,1", ok("OK")),
        (b"vCont;c", [b"+".to_vec(), framed(b"W00")].concat()),
    ];
    let (gdb, peer) = stub(b"", script);
    let mut probes = xp::Probes::new(gdb);
    probes.add(0x1000, BreakpointKind::Hardware, Box::new(|_| Ok(xp::Then::Continue))).unwrap();
    assert_eq!(probes.run(Duration::from_secs(5)).unwrap(), Some(Stop::Ended));
    assert_eq!((probes.hits(0x1000), probes.stepped()), (1, 1));
    drop(probes);
    peer.join().unwrap();
}

/// 9: `swbreak` is not offered, and processes are numbered only if that was asked for: both forms of a thread are read.
#[test]
fn both_forms_of_a_thread() {
    assert_eq!(Stop::parse(b"T05thread:02;"), Some(Stop::Trap { vcpu: 1 }));
    assert_eq!(Stop::parse(b"T05thread:p01.03;"), Some(Stop::Trap { vcpu: 2 }));
    assert_eq!(Stop::parse(b"T02"), Some(Stop::Interrupted { vcpu: 0 }));
    assert_eq!((Stop::parse(b"OK"), Stop::parse(b""), Stop::parse(b"T0")), (None, None, None));
}

/// 10: the end of the guest is `W00`, and then the end of the connection; either may be all that comes.
#[test]
fn the_end_of_the_guest() {
    let (mut gdb, peer) = stub(b"", vec![(b"vCont;c", [b"+".to_vec(), framed(b"W00")].concat())]);
    gdb.resume().unwrap();
    assert_eq!(gdb.wait(Duration::from_secs(5)).unwrap(), Some(Stop::Ended));
    assert!(gdb.ended() && gdb.read(0, &mut [0]).is_err());
    end(gdb, peer);
    let (mine, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(matches!(Gdb::greet(mine), Err(Error::Gone(_))));
}

/// A refused address, an unknown command, an answer with a wrong checksum.
#[test]
fn answers_that_are_none() {
    let script: Vec<Line> = vec![
        (b"m10,4", ok("E14")),
        (b"M10,1:00", ok("E14")),
        (b"Z1,10,1", ok("")),
        (b"m10,1", b"+$11#00".to_vec()),
        (b"-", framed(b"11")),
    ];
    let (mut gdb, peer) = stub(b"", script);
    assert!(matches!(gdb.read(0x10, &mut [0; 4]), Err(Error::NotMapped(0x10))));
    assert!(matches!(gdb.write(0x10, &[0]), Err(Error::NotMapped(0x10))));
    let words = gdb.insert(BreakpointKind::Hardware, 0x10).unwrap_err().to_string();
    assert!(words.ends_with("not supported"), "{words}");
    let mut one = [0];
    gdb.read(0x10, &mut one).unwrap();
    assert_eq!(one, [0x11]);
    end(gdb, peer);
}
