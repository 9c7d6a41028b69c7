//! Every kernel launch of this crate, in three forms: over contiguous elements, over strided
//! elements, and with dimensions that the kernel defines.
//!
//! These functions check, before a launch, that all elements which the kernel may access lie inside
//! the buffers. The `unsafe` call of the launch relies on that check and on the kernels' contract
//! (`hip/kernels`): a kernel accesses only the elements that its dimensions name and ignores bad
//! indices.

mod walk;

use std::sync::Arc;

use hip::{Device, ElementWise, Elements, Functor, Grid, Kernel, KernelName, Launch, Operands, Over, Stream};

use crate::arg::Arg;
use crate::error::invalid;
use crate::tensor::RocmTensor;
pub(crate) use walk::{Operand, Output, Walk};

/// The largest count or offset that the kernels (`prelude.h`) hold in 32 bits.
pub(crate) const MAX_REACH: usize = i32::MAX as usize;

/// The limit of element counts and offsets of one strided launch: [`MAX_REACH`], or less if
/// `BURN_ROCM_LAUNCH_REACH` says so. A low limit lets tests split launches without huge tensors.
pub(crate) fn max_reach() -> usize {
    hip::launch_reach()
}

/// The vector accesses of contiguous kernels need pointers that are multiples of this.
const ALIGNMENT: usize = 16;

/// The byte offset of a contiguous tensor. Checks that all its bytes lie inside the buffer.
fn dense(op: &'static str, tensor: &RocmTensor) -> hip::Result<usize> {
    let start = tensor.byte_offset();
    let size = tensor.dtype_size();
    if !tensor.is_contiguous() || start + tensor.len() * size > tensor.buffer().len() {
        return invalid(op, "contiguous elements inside the buffer", format!("{:?}", tensor.layout()));
    }
    Ok(start)
}

/// The byte offset of a tensor of any layout. Checks that all its bytes lie inside the buffer.
fn spread(op: &'static str, tensor: &RocmTensor) -> hip::Result<usize> {
    let end = tensor.layout().span().map_or(0, |(_, last)| (last + 1) * tensor.dtype_size());
    if end > tensor.buffer().len() {
        return invalid(op, "elements inside the buffer", format!("{:?}", tensor.layout()));
    }
    Ok(tensor.byte_offset())
}

/// Whether the contiguous kernels take the tensor without a copy.
pub(crate) fn is_packed(tensor: &RocmTensor) -> bool {
    tensor.is_contiguous() && tensor.byte_offset().is_multiple_of(ALIGNMENT)
}

/// Submits a launch. Every launch of this crate comes through here.
pub(super) fn submit(launch: Launch<'_>, grid: Grid) -> hip::Result<()> {
    submit_with(launch, grid, 0)
}

/// A stream that runs launches beside the compute stream.
pub(crate) struct Beside<'a> {
    pub(crate) stream: &'a Stream,
    /// Gets the kernels, which must stay until the compute stream waits for the stream.
    pub(crate) kernels: &'a mut Vec<Arc<Kernel>>,
}

/// Submits a launch to another stream. The caller orders it with the compute stream, and keeps the
/// buffers until the compute stream waits for it.
pub(super) fn submit_beside(launch: Launch<'_>, grid: Grid, beside: &mut Beside<'_>) -> hip::Result<()> {
    // SAFETY: as in `submit_with`; the order is the caller's promise.
    let kernel = unsafe { launch.submit_on(beside.stream, grid, 0)? };
    beside.kernels.push(kernel);
    Ok(())
}

fn submit_with(launch: Launch<'_>, grid: Grid, shared_bytes: u32) -> hip::Result<()> {
    // SAFETY: `flat`, `walk`, `rows`, `views`, `views_to`, `views_to_views`, `Table` (`ops/multi_tensor.rs`) and
    // `cat` check that the counts, shapes and strides which they pass name elements inside the
    // buffers which they pass. They give each kernel of `hip/kernels` its parameters in the order
    // that its family documents. The kernels touch nothing else.
    unsafe { launch.submit(grid, shared_bytes) }
}

/// A contiguous tensor's elements.
pub(crate) fn elements(tensor: &RocmTensor) -> Elements<'_> {
    Elements { buffer: tensor.buffer(), byte_offset: tensor.byte_offset(), over: None }
}

/// Defers an element-wise op whose operands are broadcast or strided, if it can join a chain of
/// deferred ops. Returns whether it was deferred. `out` is packed and has the shape `shape`; each
/// input has its strides over that shape.
pub(crate) fn put_off_over<'a>(
    op: &'static str,
    functor: Functor,
    shape: &'a [usize],
    inputs: &[(&'a RocmTensor, &'a [isize])],
    scalars: &[Arg],
    out: &RocmTensor,
) -> hip::Result<bool> {
    let over = |tensor: &'a RocmTensor, strides: &'a [isize]| Elements {
        over: Some(Over { shape, strides }),
        ..elements(tensor)
    };
    let operands = match (inputs, scalars) {
        (&[(a, by)], []) => Operands::One(over(a, by)),
        (&[(a, by)], &[Arg::F32(value)]) => Operands::Scalar(over(a, by), value),
        (&[(a, a_by), (b, b_by)], []) => Operands::Two(over(a, a_by), over(b, b_by)),
        _ => return Ok(false),
    };
    put_off(op, functor, operands, out)
}

