//! Every kernel launch of this crate, in three shapes: over contiguous elements, over strided ones, and with
//! dimensions of its own.
//!
//! What a kernel may touch is checked here, against the buffers, before anything is launched; the one `unsafe`
//! of the crate rests on that and on the kernels' own contract (`hip/kernels`: no access outside the elements
//! their dimensions name, bad indices ignored).

use std::sync::Arc;

use hip::{Buffer, Device, ElementWise, Elements, Functor, Grid, KernelName, Launch, Operands};

use crate::arg::Arg;
use crate::error::invalid;
use crate::layout::{Layout, collapse};
use crate::tensor::RocmTensor;

/// `MAX_DIMS` of `prelude.h`.
const MAX_DIMS: usize = 8;

/// What `prelude.h` has in 32 bits stays at or below this.
pub(crate) const MAX_REACH: usize = i32::MAX as usize;

/// Element counts and offsets of one strided launch stay at or below this: [`MAX_REACH`], or less where a setting
/// says so, so that tests see launches split without tensors of that size.
pub(crate) fn max_reach() -> usize {
    hip::launch_reach()
}

/// The vector accesses of contiguous kernels need pointers at multiples of this.
const ALIGNMENT: usize = 16;

/// Where a dense tensor's bytes start and that they are all inside its buffer.
fn dense(op: &'static str, tensor: &RocmTensor) -> hip::Result<usize> {
    let start = tensor.byte_offset();
    let size = tensor.dtype_size();
    if !tensor.is_contiguous() || start + tensor.len() * size > tensor.buffer().len() {
        return invalid(op, "contiguous elements inside the buffer", format!("{:?}", tensor.layout()));
    }
    Ok(start)
}

/// Whether the contiguous kernels take the tensor as it is.
pub(crate) fn is_packed(tensor: &RocmTensor) -> bool {
    tensor.is_contiguous() && tensor.byte_offset().is_multiple_of(ALIGNMENT)
}

/// The one way to the device.
pub(super) fn submit(launch: Launch<'_>, grid: Grid) -> hip::Result<()> {
    // SAFETY: `flat`, `walk`, `rows`, `views`, `views_to`, `Table` (`ops/multi_tensor.rs`) and
    // `cat` check that the counts, shapes and strides which they pass name elements inside the
    // buffers which they pass. They give each kernel of `hip/kernels` its parameters in the order
    // that its family documents. The kernels touch nothing else.
    unsafe { launch.submit(grid, 0) }
}

fn elements(tensor: &RocmTensor) -> Elements<'_> {
    Elements { buffer: tensor.buffer(), byte_offset: tensor.byte_offset() }
}

/// An element-wise op of packed tensors of one shape and dtype: put off, to be launched together with the next
/// ones, or by its own kernel.
///
/// `kernel` is the op's own, whose first argument is `functor` and whose parameters are those of [`flat`].
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

/// Whether the op on packed elements is one that the device puts off, to launch it together with the next ones.
pub(crate) fn put_off(
    op: &'static str,
    functor: Functor,
    operands: Operands<'_>,
    out: &RocmTensor,
) -> hip::Result<bool> {
    let (dtype, len) = (out.kernel_type()?, out.len());
    out.hip_device().put_off(op, ElementWise { functor, dtype, len, operands, out: elements(out) })
}

/// Launches `kernel(n, inputs.., scalars.., outputs..)` over packed tensors, each of at least `n` elements (the
/// outputs' and inputs' own shapes do not matter).
pub(crate) fn flat(
    op: &'static str,
    kernel: KernelName,
    n: usize,
    inputs: &[&RocmTensor],
    scalars: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<()> {
    for tensor in inputs.iter().chain(outputs) {
        if tensor.len() < n || !is_packed(tensor) {
            return invalid(op, format!("{n} packed elements"), format!("{:?}", tensor.layout()));
        }
    }
    let Some(device) = outputs.first().map(|out| out.hip_device()) else { return Ok(()) };
    let widest = inputs.iter().chain(outputs).map(|tensor| tensor.dtype_size()).max().unwrap_or(1);
    let grid = device.grid_bytes(n * widest);
    rows(op, device, kernel, grid, &[Arg::U64(n as u64)], inputs, scalars, outputs)
}

/// Launches `kernel(dims.., inputs.., scalars.., outputs..)` over dense tensors. `dims` name the elements that the
/// kernel touches; the caller has derived them from these tensors' shapes.
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
    submit(launch, grid)
}

/// Launches `kernel(dims.., inputs.., scalars.., output)` over inputs that need not be dense, a null pointer for an
/// absent one: `dims` give the strides of their own layouts.
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

