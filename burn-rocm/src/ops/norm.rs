//! Normalisations of rows.

use std::sync::Once;

use hip::{KernelName, LayerNormDesc, Route, TensorArg};

use super::data::{full_on, packed};
use super::launch::views;
use crate::dtype::Value;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype};

const OP: &str = "layer_norm";

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
    for (parameter, what) in [(Some(&gamma), "scale"), (beta.as_ref(), "shift")] {
        let Some(parameter) = parameter else { continue };
        one_device(OP, &[&x, parameter])?;
        one_dtype(OP, &[&x, parameter])?;
        if parameter.dims() != [len] {
            return invalid(OP, format!("a {what} of shape [{len}]"), format!("{:?}", parameter.dims()));
        }
    }
    let (x, gamma, beta) = (packed(x)?, packed(gamma)?, beta.map(packed).transpose()?);
    let out = RocmTensor::empty(x.hip_device(), x.layout().shape().clone(), x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    if hip::norm_route()? == Route::Library {
        match by_miopen(&x, &gamma, beta.as_ref(), epsilon, &out) {
            Ok(()) => return Ok(out),
            // A dtype that it has not, or no MIOpen.
            Err(hip::Error::Unsupported { .. } | hip::Error::NotAvailable { .. }) => {}
            Err(error) => {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| {
                    log::warn!("MIOpen's layer norm failed, the own kernel takes its place: {error}")
                });
            }
        }
    }
    let device = out.hip_device();
    let lines = x.len() / len;
    views(
        OP,
        device,
        KernelName::new("layer_norm_rows").ty(out.kernel_type()?),
        device.grid_rows(lines, len),
        &[Value::U64(lines as u64), Value::U64(len as u64)],
        &[Some(&x), Some(&gamma), beta.as_ref()],
        &[Value::F64(epsilon)],
        &out,
    )?;
    Ok(out)
}

/// By MIOpen, which wants a shift and writes each row's statistics too.
fn by_miopen(
    x: &RocmTensor,
    gamma: &RocmTensor,
    beta: Option<&RocmTensor>,
    epsilon: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let device = x.hip_device();
    let len = gamma.len();
    let desc = LayerNormDesc { dtype: x.kernel_type()?, rows: x.len() / len, len };
    let beta = match beta {
        Some(beta) => beta.clone(),
        None => full_on(device, [len], 0i64.into(), x.dtype_of())?,
    };
    let statistic = || RocmTensor::empty(device, [desc.rows], x.dtype_of());
    let (mean, deviation) = (statistic()?, statistic()?);
    let [x, gamma, beta, out, mean, deviation] = [x, gamma, &beta, out, &mean, &deviation]
        .map(|tensor| TensorArg { buffer: tensor.buffer(), offset: tensor.byte_offset() });
    device.dnn()?.layer_norm_forward(&desc, x, gamma, beta, epsilon as f32, out, mean, deviation)
}
