//! Gradients of convolutions whose channels are last are reduced in that order, once the ranks have
//! agreed on it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{DType, FloatDType};
use burn_rocm::fused::is_channels_last;
use burn_rocm::graph::{Graph, WARM_UPS};
use burn_rocm::trace::counting;
use burn_rocm::{bf16, take_last_error};
use burn_rocm_nn::parallel::Share;
use burn_rocm_tests::Random;

use crate::*;

/// The reductions before the ranks agree.
const BEFORE: usize = 2;
const STEPS: usize = 7;

/// With buckets of 1000 bytes, `wide` is reduced in its own memory. The others are packed.
#[derive(Module, Debug)]
struct Weights<B: Backend> {
    wide: Param<Tensor<B, 4>>,
    narrow: Param<Tensor<B, 4>>,
    bias: Param<Tensor<B, 1>>,
}

const WIDE: [usize; 4] = [16, 8, 3, 3];
const NARROW: [usize; 4] = [8, 8, 1, 2];

fn weights(device: &RocmDevice) -> Weights<B> {
    let options = || (device, DType::BF16);
    Weights {
        wide: Param::from_tensor(Tensor::ones(WIDE, options()).require_grad()),
        narrow: Param::from_tensor(Tensor::ones(NARROW, options()).require_grad()),
        bias: Param::from_tensor(Tensor::ones([5], options()).require_grad()),
    }
}

/// Numbers of a shape whose mean over four ranks bf16 holds exactly: multiples of 4 below 64.
fn numbers(random: &Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * (random.below(31) as f32 - 15.0)).collect()
}

/// A gradient with these numbers, in row-major order or with its channels last.
fn gradient(
    [o, i, h, w]: [usize; 4],
    numbers: Vec<f32>,
    last: bool,
    device: &RocmDevice,
) -> Tensor<Inner, 4> {
    let tensor = Tensor::from_data(TensorData::new(numbers, [o, i, h, w]), (device, DType::BF16));
    if !last {
        return tensor;
    }
    let rows = tensor.permute([0, 2, 3, 1]).into_data();
    Tensor::<Inner, 4>::from_data(rows, (device, DType::BF16)).permute([0, 3, 1, 2])
}

/// Gradients of ones with channels last.
fn all(net: &Weights<B>, device: &RocmDevice) -> GradientsParams {
    let mut grads = GradientsParams::new();
    grads.register(net.wide.id, gradient(WIDE, vec![1.0; 1152], true, device));
    grads.register(net.narrow.id, gradient(NARROW, vec![1.0; 128], true, device));
    grads.register(net.bias.id, Tensor::<Inner, 1>::ones([5], (device, DType::BF16)));
    grads
}

fn has_channels_last(tensor: &Tensor<Inner, 4>) -> bool {
    is_channels_last(&tensor.clone().into_primitive().tensor())
}

/// Whether a rank's gradients have their channels last in a step, and whether it has a gradient of `wide`.
type Order = fn(rank: usize, step: usize) -> (bool, bool);

/// Each case: the ranks' orders, and whether the results have their channels last after the agreement.
const CASES: [(&str, Order, bool); 6] = [
    ("all last", |_, _| (true, true), true),
    ("all row-major", |_, _| (false, true), false),
    ("one row-major", |rank, _| (rank != 1, true), false),
    // Before the agreement each rank may have either; a rank without a gradient takes either.
    ("late", |rank, step| (step >= BEFORE || rank == 0, true), true),
    ("missing", |rank, step| (true, rank == 0 || step != BEFORE), true),
    // After it, a gradient in another order is copied.
    ("changing", |rank, step| (step <= BEFORE || rank + step != 6, true), true),
];

