//! Pooling.

use super::handle::{Handle, Operand};
use super::status::{by_float, by_single, input, known, output};
use crate::numeric::element::Single;
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use hip_provider::miopen::{Described, Outcome, Pooling, Poolings, Tensor};
use miopen_sys::*;

/// The descriptor of a pooling.
type Own = Described<Pooling, ()>;

/// The shape of a call, always with three spatial axes.
struct Shape {
    planes: usize,
    input: [usize; 3],
    output: [usize; 3],
    window: [usize; 3],
    stride: [usize; 3],
    pad: [usize; 3],
    mode: miopenPoolingMode_t,
    index_mode: miopenPoolingWorkspaceIndexMode_t,
}

impl Shape {
    fn new(pooling: &Pooling, x: &Tensor, y: &Tensor) -> Shape {
        let spatial = |values: &[usize], default: usize| -> [usize; 3] {
            if let [h, w] = *values { [default, h, w] } else { [values[0], values[1], values[2]] }
        };
        Shape {
            planes: x.dims[0] * x.dims[1],
            input: spatial(&x.dims[2..], 1),
            output: spatial(&y.dims[2..], 1),
            window: spatial(&pooling.window, 1),
            stride: spatial(&pooling.stride, 1),
            pad: spatial(&pooling.pad, 0),
            mode: pooling.mode,
            index_mode: pooling.index_mode,
        }
    }

    fn input_plane(&self) -> usize {
        self.input.iter().product()
    }

    fn output_plane(&self) -> usize {
        self.output.iter().product()
    }

    /// Begin and end of the pixels that window `at` covers along an axis, and the window's own
    /// begin, which may lie in the padding.
    fn covered(&self, axis: usize, at: usize) -> (usize, usize, isize) {
        let first = (at * self.stride[axis]) as isize - self.pad[axis] as isize;
        let end = (first + self.window[axis] as isize).clamp(0, self.input[axis] as isize) as usize;
        (first.max(0) as usize, end, first)
    }

    /// Calls `visit` with each output pixel and the part of each axis that its window covers.
    fn windows(&self, mut visit: impl FnMut(usize, [(usize, usize, isize); 3])) {
        let [depth, height, width] = self.output;
        let mut pixel = 0;
        for d in 0..depth {
            let d = self.covered(0, d);
            for h in 0..height {
                let h = self.covered(1, h);
                for w in 0..width {
                    visit(pixel, [d, h, self.covered(2, w)]);
                    pixel += 1;
                }
            }
        }
    }

    /// The divisor of an average.
    fn divisor(&self, covered: [(usize, usize, isize); 3]) -> f32 {
        let count: usize = if self.mode == miopenPoolingAverageInclusive {
            self.window.iter().product()
        } else {
            covered.iter().map(|(first, end, _)| end - first).product()
        };
        count.max(1) as f32
    }
}

/// A type of indices in the workspace.
trait Index: Copy + Send + Sync + 'static {
    fn pack(index: usize) -> Self;
    fn unpack(self) -> usize;
}
macro_rules! index {
    ($($t:ty)+) => { $(impl Index for $t {
        fn pack(index: usize) -> Self { index as $t }
        fn unpack(self) -> usize { self as usize }
    })+ };
}
index!(u8 u16 u32 u64);

/// The number of planes in a task, so that the task has enough pixels to be worthwhile.
fn planes_per_task(pixels: usize) -> usize {
    (1usize << 15).div_ceil(pixels.max(1))
}

/// Runs `compute(plane, from, to)` over matching planes of two slices, on all cores.
fn over_planes<A: Sync, B: Send>(
    from: &[A],
    from_plane: usize,
    to: &mut [B],
    to_plane: usize,
    compute: impl Fn(usize, &[A], &mut [B]) + Sync,
) {
    let planes = from.len() / from_plane;
    let each = planes_per_task(from_plane.max(to_plane));
    let to = super::Shared(to.as_mut_ptr());
    parallel(planes.div_ceil(each), |task| {
        for plane in task * each..((task + 1) * each).min(planes) {
            // SAFETY: each plane of the output is one task's alone.
            let to = unsafe { core::slice::from_raw_parts_mut(to.get().add(plane * to_plane), to_plane) };
            compute(plane, &from[plane * from_plane..][..from_plane], to);
        }
    });
}

