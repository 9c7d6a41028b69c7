//! Parameters that a module holds at several places, such as an embedding that is also the
//! output layer's weight.
//!
//! Such places share one leaf of the autodiff graph, so that its gradient is that of all uses. A
//! mapper that makes new tensors makes one for each place, and so would split the leaf.

use std::collections::{HashMap, HashSet};

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor};
use burn_rocm::{Communicator, RocmError, RocmTensor, raise};

use crate::fuse::{on_rocm, primitive, rocm, wrap};
use crate::ops::parallel::{is_equal, of_rank_0};

/// The places of a module that share a leaf. A place is the number of a float parameter in the
/// order of the module.
///
/// Equal ids are not enough: clones that were trained apart, or of which one is frozen, have the
/// same ids. The places of a leaf also have the same memory.
#[derive(Default)]
pub(crate) struct Ties {
    /// The first place that shares the leaf of this one.
    first: HashMap<usize, usize>,
    /// The ids of places that hold frozen clones of trained parameters.
    frozen: HashMap<usize, ParamId>,
    /// The same ids.
    frozen_ids: HashSet<ParamId>,
}

impl Ties {
    /// None on the devices of other projects.
    pub(crate) fn of(module: &impl Module) -> Self {
        let mut ids = Ids::default();
        module.visit(&mut ids);
        Self::among(module, ids.twice, false)
    }

    /// Those of rank 0, where places with the same values share a leaf, too: a record that was loaded
    /// has a tensor of its own for each place. The other ranks' modules may share otherwise. Reads
    /// the values of places with one id.
    pub(crate) fn of_rank_0(module: &impl Module, ranks: &Communicator) -> Result<Self, RocmError> {
        let mut ids = Ids::default();
        module.visit(&mut ids);
        let mut firsts: Vec<usize> = (0..ids.places).collect();
        if ranks.rank() == 0 {
            let ties = Self::among(module, ids.twice, true);
            ties.first.into_iter().for_each(|(place, first)| firsts[place] = first);
        }
        let firsts = of_rank_0(ranks, &firsts)?;
        let first = firsts.into_iter().enumerate().filter(|(place, first)| place != first).collect();
        Ok(Self { first, ..Self::default() })
    }

    fn among(module: &impl Module, twice: HashSet<ParamId>, by_value: bool) -> Self {
        if twice.is_empty() {
            return Self::default();
        }
        let mut find = Find { twice, by_value, ..Find::default() };
        module.visit(&mut find);
        let Find { first, mut frozen, trained, .. } = find;
        frozen.retain(|_, id| trained.contains(id));
        let frozen_ids = frozen.values().copied().collect();
        Self { first, frozen, frozen_ids }
    }

    /// The first place that shares the leaf of this one, which may be itself.
    pub(crate) fn first(&self, place: usize) -> usize {
        self.first.get(&place).copied().unwrap_or(place)
    }

    /// Whether a parameter is a frozen clone of a trained one. A gradient with their id is that of
    /// the trained one.
    pub(crate) fn is_frozen_clone<const D: usize>(&self, param: &Param<Tensor<D>>) -> bool {
        self.frozen_ids.contains(&param.id) && !param.val().is_require_grad()
    }

    /// Parts the places for which this does not hold.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(usize, usize) -> bool) {
        self.first.retain(|&place, first| keep(place, *first));
    }

    /// Leaves the first place of each trained leaf as its only holder, so that a step writes it in
    /// place. A step in a capture must. Frozen clones of trained parameters get other ids, so that
    /// the step finds no gradient for them.
    pub(crate) fn release<M: Module>(&self, module: M) -> M {
        match self.is_empty() {
            true => module,
            false => module.map(&mut Release { ties: self, place: 0 }),
        }
    }

    /// Puts the leaf of the first place in the others that shared it, and restores the ids that
    /// [`release`](Self::release) replaced.
    pub(crate) fn restore<M: Module>(self, module: M) -> M {
        match self.is_empty() {
            true => module,
            false => module.map(&mut Restore { ties: self, place: 0, leaves: HashMap::new() }),
        }
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.frozen.is_empty()
    }
}

/// The ids of float parameters, and those that occur twice. Initialises no parameter.
#[derive(Default)]
struct Ids {
    once: HashSet<ParamId>,
    twice: HashSet<ParamId>,
    places: usize,
}

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.places += 1;
        if !self.once.insert(param.id) {
            self.twice.insert(param.id);
        }
    }
}

#[derive(Default)]
struct Find {
    twice: HashSet<ParamId>,
    /// Whether places with the same values share a leaf, too.
    by_value: bool,
    place: usize,
    /// The first place of each leaf, by the id and whether it is trained.
    seen: HashMap<(ParamId, bool), (usize, RocmTensor)>,
    first: HashMap<usize, usize>,
    /// The places that are not trained, and their ids.
    frozen: HashMap<usize, ParamId>,
    /// The ids that are trained at a place.
    trained: HashSet<ParamId>,
}

impl ModuleVisitor for Find {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = self.place;
        self.place += 1;
        if !self.twice.contains(&param.id) {
            return;
        }
        let value = param.val();
        let key = (param.id, value.is_require_grad());
        if value.is_require_grad() {
            self.trained.insert(param.id);
        } else {
            self.frozen.insert(place, param.id);
        }
        // These share no leaf, but a frozen clone may be on another device or quantised.
        if !on_rocm(&value.device()) || matches!(value.dtype(), DType::QFloat(_)) {
            return;
        }
        let value = rocm(value);
        let (first, leaf) = self.seen.entry(key).or_insert_with(|| (place, value.clone()));
        if *first == place {
            return;
        }
        let shares = leaf.shares_buffer(&value) && leaf.layout() == value.layout();
        if shares || self.by_value && is_equal(leaf, &value).unwrap_or_else(|error| raise(error)) {
            self.first.insert(place, *first);
        }
    }
}

struct Release<'a> {
    ties: &'a Ties,
    place: usize,
}

impl ModuleMapper for Release<'_> {
    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.place;
        self.place += 1;
        if self.ties.frozen.contains_key(&place) {
            param.id = ParamId::new();
        }
        // Clones share the value of a running statistic, not only its memory. So emptying one place
        // would empty all.
        if !self.ties.first.contains_key(&place) || !param.val().is_require_grad() {
            return param;
        }
        let (id, leaf, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::empty([0; D], &leaf.device()), mapper)
    }
}

struct Restore {
    ties: Ties,
    place: usize,
    /// The leaves and their ids, by their first places.
    leaves: HashMap<usize, (ParamId, DispatchTensor)>,
}

impl ModuleMapper for Restore {
    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.place;
        self.place += 1;
        if let Some(&id) = self.ties.frozen.get(&place) {
            param.id = id;
        }
        let shared = self.ties.first.get(&place).and_then(|first| self.leaves.get(first));
        match shared {
            Some((id, leaf)) => {
                let (_, _, mapper) = param.consume();
                Param::from_mapped_value(*id, wrap(leaf.clone()), mapper)
            }
            None => {
                if self.ties.first.values().any(|&first| first == place) {
                    self.leaves.insert(place, (param.id, primitive(param.val())));
                }
                param
            }
        }
    }
}
