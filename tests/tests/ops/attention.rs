//! Scaled dot-product attention: the tiled kernel, and the composed path for heads that are too
//! wide for it.

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_tests::attention::{Operands, keeps_operands};
use burn_rocm_tests::limits::{assert_within, exact};
use burn_rocm_tests::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The sizes of one call.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
    values: usize,
}

const fn case(sizes: [usize; 6]) -> Case {
    let [batch, heads, queries, keys, width, values] = sizes;
    Case { batch, heads, queries, keys, width, values }
}

/// One query, as in decoding, and few, which take the composed path; more than a tile of queries, of
/// keys, of features, of all three; heads as wide as the kernel takes, and wider.
const CASES: &[Case] = &[
    case([1, 1, 1, 1, 4, 4]),
    case([1, 2, 1, 9, 4, 4]),
    case([2, 3, 5, 5, 8, 8]),
    case([2, 2, 7, 9, 16, 3]),
    case([1, 2, 70, 30, 20, 36]),
    case([2, 3, 40, 1, 3, 1]),
    case([2, 1, 33, 140, 33, 65]),
    case([1, 1, 131, 67, 64, 64]),
    case([1, 2, 35, 20, 256, 256]),
    case([1, 1, 35, 20, 257, 12]),
    case([1, 1, 40, 5, 12, 300]),
];

impl Case {
    fn query(self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.width]
    }
    fn key(self) -> [usize; 4] {
        [self.batch, self.heads, self.keys, self.width]
    }
    fn value(self) -> [usize; 4] {
        [self.batch, self.heads, self.keys, self.values]
    }
    fn scores(self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }
}

/// The shape of a mask or a bias: the scores' shape with some axes set to 1.
fn broadcast(random: &Random, mut shape: [usize; 4]) -> [usize; 4] {
    for dim in &mut shape {
        if random.below(3) == 0 {
            *dim = 1;
        }
    }
    shape
}

fn bools(random: &Random, shape: &[usize], view: View, hidden: f64) -> Input {
    let dtype = DType::Bool(BoolStore::Native);
    Input::new(shape, dtype, view, || (random.uniform(0.0, 1.0) < hidden) as u8 as f64)
}

/// Checks a call against the oracle's result in f64, within its rounding bounds.
fn within_its_limits(
    what: &str,
    dtype: DType,
    inputs: [&Input; 3],
    mask: Option<&Input>,
    bias: Option<&Input>,
    options: AttentionModuleOptions,
    case: Case,
) {
    trace::to_file();
    let device = Default::default();
    let [q, k, v] = inputs.map(|input| input.float::<R>(&device));
    let (m, b) = (mask.map(|mask| mask.bool::<R>(&device)), bias.map(|bias| bias.float::<R>(&device)));
    let found = read_float::<R>(R::attention(q, k, v, m, b, options));
    assert_eq!(found.dtype, dtype, "{what}");

    let device = Default::default();
    let scores = Shape::from(case.scores());
    let [q, k, v] = inputs.map(|input| exact::<O>(input, false, &device));
    let mask = mask.map(|mask| O::bool_expand(mask.bool::<O>(&device), scores.clone()));
    let bias = bias.map(|bias| O::float_expand(exact::<O>(bias, false, &device), scores));
    let [query, key, value] = [&q, &k, &v].map(|t| read_float::<O>(t.clone()));
    let (hidden, added) = (mask.clone().map(read_bool::<O>), bias.clone().map(read_float::<O>));
    let (mask_data, bias_data) = (hidden.as_ref(), added.as_ref());
    let operands =
        Operands { query: &query, key: &key, value: &value, mask: mask_data, bias: bias_data, options };
    let limits = operands.limits(dtype);
    assert_within(&what, &found, &read_float::<O>(O::attention(q, k, v, mask, bias, options)), &limits);
}

