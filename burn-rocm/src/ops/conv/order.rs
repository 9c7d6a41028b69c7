//! Which convolutions have their channels last.

use hip::{ChannelsLast, ConvDesc, ConvDirection, Dnn};

use crate::ops::channels_last::{self, is_channels_last};
use crate::tensor::RocmTensor;

/// The f16 or bf16 channels of a pixel that one access of 16 bytes moves.
const CHANNELS_AT_ONCE: usize = 8;

/// An image has at most so many channels: gray, or red, green, blue and alpha.
const IMAGE_CHANNELS: usize = 4;

/// Whether the setting puts the channels of this convolution last; `a` is its first operand.
///
/// The bytes moved decide. `|x|` and `|y|` are the bytes of input and output. Weights have the order
/// of their gradient after the first training step. Inference alone copies them in each call, as a
/// library that converts them does.
/// - Row-major, a library whose matrix-core kernels compute in NHWC converts two tensors forward
///   (`x`, `y`) and in each gradient (`dy`, `dx`; `x`, `dy`). It reads and writes each:
///   `6 (|x| + |y|)` bytes a training step.
/// - With channels last, this backend copies at worst the same six: `x` for the forward pass and for
///   the gradient of the weights, `dy` for both gradients, `y` and `dx` for a reader that needs them
///   row-major. Between two such convolutions it copies none of them. So this order never moves more
///   bytes, however small the convolution.
///
/// This holds if the kernels move 16 bytes at a time. So the channels of input and output must be
/// multiples of 8. With several groups, a group's too, unless `a` has its channels last already: then
/// row-major order would cost its copy.
///
/// An image is an exception. A pixel with 1 or 3 channels has 2 or 6 bytes, which a kernel reads
/// badly. But the image is small beside `y`: ResNet-18's has 19 MB and its `y` 103 MB. In row-major
/// order a library converts `y` and `dy`, and the next convolution begins with copies of what follows
/// `y`.
///
/// A convolution over one axis has one row, and its neighbours compute in the order of rank 3.
pub(super) fn puts_channels_last(desc: &ConvDesc, a: &RocmTensor) -> hip::Result<bool> {
    let &[_, from, rows, _] = desc.x.as_slice() else { return Ok(false) };
    let (to, one_row) = (desc.y[1], rows == 1 && desc.w[2] == 1);
    let whole = |channels: usize| channels.is_multiple_of(CHANNELS_AT_ONCE);
    let image = from <= IMAGE_CHANNELS && desc.groups == 1;
    let fits = (image || whole(from)) && whole(to);
    let group_fits = image || whole(from / desc.groups) && whole(to / desc.groups);
    Ok(fits && !one_row && (group_fits || is_channels_last(a)) && channels_last::is_on(a.dtype_of())?)
}

/// Whether to treat the first operand of a convolution as having its channels last: it has them, or it is
/// an image, whose copy is small. A network's first layer often takes the same time in both orders, and
/// what follows it mostly gains from channels last. A gradient keeps the order of the pass before.
fn begins_last(desc: &ConvDesc, a: &RocmTensor) -> bool {
    let image = || a.dims().get(1).is_some_and(|&channels| channels <= IMAGE_CHANNELS);
    is_channels_last(a) || (!desc.gradient && image())
}

/// Whether a convolution that may put its channels last is to do so; `a` is its first operand. Counts a
/// use, and may time the layer.
pub(super) fn is_faster_last(
    dnn: &Dnn,
    direction: ConvDirection,
    row_major: &ConvDesc,
    a: &RocmTensor,
) -> hip::Result<bool> {
    match hip::channels_last()? {
        ChannelsLast::Auto => {
            dnn.conv_channels_last(direction, row_major, a.buffer(), begins_last(row_major, a))
        }
        ChannelsLast::On => Ok(true),
        ChannelsLast::Off => Ok(false),
    }
}

/// As [`is_faster_last`] for the forward pass, by what is known. Counts no use and times nothing.
pub(super) fn may_be_faster_last(dnn: &Dnn, desc: &ConvDesc, x: &RocmTensor) -> hip::Result<bool> {
    match hip::channels_last()? {
        ChannelsLast::Auto => dnn.conv_plan_channels_last(desc, begins_last(desc, x)),
        ChannelsLast::On => Ok(true),
        ChannelsLast::Off => Ok(false),
    }
}
