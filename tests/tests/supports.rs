//! `fused::supports` says what then computes each op, by the trace, forward and backward.
//!
//! Each test runs with several settings, in processes of their own: natively and in lockstep, which
//! has matrix cores.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::fused::optim::{Clip, Rule, Sgd, State, Step};
use burn_rocm::fused::{
    self, Act, AttentionInferenceOptions, AttentionOptions, AttentionPath, By, ClassScores, ClassTargets,
    FusedOp, Support, supports,
};
use burn_rocm::{RocmDevice, RocmError, RocmTensor};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

const CHILD: &str = "BURN_ROCM_TEST_SUPPORTS_CHILD";

/// Runs `body` in a process for each of some environments.
#[track_caller]
fn with_settings(test: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let wave = ("BURN_ROCM_CPU_WAVE", "32");
    let cpu = ("BURN_ROCM_PROVIDER", "cpu");
    let environments: [&[(&str, &str)]; 8] = [
        &[cpu],
        &[cpu, wave],
        &[cpu, wave, ("BURN_ROCM_MATRIX_CORES", "0")],
        &[cpu, ("BURN_ROCM_NORM", "own"), ("BURN_ROCM_ATTENTION_SCORES", "4K")],
        &[cpu, ("BURN_ROCM_NORM", "miopen")],
        &[cpu, wave, ("BURN_ROCM_DETERMINISTIC", "1"), ("BURN_ROCM_CHAIN", "0")],
        &[cpu, ("BURN_ROCM_CPU_FAIL", "miopenCreateWithStream")],
        &[cpu, ("BURN_ROCM_HIPBLASLT", "on")],
    ];
    for environment in environments {
        let mut all: Vec<_> = hip::SETTINGS.iter().map(|setting| (setting.variable, "")).collect();
        all.extend([(CHILD, "1"), ("BURN_ROCM_CPU_WAVE", "")]);
        all.extend_from_slice(environment);
        again(&["--exact", test, "--nocapture"], &all);
    }
}

fn tensor(random: &Random, shape: &[usize], dtype: DType) -> RocmTensor {
    float(random, shape, dtype, View::Contiguous, -1.0, 1.0).float::<R>(&Default::default())
}

/// What the trace shows: a library, or kernels of this project.
fn seen(lines: &[String]) -> Option<By> {
    let work: Vec<_> = lines.iter().filter(|line| !line.ends_with("nothing launched")).collect();
    let has = |text: &str| work.iter().any(|line| line.contains(text));
    if work.is_empty() {
        None
    } else if has("miopen") {
        Some(By::Miopen)
    } else if has("kernel attention_matrix") {
        Some(By::MatrixCores)
    } else if work.iter().all(|line| line.contains("kernel chain<")) {
        Some(By::SharedLaunch)
    } else {
        Some(By::Kernel)
    }
}

/// What the trace shows of attention, whose composed path has other kernels than the tiled one.
fn seen_of_attention(lines: &[String]) -> Option<By> {
    let tiled = [
        "kernel attention<",
        "kernel attention_f32",
        "kernel attention_window<",
        "kernel attention_backward_",
    ];
    match seen(lines) {
        Some(By::Kernel) if !lines.iter().any(|line| tiled.iter().any(|name| line.contains(name))) => {
            Some(By::Composed)
        }
        other => other,
    }
}

/// Asserts that an op does what `supports` said. `run` gives the trace's lines of the op, and of
/// its gradient if it has one.
#[track_caller]
fn check(
    op: &FusedOp,
    dtype: DType,
    shape: &[usize],
    of: fn(&[String]) -> Option<By>,
    run: impl FnOnce() -> Result<[Vec<String>; 2], RocmError>,
) -> Support {
    let (said, launched) = during(|| supports(op, &RocmDevice::default(), dtype, shape).unwrap());
    assert!(launched.is_empty(), "{op:?}: {launched:#?}");
    let what = format!("{op:?} of {} {shape:?}: {said:?}", dtype.name());
    match run() {
        Ok([forward, backward]) => {
            assert_eq!(said.forward, of(&forward), "{what}\n{forward:#?}");
            assert_eq!(said.backward, of(&backward), "{what}\n{backward:#?}");
        }
        Err(RocmError::Unsupported { .. }) => {
            assert_eq!((said.forward, said.backward), (None, None), "{what}")
        }
        Err(error) => panic!("{what}: {error}"),
    }
    said
}

