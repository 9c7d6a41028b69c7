use burn::tensor::activation::silu;
use burn_rocm_nn::Silu;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, SHAPES};

use crate::support::*;

/// The output and the input's gradient, through another memory-bound op on either side, so that recomputation has a
/// chain to go back.
macro_rules! silu_of {
    ($B:ident, $data:expr, $dtype:expr, |$x:ident| $silu:expr) => {{
        let leaf = tensor::<$B, 2>($data, $dtype).require_grad();
        let $x = leaf.clone().exp();
        let out = $silu;
        let grads = (out.clone().exp() * out.clone()).sum().backward();
        vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
    }};
}

#[test]
fn silu_and_its_gradient() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in SHAPES.iter().filter(|shape| shape.len() == 2) {
            let data = uniform(&random, shape);
            against_burn!(format!("silu of {shape:?} {dtype:?}"), Tolerance::of(dtype).times(300.0), |B|
                theirs silu_of!(B, &data, dtype, |x| silu(x)),
                ours silu_of!(B, &data, dtype, |x| Silu::new().forward(x))
            );
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
