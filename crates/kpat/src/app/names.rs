//! How sockets are named for people.

use kpat_analysis::app::{Held, Limits, Traffic};

pub fn protocol(proto: i32) -> String {
    match proto {
        6 => "TCP".into(),
        17 => "UDP".into(),
        1 | 58 => "ping".into(),
        other => format!("proto {other}"),
    }
}

fn end(addr: Option<&String>, port: i32) -> String {
    let addr = addr.map_or("*", String::as_str);
    let shown =
        if addr.contains(':') && !addr.starts_with("h:") { format!("[{addr}]") } else { addr.to_owned() };
    if port == 0 { shown } else { format!("{shown}:{port}") }
}

pub fn ends(t: &Traffic) -> String {
    let s = &t.socket;
    let (own, far) = (end(s.local_addr.as_ref(), s.local_port), end(s.peer_addr.as_ref(), s.peer_port));
    if s.peer_port == 0 { own } else { format!("{own} > {far}") }
}

/// The greatest share of the known time, and of what.
pub fn held_by(l: &Limits) -> Option<(&'static str, f64)> {
    let share = |by: &Held| l.held_ns(*by) as f64 / l.known_ns.max(1) as f64;
    let known = Held::ALL.into_iter().filter(|h| *h != Held::Nothing);
    let most = known.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    (share(&most) > 0.0).then(|| (most.name(), share(&most)))
}
