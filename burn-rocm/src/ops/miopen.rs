//! What the op families that use MIOpen share.

use std::fmt::{self, Display};
use std::sync::Once;

use hip::TensorArg;

use crate::tensor::RocmTensor;

/// The whole of a packed tensor as MIOpen takes it.
pub(crate) fn whole(tensor: &RocmTensor) -> TensorArg<'_> {
    TensorArg { buffer: tensor.buffer(), offset: tensor.byte_offset() }
}

/// `Ok` if the error comes from MIOpen and a kernel of this project may replace MIOpen. Warns once
/// through `log`, and tells the summary.
pub(crate) fn without_library(error: hip::Error) -> hip::Result<()> {
    static ONCE: Once = Once::new();
    match may_replace(&error) {
        true => {
            let error = hip::allow_fallback(error)?;
            ONCE.call_once(|| log::warn!("kernels of this crate replace MIOpen where it fails: {error}"));
            hip::trace::fell_back(|| format!("MIOpen failed: {error}"));
            Ok(())
        }
        false => Err(error),
    }
}

/// Whether a kernel of this project may replace MIOpen after this error.
pub(crate) fn may_replace(error: &hip::Error) -> bool {
    use hip::Error::{Miopen, NotAvailable, Unsupported};
    matches!(error, Unsupported { .. } | Miopen { refused: true, .. } | NotAvailable { .. })
}

/// Why MIOpen does not compute an op that it could compute for other operands.
#[derive(Debug)]
pub(crate) enum Why {
    /// A setting, or a rule of this project.
    Rule(&'static str),
    /// What MIOpen lacks, or its failure.
    Error(hip::Error),
}

impl Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => f.write_str(rule),
            Self::Error(error) => write!(f, "not MIOpen: {error}"),
        }
    }
}

impl Why {
    /// Tells the summary, and for a failure the log.
    ///
    /// # Errors
    /// The failure, if no kernel may replace MIOpen after it.
    pub(crate) fn tell(self) -> hip::Result<()> {
        match self {
            Self::Error(error) if !matches!(error, hip::Error::Unsupported { .. }) => without_library(error),
            why => {
                hip::trace::fell_back(|| why);
                Ok(())
            }
        }
    }
}
