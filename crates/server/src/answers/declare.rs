//! One declaration per answer: the Rust struct, its JSON and its TypeScript come from it. Rejected: a derive from a crate,
//! which is a procedural macro more to compile for what sixty lines of `macro_rules` do.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// How a type is written in TypeScript.
pub trait Ts {
    fn ts() -> String;
}

/// A type with a declaration of its own.
pub trait Declared: Ts {
    fn declaration() -> String;
}

macro_rules! plain {
    ($($ty:ty => $ts:literal),* $(,)?) => {
        $(impl Ts for $ty {
            fn ts() -> String {
                $ts.to_owned()
            }
        })*
    };
}

plain!(bool => "boolean", String => "string", &'static str => "string", i32 => "number", i64 => "number",
    u8 => "number", u16 => "number", u32 => "number", u64 => "number", usize => "number", f64 => "number");

impl<T: Ts> Ts for Option<T> {
    fn ts() -> String {
        format!("{} | null", T::ts())
    }
}

impl<T: Ts> Ts for Vec<T> {
    fn ts() -> String {
        let of = T::ts();
        if of.contains(' ') && !of.starts_with('[') { format!("({of})[]") } else { format!("{of}[]") }
    }
}

impl<A: Ts, B: Ts> Ts for (A, B) {
    fn ts() -> String {
        format!("[{}, {}]", A::ts(), B::ts())
    }
}

/// Nanoseconds since the log's start, or a duration: safe in a double for a hundred days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ns(pub i64);

impl Serialize for Ns {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_i64(self.0)
    }
}

impl Ts for Ns {
    fn ts() -> String {
        "Ns".to_owned()
    }
}

/// A number that a double may not hold: as decimal text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Big(pub i64);

impl Serialize for Big {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl Ts for Big {
    fn ts() -> String {
        "Big".to_owned()
    }
}

/// Rows that can be written column by column.
pub trait Columnar: Sized {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error>;
}

/// Rows of one type, as columns in JSON: names once, and numbers beside numbers.
#[derive(Clone, Debug, Default)]
pub struct Columns<T>(pub Vec<T>);

impl<T: Ts> Ts for Columns<T> {
    fn ts() -> String {
        format!("Columns<{}>", T::ts())
    }
}

impl<T: Columnar> Serialize for Columns<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(2))?;
        map.serialize_entry("rows", &self.0.len())?;
        map.serialize_entry("columns", &InColumns(&self.0))?;
        map.end()
    }
}

struct InColumns<'a, T>(&'a [T]);

impl<T: Columnar> Serialize for InColumns<'_, T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        T::columns(self.0, &mut map)?;
        map.end()
    }
}

/// One field of every row.
pub struct Column<'a, R, T>(pub &'a [R], pub fn(&R) -> &T);

impl<R, T: Serialize> Serialize for Column<'_, R, T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(self.1))
    }
}

/// Own time is `self` in JSON, which no Rust field can be called.
pub fn name(field: &'static str) -> &'static str {
    if field == "own" { "self" } else { field }
}

/// Lines of a comment in front of a declaration or a field.
pub fn comment(indent: &str, lines: &[&str]) -> String {
    lines.iter().map(|l| format!("{indent}//{l}\n")).collect()
}

/// Declares answers: `Name { field: Type, }` with comments, which go into the TypeScript as well.
macro_rules! answers {
    ($($(#[doc = $about:literal])* $name:ident { $($(#[doc = $text:literal])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Debug)]
            pub struct $name { $($(#[doc = $text])* pub $field: $ty,)* }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                    use serde::ser::SerializeMap as _;
                    let mut map = s.serialize_map(None)?;
                    $(map.serialize_entry($crate::answers::declare::name(stringify!($field)), &self.$field)?;)*
                    map.end()
                }
            }

            impl $crate::answers::declare::Ts for $name {
                fn ts() -> String {
                    stringify!($name).to_owned()
                }
            }

            impl $crate::answers::declare::Declared for $name {
                fn declaration() -> String {
                    use $crate::answers::declare::{Ts as _, comment, name};
                    let mut out = comment("", &[$($about),*]);
                    out += &format!("export interface {} {{\n", stringify!($name));
                    $(
                        out += &comment("  ", &[$($text),*]);
                        out += &format!("  {}: {};\n", name(stringify!($field)), <$ty>::ts());
                    )*
                    out + "}\n"
                }
            }

            impl $crate::answers::declare::Columnar for $name {
                fn columns<M: serde::ser::SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
                    $(map.serialize_entry(
                        $crate::answers::declare::name(stringify!($field)),
                        &$crate::answers::declare::Column(rows, |r: &$name| &r.$field),
                    )?;)*
                    Ok(())
                }
            }
        )*

        /// TypeScript of these.
        pub fn typescript() -> String {
            use $crate::answers::declare::Declared as _;
            [$($name::declaration()),*].join("\n")
        }
    };
}
pub(crate) use answers;

/// Declares a set of words: in JSON the word, in TypeScript a union.
macro_rules! words {
    ($($(#[doc = $about:literal])* $name:ident { $($variant:ident $word:literal,)* })*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
            pub enum $name { $(#[serde(rename = $word)] $variant,)* }

            impl $crate::answers::declare::Ts for $name {
                fn ts() -> String {
                    [$(concat!("'", $word, "'")),*].join(" | ")
                }
            }
        )*
    };
}
pub(crate) use words;
