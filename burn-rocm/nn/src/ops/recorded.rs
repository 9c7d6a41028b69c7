//! What the autodiff graph stores for an op.

use std::sync::Arc;

use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_backend::TensorMetadata;
use burn_rocm::{RocmTensor, raise, trace};

use super::{Kept, Op, run};

/// The state that the backward pass of an op gets.
#[derive(Clone, Debug)]
pub(crate) struct State<const N: usize> {
    pub(crate) op: Arc<dyn Op<N>>,
    /// The nodes by which the checkpointer finds the inputs that the gradient reads.
    pub(crate) inputs: [Option<NodeId>; N],
    pub(crate) saved: Vec<RocmTensor>,
}

impl<const N: usize> State<N> {
    /// The gradients with respect to the inputs. `take` returns [`Kept::onto`] if the op asks for
    /// it; its argument is `grad`. Panics on an error, as Burn's ops do.
    pub(crate) fn backward(
        self,
        grad: RocmTensor,
        checkpointer: &mut Checkpointer,
        wanted: [bool; N],
        take: impl FnOnce(&RocmTensor) -> Option<RocmTensor>,
    ) -> [Option<RocmTensor>; N] {
        let Self { op, inputs, saved } = self;
        let inputs = inputs.map(|id| id.map(|id| checkpointer.retrieve_node_output(id)));
        let onto = if op.adds_onto() && wanted.first() == Some(&true) { take(&grad) } else { None };
        let _op = trace::op_of(op.names()[1], || grad.dtype().name(), |shapes| shapes.add(grad.dims()));
        op.backward(grad, Kept { inputs, saved, onto }, wanted).unwrap_or_else(|error| raise(error))
    }
}

/// Runs an op again from its inputs if its output was not kept.
#[derive(Debug)]
pub(crate) struct Again<const N: usize> {
    pub(crate) op: Arc<dyn Op<N>>,
    pub(crate) inputs: [NodeId; N],
}

impl<const N: usize> RetroForward for Again<N> {
    fn forward(&self, states: &mut BackwardStates, output: NodeId) {
        let inputs = self.inputs.each_ref().map(|id| states.get_state::<RocmTensor>(id));
        states.save(output, run(&*self.op, inputs).0);
    }
}
