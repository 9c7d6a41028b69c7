//! One convolution call: its checks, its workspace and its execution.

use super::super::status::{by_float, input, output};
use super::problem::{Direction, Problem};
use super::{direct, pointwise, products, weights};
use hip_provider::miopen::{Convolution, ConvolutionBuffers, Kind, Outcome, Tensor};
use hip_provider::require;
use miopen_sys::*;
use std::borrow::Cow;

use crate::numeric::element::Single;
use crate::numeric::halves::Halves;
use crate::runtime::enqueue;

/// A checked call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(super) kind: Kind,
    pub(super) data: miopenDataType_t,
    /// If `transposed`, the problem of the plain convolution that the call transposes.
    pub(super) problem: Problem,
    transposed: bool,
    halves: Halves,
    /// Whether the channels of the problem's input, weights and output are innermost in memory.
    /// Such tensors are converted before and after the convolution.
    last: [bool; 3],
}

fn spatial(values: &[usize], default: usize) -> [usize; 3] {
    if values.len() == 2 { [default, values[0], values[1]] } else { [values[0], values[1], values[2]] }
}

impl Call {
    /// Checks the tensors against each other, as MIOpen does.
    pub(super) fn new(kind: Kind, conv: &Convolution, [x, w, y]: [&Tensor; 3]) -> Outcome<Call> {
        for tensor in [x, w, y] {
            require(tensor.is_packed() || tensor.is_channels_last(), miopenStatusNotImplemented)?;
        }
        let transposed = conv.is_transposed();
        // A transposed convolution is the backward direction of the convolution from y to x.
        let (input, output) = if transposed { (y, x) } else { (x, y) };
        let last = [input, w, output].map(|tensor| !tensor.is_packed());
        let groups = conv.groups;
        let (channels, filters) = (input.dims[1], output.dims[1]);
        require(input.dims[0] == output.dims[0], miopenStatusBadParm)?;
        require(channels.is_multiple_of(groups) && filters.is_multiple_of(groups), miopenStatusBadParm)?;
        require(w.dims[0] == filters && w.dims[1] * groups == channels, miopenStatusBadParm)?;
        let problem = Problem {
            batch: input.dims[0],
            groups,
            c: channels / groups,
            k: filters / groups,
            input: spatial(&input.dims[2..], 1),
            output: spatial(&output.dims[2..], 1),
            filter: spatial(&w.dims[2..], 1),
            stride: spatial(&conv.stride, 1),
            pad: spatial(&conv.pad, 0),
            dilation: spatial(&conv.dilation, 1),
        };
        // At least the floats of an image's filled planes, forward and backward.
        let mut filled = Some(problem.c.max(problem.k));
        for axis in 0..3 {
            let reach = (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
            let padded = problem.input[axis] + 2 * problem.pad[axis];
            require(padded >= reach, miopenStatusBadParm)?;
            let expected = (padded - reach) / problem.stride[axis] + 1;
            // A caller may choose an output for a transposed convolution that is longer than the
            // shortest one that leads back to the input.
            require(problem.output[axis] == expected, miopenStatusBadParm)?;
            let longest = (padded + problem.filter[axis]).max(problem.input[axis] + reach);
            filled = filled.and_then(|filled| filled.checked_mul(longest));
        }
        // Offsets into the filled planes have 32 bits.
        require(filled.is_some_and(|filled| u32::try_from(filled).is_ok()), miopenStatusNotImplemented)?;
        // Without the attribute, MIOpen uses the alternative in both backward directions.
        let alternative = conv.alternative.unwrap_or(kind != Kind::Forward);
        let halves = if x.data == miopenHalf { Halves::of(alternative) } else { Halves::Exact };
        Ok(Call { kind, data: x.data, problem, transposed, halves, last })
    }

    /// The direction of [`Call::problem`]; `None` for the weights' gradient. A transposed call
    /// swaps forward and backward.
    fn direction(&self) -> Option<Direction> {
        match (self.kind, self.transposed) {
            (Kind::Forward, false) | (Kind::BackwardData, true) => Some(Direction::Forward),
            (Kind::BackwardData, false) | (Kind::Forward, true) => Some(Direction::Backward),
            (Kind::BackwardWeights, _) => None,
        }
    }

    /// Bytes of workspace.
    pub(super) fn workspace(&self) -> usize {
        let floats = by_float!(self.data, workspace_of(self)).unwrap_or(0);
        floats * size_of::<f32>()
    }

    /// An estimate of the time in milliseconds, at a desktop core's 50 GFLOP/s.
    pub(super) fn estimate(&self) -> f32 {
        let p = &self.problem;
        let operations = 2.0 * p.w_len() as f64 * p.batch as f64 * p.output_plane() as f64;
        (operations / 50e6) as f32
    }

    /// Runs the call in its stream's order.
    ///
    /// # Safety
    /// No other code uses the buffers meanwhile, and the written one overlaps no other.
    pub(super) unsafe fn enqueue(self, buffers: ConvolutionBuffers) -> Outcome {
        require(buffers.workspace_size >= self.workspace(), miopenStatusBadParm)?;
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || self.run(buffers)) }
    }

    /// Runs the call at once.
    ///
    /// # Safety
    /// As [`Call::enqueue`].
    pub(super) unsafe fn run(&self, buffers: ConvolutionBuffers) -> Outcome {
        let needed = self.workspace();
        require(buffers.workspace_size >= needed, miopenStatusBadParm)?;
        // SAFETY: the caller vouches for the buffers.
        let workspace = unsafe { output::<f32>(buffers.workspace, needed / size_of::<f32>()) }?;
        by_float!(self.data, run_as(self, buffers, workspace))
    }
}

