//! How sockets are called.

use super::ending::Ending;
use kpat_store::tables::SocketRow;

pub fn protocol(proto: i32) -> String {
    match proto {
        0 => "unknown".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        1 | 58 => "ping".into(),
        132 => "SCTP".into(),
        136 => "UDP-Lite".into(),
        262 => "MPTCP".into(),
        other => format!("proto {other}"),
    }
}

/// Errors that calls on sockets end with, by their numbers of include/uapi/asm-generic/errno-base.h and errno.h.
const ERRORS: [(i32, &str); 27] = [
    (1, "EPERM"),
    (4, "EINTR"),
    (5, "EIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (22, "EINVAL"),
    (32, "EPIPE"),
    (88, "ENOTSOCK"),
    (89, "EDESTADDRREQ"),
    (90, "EMSGSIZE"),
    (95, "EOPNOTSUPP"),
    (97, "EAFNOSUPPORT"),
    (100, "ENETDOWN"),
    (101, "ENETUNREACH"),
    (103, "ECONNABORTED"),
    (104, "ECONNRESET"),
    (105, "ENOBUFS"),
    (107, "ENOTCONN"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    (112, "EHOSTDOWN"),
    (113, "EHOSTUNREACH"),
    (115, "EINPROGRESS"),
    (INTERRUPTED, "ERESTARTSYS"),
];

/// include/linux/errno.h: a signal came while the call waited. What the program sees of that is EINTR, or nothing: by what it asked for (`SA_RESTART`) the kernel
/// begins the call again.
pub const INTERRUPTED: i32 = 512;

/// The kernel gave a connection up: nothing was answered.
const TIMED_OUT: &str = "ETIMEDOUT";

/// Whether the kernel gave this connection up because its keepalives were not answered; then the number behind what it had sent.
pub fn died_idle(error: Option<i32>, ending: &Ending) -> Option<i64> {
    ending.all_acked.filter(|_| error.is_some_and(|e| errno(e) == TIMED_OUT))
}

pub fn errno(number: i32) -> String {
    let name = ERRORS.iter().find(|(n, _)| *n == number).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("error {number}"))
}

/// Why the kernel ended a connection: the error's name, and what it stands for.
fn error_in_words(number: i32, ending: Option<&Ending>) -> String {
    let words = match errno(number).as_str() {
        TIMED_OUT if ending.is_some_and(|e| e.all_acked.is_some()) => "its keepalives were not answered",
        "ECONNREFUSED" => "a reset, or an ICMP message, answered its SYN",
        "ECONNRESET" => "the other end reset it",
        "EPIPE" => "the other end had closed it, and reset it",
        TIMED_OUT => "nothing was answered to what was sent again and again",
        "EHOSTUNREACH" => "the other end, or a router, could not be reached",
        "EACCES" => "a firewall or a route prohibits it, here or at a router",
        "ENETUNREACH" => "there was no way to its network",
        "ECONNABORTED" => "it was ended from this side: ss -K, or its address went",
        _ => return errno(number),
    };
    format!("{}: {words}", errno(number))
}

/// How a connection ended: the error with which the kernel ended it, and which end did what; `None`: nothing is known of an end.
pub fn ended_in_words(error: Option<i32>, ending: Option<&Ending>) -> Option<String> {
    let error = error.map(|e| error_in_words(e, ending));
    match (error, ending.and_then(Ending::words)) {
        (Some(error), Some(ending)) if !error.ends_with(&ending) => Some(format!("{error}; {ending}")),
        (error, ending) => error.or(ending),
    }
}

pub(super) fn end(addr: Option<&String>, port: i32) -> String {
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

#[cfg(test)]
mod tests {
    use super::super::ending::Which;
    use super::*;

    #[test]
    fn how_it_ended_is_said_once() {
        let by = |reset_by| Ending { reset_by: Some(reset_by), ..Ending::default() };
        let words = |error, ending: &Ending| ended_in_words(error, Some(ending)).unwrap_or_default();
        assert_eq!(words(Some(104), &by(Which::Other)), "ECONNRESET: the other end reset it");
        let closed = Ending { closed_first: Some(Which::This), ..by(Which::Other) };
        assert_eq!(
            words(Some(104), &closed),
            "ECONNRESET: the other end reset it; this end closed it first, then the other end reset it"
        );
        assert_eq!(words(None, &by(Which::This)), "this end reset it");
        let idle = Ending { all_acked: Some(7), ..by(Which::This) };
        assert_eq!(words(Some(110), &idle), "ETIMEDOUT: its keepalives were not answered; this end reset it");
        assert!(words(Some(110), &by(Which::This)).contains("sent again"));
        assert_eq!((died_idle(Some(110), &idle), died_idle(Some(104), &idle)), (Some(7), None));
    }
}
