//! Optimizer steps of which each rank computes a part: stages 1 and 2 of ZeRO ([Rajbhandari et al.
//! 2020](https://arxiv.org/abs/1910.02054)).

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::amp::cast_all;
use burn_rocm::fused::optim::{Clip, Rule, State, Step, norm, scale_to_norm};
use burn_rocm::fused::{flat, one_value, pack, pack_range, repeated, scale, unpack};
use burn_rocm::graph::{is_capturing, is_of_graph};
use burn_rocm::{Communicator, Pending, ReduceOp, RocmError, RocmTensor};

use super::buckets::{Entry, aligned_first};

/// How a step changes the parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub(crate) rule: Rule,
    pub(crate) clip: Clip,
    /// The largest norm that all gradients together may have.
    pub(crate) most: Option<f32>,
}

/// The parameters of a model and an optimizer's state, divided among the ranks.
pub(crate) struct Sharded {
    pub(crate) communicator: Communicator,
    /// The size from which a bucket is full.
    bytes: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) buckets: Vec<Bucket>,
}

/// Parameters of one dtype whose elements, one after the other, are divided into as many equal
/// parts as there are ranks. Zeros fill the last part.
pub(super) struct Bucket {
    pub(super) dtype: DType,
    /// The indices of the parameters, in their order in the bucket.
    pub(super) members: Vec<usize>,
    /// The number of elements of a part.
    pub(super) part: usize,
    /// All parts as the last step left them. The model's parameters are views of it, unless
    /// something else has replaced them.
    gathered: Option<RocmTensor>,
    /// The memory that the next gathering writes, because a graph reads the parameters from it. It is
    /// that of `gathered`. Otherwise the parameters get new memory.
    into: Option<RocmTensor>,
    /// This rank's part in f32, if the parameters are f16 or bf16. If the parameters are divided too
    /// ([`Units`](super::units::Units)), this rank's part of any dtype.
    pub(super) master: Option<RocmTensor>,
    /// This rank's part, updated, until it is gathered.
    pub(super) updated: Option<RocmTensor>,
    /// The optimizer's state of this rank's part.
    pub(super) state: State,
}

impl Sharded {
    pub(crate) fn new(communicator: Communicator, bytes: usize) -> Self {
        Self { communicator, bytes, entries: Vec::new(), buckets: Vec::new() }
    }

    /// Sets the size from which a bucket is full.
    pub(crate) fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// Takes a step with the mean of the ranks' gradients, weighted by `weight` (without it all
    /// ranks weigh the same), and returns the new parameters. A missing gradient counts as 0.
    ///
    /// # Errors
    /// `Invalid` if a gradient does not have its parameter's shape or device, or if the parameters
    /// are not those of the step before; an error of the collectives or of the device. After
    /// `Invalid` nothing has changed.
    pub(crate) fn step(
        &mut self,
        params: &[RocmTensor],
        mut grads: Vec<Option<RocmTensor>>,
        weight: Option<f64>,
        update: Update,
    ) -> Result<Vec<RocmTensor>, RocmError> {
        self.plan(params)?;
        // Before the first collective, which the other ranks wait for.
        for (entry, grad) in self.entries.iter().zip(&grads) {
            if let Some(grad) = grad.as_ref().filter(|grad| grad.dims() != entry.dims) {
                return Err(RocmError::Invalid {
                    op: "ShardedOptimizer::step",
                    expected: format!("a gradient of shape {:?}", entry.dims),
                    found: format!("{:?}", grad.dims()),
                });
            }
        }
        if weight == Some(0.0) {
            // 0 times an infinity is NaN.
            grads.fill(None);
        }
        let mut parts = self.reduce(grads, weight)?;
        if let Some(most) = update.most {
            parts = self.clipped(parts, most)?;
        }
        self.update(params, parts, update)?;
        self.gather(params)
    }

