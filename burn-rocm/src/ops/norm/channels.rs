//! How the kernels of batch norm see a tensor: as `[batch, channels, spatial]`, each channel in parts.

use std::sync::Arc;

use burn_std::DType;
use hip::{BatchNormDesc, Device, Grid};

use super::{fits, for_miopen, passed_over};
use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::ops::launch::max_reach;
use crate::ops::miopen::Why;
use crate::ops::view::{reshape, swap_dims};
use crate::tensor::{RocmTensor, float_type};

/// The fewest elements of one part of a channel. With smaller parts, joining the sums would cost
/// more than reading the elements.
const LEAST_PART: usize = 4096;

/// With at most this many parts, joining them takes little time, whatever their size.
const MANY_PARTS: usize = 64;

/// The kernels count the bytes of a part in 32 bits, at up to 8 bytes an element. So a part must
/// span fewer elements than this, including those of other channels in between.
const COUNTED: usize = 1 << 29;

/// [`COUNTED`], or less if `BURN_ROCM_LAUNCH_REACH` says so.
fn counted() -> usize {
    COUNTED.min(max_reach())
}

/// A tensor seen as `[batch, channels, spatial]`.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) spatial: usize,
}

/// The shape arguments `[batch, channels, spatial, wide, parts]` and the grid of this project's
/// kernels.
pub(super) struct Plan {
    pub(super) dims: [Arg; 5],
    pub(super) parts: usize,
    pub(super) grid: Grid,
}

impl Channels {
    pub(super) fn of(op: &'static str, x: &RocmTensor, params: &[&RocmTensor]) -> hip::Result<Self> {
        float_type(op, x)?;
        let &[batch, channels, ref rest @ ..] = x.dims() else {
            return invalid(op, "an input of shape [batch, channels, ..]", format!("{:?}", x.dims()));
        };
        for param in params {
            fits(op, x, &[param])?;
            if param.dims() != [channels] {
                return invalid(
                    op,
                    format!("a value for each channel, of shape [{channels}]"),
                    format!("{:?}", param.dims()),
                );
            }
        }
        Ok(Self { batch, channels, spatial: rest.iter().product() })
    }

