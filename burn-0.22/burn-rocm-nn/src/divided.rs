//! Parameters of which each rank of a group has a part ([`crate::parallel`]).

use std::collections::HashMap;

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
    ParamId,
};
use burn::tensor::{DType, Device, Tensor};
use burn_rocm::{Communicator, RocmError, RocmTensor};

use crate::ops::divided::{Mark, Places, norm_of_all};

/// The group of a module whose parameters are divided among its ranks: the module's last field. It
/// tells `Divided` which parameters are divided.
#[derive(Clone, Debug)]
pub(crate) struct Ranks(Mark);

impl Ranks {
    /// The first `divided` of the module's `fields` other fields hold divided parameters.
    pub(crate) fn new(ranks: &Communicator, divided_of_fields: [usize; 2]) -> Self {
        Self(Mark::new(ranks, divided_of_fields))
    }

    pub(crate) fn communicator(&self) -> Communicator {
        self.0.ranks.clone()
    }
}

impl Module for Ranks {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {
        self.0.pass();
    }

    fn map<M: ModuleMapper>(self, _: &mut M) -> Self {
        self
    }

    fn to_device(self, _: &Device) -> Self {
        self
    }

    fn fork(self, _: &Device) -> Self {
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn train(self) -> Self {
        self
    }
}

impl ModuleDisplayDefault for Ranks {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&format!("{:?}", self.0.ranks)).optional()
    }
}

impl ModuleDisplay for Ranks {}

/// A module's parameters that are divided among ranks.
#[derive(Default)]
pub(crate) struct Divided {
    pub(crate) groups: Vec<Communicator>,
    of: HashMap<ParamId, usize>,
    /// Whether a group divides parameters of f64 only.
    double: Vec<bool>,
}

impl Divided {
    pub(crate) fn of(module: &impl Module) -> Self {
        let mut find = Find { places: Places::default(), params: Vec::new() };
        Places::follow(|| module.visit(&mut find));
        let (groups, found) = find.places.found();
        let (mut of, mut double) = (HashMap::new(), vec![true; groups.len()]);
        for ((id, dtype), group) in find.params.into_iter().zip(found) {
            let Some(group) = group else { continue };
            of.insert(id, group);
            double[group] &= dtype == DType::F64;
        }
        Self { groups, of, double }
    }

    /// The Euclidean norm of the whole model's gradients, of which this rank has these.
    pub(crate) fn norm(&self, ids: &[ParamId], grads: &[RocmTensor]) -> Result<RocmTensor, RocmError> {
        let dtype = |&double: &bool| if double { DType::F64 } else { DType::F32 };
        let groups: Vec<_> = self.groups.iter().cloned().zip(self.double.iter().map(dtype)).collect();
        let with_group = |(id, grad): (&ParamId, &RocmTensor)| (grad.clone(), self.of.get(id).copied());
        norm_of_all(&groups, &ids.iter().zip(grads).map(with_group).collect::<Vec<_>>())
    }
}

struct Find {
    places: Places,
    params: Vec<(ParamId, DType)>,
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, _: &str, _: &str) {
        self.places.enter();
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.places.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.places.parameter();
        self.params.push((param.id, param.val().dtype()));
    }
}
