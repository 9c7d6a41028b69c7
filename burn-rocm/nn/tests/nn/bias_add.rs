//! `bias_add`, which adds a sub-layer's product, its bias and the sub-layer's input, in every float
//! type.

use burn_rocm::fused::{bias_add, bias_add_backward};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::{FLOATS, FloatTensorOps, R, assert_close, read_float};

use crate::bounded::{assert_narrow, bounded};
use crate::support::*;

fn on_device(data: &TensorData, dtype: DType) -> RocmTensor {
    R::float_from_data(data.clone().convert_dtype(dtype), &Default::default())
}

/// Rows that are shorter and longer than a thread's share, and rows that begin inside a share.
#[test]
fn a_sum_with_its_bias() {
    let random = Random::new();
    let mut narrow = 0;
    for shape in [vec![1], vec![3, 5], vec![7, 2, 9], vec![4, 64], vec![33, 1], vec![300, 11]] {
        for dtype in FLOATS {
            let features = *shape.last().unwrap();
            let data = [uniform(&random, &shape), uniform(&random, &shape), uniform(&random, &[features])];
            let [residual, x, bias] = data.each_ref().map(|data| on_device(data, dtype));
            let values = data.map(|data| data.convert_dtype(dtype).iter::<f64>().collect::<Vec<_>>());
            let [r, p, b] = &values;
            let all = |of: fn(f64) -> f64| -> TensorData {
                let sums = (0..p.len()).map(|at| of(r[at]) + of(p[at]) + of(b[at % features])).collect();
                TensorData::new::<f64, _>(sums, shape.clone())
            };
            let (reference, magnitude) = (all(|x| x), all(f64::abs));
            let limits = limits::sums(&reference, &magnitude, Terms::of(3, dtype));
            let expected = [[reference, limits]];
            let mut check = |what: &str, out: RocmTensor| {
                let found = [read_float::<R>(out)];
                assert_limits(&what, dtype, &found, &expected);
                narrow += assert_narrow(what, &found, &bounded(&expected));
            };
            let what = format!("{shape:?} {dtype:?}");
            let read = |tensor: &RocmTensor| read_float::<R>(tensor.clone());
            let before = [&residual, &x, &bias].map(read);
            // First other code holds both tensors; then only the residual; then only the product.
            let out = bias_add(residual.clone(), x.clone(), bias.clone()).unwrap();
            check(&what, out);
            assert_close(&what, &[&residual, &x, &bias].map(read), &before, Tolerance::EXACT);
            let fresh = |data: &TensorData| on_device(data, dtype);
            let out = bias_add(residual.clone(), fresh(&before[1]), bias.clone()).unwrap();
            check(&what, out);
            let out = bias_add(fresh(&before[0]), x.clone(), bias.clone()).unwrap();
            check(&what, out);
            assert_close(&what, &[&residual, &x, &bias].map(read), &before, Tolerance::EXACT);
            // The bias' gradient, from a gradient of the output's shape.
            let [mut columns, mut sums] = [(); 2].map(|()| vec![0.0; features]);
            for (at, value) in p.iter().enumerate() {
                columns[at % features] += value;
                sums[at % features] += value.abs();
            }
            let [reference, magnitude] = [columns, sums].map(|values| TensorData::new(values, [features]));
            let limits = limits::sums(&reference, &magnitude, Terms::of(p.len() / features, dtype));
            let found = read_float::<R>(bias_add_backward(x).unwrap());
            assert_eq!(found.dtype, dtype, "{what}");
            limits::assert_within(&what, &found, &reference, &limits);
        }
    }
    assert!(narrow > 0, "no result shows that the limits are narrow");
    let none: RocmTensor = on_device(&uniform(&random, &[0, 4]), DType::F32);
    assert_eq!(
        bias_add(none.clone(), none, on_device(&uniform(&random, &[4]), DType::F32)).unwrap().dims(),
        [0, 4]
    );
}

#[test]
fn a_sum_of_misfits_is_refused() {
    let random = Random::new();
    let of = |shape: &[usize], dtype| on_device(&uniform(&random, shape), dtype);
    for (residual, x, bias) in [
        (of(&[2, 3], DType::F32), of(&[3, 3], DType::F32), of(&[3], DType::F32)),
        (of(&[2, 3], DType::F32), of(&[2, 3], DType::F32), of(&[2], DType::F32)),
        (of(&[2, 3], DType::F32), of(&[2, 3], DType::F32), of(&[1, 3], DType::F32)),
        (of(&[2, 3], DType::F16), of(&[2, 3], DType::F32), of(&[3], DType::F32)),
        (of(&[2, 3], DType::F32), of(&[2, 3], DType::F32), of(&[3], DType::F16)),
    ] {
        let refused = bias_add(residual, x, bias);
        assert!(matches!(refused, Err(RocmError::Invalid { .. })), "{refused:?}");
    }
}
