//! Trains a small fixed problem and prints the loss after each step. The program is the same on
//! every provider.
//!
//! `steps mlp|cnn N` prints one line for each step: `<step> <loss>`. `BURN_ROCM_TRACE_FILE` names a
//! file for the trace.

use burn_rocm_examples::model::Kind;
use burn_rocm_tests::training::{Trainer, batch};

type B = burn::backend::Autodiff<burn_rocm::Rocm>;

fn main() {
    burn_rocm_tests::trace::to_file();
    let mut args = std::env::args().skip(1);
    let kind = match args.next().as_deref() {
        Some("mlp") => Kind::Mlp,
        Some("cnn") => Kind::Cnn,
        other => {
            eprintln!("usage: steps mlp|cnn N (found model {other:?})");
            std::process::exit(2);
        }
    };
    let steps: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    let device = Default::default();
    let mut trainer = Trainer::<B>::new(kind, &device);
    let data = batch::<B>(&device, 32);
    for step in 0..steps {
        println!("{step} {:.7}", trainer.step(&data));
    }
}
