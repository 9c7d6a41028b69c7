//! Winograd's F(2x2, 3x3): a 3x3 convolution of stride 1 with 16 multiplications for 4 outputs instead of 36.
//!
//! Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), section 4.1. The source planes are
//! filled as four phases (even and odd rows and columns), so that the 4x4 patch of every tile is sixteen runs of
//! neighbouring floats: the input transform is sums of contiguous rows. Tiles of a few images then are the columns of
//! sixteen matrix products. Its numbers are 1/2 and 1/4: the error is that of the direct sum, within a factor of 2.

use super::direct::Direction;
use super::fill::fill_planes;
use super::plan::Fill;
use super::problem::Problem;
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::numeric::shared::Shared;
use crate::numeric::simd::{Vector, by_level};
use crate::runtime::parallel;

/// Products of a tile: its transformed patch is 4x4.
const POINTS: usize = 16;

/// The widest vector: rows end with this many floats that may be read and written past their last tile.
const SLACK: usize = 16;

/// Bytes that one task's transformed planes may take: a second-level cache.
const TASK_BYTES: usize = 1 << 20;

/// Whether this algorithm computes `p`, and pays: with few channels the transforms cost more than they save.
pub(crate) fn applies(p: &Problem) -> bool {
    let square = p.filter == [1, 3, 3] && p.stride == [1; 3] && p.dilation == [1; 3];
    let pad = p.pad[0] == 0 && p.pad[1] <= 2 && p.pad[2] <= 2;
    let flat = p.input[0] == 1;
    square && pad && flat && p.c >= 8 && p.k >= 8
}

/// Floats of workspace: the transformed filter.
pub(crate) fn workspace_len(p: &Problem) -> usize {
    p.groups * p.k * p.c * POINTS
}

/// One direction of a problem.
struct Shape {
    sources: usize,
    outputs: usize,
    /// Rows and columns of tiles.
    tiles: [usize; 2],
    /// Floats from one row of tiles to the next: one column more than there are tiles.
    row: usize,
    /// Images of a task.
    images: usize,
    output: [usize; 2],
}

impl Shape {
    /// Columns of an image's matrices, with the unused tile at the end of each row.
    fn columns(&self) -> usize {
        self.tiles[0] * self.row
    }

    /// Floats of a row of a matrix.
    fn stride(&self) -> usize {
        self.images * self.columns() + SLACK
    }
}

/// Transforms one group's filter: `[point][block of outputs][source][output of the block]`.
///
/// # Safety
/// `w` is valid for the whole filter.
unsafe fn transform_filter<T: Single>(
    p: &Problem,
    direction: Direction,
    group: usize,
    tile: (usize, usize),
    w: *const T,
    to: &mut [f32],
) {
    let (outputs, sources) = match direction {
        Direction::Forward => (p.k, p.c),
        Direction::Backward => (p.c, p.k),
    };
    let matrix = outputs * sources;
    let mut first = 0;
    while first < outputs {
        let rows = super::direct::block(outputs - first, tile);
        for source in 0..sources {
            for row in 0..rows {
                let (k, c) = match direction {
                    Direction::Forward => (first + row, source),
                    Direction::Backward => (source, first + row),
                };
                let at = ((group * p.k + k) * p.c + c) * 9;
                let mut g = [[0.0f32; 3]; 3];
                for (i, row) in g.iter_mut().enumerate() {
                    for (j, value) in row.iter_mut().enumerate() {
                        // The backward direction correlates with the filter turned around.
                        let tap = if direction == Direction::Forward { 3 * i + j } else { 8 - 3 * i - j };
                        // SAFETY: inside the filter, which the caller vouches for.
                        *value = unsafe { *w.add(at + tap) }.widen();
                    }
                }
                let side = |a: f32, b: f32, c: f32| [a, (a + b + c) * 0.5, (a - b + c) * 0.5, c];
                let columns: [[f32; 4]; 3] = core::array::from_fn(|j| side(g[0][j], g[1][j], g[2][j]));
                for i in 0..4 {
                    let values = side(columns[0][i], columns[1][i], columns[2][i]);
                    for (j, value) in values.into_iter().enumerate() {
                        to[(4 * i + j) * matrix + first * sources + source * rows + row] = value;
                    }
                }
            }
        }
        first += rows;
    }
}

/// A task's memory and sizes, as the vector code sees them.
#[derive(Clone, Copy)]
struct Work<'a> {
    shape: &'a Shape,
    /// The filled phases of one image.
    planes: *const f32,
    /// Floats of a phase, and of a channel.
    phase: usize,
    image: usize,
    /// `[point][source][column]`
    patches: *mut f32,
    /// `[point][output][column]`
    sums: *mut f32,
    filter: *const f32,
    /// Images that this task has.
    count: usize,
    /// One image's outputs of one channel: four rows of columns.
    corners: *mut f32,
    output: usize,
}

