//! Large gradients, which are reduced where the backward pass has put them, without a copy. The
//! streams of the CPU device run late here, as in `overlap.rs`.

use burn::optim::Optimizer;
use burn::tensor::Distribution;
use burn_rocm::profile::WorkKind;
use burn_rocm::trace::counting;
use burn_rocm::{ReduceOp, memory_summary, profile};
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::parallel::{Overlap, Share};
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};

use crate::*;

const LATE: [(&str, &str); 3] =
    [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1"), ("BURN_ROCM_CPU_THREADS", "1")];

/// Gradients of a 25th of it (12,000 bytes) and more are reduced as they are. Those of less than a
/// 400th (750 bytes) are in the last bucket.
const BUCKET: usize = 300_000;

const WIDTH: usize = 40;

/// Parameters of all sizes. Attention's query, key and value share one product, so their gradients
/// share memory.
#[derive(Module, Debug)]
struct Wide<B: Backend> {
    first: Linear<B>,
    norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    wide: Vec<Linear<B>>,
    last: Linear<B>,
    /// Used by some ranks only.
    extra: Vec<Linear<B>>,
}

impl Wide<B> {
    fn new(device: &RocmDevice) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let net = Self {
            first: linear(FEATURES, WIDTH),
            norm: LayerNormConfig::new(WIDTH).init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, 4).with_dropout(0.0).init(device),
            wide: vec![linear(WIDTH, 800), linear(800, WIDTH)],
            last: linear(WIDTH, 1),
            extra: vec![linear(FEATURES, 400)],
        };
        struct Fill(usize);
        impl burn::module::ModuleMapper<B> for Fill {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
                let (id, tensor, mapper) = param.consume();
                let (dims, device) = (tensor.dims(), tensor.device());
                let count: usize = dims.iter().product();
                self.0 += count;
                let numbers: Vec<f64> =
                    (self.0 - count..self.0).map(|i| 0.2 * (1.7 * i as f64).sin()).collect();
                let tensor = Tensor::from_data(TensorData::new(numbers, dims), &device).require_grad();
                Param::from_mapped_value(id, tensor, mapper)
            }
        }
        net.map(&mut Fill(0))
    }

    fn loss(&self, indices: &[usize], uses_extra: bool) -> Tensor<B, 1> {
        let (x, y) = samples::<B>(indices, &self.last.weight.device());
        let hidden = activation::tanh(self.norm.forward(self.first.forward(x.clone())));
        let tokens = hidden.unsqueeze::<3>();
        let attended = self.attention.forward(MhaInput::self_attn(tokens)).context.squeeze::<2>();
        let hidden = self.wide.iter().fold(attended, |x, linear| activation::tanh(linear.forward(x)));
        let loss = (self.last.forward(hidden) - y).powi_scalar(2).mean();
        match uses_extra {
            true => loss + self.extra[0].forward(x).powi_scalar(2).mean(),
            false => loss,
        }
    }
}

/// The samples of a rank in a step.
fn indices(rank: usize, step: usize) -> Vec<usize> {
    (0..3 + rank).map(|i| 20 * step + 5 * rank + i).collect()
}

/// Only small gradients and flags are copied: one launch packs those of a bucket.
#[test]
fn large_gradients_are_not_copied() {
    let Some(count) = devices("whole::large_gradients_are_not_copied") else { return };
    for overlap in [false, true] {
        let reduced = on_ranks(count, |ranks| {
            let mut ranks = ranks.with_bucket_bytes(BUCKET).with_overlap(overlap);
            let mut net = Wide::new(&ranks.communicator().device());
            net.extra.clear();
            let mut step = |step: usize| {
                let grads = ranks.backward(&net, Some(net.loss(&indices(ranks.rank(), step), false)));
                let (rank, communicator) = (ranks.rank(), ranks.communicator().clone());
                let reduce = || {
                    communicator.meet().unwrap();
                    drop(ranks.reduce(&net, grads, Share::EVEN));
                    communicator.meet().unwrap();
                };
                // It has the work of all threads.
                if rank == 0 {
                    return Some(profile(reduce).1);
                }
                reduce();
                None
            };
            step(0);
            step(1);
            (step(2), ranks.last_overlap(), parameters(&net))
        });
        let (profile, ran, parameters) = &reduced[0];
        let sizes: Vec<usize> = parameters.iter().map(Vec::len).collect();
        let small: usize = sizes.iter().filter(|&&size| 25 * 8 * size < BUCKET).sum();
        assert_eq!(sizes.iter().filter(|&&size| 25 * 8 * size >= BUCKET).count(), 6, "{sizes:?}");
        let rows = profile.as_ref().unwrap().rows(burn_rocm::profile::Detail::Work);
        let moved: u64 =
            rows.iter().filter(|row| row.kind == Some(WorkKind::Kernel)).filter_map(|row| row.bytes).sum();
        // Each is read and written.
        let expected = count * 2 * 8 * (small + sizes.len());
        assert_eq!(moved, expected as u64, "{ran:?}, {rows:?}");
        let copies = rows.iter().filter(|row| row.kind == Some(WorkKind::Copy)).count();
        assert_eq!(copies, 0, "{rows:?}");
    }
}

