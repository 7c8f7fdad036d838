//! One frame of a capture, and why it has no packet.

use super::info::cause;
use super::packet::shown;
use super::{Answer, Ask, Failure};
use crate::answers::packets::{FramePacket, WireFrame};
use crate::answers::{Big, Ns};
use kpat_query::frame_text;
use kpat_query::layers::of_frame;
use kpat_query::{Unmatched, match_key, side};
use kpat_store::tables::FrameRow;

pub fn frame(ask: &Ask<'_>) -> Answer<WireFrame> {
    let Some((capture, number)) = ask.frame()? else {
        return Err(Failure::words("the question needs frame="));
    };
    let log = ask.log;
    let d = log.store.frame(capture, number)?;
    let f = &d.frame;
    let [src, dst] = frame_text::ends(f);
    Ok(WireFrame {
        capture: d.capture.clone(),
        number: f.number,
        interface: d.interface.clone(),
        t: f.boot_ns.map(|t| Ns(t.saturating_sub(log.start_ns()))),
        bound_ns: d.bound_ns.map(Ns),
        wall_ns: Big(f.wall_ns),
        len: f.len_bytes,
        captured: f.captured_bytes,
        proto: frame_text::name(f),
        src,
        dst,
        info: frame_text::summary(f),
        layers: shown(&of_frame(f), &[], &[]),
        packets: d
            .packets
            .iter()
            .map(|a| FramePacket {
                id: a.packet_id,
                key: match_key::name(a.key).to_owned(),
                confidence: a.confidence,
                alternatives: a.alternatives,
                side: side::name(a.side).to_owned(),
            })
            .collect(),
        why: d.why.iter().map(words).collect(),
        flow: flow(f),
    })
}

fn words(why: &Unmatched) -> String {
    match why {
        Unmatched::NoClock => {
            "The clocks of this capture and of the device could not be related, so its frames have no place among the packets."
                .to_owned()
        }
        Unmatched::Before { by_ns } => {
            format!("It was on the wire {} before the recording began.", span(*by_ns))
        }
        Unmatched::After { by_ns } => format!("It was on the wire {} after the recording had ended.", span(*by_ns)),
        Unmatched::NoKey => {
            "It has no headers by which a packet is recognised (IP, ARP or 802.11), or it was cut before them.".to_owned()
        }
        Unmatched::Lost { cause: code, count } => {
            format!("Around that time the log lost {count} records ({}); its packet may be among them.", cause(*code))
        }
        Unmatched::Filter(text) => {
            format!("The recording kept only packets that match its filter `{text}`; this may not be one.")
        }
        Unmatched::Sample(sample) => format!(
            "The recording has one of {} {}s; this may not be one.",
            sample.one_in,
            sample.by.noun()
        ),
        Unmatched::Processes(which) => {
            format!("The recording has only packets of some processes ({which}); this may be another's.")
        }
        Unmatched::NotAddressed { mac } => {
            format!("It was not for this device: no interface of it has the link address {mac}.")
        }
        Unmatched::Unseen => {
            "No packet of the log has these headers near this time: it did not reach a function that was recorded, or it did so \
             with other headers."
                .to_owned()
        }
    }
}

fn span(ns: i64) -> String {
    match ns.unsigned_abs() as f64 {
        n if n < 1e6 => format!("{:.1} µs", n / 1e3),
        n if n < 1e9 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// Both ways between the same two, in the filter language.
fn flow(f: &FrameRow) -> Option<String> {
    let (src, dst) = (f.ip_src.as_deref()?, f.ip_dst.as_deref()?);
    let mut text = format!("ip.addr == {src} and ip.addr == {dst}");
    for port in [f.sport, f.dport].into_iter().flatten() {
        text += &format!(" and port == {port}");
    }
    Some(text)
}
