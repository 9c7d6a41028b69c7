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

/// The draws of all rows in one pass or several, which the device copies to the host. If it is
/// dropped before [`wait`](Self::wait), the drop waits for the copy.
#[derive(Debug)]
pub struct LateDraws {
    read: hip::LateRead,
    rows: usize,
    /// The words of a pass. It has places for tokens, of which the first `rows` are read, and then as
    /// many for chances if there are any.
    each: usize,
    chances: bool,
}

impl SampleState {
    /// Begins to read the tokens drawn last with their probabilities, by one copy, and does not
    /// wait. The next step may be enqueued before [`LateDraws::wait`], and overwrites only the
    /// state.
    ///
    /// # Errors
    /// `Invalid` for more draws than [`LateDraws::MOST`], or than twice as many without chances;
    /// `Capture` in a capture; an error of the device.
    pub fn begin_read(&self) -> hip::Result<LateDraws> {
        self.begin_read_from(self.passes() - 1)
    }

    /// [`begin_read`](Self::begin_read) for all passes of [`of_passes`](Self::of_passes).
    ///
    /// # Errors
    /// As [`begin_read`](Self::begin_read), where each row counts once for each pass.
    pub fn begin_read_passes(&self) -> hip::Result<LateDraws> {
        self.begin_read_from(0)
    }

    fn begin_read_from(&self, pass: usize) -> hip::Result<LateDraws> {
        let drawn = self.drawn();
        let (bytes, chances) = (size_of::<u32>(), self.chances().is_some());
        let each = self.drawn_in_pass();
        let start = pass * each;
        let (offset, count) = (drawn.byte_offset() + start * bytes, drawn.len() - start);
        let read = drawn.hip_device().begin_read(drawn.shared_buffer()?, offset, count * bytes)?;
        Ok(LateDraws { read, rows: self.rows(), each, chances })
    }
}

impl LateDraws {
    /// The most draws with chances that one read returns.
    pub const MOST: usize = (64 << 10) / (size_of::<u32>() + size_of::<f32>());

    /// The draw of each row; of several passes, those of the first one come first. Waits for the
    /// copy, not for steps that were enqueued behind it.
    ///
    /// # Errors
    /// An error of the device; `Invalid` if a kernel found a fault while it computed the tokens.
    pub fn wait(self) -> hip::Result<Vec<Draw>> {
        let Self { read, rows, each, chances } = self;
        let (bytes, fault) = read.wait()?;
        fault.map_or(Ok(()), Err)?;
        let (words, _) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().map(|&word| u32::from_ne_bytes(word)).collect();
        let places = if chances { each / 2 } else { each };
        let draws = words.chunks_exact(each).flat_map(|pass| {
            let (tokens, chances) = pass.split_at(places);
            let draw = move |(row, &token): (usize, &u32)| {
                let chance = chances.get(row).map(|&bits| f32::from_bits(bits));
                Draw { token, chance }
            };
            tokens.iter().take(rows).enumerate().map(draw)
        });
        Ok(draws.collect())
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
