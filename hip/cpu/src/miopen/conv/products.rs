//! Forward and backward-data convolution as a product: the filter's matrix times a matrix of
//! patches. Only one block of patches is written out at a time. It fits into a second-level cache.
//!
//! The scheme is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
//! (2008): `INNER` rows and `COLUMNS` columns of patches are packed into panels as wide as a
//! register tile, and all output channels are multiplied by them. The columns are the pixels of all
//! images, one image after the other, so that small images share the reads of the filter. Only the
//! shape decides the order of an output's sum.

use super::geometry::{block, geometry};
use super::patches::{Piece, Planes, Sources, joined};
use super::plan::{Pass, Plan};
use super::problem::{Direction, Problem};
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::numeric::shared::Shared;
use crate::numeric::simd::{Vector, by_level};
use crate::runtime::{parallel, threads};

/// How many terms of a sum are added in registers before the sum is written to memory.
const INNER: usize = 256;

/// The columns of a block: with `INNER` rows 240 KiB, half of a second-level cache of 512 KiB. A
/// multiple of every tile's width.
const COLUMNS: usize = 240;

/// The fewest output channels of a group for which packing patches pays. Measured on a core with
/// AVX2 (EPYC 7003), 3x3, batch 2, forward. The times are relative to that of a whole im2col matrix
/// and the `gemm` crate, first of direct sums, then of packed products: 1 output 0.24 to 0.57 and
/// 0.68 to 2.1; 4 of 4 channels on 32x32 in 4 groups 0.44 and 0.76; 8 of 8 channels on 32x32 0.79
/// and 0.69; 64 of 64 on 56x56 1.1 and 1.1; 512 of 512 on 7x7 1.8 and 1.0.
const LEAST_OUTPUTS: usize = 8;

/// The fewest terms of a sum for which packing pays, because a block's sums are written and read
/// once in any case.
const LEAST_TERMS: usize = 8;

/// The fewest output channels of a task, if the columns alone make too few tasks. Each task packs
/// its patches again.
const LEAST_ROWS: usize = 64;

/// Whether the filter must be rearranged to a row for each output, in the order of a pass's
/// offsets. A forward filter in f32 has this order already.
fn arranges<T: Single>(direction: Direction) -> bool {
    !(T::IS_F32 && direction == Direction::Forward)
}

/// Whether a group has enough outputs and terms for packing its patches to pay.
pub(crate) fn applies(p: &Problem, direction: Direction) -> bool {
    let (outputs, sources) = if direction == Direction::Forward { (p.k, p.c) } else { (p.c, p.k) };
    outputs >= LEAST_OUTPUTS && sources * p.taps() >= LEAST_TERMS
}

/// The floats of workspace: the rearranged filter, if it is needed, and the planes.
pub(crate) fn workspace_len<T: Single>(p: &Problem, direction: Direction) -> usize {
    let filter = if arranges::<T>(direction) { p.w_len() } else { 0 };
    filter + Sources::new::<T>(&Plan::of(p, direction).fill, p).len()
}

/// A task's part of a pass.
#[derive(Clone, Copy)]
struct Work<'a> {
    planes: &'a Planes,
    pieces: &'a [Piece],
    /// The offsets of the current taps. `filter` points to the filter's columns of these taps.
    offsets: &'a [u32],
    filter: *const f32,
    /// Floats from one row of the filter to the next.
    stride: usize,
    rows: usize,
    columns: usize,
    /// `[panel][tap][column of the panel]`
    packed: *mut f32,
    line: *mut f32,
    /// `[row][column]`, with [`ROW`] floats a row.
    sums: *mut f32,
    /// Whether `sums` already holds earlier terms.
    adds: bool,
}

/// The floats of a row of sums, and of the line that gathers a row of patches: room for whole
/// panels of any level and one more vector.
const ROW: usize = COLUMNS.next_multiple_of(48) + 48;

