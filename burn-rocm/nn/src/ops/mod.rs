//! The fused ops with their gradients, on this project's tensors. Nothing here names Burn's tensors
//! or backends, so both Burn versions of this crate compile this folder.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod broadcast;
pub(crate) mod buckets;
pub(crate) mod checked;
pub(crate) mod checkpoint;
pub(crate) mod divided;
pub(crate) mod language;
pub(crate) mod layer;
pub(crate) mod loss;
pub(crate) mod norm;
mod order;
pub(crate) mod parallel;
pub(crate) mod pool;
pub(crate) mod quant;
pub(crate) mod ranks;
pub(crate) mod recorded;
pub(crate) mod sharded;
pub(crate) mod units;

use std::fmt::Debug;

use burn_backend::TensorMetadata;
use burn_rocm::{RocmError, RocmTensor, raise, trace};

/// The result of a fused op: its output, and further tensors that its gradient reads or that a
/// module keeps (such as a batch's statistics).
pub type Applied = (RocmTensor, Vec<RocmTensor>);

/// The gradients with respect to an op's inputs.
pub type Gradients<const N: usize> = Result<[Option<RocmTensor>; N], RocmError>;

/// An op on `N` plain tensors, and its gradient. Everything else (sizes, factors, targets, masks)
/// is a field of the implementing type.
pub trait Op<const N: usize>: Debug + Send + Sync + 'static {
    /// The names of the op and of its gradient in the trace.
    fn names(&self) -> [&'static str; 2];

    /// Which inputs the gradient reads. The others are not kept.
    fn reads(&self) -> [bool; N];

    /// Whether the op is cheap to run again and has no effect other than its output. A
    /// checkpointing strategy may then drop the output and compute it again from the inputs.
    fn memory_bound(&self) -> bool {
        false
    }

    /// Whether [`backward`](Self::backward) adds [`Kept::onto`] to the gradient with respect to its
    /// first input, which saves a separate addition. Called only if that gradient is wanted.
    fn adds_onto(&self) -> bool {
        false
    }

    /// The output, and the tensors to save for [`backward`](Self::backward).
    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError>;

    /// The gradients with respect to the inputs, from the output's gradient. A gradient has its
    /// input's shape, dtype and device, or is `None` if the output does not depend on the input. For
    /// an input that is not `wanted` the op should return `None`; a gradient for it would be dropped.
    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N>;
}

/// The tensors that an op's gradient reads.
pub struct Kept<const N: usize> {
    /// The inputs. `None` for one that the gradient does not read ([`Op::reads`]).
    pub inputs: [Option<RocmTensor>; N],
    /// The tensors that [`Op::forward`] saved.
    pub saved: Vec<RocmTensor>,
    /// The gradient that the first input has already received from other ops, if [`Op::adds_onto`]
    /// asks for it.
    pub onto: Option<RocmTensor>,
}

impl<const N: usize> Kept<N> {
    /// Takes input `k`.
    ///
    /// # Errors
    /// `Invalid` if [`Op::reads`] does not ask for it, or if it was taken before.
    pub fn input(&mut self, k: usize) -> Result<RocmTensor, RocmError> {
        self.inputs.get_mut(k).and_then(Option::take).ok_or_else(|| RocmError::Invalid {
            op: "an op's gradient",
            expected: "an input that `Op::reads` asks for, taken once".into(),
            found: format!("input {k} of {N}"),
        })
    }

    /// Takes the first `K` inputs. [`Op::reads`] must ask for them.
    pub(crate) fn first<const K: usize>(&mut self) -> [RocmTensor; K] {
        std::array::from_fn(|k| self.inputs[k].take().expect("`Op::reads` asks for it, and it is taken once"))
    }
}

/// Runs an op under its name in the trace. Panics on an error, as Burn's ops do.
pub(crate) fn run<const N: usize>(op: &dyn Op<N>, inputs: [RocmTensor; N]) -> Applied {
    let shapes = |shapes: &mut trace::Shapes<'_>| inputs.iter().for_each(|tensor| shapes.add(tensor.dims()));
    let _op = trace::op_of(op.names()[0], || inputs[0].dtype().name(), shapes);
    op.forward(inputs).unwrap_or_else(|error| raise(error))
}

/// Panics with `Invalid`, as Burn's ops do for arguments that do not fit.
#[cold]
#[track_caller]
pub(crate) fn refuse(op: &'static str, expected: impl Into<String>, found: impl Into<String>) -> ! {
    raise(RocmError::Invalid { op, expected: expected.into(), found: found.into() })
}
