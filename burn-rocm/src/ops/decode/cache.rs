//! The paged cache of keys and values (`kv_cache.hip`).

use burn_backend::TensorData;
use burn_std::DType;
use hip::{Fault, Template};

use super::PAGE;
use crate::RocmDevice;
use crate::arg::Arg;
use crate::error::{invalid, unsupported};
use crate::ops::copy::{may_be_written, packed};
use crate::ops::create::full_on;
use crate::ops::language::rotary::{Rotary, Rotated, rotary};
use crate::ops::launch::{MAX_REACH, views_to};
use crate::ops::transfer::upload;
use crate::ops::view::{narrow, reshape};
use crate::tensor::{RocmTensor, one_device, one_dtype};

const ROTARY: &str = "decode::rotary_append";
const APPEND: &str = "decode::append";
const GATHER: &str = "decode::gather";
const BATCH: &str = "decode::PagedBatch";

/// The counters of a batch's blocks of attention. A launch that divides keys has far fewer rows, heads
/// and chunks.
pub(super) const ARRIVALS: usize = 8192;

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheType {
    /// As f32.
    F32,
    /// As f16.
    F16,
    /// As bf16.
    BF16,
    /// As 8-bit integers with an f32 scale for each token and head. The scale is the vector's
    /// greatest magnitude divided by 127, so an element is off by at most `1/254 + 2^-15` of that
    /// magnitude. A vector with a NaN or an infinity becomes NaN throughout.
    I8,
}

impl CacheType {
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
            Self::I8 => DType::I8,
        }
    }

    /// Whether keys and values of `dtype` may be stored so.
    pub fn takes(self, dtype: DType) -> bool {
        matches!(
            (dtype, self),
            (DType::F32, _) | (DType::F16, Self::F16 | Self::I8) | (DType::BF16, Self::BF16 | Self::I8)
        )
    }

    /// The bytes of the keys and values of a token in one layer.
    pub fn bytes_of_token(self, heads: usize, width: usize) -> usize {
        let scales = if self == Self::I8 { 2 * heads * size_of::<f32>() } else { 0 };
        2 * heads * pitch_of(width) * self.dtype().size() + scales
    }
}

/// The keys and values of one layer, in pages of [`PAGE`] tokens. Ops write them in place: clones
/// share the memory.
#[derive(Clone, Debug)]
pub struct PagedLayer {
    /// Keys and values, `[pages, heads, PAGE, pitch]`: features are padded with zeros to a multiple of
    /// 8, so that each vector begins at 16 bytes.
    pub(super) pages: [RocmTensor; 2],
    /// Their scales `[pages, heads, PAGE]`, if they are integers.
    pub(super) scales: Option<[RocmTensor; 2]>,
    pub(super) stored: CacheType,
    width: usize,
}

/// The features of a vector in memory. `pitch_of` of `paged.h`.
fn pitch_of(width: usize) -> usize {
    width.next_multiple_of(8)
}

impl PagedLayer {
    /// Memory for `pages` pages of `heads` heads of `width` features, all zeros.
    ///
    /// # Errors
    /// `Invalid` unless there is a page and a head, and 1 to 256 features; `OutOfMemory`.
    pub fn new(
        device: &RocmDevice,
        pages: usize,
        heads: usize,
        width: usize,
        stored: CacheType,
    ) -> hip::Result<Self> {
        let fits = pages.checked_mul(heads * PAGE).is_some_and(|vectors| vectors <= MAX_REACH);
        if pages == 0 || heads == 0 || !fits || !(1..=256).contains(&width) {
            let expected = "pages and heads, and 1 to 256 features";
            let found = format!("{pages} pages, {heads} heads, {width} features");
            return invalid("decode::PagedLayer", expected, found);
        }
        let device = device.open()?;
        let zeros = |shape: &[usize], dtype| full_on(&device, shape.to_vec(), 0.into(), dtype);
        let page = || zeros(&[pages, heads, PAGE, pitch_of(width)], stored.dtype());
        let scale = || zeros(&[pages, heads, PAGE], DType::F32);
        let scales = if stored == CacheType::I8 { Some([scale()?, scale()?]) } else { None };
        Ok(Self { pages: [page()?, page()?], scales, stored, width })
    }

