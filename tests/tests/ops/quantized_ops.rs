//! Every other method on quantised tensors. Burn composes these, and the results must equal those
//! of `burn-flex`.

use super::quantized::{STORES, parts, read_q};
use burn_backend::TensorPrimitive;
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::{Device, IntTensor, QuantizedTensor};
use burn_rocm_tests::*;

fn either<B: Backend>(tensor: TensorPrimitive<B>) -> TensorData {
    match tensor {
        TensorPrimitive::Float(tensor) => read_float::<B>(tensor),
        TensorPrimitive::QFloat(tensor) => plain::<B>(tensor),
    }
}

/// The floats that a quantised tensor represents.
fn plain<B: Backend>(tensor: QuantizedTensor<B>) -> TensorData {
    read_float::<B>(B::dequantize(tensor, FloatDType::F32))
}

const BOOL: BoolDType = BoolDType::Native;
const INT: IntDType = IntDType::I32;

/// Runs an op by name. Some results are quantised again, which costs half a step of the result's
/// range at most.
fn run<B: Backend>(
    name: &str,
    a: QuantizedTensor<B>,
    b: QuantizedTensor<B>,
    device: &Device<B>,
) -> Vec<TensorData> {
    let int = |values: Vec<i64>, shape: [usize; 2]| -> IntTensor<B> {
        B::int_from_data(TensorData::new(values, shape), device)
    };
    let powers = || int((0..32).map(|i| i % 3).collect(), [4, 8]);
    match name {
        "add" => vec![either::<B>(B::q_add(a, b))],
        "add_scalar" => vec![either::<B>(B::q_add_scalar(a, 1.5f32.into()))],
        "clamp_min" => vec![either::<B>(B::q_clamp_min(a, 0.5f32.into()))],
        "clamp_max" => vec![either::<B>(B::q_clamp_max(a, 0.5f32.into()))],
        "clamp" => vec![either::<B>(B::q_clamp(a, (-0.5f32).into(), 0.5f32.into()))],
        "sub" => vec![either::<B>(B::q_sub(a, b))],
        "sub_scalar" => vec![either::<B>(B::q_sub_scalar(a, 1.5f32.into()))],
        "mul" => vec![either::<B>(B::q_mul(a, b))],
        "mul_scalar" => vec![either::<B>(B::q_mul_scalar(a, 1.5f32.into()))],
        "div" => vec![either::<B>(B::q_div(a, b))],
        "div_scalar" => vec![either::<B>(B::q_div_scalar(a, 1.5f32.into()))],
        "neg" => vec![either::<B>(B::q_neg(a))],
        "recip" => vec![either::<B>(B::q_recip(b))],
        "sum" => vec![either::<B>(B::q_sum(a))],
        "sum_dim" => vec![either::<B>(B::q_sum_dim(a, 1))],
        "prod" => vec![either::<B>(B::q_prod(b))],
        "prod_dim" => vec![either::<B>(B::q_prod_dim(b, 0))],
        "mean" => vec![either::<B>(B::q_mean(a))],
        "mean_dim" => vec![either::<B>(B::q_mean_dim(a, 0))],
        "cumsum" => vec![either::<B>(B::q_cumsum(a, 1))],
        "cumprod" => vec![either::<B>(B::q_cumprod(a, 0))],
        "cummin" => vec![either::<B>(B::q_cummin(a, 1))],
        "cummax" => vec![either::<B>(B::q_cummax(a, 0))],
        "exp" => vec![either::<B>(B::q_exp(a))],
        "log" => vec![either::<B>(B::q_log(b))],
        "log1p" => vec![either::<B>(B::q_log1p(b))],
        "powf" => vec![either::<B>(B::q_powf(b, a))],
        "powi" => vec![either::<B>(B::q_powi(a, powers()))],
        "powi_scalar" => vec![either::<B>(B::q_powi_scalar(a, 3i32.into()))],
        "powf_scalar" => vec![either::<B>(B::q_powf_scalar(b, 0.7f32.into()))],
        "sqrt" => vec![either::<B>(B::q_sqrt(b))],
        "abs" => vec![plain::<B>(B::q_abs(a))],
        "cos" => vec![either::<B>(B::q_cos(a))],
        "sin" => vec![either::<B>(B::q_sin(a))],
        "tan" => vec![either::<B>(B::q_tan(B::q_slice(a, &[Slice::new(0, Some(2), 1)])))],
        "cosh" => vec![either::<B>(B::q_cosh(a))],
        "sinh" => vec![either::<B>(B::q_sinh(a))],
        "tanh" => vec![either::<B>(B::q_tanh(a))],
        "erf" => vec![either::<B>(B::q_erf(a))],
        "cat" => vec![plain::<B>(B::q_cat(vec![a, b], 1))],
        "argmax" => vec![read_int::<B>(B::q_argmax(a, 1, INT))],
        "argmin" => vec![read_int::<B>(B::q_argmin(a, 0, INT))],
        "topk" => vec![plain::<B>(B::q_topk(a, 1, 4))],
        "max" => vec![plain::<B>(B::q_max(a))],
        "max_dim" => vec![plain::<B>(B::q_max_dim(a, 1))],
        "max_dim_with_indices" => {
            let (values, index) = B::q_max_dim_with_indices(a, 1, INT);
            vec![plain::<B>(values), read_int::<B>(index)]
        }
        "min" => vec![plain::<B>(B::q_min(a))],
        "min_dim" => vec![plain::<B>(B::q_min_dim(a, 0))],
        "min_dim_with_indices" => {
            let (values, index) = B::q_min_dim_with_indices(a, 0, INT);
            vec![plain::<B>(values), read_int::<B>(index)]
        }
        "max_abs" => vec![plain::<B>(B::q_max_abs(a))],
        "max_abs_dim" => vec![plain::<B>(B::q_max_abs_dim(a, 1))],
        "any" => vec![read_bool::<B>(B::q_any(a, BOOL))],
        "any_dim" => vec![read_bool::<B>(B::q_any_dim(a, 1, BOOL))],
        "all" => vec![read_bool::<B>(B::q_all(a, BOOL))],
        "all_dim" => vec![read_bool::<B>(B::q_all_dim(a, 0, BOOL))],
        "sort" => vec![plain::<B>(B::q_sort(a, 1, false))],
        "sort_with_indices" => {
            let (values, index) = B::q_sort_with_indices(a, 0, true, INT);
            vec![plain::<B>(values), read_int::<B>(index)]
        }
        "argsort" => vec![read_int::<B>(B::q_argsort(a, 1, true, INT))],
        other => panic!("{other}"),
    }
}

