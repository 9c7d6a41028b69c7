//! Shows what holds a device's memory during a training step, by label, size, thread and op.

use burn::backend::Autodiff;
use burn::tensor::{Distribution, Tensor};
use burn_rocm::{
    MemoryBy, Rocm, RocmDevice, memory_label, memory_record, memory_snapshot, memory_summary,
    memory_track_ops,
};

type B = Autodiff<Rocm>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = RocmDevice::default();
    // From now on, blocks know which op allocated them.
    memory_track_ops(true);

    let random = |shape| Tensor::<B, 2>::random(shape, Distribution::Normal(0.0, 0.02), &device);
    let weights = {
        let _parameters = memory_label("parameters");
        [random([784, 1024]), random([1024, 10])].map(Tensor::require_grad)
    };
    let images = {
        let _data = memory_label("data");
        random([512, 784])
    };
    let forward = || {
        let _step = memory_label("step/forward");
        let hidden = images.clone().matmul(weights[0].clone()).clamp_min(0.0);
        hidden.matmul(weights[1].clone()).powi_scalar(2).mean()
    };
    let backward = |loss: Tensor<B, 1>| {
        let _step = memory_label("step/backward");
        loss.backward()
    };

    let loss = forward();
    println!("{device} after the forward pass:\n{}", memory_summary(&device)?);

    device.reset_peak_memory()?;
    let gradients = backward(loss);
    println!("{device} after the backward pass:\n{}", memory_summary(&device)?);

    let snapshot = memory_snapshot(&device)?;
    println!("the three largest blocks:");
    for block in snapshot.blocks.iter().take(3) {
        let (label, op) = (block.label.as_deref().unwrap_or("-"), block.op.unwrap_or("-"));
        println!("{:>12} bytes  {label:<16} {op}", block.bytes);
    }
    drop(gradients);

    let (_, record) = memory_record(&device, || backward(forward()))?;
    let (peak, at) = record.peak();
    println!("peak of a step: {peak} bytes after {at:?}");
    std::fs::create_dir_all("target")?;
    std::fs::write("target/memory.svg", record.svg(MemoryBy::Label))?;
    println!("its picture: target/memory.svg");
    Ok(())
}
