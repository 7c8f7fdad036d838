//! Probes that do nothing, for measuring what a hit costs: `cost GUEST count|record|xp|xrp|off|short[+N] [FUNCTION...]`, without one at the system
//! call getppid. `short`: a handler at the function's first instruction that has no room for a jump. `+N`: and probes of the kind `off`, switched on, at N other functions. Prints `ready` and how many ms the
//! guest took to get them; ends and takes the probes out when its input ends, with the counts of all together as the last line, and how many ms that took.

use kpat_guest::mailbox::host::Counts;
use kpat_guest::mailbox::values::{Item, Value};
use kpat_guest::probe::{Handle, Probes, What, WhatReturns, Xp, Xrp};
use kpat_guest::x86::{Displaced, Flow};
use kpat_guest::{Guest, Target};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

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

/// Functions of the network and of files: nothing of a call of getppid.
const OTHERS: [&str; 8] = ["tcp_", "udp_", "ip_", "ip6_", "inet_", "ext4_", "nfs_", "sock_"];

/// Counters at so many functions that nobody calls.
fn others(probes: &mut Probes<'_>, guest: &Guest, count: usize) -> Result<(), Box<dyn std::error::Error>> {
    let mut left = count;
    for symbol in guest.symbols()?.table().iter() {
        if left == 0 {
            return Ok(());
        }
        if !matches!(symbol.kind, 't' | 'T') || !OTHERS.iter().any(|o| symbol.name.starts_with(o)) {
            continue;
        }
        let Ok(address) = probes.entry(symbol.address) else { continue };
        let probe = Xp { address, conditions: Vec::new(), what: What::Count };
        left -= usize::from(probes.register(probe).is_ok());
    }
    Err(format!("{left} of {count} other functions were not found").into())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [target, kind, functions @ ..] = &words[..] else {
        return Err("cost GUEST count|record|xp|xrp|off|short [FUNCTION...]".into());
    };
    let (kind, more) = kind.split_once('+').unwrap_or((kind, "0"));
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
    others(&mut probes, &guest, more.parse()?)?;
    let since = Instant::now();
    probes.commit()?;
    let put_in = since.elapsed();
    let stop = probes.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    println!("ready {:.1}", put_in.as_secs_f64() * 1e3);
    probes.run(None)?;
    let all = handles.iter().map(|h| probes.counts(*h)).fold(Counts::default(), |a, b| Counts {
        hits: a.hits + b.hits,
        lost: a.lost + b.lost,
        missed: a.missed + b.missed,
        no_return: a.no_return + b.no_return,
    });
    let since = Instant::now();
    let rest = probes.remove()?;
    println!("{all:?} {:.1}", since.elapsed().as_secs_f64() * 1e3);
    match rest {
        None => Ok(()),
        Some(rest) => Err(rest.into()),
    }
}
