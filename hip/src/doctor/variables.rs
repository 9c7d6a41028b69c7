//! Environment variables that slow HIP down or limit it.
//!
//! Sources: `rocclr/utils/flags.hpp` and `runtime/hsa-runtime/core/util/flag.h` of
//! <https://github.com/ROCm/rocm-systems>, and
//! <https://rocm.docs.amd.com/en/latest/reference/env-variables.html>.

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::system::System;

/// Those of the HSA runtime, which Windows does not have.
#[cfg_attr(windows, allow(dead_code, reason = "Linux only"))]
pub(super) fn of_hsa(system: &System, findings: &mut Vec<Finding>) {
    // Copies on APUs needed it until ROCm 6.1: <https://github.com/ROCm/legacy-rocm-build/issues/2781>.
    if system.number("HSA_ENABLE_SDMA") == Some(0) {
        findings.push(checks::SDMA_OFF.found("HSA_ENABLE_SDMA=0 turns the GPU's copy engines off", &[]));
    }
    if system.number("HSA_XNACK") == Some(1) {
        findings.push(checks::XNACK_ON.found("HSA_XNACK=1 turns XNACK on", &[]));
    }
}

/// Those of HIP.
pub(super) fn of_hip(system: &System, findings: &mut Vec<Finding>) {
    for name in ["GPU_MAX_HEAP_SIZE", "GPU_SINGLE_ALLOC_PERCENT"] {
        if let Some(percent) = system.number(name).filter(|percent| *percent < 100) {
            let what = match name {
                "GPU_MAX_HEAP_SIZE" => format!("{name}={percent} limits HIP to {percent} % of the memory"),
                _ => format!("{name}={percent} limits an allocation to {percent} % of the memory"),
            };
            findings.push(checks::MEMORY_PERCENT.found(what, &[("variable", name)]));
        }
    }
    for name in ["GPU_MAX_ALLOC_PERCENT", "GPU_USE_SYNC_OBJECTS", "GPU_FORCE_64BIT_PTR"] {
        if system.raw(name).is_some() {
            let what = format!("{name} is set, and has no effect");
            findings.push(checks::IGNORED_VARIABLE.found(what, &[("variable", name)]));
        }
    }
    for name in ["AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY", "HIP_LAUNCH_BLOCKING"] {
        if let Some(value) = system.number(name).filter(|value| *value != 0) {
            let what = format!("{name}={value} is set");
            findings.push(checks::SERIALIZED.found(what, &[("variable", name)]));
        }
    }
    if let Some(level) = system.number("AMD_LOG_LEVEL").filter(|level| *level >= 3) {
        findings.push(checks::LOGGING.found(format!("AMD_LOG_LEVEL={level} is set"), &[]));
    }
}
