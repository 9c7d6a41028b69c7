//! Parameters that are divided among ranks: stage 3 of ZeRO ([Rajbhandari et al.
//! 2020](https://arxiv.org/abs/1910.02054)).
//!
//! A unit is a part of a model whose parameters are gathered together. A rank keeps its part of
//! each unit's parameters and of the optimizer's state. What gathers and reduces returns at once,
//! so that it runs beside the ops that follow.

use std::ops::Range;
use std::path::Path;

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::amp::cast_all;
use burn_rocm::fused::optim::{Rule, Step};
use burn_rocm::fused::{flat, one_value, pack_range, repeated, unpack};
use burn_rocm::{Communicator, Pending, RocmError, RocmTensor};

use super::buckets::Entry;
use super::sharded::{Bucket, Sharded, Update, buckets};
use super::{Applied, Gradients, Kept, Op};

/// The parameters of a model's units, and the optimizer's state.
pub(crate) struct Units {
    /// The parameters of all units, one unit after the other.
    sharded: Sharded,
    units: Vec<Unit>,
}

/// The places of a unit's parameters and buckets among those of all units. A unit has a bucket for
/// each dtype.
struct Unit {
    entries: Range<usize>,
    buckets: Range<usize>,
}

/// A unit's parameters, which are being gathered.
#[must_use = "the ranks gather them for nothing"]
pub(crate) struct Gathering {
    unit: usize,
    buckets: Vec<Pending>,
}

/// A unit's gradients, which are being reduced.
#[must_use = "the gradients are lost"]
pub(crate) struct Scattering {
    unit: usize,
    buckets: Vec<Pending>,
}

/// This rank's part of a unit's gradients.
pub(crate) struct Parts {
    unit: usize,
    buckets: Vec<RocmTensor>,
}

impl Units {
    pub(crate) fn new(communicator: Communicator) -> Self {
        Self { sharded: Sharded::new(communicator, usize::MAX), units: Vec::new() }
    }

    /// Adds a unit, and keeps this rank's part of its parameters. They are the same on every rank,
    /// and are gathered in `dtypes`. What is kept is in f32 for those that are gathered in f16 or
    /// bf16.
    ///
    /// # Errors
    /// An error of the device.
    pub(crate) fn add(&mut self, params: &[RocmTensor], dtypes: &[DType]) -> Result<(), RocmError> {
        let Sharded { communicator, entries, buckets: all, .. } = &mut self.sharded;
        let (rank, ranks) = (communicator.rank(), communicator.size());
        let entry =
            |(param, dtype): (&RocmTensor, &DType)| Entry { dims: param.dims().to_vec(), dtype: *dtype };
        let own: Vec<Entry> = params.iter().zip(dtypes).map(entry).collect();
        let (first, first_bucket) = (entries.len(), all.len());
        for mut bucket in buckets(&own, usize::MAX, ranks) {
            let members = bucket.members.iter().map(|&member| params[member].clone()).collect();
            let mut whole = cast_all(members, bucket.wide())?;
            let elements: usize = whole.iter().map(|param| param.dims().iter().product::<usize>()).sum();
            if bucket.part * ranks > elements {
                let zero = one_value(&communicator.device(), 0.0, bucket.wide())?;
                whole.push(repeated(&zero, bucket.part * ranks - elements)?);
            }
            let begin = bucket.part * rank;
            bucket.master = Some(pack_range(&whole, begin..begin + bucket.part)?);
            bucket.members.iter_mut().for_each(|member| *member += first);
            all.push(bucket);
        }
        entries.extend(own);
        self.units.push(Unit { entries: first..entries.len(), buckets: first_bucket..all.len() });
        Ok(())
    }

    fn buckets(&self, unit: usize) -> &[Bucket] {
        &self.sharded.buckets[self.units[unit].buckets.clone()]
    }

    /// Starts to gather a unit's parameters.
    ///
    /// # Errors
    /// `Invalid` if an update has failed; an error of the collectives or of the device.
    pub(crate) fn gather(&self, unit: usize) -> Result<Gathering, RocmError> {
        let gather = |bucket: &Bucket| {
            let part = cast_all(vec![master(bucket)?], bucket.dtype)?.remove(0);
            self.sharded.communicator.all_gather(part)
        };
        Ok(Gathering { unit, buckets: self.buckets(unit).iter().map(gather).collect::<Result<_, _>>()? })
    }

