//! Attention: Burn's op, which has no gradient (`inference`), attention with a gradient
//! (`trained`), self-attention with one projection (`self_attention`), and attention of sequences of
//! different lengths in one batch (`packed`).

pub(crate) mod call;
mod composed;
pub(crate) mod cores;
mod in_f32;
pub(crate) mod inference;
pub(crate) mod options;
pub(crate) mod packed;
pub(crate) mod self_attention;
mod sequences;
mod softmax;
mod tiled;
pub(crate) mod trained;
pub(crate) mod window;

use hip::Device;

use crate::arg::Arg;
use crate::tensor::RocmTensor;

const OP: &str = "attention";

/// Queries of one tile on a GPU.
const TILE: usize = 64;

/// The fewest queries for which the tiled kernel runs (`tiled_attention_queries`). With fewer
/// queries, most of its tile is empty and few blocks share the work, and the composed path writes few
/// scores to memory: for heads of 32 features or more, fewer than the key tensor has elements.
///
/// Wave instructions on a virtual gfx1030, heads of 64 features, f32:
///
/// | queries | keys | heads | tiled kernel | composed |
/// |---|---|---|---|---|
/// | 1 | 512 | 8 | 2.79 M | 1.13 M |
/// | 8 | 512 | 8 | 2.81 M | 1.47 M |
/// | 16 | 512 | 8 | 2.83 M | 1.83 M |
/// | 32 | 512 | 8 | 2.86 M | 3.66 M |
/// | 256 | 256 | 2 | 1.50 M | 3.19 M |
/// | 256, causal | 256 | 2 | 0.96 M | 3.63 M |
fn least_queries(device: &Device) -> usize {
    device.defaults().tiled_attention_queries
}

/// How many heads of queries share a head of keys and values; `None` if the heads do not divide.
pub(crate) fn group_of(heads: usize, key_heads: usize) -> Option<usize> {
    match (heads, key_heads) {
        (0, 0) => Some(1),
        (0, _) | (_, 0) => None,
        _ => heads.is_multiple_of(key_heads).then(|| heads / key_heads),
    }
}

/// The dims of `[batch, heads, rows, columns]` with the heads of a group as rows of one:
/// `[batch, heads / group, group * rows, columns]`. A product of these with the shared head's keys
/// needs no copy of them.
fn grouped_dims(dims: &[usize], group: usize) -> [usize; 4] {
    let size = |axis: usize| dims.get(axis).copied().unwrap_or(1);
    [size(0), size(1) / group, group * size(2), size(3)]
}

/// The bytes of a mask's element as an argument of the kernels.
fn mask_size(mask: Option<&RocmTensor>) -> Arg {
    Arg::U32(mask.map_or(1, RocmTensor::dtype_size) as u32)
}

/// Whether the device launches the tiled kernels with the blocks that they take, of 256 threads or one.
fn has_tiled(device: &Device) -> bool {
    matches!(device.grid_rows(1, usize::MAX).threads, 256 | 1)
}

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
