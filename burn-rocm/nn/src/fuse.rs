//! Fused ops on Burn's generic tensors. The backend's type decides whether an op runs fused; under
//! autodiff it is recorded for the backward pass.
//!
//! A module asks [`Route::of`] for a route of its backend `B`. With a route, [`Route::apply`] runs
//! an [`Op`] on the module's tensors. Without one, the module composes Burn's ops.

use std::any::{Any, TypeId, type_name};
use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Bool, Int, Tensor, TensorPrimitive};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing};
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId, grads};
use burn_backend::tensor::FloatTensor;
use burn_rocm::{BoolElement, FloatElement, IntElement, Rocm, RocmDevice, RocmTensor};

use crate::ops::recorded::{Again, State};
pub(crate) use crate::ops::refuse;
use crate::ops::{Op, run};

/// How the ops of this crate reach the tensors of backend `B`.
pub(crate) struct Route<B> {
    /// Records ops on an autodiff backend; `None` on the plain backend.
    recorder: Option<Recorder>,
    backend: PhantomData<B>,
}

/// A float tensor of any of this project's autodiff backends. These backends differ only in their
/// element types, on which no op depends, so all are recorded as one type.
type Tracked = TrackedBy<Rocm>;
type TrackedBy<B> = FloatTensor<Autodiff<B>>;

/// How to record on an autodiff backend `Autodiff<Rocm<..>, C>`.
#[derive(Clone, Copy)]
struct Recorder {
    /// Whether the strategy `C` recomputes memory-bound ops.
    balanced: bool,
    /// Takes the backend's tensor out of an `Option`.
    enter: fn(&mut dyn Any) -> Tracked,
    /// Puts the backend's tensor into an `Option`.
    leave: fn(Tracked, &mut dyn Any),
    tape: Tape,
}

/// How the backward pass finds gradients. Burn stores them under the backend's type.
#[derive(Clone, Copy, Debug)]
struct Tape {
    /// Takes the gradient of a node. The node is an `Any`, because its type can't be named outside
    /// its crate.
    consume: fn(&mut grads::Gradients, &dyn Any) -> RocmTensor,
    /// Takes the gradient of a node that may have none yet. The tensor argument is a stand-in for
    /// the node's output.
    take: fn(&mut grads::Gradients, &dyn Any, NodeId, RocmTensor) -> Option<RocmTensor>,
    register: fn(&mut grads::Gradients, NodeId, RocmTensor),
}

/// The reason logged by every module on a backend of another project.
const ELSEWHERE: &str = "burn-rocm-nn has no fused ops for this backend type";

/// Logs that a module composes Burn's ops, once for each module (by type name), backend and reason.
/// On another project's backend the reason is [`ELSEWHERE`], whatever the caller's reason is.
pub(crate) fn say_composed<B: Backend>(module: &'static str, reason: &'static str) {
    static SAID: Mutex<BTreeSet<(&str, TypeId, &str)>> = Mutex::new(BTreeSet::new());
    if !log::log_enabled!(log::Level::Info) {
        return;
    }
    let is_ours = is_rocm::<B>() || recorders().contains_key(&TypeId::of::<B>());
    let reason = if is_ours { reason } else { ELSEWHERE };
    // A poisoned lock is harmless, because a set is valid after every insertion. The lock is
    // released here, because a logger may run a module too.
    let is_new =
        SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((module, TypeId::of::<B>(), reason));
    if is_new {
        log::info!("burn_rocm_nn: {module} on {} composes Burn's ops: {reason}", type_name::<B>());
    }
}

/// Calls [`say_composed`] for a backend of another project.
pub(crate) fn say_elsewhere<B: Backend>(module: &'static str) {
    say_composed::<B>(module, ELSEWHERE);
}

impl<B: Backend> Route<B> {
    /// The route if `B` is this project's backend, plain or under autodiff. Otherwise logs that
    /// `module` composes Burn's ops.
    pub(crate) fn of(module: &'static str) -> Option<Self> {
        if is_rocm::<B>() {
            return Some(Self { recorder: None, backend: PhantomData });
        }
        let recorder = recorders().get(&TypeId::of::<B>()).copied();
        if recorder.is_none() {
            say_elsewhere::<B>(module);
        }
        Some(Self { recorder: Some(recorder?), backend: PhantomData })
    }

