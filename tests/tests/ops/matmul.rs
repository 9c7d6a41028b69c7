//! Matrix products of transposed, broadcast, strided, thin and empty operands.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

#[test]
fn float_matmul() {
    let random = Random::new();
    let cases: &[(&[usize], &[usize])] = &[
        (&[1, 1], &[1, 1]),
        (&[2, 3], &[3, 4]),
        (&[17, 33], &[33, 65]),
        (&[1, 64], &[64, 32]),
        (&[64, 32], &[32, 1]),
        (&[5, 1], &[1, 7]),
        (&[128, 100], &[100, 96]),
        (&[3, 4, 5], &[3, 5, 6]),
        (&[3, 4, 5], &[1, 5, 6]),
        (&[1, 4, 5], &[3, 5, 6]),
        (&[2, 3, 4, 5], &[2, 3, 5, 4]),
        (&[2, 1, 4, 5], &[1, 3, 5, 4]),
        (&[2, 3, 4, 5], &[2, 1, 5, 4]),
        (&[0, 3], &[3, 4]),
        (&[2, 0], &[0, 4]),
        (&[0, 3, 4], &[0, 4, 2]),
        (&[1, 300], &[300, 1]),
    ];
    for dtype in FLOATS {
        for &(left, right) in cases {
            for a_view in View::ALL {
                for b_view in View::ALL {
                    let a = float(&random, left, dtype, a_view, -1.0, 1.0);
                    let b = float(&random, right, dtype, b_view, -1.0, 1.0);
                    let what = format!("matmul {dtype:?} {left:?} {a_view:?} by {right:?} {b_view:?}");
                    let terms = Terms::of(left[left.len() - 1], dtype);
                    sums!(what, terms, |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
                }
            }
        }
    }
}

/// Operands with the last two dims transposed, as in backward passes.
#[test]
fn transposed_operands() {
    let random = Random::new();
    for dtype in FLOATS {
        for batch in [vec![], vec![4], vec![2, 3]] {
            let with = |m: usize, n: usize| [batch.clone(), vec![m, n]].concat();
            let (a, b) = (with(9, 7), with(5, 9));
            let a = float(&random, &a, dtype, View::Contiguous, -1.0, 1.0);
            let b = float(&random, &b, dtype, View::Contiguous, -1.0, 1.0);
            let what = format!("transposed matmul {dtype:?} batch {batch:?}");
            sums!(what, Terms::of(9, dtype), |B, device, [a = &a, b = &b]| {
                B::float_matmul(B::float_transpose(a), B::float_transpose(b))
            });
        }
    }
}

/// The gradient of a weight that a batch shares: a product for each matrix, and their sum. Burn
/// 0.22 computes it this way. The backend turns both into one product.
#[test]
fn sums_of_batched_products() {
    let random = Random::new();
    for dtype in FLOATS {
        for (batches, summed) in
            [(vec![4], 0), (vec![1, 3, 1], 1), (vec![2, 3], 0), (vec![2, 3], 1), (vec![5], 1)]
        {
            let with = |rows: usize, columns: usize| [batches.clone(), vec![rows, columns]].concat();
            let (left, right) = (with(9, 7), with(9, 5));
            for view in View::ALL {
                let a = float(&random, &left, dtype, View::Contiguous, -1.0, 1.0);
                let b = float(&random, &right, dtype, view, -1.0, 1.0);
                let what = format!("the sum over axis {summed} of {batches:?} products, {dtype:?} {view:?}");
                // Unless both are one product, each matrix is rounded.
                let count = 9 * left[summed].max(7);
                let terms = Terms { roundings: 1, ..Terms::of(count, dtype) };
                sums!(what, terms, |B, device, [a = &a, b = &b]| {
                    B::float_sum_dim(B::float_matmul(B::float_transpose(a), b), summed)
                });
            }
        }
    }
}

#[test]
fn a_sum_of_batched_products_is_one_product() {
    let random = Random::new();
    let device = Default::default();
    let of =
        |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (a, b) = (of(&[4, 9, 7]), of(&[4, 9, 5]));
    let product = || R::float_matmul(R::float_transpose(a.clone()), b.clone());
    let (sum, counts) = burn_rocm::trace::counting(|| R::float_sum_dim(product(), 0));
    assert_eq!((sum.dims(), counts.launches()), (&[1, 7, 5][..], 1));
    // Other sums, other views of the product, and a product with another holder.
    type Primitive = burn_backend::tensor::FloatTensor<R>;
    type Other = fn(Primitive) -> Primitive;
    let others: [(Other, &[usize]); 4] = [
        (|product| R::float_sum_dim(product, 1), &[4, 1, 5]),
        (|product| R::float_sum_dim(R::float_slice(product, &[(0..2).into()]), 0), &[1, 7, 5]),
        (|product| R::float_sum_dim(R::float_swap_dims(product, 1, 2), 0), &[1, 5, 7]),
        (|product| R::float_sum_dim(R::float_add(product.clone(), product), 0), &[1, 7, 5]),
    ];
    for (number, (other, dims)) in others.into_iter().enumerate() {
        let (sum, counts) = burn_rocm::trace::counting(|| other(product()));
        assert_eq!(sum.dims(), dims);
        assert!(counts.launches() >= 2, "{number}: {counts:?}");
    }
}

/// The operands are overwritten after a product was put off and before its first use.
#[test]
fn a_product_that_waits_sees_the_operands_of_its_call() {
    let random = Random::new();
    let device = Default::default();
    let [a, b] =
        [[4, 9, 7], [4, 9, 5]].map(|shape| float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0));
    // Multiplying by a power of two is exact, and so is its effect on the product.
    let doubled = |x| R::float_mul_scalar(x, 2f32.into());
    let written = |y: burn_backend::tensor::FloatTensor<R>, value| {
        R::float_slice_assign(y, &[(0..4).into(), (0..9).into(), (0..5).into()], value)
    };
    for first in 0..2 {
        let (x, y) = (a.float::<R>(&device), b.float::<R>(&device));
        let twice = doubled(b.float::<R>(&device));
        let early = R::float_matmul(R::float_transpose(x.clone()), y.clone());
        let (x, y) = match first {
            0 => (doubled(x), y),
            _ => (x, written(y, twice)),
        };
        let late = R::float_matmul(R::float_transpose(x), y);
        assert_eq!(read_float::<R>(late), read_float::<R>(doubled(early)), "operand {first} first");
    }
}

