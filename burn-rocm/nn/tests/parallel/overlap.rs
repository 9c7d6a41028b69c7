//! Buckets that are reduced beside the backward pass.
//!
//! The streams of the CPU device run late here (`BURN_ROCM_CPU_LATE`): a bucket's stream runs its
//! work at once, and before it only what that work waits for. So a bucket that does not wait for a
//! gradient packs memory that is not computed, which poison fills with NaN.

use burn::optim::{GradientsAccumulator, Optimizer};
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Distribution, Int};
use burn_rocm::{Pass, PassPoints, ReduceOp, RocmTensor, fused};
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::parallel::Share;
use burn_rocm_tests::Random;

use crate::*;

const LATE: [(&str, &str); 3] =
    [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1"), ("BURN_ROCM_CPU_THREADS", "1")];

/// As [`LATE`], and small ops are deferred as on a GPU.
const LATE_AND_DEFERRED: [(&str, &str); 4] = [LATE[0], LATE[1], LATE[2], ("BURN_ROCM_CHAIN", "16")];

/// One bucket for each parameter. From the second step on, each waits for the op that computes its
/// gradient, though all are enqueued after the pass.
#[test]
fn a_bucket_waits_for_its_gradients_only() {
    let Some(count) = devices_with("overlap::a_bucket_waits_for_its_gradients_only", &LATE) else { return };
    buckets_wait_for_their_gradients_only(count);
}

#[test]
fn a_bucket_waits_for_gradients_in_deferred_ops() {
    const TEST: &str = "overlap::a_bucket_waits_for_gradients_in_deferred_ops";
    let Some(count) = devices_with(TEST, &LATE_AND_DEFERRED) else { return };
    buckets_wait_for_their_gradients_only(count);
}

/// Each step has other samples, so memory of the step before has other numbers.
fn buckets_wait_for_their_gradients_only(count: usize) {
    let steps = |overlap: bool| {
        on_ranks(count, |ranks| {
            let mut ranks = ranks.with_bucket_bytes(1).with_overlap(overlap);
            let device = ranks.communicator().device();
            let net = Net::<B>::new(&device, 0);
            let mut step = |step: usize| {
                let first = 4 * (step * count + ranks.rank());
                let indices: Vec<usize> = (first..first + 4).collect();
                let grads = ranks.backward(&net, Some(net.loss(&indices, &device)));
                let grads = ranks.reduce(&net, grads, Share::EVEN);
                (ranks.last_overlap(), gradients(&net, &grads))
            };
            [step(0), step(1), step(2)]
        })
    };
    let (beside, after) = (steps(true), steps(false));
    for (beside, after) in beside.iter().zip(&after) {
        assert!(beside[0].1 != beside[1].1 && beside[1].1 != beside[2].1, "the steps differ");
        for (step, ((overlap, found), (none, expected))) in beside.iter().zip(after).enumerate() {
            assert_eq!((none.beside, none.before_end), (0, 0));
            assert_eq!(found, expected, "the same bits");
            // The first bucket's gradient is one that nobody uses. From the second step on, there is
            // memory for its zeros.
            let expected = if step == 0 { 0 } else { 14 };
            assert_eq!((overlap.buckets, overlap.beside), (14, expected), "step {step}: {overlap:?}");
            // The first layer's gradients come last; some op without work may come after them.
            let least = if step == 0 { 0 } else { 11 };
            assert!(overlap.before_end >= least, "step {step}: {overlap:?}");
        }
    }
}

/// Two groups' collectives that run side by side may wait for each other. So after one of another
/// group, the buckets wait for all work. After one of the same group they run behind it, and it waits
/// for all work.
#[test]
fn a_collective_of_another_group_ends_the_overlap() {
    let Some(count) = devices_with("overlap::a_collective_of_another_group_ends_the_overlap", &LATE) else {
        return;
    };
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    let others = Communicator::local(&devices).unwrap();
    let results = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1).with_overlap(true);
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let same = ranks.communicator().clone();
        let mut step = |group: &Communicator| {
            let grads = ranks.backward(&net, Some(net.loss(&[ranks.rank()], &device)));
            let ones = Tensor::<Inner, 1>::ones([3], &device).into_primitive().tensor();
            drop(group.all_reduce(ReduceOp::Sum, ones).unwrap().join().unwrap());
            let grads = ranks.reduce(&net, grads, Share::EVEN);
            (ranks.last_overlap(), gradients(&net, &grads))
        };
        (step(&others[device.index]), step(&same))
    });
    for ((other, first), (same, second)) in results {
        assert_eq!((other.buckets, other.beside, same.beside), (14, 0, 0));
        assert_eq!(first, second, "the same bits");
    }
}

