//! What code is compiled for.

use crate::settings::settings;

/// The architecture's name: what code is compiled for.
pub(crate) fn arch_name() -> String {
    if let Ok(settings) = settings()
        && let Some(arch) = &settings.arch
    {
        return arch.clone();
    }
    match settings().map(|settings| settings.wave) {
        Ok(Some(wave)) => format!("cpu-lockstep-wave{wave}"),
        _ => match (std::env::consts::ARCH, crate::kernels::isa().name) {
            ("x86_64", "baseline") => "cpu-x86-64".into(),
            ("x86_64", isa) => format!("cpu-x86-64-{isa}"),
            (arch, _) => format!("cpu-{arch}"),
        },
    }
}
