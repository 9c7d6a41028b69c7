//! MIOpen's types and constants; names and values are AMD's.
#![allow(missing_docs)] // AMD's reference describes each value.

pub type miopenAcceleratorQueue_t = hip_sys::hipStream_t;

/// What a `miopenHandle_t` points to.
#[repr(C)]
pub struct miopenHandle {
    _private: [u8; 0],
}
pub type miopenHandle_t = *mut miopenHandle;

/// What a `miopenTensorDescriptor_t` points to.
#[repr(C)]
pub struct miopenTensorDescriptor {
    _private: [u8; 0],
}
pub type miopenTensorDescriptor_t = *mut miopenTensorDescriptor;

/// What a `miopenConvolutionDescriptor_t` points to.
#[repr(C)]
pub struct miopenConvolutionDescriptor {
    _private: [u8; 0],
}
pub type miopenConvolutionDescriptor_t = *mut miopenConvolutionDescriptor;

/// What a `miopenPoolingDescriptor_t` points to.
#[repr(C)]
pub struct miopenPoolingDescriptor {
    _private: [u8; 0],
}
pub type miopenPoolingDescriptor_t = *mut miopenPoolingDescriptor;

/// What a `miopenActivationDescriptor_t` points to.
#[repr(C)]
pub struct miopenActivationDescriptor {
    _private: [u8; 0],
}
pub type miopenActivationDescriptor_t = *mut miopenActivationDescriptor;

/// What a `miopenFusionPlanDescriptor_t` points to.
#[repr(C)]
pub struct miopenFusionPlanDescriptor {
    _private: [u8; 0],
}
pub type miopenFusionPlanDescriptor_t = *mut miopenFusionPlanDescriptor;

/// What a `miopenFusionOpDescriptor_t` points to.
#[repr(C)]
pub struct miopenFusionOpDescriptor {
    _private: [u8; 0],
}
pub type miopenFusionOpDescriptor_t = *mut miopenFusionOpDescriptor;

/// What a `miopenOperatorArgs_t` points to.
#[repr(C)]
pub struct miopenOperatorArgs {
    _private: [u8; 0],
}
pub type miopenOperatorArgs_t = *mut miopenOperatorArgs;

/// What a `miopenReduceTensorDescriptor_t` points to.
#[repr(C)]
pub struct miopenReduceTensorDescriptor {
    _private: [u8; 0],
}
pub type miopenReduceTensorDescriptor_t = *mut miopenReduceTensorDescriptor;

hip_sys::c_enum! {
    /// What a call returns.
    pub enum miopenStatus_t {
        miopenStatusSuccess = 0,
        miopenStatusNotInitialized = 1,
        miopenStatusInvalidValue = 2,
        miopenStatusBadParm = 3,
        miopenStatusAllocFailed = 4,
        miopenStatusInternalError = 5,
        miopenStatusNotImplemented = 6,
        miopenStatusUnknownError = 7,
        miopenStatusUnsupportedOp = 8,
        miopenStatusGpuOperationsSkipped = 9,
        miopenStatusVersionMismatch = 10,
    }
}

hip_sys::c_enum! {
    /// The type of a tensor's elements.
    pub enum miopenDataType_t {
        miopenHalf = 0,
        miopenFloat = 1,
        miopenInt32 = 2,
        miopenInt8 = 3,
        miopenBFloat16 = 5,
        miopenDouble = 6,
        miopenInt64 = 9,
    }
}

hip_sys::c_enum! {
    /// The type of the indices that max pooling keeps.
    pub enum miopenIndexType_t {
        miopenIndexUint8 = 0,
        miopenIndexUint16 = 1,
        miopenIndexUint32 = 2,
        miopenIndexUint64 = 3,
    }
}

hip_sys::c_enum! {
    /// Convolution or transposed convolution.
    pub enum miopenConvolutionMode_t {
        miopenConvolution = 0,
        miopenTranspose = 1,
    }
}

