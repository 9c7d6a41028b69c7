//! What the device is called, and what code is compiled for.

use crate::settings::settings;

/// The architecture's name, as the device says it.
pub(crate) fn arch_name() -> String {
    settings().ok().and_then(|settings| settings.arch.clone()).unwrap_or_else(target)
}

/// What code is compiled for. `BURN_ROCM_CPU_ARCH` does not hide the instruction set here.
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
