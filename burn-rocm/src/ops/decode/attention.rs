//! Attention over a paged cache, split along the keys (`decode.hip`; on matrix cores
//! `decode_matrix.hip`).

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Device, Fault, Grid, MatrixCores, Template};

use super::PAGE;
use super::cache::{
    ARRIVALS, CacheType, PagedBatch, PagedLayer, check_packed, check_tokens, gather, rotary_append,
    token_rows,
};
use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::ops::attention::group_of;
use crate::ops::attention::options::{AttentionInferenceOptions, check_softcap};
use crate::ops::attention::packed::{PackedOffsets, attention_packed_inference};
use crate::ops::copy::may_be_written;
use crate::ops::language::rotary::{Rotary, Rotated};
use crate::ops::launch::{MAX_REACH, views_to};
use crate::ops::pad::{Border, pad};
use crate::ops::view::narrow;
use crate::tensor::RocmTensor;

const OP: &str = "decode::attention";
const ROTARY: &str = "decode::rotary_attention";
const GATHERED: &str = "decode::attention_gathered";

/// The most splits of a row's keys. `MOST` of `decode_combine`.
const MOST_SPLITS: usize = 128;
/// The fewest keys of a split. `LEAST` of `decode.hip`.
const LEAST_KEYS: usize = 4 * PAGE;
/// Blocks for each compute unit that a launch should have. Two to four blocks of 256 threads are
/// resident, by their registers. Not measured.
const BLOCKS_PER_UNIT: usize = 4;
/// The same on matrix cores: as many as are resident on an H200, by their registers. One block more
/// would wait for the first to end. Not measured.
const MATRIX_BLOCKS_PER_UNIT: usize = 3;
/// Queries of a block on matrix cores (`FEW` of `matrix_few.h`).
const FEW: usize = 8;
/// The threads of a block for which `decode_attention` has shared memory.
const THREADS: u32 = 256;

/// The options of [`attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeOptions {
    /// The factor of the scores; `None`: `1 / sqrt(width)`.
    pub scale: Option<f64>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// How many keys a query sees, itself included; `None`: all.
    pub window: Option<usize>,
    /// Into how many parts the keys of a row are divided, at least 1; `None`: as many as fill the
    /// device. A part has at least 64 keys, and a row has at most 128 parts, or fewer if a launch
    /// can't have so many blocks. The results differ by rounding.
    pub splits: Option<usize>,
}

impl DecodeOptions {
    fn check(&self, op: &'static str) -> hip::Result<()> {
        let Self { softcap, window, splits, .. } = *self;
        if window == Some(0) {
            return invalid(op, "a window of at least 1 key", "0");
        }
        if splits == Some(0) {
            return invalid(op, "at least 1 split", "0");
        }
        check_softcap(op, softcap, DType::F32)
    }
}

/// How a launch divides its work.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    /// Queries of a block: the kernel's template argument.
    queries: usize,
    chunks: usize,
    splits: usize,
}

impl Plan {
    /// Splits depend on the pages that a row may have, not on those it has, so that a captured
    /// launch is the same at each replay.
    fn new(units: usize, rows: usize, most_queries: usize, most_pages: usize) -> Self {
        let queries = [1, 2, 4].into_iter().find(|&q| q >= most_queries).unwrap_or(8);
        let chunks = most_queries.div_ceil(queries);
        let longest = (most_pages * PAGE).div_ceil(LEAST_KEYS);
        let splits = (units * BLOCKS_PER_UNIT).div_ceil(rows * chunks);
        Self { queries, chunks, splits: splits.clamp(1, longest.min(MOST_SPLITS)) }
    }

    /// The same on matrix cores. All blocks are resident at once, if they can be.
    fn on_cores(units: usize, rows: usize, most_queries: usize, most_pages: usize) -> Self {
        let chunks = most_queries.div_ceil(FEW);
        let longest = (most_pages * PAGE).div_ceil(LEAST_KEYS);
        let splits = units * MATRIX_BLOCKS_PER_UNIT / (rows * chunks);
        Self { queries: FEW, chunks, splits: splits.clamp(1, longest.min(MOST_SPLITS)) }
    }

