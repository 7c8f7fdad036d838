//! Sockets and addresses of a network namespace, as a process in it has them in /proc/PID/net.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `peer`: it is connected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) protocol: u8,
    pub(super) own: (IpAddr, u16),
    pub(super) peer: Option<(IpAddr, u16)>,
    pub(super) inode: u32,
}

impl Socket {
    pub(super) fn is_of_datagrams(&self) -> bool {
        self.protocol != TCP
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const UDP_LITE: u8 = 136;

/// Those of the namespace, and the inode numbers of the ones of datagrams; of TCP only if `whole` says so: a busy host has many.
pub(super) fn of(pid: u32, whole: bool) -> (Vec<Socket>, HashSet<u32>) {
    let read = |file: &str, protocol: u8| -> Vec<Socket> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        text.lines().skip(1).filter_map(|line| socket(line, protocol)).collect()
    };
    let mut all = Vec::new();
    for (file, protocol) in [("udp", UDP), ("udp6", UDP), ("udplite", UDP_LITE), ("udplite6", UDP_LITE)] {
        all.extend(read(file, protocol));
    }
    let datagrams = all.iter().map(|s| s.inode).collect();
    if whole {
        all.extend(read("tcp", TCP));
        all.extend(read("tcp6", TCP));
    }
    (all, datagrams)
}

/// `sl local remote st tx:rx tr:when retrnsmt uid timeout inode ...`; addresses are words in this machine's order.
fn socket(line: &str, protocol: u8) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let own = end(words.next()?)?;
    let peer = Some(end(words.next()?)?).filter(|p| p.1 != 0);
    let inode = words.nth(6)?.parse().ok()?;
    (inode != 0 && own.1 != 0).then_some(Socket { protocol, own, peer, inode })
}

fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = [0u8; 16];
    let (words, []) = address.as_bytes().as_chunks::<8>() else { return None };
    for (i, word) in words.iter().enumerate() {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.get_mut(i * 4..i * 4 + 4)?.copy_from_slice(&word.to_ne_bytes());
    }
    let ip = match words.len() {
        1 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        4 => IpAddr::V6(Ipv6Addr::from(bytes)),
        _ => return None,
    };
    Some((ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

/// Addresses that are this namespace's, and those by which others reach it with their neighbours.
pub(super) fn locals(pid: u32) -> Vec<IpAddr> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let mut all: Vec<IpAddr> = of_trie(&read("fib_trie")).into_iter().map(IpAddr::V4).collect();
    all.extend(read("if_inet6").lines().filter_map(of_if_inet6).map(IpAddr::V6));
    all.sort_unstable();
    all.dedup();
    all
}

/// A line with an address, and below it what it is.
fn of_trie(text: &str) -> Vec<Ipv4Addr> {
    let (mut all, mut last) = (Vec::new(), None::<Ipv4Addr>);
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.trim().parse().ok();
        } else if line.starts_with("/32 ") && (line.ends_with("LOCAL") || line.ends_with("BROADCAST")) {
            all.extend(last);
        }
    }
    all
}

/// Thirty-two digits, then index, length, scope, flags and name.
fn of_if_inet6(line: &str) -> Option<Ipv6Addr> {
    u128::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok().map(Ipv6Addr::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn own_sockets_are_as_they_say_themselves() {
        let (listener, datagrams) =
            (TcpListener::bind("[::1]:0").unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap());
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pid = std::process::id();
        let (all, of_datagrams) = of(pid, true);
        let with = |own: std::net::SocketAddr| -> Vec<&Socket> {
            all.iter().filter(|s| s.own == (own.ip(), own.port()) && s.inode != 0).collect()
        };
        let (own, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let [c] = with(own)[..] else { panic!("the client's") };
        assert_eq!((c.protocol, c.peer), (TCP, Some((peer.ip(), peer.port()))));
        // Nobody has accepted it yet, so that end has no inode.
        let [l] = with(listener.local_addr().unwrap())[..] else { panic!("the listener") };
        assert_eq!((l.protocol, l.peer), (TCP, None));
        let [d] = with(datagrams.local_addr().unwrap())[..] else { panic!("the one of datagrams") };
        assert_eq!((d.protocol, d.peer), (UDP, None));
        assert!(of_datagrams.contains(&d.inode) && !of_datagrams.contains(&l.inode));
        let held = super::super::members::sockets(pid);
        assert!([c, l, d].iter().all(|s| held.contains(&s.inode)));
        assert!(of(pid, false).0.iter().all(|s| s.protocol != TCP));
        let locals = locals(pid);
        assert!(
            locals.contains(&"127.0.0.1".parse().unwrap()) && !locals.contains(&"192.0.2.1".parse().unwrap())
        );
    }

    #[test]
    fn lines_of_anybody() {
        for line in [
            "",
            "0:",
            "0: 0100007F:0016",
            "0: 0100007F:0016 00000000:0000 0A x y z",
            "0: 01:1 01:1 0A 0 0 0 0 0 5",
        ] {
            assert_eq!(socket(line, TCP), None, "{line}");
        }
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n";
        assert_eq!(of_trie(trie), [Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 255)]);
        assert_eq!(of_if_inet6("fe800000000000000000000000000001 02 40 20 80 eth0"), "fe80::1".parse().ok());
        assert_eq!(of_if_inet6("x"), None);
    }
}
