//! The instruction sets that kernels were built for.

use crate::{
    abi::Table,
    flags::{cpu_has, isas},
};
use std::env;

/// An instruction set and its tables.
pub(crate) struct Isa {
    pub(crate) name: &'static str,
    pub(crate) families: &'static [(&'static str, *const Table)],
}

// SAFETY: the tables are constants of the translation units.
unsafe impl Sync for Isa {}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// The newest instruction set up to `limit` that was built and that the CPU has.
pub(crate) fn usable(limit: Option<&str>) -> Option<&'static Isa> {
    let known = isas(env::consts::ARCH);
    let limit = known.iter().position(|isa| Some(isa.name) == limit).unwrap_or(known.len());
    let allowed = known.iter().take(limit + 1).rev().filter(|isa| cpu_has(isa.name));
    allowed.flat_map(|allowed| ISAS.iter().find(|isa| isa.name == allowed.name)).next()
}
