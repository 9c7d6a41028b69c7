//! Reads of several tensors: all copies are enqueued, then the host waits once for each device.

use burn_backend::ExecutionError;
use burn_backend::backend::ops::{
    QTensorOps, TransactionOps, TransactionPrimitive, TransactionPrimitiveData,
};

use super::Rocm;
use crate::error::execution;
use crate::ops::transfer;

impl TransactionOps<Self> for Rocm {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let TransactionPrimitive { read_floats, read_qfloats, read_ints, read_bools, .. } = transaction;
        let (floats, ints) = (read_floats.len(), read_ints.len());
        let tensors = [read_floats, read_ints, read_bools].concat();
        let mut read_floats = transfer::read_all(tensors).map_err(execution)?;
        let mut read_ints = read_floats.split_off(floats);
        let read_bools = read_ints.split_off(ints);
        // A separate method reads a quantised tensor's values and scales together.
        let mut quantised = Vec::new();
        for tensor in read_qfloats {
            quantised.push(Self::q_into_data(tensor).await?);
        }
        Ok(TransactionPrimitiveData { read_floats, read_qfloats: quantised, read_ints, read_bools })
    }
}