fn max_forward<T: Single, I: Index>(
    shape: &Shape,
    x: *const c_void,
    y: *mut c_void,
    indices: Option<*mut c_void>,
) -> Outcome {
    let (input_plane, output_plane) = (shape.input_plane(), shape.output_plane());
    // SAFETY: the caller's buffers.
    let (x, y) =
        unsafe { (input::<T>(x, shape.planes * input_plane)?, output::<T>(y, shape.planes * output_plane)?) };
    let indices = match indices {
        Some(workspace) => {
            // SAFETY: the caller's workspace.
            let indices = unsafe { output::<I>(workspace, shape.planes * output_plane)? };
            Some(super::Shared(indices.as_mut_ptr()))
        }
        None => None,
    };
    let [_, height, width] = shape.input;
    let masked = shape.index_mode == miopenPoolingWorkspaceIndexMask;
    // The common case of 2x2 windows without padding, which need no clipping.
    let halves = shape.window == [1, 2, 2] && shape.stride == [1, 2, 2] && shape.pad == [0; 3];
    over_planes(x, input_plane, y, output_plane, |plane, x, y| {
        let write = |pixel: usize, index: usize| {
            if let Some(indices) = &indices {
                // SAFETY: inside the workspace, at this plane's own place.
                unsafe { indices.get().add(plane * output_plane + pixel).write(I::pack(index)) };
            }
        };
        if halves {
            let [depth, rows, columns] = shape.output;
            for d in 0..depth {
                for h in 0..rows {
                    let at = (d * height + 2 * h) * width;
                    let (upper, lower) = (&x[at..at + 2 * columns], &x[at + width..at + width + 2 * columns]);
                    let first = (d * rows + h) * columns;
                    let rows =
                        upper.chunks_exact(2).zip(lower.chunks_exact(2)).zip(&mut y[first..first + columns]);
                    for (w, ((upper, lower), y)) in rows.enumerate() {
                        let (a, b, c, e) =
                            (upper[0].widen(), upper[1].widen(), lower[0].widen(), lower[1].widen());
                        // This has no branches. It keeps the order of the general loop, so that the
                        // first of equal values wins.
                        let start = f32::MIN;
                        let (best, which) = if a > start { (a, 0) } else { (start, 0) };
                        let (best, which) = if b > best { (b, 1) } else { (best, which) };
                        let (best, which) = if c > best { (c, 2) } else { (best, which) };
                        let (best, which) = if e > best { (e, 3) } else { (best, which) };
                        *y = T::narrow(best);
                        let pixel = at + 2 * w + (which >> 1) * width + (which & 1);
                        write(first + w, if masked { which } else { pixel });
                    }
                }
            }
            return;
        }
        shape.windows(|pixel, [d, h, w]| {
            let (mut best, mut index) = (f32::MIN, 0);
            for z in d.0..d.1 {
                for r in h.0..h.1 {
                    for c in w.0..w.1 {
                        let at = (z * height + r) * width + c;
                        let value = x[at].widen();
                        if value > best {
                            best = value;
                            index = if masked {
                                let own = |(_, _, first): (usize, usize, isize), i: usize| {
                                    (i as isize - first) as usize
                                };
                                (own(d, z) * shape.window[1] + own(h, r)) * shape.window[2] + own(w, c)
                            } else {
                                at
                            };
                        }
                    }
                }
            }
            y[pixel] = T::narrow(best);
            write(pixel, index);
        });
    });
    Ok(())
}

fn average_forward<T: Single>(shape: &Shape, x: *const c_void, y: *mut c_void) -> Outcome {
    let (input_plane, output_plane) = (shape.input_plane(), shape.output_plane());
    // SAFETY: the caller's buffers.
    let (x, y) =
        unsafe { (input::<T>(x, shape.planes * input_plane)?, output::<T>(y, shape.planes * output_plane)?) };
    let [_, height, width] = shape.input;
    over_planes(x, input_plane, y, output_plane, |_, x, y| {
        shape.windows(|pixel, [d, h, w]| {
            let mut sum = 0.0f32;
            for z in d.0..d.1 {
                for r in h.0..h.1 {
                    let row = (z * height + r) * width;
                    sum += x[row + w.0..row + w.1].iter().map(|value| value.widen()).sum::<f32>();
                }
            }
            y[pixel] = T::narrow(sum / shape.divisor([d, h, w]));
        });
    });
    Ok(())
}

macro_rules! by_index {
    ($($forward:ident $backward:ident $t:ty;)+) => { $(
        fn $forward<T: Single>(
            shape: &Shape, x: *const c_void, y: *mut c_void, indices: Option<*mut c_void>,
        ) -> Outcome {
            max_forward::<T, $t>(shape, x, y, indices)
        }
        fn $backward<T: Single>(
            shape: &Shape, dy: *const c_void, dx: *mut c_void, indices: *const c_void,
        ) -> Outcome {
            max_backward::<T, $t>(shape, dy, dx, indices)
        }
    )+ };
}
by_index! {
    max_u8 max_back_u8 u8;
    max_u16 max_back_u16 u16;
    max_u32 max_back_u32 u32;
    max_u64 max_back_u64 u64;
}

