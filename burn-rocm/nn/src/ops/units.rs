//! Parameters that are divided among ranks: stage 3 of ZeRO ([Rajbhandari et al.
//! 2020](https://arxiv.org/abs/1910.02054)).
//!
//! A unit is a part of a model whose parameters are gathered together. A rank keeps its part of
//! each unit's parameters and of the optimizer's state. What gathers and reduces returns at once,
//! so that it runs beside the ops that follow.

use std::ops::Range;
use std::path::Path;

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::amp::{any_set, cast_all, unscale};
use burn_rocm::fused::optim::{Rule, Step};
use burn_rocm::fused::{add, flat, one_value, pack_range, repeated, unpack};
use burn_rocm::{Communicator, Pending, RocmError, RocmTensor};

use super::buckets::Entry;
use super::checkpoint::Paths;
use super::divided::agreed;
use super::parallel::is_equal;
use super::sharded::{Bucket, Sharded, Update, buckets};
use super::{Applied, Gradients, Kept, Op};

/// The parameters of a model's units, and the optimizer's state.
pub(crate) struct Units {
    /// The parameters of all units, one unit after the other.
    sharded: Sharded,
    units: Vec<Unit>,
    /// For each bucket, the sum of this rank's parts of the gradients that no update has used yet.
    kept: Vec<Option<RocmTensor>>,
    /// The groups whose ranks skip a step together: that of the parameters, and those that divide
    /// layers.
    groups: Vec<Communicator>,
}

/// The places of a unit's parameters and buckets among those of all units.
struct Unit {
    entries: Vec<usize>,
    /// The buckets of the parameters that no earlier unit has, one for each dtype.
    own: Range<usize>,
    /// The buckets of earlier units that have parameters of this one.
    tied: Vec<usize>,
}

impl Unit {
    fn buckets(&self) -> impl Iterator<Item = usize> {
        self.own.clone().chain(self.tied.iter().copied())
    }
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

/// This rank's parts of the gradients of buckets.
pub(crate) type Parts = Vec<(usize, RocmTensor)>;

impl Units {
    pub(crate) fn new(communicator: Communicator) -> Self {
        let groups = vec![communicator.clone()];
        Self { sharded: Sharded::new(communicator, usize::MAX), units: Vec::new(), kept: Vec::new(), groups }
    }

    /// The next unit has layers that are divided among the ranks of these groups.
    pub(crate) fn divided_among(&mut self, groups: Vec<Communicator>) {
        for group in groups {
            if !self.groups.iter().any(|known| known.is(&group)) {
                self.groups.push(group);
            }
        }
    }

