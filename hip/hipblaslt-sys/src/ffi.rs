//! hipBLASLt's types, constants and functions; names, values and signatures are AMD's.
#![allow(missing_docs)] // AMD's reference describes each function and value.

use core::ffi::{c_int, c_void};
use hip_sys::hipStream_t;

/// The library's context on one device.
pub type hipblasLtHandle_t = *mut c_void;

/// What a `hipblasLtMatmulDesc_t` points to.
#[repr(C)]
pub struct hipblasLtMatmulDescOpaque_t {
    _private: [u8; 0],
}
/// What a product computes: types, transposes, the epilogue and its pointers.
pub type hipblasLtMatmulDesc_t = *mut hipblasLtMatmulDescOpaque_t;

/// What a `hipblasLtMatrixLayout_t` points to.
#[repr(C)]
pub struct hipblasLtMatrixLayoutOpaque_t {
    _private: [u8; 0],
}
/// A matrix in memory: its type, sizes and leading dimension.
pub type hipblasLtMatrixLayout_t = *mut hipblasLtMatrixLayoutOpaque_t;

/// What a `hipblasLtMatmulPreference_t` points to.
#[repr(C)]
pub struct hipblasLtMatmulPreferenceOpaque_t {
    _private: [u8; 0],
}
/// What the heuristic may choose from.
pub type hipblasLtMatmulPreference_t = *mut hipblasLtMatmulPreferenceOpaque_t;

/// An algorithm for products of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct hipblasLtMatmulAlgo_t {
    pub data: [u8; 16],
    pub max_workspace_bytes: usize,
}

/// An algorithm that the heuristic returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipblasLtMatmulHeuristicResult_t {
    pub algo: hipblasLtMatmulAlgo_t,
    pub workspaceSize: usize,
    pub state: hipblasStatus_t,
    pub wavesCount: f32,
    pub reserved: [c_int; 4],
}

hip_sys::c_enum! {
    /// What a call returns.
    pub enum hipblasStatus_t {
        HIPBLAS_STATUS_SUCCESS = 0,
        HIPBLAS_STATUS_NOT_INITIALIZED = 1,
        HIPBLAS_STATUS_ALLOC_FAILED = 2,
        HIPBLAS_STATUS_INVALID_VALUE = 3,
        HIPBLAS_STATUS_MAPPING_ERROR = 4,
        HIPBLAS_STATUS_EXECUTION_FAILED = 5,
        HIPBLAS_STATUS_INTERNAL_ERROR = 6,
        HIPBLAS_STATUS_NOT_SUPPORTED = 7,
        HIPBLAS_STATUS_ARCH_MISMATCH = 8,
        HIPBLAS_STATUS_HANDLE_IS_NULLPTR = 9,
        HIPBLAS_STATUS_INVALID_ENUM = 10,
        HIPBLAS_STATUS_UNKNOWN = 11,
    }
}

hip_sys::c_enum! {
    /// Whether a matrix is taken as it is or transposed.
    pub enum hipblasOperation_t {
        HIPBLAS_OP_N = 111,
        HIPBLAS_OP_T = 112,
    }
}

hip_sys::c_enum! {
    /// The type of sums.
    pub enum hipblasComputeType_t {
        HIPBLAS_COMPUTE_32F = 2,
    }
}

hip_sys::c_enum! {
    /// The type of elements.
    pub enum hipDataType {
        HIP_R_32F = 0,
        HIP_R_16F = 2,
        HIP_R_16BF = 14,
        /// OCP's fp8.
        HIP_R_8F_E4M3 = 28,
        HIP_R_8F_E5M2 = 29,
        /// gfx942's fp8.
        HIP_R_8F_E4M3_FNUZ = 1000,
        HIP_R_8F_E5M2_FNUZ = 1001,
    }
}

hip_sys::c_enum! {
    /// What follows a product. `x` is an element of the scaled product, plus `beta c`.
    pub enum hipblasLtEpilogue_t {
        /// Nothing.
        HIPBLASLT_EPILOGUE_DEFAULT = 1,
        /// `max(x, 0)`.
        HIPBLASLT_EPILOGUE_RELU = 2,
        /// Adds a bias with one element for each row of the result.
        HIPBLASLT_EPILOGUE_BIAS = 4,
        HIPBLASLT_EPILOGUE_RELU_BIAS = 6,
        /// GELU by its approximation with tanh.
        HIPBLASLT_EPILOGUE_GELU = 32,
        HIPBLASLT_EPILOGUE_GELU_BIAS = 36,
        /// Also stores what GELU reads.
        HIPBLASLT_EPILOGUE_GELU_AUX = 160,
        HIPBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
        /// Multiplies by GELU's derivative at the stored values.
        HIPBLASLT_EPILOGUE_DGELU = 192,
        /// Also stores the sums of the result's rows.
        HIPBLASLT_EPILOGUE_DGELU_BGRAD = 208,
        /// Also stores the sums of the rows of the first operand.
        HIPBLASLT_EPILOGUE_BGRADA = 256,
        /// Also stores the sums of the columns of the second operand.
        HIPBLASLT_EPILOGUE_BGRADB = 512,
    }
}

