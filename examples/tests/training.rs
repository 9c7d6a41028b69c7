//! Training end to end, on a small share of the drawn digits.

/// The tests of the whole workspace use this file too.
#[cfg(feature = "devices")]
#[allow(unreachable_pub)]
#[path = "../../tests/src/again.rs"]
mod again;

use std::sync::{Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::Backend as _;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_examples::data::{Data, digits};
use burn_rocm_examples::error::Error;
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_examples::train::{History, Options, classify, evaluate, train};

type Backend = Autodiff<Rocm>;

fn options() -> Options {
    Options { epochs: 1, steps: None, batch_size: 32, lr: 1e-3, seed: 3 }
}

fn run(kind: Kind, data: &Data, options: &Options) -> Result<(Model<Backend>, History), Error> {
    // The seed belongs to the process, and weights are drawn on first use. So only one run may
    // happen at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    Backend::seed(&device, options.seed);
    train(kind.init(&device), data, options, &device)
}

#[test]
fn trains_saves_loads_and_repeats() {
    let data = digits::generate(0, 2000, 200);
    let device = RocmDevice::default();

    let (model, history) = run(Kind::Mlp, &data, &options()).expect("training");
    let last = *history.test.last().expect("an evaluation");
    assert_eq!(last.step, 2000usize.div_ceil(32));
    assert!(last.accuracy > 0.7, "{last:?}");
    assert!(history.train[0].loss > 1.0 && history.train.last().expect("readings").loss < 1.0);

    let path = std::env::temp_dir().join(format!("burn-rocm-example-{}.mpk", std::process::id()));
    let recorder = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    let model: Model<Rocm> = model.valid();
    model.clone().save_file(&path, &recorder).expect("saving");
    let loaded = Kind::Mlp.init::<Rocm>(&device).load_file(&path, &recorder, &device).expect("loading");
    std::fs::remove_file(&path).expect("removing");
    let reading = evaluate(&loaded, &data, &data.test, &device).expect("evaluation");
    assert!((reading.accuracy - last.accuracy).abs() < 1e-6, "{reading:?} {last:?}");
    let guesses = classify(&loaded, &data, &data.test, &device).expect("classification");
    let right = guesses.iter().enumerate().filter(|(i, guess)| guess.digit == data.test.label(*i)).count();
    assert_eq!(right as f32 / 200.0, reading.accuracy);

    let (_, again) = run(Kind::Mlp, &data, &options()).expect("training again");
    for (first, second) in history.train.iter().zip(&again.train) {
        assert!((first.loss - second.loss).abs() < 1e-4, "{first:?} {second:?}");
    }
    let (_, other) = run(Kind::Mlp, &data, &Options { seed: 4, ..options() }).expect("another seed");
    assert!((history.train[0].loss - other.train[0].loss).abs() > 1e-4);
}

#[test]
fn the_convolutional_network_learns_and_steps_stop_early() {
    let data = digits::generate(0, 640, 100);
    let (_, history) = run(Kind::Cnn, &data, &Options { steps: Some(15), ..options() }).expect("training");
    assert_eq!(history.train.iter().map(|reading| reading.step).collect::<Vec<_>>(), [10, 15]);
    assert!(history.train[1].loss < history.train[0].loss, "{history:?}");
    assert_eq!(history.test.len(), 1);
}

#[test]
fn a_loss_that_is_no_number_is_an_error() {
    let data = digits::generate(0, 640, 100);
    match run(Kind::Mlp, &data, &Options { lr: 1.0, ..options() }) {
        // The learning rate bounds Adam's steps. A rate of 1.0 may or may not diverge, but must not
        // panic.
        Ok((_, history)) => assert!(history.train.iter().all(|reading| reading.loss.is_finite())),
        Err(error) => assert!(matches!(error, Error::Diverged { .. }), "{error}"),
    }
}

/// Rank 1 finds a label that is no digit, and aborts the group. Rank 0's error says only that rank
/// 1 did so.
#[cfg(feature = "devices")]
#[test]
fn the_error_of_several_ranks_is_that_of_the_one_that_failed() {
    use burn_rocm_examples::data::{Split, epoch_order};
    use burn_rocm_examples::ranks::Ranks;

    /// Set in the process that runs this test alone.
    const ALONE: &str = "EXAMPLES_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let environment = [
            (ALONE, "1"),
            ("BURN_ROCM_CPU_DEVICES", "2"),
            ("BURN_ROCM_PROVIDER", "cpu"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "60"),
        ];
        let test = "the_error_of_several_ranks_is_that_of_the_one_that_failed";
        again::again(&["--exact", test], &environment);
        return;
    }
    let options = Options { steps: Some(1), batch_size: 8, ..options() };
    let Data { train: drawn, test, .. } = digits::generate(0, 8, 8);
    // Rank 1 takes the second half of the batch.
    let order = epoch_order(drawn.len(), options.seed, 0);
    let mut train = Split::with_capacity(drawn.len());
    for index in 0..drawn.len() {
        let image = drawn.image(index).try_into().expect("an image");
        train.push(image, if order[4..].contains(&index) { 255 } else { drawn.label(index) });
    }
    let data = Data::new("drawn digits", train, test);
    let ranks = Ranks::of(Some(2)).expect("two devices").expect("two ranks");
    let model = Kind::Mlp.init::<Backend>(&ranks.device());
    let error = ranks.train(model, &data, &options).map(drop).expect_err("a label that is no digit");
    assert!(error.to_string().contains("index 255"), "{error}");
}
