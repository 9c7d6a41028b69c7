//! Deformable convolution and its gradients. A kernel samples the input into columns; the rest is a
//! matrix product on rocBLAS.
//!
//! Columns have the layout `[channels, taps, images, positions]`. So a group's product is one
//! matrix over all images of a chunk, and the product for the weight's gradient sums over the
//! images.

use burn_std::DType;
use hip::{Functor, Template};

use super::bias_backward;
use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::binary::binary;
use crate::ops::cast::cast;
use crate::ops::copy::{assign, packed};
use crate::ops::create::full_on;
use crate::ops::launch::rows;
use crate::ops::matmul::{Request, matmul, product};
use crate::ops::view::{narrow, permute, reshape, swap_dims};
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// The most bytes of columns at a time. A typical layer (64 channels, 3 x 3, 112 x 112 pixels)
/// needs this many for two images in f32. Larger batches take more time but no more memory.
const COLUMN_BYTES: usize = 64 << 20;

/// The bytes of columns at a time, which the limit of workspaces may lower. One output's columns are
/// the least.
fn column_bytes() -> usize {
    COLUMN_BYTES.min(hip::workspace_limit())
}

/// Work items that keep the largest devices busy.
const ENOUGH_ITEMS: usize = 1 << 16;

/// The largest position that the kernels handle.
const MAX_SIZE: usize = 1 << 30;

/// The options of a deformable convolution.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub weight_groups: usize,
    pub offset_groups: usize,
}

/// The operands of a deformable convolution.
#[derive(Clone)]
pub(crate) struct Operands {
    /// `[batch, channels, height, width]`.
    pub x: RocmTensor,
    /// `[batch, offset_groups * taps * 2, out_height, out_width]`, for each tap its y, then its x.
    pub offset: RocmTensor,
    /// `[channels_out, channels / weight_groups, kernel_height, kernel_width]`.
    pub weight: RocmTensor,
    /// `[batch, offset_groups * taps, out_height, out_width]`.
    pub mask: Option<RocmTensor>,
    /// `[channels_out]`.
    pub bias: Option<RocmTensor>,
}

/// The gradients of [`Operands`], in their order.
pub(crate) struct Gradients {
    pub x: RocmTensor,
    pub offset: RocmTensor,
    pub weight: RocmTensor,
    pub mask: Option<RocmTensor>,
    pub bias: Option<RocmTensor>,
}

/// The checked sizes.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    channels: usize,
    channels_out: usize,
    out: [usize; 2],
    taps: usize,
    groups: usize,
    offset_groups: usize,
    /// `Window` of `deform_conv.hip`.
    window: [u32; 12],
}

