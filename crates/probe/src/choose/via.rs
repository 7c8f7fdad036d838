//! How a function's packet is reached from its arguments.

use kpat_model::functions;

/// How the packet is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// Argument (from 0) is the skb.
    Argument(u8),
    /// Argument points to a pointer to the skb.
    Pointer(u8),
    /// Argument points to this structure, whose member holds the pointer.
    Carrier {
        arg: u8,
        structure: String,
        member: String,
        offset: u32,
    },
    /// Argument is the head of a list of skbs.
    List(u8),
    Return,
    /// None of its own: recorded within calls of packets.
    Within(Value),
}

/// What a function returns, as far as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Nothing,
    Number,
    Pointer,
    Truth,
}

impl Value {
    fn name(self) -> &'static str {
        match self {
            Value::Nothing => "",
            Value::Number => functions::NUMBER,
            Value::Pointer => functions::POINTER,
            Value::Truth => functions::TRUTH,
        }
    }
}

impl Via {
    pub fn text(&self) -> String {
        match self {
            Via::Argument(a) => format!("arg {}", a + 1),
            Via::Pointer(a) => format!("arg {} -> *", a + 1),
            Via::Carrier { arg, structure, member, .. } => format!("arg {} -> {structure}.{member}", arg + 1),
            Via::List(a) => format!("arg {} (list)", a + 1),
            Via::Return => "return".to_string(),
            Via::Within(value) => functions::within(value.name()),
        }
    }

    pub(super) fn argument(&self) -> Option<u8> {
        match self {
            Via::Argument(a) | Via::Pointer(a) | Via::List(a) | Via::Carrier { arg: a, .. } => Some(*a),
            Via::Return | Via::Within(_) => None,
        }
    }
}
