//! Convolutions as matrix products: a kernel writes out every patch of the input, and rocBLAS
//! multiplies the patches by the weights, one matrix for each group. They compute f64, and f32
//! where MIOpen does not, because rocBLAS multiplies both at the device's full speed. f16 and bf16
//! use the direct kernels, which round each sum once. So no product here needs the flag for
//! gradients, which affects only f16.

use burn_std::DType;
use hip::{ConvDesc, Device, Functor, Template, workspace_limit};

use super::direct::value;
use crate::arg::Arg;
use crate::dtype::raw_type;
use crate::ops::binary::binary;
use crate::ops::cat::cat;
use crate::ops::launch::rows;
use crate::ops::matmul::{Request, product};
use crate::ops::reduce::reduce_dim;
use crate::ops::view::{narrow, reshape, transpose};
use crate::tensor::RocmTensor;

/// If one image's patches take more bytes than this, or than the limit of workspaces, the direct
/// kernels compute the convolution instead.
const MOST_BYTES: usize = 1 << 30;

/// The sizes of the product that computes a convolution.
struct Sizes {
    batch: usize,
    groups: usize,
    /// Output channels of a group.
    rows: usize,
    /// Input channels of a group times the window.
    inner: usize,
    /// Output positions of a channel.
    columns: usize,
}

impl Sizes {
    fn of(desc: &ConvDesc) -> Self {
        Self {
            batch: desc.x[0],
            groups: desc.groups,
            rows: desc.w[0] / desc.groups,
            inner: desc.w[1..].iter().product(),
            columns: desc.y[2..].iter().product(),
        }
    }

    /// Bytes of one image's patches; `None` if the number overflows.
    fn image(&self, dtype: DType) -> Option<usize> {
        self.groups.checked_mul(self.inner)?.checked_mul(self.columns)?.checked_mul(dtype.size())
    }

    /// Bytes of the weights' gradient that one image has.
    fn gradient(&self, dtype: DType) -> usize {
        let elements = [self.groups, self.rows, self.inner].into_iter().fold(1, usize::saturating_mul);
        elements.saturating_mul(dtype.size())
    }

    /// The parts of the batch that are computed at a time, each as first image and number of
    /// images. They take at most `most` bytes, of which an image takes `image`, or are one image.
    fn parts(&self, image: usize, most: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let each = most.checked_div(image).unwrap_or(self.batch).clamp(1, self.batch);
        let batch = self.batch;
        (0..batch).step_by(each).map(move |start| (start, each.min(batch - start)))
    }
}

/// How many bytes of patches are written out at once. The pool reuses the same block for each part
/// of a batch.
fn patch_bytes(like: &RocmTensor) -> usize {
    like.hip_device().defaults().conv_patch_bytes.min(workspace_limit())
}

/// Bytes that one image takes besides operands and result: its patches, if they are written out.
fn image_bytes(desc: &ConvDesc, dtype: DType) -> usize {
    if pointwise(desc) { 0 } else { Sizes::of(desc).image(dtype).unwrap_or(usize::MAX) }
}

/// Whether products compute this convolution, rather than the direct kernels.
pub(super) fn takes(device: &Device, desc: &ConvDesc, dtype: DType) -> bool {
    let (sizes, least) = (Sizes::of(desc), device.defaults().conv_product_least);
    matches!(dtype, DType::F64 | DType::F32)
        && sizes.rows >= least
        && sizes.inner >= least
        && sizes
            .image(dtype)
            .is_some_and(|bytes| bytes <= MOST_BYTES && (pointwise(desc) || bytes <= workspace_limit()))
}

/// Whether each output depends only on the input at its own position. The input is then itself the
/// matrix of patches.
fn pointwise(desc: &ConvDesc) -> bool {
    desc.w[2..].iter().chain(&desc.stride).all(|&n| n == 1) && desc.padding.iter().all(|&n| n == 0)
}

/// The patches of `images` images of the input, `[images, groups, inner, columns]`.
fn patches(
    op: &'static str,
    desc: &ConvDesc,
    x: &RocmTensor,
    start: usize,
    images: usize,
) -> hip::Result<RocmTensor> {
    let sizes = Sizes::of(desc);
    let shape = [images, sizes.groups, sizes.inner, sizes.columns];
    let x = narrow(x.clone(), 0, start, images)?;
    if pointwise(desc) {
        return reshape(x, &shape);
    }
    let out = RocmTensor::empty(x.hip_device(), shape.to_vec(), x.dtype_of())?;
    let dims = [Arg::U64((images * desc.x[1]) as u64), value(op, desc)?];
    let name = Template::conv_patches.ty(raw_type(x.kernel_type()?));
    let device = out.hip_device();
    rows(op, device, name, device.grid(out.len()), &dims, &[&x], &[], &[&out])?;
    Ok(out)
}