    /// The blocks of a launch for `heads` heads of all rows together. Takes fewer splits if there
    /// would be too many blocks; `None` if one split has too many. HIP accepts fewer than 2^32
    /// threads, and the kernels count fewer than 2^31 blocks.
    fn blocks(&mut self, heads: usize, threads: u32) -> Option<usize> {
        let most = MAX_REACH.min((u32::MAX / threads) as usize);
        let of_split = heads.checked_mul(self.chunks)?;
        self.splits = self.splits.min(most / of_split);
        (self.splits > 0).then(|| of_split * self.splits)
    }
}

/// The kernel on matrix cores for a cache.
#[derive(Clone, Copy)]
struct Cores {
    which: MatrixCores,
    /// The widest head that it takes (`CACHED_HEADS` of the kernels' table).
    wide: usize,
}

impl Cores {
    /// The kernel, or `None` if the device has none for these types and this width.
    fn of(device: &Device, layer: &PagedLayer, dtype: DType) -> hip::Result<Option<Self>> {
        let (info, stored, [.., width]) = (device.info(), layer.stored(), layer.dims());
        if stored.dtype() != dtype && stored != CacheType::I8 {
            return Ok(None);
        }
        let Some(which) = info.matrix_cores(kernel_type(dtype)?, false)? else { return Ok(None) };
        let wide = [64, 128, 256].into_iter().find(|&wide| wide >= width);
        // RDNA 3's lanes hold each operand twice, and RDNA 4's have registers for 64 features
        // (`WIDEST` of the kernel).
        let fits =
            |&wide: &usize| which != MatrixCores::Wmma || (info.arch.starts_with("gfx12") && wide <= 64);
        Ok(wide.filter(fits).map(|wide| Self { which, wide }))
    }

    /// `THREADS` of `attention_matrix.h`.
    fn threads(self) -> u32 {
        if self.which == MatrixCores::Mfma { 256 } else { 128 }
    }
}

fn grid(device: &Device, blocks: usize) -> Grid {
    let grid = device.grid_rows(blocks, usize::MAX);
    match grid.threads {
        1 => grid,
        threads => Grid { blocks: blocks as u32, threads: threads.min(THREADS) },
    }
}

/// A launch, without where its queries come from.
struct Launch {
    /// `[tokens, heads, width]`.
    out: RocmTensor,
    /// What splits leave for the one that joins them, if there are several.
    parts: Option<[RocmTensor; 2]>,
    /// The kernels' `group`, `splits`, `chunks` and `window`.
    dims: [Arg; 4],
    /// The factor of the scores, and the softcap.
    numbers: [Arg; 2],
    queries: usize,
    blocks: usize,
}

impl Launch {
    /// Checks the options. `heads` is a multiple of the cache's heads.
    fn new(
        (op, cores): (&'static str, Option<Cores>),
        (layer, batch): (&PagedLayer, &PagedBatch),
        [tokens, heads]: [usize; 2],
        like: &RocmTensor,
        options: &DecodeOptions,
    ) -> hip::Result<Self> {
        options.check(op)?;
        let DecodeOptions { scale, softcap, window, splits } = *options;
        let device = like.hip_device();
        let [_, shared, _, width] = layer.dims();
        let [rows, most_pages] = batch.dims();
        let group = heads / shared;
        let most = (batch.most_tokens.min(tokens) * group).max(1);
        let units = device.info().compute_units as usize;
        let mut plan = match cores {
            Some(_) => Plan::on_cores(units, rows * shared, most, most_pages),
            None => Plan::new(units, rows * shared, most, most_pages),
        };
        if let Some(splits) = splits {
            plan.splits = splits.min((most_pages * PAGE).div_ceil(LEAST_KEYS)).min(MOST_SPLITS);
        }
        if cores.is_some() && rows * shared * plan.chunks > ARRIVALS {
            plan.splits = 1;
        }
        let threads = cores.map_or_else(|| grid(device, 1).threads, Cores::threads);
        let Some(blocks) = plan.blocks(rows * shared, threads) else {
            let found = format!("{rows} rows, {shared} heads and {most} queries of each");
            return invalid(op, "fewer blocks than a launch can have", found);
        };
        let parts = (plan.splits > 1 && tokens > 0)
            .then(|| {
                let part = |last| RocmTensor::empty(device, [tokens, heads, plan.splits, last], DType::F32);
                // Splits without keys leave theirs as they are. On matrix cores each part begins at 16
                // bytes.
                let across = if cores.is_some() { width.next_multiple_of(4) } else { width };
                Ok::<_, hip::Error>([part(across)?.skip_check(), part(2)?.skip_check()])
            })
            .transpose()?;
        let window = window.map_or(0, |w| w.min(MAX_REACH));
        let scale = scale.unwrap_or_else(|| 1.0 / (width as f64).sqrt());
        Ok(Self {
            out: RocmTensor::empty(device, [tokens, heads, width], like.dtype_of())?,
            parts,
            dims: [group, plan.splits, plan.chunks, window].map(|n| Arg::U32(n as u32)),
            numbers: [scale, softcap.unwrap_or(0.0)].map(|n| Arg::F32(n as f32)),
            queries: plan.queries,
            blocks,
        })
    }

    /// `parts`, `stats`, `arrived` and `out` of the kernels on matrix cores.
    fn outputs<'a>(&'a self, batch: &'a PagedBatch) -> [Option<&'a RocmTensor>; 4] {
        let [parts, stats] = self.parts.as_ref().map_or([None; 2], |parts| parts.each_ref().map(Some));
        [parts, stats, Some(&batch.arrived), Some(&self.out)]
    }
}