fn against_the_oracle(dtype: DType) {
    let random = Random::new();
    for &case in CASES {
        for softcap in [None, Some(2.0)] {
            for causal in [false, true] {
                let scale = [None, Some(0.3)][random.below(2)];
                let options = AttentionModuleOptions { scale, softcap, is_causal: causal };
                let views: [View; 5] = std::array::from_fn(|_| View::ALL[random.below(5)]);
                let of = |shape: [usize; 4], view| float(&random, &shape, dtype, view, -1.0, 1.0);
                let (q, k, v) =
                    (of(case.query(), views[0]), of(case.key(), views[1]), of(case.value(), views[2]));
                let bias = of(broadcast(&random, case.scores()), views[3]);
                // Rows that the mask hides entirely give zeros.
                let mask = bools(&random, &broadcast(&random, case.scores()), views[4], 0.3);
                let what = format!("attention {dtype:?} {case:?} {options:?} {views:?}");
                for (with_mask, with_bias) in [(false, false), (true, false), (false, true), (true, true)] {
                    let (mask, bias) = (with_mask.then_some(&mask), with_bias.then_some(&bias));
                    within_its_limits(&what, dtype, [&q, &k, &v], mask, bias, options, case);
                }
            }
        }
    }
}

#[test]
fn attention_f32() {
    against_the_oracle(DType::F32);
}

#[test]
fn attention_f64() {
    against_the_oracle(DType::F64);
}

#[test]
fn attention_f16() {
    against_the_oracle(DType::F16);
}

#[test]
fn attention_bf16() {
    against_the_oracle(DType::BF16);
}

/// Operands whose rows consist of pieces of 16 bytes, and no mask or bias: a variant of its own of
/// the kernels on matrix cores, and for f32 a kernel of its own. More than a tile of queries and of
/// keys, heads of every width that has tiles.
#[test]
fn attention_of_whole_pieces() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for width in [16, 32, 64, 80, 128, 256] {
            for (queries, keys, is_causal) in [(150, 90, false), (150, 90, true), (90, 150, true)] {
                let values = if random.below(2) == 1 { width } else { 24 };
                let case = case([1, 2, queries, keys, width, values]);
                let of = |shape: [usize; 4]| float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
                let (q, k, v) = (of(case.query()), of(case.key()), of(case.value()));
                let options = AttentionModuleOptions { is_causal, ..Default::default() };
                let what = format!("attention {dtype:?} {case:?} {options:?}");
                within_its_limits(&what, dtype, [&q, &k, &v], None, None, options, case);
            }
        }
    }
}

/// More than 64 queries in f32 have kernels of their own, without a softcap.
#[test]
fn attention_f32_of_many_queries() {
    let random = Random::new();
    for (width, values) in [(4, 4), (12, 68), (64, 64), (100, 128), (132, 100)] {
        for softcap in [None, Some(0.7)] {
            let case =
                case([2, 1 + random.below(3), 65 + random.below(200), 1 + random.below(200), width, values]);
            let of = |shape: [usize; 4]| float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0);
            let (q, k, v) = (of(case.query()), of(case.key()), of(case.value()));
            let options =
                AttentionModuleOptions { scale: Some(0.3), softcap, is_causal: random.below(2) == 1 };
            let what = format!("attention {case:?} {options:?}");
            within_its_limits(&what, DType::F32, [&q, &k, &v], None, None, options, case);
            let device = Default::default();
            let [q, k, v] = [q, k, v].map(|input| input.float::<R>(&device));
            let (_, lines) = trace::during(|| R::attention(q, k, v, None, None, options));
            let kernel = match hip::Device::get(0).unwrap().block_threads() {
                256 if softcap.is_none() && values > 64 && width <= 128 && keeps_operands() => {
                    "kernel attention_f32_kept<f32>".into()
                }
                256 if softcap.is_none() => {
                    format!("kernel attention_f32<f32, {}>", if values > 64 { 16 } else { 8 })
                }
                _ => "kernel attention<f32, 0>".into(),
            };
            assert!(lines.len() == 1 && lines[0].ends_with(&kernel), "{what}: {lines:#?}");
        }
    }
}

