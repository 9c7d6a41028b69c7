//! Trains a small fixed problem and prints the loss after each step: the same program on every provider.
//!
//! `steps mlp|cnn N`: one line a step, `<step> <loss>`.

use burn_rocm_examples::model::{Cnn, Mlp};
use burn_rocm_tests::training::{Trainer, batch};

type B = burn::backend::Autodiff<burn_rocm::Rocm>;

fn main() {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_default();
    let steps: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    let device = Default::default();
    match model.as_str() {
        "mlp" => run(Trainer::new(Mlp::<B>::new(&device), Mlp::forward), steps),
        "cnn" => run(Trainer::new(Cnn::<B>::new(&device), Cnn::forward), steps),
        other => {
            eprintln!("usage: steps mlp|cnn N (found model {other:?})");
            std::process::exit(2);
        }
    }
}

fn run<M: burn::module::AutodiffModule<B>>(mut trainer: Trainer<B, M>, steps: usize) {
    let data = batch::<B>(&Default::default(), 32);
    for step in 0..steps {
        println!("{step} {:.7}", trainer.step(&data));
    }
}