impl Sizes {
    fn of(op: &'static str, operands: &Operands, options: &Options) -> hip::Result<Self> {
        let Operands { x, offset, weight, mask, bias } = operands;
        let all: Vec<&RocmTensor> = [x, offset, weight].into_iter().chain(mask).chain(bias).collect();
        one_device(op, &all)?;
        one_dtype(op, &all)?;
        let (&[batch, channels, ih, iw], &[channels_out, of_group, kh, kw]) = (x.dims(), weight.dims())
        else {
            let found = format!("input {:?}, weights {:?}", x.dims(), weight.dims());
            return invalid(op, "an input and weights of rank 4", found);
        };
        let &Options { stride, padding, dilation, weight_groups: groups, offset_groups } = options;
        if [stride, dilation, [groups, offset_groups], [kh, kw]].concat().contains(&0) {
            return invalid(
                op,
                "strides, dilations, groups and taps from 1",
                format!("{options:?}, {kh} x {kw}"),
            );
        }
        if of_group.checked_mul(groups) != Some(channels)
            || !channels_out.is_multiple_of(groups)
            || !channels.is_multiple_of(offset_groups)
        {
            return invalid(
                op,
                format!("weights of {channels} / {groups} channels and groups that divide the channels"),
                format!("weights {:?} and {options:?} for an input {:?}", weight.dims(), x.dims()),
            );
        }
        let size = |axis: usize, size: usize, window: usize| {
            let padded = padding[axis].checked_mul(2)?.checked_add(size)?;
            let reach = dilation[axis].checked_mul(window - 1)?.checked_add(1)?;
            (padded < MAX_SIZE).then_some(padded.checked_sub(reach)? / stride[axis] + 1)
        };
        let (Some(oh), Some(ow)) = (size(0, ih, kh), size(1, iw, kw)) else {
            let found = format!("input {:?}, weights {:?}, {options:?}", x.dims(), weight.dims());
            return invalid(op, "a window inside the padded input", found);
        };
        if [ih * iw, oh * ow].iter().any(|&n| n > i32::MAX as usize) {
            return invalid(op, format!("planes of at most {} pixels", i32::MAX), format!("{:?}", x.dims()));
        }
        let shape = |what: &str, tensor: &RocmTensor, expected: &[usize]| match tensor.dims() == expected {
            true => Ok(()),
            false => invalid(op, format!("{what} of shape {expected:?}"), format!("{:?}", tensor.dims())),
        };
        let taps = kh * kw;
        shape("offsets", offset, &[batch, offset_groups * taps * 2, oh, ow])?;
        if let Some(mask) = mask {
            shape("a mask", mask, &[batch, offset_groups * taps, oh, ow])?;
        }
        if let Some(bias) = bias {
            shape("a bias", bias, &[channels_out])?;
        }
        let sizes =
            [ih, iw, oh, ow, kh, kw, stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1]];
        let window = sizes.map(|n| n as u32);
        Ok(Self { batch, channels, channels_out, out: [oh, ow], taps, groups, offset_groups, window })
    }

    fn positions(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// Whether there is nothing to multiply.
    fn is_empty(&self) -> bool {
        let pixels = self.window[0] as usize * self.window[1] as usize;
        [self.batch, self.channels, self.channels_out, pixels].contains(&0)
    }

    fn out_dims(&self) -> [usize; 4] {
        [self.batch, self.channels_out, self.out[0], self.out[1]]
    }

    /// Cuts the work into chunks of whole images, or of parts of one image, so that a chunk's
    /// columns have at most `most` elements. A chunk has at least one position.
    fn chunks(&self, most: usize) -> Vec<Chunk> {
        let (lines, positions) = (self.channels * self.taps, self.positions());
        if lines * positions > most {
            let each = (most / lines).max(1);
            let parts = move |image| {
                let part = move |first| Chunk { image, images: 1, first, count: each.min(positions - first) };
                (0..positions).step_by(each).map(part)
            };
            return (0..self.batch).flat_map(parts).collect();
        }
        let each = most / (lines * positions);
        let whole = |image| Chunk { image, images: each.min(self.batch - image), first: 0, count: positions };
        (0..self.batch).step_by(each).map(whole).collect()
    }

    /// The shape of a chunk's columns, one matrix for each group.
    fn columns(&self, chunk: &Chunk) -> [usize; 3] {
        [self.groups, self.channels * self.taps / self.groups, chunk.images * chunk.count]
    }

    /// The shape of a chunk's outputs, one matrix for each group.
    fn outputs(&self, chunk: &Chunk) -> [usize; 3] {
        [self.groups, self.channels_out / self.groups, chunk.images * chunk.count]
    }

    /// The number of parts into which a launch cuts the channels, if each channel has `items` work
    /// items.
    fn parts(&self, items: usize) -> usize {
        ENOUGH_ITEMS.div_ceil(items.max(1)).min(self.channels / self.offset_groups)
    }
}

/// A chunk of work: `count` output positions from `first` on, in `images` images from `image` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    image: usize,
    images: usize,
    first: usize,
    count: usize,
}

impl Chunk {
    /// This chunk's images of a tensor `[batch, ..]`.
    fn images(&self, tensor: &RocmTensor) -> hip::Result<RocmTensor> {
        narrow(tensor.clone(), 0, self.image, self.images)
    }

    /// This chunk's part of a tensor `[batch, channels, positions]`.
    fn part(&self, tensor: &RocmTensor) -> hip::Result<RocmTensor> {
        narrow(self.images(tensor)?, 2, self.first, self.count)
    }
}

/// The operands as the kernels take them.
struct Prepared {
    op: &'static str,
    sizes: Sizes,
    x: RocmTensor,
    offset: RocmTensor,
    mask: Option<RocmTensor>,
    /// `[groups, channels_out / groups, channels / groups * taps]`.
    weight: RocmTensor,
}

impl Prepared {
    fn new(op: &'static str, operands: &Operands, sizes: Sizes) -> hip::Result<Self> {
        let Sizes { groups, channels, channels_out, taps, .. } = sizes;
        let weight = packed(operands.weight.clone())?;
        Ok(Self {
            op,
            sizes,
            x: packed(operands.x.clone())?,
            offset: packed(operands.offset.clone())?,
            mask: operands.mask.clone().map(packed).transpose()?,
            weight: reshape(weight, &[groups, channels_out / groups, channels / groups * taps])?,
        })
    }

