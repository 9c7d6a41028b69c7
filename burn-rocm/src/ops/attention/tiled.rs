//! The tiled path (`attention.hip`, `attention_backward.hip`, and for plain attention in f32 the kernels
//! of `in_f32`): no scores are stored.

use hip::{Device, Grid, Template};

use super::call::Call;
use super::in_f32::{InF32, InF32Backward, readable, trains};
use super::options::Attended;
use super::{TILE, strides};
use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::ops::launch::{views, views_to_views};
use crate::ops::view::permute;
use crate::tensor::RocmTensor;

impl Call<'_> {
    /// The shape arguments of the tiled kernels: the sizes, and the strides of `operands` and of
    /// the mask.
    fn tile_dims(&self, values: usize, operands: &[Option<&RocmTensor>]) -> Vec<Arg> {
        let shape = self.sequences.shape(self.sizes, values, self.group);
        [shape].into_iter().chain(operands.iter().map(|&t| self.sequences.strides(t))).collect()
    }

    /// A tensor that the tiled kernels write, `[batch, heads, rows, columns]`. In memory it is packed,
    /// `[rows, heads, columns]` for packed sequences.
    fn tiled_out(&self, like: &RocmTensor, [heads, rows, columns]: [usize; 3]) -> hip::Result<RocmTensor> {
        let (device, dtype) = (like.hip_device(), like.dtype_of());
        if self.sequences.are_packed() {
            return permute(RocmTensor::empty(device, [1, rows, heads, columns], dtype)?, &[0, 2, 1, 3]);
        }
        RocmTensor::empty(device, [self.sizes[0], heads, rows, columns], dtype)
    }

    /// The grid of a launch over tiles of rows of these heads.
    fn tiled_grid(&self, device: &Device, heads: usize, rows: usize) -> Grid {
        device.grid_rows(self.sequences.tiles([self.sizes[0], heads, rows], TILE), usize::MAX)
    }

    /// Whether nothing changes the scores but the window. A softcap is only for packed sequences.
    fn is_plain_in_tiles(&self) -> bool {
        let dropout = self.options.dropout.is_some_and(|dropout| dropout.prob > 0.0);
        self.mask.is_none() && !dropout && !self.options.quiet && !self.sequences.are_packed()
    }

    /// Whether the kernels for plain attention in f32 compute this call and its gradients. They then get
    /// copies of operands that they cannot read: a copy costs less than the other tiled kernels do.
    fn trains_in_f32(&self, query: &RocmTensor, values: usize) -> bool {
        let [_, _, queries, _, width] = self.sizes;
        self.is_plain_in_tiles() && trains(query.hip_device(), self.ty, queries, width, values)
    }

    pub(super) fn tiled(&self, [query, key, value]: [&RocmTensor; 3]) -> hip::Result<Attended> {
        let [_, heads, queries, _, _] = self.sizes;
        let (device, values) = (query.hip_device(), value.dims()[3]);
        let out = self.tiled_out(query, [heads, queries, values])?;
        let sums = self.sums(query)?;
        let read = if self.trains_in_f32(query, values) {
            Some([readable(query)?, readable(key)?, readable(value)?])
        } else {
            None
        };
        let read = read.as_ref().map_or([query, key, value], |read| read.each_ref());
        if let Some(kernel) = InF32::of(read)?.filter(|_| self.is_plain_in_tiles()) {
            let shape = self.sequences.shape(self.sizes, values, self.group);
            kernel.launch(self.op, shape, (self.scale, self.window), &out, Some(&sums))?;
            return Ok(Attended { out: out.clone(), kept: vec![out, sums] });
        }
        let operands = [Some(query), Some(key), Some(value), self.mask.as_ref(), None];
        let inputs: Vec<Option<&RocmTensor>> =
            operands.into_iter().chain([self.sequences.offsets()]).collect();
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(self.softcap.unwrap_or(0.0)),
            self.window.arg(),
            self.mask_size(),
            self.compute(self.options.fill),
            Arg::U32(self.options.quiet as u32),
        ];
        scalars.extend(self.dropout());
        let grid = (self.tiled_grid(device, heads, queries), 0);
        let kernel = Template::attention.ty(self.ty).int(2 + i32::from(self.sequences.are_packed()));
        let dims = self.tile_dims(values, &operands);
        views_to_views(self.op, device, kernel, grid, &dims, &inputs, &scalars, &[Some(&out), Some(&sums)])?;
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
        let dims: Vec<Arg> = dims.into_iter().chain([strides(Some(out)), strides(Some(grad))]).collect();
        let kernel = Template::attention_dots.ty(self.ty);
        let grid = device.grid_rows(pairs * queries, values);
        views(self.op, device, kernel, grid, &dims, &[Some(out), Some(grad)], &[], &dots)?;
        if self.trains_in_f32(query, values) {
            let read = [readable(query)?, readable(key)?, readable(value)?, readable(grad)?];
            if let Some(kernel) = InF32Backward::of(read.each_ref())? {
                let shared = self.key_heads();
                let by_query =
                    wanted[0].then(|| self.tiled_out(query, [heads, queries, width])).transpose()?;
                let by_key = self.tiled_out(query, [shared, keys, width])?;
                let by_value = self.tiled_out(query, [shared, keys, values])?;
                let shape = self.sequences.shape(self.sizes, values, self.group);
                let to = [by_query.as_ref(), Some(&by_key), Some(&by_value)];
                kernel.launch(self.op, shape, (self.scale, self.window), [sums, &dots], to)?;
                return Ok([by_query, wanted[1].then_some(by_key), wanted[2].then_some(by_value)]);
            }
        }
        let operands = [Some(query), Some(key), Some(value), Some(grad), self.mask.as_ref()];
        let dims = self.tile_dims(values, &operands);
        let inputs: Vec<Option<&RocmTensor>> =
            operands.into_iter().chain([Some(sums), Some(&dots), self.sequences.offsets()]).collect();
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(self.options.fill),
            self.window.arg(),
            self.mask_size(),
        ];
        scalars.extend(self.dropout());
        let launch = |template: Template, heads: usize, length: usize, outputs: &[Option<&RocmTensor>]| {
            let grid = (self.tiled_grid(device, heads, length), 0);
            let kernel = template.ty(self.ty).int(self.sequences.are_packed().into());
            views_to_views(self.op, device, kernel, grid, &dims, &inputs, &scalars, outputs)
        };
        let by_query = wanted[0].then(|| self.tiled_out(query, [heads, queries, width])).transpose()?;
        if let Some(by_query) = &by_query {
            launch(Template::attention_backward_queries, heads, queries, &[Some(by_query)])?;
        }
        let (mut by_key, mut by_value) = (None, None);
        if wanted[1] || wanted[2] {
            let shared = self.key_heads();
            let k = self.tiled_out(query, [shared, keys, width])?;
            let v = self.tiled_out(query, [shared, keys, values])?;
            launch(Template::attention_backward_keys, shared, keys, &[Some(&k), Some(&v)])?;
            by_key = wanted[1].then_some(k);
            by_value = wanted[2].then_some(v);
        }
        Ok([by_query, by_key, by_value])
    }
}
