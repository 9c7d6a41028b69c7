//! Training end to end on Burn 0.22, on a small share of the drawn digits.

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn_rocm_examples::data::digits;
use burn_rocm_examples::model::Kind;
use burn_rocm_examples::progress::Options;
use burn_rocm_examples_022::model::Model;
use burn_rocm_examples_022::train::{classify, evaluate, train};

/// A single test, because the seed belongs to the process.
#[test]
fn both_models_learn_and_a_saved_one_classifies_the_same() {
    let device = Device::rocm(0);
    let options = Options { epochs: 1, steps: None, batch_size: 32, lr: 1e-3, seed: 3 };
    let data = digits::generate(0, 640, 100);
    let few = Options { steps: Some(15), ..options.clone() };
    device.seed(few.seed);
    let autodiff = device.clone().autodiff();
    let (_, history) = train(Model::new(Kind::Cnn, &autodiff), &data, &few, &autodiff).expect("training");
    assert_eq!(history.train.iter().map(|reading| reading.step).collect::<Vec<_>>(), [10, 15]);
    assert!(history.train[1].loss < history.train[0].loss, "{history:?}");

    let data = digits::generate(0, 2000, 200);
    device.seed(options.seed);
    let (model, history) =
        train(Model::new(Kind::Mlp, &autodiff), &data, &options, &autodiff).expect("training");
    let last = *history.test.last().expect("an evaluation");
    assert_eq!(last.step, 2000usize.div_ceil(32));
    assert!(last.accuracy > 0.7, "{last:?}");

    let path = std::env::temp_dir().join(format!("burn-rocm-example-022-{}.bpk", std::process::id()));
    model.valid().into_record().save(&path).expect("saving");
    let record = ModuleRecord::load(&path).expect("loading");
    let loaded = Model::new(Kind::Mlp, &device).load_record(record);
    std::fs::remove_file(&path).expect("removing");
    let reading = evaluate(&loaded, &data, &data.test, &device).expect("evaluation");
    assert!((reading.accuracy - last.accuracy).abs() < 1e-6, "{reading:?} {last:?}");
    let guesses = classify(&loaded, &data, &data.test, &device).expect("classification");
    let right = guesses.iter().enumerate().filter(|(i, guess)| guess.digit == data.test.label(*i)).count();
    assert_eq!(right as f32 / 200.0, reading.accuracy);
}