/// Halves run on matrix cores where the device has them, in one launch.
#[test]
fn attention_on_matrix_cores() {
    let info = hip::Device::get(0).unwrap().info().clone();
    let half = |dtype, name| (dtype, name, info.matrix_cores(dtype, false).unwrap().is_some());
    let halves = [half(hip::DType::F16, "f16"), half(hip::DType::BF16, "bf16")];
    for ((_, name, on_cores), dtype) in halves.into_iter().zip([DType::F16, DType::BF16]) {
        let of = |shape: [usize; 4]| R::float_zeros(Shape::from(shape), &Default::default(), dtype.into());
        let (q, k) = (of([1, 2, 40, 64]), of([1, 2, 9, 64]));
        let (_, lines) = trace::during(|| R::attention(q, k.clone(), k, None, None, Default::default()));
        let kernel = if on_cores {
            format!("attention_matrix<{name}, 64, 0>")
        } else {
            format!("attention<{name}, 0>")
        };
        assert!(lines.len() == 1 && lines[0].ends_with(&format!("kernel {kernel}")), "{lines:#?}");
    }
}

fn tensor(values: &[f64], shape: [usize; 4], dtype: DType) -> burn_backend::tensor::FloatTensor<R> {
    R::float_from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), &Default::default())
}

/// Special values, compared with Burn's own definition, computed step by step on this backend where
/// it is exact.
#[test]
fn attention_of_special_values() {
    let device = Default::default();
    let inf = f64::INFINITY;
    // The four queries alone, which are composed, and repeated often enough for the kernel.
    for (dtype, rounds) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 12)]) {
        let rows = 4 * rounds;
        let query = [0.5, 1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0, 2.0];
        let q = || tensor(&query.repeat(rounds), [1, 1, rows, 2], dtype);
        let k = || tensor(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1, 1, 3, 2], dtype);
        let v = || tensor(&[1.0, 2.0, 3.0], [1, 1, 3, 1], dtype);
        // Row 0 is ordinary. Row 1 has a NaN query. Row 2 is hidden by the bias alone. Row 3 has a
        // score of +inf.
        let bias = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -inf, -inf, -inf, 0.0, inf, 0.0];
        let bias = tensor(&bias.repeat(rounds), [1, 1, rows, 3], dtype);
        let out = R::attention(q(), k(), v(), None, Some(bias), AttentionModuleOptions::default());
        let out: Vec<f64> = read_float::<R>(out).iter::<f64>().collect();
        for out in out.chunks(4) {
            assert!(out[0] > 1.0 && out[0] < 3.0, "{dtype:?} {out:?}");
            assert!(out[1].is_nan() && out[3].is_nan(), "{dtype:?} {out:?}");
            assert_eq!(out[2], 0.0, "{dtype:?} {out:?}");
        }
        // Calls without keys, without queries, or without features.
        for (queries, keys, values) in [(2, 0, 3), (40, 0, 3), (0, 2, 3), (40, 2, 0)] {
            let empty = |shape: [usize; 4]| R::float_zeros(Shape::from(shape), &device, dtype.into());
            let out = R::attention(
                empty([1, 2, queries, 4]),
                empty([1, 2, keys, 4]),
                empty([1, 2, keys, values]),
                None,
                None,
                AttentionModuleOptions::default(),
            );
            let data = read_float::<R>(out);
            assert_eq!(data.shape.as_slice(), [1, 2, queries, values]);
            assert!(data.iter::<f64>().all(|x| x == 0.0), "{dtype:?} {queries} {keys} {values}");
        }
    }
}

