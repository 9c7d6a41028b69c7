//! Convolutions. MIOpen computes them. If MIOpen can't compute one, or if `BURN_ROCM_CONV` says so,
//! products ([`gemm`]) or direct kernels ([`direct`]) do. With few weights, kernels for such
//! convolutions ([`few`]) compete with MIOpen. A transposed convolution is the gradient
//! of a plain one with respect to its input. A 1-D convolution is a 2-D one whose first spatial
//! axis has size 1.

pub(crate) mod conv_act;
pub(crate) mod deform;
pub(crate) mod direct;
mod few;
mod gemm;
pub(crate) mod options;
mod order;
mod pointwise;

use burn_std::DType;
use hip::{
    Activation, ChannelsLast, ConvDesc, ConvDirection, Dnn, Functor, KernelProblem, Route, TensorArg,
    conv_route,
};

use options::Options;
use order::{is_faster_last, may_be_faster_last, puts_channels_last};
use pointwise::by_product;

use crate::error::{invalid, unsupported_with};
use crate::ops::binary::binary;
use crate::ops::channels_last::{from_rows, is_channels_last, packed_rows, rows_of};
use crate::ops::copy::{assign, packed};
use crate::ops::create::full_on;
use crate::ops::launch::MAX_REACH;
use crate::ops::linear;
use crate::ops::miopen::{whole, without_library};
use crate::ops::reduce::sum_two_dims;
use crate::ops::view::{lift, lower, narrow, reshape};
use crate::tensor::{RocmTensor, one_device, one_dtype};

fn check_rank(op: &'static str, tensors: &[&RocmTensor], rank: usize) -> hip::Result<()> {
    one_device(op, tensors)?;
    one_dtype(op, tensors)?;
    tensors.iter().try_for_each(|tensor| check_shape(op, tensor.dims(), rank))
}

fn check_shape(op: &'static str, shape: &[usize], rank: usize) -> hip::Result<()> {
    match shape.len() == rank {
        true => Ok(()),
        false => invalid(op, format!("tensors of rank {rank}"), format!("{shape:?}")),
    }
}

fn describe(
    op: &'static str,
    x: &[usize],
    w: &[usize],
    options: &Options,
    dtype: hip::DType,
    gradient: bool,
) -> hip::Result<ConvDesc> {
    let groups = options.groups;
    if w[1] * groups != x[1] || !w[0].is_multiple_of(groups) {
        let expected = format!("weights of {} / {groups} channels for an input {x:?}", x[1]);
        return invalid(op, expected, format!("weights {w:?} in {groups} groups"));
    }
    let desc = ConvDesc::new(dtype, x, w, &options.stride, &options.padding, &options.dilation, groups);
    desc.map(|desc| ConvDesc { gradient, ..desc }).map_err(|error| match error {
        // Replaces the description by the op's own arguments: input, weights and options.
        hip::Error::Invalid { expected, .. } => {
            hip::Error::Invalid { op, expected, found: format!("input {x:?}, weights {w:?}, {options:?}") }
        }
        other => other,
    })
}

/// As `describe`. Also checks that `grad`, the gradient of the result, has the result's shape.
fn describe_for(
    op: &'static str,
    x: &[usize],
    w: &[usize],
    options: &Options,
    grad: &RocmTensor,
    gradient: bool,
) -> hip::Result<ConvDesc> {
    let desc = describe(op, x, w, options, grad.kernel_type()?, gradient)?;
    if desc.y != grad.dims() {
        return invalid(op, format!("a gradient of shape {:?}", desc.y), format!("{:?}", grad.dims()));
    }
    Ok(desc)
}

/// Whether MIOpen's kernels can count each tensor's elements, in 31 bits.
fn is_small(desc: &ConvDesc) -> bool {
    [&desc.x, &desc.w, &desc.y].iter().all(|shape| shape.iter().product::<usize>() <= MAX_REACH)
}

