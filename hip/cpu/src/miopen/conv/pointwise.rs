//! Convolutions by 1x1 filters as matrix products by the `gemm` crate.
//!
//! If the filter reads every pixel of an f32 tensor, the planes are the matrix already and nothing
//! is copied. Otherwise the planes of a few images at a time, a wave, are written out first: f16
//! and bf16 are widened, and a stride picks pixels.

use super::convert::{CHUNK, narrow, widened};
use super::patches::{Sources, WAVE};
use super::plan::Fill;
use super::problem::{Direction, Problem};
use crate::numeric::element::Single;
use crate::numeric::multiply::{Operand, Product, multiply_in_order, multiply_sum, sum_len};
use crate::numeric::shared::Shared;
use crate::runtime::parallel;

/// The fewest channels, of both input and output, for which the `gemm` crate's packing pays. With
/// the 16 channels of MobileNetV2 it pays (batch 2, 112x112, one core with AVX2 of an EPYC 7003).
const LEAST_CHANNELS: usize = 8;

/// The fewest pixels of an image. Each image is a product of its own, which reads the whole filter
/// again. Measured on the same core with 512 channels of 512 and batch 64, relative to the time of
/// one product over all images: 12.7 with 2 pixels, 3.6 with 4 and 1.0 with 16. The weights'
/// gradient takes 15, 6 and 1.5, and with 49 pixels 1.3 and 1.6. Algorithms that join images take
/// 1.2 to 2.
const LEAST_PIXELS: usize = 32;

/// Whether a convolution runs as a product of whole matrices.
pub(crate) fn applies(p: &Problem) -> bool {
    p.groups == 1
        && p.taps() == 1
        && p.pad == [0; 3]
        && p.c.min(p.k) >= LEAST_CHANNELS
        && p.output_plane() >= LEAST_PIXELS
}

/// The layout of the planes that a product reads: the pixels of `x` under the filter, or all of
/// `dy`.
fn fill_of(p: &Problem, direction: Direction) -> Fill {
    let (channels, source, step) = match direction {
        Direction::Forward => (p.c, p.input, p.stride),
        Direction::Backward => (p.k, p.output, [1; 3]),
    };
    Fill { channels, source, phases: vec![[0; 3]], step, dims: p.output }
}

/// The parts of a call's workspace.
struct Layout<'a> {
    sources: Sources<'a>,
    /// The number of images that are multiplied at a time.
    wave: usize,
    /// The floats of each part: the widened filter or the sums of its gradient; the planes; a
    /// wave's results or widened `dy`; the sums of runs of pixels.
    lengths: [usize; 4],
}

