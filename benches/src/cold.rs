//! Cold start: how long a user waits until the first training step is done.

use crate::Options;
use crate::cases::{batch, step};
use crate::table::Row;
use burn::backend::Autodiff;
use burn::optim::AdamConfig;
use burn_backend::Backend;
use burn_rocm_examples::model::Kind;
use std::process::Command;
use std::time::Instant;

type B = Autodiff<burn_rocm::Rocm>;

/// Builds a model and trains it for one step.
pub(crate) fn first_step(kind: Kind) {
    let device = Default::default();
    let data = batch::<B>(&device, 128);
    step(kind.init::<B>(&device), &mut AdamConfig::new().init(), data);
    B::sync(&device).expect("the device finishes");
}

/// Starts this program again with an empty cache folder, and times it.
pub(crate) fn cold_start(options: &Options, rows: &mut Vec<Row>) {
    let program = std::env::current_exe().expect("this program has a path");
    for kind in [Kind::Mlp, Kind::Cnn] {
        let model = kind.name();
        let mut times = Vec::new();
        for round in 0..options.iterations {
            let cache = std::env::temp_dir().join(format!("burn-rocm-cold-{}-{round}", std::process::id()));
            std::fs::create_dir_all(&cache).expect("a temporary folder can be made");
            let start = Instant::now();
            let status =
                Command::new(&program).args(["--first-step", model]).env("XDG_CACHE_HOME", &cache).status();
            times.push(start.elapsed().as_secs_f64());
            assert!(status.is_ok_and(|status| status.success()), "the first step of the {model} failed");
            let _ = std::fs::remove_dir_all(&cache);
        }
        times.sort_by(f64::total_cmp);
        rows.push(Row {
            case: format!("cold start to the end of the first {model} step"),
            ours: times[times.len() / 2],
            peer: None,
            bar: 2.0,
        });
    }
}
