//! The ops of a language model's layer.

use std::sync::{Arc, Mutex, PoisonError};

use burn_rocm::fused::{self, Gate, RmsOptions, Rotary};
use burn_rocm::{RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

/// `act(gate) * up`.
#[derive(Debug)]
pub(crate) struct GatedOp(pub(crate) Gate);

impl Op<2> for GatedOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_gated", "nn_gated_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [true, true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [gate, up]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        Ok((fused::gated(self.0, gate, up)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, _: [bool; 2]) -> Gradients<2> {
        let [gate, up] = kept.first();
        let (by_gate, by_up) = fused::gated_backward(self.0, gate, up, grad)?;
        Ok([Some(by_gate), Some(by_up)])
    }
}

/// The same of the halves of the last axis.
#[derive(Debug)]
pub(crate) struct GatedHalvesOp(pub(crate) Gate);

impl Op<1> for GatedHalvesOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_gated_halves", "nn_gated_halves_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [both]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::gated_halves(self.0, both)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [both] = kept.first();
        Ok([Some(fused::gated_halves_backward(self.0, both, grad)?)])
    }
}

/// A result that one op computes for the next one. It is handed over once; if an op runs again for a
/// checkpoint, each computes its own result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handed(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Wanted,
    Ready(RocmTensor),
    Taken,
}

impl Handed {
    fn is_wanted(&self) -> bool {
        // A poisoned lock is harmless: each change is one assignment.
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::Wanted)
    }

    fn give(&self, tensor: RocmTensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State::Ready(tensor);
    }

    fn take(&self) -> Option<RocmTensor> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ready(tensor) => Some(tensor),
            State::Wanted | State::Taken => None,
        }
    }
}

/// The sum of a residual connection: `residual + x` or, with a third input, `residual + rms(x,
/// third)`. Its kernel also computes the norm of the sum, for [`NormedOp`].
#[derive(Debug)]
pub(crate) struct ResidualSumOp {
    pub(crate) options: RmsOptions,
    /// The weight of the norm of the sum, and where the result goes.
    pub(crate) after: Option<(RocmTensor, Handed)>,
}

impl<const N: usize> Op<N> for ResidualSumOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_residual_sum", "nn_residual_sum_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| N == 3 && k != 1)
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let (x, residual) = (inputs.next().expect("x"), inputs.next());
        let after = self.after.as_ref().filter(|(_, handed)| handed.is_wanted());
        let weight = after.map(|(weight, _)| weight.clone());
        let (sum, normed) = fused::residual_norm(x, residual, inputs.next(), weight, self.options)?;
        if let (Some((_, handed)), Some(normed)) = (after, normed) {
            handed.give(normed);
        }
        Ok((sum, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        if N < 3 {
            return Ok(std::array::from_fn(|_| Some(grad.clone())));
        }
        let (x, weight) = (kept.input(0)?, kept.input(2)?);
        let (by_x, by_weight) =
            fused::residual_norm_backward(x, weight, grad.clone(), None, self.options, wanted[2])?;
        let mut found = [Some(by_x), Some(grad), by_weight].into_iter();
        Ok(std::array::from_fn(|_| found.next().flatten()))
    }
}

/// `rms(x, weight)`, from the kernel of the [`ResidualSumOp`] before it if there is one.
#[derive(Debug)]
pub(crate) struct NormedOp {
    pub(crate) options: RmsOptions,
    pub(crate) handed: Option<Handed>,
}

impl Op<2> for NormedOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_normed", "nn_normed_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [true, true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn adds_onto(&self) -> bool {
        true
    }

    fn forward(&self, [x, weight]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        let normed = match self.handed.as_ref().and_then(Handed::take) {
            Some(normed) => Some(normed),
            None => fused::residual_norm(x, None, None, Some(weight), self.options)?.1,
        };
        Ok((normed.expect("there is a norm after"), vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, wanted: [bool; 2]) -> Gradients<2> {
        let [x, weight] = kept.first();
        let (by_x, by_weight) =
            fused::residual_norm_backward(x, weight, grad, kept.onto, self.options, wanted[1])?;
        Ok([Some(by_x), by_weight])
    }
}

/// The gradients of queries, keys and values, which [`HeadsOp`]s leave for the [`RotaryOp`] before
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadGradients(Arc<Mutex<[Option<RocmTensor>; 3]>>);

impl HeadGradients {
    /// Leaves a gradient. Returns whether it is the first.
    fn leave(&self, which: usize, grad: RocmTensor) -> bool {
        // A poisoned lock is harmless: each change is one assignment.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = all.iter().all(Option::is_none);
        all[which] = Some(grad);
        is_first
    }

    fn take(&self) -> [Option<RocmTensor>; 3] {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The rotary embedding of packed queries, keys and values. Further inputs are the weights of the
/// norms of queries and keys. Each part of the result is the output of a [`HeadsOp`].
#[derive(Debug)]
pub(crate) struct RotaryOp {
    pub(crate) rotary: Rotary,
    /// The shape of the packed heads.
    pub(crate) shape: [usize; 3],
    pub(crate) grads: HeadGradients,
}

impl<const N: usize> Op<N> for RotaryOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_rotary", "nn_rotary_backward"]
    }

    fn reads(&self) -> [bool; N] {
        [N == 3; N]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let x = inputs.next().expect("the packed heads");
        let norms = inputs.next().zip(inputs.next()).map(|(query, key)| [query, key]);
        Ok((fused::rotary(x, norms, &self.rotary)?, vec![]))
    }

    /// The output's gradient is a placeholder. The heads' ops have left the gradients.
    fn backward(&self, _: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let mut read = kept.inputs.into_iter().flatten();
        let x = read.next();
        let norms = read.next().zip(read.next()).map(|(query, key)| [query, key]);
        let by_norms = wanted.iter().skip(1).any(|&wanted| wanted);
        let found = fused::rotary_backward(x, norms, self.grads.take(), self.shape, by_norms, &self.rotary)?;
        let [by_query, by_key] = found.norms.map_or([None, None], |norms| norms.map(Some));
        let mut found = [Some(found.x), by_query, by_key].into_iter();
        Ok(std::array::from_fn(|_| found.next().flatten()))
    }
}

/// The queries (0), keys (1) or values (2) of packed heads, as a view. An op has one output, so its
/// three parts are ops of their own. A view's gradient would be as large as all heads. So each part
/// leaves its gradient for the op before them, and only the first one also gives that op's node a
/// gradient (its own, as a placeholder), so that the op runs once.
#[derive(Debug)]
pub(crate) struct HeadsOp {
    pub(crate) which: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) grads: HeadGradients,
}

impl Op<1> for HeadsOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_heads", "nn_heads_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [all]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        let mut parts = fused::rotary_heads(all, self.heads, self.kv_heads)?.into_iter();
        Ok((parts.nth(self.which).expect("one of three"), vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([self.grads.leave(self.which, grad.clone()).then_some(grad)])
    }
}
