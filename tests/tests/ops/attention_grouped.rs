//! `fused::attention_inference`: heads that share keys and values, and windows, against the oracle with
//! repeated heads and the window as a mask.

use burn_rocm::RocmError;
use burn_rocm::fused::{AttentionInferenceOptions, attention_inference};
use burn_rocm_tests::attention::Operands;
use burn_rocm_tests::limits::{assert_within, exact};
use burn_rocm_tests::*;

/// Batch, heads, heads of keys, queries, keys, features, values. One query, as in decoding, and few, which
/// take the composed path; more than a tile of each; heads that are too wide for the tiled kernels.
const CASES: &[[usize; 7]] = &[
    [2, 4, 2, 1, 70, 8, 8],
    [2, 4, 2, 5, 70, 8, 8],
    [1, 3, 1, 40, 30, 12, 5],
    [2, 4, 4, 33, 140, 16, 16],
    [1, 8, 2, 140, 200, 64, 64],
    [1, 2, 1, 130, 70, 32, 40],
    [1, 4, 2, 35, 80, 257, 8],
];

/// Whether query `i` sees key `j`.
fn sees(options: &AttentionInferenceOptions, i: usize, j: usize, [queries, keys]: [usize; 2]) -> bool {
    let distance = (i + keys) as i64 - (j + queries) as i64;
    let within = options.window.is_none_or(|window| distance.unsigned_abs() < window as u64);
    within && (!options.causal || distance >= 0)
}

fn against_the_oracle(dtype: DType) {
    let (random, device) = (Random::new(), Default::default());
    let windows = [None, Some(1), Some(21), Some(64), Some(65), Some(1000)];
    for &[batch, heads, shared, queries, keys, width, values] in CASES {
        for (trial, window) in windows.into_iter().enumerate() {
            let options = AttentionInferenceOptions {
                scale: [None, Some(0.3)][random.below(2)],
                softcap: [None, Some(2.0)][random.below(2)],
                causal: trial % 2 == 0,
                window,
            };
            let of = |shape: [usize; 4]| {
                float(&random, &shape, dtype, View::ALL[random.below(View::ALL.len())], -1.0, 1.0)
            };
            let scores = [batch, heads, queries, keys];
            let (q, k) = (of([batch, heads, queries, width]), of([batch, shared, keys, width]));
            let (v, bias) = (of([batch, shared, keys, values]), of([1, heads, 1, keys]));
            // Without a mask and a bias, another kernel runs.
            let (masked, biased) = (trial > 2, trial > 1 && trial != 4);
            let hidden: Vec<bool> =
                (0..batch * keys).map(|_| masked && random.uniform(0.0, 1.0) < 0.3).collect();
            let mask = masked
                .then(|| R::bool_from_data(TensorData::new(hidden.clone(), [batch, 1, 1, keys]), &device));
            let [q_ours, k_ours, v_ours] = [&q, &k, &v].map(|input| input.float::<R>(&device));
            let bias_ours = biased.then(|| bias.float::<R>(&device));
            let found = attention_inference(q_ours, k_ours, v_ours, mask, bias_ours, &options).unwrap();
            let what =
                format!("{dtype:?} {scores:?} {shared} {width} {values} {options:?} {masked} {biased}");

            let device = Default::default();
            let repeat = |input: &Input, columns: usize| {
                let apart = Shape::from([batch, shared, 1, keys, columns]);
                let many = Shape::from([batch, shared, heads / shared, keys, columns]);
                let tensor = O::float_reshape(exact::<O>(input, false, &device), apart);
                O::float_reshape(O::float_expand(tensor, many), Shape::from([batch, heads, keys, columns]))
            };
            let (q, k, v) = (exact::<O>(&q, false, &device), repeat(&k, width), repeat(&v, values));
            let bias =
                biased.then(|| O::float_expand(exact::<O>(&bias, false, &device), Shape::from(scores)));
            let out_of_sight: Vec<bool> = (0..scores.iter().product())
                .map(|at| {
                    let (row, key) = (at / keys, at % keys);
                    let batch = row / queries / heads;
                    hidden[batch * keys + key] || !sees(&options, row % queries, key, [queries, keys])
                })
                .collect();
            let mask = TensorData::new(out_of_sight, scores);
            let plain =
                AttentionModuleOptions { scale: options.scale, softcap: options.softcap, is_causal: false };
            let [query, key, value] = [&q, &k, &v].map(|tensor| read_float::<O>(tensor.clone()));
            let bias_data = bias.clone().map(read_float::<O>);
            let operands = Operands {
                query: &query,
                key: &key,
                value: &value,
                mask: Some(&mask),
                bias: bias_data.as_ref(),
                options: plain,
            };
            let limits = operands.limits(dtype);
            let mask = O::bool_from_data(mask, &device);
            let expected = read_float::<O>(O::attention(q, k, v, Some(mask), bias, plain));
            assert_within(&what, &read_float::<R>(found), &expected, &limits);
        }
    }
}