/// Packs the block's patches.
#[inline(always)]
unsafe fn pack<V: Vector>(work: Work<'_>) {
    let wide = V::TILE.1 * V::LANES;
    let panels = work.columns.div_ceil(wide);
    for (tap, &offset) in work.offsets.iter().enumerate() {
        // SAFETY: the caller vouches for the level and the memory.
        unsafe {
            // Whole panels of a single piece are read in place.
            let (line, whole) = match work.pieces {
                [one] => (work.planes.under(one, offset as usize), work.columns / wide),
                _ => (work.line.cast_const(), panels),
            };
            if whole < panels || work.pieces.len() > 1 {
                work.planes.gather::<V>(work.pieces, offset as usize, work.line);
            }
            for panel in 0..panels {
                let from = if panel < whole { line } else { work.line.cast_const() }.add(panel * wide);
                let to = work.packed.add((panel * work.offsets.len() + tap) * wide);
                for n in 0..V::TILE.1 {
                    V::load(from.add(n * V::LANES)).store(to.add(n * V::LANES));
                }
            }
        }
    }
}

/// Computes `R` outputs for `N` vectors of columns.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of several arrays at once, unrolled into registers.
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    work: &Work<'_>,
    packed: *const f32,
    sums: *mut f32,
) {
    // SAFETY: the caller vouches for the level and the memory.
    unsafe {
        let wide = V::TILE.1 * V::LANES;
        let rows: [*const f32; R] = core::array::from_fn(|r| work.filter.add(r * work.stride));
        let mut all = [[V::zero(); N]; R];
        for tap in 0..work.offsets.len() {
            let values: [V; N] = core::array::from_fn(|n| V::load(packed.add(tap * wide + n * V::LANES)));
            for r in 0..R {
                let weight = V::splat(*rows[r].add(tap));
                for n in 0..N {
                    all[r][n] = weight.mul_add(values[n], all[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                let to = sums.add(r * ROW + n * V::LANES);
                if work.adds { V::load(to).add(all[r][n]).store(to) } else { all[r][n].store(to) }
            }
        }
    }
}

/// Multiplies `work.rows` rows of the filter, at most those of a tile, by all panels.
#[inline(always)]
unsafe fn multiply<V: Vector>(work: Work<'_>) {
    let wide = V::TILE.1 * V::LANES;
    let mut column = 0;
    while column < work.columns {
        let vectors = (work.columns - column).div_ceil(V::LANES).min(V::TILE.1);
        // SAFETY: the caller vouches for the level and the memory.
        unsafe {
            let packed = work.packed.add(column * work.offsets.len());
            let sums = work.sums.add(column);
            macro_rules! tiles {
                ($($r:literal: $($n:literal)+;)+) => {
                    match (work.rows, vectors) {
                        $($(($r, $n) => tile::<V, $r, $n>(&work, packed, sums),)+)+
                        _ => unreachable!("no tile of {} x {vectors}", work.rows),
                    }
                };
            }
            tiles! {
                8: 1 2 3;
                6: 1 2;
                4: 1 2 3;
                2: 1 2 3;
                1: 1 2 3;
            }
        }
        column += wide;
    }
}

by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its sizes.
    unsafe fn run_pack(work: Work<'_>) = pack
}
by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its sizes.
    unsafe fn run_multiply(work: Work<'_>) = multiply
}

/// The output channels whose rows one task writes: for a 1x1 filter, as many as a cache line holds.
const TOGETHER: usize = 16;

/// Writes the filter's rows of some output channels for a pass, each row as `[source][tap]`.
///
/// # Safety
/// `w` is valid for the whole filter, `to` for the rows of all outputs.
unsafe fn arrange<T: Single>(
    p: &Problem,
    direction: Direction,
    pass: &Pass,
    (group, outputs): (usize, core::ops::Range<usize>),
    w: *const T,
    to: *mut f32,
) {
    let (taps, inner) = (p.taps(), pass.offsets.len());
    let (k, c) = (group * p.k, p.c);
    if direction == Direction::Forward {
        // A forward pass has all taps, and those of an output are contiguous in the filter.
        let len = c * taps;
        debug_assert_eq!(len, inner);
        for output in outputs {
            // SAFETY: rows of the filter and of the matrix, which the caller vouches for.
            unsafe {
                let from = core::slice::from_raw_parts(w.add((k + output) * len), len);
                T::widen_slice(from, core::slice::from_raw_parts_mut(to.add(output * inner), len));
            }
        }
        return;
    }
    with_scratch(outputs.len() * taps, |wide| {
        for source in 0..p.k {
            // SAFETY: the outputs are inside the filter, which the caller vouches for.
            let from = unsafe {
                core::slice::from_raw_parts(w.add(((k + source) * c + outputs.start) * taps), wide.len())
            };
            T::widen_slice(from, wide);
            for (output, wide) in outputs.clone().zip(wide.chunks_exact(taps)) {
                // SAFETY: source and output are inside the matrix, which the caller vouches for.
                let to = unsafe { to.add(output * inner + source * pass.taps.len()) };
                for (at, &tap) in pass.taps.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { *to.add(at) = wide[tap] };
                }
            }
        }
    });
}

/// One pass's range in the list of all tasks.
struct Cut {
    first: usize,
    blocks: usize,
    width: usize,
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
    let plan = Plan::of(p, direction);
    let (outputs, plane) = match direction {
        Direction::Forward => (p.k, p.output_plane()),
        Direction::Backward => (p.c, p.input_plane()),
    };
    let sources = Sources::new::<T>(&plan.fill, p);
    let arranged = if arranges::<T>(direction) { p.w_len() } else { 0 };
    let (filters, room) = workspace.split_at_mut(arranged);
    let (src, w, dst) = (Shared(src.cast_mut()), Shared(w.cast_mut()), Shared(dst));
    // `own` floats for each group; within a group, each pass's matrix begins at its entry of
    // `starts`.
    let own = p.c * p.k * p.taps();
    let starts: Vec<usize> = plan
        .passes
        .iter()
        .scan(0, |next, pass| {
            let first = *next;
            *next += outputs * pass.offsets.len();
            Some(first)
        })
        .collect();
    let filter = if arranged > 0 {
        let filters = Shared(filters.as_mut_ptr());
        let blocks = outputs.div_ceil(TOGETHER);
        parallel(p.groups * blocks, |task| {
            let (group, first) = (task / blocks, task % blocks * TOGETHER);
            let range = first..(first + TOGETHER).min(outputs);
            for (pass, start) in plan.passes.iter().zip(&starts) {
                // SAFETY: each output's row is one task's, inside the workspace.
                unsafe {
                    let to = filters.get().add(group * own + start);
                    arrange(p, direction, pass, (group, range.clone()), w.get().cast_const(), to);
                }
            }
        });
        filters
    } else {
        Shared(w.get().cast::<f32>())
    };
    let tile = geometry().1;
    for first in (0..p.batch).step_by(sources.wave()) {
        let images = sources.wave().min(p.batch - first);
        // SAFETY: the caller vouches for `src`.
        let planes = unsafe { sources.fill(src, first, images, room) };
        let mut tasks = 0;
        let cuts: Vec<Cut> = plan
            .passes
            .iter()
            .map(|pass| {
                let columns = images * pass.pixels();
                let blocks = columns.div_ceil(COLUMNS);
                let width = columns.div_ceil(blocks.max(1)).next_multiple_of(48).min(COLUMNS);
                let blocks = columns.div_ceil(width.max(1));
                let first = tasks;
                tasks += blocks;
                Cut { first, blocks, width }
            })
            .collect();
        if tasks == 0 {
            continue;
        }
        // A task computes whole tiles of output channels, or all channels if the columns make
        // enough tasks.
        let parts = (4 * threads()).div_ceil(tasks * p.groups).min(outputs.div_ceil(LEAST_ROWS)).max(1);
        let rows = outputs.div_ceil(parts).next_multiple_of(tile.0);
        let parts = outputs.div_ceil(rows);
        parallel(tasks * p.groups * parts, |task| {
            let (part, group, task) = (task % parts, task / parts % p.groups, task / parts / p.groups);
            let index = cuts.partition_point(|cut| cut.first + cut.blocks <= task);
            let (pass, cut) = (&plan.passes[index], &cuts[index]);
            let from = (task - cut.first) * cut.width;
            let columns = cut.width.min(images * pass.pixels() - from);
            let other = (p.groups * outputs * plane, outputs * plane);
            let pieces = planes.pieces(&pass.runs, (from, from + columns), group, other);
            let targets = joined(&pieces, pass.step);
            let inner = pass.offsets.len();
            let (top, bottom) = (part * rows, (part * rows + rows).min(outputs));
            // If a sum has a single part, each tile is completed in one go, so memory for one tile
            // of sums is enough.
            let kept = if inner > INNER { bottom - top } else { tile.0 };
            let lengths = [INNER.min(inner) * ROW, ROW, kept * ROW];
            with_scratch(lengths.iter().sum(), |memory| {
                let (packed, memory) = memory.split_at_mut(lengths[0]);
                let (line, sums) = memory.split_at_mut(lengths[1]);
                for start in (0..inner.max(1)).step_by(INNER) {
                    let end = (start + INNER).min(inner);
                    let mut work = Work {
                        planes: &planes,
                        pieces: &pieces,
                        offsets: &pass.offsets[start..end],
                        filter: core::ptr::null(),
                        stride: inner,
                        rows: 0,
                        columns,
                        packed: packed.as_mut_ptr(),
                        line: line.as_mut_ptr(),
                        sums: core::ptr::null_mut(),
                        adds: start > 0,
                    };
                    // SAFETY: the scratch memory has the block's size; the filter has a row for
                    // each output.
                    unsafe { run_pack(work) };
                    let mut row = top;
                    while row < bottom {
                        work.rows = block(bottom - row, tile);
                        let at = if kept == tile.0 { 0 } else { row - top };
                        // SAFETY: as above; the rows and columns of `dst` are this task's alone.
                        unsafe {
                            let matrix = filter.get().add(group * own + starts[index]);
                            work.filter = matrix.add(row * inner + start).cast_const();
                            work.sums = sums.as_mut_ptr().add(at * ROW);
                            run_multiply(work);
                            if end == inner {
                                let to = dst.get().add(first * other.0 + row * plane);
                                write(&targets, pass.step, work.rows, &sums[at * ROW..], to, plane);
                            }
                        }
                        row += work.rows;
                    }
                }
            });
        });
    }
}

/// Rounds rows of sums and writes them to their outputs' planes.
///
/// # Safety
/// `to` is valid for the targets in `rows` planes.
unsafe fn write<T: Single>(
    targets: &[Piece],
    step: usize,
    rows: usize,
    sums: &[f32],
    to: *mut T,
    plane: usize,
) {
    let mut room = [T::narrow(0.0); COLUMNS];
    for row in 0..rows {
        for piece in targets {
            let from = &sums[row * ROW + piece.at..][..piece.count];
            // SAFETY: the caller vouches for the targets.
            unsafe {
                let to = to.add(row * plane + piece.to);
                if step == 1 {
                    T::narrow_slice(from, core::slice::from_raw_parts_mut(to, piece.count));
                } else {
                    let narrow = &mut room[..piece.count];
                    T::narrow_slice(from, narrow);
                    for (i, value) in narrow.iter().enumerate() {
                        *to.add(i * step) = *value;
                    }
                }
            }
        }
    }
}
