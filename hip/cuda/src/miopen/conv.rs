//! Convolution: the three directions by cuDNN's algorithms.
//!
//! In find mode, an algorithm's value is the number that cuDNN gives it. In immediate mode, a
//! solution's id is that number plus one.

use super::handle::Handle;
use super::replay::Same;
use super::status::{answered, check_buffer, one, stamp, zero};
use super::tensor;
use crate::settings::tf32;
use core::ffi::c_int;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{
    Convolution, ConvolutionBuffers, Convolutions, Convolve, Described, FoundAlgorithm, Kind, Outcome, Own,
    Tensor,
};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// Two of cuDNN's descriptors, because f32 and 16-bit data need different math types.
pub(super) struct Raw {
    single: cudnn::cudnnConvolutionDescriptor_t,
    half: cudnn::cudnnConvolutionDescriptor_t,
    /// Changes to a new number whenever the descriptor is set.
    stamp: u64,
}

impl Own<Convolution> for Raw {
    fn new() -> Outcome<Self> {
        let mut own = Raw { single: ptr::null_mut(), half: ptr::null_mut(), stamp: stamp() };
        // SAFETY: the functions are cuDNN's, the pointers valid. `own` owns each descriptor from
        // its creation on.
        unsafe {
            answered(cudnn::cudnnCreateConvolutionDescriptor(&mut own.single))?;
            answered(cudnn::cudnnCreateConvolutionDescriptor(&mut own.half))?;
        }
        Ok(own)
    }

    fn set(&mut self, values: &Convolution) -> Outcome {
        use cudnn::cudnnMathType_t::*;
        self.stamp = stamp();
        let lists = [&values.pad, &values.stride, &values.dilation];
        let lists = lists.map(|list| list.iter().map(|&value| value as c_int).collect::<Vec<_>>());
        let [pad, stride, dilation] = lists.each_ref().map(|list| list.as_ptr());
        let axes = values.pad.len() as c_int;
        let f32_math = if tf32() { CUDNN_TENSOR_OP_MATH } else { CUDNN_FMA_MATH };
        for (raw, math) in [(self.single, f32_math), (self.half, CUDNN_TENSOR_OP_MATH)] {
            let mode = cudnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
            let sums = cudnn::cudnnDataType_t::CUDNN_DATA_FLOAT;
            // SAFETY: cuDNN's descriptor; the three lists are equally long.
            unsafe {
                answered(cudnn::cudnnSetConvolutionNdDescriptor(
                    raw, axes, pad, stride, dilation, mode, sums,
                ))?;
                answered(cudnn::cudnnSetConvolutionMathType(raw, math))?;
                answered(cudnn::cudnnSetConvolutionGroupCount(raw, values.groups as c_int))?;
            }
        }
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        for raw in [self.single, self.half] {
            if !raw.is_null() {
                // SAFETY: cuDNN's descriptor; calls that read it have returned.
                let _ = unsafe { cudnn::cudnnDestroyConvolutionDescriptor(raw) };
            }
        }
    }
}

/// Whether stride and dilation have a common divisor above 1 along any axis.
///
/// Workaround: for the data gradient of such convolutions cuDNN 9.14 divides by zero while it lists
/// algorithms (SIGFPE in `EngineConfig::finalize`), or lists an algorithm that never terminates or
/// whose kernel destroys the context (an illegal instruction). Among random 2-D and 3-D
/// convolutions on an H200, 122 failed in this way. All of them were data gradients without groups
/// for which this function returns true, in f32, f16 and bf16 (for example dX 3x3x6x4, window 4x1,
/// strides 4x4, dilations 1x2). A later cuDNN, that of PyTorch 2.11, failed in none of two million
/// random convolutions. No public issue is known.
fn steps_meet(conv: &Convolution) -> bool {
    let divisor = |(&a, &b): (&usize, &usize)| {
        let (mut a, mut b) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    conv.stride.iter().zip(&conv.dilation).map(divisor).any(|common| common > 1)
}

/// One of cuDNN's algorithms, by its number in its direction's enum.
#[derive(Clone, Copy)]
struct Algorithm {
    number: u32,
    workspace: usize,
    /// The time in milliseconds; negative if it was not measured.
    time: f32,
}

type TensorOf<'a> = &'a Described<Tensor, tensor::Raw>;

/// A call in cuDNN's terms: a transposed convolution is the backward direction of the convolution
/// from y to x.
struct Call<'a> {
    call: &'a Convolve<'a, Handle>,
    kind: Kind,
    x: TensorOf<'a>,
    y: TensorOf<'a>,
    filter: cudnn::cudnnFilterDescriptor_t,
    conv: cudnn::cudnnConvolutionDescriptor_t,
}