/// The lines of both passes; the second gets the first's result.
fn passes<T>(
    forward: impl FnOnce() -> Result<T, RocmError>,
    backward: impl FnOnce(T) -> Result<(), RocmError>,
) -> Result<[Vec<String>; 2], RocmError> {
    let (result, first) = during(forward);
    let (result, second) = during(|| backward(result?));
    result?;
    Ok([first, second])
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The dtypes that parameters of a norm may have.
fn parameters(dtype: DType) -> Vec<DType> {
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    if wide == dtype { vec![dtype] } else { vec![dtype, wide] }
}

#[test]
fn norms_over_rows() {
    with_settings("norms_over_rows", || {
        let random = Random::new();
        for (dtype, shape) in FLOATS.into_iter().flat_map(|dtype| [(dtype, [6, 40]), (dtype, [3, 7])]) {
            for parameters in parameters(dtype) {
                let x = || tensor(&random, &shape, dtype);
                let row = || tensor(&random, &shape[1..], parameters);
                let layer = FusedOp::LayerNorm { parameters };
                let (a, gamma, beta, grad) = (x(), row(), row(), x());
                check(&layer, dtype, &shape, seen, || {
                    let of = (a.clone(), gamma.clone());
                    passes(
                        || fused::layer_norm(a, gamma, Some(beta), 1e-5),
                        |_| fused::layer_norm_backward(of.0, of.1, grad, None, 1e-5, true).map(|_| ()),
                    )
                });
                let (a, gamma, grad) = (x(), row(), x());
                check(&FusedOp::RmsNorm { parameters }, dtype, &shape, seen, || {
                    let of = (a.clone(), gamma.clone());
                    passes(
                        || fused::rms_norm(a, gamma, 1e-5),
                        |_| fused::rms_norm_backward(of.0, of.1, grad, None, 1e-5, true).map(|_| ()),
                    )
                });
            }
        }
    });
}

#[test]
fn norms_over_channels() {
    with_settings("norms_over_channels", || {
        let random = Random::new();
        let shapes: [&[usize]; 4] = [&[2, 32, 2, 2], &[2, 32, 1, 3], &[66, 32], &[1, 32, 1]];
        for (dtype, shape) in FLOATS.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
            let x = || tensor(&random, shape, dtype);
            for parameters in parameters(dtype) {
                let channel = || tensor(&random, &shape[1..2], parameters);
                let (a, gamma, beta, grad) = (x(), channel(), channel(), x());
                let running = [channel(), channel()];
                check(&FusedOp::BatchNorm, dtype, shape, seen, || {
                    let of = (a.clone(), gamma.clone());
                    passes(
                        || fused::batch_norm_train(a, gamma, beta, running, 0.1, 1e-5),
                        |done| {
                            fused::batch_norm_backward(of.0, of.1, done.statistics, grad, 1e-5).map(|_| ())
                        },
                    )
                });
                let (a, all) = (x(), [(); 4].map(|()| channel()));
                check(&FusedOp::BatchNormInference, dtype, shape, seen, || {
                    let [gamma, beta, mean, variance] = all;
                    passes(|| fused::batch_norm_infer(a, gamma, beta, [mean, variance], 1e-5), |_| Ok(()))
                });
                for (groups, has) in [(32, true), (4, true), (32, false)] {
                    let op = FusedOp::GroupNorm { groups, parameters: has.then_some(parameters) };
                    let (a, grad) = (x(), x());
                    let affine = has.then(|| [channel(), channel()]);
                    check(&op, dtype, shape, seen, || {
                        let of = (a.clone(), affine.as_ref().map(|[gamma, _]| gamma.clone()));
                        passes(
                            || fused::group_norm(a, affine, groups, 1e-5),
                            |_| fused::group_norm_backward(of.0, of.1, grad, groups, 1e-5, has).map(|_| ()),
                        )
                    });
                }
            }
        }
    });
}

