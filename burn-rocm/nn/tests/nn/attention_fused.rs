//! Compares the fused ops alone, on either path, with the formulas in f64.

use burn_backend::tensor::FloatTensor;
use burn_rocm::fused::{
    AttentionDropout, AttentionOptions, AttentionPath, attention, attention_backward, attention_weights,
    attention_weights_backward,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::attention::keeps_operands;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{
    Backend, BoolTensorOps, FLOATS, FloatTensorOps, R, Shape, TensorMetadata, assert_close, read_float,
};

use crate::attention_formulas::{Case, Given, case, expected};
use crate::bounded::{Bounded, assert_bounded, exact};
use crate::support::*;

/// Sizes beyond one tile of queries, of keys, of features, and of all; the widest heads that the
/// tiled kernels take; rows that are too long for a block's registers.
const CASES: &[Case] = &[
    case([1, 1, 1, 1, 4, 4]),
    case([2, 3, 5, 5, 8, 8]),
    case([2, 3, 40, 1, 3, 1]),
    case([1, 2, 70, 30, 20, 36]),
    case([2, 1, 33, 140, 33, 65]),
    case([1, 1, 131, 67, 64, 64]),
    case([1, 2, 131, 67, 32, 32]),
    case([1, 1, 40, 66, 128, 128]),
    case([1, 1, 150, 70, 80, 96]),
    case([1, 1, 2, 4200, 3, 2]),
];

fn rounded(data: &TensorData, dtype: DType) -> Vec<Bounded> {
    exact(data.clone().convert_dtype(dtype).iter::<f64>())
}

/// The order of the axes `[batch, heads, sequence, features]` in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lies {
    Packed,
    /// The order of heads in `[batch, sequence, features]`: no single stride leads from each to the
    /// next.
    BatchFirst,
    /// The order of heads in `[sequence, batch, features]`: a single stride leads from each to the
    /// next.
    SequenceFirst,
}

const LIES: [Lies; 3] = [Lies::Packed, Lies::BatchFirst, Lies::SequenceFirst];

pub(crate) fn on_device(data: &TensorData, dtype: DType, lies: Lies) -> FloatTensor<R> {
    let tensor = R::float_from_data(data.clone().convert_dtype(dtype), &Default::default());
    let (there, back): ([usize; 4], [usize; 4]) = match lies {
        Lies::Packed => return tensor,
        Lies::BatchFirst => ([0, 2, 1, 3], [0, 2, 1, 3]),
        Lies::SequenceFirst => ([2, 0, 1, 3], [1, 2, 0, 3]),
    };
    let turned = R::float_permute(tensor, &there);
    let shape = turned.shape();
    let flat = R::float_reshape(turned, Shape::from([shape.num_elements()]));
    R::float_permute(R::float_reshape(flat, shape), &back)
}

fn data(values: Vec<f64>, shape: &[usize], dtype: DType) -> TensorData {
    TensorData::new(values, shape.to_vec()).convert_dtype(dtype)
}

