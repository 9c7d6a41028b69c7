//! Fused ops on Burn's tensors. A tensor's device decides whether an op runs fused; under autodiff
//! it is recorded for the backward pass.
//!
//! A module asks [`Route::of`] for a route of its input. With a route, [`Route::apply`] runs an
//! [`Op`] on the module's tensors. Without one, the module composes Burn's ops.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, BackendTensor, DispatchAutodiffContext, DispatchDevice,
    DispatchKindConversion, DispatchTensor, GradientCheckpointingStrategy,
};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing};
use burn_autodiff::grads;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_rocm::{Rocm, RocmTensor};

use crate::ops::recorded::{Again, State};
pub(crate) use crate::ops::refuse;
use crate::ops::{Op, run};

/// How the ops of this crate reach the tensors of this project's device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    records: bool,
}

/// A float tensor of this project's backend under autodiff.
type Tracked = FloatTensor<Autodiff<Rocm>>;

/// The reason logged by every module on a device of another project.
const ELSEWHERE: &str = "burn-rocm-nn has no fused ops for this device";

/// Logs that a module composes Burn's ops, once for each module, device and reason. On another
/// project's device the reason is [`ELSEWHERE`], whatever the caller's reason is.
pub(crate) fn say_composed(module: &'static str, device: &Device, reason: &'static str) {
    static SAID: Mutex<BTreeSet<(&str, String, &str)>> = Mutex::new(BTreeSet::new());
    if !log::log_enabled!(log::Level::Info) {
        return;
    }
    let reason = if on_rocm(device) { reason } else { ELSEWHERE };
    let device = format!("{device:?}");
    // A poisoned lock is harmless, because a set is valid after every insertion. The lock is
    // released here, because a logger may run a module too.
    let said = (module, device.clone(), reason);
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(said);
    if is_new {
        log::info!("burn_rocm_nn: {module} on {device} composes Burn's ops: {reason}");
    }
}

/// Calls [`say_composed`] for a device of another project.
pub(crate) fn say_elsewhere(module: &'static str, device: &Device) {
    say_composed(module, device, ELSEWHERE);
}

/// Whether tensors of the device are this project's, with autodiff or without.
pub(crate) fn on_rocm(device: &Device) -> bool {
    let ours = |device: &DispatchDevice| matches!(device, DispatchDevice::Cube(_));
    let device = device.as_dispatch();
    ours(device) || matches!(device, DispatchDevice::Autodiff(inner) if ours(inner))
}

impl Route {
    /// The route if the tensor is on this project's device. Otherwise logs that `module` composes
    /// Burn's ops.
    pub(crate) fn of<const D: usize>(module: &'static str, tensor: &Tensor<D>) -> Option<Self> {
        let device = tensor.device();
        let route = Self::on(&device);
        if route.is_none() {
            say_elsewhere(module, &device);
        }
        route
    }

    /// The route of this project's devices.
    pub(crate) fn on(device: &Device) -> Option<Self> {
        on_rocm(device).then(|| Self { records: device.is_autodiff() })
    }

    /// Whether the tensor's ops are recorded for a backward pass.
    pub(crate) fn records(&self) -> bool {
        self.records
    }

    /// Whether products of a float tensor may be computed together with what follows them.
    pub(crate) fn joins_products<const D: usize>(&self, tensor: &Tensor<D>) -> bool {
        let quantised = matches!(tensor.dtype(), DType::QFloat(_));
        !quantised && burn_rocm::fused::joins_products(&rocm(tensor.clone()).rocm_device())
    }

    /// Runs an op on these tensors. Returns the output and the saved tensors.
    ///
    /// As in Burn's ops, a tensor without autodiff counts as a constant if other tensors have
    /// autodiff.
    ///
    /// # Panics
    /// With `Invalid` if the tensors are on different devices or have different checkpointing
    /// strategies.
    pub(crate) fn apply<const N: usize>(
        &self,
        op: impl Op<N>,
        inputs: [DispatchTensor; N],
    ) -> (DispatchTensor, Vec<RocmTensor>) {
        let disabled = DispatchAutodiffContext::Disabled;
        match inputs.iter().map(|input| input.autodiff).find(|context| *context != disabled) {
            Some(DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::Balanced)) => {
                record::<BalancedCheckpointing, N>(Arc::new(op), inputs)
            }
            Some(DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::Disabled)) => {
                record::<NoCheckpointing, N>(Arc::new(op), inputs)
            }
            Some(DispatchAutodiffContext::Disabled) | None => {
                let (output, saved) = run(&op, inputs.map(plain));
                (dispatched::<Rocm>(output), saved)
            }
        }
    }

    /// [`apply`](Self::apply) for an op with one input, whose output has the same rank.
    pub(crate) fn unary<const D: usize>(&self, op: impl Op<1>, x: Tensor<D>) -> Tensor<D> {
        wrap(self.apply(op, [primitive(x)]).0)
    }

    /// The tensor if it requires no gradient, so that it can be a field of an [`Op`]. Otherwise
    /// logs that `module` composes Burn's ops.
    pub(crate) fn untracked<const D: usize>(
        &self,
        module: &'static str,
        tensor: &Tensor<D>,
    ) -> Option<RocmTensor> {
        if tensor.is_tracked() {
            say_composed(module, &tensor.device(), "its weights require a gradient");
            return None;
        }
        Some(rocm(tensor.clone()))
    }

    /// An int tensor as this backend's.
    pub(crate) fn int<const D: usize>(&self, tensor: Tensor<D, Int>) -> RocmTensor {
        plain(tensor.inner().into_dispatch())
    }

    /// A bool tensor as this backend's.
    pub(crate) fn bool<const D: usize>(&self, tensor: Tensor<D, burn::tensor::Bool>) -> RocmTensor {
        plain(tensor.inner().into_dispatch())
    }
}