    /// The unit's parameters as views of what was gathered, in their order. `None` for those
    /// without elements.
    ///
    /// # Errors
    /// An error of the collectives or of the device.
    pub(crate) fn join(&self, gathering: Gathering) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let Gathering { unit, buckets } = gathering;
        let entries = &self.units[unit].entries;
        let mut params = vec![None; entries.len()];
        for (bucket, gathered) in self.buckets(unit).iter().zip(buckets) {
            let gathered = flat(gathered.join()?)?;
            let dims = bucket.members.iter().map(|&member| self.sharded.entries[member].dims.as_slice());
            for (member, param) in bucket.members.iter().zip(unpack(&gathered, dims)?) {
                params[member - entries.start] = Some(param);
            }
        }
        Ok(params)
    }

    /// Starts to reduce the gradients of a unit's parameters to their mean over the ranks, weighted
    /// by `weight` (without it all ranks weigh the same). A missing gradient counts as 0. The
    /// gradients are dropped when they are packed.
    ///
    /// # Errors
    /// An error of the collectives or of the device.
    pub(crate) fn reduce(
        &self,
        unit: usize,
        grads: Vec<Option<RocmTensor>>,
        weight: Option<f64>,
    ) -> Result<Scattering, RocmError> {
        // In the places of all parameters, as the buckets name them.
        let mut all = vec![None; self.sharded.entries.len()];
        for (place, grad) in all[self.units[unit].entries.clone()].iter_mut().zip(grads) {
            *place = grad;
        }
        let scatter = |bucket: &Bucket| self.sharded.scatter(bucket, &mut all, weight);
        Ok(Scattering { unit, buckets: self.buckets(unit).iter().map(scatter).collect::<Result<_, _>>()? })
    }

    /// This rank's part of the gradients.
    ///
    /// # Errors
    /// An error of the collectives.
    pub(crate) fn scattered(&self, scattering: Scattering) -> Result<Parts, RocmError> {
        let Scattering { unit, buckets } = scattering;
        Ok(Parts { unit, buckets: buckets.into_iter().map(Pending::join).collect::<Result<_, _>>()? })
    }

    /// Updates this rank's part of these units' parameters. `update.most` is the largest norm of
    /// the given gradients together.
    ///
    /// # Errors
    /// `Invalid` if an update has failed before; an error of the collectives or of the device. The
    /// parameters of these units are lost then.
    pub(crate) fn update(&mut self, units: Vec<Parts>, update: Update) -> Result<(), RocmError> {
        let place = |Parts { unit, buckets }: Parts| self.units[unit].buckets.clone().zip(buckets);
        let (places, mut grads): (Vec<usize>, Vec<RocmTensor>) = units.into_iter().flat_map(place).unzip();
        if let Some(most) = update.most {
            grads = self.sharded.clipped(grads, most)?;
        }
        let mut step = Step::new(update.rule, update.clip);
        let mut added = Vec::with_capacity(places.len());
        for (place, grad) in places.into_iter().zip(grads) {
            let bucket = &mut self.sharded.buckets[place];
            // Taken, so that the step finds no other owner and writes them in place.
            let (part, mut state) = (master(bucket)?, std::mem::take(&mut bucket.state));
            bucket.master = None;
            added.push((place, step.add(part, grad, &mut state)?));
        }
        step.run()?;
        for (place, (part, state)) in added {
            let bucket = &mut self.sharded.buckets[place];
            (bucket.master, bucket.state) = (Some(part), state);
        }
        Ok(())
    }

    /// [`Sharded::save`] of these parts.
    pub(crate) fn save(&self, folder: &Path, rule: Rule) -> Result<(), RocmError> {
        self.sharded.save_values(folder, self.sharded.buckets.iter().map(master).collect(), rule)
    }

    /// [`Sharded::load`] of these parts.
    pub(crate) fn load(&mut self, folder: &Path, rule: Rule) -> Result<(), RocmError> {
        let read = self.sharded.read(folder, rule);
        let read = self.sharded.agree(folder, read)?;
        for (bucket, (value, state)) in self.sharded.buckets.iter_mut().zip(read) {
            (bucket.master, bucket.state) = (Some(value), state);
        }
        Ok(())
    }
}

/// This rank's part of a bucket.
fn master(bucket: &Bucket) -> Result<RocmTensor, RocmError> {
    bucket.master.clone().ok_or_else(|| RocmError::Invalid {
        op: "ShardedModel",
        expected: "the parameters of the step before".into(),
        found: "those of a step that failed: load a checkpoint".into(),
    })
}

/// A backward pass's root whose input gets this gradient. So a pass can begin in the middle of a
/// model.
#[derive(Debug)]
pub(crate) struct Seed(pub(crate) RocmTensor);

impl Op<1> for Seed {
    fn names(&self) -> [&'static str; 2] {
        ["nn_seed", "nn_seed_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((one_value(&x.rocm_device(), 0.0, x.dtype())?, Vec::new()))
    }

    fn backward(&self, _: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(self.0.clone())])
    }
}
