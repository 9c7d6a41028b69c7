//! What the op families that use MIOpen share.

use std::sync::Once;

use hip::TensorArg;

use crate::tensor::RocmTensor;

/// The whole of a packed tensor as MIOpen takes it.
pub(crate) fn whole(tensor: &RocmTensor) -> TensorArg<'_> {
    TensorArg { buffer: tensor.buffer(), offset: tensor.byte_offset() }
}

/// `Ok` if the error comes from MIOpen and a kernel of this project may replace MIOpen. Warns once
/// through `log`.
pub(crate) fn without_library(error: hip::Error) -> hip::Result<()> {
    static ONCE: Once = Once::new();
    match error {
        hip::Error::Unsupported { .. }
        | hip::Error::Miopen { refused: true, .. }
        | hip::Error::NotAvailable { .. } => {
            ONCE.call_once(|| log::warn!("kernels of this crate replace MIOpen where it fails: {error}"));
            Ok(())
        }
        _ => Err(error),
    }
}