/// Compares a call on one path with the formulas, with every option, and with windows from a list.
pub(crate) fn against_the_formulas(
    case: Case,
    dtype: DType,
    path: AttentionPath,
    windows: &[Option<usize>],
    random: &Random,
) {
    let Case { batch, heads, queries, keys, width, values, group, .. } = case;
    let first_window = random.below(windows.len());
    let sums = batch * heads * queries * keys * (width + values);
    for trial in fewer(0..5, if sums > 100_000 { 5 } else { 2 }, random) {
        let options = AttentionOptions {
            scale: (trial == 1).then_some(0.3),
            causal: trial == 2 || trial == 4,
            window: windows[(first_window + trial) % windows.len()],
            fill: [f64::NEG_INFINITY, -1e4, -0.5][random.below(3)],
            quiet: trial == 3,
            dropout: (trial % 2 == 1).then(|| AttentionDropout {
                prob: 0.3,
                seed: random.below(usize::MAX) as u64,
                call: random.below(1 << 63) as u64,
            }),
            path,
            scores: None,
        };
        let draw = |shape: [usize; 4]| {
            let values = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
            TensorData::new::<f64, _>(values, shape)
        };
        let scores = [batch, heads, queries, keys];
        let shared = heads / group;
        let (q, k) = (draw([batch, heads, queries, width]), draw([batch, shared, keys, width]));
        let (v, grad) = (draw([batch, shared, keys, values]), draw([batch, heads, queries, values]));
        let weights_grad = draw(scores);
        // A mask of one row for all heads, like a padding mask. In every third row it hides the first
        // tile of keys, or all of them.
        let hidden: Vec<bool> = (0..batch * queries * keys)
            .map(|at| random.uniform(0.0, 1.0) < 0.3 || at / keys % 3 == 0 && at % keys < 70)
            .collect();
        let mask = (1..4).contains(&trial).then(|| {
            let shape = Shape::from([batch, 1, queries, keys]);
            R::bool_from_data(TensorData::new(hidden.clone(), shape), &Default::default())
        });
        let everywhere: Vec<bool> = (0..batch * heads * queries * keys)
            .map(|at| hidden[(at / (heads * queries * keys)) * queries * keys + at % (queries * keys)])
            .collect();
        let [rq, rk, rv, rg, rw] = [&q, &k, &v, &grad, &weights_grad].map(|data| rounded(data, dtype));
        let given = Given {
            case,
            q: &rq,
            k: &rk,
            v: &rv,
            grad: &rg,
            weights_grad: &rw,
            mask: mask.is_some().then_some(everywhere.as_slice()),
            options: &options,
        };
        let expected = expected(&given, dtype);
        let lies = [(); 4].map(|()| LIES[random.below(3)]);
        let mut operands = [&q, &k, &v, &grad].into_iter().zip(lies);
        let [q, k, v, grad] = [(); 4].map(|()| {
            let (data, lies) = operands.next().unwrap();
            on_device(data, dtype, lies)
        });
        let weights_grad = on_device(&weights_grad, dtype, Lies::Packed);
        let what = format!("{case:?} {dtype:?} {options:?} mask {} {lies:?}", mask.is_some());

        let attended = attention(q.clone(), k.clone(), v.clone(), mask.clone(), &options).unwrap();
        let inputs = [q.clone(), k.clone(), v.clone()];
        let grads =
            attention_backward(inputs, mask.clone(), attended.kept, grad, &options, [true; 3]).unwrap();
        let ours: Vec<TensorData> = [attended.out]
            .into_iter()
            .chain(grads.into_iter().map(Option::unwrap))
            .map(read_float::<R>)
            .collect();
        let [by_q, by_k, by_v] = expected.grads;
        assert_bounded(&what, &ours, &[expected.out, by_q, by_k, by_v]);

        if path == AttentionPath::Composed {
            let weights = attention_weights(q.clone(), k.clone(), mask.clone(), &options).unwrap();
            let grads =
                attention_weights_backward([q, k], mask, weights.clone(), weights_grad, &options, [true; 2])
                    .unwrap();
            let ours: Vec<TensorData> = [weights]
                .into_iter()
                .chain(grads.into_iter().map(Option::unwrap))
                .map(read_float::<R>)
                .collect();
            let [by_q, by_k] = expected.grads_of_weights;
            assert_bounded(&format!("weights of {what}"), &ours, &[expected.weights, by_q, by_k]);
        }
    }
}

#[test]
fn tiled_attention_and_its_gradients() {
    let random = Random::new();
    for dtype in FLOATS {
        for &case in CASES {
            against_the_formulas(case, dtype, AttentionPath::Tiled, &[None], &random);
        }
    }
}

#[test]
fn composed_attention_and_its_gradients() {
    let random = Random::new();
    for dtype in FLOATS {
        // Also a head that is wider than the tiled kernels take.
        for &case in CASES.iter().chain(&[case([1, 2, 3, 4, 200, 9])]) {
            against_the_formulas(case, dtype, AttentionPath::Composed, &[None], &random);
        }
    }
}

