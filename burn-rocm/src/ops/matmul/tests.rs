//! Compares products into views with the definition. All sums are multiples of one half, so they
//! are exact.

use std::hash::{BuildHasher, Hasher};

use burn_backend::TensorData;

use super::super::create::full;
use super::super::transfer::{read, upload};
use super::super::view::{flip, permute, swap_dims};
use super::*;
use crate::RocmDevice;

/// The value of the elements around a view. No sum of these tests is as large.
const AROUND: f32 = 777.0;

/// Draws whole numbers in -4..=4, different ones in each run.
struct Draw(u64);

impl Draw {
    fn new() -> Self {
        Self(std::collections::hash_map::RandomState::new().build_hasher().finish() | 1)
    }

    fn tensor(&mut self, dims: &[usize]) -> (RocmTensor, Vec<f32>) {
        let values: Vec<f32> = (0..dims.iter().product::<usize>())
            .map(|_| {
                self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (self.0 >> 33) as f32 % 9.0 - 4.0
            })
            .collect();
        let data = TensorData::new(values.clone(), dims.to_vec());
        (upload(data, DType::F32, &RocmDevice::default()).expect("an upload"), values)
    }
}

fn values(tensor: RocmTensor) -> Vec<f32> {
    read(tensor).expect("what was computed").iter::<f32>().collect()
}

/// A buffer of these dims filled with [`AROUND`], and a view of it.
fn place(dims: &[usize], view: impl Fn(RocmTensor) -> hip::Result<RocmTensor>) -> [RocmTensor; 2] {
    let device = RocmDevice::default();
    let whole = full(&device, dims.to_vec().into(), AROUND.into(), DType::F32).expect("a buffer");
    let view = view(whole.clone()).expect("a view");
    [whole, view]
}

/// `0.5 * lhs x rhs` of `batch` matrices, with the right side `rhs(batch, row, column)`.
fn expected([batch, m, k, n]: [usize; 4], lhs: &[f32], rhs: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(batch * m * n);
    for (at, (row, column)) in
        (0..batch * m).flat_map(|row| (0..n).map(move |column| (row, column))).enumerate()
    {
        debug_assert_eq!(at, out.len());
        let sum: f32 = (0..k).map(|inner| lhs[row * k + inner] * rhs(row / m, inner, column)).sum();
        out.push(0.5 * sum);
    }
    out
}

/// Tests both ways to write a product: by the library, and by the kernel.
fn both_ways(what: &str, [lhs, rhs]: [&RocmTensor; 2], expected: &[f32], make: impl Fn() -> [RocmTensor; 2]) {
    for kernel in [false, true] {
        let [whole, view] = make();
        if kernel && is_one_batch(&view) {
            let product = Product::new(Request::new("matmul", 0.5), lhs.clone(), rhs.clone(), DType::F32)
                .expect("a product");
            product.by_kernel(&view).expect(what);
        } else {
            product_to(Request::new("matmul", 0.5), lhs.clone(), rhs.clone(), &view).expect(what);
        }
        assert_eq!(values(view), expected, "{what}, kernel {kernel}");
        let outside = values(whole.clone()).into_iter().filter(|&value| value == AROUND).count();
        assert_eq!(outside, whole.len() - expected.len(), "{what}, kernel {kernel}: what lies around");
    }
}

#[test]
fn products_into_views() {
    let mut draw = Draw::new();
    for [b, h, m, k, n] in [[2, 3, 5, 4, 7], [1, 3, 1, 2, 5], [3, 1, 4, 3, 1], [1, 1, 6, 5, 3]] {
        let (lhs, l) = draw.tensor(&[b, h, m, k]);
        let (rhs, r) = draw.tensor(&[b, h, k, n]);
        let expected = expected([b * h, m, k, n], &l, |at, i, j| r[(at * k + i) * n + j]);
        let way = |what: &str, one, make: &dyn Fn() -> [RocmTensor; 2]| {
            if let Some(one) = one {
                assert_eq!(is_one_batch(&make()[1]), one, "{what} {b} {h} {m} {n}");
            }
            both_ways(what, [&lhs, &rhs], &expected, make);
        };
        way("packed", Some(true), &|| place(&[b, h, m, n], Ok));
        way("packed, further on", Some(true), &|| {
            place(&[3, b, h, m, n], |t| reshape(narrow(t, 0, 1, 1)?, &[b, h, m, n]))
        });
        way("rows outermost", Some(true), &|| place(&[m, b, h, n], |t| permute(t, &[1, 2, 0, 3])));
        // The layout of the gradients of queries, keys and values in one buffer.
        way("one of three", Some(true), &|| {
            place(&[m, b, h, 3, n], |t| permute(reshape(narrow(t, 3, 1, 1)?, &[m, b, h, n])?, &[1, 2, 0, 3]))
        });
        way("columns outermost", Some(true), &|| place(&[b, h, n, m], |t| swap_dims(t, 2, 3)));
        let one = b == 1 || h == 1 || m == 1;
        way("heads inside rows", Some(one), &|| place(&[b, m, h, n], |t| swap_dims(t, 1, 2)));
        way("every other column", None, &|| {
            place(&[b, h, m, n, 2], |t| reshape(narrow(t, 4, 1, 1)?, &[b, h, m, n]))
        });
    }
}