const NAMES: &[&str] = &[
    "add",
    "add_scalar",
    "clamp_min",
    "clamp_max",
    "clamp",
    "sub",
    "sub_scalar",
    "mul",
    "mul_scalar",
    "div",
    "div_scalar",
    "neg",
    "recip",
    "sum",
    "sum_dim",
    "prod",
    "prod_dim",
    "mean",
    "mean_dim",
    "cumsum",
    "cumprod",
    "cummin",
    "cummax",
    "exp",
    "log",
    "log1p",
    "powf",
    "powi",
    "powi_scalar",
    "powf_scalar",
    "sqrt",
    "abs",
    "cos",
    "sin",
    "tan",
    "cosh",
    "sinh",
    "tanh",
    "erf",
    "cat",
    "argmax",
    "argmin",
    "topk",
    "max",
    "max_dim",
    "max_dim_with_indices",
    "min",
    "min_dim",
    "min_dim_with_indices",
    "max_abs",
    "max_abs_dim",
    "any",
    "any_dim",
    "all",
    "all_dim",
    "sort",
    "sort_with_indices",
    "argsort",
];

/// 32 values that all quantise differently, in random order, so that indices of extremes and of a
/// sort are unique.
fn apart(random: &Random, low: f64, high: f64) -> TensorData {
    let mut values: Vec<f32> = (0..32).map(|i| (low + (high - low) * f64::from(i) / 31.0) as f32).collect();
    for i in (1..32).rev() {
        values.swap(i, random.below(i + 1));
    }
    TensorData::new(values, [4, 8])
}

