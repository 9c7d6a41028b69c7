//! Convolution: descriptors, and the three directions over cuDNN's algorithms.

use super::handle::Handle;
use super::status::{answered, check_buffer, one, stamp, zero};
use super::tensor::{Tensor, tensor};
use crate::settings::tf32;
use core::ffi::{c_int, c_void};
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, give, object, object_mut, status, take};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// What a `miopenConvolutionDescriptor_t` points to: cuDNN's descriptor twice, as f32 and 16-bit data differ in the
/// arithmetic that they allow.
pub(super) struct Convolution {
    single: cudnn::cudnnConvolutionDescriptor_t,
    half: cudnn::cudnnConvolutionDescriptor_t,
    /// 0: not set.
    spatial: usize,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    transposed: bool,
    deterministic: bool,
    /// Another whenever anything of it is set.
    stamp: u64,
}

impl Convolution {
    fn new() -> Outcome<Self> {
        let mut own = Convolution {
            single: ptr::null_mut(),
            half: ptr::null_mut(),
            spatial: 0,
            stride: Vec::new(),
            dilation: Vec::new(),
            transposed: false,
            deterministic: false,
            stamp: stamp(),
        };
        // SAFETY: the functions are cuDNN's, the pointers valid; `own` owns what is made at once.
        unsafe {
            answered(cudnn::cudnnCreateConvolutionDescriptor(&mut own.single))?;
            answered(cudnn::cudnnCreateConvolutionDescriptor(&mut own.half))?;
        }
        Ok(own)
    }

    /// Whether the steps of the window and the steps within it have a common divisor, along any axis.
    ///
    /// Workaround: for the data gradient of such convolutions cuDNN 9.14 divides by zero while it lists algorithms
    /// (SIGFPE in `EngineConfig::finalize`), or names one that never ends, or one whose kernel stops the context
    /// (an illegal instruction). Of drawn convolutions of two and three axes 122 failed so on an H200, all of them
    /// data gradients, without groups, where this holds (f32, f16 and bf16; dX 3x3x6x4, a window of 4x1, strides
    /// 4x4, dilations 1x2); PyTorch 2.11's own, a later one, failed in none of two million. No issue of it is known
    /// to be public.
    fn steps_meet(&self) -> bool {
        let divisor = |(&a, &b): (&usize, &usize)| {
            let (mut a, mut b) = (a, b);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        self.stride.iter().zip(&self.dilation).map(divisor).any(|common| common > 1)
    }

    fn both(&self) -> [cudnn::cudnnConvolutionDescriptor_t; 2] {
        [self.single, self.half]
    }
}

impl Drop for Convolution {
    fn drop(&mut self) {
        for raw in self.both() {
            if !raw.is_null() {
                // SAFETY: cuDNN's descriptor; calls that read it have returned.
                let _ = unsafe { cudnn::cudnnDestroyConvolutionDescriptor(raw) };
            }
        }
    }
}

pub(super) unsafe extern "C" fn miopenCreateConvolutionDescriptor(
    convDesc: *mut miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(convDesc, Convolution::new()?) })
}

pub(super) unsafe extern "C" fn miopenDestroyConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Convolution, _>(convDesc) })
}

pub(super) unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
    spatialDim: c_int,
    padA: *const c_int,
    strideA: *const c_int,
    dilationA: *const c_int,
    c_mode: miopenConvolutionMode_t,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Convolution, _>(convDesc) }?;
        require(matches!(spatialDim, 2 | 3) && c_mode.name().is_some(), miopenStatusBadParm)?;
        let lists = [padA, strideA, dilationA];
        require(lists.iter().all(|list| !list.is_null()), miopenStatusBadParm)?;
        for (list, least) in lists.into_iter().zip([0, 1, 1]) {
            // SAFETY: the caller's lists of `spatialDim` values.
            let values = unsafe { core::slice::from_raw_parts(list, spatialDim as usize) };
            require(values.iter().all(|&value| value >= least), miopenStatusBadParm)?;
        }
        use cudnn::cudnnMathType_t::*;
        let f32_math = if tf32() { CUDNN_TENSOR_OP_MATH } else { CUDNN_FMA_MATH };
        for (raw, math) in own.both().into_iter().zip([f32_math, CUDNN_TENSOR_OP_MATH]) {
            let mode = cudnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
            let compute = cudnn::cudnnDataType_t::CUDNN_DATA_FLOAT;
            // SAFETY: cuDNN's descriptor; the lists were checked.
            unsafe {
                answered(cudnn::cudnnSetConvolutionNdDescriptor(
                    raw, spatialDim, padA, strideA, dilationA, mode, compute,
                ))?;
                answered(cudnn::cudnnSetConvolutionMathType(raw, math))?;
            }
        }
        // SAFETY: the caller's lists of `spatialDim` values.
        let values = |list| unsafe { core::slice::from_raw_parts(list, spatialDim as usize) };
        let sizes = |list| values(list).iter().map(|&value: &c_int| value as usize).collect();
        (own.stride, own.dilation) = (sizes(strideA), sizes(dilationA));
        own.stamp = stamp();
        own.spatial = spatialDim as usize;
        own.transposed = c_mode == miopenTranspose;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn miopenSetConvolutionGroupCount(
    convDesc: miopenConvolutionDescriptor_t,
    groupCount: c_int,
) -> miopenStatus_t {
    status(|| {
        require(groupCount >= 1, miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Convolution, _>(convDesc) }?;
        own.stamp = stamp();
        for raw in own.both() {
            // SAFETY: cuDNN's descriptor.
            answered(unsafe { cudnn::cudnnSetConvolutionGroupCount(raw, groupCount) })?;
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn miopenSetConvolutionAttribute(
    convDesc: miopenConvolutionDescriptor_t,
    attr: miopenConvolutionAttrib_t,
    value: c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Convolution, _>(convDesc) }?;
        own.stamp = stamp();
        match attr {
            MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC => own.deterministic = value != 0,
            // About an instruction of AMD's.
            MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL => {}
            _ => return Err(miopenStatusBadParm),
        }
        Ok(())
    })
}

/// Which tensor is computed from the other two, as the caller calls them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Forward,
    BackwardData,
    BackwardWeights,
}

