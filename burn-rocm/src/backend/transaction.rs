//! Reads of several tensors: all copies are enqueued, then the host waits once for each device. If
//! more than 64 MiB of a device are read, it waits once for each 64 MiB.

use burn_backend::ExecutionError;
use burn_backend::backend::ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData};

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::error::execution;
use crate::ops::quantized::quantize;

impl<F: FloatElement, I: IntElement, B: BoolElement> TransactionOps<Self> for Rocm<F, I, B> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let TransactionPrimitive { read_floats, read_qfloats, read_ints, read_bools, .. } = transaction;
        let (floats, ints) = (read_floats.len(), read_ints.len());
        let tensors = [read_floats, read_ints, read_bools].concat();
        let [mut read_floats, read_qfloats] =
            quantize::read_all("tr_execute", tensors, read_qfloats).map_err(execution)?;
        let mut read_ints = read_floats.split_off(floats);
        let read_bools = read_ints.split_off(ints);
        Ok(TransactionPrimitiveData { read_floats, read_qfloats, read_ints, read_bools })
    }
}