/// More algorithms than any direction has.
const MOST: usize = 10;

macro_rules! algorithm_numbers {
    ($($name:ident: $type:ident [$($variant:ident)*];)*) => { $(
        /// cuDNN's enum value of a number; `miopenStatusBadParm` for a number that it lacks.
        fn $name(number: u32) -> Outcome<cudnn::$type> {
            Ok(match number {
                $( n if n == cudnn::$type::$variant as u32 => cudnn::$type::$variant, )*
                _ => return Err(miopenStatusBadParm),
            })
        }
    )* };
}
algorithm_numbers! {
    forward: cudnnConvolutionFwdAlgo_t [
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
        CUDNN_CONVOLUTION_FWD_ALGO_GEMM
        CUDNN_CONVOLUTION_FWD_ALGO_DIRECT
        CUDNN_CONVOLUTION_FWD_ALGO_FFT
        CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED
    ];
    backward_data: cudnnConvolutionBwdDataAlgo_t [
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_0
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED
    ];
    backward_weights: cudnnConvolutionBwdFilterAlgo_t [
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING
    ];
}

/// Asks cuDNN for a list of algorithms and keeps those that can be used.
macro_rules! list {
    ($self:ident, $perf:ident, $rounds:expr, |$count:ident, $found:ident, $list:ident| $call:expr) => {{
        let mut perf = [const { core::mem::MaybeUninit::<cudnn::$perf>::zeroed() }; MOST];
        let ($count, mut returned) = (MOST as c_int, 0);
        let ($found, $list) = (&raw mut returned, perf.as_mut_ptr().cast());
        answered($call)?;
        let count = usize::try_from(returned).unwrap_or(0).min(MOST);
        // Winograd and FFT algorithms round their transforms to the data's type, which loses
        // precision in 16 bits.
        let short = $self.call.x.data != miopenFloat;
        let mut all: Vec<Algorithm> = Vec::new();
        for entry in &perf[..count] {
            // cuDNN wrote `count` entries.
            let entry = entry.assume_init_ref();
            let repeats = cudnn::cudnnDeterminism_t::CUDNN_DETERMINISTIC;
            let number = entry.algo as u32;
            // cuDNN may list one algorithm for several math types, but the descriptor fixes the
            // math type.
            if entry.status as u32 == 0
                && !(short && $rounds.contains(&number))
                && (!$self.call.conv.deterministic || entry.determinism == repeats)
                && all.iter().all(|known| known.number != number)
            {
                all.push(Algorithm { number, workspace: entry.memory, time: entry.time });
            }
        }
        all
    }};
}

