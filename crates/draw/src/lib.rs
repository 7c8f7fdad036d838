//! Answers as pictures and pages: each one file that needs no other and no network, light and dark by the reader's setting, with the
//! text of everything that it shows, so that it reads without colour and to a screen reader.
//!
//! [`svg`] has the elements and their escaping, [`scale`] where values stand and which marks an axis has, [`style`] every colour;
//! [`phases`], [`app`], [`handover`] and [`flame`] say what is drawn. This room reads no file but through the answers it is given, writes none, and computes
//! nothing that a picture does not need.

pub mod app;
pub mod flame;
pub mod handover;
pub mod page;
pub mod phases;
mod scale;
mod style;
mod svg;

pub use svg::document;