#[test]
fn int_matmul() {
    let random = Random::new();
    for dtype in INTS {
        for (left, right) in
            [(vec![3, 4], vec![4, 5]), (vec![2, 17, 9], vec![2, 9, 6]), (vec![1, 1], vec![1, 1])]
        {
            let a = int(&random, &left, dtype, View::ALL[random.below(5)], 0, 3);
            let b = int(&random, &right, dtype, View::ALL[random.below(5)], 0, 3);
            // The oracle multiplies only the two larger types. The values are small, so i64 serves
            // for all types.
            let ours = R::int_matmul(a.int::<R>(&Default::default()), b.int::<R>(&Default::default()));
            assert_eq!(ours.dtype(), dtype);
            let wide = |input: &Input| O::int_cast(input.int::<O>(&Default::default()), IntDType::I64);
            let theirs = O::int_matmul(wide(&a), wide(&b));
            let what = format!("int_matmul {dtype:?} {left:?} {right:?}");
            assert_close(&what, &[read_index::<R>(ours)], &[read_int::<O>(theirs)], Tolerance::EXACT);
        }
    }
}

#[test]
fn linear_with_its_gradients() {
    let random = Random::new();
    for dtype in FLOATS {
        for lead in [vec![5], vec![2, 7], vec![2, 3, 4]] {
            let x = float(&random, &[lead.clone(), vec![9]].concat(), dtype, View::Contiguous, -1.0, 1.0);
            let g = float(&random, &[lead.clone(), vec![6]].concat(), dtype, View::Contiguous, -1.0, 1.0);
            let w = float(&random, &[9, 6], dtype, View::Contiguous, -1.0, 1.0);
            let b = float(&random, &[6], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!("linear {dtype:?} {lead:?}");
            let biased = Terms { bias: true, ..Terms::of(9, dtype) };
            let rows = Terms::of(lead.iter().product(), dtype);
            sums!(what, biased, |B, device, [x = &x, w = &w, b = &b]| B::linear(x, w, Some(b)));
            sums!(what, Terms::of(6, dtype), |B, device, [w = &w, g = &g]| B::linear_x_backward(w, g));
            sums!(what, rows, |B, device, [x = &x, g = &g]| B::linear_weight_backward(x, g));
            sums!(what, rows, |B, device, [g = &g]| B::linear_bias_backward(g));
        }
    }
}
