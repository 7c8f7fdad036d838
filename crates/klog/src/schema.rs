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
                odd.push(format!("kind {} ({:.40}) is declared so that it cannot be read: {why}", k.id, k.name));
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
                Type::from_name(&c.of).ok_or_else(|| format!("its column {:.40} is a {:.40}", c.name, c.of))?,
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