/// Floats of workspace.
fn workspace_of<T: Single>(call: &Call) -> Outcome<usize> {
    let p = &call.problem;
    Ok(match call.direction() {
        Some(direction) => match Algorithm::of(p, direction) {
            Algorithm::Pointwise => pointwise::workspace_len::<T>(p, Some(direction)),
            Algorithm::Products => products::workspace_len::<T>(p, direction),
            Algorithm::Direct => direct::workspace_len(p),
        },
        None if pointwise::applies(p) => pointwise::workspace_len::<T>(p, None),
        None => weights::workspace_len::<T>(p),
    })
}

/// How the forward or the backward-data direction is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    /// One product of whole matrices.
    Pointwise,
    /// Products of packed patches.
    Products,
    /// Direct sums.
    Direct,
}

type Convolve<T> = unsafe fn(&Problem, Direction, *const T, *const T, *mut T, &mut [f32]);

impl Algorithm {
    /// The fastest algorithm for a shape.
    fn of(p: &Problem, direction: Direction) -> Self {
        if pointwise::applies(p) {
            Self::Pointwise
        } else if products::applies(p, direction) {
            Self::Products
        } else {
            Self::Direct
        }
    }

    fn function<T: Single>(self) -> Convolve<T> {
        match self {
            Self::Pointwise => pointwise::convolve,
            Self::Products => products::convolve,
            Self::Direct => direct::convolve,
        }
    }
}

/// Elements of `[outer, inner]` matrices, each transposed to `[inner, outer]`.
fn swapped<T: Copy>(values: &[T], outer: usize, inner: usize) -> Vec<T> {
    let matrices = values.chunks_exact((outer * inner).max(1));
    let column = |matrix: &[T], at: usize| matrix[at..].iter().step_by(inner).copied().collect::<Vec<T>>();
    matrices.flat_map(|matrix| (0..inner).flat_map(move |at| column(matrix, at))).collect()
}

/// Channels and pixels of one sample (of one filter for the weights) of the input, the weights and
/// the output.
fn sizes(p: &Problem) -> [[usize; 2]; 3] {
    [[p.groups * p.c, p.input_plane()], [p.c, p.taps()], [p.groups * p.k, p.output_plane()]]
}

/// Operands as the imitated chip sees them.
fn as_seen<T: Single>(halves: Halves, values: &[T]) -> Cow<'_, [T]> {
    match halves {
        Halves::Exact => Cow::Borrowed(values),
        _ => values.iter().map(|value| T::narrow(halves.operand(value.widen()))).collect(),
    }
}

/// Rounds results as the imitated chip does.
fn round<T: Single>(halves: Halves, values: &mut [T]) {
    if halves != Halves::Exact {
        values.iter_mut().for_each(|value| *value = T::narrow(halves.result(value.widen())));
    }
}

