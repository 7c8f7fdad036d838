//! The coding of records whose kind is declared: column by column, each against what is likely by its type. A new kind of record is
//! a list of columns (see `kinds.rs`); a reader that does not know it skips it by the list in the log.

use crate::varint::{get, put, unzigzag, zigzag};

/// Columns of a kind of this version.
pub const MOST: usize = 13;
/// Columns of bytes among them, which come last.
pub const MOST_BYTES: usize = 3;
/// Columns that a log may declare for a kind.
pub const MOST_DECLARED: usize = 60;
/// Room for a record but for its bytes: tag, kind, which columns follow, the columns, and one number more.
pub const ROW_SLACK: usize = 9 * (MOST + 5);

/// What a column holds, which decides how it is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// First column: the record's time, against that of the record before. Others: against the record's own.
    Time,
    Duration,
    /// 0: none; else nanoseconds, and 1.
    OptionalDuration,
    /// Thread id << 3 | context.
    Task,
    /// 0: none.
    Packet,
    /// -1: none.
    Cpu,
    Function,
    Socket,
    Stack,
    Integer,
    Text,
    Bytes,
}

impl Type {
    const NAMES: [(&'static str, Type); 12] = [
        ("time", Type::Time),
        ("duration", Type::Duration),
        ("optional duration", Type::OptionalDuration),
        ("task", Type::Task),
        ("packet", Type::Packet),
        ("cpu", Type::Cpu),
        ("function", Type::Function),
        ("socket", Type::Socket),
        ("stack", Type::Stack),
        ("integer", Type::Integer),
        ("text", Type::Text),
        ("bytes", Type::Bytes),
    ];

    pub fn name(self) -> &'static str {
        Type::NAMES.iter().find(|(_, t)| *t == self).map_or("", |(name, _)| name)
    }

    pub fn from_name(name: &str) -> Option<Type> {
        Type::NAMES.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }

    pub fn is_bytes(self) -> bool {
        matches!(self, Type::Text | Type::Bytes)
    }
}

/// One column of a kind.
pub struct Column {
    pub name: &'static str,
    pub of: Type,
}

/// A record as its columns' values: numbers in the order of the columns, those of the time and of what is signed as two's complement,
/// then bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row<'a> {
    pub numbers: [u64; MOST],
    pub bytes: [&'a [u8]; MOST_BYTES],
}

