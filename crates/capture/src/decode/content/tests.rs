//! What is easier written as bytes than recorded: names that refer to themselves, options with lengths that cannot be. The mass is
//! compared with tshark in `tests/contents.rs`.

use super::*;

fn dns(flags: u16, counts: [u16; 2], rest: &[u8]) -> Vec<u8> {
    let words = [0x1234, flags, counts[0], counts[1], 0, 0];
    words.iter().flat_map(|w: &u16| w.to_be_bytes()).chain(rest.iter().copied()).collect()
}

fn asked(rest: &[u8]) -> String {
    of_udp(53, 9, &dns(0x0100, [1, 0], rest)).unwrap().text.into()
}

#[test]
fn names() {
    assert_eq!(asked(b"\x03www\x07example\x00\x00\x1c\x00\x01"), "DNS query 0x1234 AAAA www.example");
    assert_eq!(asked(b"\x00\x00\x02\x00\x01"), "DNS query 0x1234 NS <root>");
    assert_eq!(asked(b"\x04a.\\\xff\x00\xff\xfe\x00\x01"), "DNS query 0x1234 type 65534 a\\.\\\\\\255");
    for cut in [&b"\x03ww"[..], b"\x03www", b"\x03www\x00\x00", b"", b"\x80"] {
        assert_eq!(asked(cut), "DNS query 0x1234 …", "{cut:02x?}");
    }
    // To itself, forwards, and to a place that comes back.
    for round in [&b"\xc0\x0c\x00\x01"[..], b"\xc0\x20\x00\x01", b"\x01a\xc0\x0c\x00\x01"] {
        assert!(asked(round).ends_with('…') || asked(round).len() < 300, "{round:02x?}: {}", asked(round));
    }
    let long: Vec<u8> = [&[63; 64][..]; 5].concat();
    assert_eq!(asked(&long), "DNS query 0x1234 …");
}

#[test]
fn answers() {
    let name = b"\x01a\x02nx\x00\x00\x01\x00\x01";
    let text = |flags, counts| of_udp(53, 9, &dns(flags, counts, name)).unwrap().text;
    assert_eq!(&*text(0x8183, [1, 0]), "DNS answer 0x1234 A a.nx: NXDOMAIN");
    assert_eq!(&*text(0x8380, [1, 1]), "DNS answer 0x1234 A a.nx: no error, 1 record, truncated");
    assert_eq!(&*text(0x818f, [1, 0]), "DNS answer 0x1234 A a.nx: code 15");
    assert_eq!(&*text(0x2800, [1, 0]), "DNS update 0x1234 A a.nx");
    // What multicast announces has no question.
    assert_eq!(&*text(0x8400, [0, 2]), "DNS answer 0x1234 A a.nx: no error, 2 records");
    assert_eq!(of_udp(53, 9, &dns(0x7800, [1, 0], name)), None);
    assert_eq!(of_udp(53, 9, &[1; 11]), None);
    assert_eq!(of_udp(54, 9, &dns(0x0100, [1, 0], name)), None);
}

/// IEEE 802.1D-2004, 9.3.1 to 9.3.3.
#[test]
fn spanning_tree() {
    let of = |data: &[u8]| of_spanning_tree(data).map(|m| m.text.into_string());
    assert_eq!(
        of(&[0, 0, 0, 0, 0x81]).unwrap(),
        "configuration, topology change, topology change acknowledged"
    );
    assert_eq!(of(&[0, 0, 2, 2, 0x3c]).unwrap(), "rapid configuration");
    assert_eq!(
        of(&[0, 0, 0, 0x80, 0xff]).unwrap(),
        "topology change notification",
        "what is behind it is padding"
    );
    for other in [&[0, 1, 0, 0, 0][..], &[0, 0, 0, 7, 0], &[0, 0, 0], &[0, 0, 0, 0]] {
        assert_eq!(of(other), None, "{other:02x?}");
    }
}

#[test]
fn options_of_tcp() {
    let of = |bytes: &[u8]| of_tcp(bytes, true);
    let syn = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];
    assert_eq!(of(&syn), ("mss 1460 sackOK wscale 7".into(), Some((9, 0))));
    assert_eq!(
        of(&[1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 7]).0,
        "sack 1:2 5:7",
        "two blocks"
    );
    assert_eq!(of(&[1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0]), (String::new(), Some((256, 512))));
    for (bytes, text) in [
        (&[2, 0, 5][..], "…"),
        (&[2, 1, 5], "…"),
        (&[2, 9, 5], "…"),
        (&[2], "…"),
        (&[2, 3, 5], "option 2"),
        (&[5, 2], "option 5"),
        (&[0, 2, 0], ""),
        (&[34, 2, 0, 0], "fast open"),
    ] {
        assert_eq!(of(bytes).0, text, "{bytes:?}");
    }
    assert_eq!(of_tcp(&syn[..6], false).0, "mss 1460 sackOK …");
}

#[test]
fn dhcp_in_fields_for_others() {
    let mut data = vec![0; 240];
    data[..3].copy_from_slice(&[1, 1, 6]);
    data[236..].copy_from_slice(&[99, 130, 83, 99]);
    // The kind stands in the field of the file's name.
    data[108..112].copy_from_slice(&[53, 1, 3, 255]);
    data.extend([52, 1, 1, 255]);
    let text = |data: &[u8]| of_udp(68, 67, data).unwrap().text;
    assert_eq!(&*text(&data), "DHCP request 0x00000000 client 00:00:00:00:00:00");
    assert_eq!(&*text(&data[..200]), "DHCP … 0x00000000 client 00:00:00:00:00:00");
    data[236] = 0;
    assert_eq!(&*text(&data), "BOOTP request 0x00000000 client 00:00:00:00:00:00");
    assert_eq!(of_udp(68, 67, &[3; 300]), None);
}
