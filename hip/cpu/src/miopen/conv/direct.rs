//! Forward and backward-data convolution by direct sums: computes [`super::plan`]'s passes over
//! filled planes.

use super::fill::fill_planes;
use super::geometry::{block, geometry};
use super::plan::{Pass, Plan};
use super::problem::{Direction, Problem};
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::numeric::shared::Shared;
use crate::numeric::simd::{Vector, by_level};
use crate::runtime::{parallel, threads};

/// The number of vectors in a row of a tile of `rows` rows: as many as fit into the registers
/// together with two weights, but at most 8.
fn width(rows: usize, tile: (usize, usize)) -> usize {
    let registers = if tile.0 == 8 { 32 } else { 16 };
    ((registers - 2) / (rows + 1)).min(8)
}

/// Floats of workspace: the rearranged filter. Every tap belongs to one pass.
pub(crate) fn workspace_len(p: &Problem) -> usize {
    p.w_len()
}

/// Rearranges one group's filter for `pass`: for every block of output channels,
/// `[source channel][tap][channel]`.
///
/// # Safety
/// `w` is valid for the whole filter.
unsafe fn pack<T: Single>(
    p: &Problem,
    direction: Direction,
    pass: &Pass,
    group: usize,
    w: *const T,
    to: &mut [f32],
) {
    let tile = geometry().1;
    let taps = p.taps();
    let (outputs, sources) = match direction {
        Direction::Forward => (p.k, p.c),
        Direction::Backward => (p.c, p.k),
    };
    let mut to = to.iter_mut();
    let mut first = 0;
    while first < outputs {
        let rows = block(outputs - first, tile);
        for source in 0..sources {
            for &tap in &pass.taps {
                for output in first..first + rows {
                    let (k, c) = match direction {
                        Direction::Forward => (output, source),
                        Direction::Backward => (source, output),
                    };
                    // SAFETY: k, c and tap are inside the filter, which the caller vouches for.
                    let value = unsafe { *w.add(((group * p.k + k) * p.c + c) * taps + tap) };
                    if let Some(to) = to.next() {
                        *to = value.widen();
                    }
                }
            }
        }
        first += rows;
    }
}

/// One register tile: `R` output channels, `N` vectors of pixels.
///
/// # Safety
/// As [`run`]; `packed` holds `R` weights for every offset.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of two arrays at once, unrolled into registers.
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    pass: &Pass,
    packed: *const f32,
    source: *const f32,
    first: usize,
    output: *mut f32,
    plane: usize,
) {
    // SAFETY: the caller vouches for the level, `source` and `packed`. The vectors' segments lie
    // inside the output plane.
    unsafe {
        let at: [*const f32; N] =
            core::array::from_fn(|n| source.add(pass.vectors.get_unchecked(first + n).from as usize));
        let mut sums = [[V::zero(); N]; R];
        let mut weights = packed;
        for &offset in &pass.offsets {
            let pixels: [V; N] = core::array::from_fn(|n| V::load(at[n].add(offset as usize)));
            for r in 0..R {
                let weight = V::splat(*weights.add(r));
                for n in 0..N {
                    sums[r][n] = weight.mul_add(pixels[n], sums[r][n]);
                }
            }
            weights = weights.add(R);
        }
        for n in 0..N {
            let lanes = pass.vectors.get_unchecked(first + n);
            for s in lanes.first..lanes.first + lanes.count {
                let segment = pass.segments.get_unchecked(s as usize);
                for r in 0..R {
                    let to = output.add(r * plane + segment.to);
                    if pass.step == 1 {
                        sums[r][n].store_lanes(to, segment.lane as usize, segment.count as usize);
                    } else {
                        let mut values = [0.0f32; 16];
                        sums[r][n].store(values.as_mut_ptr());
                        for i in 0..segment.count as usize {
                            *to.add(i * pass.step) = values[segment.lane as usize + i];
                        }
                    }
                }
            }
        }
    }
}

/// The arguments of [`run`].
#[derive(Clone, Copy)]
struct Work<'a> {
    pass: &'a Pass,
    packed: &'a [f32],
    source: *const f32,
    output: *mut f32,
    outputs: usize,
    plane: usize,
    /// The vectors to compute.
    from: usize,
    to: usize,
}

