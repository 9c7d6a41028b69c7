//! The CTC loss and its gradient (Graves, Fernandez, Gomez, Schmidhuber 2006, "Connectionist
//! Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural Networks").

use burn_std::DType;
use hip::{Fault, Grid, Template};

use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::rows;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// Sequences of log-probabilities and their target labels.
pub(crate) struct Sequences {
    /// `[steps, batch, classes]`.
    pub log_probs: RocmTensor,
    /// `[batch, labels]`. The first `target_lengths` labels of each row count.
    pub targets: RocmTensor,
    /// `[batch]`.
    pub input_lengths: RocmTensor,
    /// `[batch]`.
    pub target_lengths: RocmTensor,
    /// The class of the blank.
    pub blank: usize,
}

/// [`Sequences`] as the kernels take them.
struct Prepared {
    log_probs: RocmTensor,
    /// Targets, input lengths, target lengths, as `i64`.
    integers: [RocmTensor; 3],
    steps: usize,
    batch: usize,
    classes: usize,
    labels: usize,
    blank: usize,
}

impl Prepared {
    fn new(op: &'static str, sequences: Sequences) -> hip::Result<Self> {
        let Sequences { log_probs, targets, input_lengths, target_lengths, blank } = sequences;
        one_device(op, &[&log_probs, &targets, &input_lengths, &target_lengths])?;
        if !log_probs.kernel_type()?.is_float() {
            return invalid(op, "log-probabilities of a float type", log_probs.dtype_of().name());
        }
        let (&[steps, batch, classes], &[of, labels]) = (log_probs.dims(), targets.dims()) else {
            let found = format!("{:?} and {:?}", log_probs.dims(), targets.dims());
            return invalid(
                op,
                "log-probabilities [steps, batch, classes] and targets [batch, labels]",
                found,
            );
        };
        if of != batch || input_lengths.dims() != [batch] || target_lengths.dims() != [batch] {
            let [t, i, l] = [&targets, &input_lengths, &target_lengths].map(|t| t.dims());
            let found = format!("targets {t:?}, input lengths {i:?}, target lengths {l:?}");
            return invalid(op, format!("a batch of {batch} as in {:?}", log_probs.dims()), found);
        }
        if blank >= classes {
            return invalid(op, format!("a blank below {classes} classes"), blank.to_string());
        }
        if [steps, classes, labels].iter().any(|&n| n >= MAX_SIZE) {
            let found = format!("{:?} and {:?}", log_probs.dims(), targets.dims());
            return invalid(op, format!("sizes below {MAX_SIZE}"), found);
        }
        let integer = |tensor: RocmTensor| -> hip::Result<RocmTensor> {
            let dtype = tensor.dtype_of();
            match dtype.is_int() || dtype.is_uint() {
                true => packed(cast(tensor, DType::I64)?),
                false => invalid(op, "targets and lengths of an int type", dtype.name()),
            }
        };
        let integers = [integer(targets)?, integer(input_lengths)?, integer(target_lengths)?];
        Ok(Self { log_probs: packed(log_probs)?, integers, steps, batch, classes, labels, blank })
    }

    /// The most states of a sequence: its labels, and blanks before, between and after them.
    fn states(&self) -> usize {
        2 * self.labels + 1
    }

    fn empty(&self, dims: &[usize], dtype: DType) -> hip::Result<RocmTensor> {
        RocmTensor::empty(self.log_probs.hip_device(), dims.to_vec(), dtype)
    }

    /// `kernel(batch, steps, classes, labels, blank, more.., first.., targets, lengths.., last..,
    /// fault.., outputs..)`.
    #[allow(clippy::too_many_arguments)]
    fn launch(
        &self,
        op: &'static str,
        (kernel, grid): (Template, Grid),
        more: Option<usize>,
        [first, last]: [&[&RocmTensor]; 2],
        fault: &[Arg],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let u = |value: usize| Arg::U32(value as u32);
        let mut dims = vec![Arg::U64(self.batch as u64)];
        dims.extend([self.steps, self.classes, self.labels, self.blank].map(u));
        dims.extend(more.map(u));
        let inputs: Vec<&RocmTensor> =
            first.iter().copied().chain(&self.integers).chain(last.iter().copied()).collect();
        let name = kernel.ty(self.log_probs.kernel_type()?);
        rows(op, self.log_probs.hip_device(), name, grid, &dims, &inputs, fault, outputs)
    }

