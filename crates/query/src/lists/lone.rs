//! One frame, and what the log knows of why it has no packet.

use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::Sample;
use kpat_store::tables::*;

/// Something that explains, or may explain, that no packet was found for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// The clocks of capture and device could not be related.
    NoClock,
    /// It was on the wire so long before the first record of the log.
    Before { by_ns: i64 },
    /// So long after the last one.
    After { by_ns: i64 },
    /// Of no protocol by whose headers packets are recognised, or cut before them.
    NoKey,
    /// Records were lost around that time: how many, of which cause.
    Lost { cause: i32, count: i64 },
    /// The recording kept only what fits this filter.
    Filter(String),
    /// It kept only this part of the packets.
    Sample(Sample),
    /// It has only what is of processes that fit this.
    Processes(String),
    /// It is for a link address that no interface of the device has.
    NotAddressed { mac: String },
    /// None of these: no packet of the log has its headers near its time.
    Unseen,
}

/// A frame alone.
#[derive(Clone, Debug)]
pub struct FrameDetail {
    pub frame: FrameRow,
    pub capture: String,
    /// Name of its interface in the capture, empty: it does not say.
    pub interface: String,
    /// Of its time on the device's clock.
    pub bound_ns: Option<i64>,
    /// Packets that it belongs to, most likely first.
    pub packets: Vec<AssociationRow>,
    /// Most telling first; empty: it has a packet.
    pub why: Vec<Unmatched>,
}

impl Store {
    /// A frame by its capture and number.
    ///
    /// Errors: [`Error::NoSuchFrame`].
    pub fn frame(&self, capture_id: i32, number: i64) -> Result<FrameDetail> {
        let mut rows = self.table::<FrameRow>()?.rows_equal::<FrameRow>("number", &[number])?;
        rows.retain(|f| f.capture_id == capture_id);
        let Some(frame) = rows.pop() else { return Err(Error::NoSuchFrame { capture_id, number }) };
        let packets = self.packets_of_frame(capture_id, number)?;
        let capture =
            self.manifest.sources.iter().find(|s| s.role == "capture" && s.capture_id == capture_id);
        let here = |i: &InterfaceRow| (i.capture_id, i.interface) == (capture_id, frame.interface);
        let interface = self.all::<InterfaceRow>()?.into_iter().find(here);
        let clock = self.clock_at(capture_id, number, frame.wall_ns).filter(|_| frame.boot_ns.is_some());
        let bound_ns = clock.map(|c| c.bound_ns);
        let why =
            if packets.is_empty() { self.unmatched(&frame, bound_ns.unwrap_or(0))? } else { Vec::new() };
        Ok(FrameDetail {
            capture: capture.map(|s| s.name.clone()).unwrap_or_default(),
            interface: interface.map(|i| i.name).unwrap_or_default(),
            bound_ns,
            packets,
            why,
            frame,
        })
    }

    fn unmatched(&self, f: &FrameRow, bound_ns: i64) -> Result<Vec<Unmatched>> {
        let mut why = Vec::new();
        let m = &self.manifest;
        match f.boot_ns {
            None => why.push(Unmatched::NoClock),
            Some(at) if at.saturating_add(bound_ns) < m.first_ns => {
                why.push(Unmatched::Before { by_ns: m.first_ns.saturating_sub(at) });
            }
            Some(at) if at.saturating_sub(bound_ns) > m.last_ns => {
                why.push(Unmatched::After { by_ns: at.saturating_sub(m.last_ns) });
            }
            Some(_) => {}
        }
        // ARP has its addresses, and no transport.
        let recognisable =
            f.wifi_seq.is_some() || f.arp_op.is_some() || (f.ip_src.is_some() && f.ip_proto.is_some());
        if !recognisable {
            why.push(Unmatched::NoKey);
        }
        let group = |mac: &str| u8::from_str_radix(mac.get(..2).unwrap_or("0"), 16).is_ok_and(|b| b & 1 == 1);
        let devices: Vec<DeviceRow> = self.all()?;
        if let (Some(to), Some(from)) = (&f.mac_dst, &f.mac_src)
            && !group(to)
            && devices.iter().any(|d| !d.mac.is_empty())
            && !devices.iter().any(|d| d.mac == *to || d.mac == *from)
        {
            why.push(Unmatched::NotAddressed { mac: to.clone() });
        }
        if let Some(at) = f.boot_ns {
            let near = |l: &&LossRow| {
                l.from_ns.saturating_sub(bound_ns) <= at
                    && l.to_ns.saturating_add(bound_ns) >= at
                    && l.count > 0
            };
            let losses: Vec<LossRow> = self.all()?;
            for l in losses.iter().filter(near) {
                match why.iter_mut().find_map(|w| match w {
                    Unmatched::Lost { cause, count } if *cause == l.cause => Some(count),
                    _ => None,
                }) {
                    Some(count) => *count = count.saturating_add(l.count),
                    None => why.push(Unmatched::Lost { cause: l.cause, count: l.count }),
                }
            }
        }
        if !m.log.filter.is_empty() {
            why.push(Unmatched::Filter(m.log.filter.clone()));
        }
        why.extend(m.log.sample.map(Unmatched::Sample));
        if !m.log.only.is_empty() {
            why.push(Unmatched::Processes(m.log.only.join(" or ")));
        }
        if why.is_empty() {
            why.push(Unmatched::Unseen);
        }
        Ok(why)
    }
}
