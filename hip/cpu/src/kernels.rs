//! The kernels that were built ahead, for the instruction set that this CPU has.

use crate::{
    abi::{Kernel, Table},
    settings::settings,
};
use std::{collections::HashMap, sync::OnceLock};

/// An instruction set and its tables.
pub(crate) struct Isa {
    pub(crate) name: &'static str,
    families: &'static [(&'static str, *const Table)],
}

// SAFETY: the tables are constants of the translation units.
unsafe impl Sync for Isa {}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// The instruction set in use: the newest that the CPU and the settings allow, or lockstep's.
pub(crate) fn isa() -> &'static Isa {
    static CHOSEN: OnceLock<&'static Isa> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let settings = settings().ok();
        if settings.is_some_and(|settings| settings.wave.is_some())
            && let Some(lockstep) = ISAS.iter().find(|isa| isa.name == "lockstep")
        {
            return lockstep;
        }
        let limit = settings.and_then(|settings| settings.isa.as_deref());
        let limit = limit.and_then(|name| ISAS.iter().position(|isa| isa.name == name)).unwrap_or(ISAS.len());
        let allowed = &ISAS[..ISAS.len().min(limit + 1)];
        allowed.iter().rfind(|isa| cpu_has(isa.name)).unwrap_or(&ISAS[0])
    })
}

#[cfg(target_arch = "x86_64")]
fn cpu_has(isa: &str) -> bool {
    let v3 = || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe")
            && is_x86_feature_detected!("popcnt")
    };
    let v4 = || {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    };
    match isa {
        "baseline" => true,
        "v3" => v3(),
        "v4" => v3() && v4(),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_has(isa: &str) -> bool {
    isa == "baseline"
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
