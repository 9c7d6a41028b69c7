//! The CPU provider's tables.

use super::{Error, Hip, Hipblaslt, Hiprtc, Miopen, Rccl, Result, Rocblas};
use crate::compile::cache;

pub(super) use hip_cpu::HIPRTC_ADDITIONS;

pub(super) fn hip() -> Result<(Hip, Hiprtc)> {
    if cfg!(windows) {
        hip_cpu::make_temporary_folders_in(cache::temporary_folder);
    }
    match hip_cpu::check_settings() {
        Ok(()) => Ok((hip_cpu::hip_table(), hip_cpu::hiprtc_table())),
        Err(problem) => Err(Error::config(problem.what, problem.expected, problem.found)),
    }
}

pub(super) fn host_compiler() -> Option<std::path::PathBuf> {
    hip_cpu::host_compiler()
}

pub(super) fn rocblas() -> Result<Rocblas> {
    Ok(hip_cpu::rocblas_table())
}

pub(super) fn miopen() -> Result<Miopen> {
    Ok(hip_cpu::miopen_table())
}

pub(super) fn hipblaslt() -> Result<Hipblaslt> {
    Ok(hip_cpu::hipblaslt_table())
}

pub(super) fn rccl() -> Result<Rccl> {
    Ok(hip_cpu::rccl_table())
}
