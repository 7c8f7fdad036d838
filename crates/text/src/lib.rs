//! Text for people: numbers with their units, and names out of a log made fit to be shown. The one way in which durations, counts and
//! strangers' names are written, on a terminal as in a picture. It knows no terminal, no markup and no log.

mod units;
mod words;

pub use units::{TimeAxis, bytes, count, duration, duration_aligned, percent, plural, seconds, time_of_day};
pub use words::{capital, clean, is_hidden, shorten};
