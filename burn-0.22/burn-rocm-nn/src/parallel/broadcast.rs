//! Parameters and running statistics of rank 0, on every rank.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn_rocm::{Communicator, RocmDevice, RocmTensor, graph, raise, trace};

use super::DataParallel;
use crate::amp::in_place_of;
use crate::divided::Divided;
use crate::fuse::{from_rocm, rocm};
use crate::ops::broadcast::{Fields, agreed, are_own};
use crate::ops::divided::refuse_own;
use crate::ties::Ties;

impl DataParallel {
    /// The module with the float parameters and running statistics of rank 0, in new memory. The module
    /// must be on the communicator's device. Waits for the device.
    ///
    /// Call this before the training: a sharded optimizer and a graph use the memory that the parameters
    /// have in their first step. Later [`broadcast_statistics`](Self::broadcast_statistics) sends what
    /// differs.
    ///
    /// Places of rank 0's module with the same id and values are one parameter on every rank, even if
    /// loading a record has parted them. Other places with one id stay apart on every rank.
    ///
    /// Clones of a batch norm share running statistics, even after `fork` to another device. Each
    /// thread needs its own: make each thread's module in its thread.
    ///
    /// # Panics
    /// As the [type](Self) says; with `Invalid` on all ranks if a tensor of one is not on its device, as
    /// with shared statistics, or if this group divides the module's layers.
    pub fn broadcast<M: Module>(&self, module: M) -> M {
        const OP: &str = "DataParallel::broadcast";
        let _op = trace::op("nn_broadcast", || "");
        let ranks = self.communicator();
        // A running statistic applies its last update only when it is read next. This reads it: later, the
        // update would overwrite rank 0's value.
        drop(module.valid());
        let ties = Ties::of_rank_0(&module, ranks);
        // Burn holds a statistic's lock while a mapper works. If threads shared one, each would wait for
        // the other: for the lock, and for the collective. Shared statistics stay on one device, so the
        // ranks first agree that the tensors of each are on its own.
        let own = refuse_own(OP, ranks, &Divided::of(&module).groups).and_then(|()| {
            let mut devices = Devices { all: vec![] };
            module.visit(&mut devices);
            are_own(OP, devices.all, ranks)
        });
        let ready = ties.and_then(|ties| agreed(OP, own, ranks).map(|()| ties));
        let ties = ready.unwrap_or_else(|error| raise(error));
        ties.restore(module.map(&mut Broadcast(ranks)))
    }

    /// Gives the module rank 0's running statistics: its tensors in fields `running_mean` and
    /// `running_var`, as batch norms have them. Each rank's are those of its own samples. Call this
    /// before an evaluation and before the module is saved; every rank must. A module that is a graph's
    /// keeps its memory. Clones share what changes. Waits for the device.
    ///
    /// # Panics
    /// As [`broadcast`](Self::broadcast).
    pub fn broadcast_statistics<M: Module>(&self, module: &M) {
        const OP: &str = "DataParallel::broadcast_statistics";
        let _op = trace::op("nn_broadcast", || "statistics");
        let ranks = self.communicator();
        // As in `broadcast`.
        drop(module.valid());
        let mut read = Read { fields: Fields::default(), found: vec![] };
        module.visit(&mut read);
        let own = are_own(OP, read.found.iter().map(RocmTensor::rocm_device), ranks);
        let sent = agreed(OP, own, ranks).and_then(|()| {
            let send = |tensor| ranks.broadcast(0, tensor).and_then(|sent| sent.join());
            read.found.into_iter().map(send).collect::<Result<Vec<_>, _>>()
        });
        let sent = sent.unwrap_or_else(|error| raise(error));
        let put = &mut Put { fields: Fields::default(), sent: sent.into_iter() };
        // A clone has the same statistics.
        drop(module.clone().map(put));
    }
}

/// The devices of a module's float tensors.
struct Devices {
    all: Vec<RocmDevice>,
}

impl ModuleVisitor for Devices {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.all.push(rocm(param.val()).rocm_device());
    }
}

struct Broadcast<'a>(&'a Communicator);

impl ModuleMapper for Broadcast<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let sent = self.0.broadcast(0, rocm(tensor.clone()));
        let sent = sent.and_then(|sent| sent.join()).unwrap_or_else(|error| raise(error));
        Param::from_mapped_value(id, in_place_of(&tensor, from_rocm(sent)), mapper)
    }
}

/// Reads the statistics.
struct Read {
    fields: Fields,
    found: Vec<RocmTensor>,
}

impl ModuleVisitor for Read {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.fields.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.fields.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.fields.are_statistics() {
            self.found.push(rocm(param.val()));
        }
    }
}

/// Puts others in place of the statistics that [`Read`] read, in its order.
struct Put {
    fields: Fields,
    sent: std::vec::IntoIter<RocmTensor>,
}

impl ModuleMapper for Put {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.fields.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.fields.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.fields.are_statistics() {
            return param;
        }
        let Some(sent) = self.sent.next() else { return param };
        let (id, tensor, mapper) = param.consume();
        let old = rocm(tensor.clone());
        if graph::is_of_graph(&old) {
            graph::write(&old, sent).unwrap_or_else(|error| raise(error));
            return Param::from_mapped_value(id, tensor, mapper);
        }
        Param::from_mapped_value(id, in_place_of(&tensor, from_rocm(sent)), mapper)
    }
}
