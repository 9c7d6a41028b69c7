//! Backward-weights convolution.
//!
//! `dw[k][c][tap] = sum over images and pixels of dy[k][pixel] * x[c][pixel + offset[tap]]`. `dy` is transposed an
//! image at a time, so that a vector holds one pixel of many output channels; the source planes are those of the
//! forward direction, and give one scalar a tap. Images are summed in chunks whose number depends on the shape alone,
//! and the chunks in order: the same bits for any number of cores.

use super::fill::fill_planes;
use super::plan::{Fill, Plan};
use super::problem::Problem;
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::numeric::shared::Shared;
use crate::numeric::simd::{Vector, by_level};
use crate::runtime::parallel;

/// The widest vector: `k` is padded to a multiple of it.
const PAD: usize = 16;

/// Taps of one register tile.
const ROWS: usize = 6;

/// Floats that the partial sums may take, all chunks together (64 MiB).
const PARTIAL_LIMIT: usize = 16 << 20;

fn padded(k: usize) -> usize {
    k.next_multiple_of(PAD)
}

/// Chunks of images, and parts of the filter's taps: tasks are their product.
fn cut(p: &Problem) -> (usize, usize) {
    let own = p.c * p.taps() * padded(p.k) * p.groups;
    let chunks = p.batch.min(16).min((PARTIAL_LIMIT / own.max(1)).max(1)).max(1);
    let parts = 16usize.div_ceil(chunks * p.groups).min((p.c * p.taps()).div_ceil(ROWS));
    (chunks, parts.max(1))
}

/// Floats of workspace: partial sums.
pub(crate) fn workspace_len(p: &Problem) -> usize {
    cut(p).0 * p.groups * p.c * p.taps() * padded(p.k)
}

/// One image's part of the sums.
#[derive(Clone, Copy)]
struct Work<'a> {
    /// `[pixel][channel]`, channels padded to `stride`.
    dy: *const f32,
    stride: usize,
    /// Where each output row starts in the source planes.
    rows: &'a [u32],
    row: usize,
    source: *const f32,
    /// Of these taps.
    offsets: &'a [u32],
    /// `[tap][channel]`.
    sums: *mut f32,
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of two arrays at once, unrolled into registers.
unsafe fn tile<V: Vector, const R: usize, const N: usize>(work: &Work<'_>, tap: usize, channel: usize) {
    // SAFETY: the caller vouches for the level and for `work`; tap and channel are inside it.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        let taps: [*const f32; R] =
            core::array::from_fn(|r| work.source.add(*work.offsets.get_unchecked(tap + r) as usize));
        let mut dy = work.dy.add(channel);
        for &row in work.rows {
            let at: [*const f32; R] = core::array::from_fn(|r| taps[r].add(row as usize));
            for pixel in 0..work.row {
                let values: [V; N] = core::array::from_fn(|n| V::load(dy.add(n * V::LANES)));
                for r in 0..R {
                    let x = V::splat(*at[r].add(pixel));
                    for n in 0..N {
                        sums[r][n] = x.mul_add(values[n], sums[r][n]);
                    }
                }
                dy = dy.add(work.stride);
            }
        }
        for r in 0..R {
            for n in 0..N {
                let to = work.sums.add((tap + r) * work.stride + channel + n * V::LANES);
                V::load(to).add(sums[r][n]).store(to);
            }
        }
    }
}

#[inline(always)]
unsafe fn accumulate<V: Vector>(work: Work<'_>) {
    let widest = if V::LANES == 16 { 4 } else { 2 };
    let mut channel = 0;
    while channel < work.stride {
        let vectors = ((work.stride - channel) / V::LANES).min(widest);
        let mut tap = 0;
        while tap < work.offsets.len() {
            let rows = (work.offsets.len() - tap).min(ROWS);
            macro_rules! tiles {
                ($($r:literal: $($n:literal)+;)+) => {
                    match (rows, vectors) {
                        // SAFETY: the caller vouches for `work` and the level.
                        $($(($r, $n) => unsafe { tile::<V, $r, $n>(&work, tap, channel) },)+)+
                        _ => unreachable!("no tile of {rows} x {vectors}"),
                    }
                };
            }
            tiles! {
                6: 1 2 3 4;
                5: 1 2 3 4;
                4: 1 2 3 4;
                3: 1 2 3 4;
                2: 1 2 3 4;
                1: 1 2 3 4;
            }
            tap += rows;
        }
        channel += vectors * V::LANES;
    }
}