/// The scores and the dropout mask are never in memory: these four kernels run.
#[test]
fn the_tiled_path_is_four_kernels() {
    let random = Random::new();
    let draw = || on_device(&uniform(&random, &[1, 2, 33, 8]), DType::F32, Lies::Packed);
    let (q, k, v, grad) = (draw(), draw(), draw(), draw());
    let options = AttentionOptions {
        dropout: Some(AttentionDropout::draw(&Default::default(), 0.1)),
        path: AttentionPath::Tiled,
        ..AttentionOptions::default()
    };
    let (_, lines) = during(|| {
        let attended = attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap();
        attention_backward([q, k, v], None, attended.kept, grad, &options, [true; 3]).unwrap()
    });
    let kernels: Vec<&str> = lines.iter().filter_map(|line| line.split("kernel ").nth(1)).collect();
    let four = [
        "attention<f32, 2>",
        "attention_dots<f32>",
        "attention_backward_queries<f32, 0>",
        "attention_backward_keys<f32, 0>",
    ];
    assert_eq!(kernels, four, "{lines:#?}");
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

/// Plain attention of more than 64 queries in f32 has a kernel for all gradients, which gives the same
/// bits each time, although its blocks add to the queries' gradient. Operands that the kernel cannot
/// read are copied.
#[test]
fn gradients_in_f32_are_one_kernel() {
    if hip::Device::get(0).unwrap().block_threads() != 256 {
        return;
    }
    let random = Random::new();
    for (heads, length, width, parts) in [(2, 200, 8, 1), (1, 130, 68, 2)] {
        for (causal, lies) in [(false, Lies::Packed), (true, Lies::SequenceFirst)] {
            let draw = || on_device(&uniform(&random, &[1, heads, length, width]), DType::F32, lies);
            let inputs = [draw(), draw(), draw()];
            let grad = draw();
            let options =
                AttentionOptions { causal, path: AttentionPath::Tiled, ..AttentionOptions::default() };
            let run = |inputs: &[RocmTensor; 3], wanted: [bool; 3]| {
                let ([q, k, v], read) = (inputs.clone(), inputs.clone());
                let (grads, lines) = during(|| {
                    let kept = attention(q, k, v, None, &options).unwrap().kept;
                    attention_backward(read, None, kept, grad.clone(), &options, wanted).unwrap()
                });
                let kernels = lines.iter().filter_map(|line| line.split("kernel ").nth(1));
                let kernels: Vec<String> = kernels.map(str::to_string).collect();
                (grads.map(|grad| grad.map(read_float::<R>)), kernels)
            };
            let (grads, kernels) = run(&inputs, [true; 3]);
            let (forward, backward) = match width {
                65.. if keeps_operands() => {
                    ("attention_f32_kept<f32>".into(), "attention_f32_kept_backward<f32>".into())
                }
                65.. => ("attention_f32<f32, 16>".into(), format!("attention_f32_backward<f32, {parts}>")),
                _ => ("attention_f32<f32, 8>".into(), format!("attention_f32_backward<f32, {parts}>")),
            };
            let three: [String; 3] = [forward, "attention_dots<f32>".into(), backward];
            assert_eq!(kernels, three);
            for wanted in [[true; 3], [true, false, false], [false, true, false], [false, false, true]] {
                let (again, _) = run(&inputs, wanted);
                for ((again, grad), wanted) in again.into_iter().zip(&grads).zip(wanted) {
                    assert_eq!(again.as_ref(), grad.as_ref().filter(|_| wanted), "causal {causal}");
                }
            }
            let shifted = inputs.each_ref().map(|input| {
                // One element past a multiple of 16 bytes.
                let zeros = R::float_zeros(Shape::from([1]), &Default::default(), DType::F32.into());
                let elements = input.shape().num_elements();
                let flat = R::float_reshape(input.clone(), Shape::from([elements]));
                let long = R::float_cat(vec![zeros, flat], 0);
                let view = R::float_slice(long, &[(1..elements + 1).into()]);
                R::float_reshape(view, input.shape())
            });
            let (from_copies, kernels) = run(&shifted, [true; 3]);
            assert!(kernels.contains(&three[2]), "{kernels:#?}");
            assert_eq!(from_copies, grads, "causal {causal}");
        }
    }
}

/// On matrix cores these four kernels run, and no copy: they read heads in any order, and the results
/// lie as their operands.
#[test]
fn halves_run_on_matrix_cores() {
    let (random, info) = (Random::new(), hip::Device::get(0).unwrap().info().clone());
    let options = AttentionOptions::default();
    for (dtype, kind) in [(DType::F16, hip::DType::F16), (DType::BF16, hip::DType::BF16)] {
        if info.matrix_cores(kind, true).unwrap().is_none() {
            continue;
        }
        for lies in LIES {
            let draw = || on_device(&uniform(&random, &[2, 3, 40, 64]), dtype, lies);
            let (q, k, v, grad) = (draw(), draw(), draw(), draw());
            let strides = q.layout().strides().to_vec();
            let ((out, grads), lines) = during(|| {
                let attended = attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap();
                let kept = attended.kept;
                let grads = attention_backward([q, k, v], None, kept, grad, &options, [true; 3]).unwrap();
                (attended.out, grads)
            });
            let kernels: Vec<&str> = lines.iter().filter_map(|line| line.split("kernel ").nth(1)).collect();
            let four = [
                format!("attention_matrix<{kind}, 64, 0>"),
                format!("attention_matrix_dots<{kind}>"),
                format!("attention_matrix_backward<{kind}, 64, 0, 0>"),
                format!("attention_matrix_backward<{kind}, 64, 0, 1>"),
            ];
            assert_eq!(kernels, four, "{lines:#?}");
            assert_eq!(lines.len(), 4, "{lines:#?}");
            for found in grads.iter().flatten().chain([&out]) {
                assert_eq!(found.layout().strides(), strides, "{lies:?}");
            }
        }
    }
}

/// Every sum of a gradient has a fixed order, in whatever order a GPU runs the blocks. On a GPU there
/// are enough blocks that many run at once. The CPU device runs blocks one after the other, so there
/// the test shows only that nothing is left over from the call before.
#[test]
fn gradients_in_halves_have_the_same_bits_again() {
    let (random, device) = (Random::new(), hip::Device::get(0).unwrap());
    let is_gpu = device.provider().kind() != hip::ProviderKind::Cpu;
    let (heads, length, repeats) = if is_gpu { (4, 300, 3) } else { (2, 70, 1) };
    for (dtype, widths) in [DType::F16, DType::BF16].into_iter().zip([[32, 128], [64, 96]]) {
        for (width, causal) in widths.into_iter().zip([true, false]) {
            // Two heads share keys and values, whose gradients are sums over both.
            let draw = |heads| on_device(&uniform(&random, &[2, heads, length, width]), dtype, Lies::Packed);
            let (inputs, grad) = ([draw(heads), draw(heads / 2), draw(heads / 2)], draw(heads));
            let options =
                AttentionOptions { causal, path: AttentionPath::Tiled, ..AttentionOptions::default() };
            let run = || -> Vec<TensorData> {
                let [q, k, v] = inputs.clone();
                let attended = attention(q, k, v, None, &options).unwrap();
                let (read, grad) = (inputs.clone(), grad.clone());
                let grads = attention_backward(read, None, attended.kept, grad, &options, [true; 3]).unwrap();
                let grads = grads.into_iter().map(Option::unwrap);
                [attended.out].into_iter().chain(grads).map(read_float::<R>).collect()
            };
            let first = run();
            for repeat in 1..=repeats {
                assert!(run() == first, "{dtype:?}, width {width}, causal {causal}: repeat {repeat} differs");
            }
        }
    }
}

/// Scores of hidden keys that masks use: where a row sees other keys they give what -inf gives, bit
/// for bit, and a row whose keys are all hidden is the mean of the values.
#[test]
fn hidden_keys_of_any_score() {
    let (random, info) = (Random::new(), hip::Device::get(0).unwrap().info().clone());
    let largest_of = |dtype| match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.39e38,
        _ => f64::INFINITY,
    };
    let (rows, keys, width) = (40, 130, 64);
    // Every third row sees all keys, the next those from 70 on, the next none.
    let hidden: Vec<bool> = (0..rows * keys).map(|at| at / keys % 3 > at % keys / 70).collect();
    let types = [
        (DType::F32, hip::DType::F32, -24),
        (DType::F16, hip::DType::F16, -11),
        (DType::BF16, hip::DType::BF16, -8),
    ];
    for (dtype, kind, rounding) in types {
        let of = |length| on_device(&uniform(&random, &[1, 1, length, width]), dtype, Lies::Packed);
        let (q, k, v, grad) = (of(rows), of(keys), of(keys), of(rows));
        let read = |tensor: RocmTensor| read_float::<R>(tensor).iter::<f64>().collect::<Vec<_>>();
        let values = read(v.clone());
        let on_cores = info.matrix_cores(kind, true).unwrap().is_some();
        let run = |fill| {
            let options = AttentionOptions { fill, ..Default::default() };
            let mask = TensorData::new(hidden.clone(), [1, 1, rows, keys]);
            let mask = Some(R::bool_from_data(mask, &Default::default()));
            let inputs = || [q.clone(), k.clone(), v.clone()];
            let [a, b, c] = inputs();
            let attended = attention(a, b, c, mask.clone(), &options).unwrap();
            let grads =
                attention_backward(inputs(), mask, attended.kept, grad.clone(), &options, [true; 3]).unwrap();
            (read(attended.out), grads.map(|grad| read(grad.unwrap())))
        };
        let (out, [by_query, by_key, _]) = run(f64::NEG_INFINITY);
        for fill in [-1e4, -1e9, -1e12, f32::MIN.into()] {
            let (found, [found_by_query, found_by_key, found_by_value]) = run(fill);
            assert_eq!(found_by_query, by_query, "{dtype:?} {fill}");
            assert_eq!(found_by_key, by_key, "{dtype:?} {fill}");
            assert!(found_by_value.iter().all(|value| value.is_finite()), "{dtype:?} {fill}");
            for (at, (found, expected)) in found.iter().zip(&out).enumerate() {
                if at / width % 3 < 2 {
                    assert_eq!(found, expected, "{dtype:?} {fill} row {}", at / width);
                    continue;
                }
                // Where scores are stored, they are of the tensor's type, which may round this one to -inf.
                if !on_cores && largest_of(dtype) < -fill {
                    assert_eq!(*found, 0.0, "{dtype:?} {fill} row {}", at / width);
                    continue;
                }
                // All weights are equal. Their sum, the sums of values and the result are rounded.
                let mean = values.iter().skip(at % width).step_by(width).sum::<f64>() / keys as f64;
                let largest = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
                let bound = largest * (2f64.powi(rounding) + 2.0 * (keys as f64 + 2.0) * 2f64.powi(-24));
                assert!((found - mean).abs() <= bound, "{dtype:?} {fill}: {found}, not {mean}");
            }
        }
    }
}

