//! Passes over a model, for collectives that run beside them.

use burn_std::DType;
use hip::{Behind, Error, Points, trace};

use crate::device::RocmDevice;
use crate::tensor::RocmTensor;
use crate::waiting::{any_put_off, enqueue_own};

/// The ops of the calling thread on one device, from its begin to its end, such as a backward pass.
/// It has points that [`Communicator::all_reduce_beside`](crate::Communicator::all_reduce_beside)
/// can wait for. It stays on its thread.
#[must_use = "the pass ends where this is dropped"]
#[derive(Debug)]
pub struct Pass {
    own: hip::Pass,
    reserved: Vec<RocmTensor>,
}

impl Pass {
    /// Begins a pass, with memory for results: a tensor of one axis for each length and dtype.
    ///
    /// After each op whose number is in `wanted`, in ascending order and from 1, there is a point.
    /// If the list is empty, there is one after every few launches.
    ///
    /// # Errors
    /// `Invalid` if the thread has a pass already; an error of the device.
    pub fn begin(device: &RocmDevice, reserved: &[(usize, DType)], wanted: Vec<u32>) -> Result<Self, Error> {
        let device = device.open()?;
        let tensor =
            |&(len, dtype): &(usize, DType)| Ok(RocmTensor::empty(&device, [len], dtype)?.skip_check());
        let reserved = reserved.iter().map(tensor).collect::<Result<Vec<_>, Error>>()?;
        let buffers = reserved.iter().map(|tensor| tensor.shared_buffer().cloned());
        let own = hip::Pass::begin(&device, buffers.collect::<Result<_, _>>()?, wanted)?;
        Ok(Self { own, reserved })
    }

    /// As [`begin`](Self::begin), but `None` if there is no memory for the results.
    ///
    /// # Errors
    /// The other errors of `begin`.
    pub fn begin_if_fits(
        device: &RocmDevice,
        reserved: &[(usize, DType)],
        wanted: Vec<u32>,
    ) -> Result<Option<Self>, Error> {
        match Self::begin(device, reserved, wanted) {
            Err(error @ Error::OutOfMemory { .. }) => {
                log::debug!("a pass has no memory for results beside it: {error}");
                device.open()?.pool().made_up_for(1);
                Ok(None)
            }
            begun => begun.map(Some),
        }
    }

    /// Ends the pass.
    pub fn end(self) -> PassPoints {
        if any_put_off() {
            // The product becomes the work of one op more. If it fails, reads of its result report
            // the error.
            let _op = trace::op("pass_end", || "");
            let _ = enqueue_own();
        }
        PassPoints { points: self.own.end(), reserved: self.reserved }
    }
}

/// The points of a pass that has ended.
#[derive(Debug)]
pub struct PassPoints {
    pub(crate) points: Points,
    pub(crate) reserved: Vec<RocmTensor>,
}

impl PassPoints {
    /// The number of the pass's ops. Of nested ones only the outermost counts.
    pub fn ops(&self) -> u32 {
        self.points.ops()
    }

    /// The number of the points.
    pub fn count(&self) -> usize {
        self.points.count()
    }

    /// The first point behind everything that used the memory of the tensors until now. `None` if one
    /// was not used in the pass, or if others may use it too.
    ///
    /// # Errors
    /// The error of an op that was put off.
    pub fn behind(&self, tensors: &[&RocmTensor]) -> Result<Option<Behind<'_>>, Error> {
        let buffers = tensors.iter().map(|tensor| tensor.shared_buffer()).collect::<Result<Vec<_>, _>>()?;
        Ok(self.points.behind(buffers))
    }

    /// The number of the op behind which the first point is that is behind the work of this op.
    pub fn point_after(&self, op: u32) -> Option<u32> {
        self.points.point_after(op)
    }
}
