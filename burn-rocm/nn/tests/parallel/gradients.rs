//! Averages of gradients.

use burn_rocm::trace::counting;
use burn_rocm_nn::parallel::{Share, clip_global_norm};
use burn_rocm_tests::Random;

use crate::*;

/// A loss of the samples with these layers of [`Net::extra`].
fn with_extra(net: &Net<B>, indices: &[usize], extra: &[usize], of: usize) -> Tensor<B, 1> {
    let device = net.first.weight.val().device();
    let (x, _) = samples::<B>(indices, &device);
    // A sum over all samples, divided by their number on all ranks.
    let added = extra.iter().map(|&at| net.extra[at].forward(x.clone()).powi_scalar(2).sum());
    let loss = added.fold(net.forward(x.clone()).sum(), |sum, term| sum + term);
    loss / of as f64
}

fn assert_near(what: &str, found: &[Option<Vec<f64>>], expected: &[Option<Vec<f64>>]) {
    let present = |grads: &[Option<Vec<f64>>]| grads.iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!(present(found), present(expected), "{what}");
    for (found, expected) in found.iter().flatten().flatten().zip(expected.iter().flatten().flatten()) {
        assert!((found - expected).abs() <= limit(1), "{what}: {found} instead of {expected}");
    }
}

/// Layer 0 is used by rank 0 only, layer 1 by all others, layer 2 by nobody: it has no gradient on
/// any rank, as on one device.
#[test]
fn parameters_that_not_every_rank_used() {
    let Some(count) = devices("gradients::parameters_that_not_every_rank_used") else { return };
    let part = |rank: usize| (4 * rank..4 * (rank + 1)).collect::<Vec<usize>>();
    let results = on_ranks(count, |mut ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        (0..2)
            .map(|_| {
                let extra = [usize::from(ranks.rank() > 0)];
                let loss = with_extra(&net, &part(ranks.rank()), &extra, 4);
                let grads = ranks.backward(&net, Some(loss));
                gradients(&net, &ranks.reduce(&net, grads, Share::EVEN))
            })
            .collect::<Vec<_>>()
    });
    let net = Net::<B>::new(&RocmDevice::new(0), 0);
    let (x, _) = samples::<B>(&part(0), &RocmDevice::new(0));
    let rest: Vec<usize> = (4..4 * count).collect();
    let (y, _) = samples::<B>(&rest, &RocmDevice::new(0));
    let all: Vec<usize> = (0..4 * count).collect();
    let (z, _) = samples::<B>(&all, &RocmDevice::new(0));
    let loss = net.forward(z).sum()
        + net.extra[0].forward(x).powi_scalar(2).sum()
        + net.extra[1].forward(y).powi_scalar(2).sum();
    let grads = GradientsParams::from_grads((loss / (4 * count) as f64).backward(), &net);
    let expected = gradients(&net, &grads);
    assert_eq!(expected.iter().filter(|grad| grad.is_none()).count(), 2, "weight and bias of layer 2");
    for steps in results {
        for found in steps {
            assert_near("unused", &found, &expected);
        }
    }
}

/// Ranks with different numbers of samples, one of them with none.
#[test]
fn ranks_weigh_by_their_samples() {
    let Some(count) = devices("gradients::ranks_weigh_by_their_samples") else { return };
    let samples_of = |rank: usize| (0..3 * rank).map(|i| 10 * rank + i).collect::<Vec<usize>>();
    let all: Vec<usize> = (0..count).flat_map(samples_of).collect();
    let results = on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let own = samples_of(ranks.rank());
        let share = Share::of(own.len(), all.len());
        let grads = ranks.backward(&net, (!own.is_empty()).then(|| net.loss(&own, &device)));
        gradients(&net, &ranks.reduce(&net, grads, share))
    });
    let device = RocmDevice::new(0);
    let net = Net::<B>::new(&device, 0);
    let grads = GradientsParams::from_grads(net.loss(&all, &device).backward(), &net);
    let expected = gradients(&net, &grads);
    for found in results {
        assert_near("weighted", &found, &expected);
    }
}