hip_sys::c_enum! {
    /// An attribute of a product.
    pub enum hipblasLtMatmulDescAttributes_t {
        HIPBLASLT_MATMUL_DESC_TRANSA = 0,
        HIPBLASLT_MATMUL_DESC_TRANSB = 1,
        HIPBLASLT_MATMUL_DESC_EPILOGUE = 2,
        HIPBLASLT_MATMUL_DESC_BIAS_POINTER = 3,
        HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 4,
        /// The factor of the first operand, an f32 in device memory.
        HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER = 5,
        HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER = 6,
        HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 10,
        HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 11,
    }
}

hip_sys::c_enum! {
    /// An attribute of a preference.
    pub enum hipblasLtMatmulPreferenceAttributes_t {
        HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    }
}

hip_sys::function_table! {
    /// The functions of `libhipblaslt`. ROCm 6.0 has every one.
    pub struct Hipblaslt {
        required {
            fn hipblasLtGetVersion(handle: hipblasLtHandle_t, version: *mut c_int) -> hipblasStatus_t;
            fn hipblasLtCreate(handle: *mut hipblasLtHandle_t) -> hipblasStatus_t;
            fn hipblasLtDestroy(handle: hipblasLtHandle_t) -> hipblasStatus_t;
            fn hipblasLtMatrixLayoutCreate(
                matLayout: *mut hipblasLtMatrixLayout_t, type_: hipDataType, rows: u64, cols: u64, ld: i64,
            ) -> hipblasStatus_t;
            fn hipblasLtMatrixLayoutDestroy(matLayout: hipblasLtMatrixLayout_t) -> hipblasStatus_t;
            fn hipblasLtMatmulDescCreate(
                matmulDesc: *mut hipblasLtMatmulDesc_t, computeType: hipblasComputeType_t, scaleType: hipDataType,
            ) -> hipblasStatus_t;
            fn hipblasLtMatmulDescDestroy(matmulDesc: hipblasLtMatmulDesc_t) -> hipblasStatus_t;
            fn hipblasLtMatmulDescSetAttribute(
                matmulDesc: hipblasLtMatmulDesc_t, attr: hipblasLtMatmulDescAttributes_t, buf: *const c_void,
                sizeInBytes: usize,
            ) -> hipblasStatus_t;
            fn hipblasLtMatmulPreferenceCreate(pref: *mut hipblasLtMatmulPreference_t) -> hipblasStatus_t;
            fn hipblasLtMatmulPreferenceDestroy(pref: hipblasLtMatmulPreference_t) -> hipblasStatus_t;
            fn hipblasLtMatmulPreferenceSetAttribute(
                pref: hipblasLtMatmulPreference_t, attr: hipblasLtMatmulPreferenceAttributes_t, buf: *const c_void,
                sizeInBytes: usize,
            ) -> hipblasStatus_t;
            fn hipblasLtMatmulAlgoGetHeuristic(
                handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, Adesc: hipblasLtMatrixLayout_t,
                Bdesc: hipblasLtMatrixLayout_t, Cdesc: hipblasLtMatrixLayout_t, Ddesc: hipblasLtMatrixLayout_t,
                pref: hipblasLtMatmulPreference_t, requestedAlgoCount: c_int,
                heuristicResultsArray: *mut hipblasLtMatmulHeuristicResult_t, returnAlgoCount: *mut c_int,
            ) -> hipblasStatus_t;
            fn hipblasLtMatmul(
                handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, alpha: *const c_void, A: *const c_void,
                Adesc: hipblasLtMatrixLayout_t, B: *const c_void, Bdesc: hipblasLtMatrixLayout_t, beta: *const c_void,
                C: *const c_void, Cdesc: hipblasLtMatrixLayout_t, D: *mut c_void, Ddesc: hipblasLtMatrixLayout_t,
                algo: *const hipblasLtMatmulAlgo_t, workspace: *mut c_void, workspaceSizeInBytes: usize,
                stream: hipStream_t,
            ) -> hipblasStatus_t;
        }
        optional {}
    }
}
