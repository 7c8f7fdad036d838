//! SHA-1 and SHA-256 (FIPS 180-4), HMAC (RFC 2104), PBKDF2 (RFC 8018), and the functions by which 802.11 makes keys of keys.

/// A hash that HMAC takes.
pub(super) trait Hash {
    fn of(parts: &[&[u8]]) -> Vec<u8>;
}

pub(super) struct Sha1;
pub(super) struct Sha256;

/// With the padding of both.
fn blocks(parts: &[&[u8]], mut each: impl FnMut(&[u32; 16])) {
    let mut data = parts.concat();
    let bits = data.len() as u64 * 8;
    data.push(0x80);
    data.resize(data.len().next_multiple_of(64), 0);
    if data.len() - 8 < (bits / 8) as usize + 1 {
        data.resize(data.len() + 64, 0);
    }
    let end = data.len() - 8;
    data[end..].copy_from_slice(&bits.to_be_bytes());
    for block in data.chunks_exact(64) {
        each(&std::array::from_fn(|i| u32::from_be_bytes(std::array::from_fn(|k| block[4 * i + k]))));
    }
}

impl Hash for Sha1 {
    fn of(parts: &[&[u8]]) -> Vec<u8> {
        let mut h = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
        blocks(parts, |block| {
            let mut w = [0u32; 80];
            w[..16].copy_from_slice(block);
            for i in 16..80 {
                w[i] = (w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16]).rotate_left(1);
            }
            let [mut a, mut b, mut c, mut d, mut e] = h;
            for (i, w) in w.iter().enumerate() {
                let (f, k) = match i {
                    0..20 => (b & c | !b & d, 0x5a82_7999),
                    20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                    40..60 => (b & c | b & d | c & d, 0x8f1b_bcdcu32),
                    _ => (b ^ c ^ d, 0xca62_c1d6),
                };
                let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*w);
                (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
            }
            h.iter_mut().zip([a, b, c, d, e]).for_each(|(h, v)| *h = h.wrapping_add(v));
        });
        h.iter().flat_map(|w| w.to_be_bytes()).collect()
    }
}

const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

impl Hash for Sha256 {
    fn of(parts: &[&[u8]]) -> Vec<u8> {
        let mut h = [
            0x6a09_e667u32,
            0xbb67_ae85,
            0x3c6e_f372,
            0xa54f_f53a,
            0x510e_527f,
            0x9b05_688c,
            0x1f83_d9ab,
            0x5be0_cd19,
        ];
        blocks(parts, |block| {
            let mut w = [0u32; 64];
            w[..16].copy_from_slice(block);
            for i in 16..64 {
                let (x, y) = (w[i - 15], w[i - 2]);
                let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ x >> 3;
                let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ y >> 10;
                w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
            }
            let mut v = h;
            for i in 0..64 {
                let [a, b, c, _, e, f, g, last] = v;
                let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
                let t1 =
                    last.wrapping_add(s1).wrapping_add(e & f ^ !e & g).wrapping_add(K[i]).wrapping_add(w[i]);
                let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
                let t2 = s0.wrapping_add(a & b ^ a & c ^ b & c);
                v = [t1.wrapping_add(t2), v[0], v[1], v[2], v[3].wrapping_add(t1), v[4], v[5], v[6]];
            }
            h.iter_mut().zip(v).for_each(|(h, v)| *h = h.wrapping_add(v));
        });
        h.iter().flat_map(|w| w.to_be_bytes()).collect()
    }
}

pub(super) fn hmac<H: Hash>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut block = [0u8; 64];
    if key.len() > 64 {
        let short = H::of(&[key]);
        block[..short.len()].copy_from_slice(&short);
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner_pad = block.map(|b| b ^ 0x36);
    let inner = H::of(&[&[&inner_pad[..]], parts].concat());
    H::of(&[&block.map(|b| b ^ 0x5c)[..], &inner])
}

/// The PMK of a passphrase (IEEE 802.11-2020, J.4.1).
pub(super) fn pmk(passphrase: &[u8], ssid: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (n, part) in out.chunks_mut(20).enumerate() {
        let mut u = hmac::<Sha1>(passphrase, &[ssid, &(n as u32 + 1).to_be_bytes()]);
        let mut sum = u.clone();
        for _ in 1..4_096 {
            u = hmac::<Sha1>(passphrase, &[&u]);
            sum.iter_mut().zip(&u).for_each(|(s, b)| *s ^= b);
        }
        part.copy_from_slice(&sum[..part.len()]);
    }
    out
}

const EXPANSION: &[u8] = b"Pairwise key expansion";

/// KCK, KEK and temporal key, of 128 bits each (12.7.1.2 and 12.7.1.6.2).
pub(super) fn ptk(pmk: &[u8; 32], context: &[u8], sha256: bool) -> [u8; 48] {
    let mut out = [0; 48];
    for (n, part) in out.chunks_mut(if sha256 { 32 } else { 20 }).enumerate() {
        let made = if sha256 {
            let n = (n as u16 + 1).to_le_bytes();
            hmac::<Sha256>(pmk, &[&n, EXPANSION, context, &384u16.to_le_bytes()])
        } else {
            hmac::<Sha1>(pmk, &[EXPANSION, &[0], context, &[n as u8]])
        };
        part.copy_from_slice(&made[..part.len()]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn as_the_standards_have_it() {
        assert_eq!(hex(&Sha1::of(&[b"a", b"bc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(&Sha1::of(&[long])), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(
            hex(&Sha256::of(&[b"abc"])),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(&Sha256::of(&[long])),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
        // RFC 2202 and 4231, case 2
        let asked: &[u8] = b"what do ya want for nothing?";
        assert_eq!(hex(&hmac::<Sha1>(b"Jefe", &[asked])), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        assert_eq!(
            hex(&hmac::<Sha256>(b"Jefe", &[asked])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        // IEEE 802.11, J.4.2
        assert_eq!(
            hex(&pmk(b"password", b"IEEE")),
            "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"
        );
    }
}
