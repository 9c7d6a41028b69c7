//! Convolution: its descriptor, and the functions of immediate mode and find mode in three
//! directions.
//!
//! The functions of the three directions differ only in the order of their arguments. Each is
//! generic over the direction's algorithm enum.

use super::tensor::tensor;
use super::{
    Described, Handle, Outcome, Own, Tensor, answer, object, object_mut, plain_scalars, status, with,
};
use crate::require;
use core::ffi::{c_int, c_void};
use miopen_sys::*;

/// The values of a convolution descriptor.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// Convolution or transposed convolution.
    pub mode: miopenConvolutionMode_t,
    /// Padding at each end of each axis; 2 or 3 axes.
    pub pad: Vec<usize>,
    /// Steps of the window.
    pub stride: Vec<usize>,
    /// Distances between the elements of the window.
    pub dilation: Vec<usize>,
    /// Groups of channels that are convolved separately.
    pub groups: usize,
    /// Whether every run must give the same bits.
    pub deterministic: bool,
    /// `MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL`. With `None`, the direction decides.
    pub alternative: Option<bool>,
}

impl Default for Convolution {
    fn default() -> Self {
        Convolution {
            mode: miopenConvolution,
            pad: vec![0; 2],
            stride: vec![1; 2],
            dilation: vec![1; 2],
            groups: 1,
            deterministic: false,
            alternative: None,
        }
    }
}

impl Convolution {
    /// The direction of the plain convolution: for a transposed one, forward and backward data are
    /// exchanged.
    pub fn kind(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Forward if self.is_transposed() => Kind::BackwardData,
            Kind::BackwardData if self.is_transposed() => Kind::Forward,
            kind => kind,
        }
    }

    /// Whether the convolution is transposed: the data gradient of the plain convolution from its
    /// output to its input.
    pub fn is_transposed(&self) -> bool {
        self.mode == miopenTranspose
    }

    /// The descriptor of the packed output for an input and weights.
    pub(super) fn output(&self, x: &Tensor, w: &Tensor) -> Outcome<Tensor> {
        let rank = self.pad.len() + 2;
        require(x.dims.len() == rank && w.dims.len() == rank, miopenStatusBadParm)?;
        let mut dims = vec![x.dims[0], w.dims[0]];
        for axis in 0..rank - 2 {
            let reach = (w.dims[axis + 2] - 1) * self.dilation[axis] + 1;
            let padded = x.dims[axis + 2] + 2 * self.pad[axis];
            require(padded >= reach, miopenStatusBadParm)?;
            dims.push((padded - reach) / self.stride[axis] + 1);
        }
        Ok(Tensor::packed(x.data, dims))
    }
}

/// Sets a convolution's mode and sizes, and everything else to MIOpen's defaults.
///
/// # Safety
/// The caller's descriptor and lists of `spatialDim` values.
pub(super) unsafe extern "C" fn miopenInitConvolutionNdDescriptor<O: Own<Convolution>>(
    convDesc: miopenConvolutionDescriptor_t,
    spatialDim: c_int,
    padA: *const c_int,
    strideA: *const c_int,
    dilationA: *const c_int,
    c_mode: miopenConvolutionMode_t,
) -> miopenStatus_t {
    status(|| {
        require(c_mode.name().is_some(), miopenStatusBadParm)?;
        require(matches!(spatialDim, 2 | 3), miopenStatusNotImplemented)?;
        let read = |from: *const c_int, least: c_int| {
            require(!from.is_null(), miopenStatusBadParm)?;
            // SAFETY: the caller's list of `spatialDim` values.
            let values = unsafe { core::slice::from_raw_parts(from, spatialDim as usize) };
            require(values.iter().all(|&value| value >= least), miopenStatusBadParm)?;
            Ok(values.iter().map(|&value| value as usize).collect())
        };
        let (pad, stride, dilation) = (read(padA, 0)?, read(strideA, 1)?, read(dilationA, 1)?);
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Convolution, O>, _>(convDesc) }?;
        own.set(Convolution { mode: c_mode, pad, stride, dilation, ..Convolution::default() })
    })
}

/// Sets a convolution's groups.
///
/// # Safety
/// The caller's descriptor.
pub(super) unsafe extern "C" fn miopenSetConvolutionGroupCount<O: Own<Convolution>>(
    convDesc: miopenConvolutionDescriptor_t,
    groupCount: c_int,
) -> miopenStatus_t {
    status(|| {
        require(groupCount >= 1, miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Convolution, O>, _>(convDesc) }?;
        own.change(|convolution| convolution.groups = groupCount as usize)
    })
}