/// Ranks that weigh differently scale large gradients in their own memory, too: after the pass, and
/// if another group's collective keeps the buckets from running beside it.
#[test]
fn weighted_gradients_are_not_copied() {
    let Some(count) = devices_with("whole::weighted_gradients_are_not_copied", &LATE) else { return };
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    let others = Communicator::local(&devices).unwrap();
    let all: usize = (0..count).map(|rank| indices(rank, 0).len()).sum();
    for overlap in [false, true] {
        on_ranks(count, |ranks| {
            let mut packed = DataParallel::new(ranks.communicator().clone()).with_bucket_bytes(usize::MAX);
            let mut ranks = ranks.with_bucket_bytes(BUCKET).with_overlap(overlap);
            let device = ranks.communicator().device();
            let mut net = Wide::new(&device);
            net.extra.clear();
            let (own, rank) = (indices(ranks.rank(), 0), ranks.rank());
            let share = || Share::of(own.len(), all);
            let grads = packed.backward(&net, Some(net.loss(&own, false)));
            let expected = gradients(&net, &packed.reduce(&net, grads, share()));
            let mut step = || {
                let grads = ranks.backward(&net, Some(net.loss(&own, false)));
                let one = Tensor::<Inner, 1>::ones([1], &device).into_primitive().tensor();
                drop(others[rank].all_reduce(ReduceOp::Sum, one).unwrap().join().unwrap());
                device.synchronize().unwrap();
                device.reset_peak_memory().unwrap();
                let before = memory_summary(&device).unwrap().allocated.bytes;
                let reduced = ranks.reduce(&net, grads, share());
                let more = memory_summary(&device).unwrap().allocated.peak - before;
                assert_eq!(gradients(&net, &reduced), expected);
                assert_eq!(ranks.last_overlap().beside, 0);
                (more, ranks.last_overlap().buckets)
            };
            step();
            let (more, buckets) = step();
            let sizes: Vec<usize> = parameters(&net).iter().map(Vec::len).collect();
            let small: usize = sizes.iter().filter(|&&size| 25 * 8 * size < BUCKET).sum();
            // What is packed, with the flags. The pool rounds each up.
            let limit = 8 * (small + sizes.len()) + 1024 * buckets;
            assert!(more <= limit, "{more} bytes, overlap {overlap}, {limit} expected");
        });
    }
}

/// What a rank counts, with the gradients before and after it.
#[test]
fn a_bucket_takes_one_call_for_each_large_gradient() {
    let Some(count) = devices("whole::a_bucket_takes_one_call_for_each_large_gradient") else { return };
    let counts = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(BUCKET);
        let mut net = Wide::new(&ranks.communicator().device());
        net.extra.clear();
        let mut step = || {
            let grads = ranks.backward(&net, Some(net.loss(&indices(ranks.rank(), 0), false)));
            ranks.communicator().meet().unwrap();
            let counts = counting(|| drop(ranks.reduce(&net, grads, Share::EVEN))).1;
            ranks.communicator().meet().unwrap();
            counts
        };
        step();
        let counts = step();
        (counts, packing_launches(&ranks.communicator().device()), ranks.last_overlap())
    });
    for (counts, packing, ran) in counts {
        // The bias of 800 elements in the first bucket, the rest with the flags in the last one.
        assert_eq!(
            (counts.kernels, counts.library_calls, counts.copies),
            (1 + packing, 6 + 2, 0),
            "{counts:?}, {ran:?}"
        );
    }
}

/// How a training reduces.
#[derive(Clone, Copy, Debug)]
struct Way {
    bytes: usize,
    overlap: bool,
    /// Ranks weigh by their samples.
    weighs: bool,
    /// One rank lacks the gradients of a large layer.
    lacks: bool,
    /// The app keeps the gradients of this rank.
    keeps: bool,
}

type Trained = (Vec<Vec<Option<Vec<f64>>>>, Vec<Vec<f64>>, Overlap);

