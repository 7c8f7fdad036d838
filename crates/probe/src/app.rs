//! Where the kernel side of an application recording (bpf/app.bpf.c) is attached on this kernel: for each crossing to the tracepoint,
//! where there is none to the function, and where that may not be probed nowhere, which is reported.

mod held;
mod settings;
mod sockets;

use crate::btf::{Btf, kind};
use crate::plan::drops_have_sockets;
use kpat_model::Crossing;
pub use settings::{Settings, States};
pub use sockets::{Addresses, Sockets, Wish};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A tracepoint of the kernel, with its arguments' types.
    Tracepoint,
    /// A function's entry.
    Entry,
    /// A function's return.
    Return,
}

/// One program and its hook. Another protocol is a line more here and a program in bpf/.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub program: &'static str,
    pub hook: Hook,
    /// Tracepoint or function.
    pub at: &'static str,
    /// `None`: bookkeeping.
    pub crossing: Option<Crossing>,
    pub protocols: &'static [&'static str],
    /// Not needed where this tracepoint is.
    pub unless: &'static str,
}

const TCP: &[&str] = &["tcp"];
const UDP: &[&str] = &["udp"];
const RAW: &[&str] = &["raw"];
const PING: &[&str] = &["ping"];
const RAW_AND_PING: &[&str] = &["raw", "ping"];
const ANY: &[&str] = &["tcp", "udp", "raw", "ping"];

const fn point(
    program: &'static str,
    at: &'static str,
    c: Crossing,
    protocols: &'static [&'static str],
) -> Source {
    Source { program, hook: Hook::Tracepoint, at, crossing: Some(c), protocols, unless: "" }
}

const fn entry(
    program: &'static str,
    at: &'static str,
    c: Crossing,
    protocols: &'static [&'static str],
) -> Source {
    Source { program, hook: Hook::Entry, at, crossing: Some(c), protocols, unless: "" }
}

const fn over(program: &'static str, at: &'static str, c: Crossing, unless: &'static str) -> Source {
    Source { program, hook: Hook::Return, at, crossing: Some(c), protocols: ANY, unless }
}

const fn note(program: &'static str, at: &'static str) -> Source {
    Source { program, hook: Hook::Tracepoint, at, crossing: None, protocols: ANY, unless: "" }
}

pub const SOURCES: &[Source] = &[
    entry("f1_inet_sendmsg", "inet_sendmsg", Crossing::Ask, ANY),
    entry("f1_inet6_sendmsg", "inet6_sendmsg", Crossing::Ask, ANY),
    point("t2_sock_send_length", "sock_send_length", Crossing::Send, ANY),
    over("r2_inet_sendmsg", "inet_sendmsg", Crossing::Send, "sock_send_length"),
    over("r2_inet6_sendmsg", "inet6_sendmsg", Crossing::Send, "sock_send_length"),
    point("t3_tcp_sendmsg_locked", "tcp_sendmsg_locked", Crossing::ToTransport, TCP),
    Source {
        unless: "tcp_sendmsg_locked",
        ..entry("f3_tcp_sendmsg_locked", "tcp_sendmsg_locked", Crossing::ToTransport, TCP)
    },
    entry("f3_udp_sendmsg", "udp_sendmsg", Crossing::ToTransport, UDP),
    entry("f3_udpv6_sendmsg", "udpv6_sendmsg", Crossing::ToTransport, UDP),
    entry("f3_raw_sendmsg", "raw_sendmsg", Crossing::ToTransport, RAW),
    entry("f3_rawv6_sendmsg", "rawv6_sendmsg", Crossing::ToTransport, RAW),
    entry("f3_ping_v4_sendmsg", "ping_v4_sendmsg", Crossing::ToTransport, PING),
    entry("f3_ping_v6_sendmsg", "ping_v6_sendmsg", Crossing::ToTransport, PING),
    entry("f4_ip_queue_xmit", "ip_queue_xmit", Crossing::ToNetwork, TCP),
    entry("f4_inet6_csk_xmit", "inet6_csk_xmit", Crossing::ToNetwork, TCP),
    // Raw and ping sockets go through ip_push_pending_frames, into which compilers put a copy of this one: only where they did not
    // is it seen, so it is not promised.
    entry("f4_ip_send_skb", "ip_send_skb", Crossing::ToNetwork, UDP),
    entry("f4_ip6_send_skb", "ip6_send_skb", Crossing::ToNetwork, UDP),
    point("t5_net_dev_queue", "net_dev_queue", Crossing::ToDevice, ANY),
    point("t6_net_dev_start_xmit", "net_dev_start_xmit", Crossing::ToDriver, ANY),
    point("t7_netif_receive_skb", "netif_receive_skb", Crossing::FromDevice, ANY),
    point("t8_tcp_probe", "tcp_probe", Crossing::FromNetwork, TCP),
    entry("f8_udp_queue_rcv_one_skb", "udp_queue_rcv_one_skb", Crossing::FromNetwork, UDP),
    entry("f8_udpv6_queue_rcv_one_skb", "udpv6_queue_rcv_one_skb", Crossing::FromNetwork, UDP),
    point("t9_sk_data_ready", "sk_data_ready", Crossing::ToSocket, ANY),
    entry("f9___udp_enqueue_schedule_skb", "__udp_enqueue_schedule_skb", Crossing::ToSocket, UDP),
    Source {
        unless: "sk_data_ready",
        ..entry("f9_sock_def_readable", "sock_def_readable", Crossing::ToSocket, TCP)
    },
    point("t10_sock_recv_length", "sock_recv_length", Crossing::Recv, ANY),
    Source {
        unless: "sock_recv_length",
        ..entry("f10_skb_consume_udp", "skb_consume_udp", Crossing::Recv, UDP)
    },
    Source {
        unless: "sock_recv_length",
        ..entry("f10_skb_free_datagram", "skb_free_datagram", Crossing::Recv, RAW_AND_PING)
    },
    over("r10_inet_recvmsg", "inet_recvmsg", Crossing::Recv, "sock_recv_length"),
    over("r10_inet6_recvmsg", "inet6_recvmsg", Crossing::Recv, "sock_recv_length"),
    Source { protocols: TCP, ..over("r10_tcp_read_sock", "tcp_read_sock", Crossing::Recv, "") },
    point("t11_tcp_retransmit_skb", "tcp_retransmit_skb", Crossing::Retransmit, TCP),
    note("note_refused", "udp_fail_queue_rcv_skb"),
    note("note_state", "inet_sock_set_state"),
    note("note_freed", "kfree_skb"),
];