/// Sets an attribute of a convolution.
///
/// # Safety
/// The caller's descriptor.
pub(super) unsafe extern "C" fn miopenSetConvolutionAttribute<O: Own<Convolution>>(
    convDesc: miopenConvolutionDescriptor_t,
    attr: miopenConvolutionAttrib_t,
    value: c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Convolution, O>, _>(convDesc) }?;
        match attr {
            MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL => {
                require((-1..=1).contains(&value), miopenStatusBadParm)?;
                own.change(|convolution| convolution.alternative = (value >= 0).then_some(value == 1))
            }
            MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC => {
                require((0..=1).contains(&value), miopenStatusBadParm)?;
                own.change(|convolution| convolution.deterministic = value == 1)
            }
            _ => Err(miopenStatusBadParm),
        }
    })
}

/// Sets what find mode times. Both providers time all algorithms, as MIOpen's normal mode does, so
/// this only checks the value.
///
/// # Safety
/// The caller's descriptor.
pub(super) unsafe extern "C" fn miopenSetConvolutionFindMode<O: Own<Convolution>>(
    convDesc: miopenConvolutionDescriptor_t,
    findMode: miopenConvolutionFindMode_t,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        unsafe { object_mut::<Described<Convolution, O>, _>(convDesc) }?;
        require(findMode.name().is_some(), miopenStatusBadParm)
    })
}

/// The direction: which tensor is computed from the other two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// `y`.
    Forward,
    /// `dx`.
    BackwardData,
    /// `dw`.
    BackwardWeights,
}

impl Kind {
    /// `x`, `w` and `y` from the order of immediate mode.
    fn sorted<T>(self, [a, b, c]: [T; 3]) -> [T; 3] {
        match self {
            Kind::Forward => [b, a, c],
            Kind::BackwardData => [c, b, a],
            Kind::BackwardWeights => [b, c, a],
        }
    }

    /// `x`, `w` and `y` from the order in which find mode takes buffers.
    fn sorted_to_find<T>(self, all: [T; 3]) -> [T; 3] {
        if self == Kind::Forward { all } else { self.sorted(all) }
    }
}

/// A direction's algorithm enum.
pub(super) trait Direction {
    const KIND: Kind;

    fn number(self) -> i32;
}

macro_rules! directions {
    ($($algorithm:ident $kind:ident)*) => { $(
        impl Direction for $algorithm {
            const KIND: Kind = Kind::$kind;

            fn number(self) -> i32 {
                self.0
            }
        }
    )* };
}
directions! {
    miopenConvFwdAlgorithm_t Forward
    miopenConvBwdDataAlgorithm_t BackwardData
    miopenConvBwdWeightsAlgorithm_t BackwardWeights
}

/// A call whose tensors have the right rank and one type.
pub struct Convolve<'a, H: Convolutions> {
    /// What is computed.
    pub kind: Kind,
    /// The input, or its gradient.
    pub x: &'a Described<Tensor, H::Tensor>,
    /// The weights, or their gradient.
    pub w: &'a Described<Tensor, H::Tensor>,
    /// The output, or its gradient.
    pub y: &'a Described<Tensor, H::Tensor>,
    /// The convolution.
    pub conv: &'a Described<Convolution, H::Own>,
}

/// Checks ranks and types. Types other than f32, f16 and bf16 are not implemented.
pub(super) fn check(conv: &Convolution, [x, w, y]: [&Tensor; 3]) -> Outcome {
    let rank = conv.pad.len() + 2;
    let ranks = [x, w, y].iter().all(|tensor| tensor.dims.len() == rank);
    require(ranks && x.data == w.data && x.data == y.data, miopenStatusBadParm)?;
    require(matches!(x.data, miopenFloat | miopenHalf | miopenBFloat16), miopenStatusNotImplemented)
}

impl<H: Convolutions> Convolve<'_, H> {
    /// # Safety
    /// Non-null descriptors are live.
    unsafe fn new(
        kind: Kind,
        [x, w, y]: [miopenTensorDescriptor_t; 3],
        conv: miopenConvolutionDescriptor_t,
    ) -> Outcome<Self> {
        // SAFETY: the caller vouches for the descriptors.
        let (x, w, y, conv) = unsafe {
            (tensor::<H>(x)?, tensor::<H>(w)?, tensor::<H>(y)?, object::<Described<_, _>, _>(conv)?)
        };
        check(conv, [x, w, y])?;
        Ok(Convolve { kind, x, w, y, conv })
    }
}

