//! The op alone: self-attention with packed weights, in every float type, on either path.

use burn_rocm::fused::{
    AttentionDropout, AttentionOptions, AttentionPath, Projections, self_attention, self_attention_backward,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::{
    Backend, BoolTensorOps, FLOATS, FloatTensorOps, R, Shape, assert_close, read_bool, read_float,
};

use crate::attention_formulas::{Layer, SelfAttention, turned};
use crate::bounded::{Bounded, assert_bounded, assert_wrong_fails, exact};
use crate::support::*;

fn on_device(data: &TensorData, dtype: DType) -> RocmTensor {
    R::float_from_data(data.clone().convert_dtype(dtype), &Default::default())
}

fn drawn(random: &Random, shape: &[usize], dtype: DType) -> RocmTensor {
    on_device(&multiples(random, shape, 4, 0.25), dtype)
}

/// One call: sequence, batch, d_model, heads, features of a head.
struct Call {
    x: RocmTensor,
    projections: Projections,
    mask: Option<RocmTensor>,
    grad: RocmTensor,
}

impl Call {
    fn new(random: &Random, [sequence, batch, d_model, heads, d_k]: [usize; 5], dtype: DType) -> Self {
        let width = heads * d_k;
        let draw = |shape: &[usize]| drawn(random, shape, dtype);
        // Small, so that bf16 represents most scores exactly and the limits stay narrow.
        let small = |shape: &[usize]| on_device(&multiples(random, shape, 1, 0.25), dtype);
        let hidden: Vec<bool> = (0..batch * sequence).map(|_| random.uniform(0.0, 1.0) < 0.3).collect();
        let mask = TensorData::new(hidden, [batch, 1, 1, sequence]);
        Self {
            x: draw(&[sequence, batch, d_model]),
            projections: Projections {
                weights: [(); 3].map(|()| small(&[d_model, width])),
                biases: [(); 3].map(|()| small(&[width])),
                heads,
            },
            mask: Some(R::bool_from_data(mask, &Default::default())),
            grad: draw(&[sequence, batch, width]),
        }
    }

    /// The output, and the wanted gradients of tokens, weights and biases.
    fn run(&self, options: &AttentionOptions, wanted: [bool; 3]) -> Vec<Option<TensorData>> {
        let Self { x, projections, mask, grad } = self;
        let attended = self_attention(x.clone(), projections.clone(), mask.clone(), options).unwrap();
        let (heads, kept) = (projections.heads, attended.kept);
        let found =
            self_attention_backward(x.clone(), heads, mask.clone(), kept, grad.clone(), options, wanted)
                .unwrap();
        let three = |of: Option<[RocmTensor; 3]>| of.map_or([None, None, None], |of| of.map(Some));
        [Some(attended.out), found.tokens]
            .into_iter()
            .chain(three(found.weights))
            .chain(three(found.biases))
            .map(|tensor| tensor.map(read_float::<R>))
            .collect()
    }

    /// The expected results of [`run`](Self::run), from the formulas.
    fn expected(&self, options: &AttentionOptions, dtype: DType) -> Vec<Vec<Bounded>> {
        let read = |tensor: &RocmTensor| exact(read_float::<R>(tensor.clone()).iter::<f64>());
        let Self { x, projections: Projections { weights, biases, heads }, mask, grad } = self;
        let [sequence, batch, d_model] = <[usize; 3]>::try_from(x.dims()).unwrap();
        let width = grad.dims()[2];
        let layers: [Layer; 3] =
            std::array::from_fn(|k| Layer { weight: read(&weights[k]), bias: read(&biases[k]) });
        let hidden = read_bool::<R>(mask.clone().unwrap());
        let all = SelfAttention {
            x: &turned(&read(x), [sequence, batch, d_model]),
            batch,
            heads: *heads,
            layers: layers.each_ref(),
            output: None,
            grad: &turned(&read(grad), [sequence, batch, width]),
            hidden: &hidden.iter::<bool>().collect::<Vec<_>>(),
            options,
        }
        .expected(dtype);
        let [out, by_x, wq, bq, wk, bk, wv, bv] = <[_; 8]>::try_from(all).ok().unwrap();
        let out = turned(&out, [batch, sequence, width]);
        vec![out, turned(&by_x, [batch, sequence, d_model]), wq, wk, wv, bq, bk, bv]
    }
}

fn all(found: Vec<Option<TensorData>>) -> Vec<TensorData> {
    found.into_iter().map(Option::unwrap).collect()
}

/// The indices of the gradients of the queries' and the keys' biases. The latter gradient is 0 or
/// small, because a softmax does not depend on a term that all its scores share. The former has
/// only a few elements, whose terms cancel, so in 16 bits its limits may hide it.
const QUERY_BIAS: usize = 5;
const KEY_BIAS: usize = 6;

/// Compares either path, in every float type, with the formulas.
#[test]
fn either_path_in_every_float_type() {
    let random = Random::new();
    for sizes in [[9, 5, 8, 2, 3], [33, 2, 5, 1, 4], [1, 7, 4, 3, 1], [40, 1, 6, 2, 5]] {
        for dtype in FLOATS {
            let call = Call::new(&random, sizes, dtype);
            for (causal, quiet) in fewer([(false, false), (true, false), (false, true)], 3, &random) {
                for path in [AttentionPath::Composed, AttentionPath::Tiled] {
                    let options = AttentionOptions {
                        causal,
                        quiet,
                        dropout: causal.then_some(AttentionDropout { prob: 0.3, seed: 5, call: 7 }),
                        path,
                        fill: -1e4,
                        ..Default::default()
                    };
                    let found = all(call.run(&options, [true; 3]));
                    let what = format!("{sizes:?} {dtype:?} causal {causal} quiet {quiet} {path:?}");
                    assert!(found.iter().all(|data| data.dtype == dtype), "{what}");
                    let expected = call.expected(&options, dtype);
                    assert_bounded(&what, &found, &expected);
                    // With one key the softmax is 1, whatever queries and keys are.
                    let scored = sizes[0] > 1;
                    let wide = matches!(dtype, DType::F32 | DType::F64);
                    for (result, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        if scored && result != KEY_BIAS && (wide || result != QUERY_BIAS) {
                            assert_wrong_fails(&format!("{what}, result {result}"), found, expected);
                        }
                    }
                }
            }
        }
    }
}

/// A gradient that is not wanted is absent and does not affect the others. If none is wanted,
/// nothing runs.
#[test]
fn only_wanted_gradients() {
    let call = Call::new(&Random::new(), [9, 5, 8, 2, 3], DType::F32);
    let options = AttentionOptions::default();
    let whole = call.run(&options, [true; 3]);
    for wanted in [[true, false, false], [false, true, false], [false, false, true], [false; 3]] {
        let found = call.run(&options, wanted);
        let is = |at: usize| match at {
            0 => true,
            1 => wanted[0],
            2..5 => wanted[1],
            _ => wanted[2],
        };
        for (at, (found, whole)) in found.into_iter().zip(&whole).enumerate() {
            assert_eq!(found.is_some(), is(at), "{wanted:?}, {at}");
            if let (Some(found), Some(whole)) = (found, whole) {
                assert_close(&format!("{at}"), &[found], std::slice::from_ref(whole), Tolerance::EXACT);
            }
        }
    }
}

#[test]
fn views_and_weights_of_columns() {
    let random = Random::new();
    let call = Call::new(&random, [9, 5, 8, 2, 3], DType::F32);
    let options = AttentionOptions::default();
    let expected = all(call.run(&options, [true; 3]));
    let turned = |tensor: &RocmTensor, a, b| {
        let there = R::float_swap_dims(tensor.clone(), a, b);
        let shape = Shape::from(there.dims().to_vec());
        let flat = R::float_reshape(there, Shape::from([tensor.len()]));
        R::float_swap_dims(R::float_reshape(flat, shape), a, b)
    };
    let views = Call {
        x: turned(&call.x, 0, 1),
        projections: Projections {
            weights: call.projections.weights.each_ref().map(|weight| turned(weight, 0, 1)),
            ..call.projections.clone()
        },
        mask: call.mask.clone(),
        grad: turned(&call.grad, 0, 2),
    };
    assert!(!views.x.is_contiguous() && !views.projections.weights[0].is_contiguous());
    let tolerance = Tolerance::of(DType::F32).times(30.0);
    assert_close(&"views", &all(views.run(&options, [true; 3])), &expected, tolerance);
}

#[test]
fn empty_sizes() {
    for path in [AttentionPath::Composed, AttentionPath::Tiled] {
        let options = AttentionOptions { path, ..AttentionOptions::default() };
        for sizes in [[0, 3, 4, 2, 2], [3, 0, 4, 2, 2], [35, 2, 0, 2, 2]] {
            let call = Call::new(&Random::new(), sizes, DType::F32);
            let [sequence, batch, d_model, ..] = sizes;
            let found = all(call.run(&options, [true; 3]));
            assert_eq!(found[0].shape.as_slice(), [sequence, batch, 4]);
            assert_eq!(found[1].shape.as_slice(), [sequence, batch, d_model]);
            for (k, data) in found[2..].iter().enumerate() {
                let shape = if k < 3 { vec![d_model, 4] } else { vec![4] };
                assert_eq!(data.shape.as_slice(), shape);
                assert!(d_model == 0 || data.iter::<f32>().all(|value| value == 0.0), "{sizes:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let zeros = |shape: &[usize]| -> RocmTensor {
        R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), DType::F32.into())
    };
    let options = AttentionOptions::default();
    let of = |heads, weight: &[usize], bias: &[usize]| Projections {
        weights: [zeros(&[6, 4]), zeros(&[6, 4]), zeros(weight)],
        biases: [zeros(&[4]), zeros(bias), zeros(&[4])],
        heads,
    };
    let check = |found: &str, result: Result<(), RocmError>| match result {
        Err(error @ (RocmError::Invalid { .. } | RocmError::Unsupported { .. })) => {
            assert!(error.to_string().contains(found), "{error} does not name {found}");
        }
        other => panic!("{found}: {other:?}"),
    };
    let run = |x, projections, mask| self_attention(x, projections, mask, &options).map(|_| ());
    let x = || zeros(&[3, 2, 6]);
    check("[3, 12]", run(zeros(&[3, 12]), of(2, &[6, 4], &[4]), None));
    check("[6, 5]", run(x(), of(2, &[6, 5], &[4]), None));
    check("[5]", run(x(), of(2, &[6, 4], &[5]), None));
    for heads in [0, 3] {
        check(&heads.to_string(), run(x(), of(heads, &[6, 4], &[4]), None));
    }
    check("f16", run(R::float_cast(x(), DType::F16.into()), of(2, &[6, 4], &[4]), None));
    check("f32", run(x(), of(2, &[6, 4], &[4]), Some(zeros(&[2, 1, 3, 3]))));
    let ints = || -> RocmTensor { R::float_into_int(zeros(&[6, 4]), burn_rocm_tests::IntDType::I32) };
    let whole = Projections { weights: [ints(), ints(), ints()], biases: [ints(), ints(), ints()], heads: 2 };
    check("i32", run(ints(), whole, None));
    let back = |x: RocmTensor, heads, kept, grad| {
        self_attention_backward(x, heads, None, kept, grad, &options, [true; 3]).map(|_| ())
    };
    let kept = || self_attention(x(), of(2, &[6, 4], &[4]), None, &options).unwrap().kept;
    check("[3, 2, 5]", back(x(), 2, kept(), zeros(&[3, 2, 5])));
    check("[3, 1, 4]", back(x(), 2, kept(), zeros(&[3, 1, 4])));
    check("fewer", back(x(), 2, vec![], zeros(&[3, 2, 4])));
    check("[6, 12]", back(zeros(&[3, 2, 7]), 2, kept(), zeros(&[3, 2, 4])));
    check("3", back(x(), 3, kept(), zeros(&[3, 2, 4])));
    R::sync(&Default::default()).unwrap();
}
