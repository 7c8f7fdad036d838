//! Live capture: an interface in, a pcapng file out. (skeleton)

use std::path::Path;

use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SniffStats {
    pub frames: u64,
    pub bytes: u64,
    pub kernel_drops: u64,
}

pub struct Sniffer {}

impl Sniffer {
    pub fn start(ifname: &str, netns: Option<&str>, out: &Path, snaplen: u32) -> Result<Sniffer, Error> {
        let _ = (netns, out, snaplen);
        Err(Error::Sniff {
            interface: ifname.into(),
            doing: "opening a packet socket",
            source: std::io::Error::from(std::io::ErrorKind::Unsupported),
            remedy: "not built yet",
        })
    }

    pub fn stop(self) -> Result<SniffStats, Error> {
        Ok(SniffStats::default())
    }
}
