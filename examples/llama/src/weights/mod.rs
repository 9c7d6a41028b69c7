//! The weights of a model: which tensors it needs, and where they come from.

mod adapted;
mod expected;
mod folder;
mod fp8;
mod part;
mod quantised;
mod random;

use burn::tensor::DType;
use burn_rocm::fused::WeightParts;

use crate::error::{Error, Result};

pub use adapted::{Adapted, LowRank};
pub use expected::{Role, Weight, bytes};
pub(crate) use expected::{expected, layer_name};
pub use folder::Folder;
pub use part::Part;
pub use random::Random;

/// The error text for a file for which [`is_pointer`] is true.
pub(crate) const POINTER: &str =
    "expected weights, found a Git LFS pointer: `git lfs pull` in its folder fetches them";

/// Whether Git wrote this file in place of one that Git LFS keeps elsewhere.
pub(crate) fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs")
}

/// A source of weights, from which the threads of several devices may read.
pub trait Source: Sync {
    /// The elements of a weight, as the source has them, without its [`adapter`](Self::adapter).
    ///
    /// # Errors
    /// [`Error::Tensor`] if the weight is missing or has another shape or
    /// dtype; an error of the file.
    fn read(&self, weight: &Weight) -> Result<Elements<'_>>;

    /// What is added to a matrix.
    fn adapter(&self, _weight: &Weight) -> Option<LowRank> {
        None
    }

    /// Checks names and shapes of all weights, without reading their elements.
    ///
    /// # Errors
    /// As [`read`](Self::read), for the first weight that is wrong.
    fn check(&self, weights: &[Weight]) -> Result<()>;

    /// The bytes that a weight takes on the device if the source has it quantised.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn quantised_bytes(&self, _weight: &Weight) -> Result<Option<usize>> {
        Ok(None)
    }

    /// The elements of a weight as floats.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Argument`] if the weight is quantised and this source can't
    /// compute its floats.
    fn read_floats(&self, weight: &Weight) -> Result<Elements<'_>> {
        match self.read(weight)? {
            Elements::Quantised(_) => {
                let expected = "weights that are floats, or a GGUF file".to_owned();
                Err(Error::Argument { name: "model", expected, found: "quantised weights".to_owned() })
            }
            floats => Ok(floats),
        }
    }

    /// The dtype that most weights have.
    fn dtype(&self) -> DType;
}

/// A weight's elements in row-major order.
#[derive(Debug)]
pub enum Elements<'a> {
    /// Little-endian bytes of a file: f32, f16 or bf16.
    Bytes(&'a [u8], DType),
    /// Elements that the host computed.
    F32(Vec<f32>),
    /// Elements that the device draws from a normal distribution with this deviation and mean 0.
    Normal(f64),
    /// The same number everywhere.
    Constant(f64),
    /// A matrix that the file has quantised.
    Quantised(Box<WeightParts>),
}
