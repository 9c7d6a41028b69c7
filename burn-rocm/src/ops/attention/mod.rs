//! Attention: Burn's op, which has no gradient (`inference`); attention with its gradient (`trained`); self-attention
//! with one projection.

pub(crate) mod inference;
pub(crate) mod options;
pub(crate) mod self_attention;
mod softmax;
pub(crate) mod trained;

use crate::arg::Arg;
use crate::tensor::RocmTensor;

const OP: &str = "attention";

/// Queries of a tile on a GPU.
const TILE: usize = 64;

/// The fewest queries that the tiled kernel serves. With fewer, most of its tile is empty and few blocks share the
/// work, and the composed path keeps few scores in memory: fewer than the keys have elements.
///
/// Wave instructions on a virtual gfx1030, 8 heads of 512 keys and 64 features, f32: with 1, 8, 16 and 32 queries
/// 2.79, 2.81, 2.83 and 2.86 M in the kernel; 1.13, 1.47, 1.83 and 3.66 M composed. With 256 queries and keys, 2
/// heads, 1.50 M and 3.19 M; causal, 0.96 M and 3.63 M.
const LEAST_QUERIES: usize = 32;

/// The tensor with axes of size 1 repeated by stride 0.
fn expand(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().expand(OP, shape)?;
    Ok(tensor.view(layout))
}

/// The strides of a rank-4 tensor in the form of attention's kernels (`View`); all 0 if it is
/// absent.
fn strides(tensor: Option<&RocmTensor>) -> Arg {
    Arg::I64x4(std::array::from_fn(|axis| tensor.map_or(0, |t| t.layout().strides()[axis] as i64)))
}
