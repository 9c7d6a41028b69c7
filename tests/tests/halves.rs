//! f16 on gfx90a, whose matrix instructions flush subnormal values to 0. Gradients use the
//! libraries' alternative implementation.
//!
//! The CPU device reports gfx90a and imitates that chip, so the values show the flags that the
//! libraries got, and the trace shows them too. A process reads `BURN_ROCM_CPU_ARCH` once, so each
//! case has its own process.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_backend::TensorPrimitive;
use burn_rocm::fused::{
    AttentionOptions, AttentionPath, Projections, attention, attention_backward, attention_weights,
    attention_weights_backward, self_attention, self_attention_backward,
};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// A subnormal f16 that bf16 holds exactly: 2^-18.
const TINY: f32 = 1.0 / 262_144.0;

/// A tensor filled with `value`.
fn full(shape: &[usize], value: f32) -> burn_rocm::RocmTensor {
    let shape = Shape::from(shape.to_vec());
    R::float_full(shape, Scalar::from(value), &Default::default(), FloatDType::F16)
}

/// `first` and `-first` along axis `axis` of four.
fn opposite(axis: usize, first: f32) -> burn_rocm::RocmTensor {
    let mut shape = [1; 4];
    shape[axis] = 2;
    let data = TensorData::new(vec![first, -first], shape).convert_dtype(DType::F16);
    R::float_from_data(data, &Default::default())
}

/// The first element of an op's result, and whether its trace names the alternative.
fn run(op: impl FnOnce() -> burn_rocm::RocmTensor) -> (f32, bool) {
    // Read inside, because a batched product may be put off until then.
    let (first, lines) = during(|| read_float::<R>(op()).iter::<f32>().next().unwrap());
    (first, lines.iter().any(|line| line.contains("fp16_alt_impl") || line.contains("FP16_ALT_IMPL")))
}

