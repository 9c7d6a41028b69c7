//! A convolution's patches as the columns of a matrix. Only one block of the matrix is written out
//! at a time.

use super::fill::fill_channel;
use super::plan::{Fill, Run, SLACK};
use super::problem::Problem;
use crate::numeric::element::Single;
use crate::numeric::shared::Shared;
use crate::numeric::simd::Vector;
use crate::runtime::parallel;

/// At most this many floats of planes are filled before they are multiplied, but at least those of
/// one image. 8 MiB may fit into a core's share of a last-level cache.
pub(super) const WAVE: usize = 2 << 20;

/// Floats that one task fills.
const PIECE: usize = 1 << 14;

/// The memory that patches are read from: the planes of some images, with their padding written
/// out, or the source itself.
pub(super) struct Sources<'a> {
    fill: &'a Fill,
    groups: usize,
    batch: usize,
    /// Whether patches are read from the source itself: one tap, f32, no padding and no stride.
    plain: bool,
}

impl<'a> Sources<'a> {
    pub(super) fn new<T: Single>(fill: &'a Fill, p: &Problem) -> Self {
        let plain = T::IS_F32 && p.taps() == 1 && fill.is_copy();
        Sources { fill, groups: p.groups, batch: p.batch, plain }
    }

    /// Floats of one image's planes.
    fn image(&self) -> usize {
        self.groups * self.fill.channels * self.fill.channel()
    }

    /// The number of images that are filled at a time.
    pub(super) fn wave(&self) -> usize {
        let most = if self.plain { self.batch } else { WAVE / self.image().max(1) };
        most.clamp(1, self.batch.max(1))
    }

    /// Floats of memory that [`Sources::fill`] needs.
    pub(super) fn len(&self) -> usize {
        if self.plain { 0 } else { self.wave() * self.image() + SLACK }
    }

    /// The planes of images `first..first + count`. They are written to `to`, unless patches are
    /// read from the source itself.
    ///
    /// # Safety
    /// `src` is valid for the whole tensor.
    pub(super) unsafe fn fill<T: Single>(
        &self,
        src: Shared<T>,
        first: usize,
        count: usize,
        to: &mut [f32],
    ) -> Planes {
        let (channel, image) = (self.fill.channel(), self.image());
        let source: usize = self.fill.source.iter().product();
        let channels = self.groups * self.fill.channels;
        let from = Shared(src.get().wrapping_add(first * channels * source));
        if self.plain {
            return Planes { at: Shared(from.get().cast()), image, group: image / self.groups, exact: true };
        }
        let each = PIECE.div_ceil(channel.max(1));
        let to = Shared(to.as_mut_ptr());
        parallel((count * channels).div_ceil(each), |task| {
            for index in task * each..((task + 1) * each).min(count * channels) {
                // SAFETY: each channel belongs to one task, inside the tensor and inside `to`,
                // which has `len` floats.
                unsafe {
                    let to = core::slice::from_raw_parts_mut(to.get().add(index * channel), channel);
                    fill_channel(self.fill, from.get().add(index * source), to);
                }
            }
        });
        Planes { at: to, image, group: image / self.groups, exact: false }
    }
}

/// The planes from [`Sources::fill`].
#[derive(Clone, Copy)]
pub(super) struct Planes {
    at: Shared<f32>,
    image: usize,
    group: usize,
    /// Whether code must not read past a run's end.
    exact: bool,
}

/// A part of a block of columns with contiguous pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its place in the planes, without a tap's offset.
    pub(super) from: usize,
    /// Its place in the other tensor, in the plane of the group's first channel.
    pub(super) to: usize,
    /// Its first column in the block.
    pub(super) at: usize,
    pub(super) count: usize,
}

impl Planes {
    /// The address of an image's planes.
    ///
    /// # Safety
    /// `index` is less than the number of images that were filled.
    pub(super) unsafe fn image(&self, index: usize) -> *const f32 {
        // SAFETY: the caller vouches for the index.
        unsafe { self.at.get().add(index * self.image).cast_const() }
    }

    /// The pieces of columns `from..to` of a group, image by image. `other` is the floats of an
    /// image and of a group in the other tensor.
    pub(super) fn pieces(
        &self,
        runs: &[Run],
        (from, to): (usize, usize),
        group: usize,
        other: (usize, usize),
    ) -> Vec<Piece> {
        let pixels = runs.last().map_or(0, |run| run.first + run.count);
        let mut pieces = Vec::new();
        let mut at = from;
        while at < to {
            let (image, pixel) = (at / pixels, at % pixels);
            let run = runs[runs.partition_point(|run| run.first + run.count <= pixel)];
            let skip = pixel - run.first;
            let count = (run.count - skip).min(to - at);
            pieces.push(Piece {
                from: image * self.image + group * self.group + run.from + skip,
                to: image * other.0 + group * other.1 + run.to + skip * run.step,
                at: at - from,
                count,
            });
            at += count;
        }
        pieces
    }

    /// The address of a piece's pixels for the tap at `offset`.
    ///
    /// # Safety
    /// `piece` belongs to these planes, and `offset` to one of their taps.
    #[inline(always)]
    pub(super) unsafe fn under(&self, piece: &Piece, offset: usize) -> *const f32 {
        // SAFETY: the caller vouches for both.
        unsafe { self.at.get().add(piece.from + offset).cast_const() }
    }

    /// Copies the block's pixels for the tap at `offset` to `line`, without gaps.
    ///
    /// # Safety
    /// `pieces` belong to these planes; `line` has room for them and one vector more.
    #[inline(always)]
    pub(super) unsafe fn gather<V: Vector>(&self, pieces: &[Piece], offset: usize, line: *mut f32) {
        for piece in pieces {
            // SAFETY: the caller vouches for both; reads past a piece stay in the planes and their
            // slack.
            unsafe {
                let (from, to) = (self.at.get().add(piece.from + offset), line.add(piece.at));
                if self.exact {
                    core::ptr::copy_nonoverlapping(from, to, piece.count);
                    continue;
                }
                let mut i = 0;
                while i < piece.count {
                    V::load(from.add(i)).store(to.add(i));
                    i += V::LANES;
                }
            }
        }
    }
}

/// Merges pieces whose places in the other tensor are contiguous.
pub(super) fn joined(pieces: &[Piece], step: usize) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        match all.last_mut() {
            Some(last) if last.to + last.count * step == piece.to => last.count += piece.count,
            _ => all.push(*piece),
        }
    }
    all
}
