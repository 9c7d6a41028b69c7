//! burn-rocm in the place of Burn 0.22's CubeCL backend.
//!
//! Burn's dispatch is closed: its ROCm device computes on whatever crate is called `burn-cubecl`. An app that patches
//! in this crate and `cubecl-hip` of the same repository has [burn-rocm](burn_rocm) behind `Device::rocm(0)`.
//! The other runtimes that Burn's crate has are not here: an app can't have, say, `burn/wgpu` beside this `burn/rocm`.

#[cfg(any(
    feature = "cpu",
    feature = "cuda",
    feature = "metal",
    feature = "vulkan",
    feature = "webgpu",
    feature = "wgpu"
))]
compile_error!(
    "burn-rocm stands in the place of burn-cubecl and serves Burn's feature `rocm` alone: leave out `burn`'s features \
     `cpu`, `cuda`, `metal`, `vulkan`, `webgpu` and `wgpu`, or the `[patch.crates-io]` of `burn-cubecl`"
);

pub use burn_rocm::Rocm as Cube;
pub use burn_rocm::Rocm as CubeBackend;
pub use burn_rocm::{RocmTensor as CubeTensor, *};
pub use cubecl;
pub use cubecl::Device as CubeDevice;

/// What Burn's crates for signals ask of a backend's kernels.
pub mod kernel {
    /// Fourier transforms.
    pub mod fft {
        pub use burn_rocm::fft::{irfft, rfft};
    }
}
