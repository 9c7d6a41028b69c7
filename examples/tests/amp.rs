//! Mixed precision end to end: f16 and bf16 learn as well as f32, and checkpointing takes less
//! memory.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::FloatDType;
use burn_rocm::Rocm;
use burn_rocm_examples::amp::{Kind, Options, train};
use burn_rocm_examples::data::digits;

/// This is a single test, because the seed and the peak of memory belong to the device.
///
/// After all 600 steps of the example, f16 and bf16 are within half a point. After the few steps
/// here, the accuracy still climbs by as much in one step.
#[test]
fn halves_learn_as_f32_and_checkpointing_takes_less_memory() {
    let data = digits::generate(0, 3200, 1000);
    let options = Options { steps: 50, batch_size: 64, lr: 1e-3, seed: 42 };
    for kind in [Kind::Cnn, Kind::Transformer] {
        let of = |half| train::<Autodiff<Rocm>>(kind, half, &data, &options).expect("training");
        let full = of(None);
        assert!(full.accuracy > 75.0, "{kind:?}: {full:?}");
        for half in [FloatDType::F16, FloatDType::BF16] {
            let found = of(Some(half));
            assert!(
                (found.accuracy - full.accuracy).abs() < 2.0,
                "{kind:?} {half:?}: {found:?}, f32 {full:?}"
            );
            assert!(found.peak < 0.9 * full.peak, "{kind:?} {half:?}: {found:?}, f32 {full:?}");
        }
        let few = Options { steps: 4, ..options };
        for half in [None, Some(FloatDType::F16)] {
            let kept = train::<Autodiff<Rocm>>(kind, half, &data, &few).expect("training");
            let again =
                train::<Autodiff<Rocm, BalancedCheckpointing>>(kind, half, &data, &few).expect("training");
            assert!(
                again.peak < 0.95 * kept.peak,
                "{kind:?} {half:?}: {again:?}, without checkpointing {kept:?}"
            );
            assert_eq!(again.accuracy, kept.accuracy, "{kind:?} {half:?}");
        }
    }
}