/// One op, by name, with operands full of `TINY` and 1. The results are multiples of `TINY`.
fn case(name: &str) -> (f32, bool) {
    let conv = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    let transposed = || ConvTransposeOptions::<2>::new([1, 1], [0, 0], [0, 0], [1, 1], 1);
    let (image, window, out) =
        (|v| full(&[1, 1, 3, 3], v), |v| full(&[1, 1, 3, 3], v), |v| full(&[1, 1, 1, 1], v));
    match name {
        "float_matmul" => {
            let (a, b) = (full(&[1, 1], TINY), full(&[1, 1], 1.0));
            run(|| R::float_matmul(a, b))
        }
        "batched float_matmul" => {
            let (a, b) = (full(&[2, 3, 1], TINY), full(&[2, 1, 3], 1.0));
            run(|| R::float_matmul(a, b))
        }
        // Computed by Burn's autodiff, which calls `float_matmul` for it.
        "gradient of float_matmul" => {
            let tracked = |value| {
                let inner = Tensor::<R, 2>::from_primitive(TensorPrimitive::Float(full(&[1, 1], value)));
                Tensor::<Autodiff<R>, 2>::from_inner(inner).require_grad()
            };
            let (a, b) = (tracked(1.0), tracked(1.0));
            let loss = (a.clone().matmul(b) * TINY).sum();
            run(|| a.grad(&loss.backward()).unwrap().into_primitive().tensor())
        }
        "linear" => {
            let (x, w) = (full(&[2, 1], TINY), full(&[1, 3], 1.0));
            run(|| R::linear(x, w, None))
        }
        "linear_x_backward" => {
            let (w, g) = (full(&[2, 1], 1.0), full(&[5, 1], TINY));
            run(|| R::linear_x_backward(w, g))
        }
        "linear_weight_backward" => {
            let (x, g) = (full(&[1, 2], 1.0), full(&[1, 3], TINY));
            run(|| R::linear_weight_backward(x, g))
        }
        "conv2d" => {
            let (x, w) = (full(&[1, 1, 1, 1], TINY), full(&[1, 1, 1, 1], 1.0));
            run(|| R::conv2d(x, w, None, conv()))
        }
        "conv2d_x_backward" => {
            let (x, w, g) = (image(1.0), window(1.0), out(TINY));
            run(|| R::conv2d_x_backward(x, w, g, conv()))
        }
        "conv2d_weight_backward" => {
            let (x, w, g) = (image(1.0), window(1.0), out(TINY));
            run(|| R::conv2d_weight_backward(x, w, g, conv()))
        }
        // MIOpen's backward direction, but not a gradient.
        "conv_transpose2d" => {
            let (x, w) = (out(TINY), window(1.0));
            run(|| R::conv_transpose2d(x, w, None, transposed()))
        }
        // MIOpen's forward direction, but a gradient.
        "conv_transpose2d_x_backward" => {
            let (w, g) = (out(1.0), out(TINY));
            run(|| R::conv_transpose2d_x_backward(w, g, transposed()))
        }
        "conv_transpose2d_weight_backward" => {
            let (x, w, g) = (out(1.0), window(1.0), image(TINY));
            run(|| R::conv_transpose2d_weight_backward(x, w, g, transposed()))
        }
        // One key, whose weight is 1. The output is its value, and the value's gradient is the
        // output's.
        "fused::attention" => {
            let (q, k, v) = (out(1.0), out(1.0), out(TINY));
            run(|| attention(q, k, v, None, &composed()).unwrap().out)
        }
        "fused::attention_backward by value" => by_attention([(); 3].map(|()| out(1.0)), out(TINY), 2),
        // Two keys of weight 1/2 each, whose values are 1 and -1. The scores' gradients are plus
        // and minus half the output's gradient.
        "fused::attention_backward by query" => {
            let inputs = [out(0.0), opposite(2, 1.0), opposite(2, 1.0)];
            by_attention(inputs, out(TINY), 0)
        }
        "fused::attention_backward by key" => {
            let inputs = [out(1.0), full(&[1, 1, 2, 1], 1.0), opposite(2, 1.0)];
            by_attention(inputs, out(2.0 * TINY), 1)
        }
        "fused::attention_weights_backward" => {
            let (q, k, options) = (out(1.0), full(&[1, 1, 2, 1], 1.0), composed());
            let weights = attention_weights(q.clone(), k.clone(), None, &options).unwrap();
            let grad = opposite(3, 2.0 * TINY);
            run(|| {
                let found = attention_weights_backward([q, k], None, weights, grad, &options, [false, true]);
                let [_, by_key] = found.unwrap();
                by_key.unwrap()
            })
        }
        // One token, whose value is the output.
        "fused::self_attention" => {
            let x = full(&[1, 1, 1], TINY);
            run(|| self_attention(x, projections(), None, &composed()).unwrap().out)
        }
        "fused::self_attention_backward by tokens" => by_self_attention([true, false]),
        "fused::self_attention_backward by weights" => by_self_attention([false, true]),
        "deform_conv2d" => {
            let (x, offset, w) = (out(TINY), full(&[1, 2, 1, 1], 0.0), out(1.0));
            run(|| R::deform_conv2d(x, offset, w, None, None, deformed()))
        }
        "deform_conv2d_backward by x" => by_deformed(|found| found.x_grad),
        "deform_conv2d_backward by weight" => by_deformed(|found| found.weight_grad),
        other => panic!("{other}"),
    }
}

/// The gradient of attention with respect to one of its inputs.
fn by_attention(inputs: [burn_rocm::RocmTensor; 3], grad: burn_rocm::RocmTensor, of: usize) -> (f32, bool) {
    let [q, k, v] = inputs.clone();
    let kept = attention(q, k, v, None, &composed()).unwrap().kept;
    let wanted = [0, 1, 2].map(|input| input == of);
    run(|| {
        let found = attention_backward(inputs, None, kept, grad, &composed(), wanted).unwrap();
        found.into_iter().nth(of).unwrap().unwrap()
    })
}

