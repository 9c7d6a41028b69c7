//! Layouts and indexing, of floats, integers and bools.

use crate::draw::{ANY, Draw, NUMBERS, Range, SUMMED, Side};
use crate::run::{Bound::*, table};
use crate::sums::{added, multiplied};
use burn_backend::tensor::{IndexingUpdateOp, IntTensor};
use burn_rocm_tests::*;

const MOST: usize = 3000;

/// A random range of every axis: some with steps, some backwards, some empty.
fn slices(d: &Draw, shape: &[usize]) -> Vec<Slice> {
    let along = |(axis, &n): (usize, &usize)| {
        let knob = d.knobs[(2 + axis) % 12];
        let (start, end) = (knob % (n + 1), knob / 7 % (n + 1));
        let step = [1, 1, 1, 2, 3, -1, -2][knob / 100 % 7];
        Slice::new(start.min(end) as isize, Some(start.max(end) as isize), step)
    };
    // Sometimes fewer slices than axes. The remaining axes stay whole.
    let named = if d.knob(1, 4) == 1 { shape.len().div_ceil(2) } else { shape.len() };
    shape.iter().enumerate().take(named).map(along).collect()
}

/// The shape of the sliced tensor.
fn sliced(shape: &[usize], slices: &[Slice]) -> Vec<usize> {
    let mut out = shape.to_vec();
    for (n, slice) in out.iter_mut().zip(slices) {
        let reach = slice.end.unwrap_or_default() - slice.start;
        *n = (reach.max(0) as usize).div_ceil(slice.step.unsigned_abs());
    }
    out
}

/// The same elements in another shape: an axis split, two merged, or all in one.
fn reshaped(d: &Draw, shape: &[usize]) -> Vec<usize> {
    let mut to = shape.to_vec();
    let axis = d.knob(2, shape.len());
    match d.knob(1, 4) {
        0 => return vec![shape.iter().product()],
        1 if axis + 1 < shape.len() => {
            to[axis] *= to.remove(axis + 1);
        }
        2 if to[axis].is_multiple_of(2) && shape.len() < 6 => {
            to[axis] /= 2;
            to.insert(axis + 1, 2);
        }
        _ => to.rotate_left(1),
    }
    to
}

/// Every axis once, in a random order.
fn axes(d: &Draw, rank: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.sort_by_key(|&axis| d.knobs[axis]);
    axes
}

/// The case's shape with dim `dim` replaced.
fn with(shape: &[usize], dim: usize, n: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = n;
    shape
}

/// An axis to index: one with elements if there is one.
fn indexed(d: &Draw) -> (Vec<usize>, usize) {
    let mut shape = d.shape(MOST);
    let dim = d.axis(&shape);
    shape[dim] = shape[dim].max(1);
    (shape, dim)
}

/// The length of `unfold`'s windows, at times one more than their axis has.
fn window(d: &Draw, shape: &[usize]) -> usize {
    1 + d.knob(1, shape[d.axis(shape)] + 1)
}

/// `body` with `make` for a tensor of the case's kind.
macro_rules! each_kind {
    ($c:ident, $B:ident, |$make:ident, $op:ident| float $float:expr, int $int:expr, bool $bool:expr) => {
        match $c.d.knob(9, 3) {
            0 => vec![read_float::<$B>({
                #[allow(unused)]
                let $make = |k: usize, shape: &[usize]| $c.float(k, shape, ANY);
                $float
            })],
            1 => vec![read_int::<$B>({
                #[allow(unused)]
                let $make = |k: usize, shape: &[usize]| $c.int(k, shape, 3);
                $int
            })],
            _ => vec![read_bool::<$B>({
                #[allow(unused)]
                let $make = |k: usize, shape: &[usize]| $c.bool(k, shape);
                $bool
            })],
        }
    };
}

macro_rules! of_one {
    ($c:ident, $B:ident, $float:ident, $int:ident, $bool:ident, |$shape:ident| ($($argument:expr),*)) => {{
        let $shape = $c.d.shape(MOST);
        each_kind!($c, $B, |make, op|
            float $B::$float(make(0, &$shape), $($argument),*),
            int $B::$int(make(0, &$shape), $($argument),*),
            bool $B::$bool(make(0, &$shape), $($argument),*))
    }};
}