    /// `kernel(batch, channels, groups, (parts,) first, count, window, inputs.., mask, more..,
    /// out)`.
    fn launch(
        &self,
        kernel: Template,
        chunk: &Chunk,
        (items, parts): (usize, Option<usize>),
        inputs: &[&RocmTensor],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let sizes = &self.sizes;
        let u = |value: usize| Arg::U32(value as u32);
        let mut dims = vec![Arg::U64(chunk.images as u64), u(sizes.channels), u(sizes.offset_groups)];
        dims.extend(parts.map(u));
        dims.extend([u(chunk.first), u(chunk.count), Arg::U32x12(sizes.window)]);
        let mask = self.mask.as_ref().map(|mask| chunk.images(mask)).transpose()?;
        let inputs: Vec<&RocmTensor> = inputs.iter().copied().chain(&mask).collect();
        // Without a mask, null pointers take the place of the mask and, if the kernel writes it, of
        // the mask's gradient.
        let absent =
            if mask.is_some() { 0 } else { 1 + usize::from(kernel == Template::deform_offset_backward) };
        let device = self.x.hip_device();
        let name = kernel.ty(self.x.kernel_type()?);
        let scalars = &[Arg::U64(0); 2][..absent];
        let grid = match kernel {
            Template::deform_x_backward_ordered => device.grid_rows(items, 1), // few items, each of them long
            _ => device.grid(items * parts.unwrap_or(1)),
        };
        rows(self.op, device, name, grid, &dims, &inputs, scalars, outputs)
    }

    /// The columns: the input sampled at every tap, times the mask.
    fn columns(&self, chunk: &Chunk) -> hip::Result<RocmTensor> {
        let columns = self.sizes.columns(chunk);
        let out = RocmTensor::empty(self.x.hip_device(), columns.to_vec(), self.x.dtype_of())?;
        let items = self.items(chunk);
        let (x, offset) = (chunk.images(&self.x)?, chunk.images(&self.offset)?);
        let work = (items, Some(self.sizes.parts(items)));
        self.launch(Template::deform_columns, chunk, work, &[&x, &offset], &[&out])?;
        Ok(out)
    }

    /// Work items: one for each tap at each position.
    fn items(&self, chunk: &Chunk) -> usize {
        self.sizes.offset_groups * self.sizes.taps * chunk.images * chunk.count
    }
}

/// `x * weight + bias`, with each tap of the window moved by its offset and scaled by its mask.
pub(crate) fn forward(op: &'static str, operands: Operands, options: &Options) -> hip::Result<RocmTensor> {
    forward_within(op, &operands, options, column_bytes())
}

fn forward_within(
    op: &'static str,
    operands: &Operands,
    options: &Options,
    column_bytes: usize,
) -> hip::Result<RocmTensor> {
    let sizes = Sizes::of(op, operands, options)?;
    let (device, dtype) = (operands.x.hip_device().clone(), operands.x.dtype_of());
    let out = match sizes.is_empty() {
        true => full_on(&device, sizes.out_dims(), 0i64.into(), dtype)?,
        false => {
            let prepared = Prepared::new(op, operands, sizes)?;
            let chunks = sizes.chunks(column_bytes / dtype.size());
            let target = [sizes.batch, sizes.channels_out, sizes.positions()];
            let mut whole = None;
            for chunk in &chunks {
                let product = matmul(op, prepared.weight.clone(), prepared.columns(chunk)?)?;
                let product = reshape(product, &[sizes.channels_out, chunk.images, chunk.count])?;
                let product = permute(product, &[1, 0, 2])?;
                if product.is_contiguous() && product.dims() == target {
                    whole = Some(product);
                    break;
                }
                let out = match whole.take() {
                    Some(out) => out,
                    None => RocmTensor::empty(&device, target, dtype)?,
                };
                assign(op, &chunk.part(&out)?, &product)?;
                whole = Some(out);
            }
            match whole {
                Some(out) => reshape(out, &sizes.out_dims())?,
                None => full_on(&device, sizes.out_dims(), 0i64.into(), dtype)?,
            }
        }
    };
    match &operands.bias {
        Some(bias) => binary(op, Functor::Add, out, reshape(bias.clone(), &[1, sizes.channels_out, 1, 1])?),
        None => Ok(out),
    }
}

/// The gradients with respect to all operands of [`forward`], from the output's gradient.
///
/// The input's gradient is summed in f32 or a wider type. GPUs sum it with atomics, in no fixed
/// order. With `BURN_ROCM_DETERMINISTIC` one thread sums each plane instead.
pub(crate) fn backward(
    op: &'static str,
    operands: Operands,
    grad: RocmTensor,
    options: &Options,
) -> hip::Result<Gradients> {
    backward_within(op, &operands, grad, options, column_bytes(), hip::deterministic())
}

