//! Carriers and operational states out of rtnetlink's announcements: what changed in a link's flags since its last. They come later than the kernel's function, where
//! that can be probed, and say what no function does: that a link is dormant, and when it is up.

use kpat_model::announced::{AFTERWARDS, had_carrier, is_first_seen};
use kpat_model::{Event, EventKind, LinkEvent, LinkWhat};
use std::collections::HashMap;

const UP: i64 = 6;
const DORMANT: i64 = 5;
const DOWN: i64 = 2;
const UNKNOWN: i64 = 0;

/// Flags of links by namespace and index.
#[derive(Default)]
pub struct Links(HashMap<(u32, u32), u32>);

fn has_carrier(flags: u32) -> bool {
    flags & (libc::IFF_LOWER_UP as u32) != 0 && flags & (libc::IFF_UP as u32) != 0
}

/// As the kernel makes flags of it (`netdev_get_flags`): an unknown state is running, too, as that of an interface that was opened just now and has yet to lose its carrier.
fn state(flags: u32) -> i64 {
    match (flags & libc::IFF_RUNNING as u32 != 0, has_carrier(flags)) {
        (true, true) => UP,
        (true, false) => UNKNOWN,
        (false, true) => DORMANT,
        (false, false) => DOWN,
    }
}

impl Links {
    /// What an announcement says of carrier and state. The first of a link that was there says of its state only what it is now.
    pub fn look(&mut self, e: &Event) -> Vec<LinkEvent> {
        let port = e.kind == EventKind::BridgePort;
        if e.kind != EventKind::Link && !port {
            return Vec::new();
        }
        let (ifindex, flags) = if port { (e.b as u32, 0) } else { (e.a as u32, e.b as u32) };
        let event = |what, a, b| LinkEvent {
            at: e.at,
            ctx: e.ctx,
            pid: e.pid,
            what,
            timed: e.timed,
            function: false,
            netns: e.netns,
            ifindex,
            a,
            b,
        };
        if port {
            return vec![event(LinkWhat::BridgePort, e.a as i64, -1)];
        }
        let old = self.0.insert((e.netns, ifindex), flags);
        let mut out = Vec::new();
        let has = has_carrier(flags);
        // Of one that was there and of which the text says nothing it is as it was.
        let before = old.map(has_carrier).or_else(|| had_carrier(&e.text));
        if before.or_else(|| (!is_first_seen(&e.text)).then_some(has)) != Some(has) {
            let what = if has { LinkWhat::CarrierOn } else { LinkWhat::CarrierOff };
            out.push(event(what, e.text.contains(AFTERWARDS).into(), 0));
        }
        if old.map(state) != Some(state(flags)) {
            out.push(event(LinkWhat::OperState, state(flags), old.map_or(-1, state)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, Context, PacketId, Timed};

    fn what(links: &mut Links, flags: i32, text: &str) -> Vec<(LinkWhat, i64, i64)> {
        let e = Event {
            kind: EventKind::Link,
            ctx: Context::Unknown,
            pid: 0,
            at: BootNs(1),
            timed: Timed::Read { within_ns: 5 },
            packet: PacketId::NONE,
            netns: 7,
            a: 3,
            b: flags as u64,
            text: text.into(),
        };
        links.look(&e).into_iter().map(|l| (l.what, l.a, l.b)).collect()
    }

    #[test]
    fn a_station_has_a_carrier_before_it_is_up() {
        let (up, lower, running) = (libc::IFF_UP, libc::IFF_LOWER_UP, libc::IFF_RUNNING);
        let mut links = Links::default();
        assert_eq!(
            what(&mut links, up, "w0 up no-carrier (new)"),
            [(LinkWhat::CarrierOff, 0, 0), (LinkWhat::OperState, DOWN, -1)]
        );
        let dormant = what(&mut links, up | lower | libc::IFF_DORMANT, "");
        assert_eq!(dormant, [(LinkWhat::CarrierOn, 0, 0), (LinkWhat::OperState, DORMANT, DOWN)]);
        assert_eq!(what(&mut links, up | lower | running, ""), [(LinkWhat::OperState, UP, DORMANT)]);
        assert_eq!(what(&mut links, up | lower | running, ""), []);
        // As `ip monitor` had it of one that came again: UP alone, state UNKNOWN; 2 ms later NO-CARRIER, state DOWN.
        let opened = what(&mut Links::default(), up | running, "w0 up no-carrier (before: down)");
        assert_eq!(opened, [(LinkWhat::OperState, UNKNOWN, -1)]);
        let gone = what(&mut links, up, "");
        assert_eq!(gone, [(LinkWhat::CarrierOff, 0, 0), (LinkWhat::OperState, DOWN, UP)]);
    }

    /// The first announcement of links that were there when the recording began.
    #[test]
    fn what_did_not_change_is_no_loss() {
        let (up, lower, running) = (libc::IFF_UP, libc::IFF_LOWER_UP, libc::IFF_RUNNING);
        let of = |flags, text| {
            what(&mut Links::default(), flags, text).into_iter().map(|w| w.0).collect::<Vec<_>>()
        };
        let state = LinkWhat::OperState;
        assert_eq!(of(up, "w0 up no-carrier (before: down)"), [state]);
        assert_eq!(of(up, "w0 up no-carrier mtu 1400"), [state]);
        assert_eq!(of(up | lower | running, "w0 up carrier master b0"), [state]);
        assert_eq!(
            of(up | lower | running, "w0 up carrier (before: up no-carrier)"),
            [LinkWhat::CarrierOn, state]
        );
        assert_eq!(of(0, "w0 down (before: up carrier)"), [LinkWhat::CarrierOff, state]);
        assert_eq!(of(0, "w0 down (before: up no-carrier)"), [state]);
        assert_eq!(of(up, &format!("w0 up no-carrier {AFTERWARDS}")), [LinkWhat::CarrierOff, state]);
    }

    #[test]
    fn a_port_has_its_bridges_state() {
        let e = Event {
            kind: EventKind::BridgePort,
            ctx: Context::Unknown,
            pid: 0,
            at: BootNs(1),
            timed: Timed::Read { within_ns: 5 },
            packet: PacketId::NONE,
            netns: 7,
            a: 2,
            b: 3,
            text: "p0 learning (br0)".into(),
        };
        let found = Links::default().look(&e);
        assert_eq!((found[0].what, found[0].ifindex, found[0].a), (LinkWhat::BridgePort, 3, 2));
    }
}
