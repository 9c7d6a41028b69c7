//! The composed path: rocBLAS's products, and a kernel over the rows of scores between them. The heads
//! of queries that share a head of keys and values are rows of one matrix.

use hip::Template;

use super::call::Call;
use super::softmax::Joined;
use super::{grouped_dims, strides};
use crate::arg::Arg;
use crate::ops::copy::{assign, contiguous, packed};
use crate::ops::launch::{rows, views};
use crate::ops::matmul::{Request, is_one_batch, product, product_to};
use crate::ops::view::{reshape, transpose};
use crate::tensor::RocmTensor;

/// An operand of a product. It is the tensor itself if the heads are equally spaced over all
/// batches, as for tokens `[sequence, batch, features]`; else a packed copy.
pub(super) fn operand(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_one_batch(&tensor) { Ok(tensor) } else { contiguous(tensor) }
}

impl Call<'_> {
    /// A tensor `[batch, heads, rows, columns]` as an operand of a product with a shared head: the
    /// group's heads are rows of one. Copies it unless each head follows the one before it.
    pub(super) fn rows(&self, tensor: RocmTensor) -> hip::Result<RocmTensor> {
        if self.group == 1 {
            return operand(tensor);
        }
        let dims = grouped_dims(tensor.dims(), self.group);
        operand(reshape(tensor, &dims)?)
    }

    /// Writes a product of [`rows`](Self::rows) and a shared head to `place`
    /// `[batch, heads, rows, columns]`.
    pub(super) fn product_of_rows(
        &self,
        request: Request,
        left: RocmTensor,
        shared: RocmTensor,
        place: &RocmTensor,
    ) -> hip::Result<()> {
        let left = self.rows(left)?;
        if self.group == 1 {
            return product_to(request, left, shared, place);
        }
        let dims = grouped_dims(place.dims(), self.group);
        match place.layout().reshape(self.op, &dims)? {
            Some(layout) => product_to(request, left, shared, &place.clone().view(layout)),
            None => assign(self.op, place, &reshape(product(request, left, shared)?, place.dims())?),
        }
    }

    /// Whether nothing (mask, window, dropout) stands between the scores and the softmax.
    pub(super) fn is_plain(&self) -> bool {
        self.mask.is_none()
            && !self.window.hides()
            && self.options.dropout.is_none_or(|dropout| dropout.prob == 0.0)
    }

    /// The scores' shape as an argument of the kernels over rows.
    fn shape(&self) -> Arg {
        let [batch, heads, queries, keys, _] = self.sizes.map(|n| n as i64);
        Arg::I64x4([batch * heads * queries, heads, queries, keys])
    }

    /// The weights.
    pub(super) fn weights(&self, query: RocmTensor, key: RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let dims = [batch, heads, queries, keys];
        let query = if self.group == 1 { query } else { self.rows(query)? };
        if self.is_plain()
            && let Some(joined) = Joined::of(self.op, &query, &key)?
        {
            let by_one = || joined.softmax(self.scale, self.options.quiet);
            let by_two = || self.separate_weights(query.clone(), key.clone());
            if joined.is_faster(Template::attention_softmax, by_one, by_two)? {
                return reshape(by_one()?, &dims);
            }
        }
        self.separate_weights(query, key)
    }

    /// The weights by a library product and a kernel over its rows; the heads of a group of the query
    /// are rows.
    fn separate_weights(&self, query: RocmTensor, key: RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let dims = [batch, heads, queries, keys];
        let request = Request::new(self.op, self.scale);
        let scores = reshape(product(request, operand(query)?, transpose(operand(key)?)?)?, &dims)?;
        if scores.is_empty() {
            return Ok(scores);
        }
        if self.is_plain() && !self.options.quiet {
            self.by_rows(Template::masked_softmax_rows, &[&scores], &scores)?;
            return Ok(scores);
        }
        let mut scalars = vec![
            self.mask_size(),
            self.compute(self.options.fill),
            self.window.arg(),
            Arg::U32(self.options.quiet as u32),
        ];
        scalars.extend(self.dropout());
        let kernel = Template::attention_weights.ty(self.ty);
        let device = scores.hip_device();
        let grid = device.grid_kept_rows(batch * heads * queries, keys);
        let dims = [self.shape(), strides(self.mask.as_ref())];
        views(self.op, device, kernel, grid, &dims, &[Some(&scores), self.mask.as_ref()], &scalars, &scores)?;
        Ok(scores)
    }

    /// A kernel over the rows of tensors shaped like the scores.
    fn by_rows(&self, kernel: Template, inputs: &[&RocmTensor], out: &RocmTensor) -> hip::Result<()> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let (device, lines) = (out.hip_device(), batch * heads * queries);
        let dims = [Arg::U64(lines as u64), Arg::U64(keys as u64)];
        let kernel = kernel.ty(self.ty);
        rows(self.op, device, kernel, device.grid_kept_rows(lines, keys), &dims, inputs, &[], &[out])
    }

    /// The gradient with respect to the scores, written over `grad`, the weights' gradient.
    pub(super) fn scores_backward(&self, weights: &RocmTensor, grad: RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let mut grad = packed(grad)?;
        let out = match grad.can_overwrite() {
            true => grad.clone(),
            false => grad.empty_like()?,
        };
        if out.is_empty() {
            return Ok(out);
        }
        if self.is_plain() {
            self.by_rows(Template::softmax_rows_backward, &[weights, &grad], &out)?;
            return Ok(out);
        }
        let device = grad.hip_device();
        let mut scalars = vec![self.mask_size()];
        scalars.extend(self.dropout());
        let kernel = Template::attention_weights_backward.ty(self.ty);
        let grid = device.grid_kept_rows(batch * heads * queries, keys);
        let dims = [self.shape(), strides(self.mask.as_ref())];
        let inputs = [Some(weights), Some(&grad), self.mask.as_ref()];
        views(self.op, device, kernel, grid, &dims, &inputs, &scalars, &out)?;
        Ok(out)
    }

    /// The gradients with respect to queries and keys from the scores' gradient, written to the
    /// given tensors.
    pub(super) fn products(
        &self,
        [query, key]: [RocmTensor; 2],
        scores: RocmTensor,
        [by_query, by_key]: [Option<&RocmTensor>; 2],
    ) -> hip::Result<()> {
        let request = Request::gradient(self.op, self.scale);
        if let Some(place) = by_query {
            self.product_of_rows(request, scores.clone(), operand(key)?, place)?;
        }
        if let Some(place) = by_key {
            product_to(request, transpose(self.rows(scores)?)?, self.rows(query)?, place)?;
        }
        Ok(())
    }
}