/// A collective of another group that was issued before the pass may run beside it until it is joined.
#[test]
fn a_collective_that_was_not_joined_ends_the_overlap() {
    const TEST: &str = "overlap::a_collective_that_was_not_joined_ends_the_overlap";
    let Some(count) = devices_with(TEST, &LATE) else { return };
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    let others = Communicator::local(&devices).unwrap();
    let results = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1).with_overlap(true);
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let mut step = |joins_before: bool| {
            let ones = Tensor::<Inner, 1>::ones([3], &device).into_primitive().tensor();
            let mut pending = Some(others[device.index].all_reduce(ReduceOp::Sum, ones).unwrap());
            let mut join = || pending.take().map(|pending| pending.join().unwrap());
            if joins_before {
                join();
            }
            let grads = ranks.backward(&net, Some(net.loss(&[ranks.rank()], &device)));
            let grads = ranks.reduce(&net, grads, Share::EVEN);
            join();
            (ranks.last_overlap().beside, gradients(&net, &grads))
        };
        [step(false), step(true), step(false)]
    });
    for [(first, bits), (second, same), (third, also)] in results {
        assert_eq!((first, second, third), (0, 14, 0));
        assert!(bits == same && bits == also, "the same bits");
    }
}

/// If there is no memory for the buckets before the pass, they are reduced after it.
#[test]
fn without_memory_for_the_buckets_there_is_no_overlap() {
    const TEST: &str = "overlap::without_memory_for_the_buckets_there_is_no_overlap";
    let Some(count) = devices_with(TEST, &LATE) else { return };
    let results = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1).with_overlap(true);
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let own = hip::Device::get(device.index).unwrap();
        let mut step = |failing: u64| {
            let loss = net.loss(&[ranks.rank()], &device);
            // Otherwise a failed allocation is tried again.
            own.sync().unwrap();
            own.memory_cleanup().unwrap();
            own.pool().fail_next(failing);
            let grads = ranks.backward(&net, Some(loss));
            let grads = ranks.reduce(&net, grads, Share::EVEN);
            (ranks.last_overlap().beside, gradients(&net, &grads))
        };
        // From the second step on, there is memory for zeros in place of gradients.
        step(0);
        let steps = [step(0), step(1), step(0)];
        assert!(own.pool().failure().is_none(), "the pass does without it");
        steps
    });
    for [(first, bits), (second, same), (third, also)] in results {
        assert_eq!((first, second, third), (14, 0, 14));
        assert!(bits == same && bits == also, "the same bits");
    }
}

/// What a rank does with its gradients between the backward pass and the reduction.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    /// Reads them, which leaves them as they are.
    Read,
    /// Replaces them by new tensors.
    Scale,
    /// Adds those of a second pass.
    Accumulate,
    /// Loses the first.
    Lose,
}

fn changed(net: &Net<B>, mut grads: GradientsParams, between: Between) -> GradientsParams {
    struct Change(GradientsParams, Between, usize);
    impl ModuleVisitor<B> for Change {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(grad) = self.0.remove::<Inner, D>(param.id) else { return };
            self.2 += 1;
            match self.1 {
                Between::Read => drop(grad.clone().into_data()),
                Between::Lose if self.2 == 1 => return,
                _ => {}
            }
            let grad = if matches!(self.1, Between::Scale) { grad.mul_scalar(0.5) } else { grad };
            self.0.register(param.id, grad);
        }
    }
    let mut change = Change(std::mem::take(&mut grads), between, 0);
    net.visit(&mut change);
    change.0
}