    /// Adds a unit, and keeps this rank's part of its parameters. They are the same on every rank,
    /// and are gathered in `dtypes`. What is kept is in f32 for those that are gathered in f16 or
    /// bf16. Returns the places of the parameters among those of all units.
    ///
    /// `tied` has the place of each parameter that an earlier unit has. All parameters that the
    /// earlier unit gathers with it are gathered for this unit as well.
    ///
    /// # Errors
    /// `Invalid` if a tied parameter's shape, dtype or values differ from those in the earlier unit,
    /// on any rank; an error of the collectives or of the device.
    pub(crate) fn add(
        &mut self,
        params: &[RocmTensor],
        dtypes: &[DType],
        tied: &[Option<usize>],
    ) -> Result<Vec<usize>, RocmError> {
        self.compare(params, dtypes, tied)?;
        let Sharded { communicator, entries, buckets: all, .. } = &mut self.sharded;
        let (rank, ranks) = (communicator.rank(), communicator.size());
        let (first, first_bucket) = (entries.len(), all.len());
        let (mut places, mut own, mut values) = (Vec::with_capacity(params.len()), Vec::new(), Vec::new());
        for ((param, &dtype), &tied) in params.iter().zip(dtypes).zip(tied) {
            let entry = Entry { dims: param.dims().to_vec(), dtype };
            match tied {
                None => {
                    places.push(first + own.len());
                    own.push(entry);
                    values.push(param);
                }
                Some(place) => places.push(place),
            }
        }
        for mut bucket in buckets(&own, usize::MAX, ranks) {
            let members = bucket.members.iter().map(|&member| values[member].clone()).collect();
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
        self.kept.resize_with(all.len(), || None);
        let has_tied = |&bucket: &usize| all[bucket].members.iter().any(|member| places.contains(member));
        let tied = (0..first_bucket).filter(has_tied).collect();
        self.units.push(Unit { entries: places.clone(), own: first_bucket..all.len(), tied });
        Ok(places)
    }

    /// Compares tied parameters with those of earlier units.
    fn compare(
        &self,
        params: &[RocmTensor],
        dtypes: &[DType],
        tied: &[Option<usize>],
    ) -> Result<(), RocmError> {
        let Sharded { communicator, entries, buckets, .. } = &self.sharded;
        let mut differs = false;
        let mut compared = false;
        for ((param, &dtype), place) in params.iter().zip(dtypes).zip(tied) {
            let Some(place) = *place else { continue };
            let entry = Entry { dims: param.dims().to_vec(), dtype };
            if entries[place] != entry {
                let text = |Entry { dims, dtype }: &Entry| format!("{dims:?} of {}", dtype.name());
                let expected = format!("a parameter as in the earlier unit: {}", text(&entries[place]));
                return Err(differs_from_earlier(expected, text(&entry)));
            }
            let bucket = buckets.iter().find(|bucket| bucket.members.contains(&place));
            let Some(bucket) = bucket else { continue };
            compared = true;
            let before = bucket.members.iter().take_while(|&&member| member != place);
            let first: usize = before.map(|&member| entries[member].elements()).sum();
            let begin = bucket.part * communicator.rank();
            // What this rank has of it.
            let (from, to) = (first.max(begin), (first + entry.elements()).min(begin + bucket.part));
            if from < to {
                let own = cast_all(vec![param.clone()], bucket.wide())?;
                let own = pack_range(&own, from - first..to - first)?;
                let earlier = pack_range(&[master(bucket)?], from - begin..to - begin)?;
                differs |= !is_equal(&own, &earlier)?;
            }
        }
        if !compared {
            return Ok(());
        }
        let flag = one_value(&communicator.device(), f64::from(u8::from(differs)), DType::U32)?;
        if any_set(agreed(std::slice::from_ref(communicator), vec![flag])?)? {
            let expected = "the values of the earlier unit's parameter with this id".into();
            return Err(differs_from_earlier(
                expected,
                "other values, as of a clone that was trained".into(),
            ));
        }
        Ok(())
    }

    /// The dtype in which all ranks have the loss: f64 if a parameter is gathered in f64, else f32.
    pub(crate) fn loss_dtype(&self) -> DType {
        let is_double = |entry: &Entry| entry.dtype == DType::F64;
        if self.sharded.entries.iter().any(is_double) { DType::F64 } else { DType::F32 }
    }

    fn buckets(&self, unit: usize) -> impl Iterator<Item = &Bucket> {
        self.units[unit].buckets().map(|bucket| &self.sharded.buckets[bucket])
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
        Ok(Gathering { unit, buckets: self.buckets(unit).map(gather).collect::<Result<_, _>>()? })
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
        for (bucket, gathered) in self.buckets(unit).zip(buckets) {
            let gathered = flat(gathered.join()?)?;
            let dims = bucket.members.iter().map(|&member| self.sharded.entries[member].dims.as_slice());
            for (member, param) in bucket.members.iter().zip(unpack(&gathered, dims)?) {
                if let Some(place) = entries.iter().position(|entry| entry == member) {
                    params[place] = Some(param);
                }
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
        for (&place, grad) in self.units[unit].entries.iter().zip(grads) {
            all[place] = grad;
        }
        let scatter = |bucket: &Bucket| self.sharded.scatter(bucket, &mut all, weight);
        Ok(Scattering { unit, buckets: self.buckets(unit).map(scatter).collect::<Result<_, _>>()? })
    }

    /// This rank's parts of the gradients that are complete, with what was kept of them. Keeps
    /// those of tied parameters, until the first unit that has them is reduced. Units are reduced
    /// from the last one to the first. Keeps all gradients if the update comes after a `later`
    /// pass. What is kept is in the dtype in which the parameters are updated.
    ///
    /// # Errors
    /// An error of the collectives or of the device.
    pub(crate) fn scattered(&mut self, scattering: Scattering, later: bool) -> Result<Parts, RocmError> {
        let Scattering { unit, buckets } = scattering;
        let unit = &self.units[unit];
        let mut complete = Vec::new();
        for (place, part) in unit.buckets().zip(buckets) {
            let keeps = later || !unit.own.contains(&place);
            let (mut part, before) = (part.join()?, self.kept[place].take());
            if keeps || before.is_some() {
                part = cast_all(vec![part], self.sharded.buckets[place].wide())?.remove(0);
            }
            if let Some(before) = before {
                part = add(before, part)?;
            }
            match keeps {
                true => self.kept[place] = Some(part),
                false => complete.push((place, part)),
            }
        }
        Ok(complete)
    }

    /// The parts of the gradients of a scaled loss times `factor`, in the dtype in which the parameters
    /// are updated. `None` if one is infinite or NaN on any rank, also of a group that divides layers.
    /// Waits for the device.
    ///
    /// # Errors
    /// An error of the collectives or of the device.
    pub(crate) fn unscaled(&self, parts: Parts, factor: f32) -> Result<Option<Parts>, RocmError> {
        let (places, grads): (Vec<usize>, Vec<RocmTensor>) = parts.into_iter().unzip();
        let (grads, flags) = unscale(grads, factor)?;
        let flags = agreed(&self.groups, flags)?;
        Ok((!any_set(flags)?).then(|| places.into_iter().zip(grads).collect()))
    }

    /// Updates this rank's parts of these buckets. `update.most` is the largest norm of the given
    /// gradients together.
    ///
    /// # Errors
    /// `Invalid` if an update has failed before; an error of the collectives or of the device. The
    /// parameters of these buckets are lost then.
    pub(crate) fn update(&mut self, parts: Parts, update: Update) -> Result<(), RocmError> {
        let (places, mut grads): (Vec<usize>, Vec<RocmTensor>) = parts.into_iter().unzip();
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

    /// The paths of all parameters, from those that each unit's parameters have in the model. A tied
    /// parameter has that of the first unit.
    pub(crate) fn paths(&self, of_units: impl IntoIterator<Item = Vec<String>>) -> Paths {
        let mut all = vec![None; self.sharded.entries.len()];
        for (unit, paths) in self.units.iter().zip(of_units) {
            for (&place, path) in unit.entries.iter().zip(paths) {
                all[place].get_or_insert(path);
            }
        }
        Paths::Units(all.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// [`Sharded::save`] of these parts.
    ///
    /// # Errors
    /// `Invalid` if gradients are kept; as [`Sharded::save`].
    pub(crate) fn save(&self, folder: &Path, paths: Paths, rule: Rule) -> Result<(), RocmError> {
        // On all ranks, so that nobody waits for another.
        if self.kept.iter().any(Option::is_some) {
            let (expected, found) = ("a step after accumulated gradients", "gradients that saving loses");
            let (op, expected, found) = ("ShardedModel::save", expected.into(), found.into());
            return Err(RocmError::Invalid { op, expected, found });
        }
        self.sharded.save_values(folder, self.sharded.buckets.iter().map(master).collect(), paths, rule)
    }

    /// [`Sharded::load`] of these parts. Drops kept gradients.
    pub(crate) fn load(&mut self, folder: &Path, paths: &Paths, rule: Rule) -> Result<(), RocmError> {
        let read = self.sharded.read(folder, paths, rule);
        let read = self.sharded.agree(folder, read)?;
        for (bucket, (value, state)) in self.sharded.buckets.iter_mut().zip(read) {
            (bucket.master, bucket.state) = (Some(value), state);
        }
        self.kept.fill(None);
        Ok(())
    }
}

fn differs_from_earlier(expected: String, found: String) -> RocmError {
    RocmError::Invalid { op: "ShardedModel::build", expected, found }
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
