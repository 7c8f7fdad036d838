//! Which kinds of records a log declares, and what this version makes of each: a column that is not known is passed over, one that is
//! missing is 0, a kind that is not known is stepped over.

use crate::columns::{Column, Cursor, MOST_DECLARED, Odd, Row, Shared, Type, get_row};
use crate::kinds::{Coding, FIRST_DECLARED, KINDS, Kind};
use kpat_model::meta;

/// Kinds that a log may declare.
const MOST_KINDS: usize = 256;

/// What this version writes, as a log has it.
pub fn declared() -> Vec<meta::Kind> {
    let column = |c: &Column| meta::Column { name: c.name.into(), of: c.of.name().into() };
    let kind = |k: &Kind| meta::Kind {
        id: k.id,
        name: k.name.into(),
        columns: k.columns.iter().map(column).collect(),
        coding: match k.coding {
            Coding::Own(name) => name.into(),
            Coding::Records(_) | Coding::Application(_) => "columns".into(),
        },
    };
    KINDS.iter().map(kind).collect()
}

/// A kind as a log declares it.
struct Declared {
    id: u16,
    name: String,
    types: Vec<Type>,
    /// Of each column the place in the row of this version's kind: of a number, or from `BYTES` on of bytes.
    to: Vec<Option<u8>>,
    own: Option<&'static Kind>,
    /// Where its values of the record before stand among those of all kinds.
    before: usize,
}

const BYTES: u8 = 0x80;

/// The kinds of a log that are coded column by column.
pub struct Schema {
    /// By id.
    kinds: Vec<Declared>,
    values: usize,
}

/// A row of a declared kind.
pub enum Found<'a> {
    Known(&'static Kind, Row<'a>),
    /// Of a kind with this place in the schema.
    Unknown(usize),
}

impl Default for Schema {
    fn default() -> Schema {
        let (schema, odd) = Schema::of(&declared());
        debug_assert!(odd.is_empty(), "{odd:?}");
        schema
    }
}

impl Schema {
    /// What a log declares, and why some of it is not understood.
    pub fn of(kinds: &[meta::Kind]) -> (Schema, Vec<String>) {
        let mut schema = Schema { kinds: Vec::new(), values: 0 };
        let mut odd = Vec::new();
        for k in kinds.iter().filter(|k| k.id >= FIRST_DECLARED && k.coding == "columns") {
            if let Err(why) = schema.add(k) {
                odd.push(format!(
                    "kind {} ({:.40}) is declared so that it cannot be read: {why}",
                    k.id, k.name
                ));
            }
        }
        (schema, odd)
    }

    fn add(&mut self, k: &meta::Kind) -> Result<(), String> {
        if k.columns.is_empty() || k.columns.len() > MOST_DECLARED || self.kinds.len() >= MOST_KINDS {
            return Err(format!("it has {} columns", k.columns.len()));
        }
        let place = match self.kinds.binary_search_by_key(&k.id, |d| d.id) {
            Ok(_) => return Err("its number is given twice".into()),
            Err(place) => place,
        };
        let mut types = Vec::with_capacity(k.columns.len());
        for c in &k.columns {
            types.push(
                Type::from_name(&c.of)
                    .ok_or_else(|| format!("its column {:.40} is a {:.40}", c.name, c.of))?,
            );
        }
        if types[0] != Type::Time {
            return Err("its first column is not a time".into());
        }
        let own = KINDS.iter().find(|own| own.id == k.id && own.name == k.name);
        let to = k.columns.iter().zip(&types).map(|(c, of)| place_in(own?, &c.name, *of)).collect();
        let before = self.values;
        self.values += types.len();
        self.kinds.insert(place, Declared { id: k.id, name: k.name.clone(), types, to, own, before });
        Ok(())
    }

    /// Values of records before, at a chunk's start.
    pub fn start(&self) -> Vec<u64> {
        vec![0; self.values]
    }

    pub fn name(&self, place: usize) -> &str {
        self.kinds.get(place).map_or("", |k| &k.name)
    }

    /// The record of kind `id` that follows.
    pub fn get<'a>(
        &self,
        id: u64,
        c: &mut Cursor<'a>,
        s: &mut Shared,
        before: &mut [u64],
    ) -> Result<Found<'a>, Odd> {
        let id = u16::try_from(id).map_err(|_| "a record is of an impossible kind")?;
        let place = self
            .kinds
            .binary_search_by_key(&id, |d| d.id)
            .map_err(|_| "a record is of a kind that the log does not declare")?;
        let kind = &self.kinds[place];
        let before = &mut before[kind.before..kind.before + kind.types.len()];
        let mut row = Row::default();
        get_row(&kind.types, c, s, before, |column, number, bytes| match kind.to[column] {
            Some(to) if to & BYTES != 0 => row.bytes[usize::from(to & !BYTES)] = bytes,
            Some(to) => row.numbers[usize::from(to)] = number,
            None => {}
        })?;
        Ok(match kind.own {
            Some(own) => Found::Known(own, row),
            None => Found::Unknown(place),
        })
    }
}

