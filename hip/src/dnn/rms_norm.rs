//! RMS norm forward, which MIOpen calls T5 layer norm.
//!
//! MIOpen's backward call is not used. It keeps statistics and the partial sums of the weight
//! gradient in the tensor's dtype. Its weight-gradient kernel never terminates unless the length is
//! a multiple of its 256 threads (kernel source in the library of ROCm 7.2).

use miopen_sys::*;

use super::norm::{Prepared, absent};
use super::{Dnn, LayerNormDesc, TensorArg, carry, data_type, elements};
use crate::memory::span::Span;
use crate::{DType, Result, workarounds};

const OP: &str = "RMS norm";

impl Dnn {
    /// Checks that MIOpen has RMS norm for the dtype.
    ///
    /// # Errors
    /// `Unsupported` for other dtypes, or if this MIOpen is too old to have the function.
    pub fn has_rms_norm(&self, dtype: DType) -> Result<()> {
        data_type(OP, dtype, workarounds::NORMS)?;
        self.table.miopenT5LayerNormForward.map(|_| ()).ok_or_else(|| absent(OP, dtype))
    }

    /// `y = x * rstd * weight`, where each row has `rstd = 1 / sqrt(mean(x^2) + epsilon)`. `weight`
    /// has `len` values, `rstd` `rows`.
    ///
    /// # Errors
    /// `Unsupported` for the dtype, or if MIOpen lacks the function; `Invalid` for memory that is
    /// too small or overlaps; `Miopen` if the library fails.
    pub fn rms_norm_forward(
        &self,
        desc: &LayerNormDesc,
        x: TensorArg<'_>,
        weight: TensorArg<'_>,
        epsilon: f32,
        y: TensorArg<'_>,
        rstd: TensorArg<'_>,
    ) -> Result<()> {
        let data_type = data_type(OP, desc.dtype, workarounds::NORMS)?;
        let call = self.table.miopenT5LayerNormForward.ok_or_else(|| absent(OP, desc.dtype))?;
        let count = elements(OP, &[desc.rows, desc.len])?;
        let [xs, ys] = self.spans(OP, desc.dtype, count, [x, y])?;
        let [ws] = self.spans(OP, desc.dtype, desc.len, [weight])?;
        let [rs] = self.spans(OP, desc.dtype, desc.rows, [rstd])?;
        Span::all_apart(OP, &[ys, rs], &[xs, ws])?;
        carry([x, weight], [y, rstd]);
        if ys.bytes == 0 {
            return Ok(());
        }
        let prepared = self.rms_norms.get(desc, || {
            Prepared::new(self.table, OP, data_type, &[desc.rows, 1, 1, desc.len], &[desc.len], desc.rows)
        })?;
        let Prepared { tensor, row, column, refused } = &*prepared;
        refused.check()?;
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptors describe; the pool keeps them
        // until the stream has passed the call.
        let status = unsafe {
            call(
                handle.raw,
                MIOPEN_WEIGHT_BIAS_T5,
                tensor.raw(),
                xs.ptr,
                row.raw(),
                ws.ptr,
                epsilon,
                tensor.raw(),
                ys.ptr,
                column.raw(),
                rs.ptr,
            )
        };
        refused.keep(0, self.served("miopenT5LayerNormForward", status, || format!("{desc:?}")))
    }
}