    /// `[pages, heads, PAGE, width]`.
    pub fn dims(&self) -> [usize; 4] {
        let &[pages, heads, tokens, _] = self.pages[0].dims() else { return [0; 4] };
        [pages, heads, tokens, self.width]
    }

    /// How keys and values are stored.
    pub fn stored(&self) -> CacheType {
        self.stored
    }

    /// The scales as the kernels' operands.
    pub(super) fn scales(&self) -> [Option<&RocmTensor>; 2] {
        self.scales.as_ref().map_or([None; 2], |scales| scales.each_ref().map(Some))
    }

    /// Copies page `from` to page `to`.
    ///
    /// # Errors
    /// `Invalid` for a page that the layer does not have; an error of the device.
    pub fn copy_page(&self, from: usize, to: usize) -> hip::Result<()> {
        let pages = self.dims()[0];
        if from.max(to) >= pages {
            return invalid("decode::copy_page", format!("pages below {pages}"), format!("{from} and {to}"));
        }
        for tensor in self.pages.iter().chain(self.scales.iter().flatten()) {
            may_be_written("decode::copy_page", tensor)?;
            let bytes = tensor.len() / pages * tensor.dtype_size();
            let (buffer, start) = (tensor.buffer(), tensor.byte_offset());
            tensor.hip_device().copy(buffer, start + from * bytes, buffer, start + to * bytes, bytes)?;
        }
        Ok(())
    }

    /// The sizes as the kernels' argument (`Paged`).
    pub(super) fn sizes(&self, batch: &PagedBatch, tokens: usize, steps: [usize; 2]) -> Arg {
        let [pages, heads, _, width] = self.dims();
        let [rows, most] = batch.dims();
        Arg::U64x8([rows, tokens, heads, width, pages, most, steps[0], steps[1]].map(|n| n as u64))
    }
}

/// Which sequences a step computes, in device memory that stays where it is: each row of the batch
/// has a sequence's pages, the tokens that it has so far, and its tokens of this step.
#[derive(Debug)]
pub struct PagedBatch {
    /// `[rows, pages of a row]`.
    pub(super) table: RocmTensor,
    /// `[rows]`: the tokens in the cache.
    pub(super) lengths: RocmTensor,
    /// `[rows + 1]`: row `i` has the step's tokens `offsets[i]..offsets[i + 1]`.
    pub(super) offsets: RocmTensor,
    /// The most tokens of a row in one step.
    pub(super) most_tokens: usize,
    /// `[ARRIVALS]` of U32: how many blocks of a row, head and chunk have left their part of
    /// attention's result. 0 between launches.
    pub(super) arrived: RocmTensor,
}

impl PagedBatch {
    /// A batch of `rows` rows without sequences. A row may have `pages` pages, and `tokens` tokens
    /// in one step.
    ///
    /// # Errors
    /// `Invalid` if one of the numbers is 0, or for 2^31 tokens or more; `OutOfMemory`.
    pub fn new(device: &RocmDevice, rows: usize, pages: usize, tokens: usize) -> hip::Result<Self> {
        let fits = |n: usize, of: usize| n.checked_mul(of).is_some_and(|n| n <= MAX_REACH);
        if rows == 0 || pages == 0 || tokens == 0 || !fits(rows, tokens) || !fits(rows.max(PAGE), pages) {
            let found = format!("{rows} rows of {pages} pages and {tokens} tokens");
            return invalid(BATCH, "rows with pages and tokens, fewer than 2^31", found);
        }
        let device = device.open()?;
        let zeros = |shape: &[usize]| full_on(&device, shape.to_vec(), 0.into(), DType::I32);
        Ok(Self {
            table: zeros(&[rows, pages])?,
            lengths: zeros(&[rows])?,
            offsets: zeros(&[rows + 1])?,
            most_tokens: tokens,
            arrived: full_on(&device, vec![ARRIVALS], 0.into(), DType::U32)?,
        })
    }

    /// Rows, and the pages that a row may have.
    pub fn dims(&self) -> [usize; 2] {
        [self.table.dims()[0], self.table.dims()[1]]
    }

    /// The most tokens of a row in one step.
    pub fn most_tokens(&self) -> usize {
        self.most_tokens
    }

    /// The number of tokens of each row, `[rows]` of I32, in device memory that
    /// [`advance`](Self::advance) changes.
    pub fn lengths(&self) -> RocmTensor {
        self.lengths.clone()
    }

