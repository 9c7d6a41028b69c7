//! The tiled path (`attention.hip`, `attention_backward.hip`): no scores are stored.

use hip::Template;

use super::call::Call;
use super::options::Attended;
use super::{TILE, shape, strides};
use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::ops::launch::{views, views_to};
use crate::tensor::RocmTensor;

impl Call<'_> {
    /// The shape arguments of the tiled kernels: the sizes, and the strides of `operands` and of
    /// the mask.
    fn tile_dims(&self, values: usize, operands: &[Option<&RocmTensor>]) -> Vec<Arg> {
        let shape = shape(self.sizes, values, self.group);
        [shape].into_iter().chain(operands.iter().map(|&t| strides(t))).collect()
    }

    pub(super) fn tiled(&self, [query, key, value]: [&RocmTensor; 3]) -> hip::Result<Attended> {
        let [batch, heads, queries, _, _] = self.sizes;
        let (device, values) = (query.hip_device(), value.dims()[3]);
        let out = RocmTensor::empty(device, [batch, heads, queries, values], query.dtype_of())?;
        let sums = self.sums(query)?;
        let inputs = [Some(query), Some(key), Some(value), self.mask.as_ref(), None];
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(0.0),
            self.window.arg(),
            self.mask_size(),
            self.compute(self.options.fill),
            Arg::U32(self.options.quiet as u32),
        ];
        scalars.extend(self.dropout());
        let grid = device.grid_rows(batch * heads * queries.div_ceil(TILE), usize::MAX);
        let kernel = Template::attention.ty(self.ty).int(2);
        let dims = self.tile_dims(values, &inputs);
        views_to(self.op, device, kernel, grid, &dims, &inputs, &scalars, &[Some(&out), Some(&sums)])?;
        Ok(Attended { out: out.clone(), kept: vec![out, sums] })
    }

    pub(super) fn tiled_backward(
        &self,
        [query, key, value]: [&RocmTensor; 3],
        [out, sums]: [&RocmTensor; 2],
        grad: &RocmTensor,
        wanted: [bool; 3],
    ) -> hip::Result<[Option<RocmTensor>; 3]> {
        let [batch, heads, queries, keys, width] = self.sizes;
        let (device, values, pairs) = (query.hip_device(), value.dims()[3], batch * heads);
        let dots = RocmTensor::empty(device, [batch, heads, queries], compute_dtype(query.dtype_of()))?;
        let dims = [pairs * queries, heads, queries, values].map(|n| Arg::I64(n as i64));
        let dims: Vec<Arg> = dims.into_iter().chain([strides(Some(grad))]).collect();
        let kernel = Template::attention_dots.ty(self.ty);
        let grid = device.grid_rows(pairs * queries, values);
        views(self.op, device, kernel, grid, &dims, &[Some(out), Some(grad)], &[], &dots)?;
        let operands = [Some(query), Some(key), Some(value), Some(grad), self.mask.as_ref()];
        let dims = self.tile_dims(values, &operands);
        let inputs: Vec<Option<&RocmTensor>> =
            operands.into_iter().chain([Some(sums), Some(&dots)]).collect();
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(self.options.fill),
            self.window.arg(),
            self.mask_size(),
        ];
        scalars.extend(self.dropout());
        let launch = |template: Template, pairs: usize, length: usize, outputs: &[Option<&RocmTensor>]| {
            let grid = device.grid_rows(pairs * length.div_ceil(TILE), usize::MAX);
            let kernel = template.ty(self.ty);
            views_to(self.op, device, kernel, grid, &dims, &inputs, &scalars, outputs)
        };
        let like = |heads, length, features| {
            RocmTensor::empty(device, [batch, heads, length, features], query.dtype_of())
        };
        let by_query = wanted[0].then(|| like(heads, queries, width)).transpose()?;
        if let Some(by_query) = &by_query {
            launch(Template::attention_backward_queries, pairs, queries, &[Some(by_query)])?;
        }
        let (mut by_key, mut by_value) = (None, None);
        if wanted[1] || wanted[2] {
            let shared = self.key_heads();
            let (k, v) = (like(shared, keys, width)?, like(shared, keys, values)?);
            launch(Template::attention_backward_keys, batch * shared, keys, &[Some(&k), Some(&v)])?;
            by_key = wanted[1].then_some(k);
            by_value = wanted[2].then_some(v);
        }
        Ok([by_query, by_key, by_value])
    }
}