    /// A row-major tensor of this shape; `None` unless it is `[batch, channels, ..]`.
    pub(crate) fn of_shape(dims: &[usize]) -> Option<Self> {
        let &[batch, channels, ref rest @ ..] = dims else { return None };
        // Dims of size 0 hide the others' product.
        dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim.max(1)))?;
        let seen = Self { batch, channels, spatial: rest.iter().product() };
        // The shape that `joined` gives.
        Some(if seen.is_far() { Self { batch: 1, channels, spatial: batch * seen.spatial } } else { seen })
    }

    fn len(self) -> usize {
        self.batch * self.channels * self.spatial
    }

    /// Why MIOpen does not compute the training's forward pass; `None` if it does.
    pub(crate) fn trained_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        // The kernel after MIOpen processes a channel in one part.
        match self.len() > 0 && self.parts(1, 1, counted()) == 1 {
            true => self.backward_without_miopen(op, device, dtype),
            false => Ok(Some(Why::Rule("the channels are empty, or longer than one part of a kernel"))),
        }
    }

    /// As [`trained_without_miopen`](Self::trained_without_miopen), for the gradient.
    pub(crate) fn backward_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        let ty = kernel_type(dtype)?;
        passed_over(device, None, || {
            for_miopen(op, dtype, self.len(), &[])?;
            self.desc(ty).trained_correctly()?;
            device.dnn()?.has_batch_norm(ty)
        })
    }

    /// As [`trained_without_miopen`](Self::trained_without_miopen), for inference.
    pub(crate) fn inferred_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        passed_over(device, None, || {
            for_miopen(op, dtype, self.len(), &[])?;
            device.dnn()?.has_batch_norm(kernel_type(dtype)?)
        })
    }

    pub(super) fn desc(self, dtype: hip::DType) -> BatchNormDesc {
        let Self { batch, channels, spatial } = self;
        BatchNormDesc { dtype, batch, channels, spatial }
    }

    pub(super) fn planned(self, device: &Arc<Device>, wide: usize, parts: usize) -> Plan {
        let Self { batch, channels, spatial } = self;
        // The kernels divide by `spatial`, so an empty `spatial` is passed as an empty batch.
        let [batch, spatial] = if spatial == 0 { [0, 1] } else { [batch, spatial] };
        let size = |dim: usize| Arg::U64(dim as u64);
        let count = |count: usize| Arg::U32(count as u32);
        let dims = [size(batch), size(channels), size(spatial), count(wide), count(parts)];
        let blocks = channels.div_ceil(wide) * parts;
        let each = batch * spatial * wide / parts;
        Plan { dims, parts, grid: device.grid_rows(blocks, each) }
    }

    /// Chooses tile width and parts. Neighbouring threads take neighbouring channels if a channel's
    /// elements are not contiguous. There are enough parts to fill the device.
    pub(super) fn plan(self, device: &Arc<Device>) -> Plan {
        let wide = match self.spatial {
            1 => 32,
            2..=7 => 8,
            _ => 1,
        };
        let tiles = self.channels.div_ceil(wide).max(1);
        let elements = self.batch * self.spatial * wide;
        // Somewhat more blocks than run at once, so that little time is lost waiting for the last
        // ones. Not many more, because each block of the second step joins all parts.
        let info = device.info();
        let resident = info.compute_units as usize
            * (info.max_threads_per_compute_unit / device.block_threads()).max(1) as usize;
        let wanted = (4 * resident / tiles).min(elements / LEAST_PART);
        // The blocks of a wide tile join the parts of all its channels. With more parts than this,
        // they would read more sums than elements.
        let joined = if wide == 1 { wanted } else { MANY_PARTS.max((self.batch * self.spatial / 4).isqrt()) };
        let parts = wanted.min(joined).max(1);
        self.planned(device, wide, self.parts(wide, parts, counted()))
    }

    /// The number of parts: `wanted`, or more, so that a part spans fewer than `most` elements,
    /// counted from the first sample's tile to the last one's. There are two exceptions:
    /// - If the batch is one sample of `most` elements or more, a part's elements are counted from
    ///   its own first element.
    /// - If no part can span two samples, each sample is a part. If even one channel of a sample is
    ///   too long, see [`Self::is_far`].
    fn parts(self, wide: usize, wanted: usize, most: usize) -> usize {
        let Self { batch, channels, spatial } = self;
        let sample = channels * spatial;
        if batch * sample < most {
            return wanted;
        }
        match (most - 1).saturating_sub(wide * spatial) / sample {
            // A part consists of pieces of up to 8 neighbouring elements.
            0 if batch == 1 => wanted.max(spatial.div_ceil(((most - 1) / 8 * 8).max(8))),
            // Each sample is a part.
            0 => batch,
            samples => wanted.max(batch.div_ceil(samples)),
        }
    }

    /// Whether a channel of one sample has so many elements that no part may span two samples.
    pub(super) fn is_far(self) -> bool {
        self.batch > 1 && self.spatial >= counted()
    }

    /// `x` with each channel's elements contiguous: `[1, channels, batch * spatial]`.
    pub(super) fn joined(self, x: RocmTensor) -> hip::Result<RocmTensor> {
        let Self { batch, channels, spatial } = self;
        let x = swap_dims(reshape(x, &[batch, channels, spatial])?, 0, 1)?;
        reshape(x, &[1, channels, batch * spatial])
    }

    /// Undoes [`Self::joined`]; `dims` is the original shape.
    pub(super) fn parted(self, x: RocmTensor, dims: &[usize]) -> hip::Result<RocmTensor> {
        let Self { batch, channels, spatial } = self;
        reshape(swap_dims(reshape(x, &[channels, batch, spatial])?, 0, 1)?, dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts channels into the same parts as the kernels (`part_of` in batch_norm.hip).
    #[test]
    fn parts_are_counted_in_32_bits() {
        const MOST: usize = 500;
        let sizes = [1, 2, 3, 7, 8, 20, 63, 199, 600, 1024];
        let (mut split, mut far) = (0, 0);
        for (batch, channels, spatial, wide, wanted) in sizes.iter().flat_map(|&batch| {
            let of = move |channels| sizes.map(|spatial| (batch, channels, spatial));
            sizes
                .into_iter()
                .flat_map(of)
                .flat_map(|(b, c, s)| [(b, c, s, 1, 1), (b, c, s, 1, 5), (b, c, s, 8, 1)])
        }) {
            if spatial >= MOST && batch > 1 || wide > 1 && wide * spatial >= MOST {
                continue;
            }
            let parts = Channels { batch, channels, spatial }.parts(wide, wanted, MOST);
            split += usize::from(parts > wanted);
            let what = format!("{batch} x {channels} x {spatial}, wide {wide}, {parts} parts");
            let unit = if wide == 1 && spatial % 8 == 0 { 8 } else { 1 };
            let units = batch * spatial / unit;
            let (each, more) = (units / parts, units % parts);
            let begin = |part: usize| (part * each + part.min(more)) * unit;
            for part in (0..parts).filter(|&part| begin(part) < begin(part + 1)) {
                let (from, to) = (begin(part), begin(part + 1));
                let [first, last] = [from, to - 1].map(|at| at / spatial);
                // The elements from the part's first sample, or its first element, to the end of
                // the last sample's tile.
                let seen = match spatial < MOST {
                    true => (last - first) * channels * spatial + wide.min(channels) * spatial,
                    false => to - from,
                };
                far += usize::from(spatial >= MOST);
                assert!(seen < MOST, "{what}: {seen} are seen");
            }
        }
        assert!(split > 100 && far > 100, "{split} were split, {far} parts of far samples");
    }
}
