//! Link-layer addresses as text: `02:00:00:00:01:00`.

/// Six bytes of a link-layer address.
pub type LinkAddress = [u8; 6];

/// Of any length: not all links have six bytes.
pub fn text(address: impl AsRef<[u8]>) -> String {
    address.as_ref().iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

/// `None`: it is none of six bytes.
pub fn parse(text: &str) -> Option<LinkAddress> {
    let mut parts = text.split(':');
    let mut out = [0; 6];
    for b in &mut out {
        *b = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let address = [2, 0, 0xab, 0, 1, 0xff];
        assert_eq!(text(address), "02:00:ab:00:01:ff");
        assert_eq!(parse(&text(address)), Some(address));
        for bad in ["", "02:00:ab:00:01", "02:00:ab:00:01:ff:00", "02:00:ab:00:01:fg", "02:00:ab:00:01:100"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
