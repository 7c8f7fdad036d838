//! What is recorded of radios and links: tracepoints by the table, frames, and carriers where functions can be probed.

use super::{Decision, Error, Fixed, Tracepoint, pick_build};
use crate::btf::{Btf, kind};
use crate::kernel::{self, Symbols};
use crate::mechanism::{self, Mechanism};
use crate::object::{self, Build, Side};
use crate::radios;
use crate::reasons::drop_reasons;
use kpat_model::wifi::{BUILT_IN, WifiPoint};

const PROGRAM: &str = "radio_point";
const CARRIERS: [&str; 2] = ["netif_carrier_on", "netif_carrier_off"];
/// Switches of what is no tracepoint of the table (bpf/wifi.bpf.c).
const FRAMES: usize = 0;
const CARRIER: usize = 1;

/// Frames of BSS transition management, and the answer to an association.
const TRANSITIONS: &str = "frames of BSS transition management (802.11v) are not recorded";
const STATUS: &str = "the status of an association that was refused is not recorded";

/// Tracepoints whose event has not all: programs of their own read the rest from what is handed to the tracepoint. With the structure that has it, one of these (none: no structure), the
/// constant of the kernel side that says which point they are, and what is missing without it.
type Given = (&'static str, &'static [&'static str], &'static str, &'static str);
const GIVEN: [Given; 4] = [
    ("cfg80211_rx_mgmt", &["cfg80211_rx_info"], "transition_received", TRANSITIONS),
    ("rdev_mgmt_tx", &["cfg80211_mgmt_tx_params"], "transition_sent", TRANSITIONS),
    (
        "cfg80211_send_rx_assoc",
        &["cfg80211_rx_assoc_resp_data", "cfg80211_rx_assoc_resp"],
        "association_answered",
        STATUS,
    ),
    ("cfg80211_assoc_comeback", &[], "association_put_off", ""),
];

/// Constants of the kernel side that the tracepoints found decide.
pub fn wifi_constants(
    tracepoints: &[Tracepoint],
    points: &[&'static radios::Point],
) -> Vec<(&'static str, u64)> {
    let is_recorded =
        |name: &str| tracepoints.iter().any(|t| matches!(t.fixed, Fixed::Given(_)) && t.name == name);
    let number = |name: &str| points.iter().find(|p| p.row.name == name).map(|p| p.number());
    let recorded = GIVEN.iter().filter(|(name, ..)| is_recorded(name));
    recorded.filter_map(|(name, _, constant, _)| Some((*constant, u64::from(number(name)?)))).collect()
}

/// Decides for a recording of what a device does to have a network.
pub fn decide_wifi() -> Result<(Decision, Vec<Tracepoint>, Vec<&'static radios::Point>), Error> {
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let picked = pick_build()?;
    let build = Build { direct: false, ..picked.build };
    let rows = WifiPoint::parse_all(BUILT_IN).map_err(Error::Refused)?;
    let mut found = radios::find(&rows);
    let btfs = Btf::running().unwrap_or_default();
    let has = |structures: &[&str]| {
        let one = |s: &&str| btfs.iter().any(|b| b.find(kind::STRUCT, s).is_some());
        structures.is_empty() || structures.iter().any(one)
    };
    for (name, structures, _, missing) in GIVEN {
        let at = found.points.iter().position(|p| p.row.name == name);
        if let Some(at) = at.filter(|_| !has(structures)) {
            let why = format!("this kernel's BTF has no struct {}: {missing}", structures[0]);
            found.left_out.push((format!("frames of {name}"), why));
            if found.points[at].has_only_given() {
                found.points.remove(at);
            }
        }
    }
    let at = |fixed, program: String, name: String, switch| Tracepoint {
        program,
        name,
        fixed,
        func: None,
        switch: Some(switch),
    };
    let mut all: Vec<Tracepoint> = object::tracepoint_programs(build, Side::Wifi)
        .into_iter()
        .filter_map(|(program, name)| match GIVEN.iter().find(|(of, ..)| *of == name) {
            None => Some(at(Fixed::Raw, program, name, FRAMES)),
            Some((_, structures, ..)) => {
                let point = found.points.iter().find(|p| p.row.name == name).filter(|_| has(structures))?;
                Some(at(Fixed::Given(point), program, name, point.switch()))
            }
        })
        .collect();
    let is_given = |p: &radios::Point| {
        let of_it = |t: &Tracepoint| matches!(t.fixed, Fixed::Given(_)) && t.name == p.row.name;
        p.is_said_by_given() && all.iter().any(of_it)
    };
    let events: Vec<_> = found.points.iter().filter(|p| !p.has_only_given() && !is_given(p)).collect();
    for p in events {
        let mut t = at(Fixed::Radio(p), PROGRAM.into(), p.function.name.clone(), p.switch());
        t.func = Some(p.function.id);
        all.push(t);
    }
    let config = kernel::config();
    let offered = |m| mechanism::attempt(m, picked.build, &config);
    match (offered(Mechanism::Fentry), offered(Mechanism::Kprobe)) {
        (Ok(()), _) => all.extend(CARRIERS.map(|f| {
            let program = f.replace("netif_", "fentry_");
            at(Fixed::Typed(crate::sys::ATTACH_FENTRY), program, f.into(), CARRIER)
        })),
        (_, Ok(())) => {
            all.extend(CARRIERS.map(|f| at(Fixed::Kprobe, f.replace("netif_", "kprobe_"), f.into(), CARRIER)))
        }
        (_, Err(why)) => {
            let why = format!("{why}: carriers are known by rtnetlink's announcements, which come later");
            found.left_out.extend(CARRIERS.map(|f| (f.to_owned(), why.clone())));
        }
    }
    let decision = Decision {
        detail: None,
        mechanism: Mechanism::Tracepoint,
        build,
        build_passed_over: Vec::new(),
        build_warning: None,
        unmet: Vec::new(),
        passed_over: Vec::new(),
        functions: Vec::new(),
        often: Vec::new(),
        logged: Vec::new(),
        left_out: found.left_out,
        drop_reasons: drop_reasons(&btfs),
        point_constants: Vec::new(),
        symbols: Symbols::running(),
    };
    Ok((decision, all, found.points))
}
