//! Probes that do nothing, for measuring what a hit costs: `cost GUEST count|record|xp|xrp|off|short [FUNCTION...]`, without one at the system
//! call getppid. `short`: a handler at the function's first instruction that has no room for a jump. Prints `ready`; ends and takes the probes out when its input ends, with the counts of all together as the last line.

use kpat_guest::mailbox::host::Counts;
use kpat_guest::mailbox::values::{Item, Value};
use kpat_guest::probe::{Handle, Probes, What, WhatReturns, Xp, Xrp};
use kpat_guest::x86::{Displaced, Flow};
use kpat_guest::{Guest, Target};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn register(probes: &mut Probes<'_>, kind: &str, address: u64) -> Result<Handle, Box<dyn std::error::Error>> {
    let xp = |what| Xp { address, conditions: Vec::new(), what };
    let argument = || Value::argument(0).into_iter().map(Item::Value).collect();
    Ok(match kind {
        "count" => probes.register(xp(What::Count))?,
        "record" => probes.register(xp(What::Record(argument(), Box::new(|_| ()))))?,
        "xp" | "short" => probes.register(xp(What::Call(Some(Box::new(|_| 0)), None)))?,
        "xrp" => {
            let what = WhatReturns::Call(Some(Box::new(|_| 0)), Some(Box::new(|_| 0)));
            probes.register_return(Xrp {
                address,
                conditions: Vec::new(),
                at_return: Vec::new(),
                maxactive: 8,
                what,
            })?
        }
        // The same code, switched off: what a probe costs that wants nothing.
        "off" => {
            let handle = probes.register(xp(What::Call(None, None)))?;
            probes.disable(handle);
            handle
        }
        _ => return Err(format!("no kind {kind}").into()),
    })
}

/// The first instruction of a function, in its first 64 bytes, that has no room for a jump and does something.
fn first_short(guest: &Guest, from: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let mut code = [0; 79];
    guest.memory().read(from, &mut code)?;
    let mut at = 0;
    while at < 64 {
        let d = Displaced::decode(from + at as u64, &code[at..])?;
        if !d.takes_jump() && d.flow == Flow::Next {
            return Ok(d.address);
        }
        at += d.bytes.len();
    }
    Err("the function has only long instructions at its beginning".into())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [target, kind, functions @ ..] = &words[..] else {
        return Err("cost GUEST count|record|xp|xrp|off|short [FUNCTION...]".into());
    };
    let guest = Arc::new(Guest::attach(&Target::parse(target))?);
    let mut probes = Probes::of(guest.clone())?;
    let usual = ["__x64_sys_getppid".to_owned()];
    probes.hold();
    let mut handles = Vec::new();
    for function in if functions.is_empty() { &usual[..] } else { functions } {
        let mut address = probes.entry(guest.symbols()?.parse(function)?)?;
        if kind == "short" {
            address = first_short(&guest, address)?;
        }
        handles.push(register(&mut probes, kind, address)?);
    }
    probes.commit()?;
    let stop = probes.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    println!("ready");
    probes.run(None)?;
    let all = handles.iter().map(|h| probes.counts(*h)).fold(Counts::default(), |a, b| Counts {
        hits: a.hits + b.hits,
        lost: a.lost + b.lost,
        missed: a.missed + b.missed,
        no_return: a.no_return + b.no_return,
    });
    println!("{all:?}");
    match probes.remove()? {
        None => Ok(()),
        Some(rest) => Err(rest.into()),
    }
}
