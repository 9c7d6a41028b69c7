//! Products together with what follows them, by hipBLASLt if the settings ask for it. Each function
//! returns `None` if hipBLASLt does not compute the product, and the caller then computes it in the
//! way without hipBLASLt. The argument `today` is that way; it is only called to be timed.

use std::sync::Once;

use burn_std::DType;
use hip::{Epilogue, LtActivation, LtAnswer, LtProduct, MatrixView, Route, VectorView, matmul_route};

use super::view::{reshape, swap_dims};
use crate::RocmDevice;
use crate::dtype::kernel_type;
use crate::tensor::RocmTensor;

/// Whether the settings ask for hipBLASLt.
pub(crate) fn asked() -> bool {
    hip::hipblaslt_asked() && matmul_route().is_ok_and(|route| route != Route::Own)
}

/// Whether hipBLASLt is chosen by timing, also for products that nothing follows.
pub(crate) fn timed() -> bool {
    hip::hipblaslt_timed() && matmul_route().is_ok_and(|route| route != Route::Own)
}

/// Whether products on this device may be computed together with what follows them: the settings
/// ask for hipBLASLt ([`Config::hipblaslt`](crate::Config::hipblaslt)), and the device has it.
pub fn joins_products(device: &RocmDevice) -> bool {
    asked() && device.open().is_ok_and(|device| device.blas_lt().is_ok())
}

/// Whether hipBLASLt computes a linear layer of `sizes` (rows, inputs and outputs), or the
/// gradients of its weight and bias. If not, the text says why.
pub(crate) fn linear(
    device: &hip::Device,
    dtype: hip::DType,
    sizes: [usize; 3],
    gradient: bool,
) -> hip::Result<(bool, String)> {
    if matmul_route()? == Route::Own {
        return Ok((false, "setting BURN_ROCM_MATMUL=own".into()));
    }
    let lt = match device.blas_lt() {
        Ok(lt) => lt,
        Err(error) => return Ok((false, format!("not hipBLASLt: {error}"))),
    };
    Ok(match lt.linear(device, dtype, sizes, gradient)? {
        LtAnswer::Computed => (true, String::new()),
        LtAnswer::Passed => (false, "not hipBLASLt: it is not faster, or was not timed yet".into()),
        LtAnswer::Refused(why) => (false, why),
    })
}

/// What a product's epilogue computes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Follows<'a> {
    /// `[out]`.
    pub(crate) bias: Option<&'a RocmTensor>,
    pub(crate) activation: Option<LtActivation>,
    /// Whether the activation's input is kept too.
    pub(crate) keeps: bool,
    /// Whether the product is a gradient.
    pub(crate) gradient: bool,
}

/// A matrix with its rows and columns; `None` for a negative stride.
fn view(tensor: &RocmTensor) -> Option<MatrixView<'_>> {
    let &[rows, cols] = tensor.dims() else { return None };
    let &[row, col] = tensor.layout().strides() else { return None };
    Some(MatrixView {
        buffer: tensor.buffer(),
        offset: tensor.layout().offset(),
        rows,
        cols,
        row_stride: usize::try_from(row).ok()?,
        col_stride: usize::try_from(col).ok()?,
        batch_stride: 0,
    })
}

/// A packed vector; `None` for another layout.
fn vector(tensor: &RocmTensor) -> Option<VectorView<'_>> {
    let offset = tensor.layout().offset();
    tensor.is_contiguous().then(|| VectorView { buffer: tensor.buffer(), offset })
}

/// `x` as a matrix, if that is a view of it.
fn rows(x: &RocmTensor) -> hip::Result<Option<RocmTensor>> {
    let Some((&last, leading)) = x.dims().split_last() else { return Ok(None) };
    let layout = x.layout().reshape("lt", &[leading.iter().product(), last])?;
    Ok(layout.map(|layout| x.clone().view(layout)))
}

/// Whether the tensors are of one device and of one dtype that hipBLASLt multiplies.
fn alike(tensors: &[&RocmTensor]) -> bool {
    let [first, rest @ ..] = tensors else { return false };
    let (device, dtype) = (first.hip_device().info().index, first.dtype_of());
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && rest.iter().all(|other| other.hip_device().info().index == device && other.dtype_of() == dtype)
}

/// Whether hipBLASLt has computed a product. Tells the summary why it can't.
fn computed(product: &LtProduct<'_>, mut today: impl FnMut() -> hip::Result<()>) -> hip::Result<bool> {
    let refused = match product.out.buffer.device().blas_lt() {
        Ok(lt) => match lt.multiply(product, &mut today)? {
            LtAnswer::Computed => return Ok(true),
            LtAnswer::Passed => return Ok(false),
            LtAnswer::Refused(why) => why,
        },
        Err(error) => {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| log::warn!("products are computed without hipBLASLt: {error}"));
            error.to_string()
        }
    };
    hip::trace::fell_back(|| refused);
    Ok(false)
}

