//! Scaled dot-product attention, composed of a product, masks, a softmax and a product, all on the device.

use burn_backend::ops::AttentionModuleOptions;
use hip::KernelName;

use super::binary::{binary, dense_map, scalar};
use super::data::packed;
use super::launch::rows;
use super::mask::mask_fill;
use super::matmul::{matmul, scaled};
use super::unary::unary;
use super::view::transpose;
use crate::dtype::Value;
use crate::error::invalid;
use crate::tensor::RocmTensor;

const OP: &str = "attention";

/// `softmax(mask(softcap(scale * q k^T)) + bias) v` over `[batch, heads, sequence, features]`. A row whose every
/// position is masked gives zeros.
pub(crate) fn attention(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    mask: Option<RocmTensor>,
    bias: Option<RocmTensor>,
    options: AttentionModuleOptions,
) -> hip::Result<RocmTensor> {
    for (tensor, name) in [(&query, "query"), (&key, "key"), (&value, "value")] {
        if tensor.dims().len() != 4 {
            return invalid(OP, format!("a {name} of rank 4"), format!("{:?}", tensor.dims()));
        }
    }
    if let Some(softcap) = options.softcap.filter(|&softcap| softcap.is_nan() || softcap <= 0.0) {
        return invalid(OP, "a softcap above 0", softcap.to_string());
    }
    let features = query.dims()[3];
    let scale = options.scale.unwrap_or(1.0 / (features as f64).sqrt());
    let mut scores = scaled(OP, query, transpose(key)?, scale)?;
    if let Some(softcap) = options.softcap {
        // Before any masking: tanh would make a finite number of -inf.
        scores = scalar(OP, "Div", scores, softcap.into())?;
        scores = scalar(OP, "Mul", unary(OP, "Tanh", scores)?, softcap.into())?;
    }
    if let Some(mask) = mask {
        scores = mask_fill(OP, scores, mask, f64::NEG_INFINITY.into())?;
    }
    if options.is_causal {
        scores = causal(scores)?;
    }
    if let Some(bias) = bias {
        scores = binary(OP, "Add", scores, bias)?;
    }
    matmul(OP, masked_softmax(scores)?, value)
}

/// The last axis' softmax in which a row of nothing but -inf is zeros.
fn masked_softmax(scores: RocmTensor) -> hip::Result<RocmTensor> {
    let kernel = KernelName::new("masked_softmax_rows").ty(scores.kernel_type()?);
    let scores = packed(scores)?;
    let out = RocmTensor::empty(scores.hip_device(), scores.layout().shape().clone(), scores.dtype_of())?;
    if !out.is_empty() {
        let len = scores.dims()[3];
        let lines = scores.len() / len;
        let device = scores.hip_device();
        let dims = [Value::U64(lines as u64), Value::U64(len as u64)];
        rows(OP, device, kernel, device.grid_rows(lines, len), &dims, &[&scores], &[], &[&out])?;
    }
    Ok(out)
}

/// -inf where a key is later than its query; the last query sees every key.
fn causal(scores: RocmTensor) -> hip::Result<RocmTensor> {
    let kernel = KernelName::new("causal_mask").ty(scores.kernel_type()?);
    dense_map(OP, packed(scores)?, |scores, out| {
        let (queries, keys) = (scores.dims()[2], scores.dims()[3]);
        let lines = scores.len() / keys;
        let device = scores.hip_device();
        let dims = [Value::U64(lines as u64), Value::U32(queries as u32), Value::U32(keys as u32)];
        rows(OP, device, kernel, device.grid_rows(lines, keys), &dims, &[scores], &[], &[out])
    })
}
