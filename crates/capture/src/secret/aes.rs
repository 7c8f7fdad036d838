//! AES with keys of 128 bits (FIPS 197), and what 802.11 makes of it: CCM (RFC 3610), CMAC (RFC 4493), key wrap (RFC 3394). To read captures with a key that is given:
//! nothing is kept secret here, so nothing is done against listening to its timing.

pub(super) type Block = [u8; 16];

/// Products in GF(2^8) by 2.
const fn twice(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { 0x1b } else { 0 }
}

const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut out = 0;
    while b != 0 {
        if b & 1 != 0 {
            out ^= a;
        }
        a = twice(a);
        b >>= 1;
    }
    out
}

const fn boxes() -> ([u8; 256], [u8; 256]) {
    let (mut to, mut back) = ([0u8; 256], [0u8; 256]);
    let (mut p, mut q) = (1u8, 1u8);
    loop {
        // p runs through all by 3, q through their inverses.
        p = p ^ twice(p);
        q = product(q, 0xf6);
        let s = q ^ q.rotate_left(1) ^ q.rotate_left(2) ^ q.rotate_left(3) ^ q.rotate_left(4) ^ 0x63;
        to[p as usize] = s;
        back[s as usize] = p;
        if p == 1 {
            break;
        }
    }
    to[0] = 0x63;
    back[0x63] = 0;
    (to, back)
}

const BOXES: ([u8; 256], [u8; 256]) = boxes();

pub(super) struct Aes([Block; 11]);

impl Aes {
    pub fn new(key: &[u8; 16]) -> Aes {
        let mut rounds = [*key; 11];
        let mut constant = 1u8;
        for r in 1..11 {
            let before = rounds[r - 1];
            let last = [before[13], before[14], before[15], before[12]].map(|b| BOXES.0[usize::from(b)]);
            for i in 0..16 {
                let add = if i < 4 { last[i] ^ if i == 0 { constant } else { 0 } } else { rounds[r][i - 4] };
                rounds[r][i] = before[i] ^ add;
            }
            constant = twice(constant);
        }
        Aes(rounds)
    }

    pub fn encrypt(&self, mut s: Block) -> Block {
        add(&mut s, &self.0[0]);
        for (r, key) in self.0.iter().enumerate().skip(1) {
            let t: Block = std::array::from_fn(|i| BOXES.0[usize::from(s[(i + 4 * (i % 4)) % 16])]);
            s = if r < 10 { mixed(&t, [2, 3, 1, 1]) } else { t };
            add(&mut s, key);
        }
        s
    }

    pub fn decrypt(&self, mut s: Block) -> Block {
        for (r, key) in self.0.iter().enumerate().skip(1).rev() {
            add(&mut s, key);
            let t = if r < 10 { mixed(&s, [14, 11, 13, 9]) } else { s };
            s = std::array::from_fn(|i| BOXES.1[usize::from(t[(i + 12 * (i % 4)) % 16])]);
        }
        add(&mut s, &self.0[0]);
        s
    }

    /// CCM of 802.11: a nonce of 13 bytes, a MIC of 8. Decrypts in place; whether the MIC is that of all this.
    pub fn ccm(&self, nonce: &[u8; 13], aad: &[u8], data: &mut [u8], mic: Option<&[u8; 8]>) -> bool {
        let counter = |n: u16| {
            let mut block = [0; 16];
            block[0] = 1;
            block[1..14].copy_from_slice(nonce);
            block[14..].copy_from_slice(&n.to_be_bytes());
            self.encrypt(block)
        };
        for (n, part) in data.chunks_mut(16).enumerate() {
            let key = counter(n as u16 + 1);
            part.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
        }
        let Some(mic) = mic else { return true };
        let mut first = [0; 16];
        first[0] = 0x59;
        first[1..14].copy_from_slice(nonce);
        first[14..].copy_from_slice(&(data.len() as u16).to_be_bytes());
        let mut x = self.encrypt(first);
        let with_length = [&(aad.len() as u16).to_be_bytes()[..], aad].concat();
        for part in with_length.chunks(16).chain(data.chunks(16)) {
            x.iter_mut().zip(part).for_each(|(b, p)| *b ^= p);
            x = self.encrypt(x);
        }
        let key = counter(0);
        (0..8).all(|i| x[i] ^ key[i] == mic[i])
    }