/// Tells the summary why MIOpen is not to compute this convolution. [`library`] has told of a
/// failure.
fn tell_why_own(desc: &ConvDesc, dtype: DType, fresh: bool) -> hip::Result<()> {
    match conv_route()? {
        _ if fresh => hip::trace::fell_back(|| "sizes too new for MIOpen (BURN_ROCM_CONV_FRESH)"),
        Route::Own => hip::trace::fell_back(|| "setting BURN_ROCM_CONV=own"),
        _ if !ConvDesc::takes(desc.dtype) => {
            hip::trace::fell_back(|| format!("MIOpen's convolution has no {}", dtype.name()));
        }
        _ if !is_small(desc) => hip::trace::fell_back(|| "MIOpen counts elements in 31 bits"),
        _ => {}
    }
    Ok(())
}

/// MIOpen's handle, if MIOpen is to compute this convolution.
fn library<'a>(op: &'static str, desc: &ConvDesc, like: &'a RocmTensor) -> hip::Result<Option<&'a Dnn>> {
    let takes = ConvDesc::takes(desc.dtype) && is_small(desc);
    match conv_route()? {
        Route::Own => Ok(None),
        Route::Auto if !takes => Ok(None),
        Route::Auto => match like.hip_device().dnn() {
            Ok(dnn) => Ok(Some(dnn)),
            Err(error) => fallen_back(error).map(|()| None),
        },
        Route::Library if !takes => {
            let what = match ConvDesc::takes(desc.dtype) {
                true => format!("MIOpen (BURN_ROCM_CONV) with more than {MAX_REACH} elements: {desc:?}"),
                false => "MIOpen (BURN_ROCM_CONV)".into(),
            };
            unsupported_with(op, like.dtype_of(), what)
        }
        Route::Library => like.hip_device().dnn().map(Some),
    }
}

/// [`without_library`], unless `BURN_ROCM_CONV` demands MIOpen.
fn fallen_back(error: hip::Error) -> hip::Result<()> {
    match conv_route()? {
        Route::Auto => without_library(error),
        _ => Err(error),
    }
}

/// Whether MIOpen may compute this convolution, but its sizes are so new that compiling kernels for
/// them may not be worth it, as `asked` says.
fn is_fresh(
    desc: &ConvDesc,
    like: &RocmTensor,
    asked: impl FnOnce(&Dnn) -> hip::Result<bool>,
) -> hip::Result<bool> {
    if conv_route()? != Route::Auto || !ConvDesc::takes(desc.dtype) || !is_small(desc) {
        return Ok(false);
    }
    // Without MIOpen, `library` says why.
    like.hip_device().dnn().map_or(Ok(false), asked)
}

/// Whether one of the tensors has no elements.
fn is_of_nothing(desc: &ConvDesc) -> bool {
    [&desc.x, &desc.w, &desc.y].iter().any(|dims| dims.contains(&0))
}

