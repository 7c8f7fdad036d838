//! What to record with: the best mechanism that works here, the functions it can take, the numbers they get.

use crate::announce::{self, Announcements};
use crate::app;
use crate::attach::{self, Attached};
use crate::btf::{self, Btf};
use crate::choose::{self, Candidate, Chosen};
use crate::kernel::{self, Symbols};
use crate::mechanism::{self, Mechanism, Offer};
use crate::netlink::GROUPS;
use crate::object::{self, Build, Loaded, MAX_FUNCS, Plan, Side};
use crate::profile::{self, Detail, Selection};
use crate::programs;
use crate::radios;
use crate::reasons::drop_reasons;
use crate::sampling;
use crate::work::Resources;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

mod entries;
mod networks;
mod often;
mod places;
mod points;
mod table;
mod unmet;
mod within;

pub(crate) use points::{drops_have_sockets, first_of_pair};
use points::{point_constants, retransmit_has_error};

pub use networks::{decide_wifi, wifi_constants};
pub use often::{clone_cookies, often};
pub use places::{DOES_NOT_SLEEP, MANY, SLEEPS, decide_programs};
pub use points::{constants, point_names, tracepoint_name, tracepoints};
pub use table::{function, function_table};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Profile(#[from] profile::UnknownProfile),
    #[error(transparent)]
    Btf(#[from] btf::Error),
    #[error(transparent)]
    Object(#[from] object::Error),
    #[error(transparent)]
    Attach(#[from] attach::Error),
    #[error("mechanism {name} is not offered by this kernel: {reason}; {next}")]
    NotOffered { name: &'static str, reason: String, next: String },
    #[error("nothing to probe: no function of profile {profile} can be traced here{hint}")]
    NothingToProbe { profile: String, hint: String },
    #[error(
        "{count} functions are more than the {MOST_FUNCS} that one recording can take; narrow the profile"
    )]
    TooMany { count: usize },
    #[error(
        "{count} functions are too many for fentry, which loads two programs for each ({MAX_CLONES} at most): take a smaller profile, or \
         --mechanism kprobe and half a minute of patience"
    )]
    TooManyPrograms { count: usize },
}

