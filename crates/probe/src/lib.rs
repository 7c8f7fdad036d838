//! Choose functions, attach with the best mechanism the kernel offers, drain the rings into a log.
//! Knows `model`, `klog` and `btf` alone; nothing is analysed here.
//!
//! Way of a recording: [`recorder`] asks [`plan`] to decide (mechanism by [`mechanism`], functions by [`choose`] from
//! [`btf`] and [`profile`]), loads the kernel side ([`object`], [`filter`]), attaches ([`attach`]), and drains ([`ring`],
//! [`sink`]) until it is stopped ([`control`], signals).

pub mod also;
pub mod announce;
pub mod app;
pub mod attach;
pub mod capability;
mod cards;
pub mod choose;
pub mod control;
pub mod elf;
pub mod filter;
mod headers;
pub mod identity;
pub mod kernel;
mod links;
mod mappings;
pub mod mechanism;
pub mod netlink;
pub mod object;
pub mod plan;
pub mod profile;
pub mod programs;
pub mod proof;
pub mod radios;
pub mod reasons;
pub mod recorder;
pub mod ring;
pub mod roles;
pub mod sampling;
pub mod sink;
pub mod sys;
mod vdso;
mod whose;
pub mod wire;
pub mod wiregen;
pub mod work;

pub use kpat_btf as btf;