    /// Whether ops are recorded for a backward pass.
    pub(crate) fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Runs an op on these tensors. Returns the output and the saved tensors.
    pub(crate) fn apply<const N: usize>(
        &self,
        op: impl Op<N>,
        inputs: [FloatTensor<B>; N],
    ) -> (FloatTensor<B>, Vec<RocmTensor>) {
        match self.recorder {
            None => {
                let (output, saved) = run(&op, inputs.map(cast));
                (cast(output), saved)
            }
            Some(Recorder { balanced, enter, leave, tape }) => {
                let inputs = inputs.map(|tensor| enter(&mut Some(tensor)));
                let (output, saved) = match balanced {
                    false => record::<NoCheckpointing, N>(Arc::new(op), inputs, tape),
                    true => record::<BalancedCheckpointing, N>(Arc::new(op), inputs, tape),
                };
                let mut place = None;
                leave(output, &mut place);
                (place.expect("`leave` puts the output there"), saved)
            }
        }
    }

    /// [`apply`](Self::apply) for an op with one input, whose output has the same rank.
    pub(crate) fn unary<const D: usize>(&self, op: impl Op<1>, x: Tensor<B, D>) -> Tensor<B, D> {
        wrap(self.apply(op, [primitive(x)]).0)
    }

    /// A tensor that is not part of the graph, such as one that an op saved, as a tensor of `B`.
    pub(crate) fn constant<const D: usize>(&self, tensor: RocmTensor) -> Tensor<B, D> {
        wrap(match self.recorder {
            None => cast(tensor),
            Some(Recorder { leave, .. }) => {
                let mut place = None;
                leave(<Autodiff<Rocm> as AutodiffBackend>::from_inner(tensor), &mut place);
                place.expect("`leave` puts the tensor there")
            }
        })
    }

    /// The tensor if it requires no gradient, so that it can be a field of an [`Op`]. Otherwise
    /// logs that `module` composes Burn's ops.
    pub(crate) fn untracked<const D: usize>(
        &self,
        module: &'static str,
        tensor: &Tensor<B, D>,
    ) -> Option<RocmTensor> {
        let tensor = primitive(tensor.clone());
        match self.recorder {
            None => Some(cast(tensor)),
            Some(Recorder { enter, .. }) => {
                let tensor = enter(&mut Some(tensor));
                if tensor.is_tracked() {
                    say_composed::<B>(module, "its weights require a gradient");
                    return None;
                }
                Some(tensor.primitive)
            }
        }
    }

    /// Whether a backward pass from this tensor reaches anything.
    pub(crate) fn is_tracked<const D: usize>(&self, tensor: &Tensor<B, D>) -> bool {
        let tensor = primitive(tensor.clone());
        self.recorder.is_some_and(|recorder| (recorder.enter)(&mut Some(tensor)).is_tracked())
    }

    /// A float tensor as this backend's, without its place in the autodiff graph.
    pub(crate) fn inner(&self, tensor: FloatTensor<B>) -> RocmTensor {
        match self.recorder {
            None => cast(tensor),
            Some(Recorder { enter, .. }) => enter(&mut Some(tensor)).primitive,
        }
    }

    /// An int tensor of this backend as a tensor of `B`.
    pub(crate) fn ints<const D: usize>(&self, tensor: RocmTensor) -> Tensor<B, D, Int> {
        Tensor::from_primitive(cast(tensor))
    }

    /// A bool tensor as this backend's.
    pub(crate) fn bool<const D: usize>(&self, tensor: Tensor<B, D, Bool>) -> RocmTensor {
        cast(tensor.into_primitive())
    }

    /// Whether products on a device may be computed together with what follows them.
    pub(crate) fn joins_products(&self, device: &B::Device) -> bool {
        burn_rocm::fused::joins_products(&self.device(device))
    }

    /// A device as this backend's.
    pub(crate) fn device(&self, device: &B::Device) -> RocmDevice {
        cast(device.clone())
    }