/// [`views`] with several outputs, a null pointer for an absent one.
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
    let mut launch = device.launch(kernel)?;
    for &dim in dims {
        launch = dim.push(launch);
    }
    for input in inputs {
        let Some(input) = input else {
            launch = launch.value(0u64);
            continue;
        };
        let end = input.layout().span().map_or(0, |(_, last)| (last + 1) * input.dtype_size());
        if end > input.buffer().len() {
            return invalid(op, "elements inside the buffer", format!("{:?}", input.layout()));
        }
        launch = launch.buffer(input.buffer(), input.byte_offset());
    }
    for &scalar in scalars {
        launch = scalar.push(launch);
    }
    outputs.iter().flatten().for_each(|output| launch.reads(output.buffer()));
    for output in outputs {
        launch = match output {
            Some(output) => launch.output(output.buffer(), dense(op, output)?),
            None => launch.value(0u64),
        };
    }
    submit(launch, grid)
}

/// One operand of a strided launch: a tensor and the strides with which the walk's shape reads it.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    buffer: &'a Buffer,
    /// Of the first element, in elements.
    offset: isize,
    size: usize,
    /// Of elements smaller than a byte, how many one holds: the kernel gets the buffer's start, and `offset` before it.
    packed: Option<usize>,
    strides: &'a [isize],
}

impl<'a> Operand<'a> {
    /// `tensor` walked with `strides`, one a dimension of the walk.
    pub(crate) fn new(tensor: &'a RocmTensor, strides: &'a [isize]) -> Self {
        Self {
            buffer: tensor.buffer(),
            offset: tensor.layout().offset() as isize,
            size: tensor.dtype_size(),
            packed: None,
            strides,
        }
    }

    /// `tensor` by units of `bytes`, at a multiple of which it begins; the strides count units.
    pub(crate) fn units(tensor: &'a RocmTensor, strides: &'a [isize], bytes: usize) -> Self {
        let offset = (tensor.layout().offset() * tensor.dtype_size() / bytes) as isize;
        Self { buffer: tensor.buffer(), offset, size: bytes, packed: None, strides }
    }

    /// Values of `bits` each in the bytes of `storage`, which lie as `layout` says.
    pub(crate) fn packed(storage: &'a RocmTensor, layout: &'a Layout, bits: usize) -> Self {
        Self {
            buffer: storage.buffer(),
            offset: layout.offset() as isize,
            size: 1,
            packed: Some(8 / bits),
            strides: layout.strides(),
        }
    }

    /// The bytes that end with element `last`.
    fn bytes_to(&self, last: usize) -> usize {
        match self.packed {
            Some(per_byte) => last / per_byte + 1,
            None => (last + 1) * self.size,
        }
    }

    /// `tensor` walked over its own shape.
    pub(crate) fn whole(tensor: &'a RocmTensor) -> Self {
        Self::new(tensor, tensor.layout().strides())
    }
}

/// The result of a strided launch.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// Element `i` of the walk goes to element `i` of a contiguous tensor.
    Row(&'a RocmTensor),
    /// The result is an operand of the walk like the inputs: the last row of the metadata.
    Last(Operand<'a>),
    /// The same, and the first row.
    First(Operand<'a>),
}

impl<'a> Output<'a> {
    fn walked(&self) -> Option<Operand<'a>> {
        match *self {
            Self::Row(_) => None,
            Self::Last(operand) | Self::First(operand) => Some(operand),
        }
    }
}

/// A strided launch: `kernel(n, before.., Strided<N>, after.., inputs.., scalars.., out)`, N being the inputs and,
/// if it is walked, the output.
pub(crate) struct Walk<'a> {
    op: &'static str,
    kernel: KernelName,
    shape: &'a [usize],
    inputs: &'a [Operand<'a>],
    output: Output<'a>,
    before: &'a [Arg],
    after: &'a [Arg],
    scalars: &'a [Arg],
    work: usize,
    /// A thread takes 16 bytes.
    pieces: bool,
    /// Bytes of an output element, where they are not the tensor's.
    unit: Option<usize>,
}