/// Projections by which queries, keys and values equal the token.
fn projections() -> Projections {
    let of = |shape: &[usize], value| [(); 3].map(|()| full(shape, value));
    Projections { weights: of(&[1, 1], 1.0), biases: of(&[1], 0.0), heads: 1 }
}

/// The gradient of self-attention with respect to the tokens, or to the weight of the values.
fn by_self_attention([tokens, weights]: [bool; 2]) -> (f32, bool) {
    let x = full(&[1, 1, 1], 1.0);
    let kept = self_attention(x.clone(), projections(), None, &composed()).unwrap().kept;
    let (grad, wanted) = (full(&[1, 1, 1], TINY), [tokens, weights, false]);
    run(|| {
        let found = self_attention_backward(x, 1, None, kept, grad, &composed(), wanted).unwrap();
        found.tokens.or_else(|| found.weights.map(|[_, _, value]| value)).unwrap()
    })
}

fn deformed() -> DeformConvOptions<2> {
    DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1)
}

/// A gradient of a deformable convolution of one element without a displacement.
fn by_deformed(one: fn(DeformConv2dBackward<R>) -> burn_rocm::RocmTensor) -> (f32, bool) {
    let element = |value| full(&[1, 1, 1, 1], value);
    let (x, offset, w, g) = (element(1.0), full(&[1, 2, 1, 1], 0.0), element(1.0), element(TINY));
    run(|| one(R::deform_conv2d_backward(x, offset, w, None, None, g, deformed())))
}

/// The composed path, because the tiled kernels use no matrix instructions.
fn composed() -> AttentionOptions {
    AttentionOptions { path: AttentionPath::Composed, ..Default::default() }
}

/// No gradients, and one gradient that the backend can't tell from other products.
const FORWARD: [&str; 9] = [
    "float_matmul",
    "batched float_matmul",
    "gradient of float_matmul",
    "linear",
    "conv2d",
    "conv_transpose2d",
    "fused::attention",
    "fused::self_attention",
    "deform_conv2d",
];
const GRADIENTS: [&str; 14] = [
    "linear_x_backward",
    "linear_weight_backward",
    "conv2d_x_backward",
    "conv2d_weight_backward",
    "conv_transpose2d_x_backward",
    "conv_transpose2d_weight_backward",
    "fused::attention_backward by value",
    "fused::attention_backward by query",
    "fused::attention_backward by key",
    "fused::attention_weights_backward",
    "fused::self_attention_backward by tokens",
    "fused::self_attention_backward by weights",
    "deform_conv2d_backward by x",
    "deform_conv2d_backward by weight",
];

/// Prints for each op whether the alternative served it. Asserts that the values are kept if it
/// did, and flushed if not.
#[test]
#[ignore = "run by the tests below, as a gfx90a"]
fn each_op() {
    for name in FORWARD.iter().chain(&GRADIENTS) {
        let (value, alternative) = case(name);
        assert_eq!(value, if alternative { TINY } else { 0.0 }, "{name}");
        println!("served: {name}: {alternative}");
    }
    // The alternative has bf16's digits, so 1 + 2^-10 becomes 1.
    let fine = 1.0 + 1.0 / 1024.0;
    let (x, g) = (full(&[1, 1], fine), full(&[1, 1], 1.0));
    let (value, alternative) = run(|| R::linear_weight_backward(x, g));
    assert_eq!(value, if alternative { 1.0 } else { fine });
    // No other dtype uses it.
    let options = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let ones = |shape: &[usize]| {
            R::float_full(Shape::from(shape.to_vec()), 1.0f32.into(), &Default::default(), dtype)
        };
        let (x, g) = (ones(&[1, 2]), ones(&[1, 3]));
        assert!(!run(|| R::linear_weight_backward(x, g)).1);
        let (x, w, g) = (ones(&[1, 1, 3, 3]), ones(&[1, 1, 3, 3]), ones(&[1, 1, 1, 1]));
        assert!(!run(|| R::conv2d_x_backward(x, w, g, options())).1);
    }
}