/// Heads that a single stride reaches over all batches are multiplied in place, and the result has
/// the same layout. Others are packed.
#[test]
fn operands_are_packed_where_they_must_be() {
    let random = Random::new();
    let options = AttentionOptions { path: AttentionPath::Composed, ..AttentionOptions::default() };
    for (lies, forward, backward) in
        [(Lies::SequenceFirst, 0, 0), (Lies::BatchFirst, 3, 4), (Lies::Packed, 0, 0)]
    {
        let draw = || on_device(&uniform(&random, &[2, 3, 9, 4]), DType::F32, lies);
        let (q, k, v, grad) = (draw(), draw(), draw(), draw());
        let inputs = [q.clone(), k.clone(), v.clone()];
        let (attended, lines) = during(|| attention(q, k, v, None, &options).unwrap());
        let copies = |lines: &[String]| lines.iter().filter(|line| line.contains("kernel copy_")).count();
        // This project's kernel writes packed results, which are then copied.
        let own = hip::matmul_route() == Ok(hip::Route::Own) && matches!(lies, Lies::SequenceFirst);
        assert_eq!(copies(&lines), forward + usize::from(own), "{lies:?}: {lines:#?}");
        let kept = attended.kept.clone();
        let (grads, lines) =
            during(|| attention_backward(inputs, None, kept, grad, &options, [true; 3]).unwrap());
        assert_eq!(copies(&lines), backward + 3 * usize::from(own), "{lies:?}: {lines:#?}");
        for found in grads.into_iter().flatten().chain([attended.out]) {
            let first = R::float_permute(found.clone(), &[2, 0, 1, 3]);
            assert_eq!(first.is_contiguous(), matches!(lies, Lies::SequenceFirst), "{lies:?}");
            assert_eq!(found.is_contiguous(), !matches!(lies, Lies::SequenceFirst), "{lies:?}");
        }
    }
}