#[test]
fn ranks_agree_on_the_order() {
    let Some(count) = devices("order::ranks_agree_on_the_order") else { return };
    let random = Random::new();
    // [case][step][rank]: the numbers of both weights.
    let drawn: Vec<Vec<Vec<[Vec<f32>; 2]>>> = CASES
        .iter()
        .map(|_| {
            let of_step = || (0..count).map(|_| [numbers(&random, 1152), numbers(&random, 128)]).collect();
            (0..STEPS).map(|_| of_step()).collect()
        })
        .collect();
    for bytes in [1000, 25 << 20] {
        on_ranks(count, |ranks| {
            let (rank, device) = (ranks.rank(), ranks.communicator().device());
            let net = weights(&device);
            for ((name, order, is_last), drawn) in CASES.iter().zip(&drawn) {
                let mut ranks = DataParallel::new(ranks.communicator().clone()).with_bucket_bytes(bytes);
                for (step, drawn) in drawn.iter().enumerate() {
                    let (last, present) = order(rank, step);
                    let mut grads = GradientsParams::new();
                    let [wide, narrow] = drawn[rank].clone();
                    if present {
                        grads.register(net.wide.id, gradient(WIDE, wide, last, &device));
                    }
                    grads.register(net.narrow.id, gradient(NARROW, narrow, last, &device));
                    grads.register(net.bias.id, Tensor::<Inner, 1>::ones([5], (&device, DType::BF16)));
                    let reduced = ranks.reduce(&net, grads, Share::EVEN);
                    let what = format!("{name}, buckets of {bytes}, step {step}");
                    let found = [net.wide.id, net.narrow.id].map(|id| {
                        let found = reduced.get::<Inner, 4>(id).unwrap();
                        assert_eq!(has_channels_last(&found), *is_last && step >= BEFORE, "{what}");
                        found.into_data().iter::<f32>().collect::<Vec<_>>()
                    });
                    for (at, found) in found.iter().enumerate() {
                        let mean = |element: usize| {
                            let of = |other: usize| {
                                let missing = at == 0 && !order(other, step).1;
                                if missing { 0.0 } else { drawn[other][at][element] }
                            };
                            (0..count).map(of).sum::<f32>() / count as f32
                        };
                        let expected: Vec<f32> = (0..found.len()).map(mean).collect();
                        assert_eq!(found, &expected, "{what}, weight {at}");
                    }
                }
            }
        });
    }
}

/// With the order agreed, a large gradient is neither copied nor packed.
#[test]
fn gradients_with_channels_last_are_not_copied() {
    let Some(count) = devices("order::gradients_with_channels_last_are_not_copied") else { return };
    let launches = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let net = weights(&device);
        let mut ranks = ranks.with_bucket_bytes(1000);
        let mut step = || {
            let grads = all(&net, &device);
            ranks.communicator().meet().unwrap();
            let (_, counts) = counting(|| drop(ranks.reduce(&net, grads, Share::EVEN)));
            ranks.communicator().meet().unwrap();
            counts.kernels
        };
        (0..STEPS).map(|_| step()).collect::<Vec<_>>()
    });
    for launches in launches {
        // One launch packs the bias and the flags; before the agreement others copy both weights.
        assert!(launches[..BEFORE].iter().all(|&launches| launches > 1), "{launches:?}");
        assert!(launches[BEFORE + 1..].iter().all(|&launches| launches == 1), "{launches:?}");
    }
}

/// A rank whose first bucket is refused begins again.
#[test]
fn a_rank_that_repeats_a_refused_call_agrees_with_the_others() {
    let Some(count) = devices("order::a_rank_that_repeats_a_refused_call_agrees_with_the_others") else {
        return;
    };
    on_ranks(count, |mut ranks| {
        let (rank, device) = (ranks.rank(), ranks.communicator().device());
        let net = weights(&device);
        for step in 0..STEPS {
            if rank == 1 && step == 0 {
                let mut wrong = all(&net, &device);
                let bias = wrong.remove::<Inner, 1>(net.bias.id).unwrap();
                wrong.register(net.bias.id, bias.cast(FloatDType::F32));
                let run = || drop(ranks.reduce(&net, wrong, Share::EVEN));
                assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            }
            let run = || drop(ranks.reduce(&net, all(&net, &device), Share::EVEN));
            let ok = catch_unwind(AssertUnwindSafe(run)).is_ok();
            assert!(ok, "rank {rank}, step {step}: {}", take_last_error().unwrap());
        }
    });
}

/// `Graph::capture` runs a step `WARM_UPS` times before it captures it.
#[test]
fn a_captured_step_has_the_order() {
    let Some(count) = devices("order::a_captured_step_has_the_order") else { return };
    for runs in [4, WARM_UPS] {
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut ranks = ranks.with_bucket_bytes(1000);
            let net = weights(&device);
            let rows = Tensor::<Inner, 4>::ones([16, 3, 3, 8], (&device, DType::BF16));
            let narrow = Tensor::<Inner, 4>::ones([8, 1, 2, 8], (&device, DType::BF16));
            let bias = Tensor::<Inner, 1>::ones([5], (&device, DType::BF16));
            let (graph, last) = Graph::capture_after(&device, runs, || {
                let mut grads = GradientsParams::new();
                grads.register(net.wide.id, (rows.clone() * 2).permute([0, 3, 1, 2]));
                grads.register(net.narrow.id, (narrow.clone() * 2).permute([0, 3, 1, 2]));
                grads.register(net.bias.id, bias.clone() * 2);
                let reduced = ranks.reduce(&net, grads, Share::EVEN);
                has_channels_last(&reduced.get::<Inner, 4>(net.wide.id).unwrap())
            })
            .unwrap();
            (last, graph.recorded().kernels)
        });
        assert!(found.iter().all(|(last, _)| *last), "after {runs} runs: {found:?}");
    }
}

type Half = Rocm<bf16>;
type HalfB = Autodiff<Half>;

