//! Whole f16 and bf16 tensors as f32 and back, by all cores.

use crate::numeric::element::Single;
use crate::numeric::shared::Shared;
use crate::runtime::parallel_ranges;

/// Elements that one task converts: fewer are not worth waking a core.
pub(super) const CHUNK: usize = 1 << 14;

/// `len` elements in f32: the elements themselves if they are f32, else written to `room`.
///
/// # Safety
/// `from` is valid for `len` elements; `room` is valid for as many floats unless they are f32.
pub(super) unsafe fn widened<T: Single>(len: usize, from: Shared<T>, room: Shared<f32>) -> Shared<f32> {
    if T::IS_F32 {
        return Shared(from.get().cast());
    }
    parallel_ranges(len, CHUNK, |part| {
        // SAFETY: the caller vouches for both; each task has its own part.
        unsafe {
            let from = core::slice::from_raw_parts(from.get().add(part.start), part.len());
            let to = core::slice::from_raw_parts_mut(room.get().add(part.start), part.len());
            T::widen_slice(from, to);
        }
    });
    room
}

/// Rounds `len` floats to `to`. Floats of an f32 tensor are there already.
///
/// # Safety
/// `from` and `to` are valid for `len` elements each and don't overlap, unless `T` is f32.
pub(super) unsafe fn narrow<T: Single>(len: usize, from: Shared<f32>, to: Shared<T>) {
    if T::IS_F32 {
        return;
    }
    parallel_ranges(len, CHUNK, |part| {
        // SAFETY: the caller vouches for both; each task has its own part.
        unsafe {
            let from = core::slice::from_raw_parts(from.get().add(part.start), part.len());
            let to = core::slice::from_raw_parts_mut(to.get().add(part.start), part.len());
            T::narrow_slice(from, to);
        }
    });
}
