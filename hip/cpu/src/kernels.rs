//! The kernels that were built ahead, for the instruction set that this CPU has.

use crate::{
    abi::{Kernel, Table},
    flags::{cpu_has, isas},
    settings::settings,
};
use std::{collections::HashMap, env, sync::OnceLock};

/// An instruction set and its tables.
pub(crate) struct Isa {
    pub(crate) name: &'static str,
    families: &'static [(&'static str, *const Table)],
}

// SAFETY: the tables are constants of the translation units.
unsafe impl Sync for Isa {}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// The instruction set in use. Settings name a problem where there is none, so nothing is launched
/// from the set that then stands in.
pub(crate) fn isa() -> &'static Isa {
    static CHOSEN: OnceLock<&'static Isa> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let settings = settings().ok();
        if settings.is_some_and(|settings| settings.wave.is_some())
            && let Some(lockstep) = ISAS.iter().find(|isa| isa.name == "lockstep")
        {
            return lockstep;
        }
        usable(settings.and_then(|settings| settings.isa.as_deref())).unwrap_or(&ISAS[0])
    })
}

/// The newest instruction set that was built, that the CPU has and that is not newer than `limit`.
pub(crate) fn usable(limit: Option<&str>) -> Option<&'static Isa> {
    let known = isas(env::consts::ARCH);
    let limit = known.iter().position(|isa| Some(isa.name) == limit).unwrap_or(known.len());
    let allowed = known.iter().take(limit + 1).rev().filter(|isa| cpu_has(isa.name));
    allowed.flat_map(|allowed| ISAS.iter().find(|isa| isa.name == allowed.name)).next()
}

/// A family's kernel by its name expression.
pub(crate) fn built_in(family: &str, name: &str) -> Option<Kernel> {
    static KERNELS: OnceLock<HashMap<&'static str, HashMap<&'static str, Kernel>>> = OnceLock::new();
    let families = KERNELS.get_or_init(|| {
        isa()
            .families
            .iter()
            .map(|(family, table)| {
                // SAFETY: the build script wrote the table; it is part of this program.
                let kernels = unsafe { (**table).kernels() };
                (*family, kernels.into_iter().map(|kernel| (kernel.name, kernel)).collect())
            })
            .collect()
    });
    families.get(family)?.get(name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_instantiation_was_built() {
        for family in hip_kernels::families() {
            for name in family.instantiations() {
                assert!(built_in(family.name, &name.expression()).is_some(), "{name}");
            }
        }
    }
}