#[derive(Module, Debug)]
struct Convs<B: Backend> {
    a: Conv2d<B>,
    b: Conv2d<B>,
    c: Conv2d<B>,
}

/// Gradients of convolutions, beside the backward pass and after it.
#[test]
fn the_overlap_has_the_same_bits() {
    const VARS: [(&str, &str); 4] = [
        ("BURN_ROCM_CPU_LATE", "1"),
        ("BURN_ROCM_CPU_POISON", "1"),
        ("BURN_ROCM_CPU_THREADS", "1"),
        ("BURN_ROCM_CHANNELS_LAST", "on"),
    ];
    let Some(count) = devices_with("order::the_overlap_has_the_same_bits", &VARS) else { return };
    let run = |overlap: bool, share: bool| {
        on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut ranks = ranks.with_bucket_bytes(3000).with_overlap(overlap);
            let conv = |from, to| {
                let mut conv = Conv2dConfig::new([from, to], [3, 3])
                    .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                    .init::<HalfB>(&device);
                let numbers: Vec<f32> =
                    (0..from * to * 9).map(|i| ((i * 7 % 13) as f32 - 6.0) / 32.0).collect();
                conv.weight = Param::from_data(TensorData::new(numbers, [to, from, 3, 3]), &device);
                conv.bias = Some(Param::from_data(TensorData::new(vec![0.25f32; to], [to]), &device));
                conv
            };
            let net = Convs { a: conv(8, 16), b: conv(16, 8), c: conv(8, 8) };
            (0..STEPS)
                .map(|step| {
                    let numbers: Vec<f32> = (0..2 * 8 * 5 * 4)
                        .map(|i| ((i * (3 + ranks.rank() + step) % 11) as f32 - 5.0) / 8.0)
                        .collect();
                    let x = Tensor::<HalfB, 4>::from_data(TensorData::new(numbers, [2, 8, 5, 4]), &device);
                    let y = net.c.forward(net.b.forward(net.a.forward(x)));
                    let loss = y.powi_scalar(2).mean();
                    let grads = ranks.backward(&net, Some(loss));
                    let grad = |grads: &GradientsParams, conv: &Conv2d<HalfB>| {
                        let grad = grads.get::<Half, 4>(conv.weight.id).unwrap();
                        (is_channels_last(&grad.clone().into_primitive().tensor()), grad)
                    };
                    let own = [&net.a, &net.b, &net.c].map(|conv| grad(&grads, conv).0);
                    let share = if share { Share::of(2, 2 * count) } else { Share::EVEN };
                    let reduced = ranks.reduce(&net, grads, share);
                    let weights = [&net.a, &net.b, &net.c].map(|conv| {
                        let (last, grad) = grad(&reduced, conv);
                        (last, grad.into_data().iter::<f32>().collect::<Vec<_>>())
                    });
                    (weights, own, ranks.last_overlap())
                })
                .collect::<Vec<_>>()
        })
    };
    for share in [false, true] {
        let (plain, beside) = (run(false, share), run(true, share));
        // The order in which all ranks' gradients were when they agreed. A GPU's library may choose either.
        let agreed = [0, 1, 2].map(|conv| plain.iter().all(|steps| steps[BEFORE].1[conv]));
        assert!(agreed == [true; 3] || !on_cpu(), "{agreed:?}");
        for (rank, (plain, beside)) in plain.iter().zip(&beside).enumerate() {
            for (step, ((plain, _, _), (beside, _, _))) in plain.iter().zip(beside).enumerate() {
                assert_eq!(plain, beside, "rank {rank}, step {step}, share {share}");
                // Before the agreement, a packed gradient is row-major.
                let last = [0, 1, 2].map(|conv| plain[conv].0);
                assert!(last == agreed || step < BEFORE, "rank {rank}, step {step}, share {share}: {last:?}");
                assert!(plain.iter().all(|(_, numbers)| numbers.iter().all(|x| x.is_finite())));
            }
            let (_, _, ran) = beside.last().unwrap();
            assert!(ran.before_end > 0, "nothing ran beside the pass: {ran:?}");
        }
    }
}

/// A parameter that no rank trains at the time of the agreement.
#[test]
fn what_no_rank_had_stays_row_major() {
    let Some(count) = devices("order::what_no_rank_had_stays_row_major") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut ranks = ranks.with_bucket_bytes(1000);
        let net = weights(&device);
        for step in 0..STEPS {
            let mut grads = all(&net, &device);
            drop(grads.remove::<Inner, 4>(net.wide.id));
            if step > BEFORE {
                grads.register(net.wide.id, gradient(WIDE, vec![1.0; 1152], false, &device));
            }
            let reduced = ranks.reduce(&net, grads, Share::EVEN);
            if let Some(wide) = reduced.get::<Inner, 4>(net.wide.id) {
                assert!(!has_channels_last(&wide), "row-major on all ranks, step {step}");
            }
        }
    });
}