/// The input transform of one image.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of several arrays at once, unrolled into registers.
unsafe fn transform_input<V: Vector>(work: Work<'_>) {
    let shape = work.shape;
    let columns = shape.columns();
    let stride = shape.stride();
    // SAFETY: the caller vouches for the level and the memory; rows end with slack for whole vectors.
    unsafe {
        let minus = V::splat(-1.0);
        for source in 0..shape.sources {
            let planes = work.planes.add(source * 4 * work.phase);
            let to = work.patches.add(source * stride + work.image * columns);
            let mut i = 0;
            while i < columns {
                let mut patch = [[V::zero(); 4]; 4];
                for a in 0..4 {
                    for b in 0..4 {
                        let phase = planes.add((a % 2 * 2 + b % 2) * work.phase);
                        patch[a][b] = V::load(phase.add(a / 2 * shape.row + b / 2 + i));
                    }
                }
                for b in 0..4 {
                    let (d0, d1, d2, d3) = (patch[0][b], patch[1][b], patch[2][b], patch[3][b]);
                    patch[0][b] = d2.mul_add(minus, d0);
                    patch[1][b] = d1.add(d2);
                    patch[2][b] = d1.mul_add(minus, d2);
                    patch[3][b] = d3.mul_add(minus, d1);
                }
                for a in 0..4 {
                    let [d0, d1, d2, d3] = patch[a];
                    let to = to.add(4 * a * shape.sources * stride + i);
                    d2.mul_add(minus, d0).store(to);
                    d1.add(d2).store(to.add(shape.sources * stride));
                    d1.mul_add(minus, d2).store(to.add(2 * shape.sources * stride));
                    d3.mul_add(minus, d1).store(to.add(3 * shape.sources * stride));
                }
                i += V::LANES;
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of several arrays at once, unrolled into registers.
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    weights: *const f32,
    sources: usize,
    stride: usize,
    patches: *const f32,
    sums: *mut f32,
) {
    // SAFETY: the caller vouches for the level and the memory.
    unsafe {
        let mut all = [[V::zero(); N]; R];
        for source in 0..sources {
            let values: [V; N] =
                core::array::from_fn(|n| V::load(patches.add(source * stride + n * V::LANES)));
            for r in 0..R {
                let weight = V::splat(*weights.add(source * R + r));
                for n in 0..N {
                    all[r][n] = weight.mul_add(values[n], all[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                all[r][n].store(sums.add(r * stride + n * V::LANES));
            }
        }
    }
}

/// The sixteen products of a task.
#[inline(always)]
unsafe fn products<V: Vector>(work: Work<'_>) {
    let shape = work.shape;
    let stride = shape.stride();
    let vectors = (work.count * shape.columns()).div_ceil(V::LANES);
    let group = V::TILE.1;
    for point in 0..POINTS {
        let mut vector = 0;
        while vector < vectors {
            let count = group.min(vectors - vector);
            let mut first = 0;
            while first < shape.outputs {
                let rows = super::direct::block(shape.outputs - first, V::TILE);
                // SAFETY: the caller vouches for the level and the memory.
                unsafe {
                    let weights = work.filter.add((point * shape.outputs + first) * shape.sources);
                    let patches = work.patches.add(point * shape.sources * stride + vector * V::LANES);
                    let sums = work.sums.add((point * shape.outputs + first) * stride + vector * V::LANES);
                    macro_rules! tiles {
                        ($($r:literal: $($n:literal)+;)+) => {
                            match (rows, count) {
                                $($(($r, $n) => tile::<V, $r, $n>(weights, shape.sources, stride, patches, sums),)+)+
                                _ => unreachable!("no tile of {rows} x {count}"),
                            }
                        };
                    }
                    tiles! {
                        8: 1 2 3;
                        4: 1 2 3;
                        2: 1 2 3;
                        1: 1 2 3;
                    }
                }
                first += rows;
            }
            vector += count;
        }
    }
}

/// The output transform of one image and channel: its tiles' four corners.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indices of several arrays at once, unrolled into registers.
unsafe fn transform_output<V: Vector>(work: Work<'_>) {
    let shape = work.shape;
    let columns = shape.columns();
    let stride = shape.stride();
    // SAFETY: the caller vouches for the level and the memory.
    unsafe {
        let minus = V::splat(-1.0);
        let from = work.sums.add(work.output * stride + work.image * columns);
        let mut i = 0;
        while i < columns {
            let mut down = [[V::zero(); 4]; 2];
            for b in 0..4 {
                let m = from.add(b * shape.outputs * stride + i);
                let step = 4 * shape.outputs * stride;
                let (m0, m1, m2, m3) =
                    (V::load(m), V::load(m.add(step)), V::load(m.add(2 * step)), V::load(m.add(3 * step)));
                down[0][b] = m0.add(m1).add(m2);
                down[1][b] = m2.add(m3).mul_add(minus, m1);
            }
            for a in 0..2 {
                let [m0, m1, m2, m3] = down[a];
                let to = work.corners.add(2 * a * (columns + SLACK) + i);
                m0.add(m1).add(m2).store(to);
                m2.add(m3).mul_add(minus, m1).store(to.add(columns + SLACK));
            }
            i += V::LANES;
        }
    }
}

by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its shape.
    unsafe fn run_input(work: Work<'_>) = transform_input
}
by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its shape.
    unsafe fn run_products(work: Work<'_>) = products
}
by_level! {
    /// # Safety
    /// The memory that `work` names is valid for its shape.
    unsafe fn run_output(work: Work<'_>) = transform_output
}

/// Runs a convolution that [`applies`], forward (`src` is x, `dst` is y) or backward (`src` is dy, `dst` is dx).
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
    let (sources, outputs, source, output, pad) = match direction {
        Direction::Forward => (p.c, p.k, p.input, p.output, [p.pad[1], p.pad[2]]),
        Direction::Backward => (p.k, p.c, p.output, p.input, [2 - p.pad[1], 2 - p.pad[2]]),
    };
    let tiles = [output[1].div_ceil(2), output[2].div_ceil(2)];
    let (height, row) = (tiles[0] + 1, tiles[1] + 1);
    let own = POINTS * (sources + outputs) * tiles[0] * row * size_of::<f32>();
    let images = (TASK_BYTES / own).clamp(1, 8).min(p.batch.max(1));
    let shape = Shape { sources, outputs, tiles, row, images, output: [output[1], output[2]] };
    let phases = (0..4).map(|i: isize| [0, i / 2 - pad[0] as isize, i % 2 - pad[1] as isize]).collect();
    let fill = Fill { channels: sources, source, phases, step: [1, 2, 2], dims: [1, height, row] };
    let tile = super::direct::geometry().1;
    let matrix = outputs * sources;
    for (group, to) in workspace.chunks_exact_mut(POINTS * matrix).take(p.groups).enumerate() {
        // SAFETY: the caller vouches for `w`.
        unsafe { transform_filter(p, direction, group, tile, w, to) };
    }
    let filter = &*workspace;
    let (source_plane, output_plane) = (source[1] * source[2], output[1] * output[2]);
    let (src, dst) = (Shared(src.cast_mut()), Shared(dst));
    let parts = p.batch.div_ceil(images);
    parallel(parts * p.groups, |task| {
        let (group, part) = (task % p.groups, task / p.groups);
        let first = part * images;
        let count = images.min(p.batch - first);
        let stride = shape.stride();
        let lengths = [
            // Vectors that start in the last row read past its end.
            fill.len() + row + 2 * SLACK,
            POINTS * sources * stride,
            POINTS * outputs * stride,
            4 * (shape.columns() + SLACK),
        ];
        with_scratch(lengths.iter().sum(), |memory| {
            let (planes, memory) = memory.split_at_mut(lengths[0]);
            let (patches, memory) = memory.split_at_mut(lengths[1]);
            let (sums, corners) = memory.split_at_mut(lengths[2]);
            let mut work = Work {
                shape: &shape,
                planes: planes.as_ptr(),
                phase: height * row,
                image: 0,
                patches: patches.as_mut_ptr(),
                sums: sums.as_mut_ptr(),
                filter: filter[group * POINTS * matrix..].as_ptr(),
                count,
                corners: corners.as_mut_ptr(),
                output: 0,
            };
            // SAFETY: the images are inside the tensors, each output plane is one task's; the scratch memory was cut to
            // the shape.
            unsafe {
                for image in 0..count {
                    let at = (first + image) * p.groups + group;
                    fill_planes(&fill, src.get().add(at * sources * source_plane), planes);
                    work.image = image;
                    run_input(work);
                }
                run_products(work);
                for image in 0..count {
                    work.image = image;
                    for output in 0..outputs {
                        work.output = output;
                        run_output(work);
                        let at = (((first + image) * p.groups + group) * outputs + output) * output_plane;
                        let to = core::slice::from_raw_parts_mut(dst.get().add(at), output_plane);
                        scatter(&shape, corners, to);
                    }
                }
            }
        });
    });
}

/// Writes the corners of a channel's tiles to its plane.
fn scatter<T: Single>(shape: &Shape, corners: &[f32], to: &mut [T]) {
    let [_, width] = shape.output;
    let stride = shape.columns() + SLACK;
    for (row, to) in to.chunks_exact_mut(width).enumerate() {
        let first = row % 2 * 2 * stride + row / 2 * shape.row;
        let (even, odd) = (&corners[first..][..shape.row], &corners[first + stride..][..shape.row]);
        for ((to, even), odd) in to.chunks_mut(2).zip(even).zip(odd) {
            to[0] = T::narrow(*even);
            if let Some(to) = to.get_mut(1) {
                *to = T::narrow(*odd);
            }
        }
    }
}
