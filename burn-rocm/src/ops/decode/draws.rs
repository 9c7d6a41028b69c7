//! Drawn tokens on their way to the host, and numbers that belong to them.

use burn_std::DType;

use super::sample::SampleState;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::tensor::RocmTensor;

/// A token that was drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability, as [`SampleState::chances`] has it; `None` if the
    /// state does not keep it. NaN if one of the row's logits was.
    pub chance: Option<f32>,
}

/// The last draws of all rows, which the device copies to the host. If it is dropped before
/// [`wait`](Self::wait), the drop waits for the copy.
#[derive(Debug)]
pub struct LateDraws {
    read: hip::LateRead,
    rows: usize,
    /// The number of tokens before the chances: those of all rows, of which these are the first.
    all: usize,
}

impl SampleState {
    /// Begins to read the tokens drawn last with their probabilities, by one copy, and does not
    /// wait. The next step may be enqueued before [`LateDraws::wait`], and overwrites only the
    /// state.
    ///
    /// # Errors
    /// `Invalid` for more than 8192 rows; `Capture` in a capture; an error of the device.
    pub fn begin_read(&self) -> hip::Result<LateDraws> {
        let drawn = self.drawn();
        let (buffer, bytes) = (drawn.shared_buffer()?, drawn.len() * size_of::<u32>());
        let read = drawn.hip_device().begin_read(buffer, drawn.byte_offset(), bytes)?;
        let all = drawn.len() / if self.chances().is_some() { 2 } else { 1 };
        Ok(LateDraws { read, rows: self.rows(), all })
    }
}

impl LateDraws {
    /// The draw of each row. Waits for the copy, not for steps that were enqueued behind it.
    ///
    /// # Errors
    /// An error of the device; `Invalid` if a kernel found a fault while it computed the tokens.
    pub fn wait(self) -> hip::Result<Vec<Draw>> {
        let (bytes, fault) = self.read.wait()?;
        fault.map_or(Ok(()), Err)?;
        let (words, _) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().map(|&word| u32::from_ne_bytes(word)).collect();
        let (tokens, chances) = words.split_at(self.all.min(words.len()));
        let draw = |(row, &token): (usize, &u32)| {
            let chance = chances.get(row).map(|&bits| f32::from_bits(bits));
            Draw { token, chance }
        };
        Ok(tokens.iter().take(self.rows).enumerate().map(draw).collect())
    }
}

/// A small tensor of f32, which the device copies to the host. If it is dropped before
/// [`wait`](Self::wait), the drop waits for the copy.
#[derive(Debug)]
pub struct LateFloats {
    read: hip::LateRead,
}

impl LateFloats {
    /// The most elements of a tensor.
    pub const MOST: usize = (64 << 10) / size_of::<f32>();

    /// Begins to read a tensor of f32, of any shape, and does not wait.
    ///
    /// # Errors
    /// `Invalid` for another dtype, or more than [`MOST`](Self::MOST) elements; `Capture` in a
    /// capture; an error of the device.
    pub fn begin(tensor: RocmTensor) -> hip::Result<Self> {
        if tensor.dtype_of() != DType::F32 || tensor.len() > Self::MOST {
            let found = format!("{} of {}", tensor.len(), tensor.dtype_of().name());
            return invalid("decode::LateFloats", format!("at most {} elements of f32", Self::MOST), found);
        }
        let tensor = packed(tensor)?;
        let (buffer, bytes) = (tensor.shared_buffer()?, tensor.len() * size_of::<f32>());
        let read = tensor.hip_device().begin_read(buffer, tensor.byte_offset(), bytes)?;
        Ok(Self { read })
    }

    /// The elements in row-major order. Waits for the copy, not for work that was enqueued behind
    /// it.
    ///
    /// # Errors
    /// An error of the device; `Invalid` if a kernel found a fault while it computed them.
    pub fn wait(self) -> hip::Result<Vec<f32>> {
        let (bytes, fault) = self.read.wait()?;
        fault.map_or(Ok(()), Err)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| f32::from_ne_bytes(word)).collect())
    }
}
