//! Plain attention in f32 of more than 64 queries and of 65 to 128 features, against the formulas
//! in f64. On a device with enough shared memory its kernels keep operands there. In lockstep,
//! blocks have as much as on an H100 only if `BURN_ROCM_CPU_SHARED` says so, as
//! `lockstep_has_the_kernels_that_keep_operands` does.

use burn_rocm::fused::{AttentionOptions, AttentionPath, attention, attention_backward};
use burn_rocm_tests::attention::keeps_operands;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::{R, again, read_float};

use crate::attention_formulas::{Case, Given, case, expected};
use crate::attention_fused::{Lies, on_device};
use crate::attention_grouped::keys_outside_the_windows;
use crate::bounded::{Bounded, assert_bounded, exact};
use crate::support::*;

/// Odd lengths; more queries than keys, and fewer; heads that share keys; features that are no
/// whole stage of a copy; few features with many values, and many with few.
const CASES: &[Case] = &[
    case([1, 4, 131, 77, 100, 124]).grouped(2),
    case([2, 1, 65, 201, 128, 128]),
    case([1, 2, 200, 131, 68, 68]),
    case([1, 1, 129, 63, 124, 12]),
    case([1, 4, 70, 130, 12, 100]).grouped(4),
];

/// Causal or not, and the window.
const WINDOWS: &[(bool, Option<usize>)] =
    &[(false, None), (true, None), (true, Some(33)), (false, Some(50)), (true, Some(1))];

fn options(causal: bool, window: Option<usize>) -> AttentionOptions {
    AttentionOptions { causal, window, path: AttentionPath::Tiled, ..Default::default() }
}

/// The output, and the gradients of queries, keys and values.
fn run(inputs: [&TensorData; 4], options: &AttentionOptions) -> [TensorData; 4] {
    let [q, k, v, grad] = inputs.map(|data| on_device(data, DType::F32, Lies::Packed));
    let attended = attention(q.clone(), k.clone(), v.clone(), None, options).unwrap();
    let grads = attention_backward([q, k, v], None, attended.kept, grad, options, [true; 3]).unwrap();
    let [by_q, by_k, by_v] = grads.map(|grad| read_float::<R>(grad.unwrap()));
    [read_float::<R>(attended.out), by_q, by_k, by_v]
}

#[test]
fn results_and_gradients() {
    let random = Random::new();
    for &case in CASES {
        let Case { batch, heads, queries, keys, width, values, group, .. } = case;
        let shared = heads / group;
        for (causal, window) in fewer(WINDOWS.iter().copied(), 3, &random) {
            let options = options(causal, window);
            let draw = |shape: [usize; 4]| uniform(&random, &shape).convert_dtype(DType::F32);
            let (q, k) = (draw([batch, heads, queries, width]), draw([batch, shared, keys, width]));
            let (v, grad) = (draw([batch, shared, keys, values]), draw([batch, heads, queries, values]));
            let [rq, rk, rv, rg] = [&q, &k, &v, &grad].map(|data| exact(data.iter::<f64>()));
            let given = Given {
                case,
                q: &rq,
                k: &rk,
                v: &rv,
                grad: &rg,
                weights_grad: &vec![Bounded::default(); batch * heads * queries * keys],
                mask: None,
                options: &options,
            };
            let expected = expected(&given, DType::F32);
            let [by_q, by_k, by_v] = expected.grads;
            let what = format!("{case:?} {options:?}");
            let found = run([&q, &k, &v, &grad], &options);
            assert_bounded(&what, &found, &[expected.out, by_q, by_k, by_v]);
        }
    }
}

/// A query of NaN gives a row of NaN, and changes no other row's result or gradient.
#[test]
fn a_row_of_nan_stays_alone() {
    let (random, heads, queries, keys, width) = (Random::new(), 2, 140, 90, 100);
    let [q, grad] = [(); 2].map(|()| uniform(&random, &[1, heads, queries, width]));
    let [k, v] = [(); 2].map(|()| uniform(&random, &[1, heads, keys, width]));
    let row = random.below(heads * queries);
    let with_nan = q.iter::<f64>().enumerate().map(|(at, x)| if at / width == row { f64::NAN } else { x });
    let with_nan = TensorData::new(with_nan.collect::<Vec<_>>(), q.shape.clone());
    let options = options(false, None);
    let [out, by_q, ..] = run([&q, &k, &v, &grad], &options);
    let [found, found_by_q, ..] = run([&with_nan, &k, &v, &grad], &options);
    for (found, expected) in [(found, out), (found_by_q, by_q)] {
        for (at, (found, expected)) in found.iter::<f64>().zip(expected.iter::<f64>()).enumerate() {
            if at / width == row {
                assert!(found.is_nan(), "{found} in row {row}");
            } else {
                assert_eq!(found, expected, "row {}, NaN in {row}", at / width);
            }
        }
    }
}

#[test]
fn unseen_keys_are_not_read() {
    keys_outside_the_windows(96, &[DType::F32]);
}

#[test]
fn lockstep_has_the_kernels_that_keep_operands() {
    for wave in ["32", "64"] {
        let shared = ("BURN_ROCM_CPU_SHARED", "232448");
        let environment = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", wave), shared];
        let tests = ["attention_kept::", "attention_fused::gradients_in_f32", "--skip", "lockstep"];
        again(&tests, &environment);
    }
}

/// The setting of the test above has its effect.
#[test]
fn shared_memory_chooses_the_kernels() {
    if std::env::var_os("BURN_ROCM_CPU_SHARED").is_some() {
        assert!(keeps_operands());
    }
}
