//! burn-rocm as a replacement for Burn 0.22's CubeCL backend.
//!
//! Burn's dispatch has a closed list of backends: its ROCm device computes on the crate named
//! `burn-cubecl`. In an app that patches in this crate and `cubecl-hip` of the same repository,
//! `Device::rocm(0)` runs on [burn-rocm](burn_rocm). This crate has none of the other runtimes of
//! Burn's crate. For example, an app can't use `burn/wgpu` together with this `burn/rocm`.

#[cfg(any(
    feature = "cpu",
    feature = "cuda",
    feature = "metal",
    feature = "vulkan",
    feature = "webgpu",
    feature = "wgpu"
))]
compile_error!(
    "burn-rocm replaces burn-cubecl and supports only Burn's feature `rocm`: leave out `burn`'s features \
     `cpu`, `cuda`, `metal`, `vulkan`, `webgpu` and `wgpu`, or the `[patch.crates-io]` of `burn-cubecl`"
);

pub use burn_rocm::Rocm as Cube;
pub use burn_rocm::Rocm as CubeBackend;
pub use burn_rocm::{RocmTensor as CubeTensor, *};
pub use cubecl;
pub use cubecl::Device as CubeDevice;

/// The tensor, at the path where burn-vision looks for it.
pub mod tensor {
    pub use burn_rocm::RocmTensor as CubeTensor;
}

/// The ops that burn-vision calls.
pub mod ops {
    pub use burn_rocm::cube::ops::{into_data_sync, numeric, reshape};
}

/// The kernels that burn-signal and burn-vision call in a backend.
pub mod kernel {
    pub use burn_rocm::cube::ops::slice;

    /// Fourier transforms.
    pub mod fft {
        pub use burn_rocm::fft::{irfft, rfft};
    }
}
