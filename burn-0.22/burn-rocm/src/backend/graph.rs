//! A captured graph as Burn holds it.

use std::sync::Arc;

use crate::device::RocmDevice;
use crate::error::invalid;
use crate::graph::Graph;

/// Work that was captured on a device. One launch replays it.
#[derive(Clone, Debug)]
pub struct RocmGraph(Arc<Graph>);

impl RocmGraph {
    pub(super) fn new(graph: Graph) -> Self {
        Self(Arc::new(graph))
    }

    /// Launches the graph. `device` must be the device that it was captured on.
    pub(super) fn replay(&self, device: &RocmDevice) -> hip::Result<()> {
        let own = self.0.device();
        match own == *device {
            true => self.0.replay(),
            false => invalid(
                "graph_replay",
                format!("a graph captured on {device}"),
                format!("one captured on {own}"),
            ),
        }
    }

    /// The numbers of kernels, library calls and copies that were captured. A replay launches the
    /// graph as a whole, not each of them.
    pub fn recorded(&self) -> hip::trace::Counts {
        self.0.recorded()
    }
}
