//! A local HTTP service for the web page.
pub mod answers;
