//! The collectives of Burn's data parallel training.
//!
//! A backward pass of Burn 0.21 ends with a search for unused nodes in the graphs of all threads.
//! It drops nodes that another thread is just recording, and the other thread's gradients are wrong
//! without an error ([burn#5573](https://github.com/tracel-ai/burn/issues/5573), fixed in 0.22). So
//! the threads meet in each backward pass after all have recorded their graphs. They meet again
//! before any goes on, for this reason and because Burn's server loses what a device announces for
//! the next pass before all devices have ended this one.

use burn_backend::DeviceId;
use burn_backend::distributed::{
    CollectiveTensor, DistributedBackend, DistributedConfig, DistributedParams, ReduceOperation,
    close_distributed_sync_server, get_distributed_sync_client, start_distributed_sync_server,
};
use burn_rocm_macros::traced;
use burn_std::device::Device;
use hip::ReduceOp;

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;
use crate::error::OrRaise;
use crate::ops::collective;
use crate::tensor::RocmTensor;

#[traced]
impl<F: FloatElement, I: IntElement, B: BoolElement> DistributedBackend for Rocm<F, I, B> {
    fn start_communication_server(devices: &[RocmDevice], config: DistributedConfig) {
        collective::open(devices.len());
        start_distributed_sync_server::<Self>(devices, config);
    }

    fn register_sync_parameters(_device: &RocmDevice, distributed_params: Vec<DistributedParams>) {
        collective::meet().or_raise();
        if let Some(client) = get_distributed_sync_client::<Self>() {
            client.register_sync_parameters(distributed_params);
        }
    }

    fn submit_sync_collective(device: &RocmDevice) {
        // Burn's server waits without an end for the gradients of a device whose thread has panicked.
        // The meeting does not.
        collective::meet().or_raise();
        if let Some(client) = get_distributed_sync_client::<Self>() {
            client.submit_sync_collective(device.clone());
        }
        collective::meet().or_raise();
    }

    fn close_communication_server(_device: &RocmDevice) {
        close_distributed_sync_server::<Self>();
        collective::close();
    }

    /// Does not wait for the other devices' calls. They may come from one thread or from several.
    fn all_reduce(
        tensor: RocmTensor,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        let devices: Vec<usize> = device_ids.into_iter().map(|id| RocmDevice::from_id(id).index).collect();
        let op = match op {
            ReduceOperation::Sum => ReduceOp::Sum,
            ReduceOperation::Mean => ReduceOp::Average,
        };
        CollectiveTensor::new(collective::all_reduce(tensor, op, &devices).or_raise())
    }

    /// Waits on the host for the other devices' calls of `all_reduce`, and on the device for the
    /// collectives.
    fn sync_collective(device: &RocmDevice) {
        collective::sync(device).or_raise();
    }
}