    /// The first of the step's tokens of each row, and their number, `[rows + 1]` of I32.
    pub fn offsets(&self) -> RocmTensor {
        self.offsets.clone()
    }

    /// The kernels' `offsets`, `lengths` and `table`.
    pub(super) fn tables(&self) -> [&RocmTensor; 3] {
        [&self.offsets, &self.lengths, &self.table]
    }

    /// Sets all rows for the next steps. For each row: its pages, the number of its tokens in the
    /// cache, and the number of its tokens in each step. The step's tokens of all rows lie one after
    /// the other. A row without a sequence has no tokens.
    ///
    /// # Errors
    /// `Invalid` unless there are all rows, none has more pages than the batch allows, its tokens
    /// have pages, and no row has more tokens of a step than the batch allows; `Capture` in a
    /// capture; an error of the device.
    pub fn write(&self, rows: &[(&[u32], usize, usize)]) -> hip::Result<()> {
        let [count, most] = self.dims();
        if rows.len() != count {
            return invalid(BATCH, format!("{count} rows"), rows.len().to_string());
        }
        let mut table = vec![-1i32; count * most];
        let (mut lengths, mut offsets) = (Vec::with_capacity(count), vec![0i32]);
        for (row, &(pages, length, tokens)) in rows.iter().enumerate() {
            let fits = pages.len() <= most
                && tokens <= self.most_tokens
                && length.checked_add(tokens).is_some_and(|all| all <= pages.len() * PAGE);
            let Some(pages) = fits.then(|| pages.iter().map(|&page| i32::try_from(page))) else {
                let step = self.most_tokens;
                let expected =
                    format!("a row of at most {most} pages with room for at most {step} more tokens");
                let found = format!("{} pages, {length} tokens and {tokens} more", pages.len());
                return invalid(BATCH, expected, found);
            };
            for (place, page) in table[row * most..].iter_mut().zip(pages) {
                *place = page.unwrap_or(-1);
            }
            lengths.push(length as i32);
            offsets.push(offsets[row] + tokens as i32);
        }
        for (tensor, values) in [(&self.table, &table), (&self.lengths, &lengths), (&self.offsets, &offsets)]
        {
            write_ints(tensor, 0, values)?;
        }
        Ok(())
    }

    /// Counts the step's tokens as tokens of the cache. Once a step, after all layers.
    ///
    /// # Errors
    /// Those of the device.
    pub fn advance(&self) -> hip::Result<()> {
        let device = self.lengths.hip_device();
        let dims = [Arg::U64(self.dims()[0] as u64)];
        let grid = device.grid(self.dims()[0]);
        let kernel = Template::kv_advance.name();
        may_be_written(BATCH, &self.lengths)?;
        views_to(BATCH, device, kernel, grid, &dims, &[Some(&self.offsets)], &[], &[Some(&self.lengths)])
    }
}

/// The bytes that one write from the host may have (`Device::write`).
const PIECE: usize = 64 << 10;

/// Writes integers into a tensor's memory, from element `first` on.
pub(super) fn write_ints(tensor: &RocmTensor, first: usize, values: &[i32]) -> hip::Result<()> {
    may_be_written(BATCH, tensor)?;
    let start = tensor.byte_offset() + first * size_of::<i32>();
    for (piece, values) in values.chunks(PIECE / size_of::<i32>()).enumerate() {
        tensor.hip_device().write(tensor.buffer(), start + piece * PIECE, bytemuck::cast_slice(values))?;
    }
    Ok(())
}

/// A tensor `[tokens, heads, width]` whose token is contiguous, and the elements from one token to
/// the next.
pub(super) fn token_rows(tensor: RocmTensor) -> hip::Result<(RocmTensor, usize)> {
    let (&[tokens, heads, width], &[step, head, column]) = (tensor.dims(), tensor.layout().strides()) else {
        return invalid("decode", "[tokens, heads, width]", format!("{:?}", tensor.dims()));
    };
    let in_place = (width < 2 || column == 1) && (heads < 2 || head == width as isize) && step >= 0;
    if in_place {
        return Ok((tensor, step as usize));
    }
    debug_assert!(tokens > 0 || tensor.is_empty());
    Ok((packed(tensor)?, heads * width))
}

