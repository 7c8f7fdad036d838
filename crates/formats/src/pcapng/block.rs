//! Blocks of pcapng as bytes, in either byte order: what is added to a capture has the order of its section.

/// A block or an option list in the making.
#[derive(Clone, Debug)]
pub(super) struct BlockWriter {
    pub bytes: Vec<u8>,
    big_endian: bool,
}

pub(super) mod opt {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const IF_NAME: u16 = 2;
    pub const IF_DESCRIPTION: u16 = 3;
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_OS: u16 = 12;
    pub const SHB_OS: u16 = 3;
    pub const SHB_APPLICATION: u16 = 4;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_PACKETID: u16 = 5;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}

/// Longest value of an option.
pub(super) const MAX_OPTION: usize = 0xfff0;

impl BlockWriter {
    pub fn block(kind: u32, big_endian: bool) -> BlockWriter {
        let mut w = BlockWriter { bytes: Vec::new(), big_endian };
        w.u32(kind);
        w.u32(0);
        w
    }

    /// Nothing but options.
    pub fn options(big_endian: bool) -> BlockWriter {
        BlockWriter { bytes: Vec::new(), big_endian }
    }

    pub fn u16(&mut self, v: u16) {
        self.bytes.extend_from_slice(&if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    pub fn u32(&mut self, v: u32) {
        self.bytes.extend_from_slice(&if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    fn u64(&mut self, v: u64) {
        self.bytes.extend_from_slice(&if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    /// Upper half first in both orders.
    pub fn time(&mut self, ns: i64) {
        let ns = u64::try_from(ns).unwrap_or(0);
        self.u32((ns >> 32) as u32);
        self.u32(ns as u32);
    }

    pub fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(MAX_OPTION)];
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    pub fn option_u32(&mut self, code: u16, value: u32) {
        self.u16(code);
        self.u16(4);
        self.u32(value);
    }

    pub fn option_u64(&mut self, code: u16, value: u64) {
        self.u16(code);
        self.u16(8);
        self.u64(value);
    }

    pub fn end_of_options(&mut self) {
        self.u32(u32::from(opt::END));
    }

    /// Both lengths; the block is whole.
    pub fn finish(mut self) -> Vec<u8> {
        let len = (self.bytes.len() + 4) as u32;
        let as_bytes = if self.big_endian { len.to_be_bytes() } else { len.to_le_bytes() };
        self.bytes[4..8].copy_from_slice(&as_bytes);
        self.bytes.extend_from_slice(&as_bytes);
        self.bytes
    }
}

fn u16_at(big_endian: bool, d: &[u8], at: usize) -> Option<u16> {
    let b = d.get(at..)?.first_chunk::<2>()?;
    Some(if big_endian { u16::from_be_bytes(*b) } else { u16::from_le_bytes(*b) })
}

pub(super) fn u32_at(big_endian: bool, d: &[u8], at: usize) -> Option<u32> {
    let b = d.get(at..)?.first_chunk::<4>()?;
    Some(if big_endian { u32::from_be_bytes(*b) } else { u32::from_le_bytes(*b) })
}

/// A packet block with options put behind those that it has; `None`: its options are odd, or too long, so that nothing can
/// be put there. All its other bytes stay, the two lengths excepted.
pub(super) fn with_options(block: &[u8], big_endian: bool, add: &BlockWriter) -> Option<Vec<u8>> {
    let end = block.len().checked_sub(4)?;
    let captured = u32_at(big_endian, block, 20)? as usize;
    let mut at = captured.checked_next_multiple_of(4)?.checked_add(28)?;
    if at > end {
        return None;
    }
    while at < end {
        let (code, len) = (u16_at(big_endian, block, at)?, u16_at(big_endian, block, at + 2)?);
        if code == opt::END {
            break;
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    if at > end {
        return None;
    }
    let mut out = BlockWriter { bytes: block[..at].to_vec(), big_endian };
    out.bytes.extend_from_slice(&add.bytes);
    out.end_of_options();
    Some(out.finish())
}

/// Options that a packet block has, by code.
pub(super) fn has_option(block: &[u8], big_endian: bool, wanted: u16) -> bool {
    let find = || {
        let end = block.len().checked_sub(4)?;
        let captured = u32_at(big_endian, block, 20)? as usize;
        let mut at = captured.checked_next_multiple_of(4)?.checked_add(28)?;
        while at < end {
            let (code, len) = (u16_at(big_endian, block, at)?, u16_at(big_endian, block, at + 2)?);
            if code == opt::END {
                return None;
            }
            if code == wanted {
                return Some(());
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        None
    };
    find().is_some()
}

/// A section header whose stated length says "not known", for more comes into the section than there was.
pub(super) fn open_section(block: &[u8]) -> Vec<u8> {
    let mut out = block.to_vec();
    if let Some(length) = out.get_mut(16..24) {
        length.fill(0xff);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(big_endian: bool, data: &[u8], options: &[(u16, &[u8])]) -> Vec<u8> {
        let mut w = BlockWriter::block(6, big_endian);
        w.u32(0);
        w.time(1_700_000_000_000_000_000);
        w.u32(data.len() as u32);
        w.u32(data.len() as u32);
        w.padded(data);
        for (code, value) in options {
            w.option(*code, value);
        }
        if !options.is_empty() {
            w.end_of_options();
        }
        w.finish()
    }

    #[test]
    fn options_are_put_behind_those_that_are_there() {
        for big_endian in [false, true] {
            let old: &[(u16, &[u8])] = &[(2, &[1, 0, 0, 0]), (1, b"mine")];
            for before in [&[][..], old] {
                let mut add = BlockWriter::options(big_endian);
                add.option(opt::COMMENT, b"added");
                let found = with_options(&packet(big_endian, b"12345", before), big_endian, &add).unwrap();
                let mut all = before.to_vec();
                all.push((1, b"added"));
                assert_eq!(found, packet(big_endian, b"12345", &all));
                assert!(has_option(&found, big_endian, 1));
                assert!(!has_option(&found, big_endian, 5));
            }
        }
    }

    #[test]
    fn what_is_odd_stays_as_it_is() {
        let mut odd = packet(false, b"1234", &[(1, b"four")]);
        odd[34..36].copy_from_slice(&[0xff, 0xff]);
        let add = BlockWriter::options(false);
        assert_eq!(with_options(&odd, false, &add), None);
        assert_eq!(with_options(&odd[..12], false, &add), None);
        assert_eq!(with_options(&[], false, &add), None);
    }
}
