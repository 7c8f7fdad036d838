//! Chunks to a file. The file is a whole log after every call: a chunk that could not be written completely is cut
//! off again, so that recording continues when there is space again.

use crate::encode::Chunk;
use crate::error::{Error, Room};
use crate::header::{ChunkKind, Codec, HEADER_LEN, Header, MAX_RAW_LEN, may_unpack, seal};
use crate::schema::declared;
use kpat_model::meta::Json;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// JSON shorter than this is stored as it is, readable with `strings`.
const PACK_JSON_FROM: usize = 1024;

type CutBack<W> = fn(&mut W, u64) -> io::Result<()>;

/// Writes a log; chunks of several CPUs may come in any order, those of one CPU in theirs.
pub struct Writer<W: Write> {
    out: W,
    path: PathBuf,
    /// How to drop what was written past an offset; `None`: a pipe or the like, readers find the next chunk by its magic.
    cut_back: Option<CutBack<W>>,
    /// Part of a chunk stands behind the last whole one.
    torn: bool,
    bytes: u64,
    seq: u32,
    /// No chunk goes beyond.
    most: u64,
}

fn cut_file_back(file: &mut File, len: u64) -> io::Result<()> {
    file.set_len(len)?;
    file.seek(SeekFrom::Start(len)).map(|_| ())
}

impl Writer<File> {
    /// A new log; a file of that name is replaced.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Writer::onto(path, File::create(path))
    }

    /// Into a pipe or a device that is there.
    pub fn into_stream(path: &Path) -> Result<Self, Error> {
        let not_a_file = |f: File| match f.metadata()?.is_file() {
            true => Err(ErrorKind::AlreadyExists.into()),
            false => Ok(f),
        };
        Writer::onto(path, File::options().write(true).open(path).and_then(not_a_file))
    }

    /// A new log that is locked as long as it is written (see [`crate::adopt`]); nothing of that name may exist.
    pub fn create_part(path: &Path) -> Result<Self, Error> {
        Writer::onto(path, crate::part::create(path))
    }

    fn onto(path: &Path, file: io::Result<File>) -> Result<Self, Error> {
        let file = file.map_err(|source| match Room::of(&source) {
            Some(room) => Error::DiskFull { path: path.into(), offset: 0, room },
            None => Error::Write { path: path.into(), offset: 0, source },
        })?;
        let regular = file.metadata().is_ok_and(|m| m.is_file());
        let mut writer = Writer::new(file);
        writer.path = path.into();
        writer.cut_back = if regular { Some(cut_file_back) } else { None };
        Ok(writer)
    }
}

impl<W: Write> Writer<W> {
    /// Onto anything that takes bytes; it should not buffer, chunks are large.
    pub fn new(out: W) -> Self {
        Writer {
            out,
            path: "the output".into(),
            cut_back: None,
            torn: false,
            bytes: 0,
            seq: 0,
            most: u64::MAX,
        }
    }

    /// Nothing goes beyond this many bytes from now on, so that there is room for the log's end.
    pub fn most_bytes(&mut self, bytes: u64) {
        self.most = bytes;
    }

    /// Says something about the recording. The first must be [`Json::Meta`]; which kinds of records there are goes with it.
    pub fn json(&mut self, json: &Json) -> Result<(), Error> {
        self.put_json(json)?;
        match json {
            Json::Meta(_) => self.put_json(&Json::Schema(declared())),
            _ => Ok(()),
        }
    }