hip_sys::c_enum! {
    /// The kind of pooling.
    pub enum miopenPoolingMode_t {
        miopenPoolingMax = 0,
        miopenPoolingAverage = 1,
        miopenPoolingAverageInclusive = 2,
    }
}

hip_sys::c_enum! {
    /// What the indices that max pooling keeps count.
    pub enum miopenPoolingWorkspaceIndexMode_t {
        miopenPoolingWorkspaceIndexMask = 0,
        miopenPoolingWorkspaceIndexImage = 1,
    }
}

hip_sys::c_enum! {
    /// Whether a layer norm has weight and bias.
    pub enum miopenNormMode_t {
        MIOPEN_ELEMENTWISE_AFFINE = 0,
        MIOPEN_WEIGHT_BIAS = 1,
        MIOPEN_WEIGHT_BIAS_T5 = 5,
    }
}

hip_sys::c_enum! {
    /// Whether a batch norm has statistics for each activation or for each channel.
    pub enum miopenBatchNormMode_t {
        miopenBNPerActivation = 0,
        miopenBNSpatial = 1,
    }
}

hip_sys::c_enum! {
    /// The kind of activation.
    pub enum miopenActivationMode_t {
        miopenActivationPASTHRU = 0,
        miopenActivationLOGISTIC = 1,
        miopenActivationTANH = 2,
        miopenActivationRELU = 3,
        miopenActivationSOFTRELU = 4,
        miopenActivationABS = 5,
        miopenActivationPOWER = 6,
        miopenActivationCLIPPEDRELU = 7,
        miopenActivationLEAKYRELU = 8,
        miopenActivationELU = 9,
        miopenActivationCLAMP = 10,
    }
}

hip_sys::c_enum! {
    /// The softmax algorithm.
    pub enum miopenSoftmaxAlgorithm_t {
        MIOPEN_SOFTMAX_FAST = 0,
        MIOPEN_SOFTMAX_ACCURATE = 1,
        MIOPEN_SOFTMAX_LOG = 2,
    }
}

hip_sys::c_enum! {
    /// What a softmax sums over.
    pub enum miopenSoftmaxMode_t {
        MIOPEN_SOFTMAX_MODE_INSTANCE = 0,
        MIOPEN_SOFTMAX_MODE_CHANNEL = 1,
    }
}

hip_sys::c_enum! {
    /// The kind of reduction.
    pub enum miopenReduceTensorOp_t {
        MIOPEN_REDUCE_TENSOR_ADD = 0,
        MIOPEN_REDUCE_TENSOR_MUL = 1,
        MIOPEN_REDUCE_TENSOR_MIN = 2,
        MIOPEN_REDUCE_TENSOR_MAX = 3,
        MIOPEN_REDUCE_TENSOR_AMAX = 4,
        MIOPEN_REDUCE_TENSOR_AVG = 5,
        MIOPEN_REDUCE_TENSOR_NORM1 = 6,
        MIOPEN_REDUCE_TENSOR_NORM2 = 7,
    }
}

hip_sys::c_enum! {
    /// Whether a reduction propagates NaN.
    pub enum miopenNanPropagation_t {
        MIOPEN_NOT_PROPAGATE_NAN = 0,
        MIOPEN_PROPAGATE_NAN = 1,
    }
}

hip_sys::c_enum! {
    /// Whether a reduction gives indices.
    pub enum miopenReduceTensorIndices_t {
        MIOPEN_REDUCE_TENSOR_NO_INDICES = 0,
        MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES = 1,
    }
}

hip_sys::c_enum! {
    /// The type of a reduction's indices.
    pub enum miopenIndicesType_t {
        MIOPEN_32BIT_INDICES = 0,
        MIOPEN_64BIT_INDICES = 1,
        MIOPEN_16BIT_INDICES = 2,
        MIOPEN_8BIT_INDICES = 3,
    }
}

