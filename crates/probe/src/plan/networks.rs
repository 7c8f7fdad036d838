//! What is recorded of radios and links: tracepoints by the table, frames, and carriers where functions can be probed.

use super::{Decision, Error, Fixed, Tracepoint, pick_build};
use crate::btf::Btf;
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

/// Decides for a recording of what a device does to have a network.
pub fn decide_wifi() -> Result<(Decision, Vec<Tracepoint>, Vec<&'static radios::Point>), Error> {
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let picked = pick_build()?;
    let build = Build { direct: false, ..picked.build };
    let rows = WifiPoint::parse_all(BUILT_IN).map_err(Error::Refused)?;
    let mut found = radios::find(&rows);
    let at = |fixed, program: String, name: String, switch| Tracepoint {
        program,
        name,
        fixed,
        func: None,
        switch: Some(switch),
    };
    let mut all: Vec<Tracepoint> = object::tracepoint_programs(build, Side::Wifi)
        .into_iter()
        .map(|(program, name)| at(Fixed::Raw, program, name, FRAMES))
        .collect();
    for p in &found.points {
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
        drop_reasons: Btf::running().map(|b| drop_reasons(&b)).unwrap_or_default(),
        retransmit_has_error: false,
        symbols: Symbols::running(),
    };
    Ok((decision, all, found.points))
}
