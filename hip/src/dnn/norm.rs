//! Batch norm forward and backward; layer norm and group norm forward.

use miopen_sys::*;

use super::descriptor::TensorDesc;
use super::{Dnn, Refusal, TensorArg, carry, data_type, elements, one, zero};
use crate::memory::span::Span;
use crate::{DType, Error, Result, workarounds};

const BATCH: &str = "batch norm";
const LAYER: &str = "layer norm";
const GROUP: &str = "group norm";

/// A tensor seen as `batch x channels x spatial`, normalised per channel. Scale, bias and
/// statistics have one f32 value for each channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchNormDesc {
    /// f32 or f16. In bf16 MIOpen does not round to nearest (`workarounds.rs`).
    pub dtype: DType,
    /// The first dimension.
    pub batch: usize,
    /// The second dimension.
    pub channels: usize,
    /// The product of the other dimensions.
    pub spatial: usize,
}

impl BatchNormDesc {
    /// Checks that MIOpen computes statistics and gradients of such a tensor correctly. Its
    /// inference is always correct.
    ///
    /// # Errors
    /// `Unsupported` if MIOpen's result would be wrong.
    pub fn trained_correctly(&self) -> Result<()> {
        let Self { dtype, batch, spatial, .. } = *self;
        match workarounds::batch_norm_is_right(batch, spatial) {
            true => Ok(()),
            false => {
                let what =
                    format!("{batch} samples of {spatial} elements a channel, for which MIOpen's is wrong");
                Err(Error::unsupported_with(BATCH, dtype, what))
            }
        }
    }
}

/// A tensor seen as `rows x len`, normalised per row. Weight and bias have `len` values, each
/// statistic has `rows`, all of the tensor's dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerNormDesc {
    /// f32 or f16.
    pub dtype: DType,
    /// The product of the other dimensions.
    pub rows: usize,
    /// The product of the dimensions that are normalised over.
    pub len: usize,
}

/// A tensor seen as `batch x channels x spatial`, normalised per group of channels. Weight and bias
/// have `channels` values, each statistic has `batch x groups`, all of the tensor's dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupNormDesc {
    /// f32 or f16.
    pub dtype: DType,
    /// The first dimension.
    pub batch: usize,
    /// The second dimension.
    pub channels: usize,
    /// The product of the other dimensions.
    pub spatial: usize,
    /// Groups. Their number divides `channels`.
    pub groups: usize,
}

/// The descriptors of a layer or RMS norm.
pub(super) struct Prepared {
    pub(super) tensor: TensorDesc,
    pub(super) row: TensorDesc,
    pub(super) column: TensorDesc,
    /// Why MIOpen refuses the shape.
    pub(super) refused: Refusal,
}

impl Prepared {
    /// `tensor` must have rank 4: for rank 2 MIOpen warns of an unknown layout at every new shape.
    pub(super) fn new(
        table: &'static Miopen,
        op: &'static str,
        data_type: miopenDataType_t,
        tensor: &[usize],
        row: &[usize],
        rows: usize,
    ) -> Result<Self> {
        let packed = |shape: &[usize]| TensorDesc::packed(table, op, data_type, shape);
        Ok(Self {
            tensor: packed(tensor)?,
            row: packed(row)?,
            column: packed(&[rows])?,
            refused: Refusal::default(),
        })
    }
}

/// The descriptors of a batch norm.
struct BatchNorm {
    x: TensorDesc,
    channel: TensorDesc,
}

