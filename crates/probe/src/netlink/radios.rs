//! Radios of a namespace and their interfaces, as nl80211 lists them.
//!
//! Layouts are those of include/uapi/linux/{genetlink,nl80211}.h.

use super::messages::{self, attributes, string, word};
use super::{Error, NetnsRef, Socket, failed, inside};
use std::collections::BTreeMap;
use std::io;

/// A radio, and the interfaces that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Radio {
    pub netns: u32,
    /// As `iw phy` shows it.
    pub name: String,
    /// Index and name.
    pub interfaces: Vec<(u32, String)>,
}

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NL80211_CMD_GET_WIPHY: u8 = 1;
const NL80211_CMD_GET_INTERFACE: u8 = 5;
const NL80211_ATTR_WIPHY: u16 = 1;
const NL80211_ATTR_WIPHY_NAME: u16 = 2;
const NL80211_ATTR_IFINDEX: u16 = 3;
const NL80211_ATTR_IFNAME: u16 = 4;
const NL80211_ATTR_SPLIT_WIPHY_DUMP: u16 = 174;
/// Bytes of a generic header, which is before the attributes.
const HEADER: usize = 4;

/// Those of a namespace; none where the kernel has no cfg80211.
pub fn radios(netns: &NetnsRef) -> Result<Vec<Radio>, Error> {
    let inum = netns.inum;
    inside(netns, move || {
        let socket = Socket::of(libc::NETLINK_GENERIC, &[])?;
        let mut family = None;
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"nl80211\0");
        let found = ask(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, libc::NLM_F_ACK, &name, &mut |body| {
            let id = attributes(body, HEADER).find(|(t, _)| *t == CTRL_ATTR_FAMILY_ID);
            family = id.and_then(|(_, v)| Some(u16::from_ne_bytes(v.get(..2)?.try_into().ok()?)));
        });
        match found {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
            found => found.map_err(failed("ask for nl80211"))?,
        }
        let Some(family) = family else { return Ok(Vec::new()) };
        let mut all: BTreeMap<u32, Radio> = BTreeMap::new();
        let split = attribute(NL80211_ATTR_SPLIT_WIPHY_DUMP, &[]);
        let mut wiphy = |body: &[u8]| {
            let find = |t| attributes(body, HEADER).find(move |a| a.0 == t).map(|a| a.1);
            let number = find(NL80211_ATTR_WIPHY).and_then(|v| word(v, 0));
            if let (Some(number), Some(name)) = (number, find(NL80211_ATTR_WIPHY_NAME)) {
                all.insert(number, Radio { netns: inum, name: string(name), interfaces: Vec::new() });
            }
        };
        ask(&socket, family, NL80211_CMD_GET_WIPHY, libc::NLM_F_DUMP, &split, &mut wiphy)
            .map_err(failed("list radios"))?;
        let mut interface = |body: &[u8]| {
            let find = |t| attributes(body, HEADER).find(move |a| a.0 == t).map(|a| a.1);
            let number = |t| find(t).and_then(|v| word(v, 0));
            let radio = number(NL80211_ATTR_WIPHY).and_then(|n| all.get_mut(&n));
            if let (Some(radio), Some(ifindex), Some(name)) =
                (radio, number(NL80211_ATTR_IFINDEX), find(NL80211_ATTR_IFNAME))
            {
                radio.interfaces.push((ifindex, string(name)));
            }
        };
        ask(&socket, family, NL80211_CMD_GET_INTERFACE, libc::NLM_F_DUMP, &[], &mut interface)
            .map_err(failed("list interfaces of radios"))?;
        Ok(all.into_values().collect())
    })
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().div_ceil(4) * 4, 0);
    out
}

/// One question, and the body of each message of its answer.
fn ask(
    socket: &Socket,
    family: u16,
    command: u8,
    flags: libc::c_int,
    attributes: &[u8],
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let body = [&[command, 1, 0, 0], attributes].concat();
    socket.send(family, flags, messages::QUESTION, &body)?;
    socket.answers(&mut |datagram| {
        let of_family = messages::messages(datagram).filter(|m| m.kind == family);
        of_family.for_each(|m| each(m.body));
    })
}