    /// One block for each sequence.
    fn grid(&self) -> Grid {
        self.log_probs.hip_device().grid_rows(self.batch, self.states())
    }

    /// The losses `[batch]` and the forward variables, of all steps or only of the last two.
    fn forward(&self, op: &'static str, all: bool) -> hip::Result<(RocmTensor, RocmTensor)> {
        let kept = if all { self.steps } else { 2 };
        let alpha =
            self.empty(&[self.batch, kept, self.states()], compute_dtype(self.log_probs.dtype_of()))?;
        let loss = self.empty(&[self.batch], self.log_probs.dtype_of())?;
        let kernel = (Template::ctc_alpha, self.grid());
        let fault = [Arg::Flag(op, Fault::Index)];
        self.launch(op, kernel, Some(kept), [&[&self.log_probs], &[]], &fault, &[&alpha, &loss])?;
        Ok((loss, alpha))
    }
}

/// The largest size that the kernels handle.
const MAX_SIZE: usize = 1 << 30;

/// `-log` of the total probability of all alignments of each target: `[batch]`.
///
/// The loss is infinite if there is no alignment. A sequence of no steps has loss 0 if its target
/// has no labels. The loss is NaN for a length beyond its tensor's size and for a label that is not
/// a class, and reads of the loss report both.
pub(crate) fn loss(op: &'static str, sequences: Sequences) -> hip::Result<RocmTensor> {
    let prepared = Prepared::new(op, sequences)?;
    match prepared.batch {
        0 => prepared.empty(&[0], prepared.log_probs.dtype_of()),
        _ => Ok(prepared.forward(op, false)?.0),
    }
}

/// The gradient of [`loss`] with respect to the log-probabilities. For each step and class it is
/// minus the probability that an alignment has this class at this step. It is 0 after a sequence's
/// end, and for sequences without an alignment.
///
/// This is the derivative with respect to the log-probabilities alone (equation 16 of the paper,
/// with respect to `ln y` instead of `y`), whether or not they are normalised. Burn's
/// `ctc_grad_from_alpha_beta_default` adds `exp(log_probs)`. Both give the same gradient before the
/// log-softmax.
pub(crate) fn backward(op: &'static str, sequences: Sequences, grad: RocmTensor) -> hip::Result<RocmTensor> {
    let prepared = Prepared::new(op, sequences)?;
    one_device(op, &[&prepared.log_probs, &grad])?;
    let dtype = one_dtype(op, &[&prepared.log_probs, &grad])?;
    if grad.dims() != [prepared.batch] {
        return invalid(
            op,
            format!("a gradient of shape [{}]", prepared.batch),
            format!("{:?}", grad.dims()),
        );
    }
    let (batch, steps, classes, labels) = (prepared.batch, prepared.steps, prepared.classes, prepared.labels);
    if prepared.log_probs.is_empty() {
        return full_on(grad.hip_device(), vec![steps, batch, classes], 0i64.into(), dtype);
    }
    let grad = packed(grad)?;
    let (_, alpha) = prepared.forward(op, true)?;
    let working = prepared.empty(&[batch, 2, prepared.states()], compute_dtype(dtype))?;
    let likelihood = prepared.empty(&[batch], compute_dtype(dtype))?;
    let links = prepared.empty(&[batch, labels], DType::U32)?;
    let kernel = (Template::ctc_posterior, prepared.grid());
    let outputs = [&working, &alpha, &likelihood, &links];
    prepared.launch(op, kernel, None, [&[&prepared.log_probs], &[]], &[], &outputs)?;
    let out = prepared.empty(&[steps, batch, classes], dtype)?;
    let row = prepared.states().max(classes);
    let kernel = (Template::ctc_gradient, out.hip_device().grid_rows(steps * batch, row));
    prepared.launch(op, kernel, None, [&[&alpha, &likelihood], &[&links, &grad]], &[], &[&out])?;
    Ok(out)
}
