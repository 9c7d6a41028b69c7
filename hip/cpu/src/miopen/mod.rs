//! AMD's MIOpen on the host: the C API of `miopen-sys`, computed by this process.
//!
//! Tensors are packed in the order of their dimensions; other layouts are `miopenStatusNotImplemented`. Sums are in
//! `f32`, or better, for every type of data, and in an order that depends on the shapes alone: results are the same
//! bits on every run, whatever the number of cores.
#![allow(non_snake_case, non_upper_case_globals)] // AMD's names.

mod activation;
mod batchnorm;
mod conv;
mod handle;
mod norm;
mod pool;
mod reduce;
mod softmax;
mod status;
mod t5_norm;
mod tensor;

use hip_provider::miopen::{
    self as provider, Activation, Pooling, Reduction, create, destroy, miopenGetErrorString,
};
use miopen_sys::Miopen;

pub(crate) use crate::numeric::shared::Shared;

/// The CPU device's MIOpen.
pub fn miopen_table() -> Miopen {
    Miopen {
        miopenGetErrorString,
        miopenGetVersion: handle::miopenGetVersion,
        miopenCreateWithStream: handle::miopenCreateWithStream,
        miopenDestroy: handle::miopenDestroy,
        miopenCreateTensorDescriptor: tensor::miopenCreateTensorDescriptor,
        miopenSetTensorDescriptor: tensor::miopenSetTensorDescriptor,
        miopenDestroyTensorDescriptor: tensor::miopenDestroyTensorDescriptor,
        miopenCreateConvolutionDescriptor: conv::miopenCreateConvolutionDescriptor,
        miopenInitConvolutionNdDescriptor: conv::miopenInitConvolutionNdDescriptor,
        miopenSetConvolutionGroupCount: conv::miopenSetConvolutionGroupCount,
        miopenSetConvolutionAttribute: conv::miopenSetConvolutionAttribute,
        miopenDestroyConvolutionDescriptor: conv::miopenDestroyConvolutionDescriptor,
        miopenConvolutionForwardGetSolutionCount: conv::miopenConvolutionForwardGetSolutionCount,
        miopenConvolutionForwardGetSolution: conv::miopenConvolutionForwardGetSolution,
        miopenConvolutionForwardGetSolutionWorkspaceSize:
            conv::miopenConvolutionForwardGetSolutionWorkspaceSize,
        miopenConvolutionForwardCompileSolution: conv::miopenConvolutionForwardCompileSolution,
        miopenConvolutionForwardImmediate: conv::miopenConvolutionForwardImmediate,
        miopenConvolutionBackwardDataGetSolutionCount: conv::miopenConvolutionBackwardDataGetSolutionCount,
        miopenConvolutionBackwardDataGetSolution: conv::miopenConvolutionBackwardDataGetSolution,
        miopenConvolutionBackwardDataGetSolutionWorkspaceSize:
            conv::miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
        miopenConvolutionBackwardDataCompileSolution: conv::miopenConvolutionBackwardDataCompileSolution,
        miopenConvolutionBackwardDataImmediate: conv::miopenConvolutionBackwardDataImmediate,
        miopenConvolutionBackwardWeightsGetSolutionCount:
            conv::miopenConvolutionBackwardWeightsGetSolutionCount,
        miopenConvolutionBackwardWeightsGetSolution: conv::miopenConvolutionBackwardWeightsGetSolution,
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize:
            conv::miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
        miopenConvolutionBackwardWeightsCompileSolution:
            conv::miopenConvolutionBackwardWeightsCompileSolution,
        miopenConvolutionBackwardWeightsImmediate: conv::miopenConvolutionBackwardWeightsImmediate,
        miopenConvolutionForwardGetWorkSpaceSize: conv::miopenConvolutionForwardGetWorkSpaceSize,
        miopenFindConvolutionForwardAlgorithm: conv::miopenFindConvolutionForwardAlgorithm,
        miopenConvolutionForward: conv::miopenConvolutionForward,
        miopenConvolutionBackwardDataGetWorkSpaceSize: conv::miopenConvolutionBackwardDataGetWorkSpaceSize,
        miopenFindConvolutionBackwardDataAlgorithm: conv::miopenFindConvolutionBackwardDataAlgorithm,
        miopenConvolutionBackwardData: conv::miopenConvolutionBackwardData,
        miopenConvolutionBackwardWeightsGetWorkSpaceSize:
            conv::miopenConvolutionBackwardWeightsGetWorkSpaceSize,
        miopenFindConvolutionBackwardWeightsAlgorithm: conv::miopenFindConvolutionBackwardWeightsAlgorithm,
        miopenConvolutionBackwardWeights: conv::miopenConvolutionBackwardWeights,
        miopenCreatePoolingDescriptor: create::<Pooling, (), _>,
        miopenSetNdPoolingDescriptor: provider::miopenSetNdPoolingDescriptor::<()>,
        miopenSetPoolingIndexType: provider::miopenSetPoolingIndexType::<()>,
        miopenSetPoolingWorkSpaceIndexMode: provider::miopenSetPoolingWorkSpaceIndexMode::<()>,
        miopenPoolingGetWorkSpaceSizeV2: pool::miopenPoolingGetWorkSpaceSizeV2,
        miopenPoolingForward: pool::miopenPoolingForward,
        miopenPoolingBackward: pool::miopenPoolingBackward,
        miopenDestroyPoolingDescriptor: destroy::<Pooling, (), _>,
        miopenSoftmaxForward_V2: softmax::miopenSoftmaxForward_V2,
        miopenSoftmaxBackward_V2: softmax::miopenSoftmaxBackward_V2,
        miopenBatchNormalizationForwardTraining: batchnorm::miopenBatchNormalizationForwardTraining,
        miopenBatchNormalizationForwardInference: batchnorm::miopenBatchNormalizationForwardInference,
        miopenBatchNormalizationBackward: batchnorm::miopenBatchNormalizationBackward,
        miopenCreateActivationDescriptor: create::<Activation, (), _>,
        miopenSetActivationDescriptor: provider::miopenSetActivationDescriptor::<()>,
        miopenActivationForward: activation::miopenActivationForward,
        miopenActivationBackward: activation::miopenActivationBackward,
        miopenDestroyActivationDescriptor: destroy::<Activation, (), _>,
        miopenCreateFusionPlan: conv::miopenCreateFusionPlan,
        miopenDestroyFusionPlan: conv::miopenDestroyFusionPlan,
        miopenCompileFusionPlan: conv::miopenCompileFusionPlan,
        miopenFusionPlanGetWorkSpaceSize: conv::miopenFusionPlanGetWorkSpaceSize,
        miopenCreateOpConvForward: conv::miopenCreateOpConvForward,
        miopenCreateOpActivationForward: conv::miopenCreateOpActivationForward,
        miopenCreateOpBiasForward: conv::miopenCreateOpBiasForward,
        miopenCreateOperatorArgs: conv::miopenCreateOperatorArgs,
        miopenDestroyOperatorArgs: conv::miopenDestroyOperatorArgs,
        miopenSetOpArgsConvForward: conv::miopenSetOpArgsConvForward,
        miopenSetOpArgsActivForward: conv::miopenSetOpArgsActivForward,
        miopenSetOpArgsBiasForward: conv::miopenSetOpArgsBiasForward,
        miopenExecuteFusionPlan: conv::miopenExecuteFusionPlan,
        miopenCreateReduceTensorDescriptor: create::<Reduction, (), _>,
        miopenSetReduceTensorDescriptor: provider::miopenSetReduceTensorDescriptor::<()>,
        miopenDestroyReduceTensorDescriptor: destroy::<Reduction, (), _>,
        miopenGetReductionIndicesSize: reduce::miopenGetReductionIndicesSize,
        miopenGetReductionWorkspaceSize: reduce::miopenGetReductionWorkspaceSize,
        miopenReduceTensor: reduce::miopenReduceTensor,
        miopenLayerNormForward: Some(norm::miopenLayerNormForward),
        miopenLayerNormBackward: Some(norm::miopenLayerNormBackward),
        miopenGetLayerNormBackwardWorkspaceSize: Some(norm::miopenGetLayerNormBackwardWorkspaceSize),
        miopenGroupNormForward: Some(norm::miopenGroupNormForward),
        miopenT5LayerNormForward: Some(t5_norm::miopenT5LayerNormForward),
        miopenExecuteFusionPlan_v2: Some(conv::miopenExecuteFusionPlan_v2),
    }
}