#[test]
fn attention_with_and_without_a_gradient() {
    with_settings("attention_with_and_without_a_gradient", || {
        let random = Random::new();
        let plain = AttentionOptions::default();
        let cases = [
            // Queries, keys, features, values, options.
            (33, 40, 16, 16, plain),
            (8, 40, 16, 16, plain),
            (40, 40, 72, 136, plain),
            (33, 20, 264, 8, plain),
            (64, 64, 8, 8, AttentionOptions { causal: true, window: Some(4), ..plain }),
            (70, 70, 8, 8, AttentionOptions { causal: true, ..plain }),
            (33, 40, 16, 16, AttentionOptions { path: AttentionPath::Composed, ..plain }),
            (8, 40, 16, 16, AttentionOptions { path: AttentionPath::Tiled, ..plain }),
            (33, 40, 16, 16, AttentionOptions { scores: Some(0), ..plain }),
        ];
        let mut found = Vec::new();
        for (dtype, (queries, keys, width, values, options)) in
            FLOATS.into_iter().flat_map(|dtype| cases.map(|case| (dtype, case)))
        {
            let (heads, key_heads) = (4, 2);
            let shape = [2, heads, queries, width];
            let q = tensor(&random, &shape, dtype);
            let k = tensor(&random, &[2, key_heads, keys, width], dtype);
            let v = tensor(&random, &[2, key_heads, keys, values], dtype);
            let grad = tensor(&random, &[2, heads, queries, values], dtype);
            let op = FusedOp::Attention { key_heads, keys, values, options };
            let said = check(&op, dtype, &shape, seen_of_attention, || {
                passes(
                    || fused::attention(q.clone(), k.clone(), v.clone(), None, &options),
                    |done| {
                        let inputs = [q.clone(), k.clone(), v.clone()];
                        let wanted = [true; 3];
                        fused::attention_backward(inputs, None, done.kept, grad, &options, wanted).map(|_| ())
                    },
                )
            });
            found.push(said.forward);
            let options = AttentionInferenceOptions {
                causal: options.causal,
                window: options.window,
                ..Default::default()
            };
            let op = FusedOp::AttentionInference { key_heads, keys, values, options };
            check(&op, dtype, &shape, seen_of_attention, || {
                passes(|| fused::attention_inference(q, k, v, None, None, &options), |_| Ok(()))
            });
        }
        // The cases reach every implementation that these settings allow.
        let lockstep = std::env::var_os("BURN_ROCM_CPU_WAVE").is_some_and(|wave| !wave.is_empty());
        let off = std::env::var("BURN_ROCM_MATRIX_CORES").is_ok_and(|value| value == "0");
        assert_eq!(found.contains(&Some(By::MatrixCores)), lockstep && !off);
        assert!(found.contains(&Some(By::Kernel)) && found.contains(&Some(By::Composed)));
    });
}

#[test]
fn what_is_always_kernels_of_this_project() {
    with_settings("what_is_always_kernels_of_this_project", || {
        let random = Random::new();
        for dtype in FLOATS {
            let shape = [5, 40];
            let (x, grad) = (tensor(&random, &shape, dtype), tensor(&random, &shape, dtype));
            check(&FusedOp::Softmax, dtype, &shape, seen, || {
                passes(
                    || fused::softmax(x.clone(), 1),
                    |y| fused::softmax_backward(y, grad.clone(), 1).map(|_| ()),
                )
            });
            let bias = tensor(&random, &[40], dtype);
            check(&FusedOp::Activation, dtype, &shape, seen, || {
                passes(
                    || fused::bias_act(Act::Gelu, x.clone(), Some(bias.clone()), 1),
                    |_| {
                        let bias = Some(bias.clone());
                        fused::bias_act_backward(Act::Gelu, x.clone(), bias, grad.clone(), 1, true)
                            .map(|_| ())
                    },
                )
            });
            let targets =
                int(&random, &[5], DType::I32, View::Contiguous, 0, 40).int::<R>(&Default::default());
            let of =
                ClassTargets { scores: ClassScores::Logits, targets, smoothing: None, pad_tokens: vec![1] };
            let one = tensor(&random, &[1], dtype);
            check(&FusedOp::CrossEntropy { pad_tokens: 1 }, dtype, &shape, seen, || {
                passes(
                    || fused::cross_entropy(x.clone(), None, &of),
                    |(_, saved)| fused::cross_entropy_backward(x.clone(), None, &of, &saved, one).map(|_| ()),
                )
            });
            let rule = Rule::Sgd(Sgd { lr: 0.1, penalty: 0.0, momentum: None });
            check(&FusedOp::Optimizer, dtype, &shape, seen, || {
                let run = || {
                    let mut step = Step::new(rule, Clip::None);
                    step.add(x.clone(), grad.clone(), &mut State::default())?;
                    step.run()
                };
                passes(run, |()| Ok(()))
            });
        }
    });
}

/// Which kernel adds the gradients of a table's rows is said too.
#[test]
fn embeddings() {
    with_settings("embeddings", || {
        let random = Random::new();
        for dtype in FLOATS {
            let shape = [9, 20];
            let (table, grad) = (tensor(&random, &shape, dtype), tensor(&random, &[2, 3, 20], dtype));
            let rows =
                int(&random, &[2, 3], DType::I32, View::Contiguous, 0, 9).int::<R>(&Default::default());
            let mut lines = Vec::new();
            let said = check(&FusedOp::Embedding, dtype, &shape, seen, || {
                let both = passes(
                    || Ok(R::embedding(table.clone(), rows.clone())),
                    |_| {
                        R::embedding_backward(table.clone(), grad, rows.clone());
                        Ok(())
                    },
                )?;
                lines.clone_from(&both[1]);
                Ok(both)
            });
            let atomics = lines.iter().any(|line| line.contains("kernel scatter<"));
            assert_eq!(atomics, said.reason.contains("atomics"), "{said:?} {lines:#?}");
        }
    });
}