/// A float tensor without its rank. Dequantises a quantised tensor.
pub(crate) fn primitive<const D: usize>(tensor: Tensor<D>) -> DispatchTensor {
    match tensor.dtype() {
        DType::QFloat(_) => tensor.dequantize().into_dispatch(),
        _ => tensor.into_dispatch(),
    }
}

/// The tensor of rank `D`.
pub(crate) fn wrap<const D: usize>(tensor: DispatchTensor) -> Tensor<D> {
    Tensor::from_dispatch(tensor)
}

/// This project's tensor, without autodiff.
///
/// # Panics
/// With `Invalid` for a tensor that is not on this project's device.
pub(crate) fn rocm<const D: usize>(tensor: Tensor<D>) -> RocmTensor {
    plain(primitive(tensor.inner()))
}

/// A tensor without autodiff.
pub(crate) fn from_rocm<const D: usize>(tensor: RocmTensor) -> Tensor<D> {
    Tensor::from_primitive::<Rocm>(tensor)
}

fn dispatched<B>(tensor: FloatTensor<B>) -> DispatchTensor
where
    B: burn::backend::Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
}

/// A tensor of the backend `B`, of any kind but quantised.
fn on<B>(tensor: DispatchTensor) -> BackendTensor<B>
where
    B: burn::backend::Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor)
        .unwrap_or_else(|found| refuse("fused op", "tensors of one device and checkpointing strategy", found))
}

fn plain(tensor: DispatchTensor) -> RocmTensor {
    match on::<Rocm>(tensor) {
        BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor) => tensor,
        other => refuse("fused op", "a float, int or bool tensor", other.name()),
    }
}

fn tracked<C>(tensor: DispatchTensor) -> Tracked
where
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<Rocm, C>>,
{
    if tensor.autodiff == DispatchAutodiffContext::Disabled {
        return <Autodiff<Rocm> as AutodiffBackend>::from_inner(plain(tensor));
    }
    match on::<Autodiff<Rocm, C>>(tensor) {
        BackendTensor::Float(tensor) => tensor,
        other => refuse("fused op", "a float tensor", other.name()),
    }
}

/// Runs an op and records it.
fn record<C, const N: usize>(
    op: Arc<dyn Op<N>>,
    tensors: [DispatchTensor; N],
) -> (DispatchTensor, Vec<RocmTensor>)
where
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<Rocm, C>>,
{
    let tensors = tensors.map(tracked::<C>);
    let prep = Step.prepare::<C>(tensors.each_ref().map(|tensor| tensor.node()));
    let prep = if op.memory_bound() {
        let inputs = tensors.each_ref().map(|tensor| tensor.id());
        prep.memory_bound().retro_forward(Again { op: op.clone(), inputs }).parents(&tensors)
    } else {
        prep.compute_bound()
    };
    let (output, saved) = match prep.stateful() {
        OpsKind::Tracked(mut prep) => {
            let reads = op.reads();
            let inputs = std::array::from_fn(|k| reads[k].then(|| prep.checkpoint(&tensors[k])));
            let (output, saved) = run(&*op, tensors.map(|tensor| tensor.into_primitive()));
            (prep.finish(State { op, inputs, saved: saved.clone() }, output), saved)
        }
        OpsKind::UnTracked(prep) => {
            let (output, saved) = run(&*op, tensors.map(|tensor| tensor.into_primitive()));
            (prep.finish(output), saved)
        }
    };
    (dispatched::<Autodiff<Rocm, C>>(output), saved)
}

#[derive(Debug)]
struct Step;

impl<const N: usize> Backward<Rocm, N> for Step {
    type State = State<N>;

    fn backward(self, ops: Ops<State<N>, N>, grads: &mut grads::Gradients, checkpointer: &mut Checkpointer) {
        let grad = grads.consume::<Rocm>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        // Burn 0.22 does not tell whether a parent already has a gradient, so the op can't add to
        // it. `register` does that instead.
        let found = ops.state.backward(grad, checkpointer, wanted, |_| None);
        for (parent, grad) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<Rocm>(parent.id, grad);
            }
        }
    }
}