#[test]
#[ignore = "run by a test below, as another chip"]
fn none_is_lost_nor_named() {
    for name in FORWARD.iter().chain(&GRADIENTS) {
        assert_eq!(case(name), (TINY, false), "{name}");
    }
}

/// Runs an ignored test in a separate process, and returns the ops that used the alternative.
fn served(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env("BURN_ROCM_PROVIDER", "cpu")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && out.contains("1 passed"), "{variables:?}:\n{out}\n{errors}");
    let served = out.lines().filter_map(|line| line.split_once("served: ")?.1.strip_suffix(": true"));
    served.map(str::to_owned).collect()
}

#[test]
fn gradients_go_by_the_alternative_on_gfx90a() {
    const ARCH: (&str, &str) = ("BURN_ROCM_CPU_ARCH", "gfx90a:sramecc+:xnack-");
    const SETTING: &str = "BURN_ROCM_F16_ALTERNATIVE";
    for find in ["immediate", "find"] {
        let find = ("BURN_ROCM_CONV_FIND", find);
        assert_eq!(served("each_op", &[ARCH, find]), GRADIENTS);
        assert_eq!(served("each_op", &[ARCH, find, (SETTING, "none")]), [""; 0]);
        assert_eq!(served("each_op", &[ARCH, find, (SETTING, "all")]), [&FORWARD[..], &GRADIENTS].concat());
    }
}

#[test]
fn other_chips_have_no_alternative() {
    for arch in ["gfx942:sramecc+:xnack-", "gfx1030", "gfx908", ""] {
        let all = ("BURN_ROCM_F16_ALTERNATIVE", "all");
        assert_eq!(served("none_is_lost_nor_named", &[("BURN_ROCM_CPU_ARCH", arch), all]), [""; 0]);
    }
}

/// Prints for each chip, dtype and pass whether kernels multiply on its matrix cores.
#[test]
#[ignore = "run by the test below, with each setting"]
fn each_use_of_matrix_cores() {
    let own = hip::Device::get(0).unwrap().info().clone();
    for arch in ["gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack-", "gfx908"] {
        // Blocks of the CPU device have one thread, with which nothing runs on matrix cores.
        let info = hip::DeviceInfo { arch: arch.into(), max_threads_per_block: 1024, ..own.clone() };
        for dtype in [hip::DType::F16, hip::DType::BF16] {
            for (pass, gradient) in [("inference", false), ("training", true)] {
                let cores = info.matrix_cores(dtype, gradient).unwrap();
                assert!(matches!(cores, None | Some(hip::MatrixCores::Mfma)), "{arch}: {cores:?}");
                println!("served: {arch} {dtype} {pass}: {}", cores.is_some());
            }
        }
    }
}

/// Attention in f16 on gfx90a uses the kernels for matrix cores only where `BURN_ROCM_F16_ALTERNATIVE`
/// lets rocBLAS use them. bf16 and other chips lose nothing on them.
#[test]
fn f16_that_gfx90as_matrix_cores_would_flush_is_kept_off_them() {
    let uses = |setting| served("each_use_of_matrix_cores", &[("BURN_ROCM_F16_ALTERNATIVE", setting)]);
    let all = uses("none");
    assert_eq!(all.len(), 3 * 2 * 2, "{all:?}");
    for (setting, kept_off) in [
        ("gradients", &["gfx90a:sramecc+:xnack- f16 training"][..]),
        ("all", &["gfx90a:sramecc+:xnack- f16 inference", "gfx90a:sramecc+:xnack- f16 training"]),
    ] {
        let expected: Vec<&String> = all.iter().filter(|one| !kept_off.contains(&one.as_str())).collect();
        assert_eq!(expected.len(), all.len() - kept_off.len(), "{all:?}");
        assert_eq!(uses(setting).iter().collect::<Vec<_>>(), expected, "{setting}");
    }
}
