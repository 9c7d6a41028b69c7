//! MIOpen over cuDNN 9.
//!
//! Kernels of this provider's own serve what cuDNN has not, or in graphs alone: layer norm, T5's and group norm,
//! maximum pooling that keeps indices, some activations. Layouts and types that neither takes are
//! `miopenStatusNotImplemented`. f32 is convolved in f32: TF32 only where [`crate::allow_tf32`] allows it; f16
//! and bf16 are summed in f32.

mod activation;
mod conv;
mod conv_calls;
mod fusion;
mod group_norm;
mod handle;
mod layer_norm;
mod norm;
mod norm_rows;
mod pool;
mod reduce;
mod replay;
mod softmax;
mod status;
mod tensor;

use hip_provider::miopen::{
    self as provider, Activation, Pooling, Reduction, create, destroy, miopenGetErrorString,
};
use miopen_sys::Miopen;

/// MIOpen for NVIDIA GPUs.
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
        miopenConvolutionForwardGetSolutionCount: conv_calls::miopenConvolutionForwardGetSolutionCount,
        miopenConvolutionForwardGetSolution: conv_calls::miopenConvolutionForwardGetSolution,
        miopenConvolutionForwardGetSolutionWorkspaceSize:
            conv_calls::miopenConvolutionForwardGetSolutionWorkspaceSize,
        miopenConvolutionForwardCompileSolution: conv_calls::miopenConvolutionForwardCompileSolution,
        miopenConvolutionForwardImmediate: conv_calls::miopenConvolutionForwardImmediate,
        miopenConvolutionBackwardDataGetSolutionCount:
            conv_calls::miopenConvolutionBackwardDataGetSolutionCount,
        miopenConvolutionBackwardDataGetSolution: conv_calls::miopenConvolutionBackwardDataGetSolution,
        miopenConvolutionBackwardDataGetSolutionWorkspaceSize:
            conv_calls::miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
        miopenConvolutionBackwardDataCompileSolution:
            conv_calls::miopenConvolutionBackwardDataCompileSolution,
        miopenConvolutionBackwardDataImmediate: conv_calls::miopenConvolutionBackwardDataImmediate,
        miopenConvolutionBackwardWeightsGetSolutionCount:
            conv_calls::miopenConvolutionBackwardWeightsGetSolutionCount,
        miopenConvolutionBackwardWeightsGetSolution: conv_calls::miopenConvolutionBackwardWeightsGetSolution,
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize:
            conv_calls::miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
        miopenConvolutionBackwardWeightsCompileSolution:
            conv_calls::miopenConvolutionBackwardWeightsCompileSolution,
        miopenConvolutionBackwardWeightsImmediate: conv_calls::miopenConvolutionBackwardWeightsImmediate,
        miopenConvolutionForwardGetWorkSpaceSize: conv_calls::miopenConvolutionForwardGetWorkSpaceSize,
        miopenFindConvolutionForwardAlgorithm: conv_calls::miopenFindConvolutionForwardAlgorithm,
        miopenConvolutionForward: conv_calls::miopenConvolutionForward,
        miopenConvolutionBackwardDataGetWorkSpaceSize:
            conv_calls::miopenConvolutionBackwardDataGetWorkSpaceSize,
        miopenFindConvolutionBackwardDataAlgorithm: conv_calls::miopenFindConvolutionBackwardDataAlgorithm,
        miopenConvolutionBackwardData: conv_calls::miopenConvolutionBackwardData,
        miopenConvolutionBackwardWeightsGetWorkSpaceSize:
            conv_calls::miopenConvolutionBackwardWeightsGetWorkSpaceSize,
        miopenFindConvolutionBackwardWeightsAlgorithm:
            conv_calls::miopenFindConvolutionBackwardWeightsAlgorithm,
        miopenConvolutionBackwardWeights: conv_calls::miopenConvolutionBackwardWeights,
        miopenCreatePoolingDescriptor: create::<Pooling, pool::Raw, _>,
        miopenSetNdPoolingDescriptor: provider::miopenSetNdPoolingDescriptor::<pool::Raw>,
        miopenSetPoolingIndexType: provider::miopenSetPoolingIndexType::<pool::Raw>,
        miopenSetPoolingWorkSpaceIndexMode: provider::miopenSetPoolingWorkSpaceIndexMode::<pool::Raw>,
        miopenPoolingGetWorkSpaceSizeV2: pool::miopenPoolingGetWorkSpaceSizeV2,
        miopenPoolingForward: pool::miopenPoolingForward,
        miopenPoolingBackward: pool::miopenPoolingBackward,
        miopenDestroyPoolingDescriptor: destroy::<Pooling, pool::Raw, _>,
        miopenSoftmaxForward_V2: softmax::miopenSoftmaxForward_V2,
        miopenSoftmaxBackward_V2: softmax::miopenSoftmaxBackward_V2,
        miopenBatchNormalizationForwardTraining: norm::miopenBatchNormalizationForwardTraining,
        miopenBatchNormalizationForwardInference: norm::miopenBatchNormalizationForwardInference,
        miopenBatchNormalizationBackward: norm::miopenBatchNormalizationBackward,
        miopenCreateActivationDescriptor: create::<Activation, activation::Raw, _>,
        miopenSetActivationDescriptor: provider::miopenSetActivationDescriptor::<activation::Raw>,
        miopenActivationForward: activation::miopenActivationForward,
        miopenActivationBackward: activation::miopenActivationBackward,
        miopenDestroyActivationDescriptor: destroy::<Activation, activation::Raw, _>,
        miopenCreateFusionPlan: fusion::miopenCreateFusionPlan,
        miopenDestroyFusionPlan: fusion::miopenDestroyFusionPlan,
        miopenCompileFusionPlan: fusion::miopenCompileFusionPlan,
        miopenFusionPlanGetWorkSpaceSize: fusion::miopenFusionPlanGetWorkSpaceSize,
        miopenCreateOpConvForward: fusion::miopenCreateOpConvForward,
        miopenCreateOpActivationForward: fusion::miopenCreateOpActivationForward,
        miopenCreateOpBiasForward: fusion::miopenCreateOpBiasForward,
        miopenCreateOperatorArgs: fusion::miopenCreateOperatorArgs,
        miopenDestroyOperatorArgs: fusion::miopenDestroyOperatorArgs,
        miopenSetOpArgsConvForward: fusion::miopenSetOpArgsConvForward,
        miopenSetOpArgsActivForward: fusion::miopenSetOpArgsActivForward,
        miopenSetOpArgsBiasForward: fusion::miopenSetOpArgsBiasForward,
        miopenExecuteFusionPlan: fusion::miopenExecuteFusionPlan,
        miopenCreateReduceTensorDescriptor: create::<Reduction, reduce::Raw, _>,
        miopenSetReduceTensorDescriptor: provider::miopenSetReduceTensorDescriptor::<reduce::Raw>,
        miopenDestroyReduceTensorDescriptor: destroy::<Reduction, reduce::Raw, _>,
        miopenGetReductionIndicesSize: reduce::miopenGetReductionIndicesSize,
        miopenGetReductionWorkspaceSize: reduce::miopenGetReductionWorkspaceSize,
        miopenReduceTensor: reduce::miopenReduceTensor,
        miopenLayerNormForward: Some(layer_norm::miopenLayerNormForward),
        miopenLayerNormBackward: Some(layer_norm::miopenLayerNormBackward),
        miopenGetLayerNormBackwardWorkspaceSize: Some(layer_norm::miopenGetLayerNormBackwardWorkspaceSize),
        miopenGroupNormForward: Some(group_norm::miopenGroupNormForward),
        miopenT5LayerNormForward: Some(layer_norm::miopenT5LayerNormForward),
        miopenExecuteFusionPlan_v2: Some(fusion::miopenExecuteFusionPlan_v2),
    }
}