    /// A device of this backend as one of `B`.
    pub(crate) fn own_device(&self, device: RocmDevice) -> B::Device {
        cast(device)
    }

    /// An int tensor as this backend's.
    pub(crate) fn int<const D: usize>(&self, tensor: Tensor<B, D, Int>) -> RocmTensor {
        cast(tensor.into_primitive())
    }
}

/// The float primitive of a tensor. Dequantises a quantised tensor.
pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// The tensor of a float primitive.
pub(crate) fn wrap<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// Whether `B` is this project's backend without autodiff.
pub(crate) fn is_rocm<B: Backend>() -> bool {
    TypeId::of::<FloatTensor<B>>() == TypeId::of::<RocmTensor>()
}

/// The tensor of a backend for which [`is_rocm`] holds.
pub(crate) fn rocm<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> RocmTensor {
    cast(primitive(tensor))
}

/// A tensor for a backend for which [`is_rocm`] holds.
pub(crate) fn from_rocm<B: Backend, const D: usize>(tensor: RocmTensor) -> Tensor<B, D> {
    wrap(cast(tensor))
}

/// Converts a value between two names of the same type.
fn cast<T: 'static, U: 'static>(value: T) -> U {
    let mut value = Some(value);
    let place: &mut dyn Any = &mut value;
    let value = place.downcast_mut::<Option<U>>().and_then(Option::take);
    value.expect("`Route::of` has compared the types")
}

/// Every autodiff backend for which ops are recorded.
fn recorders() -> &'static HashMap<TypeId, Recorder> {
    static RECORDERS: OnceLock<HashMap<TypeId, Recorder>> = OnceLock::new();
    RECORDERS.get_or_init(|| {
        let mut all = HashMap::new();
        macro_rules! elements {
            ([$($float:ty)*] $ints:tt $bools:tt) => {$( elements!(@ $float, $ints $bools); )*};
            (@ $float:ty, [$($int:ty)*] $bools:tt) => {$( elements!(@ $float, $int, $bools); )*};
            (@ $float:ty, $int:ty, [$($bool:ty)*]) => {$( add::<$float, $int, $bool>(&mut all); )*};
        }
        burn_rocm::element_types!(elements);
        all
    })
}

fn add<F: FloatElement, I: IntElement, B: BoolElement>(all: &mut HashMap<TypeId, Recorder>) {
    let recorder = recorder::<Rocm<F, I, B>>;
    all.insert(TypeId::of::<Autodiff<Rocm<F, I, B>, NoCheckpointing>>(), recorder(false));
    all.insert(TypeId::of::<Autodiff<Rocm<F, I, B>, BalancedCheckpointing>>(), recorder(true));
}

fn recorder<B: Inner>(balanced: bool) -> Recorder {
    Recorder {
        balanced,
        enter: |tensor| {
            let tensor = tensor.downcast_mut::<Option<TrackedBy<B>>>().and_then(Option::take);
            let tensor = tensor.expect("`Route::of` has compared the types");
            Tracked { primitive: tensor.primitive, node: tensor.node, rc: tensor.rc }
        },
        leave: |tensor, place| {
            let place = place.downcast_mut::<Option<TrackedBy<B>>>();
            *place.expect("`Route::of` has compared the types") =
                Some(TrackedBy::<B> { primitive: tensor.primitive, node: tensor.node, rc: tensor.rc });
        },
        tape: Tape { consume: consume::<B>, take: take::<B>, register: grads::Gradients::register::<B> },
    }
}

fn consume<B: Inner>(grads: &mut grads::Gradients, node: &dyn Any) -> RocmTensor {
    fn of<Node: 'static>(
        consume: fn(&mut grads::Gradients, &Node) -> RocmTensor,
        grads: &mut grads::Gradients,
        node: &dyn Any,
    ) -> RocmTensor {
        consume(grads, node.downcast_ref().expect("a node of the graph"))
    }
    of(grads::Gradients::consume::<B>, grads, node)
}

