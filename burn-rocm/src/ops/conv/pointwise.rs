//! Convolutions with windows of one element, as products: each output pixel is the product of the
//! weights and one input pixel. With the channels last, all pixels are the rows of one product;
//! row-major, each image is a product of a batch. They compete with MIOpen, as kernels for few
//! weights do.

use burn_std::{DType, Slice};
use hip::{ChannelsLast, ConvDesc, KernelProblem, Route, Template, conv_route, matmul_route};

use super::{LIBRARY, PRODUCT, is_of_nothing, is_small, puts_channels_last};
use crate::dtype::kernel_type;
use crate::ops::channels_last::{from_rows, is_channels_last, rows_of};
use crate::ops::copy::packed;
use crate::ops::matmul::{Request, product};
use crate::ops::view::{reshape, slice, transpose};
use crate::tensor::RocmTensor;

/// The convolution as a product, if its windows are single elements and timing has found the product
/// to be faster than `library`.
pub(super) fn by_product(
    op: &'static str,
    desc: &ConvDesc,
    [x, weight]: [&RocmTensor; 2],
    library: impl Fn(RocmTensor, RocmTensor) -> hip::Result<RocmTensor>,
) -> hip::Result<Option<RocmTensor>> {
    if conv_route()? != Route::Auto || is_of_nothing(desc) || !is_small(desc) {
        return Ok(None);
    }
    let Some(pointwise) = Pointwise::of(op, desc, x)? else { return Ok(None) };
    let run = |way| match way {
        LIBRARY => library(x.clone(), weight.clone()),
        _ => pointwise.forward(x, weight),
    };
    if x.hip_device().conv_choice(pointwise.problem(x)?, &[LIBRARY, PRODUCT], |way| run(way).map(drop))?
        == LIBRARY
    {
        return Ok(None);
    }
    hip::trace::fell_back(|| "a product was faster than MIOpen");
    pointwise.forward(x, weight).map(Some)
}

/// A convolution that a product can compute.
struct Pointwise<'a> {
    op: &'static str,
    desc: &'a ConvDesc,
    /// Whether the result has its channels last.
    last: bool,
}

impl<'a> Pointwise<'a> {
    /// The convolution of `x` as a product; `None` if it can't be one, if the settings forbid rocBLAS,
    /// or on a device whose library computes it as a product anyway. With
    /// `BURN_ROCM_CHANNELS_LAST=auto`, the result has the order of `x`, because a product is as fast
    /// in either.
    fn of(op: &'static str, desc: &'a ConvDesc, x: &RocmTensor) -> hip::Result<Option<Self>> {
        let fits = desc.x.len() == 4
            && desc.groups == 1
            && desc.w[2..].iter().all(|&size| size == 1)
            && desc.padding.iter().all(|&size| size == 0)
            && matches!(x.dtype_of(), DType::F32 | DType::F16 | DType::BF16)
            && x.hip_device().block_threads() > 1
            && matmul_route()? != Route::Own;
        if !fits {
            return Ok(None);
        }
        let last = puts_channels_last(desc, x)?
            && match hip::channels_last()? {
                ChannelsLast::On => true,
                ChannelsLast::Auto => is_channels_last(x),
                ChannelsLast::Off => false,
            };
        Ok(Some(Self { op, desc, last }))
    }

    /// The key by which the tuning store chooses the library or the product: what decides their times,
    /// also whether both copy the input into another order.
    fn problem(&self, x: &RocmTensor) -> hip::Result<KernelProblem> {
        let whole = self.desc.stride.iter().all(|&step| step == 1);
        let choice = match (self.last, is_channels_last(x), whole) {
            (true, true, true) => "library or product, channels last,",
            (true, true, false) => "library or product, channels last, with a stride,",
            (true, false, true) => "library or product, channels put last,",
            (true, false, false) => "library or product, channels put last, with a stride,",
            (false, false, true) => "library or product,",
            (false, false, false) => "library or product, with a stride,",
            (false, true, true) => "library or product, channels put first,",
            (false, true, false) => "library or product, channels put first, with a stride,",
        };
        let pixels = self.desc.y[0] * self.desc.y[2] * self.desc.y[3];
        let sizes = [pixels, self.desc.w[0], self.desc.w[1]];
        Ok(KernelProblem::new(choice, Template::matmul, kernel_type(x.dtype_of())?, sizes))
    }

    /// The convolution.
    fn forward(&self, x: &RocmTensor, weight: &RocmTensor) -> hip::Result<RocmTensor> {
        let Self { op, desc, last } = *self;
        let (&[images, channels, ..], &[_, to, height, width]) = (desc.x.as_slice(), desc.y.as_slice())
        else {
            return crate::error::invalid(op, "rank 4", format!("{:?}", desc.x));
        };
        let every = |axis: usize| Slice::new(0, None, desc.stride.get(axis).map_or(1, |&step| step as isize));
        let all = Slice::new(0, None, 1);
        let x = match desc.stride.iter().all(|&step| step == 1) {
            true => x.clone(),
            false => slice(x.clone(), &[all, all, every(0), every(1)])?,
        };
        let request = if desc.gradient { Request::gradient(op, 1.0) } else { Request::new(op, 1.0) };
        let weight = reshape(weight.clone(), &[to, channels])?;
        if last {
            let rows = reshape(packed(rows_of(x)?)?, &[images * height * width, channels])?;
            let out = product(request, rows, transpose(weight)?)?;
            return from_rows(reshape(out, &[images, height, width, to])?);
        }
        let columns = reshape(packed(x)?, &[images, channels, height * width])?;
        let out = product(request, reshape(weight, &[1, to, channels])?, columns)?;
        reshape(out, &desc.y)
    }
}
