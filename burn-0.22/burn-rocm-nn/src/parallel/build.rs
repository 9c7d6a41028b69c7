//! Builds a [`ShardedModel`](super::ShardedModel).

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use burn_backend::TensorMetadata;
use burn_rocm::{RocmError, RocmTensor};

use super::DataParallel;
use super::config::ShardedModelConfig;
use super::optimizer::{NORM_OF_DIVIDED, Take};
use crate::amp::in_place_of;
use crate::divided::Divided;
use crate::ops::divided::{refuse_divided, refuse_own};
use crate::ops::units::Units;
use crate::ties::Ties;

const OP: &str = "ShardedModel::build";

/// A model that is being built.
pub(super) struct Build<'a> {
    ranks: &'a DataParallel,
    pub(super) units: Units,
    config: &'a ShardedModelConfig,
    /// The places of the parameters so far, by their ids.
    places: HashMap<ParamId, usize>,
    /// How many parameters stay whole.
    whole: usize,
    /// How many parameters are those of earlier units.
    tied: usize,
}

impl<'a> Build<'a> {
    pub(super) fn new(ranks: &'a DataParallel, config: &'a ShardedModelConfig) -> Self {
        let units = Units::new(ranks.communicator().clone());
        Self { ranks, units, config, places: HashMap::new(), whole: 0, tied: 0 }
    }

    /// Logs once which parameters stay whole, and which are tied.
    pub(super) fn say(&self) {
        let Self { whole, tied, .. } = self;
        if *whole > 0 {
            log::info!("burn_rocm_nn: {whole} parameters that are not trained stay whole on every rank");
        }
        if *tied > 0 {
            log::info!("burn_rocm_nn: {tied} parameters are tied to those of earlier units with their ids");
        }
    }

    /// Keeps this rank's part of the module's parameters. Returns the module with placeholders.
    pub(super) fn unit<N: Module>(&mut self, module: N) -> Result<N, RocmError> {
        let ShardedModelConfig { dtype, most, scaler, .. } = self.config;
        let groups = Divided::of(&module).groups;
        if most.is_some() {
            refuse_divided(OP, NORM_OF_DIVIDED, &groups)?;
        }
        refuse_own(OP, self.ranks.communicator(), &groups)?;
        self.units.divided_among(groups);
        let module = self.ranks.broadcast(module);
        Ids::check(&module)?;
        let mut take = Take::new(GradientsParams::new());
        module.visit(&mut take);
        let kept = |param: &RocmTensor| dtype.map_or_else(|| param.dtype(), DType::from);
        let dtypes: Vec<DType> = take.params.iter().map(kept).collect();
        if dtypes.contains(&DType::F16) && scaler.is_none() {
            let what = "training without a scaled loss: use `with_scaler`, or bf16";
            return Err(RocmError::Unsupported { op: OP, dtype: Some("f16"), what: Some(what.into()) });
        }
        let tied: Vec<Option<usize>> = take.ids.iter().map(|id| self.places.get(id).copied()).collect();
        self.tied += tied.iter().flatten().count();
        let places = self.units.add(&take.params, &dtypes, &tied)?;
        self.places.extend(take.ids.iter().copied().zip(places));
        let mut hollow = Hollow { dtypes: take.ids.into_iter().zip(dtypes).collect(), whole: 0 };
        let module = module.map(&mut hollow);
        self.whole += hollow.whole;
        Ok(module)
    }
}

/// Puts placeholders in place of parameters: they have the shapes, and memory for one element.
struct Hollow {
    dtypes: HashMap<ParamId, DType>,
    /// How many other parameters there are.
    whole: usize,
}

impl ModuleMapper for Hollow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = match self.dtypes.get(&id) {
            // A frozen clone has the same id.
            _ if !tensor.is_require_grad() => {
                self.whole += 1;
                tensor
            }
            Some(dtype) if tensor.shape().num_elements() > 0 => {
                let zero = Tensor::<D>::zeros([1; D], &tensor.device().inner()).cast(*dtype);
                in_place_of(&tensor, zero.expand(tensor.dims()))
            }
            _ => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Checks that a module's trained places with one id are one parameter. Clones that were trained
/// apart, or loaded from a record of other values, have one id too.
struct Ids {
    ties: Ties,
    place: usize,
    seen: HashSet<ParamId>,
    parted: Option<ParamId>,
}

impl Ids {
    fn check(module: &impl Module) -> Result<(), RocmError> {
        let ties = Ties::of(module);
        let mut ids = Self { ties, place: 0, seen: HashSet::new(), parted: None };
        module.visit(&mut ids);
        let Some(id) = ids.parted else { return Ok(()) };
        let expected = "one value for the parameters of one id".into();
        Err(RocmError::Invalid { op: OP, expected, found: format!("clones that differ, with the id {id}") })
    }
}

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = self.place;
        self.place += 1;
        if param.val().is_require_grad() && !self.seen.insert(param.id) && self.ties.first(place) == place {
            self.parted = Some(param.id);
        }
    }
}
