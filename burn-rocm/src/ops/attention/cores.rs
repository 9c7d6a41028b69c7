//! Attention of f16 and bf16 on matrix cores (`hip/kernels/attention_matrix*.hip`), forward and
//! backward. No scores are stored.

use burn_std::DType;
use hip::{Device, Grid, KernelName, MatrixCores, Template};

use super::sequences::Sequences;
use super::window::Window;
use super::{mask_size, strides};
use crate::arg::{Arg, compute};
use crate::dtype::{compute_dtype, kernel_type};
use crate::ops::launch::views_to_views;
use crate::tensor::RocmTensor;

/// The features of a head for which the kernels have tiles (`HEADS` of the kernels' table).
const HEADS: [usize; 5] = [32, 64, 96, 128, 256];
/// The same for the gradient.
const TRAINED_HEADS: &[usize] = HEADS.split_at(4).0;

/// What happens to a score between the two products.
pub(super) struct Scores<'a> {
    pub(super) mask: Option<&'a RocmTensor>,
    pub(super) bias: Option<&'a RocmTensor>,
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) window: Window,
    /// The score of a key that the mask hides.
    pub(super) fill: f64,
    pub(super) quiet: bool,
    /// [`AttentionDropout::args`](super::options::AttentionDropout::args).
    pub(super) dropout: [Arg; 5],
}

impl Scores<'_> {
    /// Whether only a positive scale and the window stand between the products.
    fn are_plain(&self) -> bool {
        let dropped = matches!(self.dropout[2], Arg::U32(1));
        // The kernels multiply by it in f32.
        let scale = self.scale as f32;
        let multiplies = scale.is_normal() && (0.0..1e30).contains(&scale);
        self.mask.is_none() && self.bias.is_none() && self.softcap.is_none() && !dropped && multiplies
    }
}

/// The kernels that a device has for heads of some size.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    which: MatrixCores,
    /// The widest head that they take.
    wide: usize,
}

/// The operand of a block's rows in the backward kernels (`QUERIES` and `KEYS` in the source).
#[derive(Clone, Copy, PartialEq)]
enum By {
    Queries,
    Keys,
}

/// Whether rows consist of pieces of 16 bytes at multiples of 16 bytes.
fn is_whole(tensor: &RocmTensor) -> bool {
    let pieces = 16 / tensor.dtype_size();
    let (dims, strides) = (tensor.dims(), tensor.layout().strides());
    let apart = |axis: usize| dims[axis] == 1 || strides[axis].unsigned_abs().is_multiple_of(pieces);
    dims[3].is_multiple_of(pieces)
        && strides[3] == 1
        && (0..3).all(apart)
        && tensor.byte_offset().is_multiple_of(16)
}

/// Whether the kernels can write the tensor: its last axis is contiguous, and its rows begin at
/// multiples of their length.
pub(super) fn is_writable(tensor: &RocmTensor) -> bool {
    let (dims, layout) = (tensor.dims(), tensor.layout());
    let columns = dims[3].max(1);
    let apart =
        |axis: usize| dims[axis] == 1 || layout.strides()[axis].unsigned_abs().is_multiple_of(columns);
    (dims[3] <= 1 || layout.strides()[3] == 1) && (0..3).all(apart) && layout.offset().is_multiple_of(columns)
}