    /// These parts of the gradients, scaled so that the norm of all ranks' parts is at most `most`.
    pub(super) fn clipped(&self, parts: Vec<RocmTensor>, most: f32) -> Result<Vec<RocmTensor>, RocmError> {
        if parts.is_empty() {
            return Ok(parts);
        }
        let own = norm(&parts)?;
        // The norm of the ranks' norms is the norm of all parts.
        let all = self.communicator.all_gather(own)?.join()?;
        scale_to_norm(&parts, norm(&[all])?, most)
    }

    /// Gathers the updated parts, and returns the new parameters.
    pub(super) fn gather(&mut self, params: &[RocmTensor]) -> Result<Vec<RocmTensor>, RocmError> {
        let mut running = Vec::with_capacity(self.buckets.len());
        for bucket in &mut self.buckets {
            let Some(part) = bucket.updated.take() else { continue };
            let sent = match part.dtype() == bucket.dtype {
                true => part,
                false => {
                    bucket.master = Some(part.clone());
                    cast_all(vec![part], bucket.dtype)?.remove(0)
                }
            };
            running.push(match bucket.into.take() {
                Some(into) => self.communicator.all_gather_into(&into, sent)?,
                None => self.communicator.all_gather(sent)?,
            });
        }
        for (bucket, running) in self.buckets.iter_mut().zip(running) {
            bucket.gathered = Some(flat(running.join()?)?);
        }
        // As views of the buckets. Empty parameters are in none.
        let mut params = params.to_vec();
        for bucket in &self.buckets {
            let Some(gathered) = &bucket.gathered else { continue };
            let dims = bucket.members.iter().map(|&member| self.entries[member].dims.as_slice());
            for (&member, view) in bucket.members.iter().zip(unpack(gathered, dims)?) {
                params[member] = view;
            }
        }
        Ok(params)
    }

    /// Divides the parameters among buckets. Those of the step before stay as they are.
    pub(super) fn plan(&mut self, params: &[RocmTensor]) -> Result<(), RocmError> {
        let entry = |param: &RocmTensor| Entry { dims: param.dims().to_vec(), dtype: param.dtype() };
        let entries: Vec<Entry> = params.iter().map(entry).collect();
        if self.entries == entries {
            return Ok(());
        }
        if self.buckets.iter().any(|bucket| bucket.gathered.is_some() || !bucket.state.tensors.is_empty()) {
            let found = entries.iter().zip(&self.entries).position(|(new, old)| new != old);
            return Err(RocmError::Invalid {
                op: "ShardedOptimizer::step",
                expected: format!("the {} parameters of the step before", self.entries.len()),
                found: match found {
                    Some(at) => format!("parameter {at} of shape {:?}", entries[at].dims),
                    None => format!("{} parameters", entries.len()),
                },
            });
        }
        self.buckets = buckets(&entries, self.bytes, self.communicator.size());
        self.entries = entries;
        Ok(())
    }

    /// This rank's part of each bucket's mean gradient. A bucket's gradients are dropped when they are
    /// packed, and at most two packed buckets exist at a time.
    fn reduce(
        &self,
        mut grads: Vec<Option<RocmTensor>>,
        weight: Option<f64>,
    ) -> Result<Vec<RocmTensor>, RocmError> {
        let mut parts = Vec::with_capacity(self.buckets.len());
        let mut running: Option<Pending> = None;
        for bucket in &self.buckets {
            let next = self.scatter(bucket, &mut grads, weight)?;
            if let Some(before) = running.replace(next) {
                parts.push(before.join()?);
            }
        }
        if let Some(last) = running {
            parts.push(last.join()?);
        }
        Ok(parts)
    }