/// A convolution, or one of its gradients, by MIOpen: the operands, then the result.
type ByMiopen = fn(&Dnn, &ConvDesc, TensorArg<'_>, TensorArg<'_>, TensorArg<'_>) -> hip::Result<()>;

/// The ways to compute a convolution, or one of its gradients, from two operands.
#[derive(Clone, Copy)]
struct Ways {
    direction: ConvDirection,
    miopen: ByMiopen,
    products: fn(&'static str, &ConvDesc, [&RocmTensor; 2]) -> hip::Result<RocmTensor>,
    sums: fn(&'static str, &ConvDesc, [&RocmTensor; 2]) -> hip::Result<RocmTensor>,
}

/// The result with its channels last, by MIOpen; `None` if the setting or MIOpen does not have this
/// convolution in that order. Operands in another order are copied.
fn with_channels_last(
    op: &'static str,
    desc: &ConvDesc,
    dims: &[usize],
    [a, b]: [&RocmTensor; 2],
    ways: &Ways,
) -> hip::Result<Option<RocmTensor>> {
    if !puts_channels_last(desc, a)? {
        return Ok(None);
    }
    let row_major = desc;
    let desc = ConvDesc { channels_last: true, ..desc.clone() };
    let Some(dnn) = library(op, &desc, a)?.filter(|dnn| !dnn.conv_refuses(&desc)) else { return Ok(None) };
    if !is_faster_last(dnn, ways.direction, row_major, a)? {
        return Ok(None);
    }
    let (a, b) = (packed_rows(a.clone())?, packed_rows(b.clone())?);
    let out = RocmTensor::empty(a.hip_device(), vec![dims[0], dims[2], dims[3], dims[1]], a.dtype_of())?;
    match (ways.miopen)(dnn, &desc, whole(&a), whole(&b), whole(&out)) {
        Ok(()) => from_rows(out).map(Some),
        Err(error @ (hip::Error::Unsupported { .. } | hip::Error::Miopen { refused: true, .. })) => {
            log::debug!("{op}: not with channels last: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The result, of shape `dims`, computed by MIOpen or, if MIOpen can't, by products or direct sums.
fn compute(
    op: &'static str,
    desc: &ConvDesc,
    dims: &[usize],
    [a, b]: [RocmTensor; 2],
    ways: Ways,
) -> hip::Result<RocmTensor> {
    let dtype = a.dtype_of();
    if is_of_nothing(desc) {
        return full_on(a.hip_device(), dims.to_vec(), 0i64.into(), dtype);
    }
    let fresh = is_fresh(desc, &a, |dnn| dnn.conv_is_fresh(ways.direction, desc))?;
    if !fresh && let Some(out) = with_channels_last(op, desc, dims, [&a, &b], &ways)? {
        return Ok(out);
    }
    let (a, b) = (packed(a)?, packed(b)?);
    if !fresh && let Some(dnn) = library(op, desc, &a)? {
        let out = RocmTensor::empty(a.hip_device(), dims.to_vec(), dtype)?;
        match (ways.miopen)(dnn, desc, whole(&a), whole(&b), whole(&out)) {
            Ok(()) => return Ok(out),
            Err(error) => fallen_back(error)?,
        }
    } else {
        tell_why_own(desc, dtype, fresh)?;
    }
    let own = if gemm::takes(a.hip_device(), desc, dtype) { ways.products } else { ways.sums };
    own(op, desc, [&a, &b])
}

fn add_bias(op: &'static str, out: RocmTensor, bias: Option<RocmTensor>) -> hip::Result<RocmTensor> {
    let Some(bias) = bias else { return Ok(out) };
    if bias.dims() != [out.dims()[1]] {
        return invalid(op, format!("a bias of shape [{}]", out.dims()[1]), format!("{:?}", bias.dims()));
    }
    let mut dims = vec![1; out.dims().len()];
    dims[1] = bias.len();
    binary(op, Functor::Add, out, reshape(bias, &dims)?)
}

/// `x * weight + bias` over the spatial axes that the options name.
pub(crate) fn forward(
    op: &'static str,
    x: RocmTensor,
    weight: RocmTensor,
    bias: Option<RocmTensor>,
    options: &Options,
) -> hip::Result<RocmTensor> {
    check_rank(op, &[&x, &weight], options.stride.len() + 2)?;
    if options.stride.len() == 1 {
        return lower(forward(op, lift(x)?, lift(weight)?, bias, &options.lifted())?);
    }
    let desc = describe(op, x.dims(), weight.dims(), options, x.kernel_type()?, options.transposed)?;
    let ways = Ways {
        direction: ConvDirection::Forward,
        miopen: Dnn::conv_forward,
        products: gemm::forward,
        sums: direct::forward,
    };
    let library = |x, weight| compute(op, &desc, &desc.y, [x, weight], ways);
    // Own kernels use the order that the library would use.
    let has_own = |last| few::forward_problem(&desc, &x, last).map(|problem| problem.is_some());
    let may_be_last = (has_own(false)? || has_own(true)?) && puts_channels_last(&desc, &x)?;
    let setting = hip::channels_last()?;
    let orders = match (setting, conv_route()?) {
        // Without the library, the closure `library` returns the error.
        (ChannelsLast::Auto, Route::Auto | Route::Library) if may_be_last => {
            let last = ConvDesc { channels_last: true, ..desc.clone() };
            x.hip_device().dnn().ok().filter(|dnn| !dnn.conv_refuses(&last))
        }
        _ => None,
    };
    let last = match orders {
        Some(dnn) => may_be_faster_last(dnn, &desc, &x)?,
        None => may_be_last && setting == ChannelsLast::On,
    };
    let own = || few::forward(op, &desc, [&x, &weight], last);
    let problem = few::forward_problem(&desc, &x, last)?;
    let run = |way| if way == FEW { own() } else { library(x.clone(), weight.clone()) }.map(drop);
    let out = match by_few(&desc, &x, problem, run)? {
        true => {
            // `compute` counts a use where the library runs. Own kernels must count theirs, or the layer's
            // order is never timed.
            let fresh = |dnn: &Dnn| dnn.conv_is_fresh(ways.direction, &desc);
            let last = match orders {
                Some(dnn) if !is_fresh(&desc, &x, fresh)? => is_faster_last(dnn, ways.direction, &desc, &x)?,
                _ => last,
            };
            match few::forward_problem(&desc, &x, last)? {
                Some(_) => few::forward(op, &desc, [&x, &weight], last)?,
                // The order was timed just now, and the own kernel has only the other one.
                None => library(x, weight)?,
            }
        }
        false => match by_product(op, &desc, [&x, &weight], library)? {
            Some(out) => out,
            None => library(x, weight)?,
        },
    };
    add_bias(op, out, bias)
}

/// Who computes a convolution with few weights, or their gradient, or one with windows of single
/// elements, as the tuning store numbers them.
const LIBRARY: usize = 0;
const FEW: usize = 1;
const PRODUCT: usize = 2;

/// Whether the kernels for few weights compute. `problem` is `None` if they can't. `run` computes
/// by [`LIBRARY`] or by [`FEW`].
fn by_few(
    desc: &ConvDesc,
    like: &RocmTensor,
    problem: Option<KernelProblem>,
    run: impl FnMut(usize) -> hip::Result<()>,
) -> hip::Result<bool> {
    let Some(problem) = problem else { return Ok(false) };
    match conv_route()? {
        Route::Library => return Ok(false),
        Route::Own => tell_why_own(desc, like.dtype_of(), false)?,
        Route::Auto => {
            if like.hip_device().conv_choice(problem, &[LIBRARY, FEW], run)? == LIBRARY {
                return Ok(false);
            }
            hip::trace::fell_back(|| "a kernel of this project was faster than MIOpen");
        }
    }
    Ok(true)
}

/// Convolution, bias and activation by MIOpen's fusion plan; `None` if MIOpen is not to compute
/// this convolution or has no plan for it. MIOpen has none with channels last.
pub(crate) fn by_plan(
    op: &'static str,
    x: &RocmTensor,
    weight: &RocmTensor,
    bias: Option<&RocmTensor>,
    options: &Options,
    activation: Activation,
) -> hip::Result<Option<RocmTensor>> {
    let all: Vec<&RocmTensor> = [x, weight].into_iter().chain(bias).collect();
    check_rank(op, &all[..2], options.stride.len() + 2)?;
    one_device(op, &all)?;
    one_dtype(op, &all)?;
    let desc = describe(op, x.dims(), weight.dims(), options, x.kernel_type()?, false)?;
    if let Some(bias) = bias.filter(|bias| bias.dims() != [desc.y[1]]) {
        return invalid(op, format!("a bias of shape [{}]", desc.y[1]), format!("{:?}", bias.dims()));
    }
    if is_of_nothing(&desc) {
        return Ok(None);
    }
    let Some(dnn) = library(op, &desc, x)? else { return Ok(None) };
    // Before the order, which may be timed by MIOpen.
    if is_fresh(&desc, x, |dnn| dnn.conv_plan_is_fresh(&desc))? {
        return Ok(None);
    }
    let may_be_last = puts_channels_last(&desc, x)?;
    // Counts no use: if there is no plan, the convolution that follows does.
    let is_last = may_be_last && may_be_faster_last(dnn, &desc, x)?;
    if is_last {
        return Ok(None);
    }
    let first = x;
    let (x, weight) = (packed(x.clone())?, packed(weight.clone())?);
    let bias = bias.cloned().map(packed).transpose()?;
    let out = RocmTensor::empty(x.hip_device(), desc.y.clone(), x.dtype_of())?;
    let by_bias = bias.as_ref().map(whole);
    match dnn.conv_bias_activation(&desc, activation, whole(&x), whole(&weight), by_bias, whole(&out)) {
        Ok(()) => {
            if may_be_last && hip::channels_last()? == ChannelsLast::Auto {
                is_faster_last(dnn, ConvDirection::Forward, &desc, first)?;
            }
            Ok(Some(out))
        }
        // MIOpen has no plan for most shapes.
        Err(hip::Error::Unsupported { .. } | hip::Error::Miopen { refused: true, .. }) => Ok(None),
        // There is no memory for the plan's workspace.
        Err(hip::Error::OutOfMemory { .. }) => {
            out.hip_device().pool().made_up_for(1);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The gradient with respect to a convolution's input, whose shape is `x`.
pub(crate) fn x_backward(
    op: &'static str,
    x: &[usize],
    weight: RocmTensor,
    grad: RocmTensor,
    options: &Options,
) -> hip::Result<RocmTensor> {
    check_rank(op, &[&weight, &grad], options.stride.len() + 2)?;
    check_shape(op, x, options.stride.len() + 2)?;
    if options.stride.len() == 1 {
        let mut x = x.to_vec();
        x.insert(2, 1);
        return lower(x_backward(op, &x, lift(weight)?, lift(grad)?, &options.lifted())?);
    }
    let desc = describe_for(op, x, weight.dims(), options, &grad, !options.transposed)?;
    let ways = Ways {
        direction: ConvDirection::BackwardData,
        miopen: Dnn::conv_backward_data,
        products: gemm::x_backward,
        sums: direct::x_backward,
    };
    compute(op, &desc, &desc.x, [grad, weight], ways)
}

/// The gradient with respect to a convolution's weight, whose shape is `weight`.
pub(crate) fn weight_backward(
    op: &'static str,
    x: RocmTensor,
    weight: &[usize],
    grad: RocmTensor,
    options: &Options,
) -> hip::Result<RocmTensor> {
    check_rank(op, &[&x, &grad], options.stride.len() + 2)?;
    check_shape(op, weight, options.stride.len() + 2)?;
    if options.stride.len() == 1 {
        let mut weight = weight.to_vec();
        weight.insert(2, 1);
        return lower(weight_backward(op, lift(x)?, &weight, lift(grad)?, &options.lifted())?);
    }
    let desc = describe_for(op, x.dims(), weight, options, &grad, true)?;
    let ways = Ways {
        direction: ConvDirection::BackwardWeights,
        miopen: Dnn::conv_backward_weights,
        products: gemm::weight_backward,
        sums: direct::weight_backward,
    };
    let library = |grad, x| compute(op, &desc, &desc.w, [grad, x], ways);
    let own = || few::weight_backward(op, &desc, [&grad, &x]);
    let run = |way| if way == FEW { own() } else { library(grad.clone(), x.clone()) }.map(drop);
    if by_few(&desc, &grad, few::problem(&desc, &grad)?, run)? { own() } else { library(grad, x) }
}

/// The gradient with respect to the bias: the sum over the batch and the spatial axes.
pub(crate) fn bias_backward(op: &'static str, grad: RocmTensor) -> hip::Result<RocmTensor> {
    let Some((&[batch, channels], spatial)) = grad.dims().split_first_chunk::<2>() else {
        return invalid(op, "a gradient of rank 3 or more", format!("{:?}", grad.dims()));
    };
    if is_channels_last(&grad) {
        return linear::bias_backward(rows_of(grad)?);
    }
    let places = spatial.iter().product();
    let grad = reshape(grad, &[batch, channels, places])?;
    reshape(sum_two_dims(op, grad, [2, 0])?, &[channels])
}

/// Pads the end of the spatial axes with zeros, up to the shape `dims`.
fn extend(op: &'static str, tensor: RocmTensor, dims: &[usize]) -> hip::Result<RocmTensor> {
    if tensor.dims() == dims {
        return Ok(tensor);
    }
    let out = full_on(tensor.hip_device(), dims.to_vec(), 0i64.into(), tensor.dtype_of())?;
    assign(op, &shrink(out.clone(), tensor.dims())?, &tensor)?;
    Ok(out)
}

/// Cuts the tensor to the shape `dims`, from the beginning of each axis.
fn shrink(tensor: RocmTensor, dims: &[usize]) -> hip::Result<RocmTensor> {
    dims.iter().enumerate().try_fold(tensor, |tensor, (axis, &dim)| narrow(tensor, axis, 0, dim))
}

/// The transposed convolution: the plain convolution of its result has the shape of `x`.
pub(crate) fn transposed(
    op: &'static str,
    x: RocmTensor,
    weight: RocmTensor,
    bias: Option<RocmTensor>,
    options: &Options,
) -> hip::Result<RocmTensor> {
    check_rank(op, &[&x, &weight], options.stride.len() + 2)?;
    let mut dims = vec![x.dims()[0], weight.dims()[1] * options.groups];
    for axis in 0..options.stride.len() {
        match options.transposed_size(axis, weight.dims()[axis + 2], x.dims()[axis + 2]) {
            Some(size) => dims.push(size),
            None => {
                return invalid(
                    op,
                    "a padding that leaves a non-empty output",
                    format!("{options:?} for {:?} and {:?}", x.dims(), weight.dims()),
                );
            }
        }
    }
    let lifted = options.stride.len() == 1;
    // If the output's extra padding exceeds the stride, the plain convolution of the output is
    // larger than `x`. `x` is padded with zeros.
    let whole = match lifted {
        false => describe(op, &dims, weight.dims(), options, x.kernel_type()?, false)?.y,
        true => {
            let lift = |dims: &[usize]| [dims[0], dims[1], 1, dims[2]];
            let (dims, weight) = (lift(&dims), lift(weight.dims()));
            let mut y = describe(op, &dims, &weight, &options.lifted(), x.kernel_type()?, false)?.y;
            y.remove(2);
            y
        }
    };
    let x = extend(op, x, &whole)?;
    add_bias(op, x_backward(op, &dims, weight, x, options)?, bias)
}

/// The gradient with respect to a transposed convolution's input.
pub(crate) fn transposed_x_backward(
    op: &'static str,
    weight: RocmTensor,
    grad: RocmTensor,
    options: &Options,
) -> hip::Result<RocmTensor> {
    check_rank(op, &[&weight, &grad], options.stride.len() + 2)?;
    let mut dims = vec![grad.dims()[0], weight.dims()[0]];
    for axis in 0..options.stride.len() {
        match options.transposed_input(axis, weight.dims()[axis + 2], grad.dims()[axis + 2]) {
            Some(size) => dims.push(size),
            None => return invalid(op, "a gradient as large as the window", format!("{:?}", grad.dims())),
        }
    }
    shrink(forward(op, grad, weight, None, options)?, &dims)
}

/// The gradient with respect to a transposed convolution's weight, whose shape is `weight`.
pub(crate) fn transposed_weight_backward(
    op: &'static str,
    x: RocmTensor,
    weight: &[usize],
    grad: RocmTensor,
    options: &Options,
) -> hip::Result<RocmTensor> {
    let spatial = options.stride.len();
    check_rank(op, &[&x, &grad], spatial + 2)?;
    check_shape(op, weight, spatial + 2)?;
    let window = Options { padding_out: vec![0; spatial], ..options.clone() };
    let mut dims = x.dims().to_vec();
    for axis in 0..spatial {
        match window.transposed_input(axis, weight[axis + 2], grad.dims()[axis + 2]) {
            Some(size) => dims[axis + 2] = size,
            None => return invalid(op, "a gradient as large as the window", format!("{:?}", grad.dims())),
        }
    }
    let x = extend(op, x, &dims)?;
    weight_backward(op, grad, weight, x, options)
}
