use burn_rocm_nn::Silu;
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, SHAPES};

use crate::support::*;

/// Compares with the formula in f64. Another memory-bound op, which is exact, comes before and
/// after, so that recomputation has to go back through a chain.
#[test]
fn silu_and_its_gradient() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in SHAPES.iter().filter(|shape| shape.len() == 2) {
            let [data, grad] = [(); 2].map(|()| uniform(&random, shape).convert_dtype(dtype));
            // The output, the gradient and the gradient's magnitude.
            let mut all = [(); 3].map(|()| Vec::new());
            for (x, g) in data.iter::<f64>().map(|x| -x).zip(grad.iter::<f64>()) {
                let s = 1.0 / (1.0 + (-x).exp());
                let rest = x * s * (1.0 - s);
                let values = [x * s, g * (s + rest), g.abs() * (s + rest.abs())];
                all.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
            }
            let [out, by_x, magnitude] = all.map(|values| TensorData::new(values, shape.to_vec()));
            // Each of 16 functions, products and sums rounds in the compute type.
            let limited = |reference: TensorData, magnitude: &TensorData| {
                let limits = limits::sums(&reference, magnitude, Terms::of(16, dtype));
                [reference, limits]
            };
            let of_out = magnitudes(&out);
            let expected = vec![limited(out, &of_out), limited(by_x, &magnitude)];
            within_limits!(format!("silu of {shape:?} {dtype:?}"), dtype, expected, |B| {
                let leaf = tensor::<B, 2>(&data, dtype).require_grad();
                let out = Silu::new().forward(leaf.clone().neg());
                let grads = (out.clone().neg() * tensor::<B, 2>(&grad, dtype)).sum().backward();
                vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
            });
        }
    }
}

#[test]
fn the_trace_tells_the_fused_op_from_the_composed_one() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[3, 5]), DType::F32).require_grad();
    let (_, lines) = during(|| Silu::new().forward(x).sum().backward());
    for op in ["nn_silu f32: kernel unary_contiguous<Silu, f32>", "nn_silu_backward f32: kernel binary_"] {
        assert_eq!(lines.iter().filter(|line| line.starts_with(op)).count(), 1, "{op} in {lines:#?}");
    }
}