fn backward_within(
    op: &'static str,
    operands: &Operands,
    grad: RocmTensor,
    options: &Options,
    column_bytes: usize,
    ordered: bool,
) -> hip::Result<Gradients> {
    let sizes = Sizes::of(op, operands, options)?;
    one_device(op, &[&operands.x, &grad])?;
    let dtype = one_dtype(op, &[&operands.x, &grad])?;
    if grad.dims() != sizes.out_dims() {
        let expected = format!("a gradient of shape {:?}", sizes.out_dims());
        return invalid(op, expected, format!("{:?}", grad.dims()));
    }
    let device = operands.x.hip_device().clone();
    let zeros = |like: &RocmTensor, dtype: DType| full_on(&device, like.dims().to_vec(), 0i64.into(), dtype);
    let bias = operands.bias.as_ref().map(|_| bias_backward(op, grad.clone())).transpose()?;
    if sizes.is_empty() {
        return Ok(Gradients {
            x: zeros(&operands.x, dtype)?,
            offset: zeros(&operands.offset, dtype)?,
            weight: zeros(&operands.weight, dtype)?,
            mask: operands.mask.as_ref().map(|mask| zeros(mask, dtype)).transpose()?,
            bias,
        });
    }
    let prepared = Prepared::new(op, operands, sizes)?;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x_grad = zeros(&operands.x, wide)?;
    let empty = |like: &RocmTensor| RocmTensor::empty(&device, like.dims().to_vec(), dtype);
    let offset_grad = empty(&operands.offset)?;
    let mask_grad = operands.mask.as_ref().map(empty).transpose()?;
    let grad = reshape(grad, &[sizes.batch, sizes.channels_out, sizes.positions()])?;
    let mut chunks = sizes.chunks(column_bytes / dtype.size());
    // rocBLAS rounds a product of halves to the half type. The gradients of several chunks are
    // added in f32 and rounded once, so their products are those of f32. Then the columns exist in
    // both types, and the halves' matrix cores are not used.
    let widened = chunks.len() > 1 && wide != dtype;
    if widened {
        chunks = sizes.chunks(column_bytes / (dtype.size() + wide.size()));
    }
    let mut weight_grad: Option<RocmTensor> = None;
    let request = Request::gradient(op, 1.0);
    for chunk in &chunks {
        let grad = reshape(permute(chunk.part(&grad)?, &[1, 0, 2])?, &sizes.outputs(chunk))?;
        let columns = swap_dims(prepared.columns(chunk)?, 1, 2)?;
        let part = match widened {
            true => product(request, cast(grad.clone(), wide)?, cast(columns, wide)?)?,
            false => product(request, grad.clone(), columns)?,
        };
        weight_grad = Some(match weight_grad {
            Some(sum) => binary(op, Functor::Add, sum, part)?,
            None => part,
        });
        let columns = product(request, swap_dims(prepared.weight.clone(), 1, 2)?, grad)?;
        let (x, offset) = (chunk.images(&prepared.x)?, chunk.images(&prepared.offset)?);
        let items = prepared.items(chunk);

        let into_mask = mask_grad.as_ref().map(|grad| chunk.images(grad)).transpose()?;
        let into_offset = chunk.images(&offset_grad)?;
        let outputs: Vec<&RocmTensor> = into_mask.iter().chain([&into_offset]).collect();
        prepared.launch(
            Template::deform_offset_backward,
            chunk,
            (items, None),
            &[&x, &offset, &columns],
            &outputs,
        )?;

        let into_x = chunk.images(&x_grad)?;
        let (kernel, work) = match ordered {
            true => (Template::deform_x_backward_ordered, (chunk.images * sizes.channels, None)),
            false => (Template::deform_x_backward, (items, Some(sizes.parts(items)))),
        };
        prepared.launch(kernel, chunk, work, &[&offset, &columns], &[&into_x])?;
    }
    let weight = match weight_grad {
        Some(sum) => reshape(cast(sum, dtype)?, operands.weight.dims())?,
        None => zeros(&operands.weight, dtype)?,
    };
    Ok(Gradients { x: cast(x_grad, dtype)?, offset: offset_grad, weight, mask: mask_grad, bias })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RocmDevice;
    use crate::ops::transfer::{read, upload};
    use burn_backend::TensorData;

    /// Numbers in -1..1 that look random.
    fn tensor(shape: &[usize], dtype: DType, seed: usize) -> RocmTensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> =
            (0..count).map(|i| ((i * 7919 + seed * 104_729) as f64 * 0.618).sin()).collect();
        let data = TensorData::new(values, shape.to_vec()).convert_dtype(dtype);
        upload(data, dtype, &RocmDevice::default()).unwrap()
    }

    fn values(tensor: RocmTensor) -> Vec<f64> {
        read(tensor).unwrap().iter::<f64>().collect()
    }

    fn near(what: &str, found: RocmTensor, expected: RocmTensor, bound: f64) {
        let (found, expected) = (values(found), values(expected));
        assert_eq!(found.len(), expected.len());
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= bound * (1.0 + b.abs()), "{what}, element {i}: {a} instead of {b}");
        }
    }

    /// The weight's gradient of two chunks, in which all but the last digits cancel. If each chunk's
    /// gradient were rounded to the half type, those digits would be lost.
    #[test]
    fn chunks_of_halves_are_added_before_they_are_rounded() {
        let options =
            Options { stride: [1, 1], padding: [0, 0], dilation: [1, 1], weight_groups: 1, offset_groups: 1 };
        for (dtype, step) in [(DType::F16, 2f64.powi(-10)), (DType::BF16, 2f64.powi(-7))] {
            let tensor = |values: &[f64], shape: [usize; 4]| {
                let data = TensorData::new(values.to_vec(), shape).convert_dtype(dtype);
                upload(data, dtype, &RocmDevice::default()).unwrap()
            };
            let operands = Operands {
                x: tensor(&[1.0 + step; 2], [1, 1, 1, 2]),
                offset: tensor(&[0.0; 4], [1, 2, 1, 2]),
                weight: tensor(&[1.0], [1, 1, 1, 1]),
                mask: None,
                bias: None,
            };
            let grad = tensor(&[1.0 + step, -1.0], [1, 1, 1, 2]);
            // (1 + step)^2 - (1 + step), of which the type holds every digit.
            let expected = step * (1.0 + step);
            let found = backward_within("test", &operands, grad, &options, 1, true).unwrap();
            assert_eq!(values(found.weight), [expected], "{dtype:?}");
        }
    }

    /// The results depend neither on the chunks nor on which kernel computes the input's gradient.
    /// The ordered kernel gives the same bits each time.
    #[test]
    fn chunks_and_orders_agree() {
        let options =
            Options { stride: [1, 2], padding: [1, 1], dilation: [1, 1], weight_groups: 2, offset_groups: 2 };
        for (dtype, bound) in [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 2e-2)] {
            let operands = Operands {
                x: tensor(&[3, 4, 5, 6], dtype, 1),
                offset: tensor(&[3, 36, 5, 3], dtype, 2),
                weight: tensor(&[6, 2, 3, 3], dtype, 3),
                mask: Some(tensor(&[3, 18, 5, 3], dtype, 4)),
                bias: Some(tensor(&[6], dtype, 5)),
            };
            let grad = tensor(&[3, 6, 5, 3], dtype, 6);
            let sizes = Sizes::of("test", &operands, &options).unwrap();
            let image = 4 * 9 * 15 * dtype.size();
            let whole = forward_within("test", &operands, &options, usize::MAX).unwrap();
            let all =
                || backward_within("test", &operands, grad.clone(), &options, usize::MAX, true).unwrap();
            let expected = all();
            assert_eq!(values(expected.x.clone()), values(all().x), "{dtype:?}");
            for bytes in [1, image / 4, image - 1, image, 2 * image, 3 * image] {
                let chunks = sizes.chunks(bytes / dtype.size());
                let covered: usize = chunks.iter().map(|chunk| chunk.images * chunk.count).sum();
                assert_eq!(covered, 3 * 15, "{chunks:?}");
                let out = forward_within("test", &operands, &options, bytes).unwrap();
                near("output", out, whole.clone(), bound);
                for ordered in [false, true] {
                    let found = backward_within("test", &operands, grad.clone(), &options, bytes, ordered);
                    let (found, expected) = (found.unwrap(), &expected);
                    near("x", found.x, expected.x.clone(), bound);
                    near("offset", found.offset, expected.offset.clone(), bound);
                    near("weight", found.weight, expected.weight.clone(), bound);
                    near("mask", found.mask.unwrap(), expected.mask.clone().unwrap(), bound);
                    near("bias", found.bias.unwrap(), expected.bias.clone().unwrap(), bound);
                }
            }
        }
    }
}
