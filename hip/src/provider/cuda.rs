//! The CUDA provider's tables, once NVIDIA's libraries are loaded.

use hip_sys::{Hip, Hiprtc};
use miopen_sys::Miopen;
use rocblas_sys::Rocblas;

use crate::error::{Error, Result};
use crate::provider::library::{Names, nvidia};
use crate::settings::settings;

pub(super) use hip_cuda::hiprtc_additions;

/// Loads a library and looks for every function that is called. It stays loaded, where `hip-cuda` finds it by its name.
fn load(names: Names, library: hip_cuda::Library) -> Result<String> {
    let loaded = nvidia::open(names)?;
    match hip_cuda::missing_symbol(library) {
        None => Ok(loaded.path),
        Some(symbol) => Err(Error::NotAvailable {
            reason: format!("{} lacks the symbol {symbol}", names.title),
            searched: vec![loaded.path],
        }),
    }
}

/// HIP, hipRTC, and the libraries behind them: title and path.
#[allow(clippy::type_complexity)]
pub(super) fn hip() -> Result<(Hip, Hiprtc, Vec<(&'static str, String)>)> {
    let driver = load(nvidia::DRIVER, hip_cuda::Library::Driver)?;
    let nvrtc = load(nvidia::NVRTC, hip_cuda::Library::Nvrtc)?;
    let libraries = vec![(nvidia::DRIVER.title, driver), (nvidia::NVRTC.title, nvrtc)];
    Ok((hip_cuda::hip_table(), hip_cuda::hiprtc_table(), libraries))
}

pub(super) fn rocblas() -> Result<Rocblas> {
    // Not before: a look at what this machine has leaves the settings open.
    hip_cuda::allow_tf32(settings()?.cuda_tf32);
    // cuBLAS needs it, and does not always look beside itself; where it is missing, loading cuBLAS
    // says so.
    if let Err(missing) = nvidia::open(nvidia::CUBLAS_LT) {
        log::debug!("{missing}");
    }
    let path = load(nvidia::CUBLAS, hip_cuda::Library::Cublas)?;
    log::debug!("cuBLAS: {path}");
    Ok(hip_cuda::rocblas_table())
}

pub(super) fn miopen() -> Result<Miopen> {
    hip_cuda::allow_tf32(settings()?.cuda_tf32);
    let path = load(nvidia::CUDNN, hip_cuda::Library::Cudnn)?;
    log::debug!("cuDNN: {path}");
    Ok(hip_cuda::miopen_table())
}
