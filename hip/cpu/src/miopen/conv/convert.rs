//! Conversion of whole f16 and bf16 tensors to f32 and back, on all cores.

use crate::numeric::element::Single;
use crate::numeric::shared::Shared;
use crate::runtime::parallel_ranges;

/// Elements that one task converts. Fewer are not worth waking a core.
pub(super) const CHUNK: usize = 1 << 14;

/// `len` elements as f32: the elements themselves if they are f32, else widened into `room`.
///
/// # Safety
/// `from` is valid for `len` elements. `room` is valid for `len` floats, unless `T` is f32.
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

/// Rounds `len` floats to `to`. If `T` is f32, does nothing, because the floats are in `to`
/// already.
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
