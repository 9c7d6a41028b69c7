//! The table of all C functions, and the functions of handles.

use super::tensor::miopenSetTensorDescriptor;
use super::{
    Activation, Activations, BatchNorms, Convolution, Convolutions, Fusions, Handle, Pooling, Poolings,
    Reduction, Reductions, RowNorms, Softmaxes, Tensor, activation, answer, batch_norm, convolution, create,
    destroy, fusion, pooling, reduction, row_norm, softmax, status,
};
use crate::require;
use core::ffi::c_char;
use miopen_sys::*;

/// MIOpen's function table for a provider.
pub fn table<H>() -> Miopen
where
    H: Softmaxes + Poolings + Activations + Reductions + BatchNorms + RowNorms + Fusions,
{
    type Forward = miopenConvFwdAlgorithm_t;
    type Data = miopenConvBwdDataAlgorithm_t;
    type Weights = miopenConvBwdWeightsAlgorithm_t;
    Miopen {
        miopenGetErrorString,
        miopenGetVersion: miopenGetVersion::<H>,
        miopenCreateWithStream: miopenCreateWithStream::<H>,
        miopenSetStream: miopenSetStream::<H>,
        miopenDestroy: miopenDestroy::<H>,
        miopenCreateTensorDescriptor: create::<Tensor, H::Tensor, _>,
        miopenSetTensorDescriptor: miopenSetTensorDescriptor::<H::Tensor>,
        miopenDestroyTensorDescriptor: destroy::<Tensor, H::Tensor, _>,
        miopenCreateConvolutionDescriptor: create::<Convolution, <H as Convolutions>::Own, _>,
        miopenInitConvolutionNdDescriptor: convolution::miopenInitConvolutionNdDescriptor::<
            <H as Convolutions>::Own,
        >,
        miopenSetConvolutionGroupCount: convolution::miopenSetConvolutionGroupCount::<<H as Convolutions>::Own>,
        miopenSetConvolutionAttribute: convolution::miopenSetConvolutionAttribute::<<H as Convolutions>::Own>,
        miopenDestroyConvolutionDescriptor: destroy::<Convolution, <H as Convolutions>::Own, _>,
        miopenConvolutionForwardGetSolutionCount: convolution::solution_count::<H, Forward>,
        miopenConvolutionForwardGetSolution: convolution::solutions::<H, Forward>,
        miopenConvolutionForwardGetSolutionWorkspaceSize: convolution::solution_workspace::<H, Forward>,
        miopenConvolutionForwardCompileSolution: convolution::compile_solution::<H, Forward>,
        miopenConvolutionForwardImmediate: convolution::immediate::<H, Forward>,
        miopenConvolutionBackwardDataGetSolutionCount: convolution::solution_count::<H, Data>,
        miopenConvolutionBackwardDataGetSolution: convolution::solutions::<H, Data>,
        miopenConvolutionBackwardDataGetSolutionWorkspaceSize: convolution::solution_workspace::<H, Data>,
        miopenConvolutionBackwardDataCompileSolution: convolution::compile_solution::<H, Data>,
        miopenConvolutionBackwardDataImmediate: convolution::immediate::<H, Data>,
        miopenConvolutionBackwardWeightsGetSolutionCount: convolution::solution_count::<H, Weights>,
        miopenConvolutionBackwardWeightsGetSolution: convolution::solutions::<H, Weights>,
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize: convolution::solution_workspace::<H, Weights>,
        miopenConvolutionBackwardWeightsCompileSolution: convolution::compile_solution::<H, Weights>,
        miopenConvolutionBackwardWeightsImmediate: convolution::immediate::<H, Weights>,
        miopenConvolutionForwardGetWorkSpaceSize: convolution::workspace::<H, Forward>,
        miopenFindConvolutionForwardAlgorithm: convolution::find::<H, Forward>,
        miopenConvolutionForward: convolution::run::<H, Forward>,
        miopenConvolutionBackwardDataGetWorkSpaceSize: convolution::workspace::<H, Data>,
        miopenFindConvolutionBackwardDataAlgorithm: convolution::find::<H, Data>,
        miopenConvolutionBackwardData: convolution::run::<H, Data>,
        miopenConvolutionBackwardWeightsGetWorkSpaceSize: convolution::workspace::<H, Weights>,
        miopenFindConvolutionBackwardWeightsAlgorithm: convolution::find::<H, Weights>,
        miopenConvolutionBackwardWeights: convolution::run::<H, Weights>,
        miopenCreatePoolingDescriptor: create::<Pooling, <H as Poolings>::Own, _>,
        miopenSetNdPoolingDescriptor: pooling::miopenSetNdPoolingDescriptor::<<H as Poolings>::Own>,
        miopenSetPoolingIndexType: pooling::miopenSetPoolingIndexType::<<H as Poolings>::Own>,
        miopenSetPoolingWorkSpaceIndexMode: pooling::miopenSetPoolingWorkSpaceIndexMode::<<H as Poolings>::Own>,
        miopenPoolingGetWorkSpaceSizeV2: pooling::miopenPoolingGetWorkSpaceSizeV2::<H>,
        miopenPoolingForward: pooling::miopenPoolingForward::<H>,
        miopenPoolingBackward: pooling::miopenPoolingBackward::<H>,
        miopenDestroyPoolingDescriptor: destroy::<Pooling, <H as Poolings>::Own, _>,
        miopenSoftmaxForward_V2: softmax::miopenSoftmaxForward_V2::<H>,
        miopenSoftmaxBackward_V2: softmax::miopenSoftmaxBackward_V2::<H>,
        miopenBatchNormalizationForwardTraining: batch_norm::miopenBatchNormalizationForwardTraining::<H>,
        miopenBatchNormalizationForwardInference: batch_norm::miopenBatchNormalizationForwardInference::<H>,
        miopenBatchNormalizationBackward: batch_norm::miopenBatchNormalizationBackward::<H>,
        miopenCreateActivationDescriptor: create::<Activation, <H as Activations>::Own, _>,
        miopenSetActivationDescriptor: activation::miopenSetActivationDescriptor::<<H as Activations>::Own>,
        miopenActivationForward: activation::miopenActivationForward::<H>,
        miopenActivationBackward: activation::miopenActivationBackward::<H>,
        miopenDestroyActivationDescriptor: destroy::<Activation, <H as Activations>::Own, _>,
        miopenCreateFusionPlan: fusion::miopenCreateFusionPlan::<H>,
        miopenDestroyFusionPlan: fusion::miopenDestroyFusionPlan::<H>,
        miopenCompileFusionPlan: fusion::miopenCompileFusionPlan::<H>,
        miopenFusionPlanGetWorkSpaceSize: fusion::miopenFusionPlanGetWorkSpaceSize::<H>,
        miopenCreateOpConvForward: fusion::miopenCreateOpConvForward::<H>,
        miopenCreateOpActivationForward: fusion::miopenCreateOpActivationForward::<H>,
        miopenCreateOpBiasForward: fusion::miopenCreateOpBiasForward::<H>,
        miopenCreateOperatorArgs: fusion::miopenCreateOperatorArgs,
        miopenDestroyOperatorArgs: fusion::miopenDestroyOperatorArgs,
        miopenSetOpArgsConvForward: fusion::miopenSetOpArgsConvForward,
        miopenSetOpArgsActivForward: fusion::miopenSetOpArgsActivForward,
        miopenSetOpArgsBiasForward: fusion::miopenSetOpArgsBiasForward,
        miopenExecuteFusionPlan: fusion::miopenExecuteFusionPlan::<H>,
        miopenCreateReduceTensorDescriptor: create::<Reduction, <H as Reductions>::Own, _>,
        miopenSetReduceTensorDescriptor: reduction::miopenSetReduceTensorDescriptor::<<H as Reductions>::Own>,
        miopenDestroyReduceTensorDescriptor: destroy::<Reduction, <H as Reductions>::Own, _>,
        miopenGetReductionIndicesSize: reduction::miopenGetReductionIndicesSize::<H>,
        miopenGetReductionWorkspaceSize: reduction::miopenGetReductionWorkspaceSize::<H>,
        miopenReduceTensor: reduction::miopenReduceTensor::<H>,
        miopenSetConvolutionFindMode: Some(
            convolution::miopenSetConvolutionFindMode::<<H as Convolutions>::Own>,
        ),
        // Neither provider has kernels with parameters to search.
        miopenSetTuningPolicy: None,
        miopenLayerNormForward: Some(row_norm::miopenLayerNormForward::<H>),
        miopenLayerNormBackward: Some(row_norm::miopenLayerNormBackward::<H>),
        miopenGetLayerNormBackwardWorkspaceSize: Some(row_norm::miopenGetLayerNormBackwardWorkspaceSize::<H>),
        miopenGroupNormForward: Some(row_norm::miopenGroupNormForward::<H>),
        miopenT5LayerNormForward: Some(row_norm::miopenT5LayerNormForward::<H>),
        miopenExecuteFusionPlan_v2: Some(fusion::miopenExecuteFusionPlan_v2::<H>),
    }
}