impl Cores {
    /// The kernels for heads of at most `widest` features (queries, keys and values), or why there
    /// are none. `trained`: whether they must have a gradient.
    pub(super) fn of(
        device: &Device,
        dtype: DType,
        widest: usize,
        trained: bool,
    ) -> hip::Result<Result<Self, &'static str>> {
        let heads = if trained { TRAINED_HEADS } else { &HEADS };
        let info = device.info();
        let Some(which) = info.matrix_cores(kernel_type(dtype)?, trained)? else {
            return Ok(Err("no matrix cores for the dtype on this device and with these settings"));
        };
        let Some(&wide) = heads.iter().find(|&&wide| wide >= widest) else {
            return Ok(Err("heads wider than the kernels on matrix cores take"));
        };
        // These have 99 KiB of shared memory for a block; the widest gradient needs 102.
        if trained && wide > 96 && matches!(info.arch.as_str(), "sm_86" | "sm_89" | "sm_120" | "sm_121") {
            return Ok(Err("too little shared memory for the gradient of heads of more than 96 features"));
        }
        Ok(Ok(Self { which, wide }))
    }

    /// `THREADS` of `attention_matrix.h`.
    fn threads(self) -> u32 {
        if self.which == MatrixCores::Mfma { 256 } else { 128 }
    }

    /// The grid of a launch with this number of tiles.
    fn grid(self, device: &Device, tiles: usize) -> Grid {
        Grid { blocks: device.grid_rows(tiles, usize::MAX).blocks, threads: self.threads() }
    }

    /// The variant of the kernels (`PLAIN`, `ANY` and `PACKED` of `attention_matrix.h`).
    fn kind(scores: &Scores<'_>, sequences: &Sequences, operands: &[&RocmTensor]) -> i32 {
        let plain = scores.are_plain() && operands.iter().all(|operand| is_whole(operand));
        i32::from(!plain) + 2 * i32::from(sequences.are_packed())
    }

    /// The rows of a tile of the forward kernel, and the bytes of shared memory that the host gives
    /// it (`Sizes` in `attention_matrix.hip`).
    fn forward_tile(self) -> (usize, u32) {
        let tall = match self.which {
            MatrixCores::Mma | MatrixCores::Mfma => 1 + usize::from(self.wide <= 128),
            MatrixCores::Wmma => 1,
            MatrixCores::Emulated => 1 + usize::from(self.wide <= 64),
        };
        let rows = 4 * 16 * tall;
        if self.which != MatrixCores::Mma {
            return (rows, 0);
        }
        let (keys, stages) = (if self.wide > 128 { 32 } else { 64 }, if self.wide > 64 { 1 } else { 2 });
        let kept = if self.wide > 64 { rows } else { 0 };
        (rows, self.bytes(kept + 2 * stages * keys))
    }

    /// The same of the backward kernels (`Sizes` in `attention_matrix_backward.hip`).
    fn backward_tile(self, by: By) -> (usize, u32) {
        let tall = match self.which {
            MatrixCores::Mma => 1 + usize::from(self.wide <= 64 || by == By::Queries),
            MatrixCores::Wmma => 1,
            MatrixCores::Mfma | MatrixCores::Emulated => 1 + usize::from(self.wide <= 64),
        };
        let rows = 4 * 16 * tall;
        if self.which != MatrixCores::Mma {
            return (rows, 0);
        }
        let kept = match (by, self.wide > 64) {
            (By::Queries, false) => 0,
            (By::Queries, true) => 2 * rows,
            (By::Keys, _) => rows,
        };
        let columns = if self.wide > 64 && by == By::Queries { 32 } else { 64 };
        // Of two stages of columns: a sum of 8 and a dot of 4 bytes.
        let sums = if by == By::Keys { 2 * columns as u32 * 12 } else { 0 };
        (rows, self.bytes((kept + 4 * columns).max(rows)) + sums)
    }

    /// The bytes of `rows` rows of a tile.
    fn bytes(self, rows: usize) -> u32 {
        (rows * (self.wide + 8) * 2) as u32
    }

    /// `softmax(mask(dropout(softcap(scale q k^T))) + bias) v`, written to `out`, which
    /// [`is_writable`]. The heads of keys and values divide those of queries. `sums` receives what
    /// the gradient needs of each row. Packed sequences have no mask and no bias.
    pub(super) fn forward(
        self,
        op: &'static str,
        inputs: [&RocmTensor; 3],
        sequences: &Sequences,
        scores: &Scores<'_>,
        out: &RocmTensor,
        sums: Option<&RocmTensor>,
    ) -> hip::Result<()> {
        let [query, key, value] = inputs;
        let (device, ty) = (query.hip_device(), query.kernel_type()?);
        let &[batch, heads, queries, width] = query.dims() else { return rank(op, query) };
        let (key_heads, keys, values) = (key.dims()[1].max(1), key.dims()[2], value.dims()[3]);
        let kind = Self::kind(scores, sequences, &inputs);
        let kernel = Template::attention_matrix.ty(ty).int(self.wide as i32).int(kind);
        let shape = sequences.shape([batch, heads, queries, keys, width], values, heads / key_heads);
        let operands = [Some(query), Some(key), Some(value), scores.mask, scores.bias];
        let views = operands.into_iter().chain([Some(out)]).map(|operand| sequences.strides(operand));
        let dims: Vec<Arg> = [shape].into_iter().chain(views).collect();
        let read: Vec<Option<&RocmTensor>> = operands.into_iter().chain([sequences.offsets()]).collect();
        let mut scalars = vec![
            compute(scores.scale.into(), ty),
            compute(scores.softcap.unwrap_or(0.0).into(), ty),
            scores.window.arg(),
            mask_size(scores.mask),
            compute(scores.fill.into(), ty),
            Arg::U32(scores.quiet.into()),
        ];
        scalars.extend(scores.dropout);
        let (rows, bytes) = self.forward_tile();
        let grid = (self.grid(device, sequences.tiles([batch, heads, queries], rows)), bytes);
        views_to_views(op, device, kernel, grid, &dims, &read, &scalars, &[Some(out), sums])
    }

    /// The gradients of [`forward`](Self::forward) with respect to queries, keys and values, written
    /// to `places`, which [`is_writable`]; without a bias and a softcap.
    pub(super) fn backward(
        self,
        op: &'static str,
        inputs: [&RocmTensor; 3],
        sequences: &Sequences,
        scores: &Scores<'_>,
        [out, sums, grad]: [&RocmTensor; 3],
        [by_query, by_key, by_value]: [Option<&RocmTensor>; 3],
    ) -> hip::Result<()> {
        let [query, key, value] = inputs;
        let (device, ty) = (query.hip_device(), query.kernel_type()?);
        let &[batch, heads, queries, width] = query.dims() else { return rank(op, query) };
        let (key_heads, keys, values) = (key.dims()[1].max(1), key.dims()[2], value.dims()[3]);
        let pairs = batch * heads;
        let dots = RocmTensor::empty(device, [batch, heads, queries], compute_dtype(query.dtype_of()))?;
        let dims = [pairs * queries, heads, queries, values].map(|n| Arg::I64(n as i64));
        let dims: Vec<Arg> = dims.into_iter().chain([strides(Some(out)), strides(Some(grad))]).collect();
        let whole = Arg::U32((is_whole(out) && is_whole(grad)).into());
        let grid = device.grid_rows((pairs * queries).div_ceil(32), usize::MAX);
        let kernel = Template::attention_matrix_dots.ty(ty);
        let operands = [Some(out), Some(grad)];
        views_to_views(op, device, kernel, (grid, 0), &dims, &operands, &[whole], &[Some(&dots)])?;

        let operands = [Some(query), Some(key), Some(value), Some(grad), scores.mask];
        let kind = Self::kind(scores, sequences, &[query, key, value, grad]);
        let shape = sequences.shape([batch, heads, queries, keys, width], values, heads / key_heads);
        let stored = [Some(sums), Some(&dots), sequences.offsets()];
        let read: Vec<Option<&RocmTensor>> = operands.into_iter().chain(stored).collect();
        let mut scalars = vec![
            compute(scores.scale.into(), ty),
            compute(scores.fill.into(), ty),
            scores.window.arg(),
            mask_size(scores.mask),
        ];
        scalars.extend(scores.dropout);
        let launch = |by: By, heads: usize, length: usize, outputs: [Option<&RocmTensor>; 2]| {
            let kernel = Template::attention_matrix_backward.ty(ty).int(self.wide as i32);
            let kernel: KernelName = kernel.int(kind).int((by == By::Keys).into());
            let views = operands.into_iter().chain(outputs).map(|operand| sequences.strides(operand));
            let dims: Vec<Arg> = [shape].into_iter().chain(views).collect();
            let (rows, bytes) = self.backward_tile(by);
            let grid = (self.grid(device, sequences.tiles([batch, heads, length], rows)), bytes);
            views_to_views(op, device, kernel, grid, &dims, &read, &scalars, &outputs)
        };
        if by_query.is_some() {
            launch(By::Queries, heads, queries, [by_query, None])?;
        }
        if by_key.is_some() || by_value.is_some() {
            launch(By::Keys, key_heads, keys, [by_key, by_value])?;
        }
        Ok(())
    }
}

fn rank(op: &'static str, tensor: &RocmTensor) -> hip::Result<()> {
    crate::error::invalid(op, "rank 4", format!("{:?}", tensor.dims()))
}