/// Where a column of a log stands in a row of this version.
fn place_in(own: &Kind, name: &str, of: Type) -> Option<u8> {
    let place = own.columns.iter().position(|c| c.name == name && c.of == of)?;
    let bytes = own.columns[..place].iter().filter(|c| c.of.is_bytes()).count();
    Some(if of.is_bytes() { BYTES | bytes as u8 } else { place as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::put_row;
    use crate::decode::{Decoder, PAD, Spare, Step};
    use crate::state::tag;
    use crate::varint::put;
    use crate::{Codec, Encoder, HEADER_LEN};
    use kpat_model::{BootNs, LossCause, Process, Record};

    fn column(name: &str, of: &str) -> meta::Column {
        meta::Column { name: name.into(), of: of.into() }
    }

    fn kind(id: u16, name: &str, columns: Vec<meta::Column>) -> meta::Kind {
        meta::Kind { id, name: name.into(), columns, coding: "columns".into() }
    }

    /// What a later kpat may write: a loss with another order of columns and one more, and samples, of which this one knows nothing.
    const LOSS: [Column; 6] = [
        Column { name: "to", of: Type::Time },
        Column { name: "where", of: Type::Text },
        Column { name: "count", of: Type::Integer },
        Column { name: "cause", of: Type::Integer },
        Column { name: "ring", of: Type::Duration },
        Column { name: "cpu", of: Type::Cpu },
    ];
    const SAMPLE: [Column; 6] = [
        Column { name: "at", of: Type::Time },
        Column { name: "task", of: Type::Task },
        Column { name: "stack", of: Type::Stack },
        Column { name: "packet", of: Type::Packet },
        Column { name: "since", of: Type::Time },
        Column { name: "label", of: Type::Bytes },
    ];

    fn later() -> Vec<meta::Kind> {
        let of = |columns: &[Column]| columns.iter().map(|c| column(c.name, c.of.name())).collect();
        let mut kinds: Vec<meta::Kind> = declared().into_iter().filter(|k| k.name != "loss").collect();
        kinds.push(kind(10, "loss", of(&LOSS)));
        kinds.push(kind(300, "sample", of(&SAMPLE)));
        kinds
    }

    #[test]
    fn what_a_later_version_adds_is_stepped_over_and_the_rest_is_read() {
        let (schema, odd) = Schema::of(&later());
        assert_eq!(odd, Vec::<String>::new());
        let mut s = Shared::new();
        let (mut losses, mut samples) = Default::default();
        let (mut raw, mut n) = (vec![0; 4096], 0);
        for i in 0..3u64 {
            raw[n] = tag::COLUMNS | 2 << tag::COLUMNS_SHIFT;
            let row = Row::new([100 * i, 0, 7 + i, 1, 40 + i, (-1i64) as u64], [b"ring"]);
            n = put_row(&LOSS, &mut s, &mut losses, &row, &mut raw, n + 1);
            raw[n] = tag::COLUMNS | tag::COLUMNS_OTHER << tag::COLUMNS_SHIFT;
            n = put(&mut raw, n + 1, 300);
            let row = Row::new([100 * i + 50, 8 * i, 9, 0, 100 * i], [b"user"]);
            n = put_row(&SAMPLE, &mut s, &mut samples, &row, &mut raw, n);
        }
        raw.truncate(n);
        raw.extend([0; PAD]);
        let mut d = Decoder::new(&schema, n, 0);
        for i in 0..3 {
            let Step::Record(Record::Loss(l)) = d.next(&raw, &mut Spare::default()).unwrap() else {
                panic!("a loss")
            };
            assert_eq!((l.to.0, l.cause, l.cpu, l.count), (100 * i, LossCause::RingFull, -1, 7 + i as u64));
            // What the log does not have.
            assert_eq!(l.from, BootNs(0));
            let Step::UnknownKind(place) = d.next(&raw, &mut Spare::default()).unwrap() else {
                panic!("no such kind")
            };
            assert_eq!(schema.name(place), "sample");
        }
        assert!(d.at_end());
    }

    #[test]
    fn a_log_without_a_kind_ends_where_it_is_met() {
        let mut e = Encoder::new(0, Codec::None);
        e.process(&Process { at: BootNs(5), pid: 1, tgid: 1, comm: "x".into() });
        let mut bytes = e.finish().unwrap().bytes[HEADER_LEN..].to_vec();
        let len = bytes.len();
        bytes.extend([0; PAD]);
        let kinds: Vec<meta::Kind> = declared().into_iter().filter(|k| k.name != "process").collect();
        let (schema, _) = Schema::of(&kinds);
        let odd = Decoder::new(&schema, len, 0).next(&bytes, &mut Spare::default()).err();
        assert_eq!(odd, Some("a record is of a kind that the log does not declare"));
    }

    #[test]
    fn odd_declarations_are_refused_one_by_one() {
        let time = || column("at", "time");
        let kinds = [
            kind(20, "good", vec![time(), column("n", "integer")]),
            kind(20, "again", vec![time()]),
            kind(21, "empty", vec![]),
            kind(22, "no time", vec![column("n", "integer")]),
            kind(23, "odd type", vec![time(), column("n", "colour")]),
            kind(24, "long", (0..=MOST_DECLARED).map(|_| time()).collect()),
            kind(3, "by hand", vec![]),
        ];
        let (schema, odd) = Schema::of(&kinds);
        assert_eq!((schema.kinds.len(), odd.len()), (1, 5), "{odd:?}");
        let many: Vec<meta::Kind> = (8..2_000).map(|id| kind(id, "x", vec![time()])).collect();
        assert_eq!(Schema::of(&many).0.kinds.len(), MOST_KINDS);
    }
}