/// All heads share the keys and values, and the mask has four-byte bools.
#[test]
fn attention_broadcasts() {
    let (random, device) = (Random::new(), Default::default());
    let of = |shape: [usize; 4]| float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (q, k, v) = (of([2, 3, 45, 8]), of([2, 1, 7, 8]), of([1, 1, 7, 4]));
    let mask = bools(&random, &[2, 1, 45, 7], View::Contiguous, 0.4);
    let run = |q, k, v, mask| {
        read_float::<R>(R::attention(q, k, v, Some(mask), None, AttentionModuleOptions::default()))
    };
    let mask = || mask.bool::<R>(&device);
    let shared = run(q.float::<R>(&device), k.float::<R>(&device), v.float::<R>(&device), mask());
    let words = R::bool_from_data(
        TensorData::new(
            read_bool::<R>(mask()).iter::<bool>().map(|b| b as u32 * 256).collect::<Vec<u32>>(),
            [2, 1, 45, 7],
        ),
        &device,
    );
    let expand = |input: &Input, last: [usize; 2]| {
        R::float_expand(input.float::<R>(&device), Shape::from([2, 3, last[0], last[1]]))
    };
    let whole = run(q.float::<R>(&device), expand(&k, [7, 8]), expand(&v, [7, 4]), words);
    assert_close(&"shared heads", &[shared], &[whole], Tolerance::EXACT);
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let zeros =
        |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let half = |shape: &[usize]| R::float_cast(zeros(shape), FloatDType::F16);
    let hide =
        |shape: &[usize]| R::bool_zeros(Shape::from(shape.to_vec()), &Default::default(), BoolDType::Native);
    let plain = AttentionModuleOptions::default();
    let (q, k, v) = ([2, 3, 4, 8], [2, 3, 5, 8], [2, 3, 5, 6]);
    let check = |found: &str, body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(found);
        match take_last_error() {
            Some(error @ RocmError::Invalid { op: "attention", .. }) => {
                assert!(error.to_string().contains(found), "{error} does not name {found}");
            }
            other => panic!("{found}: {other:?}"),
        }
    };
    let run = |q, k, v| R::attention(q, k, v, None, None, plain);
    check("[2, 3, 4]", &|| run(zeros(&[2, 3, 4]), zeros(&k), zeros(&v)));
    check("[2, 3, 5, 7]", &|| run(zeros(&q), zeros(&[2, 3, 5, 7]), zeros(&v)));
    check("[2]", &|| run(zeros(&q), zeros(&[2, 2, 5, 8]), zeros(&v)));
    check("[2, 2, 5, 8]", &|| run(zeros(&q), zeros(&[2, 2, 5, 8]), zeros(&[2, 2, 5, 6])));
    check("[4]", &|| run(zeros(&q), zeros(&k), zeros(&[4, 3, 5, 6])));
    check("[2, 3, 4, 6]", &|| run(zeros(&q), zeros(&k), zeros(&[2, 3, 4, 6])));
    check("[2, 3, 4, 0]", &|| run(zeros(&[2, 3, 4, 0]), zeros(&[2, 3, 5, 0]), zeros(&v)));
    check("f16", &|| run(zeros(&q), half(&k), zeros(&v)));
    let with = |mask, bias, options| R::attention(zeros(&q), zeros(&k), zeros(&v), mask, bias, options);
    check("[2, 3, 4, 4]", &|| with(Some(hide(&[2, 3, 4, 4])), None, plain));
    check("[4, 5]", &|| with(Some(hide(&[4, 5])), None, plain));
    check("[2, 3, 5, 5]", &|| with(None, Some(zeros(&[2, 3, 5, 5])), plain));
    check("f16", &|| with(None, Some(half(&[2, 3, 4, 5])), plain));
    let softcapped = |softcap| AttentionModuleOptions { softcap: Some(softcap), ..plain };
    // f32 rounds the last one to 0, and f64 does not.
    for softcap in [0.0, -1.0, f64::NAN, 1e-50] {
        check("softcap", &|| with(None, None, softcapped(softcap)));
    }
    let double = |shape: &[usize]| R::float_cast(zeros(shape), FloatDType::F64);
    R::attention(double(&q), double(&k), double(&v), None, None, softcapped(1e-50));
}
