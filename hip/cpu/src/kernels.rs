//! The built-in kernels, for the instruction set in use.

use crate::{
    abi::Kernel,
    isa::{ISAS, Isa, usable},
    settings::settings,
};
use std::{collections::HashMap, sync::OnceLock};

/// The instruction set in use. If none is usable, [`settings`] returns a problem, so that no kernel
/// of the placeholder is launched.
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

/// A kernel by its family and name expression.
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
                assert!(built_in(family.name, &name.to_string()).is_some(), "{name}");
            }
        }
    }
}
