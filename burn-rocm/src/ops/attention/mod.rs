//! Attention: Burn's op, which has no gradient (`inference`), attention with a gradient
//! (`trained`), and self-attention with one projection (`self_attention`).

pub(crate) mod inference;
pub(crate) mod options;
pub(crate) mod self_attention;
mod softmax;
pub(crate) mod trained;

use crate::arg::Arg;
use crate::tensor::RocmTensor;

const OP: &str = "attention";

/// Queries of one tile on a GPU.
const TILE: usize = 64;

/// The fewest queries for which the tiled kernel runs. With fewer queries most of its tile is empty
/// and few blocks share the work. The composed path then writes few scores to memory: fewer than
/// the keys have elements.
///
/// Wave instructions on a virtual gfx1030, 8 heads of 512 keys and 64 features, f32: with 1, 8, 16
/// and 32 queries 2.79, 2.81, 2.83 and 2.86 M in the kernel; 1.13, 1.47, 1.83 and 3.66 M composed.
/// With 256 queries and keys, 2 heads, 1.50 M and 3.19 M; causal, 0.96 M and 3.63 M.
const LEAST_QUERIES: usize = 32;

/// Repeats axes of size 1, by stride 0, to `shape`.
fn expand(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().expand(OP, shape)?;
    Ok(tensor.view(layout))
}

/// The strides of a rank-4 tensor as attention's kernels take them (`View`); all 0 without a
/// tensor.
fn strides(tensor: Option<&RocmTensor>) -> Arg {
    Arg::I64x4(std::array::from_fn(|axis| tensor.map_or(0, |t| t.layout().strides()[axis] as i64)))
}
