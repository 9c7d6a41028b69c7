//! Burn's `capture` of a training step of Burn's own modules and optimizer.

use std::cell::RefCell;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation, capture};
use burn_cubecl::trace::{Counts, counting};

/// Inputs, hidden values, outputs.
const WIDTHS: [usize; 3] = [12, 32, 5];
const BATCH: usize = 16;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let [inputs, hidden, outputs] = WIDTHS;
        Self {
            hidden: LinearConfig::new(inputs, hidden).init(device),
            output: LinearConfig::new(hidden, outputs).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(activation::relu(self.hidden.forward(x)))
    }
}

/// Inputs and targets.
type Batch = [Tensor<2>; 2];

fn batch(number: usize, device: &Device) -> Batch {
    [WIDTHS[0], WIDTHS[2]].map(|width| {
        let value = |i| ((i * (number + 2)) as f32 * 0.37).sin();
        Tensor::from_data(TensorData::new((0..BATCH * width).map(value).collect(), [BATCH, width]), device)
    })
}

/// Writes another batch into the memory of the one before.
fn refresh(memory: &RefCell<Batch>, number: usize, device: &Device) {
    for (tensor, new) in memory.borrow_mut().iter_mut().zip(batch(number, device)) {
        assert!(tensor.can_mut(), "another owner would make this a copy");
        let [rows, columns] = tensor.dims();
        tensor.inplace(|old| old.slice_assign([0..rows, 0..columns], new));
    }
}

/// A training step on the batch in `memory`, which returns the loss before it.
fn step(model: Mlp, memory: &RefCell<Batch>) -> impl FnMut() -> Tensor<1> {
    let mut state = Some(model);
    let mut optimizer = SgdConfig::new().init();
    move || {
        // The optimizer gets the only owner of the parameters, so it updates them in place.
        let model = state.take().expect("the last step's model");
        let [x, y] = memory.borrow().clone().map(Tensor::autodiff);
        let loss = MseLoss::new().forward(model.forward(x), y, Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        state = Some(optimizer.step(0.05, model, grads));
        loss.inner()
    }
}

fn bits(loss: &Tensor<1>) -> u32 {
    loss.clone().into_scalar::<f32>().to_bits()
}

#[test]
fn a_captured_training_step_is_one_launch() {
    let device = Device::rocm(0);
    let training = device.clone().autodiff();
    let model = Mlp::new(&training);
    let [eager_memory, memory] = [(); 2].map(|()| RefCell::new(batch(0, &device)));
    let mut eager = step(model.clone().fork(&training), &eager_memory);
    // `capture` runs the step so often before it records.
    for _ in 0..3 {
        eager();
    }
    let mut graph = capture(&device, step(model, &memory));
    assert!(graph.is_hardware(), "Burn would run the step again at each replay");
    let mut losses = Vec::new();
    for number in 1..=3 {
        refresh(&eager_memory, number, &device);
        refresh(&memory, number, &device);
        let expected = bits(&eager());
        let replay = || {
            // SAFETY: the graph keeps its memory, and only this thread uses the tensors.
            unsafe { graph.replay() };
        };
        let ((), counts) = counting(replay);
        assert_eq!(counts, Counts { graphs: 1, ..Counts::default() });
        assert_eq!(bits(graph.output()), expected, "step {number}");
        losses.push(expected);
    }
    losses.dedup();
    assert_eq!(losses.len(), 3, "each step has another batch: {losses:?}");
}
