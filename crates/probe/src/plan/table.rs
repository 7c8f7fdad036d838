//! What the log's table of functions says of each: probed functions, then places of other kinds.

use super::{Decision, Fixed, Tracepoint, function_id, points, tracepoint_name};
use crate::choose::Candidate;
use crate::mechanism::Mechanism;
use crate::profile;
use kpat_model::meta;

/// A probed function as the log's table has it, by the recording's main mechanism.
pub fn function(id: u16, c: &Candidate, addr: u64) -> meta::Function {
    meta::Function {
        id,
        name: c.name.clone(),
        module: c.module.clone(),
        kind: "function".into(),
        addr,
        layer: if c.is_within() {
            String::new()
        } else if c.module.is_empty() {
            profile::layer(&c.name).into()
        } else {
            layer_of_module(c).into()
        },
        via: c.via.text(),
        mechanism: String::new(),
        entry_only: c.entry_only,
    }
}

/// The log's function table: probed functions, then tracepoints.
pub fn function_table(d: &Decision, tracepoints: &[Tracepoint]) -> Vec<meta::Function> {
    let mut out: Vec<meta::Function> = d
        .functions
        .iter()
        .enumerate()
        .filter(|(i, _)| d.logged[*i])
        .map(|(i, c)| {
            let mechanism = if d.often.contains(&i) { Mechanism::Fentry.name() } else { "" };
            meta::Function {
                mechanism: mechanism.into(),
                ..function(function_id(i), c, d.symbols.address(&c.name))
            }
        })
        .collect();
    let switches = tracepoints.iter().filter(|t| matches!(t.fixed, Fixed::Switch));
    out.extend(switches.filter_map(|t| {
        let crossing = kpat_model::Crossing::from_name(&t.name);
        Some(meta::Function {
            id: t.func?,
            name: t.name.clone(),
            module: String::new(),
            kind: "crossing".into(),
            addr: 0,
            layer: String::new(),
            via: crossing.map_or("TCP's state", |c| c.layers()).into(),
            mechanism: String::new(),
            entry_only: false,
        })
    }));
    let places = tracepoints.iter().filter_map(|t| match t.fixed {
        Fixed::User(hook) if hook.first => Some(hook.function.clone()),
        Fixed::Radio(point) => Some(point.function.clone()),
        Fixed::Given(point) if point.is_said_by_given() => Some(point.function.clone()),
        _ => None,
    });
    out.extend(places);
    let points =
        tracepoints.iter().filter(|t| !matches!(t.fixed, Fixed::Switch | Fixed::User(_) | Fixed::Radio(_)));
    out.extend(points.filter_map(|t| {
        Some(meta::Function {
            id: t.func?,
            name: tracepoint_name(&t.name),
            module: String::new(),
            kind: "tracepoint".into(),
            addr: 0,
            layer: points::tracepoint_layer(&t.name).into(),
            via: "tracepoint argument".into(),
            mechanism: String::new(),
            entry_only: false,
        })
    }));
    out
}

fn layer_of_module(c: &Candidate) -> &'static str {
    let by_name = profile::layer(&c.name);
    // an unknown name inside a protocol module is not a driver
    if by_name == "driver"
        && (c.module.starts_with("nf") || c.module.starts_with("x_") || c.module.contains("tables"))
    {
        "network"
    } else {
        by_name
    }
}