/// Drawn trainings have the same bits beside the backward pass as after it: with ranks that weigh
/// differently or have no samples, bucket sizes from one parameter to all, and gradients that were
/// changed before the reduction.
#[test]
fn drawn_trainings_have_the_same_bits() {
    let Some(count) = devices_with("overlap::drawn_trainings_have_the_same_bits", &LATE) else { return };
    let random = Random::new();
    let whole = |most: usize| (random.uniform(0.0, most as f64) as usize).min(most - 1);
    for case in 0..12 {
        let bytes = [1, 100, 300, 1000, 1 << 20][whole(5)];
        let steps: Vec<_> = (0..4)
            .map(|_| {
                let samples: Vec<usize> = match whole(3) {
                    0 => vec![3; count],
                    _ => (0..count).map(|rank| if rank == 0 { 1 + whole(4) } else { whole(5) }).collect(),
                };
                let between: Vec<_> = (0..count)
                    .map(|_| {
                        use Between::*;
                        [Nothing, Nothing, Nothing, Read, Scale, Accumulate, Lose][whole(7)]
                    })
                    .collect();
                (samples, between, whole(100))
            })
            .collect();
        let run = |overlap: bool| {
            on_ranks(count, |ranks| {
                let mut ranks = ranks.with_bucket_bytes(bytes).with_overlap(overlap);
                let (device, rank) = (ranks.communicator().device(), ranks.rank());
                let mut net = Net::<B>::new(&device, 0);
                let mut optimizer = AdamConfig::new().init();
                let mut seen = Vec::new();
                for (samples, between, first) in &steps {
                    let own: Vec<usize> = (0..samples[rank]).map(|i| first + 7 * rank + i).collect();
                    let share = match samples.iter().all(|own| own == &samples[0]) {
                        true => Share::EVEN,
                        false => Share::of(own.len(), samples.iter().sum()),
                    };
                    let loss = (!own.is_empty()).then(|| net.loss(&own, &device));
                    let mut grads = ranks.backward(&net, loss);
                    // Every rank calls `backward` as often as the others.
                    if between.iter().any(|between| matches!(between, Between::Accumulate)) {
                        let mut sum = GradientsAccumulator::new();
                        sum.accumulate(&net, grads);
                        let more = matches!(between[rank], Between::Accumulate).then_some(&own);
                        let more = more.filter(|own| !own.is_empty());
                        sum.accumulate(&net, ranks.backward(&net, more.map(|own| net.loss(own, &device))));
                        grads = sum.grads();
                    }
                    let grads = ranks.reduce(&net, changed(&net, grads, between[rank]), share);
                    seen.push(gradients(&net, &grads));
                    net = optimizer.step(0.01, net, grads);
                }
                (seen, parameters(&net))
            })
        };
        let (beside, after) = (run(true), run(false));
        assert_eq!(beside, after, "case {case}: buckets of {bytes} bytes, {steps:?}");
        for (seen, parameters) in &beside {
            let mut numbers = seen.iter().flatten().flatten().chain(parameters).flatten();
            assert!(numbers.all(|x| x.is_finite()), "case {case}: {steps:?}");
        }
    }
}

fn last_use(points: &PassPoints, tensors: &[&RocmTensor]) -> Option<u32> {
    points.behind(tensors).unwrap().map(|behind| behind.last_use())
}

/// Each kind of work notes the buffers that it uses: kernels, deferred ops, library calls, copies,
/// and launches over tables of tensors.
#[test]
fn every_kind_of_work_notes_its_result() {
    const TEST: &str = "overlap::every_kind_of_work_notes_its_result";
    let Some(_) = devices_with(TEST, &[("BURN_ROCM_CHAIN", "16")]) else { return };
    type R = Rocm;
    let device = RocmDevice::new(0);
    let random = |dims: [usize; 4]| Tensor::<R, 4>::random(dims, Distribution::Default, &device);
    let [x, y, w] = [[2, 3, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3]].map(random);
    let indices = Tensor::<R, 1, Int>::from_data([1, 0], &device);
    let float = |tensor: Tensor<R, 4>| tensor.into_primitive().tensor();
    let of = |tensor: &Tensor<R, 4>| float(tensor.clone());
    type Op<'a> = (&'a str, Box<dyn Fn() -> RocmTensor + 'a>);
    let ops: Vec<Op<'_>> = vec![
        ("a deferred sum", Box::new(|| float(x.clone() + y.clone()))),
        ("a strided sum", Box::new(|| float(x.clone() + y.clone().swap_dims(2, 3)))),
        ("a product", Box::new(|| float(x.clone().matmul(y.clone())))),
        (
            "a convolution",
            Box::new(|| {
                float(conv2d(x.clone(), w.clone(), None, ConvOptions::new([1, 1], [1, 1], [1, 1], 1)))
            }),
        ),
        ("a pooling", Box::new(|| float(max_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false)))),
        ("a softmax", Box::new(|| float(activation::softmax(x.clone(), 3)))),
        ("a sum along an axis", Box::new(|| float(x.clone().sum_dim(2)))),
        ("a concatenation", Box::new(|| float(Tensor::cat(vec![x.clone(), y.clone()], 1)))),
        ("a selection", Box::new(|| float(x.clone().select(0, indices.clone())))),
        (
            "an assignment of a slice",
            Box::new(|| float(x.clone().slice_assign([0..1, 0..3], y.clone().slice([0..1, 0..3])))),
        ),
        ("a conversion", Box::new(|| float(x.clone().cast(DType::BF16)))),
        (
            "an upload",
            Box::new(|| float(Tensor::from_data(TensorData::zeros::<f32, _>([1, 1, 2, 2]), &device))),
        ),
        (
            "a large upload",
            Box::new(|| float(Tensor::from_data(TensorData::zeros::<f32, _>([1, 1, 200, 200]), &device))),
        ),
        ("random numbers", Box::new(|| float(random([1, 2, 3, 4])))),
        ("zeros", Box::new(|| float(Tensor::zeros([1, 2, 3, 4], &device)))),
        ("a table", {
            let (x, y) = (of(&x), of(&y));
            Box::new(move || fused::optim::clip_to_norm(&[x.clone(), y.clone()], 1e-3).unwrap().0.remove(0))
        }),
        ("a table of addresses", {
            let (x, y) = (of(&x), of(&y));
            Box::new(move || fused::pack(&[x.clone(), y.clone()]).unwrap())
        }),
    ];
    for (what, run) in ops {
        for wanted in [vec![], vec![1]] {
            let pass = Pass::begin(&device, &[], wanted).unwrap();
            let result = {
                let _op = burn_rocm::trace::op("the_op", || "");
                run()
            };
            // One more op.
            drop(x.clone().exp());
            let points = pass.end();
            assert_eq!(points.ops(), 2, "{what}");
            assert_eq!(last_use(&points, &[&result]), Some(1), "{what}");
            // Another use outside a pass's ops may be of any time.
            drop(burn_rocm::read_with_fault(result.clone()).unwrap());
            assert_eq!(last_use(&points, &[&result]), None, "{what}");
        }
    }
    // What was there before the pass, or is used by another thread, may be used at any time too.
    let pass = Pass::begin(&device, &[(4, DType::F32)], vec![]).unwrap();
    assert!(Pass::begin(&device, &[], vec![]).is_err(), "one pass for a thread");
    let own = x.clone() * 2.0;
    let shared = own.clone() * 3.0;
    std::thread::scope(|scope| drop(scope.spawn(|| drop(shared.clone().exp()))));
    let points = pass.end();
    assert_eq!(last_use(&points, &[&of(&own)]), Some(2));
    assert_eq!(last_use(&points, &[&of(&x)]), None);
    assert_eq!(last_use(&points, &[&of(&shared)]), None);
    assert_eq!(last_use(&points, &[]), Some(0));
    assert_eq!(
        (points.point_after(0), points.point_after(1), points.point_after(3)),
        (Some(0), Some(2), None)
    );
}

