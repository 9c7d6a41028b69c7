//! A call of attention with a gradient: its checked inputs, and which implementation computes it.

use burn_std::DType;
use hip::Device;

use super::cores::{Cores, Scores};
use super::in_f32::trains;
use super::options::{AttentionDropout, AttentionOptions, AttentionPath};
use super::sequences::Sequences;
use super::window::Window;
use super::{expand, group_of, has_tiled, least_queries, mask_size};
use crate::arg::{Arg, compute};
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::mask::check_mask;
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

/// `WIDEST` of `attention_backward.hip`: the most features of a query, key or value that its tiles
/// hold.
pub(super) const WIDEST: usize = 128;

/// What decides which implementation computes attention with a gradient.
pub(crate) struct Question<'a> {
    pub(crate) op: &'static str,
    pub(crate) device: &'a Device,
    pub(crate) dtype: DType,
    /// Batch, heads, queries, keys, features of queries and keys.
    pub(crate) sizes: [usize; 5],
    /// The features of values.
    pub(crate) values: usize,
    pub(crate) window: Window,
    /// Whether a mask hides keys.
    pub(crate) masked: bool,
    pub(crate) options: &'a AttentionOptions,
}

impl Question<'_> {
    /// The implementation, forward and backward, and why it is not the one before it in [`Path`].
    ///
    /// # Errors
    /// `Invalid` if [`AttentionPath::Tiled`] is asked for and can't compute it.
    pub(crate) fn path(&self) -> hip::Result<(Path, &'static str)> {
        let Self { device, dtype, values, options, .. } = *self;
        let [batch, heads, queries, keys, width] = self.sizes;
        if options.path == AttentionPath::Composed {
            return Ok((Path::Composed, "asked for by AttentionPath::Composed"));
        }
        if self.sizes.contains(&0) || values == 0 {
            return Ok((Path::Composed, "no elements"));
        }
        let asked = options.path == AttentionPath::Tiled;
        let widest = width.max(values);
        let mut why = "fewer than 32 queries";
        if asked || queries >= least_queries(device) {
            match Cores::of(device, dtype, widest, true)? {
                Ok(cores) => return Ok((Path::Cores(cores), "")),
                Err(reason) => why = reason,
            }
        }
        let possible = widest <= WIDEST && has_tiled(device);
        if asked {
            let expected = format!("heads of at most {WIDEST} features, blocks of 256 threads");
            let threads = device.grid_rows(1, usize::MAX).threads;
            let found = || format!("{width} and {values} features, {threads} threads");
            return if possible { Ok((Path::Tiled, why)) } else { invalid(self.op, expected, found()) };
        }
        let scores = [batch, heads, queries, keys].iter().fold(dtype.size(), |n, &dim| n.saturating_mul(dim));
        // The tiled kernels compute the scores twice more for the gradient, and without matrix
        // units. So they pay off only if memory is short.
        let most = options.scores.map_or_else(hip::attention_scores, Ok)?;
        // Tiled kernels skip what a window hides. Those for plain f32 attention take about as long
        // as the products if there is no window, the others 3.5 times as long (decision 018).
        let narrow = if self.trains_in_f32() {
            self.window.hides()
        } else {
            self.window.sees_at_most(keys / 4, [queries, keys])
        };
        let tiled = possible && queries >= least_queries(device) && (scores > most || narrow);
        Ok((if tiled { Path::Tiled } else { Path::Composed }, why))
    }
}

impl Question<'_> {
    /// Whether the kernels for plain attention in f32 compute the call, on a device without matrix
    /// units for f32.
    fn trains_in_f32(&self) -> bool {
        let Self { device, values, options, .. } = *self;
        let [_, _, queries, _, width] = self.sizes;
        let dropout = options.dropout.is_some_and(|dropout| dropout.prob > 0.0);
        self.dtype == DType::F32
            && !(self.masked || dropout || options.quiet || device.info().has_f32_matrix_units())
            && trains(device, hip::DType::F32, queries, width, values)
    }
}

/// The implementation of a call.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    Cores(Cores),
    Tiled,
    Composed,
}

