//! Sums along several axes.

use crate::harness::*;

#[test]
fn sum_dims() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in SHAPES {
            for subset in 0..1usize << shape.len() {
                let mut axes: Vec<usize> = (0..shape.len()).filter(|axis| subset >> axis & 1 == 1).collect();
                if random.below(2) == 0 {
                    axes.reverse();
                }
                let x = float(&random, shape, dtype, view(&random), -2.0, 2.0);
                let what = format!("float_sum_dims {dtype:?} {shape:?} {axes:?}");
                let found = read_float::<R>(R::float_sum_dims(x.float::<R>(&device()), &axes));
                let mut kept = shape.to_vec();
                let mut count = 1;
                for &axis in &axes {
                    count *= std::mem::replace(&mut kept[axis], 1);
                }
                assert_eq!((found.shape().as_slice(), found.dtype()), (kept.as_slice(), dtype), "{what}");
                let (mut sums, mut magnitudes) =
                    (vec![0.0; kept.iter().product()], vec![0.0; kept.iter().product()]);
                for (i, value) in exact(&x).into_iter().enumerate() {
                    let (mut rest, mut at, mut stride) = (i, 0, 1);
                    for (size, kept) in shape.iter().zip(&kept).rev() {
                        at += rest % size % kept * stride;
                        stride *= kept;
                        rest /= size;
                    }
                    sums[at] += value;
                    magnitudes[at] += value.abs();
                }
                // `n u` of the terms' magnitudes (Higham 2002, section 3.1), and one rounding of
                // the sum.
                let limits: Vec<f64> = sums
                    .iter()
                    .zip(&magnitudes)
                    .map(|(sum, magnitude)| {
                        count as f64 * unit(wide(dtype)) * magnitude
                            + 1.001 * rounding(dtype) * f64::abs(*sum)
                    })
                    .collect();
                assert_within(&what, &found, &sums, &limits);
            }
        }
    }
}

/// Burn's default rounds after each axis. In f16, 2048 ones plus 2048 more ones would give 2048.
#[test]
fn sums_of_f16_are_rounded_once() {
    let ones = Input::new(&[64, 3, 65], DType::F16, View::Contiguous, || 1.0);
    let sums = read_float::<R>(R::float_sum_dims(ones.float::<R>(&device()), &[0, 2]));
    assert_eq!(values(&sums), [4160.0; 3]);
    let error = refused("an axis too many", || R::float_sum_dims(ones.float::<R>(&device()), &[1, 3]));
    assert!(matches!(error, RocmError::Invalid { op: "float_sum_dims", .. }), "{error:?}");
}