impl<'a> Walk<'a> {
    /// The kernel over every index of `shape`.
    pub(crate) fn new(
        op: &'static str,
        kernel: KernelName,
        shape: &'a [usize],
        inputs: &'a [Operand<'a>],
        output: Output<'a>,
    ) -> Self {
        Self {
            op,
            kernel,
            shape,
            inputs,
            output,
            before: &[],
            after: &[],
            scalars: &[],
            work: 1,
            pieces: false,
            unit: None,
        }
    }

    /// Scalars between the inputs and the output.
    pub(crate) fn scalars(self, scalars: &'a [Arg]) -> Self {
        Self { scalars, ..self }
    }

    /// Scalars before and after the metadata.
    pub(crate) fn around_metadata(self, before: &'a [Arg], after: &'a [Arg]) -> Self {
        Self { before, after, ..self }
    }

    /// How many elements the kernel works on at each index, where that is not one.
    pub(crate) fn work(self, work: usize) -> Self {
        Self { work, ..self }
    }

    /// The kernel takes 16 bytes of the output at a time where it can, and behind the metadata how the operands
    /// lie: [`lies`].
    pub(crate) fn pieces(self) -> Self {
        Self { pieces: true, ..self }
    }

    /// The output's elements are units of so many bytes.
    pub(crate) fn units(self, bytes: usize) -> Self {
        Self { unit: Some(bytes), ..self }
    }

    /// Launches over the shape, merged to the fewest dimensions and split where 32 bits would not do.
    pub(crate) fn launch(&self) -> hip::Result<()> {
        match self.inputs.len() + self.output.walked().is_some() as usize {
            1 => walk_of::<1>(self),
            2 => walk_of::<2>(self),
            3 => walk_of::<3>(self),
            n => invalid(self.op, "one to three strided operands", n.to_string()),
        }
    }
}

/// `Strided<N>` of `prelude.h`: what a launch takes by value.
trait Metadata: bytemuck::NoUninit {
    fn new(rank: u32, shape: [u32; MAX_DIMS], strides: &[[i32; MAX_DIMS]]) -> Self;
}

macro_rules! metadata {
    ($($name:ident $n:literal),*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::NoUninit)]
        struct $name {
            rank: u32,
            shape: [u32; MAX_DIMS],
            stride: [[i32; MAX_DIMS]; $n],
        }

        impl Metadata for $name {
            fn new(rank: u32, shape: [u32; MAX_DIMS], strides: &[[i32; MAX_DIMS]]) -> Self {
                Self { rank, shape, stride: std::array::from_fn(|n| strides[n]) }
            }
        }
    )*};
}
metadata!(Strided1 1, Strided2 2, Strided3 3);

fn walk_of<const N: usize>(walk: &Walk<'_>) -> hip::Result<()> {
    if walk.shape.contains(&0) {
        return Ok(());
    }
    let rows: Vec<Operand<'_>> = match walk.output {
        Output::Row(_) => walk.inputs.to_vec(),
        Output::Last(operand) => walk.inputs.iter().copied().chain([operand]).collect(),
        Output::First(operand) => [operand].into_iter().chain(walk.inputs.iter().copied()).collect(),
    };
    let operands: [Operand<'_>; N] = std::array::from_fn(|n| rows[n]);
    for operand in &operands {
        inside(walk, operand)?;
    }
    let n: usize = walk.shape.iter().product();
    if let Output::Row(out) = walk.output {
        dense(walk.op, out)?;
        let len = walk.unit.map_or(out.len(), |unit| out.len() * out.dtype_size() / unit);
        if len < n {
            return invalid(walk.op, format!("an output of {n} elements"), format!("{}", out.len()));
        }
    }
    let merged = collapse(walk.shape, operands.map(|operand| operand.strides));
    let strides: [&[isize]; N] = std::array::from_fn(|n| merged.strides[n].as_slice());
    part(walk, &merged.shape, strides, operands.map(|operand| operand.offset), 0)
}

/// That every element the walk reads of `operand` lies inside its buffer.
fn inside(walk: &Walk<'_>, operand: &Operand<'_>) -> hip::Result<()> {
    let (mut low, mut high) = (operand.offset, operand.offset);
    for (&dim, &stride) in walk.shape.iter().zip(operand.strides) {
        let reach = (dim as isize - 1) * stride;
        if reach < 0 { low += reach } else { high += reach }
    }
    let ranks = walk.shape.len() == operand.strides.len();
    if !ranks || low < 0 || operand.bytes_to(high as usize) > operand.buffer.len() {
        return invalid(
            walk.op,
            format!("elements inside a buffer of {} bytes", operand.buffer.len()),
            format!("elements {low} to {high} of {} bytes", operand.size),
        );
    }
    Ok(())
}

