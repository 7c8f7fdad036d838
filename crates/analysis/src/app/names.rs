//! How sockets are called.

use kpat_store::tables::SocketRow;

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

/// Own end, and the other one if the socket is connected.
pub fn ends(s: &SocketRow) -> (String, Option<String>) {
    let peer = || end(s.peer_addr.as_ref(), s.peer_port);
    (end(s.local_addr.as_ref(), s.local_port), (s.peer_port != 0).then(peer))
}
