//! Gradients of many parameters, reduced over the ranks in buckets.

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::{one_value, pack, read_all, repeated, scale, unpack};
use burn_rocm::{Communicator, Pending, ReduceOp, RocmError, RocmTensor};

/// A parameter that every rank has. Its gradient has this shape and dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

/// The parameters of a model, in buckets.
pub(crate) struct Buckets {
    communicator: Communicator,
    /// The size from which a bucket is full.
    bytes: usize,
    entries: Vec<Entry>,
    buckets: Vec<Bucket>,
}

/// Gradients of one dtype that are reduced as one tensor. Behind them it has a flag for each, by
/// which a rank without some gradient learns whether another rank has it.
struct Bucket {
    /// The indices of the parameters.
    members: Vec<usize>,
    /// The flag of a gradient that this rank has.
    one: RocmTensor,
    /// The flag and the elements of a gradient that this rank lacks.
    zero: RocmTensor,
}

impl Buckets {
    pub(crate) fn new(communicator: Communicator, bytes: usize) -> Self {
        Self { communicator, bytes, entries: Vec::new(), buckets: Vec::new() }
    }

    pub(crate) fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Divides the parameters among buckets, beginning with the last one, whose gradient is ready
    /// first. Every rank gets the same buckets, because they depend on the parameters only.
    fn plan(&mut self, entries: Vec<Entry>) -> Result<(), RocmError> {
        let mut open: Vec<(DType, Vec<usize>, usize)> = Vec::new();
        let mut plan: Vec<(DType, Vec<usize>)> = Vec::new();
        for (index, entry) in entries.iter().enumerate().rev() {
            let at = open.iter().position(|(dtype, ..)| *dtype == entry.dtype).unwrap_or_else(|| {
                open.push((entry.dtype, Vec::new(), 0));
                open.len() - 1
            });
            let (dtype, members, bytes) = &mut open[at];
            members.push(index);
            *bytes += entry.dims.iter().product::<usize>() * entry.dtype.size();
            if *bytes >= self.bytes {
                plan.push((*dtype, std::mem::take(members)));
                *bytes = 0;
            }
        }
        let rest = open.into_iter().map(|(dtype, members, _)| (dtype, members));
        plan.extend(rest.filter(|(_, members)| !members.is_empty()));
        for (dtype, members) in &mut plan {
            // Gradients of whole units of 16 bytes first, so that each of them is aligned.
            let units = |&member: &usize| {
                let elements: usize = entries[member].dims.iter().product();
                !(elements * dtype.size()).is_multiple_of(16)
            };
            members.sort_by_key(units);
        }
        let device = self.communicator.device();
        let bucket = |(dtype, members)| {
            let [one, zero] = [1.0, 0.0].map(|value| one_value(&device, value, dtype));
            Ok(Bucket { members, one: one?, zero: zero? })
        };
        self.buckets = plan.into_iter().map(bucket).collect::<Result<_, RocmError>>()?;
        self.entries = entries;
        Ok(())
    }

    /// The mean of the ranks' gradients, weighted by `weight`; without it all ranks weigh the same.
    /// There is one gradient for each entry. `None` for a gradient that this rank lacks, and in the
    /// result for one that all ranks lack.
    ///
    /// A rank of weight 0 lacks all gradients, whatever it has: 0 times its flag is 0, and 0 times
    /// an infinity is NaN. Waits for the device only if this rank lacks a gradient.
    pub(crate) fn reduce(
        &mut self,
        entries: Vec<Entry>,
        mut grads: Vec<Option<RocmTensor>>,
        weight: Option<f64>,
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        if self.communicator.size() == 1 {
            return Ok(grads);
        }
        if weight == Some(0.0) {
            grads.fill(None);
        }
        if self.entries != entries {
            self.plan(entries)?;
        }
        // The next bucket is packed while the ranks reduce the one before.
        let mut running = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            running.push(bucket.start(&self.communicator, &self.entries, &grads, weight)?);
        }
        let mut reduced = vec![None; grads.len()];
        let mut unsure = Vec::new();
        for (bucket, pending) in self.buckets.iter().zip(running) {
            let joined = pending.join()?;
            let dims = bucket.members.iter().map(|&member| self.entries[member].dims.as_slice());
            let flag: &[usize] = &[1];
            let mut parts = unpack(&joined, dims.chain(bucket.members.iter().map(|_| flag)))?;
            let flags = parts.split_off(bucket.members.len());
            for ((&member, part), flag) in bucket.members.iter().zip(parts).zip(flags) {
                if grads[member].is_none() {
                    unsure.push((member, flag));
                }
                reduced[member] = Some(part);
            }
        }
        let (members, flags): (Vec<usize>, Vec<RocmTensor>) = unsure.into_iter().unzip();
        for (member, flag) in members.into_iter().zip(read_all(flags)?) {
            if flag.iter::<f64>().all(|flag| flag == 0.0) {
                reduced[member] = None;
            }
        }
        Ok(reduced)
    }
}

impl Bucket {
    /// Packs the gradients and begins to reduce them.
    fn start(
        &self,
        communicator: &Communicator,
        entries: &[Entry],
        grads: &[Option<RocmTensor>],
        weight: Option<f64>,
    ) -> Result<Pending, RocmError> {
        let mut parts = Vec::with_capacity(2 * self.members.len());
        for &member in &self.members {
            let Entry { dims, dtype } = &entries[member];
            parts.push(match &grads[member] {
                Some(grad) if grad.dims() == dims.as_slice() && grad.dtype() == *dtype => grad.clone(),
                Some(grad) => {
                    return Err(RocmError::Invalid {
                        op: "DataParallel::reduce",
                        expected: format!("a gradient of shape {dims:?} of {}", dtype.name()),
                        found: format!("{:?} of {}", grad.dims(), grad.dtype().name()),
                    });
                }
                None => repeated(&self.zero, dims.iter().product())?,
            });
        }
        if self.members.iter().all(|&member| grads[member].is_some()) {
            parts.push(repeated(&self.one, self.members.len())?);
        } else {
            let flag = |member: &usize| if grads[*member].is_some() { &self.one } else { &self.zero };
            parts.extend(self.members.iter().map(|member| flag(member).clone()));
        }
        let packed = pack(&parts)?;
        match weight {
            None => communicator.all_reduce(ReduceOp::Average, packed),
            Some(weight) => communicator.all_reduce(ReduceOp::Sum, scale(packed, weight)?),
        }
    }
}