/// Checks operands `[tokens, heads, width]`, and returns the number of tokens.
pub(super) fn check_tokens(
    op: &'static str,
    layer: &PagedLayer,
    batch: &PagedBatch,
    operands: &[&RocmTensor],
    group: usize,
) -> hip::Result<usize> {
    let [_, heads, _, width] = layer.dims();
    let mut all = vec![&layer.pages[0], &batch.table];
    all.extend(operands);
    one_device(op, &all)?;
    let dtype = one_dtype(op, operands)?;
    if !layer.stored.takes(dtype) {
        return unsupported(op, dtype);
    }
    let tokens = operands[0].dims().first().copied().unwrap_or(0);
    for operand in operands {
        if operand.dims() != [tokens, heads * group, width] || tokens * heads * group > MAX_REACH {
            let expected = format!("[{tokens}, {}, {width}] of at most 2^31 vectors", heads * group);
            return invalid(op, expected, format!("{:?}", operand.dims()));
        }
    }
    Ok(tokens)
}

/// Appends keys and values behind the tokens that the batch's rows have, in one launch. The
/// lengths stay until [`PagedBatch::advance`].
///
/// # Shapes
/// - `keys`, `values`: `[tokens, heads, width]`, the tokens of all rows one after the other. Tokens
///   behind the last row's are ignored.
///
/// # Errors
/// `Invalid` if shapes or devices do not fit; `Unsupported` for a dtype that the cache does not
/// [take](CacheType::takes); an error of the device. If a row has no page for a token, the token is
/// not stored, and reads of what is computed from the layer, and the next
/// [`sync`](hip::Device::sync), return `Invalid`.
pub fn append(
    layer: &PagedLayer,
    batch: &PagedBatch,
    keys: RocmTensor,
    values: RocmTensor,
) -> hip::Result<()> {
    let tokens = check_tokens(APPEND, layer, batch, &[&keys, &values], 1)?;
    let [_, heads, _, width] = layer.dims();
    let kernel = Template::kv_write.ty(keys.kernel_type()?).ty(layer.pages[0].kernel_type()?);
    let ((keys, key_step), (values, value_step)) = (token_rows(keys)?, token_rows(values)?);
    if tokens == 0 {
        return Ok(());
    }
    let written: Vec<&RocmTensor> = layer.pages.iter().chain(layer.scales.iter().flatten()).collect();
    written.iter().try_for_each(|tensor| may_be_written(APPEND, tensor))?;
    let device = keys.hip_device();
    let grid = device.grid_rows(tokens * heads, width);
    let dims = [layer.sizes(batch, tokens, [key_step, value_step])];
    let inputs = [&keys, &values, &batch.offsets, &batch.lengths, &batch.table].map(Some);
    let flag = [Arg::Flag(APPEND, Fault::Index)];
    let [key_scales, value_scales] = layer.scales();
    let outputs = [Some(&layer.pages[0]), Some(&layer.pages[1]), key_scales, value_scales];
    views_to(APPEND, device, kernel, grid, &dims, &inputs, &flag, &outputs)
}

/// [`rotary`](crate::fused::rotary()) and [`append`] together: rotates the queries and keys of packed
/// heads, appends keys and values, and returns the queries. One launch if the cache stores the dtype of
/// `x`.
///
/// # Shapes
/// - `x`: `[batch, length, (heads + 2 kv_heads) * width]`, the tokens of all rows one after the other
/// - `norms`: as for `rotary`
/// - output: `[tokens, heads, width]`
///
/// # Errors
/// As for `rotary` and [`append`].
pub fn rotary_append(
    layer: &PagedLayer,
    batch: &PagedBatch,
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    options: &Rotary,
) -> hip::Result<RocmTensor> {
    let Rotary { heads, kv_heads, .. } = *options;
    let [_, of_cache, _, width] = layer.dims();
    if x.dtype_of() != layer.stored.dtype() || of_cache != kv_heads {
        let all = rotary(x, norms, options)?;
        let &[batch_size, length, features] = all.dims() else {
            return invalid(ROTARY, "packed heads [batch, length, features]", format!("{:?}", all.dims()));
        };
        let total = heads + 2 * kv_heads;
        let all = reshape(all, &[batch_size * length, total, features / total])?;
        let [queries, keys, values] = [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)]
            .map(|(first, count)| narrow(all.clone(), 1, first, count));
        append(layer, batch, keys?, values?)?;
        return queries;
    }
    let rotated = Rotated::new(x, norms, options)?;
    let x = &rotated.x;
    let tokens = check_packed(ROTARY, layer, batch, x, options)?;
    let queries = RocmTensor::empty(x.hip_device(), [tokens, heads, width], x.dtype_of())?;
    if tokens == 0 {
        return Ok(queries);
    }
    layer.pages.iter().try_for_each(|tensor| may_be_written(ROTARY, tensor))?;
    let paged = layer.sizes(batch, tokens, [0; 2]);
    let outputs = [&queries, &layer.pages[0], &layer.pages[1]];
    rotated.append(ROTARY, options, paged, batch.tables(), Arg::Flag(ROTARY, Fault::Index), outputs)?;
    Ok(queries)
}

