//! Launches over strided elements.

use hip::{Buffer, KernelName};

use super::{dense, max_reach, submit};
use crate::arg::Arg;
use crate::error::invalid;
use crate::layout::{Layout, collapse};
use crate::tensor::RocmTensor;

/// `MAX_DIMS` of `prelude.h`.
const MAX_DIMS: usize = 8;

/// One operand of a strided launch: a tensor, and its strides over the shape of the launch.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    buffer: &'a Buffer,
    /// The first element's offset in the buffer, in elements.
    offset: isize,
    size: usize,
    /// Elements per byte, for elements of fewer than 8 bits. The kernel then gets `offset` and the
    /// buffer's start.
    packed: Option<usize>,
    strides: &'a [isize],
}

impl<'a> Operand<'a> {
    /// `tensor` read with `strides`, one for each dimension of the launch.
    pub(crate) fn new(tensor: &'a RocmTensor, strides: &'a [isize]) -> Self {
        Self {
            buffer: tensor.buffer(),
            offset: tensor.layout().offset() as isize,
            size: tensor.dtype_size(),
            packed: None,
            strides,
        }
    }

    /// `tensor` read in units of `bytes`. It begins at a multiple of `bytes`, and the strides count
    /// units.
    pub(crate) fn units(tensor: &'a RocmTensor, strides: &'a [isize], bytes: usize) -> Self {
        let offset = (tensor.layout().offset() * tensor.dtype_size() / bytes) as isize;
        Self { buffer: tensor.buffer(), offset, size: bytes, packed: None, strides }
    }

    /// Values of `bits` bits each, packed in the bytes of `storage`, in the layout `layout`.
    pub(crate) fn packed(storage: &'a RocmTensor, layout: &'a Layout, bits: usize) -> Self {
        Self {
            buffer: storage.buffer(),
            offset: layout.offset() as isize,
            size: 1,
            packed: Some(8 / bits),
            strides: layout.strides(),
        }
    }

    /// The number of bytes up to and including element `last`.
    fn bytes_to(&self, last: usize) -> usize {
        match self.packed {
            Some(per_byte) => last / per_byte + 1,
            None => (last + 1) * self.size,
        }
    }

    /// The bytes of its elements in a launch over `shape`. A value that repeats along an axis counts
    /// once.
    pub(super) fn bytes_of(&self, shape: &[usize], strides: &[isize]) -> usize {
        let axes = shape.iter().zip(strides).filter(|(_, stride)| **stride != 0);
        let elements: usize = axes.map(|(&dim, _)| dim).product();
        match self.packed {
            Some(per_byte) => elements.div_ceil(per_byte),
            None => elements * self.size,
        }
    }

    /// `tensor` read over its own shape.
    pub(crate) fn whole(tensor: &'a RocmTensor) -> Self {
        Self::new(tensor, tensor.layout().strides())
    }
}

/// The result of a strided launch.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// Element `i` of the launch goes to element `i` of a contiguous tensor.
    Row(&'a RocmTensor),
    /// The output is strided like the inputs. Its strides are the last row of the metadata.
    Last(Operand<'a>),
    /// The output is strided like the inputs. Its strides are the first row of the metadata.
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

/// A strided launch: `kernel(n, before.., Strided<N>, after.., inputs.., scalars.., out)`, where N
/// counts the inputs and, if it is strided, the output.
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
    /// Whether a thread takes 16 bytes of the output at a time.
    pieces: bool,
    /// The bytes of an output element, if they are not those of the tensor's dtype.
    unit: Option<usize>,
}

impl<'a> Walk<'a> {
    /// Runs the kernel at every index of `shape`.
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

    /// Passes scalars between the inputs and the output.
    pub(crate) fn scalars(self, scalars: &'a [Arg]) -> Self {
        Self { scalars, ..self }
    }

    /// Passes scalars before and after the metadata.
    pub(crate) fn around_metadata(self, before: &'a [Arg], after: &'a [Arg]) -> Self {
        Self { before, after, ..self }
    }

    /// Sets how many elements the kernel processes at each index. The default is one.
    pub(crate) fn work(self, work: usize) -> Self {
        Self { work, ..self }
    }

    /// The kernel takes 16 bytes of the output at a time if it can. It gets the result of [`lies`]
    /// after the metadata.
    pub(crate) fn pieces(self) -> Self {
        Self { pieces: true, ..self }
    }

    /// The output's elements are units of `bytes` bytes.
    pub(crate) fn units(self, bytes: usize) -> Self {
        Self { unit: Some(bytes), ..self }
    }

    /// Launches over the shape, which is merged to the fewest dimensions and split where it exceeds
    /// 32 bits.
    pub(crate) fn launch(&self) -> hip::Result<()> {
        match self.inputs.len() + self.output.walked().is_some() as usize {
            1 => walk_of::<1>(self),
            2 => walk_of::<2>(self),
            3 => walk_of::<3>(self),
            n => invalid(self.op, "one to three strided operands", n.to_string()),
        }
    }
}

/// `Strided<N>` of `prelude.h`, which a launch passes by value.
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

/// Checks that every element which the launch accesses in `operand` lies inside its buffer.
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

/// One launch if possible. If there are too many dimensions for the kernels, it takes one launch
/// for each index of the outermost dimension. If offsets exceed 32 bits, it takes two launches, one
/// for each half of the outermost dimension.
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

/// 1 if the last axis consists of pieces of `width` elements that are contiguous and aligned in
/// every operand, else 0. An operand may instead repeat one value along the axis. Bit `k + 1` is
/// set if operand `k` does.
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
    let bytes = || -> usize {
        let written = match walk.output {
            Output::Row(out) => n * walk.unit.unwrap_or(out.dtype_size()),
            // Counted with the inputs.
            Output::Last(_) | Output::First(_) => 0,
        };
        let walked = walk.inputs.iter().copied().chain(walk.output.walked());
        let order = (first_input..N).chain(0..first_input);
        written + walked.zip(order).map(|(operand, k)| operand.bytes_of(shape, strides[k])).sum::<usize>()
    };
    submit(launch.moves(bytes), grid)
}