/// Computes vectors `from..to` of a pass for all its output channels.
#[inline(always)]
unsafe fn run<V: Vector>(work: Work<'_>) {
    let Work { pass, packed, source, output, outputs, plane, from, to } = work;
    let group = width(block(outputs, V::TILE), V::TILE);
    let mut vector = from;
    while vector < to {
        let count = group.min(to - vector);
        let mut weights = packed.as_ptr();
        let mut first = 0;
        while first < outputs {
            let rows = block(outputs - first, V::TILE);
            // SAFETY: the caller vouches for `source`, `output` and the level; `packed` was made
            // for this pass.
            unsafe {
                let output = output.add(first * plane);
                macro_rules! tiles {
                    ($($r:literal: $($n:literal)+;)+) => {
                        match (rows, count) {
                            $($(($r, $n) => tile::<V, $r, $n>(pass, weights, source, vector, output, plane),)+)+
                            _ => unreachable!("no tile of {rows} x {count}"),
                        }
                    };
                }
                tiles! {
                    8: 1 2 3;
                    6: 1 2;
                    4: 1 2 3 4 5 6;
                    2: 1 2 3 4 5 6 7 8;
                    1: 1 2 3 4 5 6 7 8;
                }
                weights = weights.add(rows * pass.offsets.len());
            }
            first += rows;
        }
        vector += count;
    }
}

by_level! {
    /// Computes some vectors of a pass, with this machine's instructions.
    ///
    /// # Safety
    /// `source` is valid for the plan's fill, and `output` for `outputs` planes of `plane` floats.
    /// No other thread writes the pixels of these vectors.
    unsafe fn run_pass(work: Work<'_>) = run
}

/// A further task is worthwhile only if it has this many multiply-adds for each source value,
/// because each task fills the image's planes again.
const WORTH: usize = 32;

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
    let lanes = geometry().0;
    let (plan, outputs, plane) = match direction {
        Direction::Forward => (Plan::forward(p, lanes), p.k, p.output_plane()),
        Direction::Backward => (Plan::backward(p, lanes), p.c, p.input_plane()),
    };
    let source_image = plan.fill.channels * plan.fill.source.iter().product::<usize>();
    // The rearranged filter, group by group and pass by pass.
    let mut packed = Vec::with_capacity(p.groups * plan.passes.len());
    let mut rest = workspace;
    for group in 0..p.groups {
        for pass in &plan.passes {
            let (own, tail) = rest.split_at_mut(outputs * pass.offsets.len());
            // SAFETY: the caller vouches for `w`.
            unsafe { pack(p, direction, pass, group, w, own) };
            packed.push(&*own);
            rest = tail;
        }
    }
    let images = p.batch * p.groups;
    if images == 0 {
        return;
    }
    let parts = (4 * threads()).div_ceil(images).min(outputs * p.taps() / WORTH).max(1);
    let (src, dst) = (Shared(src.cast_mut()), Shared(dst));
    parallel(images * parts, |task| {
        let (image, part) = (task / parts, task % parts);
        let group = image % p.groups;
        // SAFETY: image `image` is inside both tensors; tasks of one image write different pixels
        // of it.
        unsafe {
            let from = src.get().add(image * source_image);
            let to = dst.get().add(image * outputs * plane);
            with_scratch(plan.fill.len(), |planes| {
                fill_planes(&plan.fill, from, planes);
                let compute = |output: *mut f32| {
                    for (index, pass) in plan.passes.iter().enumerate() {
                        let count = pass.vectors.len();
                        run_pass(Work {
                            pass,
                            packed: packed[group * plan.passes.len() + index],
                            source: planes.as_ptr(),
                            output,
                            outputs,
                            plane,
                            from: count * part / parts,
                            to: count * (part + 1) / parts,
                        });
                    }
                };
                if T::IS_F32 {
                    compute(to.cast::<f32>());
                } else {
                    with_scratch(outputs * plane, |sums| {
                        compute(sums.as_mut_ptr());
                        narrow(&plan, (part, parts), outputs, plane, sums, to);
                    });
                }
            });
        }
    });
}

/// Rounds the pixels that part `part` of `parts` computed.
///
/// # Safety
/// `to` is valid for `outputs` planes.
unsafe fn narrow<T: Single>(
    plan: &Plan,
    (part, parts): (usize, usize),
    outputs: usize,
    plane: usize,
    sums: &[f32],
    to: *mut T,
) {
    if parts == 1 {
        // SAFETY: the caller vouches for `to`.
        T::narrow_slice(sums, unsafe { core::slice::from_raw_parts_mut(to, outputs * plane) });
        return;
    }
    for pass in &plan.passes {
        let count = pass.vectors.len();
        for vector in &pass.vectors[count * part / parts..count * (part + 1) / parts] {
            for segment in &pass.segments[vector.first as usize..(vector.first + vector.count) as usize] {
                let count = segment.count as usize;
                for output in 0..outputs {
                    let first = output * plane + segment.to;
                    // SAFETY: a segment lies inside its plane.
                    unsafe {
                        if pass.step == 1 {
                            let to = core::slice::from_raw_parts_mut(to.add(first), count);
                            T::narrow_slice(&sums[first..first + count], to);
                            continue;
                        }
                        for at in (first..).step_by(pass.step).take(count) {
                            *to.add(at) = T::narrow(sums[at]);
                        }
                    }
                }
            }
        }
    }
}