fn max_backward<T: Single, I: Index>(
    shape: &Shape,
    dy: *const c_void,
    dx: *mut c_void,
    indices: *const c_void,
) -> Outcome {
    let (input_plane, output_plane) = (shape.input_plane(), shape.output_plane());
    // SAFETY: the caller's buffers.
    let (dy, dx, indices) = unsafe {
        (
            input::<T>(dy, shape.planes * output_plane)?,
            output::<T>(dx, shape.planes * input_plane)?,
            input::<I>(indices, shape.planes * output_plane)?,
        )
    };
    let [_, height, width] = shape.input;
    let masked = shape.index_mode == miopenPoolingWorkspaceIndexMask;
    // If windows don't overlap, each pixel gets at most one value, so adding in `T` loses nothing.
    let apart = (0..3).all(|axis| shape.stride[axis] >= shape.window[axis]);
    over_planes(dy, output_plane, dx, input_plane, |plane, dy, dx| {
        let indices = &indices[plane * output_plane..][..output_plane];
        if !masked && (apart || T::IS_F32) {
            dx.fill(T::narrow(0.0));
            for (dy, index) in dy.iter().zip(indices) {
                // An index that the forward pass didn't write must not reach outside the plane.
                if let Some(dx) = dx.get_mut(index.unpack()) {
                    *dx = T::narrow(dx.widen() + dy.widen());
                }
            }
            return;
        }
        crate::numeric::scratch::with_scratch(input_plane, |sums| {
            sums.fill(0.0);
            shape.windows(|pixel, [d, h, w]| {
                let index = indices[pixel].unpack();
                let at = if masked {
                    let own = |first: isize, i: usize| (first + i as isize) as usize;
                    let (z, r) = (index / (shape.window[1] * shape.window[2]), index / shape.window[2]);
                    let z = own(d.2, z);
                    let r = own(h.2, r % shape.window[1]);
                    let c = own(w.2, index % shape.window[2]);
                    (z.wrapping_mul(height).wrapping_add(r)).wrapping_mul(width).wrapping_add(c)
                } else {
                    index
                };
                if let Some(sum) = sums.get_mut(at) {
                    *sum += dy[pixel].widen();
                }
            });
            T::narrow_slice(sums, dx);
        });
    });
    Ok(())
}

fn average_backward<T: Single>(shape: &Shape, dy: *const c_void, dx: *mut c_void) -> Outcome {
    let (input_plane, output_plane) = (shape.input_plane(), shape.output_plane());
    // SAFETY: the caller's buffers.
    let (dy, dx) = unsafe {
        (input::<T>(dy, shape.planes * output_plane)?, output::<T>(dx, shape.planes * input_plane)?)
    };
    let [_, height, width] = shape.input;
    over_planes(dy, output_plane, dx, input_plane, |_, dy, dx| {
        crate::numeric::scratch::with_scratch(input_plane, |sums| {
            sums.fill(0.0);
            shape.windows(|pixel, [d, h, w]| {
                let share = dy[pixel].widen() / shape.divisor([d, h, w]);
                for z in d.0..d.1 {
                    for r in h.0..h.1 {
                        let row = (z * height + r) * width;
                        sums[row + w.0..row + w.1].iter_mut().for_each(|sum| *sum += share);
                    }
                }
            });
            T::narrow_slice(sums, dx);
        });
    });
    Ok(())
}

impl Poolings for Handle {
    type Own = ();

    unsafe fn pool_forward(
        &self,
        pooling: &Own,
        x: &Operand<'_>,
        y: &Operand<'_>,
        indices: Option<*mut c_void>,
    ) -> Outcome {
        let shape = Shape::new(pooling, x, y);
        let (data, index, x, y) = (x.data, pooling.index, x.at, y.at);
        by_single!(data, known())?;
        let run = move || {
            if shape.mode != miopenPoolingMax {
                return by_single!(data, average_forward(&shape, x, y));
            }
            match index {
                miopenIndexUint8 => by_single!(data, max_u8(&shape, x, y, indices)),
                miopenIndexUint16 => by_single!(data, max_u16(&shape, x, y, indices)),
                miopenIndexUint32 => by_single!(data, max_u32(&shape, x, y, indices)),
                _ => by_single!(data, max_u64(&shape, x, y, indices)),
            }
        };
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(run) }
    }

    unsafe fn pool_backward(
        &self,
        pooling: &Own,
        _: [&Operand<'_>; 2],
        dy: &Operand<'_>,
        dx: &Operand<'_>,
        indices: *mut c_void,
    ) -> Outcome {
        let shape = Shape::new(pooling, dx, dy);
        let (data, index, dy, dx) = (dx.data, pooling.index, dy.at, dx.at);
        by_float!(data, known())?;
        let run = move || {
            if shape.mode != miopenPoolingMax {
                return by_float!(data, average_backward(&shape, dy, dx));
            }
            match index {
                miopenIndexUint8 => by_float!(data, max_back_u8(&shape, dy, dx, indices)),
                miopenIndexUint16 => by_float!(data, max_back_u16(&shape, dy, dx, indices)),
                miopenIndexUint32 => by_float!(data, max_back_u32(&shape, dy, dx, indices)),
                _ => by_float!(data, max_back_u64(&shape, dy, dx, indices)),
            }
        };
        // SAFETY: as in `pool_forward`.
        unsafe { enqueue(run) }
    }
}