    pub fn cmac(&self, data: &[u8]) -> Block {
        let shifted = |b: Block| {
            let n = u128::from_be_bytes(b);
            ((n << 1) ^ if n >> 127 != 0 { 0x87 } else { 0 }).to_be_bytes()
        };
        let one = shifted(self.encrypt([0; 16]));
        let mut x = [0; 16];
        let mut parts = data.chunks(16).peekable();
        let mut last = [0; 16];
        let mut whole = false;
        while let Some(part) = parts.next() {
            if parts.peek().is_some() {
                x.iter_mut().zip(part).for_each(|(b, p)| *b ^= p);
                x = self.encrypt(x);
            } else {
                last[..part.len()].copy_from_slice(part);
                whole = part.len() == 16;
                if !whole {
                    last[part.len()] = 0x80;
                }
            }
        }
        if data.is_empty() {
            last[0] = 0x80;
        }
        add(&mut last, &if whole { one } else { shifted(one) });
        add(&mut x, &last);
        self.encrypt(x)
    }

    /// `None`: not wrapped with this key.
    pub fn unwrap(&self, wrapped: &[u8]) -> Option<Vec<u8>> {
        let n = (wrapped.len() / 8).checked_sub(1).filter(|n| *n > 0 && wrapped.len().is_multiple_of(8))?;
        let mut a: [u8; 8] = wrapped[..8].try_into().ok()?;
        let mut r = wrapped[8..].to_vec();
        for step in (1..=6 * n as u64).rev() {
            let at = ((step - 1) as usize % n) * 8;
            let mixed = (u64::from_be_bytes(a) ^ step).to_be_bytes();
            let mut block = [0; 16];
            block[..8].copy_from_slice(&mixed);
            block[8..].copy_from_slice(&r[at..at + 8]);
            let plain = self.decrypt(block);
            a.copy_from_slice(&plain[..8]);
            r[at..at + 8].copy_from_slice(&plain[8..]);
        }
        (a == [0xa6; 8]).then_some(r)
    }
}

fn add(s: &mut Block, key: &Block) {
    s.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
}

fn mixed(t: &Block, by: [u8; 4]) -> Block {
    std::array::from_fn(|i| {
        let column = i / 4 * 4;
        (0..4).fold(0, |sum, k| sum ^ product(t[column + (i + k) % 4], by[k]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }

    fn block(hex: &str) -> Block {
        bytes(hex).try_into().unwrap()
    }

    #[test]
    fn as_the_standards_have_it() {
        // FIPS 197, appendix C.1
        let aes = Aes::new(&block("000102030405060708090a0b0c0d0e0f"));
        let plain = block("00112233445566778899aabbccddeeff");
        let cipher = block("69c4e0d86a7b0430d8cdb78070b4c55a");
        assert_eq!(aes.encrypt(plain), cipher);
        assert_eq!(aes.decrypt(cipher), plain);
        // RFC 3394, 4.1
        let wrapped = bytes("1FA68B0A8112B447 AEF34BD8FB5A7B82 9D3E862371D2CFE5");
        assert_eq!(aes.unwrap(&wrapped), Some(bytes("00112233445566778899AABBCCDDEEFF")));
        assert_eq!(aes.unwrap(&wrapped[..16]), None);
        // RFC 4493, section 4
        let aes = Aes::new(&block("2b7e151628aed2a6abf7158809cf4f3c"));
        assert_eq!(aes.cmac(&[]), block("bb1d6929e95937287fa37d129b756746"));
        assert_eq!(
            aes.cmac(&bytes("6bc1bee22e409f96e93d7e117393172a")),
            block("070a16b46b4d4144f79bdd9dd04a287c")
        );
        let forty = bytes("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411");
        assert_eq!(aes.cmac(&forty), block("dfa66747de9ae63030ca32611497c827"));
    }

    /// RFC 3610, packet vector 1.
    #[test]
    fn ccm() {
        let aes = Aes::new(&block("C0C1C2C3C4C5C6C7C8C9CACBCCCDCECF"));
        let nonce = bytes("00000003020100A0A1A2A3A4A5").try_into().unwrap();
        let mut data = bytes("588C979A61C663D2F066D0C2C0F989806D5F6B61DAC384");
        let mic = bytes("17E8D12CFDF926E0").try_into().unwrap();
        assert!(aes.ccm(&nonce, &bytes("0001020304050607"), &mut data, Some(&mic)));
        assert_eq!(data, bytes("08090A0B0C0D0E0F101112131415161718191A1B1C1D1E"));
        let mut data = bytes("588C979A61C663D2F066D0C2C0F989806D5F6B61DAC385");
        assert!(!aes.ccm(&nonce, &bytes("0001020304050607"), &mut data, Some(&mic)));
    }
}