unsafe extern "C" fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char {
    let text: &core::ffi::CStr = match error {
        miopenStatusSuccess => c"miopenStatusSuccess",
        miopenStatusNotInitialized => c"miopenStatusNotInitialized",
        miopenStatusInvalidValue => c"miopenStatusInvalidValue",
        miopenStatusBadParm => c"miopenStatusBadParm",
        miopenStatusAllocFailed => c"miopenStatusAllocFailed",
        miopenStatusInternalError => c"miopenStatusInternalError",
        miopenStatusNotImplemented => c"miopenStatusNotImplemented",
        miopenStatusUnsupportedOp => c"miopenStatusUnsupportedOp",
        miopenStatusGpuOperationsSkipped => c"miopenStatusGpuOperationsSkipped",
        miopenStatusVersionMismatch => c"miopenStatusVersionMismatch",
        _ => c"miopenStatusUnknownError",
    };
    text.as_ptr()
}

unsafe extern "C" fn miopenGetVersion<H: Handle>(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> miopenStatus_t {
    status(|| {
        // Each pointer may be null, if the caller does not want the number.
        for (to, value) in [major, minor, patch].into_iter().zip(H::version()) {
            if !to.is_null() {
                // SAFETY: the caller's out-pointer.
                unsafe { to.write(value) };
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn miopenCreateWithStream<H: Handle>(
    handle: *mut miopenHandle_t,
    stream: miopenAcceleratorQueue_t,
) -> miopenStatus_t {
    status(|| {
        require(!handle.is_null(), miopenStatusBadParm)?;
        let new = H::create(stream)?;
        // SAFETY: the caller's out-pointer.
        unsafe { answer(handle, new) }
    })
}

unsafe extern "C" fn miopenSetStream<H: Handle>(
    handle: miopenHandle_t,
    stream: miopenAcceleratorQueue_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle and stream.
    status(|| unsafe { H::set_stream(handle, stream) })
}

unsafe extern "C" fn miopenDestroy<H: Handle>(handle: miopenHandle_t) -> miopenStatus_t {
    // SAFETY: the caller's handle.
    status(|| unsafe { H::destroy(handle) })
}