/// The buffers of a convolution. The computed tensor's buffer is written.
#[derive(Clone, Copy)]
pub struct ConvolutionBuffers {
    /// The elements of `x`.
    pub x: *mut c_void,
    /// The elements of the weights.
    pub w: *mut c_void,
    /// The elements of `y`.
    pub y: *mut c_void,
    /// Scratch memory.
    pub workspace: *mut c_void,
    /// The bytes of the workspace.
    pub workspace_size: usize,
}

/// An algorithm that find mode timed.
pub struct FoundAlgorithm {
    /// Its number in the direction's enum.
    pub number: i32,
    /// In milliseconds.
    pub time: f32,
    /// Bytes of workspace.
    pub workspace: usize,
}

/// Convolution of a provider.
pub trait Convolutions: Handle {
    /// The provider's part of a descriptor.
    type Own: Own<Convolution>;

    /// The solutions of a convolution, best first.
    fn solutions(&self, call: &Convolve<'_, Self>) -> Outcome<Vec<miopenConvSolution_t>>;

    /// Bytes of workspace of one of the [`Convolutions::solutions`].
    fn solution_workspace(&self, call: &Convolve<'_, Self>, solution: u64) -> Outcome<usize>;

    /// Convolves by one of the [`Convolutions::solutions`].
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn run_solution(
        &self,
        call: &Convolve<'_, Self>,
        solution: u64,
        buffers: ConvolutionBuffers,
    ) -> Outcome;

    /// Times the algorithms of a convolution; best first.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn find(
        &self,
        call: &Convolve<'_, Self>,
        buffers: ConvolutionBuffers,
    ) -> Outcome<Vec<FoundAlgorithm>>;

    /// Convolves by the algorithm with this number, which find mode returned.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn run_found(
        &self,
        call: &Convolve<'_, Self>,
        number: i32,
        buffers: ConvolutionBuffers,
    ) -> Outcome;
}

type TensorDesc = miopenTensorDescriptor_t;

/// Runs a call with its handle and convolution.
///
/// # Safety
/// The caller's handle and descriptors.
unsafe fn convolve<H: Convolutions>(
    handle: miopenHandle_t,
    kind: Kind,
    tensors: [TensorDesc; 3],
    conv: miopenConvolutionDescriptor_t,
    body: impl FnOnce(&H, &Convolve<'_, H>) -> Outcome,
) -> miopenStatus_t {
    // SAFETY: the caller's handle and descriptors.
    unsafe { with::<H>(handle, |handle| body(handle, &Convolve::new(kind, tensors, conv)?)) }
}

#[rustfmt::skip] // One line of arguments a group, here and below.
pub(super) unsafe extern "C" fn solution_count<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, b: TensorDesc, conv: miopenConvolutionDescriptor_t, c: TensorDesc,
    count: *mut usize,
) -> miopenStatus_t {
    let body = |handle: &H, call: &Convolve<'_, H>| {
        let solutions = handle.solutions(call)?.len();
        // SAFETY: the caller's out-pointer.
        unsafe { answer(count, solutions) }
    };
    // SAFETY: the caller's handle and descriptors, here and below.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

#[rustfmt::skip]
pub(super) unsafe extern "C" fn solutions<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, b: TensorDesc, conv: miopenConvolutionDescriptor_t, c: TensorDesc,
    most: usize, count: *mut usize, to: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    let body = |handle: &H, call: &Convolve<'_, H>| {
        require(!to.is_null(), miopenStatusBadParm)?;
        let mut all = handle.solutions(call)?;
        all.truncate(most);
        // SAFETY: the caller's out-pointer, and room for `most` entries.
        unsafe {
            to.copy_from_nonoverlapping(all.as_ptr(), all.len());
            answer(count, all.len())
        }
    };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

#[rustfmt::skip]
pub(super) unsafe extern "C" fn solution_workspace<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, b: TensorDesc, conv: miopenConvolutionDescriptor_t, c: TensorDesc,
    solution: u64, bytes: *mut usize,
) -> miopenStatus_t {
    let body = |handle: &H, call: &Convolve<'_, H>| {
        let needed = handle.solution_workspace(call, solution)?;
        // SAFETY: the caller's out-pointer.
        unsafe { answer(bytes, needed) }
    };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