impl<'a> Call<'a> {
    fn new(call: &'a Convolve<'a, Handle>) -> Outcome<Call<'a>> {
        let Convolve { kind, x, w, y, conv } = *call;
        let kind = conv.kind(kind);
        let (x, y) = if conv.is_transposed() { (y, x) } else { (x, y) };
        require(kind != Kind::BackwardData || !steps_meet(conv), miopenStatusNotImplemented)?;
        let raw = if x.data == miopenFloat { conv.own.single } else { conv.own.half };
        Ok(Call { call, kind, x, y, filter: w.own.filter()?, conv: raw })
    }

    /// The algorithms that cuDNN's heuristics expect to be fastest, best first.
    fn algorithms(&self, handle: &Handle) -> Outcome<Vec<Algorithm>> {
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.own.raw, self.y.own.raw);
        // SAFETY: live descriptors; room for `count` entries.
        Ok(unsafe {
            match self.kind {
                Kind::Forward => {
                    list!(self, cudnnConvolutionFwdAlgoPerf_t, [4, 5, 6, 7], |count, found, list| {
                        cudnn::cudnnGetConvolutionForwardAlgorithm_v7(h, x, f, c, y, count, found, list)
                    })
                }
                Kind::BackwardData => {
                    list!(self, cudnnConvolutionBwdDataAlgoPerf_t, [2, 3, 4, 5], |count, found, list| {
                        cudnn::cudnnGetConvolutionBackwardDataAlgorithm_v7(h, f, y, c, x, count, found, list)
                    })
                }
                Kind::BackwardWeights => {
                    list!(self, cudnnConvolutionBwdFilterAlgoPerf_t, [2, 4, 5, 6], |count, found, list| {
                        cudnn::cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                            h, x, y, c, f, count, found, list,
                        )
                    })
                }
            }
        })
    }

    /// The workspace of an algorithm, in bytes.
    fn workspace(&self, handle: &Handle, number: u32) -> Outcome<usize> {
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.own.raw, self.y.own.raw);
        let mut bytes = 0;
        // SAFETY: live descriptors and a valid pointer.
        answered(unsafe {
            match self.kind {
                Kind::Forward => {
                    let algorithm = forward(number)?;
                    cudnn::cudnnGetConvolutionForwardWorkspaceSize(h, x, f, c, y, algorithm, &mut bytes)
                }
                Kind::BackwardData => {
                    let algorithm = backward_data(number)?;
                    cudnn::cudnnGetConvolutionBackwardDataWorkspaceSize(h, f, y, c, x, algorithm, &mut bytes)
                }
                Kind::BackwardWeights => {
                    let algorithm = backward_weights(number)?;
                    cudnn::cudnnGetConvolutionBackwardFilterWorkspaceSize(
                        h, x, y, c, f, algorithm, &mut bytes,
                    )
                }
            }
        })?;
        Ok(bytes)
    }

    /// The buffers in cuDNN's roles, checked for the sizes of their descriptors.
    fn checked(&self, buffers: ConvolutionBuffers) -> Outcome<ConvolutionBuffers> {
        let mut own = buffers;
        if self.call.conv.is_transposed() {
            (own.x, own.y) = (buffers.y, buffers.x);
        }
        check_buffer(own.x, self.x.bytes())?;
        check_buffer(own.w, self.call.w.bytes())?;
        check_buffer(own.y, self.y.bytes())?;
        check_buffer(own.workspace, own.workspace_size)?;
        Ok(own)
    }

    /// Times the algorithms whose workspaces fit, and returns them fastest first.
    fn find(&self, handle: &Handle, buffers: ConvolutionBuffers) -> Outcome<Vec<Algorithm>> {
        let ConvolutionBuffers { x: xp, w, y: yp, workspace, workspace_size: bytes } =
            self.checked(buffers)?;
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.own.raw, self.y.own.raw);
        // SAFETY: live descriptors, buffers of their sizes, room for `count` entries.
        Ok(unsafe {
            match self.kind {
                Kind::Forward => {
                    list!(self, cudnnConvolutionFwdAlgoPerf_t, [4, 5, 6, 7], |count, found, list| {
                        cudnn::cudnnFindConvolutionForwardAlgorithmEx(
                            h, x, xp, f, w, c, y, yp, count, found, list, workspace, bytes,
                        )
                    })
                }
                Kind::BackwardData => {
                    list!(self, cudnnConvolutionBwdDataAlgoPerf_t, [2, 3, 4, 5], |count, found, list| {
                        cudnn::cudnnFindConvolutionBackwardDataAlgorithmEx(
                            h, f, w, y, yp, c, x, xp, count, found, list, workspace, bytes,
                        )
                    })
                }
                Kind::BackwardWeights => {
                    list!(self, cudnnConvolutionBwdFilterAlgoPerf_t, [2, 4, 5, 6], |count, found, list| {
                        cudnn::cudnnFindConvolutionBackwardFilterAlgorithmEx(
                            h, x, xp, y, yp, c, f, w, count, found, list, workspace, bytes,
                        )
                    })
                }
            }
        })
    }

    /// Runs the call.
    fn run(&self, handle: &Handle, number: u32, buffers: ConvolutionBuffers) -> Outcome {
        let ConvolutionBuffers { x: xp, w, y: yp, workspace, workspace_size: bytes } =
            self.checked(buffers)?;
        let Convolve { w: weights, conv, .. } = self.call;
        let same = Same {
            kind: self.kind,
            algorithm: number,
            descriptors: [self.x.own.stamp, weights.own.stamp, conv.own.stamp, self.y.own.stamp],
            buffers: [xp, w, yp, workspace],
            workspace_size: bytes,
        };
        let (alpha, beta) = (one(miopenFloat), zero());
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.own.raw, self.y.own.raw);
        let call = || {
            // SAFETY: live descriptors, buffers of their sizes, scalars of this program.
            answered(unsafe {
                match self.kind {
                    Kind::Forward => {
                        let algo = forward(number)?;
                        cudnn::cudnnConvolutionForward(
                            h, alpha, x, xp, f, w, c, algo, workspace, bytes, beta, y, yp,
                        )
                    }
                    Kind::BackwardData => {
                        let algo = backward_data(number)?;
                        cudnn::cudnnConvolutionBackwardData(
                            h, alpha, f, w, y, yp, c, algo, workspace, bytes, beta, x, xp,
                        )
                    }
                    Kind::BackwardWeights => {
                        let algo = backward_weights(number)?;
                        cudnn::cudnnConvolutionBackwardFilter(
                            h, alpha, x, xp, y, yp, c, algo, workspace, bytes, beta, f, w,
                        )
                    }
                }
            })
        };
        // SAFETY: by MIOpen's contract only the caller uses the handle. Equal stamps mean that a
        // descriptor has not changed.
        unsafe { handle.convolutions.run(same, handle.raw, handle.stream().cast(), call) }
    }
}