/// The weights as `[1, groups, rows, inner]`.
fn matrices(desc: &ConvDesc, weight: &RocmTensor) -> hip::Result<RocmTensor> {
    let sizes = Sizes::of(desc);
    reshape(weight.clone(), &[1, sizes.groups, sizes.rows, sizes.inner])
}

/// The output's gradient for `images` images, `[images, groups, rows, columns]`.
fn gradients(desc: &ConvDesc, grad: &RocmTensor, start: usize, images: usize) -> hip::Result<RocmTensor> {
    let sizes = Sizes::of(desc);
    let grad = narrow(grad.clone(), 0, start, images)?;
    reshape(grad, &[images, sizes.groups, sizes.rows, sizes.columns])
}

/// Joins results that were computed for parts of the batch.
fn together(mut parts: Vec<RocmTensor>) -> hip::Result<RocmTensor> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => cat(parts, 0),
    }
}

/// `x * weight`.
pub(super) fn forward(
    op: &'static str,
    desc: &ConvDesc,
    [x, weight]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let (weight, request) = (matrices(desc, weight)?, Request::new(op, 1.0));
    let part = |(start, images)| product(request, weight.clone(), patches(op, desc, x, start, images)?);
    let parts = Sizes::of(desc).parts(image_bytes(desc, x.dtype_of()), patch_bytes(x));
    reshape(together(parts.map(part).collect::<hip::Result<_>>()?)?, &desc.y)
}

/// The gradient of the input.
pub(super) fn x_backward(
    op: &'static str,
    desc: &ConvDesc,
    [grad, weight]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let weight = transpose(matrices(desc, weight)?)?;
    let (sizes, request) = (value(op, desc)?, Request::new(op, 1.0));
    let part = |(start, images)| {
        let patches = product(request, weight.clone(), gradients(desc, grad, start, images)?)?;
        let mut shape = desc.x.clone();
        shape[0] = images;
        if pointwise(desc) {
            return reshape(patches, &shape);
        }
        let out = RocmTensor::empty(grad.hip_device(), shape, grad.dtype_of())?;
        let dims = [Arg::U64((images * desc.x[1]) as u64), sizes];
        let name = Template::conv_unpatch.ty(grad.kernel_type()?);
        let device = out.hip_device();
        rows(op, device, name, device.grid(out.len()), &dims, &[&patches], &[], &[&out])?;
        Ok(out)
    };
    let parts = Sizes::of(desc).parts(image_bytes(desc, grad.dtype_of()), patch_bytes(grad));
    together(parts.map(part).collect::<hip::Result<_>>()?)
}

/// The gradient of the weight.
pub(super) fn weight_backward(
    op: &'static str,
    desc: &ConvDesc,
    [grad, x]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let mut sum: Option<RocmTensor> = None;
    let sizes = Sizes::of(desc);
    // Each image's gradient is written out before the sum over the images.
    let image = match pointwise(desc) {
        true => sizes.gradient(x.dtype_of()),
        false => image_bytes(desc, x.dtype_of()),
    };
    for (start, images) in sizes.parts(image, patch_bytes(x)) {
        let patches = transpose(patches(op, desc, x, start, images)?)?;
        let each = product(Request::new(op, 1.0), gradients(desc, grad, start, images)?, patches)?;
        let part = if images > 1 { reduce_dim(op, Functor::Sum, each, 0)? } else { each };
        sum = Some(match sum {
            Some(sum) => binary(op, Functor::Add, sum, part)?,
            None => part,
        });
    }
    match sum {
        Some(sum) => reshape(sum, &desc.w),
        None => crate::error::invalid(op, "a batch that is not empty", format!("{:?}", desc.x)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_into_parts_of_some_megabytes() {
        let parts = |batch, groups, inner| {
            let sizes = Sizes { batch, groups, rows: 8, inner, columns: 1 << 20 };
            sizes.parts(sizes.image(DType::F64).unwrap(), 64 << 20).collect::<Vec<_>>()
        };
        assert_eq!(parts(5, 1, 4), [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(parts(2, 2, 1 << 10), [(0, 1), (1, 1)]);
        assert_eq!(parts(3, 1, 1), [(0, 3)]);
    }
}
