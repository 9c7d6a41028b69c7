//! The driver's statuses as HIP's.

use cudarc::driver::sys::CUresult;
use hip_provider::runtime::{Status, is_named};
use hip_sys::*;

/// The driver's status as HIP's. HIP uses most of CUDA's numbers. A number that HIP does not define
/// becomes the most similar HIP status.
pub(crate) fn from_cuda(result: CUresult) -> Status {
    match result as u32 {
        0 => Ok(()),
        code => Err(translate(code)),
    }
}

fn translate(code: u32) -> hipError_t {
    match code {
        // A device that another process uses exclusively, or that is lost or needs a reset.
        46 | 102 => hipErrorInvalidDevice,
        // PTX of an unsupported version, or a missing PTX compiler.
        221..=223 => hipErrorInvalidImage,
        // NVLink errors, illegal instructions, misaligned or invalid addresses: the context is
        // lost.
        220 | 714..=718 | 721 => hipErrorLaunchFailure,
        800 => hipErrorNotSupported,
        named if is_named(named) => named,
        _ => hipErrorUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_amds() {
        assert_eq!(from_cuda(CUresult::CUDA_SUCCESS), Ok(()));
        for (cuda, hip) in [
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory),
            (CUresult::CUDA_ERROR_NO_DEVICE, hipErrorNoDevice),
            (CUresult::CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext),
            (CUresult::CUDA_ERROR_CONTEXT_ALREADY_CURRENT, hipErrorContextAlreadyCurrent),
            (CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, hipErrorECCNotCorrectable),
            (CUresult::CUDA_ERROR_INVALID_PTX, hipErrorInvalidKernelFile),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, hipErrorInvalidImage),
            (CUresult::CUDA_ERROR_INVALID_SOURCE, hipErrorInvalidSource),
            (CUresult::CUDA_ERROR_FILE_NOT_FOUND, hipErrorFileNotFound),
            (CUresult::CUDA_ERROR_ILLEGAL_STATE, hipErrorIllegalState),
            (CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, hipErrorLaunchOutOfResources),
            (CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, hipErrorLaunchTimeOut),
            (CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, hipErrorCooperativeLaunchTooLarge),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, hipErrorStreamCaptureWrongThread),
            (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, hipErrorLaunchFailure),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress),
            (CUresult::CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported),
            (CUresult::CUDA_ERROR_TIMEOUT, hipErrorUnknown),
        ] {
            assert_eq!(from_cuda(cuda), Err(hip));
        }
    }
}