by_level! {
    /// Adds one image's part to the sums.
    ///
    /// # Safety
    /// `work`'s pointers are valid for what its fields say, and no other thread touches its sums.
    unsafe fn add_image(work: Work<'_>) = accumulate
}

/// Transposes `k` planes of `pixels` into `[pixel][stride]`; the padding is zero.
///
/// # Safety
/// `from` is valid for `k` planes, `to` has `pixels * stride` floats.
unsafe fn transpose<T: Single>(from: *const T, k: usize, pixels: usize, stride: usize, to: &mut [f32]) {
    if k < stride {
        for row in to.chunks_exact_mut(stride) {
            row[k..].fill(0.0);
        }
    }
    const EDGE: usize = 16;
    for first_k in (0..k).step_by(EDGE) {
        let ks = EDGE.min(k - first_k);
        for first in (0..pixels).step_by(EDGE) {
            let count = EDGE.min(pixels - first);
            for pixel in first..first + count {
                let row = &mut to[pixel * stride + first_k..][..ks];
                for (channel, to) in row.iter_mut().enumerate() {
                    // SAFETY: channel and pixel are inside the planes the caller vouches for.
                    *to = unsafe { *from.add((first_k + channel) * pixels + pixel) }.widen();
                }
            }
        }
    }
}

fn rows(p: &Problem, fill: &Fill) -> Vec<u32> {
    let [depth, height, _] = p.output;
    (0..depth * height)
        .map(|row| ((row / height * fill.dims[1] + row % height) * fill.dims[2]) as u32)
        .collect()
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
    let (fill, taps) = Plan::source(p);
    let channel = fill.channel();
    let offsets: Vec<u32> =
        (0..p.c).flat_map(|c| taps.iter().map(move |tap| (c * channel + tap) as u32)).collect();
    let rows = rows(p, &fill);
    let (chunks, parts) = cut(p);
    let stride = padded(p.k);
    let pixels = p.output_plane();
    let count = offsets.len();
    let own = count * stride;
    let sums = Shared(workspace.as_mut_ptr());
    let (dy, x, dw) = (Shared(dy.cast_mut()), Shared(x.cast_mut()), Shared(dw));
    parallel(chunks * p.groups * parts, |task| {
        let (chunk, group, part) = (task / (p.groups * parts), task / parts % p.groups, task % parts);
        // Parts end on whole tiles.
        let edge = |part: usize| (count.div_ceil(ROWS) * part / parts * ROWS).min(count);
        let (from, to) = (edge(part), edge(part + 1));
        // SAFETY: each task has its own range of the workspace; images and groups are inside the tensors.
        unsafe {
            let sums = sums.get().add((chunk * p.groups + group) * own + from * stride);
            core::slice::from_raw_parts_mut(sums, (to - from) * stride).fill(0.0);
            with_scratch(fill.len(), |planes| {
                with_scratch(pixels * stride, |transposed| {
                    for image in p.batch * chunk / chunks..p.batch * (chunk + 1) / chunks {
                        let image = image * p.groups + group;
                        fill_planes(&fill, x.get().add(image * p.c * p.input_plane()), planes);
                        transpose(dy.get().add(image * p.k * pixels), p.k, pixels, stride, transposed);
                        add_image(Work {
                            dy: transposed.as_ptr(),
                            stride,
                            rows: &rows,
                            row: p.output[2],
                            source: planes.as_ptr(),
                            offsets: &offsets[from..to],
                            sums,
                        });
                    }
                })
            });
        }
    });
    // The chunks in order, and back to `[k][c][tap]`.
    parallel(p.groups * p.k, |index| {
        let (group, k) = (index / p.k, index % p.k);
        for tap in 0..count {
            let mut sum = 0.0f32;
            for chunk in 0..chunks {
                // SAFETY: inside the workspace, which all tasks have finished writing.
                sum += unsafe { *sums.get().add((chunk * p.groups + group) * own + tap * stride + k) };
            }
            // SAFETY: inside the filter; each task has its own output channel.
            unsafe { *dw.get().add(index * count + tap) = T::narrow(sum) };
        }
    });
}