#[test]
fn empty_sizes() {
    let device = Default::default();
    for path in [AttentionPath::Tiled, AttentionPath::Composed] {
        let options = AttentionOptions { path, ..AttentionOptions::default() };
        for (queries, keys, values) in [(2, 0, 3), (40, 0, 3), (0, 2, 3), (40, 2, 0)] {
            let of = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &device, DType::F32.into());
            let (q, k, v) = (of([1, 2, queries, 4]), of([1, 2, keys, 4]), of([1, 2, keys, values]));
            let attended = attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap();
            let grad = of([1, 2, queries, values]);
            let grads =
                attention_backward([q, k, v], None, attended.kept, grad, &options, [true; 3]).unwrap();
            let found: Vec<TensorData> = [attended.out]
                .into_iter()
                .chain(grads.into_iter().map(Option::unwrap))
                .map(read_float::<R>)
                .collect();
            let shapes = [[queries, values], [queries, 4], [keys, 4], [keys, values]];
            for (data, [rows, columns]) in found.iter().zip(shapes) {
                assert_eq!(data.shape.as_slice(), [1, 2, rows, columns], "{path:?}");
                assert!(data.iter::<f32>().all(|x| x == 0.0), "{path:?} {queries} {keys} {values}");
            }
        }
    }
}