/// A call with checked inputs.
pub(super) struct Call<'a> {
    pub(super) op: &'static str,
    /// Batch, heads, queries, keys, features.
    pub(super) sizes: [usize; 5],
    /// How many heads of queries share a head of keys and values.
    pub(super) group: usize,
    pub(super) sequences: Sequences,
    pub(super) mask: Option<RocmTensor>,
    pub(super) scale: f64,
    /// Only for packed sequences, and without a gradient.
    pub(super) softcap: Option<f64>,
    pub(super) window: Window,
    pub(super) options: &'a AttentionOptions,
    pub(super) ty: hip::DType,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        op: &'static str,
        query: &RocmTensor,
        key: &RocmTensor,
        mask: Option<RocmTensor>,
        options: &'a AttentionOptions,
    ) -> hip::Result<Self> {
        one_device(op, &[query, key])?;
        one_dtype(op, &[query, key])?;
        let ty = float_type(op, query)?;
        let found = || format!("{:?} and {:?}", query.dims(), key.dims());
        let (&[batch, heads, queries, width], &[others, key_heads, keys, key_width]) =
            (query.dims(), key.dims())
        else {
            return invalid(op, "queries and keys of rank 4", found());
        };
        if (batch, width) != (others, key_width) || width == 0 {
            return invalid(op, "queries and keys with the same batch and features (at least 1)", found());
        }
        let Some(group) = group_of(heads, key_heads) else {
            return invalid(op, "heads of keys that divide the heads of queries", found());
        };
        let window = Window::new(op, options.causal, options.window, [queries, keys])?;
        if let Some(dropout) = &options.dropout {
            dropout.check(op, query)?;
        }
        if [queries, keys].iter().any(|&n| n > i32::MAX as usize) {
            return invalid(op, format!("sequences of at most {}", i32::MAX), found());
        }
        let mask = mask
            .map(|mask| {
                one_device(op, &[query, &mask])?;
                check_mask(op, &mask)?;
                expand(mask, &[batch, heads, queries, keys])
            })
            .transpose()?;
        let scale = options.scale.unwrap_or(1.0 / (width as f64).sqrt());
        let (sizes, sequences) = ([batch, heads, queries, keys, width], Sequences::Padded);
        Ok(Self { op, sizes, group, sequences, mask, scale, softcap: None, window, options, ty })
    }

    /// Heads of keys and values.
    pub(super) fn key_heads(&self) -> usize {
        self.sizes[1] / self.group
    }

    pub(super) fn check_value(&self, query: &RocmTensor, value: &RocmTensor) -> hip::Result<()> {
        one_device(self.op, &[query, value])?;
        one_dtype(self.op, &[query, value])?;
        let ([batch, _, _, keys, _], heads) = (self.sizes, self.key_heads());
        match value.dims() {
            dims if dims.len() == 4 && dims[..3] == [batch, heads, keys] => Ok(()),
            dims => invalid(self.op, format!("values [{batch}, {heads}, {keys}, ..]"), format!("{dims:?}")),
        }
    }

    pub(super) fn check(
        &self,
        name: &str,
        tensor: &RocmTensor,
        like: &RocmTensor,
        dims: &[usize],
    ) -> hip::Result<()> {
        one_device(self.op, &[like, tensor])?;
        one_dtype(self.op, &[like, tensor])?;
        if tensor.dims() != dims {
            return invalid(self.op, format!("{name} {dims:?}"), format!("{:?}", tensor.dims()));
        }
        Ok(())
    }

    /// The implementation of this call. Tells the summary if 16-bit operands don't go to matrix
    /// cores.
    pub(super) fn route(&self, query: &RocmTensor, values: usize) -> hip::Result<Path> {
        let question = Question {
            op: self.op,
            device: query.hip_device(),
            dtype: query.dtype_of(),
            sizes: self.sizes,
            values,
            window: self.window,
            masked: self.mask.is_some(),
            options: self.options,
        };
        let (path, why) = question.path()?;
        if query.dtype_size() == 2 && !matches!(path, Path::Cores(_)) {
            hip::trace::fell_back(|| format!("not on matrix cores: {why}"));
        }
        Ok(path)
    }

    /// What the kernels on matrix cores do with a score.
    pub(super) fn scores(&self) -> Scores<'_> {
        Scores {
            mask: self.mask.as_ref(),
            bias: None,
            scale: self.scale,
            softcap: self.softcap,
            window: self.window,
            fill: self.options.fill,
            quiet: self.options.quiet,
            dropout: self.dropout(),
        }
    }

    /// What the gradient needs of each row: the base of the exponentials, and the reciprocal of
    /// their sum.
    pub(super) fn sums(&self, query: &RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, ..] = self.sizes;
        RocmTensor::empty(query.hip_device(), [batch, heads, queries, 2], compute_dtype(query.dtype_of()))
    }

    pub(super) fn mask_size(&self) -> Arg {
        mask_size(self.mask.as_ref())
    }

    pub(super) fn dropout(&self) -> [Arg; 5] {
        AttentionDropout::args(self.options.dropout, self.ty)
    }

    pub(super) fn compute(&self, value: f64) -> Arg {
        compute(value.into(), self.ty)
    }
}
