//! Backward-weights convolution: dot products of rows of `dy`, the output's gradient, with rows of
//! patches.
//!
//! `dw[k][c][tap] = sum over images and pixels of dy[k][pixel] * x[c][pixel + offset[tap]]`. For
//! one block of pixels at a time, both operands are written out row by row, each row padded with
//! zeros to whole vectors. Register tiles of outputs then sum in vectors along the pixels. Each
//! output belongs to one task, so its sum has a fixed order and the same bits for any number of
//! cores.

use super::convert::{narrow, widened};
use super::geometry::geometry;
use super::patches::{Piece, Planes, Sources, joined};
use super::plan::Plan;
use super::problem::{Direction, Problem};
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::numeric::shared::Shared;
use crate::numeric::simd::{Vector, by_level};
use crate::runtime::{parallel, threads};

/// The pixels of a block. With this many, adding up a tile's vectors at the block's end takes a
/// tenth of the block's time.
const PIXELS: usize = 768;

/// How many floats of patches all rows of the gradient are multiplied by before the next patches
/// are used. With three rows of the gradient they fit a first-level cache.
const NEAR: usize = 5 << 10;

/// The floats of a block's row in scratch memory: its pixels, and a vector that is written after
/// the last pixel.
const ROW: usize = PIXELS + 16;

/// The rows of patches that are written out at once: with `ROW` 147 KiB, which leaves room for a
/// few rows of the gradient in a second-level cache.
const ROWS: usize = 48;

/// The fewest rows of the gradient that a task has, if the patches alone make too few tasks. Each
/// task writes out its patches again.
const LEAST: usize = 48;

/// The floats of workspace: the planes; for f16 and bf16 also the gradient of a wave of images, and
/// the sums.
pub(crate) fn workspace_len<T: Single>(p: &Problem) -> usize {
    let plan = Plan::of(p, Direction::Forward);
    let sources = Sources::new::<T>(&plan.fill, p);
    sources.len() + if T::IS_F32 { 0 } else { sources.wave() * gradient(p) + p.w_len() }
}

/// Elements of one image's gradient.
fn gradient(p: &Problem) -> usize {
    p.groups * p.k * p.output_plane()
}

/// A block of pixels of one group.
#[derive(Clone, Copy)]
struct Work<'a> {
    planes: &'a Planes,
    pieces: &'a [Piece],
    columns: usize,
    /// The offsets of the current rows of patches.
    offsets: &'a [u32],
    patches: *mut f32,
    /// The gradient, at the task's first row of the wave's first image.
    dy: *const f32,
    plane: usize,
    rows: usize,
    /// The block's rows of the gradient. `apart` is the floats from one row to the next.
    gradients: *const f32,
    apart: usize,
    /// `[row][stride]`
    sums: *mut f32,
    stride: usize,
    adds: bool,
}

/// Writes a vector of zeros at a row's end, so that its last vector is padded.
#[inline(always)]
unsafe fn close<V: Vector>(row: *mut f32, columns: usize) {
    // SAFETY: the caller vouches for room for a vector beyond the columns.
    unsafe { V::zero().store(row.add(columns)) }
}

/// Writes out the gradient's rows.
#[inline(always)]
unsafe fn gather_gradients<V: Vector>(work: Work<'_>, to: *mut f32) {
    for row in 0..work.rows {
        // SAFETY: the caller vouches for the level and the memory.
        unsafe {
            let (from, to) = (work.dy.add(row * work.plane), to.add(row * ROW));
            for piece in work.pieces {
                core::ptr::copy_nonoverlapping(from.add(piece.to), to.add(piece.at), piece.count);
            }
            close::<V>(to, work.columns);
        }
    }
}

/// Writes out rows of patches and adds their products with the gradient's rows to the sums.
#[inline(always)]
unsafe fn accumulate<V: Vector>(work: Work<'_>) {
    let vectors = work.columns.div_ceil(V::LANES);
    // SAFETY: the caller vouches for the level and the memory.
    unsafe {
        for (tap, &offset) in work.offsets.iter().enumerate() {
            let line = work.patches.add(tap * ROW);
            work.planes.gather::<V>(work.pieces, offset as usize, line);
            close::<V>(line, work.columns);
        }
        let near = (NEAR / work.columns.next_multiple_of(V::LANES)).clamp(3, 48) / 3 * 3;
        for first in (0..work.offsets.len()).step_by(near) {
            let last = (first + near).min(work.offsets.len());
            for row in (0..work.rows).step_by(3) {
                for tap in (first..last).step_by(3) {
                    let dy = (work.gradients.add(row * work.apart), work.apart);
                    let x = work.patches.add(tap * ROW);
                    let to = work.sums.add(row * work.stride + tap);
                    macro_rules! tiles {
                        ($($r:literal: $($n:literal)+;)+) => {
                            match ((work.rows - row).min(3), (last - tap).min(3)) {
                                $($(($r, $n) => tile::<V, $r, $n>(vectors, dy, x, to, work.stride, work.adds),)+)+
                                (rows, taps) => unreachable!("no tile of {rows} x {taps}"),
                            }
                        };
                    }
                    tiles! {
                        3: 1 2 3;
                        2: 1 2 3;
                        1: 1 2 3;
                    }
                }
            }
        }
    }
}

