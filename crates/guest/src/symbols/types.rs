//! What the kernel's description of its types says of numbers, and of what functions take and return.

use super::Symbols;
use kpat_btf::{Btf, kind};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, and whether it has a sign.
    Number { width: u8, signed: bool },
    /// `void`.
    Nothing,
    /// A pointer, a structure, or not known.
    Other,
}

/// A function by its declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Those that are in registers of their own, up to the first of which that is not known.
    pub parameters: Vec<Kind>,
    pub result: Kind,
}

impl Symbols {
    /// The declaration of the function of this name; `None`: it is not known, or there are several of them.
    pub fn function(&self, name: &str) -> Option<Function> {
        let btf = self.btf()?;
        let mut found = btf
            .own_ids()
            .filter_map(|id| btf.get(id))
            .filter(|t| t.kind == kind::FUNC && btf.str(t.name_off) == name)
            .map(|t| t.size_or_type);
        let proto = found.next()?;
        if found.any(|other| other != proto) {
            return None;
        }
        let result = btf.get(proto).filter(|t| t.kind == kind::FUNC_PROTO)?.size_or_type;
        // A structure of more than eight bytes is in two registers, or on the stack.
        let parameters = btf
            .params(proto)
            .into_iter()
            .map(|(_, id)| id)
            .take_while(|id| btf.pointee(*id).0 > 0 || (1..=8).contains(&btf.size_of(*id)));
        Some(Function {
            parameters: parameters.map(|id| kind_of(btf, id)).collect(),
            result: if result == 0 { Kind::Nothing } else { kind_of(btf, result) },
        })
    }
}

pub(super) fn kind_of(btf: &Btf, id: u32) -> Kind {
    let id = btf.strip(id);
    match (btf.get(id).map_or(0, |t| t.kind), btf.size_of(id)) {
        (kind::INT | kind::ENUM | kind::ENUM64, width @ (1 | 2 | 4 | 8)) => {
            Kind::Number { width: width as u8, signed: btf.is_signed(id) }
        }
        _ => Kind::Other,
    }
}