/// A NaN reaches the rows that see it. A row whose keys are all masked is zeros, with zero
/// gradients.
#[test]
fn special_values() {
    for path in [AttentionPath::Tiled, AttentionPath::Composed] {
        let options = AttentionOptions { path, ..AttentionOptions::default() };
        let rows = 33;
        let mut q = vec![1.0; rows * 2];
        q[3] = f64::NAN;
        let of = |values: Vec<f64>, shape: [usize; 4]| {
            R::float_from_data(data(values, &shape, DType::F32), &Default::default())
        };
        let (q, grad) = (of(q, [1, 1, rows, 2]), of(vec![1.0; rows], [1, 1, rows, 1]));
        let (k, v) = (of(vec![1.0; 6], [1, 1, 3, 2]), of(vec![1.0, 2.0, 3.0], [1, 1, 3, 1]));
        let mask: Vec<bool> = (0..rows * 3).map(|at| at / 3 == 2).collect();
        let mask = R::bool_from_data(TensorData::new(mask, [1, 1, rows, 3]), &Default::default());
        let attended = attention(q.clone(), k.clone(), v.clone(), Some(mask.clone()), &options).unwrap();
        let kept = attended.kept.clone();
        let grads = attention_backward([q, k, v], Some(mask), kept, grad, &options, [true; 3]).unwrap();
        let out: Vec<f32> = read_float::<R>(attended.out).iter::<f32>().collect();
        assert!(out[1].is_nan() && out[2] == 0.0 && (out[0] - 2.0).abs() < 1e-6, "{path:?} {out:?}");
        let [by_q, by_k, _] =
            grads.map(|grad| read_float::<R>(grad.unwrap()).iter::<f32>().collect::<Vec<_>>());
        assert!(by_q[2].is_nan() && by_q[4] == 0.0 && by_q[5] == 0.0, "{path:?} {by_q:?}");
        assert!(by_k.iter().all(|x| x.is_nan()), "{path:?} {by_k:?}");
    }
}