/// The gradients of weights are complete before that of the input is computed, so their bucket need not
/// wait for it.
#[test]
fn the_gradients_of_weights_come_before_the_inputs() {
    const TEST: &str = "overlap::the_gradients_of_weights_come_before_the_inputs";
    let Some(_) = devices(TEST) else { return };
    let device = RocmDevice::new(0);
    let random = |dims: &[usize]| {
        let count = dims.iter().product::<usize>();
        let flat = Tensor::<Rocm, 1>::random([count], Distribution::Default, &device);
        flat.reshape::<3, _>([dims[0], dims[1], dims.get(2).copied().unwrap_or(1)])
    };
    let of = |tensor: Tensor<Rocm, 3>| tensor.into_primitive().tensor();
    let matrix = || random(&[1, 8, 8]).reshape([8, 8]).into_primitive().tensor();
    let bias = || random(&[1, 1, 8]).reshape([8]).into_primitive().tensor();
    let in_pass = |run: &dyn Fn() -> [Vec<RocmTensor>; 2]| {
        let pass = Pass::begin(&device, &[], vec![1]).unwrap();
        let [weights, input] = {
            let _op = burn_rocm::trace::op("the_op", || "");
            run()
        };
        let points = pass.end();
        let last = |tensors: &[RocmTensor]| last_use(&points, &tensors.iter().collect::<Vec<_>>());
        assert_eq!((points.ops(), last(&weights), last(&input)), (2, Some(1), Some(2)));
        assert_eq!(points.point_after(1), Some(1));
    };
    let (x, grad, weight) = (of(random(&[3, 2, 8])), of(random(&[3, 2, 8])), matrix());
    in_pass(&|| {
        let found = fused::linear_backward(x.clone(), weight.clone(), grad.clone(), [true; 3]).unwrap();
        [[found.weight, found.bias].into_iter().flatten().collect(), found.x.into_iter().collect()]
    });
    let (weights, biases) = ([(); 3].map(|()| matrix()), [(); 3].map(|()| bias()));
    let projections = fused::Projections { weights, biases, heads: 2 };
    let options = fused::AttentionOptions::default();
    let attended = fused::self_attention(x.clone(), projections, None, &options).unwrap();
    in_pass(&|| {
        let kept = attended.kept.clone();
        let found =
            fused::self_attention_backward(x.clone(), 2, None, kept, grad.clone(), &options, [true; 3])
                .unwrap();
        let by_parameters = found.weights.into_iter().chain(found.biases).flatten().collect();
        [by_parameters, found.tokens.into_iter().collect()]
    });
}
