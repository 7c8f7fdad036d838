//! One probe that does nothing at the system call getppid, for measuring what a hit costs: `cost GUEST count|record|xp|xrp|off`.
//! Prints `ready`; ends and takes the probe out when its input ends, with the counts as the last line.

use kpat_guest::mailbox::values::{Item, Value};
use kpat_guest::probe::{Probes, What, WhatReturns, Xp, Xrp};
use kpat_guest::{Guest, Target};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, target, kind] = &words[..] else { return Err("cost GUEST count|record|xp|xrp|off".into()) };
    let guest = Arc::new(Guest::attach(&Target::parse(target))?);
    let mut probes = Probes::of(guest.clone())?;
    let address = probes.entry(guest.symbols()?.parse("__x64_sys_getppid")?)?;
    let xp = |what| Xp { address, conditions: Vec::new(), what };
    let argument = || Value::argument(0).into_iter().map(Item::Value).collect();
    let handle = match kind.as_str() {
        "count" => probes.register(xp(What::Count))?,
        "record" => probes.register(xp(What::Record(argument(), Box::new(|_| ()))))?,
        "xp" => probes.register(xp(What::Call(Some(Box::new(|_| 0)), None)))?,
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
    };
    let stop = probes.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    println!("ready");
    probes.run(None)?;
    println!("{:?}", probes.counts(handle));
    match probes.remove()? {
        None => Ok(()),
        Some(rest) => Err(rest.into()),
    }
}