#[test]
fn only_wanted_gradients_are_computed() {
    let random = Random::new();
    for path in [AttentionPath::Tiled, AttentionPath::Composed] {
        let options = AttentionOptions { path, ..AttentionOptions::default() };
        let draw = || on_device(&uniform(&random, &[1, 1, 9, 4]), DType::F32, Lies::Packed);
        let (q, k, v, grad) = (draw(), draw(), draw(), draw());
        let kept = attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap().kept;
        let run = |wanted| {
            let inputs = [q.clone(), k.clone(), v.clone()];
            attention_backward(inputs, None, kept.clone(), grad.clone(), &options, wanted).unwrap()
        };
        let all = run([true; 3]).map(|grad| read_float::<R>(grad.unwrap()));
        for wanted in [[true, false, false], [false, true, false], [false, false, true]] {
            for ((grad, wanted), all) in run(wanted).into_iter().zip(wanted).zip(&all) {
                let grad = grad.map(read_float::<R>);
                assert_eq!(grad.is_some(), wanted, "{path:?}");
                if let Some(grad) = grad {
                    assert_close(&"a gradient alone", &[grad], std::slice::from_ref(all), Tolerance::EXACT);
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let zeros = |shape: &[usize]| -> RocmTensor {
        R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), DType::F32.into())
    };
    let half = |shape: &[usize]| R::float_cast(zeros(shape), DType::F16.into());
    let plain = AttentionOptions::default();
    let check = |found: &str, result: Result<Vec<RocmTensor>, RocmError>| match result {
        Err(error @ RocmError::Invalid { .. }) => {
            assert!(error.to_string().contains(found), "{error} does not name {found}");
        }
        other => panic!("{found}: {other:?}"),
    };
    let (q, k, v) = ([2, 3, 4, 8], [2, 3, 5, 8], [2, 3, 5, 6]);
    let run = |q, k, v, mask, options: &AttentionOptions| attention(q, k, v, mask, options).map(|a| a.kept);
    check("[2, 3, 4]", run(zeros(&[2, 3, 4]), zeros(&k), zeros(&v), None, &plain));
    check("[2, 3, 5, 7]", run(zeros(&q), zeros(&[2, 3, 5, 7]), zeros(&v), None, &plain));
    check("[2, 2, 5, 8]", run(zeros(&q), zeros(&[2, 2, 5, 8]), zeros(&v), None, &plain));
    check("[2, 0, 5, 8]", run(zeros(&q), zeros(&[2, 0, 5, 8]), zeros(&v), None, &plain));
    check("[2, 3, 5, 6]", run(zeros(&q), zeros(&[2, 1, 5, 8]), zeros(&v), None, &plain));
    let nothing = AttentionOptions { window: Some(0), ..plain };
    check("window", run(zeros(&q), zeros(&k), zeros(&v), None, &nothing));
    check("[2, 3, 4, 6]", run(zeros(&q), zeros(&k), zeros(&[2, 3, 4, 6]), None, &plain));
    check("f16", run(zeros(&q), half(&k), zeros(&v), None, &plain));
    check("f16", run(zeros(&q), zeros(&k), half(&v), None, &plain));
    check("f32", run(zeros(&q), zeros(&k), zeros(&v), Some(zeros(&[2, 3, 4, 5])), &plain));
    let mask = |shape: &[usize]| {
        R::bool_zeros(Shape::from(shape.to_vec()), &Default::default(), burn_rocm_tests::BoolDType::Native)
    };
    check("[2, 3, 4, 4]", run(zeros(&q), zeros(&k), zeros(&v), Some(mask(&[2, 3, 4, 4])), &plain));
    let of = |prob, call| {
        let dropout = Some(AttentionDropout { prob, seed: 0, call });
        AttentionOptions { dropout, ..AttentionOptions::default() }
    };
    for prob in [-0.1, 1.1, f64::NAN] {
        check("0..=1", run(zeros(&q), zeros(&k), zeros(&v), None, &of(prob, 0)));
    }
    check("2^63", run(zeros(&q), zeros(&k), zeros(&v), None, &of(0.5, 1 << 63)));
    let tiled = AttentionOptions { path: AttentionPath::Tiled, ..plain };
    let wide = [1, 1, 40, 129];
    check("129", run(zeros(&wide), zeros(&wide), zeros(&wide), None, &tiled));
    let back = |grad, kept: Vec<RocmTensor>| {
        let inputs = [zeros(&q), zeros(&k), zeros(&v)];
        attention_backward(inputs, None, kept, grad, &plain, [true; 3])
            .map(|grads| grads.into_iter().flatten().collect())
    };
    let kept = || attention(zeros(&q), zeros(&k), zeros(&v), None, &plain).unwrap().kept;
    check("[2, 3, 4, 5]", back(zeros(&[2, 3, 4, 5]), kept()));
    check("2 tensors", back(zeros(&[2, 3, 4, 6]), vec![zeros(&q), zeros(&q)]));
    check("[1]", back(zeros(&[2, 3, 4, 6]), vec![zeros(&[1])]));
    R::sync(&Default::default()).unwrap();
}