/// One launch; one for each index of the outermost dimension where there are more than the kernels take, or two
/// halves along it where they reach too far.
fn part<const N: usize>(
    walk: &Walk<'_>,
    shape: &[usize],
    strides: [&[isize]; N],
    offsets: [isize; N],
    done: usize,
) -> hip::Result<()> {
    let n: usize = shape.iter().product();
    if shape.len() > MAX_DIMS {
        for at in 0..shape[0] {
            let moved = std::array::from_fn(|n| offsets[n] + at as isize * strides[n][0]);
            part(walk, &shape[1..], strides.map(|strides| &strides[1..]), moved, done + at * (n / shape[0]))?;
        }
        return Ok(());
    }
    let reach = |strides: &[isize]| -> usize {
        shape.iter().zip(strides).map(|(&dim, &stride)| (dim - 1) * stride.unsigned_abs()).sum()
    };
    let most = max_reach();
    if n <= most && strides.iter().all(|strides| reach(strides) <= most) {
        return match N {
            1 => launch_part::<N, Strided1>(walk, shape, strides, offsets, done, n),
            2 => launch_part::<N, Strided2>(walk, shape, strides, offsets, done, n),
            _ => launch_part::<N, Strided3>(walk, shape, strides, offsets, done, n),
        };
    }
    if shape[0] == 1 {
        return part(walk, &shape[1..], strides.map(|strides| &strides[1..]), offsets, done);
    }
    let mut halves = [shape.to_vec(), shape.to_vec()];
    halves[0][0] = shape[0] / 2;
    halves[1][0] = shape[0] - shape[0] / 2;
    let first: usize = halves[0].iter().product();
    let skipped = std::array::from_fn(|n| offsets[n] + halves[0][0] as isize * strides[n][0]);
    part(walk, &halves[0], strides, offsets, done)?;
    part(walk, &halves[1], strides, skipped, done + first)
}

/// 0, or 1 where the last axis is of pieces of `width` elements that every operand has side by side and begins at a
/// multiple of as many; `2 << k` is added where operand `k` has one value along it instead.
fn lies<const N: usize>(shape: &[usize], strides: [&[isize]; N], width: usize) -> u32 {
    if !shape.last().is_some_and(|last| last.is_multiple_of(width)) {
        return 0;
    }
    let mut lies = 1;
    for (k, strides) in strides.iter().enumerate() {
        match strides.split_last() {
            Some((0, _)) => lies |= 2 << k,
            Some((1, others)) if others.iter().all(|stride| stride.unsigned_abs().is_multiple_of(width)) => {}
            _ => return 0,
        }
    }
    lies
}

fn launch_part<const N: usize, M: Metadata>(
    walk: &Walk<'_>,
    shape: &[usize],
    strides: [&[isize]; N],
    offsets: [isize; N],
    done: usize,
    n: usize,
) -> hip::Result<()> {
    let device = match walk.output {
        Output::Row(out) => out.hip_device(),
        Output::Last(operand) | Output::First(operand) => operand.buffer.device(),
    };
    let mut sizes = [1u32; MAX_DIMS];
    for (size, &dim) in sizes.iter_mut().zip(shape) {
        *size = dim as u32;
    }
    let rows: [[i32; MAX_DIMS]; N] = std::array::from_fn(|n| {
        let mut row = [0i32; MAX_DIMS];
        for (to, &from) in row.iter_mut().zip(strides[n]) {
            *to = from as i32;
        }
        row
    });
    let mut launch = device.launch(walk.kernel)?.value(n as u32);
    for &value in walk.before {
        launch = value.push(launch);
    }
    launch = launch.value(M::new(shape.len() as u32, sizes, &rows));
    if let (true, Output::Row(out)) = (walk.pieces, walk.output) {
        launch = launch.value(lies(shape, strides, 16 / out.dtype_size()));
    }
    for &value in walk.after {
        launch = value.push(launch);
    }
    let first_input = matches!(walk.output, Output::First(_)) as usize;
    for (operand, offset) in walk.inputs.iter().zip(&offsets[first_input..]) {
        launch = match operand.packed {
            Some(_) => launch.value(*offset as u64).buffer(operand.buffer, 0),
            None => launch.buffer(operand.buffer, *offset as usize * operand.size),
        };
    }
    for &scalar in walk.scalars {
        launch = scalar.push(launch);
    }
    launch = match walk.output {
        Output::Row(out) => {
            let size = walk.unit.unwrap_or(out.dtype_size());
            launch.output(out.buffer(), out.byte_offset() + done * size)
        }
        Output::Last(operand) => launch.output(operand.buffer, offsets[N - 1] as usize * operand.size),
        Output::First(operand) => launch.output(operand.buffer, offsets[0] as usize * operand.size),
    };
    let mut grid = match walk.output {
        Output::Row(out) if walk.pieces => device.grid_bytes(n * out.dtype_size()),
        _ => device.grid(n.saturating_mul(walk.work)),
    };
    grid.blocks = grid.blocks.min(n as u32);
    submit(launch, grid)
}
