//! Probes that wait in the guest and speak with the host through memory that both see, without an exit from the guest.
//!
//! [`layout`] is the memory, [`values`] what a probe reads by itself, [`skb`] what it copies of a packet, [`code`] and [`stub`] the code that runs in the guest, [`gate`] the way
//! there where a jump has no room,
//! [`region`] and [`host`] the other end.

pub mod code;
mod device;
mod entries;
pub mod gate;
pub mod host;
pub mod install;
pub mod journal;
pub mod layout;
mod patience;
mod quiet;
pub mod region;
pub(crate) mod returns;
pub mod skb;
mod skb_code;
mod skb_pages;
pub mod stub;
pub mod values;