/// Tuples of indices into a shape. If `once`, no tuple occurs twice.
struct Places {
    shape: Vec<usize>,
    /// The shape of the tuples, with their length last.
    tuples: Vec<usize>,
    /// The shape of the elements at the tuples.
    taken: Vec<usize>,
    data: TensorData,
}

impl Places {
    fn of(d: &Draw, once: bool) -> Self {
        let mut shape = d.shape(MOST / 4);
        let length = 1 + d.knob(0, shape.len());
        shape[..length].iter_mut().for_each(|n| *n = (*n).max(1));
        let slices: usize = shape[..length].iter().product();
        let count = if once { d.knob(1, slices.min(40) + 1) } else { d.knob(1, 40) };
        let batch = if count.is_multiple_of(3) { vec![3, count / 3] } else { vec![count] };
        let random = Random::from_seed(d.seed ^ 0x91ace);
        let mut all: Vec<usize> = (0..slices).collect();
        let mut values = vec![0i64; count * length];
        for tuple in values.chunks_mut(length) {
            let n = random.below(all.len());
            let mut place = if once { all.swap_remove(n) } else { all[n] };
            for axis in (0..length).rev() {
                tuple[axis] = (place % shape[axis]) as i64;
                place /= shape[axis];
            }
        }
        let tuples = [&batch[..], &[length]].concat();
        let taken = [&batch[..], &shape[length..]].concat();
        let dtype = [DType::I64, DType::I32][d.knobs[10] % 2];
        let data = TensorData::new(values, Shape::from(tuples.clone())).convert_dtype(dtype);
        Self { shape, tuples, taken, data }
    }

    fn tensor<B: Backend>(&self, c: &Side<'_, B>) -> IntTensor<B> {
        debug_assert_eq!(self.data.shape.as_slice(), self.tuples);
        B::int_from_data(self.data.clone(), &c.device)
    }
}

