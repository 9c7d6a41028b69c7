//! Shows what holds a device's memory during training steps, by label, size, thread and op, and
//! draws it over time.

use burn::backend::Autodiff;
use burn::tensor::{Distribution, Tensor};
use burn_rocm::{
    MemoryBy, Rocm, RocmDevice, memory_label, memory_record, memory_snapshot, memory_summary,
    memory_track_ops,
};

type B = Autodiff<Rocm>;

const BATCH: usize = 512;
const SIZES: [usize; 4] = [784, 1024, 1024, 10];
const RATE: f64 = 0.01;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = RocmDevice::default();
    // From now on, blocks know which op allocated them.
    memory_track_ops(true);

    let random = |shape| Tensor::<B, 2>::random(shape, Distribution::Normal(0.0, 0.02), &device);
    let mut weights = {
        let _parameters = memory_label("parameters");
        [0, 1, 2].map(|at| random([SIZES[at], SIZES[at + 1]]).require_grad())
    };
    let images = {
        let _data = memory_label("data");
        random([BATCH, SIZES[0]])
    };
    let forward = |weights: &[Tensor<B, 2>; 3]| {
        let _step = memory_label("step/forward");
        let [a, b, c] = weights.each_ref().map(Tensor::clone);
        let hidden = images.clone().matmul(a).clamp_min(0.0);
        let hidden = hidden.matmul(b).clamp_min(0.0);
        hidden.matmul(c).powi_scalar(2).mean()
    };
    let backward = |loss: Tensor<B, 1>| {
        let _step = memory_label("step/backward");
        loss.backward()
    };

    let loss = forward(&weights);
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

    let ((), record) = memory_record(&device, move || {
        for _ in 0..3 {
            let mut gradients = backward(forward(&weights));
            let _update = memory_label("update");
            // Nobody else holds the weights, so they are updated in place and keep their label.
            weights = weights.map(|weight| match weight.grad_remove(&mut gradients) {
                Some(gradient) => Tensor::from_inner(weight.inner() - gradient * RATE).require_grad(),
                None => weight,
            });
        }
    })?;
    let (peak, at) = record.peak();
    println!("peak of three steps: {peak} bytes after {at:?}");
    std::fs::create_dir_all("target")?;
    for (by, path) in [(MemoryBy::Label, "target/memory-labels.svg"), (MemoryBy::Op, "target/memory-ops.svg")]
    {
        record.write_svg(path, by)?;
        println!("a picture: {path}");
    }
    Ok(())
}