fn train(count: usize, way: Way) -> Vec<Trained> {
    let samples_of = |step| (0..count).map(|rank| indices(rank, step).len()).sum();
    on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(way.bytes).with_overlap(way.overlap);
        let mut net = Wide::new(&ranks.communicator().device());
        if !way.lacks {
            net.extra.clear();
        }
        let mut optimizer = AdamConfig::new().init();
        let mut seen = Vec::new();
        for step in 0..4 {
            let own = indices(ranks.rank(), step);
            let share = if way.weighs { Share::of(own.len(), samples_of(step)) } else { Share::EVEN };
            let loss = net.loss(&own, way.lacks && ranks.rank() > 0);
            let grads = ranks.backward(&net, Some(loss));
            let kept = way.keeps.then(|| net.wide[0].weight.grad_of(&grads)).flatten();
            let before = kept.clone().map(|kept| kept.into_data());
            let grads = ranks.reduce(&net, grads, share);
            assert_eq!(kept.map(|kept| kept.into_data()), before, "what the app keeps stays");
            seen.push(gradients(&net, &grads));
            net = optimizer.step(0.01, net, grads);
        }
        (seen, parameters(&net), ranks.last_overlap())
    })
}

trait GradOf {
    fn grad_of(&self, grads: &GradientsParams) -> Option<Tensor<Inner, 2>>;
}

impl GradOf for Param<Tensor<B, 2>> {
    fn grad_of(&self, grads: &GradientsParams) -> Option<Tensor<Inner, 2>> {
        grads.get::<Inner, 2>(self.id)
    }
}

/// The bits are those of one bucket, which packs all gradients.
#[test]
fn large_gradients_have_the_bits_of_packed_ones() {
    let Some(count) = devices_with("whole::large_gradients_have_the_bits_of_packed_ones", &LATE) else {
        return;
    };
    for weighs in [false, true] {
        for lacks in [false, true] {
            let way = |bytes, overlap, keeps| Way { bytes, overlap, weighs, lacks, keeps };
            let expected = train(count, way(usize::MAX, false, false));
            assert_eq!(expected[0].2.buckets, 1);
            for (overlap, keeps) in [(false, false), (true, false), (false, true), (true, true)] {
                let way = way(BUCKET, overlap, keeps);
                let found = train(count, way);
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(found.0 == expected.0 && found.1 == expected.1, "{way:?}");
                    assert!(found.2.buckets > 2, "{:?}", found.2);
                    assert!(found.0.iter().flatten().flatten().flatten().all(|x| x.is_finite()), "{way:?}");
                }
            }
        }
    }
}

/// A transformer's first norm gets its gradient last of all, though its module lists it behind the
/// layer's weights. Only the last bucket waits for it.
#[test]
fn the_first_norm_of_a_transformer_holds_up_no_weights() {
    const TEST: &str = "whole::the_first_norm_of_a_transformer_holds_up_no_weights";
    let Some(count) = devices_with(TEST, &LATE) else { return };
    let overlaps = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(BUCKET).with_overlap(true);
        let device = ranks.communicator().device();
        let config = TransformerEncoderConfig::new(WIDTH, 80, 4, 4).with_dropout(0.0).with_norm_first(true);
        let net: TransformerEncoder<B> = config.init(&device);
        // Every rank has the parameters of the first.
        let net = ranks.broadcast::<B, _>(net);
        let mut step = || {
            let input = Tensor::<B, 3>::random([2, 5, WIDTH], Distribution::Default, &device);
            let loss = net.forward(TransformerEncoderInput::new(input)).powi_scalar(2).mean();
            let grads = ranks.backward(&net, Some(loss));
            drop(ranks.reduce(&net, grads, Share::EVEN));
            ranks.last_overlap()
        };
        [step(), step(), step()]
    });
    for [first, _, last] in overlaps {
        assert_eq!(first.beside, first.buckets, "{first:?}");
        assert!(last.buckets > 4, "{last:?}");
        assert_eq!((last.beside, last.before_end), (last.buckets, last.buckets - 1));
    }
}

/// The gradients of attention's weights are complete before that of the tokens is computed, which the
/// norm before it needs. What is left for the end is the last bucket, of small gradients.
#[test]
fn only_the_last_bucket_waits_for_the_whole_pass() {
    let Some(count) = devices_with("whole::only_the_last_bucket_waits_for_the_whole_pass", &LATE) else {
        return;
    };
    for lacks in [false, true] {
        for (_, _, ran) in
            train(count, Way { bytes: BUCKET, overlap: true, weighs: false, lacks, keeps: false })
        {
            assert_eq!((ran.beside, ran.before_end >= ran.buckets - 1), (ran.buckets, true), "{ran:?}");
        }
    }
}
