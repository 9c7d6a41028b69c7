//! The estimated memory of training steps beside what the same steps take.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::FloatDType;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::{FloatElement, MemoryKind, Rocm, RocmDevice, RocmError, memory_summary};

use super::models::{Trained, fused, stock};
use crate::Options;

/// Prints a row for each model, with and without checkpoints, with Burn's modules and Adam and with
/// burn-rocm-nn's.
///
/// # Errors
/// The text of an error of the device or of an estimate.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let rows = match options.bf16 {
        false => rows::<f32>(options, FloatDType::F32),
        true => rows::<burn_rocm::bf16>(options, FloatDType::BF16),
    };
    rows.map_err(|error| error.to_string())
}

fn rows<F: FloatElement>(options: &Options, dtype: FloatDType) -> Result<(), RocmError> {
    type Saved<F> = Autodiff<Rocm<F>>;
    type Checkpointed<F> = Autodiff<Rocm<F>, BalancedCheckpointing>;
    println!("MiB, {dtype:?}: estimated, measured, and their ratio");
    println!("| step | allocated | | | reserved | | |\n|---|---:|---:|---:|---:|---:|---:|");
    macro_rules! models {
        ($backend:ident, $from:ident, $optim:path, $suffix:literal) => {{
            use $optim as optim;
            let adam = optim::AdamConfig::new();
            type Cnn<F> = $from::Cnn<$backend<F>>;
            type ResNet18<F> = $from::ResNet18<$backend<F>>;
            type Transformer<F> = $from::Transformer<$backend<F>>;
            type Bert<F> = $from::Bert<$backend<F>>;
            row::<$backend<F>, Cnn<F>, _>(options, concat!("CNN", $suffix), 4096, dtype, || adam.init())?;
            let name = concat!("ResNet-18", $suffix);
            row::<$backend<F>, ResNet18<F>, _>(options, name, 64, dtype, || adam.init())?;
            let name = concat!("transformer", $suffix);
            row::<$backend<F>, Transformer<F>, _>(options, name, 16, dtype, || adam.init())?;
            let name = concat!("BERT base", $suffix);
            row::<$backend<F>, Bert<F>, _>(options, name, 32, dtype, || adam.init())?;
        }};
    }
    models!(Saved, stock, burn::optim, "");
    models!(Checkpointed, stock, burn::optim, ", checkpoints");
    models!(Saved, fused, burn_rocm_nn::optim, ", burn-rocm-nn");
    models!(Checkpointed, fused, burn_rocm_nn::optim, ", burn-rocm-nn, checkpoints");
    Ok(())
}

/// Three steps of a model, estimated and measured.
fn row<B, M, O>(
    options: &Options,
    name: &str,
    size: usize,
    dtype: FloatDType,
    optimizer: impl Fn() -> O,
) -> Result<(), RocmError>
where
    B: AutodiffBackend<Device = RocmDevice>,
    M: Trained<B> + AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    if !options.names(name) {
        return Ok(());
    }
    let size = (size / options.shrink).max(1);
    let step = |device: &RocmDevice| {
        let (mut model, mut optimizer) = (M::new(device), optimizer());
        let batch = M::cast(M::batch(size, device), dtype);
        for _ in 0..3 {
            let loss = model.loss(batch.clone());
            let label = MemoryKind::Gradients.label();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            drop(label);
            let _label = MemoryKind::Optimizer.label();
            model = optimizer.step(1e-3, model, gradients);
        }
    };
    let device = RocmDevice::default();
    let estimate = device.estimate_memory(step)?;
    Rocm::<f32>::memory_cleanup(&device);
    device.reset_peak_memory()?;
    step(&device);
    device.synchronize()?;
    let measured = memory_summary(&device)?;
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let of = |estimated: usize, measured: usize| {
        format!("{:.1} | {:.1} | {:.3}", mib(estimated), mib(measured), mib(estimated) / mib(measured))
    };
    let allocated = of(estimate.peak_allocated, measured.allocated.peak);
    let reserved = of(estimate.peak_reserved, measured.peak_reserved);
    println!("| {name}, {size} | {allocated} | {reserved} |");
    if options.verbose {
        eprintln!("{name}, {size}, of which {:.1} MiB are guessed:\n{estimate}", mib(estimate.guessed));
    }
    Ok(())
}
