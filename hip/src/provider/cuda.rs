//! Loads NVIDIA's libraries and gives the CUDA provider's tables.

use hip_sys::{Hip, Hiprtc};
use hipblaslt_sys::Hipblaslt;
use miopen_sys::Miopen;
use rccl_sys::Rccl;
use rocblas_sys::Rocblas;

use crate::error::{Error, Result};
use crate::provider::library::{Names, fill};
use crate::provider::nvidia;
use crate::settings::settings;

pub(super) use hip_cuda::hiprtc_additions;

/// Loads a library and checks that it has every function that `hip-cuda` calls. The library stays
/// loaded, so `hip-cuda` finds it by its name.
fn load(names: Names, library: hip_cuda::Library) -> Result<String> {
    let loaded = nvidia::open(names)?;
    match hip_cuda::missing_symbol(library) {
        None => Ok(loaded.shown()),
        Some(symbol) => Err(Error::NotAvailable {
            reason: format!("{} lacks the symbol {symbol}", names.title),
            searched: vec![loaded.shown()],
        }),
    }
}

/// The tables of HIP and hipRTC, and the title and path of each library behind them.
#[allow(clippy::type_complexity)]
pub(super) fn hip() -> Result<(Hip, Hiprtc, Vec<(&'static str, String)>)> {
    let driver = load(nvidia::DRIVER, hip_cuda::Library::Driver)?;
    let nvrtc = load(nvidia::NVRTC, hip_cuda::Library::Nvrtc)?;
    let libraries = vec![(nvidia::DRIVER.title, driver), (nvidia::NVRTC.title, nvrtc)];
    Ok((hip_cuda::hip_table(), hip_cuda::hiprtc_table(), libraries))
}

pub(super) fn rocblas() -> Result<Rocblas> {
    // The settings are read here and not in `hip()`, because a survey of the machine must not fix
    // them.
    hip_cuda::allow_tf32(settings()?.cuda_tf32);
    // cuBLAS needs cuBLASLt, and does not always search its own folder. If cuBLASLt is missing,
    // loading cuBLAS fails with the reason.
    if let Err(missing) = nvidia::open(nvidia::CUBLAS_LT) {
        log::debug!("{missing}");
    }
    let path = load(nvidia::CUBLAS, hip_cuda::Library::Cublas)?;
    log::debug!("cuBLAS: {path}");
    Ok(hip_cuda::rocblas_table())
}

pub(super) fn hipblaslt() -> Result<Hipblaslt> {
    hip_cuda::allow_tf32(settings()?.cuda_tf32);
    let path = load(nvidia::CUBLAS_LT, hip_cuda::Library::CublasLt)?;
    log::debug!("cuBLASLt: {path}");
    Ok(hip_cuda::hipblaslt_table())
}

pub(super) fn miopen() -> Result<Miopen> {
    hip_cuda::allow_tf32(settings()?.cuda_tf32);
    let path = load(nvidia::CUDNN, hip_cuda::Library::Cudnn)?;
    log::debug!("cuDNN: {path}");
    Ok(hip_cuda::miopen_table())
}

/// NCCL's own functions: RCCL has NCCL's API, and the CUDA provider's streams are the driver's.
pub(super) fn rccl() -> Result<Rccl> {
    let library = nvidia::open(nvidia::NCCL)?;
    log::debug!("NCCL: {}", library.path.display());
    fill!(Rccl, &library, "NCCL")
}