    /// Starts to reduce a bucket's gradients, which are dropped once they are packed. The result is
    /// this rank's part of the mean.
    pub(super) fn scatter(
        &self,
        bucket: &Bucket,
        grads: &mut [Option<RocmTensor>],
        weight: Option<f64>,
    ) -> Result<Pending, RocmError> {
        let packed = self.packed(bucket, grads)?;
        match weight {
            None => self.communicator.reduce_scatter(ReduceOp::Average, packed),
            Some(weight) => self.communicator.reduce_scatter(ReduceOp::Sum, scale(packed, weight)?),
        }
    }

    /// A bucket's gradients, one after the other, with zeros for those that are missing and behind the
    /// last one.
    fn packed(&self, bucket: &Bucket, grads: &mut [Option<RocmTensor>]) -> Result<RocmTensor, RocmError> {
        let zero = one_value(&self.communicator.device(), 0.0, bucket.dtype)?;
        let mut parts = Vec::with_capacity(bucket.members.len() + 1);
        let mut wide = Vec::new();
        for &member in &bucket.members {
            let Entry { dims, dtype } = &self.entries[member];
            match grads.get_mut(member).and_then(Option::take) {
                None => parts.push(repeated(&zero, dims.iter().product())?),
                Some(grad) => {
                    if grad.dtype() != *dtype {
                        wide.push(parts.len());
                    }
                    parts.push(grad);
                }
            }
        }
        let cast = cast_all(wide.iter().map(|&at| parts[at].clone()).collect(), bucket.dtype)?;
        for (at, cast) in wide.into_iter().zip(cast) {
            parts[at] = cast;
        }
        parts.extend(self.filling(bucket)?);
        pack(&parts)
    }

    /// The zeros behind a bucket's parameters, if their elements don't fill all parts.
    fn filling(&self, bucket: &Bucket) -> Result<Option<RocmTensor>, RocmError> {
        let elements: usize = bucket.members.iter().map(|&member| self.entries[member].elements()).sum();
        let missing = bucket.part * self.communicator.size() - elements;
        if missing == 0 {
            return Ok(None);
        }
        let zero = one_value(&self.communicator.device(), 0.0, bucket.dtype)?;
        repeated(&zero, missing).map(Some)
    }

