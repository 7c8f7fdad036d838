use kpat_model::Network;

use super::*;

#[test]
fn nothing_is_cut() {
    for link_type in [0, 1, 12, 101, 105, 108, 113, 119, 127, 163, 192, 228, 229, 276] {
        let found = frame(link_type, &[], 60);
        assert_eq!(found, Footprint { cut: true, ..Footprint::default() }, "link type {link_type}");
    }
    assert_eq!(l3(0x88cc, &[], 0).network, Some(Network::Other(0x88cc)));
}