/// A rank without samples has a gradient all the same, of a mean over nothing or of 0 times a loss.
/// It counts for nothing, and every rank agrees on which parameters have a gradient.
#[test]
fn what_a_rank_of_weight_0_has_counts_for_nothing() {
    let Some(count) = devices("gradients::what_a_rank_of_weight_0_has_counts_for_nothing") else { return };
    for factor in [0.0, f64::NAN] {
        let results = on_ranks(count, |mut ranks| {
            let net = Net::<B>::new(&ranks.communicator().device(), 0);
            let last = ranks.rank() + 1 == ranks.size();
            // The last rank alone uses the layer.
            let extra: &[usize] = if last { &[0] } else { &[] };
            let loss = with_extra(&net, &[3, 4], extra, 2) * if last { factor } else { 1.0 };
            let share = Share::of(if last { 0 } else { 2 }, 2 * (count - 1));
            let grads = ranks.backward(&net, Some(loss));
            gradients(&net, &ranks.reduce(&net, grads, share))
        });
        let net = Net::<B>::new(&RocmDevice::new(0), 0);
        let loss = with_extra(&net, &[3, 4], &[], 2);
        let expected = gradients(&net, &GradientsParams::from_grads(loss.backward(), &net));
        for found in results {
            assert_near("of weight 0", &found, &expected);
        }
    }
}

/// A bucket takes the launches that pack it, and one collective. A rank that has all gradients reads
/// nothing back.
#[test]
fn a_bucket_takes_one_launch() {
    let Some(count) = devices("gradients::a_bucket_takes_one_launch") else { return };
    let counts = on_ranks(count, |mut ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        let mut step = || {
            let grads = ranks.backward(&net, Some(with_extra(&net, &[0, 1], &[0, 1, 2], 2)));
            ranks.communicator().meet().unwrap();
            let counts = counting(|| drop(ranks.reduce(&net, grads, Share::EVEN))).1;
            ranks.communicator().meet().unwrap();
            counts
        };
        step(); // plans the buckets
        (step(), packing_launches(&ranks.communicator().device()))
    });
    for (counts, packing) in counts {
        assert_eq!((counts.kernels, counts.library_calls, counts.transfers), (packing, 1, 0), "{counts:?}");
    }
}

#[test]
fn gradients_are_clipped_by_their_global_norm() {
    let Some(_) = devices("gradients::gradients_are_clipped_by_their_global_norm") else { return };
    let net = Net::<B>::new(&RocmDevice::new(1), 2);
    let grads = || GradientsParams::from_grads(with_extra(&net, &[3, 4, 5], &[0, 2], 1).backward(), &net);
    let before = gradients(&net, &grads());
    let norm = before.iter().flatten().flatten().map(|x| x * x).sum::<f64>().sqrt();
    let random = Random::new();
    for most in [norm * random.uniform(0.01, 0.9), norm * 1.5] {
        let (clipped, found) = clip_global_norm::<B, _>(&net, grads(), most as f32);
        let found = found.into_data().iter::<f64>().next().unwrap();
        assert!((found - norm).abs() <= limit(1) * norm, "{found} instead of {norm}");
        let factor = (f64::from(most as f32) / norm).min(1.0);
        let expected: Vec<_> = before
            .iter()
            .map(|grad| grad.as_ref().map(|grad| grad.iter().map(|x| x * factor).collect::<Vec<f64>>()))
            .collect();
        assert_near("clipped", &gradients(&net, &clipped), &expected);
    }
}

/// Four threads of two groups, as with layers that are divided among pairs of ranks. A pass of one
/// group drops what the other one records (burn#5573), so all four wait for each other. Without that
/// this fails in most runs, not in all.
#[test]
fn threads_of_several_groups_lose_no_gradient() {
    let Some(count) = devices("gradients::threads_of_several_groups_lose_no_gradient") else { return };
    let on = |devices: &[usize]| {
        Communicator::local(&devices.iter().map(|&index| RocmDevice::new(index)).collect::<Vec<_>>()).unwrap()
    };
    let all = on(&(0..count).collect::<Vec<_>>());
    let groups: Vec<Communicator> =
        (0..2).flat_map(|first| on(&(first..count).step_by(2).collect::<Vec<_>>())).collect();
    std::thread::scope(|scope| {
        for communicator in groups {
            let all = &all[communicator.device().index];
            scope.spawn(move || {
                let mut ranks = DataParallel::new(communicator).with_threads_of(all);
                let net = Net::<B>::new(&ranks.communicator().device(), 0);
                for step in 0..50 {
                    let loss = with_extra(&net, &[step, step + 1], &[0, 1, 2], 2);
                    let grads = ranks.backward(&net, Some(loss));
                    assert!(gradients(&net, &grads).iter().all(Option::is_some), "step {step}");
                    drop(ranks.reduce(&net, grads, Share::EVEN));
                }
            });
        }
    });
}