/// What can be had here, and what cannot.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    pub sources: Vec<Source>,
    pub left_out: Vec<(String, String)>,
    /// Datagrams are counted where they enter their socket's queue, not when the socket says that it can be read.
    pub datagrams_by_function: bool,
    /// What reads datagrams is seen where it takes them, not when its call is over.
    pub reads_by_function: bool,
}

/// `functions`: functions may be probed (fentry is offered). `one_thread` kernels without BTF have refused before.
pub fn choose(vmlinux: &Btf, functions: bool) -> Chosen {
    let has_point = |name: &str| vmlinux.find(kind::TYPEDEF, &format!("btf_trace_{name}")).is_some();
    let mut out = Chosen::default();
    for s in SOURCES {
        let reason = match s.hook {
            Hook::Tracepoint if s.at == "kfree_skb" && !drops_have_sockets(vmlinux) => {
                Some("this kernel's says no socket")
            }
            Hook::Tracepoint if has_point(s.at) => None,
            Hook::Tracepoint => Some("this kernel has no such tracepoint"),
            _ if !s.unless.is_empty() && has_point(s.unless) => continue,
            _ if vmlinux.find(kind::FUNC, s.at).is_none() => Some("this kernel has no such function"),
            _ if !functions => Some("functions cannot be probed here"),
            _ => None,
        };
        match reason {
            None => out.sources.push(*s),
            Some(reason) => out.left_out.push((s.at.to_string(), reason.to_string())),
        }
    }
    let has = |program: &str| out.sources.iter().any(|s| s.program == program);
    out.datagrams_by_function = has("f9___udp_enqueue_schedule_skb");
    out.reads_by_function = has("f10_skb_consume_udp") && has("f10_skb_free_datagram");
    out
}

/// How one crossing of one protocol is seen with these sources; empty: not at all.
pub fn seen_by<'a>(chosen: &'a Chosen, crossing: Crossing, protocol: &str) -> Vec<&'a Source> {
    let by_point = |s: &&Source| {
        !(s.hook == Hook::Tracepoint
            && protocol != "tcp"
            && chosen.datagrams_by_function
            && crossing == Crossing::ToSocket)
    };
    let mut out: Vec<&Source> = chosen
        .sources
        .iter()
        .filter(|s| s.crossing == Some(crossing) && s.protocols.contains(&protocol))
        .filter(by_point)
        .collect();
    // Acknowledgements are read off the segment that brings them; behind an end, off the socket where it is at hand again.
    if crossing == Crossing::Acked && protocol == "tcp" {
        out.extend(chosen.sources.iter().filter(|s| s.program == "t8_tcp_probe"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::functions;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_of_functions_has_each_hook_and_no_other() {
        let at = |s: &'static Source| (s.hook == Hook::Tracepoint, s.at);
        let here: BTreeSet<(bool, &str)> = SOURCES.iter().map(at).collect();
        let there = functions::all().iter().filter(|f| f.crossing);
        let there: BTreeSet<(bool, &str)> = there
            .map(|f| f.name.split_once(':').map_or((false, f.name), |(_, point)| (true, point)))
            .collect();
        assert_eq!(here, there);
    }
}