/// The descriptors of a call: `x` goes in (or its gradient out), `y` comes out.
#[derive(Clone, Copy)]
pub(super) struct Descriptors {
    pub(super) kind: Kind,
    pub(super) x: miopenTensorDescriptor_t,
    pub(super) w: miopenTensorDescriptor_t,
    pub(super) conv: miopenConvolutionDescriptor_t,
    pub(super) y: miopenTensorDescriptor_t,
}

/// The buffers of a call; the one that `kind` computes is written.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) x: *mut c_void,
    pub(super) w: *mut c_void,
    pub(super) y: *mut c_void,
    pub(super) workspace: *mut c_void,
    pub(super) workspace_size: usize,
}

/// All that makes one run the same as another.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Same {
    kind: Kind,
    algorithm: u32,
    /// Stamps of x, w, the convolution and y.
    descriptors: [u64; 4],
    /// x, w, y and the workspace.
    buffers: [*mut c_void; 4],
    workspace_size: usize,
}

// SAFETY: its pointers are compared, never read.
unsafe impl Send for Same {}

/// One of cuDNN's algorithms, by its number in its direction's list.
#[derive(Clone, Copy)]
pub(super) struct Algorithm {
    pub(super) number: u32,
    pub(super) workspace: usize,
    /// In milliseconds; negative where it was not timed.
    pub(super) time: f32,
}

/// A checked call, as cuDNN sees it.
pub(super) struct Call<'a> {
    kind: Kind,
    swapped: bool,
    deterministic: bool,
    x: &'a Tensor,
    w: &'a Tensor,
    y: &'a Tensor,
    filter: cudnn::cudnnFilterDescriptor_t,
    conv: cudnn::cudnnConvolutionDescriptor_t,
    stamp: u64,
}

/// More than any direction has.
const MOST: usize = 10;

