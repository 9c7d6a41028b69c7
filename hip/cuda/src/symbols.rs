//! The functions that this crate calls, by library. [`missing_symbol`] looks for them before the
//! first call, so that an old or broken library causes an error instead of a panic.

use cudarc::{cublas, cublaslt, cudnn, driver, nvrtc};

/// One of NVIDIA's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `libcuda`, the driver.
    Driver,
    /// `libnvrtc`.
    Nvrtc,
    /// `libcublas`.
    Cublas,
    /// `libcublasLt`.
    CublasLt,
    /// `libcudnn`, version 9.
    Cudnn,
}

/// The first function that a loaded library lacks. The caller must have loaded the library under
/// one of its usual names, because `cudarc` panics without it.
pub fn missing_symbol(library: Library) -> Option<&'static str> {
    // SAFETY: the libraries are NVIDIA's, whose initialisers are made to be run by dlopen; only
    // addresses are looked up.
    let (handle, names) = unsafe {
        match library {
            Library::Driver => (driver::sys::culib(), DRIVER),
            Library::Nvrtc => (nvrtc::sys::culib(), NVRTC),
            Library::Cublas => (cublas::sys::culib(), CUBLAS),
            Library::CublasLt => (cublaslt::sys::culib(), CUBLAS_LT),
            Library::Cudnn => (cudnn::sys::culib(), CUDNN),
        }
    };
    names.iter().copied().find(|name| {
        // SAFETY: only the address is taken.
        unsafe { handle.get::<*const ()>(name.as_bytes()) }.is_err()
    })
}

/// Whether the driver has the functions of [`NEWER`].
pub(crate) fn is_newer_driver() -> bool {
    // SAFETY: as above.
    let handle = unsafe { driver::sys::culib() };
    // SAFETY: only addresses are taken.
    NEWER.iter().all(|name| unsafe { handle.get::<*const ()>(name.as_bytes()) }.is_ok())
}

/// What CUDA's driver has from 12.3 on. What calls these asks [`is_newer_driver`] first.
const NEWER: &[&str] = &["cuStreamGetCaptureInfo_v3", "cuGraphKernelNodeGetParams_v2", "cuLaunchKernelEx"];

const DRIVER: &[&str] = &[
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuDriverGetVersion",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuPointerGetAttribute",
    "cuMemcpyAsync",
    "cuMemcpyPeerAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuCtxGetStreamPriorityRange",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuLaunchKernel",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuGraphNodeGetType",
];

const NVRTC: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcAddNameExpression",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetLoweredName",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

const CUBLAS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
    "cublasSetMathMode",
    "cublasSetAtomicsMode",
    "cublasSetPointerMode_v2",
    "cublasGetVersion_v2",
    "cublasSgemm_v2",
    "cublasDgemm_v2",
    "cublasSgemmStridedBatched",
    "cublasDgemmStridedBatched",
    "cublasGemmEx",
    "cublasGemmStridedBatchedEx",
    "cublasSgeam",
    "cublasDgeam",
    "cublasSgemv_v2",
    "cublasDgemv_v2",
];

const CUBLAS_LT: &[&str] = &[
    "cublasLtGetVersion",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

const CUDNN: &[&str] = &[
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnGetVersion",
    "cudnnCreateTensorDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnSetTensorNdDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnSetFilterNdDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnFindConvolutionForwardAlgorithmEx",
    "cudnnFindConvolutionBackwardDataAlgorithmEx",
    "cudnnFindConvolutionBackwardFilterAlgorithmEx",
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnCreatePoolingDescriptor",
    "cudnnDestroyPoolingDescriptor",
    "cudnnSetPoolingNdDescriptor",
    "cudnnPoolingForward",
    "cudnnPoolingBackward",
    "cudnnSoftmaxForward",
    "cudnnSoftmaxBackward",
    "cudnnBatchNormalizationForwardTraining",
    "cudnnBatchNormalizationForwardInference",
    "cudnnBatchNormalizationBackward",
    "cudnnCreateActivationDescriptor",
    "cudnnDestroyActivationDescriptor",
    "cudnnSetActivationDescriptor",
    "cudnnActivationForward",
    "cudnnActivationBackward",
    "cudnnCreateReduceTensorDescriptor",
    "cudnnDestroyReduceTensorDescriptor",
    "cudnnSetReduceTensorDescriptor",
    "cudnnGetReductionWorkspaceSize",
    "cudnnReduceTensor",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Collects the words in this crate's code that look like names of NVIDIA's functions.
    fn named(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named(&path, found);
            } else if !path.ends_with("symbols.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
                let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
                found.extend(words.filter(|word| is_function(word)).map(str::to_owned));
            }
        }
    }

    fn is_function(word: &str) -> bool {
        let rest = ["cublas", "cudnn", "nvrtc", "cu"].iter().find_map(|start| word.strip_prefix(start));
        let of_nvidia = rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
        of_nvidia && !word.ends_with("_t") && !["nvrtcProgram", "nvrtcResult"].contains(&word)
    }

    #[test]
    fn just_what_is_called_is_looked_for() {
        let mut called = BTreeSet::new();
        named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut called);
        let listed: Vec<&str> = [DRIVER, NEWER, NVRTC, CUBLAS, CUBLAS_LT, CUDNN].concat();
        let looked_for: BTreeSet<String> = listed.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(looked_for.len(), listed.len(), "a name stands in two places");
        let missed: Vec<_> = called.difference(&looked_for).collect();
        let unused: Vec<_> = looked_for.difference(&called).collect();
        assert!(missed.is_empty() && unused.is_empty(), "missed: {missed:?}; not called: {unused:?}");
    }
}
