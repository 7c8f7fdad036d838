//! Which packet numbers are over: a bit each, in pages, since a recorder counts them up.

use kpat_model::hash::Map;

const MAX_PAGES: usize = 1 << 14;

#[derive(Default)]
pub(super) struct Over {
    /// 65536 numbers each.
    pages: Map<u64, Box<[u64; 1024]>>,
}

impl Over {
    pub fn has(&self, packet: u64) -> bool {
        let bit = packet & 0xffff;
        self.pages.get(&(packet >> 16)).is_some_and(|page| page[(bit >> 6) as usize] >> (bit & 63) & 1 != 0)
    }

    /// Numbers all over the place are no recorder's; then late records make a second row, and are rare.
    pub fn add(&mut self, packet: u64) {
        if self.pages.len() < MAX_PAGES || self.pages.contains_key(&(packet >> 16)) {
            let page = self.pages.entry(packet >> 16).or_insert_with(|| Box::new([0; 1024]));
            let bit = packet & 0xffff;
            page[(bit >> 6) as usize] |= 1 << (bit & 63);
        }
    }
}