/// All batches share a right matrix. They become the rows of one product if the output's layout
/// allows.
#[test]
fn a_shared_matrix_into_views() {
    let mut draw = Draw::new();
    let [b, m, k, n] = [3, 4, 5, 2];
    let ((lhs, l), (rhs, r)) = (draw.tensor(&[b, m, k]), draw.tensor(&[k, n]));
    let rhs = reshape(rhs, &[1, k, n]).expect("a view");
    let expected = expected([b, m, k, n], &l, |_, i, j| r[i * n + j]);
    both_ways("packed", [&lhs, &rhs], &expected, || place(&[b, m, n], Ok));
    both_ways("rows with gaps", [&lhs, &rhs], &expected, || place(&[b, m, 3 * n], |t| narrow(t, 2, n, n)));
    both_ways("rows outermost", [&lhs, &rhs], &expected, || place(&[m, b, n], |t| swap_dims(t, 0, 1)));
}

/// Sums without terms are 0, and operands that do not fit are refused.
#[test]
fn nothing_and_misfits() {
    let mut draw = Draw::new();
    let ((lhs, _), (rhs, _)) = (draw.tensor(&[2, 3, 0]), draw.tensor(&[2, 0, 4]));
    both_ways("no terms", [&lhs, &rhs], &[0.0; 24], || place(&[3, 2, 4], |t| swap_dims(t, 0, 1)));
    let ((lhs, _), (rhs, _)) = (draw.tensor(&[2, 3, 5]), draw.tensor(&[2, 5, 4]));
    let [_, view] = place(&[2, 4, 3], Ok);
    let refused = product_to(Request::new("matmul", 1.0), lhs, rhs, &view);
    assert!(matches!(refused, Err(hip::Error::Invalid { op: "matmul", .. })), "{refused:?}");
}

/// Multiplies the views through the library, checks the product, and returns the counts of launches
/// and calls.
fn asked(what: &str, lhs: RocmTensor, rhs: RocmTensor) -> hip::trace::Counts {
    let (rank, l, r) = (lhs.dims().len(), lhs.dims().to_vec(), rhs.dims().to_vec());
    let [m, k, n] = [l[rank - 2], l[rank - 1], r[rank - 1]];
    let batch: Vec<usize> = l.iter().zip(&r).take(rank - 2).map(|(&a, &b)| a.max(b)).collect();
    let count = batch.iter().product();
    let with = |rows, cols| batch.iter().copied().chain([rows, cols]).collect::<Vec<_>>();
    let a = values(expand(lhs.clone(), &with(m, k)).expect("a view"));
    let b = values(expand(rhs.clone(), &with(k, n)).expect("a view"));
    let (out, counts) = hip::trace::counting(|| product(Request::new("matmul", 0.5), lhs, rhs));
    let expected = expected([count, m, k, n], &a, |at, i, j| b[(at * k + i) * n + j]);
    assert_eq!(values(out.expect(what)), expected, "{what}");
    counts
}

/// `[batch, heads, sequence, features]` in the layout of a linear layer's output.
fn heads(draw: &mut Draw, [batch, heads, sequence, features]: [usize; 4]) -> RocmTensor {
    swap_dims(draw.tensor(&[batch, sequence, heads, features]).0, 1, 2).expect("a view")
}

/// The products of Burn's rotary embedding: all heads and positions share a right side of 2 x 4.
#[test]
fn a_shared_right_side_is_one_tall_product() {
    let mut draw = Draw::new();
    for sizes in [[1, 4, 10, 16], [2, 12, 10, 16], [1, 32, 1, 16], [1, 8, 6, 64]] {
        let [batch, count, sequence, features] = sizes;
        let x =
            reshape(heads(&mut draw, sizes), &[batch * count, sequence, features / 2, 2]).expect("a view");
        let sign = draw.tensor(&[1, 1, 2, 4]).0;
        let counts = asked("rotary embedding", x, sign);
        assert_eq!(counts.library_calls, 1, "{sizes:?}");
        assert!(counts.launches() <= 2, "{sizes:?}: {counts:?}");
    }
}

/// The products of attention over several sequences: the heads are not equally spaced in memory.
#[test]
fn batches_that_no_one_stride_leads_through_are_one_call() {
    let mut draw = Draw::new();
    let [q, k, v, g] = std::array::from_fn(|_| heads(&mut draw, [4, 12, 8, 16]));
    let weights = draw.tensor(&[4, 12, 8, 8]).0;
    let turned = |tensor: &RocmTensor| swap_dims(tensor.clone(), 2, 3).expect("a view");
    let flipped = flip(weights.clone(), &[1]).expect("a view");
    for (what, copies, lhs, rhs) in [
        ("scores", 2, q.clone(), turned(&k)),
        ("context", 1, weights.clone(), v.clone()),
        ("weights' gradient", 2, g.clone(), turned(&v)),
        ("values' gradient", 1, turned(&weights), g),
        ("queries' gradient", 1, weights.clone(), k),
        ("keys' gradient", 1, turned(&weights), q),
        ("a batch backwards", 1, flipped, weights.clone()),
        ("some batches repeated", 1, draw.tensor(&[4, 1, 8, 8]).0, weights),
    ] {
        let counts = asked(what, lhs, rhs);
        assert_eq!((counts.library_calls, counts.launches()), (1, 1 + copies), "{what}: {counts:?}");
    }
}
