//! NVIDIA's libraries, for the CUDA provider.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::provider::library::{Loaded, Names, Search, open_in};
use crate::settings::allow_fallback;

const fn names(
    title: &'static str,
    unix: &'static [&'static str],
    windows: &'static [&'static str],
) -> Names {
    Names { title, files: if cfg!(windows) { windows } else { unix } }
}

// The sonames of CUDA 13 and 12, then the development link. On Windows, `hip-cuda` looks for NVRTC
// under the name of CUDA 13 only.
pub(crate) const DRIVER: Names = names("NVIDIA's driver", &["libcuda.so.1", "libcuda.so"], &["nvcuda.dll"]);
pub(crate) const NVRTC: Names =
    names("NVRTC", &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"], &["nvrtc64_130_0.dll"]);
pub(crate) const CUBLAS_LT: Names = names(
    "cuBLASLt",
    &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    &["cublasLt64_13.dll", "cublasLt64_12.dll"],
);
pub(crate) const CUBLAS: Names = names(
    "cuBLAS",
    &["libcublas.so.13", "libcublas.so.12", "libcublas.so"],
    &["cublas64_13.dll", "cublas64_12.dll"],
);
pub(crate) const CUDNN: Names = names("cuDNN 9", &["libcudnn.so.9"], &["cudnn64_9.dll"]);
pub(crate) const NCCL: Names = names("NCCL", &["libnccl.so.2", "libnccl.so"], &["nccl.dll"]);
// The functions for languages without NVTX's headers, and the library of CUDA 12.
pub(crate) const NVTX: Names = names(
    "NVTX",
    &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
    &["nvtx3interop.dll", "nvToolsExt64_1.dll"],
);

/// Loads a library from CUDA's directories, or else from the loader's search path.
pub(crate) fn open(names: Names) -> Result<Loaded> {
    let mut directories = Vec::new();
    for variable in ["CUDA_PATH", "CUDA_HOME"] {
        if let Some(root) = std::env::var_os(variable).filter(|root| !root.is_empty()) {
            let root = PathBuf::from(root);
            // From CUDA 13 on, DLLs are in `bin\x64`.
            let folders = if cfg!(windows) { ["bin\\x64", "bin"] } else { ["lib64", "lib"] };
            directories.extend(folders.map(|folder| root.join(folder)));
        }
    }
    if !cfg!(windows) {
        directories.push("/usr/local/cuda/lib64".into());
    }
    let loaded = open_in(names, &directories)?;
    if cfg!(windows) && names.title == NVRTC.title {
        load_builtins(&loaded)?;
    }
    Ok(loaded)
}

/// On Windows, loads the DLLs that NVRTC opens by their names when it first compiles. By itself the
/// loader would not search NVRTC's folder.
fn load_builtins(nvrtc: &Loaded) -> Result<()> {
    let folder = nvrtc.path.parent().unwrap_or(Path::new(""));
    let failed = Search::default().companions("NVRTC", folder, |name| {
        let lower = name.to_ascii_lowercase();
        lower.starts_with("nvrtc-builtins64_") && lower.ends_with(".dll")
    });
    for name in failed {
        let reason = format!("{name}, beside NVRTC, does not load, so NVRTC may fail to compile");
        // Outside of the macro, which leaves out its arguments where warnings are off.
        let error = allow_fallback(Error::NotAvailable { reason, searched: Vec::new() })?;
        log::warn!("{error}");
    }
    Ok(())
}