/// Whether an op with a result like this tensor may be deferred.
pub(crate) fn may_put_off(functor: Functor, tensor: &RocmTensor) -> bool {
    tensor.kernel_type().is_ok_and(|ty| tensor.hip_device().may_put_off(functor, ty, tensor.len()))
}

/// Runs an element-wise op of packed tensors of one shape and dtype. Either the stream defers the
/// op, to launch it together with the next ones, or the op's own kernel runs now.
///
/// `kernel` is the op's own kernel. Its first template argument is `functor`, and its parameters
/// are those of [`flat`].
pub(crate) fn element_wise(
    op: &'static str,
    kernel: KernelName,
    functor: Functor,
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    out: &RocmTensor,
) -> hip::Result<()> {
    let operands = match (inputs, scalars) {
        ([], &[Arg::F32(value)]) => Operands::Value(value),
        ([a], []) => Operands::One(elements(a)),
        (&[a], &[Arg::F32(value)]) => Operands::Scalar(elements(a), value),
        ([a, b], []) => Operands::Two(elements(a), elements(b)),
        _ => return flat(op, kernel, out.len(), inputs, scalars, &[out]),
    };
    match put_off(op, functor, operands, out)? {
        true => Ok(()),
        false => flat(op, kernel, out.len(), inputs, scalars, &[out]),
    }
}

/// Defers the op if it can join a chain of deferred ops. Returns whether it was deferred.
pub(crate) fn put_off(
    op: &'static str,
    functor: Functor,
    operands: Operands<'_>,
    out: &RocmTensor,
) -> hip::Result<bool> {
    let (dtype, len) = (out.kernel_type()?, out.len());
    out.hip_device()
        .put_off(op, ElementWise { functor, from: dtype, dtype, len, operands, out: elements(out) })
}

/// Defers the conversion of a packed tensor, if it can join a chain of deferred ops. Returns whether
/// it was deferred.
pub(crate) fn put_off_cast(op: &'static str, tensor: &RocmTensor, out: &RocmTensor) -> hip::Result<bool> {
    let (from, dtype, len) = (tensor.kernel_type()?, out.kernel_type()?, out.len());
    let operands = Operands::One(elements(tensor));
    let step = ElementWise { functor: Functor::Cast, from, dtype, len, operands, out: elements(out) };
    out.hip_device().put_off(op, step)
}

/// Launches `kernel(n, inputs.., scalars.., outputs..)` over packed tensors of at least `n`
/// elements each. Their shapes do not matter.
pub(crate) fn flat(
    op: &'static str,
    kernel: KernelName,
    n: usize,
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<()> {
    let Some(device) = outputs.first().map(|out| out.hip_device()) else { return Ok(()) };
    let (launch, grid) = flat_launch(op, device, kernel, n, inputs, scalars, outputs)?;
    submit(launch, grid)
}

/// The launch of [`flat`] in place.
pub(super) fn flat_in_place<'a>(
    op: &'static str,
    kernel: KernelName,
    tensor: &'a RocmTensor,
    scalars: &[Arg],
) -> hip::Result<(Launch<'a>, Grid)> {
    flat_launch(op, tensor.hip_device(), kernel, tensor.len(), &[tensor], scalars, &[tensor])
}

fn flat_launch<'d>(
    op: &'static str,
    device: &'d Arc<Device>,
    kernel: KernelName,
    n: usize,
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<(Launch<'d>, Grid)> {
    for tensor in inputs.iter().chain(outputs) {
        if tensor.len() < n || !is_packed(tensor) {
            return invalid(op, format!("{n} packed elements"), format!("{:?}", tensor.layout()));
        }
    }
    let widest = inputs.iter().chain(outputs).map(|tensor| tensor.dtype_size()).max().unwrap_or(1);
    let grid = device.grid_bytes(n * widest);
    let bytes = || inputs.iter().chain(outputs).map(|tensor| n * tensor.dtype_size()).sum();
    let launch = packed(op, device, kernel, &[Arg::U64(n as u64)], inputs, scalars, outputs)?;
    Ok((launch.moves(bytes), grid))
}