impl Dnn {
    /// Normalises with the statistics of `x` itself:
    /// `y = (x - mean) / sqrt(var + epsilon) * scale + bias`.
    ///
    /// `running` is the running mean and unbiased variance. Each becomes
    /// `old * (1 - momentum) + new * momentum`. `saved` gets this batch's mean and
    /// `1 / sqrt(var + epsilon)` for the gradient.
    ///
    /// # Errors
    /// `Unsupported` for the dtype; `Invalid` for memory that is too small or overlaps; `Miopen` if
    /// the library fails.
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn batch_norm_train(
        &self,
        desc: &BatchNormDesc,
        x: TensorArg<'_>,
        y: TensorArg<'_>,
        scale: TensorArg<'_>,
        bias: TensorArg<'_>,
        running: Option<[TensorArg<'_>; 2]>,
        momentum: f64,
        epsilon: f64,
        saved: Option<[TensorArg<'_>; 2]>,
    ) -> Result<()> {
        let (this, [xs, ys]) = self.batch_norm(desc, [x, y])?;
        let [ss, bs] = self.channels(desc, [scale, bias])?;
        let optional = |pair: Option<[TensorArg<'_>; 2]>| {
            pair.map_or(Ok([Span::NULL; 2]), |pair| self.channels(desc, pair))
        };
        let ([running_mean, running_var], [mean, inv]) = (optional(running)?, optional(saved)?);
        Span::all_apart(BATCH, &[ys, running_mean, running_var, mean, inv], &[xs, ss, bs])?;
        let statistics = running.into_iter().chain(saved).flatten();
        carry(running.into_iter().flatten().chain([x, scale, bias]), statistics.chain([y]));
        if ys.bytes == 0 {
            return Ok(());
        }
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptors describe; the pool keeps them
        // until the stream has passed the call. The scalars are static, and only read.
        let status = unsafe {
            (self.table.miopenBatchNormalizationForwardTraining)(
                handle.raw,
                miopenBNSpatial,
                one().cast_mut(),
                zero().cast_mut(),
                this.x.raw(),
                xs.ptr,
                this.x.raw(),
                ys.ptr,
                this.channel.raw(),
                ss.ptr,
                bs.ptr,
                momentum,
                running_mean.ptr,
                running_var.ptr,
                epsilon,
                mean.ptr,
                inv.ptr,
            )
        };
        self.served("miopenBatchNormalizationForwardTraining", status, || format!("{desc:?}"))
    }

    /// Normalises with given statistics:
    /// `y = (x - mean) / sqrt(variance + epsilon) * scale + bias`.
    ///
    /// # Errors
    /// As for [`Dnn::batch_norm_train`].
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn batch_norm_infer(
        &self,
        desc: &BatchNormDesc,
        x: TensorArg<'_>,
        y: TensorArg<'_>,
        scale: TensorArg<'_>,
        bias: TensorArg<'_>,
        mean: TensorArg<'_>,
        variance: TensorArg<'_>,
        epsilon: f64,
    ) -> Result<()> {
        let (this, [xs, ys]) = self.batch_norm(desc, [x, y])?;
        let [ss, bs, ms, vs] = self.channels(desc, [scale, bias, mean, variance])?;
        ys.apart_from(BATCH, &[xs, ss, bs, ms, vs])?;
        carry([x, scale, bias, mean, variance], [y]);
        if ys.bytes == 0 {
            return Ok(());
        }
        let handle = self.begin(y.buffer)?;
        // SAFETY: as in `batch_norm_train`.
        let status = unsafe {
            (self.table.miopenBatchNormalizationForwardInference)(
                handle.raw,
                miopenBNSpatial,
                one().cast_mut(),
                zero().cast_mut(),
                this.x.raw(),
                xs.ptr,
                this.x.raw(),
                ys.ptr,
                this.channel.raw(),
                ss.ptr,
                bs.ptr,
                ms.ptr,
                vs.ptr,
                epsilon,
            )
        };
        self.served("miopenBatchNormalizationForwardInference", status, || format!("{desc:?}"))
    }

    /// The gradients of `x`, scale and bias from `dy`, the gradient of `y`, and the forward pass's
    /// `saved`.
    ///
    /// # Errors
    /// As for [`Dnn::batch_norm_train`].
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn batch_norm_backward(
        &self,
        desc: &BatchNormDesc,
        x: TensorArg<'_>,
        dy: TensorArg<'_>,
        dx: TensorArg<'_>,
        scale: TensorArg<'_>,
        dscale: TensorArg<'_>,
        dbias: TensorArg<'_>,
        epsilon: f64,
        saved: [TensorArg<'_>; 2],
    ) -> Result<()> {
        let (this, [xs, dys, dxs]) = self.batch_norm(desc, [x, dy, dx])?;
        let [ss, dss, dbs, mean, inv] = self.channels(desc, [scale, dscale, dbias, saved[0], saved[1]])?;
        Span::all_apart(BATCH, &[dxs, dss, dbs], &[xs, dys, ss, mean, inv])?;
        carry([x, dy, scale].into_iter().chain(saved), [dx, dscale, dbias]);
        if dxs.bytes == 0 {
            return Ok(());
        }
        let handle = self.begin(dx.buffer)?;
        // SAFETY: as in `batch_norm_train`.
        let status = unsafe {
            (self.table.miopenBatchNormalizationBackward)(
                handle.raw,
                miopenBNSpatial,
                one(),
                zero(),
                one(),
                zero(),
                this.x.raw(),
                xs.ptr,
                this.x.raw(),
                dys.ptr,
                this.x.raw(),
                dxs.ptr,
                this.channel.raw(),
                ss.ptr,
                dss.ptr,
                dbs.ptr,
                epsilon,
                mean.ptr,
                inv.ptr,
            )
        };
        self.served("miopenBatchNormalizationBackward", status, || format!("{desc:?}"))
    }

    fn batch_norm<const N: usize>(
        &self,
        desc: &BatchNormDesc,
        tensors: [TensorArg<'_>; N],
    ) -> Result<(BatchNorm, [Span; N])> {
        let data_type = data_type(BATCH, desc.dtype, workarounds::NORMS)?;
        let shape = [desc.batch, desc.channels, desc.spatial, 1];
        let x = TensorDesc::packed(self.table, BATCH, data_type, &shape)?;
        let channel = TensorDesc::packed(self.table, BATCH, miopenFloat, &[1, desc.channels, 1, 1])?;
        let spans = self.spans(BATCH, desc.dtype, elements(BATCH, &shape)?, tensors)?;
        Ok((BatchNorm { x, channel }, spans))
    }

    fn channels<const N: usize>(
        &self,
        desc: &BatchNormDesc,
        tensors: [TensorArg<'_>; N],
    ) -> Result<[Span; N]> {
        self.spans(BATCH, DType::F32, desc.channels, tensors)
    }

    pub(super) fn spans<const N: usize>(
        &self,
        op: &'static str,
        dtype: DType,
        count: usize,
        tensors: [TensorArg<'_>; N],
    ) -> Result<[Span; N]> {
        let mut spans = [Span::NULL; N];
        for (span, tensor) in spans.iter_mut().zip(tensors) {
            *span = self.span(op, tensor, dtype, count)?;
        }
        Ok(spans)
    }

    /// Checks that MIOpen has batch norm for the dtype.
    ///
    /// # Errors
    /// `Unsupported` for other dtypes.
    pub fn has_batch_norm(&self, dtype: DType) -> Result<()> {
        data_type(BATCH, dtype, workarounds::NORMS).map(|_| ())
    }

    /// Checks that MIOpen has group norm for the dtype.
    ///
    /// # Errors
    /// `Unsupported` for other dtypes, or if this MIOpen is too old to have the function.
    pub fn has_group_norm(&self, dtype: DType) -> Result<()> {
        data_type(GROUP, dtype, workarounds::NORMS)?;
        self.table.miopenGroupNormForward.map(|_| ()).ok_or_else(|| absent(GROUP, dtype))
    }

    /// Checks that MIOpen has layer norm for the dtype.
    ///
    /// # Errors
    /// `Unsupported` for other dtypes, or if MIOpen is older than ROCm 6.
    pub fn has_layer_norm(&self, dtype: DType) -> Result<()> {
        data_type(LAYER, dtype, workarounds::NORMS)?;
        self.table.miopenLayerNormForward.map(|_| ()).ok_or_else(|| absent(LAYER, dtype))
    }

    /// `y = (x - mean) * rstd * weight + bias`, with the mean and `rstd = 1 / sqrt(var + epsilon)`
    /// of each row.
    ///
    /// # Errors
    /// `Unsupported` for the dtype, or if MIOpen is older than ROCm 6; `Invalid` for memory that is
    /// too small or overlaps; `Miopen` if the library fails.
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn layer_norm_forward(
        &self,
        desc: &LayerNormDesc,
        x: TensorArg<'_>,
        weight: TensorArg<'_>,
        bias: TensorArg<'_>,
        epsilon: f32,
        y: TensorArg<'_>,
        mean: TensorArg<'_>,
        rstd: TensorArg<'_>,
    ) -> Result<()> {
        let data_type = data_type(LAYER, desc.dtype, workarounds::NORMS)?;
        let call = self.table.miopenLayerNormForward.ok_or_else(|| absent(LAYER, desc.dtype))?;
        let [xs, ys] = self.spans(LAYER, desc.dtype, elements(LAYER, &[desc.rows, desc.len])?, [x, y])?;
        let [ws, bs] = self.spans(LAYER, desc.dtype, desc.len, [weight, bias])?;
        let [ms, rs] = self.spans(LAYER, desc.dtype, desc.rows, [mean, rstd])?;
        Span::all_apart(LAYER, &[ys, ms, rs], &[xs, ws, bs])?;
        carry([x, weight, bias], [y, mean, rstd]);
        if ys.bytes == 0 {
            return Ok(());
        }
        let prepared = self.layer_norms.get(desc, || {
            Prepared::new(
                self.table,
                LAYER,
                data_type,
                &[desc.rows, desc.len, 1, 1],
                &[desc.len, 1, 1],
                desc.rows,
            )
        })?;
        let Prepared { tensor, row, column, refused } = &*prepared;
        refused.check()?;
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptors describe; the pool keeps them
        // until the stream has passed the call.
        let status = unsafe {
            call(
                handle.raw,
                MIOPEN_WEIGHT_BIAS,
                tensor.raw(),
                xs.ptr,
                row.raw(),
                ws.ptr,
                row.raw(),
                bs.ptr,
                epsilon,
                1,
                tensor.raw(),
                ys.ptr,
                column.raw(),
                ms.ptr,
                column.raw(),
                rs.ptr,
            )
        };
        refused.keep(0, self.served("miopenLayerNormForward", status, || format!("{desc:?}")))
    }

    /// `y = (x - mean) * rstd * weight + bias`, with the mean and `rstd = 1 / sqrt(var + epsilon)`
    /// of each group.
    ///
    /// MIOpen has kernels for 32 groups or more. For fewer it returns an error.
    ///
    /// # Errors
    /// As for [`Dnn::layer_norm_forward`].
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn group_norm_forward(
        &self,
        desc: &GroupNormDesc,
        x: TensorArg<'_>,
        weight: TensorArg<'_>,
        bias: TensorArg<'_>,
        epsilon: f32,
        y: TensorArg<'_>,
        mean: TensorArg<'_>,
        rstd: TensorArg<'_>,
    ) -> Result<()> {
        let data_type = data_type(GROUP, desc.dtype, workarounds::NORMS)?;
        let call = self.table.miopenGroupNormForward.ok_or_else(|| absent(GROUP, desc.dtype))?;
        if desc.groups == 0 || !desc.channels.is_multiple_of(desc.groups) {
            return Err(Error::invalid(GROUP, "groups that divide the channels", format!("{desc:?}")));
        }
        let shape = [desc.batch, desc.channels, desc.spatial, 1];
        let [xs, ys] = self.spans(GROUP, desc.dtype, elements(GROUP, &shape)?, [x, y])?;
        let [ws, bs] = self.spans(GROUP, desc.dtype, desc.channels, [weight, bias])?;
        let rows = elements(GROUP, &[desc.batch, desc.groups])?;
        let [ms, rs] = self.spans(GROUP, desc.dtype, rows, [mean, rstd])?;
        Span::all_apart(GROUP, &[ys, ms, rs], &[xs, ws, bs])?;
        carry([x, weight, bias], [y, mean, rstd]);
        if ys.bytes == 0 {
            return Ok(());
        }
        let packed = |shape: &[usize]| TensorDesc::packed(self.table, GROUP, data_type, shape);
        let (tensor, channel, row) =
            (packed(&shape)?, packed(&[desc.channels])?, packed(&[desc.batch, desc.groups])?);
        let handle = self.begin(y.buffer)?;
        // SAFETY: as in `layer_norm_forward`.
        let status = unsafe {
            call(
                handle.raw,
                MIOPEN_WEIGHT_BIAS,
                tensor.raw(),
                xs.ptr,
                channel.raw(),
                ws.ptr,
                channel.raw(),
                bs.ptr,
                desc.groups as u64,
                epsilon,
                tensor.raw(),
                ys.ptr,
                row.raw(),
                ms.ptr,
                row.raw(),
                rs.ptr,
            )
        };
        self.served("miopenGroupNormForward", status, || format!("{desc:?}"))
    }
}

pub(super) fn absent(op: &'static str, dtype: DType) -> Error {
    Error::unsupported_with(op, dtype, "this MIOpen, which lacks the function")
}
