//! Pooling over three axes.

use burn_std::DType;
use hip::Error as RocmError;

use crate::error::invalid;
use crate::ops::pool::{self, Window};
use crate::tensor::{RocmTensor, float_type};

/// A window over `[batch, channels, depth, height, width]` and how it moves. Each array has an
/// entry for each of the last three axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool3d {
    /// The window's size.
    pub kernel_size: [usize; 3],
    /// The window's stride.
    pub stride: [usize; 3],
    /// The padding before and after the input. It never wins a maximum, and counts as zeros in a
    /// mean.
    pub padding: [usize; 3],
    /// The distance between the window's elements; must be 1 for means.
    pub dilation: [usize; 3],
    /// Whether an incomplete last window counts.
    pub ceil_mode: bool,
}

impl Pool3d {
    fn window(&self) -> Window<3> {
        let Self { kernel_size: size, stride, padding, dilation, ceil_mode: ceil } = *self;
        Window { size, stride, padding, dilation, ceil }
    }

    /// The window of an average pooling.
    fn of_means(&self, op: &'static str) -> hip::Result<Window<3>> {
        match self.dilation {
            [1, 1, 1] => Ok(self.window()),
            dilation => invalid(op, "a dilation of 1", format!("{dilation:?}")),
        }
    }
}

/// The largest element of each window, by one kernel.
///
/// # Shapes
/// - x: `[batch, channels, depth, height, width]`
/// - result: `[batch, channels, depth_out, height_out, width_out]`
///
/// # Errors
/// `Invalid` for another rank, or a window that does not fit the padded input; `Unsupported` for
/// integers; an error of the device.
pub fn max_pool3d(x: RocmTensor, pool: Pool3d) -> Result<RocmTensor, RocmError> {
    const OP: &str = "max_pool3d";
    float_type(OP, &x)?;
    pool::max(OP, x, pool.window())
}

/// [`max_pool3d`], and each maximum's index in its channel:
/// `(slice * height + row) * width + column`, as I32. Among equal elements the first counts.
///
/// # Errors
/// As for [`max_pool3d`].
pub fn max_pool3d_with_indices(x: RocmTensor, pool: Pool3d) -> Result<(RocmTensor, RocmTensor), RocmError> {
    const OP: &str = "max_pool3d_with_indices";
    float_type(OP, &x)?;
    pool::max_with_indices(OP, x, pool.window(), DType::I32)
}

/// The gradient of [`max_pool3d`] with respect to its input, of shape `x`, from the output's
/// gradient and the maxima's indices. MIOpen computes it in f32 and f16 if it supports the window
/// (no dilation, complete windows, padding below the window's size). Otherwise one kernel does.
///
/// # Errors
/// `Invalid` if shapes or devices do not fit; `Unsupported` for integers; an error of the device.
/// This project's kernel reports an index outside the input when the gradient is read. MIOpen
/// ignores such an index.
pub fn max_pool3d_backward(
    x: [usize; 5],
    pool: Pool3d,
    grad: RocmTensor,
    indices: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "max_pool3d_backward";
    float_type(OP, &grad)?;
    pool::max_gradient(OP, &x, pool.window(), grad, indices)
}

/// The mean of each window. With `count_include_pad` the padding's zeros count. MIOpen computes it
/// under the conditions of [`max_pool3d_backward`], otherwise one kernel does.
///
/// # Shapes
/// As for [`max_pool3d`].
///
/// # Errors
/// As for [`max_pool3d`], and `Invalid` for a dilation other than 1.
pub fn avg_pool3d(x: RocmTensor, pool: Pool3d, count_include_pad: bool) -> Result<RocmTensor, RocmError> {
    const OP: &str = "avg_pool3d";
    float_type(OP, &x)?;
    pool::average(OP, x, pool.of_means(OP)?, count_include_pad)
}

/// The gradient of [`avg_pool3d`] with respect to its input, of shape `x`, from the output's
/// gradient.
///
/// # Errors
/// As for [`avg_pool3d`], and `Invalid` for a gradient of another shape.
pub fn avg_pool3d_backward(
    x: [usize; 5],
    grad: RocmTensor,
    pool: Pool3d,
    count_include_pad: bool,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "avg_pool3d_backward";
    float_type(OP, &grad)?;
    pool::average_gradient(OP, &x, grad, pool.of_means(OP)?, count_include_pad)
}