/// Launches `kernel(dims.., inputs.., scalars.., outputs..)` over contiguous tensors. `dims` say
/// which elements the kernel accesses; the caller derives them from the shapes of these tensors.
#[allow(clippy::too_many_arguments)]
pub(crate) fn rows(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: Grid,
    dims: &[Arg],
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<()> {
    let bytes = || bytes_of(inputs.iter().chain(outputs).copied());
    submit(packed(op, device, kernel, dims, inputs, scalars, outputs)?.moves(bytes), grid)
}

/// The bytes of tensors, for the profile. A value that repeats along an axis counts once.
fn bytes_of<'a>(tensors: impl Iterator<Item = &'a RocmTensor>) -> usize {
    tensors.map(|tensor| Operand::whole(tensor).bytes_of(tensor.dims(), tensor.layout().strides())).sum()
}

/// The launch `kernel(dims.., inputs.., scalars.., outputs..)` over contiguous tensors.
pub(super) fn packed<'d>(
    op: &'static str,
    device: &'d Arc<Device>,
    kernel: KernelName,
    dims: &[Arg],
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<Launch<'d>> {
    let mut launch = device.launch(kernel)?;
    for &dim in dims {
        launch = dim.push(launch);
    }
    for input in inputs {
        launch = launch.buffer(input.buffer(), dense(op, input)?);
    }
    for &scalar in scalars {
        launch = scalar.push(launch);
    }
    outputs.iter().for_each(|output| launch.reads(output.buffer()));
    for output in outputs {
        launch = launch.output(output.buffer(), dense(op, output)?);
    }
    Ok(launch)
}

/// Launches `kernel(dims.., inputs.., scalars.., output)` over inputs of any layout. `dims` give
/// the inputs' strides. An absent input is a null pointer.
#[allow(clippy::too_many_arguments)]
pub(crate) fn views(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: Grid,
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    output: &RocmTensor,
) -> hip::Result<()> {
    views_to(op, device, kernel, grid, dims, inputs, scalars, &[Some(output)])
}

/// [`views`] with several outputs. An absent output is a null pointer.
#[allow(clippy::too_many_arguments)]
pub(crate) fn views_to(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: Grid,
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    outputs: &[Option<&RocmTensor>],
) -> hip::Result<()> {
    views_to_with(op, device, kernel, (grid, 0), dims, inputs, scalars, outputs)
}

/// [`views_to`] with bytes of dynamic shared memory beside the grid.
#[allow(clippy::too_many_arguments)]
pub(crate) fn views_to_with(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: (Grid, u32),
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    outputs: &[Option<&RocmTensor>],
) -> hip::Result<()> {
    launch_views(op, device, kernel, grid, dims, inputs, scalars, outputs, dense)
}

/// [`views_to_with`] with outputs of any layout, whose strides `dims` give too.
#[allow(clippy::too_many_arguments)]
pub(crate) fn views_to_views(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: (Grid, u32),
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    outputs: &[Option<&RocmTensor>],
) -> hip::Result<()> {
    launch_views(op, device, kernel, grid, dims, inputs, scalars, outputs, spread)
}

/// [`views`] for a kernel that reads and writes only those rows that need it, so that a profile does
/// not know its bytes.
#[allow(clippy::too_many_arguments)]
pub(crate) fn views_in_part(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    grid: Grid,
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    output: &RocmTensor,
) -> hip::Result<()> {
    let launch = prepared(op, device, kernel, dims, inputs, scalars, &[Some(output)], dense)?;
    submit(launch, grid)
}

/// `place` checks an output and returns its byte offset.
#[allow(clippy::too_many_arguments)]
fn launch_views(
    op: &'static str,
    device: &Arc<Device>,
    kernel: KernelName,
    (grid, shared_bytes): (Grid, u32),
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    outputs: &[Option<&RocmTensor>],
    place: fn(&'static str, &RocmTensor) -> hip::Result<usize>,
) -> hip::Result<()> {
    let launch = prepared(op, device, kernel, dims, inputs, scalars, outputs, place)?;
    let bytes = || bytes_of(inputs.iter().chain(outputs).copied().flatten());
    submit_with(launch.moves(bytes), grid, shared_bytes)
}

/// The launch `kernel(dims.., inputs.., scalars.., outputs..)`.
#[allow(clippy::too_many_arguments)]
fn prepared<'d>(
    op: &'static str,
    device: &'d Arc<Device>,
    kernel: KernelName,
    dims: &[Arg],
    inputs: &[Option<&RocmTensor>],
    scalars: &[Arg],
    outputs: &[Option<&RocmTensor>],
    place: fn(&'static str, &RocmTensor) -> hip::Result<usize>,
) -> hip::Result<Launch<'d>> {
    let mut launch = device.launch(kernel)?;
    for &dim in dims {
        launch = dim.push(launch);
    }
    for input in inputs {
        launch = match input {
            Some(input) => launch.buffer(input.buffer(), spread(op, input)?),
            None => launch.value(0u64),
        };
    }
    for &scalar in scalars {
        launch = scalar.push(launch);
    }
    outputs.iter().flatten().for_each(|output| launch.reads(output.buffer()));
    for output in outputs {
        launch = match output {
            Some(output) => launch.output(output.buffer(), place(op, output)?),
            None => launch.value(0u64),
        };
    }
    Ok(launch)
}
