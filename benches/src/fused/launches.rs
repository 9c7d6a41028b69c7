//! Counts the launches, library calls and copies of a training step.

use burn::optim::AdamConfig;
use burn_rocm::RocmDevice;
use burn_rocm::trace::{self, Counts};

use super::B;
use super::train::{both, trainer};
use crate::gpu::models::{fused, stock};

/// The counts of a step after the first ones, which make the optimizer's state.
fn of_step(mut step: Box<dyn FnMut()>) -> Counts {
    step();
    step();
    trace::counting(step).1
}

/// Each model's name, and its counts with stock and with fused modules. The counts do not depend on
/// the batch.
fn counted(device: &RocmDevice) -> [(&'static str, [Counts; 2]); 4] {
    [
        ("MLP", both!(Mlp, 2, device).map(of_step)),
        ("MNIST CNN", both!(Cnn, 2, device).map(of_step)),
        ("ResNet-18", both!(ResNet18, 1, device).map(of_step)),
        ("transformer, 4 layers", both!(Transformer, 1, device).map(of_step)),
    ]
}

/// Prints the table of `benches/README.md`.
pub(crate) fn launches() {
    println!("| Adam step of | stock modules | burn-rocm-nn | times fewer |\n|---|---|---|---|");
    for (model, [composed, fused]) in counted(&RocmDevice::default()) {
        let cell = |counts: Counts| {
            format!(
                "{} ({} kernels, {} library calls, {} copies)",
                counts.launches(),
                counts.kernels,
                counts.library_calls,
                counts.copies
            )
        };
        let times = composed.launches() as f64 / fused.launches() as f64;
        println!("| {model} | {} | {} | {times:.2} |", cell(composed), cell(fused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_modules_launch_less() {
        // With chains, stock modules have at most 41 % of the launches that they have without.
        let joined = hip::Device::get(0).expect("a device").chain_limit() > 1;
        let times = if joined { 1 } else { 3 };
        for (model, [composed, fused]) in counted(&RocmDevice::default()) {
            assert!(fused.launches() > 0, "{model}: {fused:?}");
            assert!(composed.launches() > times * fused.launches(), "{model}: {composed:?} and {fused:?}");
            assert_eq!(fused.transfers, 0, "{model}: {fused:?}");
        }
    }
}
