//! Copies source planes into scratch memory, with the padding written out.

use super::plan::Fill;
use crate::numeric::element::Single;

/// Widens one image's planes at `from` into `to`, which has `fill.len()` floats.
///
/// # Safety
/// `from` is valid for `fill.channels` planes of `fill.source`.
pub(crate) unsafe fn fill_planes<T: Single>(fill: &Fill, from: *const T, to: &mut [f32]) {
    let source: usize = fill.source.iter().product();
    for (channel, to) in to.chunks_exact_mut(fill.channel().max(1)).take(fill.channels).enumerate() {
        // SAFETY: the caller vouches for the planes.
        unsafe { fill_channel(fill, from.add(channel * source), to) };
    }
}

/// Widens the plane at `from` into `to`, which has `fill.channel()` floats.
///
/// # Safety
/// `from` is valid for a plane of `fill.source`.
pub(crate) unsafe fn fill_channel<T: Single>(fill: &Fill, from: *const T, to: &mut [f32]) {
    let [depth, height, width] = fill.dims;
    let [_, source_height, source_width] = fill.source;
    // Without padding and steps, the filled plane equals the source plane.
    if fill.is_copy() {
        // SAFETY: the caller vouches for the plane.
        T::widen_slice(unsafe { core::slice::from_raw_parts(from, depth * height * width) }, to);
        return;
    }
    let mut rows = to.chunks_exact_mut(width);
    let coordinate = |axis: usize, first: isize, i: usize| {
        let at = first + (fill.step[axis] * i) as isize;
        (at >= 0 && (at as usize) < fill.source[axis]).then_some(at as usize)
    };
    for phase in &fill.phases {
        let step = fill.step[2];
        // Pixels `begin..end` of a row are in the source, the first of them at `start`.
        let begin = ((-phase[2]).max(0) as usize).div_ceil(step).min(width);
        let start = phase[2] + (begin * step) as isize;
        let end = begin
            .max((begin + (source_width as isize - start).max(0).cast_unsigned().div_ceil(step)).min(width));
        for d in 0..depth {
            let at_d = coordinate(0, phase[0], d);
            for h in 0..height {
                let Some(row) = rows.next() else { return };
                let (Some(at_d), Some(at_h)) = (at_d, coordinate(1, phase[1], h)) else {
                    row.fill(0.0);
                    continue;
                };
                row[..begin].fill(0.0);
                row[end..].fill(0.0);
                if begin == end {
                    continue;
                }
                let first = (at_d * source_height + at_h) * source_width + start as usize;
                let count = end - begin;
                // SAFETY: the caller vouches for the planes; the coordinates were checked against
                // their size.
                let source = unsafe { core::slice::from_raw_parts(from.add(first), (count - 1) * step + 1) };
                if step == 1 {
                    T::widen_slice(source, &mut row[begin..end]);
                } else if !T::IS_F32 {
                    widen_steps(source, step, &mut row[begin..end]);
                } else if step == 2 {
                    // A loop over pairs vectorises; one with a general step does not. The last
                    // pixel has no partner.
                    for (to, from) in row[begin..end].iter_mut().zip(source.chunks_exact(2)) {
                        *to = from[0].widen();
                    }
                    row[end - 1] = source[source.len() - 1].widen();
                } else {
                    for (to, from) in row[begin..end].iter_mut().zip(source.iter().step_by(step)) {
                        *to = from.widen();
                    }
                }
            }
        }
    }
}

/// Widens each `step`-th pixel: widens all pixels, which vectorises, and then picks.
fn widen_steps<T: Single>(source: &[T], step: usize, to: &mut [f32]) {
    const ROOM: usize = 256;
    let mut room = [0.0; ROOM];
    if step > ROOM {
        to.iter_mut().zip(source.iter().step_by(step)).for_each(|(to, from)| *to = from.widen());
        return;
    }
    let each = ROOM / step;
    for (to, from) in to.chunks_mut(each).zip(source.chunks(each * step)) {
        let wide = &mut room[..from.len()];
        T::widen_slice(from, wide);
        to.iter_mut().zip(wide.iter().step_by(step)).for_each(|(to, from)| *to = *from);
    }
}