impl<'a> Row<'a> {
    pub fn new<const N: usize, const B: usize>(numbers: [u64; N], bytes: [&'a [u8]; B]) -> Row<'a> {
        const { assert!(N <= MOST && B <= MOST_BYTES) }
        let mut row = Row::default();
        row.numbers[..N].copy_from_slice(&numbers);
        row.bytes[..B].copy_from_slice(&bytes);
        row
    }

    pub fn byte_len(&self) -> usize {
        self.bytes.iter().map(|b| b.len()).sum()
    }
}

/// What all records of a chunk are coded against, whatever their kind.
pub struct Shared {
    /// Time of the record before: a call's return, the moment of others; members do not move it.
    pub time: i64,
    /// The last three different (packet, skb tag), newest first.
    pub recent: [(u64, u16); 3],
    /// The last packet id that was written out.
    pub newest: u64,
    /// The writer's: what the chunk's header says of `newest`.
    pub base: Option<u64>,
    /// The last two different tasks, as pid << 3 | context.
    pub tasks: [u64; 2],
}

impl Shared {
    pub fn new() -> Shared {
        Shared { time: 0, recent: [(0, 0); 3], newest: 0, base: None, tasks: [0; 2] }
    }

    /// Brings place `mode` of the recent packets to the front.
    #[inline]
    pub fn use_recent(&mut self, mode: usize) {
        self.recent[..=mode].rotate_right(1);
    }

    /// Puts a packet that was written out in front; the oldest leaves.
    #[inline]
    pub fn push_recent(&mut self, key: (u64, u16)) {
        self.recent = [key, self.recent[0], self.recent[1]];
    }

    fn push_task(&mut self, task: u64) {
        self.tasks = [task, self.tasks[0]];
    }

    #[inline]
    pub fn put_time(&mut self, at: i64, out: &mut [u8], n: usize) -> usize {
        let step = at.wrapping_sub(self.time);
        self.time = at;
        put(out, n, zigzag(step))
    }

    /// A packet id as step from the last one that was written out.
    pub fn put_id(&mut self, id: u64, out: &mut [u8], n: usize) -> usize {
        if self.base.is_none() {
            self.base = Some(id);
            self.newest = id;
        }
        let step = id.wrapping_sub(self.newest) as i64;
        self.newest = id;
        put(out, n, zigzag(step))
    }
}

/// Writes a row behind its kind: time, which columns are not as expected, those columns. `before` has the values of the kind's record
/// before, and then this one's.
pub fn put_row(
    columns: &[Column],
    s: &mut Shared,
    before: &mut [u64; MOST],
    row: &Row<'_>,
    out: &mut [u8],
    n: usize,
) -> usize {
    let mut n = s.put_time(row.numbers[0] as i64, out, n);
    let mut follows = 0u64;
    let mut bytes = 0;
    for (i, Column { of, .. }) in columns.iter().enumerate().skip(1) {
        let differs = match of {
            Type::Text | Type::Bytes => {
                bytes += 1;
                !row.bytes[bytes - 1].is_empty()
            }
            Type::Time => row.numbers[i] as i64 != s.time,
            Type::Task => row.numbers[i] != s.tasks[0],
            Type::Packet => row.numbers[i] != s.recent[0].0,
            _ => row.numbers[i] != before[i],
        };
        follows |= u64::from(differs) << (i - 1);
    }
    n = put(out, n, follows);
    bytes = 0;
    for (i, Column { of, .. }) in columns.iter().enumerate().skip(1) {
        bytes += usize::from(of.is_bytes());
        if follows >> (i - 1) & 1 == 0 {
            continue;
        }
        let v = row.numbers.get(i).copied().unwrap_or_default();
        n = match of {
            Type::Time => put(out, n, zigzag((v as i64).wrapping_sub(s.time))),
            Type::Task => {
                s.push_task(v);
                put(out, n, v)
            }
            // No packet is a step, too, from which the next one does not go on.
            Type::Packet if v == 0 => put(out, n, zigzag(0u64.wrapping_sub(s.newest) as i64)),
            Type::Packet => s.put_id(v, out, n),
            Type::Cpu => put(out, n, zigzag(v as i64)),
            Type::Integer => put(out, n, zigzag(v.wrapping_sub(before[i]) as i64)),
            Type::Duration | Type::OptionalDuration | Type::Function | Type::Socket | Type::Stack => {
                put(out, n, v)
            }
            Type::Text | Type::Bytes => {
                let b = row.bytes[bytes - 1];
                let n = put(out, n, b.len() as u64);
                out[n..n + b.len()].copy_from_slice(b);
                n + b.len()
            }
        };
        if !of.is_bytes() {
            before[i] = v;
        }
    }
    n
}

/// Why bytes are no record.
pub type Odd = &'static str;

pub const SHORT: Odd = "a record runs past the end of its chunk";

/// Where a decoder stands in a chunk.
pub struct Cursor<'a> {
    pub buf: &'a [u8],
    pub pos: usize,
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    pub fn byte(&mut self) -> Result<u8, Odd> {
        let b = *self.buf.get(self.pos).ok_or(SHORT)?;
        self.pos += 1;
        Ok(b)
    }

    #[inline(always)]
    pub fn number(&mut self) -> Result<u64, Odd> {
        let (v, pos) = get(self.buf, self.pos).ok_or(SHORT)?;
        self.pos = pos;
        Ok(v)
    }

    pub fn signed(&mut self) -> Result<i64, Odd> {
        Ok(unzigzag(self.number()?))
    }

    #[inline]
    pub fn time(&mut self, s: &mut Shared) -> Result<i64, Odd> {
        s.time = s.time.wrapping_add(self.signed()?);
        Ok(s.time)
    }

    #[inline]
    pub fn id(&mut self, s: &mut Shared) -> Result<u64, Odd> {
        s.newest = s.newest.wrapping_add(self.signed()? as u64);
        Ok(s.newest)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Odd> {
        let len = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        let end = self.pos.checked_add(len).ok_or(SHORT)?;
        let bytes = self.buf.get(self.pos..end).ok_or(SHORT)?;
        self.pos = end;
        Ok(bytes)
    }
}

/// Reads a row as the log declares its kind, and gives its columns to `found` by their place in that list.
pub fn get_row<'a>(
    types: &[Type],
    c: &mut Cursor<'a>,
    s: &mut Shared,
    before: &mut [u64],
    mut found: impl FnMut(usize, u64, &'a [u8]),
) -> Result<(), Odd> {
    found(0, c.time(s)? as u64, &[]);
    let task_before = s.tasks[0];
    let follows = c.number()?;
    if types.len() <= MOST_DECLARED && follows >> (types.len() - 1) != 0 {
        return Err("a record has columns that its kind does not have");
    }
    for (i, of) in types.iter().enumerate().skip(1) {
        let follows = follows >> (i - 1) & 1 != 0;
        if of.is_bytes() {
            found(i, 0, if follows { c.bytes()? } else { &[] });
            continue;
        }
        let v = match (of, follows) {
            (Type::Time, false) => s.time as u64,
            (Type::Time, true) => s.time.wrapping_add(c.signed()?) as u64,
            (Type::Task, false) => task_before,
            (Type::Task, true) => {
                let task = c.number()?;
                s.push_task(task);
                task
            }
            (Type::Packet, false) => s.recent[0].0,
            (Type::Packet, true) => match s.newest.wrapping_add(c.signed()? as u64) {
                0 => 0,
                id => {
                    s.newest = id;
                    id
                }
            },
            (_, false) => before[i],
            (Type::Cpu, true) => c.signed()? as u64,
            (Type::Integer, true) => before[i].wrapping_add(c.signed()? as u64),
            (_, true) => c.number()?,
        };
        if follows {
            before[i] = v;
        }
        found(i, v, &[]);
    }
    Ok(())
}
