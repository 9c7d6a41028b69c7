//! The collectives of Burn's data parallel training.

use burn_backend::DeviceId;
use burn_backend::distributed::{
    CollectiveTensor, DistributedConfig, DistributedOps, ReduceOperation, close_distributed_sync_server,
    get_distributed_sync_client, start_distributed_sync_server,
};
use burn_rocm_macros::traced;
use burn_std::device::Device;
use hip::ReduceOp;

use super::Rocm;
use super::primitive::{BurnDevice, own};
use crate::device::RocmDevice;
use crate::error::OrRaise;
use crate::ops::collective;
use crate::tensor::RocmTensor;

#[traced]
impl DistributedOps<Self> for Rocm {
    fn start_communication_server(devices: &[BurnDevice], config: DistributedConfig) {
        collective::open(devices.len());
        start_distributed_sync_server::<Self>(devices, config);
    }

    /// The devices' threads wait for each other: Burn's server loses what a device announces for
    /// the next backward pass before all devices have ended this one.
    fn submit_sync_collective(device: &BurnDevice) {
        // Burn's server waits without an end for the gradients of a device whose thread has panicked.
        // The meeting does not.
        collective::meet().or_raise();
        if let Some(client) = get_distributed_sync_client::<Self>() {
            client.submit_sync_collective(device.clone());
        }
        collective::meet().or_raise();
    }

    fn close_communication_server(_device: &BurnDevice) {
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
    fn sync_collective(device: &BurnDevice) {
        collective::sync(&own(device)).or_raise();
    }
}