hip_sys::c_enum! {
    /// What `miopenSetConvolutionAttribute` sets.
    pub enum miopenConvolutionAttrib_t {
        MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL = 0,
        MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC = 1,
    }
}

hip_sys::c_enum! {
    /// What find mode times.
    pub enum miopenConvolutionFindMode_t {
        miopenConvolutionFindModeNormal = 1,
        miopenConvolutionFindModeFast = 2,
        miopenConvolutionFindModeHybrid = 3,
        miopenConvolutionFindModeDynamicHybrid = 5,
    }
}

hip_sys::c_enum! {
    /// What find mode does with the database of kernel parameters.
    pub enum miopenTuningPolicy_t {
        miopenTuningPolicyNone = 1,
        miopenTuningPolicyDbUpdate = 2,
        miopenTuningPolicySearch = 3,
        miopenTuningPolicySearchDbUpdate = 4,
        miopenTuningPolicyDbClean = 5,
    }
}

hip_sys::c_enum! {
    /// Algorithms of the forward convolution.
    pub enum miopenConvFwdAlgorithm_t {
        miopenConvolutionFwdAlgoGEMM = 0,
        miopenConvolutionFwdAlgoDirect = 1,
        miopenConvolutionFwdAlgoFFT = 2,
        miopenConvolutionFwdAlgoWinograd = 3,
        miopenConvolutionFwdAlgoImplicitGEMM = 5,
    }
}

hip_sys::c_enum! {
    /// Algorithms of the backward data convolution.
    pub enum miopenConvBwdDataAlgorithm_t {
        miopenConvolutionBwdDataAlgoGEMM = 0,
        miopenConvolutionBwdDataAlgoDirect = 1,
        miopenConvolutionBwdDataAlgoFFT = 2,
        miopenConvolutionBwdDataAlgoWinograd = 3,
        miopenTransposeBwdDataAlgoGEMM = 4,
        miopenConvolutionBwdDataAlgoImplicitGEMM = 5,
    }
}

hip_sys::c_enum! {
    /// Algorithms of the backward weights convolution.
    pub enum miopenConvBwdWeightsAlgorithm_t {
        miopenConvolutionBwdWeightsAlgoGEMM = 0,
        miopenConvolutionBwdWeightsAlgoDirect = 1,
        miopenConvolutionBwdWeightsAlgoWinograd = 3,
        miopenConvolutionBwdWeightsAlgoImplicitGEMM = 5,
    }
}

hip_sys::c_enum! {
    /// How the ops of a fusion plan follow each other.
    pub enum miopenFusionDirection_t {
        miopenVerticalFusion = 0,
    }
}

hip_sys::c_enum! {
    /// Algorithms of any convolution.
    pub enum miopenConvAlgorithm_t {
        miopenConvolutionAlgoGEMM = 0,
        miopenConvolutionAlgoDirect = 1,
        miopenConvolutionAlgoFFT = 2,
        miopenConvolutionAlgoWinograd = 3,
        miopenConvolutionAlgoImplicitGEMM = 5,
    }
}

/// The algorithm of a [`miopenConvAlgoPerf_t`]. The call's direction says which field is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union miopenConvAlgoPerf_algorithm {
    pub fwd_algo: miopenConvFwdAlgorithm_t,
    pub bwd_weights_algo: miopenConvBwdWeightsAlgorithm_t,
    pub bwd_data_algo: miopenConvBwdDataAlgorithm_t,
}

/// One algorithm that find mode timed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct miopenConvAlgoPerf_t {
    /// In C an unnamed union.
    pub algorithm: miopenConvAlgoPerf_algorithm,
    /// In milliseconds.
    pub time: f32,
    /// Its workspace, in bytes.
    pub memory: usize,
}

/// One solution of immediate mode.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miopenConvSolution_t {
    /// An estimate, in milliseconds.
    pub time: f32,
    /// Its workspace, in bytes.
    pub workspace_size: usize,
    pub solution_id: u64,
    pub algorithm: miopenConvAlgorithm_t,
}