/// Attention of a step's tokens over all keys of their sequences, those of the step included, which
/// [`append`](super::append) has written before. Token `t` of a row sees the keys up to its own
/// position. The heads of a group share each read of a key. Work is split along the keys, and the
/// splits are joined in a fixed order, so every run gives the same bits on one kind of device. No
/// gradient.
///
/// # Shapes
/// - `queries`: `[tokens, heads, width]`, the tokens of all rows one after the other; the cache's
///   heads divide `heads`
/// - output: `[tokens, heads, width]`. Tokens behind the last row's give zeros.
///
/// # Errors
/// `Invalid` if shapes or devices do not fit, for a window of 0, or for a softcap not above 0;
/// `Unsupported` for a dtype that the cache does not [take](super::CacheType::takes); an error of
/// the device.
pub fn attention(
    layer: &PagedLayer,
    batch: &PagedBatch,
    queries: RocmTensor,
    options: &DecodeOptions,
) -> hip::Result<RocmTensor> {
    let [_, shared, _, width] = layer.dims();
    let heads = queries.dims().get(1).copied().unwrap_or(0);
    let Some(group) = group_of(heads, shared).filter(|&group| group > 0) else {
        return invalid(OP, format!("a multiple of {shared} heads"), heads.to_string());
    };
    let tokens = check_tokens(OP, layer, batch, &[&queries], group)?;
    let device = queries.hip_device().clone();
    let cores = Cores::of(&device, layer, queries.dtype_of())?;
    let launch = Launch::new((OP, cores), (layer, batch), [tokens, heads], &queries, options)?;
    if tokens == 0 {
        return Ok(launch.out);
    }
    let (queries, step) = token_rows(queries)?;
    let sizes = layer.sizes(batch, tokens, [step, 0]);
    let [key_scales, value_scales] = layer.scales();
    let (ty, stored) = (queries.kernel_type()?, layer.pages[0].kernel_type()?);
    let inputs = [
        Some(&queries),
        Some(&layer.pages[0]),
        Some(&layer.pages[1]),
        key_scales,
        value_scales,
        Some(&batch.offsets),
        Some(&batch.lengths),
        Some(&batch.table),
    ];
    let Launch { out, parts, dims: [group, splits, chunks, window], numbers, .. } = &launch;
    let dims = [sizes, *group, *splits, *chunks, *window];
    if let Some(cores) = cores {
        let kernel = Template::decode_attention_matrix.ty(ty).ty(stored).int(cores.wide as i32);
        let grid = Grid { blocks: launch.blocks as u32, threads: cores.threads() };
        views_to(OP, &device, kernel, grid, &dims, &inputs, numbers, &launch.outputs(batch))?;
        return Ok(launch.out);
    }
    let outputs = match parts {
        Some([parts, stats]) => [Some(parts), Some(stats), None],
        None => [None, None, Some(out)],
    };
    let kernel = Template::decode_attention.ty(ty).ty(stored).int(launch.queries as i32);
    views_to(OP, &device, kernel, grid(&device, launch.blocks), &dims, &inputs, numbers, &outputs)?;
    if let Some([parts, stats]) = parts {
        let inputs = [parts, stats, &batch.offsets, &batch.lengths].map(Some);
        let grid = device.grid_rows(tokens * heads, width);
        let dims = [sizes, *group, *splits, *window];
        let kernel = Template::decode_combine.ty(ty);
        views_to(OP, &device, kernel, grid, &dims, &inputs, &[], &[Some(out)])?;
    }
    Ok(launch.out)
}