/// cuDNN's number of a solution.
fn number(solution: u64) -> Outcome<u32> {
    u32::try_from(solution).ok().and_then(|id| id.checked_sub(1)).ok_or(miopenStatusBadParm)
}

impl Convolutions for Handle {
    type Own = Raw;

    fn solutions(&self, call: &Convolve<'_, Self>) -> Outcome<Vec<miopenConvSolution_t>> {
        let solution = |(place, algorithm): (usize, &Algorithm)| miopenConvSolution_t {
            // Nothing was timed, so this is the rank in cuDNN's list.
            time: (place + 1) as f32,
            workspace_size: algorithm.workspace,
            solution_id: u64::from(algorithm.number) + 1,
            // As in MIOpen, find mode's number.
            algorithm: miopenConvAlgorithm_t(algorithm.number as i32),
        };
        Ok(Call::new(call)?.algorithms(self)?.iter().enumerate().map(solution).collect())
    }

    fn solution_workspace(&self, call: &Convolve<'_, Self>, solution: u64) -> Outcome<usize> {
        Call::new(call)?.workspace(self, number(solution)?)
    }

    unsafe fn run_solution(
        &self,
        call: &Convolve<'_, Self>,
        solution: u64,
        buffers: ConvolutionBuffers,
    ) -> Outcome {
        Call::new(call)?.run(self, number(solution)?, buffers)
    }

    unsafe fn find(
        &self,
        call: &Convolve<'_, Self>,
        buffers: ConvolutionBuffers,
    ) -> Outcome<Vec<FoundAlgorithm>> {
        let found = |one: &Algorithm| {
            let Algorithm { number, workspace, time } = *one;
            FoundAlgorithm { number: number as i32, time, workspace }
        };
        Ok(Call::new(call)?.find(self, buffers)?.iter().map(found).collect())
    }

    unsafe fn run_found(
        &self,
        call: &Convolve<'_, Self>,
        number: i32,
        buffers: ConvolutionBuffers,
    ) -> Outcome {
        let number = u32::try_from(number).map_err(|_| miopenStatusBadParm)?;
        Call::new(call)?.run(self, number, buffers)
    }
}
