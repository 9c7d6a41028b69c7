//! Normalisations of rows.

pub(crate) mod batch;
pub(crate) mod group;
pub(crate) mod layer;

use burn_std::DType;
use hip::{Grid, KernelName, LayerNormDesc, Route, TensorArg};

use crate::dtype::Value;
use crate::error::invalid;
use crate::ops::conv::without_library;
use crate::ops::data::{full_on, packed};
use crate::ops::launch::{max_reach, views};
use crate::ops::view::narrow;
use crate::tensor::{RocmTensor, one_device, one_dtype};

const OP: &str = "layer_norm";

/// What statistics and sums of the dtype are kept in.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// That parameters are where `x` is, all of its dtype or all of what that is computed in.
pub(crate) fn fits(op: &'static str, x: &RocmTensor, params: &[&RocmTensor]) -> hip::Result<()> {
    let dtype = x.dtype_of();
    for param in params {
        one_device(op, &[x, param])?;
        one_dtype(op, &[params[0], param])?;
        let found = param.dtype_of();
        if found != dtype && found != wide(dtype) {
            let or = if wide(dtype) == dtype { "" } else { " or f32" };
            return invalid(op, format!("parameters of {}{or}", dtype.name()), found.name());
        }
    }
    Ok(())
}

/// Checks that MIOpen can normalise `x`: it counts elements in 32 bits, and takes x and its
/// parameters in one type only.
///
/// # Errors
/// `Unsupported` if it can't.
pub(crate) fn for_miopen(op: &'static str, x: &RocmTensor, params: &[&RocmTensor]) -> hip::Result<()> {
    let unsupported = |what: String| Err(hip::Error::Unsupported { op, dtype: what });
    if x.len() > max_reach() {
        return unsupported(format!("{} elements", x.len()));
    }
    for param in params {
        if param.kernel_type()? != x.kernel_type()? {
            return unsupported(format!(
                "{} beside parameters of {}",
                x.dtype_of().name(),
                param.dtype_of().name()
            ));
        }
    }
    Ok(())
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis.
pub(crate) fn layer_norm(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: Option<RocmTensor>,
    epsilon: f64,
) -> hip::Result<RocmTensor> {
    let Some(&len) = x.dims().last() else {
        return invalid(OP, "at least one axis", "none");
    };
    fits(OP, &x, &[&gamma].into_iter().chain(&beta).collect::<Vec<_>>())?;
    for (parameter, what) in [(Some(&gamma), "scale"), (beta.as_ref(), "shift")] {
        let Some(parameter) = parameter else { continue };
        if parameter.dims() != [len] {
            return invalid(OP, format!("a {what} of shape [{len}]"), format!("{:?}", parameter.dims()));
        }
    }
    let (x, gamma, beta) = (packed(x)?, packed(gamma)?, beta.map(packed).transpose()?);
    let out = RocmTensor::empty(x.hip_device(), x.layout().shape().clone(), x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let route = x.hip_device().norm_route()?;
    let done = match route {
        Route::Own => false,
        Route::Auto | Route::Library => match by_miopen(&x, &gamma, beta.as_ref(), epsilon, &out) {
            Ok(()) => true,
            Err(error) if route == Route::Library => return Err(error),
            // MIOpen lacks the dtypes, the tensor is too large for it, or it is older than ROCm
            // 6's.
            Err(hip::Error::Unsupported { .. }) => false,
            Err(error) => {
                without_library(error)?;
                false
            }
        },
    };
    if !done {
        let grid = out.hip_device().grid_kept_rows(out.len() / len, len);
        let kernel = KernelName::new("layer_norm_rows").ty(x.kernel_type()?).ty(gamma.kernel_type()?);
        by_kernel(kernel, grid, &[Some(&x), Some(&gamma), beta.as_ref()], epsilon, &out)?;
    }
    Ok(out)
}

/// Launches `kernel(rows, len, inputs.., epsilon, out)`.
fn by_kernel(
    kernel: KernelName,
    grid: Grid,
    inputs: &[Option<&RocmTensor>],
    epsilon: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let len = out.dims().last().copied().unwrap_or(1);
    let dims = [Value::U64((out.len() / len) as u64), Value::U64(len as u64)];
    views(OP, out.hip_device(), kernel, grid, &dims, inputs, &[Value::F64(epsilon)], out)
}

/// By MIOpen, which wants a shift and writes each row's statistics too. Its variance, the mean of squares less the
/// squared mean, has no digits left where a row's mean is large: a kernel looks at the statistics and computes
/// those rows again.
fn by_miopen(
    x: &RocmTensor,
    gamma: &RocmTensor,
    beta: Option<&RocmTensor>,
    epsilon: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    for_miopen(OP, x, &[gamma])?;
    let device = x.hip_device();
    let len = gamma.len();
    let desc = LayerNormDesc { dtype: x.kernel_type()?, rows: x.len() / len, len };
    let dnn = device.dnn()?;
    dnn.has_layer_norm(desc.dtype)?;
    let shift = match beta {
        Some(beta) => beta.clone(),
        None => full_on(device, [len], 0i64.into(), x.dtype_of())?,
    };
    // The mean of each row, then the reciprocal deviation of each.
    let mean = RocmTensor::empty(device, [2, desc.rows], x.dtype_of())?;
    let rstd = narrow(mean.clone(), 0, 1, 1)?;
    let [px, pg, pb, po, pm, pr] = [x, gamma, &shift, out, &mean, &rstd]
        .map(|tensor| TensorArg { buffer: tensor.buffer(), offset: tensor.byte_offset() });
    dnn.layer_norm_forward(&desc, px, pg, pb, epsilon as f32, po, pm, pr)?;
    let inputs = [Some(x), Some(gamma), beta, Some(&mean), Some(&rstd)];
    // A block for as many rows as its threads look at within a few steps.
    let Grid { threads, .. } = device.grid_kept_rows(desc.rows, len);
    let grid = Grid { threads, ..device.grid(desc.rows * threads as usize) };
    by_kernel(KernelName::new("layer_norm_repair").ty(desc.dtype), grid, &inputs, epsilon, out)
}