    fn put_json(&mut self, json: &Json) -> Result<(), Error> {
        let offset = self.bytes;
        let text = serde_json::to_vec(json).map_err(|e| Error::Write {
            path: self.path.clone(),
            offset,
            source: io::Error::other(e),
        })?;
        if text.len() > MAX_RAW_LEN as usize {
            return Err(Error::TooLarge { path: self.path.clone(), offset, len: text.len() });
        }
        let packed = if text.len() >= PACK_JSON_FROM { zstd::bulk::compress(&text, 1).ok() } else { None };
        let (codec, payload) = match &packed {
            Some(packed) if packed.len() < text.len() && may_unpack(packed.len(), text.len()) => {
                (Codec::Zstd, packed)
            }
            _ => (Codec::None, &text),
        };
        let header = Header {
            kind: ChunkKind::Json,
            codec,
            cpu: 0,
            count: 1,
            payload_len: payload.len() as u32,
            raw_len: text.len() as u32,
            seq: 0,
            first_ts: 0,
            last_ts: 0,
            packet_base: 0,
            crc: 0,
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(payload);
        self.put(bytes)
    }

    /// Appends a chunk of records. On an error the chunk is lost, and the file as it was before.
    pub fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.put(chunk.bytes)
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|e| self.failed(e))
    }

    /// Length of the log in bytes: whole chunks only.
    pub fn bytes_written(&self) -> u64 {
        self.bytes
    }

    /// What it writes to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Gives back what it wrote to.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn put(&mut self, mut chunk: Vec<u8>) -> Result<(), Error> {
        if self.bytes + chunk.len() as u64 > self.most {
            return Err(self.failed(ErrorKind::FileTooLarge.into()));
        }
        if self.torn
            && let Some(cut_back) = self.cut_back
        {
            // Without it the log would go on behind a torn chunk; readers survive that, so try and go on.
            self.torn = cut_back(&mut self.out, self.bytes).is_err();
        }
        seal(&mut chunk, self.seq);
        match self.out.write_all(&chunk) {
            Ok(()) => {
                self.bytes += chunk.len() as u64;
                self.seq = self.seq.wrapping_add(1);
                Ok(())
            }
            Err(e) => {
                self.torn = true;
                if let Some(cut_back) = self.cut_back {
                    self.torn = cut_back(&mut self.out, self.bytes).is_err();
                }
                Err(self.failed(e))
            }
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        let (path, offset) = (self.path.clone(), self.bytes);
        match Room::of(&source) {
            Some(room) => Error::DiskFull { path, offset, room },
            None => Error::Write { path, offset, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Log;
    use kpat_model::meta::Meta;

    /// A disk of `room` bytes whose file can be cut.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            match buf.len().min(self.room.saturating_sub(self.bytes.len())) {
                0 => Err(ErrorKind::StorageFull.into()),
                n => {
                    self.bytes.extend_from_slice(&buf[..n]);
                    Ok(n)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_torn_chunk_is_cut_off_and_the_log_goes_on() {
        let json = Json::Devices(Vec::new());
        let mut w = Writer::new(Disk { bytes: Vec::new(), room: usize::MAX });
        w.cut_back = Some(|disk, len| {
            disk.bytes.truncate(len as usize);
            Ok(())
        });
        w.json(&Json::Meta(Box::<Meta>::default())).unwrap();
        let whole = w.bytes_written();
        for torn in [0, 10, 70] {
            w.out.room = whole as usize + torn;
            assert!(matches!(w.json(&json), Err(Error::DiskFull { offset, .. }) if offset == whole));
            assert_eq!(w.out.bytes.len() as u64, whole);
        }
        w.out.room = usize::MAX;
        w.json(&json).unwrap();
        let log = Log::from_bytes(w.into_inner().bytes).unwrap();
        // The recording, its kinds of records, and the one that was tried three times.
        assert_eq!(log.chunk_index().len(), 3);
        assert_eq!(log.issues(), []);
    }

    #[test]
    fn what_is_kept_for_the_end_is_not_taken_before() {
        let json = Json::Devices(Vec::new());
        let mut w = Writer::new(Vec::new());
        w.json(&Json::Meta(Box::<Meta>::default())).unwrap();
        let begun = w.bytes_written();
        w.json(&json).unwrap();
        w.most_bytes(2 * w.bytes_written() - begun);
        w.json(&json).unwrap();
        for _ in 0..2 {
            assert!(matches!(w.json(&json), Err(Error::DiskFull { room: Room::FileSize, .. })));
        }
        w.most_bytes(u64::MAX);
        w.json(&json).unwrap();
        assert_eq!(Log::from_bytes(w.into_inner()).unwrap().chunk_index().len(), 5);
    }

    #[test]
    fn a_real_file_is_cut_back() {
        let path = std::env::temp_dir().join(format!("kpat-klog-cut-{}", std::process::id()));
        let mut w = Writer::create(&path).unwrap();
        w.json(&Json::Meta(Box::<Meta>::default())).unwrap();
        // As if half of the next chunk had been written and cutting had failed.
        w.out.write_all(&[0x89; 50]).unwrap();
        w.torn = true;
        w.json(&Json::Devices(Vec::new())).unwrap();
        let log = Log::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(log.chunk_index().len(), 3);
        assert_eq!(log.issues(), []);
    }
}
