//! MIOpen's functions; names and signatures are AMD's.
#![allow(missing_docs)] // AMD's reference describes each function.

use crate::types::*;
use core::ffi::{c_char, c_int, c_void};

hip_sys::function_table! {
    /// The functions of `libMIOpen`. Those under `optional` came after ROCm 5.7. AMD still calls
    /// the norms among them beta.
    pub struct Miopen {
        required {
            fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char;
            fn miopenGetVersion(major: *mut usize, minor: *mut usize, patch: *mut usize) -> miopenStatus_t;
            fn miopenCreateWithStream(handle: *mut miopenHandle_t, stream: miopenAcceleratorQueue_t) -> miopenStatus_t;
            fn miopenSetStream(handle: miopenHandle_t, streamID: miopenAcceleratorQueue_t) -> miopenStatus_t;
            fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t;
            fn miopenCreateTensorDescriptor(tensorDesc: *mut miopenTensorDescriptor_t) -> miopenStatus_t;
            fn miopenSetTensorDescriptor(
                tensorDesc: miopenTensorDescriptor_t, dataType: miopenDataType_t, nbDims: c_int, dimsA: *const c_int,
                stridesA: *const c_int,
            ) -> miopenStatus_t;
            fn miopenDestroyTensorDescriptor(tensorDesc: miopenTensorDescriptor_t) -> miopenStatus_t;
            fn miopenCreateConvolutionDescriptor(convDesc: *mut miopenConvolutionDescriptor_t) -> miopenStatus_t;
            fn miopenInitConvolutionNdDescriptor(
                convDesc: miopenConvolutionDescriptor_t, spatialDim: c_int, padA: *const c_int, strideA: *const c_int,
                dilationA: *const c_int, c_mode: miopenConvolutionMode_t,
            ) -> miopenStatus_t;
            fn miopenSetConvolutionGroupCount(
                convDesc: miopenConvolutionDescriptor_t, groupCount: c_int,
            ) -> miopenStatus_t;
            fn miopenSetConvolutionAttribute(
                convDesc: miopenConvolutionDescriptor_t, attr: miopenConvolutionAttrib_t, value: c_int,
            ) -> miopenStatus_t;
            fn miopenDestroyConvolutionDescriptor(convDesc: miopenConvolutionDescriptor_t) -> miopenStatus_t;
            fn miopenConvolutionForwardGetSolutionCount(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solutionCount: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionForwardGetSolution(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
            ) -> miopenStatus_t;
            fn miopenConvolutionForwardGetSolutionWorkspaceSize(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solution_id: u64,
                workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionForwardCompileSolution(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionForwardImmediate(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, w: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                yDesc: miopenTensorDescriptor_t, y: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataGetSolutionCount(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, solutionCount: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataGetSolution(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataGetSolutionWorkspaceSize(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, solution_id: u64,
                workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataCompileSolution(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataImmediate(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsGetSolutionCount(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, solutionCount: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsGetSolution(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, solution_id: u64,
                workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsCompileSolution(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsImmediate(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                dwDesc: miopenTensorDescriptor_t, dw: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                solution_id: u64,
            ) -> miopenStatus_t;
            fn miopenConvolutionForwardGetWorkSpaceSize(
                handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenFindConvolutionForwardAlgorithm(
                handle: miopenHandle_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                yDesc: miopenTensorDescriptor_t, y: *mut c_void, requestAlgoCount: c_int,
                returnedAlgoCount: *mut c_int, perfResults: *mut miopenConvAlgoPerf_t, workSpace: *mut c_void,
                workSpaceSize: usize, exhaustiveSearch: bool,
            ) -> miopenStatus_t;
            fn miopenConvolutionForward(
                handle: miopenHandle_t, alpha: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                algo: miopenConvFwdAlgorithm_t, beta: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
                workSpace: *mut c_void, workSpaceSize: usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardDataGetWorkSpaceSize(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenFindConvolutionBackwardDataAlgorithm(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, requestAlgoCount: c_int,
                returnedAlgoCount: *mut c_int, perfResults: *mut miopenConvAlgoPerf_t, workSpace: *mut c_void,
                workSpaceSize: usize, exhaustiveSearch: bool,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardData(
                handle: miopenHandle_t, alpha: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                algo: miopenConvBwdDataAlgorithm_t, beta: *const c_void, dxDesc: miopenTensorDescriptor_t,
                dx: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeightsGetWorkSpaceSize(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenFindConvolutionBackwardWeightsAlgorithm(
                handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                dwDesc: miopenTensorDescriptor_t, dw: *mut c_void, requestAlgoCount: c_int,
                returnedAlgoCount: *mut c_int, perfResults: *mut miopenConvAlgoPerf_t, workSpace: *mut c_void,
                workSpaceSize: usize, exhaustiveSearch: bool,
            ) -> miopenStatus_t;
            fn miopenConvolutionBackwardWeights(
                handle: miopenHandle_t, alpha: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                algo: miopenConvBwdWeightsAlgorithm_t, beta: *const c_void, dwDesc: miopenTensorDescriptor_t,
                dw: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
            ) -> miopenStatus_t;
            fn miopenCreatePoolingDescriptor(poolDesc: *mut miopenPoolingDescriptor_t) -> miopenStatus_t;
            fn miopenSetNdPoolingDescriptor(
                poolDesc: miopenPoolingDescriptor_t, mode: miopenPoolingMode_t, nbDims: c_int,
                windowDimA: *const c_int, padA: *const c_int, stridesA: *const c_int,
            ) -> miopenStatus_t;
            fn miopenSetPoolingIndexType(
                poolDesc: miopenPoolingDescriptor_t, index_type: miopenIndexType_t,
            ) -> miopenStatus_t;
            fn miopenSetPoolingWorkSpaceIndexMode(
                poolDesc: miopenPoolingDescriptor_t, workspace_index: miopenPoolingWorkspaceIndexMode_t,
            ) -> miopenStatus_t;
            fn miopenPoolingGetWorkSpaceSizeV2(
                poolDesc: miopenPoolingDescriptor_t, yDesc: miopenTensorDescriptor_t, workSpaceSize: *mut usize,
            ) -> miopenStatus_t;
            fn miopenPoolingForward(
                handle: miopenHandle_t, poolDesc: miopenPoolingDescriptor_t, alpha: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void,
                yDesc: miopenTensorDescriptor_t, y: *mut c_void, do_backward: bool, workSpace: *mut c_void,
                workSpaceSize: usize,
            ) -> miopenStatus_t;
            fn miopenPoolingBackward(
                handle: miopenHandle_t, poolDesc: miopenPoolingDescriptor_t, alpha: *const c_void,
                yDesc: miopenTensorDescriptor_t, y: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, workSpace: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenDestroyPoolingDescriptor(poolDesc: miopenPoolingDescriptor_t) -> miopenStatus_t;
            fn miopenSoftmaxForward_V2(
                handle: miopenHandle_t, alpha: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                beta: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
                algorithm: miopenSoftmaxAlgorithm_t, mode: miopenSoftmaxMode_t,
            ) -> miopenStatus_t;
            fn miopenSoftmaxBackward_V2(
                handle: miopenHandle_t, alpha: *const c_void, yDesc: miopenTensorDescriptor_t, y: *const c_void,
                dyDesc: miopenTensorDescriptor_t, dy: *const c_void, beta: *const c_void,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, algorithm: miopenSoftmaxAlgorithm_t,
                mode: miopenSoftmaxMode_t,
            ) -> miopenStatus_t;
            fn miopenBatchNormalizationForwardTraining(
                handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alpha: *mut c_void, beta: *mut c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
                bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t, bnScale: *mut c_void, bnBias: *mut c_void,
                expAvgFactor: f64, resultRunningMean: *mut c_void, resultRunningVariance: *mut c_void, epsilon: f64,
                resultSaveMean: *mut c_void, resultSaveInvVariance: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenBatchNormalizationForwardInference(
                handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alpha: *mut c_void, beta: *mut c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
                bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t, bnScale: *mut c_void, bnBias: *mut c_void,
                estimatedMean: *mut c_void, estimatedVariance: *mut c_void, epsilon: f64,
            ) -> miopenStatus_t;
            fn miopenBatchNormalizationBackward(
                handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alphaDataDiff: *const c_void,
                betaDataDiff: *const c_void, alphaParamDiff: *const c_void, betaParamDiff: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, bnScaleBiasDiffDesc: miopenTensorDescriptor_t,
                bnScale: *const c_void, resultBnScaleDiff: *mut c_void, resultBnBiasDiff: *mut c_void, epsilon: f64,
                savedMean: *const c_void, savedInvVariance: *const c_void,
            ) -> miopenStatus_t;
            fn miopenCreateActivationDescriptor(activDesc: *mut miopenActivationDescriptor_t) -> miopenStatus_t;
            fn miopenSetActivationDescriptor(
                activDesc: miopenActivationDescriptor_t, mode: miopenActivationMode_t, activAlpha: f64, activBeta: f64,
                activGamma: f64,
            ) -> miopenStatus_t;
            fn miopenActivationForward(
                handle: miopenHandle_t, activDesc: miopenActivationDescriptor_t, alpha: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void,
                yDesc: miopenTensorDescriptor_t, y: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenActivationBackward(
                handle: miopenHandle_t, activDesc: miopenActivationDescriptor_t, alpha: *const c_void,
                yDesc: miopenTensorDescriptor_t, y: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenDestroyActivationDescriptor(activDesc: miopenActivationDescriptor_t) -> miopenStatus_t;
            fn miopenCreateFusionPlan(
                fusePlanDesc: *mut miopenFusionPlanDescriptor_t, fuseDirection: miopenFusionDirection_t,
                inputDesc: miopenTensorDescriptor_t,
            ) -> miopenStatus_t;
            fn miopenDestroyFusionPlan(fusePlanDesc: miopenFusionPlanDescriptor_t) -> miopenStatus_t;
            fn miopenCompileFusionPlan(
                handle: miopenHandle_t, fusePlanDesc: miopenFusionPlanDescriptor_t,
            ) -> miopenStatus_t;
            fn miopenFusionPlanGetWorkSpaceSize(
                handle: miopenHandle_t, fusePlanDesc: miopenFusionPlanDescriptor_t, workSpaceSize: *mut usize,
                algo: miopenConvFwdAlgorithm_t,
            ) -> miopenStatus_t;
            fn miopenCreateOpConvForward(
                fusePlanDesc: miopenFusionPlanDescriptor_t, convOp: *mut miopenFusionOpDescriptor_t,
                convDesc: miopenConvolutionDescriptor_t, wDesc: miopenTensorDescriptor_t,
            ) -> miopenStatus_t;
            fn miopenCreateOpActivationForward(
                fusePlanDesc: miopenFusionPlanDescriptor_t, activFwdOp: *mut miopenFusionOpDescriptor_t,
                mode: miopenActivationMode_t,
            ) -> miopenStatus_t;
            fn miopenCreateOpBiasForward(
                fusePlanDesc: miopenFusionPlanDescriptor_t, biasOp: *mut miopenFusionOpDescriptor_t,
                bDesc: miopenTensorDescriptor_t,
            ) -> miopenStatus_t;
            fn miopenCreateOperatorArgs(args: *mut miopenOperatorArgs_t) -> miopenStatus_t;
            fn miopenDestroyOperatorArgs(args: miopenOperatorArgs_t) -> miopenStatus_t;
            fn miopenSetOpArgsConvForward(
                args: miopenOperatorArgs_t, convOp: miopenFusionOpDescriptor_t, alpha: *const c_void,
                beta: *const c_void, w: *const c_void,
            ) -> miopenStatus_t;
            fn miopenSetOpArgsActivForward(
                args: miopenOperatorArgs_t, activFwdOp: miopenFusionOpDescriptor_t, alpha: *const c_void,
                beta: *const c_void, activAlpha: f64, activBeta: f64, activGamma: f64,
            ) -> miopenStatus_t;
            fn miopenSetOpArgsBiasForward(
                args: miopenOperatorArgs_t, biasOp: miopenFusionOpDescriptor_t, alpha: *const c_void,
                beta: *const c_void, bias: *const c_void,
            ) -> miopenStatus_t;
            fn miopenExecuteFusionPlan(
                handle: miopenHandle_t, fusePlanDesc: miopenFusionPlanDescriptor_t,
                inputDesc: miopenTensorDescriptor_t, input: *const c_void, outputDesc: miopenTensorDescriptor_t,
                output: *mut c_void, args: miopenOperatorArgs_t,
            ) -> miopenStatus_t;
            fn miopenCreateReduceTensorDescriptor(
                reduceTensorDesc: *mut miopenReduceTensorDescriptor_t,
            ) -> miopenStatus_t;
            fn miopenSetReduceTensorDescriptor(
                reduceTensorDesc: miopenReduceTensorDescriptor_t, reduceTensorOp: miopenReduceTensorOp_t,
                reduceTensorCompType: miopenDataType_t, reduceTensorNanOpt: miopenNanPropagation_t,
                reduceTensorIndices: miopenReduceTensorIndices_t, reduceTensorIndicesType: miopenIndicesType_t,
            ) -> miopenStatus_t;
            fn miopenDestroyReduceTensorDescriptor(reduceTensorDesc: miopenReduceTensorDescriptor_t) -> miopenStatus_t;
            fn miopenGetReductionIndicesSize(
                handle: miopenHandle_t, reduceTensorDesc: miopenReduceTensorDescriptor_t,
                aDesc: miopenTensorDescriptor_t, cDesc: miopenTensorDescriptor_t, sizeInBytes: *mut usize,
            ) -> miopenStatus_t;
            fn miopenGetReductionWorkspaceSize(
                handle: miopenHandle_t, reduceTensorDesc: miopenReduceTensorDescriptor_t,
                aDesc: miopenTensorDescriptor_t, cDesc: miopenTensorDescriptor_t, sizeInBytes: *mut usize,
            ) -> miopenStatus_t;
            fn miopenReduceTensor(
                handle: miopenHandle_t, reduceTensorDesc: miopenReduceTensorDescriptor_t, indices: *mut c_void,
                indicesSizeInBytes: usize, workspace: *mut c_void, workspaceSizeInBytes: usize, alpha: *const c_void,
                aDesc: miopenTensorDescriptor_t, A: *const c_void, beta: *const c_void,
                cDesc: miopenTensorDescriptor_t, C: *mut c_void,
            ) -> miopenStatus_t;
        }
        optional {
            fn miopenSetConvolutionFindMode(
                convDesc: miopenConvolutionDescriptor_t, findMode: miopenConvolutionFindMode_t,
            ) -> miopenStatus_t;
            fn miopenSetTuningPolicy(handle: miopenHandle_t, newValue: miopenTuningPolicy_t) -> miopenStatus_t;
            fn miopenLayerNormForward(
                handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                weightDesc: miopenTensorDescriptor_t, weight: *const c_void, biasDesc: miopenTensorDescriptor_t,
                bias: *const c_void, epsilon: f32, normalized_dim: i32, yDesc: miopenTensorDescriptor_t,
                y: *mut c_void, meanDesc: miopenTensorDescriptor_t, mean: *mut c_void,
                rstdDesc: miopenTensorDescriptor_t, rstd: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenLayerNormBackward(
                handle: miopenHandle_t, mode: miopenNormMode_t, workspace: *mut c_void, workspaceSizeInBytes: usize,
                dyDesc: miopenTensorDescriptor_t, dy: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                weightDesc: miopenTensorDescriptor_t, weight: *const c_void, meanDesc: miopenTensorDescriptor_t,
                mean: *const c_void, rstdDesc: miopenTensorDescriptor_t, rstd: *const c_void, normalized_dim: i32,
                dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, dwDesc: miopenTensorDescriptor_t, dw: *mut c_void,
                dbDesc: miopenTensorDescriptor_t, db: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenGetLayerNormBackwardWorkspaceSize(
                handle: miopenHandle_t, mode: miopenNormMode_t, dyDesc: miopenTensorDescriptor_t,
                xDesc: miopenTensorDescriptor_t, weightDesc: miopenTensorDescriptor_t,
                meanDesc: miopenTensorDescriptor_t, rstdDesc: miopenTensorDescriptor_t, normalized_dim: i32,
                dxDesc: miopenTensorDescriptor_t, dwDesc: miopenTensorDescriptor_t, dbDesc: miopenTensorDescriptor_t,
                sizeInBytes: *mut usize,
            ) -> miopenStatus_t;
            fn miopenGroupNormForward(
                handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                weightDesc: miopenTensorDescriptor_t, weight: *const c_void, biasDesc: miopenTensorDescriptor_t,
                bias: *const c_void, num_groups: u64, epsilon: f32, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
                meanDesc: miopenTensorDescriptor_t, mean: *mut c_void, rstdDesc: miopenTensorDescriptor_t,
                rstd: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenT5LayerNormForward(
                handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                weightDesc: miopenTensorDescriptor_t, weight: *const c_void, epsilon: f32,
                yDesc: miopenTensorDescriptor_t, y: *mut c_void, rstdDesc: miopenTensorDescriptor_t,
                rstd: *mut c_void,
            ) -> miopenStatus_t;
            fn miopenExecuteFusionPlan_v2(
                handle: miopenHandle_t, fusePlanDesc: miopenFusionPlanDescriptor_t,
                inputDesc: miopenTensorDescriptor_t, input: *const c_void, outputDesc: miopenTensorDescriptor_t,
                output: *mut c_void, args: miopenOperatorArgs_t, workspace: *mut c_void, workspaceSize: usize,
            ) -> miopenStatus_t;
        }
    }
}
