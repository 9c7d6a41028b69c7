//! The device's architecture name, and the architecture that code is compiled for.

use crate::settings::settings;

/// The architecture name that the device reports.
pub(crate) fn arch_name() -> String {
    settings().ok().and_then(|settings| settings.arch.clone()).unwrap_or_else(target)
}

/// The architecture that code is compiled for. Unlike [`arch_name`], it ignores
/// `BURN_ROCM_CPU_ARCH`.
pub(crate) fn target() -> String {
    match settings().map(|settings| settings.wave) {
        Ok(Some(wave)) => format!("cpu-lockstep-wave{wave}"),
        _ => match (std::env::consts::ARCH, crate::kernels::isa().name) {
            ("x86_64", "baseline") => "cpu-x86-64".into(),
            ("x86_64", isa) => format!("cpu-x86-64-{isa}"),
            (arch, _) => format!("cpu-{arch}"),
        },
    }
}
