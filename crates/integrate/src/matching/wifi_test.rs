//! Encrypted 802.11: there is nothing but transmitter, receiver and sequence control. Made up, so that numbers come round
//! (the lab's scenario wifi-encrypted has a real kernel's);
//! the frames go through the decoder of captures and of kernel headers, and through the whole window.

use super::keys::Keys;
use super::stream::{self, Sink};
use super::{Frame, Match, Side, Sighting, Windows, Wire};
use crate::error::Result;
use kpat_capture::decode;
use kpat_model::codes::match_key;

const AP: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A protected data frame; its body is noise.
fn encrypted(receiver: [u8; 6], transmitter: [u8; 6], sequence: u16, retry: bool) -> Vec<u8> {
    let mut out = vec![0x08, 0x41 | if retry { 0x08 } else { 0 }, 0, 0];
    out.extend_from_slice(&receiver);
    out.extend_from_slice(&transmitter);
    out.extend_from_slice(&AP);
    out.extend_from_slice(&((sequence & 0xfff) << 4).to_le_bytes());
    out.extend((0..40u16).map(|i| (i * 37 + sequence) as u8));
    out
}

#[derive(Default)]
struct Keep(Vec<(u64, u64, i32, i32)>);

impl Sink for Keep {
    fn matched(&mut self, f: &Frame, s: &Sighting, m: &Match) -> Result<()> {
        self.0.push((f.number, s.packet, m.key, m.confidence));
        Ok(())
    }

    fn decided(&mut self, _frames: u64) {}
}

/// 9,000 frames in both directions, so that each sequence number comes more than once; the sniffer missed some.
#[test]
fn encrypted_frames_are_known_by_their_sequence_control() {
    let (mut frames, mut sightings) = (Vec::new(), Vec::new());
    let mut truth = Vec::new();
    for i in 0..9_000u64 {
        let at = i as i64 * 2_000_000;
        let down = i % 2 == 0;
        let (to, from) = if down { (STATION, AP) } else { (AP, STATION) };
        let sequence = (i / 2) as u16;
        let bytes = encrypted(to, from, sequence, false);
        let print = decode::frame(105, &bytes, bytes.len() as u32);
        assert!(print.network.is_none(), "nothing is to be seen inside");
        let keys = Keys::of(&print).unwrap();
        assert_eq!(keys.kind, match_key::WIFI);
        let side = if down { Side::Transmitted } else { Side::Received };
        sightings.push(Sighting {
            keys,
            packet: i,
            at,
            first: at,
            last: at + 900_000,
            side,
            devices: 0,
            weak: false,
            lost: false,
            tap: (0, 0),
            place: 0,
        });
        let delay = if down { 60_000 } else { -60_000 };
        if i % 10 != 3 {
            // The retry bit is not the driver's but the card's to set.
            let bytes = encrypted(to, from, sequence, i % 7 == 0);
            let keys = Keys::of(&decode::frame(105, &bytes, bytes.len() as u32)).unwrap();
            let number = truth.len() as u64;
            frames.push(Frame {
                keys,
                wall: at + delay,
                boot: at + delay,
                bound: 5_000,
                number,
                interface: 0,
                side,
                inside: false,
                wire: Wire::default(),
                device: 0,
                place: 0,
            });
            truth.push(i);
        }
    }
    frames.sort_by_key(|f| f.wall);
    let windows = Windows { own: false, scatter: 0, widest: 5_000, logs: false };
    let mut keep = Keep::default();
    let (mut f, mut s) = (frames.iter().copied(), sightings.iter().copied());
    stream::run(&mut || Ok(f.next()), &mut || Ok(s.next()), &windows, &mut keep).unwrap();
    assert_eq!(keep.0.len(), frames.len(), "each frame has a packet");
    for (number, packet, key, confidence) in keep.0 {
        assert_eq!((packet, key), (truth[number as usize], match_key::WIFI), "frame {number}");
        assert!(confidence >= 85, "frame {number}: {confidence} %");
    }
}
