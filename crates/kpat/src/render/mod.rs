//! From values to lines of text. A line is spans with a style; names out of a log are data of strangers, so control
//! characters are made visible here, once, and cannot reach the terminal.

mod color;
mod pairs;
mod table;
mod tree;

pub use color::{Line, Style};
pub use kpat_query::filter::parse_duration;
pub use kpat_text::{
    TimeAxis, bytes, capital, clean, count, duration, duration_aligned, percent, plural, seconds, shorten,
    time_of_day,
};
pub use pairs::{Pairs, wrap};
pub use table::{Column, Layout, Table};
pub use tree::Branches;