    /// Updates the parts, and the states with them.
    fn update(
        &mut self,
        params: &[RocmTensor],
        grads: Vec<RocmTensor>,
        update: Update,
    ) -> Result<(), RocmError> {
        let mut step = Step::new(update.rule, update.clip);
        let mut states = Vec::with_capacity(grads.len());
        let mut result = Ok(());
        for (index, grad) in grads.into_iter().enumerate() {
            let added = self.own_part(index, params).and_then(|part| {
                // Taken, so that the step finds no other owner and writes it in place.
                let mut before = std::mem::take(&mut self.buckets[index].state);
                let added = step.add(part, grad, &mut before);
                self.buckets[index].state = before;
                added
            });
            match added {
                Ok((part, state)) => {
                    self.buckets[index].updated = Some(part);
                    states.push(state);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if let Err(error) = result.and_then(|()| step.run()) {
            // The next step takes the parameters from the model.
            for bucket in &mut self.buckets {
                (bucket.updated, bucket.master, bucket.gathered, bucket.into) = (None, None, None, None);
            }
            return Err(error);
        }
        for (bucket, state) in self.buckets.iter_mut().zip(states) {
            bucket.state = state;
        }
        Ok(())
    }

    /// Whether a bucket's parameters are the views of `all` that a step returned.
    fn are_views(&self, index: usize, all: &RocmTensor, params: &[RocmTensor]) -> Result<bool, RocmError> {
        let dims = self.buckets[index].members.iter().map(|&member| self.entries[member].dims.as_slice());
        let views = unpack(all, dims)?;
        Ok(views
            .iter()
            .zip(params)
            .all(|(view, param)| view.shares_buffer(param) && view.layout() == param.layout()))
    }

    /// [`value`](Self::value), which the caller alone holds afterwards.
    fn own_part(&mut self, index: usize, params: &[RocmTensor]) -> Result<RocmTensor, RocmError> {
        let into = self.in_place(index, params)?;
        let part = self.value(index, params)?;
        let bucket = &mut self.buckets[index];
        (bucket.gathered, bucket.master, bucket.into) = (None, None, into);
        Ok(part)
    }

    /// The memory of a bucket's parameters, if the step must leave them there: a replay starts from
    /// the same memory again.
    fn in_place(&self, index: usize, params: &[RocmTensor]) -> Result<Option<RocmTensor>, RocmError> {
        let bucket = &self.buckets[index];
        let own: Vec<RocmTensor> = bucket.members.iter().map(|&member| params[member].clone()).collect();
        let kept = match &bucket.gathered {
            Some(all) if self.are_views(index, all, &own)? => Some(all.clone()),
            _ => None,
        };
        if !is_capturing() {
            return Ok(kept.filter(is_of_graph));
        }
        let has_master = bucket.wide() == bucket.dtype || bucket.master.is_some();
        kept.filter(|_| has_master).map(Some).ok_or_else(|| RocmError::Capture {
            op: "ShardedOptimizer::step",
            reason: "the parameters are not those of this optimizer's last step: take a step first".into(),
        })
    }

    /// This rank's part of a bucket's parameters, in the dtype in which it is updated.
    pub(super) fn value(&self, index: usize, params: &[RocmTensor]) -> Result<RocmTensor, RocmError> {
        let bucket = &self.buckets[index];
        let params: Vec<RocmTensor> = bucket.members.iter().map(|&member| params[member].clone()).collect();
        let kept = match &bucket.gathered {
            Some(all) if self.are_views(index, all, &params)? => Some(all),
            _ => None,
        };
        if let (Some(_), Some(master)) = (kept, &bucket.master) {
            return Ok(master.clone());
        }
        let begin = bucket.part * self.communicator.rank();
        let part = match kept {
            Some(all) => pack_range(std::slice::from_ref(all), begin..begin + bucket.part)?,
            None => {
                let mut params = params;
                params.extend(self.filling(bucket)?);
                pack_range(&params, begin..begin + bucket.part)?
            }
        };
        match bucket.wide() == bucket.dtype {
            true => Ok(part),
            false => Ok(cast_all(vec![part], bucket.wide())?.remove(0)),
        }
    }
}

impl Bucket {
    /// The dtype in which the parameters are updated.
    pub(super) fn wide(&self) -> DType {
        match self.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        }
    }
}

/// Parameters of one dtype in buckets, in the order of the model.
pub(super) fn buckets(entries: &[Entry], bytes: usize, ranks: usize) -> Vec<Bucket> {
    let mut open: Vec<(DType, Vec<usize>, usize)> = Vec::new();
    let mut full: Vec<(DType, Vec<usize>)> = Vec::new();
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.elements() > 0) {
        let at = open.iter().position(|(dtype, ..)| *dtype == entry.dtype).unwrap_or_else(|| {
            open.push((entry.dtype, Vec::new(), 0));
            open.len() - 1
        });
        let (dtype, members, size) = &mut open[at];
        members.push(index);
        *size += entry.elements() * dtype.size();
        if *size >= bytes {
            full.push((*dtype, std::mem::take(members)));
            *size = 0;
        }
    }
    full.extend(open.into_iter().map(|(dtype, members, _)| (dtype, members)));
    let bucket = |(dtype, mut members): (DType, Vec<usize>)| {
        aligned_first(&mut members, entries);
        let elements: usize = members.iter().map(|&member| entries[member].elements()).sum();
        // Each part begins at a multiple of 16 bytes.
        let part = elements.div_ceil(ranks).next_multiple_of(16 / dtype.size());
        Bucket {
            dtype,
            members,
            part,
            gathered: None,
            into: None,
            master: None,
            updated: None,
            state: State::default(),
        }
    };
    full.into_iter().filter(|(_, members)| !members.is_empty()).map(bucket).collect()
}