/// Checks packed heads `[batch, length, (heads + 2 kv_heads) * width]` for the layer, and returns the
/// number of tokens.
pub(super) fn check_packed(
    op: &'static str,
    layer: &PagedLayer,
    batch: &PagedBatch,
    x: &RocmTensor,
    options: &Rotary,
) -> hip::Result<usize> {
    let [_, _, _, width] = layer.dims();
    one_device(op, &[x, &layer.pages[0], &batch.table])?;
    let tokens = x.dims()[0] * x.dims()[1];
    let total = options.heads + 2 * options.kv_heads;
    if x.dims()[2] != total * width || tokens * total > MAX_REACH {
        let expected = format!("{total} heads of {width}, at most 2^31 in all");
        return invalid(op, expected, format!("{:?}", x.dims()));
    }
    Ok(tokens)
}

/// All keys and values of the batch's rows, for another op. `lengths` is the number of tokens of each
/// row; they must have been written.
///
/// # Shapes
/// - output: keys and values, `[tokens, heads, width]`, the rows one after the other, and the
///   offsets `[rows + 1]` of I32 at which they begin
///
/// # Errors
/// `Invalid` for another number of rows or lengths beyond the rows' pages; `Unsupported` for a dtype
/// whose keys the cache does not [take](CacheType::takes); `Capture` in a capture; an error of the
/// device.
pub fn gather(
    layer: &PagedLayer,
    batch: &PagedBatch,
    lengths: &[usize],
    dtype: DType,
) -> hip::Result<[RocmTensor; 3]> {
    let [rows, most] = batch.dims();
    if !layer.stored.takes(dtype) {
        return unsupported(GATHER, dtype);
    }
    one_device(GATHER, &[&layer.pages[0], &batch.table])?;
    let [_, heads, _, width] = layer.dims();
    let mut offsets = vec![0i32];
    for &length in lengths {
        let end = offsets[offsets.len() - 1] as usize + length;
        if length > most * PAGE || end > MAX_REACH / heads {
            return invalid(GATHER, format!("rows of at most {most} pages"), format!("{length} tokens"));
        }
        offsets.push(end as i32);
    }
    if lengths.len() != rows {
        return invalid(GATHER, format!("{rows} lengths"), lengths.len().to_string());
    }
    let tokens = offsets[rows] as usize;
    let device = layer.pages[0].hip_device();
    device.refuse_captured(GATHER, "the rows' lengths come from the host")?;
    let offsets = upload(TensorData::new(offsets, [rows + 1]), DType::I32, &layer.pages[0].rocm_device())?;
    let [keys, values] = [
        RocmTensor::empty(device, [tokens, heads, width], dtype)?,
        RocmTensor::empty(device, [tokens, heads, width], dtype)?,
    ];
    if tokens > 0 {
        let kernel = Template::kv_gather.ty(layer.pages[0].kernel_type()?).ty(keys.kernel_type()?);
        let grid = device.grid_rows(tokens * heads, width);
        let dims = [layer.sizes(batch, tokens, [heads * width; 2])];
        let [key_scales, value_scales] = layer.scales();
        let inputs = [
            Some(&layer.pages[0]),
            Some(&layer.pages[1]),
            key_scales,
            value_scales,
            Some(&offsets),
            Some(&batch.table),
        ];
        views_to(GATHER, device, kernel, grid, &dims, &inputs, &[], &[Some(&keys), Some(&values)])?;
    }
    Ok([keys, values, offsets])
}