fn run_as<T: Single>(call: &Call, buffers: ConvolutionBuffers, workspace: &mut [f32]) -> Outcome {
    let p = &call.problem;
    let (x, y) = if call.transposed { (buffers.y, buffers.x) } else { (buffers.x, buffers.y) };
    let sizes = sizes(p);
    // The operand with its channels outside the pixels.
    let seen = |values, at: usize| match (as_seen(call.halves, values), call.last[at]) {
        (values, false) => values,
        (values, true) => Cow::Owned(swapped(&values, sizes[at][1], sizes[at][0])),
    };
    // Computes into a result with its channels outside the pixels.
    let into = |result: &mut [T], at: usize, compute: &mut dyn FnMut(&mut [T])| match call.last[at] {
        false => compute(result),
        true => {
            let mut planes = result.to_vec();
            compute(&mut planes);
            result.copy_from_slice(&swapped(&planes, sizes[at][0], sizes[at][1]));
        }
    };
    // SAFETY: `Call::run`'s contract for the buffers; their sizes and places are checked here.
    unsafe {
        match call.direction() {
            Some(Direction::Forward) => {
                let (x, w) = (seen(input::<T>(x, p.x_len())?, 0), seen(input::<T>(buffers.w, p.w_len())?, 1));
                into(output::<T>(y, p.y_len())?, 2, &mut |y| {
                    let convolve = Algorithm::of(p, Direction::Forward).function::<T>();
                    convolve(p, Direction::Forward, x.as_ptr(), w.as_ptr(), y.as_mut_ptr(), workspace);
                    round(call.halves, y);
                });
            }
            Some(Direction::Backward) => {
                let (dy, w) =
                    (seen(input::<T>(y, p.y_len())?, 2), seen(input::<T>(buffers.w, p.w_len())?, 1));
                into(output::<T>(x, p.x_len())?, 0, &mut |dx| {
                    let convolve = Algorithm::of(p, Direction::Backward).function::<T>();
                    convolve(p, Direction::Backward, dy.as_ptr(), w.as_ptr(), dx.as_mut_ptr(), workspace);
                    round(call.halves, dx);
                });
            }
            None => {
                let (dy, x) = (seen(input::<T>(y, p.y_len())?, 2), seen(input::<T>(x, p.x_len())?, 0));
                into(output::<T>(buffers.w, p.w_len())?, 1, &mut |dw| {
                    let backward_weights = if pointwise::applies(p) {
                        pointwise::backward_weights
                    } else {
                        weights::backward_weights
                    };
                    backward_weights(p, dy.as_ptr(), x.as_ptr(), dw.as_mut_ptr(), workspace);
                    round(call.halves, dw);
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of networks, each with the algorithms that are the fastest for it forward and
    /// backward (`docs/decisions/011-convolution-on-the-cpu.md`).
    #[test]
    fn layers_take_the_fastest_algorithm() {
        use Algorithm::{Direct, Pointwise, Products};
        // `groups`, the channels of one group, the filter's side, and the image's side.
        let layer = |groups, [c, k]: [usize; 2], filter: usize, size: usize| Problem {
            batch: 2,
            groups,
            c,
            k,
            input: [1, size, size],
            output: [1, size, size],
            filter: [1, filter, filter],
            stride: [1; 3],
            pad: [0, filter / 2, filter / 2],
            dilation: [1; 3],
        };
        for (what, p, expected) in [
            ("ResNet-18, 3x3", layer(1, [64, 64], 3, 56), [Products, Products]),
            // Only three channels of the input's gradient would read the packed patches.
            ("ResNet-18, 7x7 of an image", layer(1, [3, 64], 7, 112), [Products, Direct]),
            ("ResNet-50, 1x1", layer(1, [64, 256], 1, 56), [Pointwise, Pointwise]),
            ("1x1 of few pixels", layer(1, [512, 512], 1, 4), [Products, Products]),
            ("MobileNetV2, depthwise", layer(96, [1, 1], 3, 56), [Direct, Direct]),
            ("two groups", layer(2, [32, 32], 3, 28), [Products, Products]),
        ] {
            let found = [Direction::Forward, Direction::Backward].map(|way| Algorithm::of(&p, way));
            assert_eq!(found, expected, "{what}");
        }
    }
}
