//! MIOpen's functions, one file for each family as in the crate.

mod activation;
mod convolution;
mod descriptors;
mod fusion;
mod norms;
mod pooling;
mod reduction;

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use hip_provider::miopen::{
    Activation, Activations, BatchGradient, BatchNorm, BatchNorms, Convolution, ConvolutionBuffers,
    Convolutions, Convolve, Described, FoundAlgorithm, Fusions, Handle, Inference, Normalised, Operand,
    Outcome, Own, Pooling, Poolings, Reduction, ReductionMemory, Reductions, RowGradient, RowNorms, Rows,
    Softmax, Softmaxes, Tensor, Training, table,
};
use miopen_sys::*;

use crate::{Fails, Then, asked, dangling};

impl crate::Status for miopenStatus_t {
    const SUCCESS: Self = miopenStatusSuccess;
}

const BAD: Then<miopenStatus_t> = Fails(miopenStatusBadParm);
const MISSING: Then<miopenStatus_t> = Fails(miopenStatusNotImplemented);
const UNSUPPORTED: Then<miopenStatus_t> = Fails(miopenStatusUnsupportedOp);

/// No value of any of MIOpen's enums.
const UNKNOWN: i32 = 77;

thread_local! {
    /// Words about the last computation that the provider was asked for.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A provider that computes nothing.
struct Imitation;

fn note(what: &'static str, words: String) -> Outcome {
    asked(what);
    LAST.replace(words);
    Ok(())
}

/// The provider's part of a tensor descriptor: it takes no `miopenInt64`, and can't compute with
/// `miopenInt32`.
struct Picky(miopenDataType_t);

impl Own<Tensor> for Picky {
    fn new() -> Outcome<Self> {
        Ok(Picky(miopenFloat))
    }
    fn set(&mut self, values: &Tensor) -> Outcome {
        if values.data == miopenInt64 {
            return Err(miopenStatusInvalidValue);
        }
        self.0 = values.data;
        Ok(())
    }
    fn check(&self) -> Outcome {
        if self.0 == miopenInt32 { Err(miopenStatusInvalidValue) } else { Ok(()) }
    }
}

impl Handle for Imitation {
    type Tensor = Picky;

    fn version() -> [usize; 3] {
        [3, 5, 1]
    }
    fn create(_: miopenAcceleratorQueue_t) -> Outcome<miopenHandle_t> {
        asked("create");
        Ok(dangling())
    }
    unsafe fn set_stream(_: miopenHandle_t, _: miopenAcceleratorQueue_t) -> Outcome {
        note("set_stream", String::new())
    }
    unsafe fn destroy(_: miopenHandle_t) -> Outcome {
        note("destroy", String::new())
    }
    unsafe fn with(handle: miopenHandle_t, body: impl FnOnce(&Self) -> Outcome) -> Outcome {
        if handle.is_null() { Err(miopenStatusNotInitialized) } else { body(&Imitation) }
    }
}

type Of<'a> = Operand<'a, Imitation>;

impl Softmaxes for Imitation {
    unsafe fn softmax_forward(&self, _: Softmax, _: &Of<'_>, _: &Of<'_>) -> Outcome {
        note("softmax_forward", String::new())
    }
    unsafe fn softmax_backward(&self, _: Softmax, _: &Of<'_>, _: &Of<'_>, _: &Of<'_>) -> Outcome {
        note("softmax_backward", String::new())
    }
}

impl Activations for Imitation {
    type Own = ();

    unsafe fn activation_forward(&self, _: &Described<Activation, ()>, _: &Of<'_>, _: &Of<'_>) -> Outcome {
        note("activation_forward", String::new())
    }
    unsafe fn activation_backward(
        &self,
        _: &Described<Activation, ()>,
        _: &Of<'_>,
        _: &Of<'_>,
        _: &Of<'_>,
        _: &Of<'_>,
    ) -> Outcome {
        note("activation_backward", String::new())
    }
}

impl Poolings for Imitation {
    type Own = ();

    unsafe fn pool_forward(
        &self,
        _: &Described<Pooling, ()>,
        _: &Of<'_>,
        _: &Of<'_>,
        indices: Option<*mut c_void>,
    ) -> Outcome {
        note("pool_forward", format!("indices: {}", indices.is_some()))
    }
    unsafe fn pool_backward(
        &self,
        _: &Described<Pooling, ()>,
        _: [&Of<'_>; 2],
        _: &Of<'_>,
        _: &Of<'_>,
        _: *mut c_void,
    ) -> Outcome {
        note("pool_backward", String::new())
    }
}

impl Reductions for Imitation {
    type Own = ();

    fn reduction_workspace(
        &self,
        _: &Described<Reduction, ()>,
        _: &Described<Tensor, Picky>,
        _: &Described<Tensor, Picky>,
    ) -> Outcome<usize> {
        asked("reduction_workspace");
        Ok(5)
    }
    unsafe fn reduce(
        &self,
        _: &Described<Reduction, ()>,
        _: &Of<'_>,
        _: &Of<'_>,
        _: &ReductionMemory,
    ) -> Outcome {
        note("reduce", String::new())
    }
}

impl BatchNorms for Imitation {
    unsafe fn batch_norm_training(&self, _: &BatchNorm<'_, Self>, _: &Of<'_>, _: &Training) -> Outcome {
        note("batch_norm_training", String::new())
    }
    unsafe fn batch_norm_inference(&self, _: &BatchNorm<'_, Self>, _: &Of<'_>, _: &Inference) -> Outcome {
        note("batch_norm_inference", String::new())
    }
    unsafe fn batch_norm_backward(
        &self,
        _: &BatchNorm<'_, Self>,
        _: &Of<'_>,
        _: &Of<'_>,
        _: &BatchGradient,
    ) -> Outcome {
        note("batch_norm_backward", String::new())
    }
}

fn rows(rows: &Rows<'_, Imitation>) -> String {
    let Rows { rows, length, groups, share, .. } = rows;
    format!("{rows} rows of {length}, {groups} groups, a weight for {share}")
}

impl RowNorms for Imitation {
    unsafe fn norm_forward(&self, of: &Rows<'_, Self>, to: &Normalised<'_, Self>) -> Outcome {
        note("norm_forward", format!("{}, parameters: {}", rows(of), to.parameters.is_some()))
    }
    unsafe fn t5_norm(&self, of: &Rows<'_, Self>, _: &Of<'_>, _: &Of<'_>, rstd: Option<&Of<'_>>) -> Outcome {
        note("t5_norm", format!("{}, rstd: {}", rows(of), rstd.is_some()))
    }
    unsafe fn layer_norm_backward(&self, of: &Rows<'_, Self>, call: &RowGradient<'_, Self>) -> Outcome {
        let [weight, parameters] = [call.weight.is_some(), call.parameters.is_some()];
        note("layer_norm_backward", format!("{}, weight: {weight}, parameters: {parameters}", rows(of)))
    }
}

/// Which tensors and buffers a convolution has.
fn convolved(call: &Convolve<'_, Imitation>, buffers: Option<ConvolutionBuffers>) -> String {
    let at = buffers.map(|b| [b.x, b.w, b.y].map(|at| at.addr()));
    format!("{:?} {:?} {:?} {:?} {at:?}", call.kind, call.x.dims[0], call.w.dims[0], call.y.dims[0])
}

impl Convolutions for Imitation {
    type Own = ();

    /// None for 9 groups.
    fn solutions(&self, call: &Convolve<'_, Self>) -> Outcome<Vec<miopenConvSolution_t>> {
        note("solutions", convolved(call, None))?;
        let solution = |solution_id| miopenConvSolution_t {
            time: 1.0,
            workspace_size: 10 * solution_id as usize,
            solution_id,
            algorithm: miopenConvolutionAlgoGEMM,
        };
        Ok(if call.conv.groups == 9 { Vec::new() } else { [3, 7, 5].map(solution).into() })
    }
    fn solution_workspace(&self, call: &Convolve<'_, Self>, solution: u64) -> Outcome<usize> {
        note("solution_workspace", convolved(call, None))?;
        Ok(10 * solution as usize)
    }
    unsafe fn run_solution(&self, call: &Convolve<'_, Self>, _: u64, buffers: ConvolutionBuffers) -> Outcome {
        note("run_solution", convolved(call, Some(buffers)))
    }
    unsafe fn find(
        &self,
        call: &Convolve<'_, Self>,
        buffers: ConvolutionBuffers,
    ) -> Outcome<Vec<FoundAlgorithm>> {
        note("find", convolved(call, Some(buffers)))?;
        let found = |number| FoundAlgorithm { number, time: number as f32, workspace: 8 };
        Ok(if call.conv.groups == 9 { Vec::new() } else { [1, 3, 5].map(found).into() })
    }
    unsafe fn run_found(
        &self,
        call: &Convolve<'_, Self>,
        number: i32,
        buffers: ConvolutionBuffers,
    ) -> Outcome {
        note("run_found", format!("{} by {number}", convolved(call, Some(buffers))))
    }
}

impl Fusions for Imitation {
    type Fused = ();

    fn fuse(_: &Convolution, [x, w, y]: [&Tensor; 3]) -> Outcome {
        note("fuse", format!("{:?} {:?} {:?}", x.dims, w.dims, y.dims))
    }
    fn fused_workspace((): &()) -> usize {
        6
    }
    unsafe fn run_fused(
        (): &(),
        _: &Tensor,
        _: ConvolutionBuffers,
        bias: Option<*const c_void>,
        activation: Activation,
    ) -> Outcome {
        note("run_fused", format!("bias: {}, {:?}", bias.is_some(), activation.mode))
    }
}

fn miopen() -> Miopen {
    table::<Imitation>()
}

/// A handle. The imitation only looks whether it is null.
fn handle() -> miopenHandle_t {
    dangling()
}

#[track_caller]
fn done(status: miopenStatus_t) {
    assert_eq!(status, miopenStatusSuccess);
}

/// A tensor descriptor, which lives as long as the process.
#[track_caller]
fn strided(data: miopenDataType_t, dims: &[c_int], strides: Option<&[c_int]>) -> miopenTensorDescriptor_t {
    let (t, mut made) = (miopen(), null_mut());
    let (rank, strides) = (dims.len() as c_int, strides.map_or(null(), <[c_int]>::as_ptr));
    unsafe {
        done((t.miopenCreateTensorDescriptor)(&mut made));
        done((t.miopenSetTensorDescriptor)(made, data, rank, dims.as_ptr(), strides));
    }
    made
}

/// A packed tensor's descriptor.
#[track_caller]
fn tensor(data: miopenDataType_t, dims: &[c_int]) -> miopenTensorDescriptor_t {
    strided(data, dims, None)
}

/// A packed tensor of f32.
#[track_caller]
fn floats(dims: &[c_int]) -> miopenTensorDescriptor_t {
    tensor(miopenFloat, dims)
}

/// A descriptor without values.
fn unset() -> miopenTensorDescriptor_t {
    let mut made = null_mut();
    done(unsafe { (miopen().miopenCreateTensorDescriptor)(&mut made) });
    made
}

/// A tensor that the imitation can't compute with.
fn refused(dims: &[c_int]) -> miopenTensorDescriptor_t {
    tensor(miopenInt32, dims)
}

/// What a call with [`refused`] returns.
const REFUSED: Then<miopenStatus_t> = Fails(miopenStatusInvalidValue);

/// What a call without a handle returns from this imitation.
const NO_HANDLE: Then<miopenStatus_t> = Fails(miopenStatusNotInitialized);

static SCALARS: [f32; 3] = [0.0, 1.0, 2.0];

/// A scalar of the host: 0, 1 or 2, in f32.
fn scalar(value: usize) -> *const c_void {
    (&raw const SCALARS[value]).cast()
}

static WIDE: [f64; 3] = [0.0, 1.0, 2.0];

/// The same in f64.
fn wide(value: usize) -> *const c_void {
    (&raw const WIDE[value]).cast()
}