/// What the trace shows of a linear layer.
fn seen_of_linear(lines: &[String]) -> Option<By> {
    let joined = lines.iter().any(|line| line.contains("hipblasLtMatmul"));
    Some(if joined { By::HipblasLt } else { By::Composed })
}

#[test]
fn linear_layers() {
    with_settings("linear_layers", || {
        let random = Random::new();
        for (dtype, rows) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 6), (dtype, 1), (dtype, 0)]) {
            let (inner, outputs) = (24, 16);
            let tensor = |shape: &[usize]| tensor(&random, shape, dtype);
            let (x, weight, bias) = (tensor(&[rows, inner]), tensor(&[inner, outputs]), tensor(&[outputs]));
            let (onto, grad) = (tensor(&[rows, outputs]), tensor(&[rows, outputs]));
            let said = check(&FusedOp::Linear { outputs }, dtype, &[rows, inner], seen_of_linear, || {
                let of = (x.clone(), weight.clone());
                passes(
                    || fused::linear_add(onto, x, weight, bias),
                    |_| fused::linear_backward(of.0, of.1, grad, [false, true, true]).map(|_| ()),
                )
            });
            let joins = std::env::var("BURN_ROCM_HIPBLASLT").is_ok_and(|mode| mode == "on");
            assert_eq!(
                said.forward == Some(By::HipblasLt),
                joins && dtype != DType::F64 && rows > 0,
                "{said:?}"
            );
            assert_eq!(said.reason.is_empty(), said.forward == Some(By::HipblasLt), "{said:?}");
        }
    });
}

#[test]
fn element_wise_ops_share_launches() {
    with_settings("element_wise_ops_share_launches", || {
        let device = RocmDevice::default();
        for dtype in FLOATS {
            for shape in [[8, 16], [0, 16], [1 << 11, 1 << 11]] {
                let [a, b] = [(); 2].map(|()| R::float_ones(shape.into(), &device, dtype.into()));
                let said = supports(&FusedOp::ElementWise, &device, dtype, &shape).unwrap();
                let (_, lines) = during(|| R::float_add(a, b));
                let shared = seen(&lines).filter(|&by| by == By::SharedLaunch);
                assert_eq!((said.forward, said.backward), (shared, shared), "{said:?} {lines:#?}");
            }
        }
    });
}

#[test]
fn what_an_op_refuses_is_refused() {
    let ask = |op, dtype, shape: &[usize]| supports(&op, &RocmDevice::default(), dtype, shape);
    for (op, shape) in [
        (FusedOp::LayerNorm { parameters: DType::F32 }, &[][..]),
        (FusedOp::BatchNorm, &[3]),
        (FusedOp::GroupNorm { groups: 3, parameters: None }, &[2, 4]),
        (FusedOp::GroupNorm { groups: 0, parameters: None }, &[2, 4]),
        (FusedOp::CrossEntropy { pad_tokens: fused::MAX_PAD_TOKENS + 1 }, &[2, 4]),
        (FusedOp::CrossEntropy { pad_tokens: 0 }, &[2, 4, 5]),
        (FusedOp::Embedding, &[2]),
        (FusedOp::Linear { outputs: 3 }, &[]),
        (FusedOp::Softmax, &[usize::MAX, 2]),
        (FusedOp::Softmax, &[usize::MAX / 2, 1]),
    ] {
        let error = ask(op.clone(), DType::F32, shape).unwrap_err();
        assert!(matches!(error, RocmError::Invalid { .. }), "{op:?}: {error}");
    }
    let attention = |key_heads, options| FusedOp::Attention { key_heads, keys: 9, values: 8, options };
    let window = AttentionOptions { window: Some(0), ..Default::default() };
    for op in [attention(3, Default::default()), attention(4, window)] {
        let error = ask(op.clone(), DType::F32, &[1, 4, 9, 8]).unwrap_err();
        assert!(matches!(error, RocmError::Invalid { .. }), "{op:?}: {error}");
    }
    // A dtype that the op does not have is an answer.
    let answer = ask(FusedOp::Softmax, DType::I32, &[2, 3]).unwrap();
    assert_eq!((answer.forward, answer.backward), (None, None));
    assert!(answer.reason.contains("i32"), "{answer:?}");
}