#[test]
fn grouped_attention_f32() {
    against_the_oracle(DType::F32);
}

#[test]
fn grouped_attention_f64() {
    against_the_oracle(DType::F64);
}

#[test]
fn grouped_attention_f16() {
    against_the_oracle(DType::F16);
}

#[test]
fn grouped_attention_bf16() {
    against_the_oracle(DType::BF16);
}

/// Biases of keys that causality or the window hides do not count, on any path: NaN and +inf there change
/// nothing.
#[test]
fn biases_outside_the_window_do_not_count() {
    let (random, device) = (Random::new(), Default::default());
    // Few queries and wide heads, which take the composed path, and the tiled kernels between them.
    let sizes = [[5, 30, 8], [40, 100, 8], [40, 100, 257]];
    let windows = [(true, None), (true, Some(9)), (false, Some(9))];
    let cases = sizes.into_iter().flat_map(|sizes| windows.map(|window| (sizes, window)));
    for (dtype, ([queries, keys, width], (causal, window))) in
        FLOATS.into_iter().flat_map(|dtype| cases.clone().map(move |case| (dtype, case)))
    {
        let options = AttentionInferenceOptions { causal, window, ..Default::default() };
        let of = |heads, length| {
            float(&random, &[1, heads, length, width], dtype, View::Contiguous, -1.0, 1.0).float::<R>(&device)
        };
        let (q, k, v) = (of(4, queries), of(2, keys), of(2, keys));
        let drawn: Vec<f64> = (0..queries * keys).map(|_| random.uniform(-1.0, 1.0)).collect();
        let run = |outside: f64, masked: bool| {
            let seen = |at: usize| sees(&options, at / keys, at % keys, [queries, keys]);
            let bias = drawn.iter().enumerate().map(|(at, &bias)| if seen(at) { bias } else { outside });
            let bias = TensorData::new(bias.collect::<Vec<f64>>(), [1, 1, queries, keys]);
            let bias = R::float_from_data(bias.convert_dtype(dtype), &device);
            let hidden: Vec<bool> = (0..keys).map(|key| key % 5 == 2).collect();
            let mask = masked.then(|| R::bool_from_data(TensorData::new(hidden, [1, 1, 1, keys]), &device));
            let (q, k, v) = (q.clone(), k.clone(), v.clone());
            read_float::<R>(attention_inference(q, k, v, mask, Some(bias), &options).unwrap())
        };
        for masked in [false, true] {
            let expected = run(0.0, masked);
            assert!(expected.iter::<f64>().all(f64::is_finite));
            for outside in [f64::NAN, f64::INFINITY] {
                let what = format!("{dtype:?} {queries} {keys} {width} {options:?} {masked} {outside}");
                assert_close(
                    &what,
                    &[run(outside, masked)],
                    std::slice::from_ref(&expected),
                    Tolerance::EXACT,
                );
            }
        }
    }
}

/// In decoding, keys that no query sees are not read: NaN in them changes nothing.
#[test]
fn decoding_reads_the_window_alone() {
    let (random, device) = (Random::new(), Default::default());
    let options = AttentionInferenceOptions { causal: true, window: Some(6), ..Default::default() };
    let q = float(&random, &[1, 4, 2, 8], DType::F32, View::Contiguous, -1.0, 1.0);
    let drawn: Vec<f32> = (0..2 * 50 * 8).map(|_| random.uniform(-1.0, 1.0) as f32).collect();
    let run = |unseen: f32| {
        // The first query is at position 48 and sees the keys from 43 on.
        let first = |at: usize| at / 8 % 50 < 43;
        let values: Vec<f32> =
            drawn.iter().enumerate().map(|(at, &value)| if first(at) { unseen } else { value }).collect();
        let k = R::float_from_data(TensorData::new(values, [1, 2, 50, 8]), &device);
        let out = attention_inference(q.float::<R>(&device), k.clone(), k, None, None, &options).unwrap();
        read_float::<R>(out)
    };
    assert_close(&"unseen NaN", &[run(f32::NAN)], &[run(0.0)], Tolerance::EXACT);
}

#[test]
fn grouped_attention_refuses_what_does_not_fit() {
    let zeros =
        |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let run = |heads: usize, window| {
        let shared = zeros(&[1, heads, 5, 8]);
        let options = AttentionInferenceOptions { window, ..Default::default() };
        attention_inference(zeros(&[1, 4, 5, 8]), shared.clone(), shared, None, None, &options)
    };
    for (heads, window, expected) in
        [(3, None, "divide 4 heads"), (8, None, "divide 4"), (2, Some(0), "window")]
    {
        match run(heads, window) {
            Err(error @ RocmError::Invalid { op: "attention", .. }) => {
                assert!(error.to_string().contains(expected), "{error} does not name {expected}");
            }
            other => panic!("{heads} {window:?}: {other:?}"),
        }
    }
    assert!(run(2, Some(1)).is_ok());
}