table! { |c, B|
    gather_nd, Exact => {
        let p = Places::of(c.d, false);
        match c.d.knob(9, 2) {
            0 => vec![read_float::<B>(B::float_gather_nd(c.float(0, &p.shape, ANY), p.tensor(c)))],
            _ => vec![read_int::<B>(B::int_gather_nd(c.int(0, &p.shape, 3), p.tensor(c)))],
        }
    };
    // Which of several assignments to an index is kept is not defined, so each index occurs once.
    scatter_nd_assign, Exact => {
        let p = Places::of(c.d, true);
        let update = IndexingUpdateOp::Assign;
        match c.d.knob(9, 2) {
            0 => vec![read_float::<B>(B::float_scatter_nd(
                c.float(0, &p.shape, ANY), p.tensor(c), c.float(2, &p.taken, ANY), update))],
            _ => vec![read_int::<B>(B::int_scatter_nd(
                c.int(0, &p.shape, 3), p.tensor(c), c.int(2, &p.taken, 3), update))],
        }
    };
    // Without NaN, which the oracle's comparisons drop or keep depending on the side.
    scatter_nd_extreme, Exact => {
        let p = Places::of(c.d, false);
        let update = [IndexingUpdateOp::Min, IndexingUpdateOp::Max][c.d.knob(8, 2)];
        match c.d.knob(9, 2) {
            0 => vec![read_float::<B>(B::float_scatter_nd(
                c.float(0, &p.shape, NUMBERS), p.tensor(c), c.float(2, &p.taken, NUMBERS), update))],
            _ => vec![read_int::<B>(B::int_scatter_nd(
                c.int(0, &p.shape, 3), p.tensor(c), c.int(2, &p.taken, 3), update))],
        }
    };
    float_scatter_nd_add, Within => {
        let p = Places::of(c.d, false);
        let (x, y) = (c.float(0, &p.shape, SUMMED), c.float(2, &p.taken, SUMMED));
        added(c, [&x, &y], |[x, y]| B::float_scatter_nd(x, p.tensor(c), y, IndexingUpdateOp::Add))
    };
    float_scatter_nd_mul, Within => {
        let p = Places::of(c.d, false);
        let range = Range { low: -1.0, high: 1.0, wildest: 1, nan: true };
        let (x, y) = (c.float(0, &p.shape, range), c.float(2, &p.taken, range));
        // Up to 40 factors for each index.
        multiplied(c, 41, [&x, &y], |[x, y]| B::float_scatter_nd(x, p.tensor(c), y, IndexingUpdateOp::Mul))
    };
    int_scatter_nd, Exact => {
        let p = Places::of(c.d, false);
        let update = [IndexingUpdateOp::Add, IndexingUpdateOp::Mul][c.d.knob(8, 2)];
        vec![read_int::<B>(B::int_scatter_nd(c.int(0, &p.shape, 3), p.tensor(c), c.int(2, &p.taken, 3), update))]
    };
    into_data, Exact => {
        let shape = c.d.shape(MOST);
        each_kind!(c, B, |make, op| float make(0, &shape), int make(0, &shape), bool make(0, &shape))
    };
    swap_dims, Exact => of_one!(c, B, float_swap_dims, int_swap_dims, bool_swap_dims, |shape|
        (c.d.knob(1, shape.len()), c.d.knob(2, shape.len())));
    permute, Exact => of_one!(c, B, float_permute, int_permute, bool_permute, |shape| (&axes(c.d, shape.len())));
    flip, Exact => of_one!(c, B, float_flip, int_flip, bool_flip, |shape|
        (&axes(c.d, shape.len())[..c.d.knob(8, shape.len() + 1)]));
    reshape, Exact => of_one!(c, B, float_reshape, int_reshape, bool_reshape, |shape|
        (Shape::from(reshaped(c.d, &shape))));
    expand, Exact => {
        let shape = c.d.shape(MOST);
        let from = c.d.narrowed(1, &shape);
        let to = || Shape::from(shape.clone());
        each_kind!(c, B, |make, op|
            float B::float_expand(make(0, &from), to()),
            int B::int_expand(make(0, &from), to()),
            bool B::bool_expand(make(0, &from), to()))
    };
    slice, Exact => of_one!(c, B, float_slice, int_slice, bool_slice, |shape| (&slices(c.d, &shape)));
    slice_assign, Exact => {
        let shape = c.d.shape(MOST);
        let slices = slices(c.d, &shape);
        let part = sliced(&shape, &slices);
        each_kind!(c, B, |make, op|
            float B::float_slice_assign(make(0, &shape), &slices, make(1, &part)),
            int B::int_slice_assign(make(0, &shape), &slices, make(1, &part)),
            bool B::bool_slice_assign(make(0, &shape), &slices, make(1, &part)))
    };
    // The oracle refuses windows longer than their axis, where Burn asks for an axis of no windows.
    unfold, Exact, unless |d| window(d, &d.shape(MOST)) > d.shape(MOST)[d.axis(&d.shape(MOST))] =>
        of_one!(c, B, float_unfold, int_unfold, bool_unfold, |shape|
            (c.d.axis(&shape), window(c.d, &shape), 1 + c.d.knob(2, 3)));
    repeat_dim, Exact => of_one!(c, B, float_repeat_dim, int_repeat_dim, bool_repeat_dim, |shape|
        (c.d.axis(&shape), c.d.knob(1, 4)));
    cat, Exact => {
        let shape = c.d.shape(MOST / 3);
        let dim = c.d.axis(&shape);
        let parts: Vec<Vec<usize>> = (0..1 + c.d.knob(1, 4)).map(|k| with(&shape, dim, c.d.knob(2 + k, 6))).collect();
        each_kind!(c, B, |make, op|
            float B::float_cat(parts.iter().enumerate().map(|(k, part)| make(k, part)).collect(), dim),
            int B::int_cat(parts.iter().enumerate().map(|(k, part)| make(k, part)).collect(), dim),
            bool B::bool_cat(parts.iter().enumerate().map(|(k, part)| make(k, part)).collect(), dim))
    };
    mask_where, Exact => {
        let shape = c.d.shape(MOST);
        let mask = || c.bool(2, &shape);
        each_kind!(c, B, |make, op|
            float B::float_mask_where(make(0, &shape), mask(), make(1, &shape)),
            int B::int_mask_where(make(0, &shape), mask(), make(1, &shape)),
            bool B::bool_mask_where(make(0, &shape), mask(), make(1, &shape)))
    };
    mask_where_broadcast, Exact => {
        let shape = c.d.shape(MOST);
        let [x, y, m] = [0, 1, 2].map(|k| c.d.narrowed(k, &shape));
        let mask = || c.bool(2, &m);
        each_kind!(c, B, |make, op|
            float B::float_mask_where(make(0, &x), mask(), make(1, &y)),
            int B::int_mask_where(make(0, &x), mask(), make(1, &y)),
            bool B::bool_mask_where(make(0, &x), mask(), make(1, &y)))
    };
    mask_fill, Exact => {
        let shape = c.d.shape(MOST);
        let mask = || c.bool(2, &c.d.narrowed(2, &shape));
        each_kind!(c, B, |make, op|
            float B::float_mask_fill(make(0, &shape), mask(), c.d.scalar(1)),
            int B::int_mask_fill(make(0, &shape), mask(), c.d.int_scalar(1)),
            bool B::bool_mask_fill(make(0, &shape), mask(), Scalar::Bool(c.d.knob(1, 2) == 1)))
    };
    gather, Exact => {
        let (shape, dim) = indexed(c.d);
        let taken = with(&shape, dim, c.d.knob(1, 9));
        let indices = || c.indices(1, &taken, shape[dim]);
        each_kind!(c, B, |make, op|
            float B::float_gather(dim, make(0, &shape), indices()),
            int B::int_gather(dim, make(0, &shape), indices()),
            bool B::bool_gather(dim, make(0, &shape), indices()))
    };
    select, Exact => {
        let (shape, dim) = indexed(c.d);
        let indices = || c.indices(1, &[c.d.knob(1, 20)], shape[dim]);
        each_kind!(c, B, |make, op|
            float B::float_select(make(0, &shape), dim, indices()),
            int B::int_select(make(0, &shape), dim, indices()),
            bool B::bool_select(make(0, &shape), dim, indices()))
    };
    float_scatter_add, Within => {
        let (shape, dim) = indexed(c.d);
        let put = with(&shape, dim, c.d.knob(1, 9));
        let indices = c.indices(1, &put, shape[dim]);
        let (x, y) = (c.float(0, &shape, SUMMED), c.float(2, &put, SUMMED));
        added(c, [&x, &y], |[x, y]| B::float_scatter_add(dim, x, indices.clone(), y))
    };
    int_scatter_add, Exact => {
        let (shape, dim) = indexed(c.d);
        let put = with(&shape, dim, c.d.knob(1, 9));
        let indices = c.indices(1, &put, shape[dim]);
        vec![read_int::<B>(B::int_scatter_add(dim, c.int(0, &shape, 3), indices, c.int(2, &put, 3)))]
    };
    bool_scatter_or, Exact => {
        let (shape, dim) = indexed(c.d);
        let put = with(&shape, dim, c.d.knob(1, 9));
        let indices = c.indices(1, &put, shape[dim]);
        vec![read_bool::<B>(B::bool_scatter_or(dim, c.bool(0, &shape), indices, c.bool(2, &put)))]
    };
    float_select_add, Within => {
        let (shape, dim) = indexed(c.d);
        let n = c.d.knob(1, 20);
        let indices = c.indices(1, &[n], shape[dim]);
        let (x, y) = (c.float(0, &shape, SUMMED), c.float(2, &with(&shape, dim, n), SUMMED));
        added(c, [&x, &y], |[x, y]| B::float_select_add(x, dim, indices.clone(), y))
    };
    int_select_add, Exact => {
        let (shape, dim) = indexed(c.d);
        let n = c.d.knob(1, 20);
        let indices = c.indices(1, &[n], shape[dim]);
        let value = c.int(2, &with(&shape, dim, n), 3);
        vec![read_int::<B>(B::int_select_add(c.int(0, &shape, 3), dim, indices, value))]
    };
    bool_select_or, Exact => {
        let (shape, dim) = indexed(c.d);
        let n = c.d.knob(1, 20);
        let indices = c.indices(1, &[n], shape[dim]);
        let value = c.bool(2, &with(&shape, dim, n));
        vec![read_bool::<B>(B::bool_select_or(c.bool(0, &shape), dim, indices, value))]
    };
}