/// Everything decided, nothing attached yet.
pub struct Decision {
    pub mechanism: Mechanism,
    /// What the mechanism could take of what was asked for; `None`: it is no recording of functions.
    pub detail: Option<Detail>,
    pub build: Build,
    /// Better builds of the BPF program, and why each was not taken.
    pub build_passed_over: Vec<String>,
    /// The build is slower than this kernel allows: what to say of it.
    pub build_warning: Option<String>,
    pub passed_over: Vec<String>,
    /// Asked for by name and not recorded: what, and why. They are among `left_out`, too.
    pub unmet: Vec<(String, String)>,
    pub functions: Vec<Candidate>,
    /// Of the functions, those that go by fentry though the mechanism is another ([`often`]).
    pub often: Vec<usize>,
    /// Of each function: are its calls wanted, or is it there for tracking only?
    pub logged: Vec<bool>,
    pub left_out: Vec<(String, String)>,
    pub drop_reasons: Vec<(u32, String)>,
    /// Of packets and applications: constants of the kernel side that say which arguments its tracepoints have on this kernel.
    pub point_constants: Vec<(&'static str, u64)>,
    pub symbols: Symbols,
}

/// fentry loads two programs per function; more than this takes minutes on a slow machine.
const FENTRY_MOST: usize = 150;
/// `KP_MAX_CLONES` of bpf/include/wire.h.
const MAX_CLONES: usize = 512;
const KPROBE_MOST: usize = 400;

/// Decides. `wanted`: the user's mechanism, else the best that is offered.
pub fn decide(wanted: Option<Mechanism>, selection: &Selection) -> Result<Decision, Error> {
    selection.check()?;
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let picked = pick_build()?;
    let build = picked.build;
    let config = kernel::config();
    let mut passed_over = Vec::new();
    let mut chosen = None;
    for m in Mechanism::ALL {
        if wanted.is_some_and(|w| w != m) {
            continue;
        }
        match mechanism::attempt(m, build, &config) {
            Ok(()) => {
                chosen = Some(m);
                break;
            }
            Err(reason) => passed_over.push((m, reason)),
        }
    }
    let Some(mechanism) = chosen else {
        let (m, reason) = passed_over.pop().ok_or_else(|| Error::Refused("no mechanism at all".into()))?;
        let next = match mechanism::offers(build).iter().find(|o| o.offered) {
            Some(Offer { mechanism, .. }) => format!("the best one offered here is {}", mechanism.name()),
            None => "no other is offered either".into(),
        };
        return Err(Error::NotOffered { name: m.name(), reason, next });
    };
    let btfs = Btf::running()?;
    let symbols = Symbols::running();
    if mechanism == Mechanism::Tracepoint && selection.has_within() {
        return Err(within::refusal(passed_over.first()));
    }
    let (mut functions, mut logged, mut left_out, detail) = if mechanism == Mechanism::Tracepoint {
        Selected::default()
    } else {
        select(mechanism, selection, &choose::candidates(&btfs), &symbols, kernel::traceable().as_ref())?
    };
    if selection.has_within() {
        within::add(mechanism, selection, &btfs, &symbols, (&mut functions, &mut left_out))?;
        logged.resize(functions.len(), true);
    }
    entries::mark(selection, &mut functions);
    if functions.len() > MOST_FUNCS {
        return Err(Error::TooMany { count: functions.len() });
    }
    let mut unmet = match mechanism {
        Mechanism::Tracepoint => unmet::by_points(selection, build, &symbols, passed_over.first()),
        _ => unmet::by_functions(selection, &functions, &left_out),
    };
    unmet.extend(crate::also::unmet(selection, &functions, &left_out));
    unmet.extend(entries::unmet(mechanism, selection, &functions));
    left_out.extend(unmet.iter().filter(|u| !left_out.contains(u)).cloned().collect::<Vec<_>>());
    Ok(Decision {
        mechanism,
        detail,
        build,
        build_passed_over: picked.reasons(),
        build_warning: picked.warning(),
        passed_over: passed_over.into_iter().map(|(m, r)| format!("{}: {r}", m.name())).collect(),
        unmet,
        // a mechanism that was asked for is the only one
        often: if wanted.is_none() { often(mechanism, &functions) } else { Vec::new() },
        functions,
        logged,
        left_out,
        drop_reasons: drop_reasons(&btfs),
        point_constants: point_constants(&btfs[0], &symbols),
        symbols,
    })
}

fn pick_build() -> Result<mechanism::Picked, Error> {
    mechanism::pick_build().map_err(|e| Error::Refused(format!("no program loads on this kernel: {e}")))
}

/// Functions, which are logged, what was left out, and how much of the profile they are.
type Selected = (Vec<Candidate>, Vec<bool>, Vec<(String, String)>, Option<Detail>);

pub(crate) fn select(
    m: Mechanism,
    selection: &Selection,
    found: &choose::Found,
    symbols: &Symbols,
    traceable: Option<&HashMap<String, u32>>,
) -> Result<Selected, Error> {
    let most = match m {
        Mechanism::Fentry => FENTRY_MOST,
        Mechanism::Kprobe => KPROBE_MOST,
        _ => usize::MAX,
    };
    let (mut chosen, mut logged) = choose::choose(found, selection, traceable, symbols);
    let mut detail = selection.detail;
    if chosen.functions.len() > most && selection.detail == Detail::Full {
        let all = chosen.functions.len();
        let shorter = Selection { detail: Detail::Spine, ..selection.clone() };
        let (mut spine, spine_logged) = choose::choose(found, &shorter, traceable, symbols);
        let kept = spine.functions.len();
        spine.left_out.push((
            format!("{} more functions of profile {}", all - kept, selection.profile),
            format!(
                "{} takes one program a function: the spine of the path is probed; add others by --add",
                m.name()
            ),
        ));
        (chosen, logged, detail) = (spine, spine_logged, Detail::Spine);
    }
    if m == Mechanism::Fentry && chosen.functions.len() > MAX_CLONES {
        return Err(Error::TooManyPrograms { count: chosen.functions.len() });
    }
    if m == Mechanism::Fentry {
        // typed programs refuse these one by one; say so without trying
        let keep: Vec<bool> = chosen.functions.iter().map(|c| !c.odd_arguments).collect();
        for (c, _) in chosen.functions.iter().zip(&keep).filter(|(_, k)| !**k) {
            chosen.left_out.push((c.name.clone(), "more than six arguments or a structure by value".into()));
        }
        let mut it = keep.iter();
        chosen.functions.retain(|_| it.next().copied().unwrap_or(true));
        let mut it = keep.iter();
        logged.retain(|_| it.next().copied().unwrap_or(true));
    }
    let Chosen { functions, left_out } = chosen;
    if !logged.iter().any(|l| *l) {
        let hint = match (&selection.add[..], left_out.first()) {
            ([first, ..], Some((_, reason))) => format!(" ({first}: {reason})"),
            _ => String::new(),
        };
        return Err(Error::NothingToProbe { profile: selection.profile.clone(), hint });
    }
    Ok((functions, logged, left_out, Some(detail)))
}

/// How a program of one fixed place is put there.
#[derive(Clone, Copy)]
pub enum Fixed {
    /// At a raw tracepoint, by name.
    Raw,
    /// Where its section says, with the attach type given: a tracepoint with types, a function's entry or return.
    Typed(u32),
    /// It is no program but a switch that several have in common.
    Switch,
    /// Nowhere: user space has it run.
    Nowhere,
    /// In a program of user space.
    User(&'static programs::Hook),
    /// At an event of tracefs, by its number there.
    Event(u64),
    /// The same, of a radio.
    Radio(&'static radios::Point),
    /// At a raw tracepoint, for what that is given and its event in tracefs does not have.
    Given(&'static radios::Point),
    /// At a kernel function's entry, by a kprobe.
    Kprobe,
}

/// A program of the object that has one fixed place.
#[derive(Clone)]
pub struct Tracepoint {
    pub program: String,
    pub name: String,
    pub fixed: Fixed,
    /// Number in the log, for points.
    pub func: Option<u16>,
    /// Index of its switch, for points and events.
    pub switch: Option<usize>,
}

impl Tracepoint {
    /// Not on a packet's way, and needed over a pause: a thread id that is used again has another name (bpf/tasks.bpf.h).
    fn stays(&self) -> bool {
        self.program.starts_with("task_")
    }

    /// `None`: it is no program.
    fn link(&self, loaded: &Loaded) -> Option<io::Result<OwnedFd>> {
        match self.fixed {
            Fixed::Raw | Fixed::Given(_) => Some(attach::tracepoint(loaded, &self.program, &self.name)),
            Fixed::Typed(kind) => Some(attach::typed(loaded, &self.program, kind)),
            Fixed::User(hook) => Some(
                loaded
                    .program(&self.program)
                    .ok_or_else(|| io::Error::other("its program is not loaded"))
                    .and_then(|p| programs::attach(p, hook)),
            ),
            Fixed::Radio(point) => Some(radios::attach(loaded, &self.program, point)),
            Fixed::Event(number) => Some(attach::event(loaded, &self.program, number)),
            Fixed::Kprobe => Some(attach::kprobe(loaded, &self.program, &self.name)),
            Fixed::Switch | Fixed::Nowhere => None,
        }
    }
}

/// Numbers above are those of tracepoints and crossings.
const MOST_FUNCS: usize = MAX_FUNCS - 100;

/// The switch of TCP's state; those of the crossings lie below it.
const STATE_SWITCH: usize = MAX_FUNCS - 1;
/// Its number in the log, which may have packets' tracepoints and functions, too; those of the crossings lie below it, all of
/// them above any function's.
const STATE_NUMBER: usize = MAX_FUNCS - 80;
const STATE_SWITCH_NAME: &str = "tcp-state";

/// Its number.
pub fn state_switch() -> u16 {
    STATE_NUMBER as u16
}

/// Decides for a recording of applications: which places this kernel has and lets us have.
pub fn decide_app() -> Result<(Decision, Vec<Tracepoint>, app::Chosen), Error> {
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let picked = pick_build()?;
    let build = picked.build;
    let functions = mechanism::attempt(Mechanism::Fentry, build, &kernel::config());
    let btfs = Btf::running()?;
    let chosen = app::choose(&btfs[0], functions.is_ok());
    let typed = |place| match place {
        app::Hook::Tracepoint => Fixed::Typed(crate::sys::ATTACH_RAW_TP),
        app::Hook::Entry => Fixed::Typed(crate::sys::ATTACH_FENTRY),
        app::Hook::Return => Fixed::Typed(crate::sys::ATTACH_FEXIT),
    };
    let mut all: Vec<Tracepoint> = chosen
        .sources
        .iter()
        .map(|s| Tracepoint {
            program: s.program.into(),
            name: s.at.into(),
            fixed: typed(s.hook),
            func: None,
            switch: None,
        })
        .collect();
    all.extend(
        object::tracepoint_programs(build, Side::Application).into_iter().map(|(program, name)| Tracepoint {
            program,
            name,
            fixed: Fixed::Raw,
            func: None,
            switch: None,
        }),
    );
    let switch = |name: &str, below: usize| Tracepoint {
        program: String::new(),
        name: name.into(),
        fixed: Fixed::Switch,
        func: Some((STATE_NUMBER - below) as u16),
        switch: Some(STATE_SWITCH - below),
    };
    let seen = |c: &kpat_model::Crossing| {
        ["tcp", "udp", "raw", "ping"].iter().any(|p| !app::seen_by(&chosen, *c, p).is_empty())
    };
    all.extend(kpat_model::Crossing::ALL.iter().filter(|c| seen(c)).map(|c| switch(c.name(), *c as usize)));
    all.push(switch(STATE_SWITCH_NAME, 0));
    let decision = Decision {
        detail: None,
        mechanism: if functions.is_ok() { Mechanism::Fentry } else { Mechanism::Tracepoint },
        build,
        build_passed_over: picked.reasons(),
        build_warning: picked.warning(),
        unmet: Vec::new(),
        passed_over: functions
            .err()
            .map(|r| format!("{}: {r}", Mechanism::Fentry.name()))
            .into_iter()
            .collect(),
        functions: Vec::new(),
        often: Vec::new(),
        logged: Vec::new(),
        left_out: chosen.left_out.clone(),
        drop_reasons: drop_reasons(&btfs),
        point_constants: vec![retransmit_has_error(&btfs[0])],
        symbols: Symbols::running(),
    };
    Ok((decision, all, chosen))
}

/// Values of the kernel side's constants.
pub type Constants = Vec<(&'static str, u64)>;

/// Decides for a recording of whom each CPU works for.
pub fn decide_profile(resources: Resources) -> Result<(Decision, Vec<Tracepoint>, Constants), Error> {
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let picked = pick_build()?;
    let build = picked.build;
    let btfs = Btf::running()?;
    let at = |fixed: Fixed| {
        move |(program, name): (String, String)| Tracepoint { program, name, fixed, func: None, switch: None }
    };
    let in_pairs = points::programs_are_preempted(&btfs[0]);
    // The context is known by its own stack.
    let known = points::programs(build, Side::Profile)
        .filter(|(program, name, _)| !program.starts_with("context_") && resources.need(name))
        .filter(|(program, ..)| in_pairs || first_of_pair(program).is_none())
        .map(|(program, name, fixed)| at(fixed)((program, name)));
    let here = |t: &Tracepoint| btfs[0].find(btf::kind::TYPEDEF, &format!("btf_trace_{}", t.name)).is_some();
    let constants = vec![
        ("drops_have_sockets", u64::from(drops_have_sockets(&btfs[0]))),
        ("in_pairs", u64::from(in_pairs)),
    ];
    let (mut all, absent): (Vec<Tracepoint>, Vec<Tracepoint>) = known.partition(here);
    if in_pairs {
        for (program, name, number) in points::whole(build) {
            all.retain(|t| t.name != name);
            all.push(at(Fixed::Event(number))((program, name)));
        }
    }
    // Sockets' tracepoints are all there since 6.3, or none is.
    if absent.iter().any(|t| t.name == "sk_data_ready" || t.name == "sock_send_length")
        && mechanism::attempt(Mechanism::Fentry, build, &kernel::config()).is_ok()
    {
        let [entries, returns] = object::function_programs(build, Side::Profile);
        let is_here = |name: &str| btfs[0].find(btf::kind::FUNC, name).is_some() && resources.need(name);
        let wanted = |all: Vec<(String, String)>, how| {
            all.into_iter().filter(|(_, name)| is_here(name)).map(at(Fixed::Typed(how))).collect::<Vec<_>>()
        };
        all.extend(wanted(entries, crate::sys::ATTACH_FENTRY));
        all.extend(wanted(returns, crate::sys::ATTACH_FEXIT));
    }
    all.extend(["account", crate::work::FAULT_DONE].map(|p| at(Fixed::Nowhere)((p.into(), p.into()))));
    // On no tracepoint: a clock of each CPU has it run (crate::sampling).
    all.push(at(Fixed::Nowhere)((sampling::PROGRAM.into(), "cpu-clock".into())));
    let decision = Decision {
        detail: None,
        mechanism: Mechanism::Tracepoint,
        build,
        build_passed_over: picked.reasons(),
        build_warning: None,
        unmet: Vec::new(),
        passed_over: Vec::new(),
        functions: Vec::new(),
        often: Vec::new(),
        logged: Vec::new(),
        left_out: absent
            .into_iter()
            .map(|t| (format!("tracepoint {}", t.name), "this kernel has no such tracepoint".into()))
            .collect(),
        drop_reasons: drop_reasons(&btfs),
        point_constants: Vec::new(),
        symbols: Symbols::running(),
    };
    Ok((decision, all, constants))
}

/// Number of the i-th function; 0 is never used.
pub fn function_id(i: usize) -> u16 {
    i as u16 + 1
}

/// Programs to load for a decision.
pub fn programs<'a>(d: &Decision, tracepoints: &'a [Tracepoint]) -> Vec<(&'a str, Option<(u32, u32)>)> {
    let mut out: Vec<(&str, Option<(u32, u32)>)> = Vec::new();
    for t in tracepoints.iter().filter(|t| !matches!(t.fixed, Fixed::Switch)) {
        // Places in programs have one program in common.
        if !out.iter().any(|(name, _)| *name == t.program) {
            out.push((&t.program, None));
        }
    }
    out.extend(often::of_functions(d));
    out
}

/// Loads.
pub fn load(plan: &Plan, d: &Decision, tracepoints: &[Tracepoint]) -> Result<Loaded, Error> {
    Ok(plan.load(&programs(d, tracepoints))?)
}

/// Attaches everything; what the kernel refuses is added to `left_out`, and if it was wanted only for tracking, reported too.
pub fn attach(
    loaded: &Loaded,
    d: &mut Decision,
    tracepoints: &[Tracepoint],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Attached, Error> {
    let mut attached = Attached::default();
    let (many, tracepoints): (Vec<&Tracepoint>, Vec<&Tracepoint>) =
        tracepoints.iter().partition(|t| t.program == MANY);
    let (links, refused) = programs::attach_many(loaded, &hooks(&many));
    links.into_iter().for_each(|link| attached.hold(link, false));
    d.left_out.extend(refused.into_iter().map(|(h, e)| (h.function.name.clone(), e.to_string())));
    for t in tracepoints {
        match t.link(loaded) {
            Some(Ok(link)) => attached.hold(link, t.stays()),
            Some(Err(e)) => {
                let kind = if matches!(t.fixed, Fixed::User(_)) { "" } else { "tracepoint " };
                d.left_out.push((format!("{kind}{}", t.name), e.to_string()));
            }
            None => {}
        }
    }
    let refused = often::by_mechanisms(loaded, d, &mut attached, progress)?;
    for (name, reason) in refused {
        if let Some(i) = d.functions.iter().position(|c| c.name == name) {
            d.logged[i] = false;
        }
        d.left_out.push((name, reason));
    }
    Ok(attached)
}

fn hooks(places: &[&Tracepoint]) -> Vec<&'static programs::Hook> {
    let hook = |t: &&Tracepoint| if let Fixed::User(hook) = t.fixed { Some(hook) } else { None };
    places.iter().filter_map(hook).collect()
}

/// Stamps of system events, where functions are probed. They are no packet's: they stay on over a pause, as system events are
/// logged over one.
pub fn announcements(d: &mut Decision) -> Option<Announcements> {
    if d.mechanism == Mechanism::Tracepoint {
        return None;
    }
    let started = Announcements::start(d.build, &GROUPS);
    started
        .map_err(|why| {
            d.left_out.push((announce::FUNCTION.into(), format!("no stamps of system events: {why}")))
        })
        .ok()
}

/// Puts on again what [`Attached::take_off`] took off. What the kernel refused the first time it refuses again.
///
/// Errors: it refuses more than then; everything is off again.
pub fn put_on(
    loaded: &Loaded,
    tracepoints: &[Tracepoint],
    attached: &mut Attached,
    want: usize,
) -> io::Result<()> {
    let mut refused = None;
    let (many, others): (Vec<&Tracepoint>, Vec<&Tracepoint>) =
        tracepoints.iter().filter(|t| !t.stays()).partition(|t| t.program == MANY);
    let (links, not) = programs::attach_many(loaded, &hooks(&many));
    links.into_iter().for_each(|link| attached.hold(link, false));
    for (h, e) in not {
        refused = Some(io::Error::new(e.kind(), format!("{}: {e}", h.function.name)));
    }
    for t in others {
        match t.link(loaded) {
            Some(Ok(link)) => attached.hold(link, false),
            Some(Err(e)) => refused = Some(io::Error::new(e.kind(), format!("{}: {e}", t.name))),
            None => {}
        }
    }
    match refused {
        Some(e) if attached.points() < want => {
            attached.take_off();
            Err(e)
        }
        _ => Ok(()),
    }
}
