//! From values to lines of text. A line is spans with a style; names out of a log are data of strangers, so control
//! characters are made visible here, once, and cannot reach the terminal.

mod color;
mod pairs;
mod table;
mod tree;
mod units;

pub use color::{Line, Style, clean};
pub use kpat_query::filter::parse_duration;
pub use pairs::{Pairs, wrap};
pub use table::{Column, Layout, Table, shorten};
pub use tree::Branches;
pub use units::{TimeAxis, bytes, count, duration, duration_aligned, percent, plural, seconds, time_of_day};
