//! The 64 bytes before each chunk's payload.

/// Bytes of a chunk header.
pub const HEADER_LEN: usize = 64;
/// Version of the format that this crate writes, and the newest that it reads.
pub const VERSION: u8 = 3;
/// A chunk's payload never decodes to more than this.
pub const MAX_RAW_LEN: u32 = 16 << 20;
/// A stored payload is never longer than its decoded form, because the encoder then stores it as it is.
pub const MAX_PAYLOAD_LEN: u32 = MAX_RAW_LEN;

/// First seven bytes of every chunk; the eighth is the version. The first is not ASCII, the line ends show transfers
/// in text mode, the last stops `type` and `cat` in some shells.
pub const MAGIC: [u8; 7] = *b"\x89KBL\r\n\x1a";

/// Offsets of the two checksums.
const HEADER_CRC_AT: usize = 56;
const CRC_AT: usize = 60;
const SEQ_AT: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    Json,
    Records,
    /// What applications asked of the network.
    Application,
    /// Written by a later kpat of the same format version; skipped.
    Other(u8),
}

impl ChunkKind {
    fn from_u8(v: u8) -> ChunkKind {
        match v {
            1 => ChunkKind::Json,
            2 => ChunkKind::Records,
            3 => ChunkKind::Application,
            other => ChunkKind::Other(other),
        }
    }

    fn code(self) -> u8 {
        match self {
            ChunkKind::Json => 1,
            ChunkKind::Records => 2,
            ChunkKind::Application => 3,
            ChunkKind::Other(v) => v,
        }
    }
}

/// How payloads are packed. A payload that does not get smaller is stored as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    #[default]
    None,
    /// Zstandard, level 1.
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: ChunkKind,
    pub codec: Codec,
    pub cpu: u16,
    pub count: u32,
    pub payload_len: u32,
    pub raw_len: u32,
    pub seq: u32,
    pub first_ts: i64,
    pub last_ts: i64,
    pub packet_base: u64,
    pub crc: u32,
}

/// Why 64 bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoMagic,
    Checksum,
    TooNew(u8),
    TooOld(u8),
    Field(&'static str),
}

impl Fault {
    pub fn text(self) -> String {
        match self {
            Fault::NoMagic => "no chunk starts here".into(),
            Fault::Checksum => "the chunk header fails its checksum".into(),
            Fault::TooNew(v) | Fault::TooOld(v) => format!("the chunk is in version {v} of the format"),
            Fault::Field(what) => format!("the chunk header has an impossible {what}"),
        }
    }
}

fn u16_at(b: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from(u16_at(b, at)) | u32::from(u16_at(b, at + 2)) << 16
}

fn u64_at(b: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

impl Header {
    /// The header as bytes, sequence number and checksums still zero: [`seal`] sets them.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[..7].copy_from_slice(&MAGIC);
        b[7] = VERSION;
        b[8] = self.kind.code();
        b[9] = match self.codec {
            Codec::None => 0,
            Codec::Zstd => 1,
        };
        b[10..12].copy_from_slice(&self.cpu.to_le_bytes());
        b[12..16].copy_from_slice(&self.count.to_le_bytes());
        b[16..20].copy_from_slice(&self.payload_len.to_le_bytes());
        b[20..24].copy_from_slice(&self.raw_len.to_le_bytes());
        b[32..40].copy_from_slice(&self.first_ts.to_le_bytes());
        b[40..48].copy_from_slice(&self.last_ts.to_le_bytes());
        b[48..56].copy_from_slice(&self.packet_base.to_le_bytes());
        b
    }

    /// Reads a header and checks all that can be checked without its payload.
    pub fn parse(b: &[u8; HEADER_LEN]) -> Result<Header, Fault> {
        if b[..7] != MAGIC {
            return Err(Fault::NoMagic);
        }
        if crc32c::crc32c(&b[..HEADER_CRC_AT]) != u32_at(b, HEADER_CRC_AT) {
            return Err(Fault::Checksum);
        }
        if b[7] > VERSION {
            return Err(Fault::TooNew(b[7]));
        }
        if b[7] < VERSION {
            return Err(Fault::TooOld(b[7]));
        }
        let codec = match b[9] {
            0 => Codec::None,
            1 => Codec::Zstd,
            _ => return Err(Fault::Field("codec")),
        };
        let header = Header {
            kind: ChunkKind::from_u8(b[8]),
            codec,
            cpu: u16_at(b, 10),
            count: u32_at(b, 12),
            payload_len: u32_at(b, 16),
            raw_len: u32_at(b, 20),
            seq: u32_at(b, SEQ_AT),
            first_ts: u64_at(b, 32) as i64,
            last_ts: u64_at(b, 40) as i64,
            packet_base: u64_at(b, 48),
            crc: u32_at(b, CRC_AT),
        };
        if header.raw_len > MAX_RAW_LEN || header.payload_len > MAX_PAYLOAD_LEN {
            return Err(Fault::Field("length"));
        }
        if codec == Codec::None && header.raw_len != header.payload_len {
            return Err(Fault::Field("pair of lengths"));
        }
        if codec == Codec::Zstd && !may_unpack(header.payload_len as usize, header.raw_len as usize) {
            return Err(Fault::Field("pair of lengths"));
        }
        // Every record takes at least two bytes (tag and one field).
        if header.kind == ChunkKind::Records && header.count > header.raw_len / 2 {
            return Err(Fault::Field("record count"));
        }
        Ok(header)
    }

    /// Bytes of header and stored payload.
    pub fn chunk_len(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.payload_len)
    }
}

/// So many bytes may come out of so many: what is packed tighter is not believed, and writers leave it unpacked. Records shrink
/// by a fifth, words to a tenth.
pub fn may_unpack(stored: usize, raw: usize) -> bool {
    raw <= stored.saturating_mul(64).saturating_add(1024)
}

/// Sets sequence number and checksums of a whole chunk (header and payload).
pub fn seal(chunk: &mut [u8], seq: u32) {
    chunk[SEQ_AT..SEQ_AT + 4].copy_from_slice(&seq.to_le_bytes());
    let header_crc = crc32c::crc32c(&chunk[..HEADER_CRC_AT]);
    chunk[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&header_crc.to_le_bytes());
    let crc = chunk_crc(chunk);
    chunk[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Checksum over a whole chunk without the checksum's own four bytes.
pub fn chunk_crc(chunk: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&chunk[..CRC_AT]), &chunk[HEADER_LEN..])
}
