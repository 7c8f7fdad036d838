//! Which packets are wanted.

use kpat_probe::filter::pcap;

/// Which packets are wanted: by the link header and by the network header.
pub struct Filter {
    link: Vec<pcap::Instruction>,
    network: Option<Vec<pcap::Instruction>>,
}

impl Filter {
    /// `None`: the text is empty.
    pub fn new(text: &str) -> Result<Option<Filter>, kpat_probe::filter::Error> {
        // Its own errors are the ones of a recording on this host.
        if kpat_probe::filter::compile(text)?.is_none() {
            return Ok(None);
        }
        let wrong = |why| kpat_probe::filter::Error::Syntax { text: text.to_owned(), why };
        let link = pcap::compile(text, pcap::ETHERNET).map_err(wrong)?;
        Ok(Some(Filter { link, network: pcap::compile(text, pcap::RAW_IP).ok() }))
    }

    pub(crate) fn matches(&self, link: bool, bytes: &[u8], whole: u32) -> bool {
        let program = if link { Some(&self.link) } else { self.network.as_ref() };
        program.is_some_and(|p| pcap::matches_start(p, bytes, whole as usize))
    }
}