impl<'a> Layout<'a> {
    /// `aside` is the floats that an image's results, or its widened `dy`, need besides its planes.
    fn new<T: Single>(p: &Problem, fill: &'a Fill, aside: usize) -> Layout<'a> {
        let sources = Sources::new::<T>(fill, p);
        let most = WAVE.checked_div(aside).unwrap_or(usize::MAX);
        let wave = sources.wave().min(most).max(1);
        let filter = if T::IS_F32 { 0 } else { p.w_len() };
        let lengths = [filter, sources.len(), wave * aside, 0];
        Layout { sources, wave, lengths }
    }

    fn of<T: Single>(p: &Problem, direction: Direction, fill: &'a Fill) -> Layout<'a> {
        // A product writes f32 results directly to `dst`, unless a stride leaves gaps between them.
        let in_place = T::IS_F32 && (direction == Direction::Forward || p.stride == [1; 3]);
        let outputs = if direction == Direction::Forward { p.k } else { p.c };
        Self::new::<T>(p, fill, if in_place { 0 } else { outputs * p.output_plane() })
    }

    fn of_weights<T: Single>(p: &Problem, fill: &'a Fill) -> Layout<'a> {
        let mut layout = Self::new::<T>(p, fill, if T::IS_F32 { 0 } else { p.k * p.output_plane() });
        layout.lengths[3] = sum_len(p.c, p.k, layout.wave * p.output_plane());
        layout
    }
}

/// The floats of workspace for a direction; `None` stands for the weights' gradient.
pub(crate) fn workspace_len<T: Single>(p: &Problem, direction: Option<Direction>) -> usize {
    let fill = fill_of(p, direction.unwrap_or(Direction::Forward));
    let layout = match direction {
        Some(direction) => Layout::of::<T>(p, direction, &fill),
        None => Layout::of_weights::<T>(p, &fill),
    };
    layout.lengths.iter().sum()
}

/// Writes a plane of results to its pixels in a plane of `dx`, and zeros to all other pixels.
fn spread<T: Single>(p: &Problem, from: &[f32], to: &mut [T]) {
    let ([_, height, width], [_, to_height, to_width]) = (p.output, p.input);
    to.fill(T::narrow(0.0));
    for (row, from) in from.chunks_exact(width).enumerate() {
        let (d, h) = (row / height * p.stride[0], row % height * p.stride[1]);
        let to = &mut to[(d * to_height + h) * to_width..][..to_width];
        for (to, &value) in to.iter_mut().step_by(p.stride[2]).zip(from) {
            *to = T::narrow(value);
        }
    }
}

/// Runs a convolution forward (`src` is x, `dst` is y) or backward to the data (`src` is dy, `dst`
/// is dx).
///
/// # Safety
/// `src`, `w` and `dst` are valid for the whole tensors of `p`, and `dst` overlaps neither.
pub(crate) unsafe fn convolve<T: Single>(
    p: &Problem,
    direction: Direction,
    src: *const T,
    w: *const T,
    dst: *mut T,
    workspace: &mut [f32],
) {
    let fill = fill_of(p, direction);
    let layout = Layout::of::<T>(p, direction, &fill);
    let (filter, rest) = workspace.split_at_mut(layout.lengths[0]);
    let (room, results) = rest.split_at_mut(layout.lengths[1]);
    let (src, dst, results) = (Shared(src.cast_mut()), Shared(dst), Shared(results.as_mut_ptr()));
    let in_place = layout.lengths[2] == 0;
    let pixels = p.output_plane();
    // The filter is [k][c] in memory. A product reads it as [c, k] forward and as [k, c] backward.
    let (inner, outputs, plane, filter_strides) = match direction {
        Direction::Forward => (p.c, p.k, p.output_plane(), (1, p.c as isize)),
        Direction::Backward => (p.k, p.c, p.input_plane(), (p.c as isize, 1)),
    };
    // SAFETY: the caller vouches for the filter; the workspace has room for it.
    let filter = unsafe { widened(p.w_len(), Shared(w.cast_mut()), Shared(filter.as_mut_ptr())) };
    for first in (0..p.batch).step_by(layout.wave) {
        let images = layout.wave.min(p.batch - first);
        let results = if in_place {
            Shared(dst.get().cast::<f32>().wrapping_add(first * outputs * plane))
        } else {
            results
        };
        // SAFETY: the caller vouches for the tensors; each image's results are its own.
        unsafe {
            let planes = layout.sources.fill(src, first, images, room);
            multiply_in_order(images, |image| Product {
                m: pixels,
                n: outputs,
                k: inner,
                a: Operand { at: planes.image(image), row: 1, column: pixels as isize },
                b: Operand { at: filter.get().cast_const(), row: filter_strides.0, column: filter_strides.1 },
                c: results.get().add(image * outputs * pixels),
                c_row: 1,
                c_column: pixels as isize,
                alpha: 1.0,
                beta: 0.0,
            });
        }
        if in_place {
            continue;
        }
        let each = CHUNK.div_ceil(plane.max(1));
        parallel((images * outputs).div_ceil(each), |task| {
            for index in task * each..((task + 1) * each).min(images * outputs) {
                // SAFETY: each plane is one task's, inside the results and the tensor.
                unsafe {
                    let from = core::slice::from_raw_parts(results.get().add(index * pixels), pixels);
                    let to = dst.get().add((first * outputs + index) * plane);
                    let to = core::slice::from_raw_parts_mut(to, plane);
                    if plane == pixels { T::narrow_slice(from, to) } else { spread(p, from, to) }
                }
            }
        });
    }
}

/// `dw` from `dy` and `x`: the sum over images of their products.
///
/// # Safety
/// `dy`, `x` and `dw` are valid for the whole tensors of `p`, and `dw` overlaps neither.
pub(crate) unsafe fn backward_weights<T: Single>(
    p: &Problem,
    dy: *const T,
    x: *const T,
    dw: *mut T,
    workspace: &mut [f32],
) {
    let fill = fill_of(p, Direction::Forward);
    let layout = Layout::of_weights::<T>(p, &fill);
    let (sums, rest) = workspace.split_at_mut(layout.lengths[0]);
    let (room, rest) = rest.split_at_mut(layout.lengths[1]);
    let (wide, runs) = rest.split_at_mut(layout.lengths[2]);
    let runs = Shared(runs.as_mut_ptr());
    let (dy, x, wide) = (Shared(dy.cast_mut()), Shared(x.cast_mut()), Shared(wide.as_mut_ptr()));
    let sums = Shared(if T::IS_F32 { dw.cast::<f32>() } else { sums.as_mut_ptr() });
    let pixels = p.output_plane();
    let gradient = p.k * pixels;
    for first in (0..p.batch).step_by(layout.wave) {
        let images = layout.wave.min(p.batch - first);
        // SAFETY: the caller vouches for the tensors; the workspace has room for what is widened.
        unsafe {
            let planes = layout.sources.fill(x, first, images, room);
            let from = Shared(dy.get().add(first * gradient));
            let grads = widened(images * gradient, from, wide);
            multiply_sum(images, runs, |image| Product {
                m: p.c,
                n: p.k,
                k: pixels,
                a: Operand { at: planes.image(image), row: pixels as isize, column: 1 },
                b: Operand {
                    at: grads.get().add(image * gradient).cast_const(),
                    row: 1,
                    column: pixels as isize,
                },
                c: sums.get(),
                c_row: 1,
                c_column: p.c as isize,
                alpha: 1.0,
                beta: if first == 0 { 0.0 } else { 1.0 },
            });
        }
    }
    // SAFETY: the sums and `dw` have the filter's length.
    unsafe { narrow(p.w_len(), sums, Shared(dw)) };
}