/// `activation(x [.., in] x weight [in, out] + onto [.., out] + bias)`, and the activation's input if
/// it is kept.
pub(crate) fn forward(
    x: &RocmTensor,
    weight: &RocmTensor,
    onto: Option<&RocmTensor>,
    follows: Follows<'_>,
    today: impl FnMut() -> hip::Result<()>,
) -> hip::Result<Option<(RocmTensor, Option<RocmTensor>)>> {
    let Follows { bias, activation, keeps, gradient } = follows;
    let operands: Vec<&RocmTensor> = [Some(x), Some(weight), onto, bias].into_iter().flatten().collect();
    let (&[inner, columns], Some((&last, leading))) = (weight.dims(), x.dims().split_last()) else {
        return Ok(None);
    };
    let dims: Vec<usize> = leading.iter().copied().chain([columns]).collect();
    let fits = last == inner
        && !dims.contains(&0)
        && inner > 0
        && bias.is_none_or(|bias| bias.dims() == [columns])
        && onto.is_none_or(|onto| onto.dims() == dims);
    if !asked() || !fits || !alike(&operands) {
        return Ok(None);
    }
    let onto = onto.map(rows).transpose()?;
    let (Some(x), Some(onto)) = (rows(x)?, onto.map_or(Some(None), |onto| onto.map(Some))) else {
        return Ok(None);
    };
    let device = x.hip_device();
    let size = [x.dims()[0], columns];
    let out = RocmTensor::empty(device, size, x.dtype_of())?;
    let before = keeps.then(|| out.empty_like()).transpose()?;
    let taken = match (view(&x), view(weight), view(&out)) {
        (Some(a), Some(b), Some(place)) => {
            let onto = onto.as_ref().map(view);
            let bias = bias.map(vector);
            if onto.is_some_and(|onto| onto.is_none()) || bias.is_some_and(|bias| bias.is_none()) {
                return Ok(None);
            }
            let epilogue = Epilogue::Forward {
                bias: bias.flatten(),
                activation,
                before: before.as_ref().and_then(view),
            };
            let product = LtProduct {
                dtype: kernel_type(x.dtype_of())?,
                a,
                b,
                onto: onto.flatten(),
                out: place,
                epilogue,
                gradient,
            };
            computed(&product, today)?
        }
        _ => false,
    };
    if !taken {
        return Ok(None);
    }
    let shaped = |tensor: RocmTensor| reshape(tensor, &dims);
    Ok(Some((shaped(out)?, before.map(shaped).transpose()?)))
}

/// `x [.., inner] x right [inner, out]`.
pub(crate) fn product(
    x: &RocmTensor,
    right: &RocmTensor,
    gradient: bool,
    today: impl FnMut() -> hip::Result<()>,
) -> hip::Result<Option<RocmTensor>> {
    let follows = Follows { gradient, ..Follows::default() };
    Ok(forward(x, right, None, follows, today)?.map(|(out, _)| out))
}

/// The gradients of a linear layer with respect to its weight, `x^T x grad` over all rows, and to
/// its bias, the sum of `grad` over all rows.
pub(crate) fn weight_and_bias(
    x: &RocmTensor,
    grad: &RocmTensor,
    today: impl FnMut() -> hip::Result<()>,
) -> hip::Result<Option<[RocmTensor; 2]>> {
    if !asked() || !alike(&[x, grad]) {
        return Ok(None);
    }
    let (Some(x), Some(grad)) = (rows(x)?, rows(grad)?) else { return Ok(None) };
    let (&[count, inner], &[same, columns]) = (x.dims(), grad.dims()) else { return Ok(None) };
    if count != same || [count, inner, columns].contains(&0) {
        return Ok(None);
    }
    let turned = swap_dims(x, 0, 1)?;
    let device = grad.hip_device();
    let out = RocmTensor::empty(device, [inner, columns], grad.dtype_of())?;
    let sums = RocmTensor::empty(device, [columns], grad.dtype_of())?;
    let (Some(a), Some(b), Some(place), Some(sum)) = (view(&turned), view(&grad), view(&out), vector(&sums))
    else {
        return Ok(None);
    };
    let product = LtProduct {
        dtype: kernel_type(grad.dtype_of())?,
        a,
        b,
        onto: None,
        out: place,
        epilogue: Epilogue::ColumnSums(sum),
        gradient: true,
    };
    let taken = computed(&product, today)?;
    Ok(taken.then_some([out, sums]))
}

/// The gradient with respect to GELU's input `before [.., hidden]` (GELU by tanh), and the sums of
/// its columns. GELU's output goes through a layer with the weight `[hidden, out]`. The gradient of
/// that layer's output is `grad [.., out]`.
pub(crate) fn gelu_gradient(
    grad: &RocmTensor,
    weight: &RocmTensor,
    before: &RocmTensor,
    today: impl FnMut() -> hip::Result<()>,
) -> hip::Result<Option<[RocmTensor; 2]>> {
    if !asked() || !alike(&[grad, weight, before]) {
        return Ok(None);
    }
    let (Some(grad), Some(read)) = (rows(grad)?, rows(before)?) else { return Ok(None) };
    let (&[count, outer], &[hidden, columns], &[same, width]) = (grad.dims(), weight.dims(), read.dims())
    else {
        return Ok(None);
    };
    if (count, outer, width) != (same, columns, hidden) || [count, outer, hidden].contains(&0) {
        return Ok(None);
    }
    let turned = swap_dims(weight.clone(), 0, 1)?;
    let device = grad.hip_device();
    let out = RocmTensor::empty(device, [count, hidden], grad.dtype_of())?;
    let sums = RocmTensor::empty(device, [hidden], grad.dtype_of())?;
    let views = (view(&grad), view(&turned), view(&read), view(&out), vector(&sums));
    let (Some(a), Some(b), Some(read), Some(place), Some(sum)) = views else { return Ok(None) };
    let product = LtProduct {
        dtype: kernel_type(grad.dtype_of())?,
        a,
        b,
        onto: None,
        out: place,
        epilogue: Epilogue::GeluGradient { before: read, sums: Some(sum) },
        gradient: true,
    };
    if !computed(&product, today)? {
        return Ok(None);
    }
    Ok(Some([reshape(out, before.dims())?, sums]))
}