/// [`rotary_append`] and then [`attention`] of the queries, with the same bits. It is one launch on matrix
/// cores, for up to 256 features a head (64 on RDNA 4), if
/// - the batch allows one token a row ([`PagedBatch::most_tokens`]);
/// - at most 8 heads of queries share a head of the cache;
/// - the cache stores the dtype of `x`;
/// - all features of heads are rotated, a multiple of 16.
///
/// # Shapes
/// - `x`, `norms`: as for `rotary_append`
/// - output: `[tokens, heads, width]`
///
/// # Errors
/// As for `rotary_append` and `attention`.
pub fn rotary_attention(
    layer: &PagedLayer,
    batch: &PagedBatch,
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    rotary: &Rotary,
    options: &DecodeOptions,
) -> hip::Result<RocmTensor> {
    // Before anything is appended.
    options.check(ROTARY)?;
    let [_, shared, _, _] = layer.dims();
    let group = group_of(rotary.heads, shared).filter(|&group| (1..=FEW).contains(&group));
    let is_stored = layer.stored() != CacheType::I8 && layer.stored().dtype() == x.dtype_of();
    let fits = is_stored && batch.most_tokens == 1 && group.is_some() && rotary.kv_heads == shared;
    let cores = if fits { Cores::of(x.hip_device(), layer, x.dtype_of())? } else { None };
    let rotated = match cores {
        Some(cores) => Some((cores, Rotated::new(x.clone(), norms.clone(), rotary)?)),
        None => None,
    };
    if let Some((cores, rotated)) = rotated.filter(|(_, rotated)| rotated.whole) {
        drop(x);
        return fused(layer, batch, cores, &rotated, rotary, options);
    }
    let queries = rotary_append(layer, batch, x, norms, rotary)?;
    attention(layer, batch, queries, options)
}

/// [`rotary_attention`] in one launch.
fn fused(
    layer: &PagedLayer,
    batch: &PagedBatch,
    cores: Cores,
    rotated: &Rotated,
    rotary: &Rotary,
    options: &DecodeOptions,
) -> hip::Result<RocmTensor> {
    let tokens = check_packed(ROTARY, layer, batch, &rotated.x, rotary)?;
    let shape = [tokens, rotary.heads];
    let launch = Launch::new((ROTARY, Some(cores)), (layer, batch), shape, &rotated.x, options)?;
    if tokens == 0 {
        return Ok(launch.out);
    }
    layer.pages.iter().try_for_each(|tensor| may_be_written(ROTARY, tensor))?;
    let sizes = layer.sizes(batch, tokens, [0; 2]);
    let dims: Vec<Arg> = [sizes].into_iter().chain(launch.dims).chain(rotated.dims.iter().copied()).collect();
    let [offsets, lengths, table] = batch.tables().map(Some);
    let [positions, x, query, key, frequencies] = rotated.inputs(rotary);
    let inputs = [positions, x, query, key, frequencies, offsets, lengths, table];
    let flag = Arg::Flag(ROTARY, Fault::Index);
    let numbers: Vec<Arg> = launch.numbers.into_iter().chain(rotated.scalars).chain([flag]).collect();
    let [keys, values] = layer.pages.each_ref().map(Some);
    let [parts, stats, arrived, out] = launch.outputs(batch);
    let kernel = Template::decode_rotary_attention.ty(rotated.x.kernel_type()?).ty(rotated.parameters()?);
    let kernel = kernel.int(cores.wide as i32).int(rotated.form);
    let grid = Grid { blocks: launch.blocks as u32, threads: cores.threads() };
    let outputs = [keys, values, parts, stats, arrived, out];
    views_to(ROTARY, rotated.x.hip_device(), kernel, grid, &dims, &inputs, &numbers, &outputs)?;
    Ok(launch.out)
}

