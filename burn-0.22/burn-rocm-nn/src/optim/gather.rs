//! Gathers the updates of a module's parameters one by one, for one step.

use std::cell::RefCell;

use burn::grad_clipping::GradientClipping;
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::{Clip, Rule, State, Step};
use burn_rocm::{RocmError, raise, trace};

use crate::fuse::{from_rocm, on_rocm, rocm, say_elsewhere};

thread_local! {
    /// The steps that this thread is gathering.
    static GATHERED: RefCell<Option<Gathered>> = const { RefCell::new(None) };
}

/// Steps to run, and the gradient clipping that optimizers leave to the fused step.
struct Gathered {
    clip: Option<GradientClipping>,
    steps: Vec<(Rule, Clip, Step)>,
}

/// While this lives, [`update`] gathers the thread's parameters. If a panic comes before
/// [`run`](Gathering::run), the steps gathered so far are run, as Burn's optimizer would have done,
/// unless they belong to a capture that the panic has ended.
pub(super) struct Gathering {
    before: Option<Gathered>,
}

impl Gathering {
    pub(super) fn begin(clip: Option<GradientClipping>) -> Self {
        Self { before: GATHERED.replace(Some(Gathered { clip, steps: Vec::new() })) }
    }

    /// Runs the steps. After an error, the contents of parameters and states are undefined.
    pub(super) fn run(self) -> Result<(), RocmError> {
        run_gathered()
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Does nothing if `run` has been called. After a panic nobody can receive an error.
        let _ = run_gathered();
        GATHERED.set(self.before.take());
    }
}

fn run_gathered() -> Result<(), RocmError> {
    let Some(Gathered { steps, .. }) = GATHERED.take() else { return Ok(()) };
    steps.into_iter().try_for_each(|(rule, _, mut step)| run(rule, &mut step))
}

fn run(rule: Rule, step: &mut Step) -> Result<(), RocmError> {
    let name = match rule {
        Rule::Adam(_) => "nn_adam",
        Rule::Sgd(_) => "nn_sgd",
    };
    let _op = trace::op(name, || "");
    step.run()
}

/// A gradient, and whose update rule is to use it.
pub(super) enum Gradient<const D: usize> {
    /// The fused rule, by [`update`].
    Here(Tensor<D>),
    /// Burn's rule, because the parameter is on a device of another project. The gradient is as
    /// wide as the parameter, and clipped.
    Elsewhere(Tensor<D>),
}

/// Decides whose rule uses a parameter's gradient. `clips` says whether the optimizer leaves
/// clipping to the fused step.
pub(super) fn place<const D: usize>(
    name: &'static str,
    clips: bool,
    tensor: &Tensor<D>,
    grad: Tensor<D>,
) -> Gradient<D> {
    let device: Device = tensor.device();
    if on_rocm(&device) {
        return Gradient::Here(grad);
    }
    say_elsewhere(name, &device);
    let dtype = tensor.dtype();
    let grad = if grad.dtype().size() < dtype.size() { grad.cast(dtype) } else { grad };
    Gradient::Elsewhere(match clipping(clips) {
        Some(clipping) => clipping.clip_gradient(grad),
        None => grad,
    })
}

fn clipping(clips: bool) -> Option<GradientClipping> {
    GATHERED
        .with_borrow(|gathered| gathered.as_ref().and_then(|gathered| gathered.clip.clone()))
        .filter(|_| clips)
}

/// The new parameter and its new state. Inside a [`Gathering`], [`Gathering::run`] computes them.
///
/// # Panics
/// If gradient, parameter and state do not fit, and with an error of the device.
pub(super) fn update<const D: usize>(
    rule: Rule,
    clips: bool,
    tensor: Tensor<D>,
    grad: Tensor<D>,
    mut state: State,
) -> (Tensor<D>, State) {
    let clip = match clipping(clips) {
        None => Clip::None,
        Some(GradientClipping::Value(limit)) => Clip::Value(limit),
        Some(GradientClipping::Norm(most)) => Clip::Norm(most),
    };
    let (tensor, grad) = (rocm(tensor), rocm(grad));
    let added = GATHERED.with_borrow_mut(|gathered| match gathered {
        Some(Gathered { steps, .. }) => {
            let same = steps.iter().position(|(other, by, _)| (*other, *by) == (rule, clip));
            let at = same.unwrap_or_else(|| {
                steps.push((rule, clip, Step::new(rule, clip)));
                steps.len() - 1
            });
            steps[at].2.add(tensor, grad, &mut state)
        }
        None => {
            let mut step = Step::new(rule, clip);
            let added = step.add(tensor, grad, &mut state)?;
            run(rule, &mut step)?;
            Ok(added)
        }
    });
    let (tensor, state) = added.unwrap_or_else(|error| raise(error));
    (from_rocm(tensor), state)
}