/// Only checks that the solution exists, because the providers compile nothing ahead of time.
#[rustfmt::skip]
pub(super) unsafe extern "C" fn compile_solution<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, b: TensorDesc, conv: miopenConvolutionDescriptor_t, c: TensorDesc,
    solution: u64,
) -> miopenStatus_t {
    let body = |handle: &H, call: &Convolve<'_, H>| handle.solution_workspace(call, solution).map(|_| ());
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn immediate<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, ap: *const c_void, b: TensorDesc, bp: *const c_void,
    conv: miopenConvolutionDescriptor_t, c: TensorDesc, cp: *mut c_void, workspace: *mut c_void,
    workspace_size: usize, solution: u64,
) -> miopenStatus_t {
    let [x, w, y] = D::KIND.sorted([ap.cast_mut(), bp.cast_mut(), cp]);
    let buffers = ConvolutionBuffers { x, w, y, workspace, workspace_size };
    // SAFETY: the caller's buffers.
    let body = |handle: &H, call: &Convolve<'_, H>| unsafe { handle.run_solution(call, solution, buffers) };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

/// The bytes of the largest workspace of any algorithm.
#[rustfmt::skip]
pub(super) unsafe extern "C" fn workspace<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, b: TensorDesc, conv: miopenConvolutionDescriptor_t, c: TensorDesc,
    bytes: *mut usize,
) -> miopenStatus_t {
    let body = |handle: &H, call: &Convolve<'_, H>| {
        let most = handle.solutions(call)?.iter().map(|one| one.workspace_size).max().unwrap_or(0);
        // SAFETY: the caller's out-pointer.
        unsafe { answer(bytes, most) }
    };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted([a, b, c]), conv, body) }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn find<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, a: TensorDesc, ap: *const c_void, b: TensorDesc, bp: *const c_void,
    conv: miopenConvolutionDescriptor_t, c: TensorDesc, cp: *mut c_void, requested: c_int, returned: *mut c_int,
    results: *mut miopenConvAlgoPerf_t, workspace: *mut c_void, workspace_size: usize, _exhaustive: bool,
) -> miopenStatus_t {
    let [x, w, y] = D::KIND.sorted_to_find([ap.cast_mut(), bp.cast_mut(), cp]);
    let buffers = ConvolutionBuffers { x, w, y, workspace, workspace_size };
    let body = |handle: &H, call: &Convolve<'_, H>| {
        require(requested >= 1 && !returned.is_null() && !results.is_null(), miopenStatusBadParm)?;
        // SAFETY: the caller's buffers.
        let all = unsafe { handle.find(call, buffers) }?;
        require(!all.is_empty(), miopenStatusNotImplemented)?;
        let count = all.len().min(requested as usize);
        for (place, found) in all[..count].iter().enumerate() {
            let FoundAlgorithm { number, time, workspace: memory } = *found;
            // All fields of the union have the same representation.
            let algorithm = miopenConvAlgoPerf_algorithm { fwd_algo: miopenConvFwdAlgorithm_t(number) };
            // SAFETY: the caller's room for `requested` entries.
            unsafe { results.add(place).write(miopenConvAlgoPerf_t { algorithm, time, memory }) };
        }
        // SAFETY: the caller's out-pointer.
        unsafe { answer(returned, count as c_int) }
    };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted_to_find([a, b, c]), conv, body) }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn run<H: Convolutions, D: Direction>(
    handle: miopenHandle_t, alpha: *const c_void, a: TensorDesc, ap: *const c_void, b: TensorDesc, bp: *const c_void,
    conv: miopenConvolutionDescriptor_t, algorithm: D, beta: *const c_void, c: TensorDesc, cp: *mut c_void,
    workspace: *mut c_void, workspace_size: usize,
) -> miopenStatus_t {
    let [x, w, y] = D::KIND.sorted_to_find([ap.cast_mut(), bp.cast_mut(), cp]);
    let buffers = ConvolutionBuffers { x, w, y, workspace, workspace_size };
    let body = |handle: &H, call: &Convolve<'_, H>| {
        // SAFETY: the caller's scalars and buffers.
        unsafe {
            plain_scalars(alpha, beta, call.x.data)?;
            handle.run_found(call, algorithm.number(), buffers)
        }
    };
    // SAFETY: as above.
    unsafe { convolve(handle, D::KIND, D::KIND.sorted_to_find([a, b, c]), conv, body) }
}