fn take<B: Inner>(
    grads: &mut grads::Gradients,
    node: &dyn Any,
    id: NodeId,
    output: RocmTensor,
) -> Option<RocmTensor> {
    // Burn's function takes a tensor but uses only the tensor's node.
    fn of<Node: Clone + 'static, T>(
        tensor: fn(Node, NodeId, RocmTensor) -> T,
        node: &dyn Any,
    ) -> impl FnOnce(NodeId, RocmTensor) -> T {
        let node: Node = node.downcast_ref::<Node>().expect("a node of the graph").clone();
        move |id, output| tensor(node, id, output)
    }
    let tensor =
        of(|node, id, primitive| TrackedBy::<B> { primitive, node, rc: Arc::new(id) }, node)(id, output);
    grads.remove::<B>(&tensor)
}

/// A backend whose float tensors are this project's.
trait Inner: Backend<FloatTensorPrimitive = RocmTensor> {}
impl<B: Backend<FloatTensorPrimitive = RocmTensor>> Inner for B {}

/// Runs an op and records it.
fn record<C: CheckpointStrategy, const N: usize>(
    op: Arc<dyn Op<N>>,
    tensors: [Tracked; N],
    tape: Tape,
) -> (Tracked, Vec<RocmTensor>) {
    let prep = Step(tape).prepare::<C>(tensors.each_ref().map(|tensor| tensor.node.clone()));
    let prep = if op.memory_bound() {
        let inputs = tensors.each_ref().map(|tensor| tensor.node.id);
        prep.memory_bound().retro_forward(Again { op: op.clone(), inputs }).parents(&tensors)
    } else {
        prep.compute_bound()
    };
    match prep.stateful() {
        OpsKind::Tracked(mut prep) => {
            let reads = op.reads();
            let inputs = std::array::from_fn(|k| reads[k].then(|| prep.checkpoint(&tensors[k])));
            let (output, saved) = run(&*op, tensors.map(|tensor| tensor.primitive));
            (prep.finish(State { op, inputs, saved: saved.clone() }, output), saved)
        }
        OpsKind::UnTracked(prep) => {
            let (output, saved) = run(&*op, tensors.map(|tensor| tensor.primitive));
            (prep.finish(output), saved)
        }
    }
}

#[derive(Debug)]
struct Step(Tape);

impl<const N: usize> Backward<Rocm, N> for Step {
    type State = State<N>;

    fn backward(self, ops: Ops<State<N>, N>, grads: &mut grads::Gradients, checkpointer: &mut Checkpointer) {
        let Tape { consume, take, register } = self.0;
        let grad = consume(grads, &ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let of_first = |output: &RocmTensor| {
            let first = ops.parents.first()?.as_ref()?;
            take(grads, first, first.id, output.clone())
        };
        let found = ops.state.backward(grad, checkpointer, wanted, of_first);
        for (parent, grad) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                register(grads, parent.id, grad);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes exist for four float types, eight int types, three bool types and two strategies, and
    /// for no other backend.
    #[test]
    fn every_backend_of_this_project_has_a_route() {
        let mut found = Vec::new();
        fn strategy<B: Backend>() -> Option<Option<bool>> {
            Route::<B>::of("a test").map(|route| route.recorder.map(|recorder| recorder.balanced))
        }
        macro_rules! all {
            ([$($float:ty)*] $ints:tt $bools:tt) => {$( all!(@ $float, $ints $bools); )*};
            (@ $float:ty, [$($int:ty)*] $bools:tt) => {$( all!(@ $float, $int, $bools); )*};
            (@ $float:ty, $int:ty, [$($bool:ty)*]) => {$( found.push([
                strategy::<Rocm<$float, $int, $bool>>(),
                strategy::<Autodiff<Rocm<$float, $int, $bool>>>(),
                strategy::<Autodiff<Rocm<$float, $int, $bool>, BalancedCheckpointing>>(),
            ]); )*};
        }
        burn_rocm::element_types!(all);
        assert_eq!(found, vec![[Some(None), Some(Some(false)), Some(Some(true))]; 96]);
        assert_eq!(recorders().len(), 192);
        assert_eq!(strategy::<burn_flex::Flex>(), None);
        assert_eq!(strategy::<Autodiff<burn_flex::Flex>>(), None);
    }
}