macro_rules! algorithm_numbers {
    ($($name:ident: $type:ident [$($variant:ident)*];)*) => { $(
        /// cuDNN's enum of a number that it gave; others are refused.
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

/// Asks cuDNN for a list of algorithms and keeps those that work.
macro_rules! list {
    ($self:ident, $perf:ident, $rounds:expr, |$count:ident, $found:ident, $list:ident| $call:expr) => {{
        let mut perf = [const { core::mem::MaybeUninit::<cudnn::$perf>::zeroed() }; MOST];
        let ($count, mut returned) = (MOST as c_int, 0);
        let ($found, $list) = (&raw mut returned, perf.as_mut_ptr().cast());
        answered($call)?;
        let count = usize::try_from(returned).unwrap_or(0).min(MOST);
        // Winograd's and Fourier's transforms round to the data's type: of 16 bits that shows.
        let short = $self.x.data != miopenFloat;
        let mut all: Vec<Algorithm> = Vec::new();
        for entry in &perf[..count] {
            // cuDNN wrote the entries that it counted.
            let entry = entry.assume_init_ref();
            let repeats = cudnn::cudnnDeterminism_t::CUDNN_DETERMINISTIC;
            let number = entry.algo as u32;
            // One algorithm may be listed for several kinds of arithmetic: the descriptor says which is used.
            if entry.status as u32 == 0
                && !(short && $rounds.contains(&number))
                && (!$self.deterministic || entry.determinism == repeats)
                && all.iter().all(|known| known.number != number)
            {
                all.push(Algorithm { number, workspace: entry.memory, time: entry.time });
            }
        }
        all
    }};
}

impl<'a> Call<'a> {
    /// Checks the descriptors.
    ///
    /// # Safety
    /// Each non-null descriptor is live.
    pub(super) unsafe fn new(descriptors: Descriptors) -> Outcome<Call<'a>> {
        let Descriptors { kind, x, w, conv, y } = descriptors;
        // SAFETY: the caller vouches for the descriptors.
        let (x, w, conv, y) =
            unsafe { (tensor(x)?, tensor(w)?, object::<Convolution, _>(conv)?, tensor(y)?) };
        require(conv.spatial > 0, miopenStatusBadParm)?;
        let rank = conv.spatial + 2;
        let ranks = [x, w, y].iter().all(|tensor| tensor.dims.len() == rank);
        require(ranks && x.data == w.data && x.data == y.data, miopenStatusBadParm)?;
        require(matches!(x.data, miopenFloat | miopenHalf | miopenBFloat16), miopenStatusNotImplemented)?;
        // A transposed convolution is the backward direction of the one from y to x.
        let (kind, x, y) = match (conv.transposed, kind) {
            (false, _) => (kind, x, y),
            (true, Kind::Forward) => (Kind::BackwardData, y, x),
            (true, Kind::BackwardData) => (Kind::Forward, y, x),
            (true, Kind::BackwardWeights) => (Kind::BackwardWeights, y, x),
        };
        if kind == Kind::BackwardData {
            require(!conv.steps_meet(), miopenStatusNotImplemented)?;
        }
        let raw = if x.data == miopenFloat { conv.single } else { conv.half };
        Ok(Call {
            kind,
            swapped: conv.transposed,
            deterministic: conv.deterministic,
            x,
            w,
            y,
            filter: w.filter()?,
            conv: raw,
            stamp: conv.stamp,
        })
    }

    /// The algorithms that cuDNN's heuristics expect to be fastest, best first.
    pub(super) fn algorithms(&self, handle: &Handle) -> Outcome<Vec<Algorithm>> {
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.raw, self.y.raw);
        // SAFETY: live descriptors; room for as many entries as said.
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
    pub(super) fn workspace(&self, handle: &Handle, number: u32) -> Outcome<usize> {
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.raw, self.y.raw);
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

    /// The buffers as cuDNN's call takes them, each of its descriptor's size.
    fn checked(&self, buffers: Buffers) -> Outcome<Buffers> {
        let mut own = buffers;
        if self.swapped {
            (own.x, own.y) = (buffers.y, buffers.x);
        }
        check_buffer(own.x, self.x.bytes())?;
        check_buffer(own.w, self.w.bytes())?;
        check_buffer(own.y, self.y.bytes())?;
        check_buffer(own.workspace, own.workspace_size)?;
        Ok(own)
    }

    /// Times the algorithms whose workspaces fit; fastest first.
    pub(super) fn find(&self, handle: &Handle, buffers: Buffers) -> Outcome<Vec<Algorithm>> {
        let Buffers { x: xp, w, y: yp, workspace, workspace_size: bytes } = self.checked(buffers)?;
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.raw, self.y.raw);
        // SAFETY: live descriptors, buffers of their sizes, room for as many entries as said.
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
    pub(super) fn run(&self, handle: &Handle, number: u32, buffers: Buffers) -> Outcome {
        let Buffers { x: xp, w, y: yp, workspace, workspace_size: bytes } = self.checked(buffers)?;
        let same = Same {
            kind: self.kind,
            algorithm: number,
            descriptors: [self.x.stamp, self.w.stamp, self.stamp, self.y.stamp],
            buffers: [xp, w, yp, workspace],
            workspace_size: bytes,
        };
        let (alpha, beta) = (one(), zero());
        let (h, f, c, x, y) = (handle.raw, self.filter, self.conv, self.x.raw, self.y.raw);
        let call = || {
            // SAFETY: live descriptors, buffers of their sizes, scalars of this program.
            answered(unsafe {
                match self.kind {
                    Kind::Forward => cudnn::cudnnConvolutionForward(
                        h,
                        alpha,
                        x,
                        xp,
                        f,
                        w,
                        c,
                        forward(number)?,
                        workspace,
                        bytes,
                        beta,
                        y,
                        yp,
                    ),
                    Kind::BackwardData => cudnn::cudnnConvolutionBackwardData(
                        h,
                        alpha,
                        f,
                        w,
                        y,
                        yp,
                        c,
                        backward_data(number)?,
                        workspace,
                        bytes,
                        beta,
                        x,
                        xp,
                    ),
                    Kind::BackwardWeights => cudnn::cudnnConvolutionBackwardFilter(
                        h,
                        alpha,
                        x,
                        xp,
                        y,
                        yp,
                        c,
                        backward_weights(number)?,
                        workspace,
                        bytes,
                        beta,
                        f,
                        w,
                    ),
                }
            })
        };
        // SAFETY: a handle is its caller's alone, by MIOpen's contract; a stamp stands for a descriptor as it is.
        unsafe { handle.convolutions.run(same, handle.raw, handle.stream.cast(), call) }
    }
}