#[test]
fn composed_of_float_ops() {
    let random = Random::new();
    for store in STORES {
        for value in [QuantValue::Q8S, QuantValue::Q8F] {
            let scheme = QuantScheme::default().with_value(value).with_store(store);
            for name in NAMES {
                let (a, b) = (apart(&random, -2.0, 2.1), apart(&random, 0.4, 1.7));
                let what = format!("q_{name} of {scheme:?}");
                differential!(what, Tolerance::of(DType::F32).times(20.0), |B, device| {
                    let make = |data: &TensorData| {
                        B::quantize_dynamic(B::float_from_data(data.clone(), &device), &scheme)
                    };
                    run::<B>(name, make(&a), make(&b), &device)
                });
            }
        }
    }
}

/// Tensors with blocks against the oracle's float ops on the values that the operands represent.
/// The oracle's own indices of extremes compare bytes without their scales.
#[test]
fn composed_of_float_ops_in_blocks() {
    let random = Random::new();
    let picks = [
        "max",
        "max_dim",
        "max_dim_with_indices",
        "min",
        "min_dim",
        "min_dim_with_indices",
        "max_abs",
        "max_abs_dim",
    ];
    for store in STORES {
        let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_level(QuantLevel::block([8]));
        let scheme = scheme.with_store(store);
        for name in NAMES.iter().filter(|name| !picks.contains(name)) {
            let (a, b) = (apart(&random, -2.0, 2.1), apart(&random, 0.4, 1.7));
            let what = format!("q_{name} of {scheme:?}");
            let here = Default::default();
            let make =
                |data: &TensorData| R::quantize_dynamic(R::float_from_data(data.clone(), &here), &scheme);
            let (a, b) = (make(&a), make(&b));
            // The oracle gets the values that the operands represent. `wide` gives each of them a
            // scale of its own, so that quantising them again loses nothing.
            let (there_a, there_b) = (plain::<R>(a.clone()), plain::<R>(b.clone()));
            let ours = run::<R>(name, a, b, &here);
            let there = Default::default();
            let wide = QuantScheme::default().with_value(QuantValue::Q8S).with_level(QuantLevel::block([1]));
            let wide = wide.with_store(QuantStore::Native);
            let make = |data: TensorData| O::quantize_dynamic(O::float_from_data(data, &there), &wide);
            let indices = ["argmax", "argmin"].contains(name);
            let theirs = if indices {
                let floats = O::float_from_data(there_a, &there);
                vec![read_int::<O>(match *name {
                    "argmax" => O::float_argmax(floats, 1, INT),
                    _ => O::float_argmin(floats, 0, INT),
                })]
            } else {
                run::<O>(name, make(there_a), make(there_b), &there)
            };
            // Results that are quantised again are off by up to half a step on this side. With
            // `wide` the oracle's are exact.
            let again = ["abs", "cat", "topk", "sort", "sort_with_indices"].contains(name);
            let step = if again { 2.2 / 254.0 } else { 0.0 };
            let mut tolerance = Tolerance::of(DType::F32).times(40.0);
            tolerance.absolute += step;
            assert_close(&what, &ours, &theirs, tolerance);
        }
    }
}

/// `argtopk` is compared with the head of `argsort`, because the oracle lacks it.
#[test]
fn argtopk_is_the_head_of_argsort() {
    let random = Random::new();
    for level in [QuantLevel::Tensor, QuantLevel::block([8])] {
        let scheme = QuantScheme::default().with_level(level);
        let data = apart(&random, -2.0, 2.1);
        let q = R::quantize_dynamic(R::float_from_data(data, &Default::default()), &scheme);
        let ours = read_int::<R>(R::q_argtopk(q.clone(), 1, 3, INT));
        let all = R::q_argsort(q, 1, true, INT);
        let head = R::int_slice(all, &[Slice::new(0, None, 1), Slice::new(0, Some(3), 1)]);
        assert_close(&"q_argtopk", &[ours], &[read_int::<R>(head)], Tolerance::EXACT);
    }
}

/// Autodiff keeps track of gradients, so here these flags do nothing.
#[test]
fn flags_of_autodiff() {
    let scheme = QuantScheme::default();
    let q = R::quantize_dynamic(
        R::float_from_data(TensorData::from([1.0f32, 2.0]), &Default::default()),
        &scheme,
    );
    assert!(!R::q_is_require_grad(&q));
    let q = R::q_detach(R::q_set_require_grad(q, true));
    assert_eq!(parts(read_q::<R>(q)).0.len(), 2);
}