/// Multiplies `R` rows of the gradient by `N` rows of patches.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of several arrays at once, unrolled into registers.
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    vectors: usize,
    (dy, apart): (*const f32, usize),
    x: *const f32,
    to: *mut f32,
    stride: usize,
    adds: bool,
) {
    // SAFETY: the caller vouches for the level and the memory.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        for vector in 0..vectors {
            let at = vector * V::LANES;
            let values: [V; N] = core::array::from_fn(|n| V::load(x.add(n * ROW + at)));
            for r in 0..R {
                let grad = V::load(dy.add(r * apart + at));
                for n in 0..N {
                    sums[r][n] = grad.mul_add(values[n], sums[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                let to = to.add(r * stride + n);
                let sum = sums[r][n].sum();
                *to = if adds { *to + sum } else { sum };
            }
        }
    }
}

by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its sizes.
    unsafe fn run_gather(work: Work<'_>, to: *mut f32) = gather_gradients
}
by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its sizes.
    unsafe fn run_accumulate(work: Work<'_>) = accumulate
}

/// `dw` from `dy` and `x`.
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
    let plan = Plan::of(p, Direction::Forward);
    let pass = &plan.passes[0];
    let sources = Sources::new::<T>(&plan.fill, p);
    let (planes, rest) = workspace.split_at_mut(sources.len());
    let (inner, plane, image) = (pass.offsets.len(), p.output_plane(), gradient(p));
    let (dy, x) = (Shared(dy.cast_mut()), Shared(x.cast_mut()));
    let (wide, sums) = rest.split_at_mut(if T::IS_F32 { 0 } else { sources.wave() * image });
    let wide = Shared(wide.as_mut_ptr());
    let sums = Shared(if T::IS_F32 { dw.cast::<f32>() } else { sums.as_mut_ptr() });
    // Each task computes some outputs of a group: rows of patches with all rows of the gradient, or
    // with a part of them if the patches alone make too few tasks.
    let parts = inner.div_ceil(ROWS);
    let cuts = (4 * threads()).div_ceil(parts * p.groups).min(p.k.div_ceil(LEAST)).max(1);
    let rows = p.k.div_ceil(cuts).next_multiple_of(3);
    let cuts = p.k.div_ceil(rows);
    let lanes = geometry().0;
    for first in (0..p.batch).step_by(sources.wave()) {
        let images = sources.wave().min(p.batch - first);
        // SAFETY: the caller vouches for the tensors; each task widens a part of its own.
        let (planes, grads) = unsafe {
            let planes = sources.fill(x, first, images, planes);
            let from = Shared(dy.get().add(first * image));
            let grads = widened(images * image, from, wide);
            (planes, grads)
        };
        let columns = images * plane;
        parallel(parts * p.groups * cuts, |task| {
            let (part, group, cut) = (task / cuts % parts, task / cuts / parts, task % cuts);
            let (top, bottom) = (cut * rows, (cut * rows + rows).min(p.k));
            let offsets = &pass.offsets[part * ROWS..(part * ROWS + ROWS).min(inner)];
            let lengths = [offsets.len() * ROW, (bottom - top) * ROW];
            with_scratch(lengths.iter().sum(), |memory| {
                let (patches, gradients) = memory.split_at_mut(lengths[0]);
                for from in (0..columns).step_by(PIXELS) {
                    let to = (from + PIXELS).min(columns);
                    let other = (image, p.k * plane);
                    let pieces = planes.pieces(&pass.runs, (from, to), group, other);
                    // SAFETY: the scratch memory has a row for each row of both operands; tasks
                    // write different outputs.
                    unsafe {
                        let mut work = Work {
                            planes: &planes,
                            pieces: &pieces,
                            columns: to - from,
                            offsets,
                            patches: patches.as_mut_ptr(),
                            dy: grads.get().add(top * plane).cast_const(),
                            plane,
                            rows: bottom - top,
                            gradients: gradients.as_ptr(),
                            apart: ROW,
                            sums: sums.get().add((group * p.k + top) * inner + part * ROWS),
                            stride: inner,
                            adds: first + from > 0,
                        };
                        // Whole vectors of a single image are read in place.
                        let whole = joined(&pieces, 1);
                        match &whole[..] {
                            [one] if one.count.is_multiple_of(lanes) => {
                                (work.gradients, work.apart) = (work.dy.add(one.to), plane);
                            }
                            _ => run_gather(Work { pieces: &whole, ..work }, gradients.as_mut_ptr()),
                        }
                        run_accumulate(work);
                    }
                }
            });
        });
    }
    // SAFETY: the sums and `dw` have the filter's length.
    unsafe { narrow(p.w_len(), sums, Shared(dw)) };
}
