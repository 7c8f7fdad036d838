//! What a JSON text may take in memory once it is read, told from the text alone: three bytes (`{},`) can stand for a structure
//! of 200, and packed they are fewer still.

/// Memory of a structure, of a text and of any other value with a byte to set it apart, as a most.
const OBJECT: u64 = 200;
const TEXT: u64 = 100;
const BYTE: u64 = 4;

/// Bytes that reading `text` may take, roughly and rather too many.
pub fn json_weight(text: &[u8]) -> u64 {
    let mut weight = text.len() as u64 * BYTE;
    let mut bytes = text.iter().enumerate();
    while let Some((_, b)) = bytes.next() {
        match b {
            b'{' => weight += OBJECT,
            b'"' => {
                let mut end = text.len();
                while let Some((i, b)) = bytes.next() {
                    if *b == b'\\' {
                        bytes.next();
                    } else if *b == b'"' {
                        end = i;
                        break;
                    }
                }
                // Names of fields are not kept.
                if text.get(end + 1) != Some(&b':') {
                    weight += TEXT;
                }
            }
            _ => {}
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::json_weight;

    #[test]
    fn what_is_kept_counts() {
        let len = |text: &str| json_weight(text.as_bytes()) - 4 * text.len() as u64;
        assert_eq!(len("[0,0,0]"), 0);
        assert_eq!(len(r#"{"a":[{},{}]}"#), 600);
        assert_eq!(len(r#"{"a":"{{\"{"}"#), 300);
        assert_eq!(len(r#"["","#), 100);
        assert_eq!(len(r#"["\"#), 100);
    }
}