/// Attention of many tokens a row, such as a prompt's: [`gather`]s keys and values, and runs
/// [`attention_packed_inference`] on them. `lengths` are the tokens of each row with those of this
/// step, of which all rows together have `tokens`.
///
/// # Shapes
/// - `queries`: `[tokens, heads, width]`, the tokens of all rows one after the other. Tokens behind
///   the last row's give zeros.
/// - output: that of the queries
///
/// # Errors
/// As [`gather`] and [`attention_packed_inference`]; `Invalid` for fewer queries than tokens.
pub fn attention_gathered(
    layer: &PagedLayer,
    batch: &PagedBatch,
    (lengths, tokens): (&[usize], usize),
    queries: RocmTensor,
    options: &DecodeOptions,
) -> hip::Result<RocmTensor> {
    let Some(behind) = queries.dims().first().and_then(|count| count.checked_sub(tokens)) else {
        return invalid(GATHERED, format!("at least {tokens} queries"), format!("{:?}", queries.dims()));
    };
    let queries = narrow(queries, 0, 0, tokens)?;
    let [keys, values, offsets] = gather(layer, batch, lengths, queries.dtype_of())?;
    let offsets = PackedOffsets { queries: batch.offsets(), keys: offsets };
    let DecodeOptions { scale, softcap, window, .. } = *options;
    let options = AttentionInferenceOptions { scale, softcap, causal: true, window };
    let out = attention_packed_inference(queries, keys, values, &offsets, &options)?;
    match behind {
        0 => Ok(out),
        _ => pad(GATHERED, out, &[(0, behind), (0, 0), (0, 0)], Border::Constant(Scalar::Int(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_the_device_and_follow_the_allocated_pages() {
        // 132 units, one row of 8 heads, a group of 4, 8192 keys.
        assert_eq!(Plan::new(132, 8, 4, 512), Plan { queries: 4, chunks: 1, splits: 66 });
        // Sixteen rows.
        assert_eq!(Plan::new(132, 128, 4, 512).splits, 5);
        // No split has fewer keys than a block reads at once.
        assert_eq!(Plan::new(132, 8, 4, 32).splits, 8);
        // Enough rows: one split, whose block writes the result.
        assert_eq!(Plan::new(132, 1024, 3, 512), Plan { queries: 4, chunks: 1, splits: 1 });
        // Sixteen tokens of a group of 8.
        assert_eq!(Plan::new(132, 8, 128, 512), Plan { queries: 8, chunks: 16, splits: 5 });
    }

    #[test]
    fn splits_on_matrix_cores_are_resident_together() {
        assert_eq!(Plan::on_cores(132, 8, 4, 512), Plan { queries: 8, chunks: 1, splits: 49 });
        // 384 blocks of the 396 that are resident.
        assert_eq!(Plan::on_cores(132, 128, 4, 512).splits, 3);
        assert_eq!(Plan::on_cores(132, 8, 4, 32).splits, 8);
        assert_eq!(Plan::on_cores(132, 1024, 3, 512), Plan { queries: 8, chunks: 1, splits: 1 });
    }

    #[test]
    fn a_launch_has_fewer_than_2_to_the_32_threads() {
        let blocks = |heads: usize, threads| {
            let mut plan = Plan { queries: 8, chunks: 8, splits: 4 };
            (plan.blocks(heads, threads), plan.splits)
        };
        assert_eq!(blocks(1 << 18, 256), (Some(1 << 23), 4));
        // 2^24 blocks of 256 threads are too many. Two splits of 2^23 blocks are as many, so the
        // plan has one split.
        assert_eq!(blocks(1 << 20, 256), (Some(1 << 23), 1));
        assert_eq!(blocks(1 << 20, 128), (Some(3 << 23), 3));
        assert_eq!(blocks(1 << 21, 256).0, None);
        // Blocks of one thread, on the CPU device: fewer than 2^31.
        assert_eq!(blocks(1 << 26, 1), (Some(3 << 29), 3));
        assert_eq!(blocks(1 << 28, 1).0, None);
    }
}
